/* The first frames on a connection. The protocol and the invariants are in hello.h. */
#include "group/hello.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"

typedef enum frame_type { FRAME_HELLO = 1, FRAME_PROOF = 2, FRAME_ACCEPT = 3, FRAME_REFUSE = 4 } frame_type;

enum {
    HEADER = 5,
    MAC = 32,
    OUTPUT_MAX = 1024,
    /** Maximum size of a HELLO that this version sends: header, fixed fields, two texts. */
    OWN_HELLO_MAX = HEADER + 44 + WH_HELLO_NONCE + 2 * (2 + WH_HELLO_TEXT_MAX),
};

struct wh_hello {
    bool dialled;
    bool proven; /**< The peer's PROOF was correct. */
    wh_hello_state state;
    wh_refusal refusal;
    uint64_t newer;      /**< With WH_REFUSAL_STALE: the newer incarnation; 0: unknown. */
    frame_type expected; /**< The type of the peer's next frame, unless it is a REFUSE. */
    wh_hello_admit admit;
    wh_hello_ticket_key ticket_key;
    void *context;
    wh_hello_fields own;
    wh_hello_fields peer;
    uint8_t proof[MAC]; /**< The expected PROOF of the peer. */
    /**
     * All bytes to send, including those already sent. The HELLO of this side stays at the
     * beginning, because the proofs need it.
     */
    uint8_t output[OUTPUT_MAX];
    size_t output_size;
    size_t sent;
    size_t hello_size;
    uint8_t input[WH_HELLO_FRAME_MAX]; /**< The frame that is arriving. */
    size_t input_size;
    wh_group_key keys[WH_HELLO_KEYS_MAX];
    size_t key_count;
    uint8_t key[WH_KEY_BYTES]; /**< The key of both proofs. */
    bool bound;
    uint8_t binding[WH_KEY_BYTES];
    bool wants_one;
    bool other_user;
    uint32_t wanted;
    uint64_t wanted_incarnation;
    bool has_ticket_key;
    uint8_t peer_ticket_key[WH_KEY_BYTES];
};

static const char magic[4] = {'W', 'H', 'R', 'Y'};

/* ---- encoding: each function returns where the next field goes ---- */

static uint8_t *put(uint8_t *at, size_t width, uint64_t number) {
    for (size_t i = width; i-- > 0;) {
        at[i] = (uint8_t)number;
        number >>= 8;
    }
    return at + width;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_text(uint8_t *at, const char *text) {
    size_t size = strlen(text);
    return put_bytes(put(at, 2, size), text, size);
}

/** Writes the HELLO of this side as a frame. @return its size. */
static size_t encode_hello(const wh_hello_fields *own, uint8_t frame[OWN_HELLO_MAX]) {
    uint8_t *at = put_bytes(frame + HEADER, magic, sizeof(magic));
    at = put(at, 2, WH_HELLO_VERSION);
    at = put(at, 2, WH_HELLO_VERSION_LOWEST);
    at = put(at, 2, own->flags);
    at = put(at, 1, own->method);
    at = put(at, 1, own->purpose);
    at = put(at, 4, own->rank);
    at = put(at, 4, own->size);
    at = put(at, 8, own->incarnation);
    at = put_bytes(at, own->nonce, sizeof(own->nonce));
    at = put_text(at, own->job);
    at = put_text(at, own->address);
    at = put(at, 8, own->table);
    at = put(at, 8, own->key);
    size_t size = (size_t)(at - frame);
    assert(size <= OWN_HELLO_MAX);
    put(put(frame, 4, size - HEADER), 1, FRAME_HELLO);
    return size;
}

/* ---- decoding ---- */

/** Copies a text and appends a zero byte. */
static wherry_status take_text(wh_cursor *body, const char *what, char text[WH_HELLO_TEXT_MAX + 1],
                               wherry_error *error) {
    size_t size = (size_t)wh_cursor_number(body, 2);
    if (size > WH_HELLO_TEXT_MAX) {
        return wh_fail(error, WHERRY_LIMIT, "the peer's HELLO has %s of %zu bytes; the limit is %d", what, size,
                       WH_HELLO_TEXT_MAX);
    }
    const uint8_t *bytes = wh_cursor_bytes(body, size);
    if (!bytes) {
        return wh_fail(error, WHERRY_TRUNCATED, "the peer's HELLO ends within %s", what);
    }
    if (!wh_utf8_printable((const char *)bytes, size)) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer's HELLO has %s that is not printable UTF-8", what);
    }
    memcpy(text, bytes, size);
    text[size] = '\0';
    return WHERRY_OK;
}

/** Reads the fields that are the same in every version, and chooses the version. */
static wherry_status take_version(wh_cursor *body, wh_hello_fields *peer, bool *newer, wherry_error *error) {
    const uint8_t *first = wh_cursor_bytes(body, sizeof(magic));
    if (!first || memcmp(first, magic, sizeof(magic)) != 0) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the peer does not speak Wherry's protocol; check the address and the port");
    }
    uint16_t version = (uint16_t)wh_cursor_number(body, 2);
    uint16_t lowest = (uint16_t)wh_cursor_number(body, 2);
    if (lowest == 0 || lowest > version) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer's HELLO has an invalid range of versions: %u to %u", lowest,
                       version);
    }
    if (lowest > WH_HELLO_VERSION || version < WH_HELLO_VERSION_LOWEST) {
        return wh_fail(error, WHERRY_BAD_VERSION,
                       "the peer supports versions %u to %u of the protocol, this side %d to %d; use the same version "
                       "of Wherry on both sides",
                       lowest, version, WH_HELLO_VERSION_LOWEST, WH_HELLO_VERSION);
    }
    *newer = version > WH_HELLO_VERSION;
    peer->version = *newer ? WH_HELLO_VERSION : version;
    return WHERRY_OK;
}

/** Reads the fields between the version and the texts. */
static wherry_status take_numbers(wh_cursor *body, wh_hello_fields *peer, wherry_error *error) {
    peer->flags = (uint16_t)wh_cursor_number(body, 2);
    peer->method = (uint8_t)wh_cursor_number(body, 1);
    peer->purpose = (uint8_t)wh_cursor_number(body, 1);
    peer->rank = (uint32_t)wh_cursor_number(body, 4);
    peer->size = (uint32_t)wh_cursor_number(body, 4);
    peer->incarnation = wh_cursor_number(body, 8);
    const uint8_t *nonce = wh_cursor_bytes(body, sizeof(peer->nonce));
    if (!nonce) {
        return wh_fail(error, WHERRY_TRUNCATED, "the peer's HELLO ends before the end of its nonce");
    }
    memcpy(peer->nonce, nonce, sizeof(peer->nonce));
    if (peer->size > INT32_MAX || peer->rank >= peer->size) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer's HELLO has an invalid rank: %" PRIu32 " of %" PRIu32,
                       peer->rank, peer->size);
    }
    if (peer->purpose > WH_HELLO_DATA) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer's HELLO has the unknown purpose %u", peer->purpose);
    }
    return WHERRY_OK;
}

/** Decodes a HELLO and checks each field. `compare` checks whether it matches this side. */
static wherry_status decode_hello(const uint8_t *body, size_t size, wh_hello_fields *peer_p, wherry_error *error) {
    wh_cursor rest = wh_cursor_over(body, size);
    wh_hello_fields peer = {0};
    bool newer = false;
    WH_TRY(take_version(&rest, &peer, &newer, error));
    WH_TRY(take_numbers(&rest, &peer, error));
    WH_TRY(take_text(&rest, "a job id", peer.job, error));
    WH_TRY(take_text(&rest, "an address", peer.address, error));
    peer.table = wh_cursor_number(&rest, 8);
    peer.key = wh_cursor_number(&rest, 8);
    if (rest.failed) {
        return wh_fail(error, WHERRY_TRUNCATED, "the peer's HELLO ends before the id of its key");
    }
    if (rest.left > 0 && !newer) {
        return wh_fail(error, WHERRY_TRAILING_BYTES, "the peer's HELLO has %zu bytes too many", rest.left);
    }
    *peer_p = peer;
    return WHERRY_OK;
}

/* ---- the machine ---- */

static void put_frame(wh_hello *hello, frame_type type, const void *body, size_t size) {
    assert(HEADER + size <= sizeof(hello->output) - hello->output_size);
    put_bytes(put(put(hello->output + hello->output_size, 4, size), 1, type), body, size);
    hello->output_size += HEADER + size;
}

static const char *refusal_text(wh_refusal refusal) {
    switch (refusal) {
#define WH_X(name, value, text)                                                                                        \
    case WH_REFUSAL_##name:                                                                                            \
        return text;
        WH_REFUSAL_LIST(WH_X)
#undef WH_X
    }
    return "an unknown reason";
}

/**
 * Tells the peer that this side refuses it, and why. After this side has sent ACCEPT, it sends
 * nothing, because the peer's next layer would read it. The owner then only closes the connection.
 * @return status.
 */
static wherry_status refuse(wh_hello *hello, wh_refusal refusal, wherry_status status) {
    char body[1 + WH_HELLO_TEXT_MAX + 1];
    int size = snprintf(body, sizeof(body), "%c%s", (int)refusal, refusal_text(refusal));
    if (hello->newer) {
        size += snprintf(body + size, sizeof(body) - (size_t)size, ": incarnation %" PRIu64, hello->newer);
    }
    hello->refusal = refusal;
    if (hello->expected != FRAME_ACCEPT) {
        put_frame(hello, FRAME_REFUSE, body, (size_t)size);
    }
    return status;
}

static const char *method_text(uint8_t method) {
    switch (method) {
    case WH_HELLO_METHOD_NONE:
        return "no secret";
    case WH_HELLO_METHOD_SECRET:
        return "a secret";
    case WH_HELLO_METHOD_USER_KEY:
        return "the key of its user";
    case WH_HELLO_METHOD_TLS:
        return "TLS";
    case WH_HELLO_METHOD_TICKET:
        return "TLS, and takes clear text only with a ticket";
    case WH_HELLO_METHOD_READER:
        return "a server's token";
    default:
        return "an unknown kind of proof";
    }
}

/** Why a proof is not accepted. */
static const char *secret_text(const wh_hello *hello) {
    switch (hello->own.method) {
    case WH_HELLO_METHOD_USER_KEY:
        return "the peer has the key of another user, or its own in another container; set the same WHERRY_SECRET on "
               "all ranks";
    case WH_HELLO_METHOD_TICKET:
        return "the peer's ticket for a data connection is not this side's";
    case WH_HELLO_METHOD_READER:
        return "the peer has a different token; use the one that the server prints";
    default:
        return "the peer has a different secret; set the same secret on both sides";
    }
}

/** Checks that the HELLOs of both sides match. */
static wherry_status compare(wh_hello *hello, wherry_error *error) {
    const wh_hello_fields *own = &hello->own;
    const wh_hello_fields *peer = &hello->peer;
    bool same_process = own->rank == peer->rank && own->incarnation == peer->incarnation;
    if (strcmp(own->job, peer->job) != 0) {
        wh_fail(error, WHERRY_MISMATCH,
                "the peer belongs to job \"%s\", this side to \"%s\"; check the address, or set the same job for both",
                peer->job, own->job);
        return refuse(hello, WH_REFUSAL_JOB, WHERRY_MISMATCH);
    }
    if (own->size != peer->size) {
        wh_fail(error, WHERRY_MISMATCH,
                "the peer's group has %" PRIu32 " ranks, this side's %" PRIu32 "; start all ranks with the same size",
                peer->size, own->size);
        return refuse(hello, WH_REFUSAL_SIZE, WHERRY_MISMATCH);
    }
    if (same_process) {
        wh_fail(error, WHERRY_MISMATCH,
                "the peer is rank %" PRIu32 " incarnation %" PRIu64
                ", like this process: this process has connected to itself, or two processes have the same rank",
                own->rank, own->incarnation);
        return refuse(hello, WH_REFUSAL_OWN_RANK, WHERRY_MISMATCH);
    }
    /* Nonces are random. A peer with the same nonce has copied it from this side's HELLO. */
    if (memcmp(own->nonce, peer->nonce, WH_HELLO_NONCE) == 0) {
        wh_fail(
            error, WHERRY_MISMATCH,
            "the peer sent back the nonce of this side; check the address and any proxy that forwards the connection");
        return refuse(hello, WH_REFUSAL_OWN_RANK, WHERRY_MISMATCH);
    }
    if (hello->dialled && peer->purpose != WH_HELLO_CONTROL) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the peer sent purpose %u, but only the side that opened the connection may choose its purpose",
                       peer->purpose);
    }
    if (own->method == peer->method) {
        return WHERRY_OK;
    }
    wh_fail(error, WHERRY_BAD_SECRET,
            "this side has %s and the peer has %s; set the same WHERRY_SECRET on all ranks, or on none",
            method_text(own->method), method_text(peer->method));
    return refuse(hello, WH_REFUSAL_SECRET, WHERRY_BAD_SECRET);
}

/**
 * Computes the PROOF of one side. The peer's HELLO must still be in hello->input.
 * @return false if libcrypto fails.
 */
static bool prove(const wh_hello *hello, bool of_peer, uint8_t proof[MAC]) {
    uint8_t text[1 + OWN_HELLO_MAX + WH_HELLO_FRAME_MAX + WH_KEY_BYTES];
    const uint8_t *first = of_peer ? hello->input : hello->output;
    const uint8_t *second = of_peer ? hello->output : hello->input;
    size_t first_size = of_peer ? hello->input_size : hello->hello_size;
    size_t second_size = of_peer ? hello->hello_size : hello->input_size;
    size_t size = 1 + first_size + second_size;
    text[0] = hello->dialled == of_peer; /* 0 if the proving side opened the connection, else 1 */
    memcpy(text + 1, first, first_size);
    memcpy(text + 1 + first_size, second, second_size);
    if (hello->bound) {
        memcpy(text + size, hello->binding, WH_KEY_BYTES);
        size += WH_KEY_BYTES;
    }
    bool proven = HMAC(EVP_sha256(), hello->key, WH_KEY_BYTES, text, size, proof, NULL);
    OPENSSL_cleanse(text, size); /* The text contains the binding, which is secret. */
    return proven;
}

static size_t proof_size(const wh_hello *hello) {
    return hello->own.method == WH_HELLO_METHOD_NONE || hello->own.method == WH_HELLO_METHOD_TLS ? 0 : MAC;
}

/** Makes the ticket that the side that opened the connection names, as the key of both proofs. */
static bool choose_ticket(wh_hello *hello) {
    uint8_t ticket_key[WH_KEY_BYTES];
    uint8_t number[8];
    wh_store_be64(number, hello->dialled ? hello->own.key : hello->peer.key);
    /* A ticket opens data connections only. */
    bool found = hello->dialled ? hello->key_count > 0
                                : hello->peer.purpose == WH_HELLO_DATA && hello->ticket_key &&
                                      hello->ticket_key(hello->context, &hello->peer, ticket_key);
    const uint8_t *from = hello->dialled ? hello->keys->proof : ticket_key;
    found = found && HMAC(EVP_sha256(), from, WH_KEY_BYTES, number, sizeof(number), hello->key, NULL);
    OPENSSL_cleanse(ticket_key, sizeof(ticket_key));
    return found;
}

/** Finds the key of both proofs: that of the side that opened the connection. */
static wherry_status choose_key(wh_hello *hello, wherry_error *error) {
    bool by_ticket = hello->own.method == WH_HELLO_METHOD_TICKET;
    bool found = by_ticket && choose_ticket(hello);
    uint64_t id = hello->dialled ? hello->own.key : hello->peer.key;
    for (size_t i = 0; i < hello->key_count && !by_ticket && !found; i++) {
        found = hello->keys[i].id == id;
        memcpy(hello->key, hello->keys[i].proof, WH_KEY_BYTES);
    }
    return found ? WHERRY_OK
                 : refuse(hello, WH_REFUSAL_SECRET, wh_fail(error, WHERRY_BAD_SECRET, "%s", secret_text(hello)));
}

/** Refuses a peer that must not get a PROOF of this side. */
static wherry_status check_peer(wh_hello *hello, wherry_error *error) {
    const wh_hello_fields *peer = &hello->peer;
    bool another = hello->wanted_incarnation && hello->wanted_incarnation != peer->incarnation;
    if (hello->wants_one && (peer->rank != hello->wanted || another)) {
        wh_fail(error, WHERRY_MISMATCH,
                "rank %" PRIu32 " was dialled, and rank %" PRIu32 " incarnation %" PRIu64 " has answered",
                hello->wanted, peer->rank, peer->incarnation);
        return refuse(hello, WH_REFUSAL_OTHER, WHERRY_MISMATCH);
    }
    if (!hello->other_user) {
        return WHERRY_OK;
    }
    bool known = false;
    for (size_t i = 0; i < hello->key_count && !known; i++) {
        known = hello->keys[i].id == peer->key;
    }
    if (!known) { /* The user of the peer can change these settings. */
        return refuse(hello, WH_REFUSAL_SECRET, wh_fail(error, WHERRY_BAD_SECRET, "%s", secret_text(hello)));
    }
    wh_fail(error, WHERRY_MISMATCH, "rank %" PRIu32 ": %s", peer->rank, refusal_text(WH_REFUSAL_USER));
    return refuse(hello, WH_REFUSAL_USER, WHERRY_MISMATCH);
}

static wherry_status on_hello(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    wherry_status status = decode_hello(body, size, &hello->peer, error);
    if (status == WHERRY_BAD_VERSION) {
        return refuse(hello, WH_REFUSAL_VERSION, status);
    }
    WH_TRY(status);
    WH_TRY(compare(hello, error));
    uint8_t own[MAC] = {0};
    WH_TRY(proof_size(hello) > 0 ? choose_key(hello, error) : WHERRY_OK);
    WH_TRY(check_peer(hello, error));
    if (proof_size(hello) > 0 && (!prove(hello, false, own) || !prove(hello, true, hello->proof))) {
        return wh_fail(error, WHERRY_INTERNAL, "libcrypto cannot compute HMAC-SHA-256; check its configuration");
    }
    put_frame(hello, FRAME_PROOF, own, proof_size(hello));
    hello->expected = FRAME_PROOF;
    return WHERRY_OK;
}

static wherry_status on_proof(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    if (size != proof_size(hello)) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer's PROOF has %zu bytes instead of %zu", size,
                       proof_size(hello));
    }
    if (CRYPTO_memcmp(body, hello->proof, size) != 0) {
        return refuse(hello, WH_REFUSAL_SECRET, wh_fail(error, WHERRY_BAD_SECRET, "%s", secret_text(hello)));
    }
    hello->proven = true;
    wh_refusal refusal = hello->admit ? hello->admit(hello->context, &hello->peer, &hello->newer) : WH_REFUSAL_NONE;
    if (refusal != WH_REFUSAL_NONE) {
        wh_fail(error, WHERRY_MISMATCH, "refused rank %" PRIu32 " incarnation %" PRIu64 ": %s", hello->peer.rank,
                hello->peer.incarnation, refusal_text(refusal));
        return refuse(hello, refusal, WHERRY_MISMATCH);
    }
    uint8_t ticket_key[WH_KEY_BYTES];
    bool gives = hello->own.method == WH_HELLO_METHOD_TLS && hello->peer.purpose == WH_HELLO_CONTROL &&
                 hello->own.purpose == WH_HELLO_CONTROL && hello->ticket_key &&
                 hello->ticket_key(hello->context, &hello->peer, ticket_key);
    put_frame(hello, FRAME_ACCEPT, ticket_key, gives ? sizeof(ticket_key) : 0);
    OPENSSL_cleanse(ticket_key, sizeof(ticket_key));
    hello->expected = FRAME_ACCEPT;
    return WHERRY_OK;
}

/** Returns the number at the end of a text; 0 if there is none or it is too large. */
static uint64_t number_at_end(const char *text, size_t size) {
    size_t begin = size;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') {
        begin--;
    }
    uint64_t number = 0;
    for (size_t i = begin; i < size; i++) {
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(text[i] - '0'), &number)) {
            return 0;
        }
    }
    return number;
}

static wherry_status on_refuse(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    uint8_t reason = size > 0 ? body[0] : WH_REFUSAL_NONE;
    const char *text = (const char *)body + 1;
    if (reason == WH_REFUSAL_NONE || size - 1 > WH_HELLO_TEXT_MAX || !wh_utf8_printable(text, size - 1)) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer sent a malformed REFUSE");
    }
    hello->refusal = reason <= WH_REFUSAL_USED ? (wh_refusal)reason : WH_REFUSAL_OTHER;
    hello->newer = hello->refusal == WH_REFUSAL_STALE ? number_at_end(text, size - 1) : 0;
    return wh_fail(error, WHERRY_REFUSED, "the peer refused this side: %.*s (reason %u)", (int)size - 1, text, reason);
}

/** Checks the header of a frame before its body is read. */
static wherry_status check_header(const wh_hello *hello, wherry_error *error) {
    uint32_t size = wh_load_be32(hello->input);
    uint8_t type = hello->input[4];
    if (size > WH_HELLO_FRAME_MAX - HEADER) {
        return wh_fail(error, WHERRY_LIMIT,
                       "the peer begins a frame of %" PRIu32
                       " bytes; the limit is %d. The peer may not be Wherry: check the address and the port",
                       size, WH_HELLO_FRAME_MAX - HEADER);
    }
    if (type != (uint8_t)hello->expected && type != FRAME_REFUSE) {
        return wh_fail(error, WHERRY_MALFORMED, "the peer sent a frame of type %u instead of %d", type,
                       (int)hello->expected);
    }
    return WHERRY_OK;
}

static wherry_status on_frame(wh_hello *hello, wherry_error *error) {
    const uint8_t *body = hello->input + HEADER;
    size_t size = hello->input_size - HEADER;
    switch ((frame_type)hello->input[4]) {
    case FRAME_HELLO:
        return on_hello(hello, body, size, error);
    case FRAME_PROOF:
        return on_proof(hello, body, size, error);
    case FRAME_ACCEPT:
        if (size != 0 && (size != WH_KEY_BYTES || hello->own.method != WH_HELLO_METHOD_TLS)) {
            return wh_fail(error, WHERRY_MALFORMED, "the peer's ACCEPT has %zu bytes, and no tickets", size);
        }
        hello->has_ticket_key = size > 0;
        memcpy(hello->peer_ticket_key, body, size);
        hello->state = WH_HELLO_DONE;
        return WHERRY_OK;
    case FRAME_REFUSE:
        return on_refuse(hello, body, size, error);
    }
    return wh_fail(error, WHERRY_INTERNAL, "a frame of an unknown type passed check_header");
}

size_t wh_hello_missing(const wh_hello *hello) {
    size_t whole = hello->input_size < HEADER ? HEADER : HEADER + wh_load_be32(hello->input);
    return whole - hello->input_size;
}

/**
 * Adds bytes to the header or the body of a frame. Handles the header or the frame when it is
 * complete. *taken receives the number of bytes used.
 */
static wherry_status step(wh_hello *hello, const uint8_t *bytes, size_t size, size_t *taken, wherry_error *error) {
    size_t missing = wh_hello_missing(hello);
    size_t whole = hello->input_size + missing;
    *taken = size < missing ? size : missing;
    memcpy(hello->input + hello->input_size, bytes, *taken);
    hello->input_size += *taken;
    if (hello->input_size < whole) {
        return WHERRY_OK;
    }
    wherry_status status = whole == HEADER ? check_header(hello, error) : WHERRY_OK;
    if (status == WHERRY_OK && hello->input_size == HEADER + wh_load_be32(hello->input)) {
        status = on_frame(hello, error);
        hello->input_size = 0;
    }
    return status;
}

wherry_status wh_hello_input(wh_hello *hello, const void *bytes, size_t size, size_t *consumed_p, wherry_error *error) {
    const uint8_t *at = bytes;
    size_t consumed = 0;
    if (hello->state == WH_HELLO_FAILED) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the connection has failed already; close it");
    }
    while (consumed < size && hello->state == WH_HELLO_RUNNING) {
        size_t taken;
        wherry_status status = step(hello, at + consumed, size - consumed, &taken, error);
        if (status != WHERRY_OK) {
            hello->state = WH_HELLO_FAILED;
            if (hello->refusal == WH_REFUSAL_NONE) {
                refuse(hello, status == WHERRY_INTERNAL ? WH_REFUSAL_OTHER : WH_REFUSAL_MALFORMED, status);
            }
            if (error && hello->peer.size > 0) {
                error->rank = (int32_t)hello->peer.rank;
            }
            return status;
        }
        consumed += taken;
    }
    *consumed_p = consumed;
    return WHERRY_OK;
}

wherry_status wh_hello_end(wh_hello *hello, wherry_error *error) {
    if (hello->state == WH_HELLO_DONE) {
        return WHERRY_OK;
    }
    hello->state = WH_HELLO_FAILED;
    return wh_fail(error, WHERRY_TRUNCATED,
                   "the peer closed the connection before both sides had accepted each other; check its log");
}

/** Copies a text of this side; NULL is "". The caller has zeroed `text`. */
static wherry_status own_text(const char *from, const char *what, char text[WH_HELLO_TEXT_MAX + 1],
                              wherry_error *error) {
    size_t size = from ? strnlen(from, WH_HELLO_TEXT_MAX + 1) : 0;
    if (size > WH_HELLO_TEXT_MAX || (size > 0 && !wh_utf8_printable(from, size))) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the %s must be printable UTF-8 of at most %d bytes", what,
                       WH_HELLO_TEXT_MAX);
    }
    if (size > 0) {
        memcpy(text, from, size);
    }
    return WHERRY_OK;
}

static wherry_status check_config(const wh_hello_config *config, wherry_error *error) {
    if (config->size > INT32_MAX || config->rank >= config->size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "rank %" PRIu32 " of %" PRIu32 " is invalid; ranks are 0 to size - 1", config->rank,
                       config->size);
    }
    if (config->purpose != WH_HELLO_CONTROL && config->purpose != WH_HELLO_DATA) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown purpose %d", (int)config->purpose);
    }
    if (config->key_count > WH_HELLO_KEYS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%zu keys, and at most %d can be used", config->key_count,
                       WH_HELLO_KEYS_MAX);
    }
    return WHERRY_OK;
}

/** Fills in this side's fields of a zeroed machine, and encodes its HELLO. */
static wherry_status set_up(wh_hello *hello, const wh_hello_config *config, wherry_error *error) {
    wh_hello_fields *own = &hello->own;
    own->version = WH_HELLO_VERSION;
    own->flags = config->flags;
    own->method = (uint8_t)config->method;
    own->purpose = (uint8_t)(hello->dialled ? config->purpose : WH_HELLO_CONTROL);
    own->rank = config->rank;
    own->size = config->size;
    own->incarnation = config->incarnation;
    own->table = config->table;
    own->key = config->key_count ? config->keys->id : 0;
    WH_TRY(own_text(config->job, "job id", own->job, error));
    WH_TRY(own_text(config->address, "address", own->address, error));
    if (RAND_bytes(own->nonce, sizeof(own->nonce)) != 1) {
        return wh_fail(error, WHERRY_SYSTEM, "libcrypto cannot make random numbers; check its configuration");
    }
    hello->hello_size = encode_hello(own, hello->output);
    hello->output_size = hello->hello_size;
    return WHERRY_OK;
}

wherry_status wh_hello_create(const wh_hello_config *config, bool dialled, wh_hello **hello_p, wherry_error *error) {
    WH_TRY(check_config(config, error));
    wh_hello *hello = wh_alloc_zeroed(1, sizeof(*hello));
    WH_TRY(wh_check_memory(hello, error, "a connection's first frames"));
    hello->dialled = dialled;
    hello->expected = FRAME_HELLO;
    hello->admit = config->admit;
    hello->ticket_key = config->ticket_key;
    hello->context = config->context;
    hello->key_count = config->key_count;
    hello->bound = config->binding;
    hello->wants_one = dialled && config->wants_one;
    hello->wanted = config->wanted;
    hello->wanted_incarnation = config->wanted_incarnation;
    hello->other_user = config->other_user;
    if (config->key_count) {
        memcpy(hello->keys, config->keys, config->key_count * sizeof(*config->keys));
    }
    if (config->binding) {
        memcpy(hello->binding, config->binding, WH_KEY_BYTES);
    }
    wherry_status status = set_up(hello, config, error);
    if (status != WHERRY_OK) {
        wh_hello_destroy(hello);
        return status;
    }
    *hello_p = hello;
    return WHERRY_OK;
}

void wh_hello_destroy(wh_hello *hello) {
    if (hello) {
        OPENSSL_cleanse(hello, sizeof(*hello));
        wh_free(hello);
    }
}

void wh_hello_output(const wh_hello *hello, const uint8_t **bytes_p, size_t *size_p) {
    *bytes_p = hello->output + hello->sent;
    *size_p = hello->output_size - hello->sent;
}

void wh_hello_sent(wh_hello *hello, size_t size) {
    assert(size <= hello->output_size - hello->sent);
    hello->sent += size;
}

wh_hello_state wh_hello_state_of(const wh_hello *hello) {
    return hello->state;
}

const wh_hello_fields *wh_hello_peer(const wh_hello *hello) {
    return hello->proven ? &hello->peer : NULL;
}

uint64_t wh_hello_newer(const wh_hello *hello) {
    return hello->newer;
}

const uint8_t *wh_hello_ticket_key_of(const wh_hello *hello) {
    return hello->has_ticket_key && hello->state == WH_HELLO_DONE ? hello->peer_ticket_key : NULL;
}

wh_refusal wh_hello_refusal(const wh_hello *hello) {
    return hello->refusal;
}
