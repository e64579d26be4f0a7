/*
 * The ring lane between honest and hostile ends: who may hand over the memory, who may take it, and
 * what either side can write into it. The conformance suite tests what all lanes must do.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lane/lanes.h"
#include "lane/ring/ring_internal.h"
#include "support/build.h"
#include "support/descriptors.h"

enum {
    CHUNKS = 2,
    CHUNK = 2 * WH_RING_SLOT_BYTES + 5, /* size of three frames */
    SPLIT = 1000,                       /* length of the first of two runs of a landing */
    GUARD = 64,
    FILL = 0xA5,
    QUICK_MS = 50,
    MAGIC_AT = 0, /* offsets in offers and requests */
    BOOT_AT = 8,
    NETWORK_AT = 48,
    NAME_AT = 8,
    PASS_AT = 24,
    WORKERS_AT = 56,
    HANDOVER_BYTES = WH_RING_MAGIC_BYTES + WH_RING_SECRET_BYTES,
};

static wherry_error error;
static wh_stop stop;
static uint8_t source_bytes[CHUNKS][CHUNK];

/* A landing of two runs with guards around them. */
static uint8_t target[CHUNKS][GUARD + SPLIT + GUARD + (CHUNK - SPLIT) + GUARD];
static int opened[CHUNKS];
static int closed[CHUNKS];
static bool claims; /* True if the last chunk had a digest from the source. */
static bool equal;  /* True if that digest is the one of the received bytes. */
static uint64_t next_chunk;

static bool feed_next(void *context, uint64_t *chunk_p) {
    (void)context;
    *chunk_p = next_chunk;
    return next_chunk++ < CHUNKS;
}

static wherry_status feed_gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *problem) {
    (void)context;
    wh_segments_clear(segments);
    return wh_segments_add(segments, source_bytes[chunk], CHUNK) ? WHERRY_OK : wh_fail_memory(problem, "a chunk");
}

static void moved(void *context, uint64_t bytes) {
    (void)context;
    (void)bytes;
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *problem) {
    (void)context;
    if (chunk >= CHUNKS || opened[chunk]++) {
        return wh_fail(problem, WHERRY_MALFORMED, "chunk not expected");
    }
    wh_segments_clear(&landing->segments);
    return wh_segments_add(&landing->segments, target[chunk] + GUARD, SPLIT) &&
                   wh_segments_add(&landing->segments, target[chunk] + GUARD + SPLIT + GUARD, CHUNK - SPLIT)
               ? WHERRY_OK
               : wh_fail_memory(problem, "a landing");
}

static wherry_status sink_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                const wherry_digest *claimed, wherry_error *problem) {
    (void)context;
    (void)problem;
    closed[landing->chunk]++;
    claims = claimed != NULL;
    equal = digest && claimed && wh_digest_equal(digest, claimed);
    return WHERRY_OK;
}

static const wh_feed feed = {.next = feed_next, .gather = feed_gather, .moved = moved};
static const wh_feed summing_feed = {.verify = true, .next = feed_next, .gather = feed_gather, .moved = moved};
static const wh_sink sink = {.open = sink_open, .close = sink_close, .moved = moved};
static const wh_sink summing_sink = {.verify = true, .open = sink_open, .close = sink_close, .moved = moved};

static void begin_round(void) {
    memset(target, FILL, sizeof(target));
    memset(opened, 0, sizeof(opened));
    memset(closed, 0, sizeof(closed));
    next_chunk = 0;
}

static bool guards_hold(void) {
    bool good = true;
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        for (int i = 0; i < GUARD; i++) {
            good = good && target[chunk][i] == FILL && target[chunk][GUARD + SPLIT + i] == FILL &&
                   target[chunk][sizeof(target[chunk]) - GUARD + i] == FILL;
        }
    }
    return good;
}

static bool has_arrived(int chunk) {
    return memcmp(target[chunk] + GUARD, source_bytes[chunk], SPLIT) == 0 &&
           memcmp(target[chunk] + GUARD + SPLIT + GUARD, source_bytes[chunk] + SPLIT, CHUNK - SPLIT) == 0;
}

/* Both ends in one thread: each end finds that the other has already done its part. */
typedef struct pair {
    wh_lane_site site;
    wh_string offer;
    wh_string request;
    wh_lane_end *receiver;
    wh_lane_end *source;
} pair;

static wherry_status pair_probe_with(pair *p, uint32_t threads) {
    bool assist = true;
    *p = (pair){.site = {.peer = 1, .threads = threads, .stop = &stop, .no_progress_ms = QUICK_MS}};
    p->site.deadline = wh_deadline_never();
    wherry_status status = wh_lane_ring.offer(&p->site, &p->offer, &error);
    if (status == WHERRY_OK) {
        status =
            wh_lane_ring.probe(&p->site, p->offer.bytes, p->offer.size, &p->request, &assist, &p->receiver, &error);
    }
    return status;
}

static wherry_status pair_probe(pair *p) {
    return pair_probe_with(p, 1);
}

static wherry_status pair_accept(pair *p) {
    bool ready = false;
    wherry_status status = wh_lane_ring.accept(&p->site, p->request.bytes, p->request.size, &ready, &p->source, &error);
    assert_true(ready || status != WHERRY_OK);
    return status;
}

static void pair_close(pair *p) {
    wh_lane_ring.close(p->source);
    wh_lane_ring.close(p->receiver);
    wh_free(p->offer.bytes);
    wh_free(p->request.bytes);
}

static void pair_open(pair *p) {
    must(pair_probe(p));
    must(pair_accept(p));
    begin_round();
}

static wh_ring_shared *shared_of(const pair *p) {
    return wh_ring_end_of(p->source)->shared;
}

/* Writes a frame with arbitrary content, as a hostile source could. */
static void write_frame(const pair *p, uint32_t number, uint64_t kind, uint64_t length, uint64_t chunk) {
    wh_ring_frame *frame = &shared_of(p)->rings[0].frames[number % WH_RING_SLOTS];
    atomic_store(&frame->what, kind << 32 | length);
    atomic_store(&frame->chunk, chunk);
}

static void write_head(const pair *p, uint32_t head) {
    atomic_store(&shared_of(p)->rings[0].head, head);
}

static wherry_status pull(pair *p) {
    return wh_lane_ring.pull(p->receiver, 0, &sink, &error);
}

static void test_refuses_bad_offers(void **state) {
    (void)state;
    static const struct {
        size_t at;
        wherry_status status;
        const char *text;
    } rows[] = {
        {MAGIC_AT, WHERRY_BAD_VERSION, "a different version"},
        {BOOT_AT, WHERRY_UNSUPPORTED, "another host"},
        {NETWORK_AT, WHERRY_UNSUPPORTED, "network namespace"},
    };
    pair p;
    pair_open(&p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        wh_string request = {0};
        wh_lane_end *end = NULL;
        bool assist = true;
        p.offer.bytes[rows[i].at] ^= 1;
        must_fail(rows[i].status, error,
                  wh_lane_ring.probe(&p.site, p.offer.bytes, p.offer.size, &request, &assist, &end, &error));
        p.offer.bytes[rows[i].at] ^= 1;
        assert_non_null(strstr(error.message, rows[i].text));
        assert_null(end);
        assert_false(assist);
        assert_int_equal(request.size, 0);
    }
    pair_close(&p);
}

static void must_not_accept(pair *p, size_t at, uint8_t flip, wherry_status status) {
    wh_lane_end *end = NULL;
    bool ready = false;
    p->request.bytes[at] = (char)(p->request.bytes[at] ^ flip);
    must_fail(status, error, wh_lane_ring.accept(&p->site, p->request.bytes, p->request.size, &ready, &end, &error));
    p->request.bytes[at] = (char)(p->request.bytes[at] ^ flip);
    assert_null(end);
}

static void test_refuses_bad_requests(void **state) {
    (void)state;
    pair p;
    must(pair_probe(&p));
    must_not_accept(&p, MAGIC_AT, 1, WHERRY_MALFORMED);
    must_not_accept(&p, NAME_AT, 1, WHERRY_REFUSED); /* Nobody listens at this name. */
    must_not_accept(&p, WORKERS_AT, 1, WHERRY_MALFORMED);
    must_not_accept(&p, WORKERS_AT + 3, 1, WHERRY_MALFORMED); /* There is no worker. */
    /* There are more workers than threads. */
    must_not_accept(&p, WORKERS_AT + 3, 3, WHERRY_MALFORMED);
    pair_close(&p);
}

/*
 * Sends bytes and a descriptor to the socket that a request names, as a source does. memory -1: no
 * descriptor.
 */
static void send_to(const pair *p, const void *bytes, size_t size, int memory) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "wherry-ring-");
    for (int i = 0; i < WH_RING_SECRET_BYTES; i++) {
        length += snprintf(address.sun_path + 1 + length, 3, "%02x", (uint8_t)p->request.bytes[NAME_AT + i]);
    }
    struct iovec iov = {(void *)(uintptr_t)bytes, size};
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_name = &address,
                             .msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length),
                             .msg_iov = &iov,
                             .msg_iovlen = 1};
    if (memory >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(part), &memory, sizeof(memory));
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(sendmsg(fd, &message, 0), size);
    close(fd);
}

static void handover_of(const pair *p, char message[HANDOVER_BYTES]) {
    memcpy(message, WH_RING_MAGIC, WH_RING_MAGIC_BYTES);
    memcpy(message + WH_RING_MAGIC_BYTES, p->request.bytes + PASS_AT, WH_RING_SECRET_BYTES);
}

/*
 * Socket names are not secret, so other processes may send a descriptor. The receiver closes that
 * descriptor.
 */
static void test_ignores_other_senders(void **state) {
    (void)state;
    pair p;
    char message[HANDOVER_BYTES];
    int before = open_descriptors();
    int stray = memfd_create("stray", MFD_CLOEXEC);
    assert_true(stray >= 0);
    must(pair_probe(&p));
    begin_round();
    handover_of(&p, message);
    message[WH_RING_MAGIC_BYTES + 3] ^= 1;
    send_to(&p, message, sizeof(message), stray);
    send_to(&p, message, 3, stray);
    send_to(&p, "", 0, -1);
    close(stray);
    must(pair_accept(&p));
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    must(wh_lane_ring.push(p.source, 0, &feed, &error));
    must(pull(&p));
    assert_true(has_arrived(0) && has_arrived(1) && guards_hold());
    pair_close(&p);
    assert_int_equal(open_descriptors(), before);
}

/*
 * A source with the right secret hands over something other than sealed memory of the right size.
 */
static void test_refuses_memory_of_a_wrong_kind(void **state) {
    (void)state;
    for (int row = 0; row < 4; row++) {
        pair p; /* An honest pair shows the right size of the memory. */
        pair other;
        char message[HANDOVER_BYTES];
        pair_open(&p);
        wh_ring_end *honest = wh_ring_end_of(p.source);
        must(pair_probe(&other));
        handover_of(&other, message);
        off_t size = (off_t)(wh_ring_slot(honest, 1, 0) - (uint8_t *)honest->shared);
        int fd =
            row == 3 ? open("/dev/zero", O_RDWR | O_CLOEXEC) : memfd_create("wrong", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_true(fd >= 0);
        if (row < 3) {
            assert_int_equal(ftruncate(fd, row == 1 ? size - 1 : size), 0);
        }
        if (row == 1) {
            assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        }
        send_to(&other, message, sizeof(message), row == 2 ? -1 : fd);
        close(fd);
        must_fail(row == 2 ? WHERRY_SYSTEM : WHERRY_MALFORMED, error, pull(&other));
        /* The next worker gets the error too. */
        must_fail(row == 2 ? WHERRY_SYSTEM : WHERRY_MALFORMED, error, pull(&other));
        pair_close(&other);
        pair_close(&p);
    }
}

/* If another process has bound the name and taken the memory, no byte of a chunk is written. */
static void test_writes_nothing_after_a_wrong_answer(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    memset(source_bytes, 0x5C, sizeof(source_bytes));
    wh_ring_end_of(p.receiver)->answer[15] ^= 1;
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    must_fail(WHERRY_REFUSED, error, wh_lane_ring.push(p.source, 0, &feed, &error));
    assert_int_equal(next_chunk, 0);
    assert_int_equal(wh_ring_slot(wh_ring_end_of(p.source), 0, 0)[0], 0);
    pair_close(&p);
}

/* If the receiver gets no answer, nothing is sent either. */
static void test_writes_nothing_without_an_answer(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    must_fail(WHERRY_TIMED_OUT, error, wh_lane_ring.push(p.source, 0, &feed, &error));
    assert_int_equal(next_chunk, 0);
    pair_close(&p);
}

static void test_waits_for_the_memory(void **state) {
    (void)state;
    pair p;
    must(pair_probe(&p));
    must_fail(WHERRY_TIMED_OUT, error, pull(&p));
    pair_close(&p);
    must(pair_probe(&p));
    p.site.no_progress_ms = 60000;
    p.site.deadline = wh_deadline_in_ms(QUICK_MS);
    must_fail(WHERRY_TIMED_OUT, error, pull(&p));
    pair_close(&p);
}

static void test_refuses_hostile_frames(void **state) {
    (void)state;
    const uint64_t slot = WH_RING_SLOT_BYTES;
    static const uint64_t huge = UINT32_MAX;
    const struct {
        uint32_t head;
        uint64_t frames[3][3]; /* The fields are kind, length and chunk. */
    } rows[] = {
        {WH_RING_SLOTS + 1, {{WH_RING_END, 0, 0}}},
        {UINT32_MAX, {{WH_RING_END, 0, 0}}},
        {1, {{0, 0, 0}}},
        {1, {{WH_RING_END + 1, slot, 0}}},
        {1, {{WH_RING_END, 1, 0}}},
        {1, {{WH_RING_MORE, 0, 0}}},
        {1, {{WH_RING_MORE, slot - 1, 0}}},
        {1, {{WH_RING_MORE, slot + 1, 0}}},
        {1, {{WH_RING_MORE, huge, 0}}},
        {1, {{WH_RING_LAST, CHUNK, 0}}},
        {1, {{WH_RING_LAST, huge, 0}}},
        {1, {{WH_RING_LAST, 5, 0}}},
        {1, {{WH_RING_MORE, slot, CHUNKS}}},
        {1, {{WH_RING_MORE, slot, UINT64_MAX}}},
        {2, {{WH_RING_MORE, slot, 0}, {WH_RING_MORE, slot, 1}}},
        {2, {{WH_RING_MORE, slot, 0}, {WH_RING_END, 0, 0}}},
        {3, {{WH_RING_MORE, slot, 0}, {WH_RING_MORE, slot, 0}, {WH_RING_MORE, slot, 0}}},
        {3, {{WH_RING_MORE, slot, 0}, {WH_RING_MORE, slot, 0}, {WH_RING_LAST, 4, 0}}},
        {3, {{WH_RING_MORE, slot, 0}, {WH_RING_MORE, slot, 0}, {WH_RING_LAST_DIGEST, 6, 0}}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pair p;
        pair_open(&p);
        for (uint32_t k = 0; k < 3; k++) {
            write_frame(&p, k, rows[i].frames[k][0], rows[i].frames[k][1], rows[i].frames[k][2]);
        }
        write_head(&p, rows[i].head);
        must_fail(WHERRY_MALFORMED, error, pull(&p));
        assert_true(guards_hold() && !closed[0] && !closed[1]);
        pair_close(&p);
    }
}

/* A chunk that was closed cannot arrive again. */
static void test_refuses_a_chunk_that_was_closed(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    for (uint32_t i = 0; i < 6; i++) {
        bool last = i % 3 == 2;
        write_frame(&p, i, last ? WH_RING_LAST : WH_RING_MORE, last ? 5 : WH_RING_SLOT_BYTES, 0);
    }
    write_head(&p, 6);
    must_fail(WHERRY_MALFORMED, error, pull(&p));
    assert_int_equal(closed[0], 1);
    pair_close(&p);
}

/* A pseudorandom number below `most`; the sequence is the same in every run. */
static uint32_t pick(uint32_t most) {
    static uint64_t seed = 7;
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 32) % most;
}

static void test_random_frames_write_nothing_outside(void **state) {
    (void)state;
    pair p;
    uint32_t read_so_far = 0;
    pair_open(&p);
    p.site.no_progress_ms = 0;
    for (int i = 0; i < 3000; i++) {
        begin_round();
        for (uint32_t k = 0; k < WH_RING_SLOTS; k++) {
            uint64_t lengths[] = {0, 5, WH_RING_SLOT_BYTES, pick(UINT32_MAX)};
            write_frame(&p, k, pick(6), lengths[pick(4)], pick(CHUNKS + 1));
        }
        write_head(&p, read_so_far + pick(WH_RING_SLOTS + 2));
        wherry_status status = pull(&p);
        assert_true(status == WHERRY_OK || status == WHERRY_MALFORMED || status == WHERRY_TIMED_OUT);
        assert_true(guards_hold());
        read_so_far = wh_ring_end_of(p.receiver)->frames[0];
    }
    pair_close(&p);
}

/* A receiver that claims to have read more than was written. */
static void test_refuses_a_hostile_tail(void **state) {
    (void)state;
    static const uint32_t tails[] = {1, WH_RING_SLOTS, UINT32_MAX / 2, UINT32_MAX - WH_RING_SLOTS};
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        pair p;
        pair_open(&p);
        must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
        atomic_store(&shared_of(&p)->rings[0].tail, tails[i]);
        must_fail(WHERRY_MALFORMED, error, wh_lane_ring.push(p.source, 0, &feed, &error));
        pair_close(&p);
    }
}

/*
 * Frames that the source wrote before it closed its end still arrive. Then the receiver stops
 * waiting.
 */
static void test_frames_before_a_close_arrive(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    p.site.no_progress_ms = 60000;
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    must(wh_lane_ring.push(p.source, 0, &feed, &error));
    wh_lane_ring.close(p.source);
    p.source = NULL;
    must(pull(&p));
    assert_true(has_arrived(0) && has_arrived(1));
    must_fail(WHERRY_PEER_LOST, error, pull(&p));
    pair_close(&p);

    pair_open(&p);
    p.site.no_progress_ms = 60000;
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    wh_lane_ring.close(p.receiver);
    p.receiver = NULL;
    /* This number is as much as the ring can hold. */
    must(wh_lane_ring.push(p.source, 0, &feed, &error));
    next_chunk = 0;
    must_fail(WHERRY_PEER_LOST, error, wh_lane_ring.push(p.source, 0, &feed, &error));
    pair_close(&p);
}

static void test_digests_arrive_with_the_chunks(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    must(wh_lane_ring.push(p.source, 0, &summing_feed, &error));
    must(wh_lane_ring.pull(p.receiver, 0, &summing_sink, &error));
    assert_true(claims && equal);
    begin_round();
    must(wh_lane_ring.push(p.source, 0, &summing_feed, &error));
    /* This is a byte of the last frame of the second round. */
    wh_ring_slot(wh_ring_end_of(p.source), 0, 7 + 5)[2] ^= 1;
    must(wh_lane_ring.pull(p.receiver, 0, &summing_sink, &error));
    assert_true(claims && !equal);
    begin_round();
    must(wh_lane_ring.push(p.source, 0, &feed, &error));
    must(wh_lane_ring.pull(p.receiver, 0, &summing_sink, &error));
    assert_false(claims);
    pair_close(&p);
}

/* A source that runs as another user, whose memory process_vm_readv may not read. */
static void test_works_with_a_source_of_another_user(void **state) {
    (void)state;
    pair p;
    must(pair_probe(&p));
    p.site.no_progress_ms = 5000;
    begin_round();
    for (size_t i = 0; i < sizeof(source_bytes); i++) {
        source_bytes[i / CHUNK][i % CHUNK] = (uint8_t)(i * 7);
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool good = geteuid() != 0 || setresuid(65534, 65534, 65534) == 0;
        good = good && prctl(PR_SET_DUMPABLE, 0) == 0 && pair_accept(&p) == WHERRY_OK &&
               wh_lane_ring.push(p.source, 0, &feed, &error) == WHERRY_OK;
        wh_lane_ring.close(p.source);
        _exit(good ? 0 : 1);
    }
    must(pull(&p));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(has_arrived(0) && has_arrived(1) && guards_hold());
    pair_close(&p);
}

/*
 * The offer of a source names its network namespace. If a source lies about its namespace, it
 * cannot reach the receiver's socket.
 */
static void test_refuses_a_source_of_another_network(void **state) {
    (void)state;
    enum { GOOD, WRONG, CANNOT };
    pair p;
    must(pair_probe(&p));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        wh_string request = {0};
        wh_lane_end *end = NULL;
        bool assist;
        if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
            _exit(CANNOT);
        }
        bool good = pair_accept(&p) == WHERRY_REFUSED &&
                    wh_lane_ring.probe(&p.site, p.offer.bytes, p.offer.size, &request, &assist, &end, &error) ==
                        WHERRY_UNSUPPORTED;
        _exit(good ? GOOD : WRONG);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != WRONG);
    if (WEXITSTATUS(status) == CANNOT) {
        fprintf(stderr, "not tested: another network namespace, because that needs root or user namespaces\n");
    }
    pair_close(&p);
}

static long allocations;
static long failing;
static long live;

static void *allocate(void *context, size_t size) {
    (void)context;
    void *memory = allocations++ == failing ? NULL : malloc(size);
    live += memory != NULL;
    return memory;
}

static void *reallocate(void *context, void *memory, size_t size) {
    (void)context;
    void *grown = allocations++ == failing ? NULL : realloc(memory, size);
    live += grown && !memory;
    return grown;
}

static void release(void *context, void *memory) {
    (void)context;
    live--;
    free(memory);
}

static wherry_status whole_transfer(void) {
    pair p;
    wherry_status status = pair_probe(&p);
    begin_round();
    if (status == WHERRY_OK && (status = pair_accept(&p)) == WHERRY_OK &&
        (status = wh_ring_enter(wh_ring_end_of(p.receiver), &error)) == WHERRY_OK &&
        (status = wh_lane_ring.push(p.source, 0, &summing_feed, &error)) == WHERRY_OK) {
        status = wh_lane_ring.pull(p.receiver, 0, &summing_sink, &error);
    }
    pair_close(&p);
    return status;
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    static const wherry_allocator counting = {allocate, reallocate, release, NULL};
    wherry_status status = WHERRY_NO_MEMORY;
    int before = open_descriptors();
    wherry_allocator_set(&counting);
    for (failing = 0; status == WHERRY_NO_MEMORY; failing++) {
        allocations = 0;
        status = whole_transfer();
        assert_int_equal(live, 0);
        assert_int_equal(open_descriptors(), before);
    }
    wherry_allocator_set(NULL);
    assert_int_equal(status, WHERRY_OK);
    assert_true(failing > 6 && claims && equal);
}

static int set_up(void **state) {
    (void)state;
    return wh_stop_init(&stop, &error);
}

static int tear_down(void **state) {
    (void)state;
    wh_stop_destroy(&stop);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_bad_offers),
        cmocka_unit_test(test_refuses_bad_requests),
        cmocka_unit_test(test_ignores_other_senders),
        cmocka_unit_test(test_refuses_memory_of_a_wrong_kind),
        cmocka_unit_test(test_writes_nothing_after_a_wrong_answer),
        cmocka_unit_test(test_writes_nothing_without_an_answer),
        cmocka_unit_test(test_waits_for_the_memory),
        cmocka_unit_test(test_refuses_hostile_frames),
        cmocka_unit_test(test_refuses_a_chunk_that_was_closed),
        cmocka_unit_test(test_random_frames_write_nothing_outside),
        cmocka_unit_test(test_refuses_a_hostile_tail),
        cmocka_unit_test(test_frames_before_a_close_arrive),
        cmocka_unit_test(test_digests_arrive_with_the_chunks),
        cmocka_unit_test(test_works_with_a_source_of_another_user),
        cmocka_unit_test(test_refuses_a_source_of_another_network),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("lane_ring_ends", tests, set_up, tear_down);
}
