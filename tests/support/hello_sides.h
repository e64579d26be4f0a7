/**
 * @file hello_sides.h  State machines of group/hello.h that exchange bytes through buffers, and a
 * peer that sends frames built by hand.
 */
#ifndef TEST_HELLO_SIDES_H
#define TEST_HELLO_SIDES_H

#include "build.h"

#include <openssl/hmac.h>

#include "group/hello.h"

enum { HEADER = 5, MAC = 32, ROOM = 2048, UNCUT = 1 << 20 };
enum { HELLO = 1, PROOF = 2, ACCEPT = 3, REFUSE = 4 };

/* Offsets of the fields of a HELLO frame. */
enum {
    AT_MAGIC = 5,
    AT_VERSION = 9,
    AT_LOWEST = 11,
    AT_FLAGS = 13,
    AT_METHOD = 15,
    AT_PURPOSE = 16,
    AT_RANK = 17,
    AT_SIZE = 21,
    AT_INCARNATION = 25,
    AT_NONCE = 33,
    AT_JOB = 65
};

static const wh_group_key test_key = {.id = UINT64_C(0x1F2E3D4C5B6A7988), .proof = "the tide turns at six, as usual"};
static const wh_group_key other_key = {.id = UINT64_C(0x1F2E3D4C5B6A7989), .proof = "another one"};

/** A state machine and its result. */
typedef struct side {
    wh_hello *machine;
    wherry_status status;
    wherry_error error;
    uint8_t heard[ROOM]; /* all bytes that the other side has sent */
    size_t heard_size;
    size_t flip_at; /* number of the received bit to flip; SIZE_MAX: flip none */
} side;

static inline wh_hello_config config_of(uint32_t rank) {
    return (wh_hello_config){
        .flags = (uint16_t)(0x100 + rank),
        .rank = rank,
        .size = 4,
        .incarnation = UINT64_C(0x1122334455667700) + rank,
        .table = UINT64_C(0x99AA) + rank,
        .job = "job-7",
        .address = rank == 0 ? "tcp://10.0.0.1:4711" : "unix:///tmp/größer",
        .method = WH_HELLO_METHOD_SECRET,
        .keys = &test_key,
        .key_count = 1,
    };
}

static inline void begin(side *s, const wh_hello_config *config, bool dialled) {
    memset(s, 0, sizeof(*s));
    s->flip_at = SIZE_MAX;
    must(wh_hello_create(config, dialled, &s->machine, NULL));
}

/** Begins both sides; the left one connects. */
static inline void begin_both(side *left, const wh_hello_config *a, side *right, const wh_hello_config *b) {
    begin(left, a, true);
    begin(right, b, false);
}

static inline void finish(side *a, side *b) {
    wh_hello_destroy(a->machine);
    wh_hello_destroy(b->machine);
}

/**
 * Feeds bytes and records the first failure. Later bytes are dropped, as on a closed connection.
 */
static inline void feed(side *s, const uint8_t *bytes, size_t size) {
    size_t consumed = SIZE_MAX;
    if (s->status == WHERRY_OK) {
        s->error.message[0] = '\0';
        s->status = wh_hello_input(s->machine, bytes, size, &consumed, &s->error);
        assert_true(s->status == WHERRY_OK ? consumed == size : consumed == SIZE_MAX);
        assert_true(s->status == WHERRY_OK || (s->error.status == s->status && s->error.message[0]));
        assert_int_equal(wh_hello_state_of(s->machine) == WH_HELLO_FAILED, s->status != WHERRY_OK);
    }
}

/**
 * Delivers the pending output of one side to the other, in pieces of `piece` bytes. A piece always
 * ends `cut` bytes after the start, too.
 */
static inline size_t carry(side *from, side *to, size_t piece, size_t cut) {
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(from->machine, &bytes, &size);
    size = size < piece ? size : piece;
    if (to->heard_size < cut && size > cut - to->heard_size) {
        size = cut - to->heard_size;
    }
    uint8_t copy[ROOM];
    memcpy(copy, bytes, size);
    size_t flip = to->flip_at / 8;
    if (flip >= to->heard_size && flip - to->heard_size < size) {
        copy[flip - to->heard_size] ^= (uint8_t)(1 << to->flip_at % 8);
    }
    assert_true(to->heard_size + size <= ROOM);
    memcpy(to->heard + to->heard_size, copy, size);
    to->heard_size += size;
    wh_hello_sent(from->machine, size);
    feed(to, copy, size);
    return size;
}

static inline void talk(side *a, side *b, size_t piece, size_t cut) {
    while (carry(a, b, piece, cut) + carry(b, a, piece, cut) > 0) {
    }
}

static inline bool done(const side *s) {
    return wh_hello_state_of(s->machine) == WH_HELLO_DONE;
}

/** The last frame to be sent is a REFUSE for this reason, and the machine reports the same one. */
static inline void assert_refuses(const wh_hello *machine, wh_refusal refusal) {
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(machine, &bytes, &size);
    assert_int_equal(wh_hello_refusal(machine), refusal);
    assert_int_equal(wh_hello_state_of(machine), WH_HELLO_FAILED);
    while (size > 0) {
        size_t frame = HEADER + ((size_t)bytes[2] << 8) + bytes[3];
        assert_true(frame <= size);
        if (frame == size) {
            assert_int_equal(bytes[4], REFUSE);
            assert_int_equal(bytes[HEADER], refusal);
            assert_true(frame > HEADER + 1);
        }
        bytes += frame;
        size -= frame;
    }
}

static inline void assert_knows(const side *s, const wh_hello_config *peer, wh_hello_purpose purpose) {
    const wh_hello_fields *fields = wh_hello_peer(s->machine);
    assert_non_null(fields);
    assert_int_equal(fields->version, 2);
    assert_int_equal(fields->flags, peer->flags);
    assert_int_equal(fields->method, peer->method);
    assert_true(fields->key == (peer->key_count ? peer->keys->id : 0));
    assert_int_equal(fields->purpose, purpose);
    assert_int_equal(fields->rank, peer->rank);
    assert_int_equal(fields->size, peer->size);
    assert_true(fields->incarnation == peer->incarnation);
    assert_string_equal(fields->job, peer->job);
    assert_string_equal(fields->address, peer->address);
    assert_true(fields->table == peer->table);
}

/* ---- a peer whose frames are built by hand, from the text of hello.h ---- */

typedef struct script {
    uint8_t bytes[WH_HELLO_FRAME_MAX + ROOM];
    size_t size;
} script;

static inline void add_number(script *s, size_t width, uint64_t number) {
    for (size_t i = width; i-- > 0; number >>= 8) {
        s->bytes[s->size + i] = (uint8_t)number;
    }
    s->size += width;
}

static inline void add_bytes(script *s, const void *bytes, size_t size) {
    memcpy(s->bytes + s->size, bytes, size);
    s->size += size;
}

static inline void add_frame(script *s, int type, const void *body, size_t size) {
    add_number(s, 4, size);
    add_number(s, 1, (uint64_t)type);
    add_bytes(s, body, size);
}

/** Corrects the size field of the only frame in the script. */
static inline void set_size(script *s) {
    size_t size = s->size;
    s->size = 0;
    add_number(s, 4, size - HEADER);
    s->size = size;
}

/** The HELLO of config_of(1). */
static inline script hand_hello(void) {
    wh_hello_config config = config_of(1);
    script s = {0};
    add_frame(&s, HELLO, "WHRY", 4);
    add_number(&s, 2, 2);
    add_number(&s, 2, 2);
    add_number(&s, 2, config.flags);
    add_number(&s, 1, 1);
    add_number(&s, 1, 0);
    add_number(&s, 4, config.rank);
    add_number(&s, 4, config.size);
    add_number(&s, 8, config.incarnation);
    add_bytes(&s, "0123456789abcdef0123456789abcdef", WH_HELLO_NONCE);
    add_number(&s, 2, strlen(config.job));
    add_bytes(&s, config.job, strlen(config.job));
    add_number(&s, 2, strlen(config.address));
    add_bytes(&s, config.address, strlen(config.address));
    add_number(&s, 8, config.table);
    add_number(&s, 8, config.keys->id);
    set_size(&s);
    return s;
}

/** The PROOF of a peer that knows the secret. */
static inline void hand_proof(int role, const script *own, const uint8_t *other, size_t other_size,
                              uint8_t proof[MAC]) {
    script text = {0};
    add_number(&text, 1, (uint64_t)role);
    add_bytes(&text, own->bytes, own->size);
    add_bytes(&text, other, other_size);
    assert_non_null(HMAC(EVP_sha256(), test_key.proof, WH_KEY_BYTES, text.bytes, text.size, proof, NULL));
}

/**
 * Gives the frame to a new machine: rank 0, the side that connects. @return its status. The caller
 * frees the machine.
 */
static inline wherry_status give(side *left, const script *s) {
    wh_hello_config config = config_of(0);
    begin(left, &config, true);
    feed(left, s->bytes, s->size);
    return left->status;
}

/** Like give, but the machine must fail. */
static inline void assert_rejected(const script *s, wherry_status status, wh_refusal refusal) {
    side left;
    assert_int_equal(give(&left, s), status);
    assert_refuses(left.machine, refusal);
    assert_null(wh_hello_peer(left.machine));
    wh_hello_destroy(left.machine);
}

#endif
