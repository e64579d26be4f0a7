/*
 * A source that sends invalid bytes over the stream lane. The receiver returns an error and writes
 * only into the memory that its sink gave.
 */
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "lane/lanes.h"
#include "support/build.h"
#include "support/local_group.h"

enum {
    HEADER = 64,
    CHUNKS = 4,
    CHUNK = 1000,
    GUARD = 4096,
    TARGET = CHUNKS * CHUNK + 2 * GUARD,
    LONG_MS = 60000,
    SHORT_MS = 100
};
#define END UINT64_MAX
#define WITH_DIGEST (UINT64_C(1) << 63)

static wherry_error error;

/** The receiver's memory, the result of each chunk, and the bytes that the source sends. */
typedef struct scene {
    wh_lane_site site;
    wh_stop stop;
    wh_lane_end *end;
    int channel; /**< The source's end; -1: closed. */
    uint8_t target[TARGET];
    int opened[CHUNKS];
    int closed[CHUNKS];
    int good[CHUNKS]; /**< Closed with two equal digests. */
    wh_string script;
} scene;

static wherry_status open_chunk(void *context, uint64_t chunk, wh_landing *landing, wherry_error *problem) {
    scene *s = context;
    if (chunk >= CHUNKS || s->opened[chunk]) {
        wherry_status status = WHERRY_MALFORMED;
        snprintf(problem->message, sizeof(problem->message), "chunk not expected");
        return problem->status = status;
    }
    s->opened[chunk] = 1;
    wh_segments_clear(&landing->segments);
    for (size_t i = 0; i < 4; i++) {
        /* The pieces are in reverse order in memory. */
        size_t at = GUARD + chunk * CHUNK + (3 - i) * (CHUNK / 4);
        assert_true(wh_segments_add(&landing->segments, s->target + at, CHUNK / 4));
    }
    return WHERRY_OK;
}

static wherry_status close_chunk(void *context, wh_landing *landing, const wherry_digest *digest,
                                 const wherry_digest *claimed, wherry_error *problem) {
    scene *s = context;
    (void)problem;
    size_t chunk = (size_t)((uint8_t *)landing->segments.items[3].iov_base - s->target - GUARD) / CHUNK;
    s->closed[chunk]++;
    s->good[chunk] += digest && claimed && wh_digest_equal(digest, claimed);
    return WHERRY_OK;
}

static void moved(void *context, uint64_t bytes) {
    (void)context;
    (void)bytes;
}

static wherry_status pull(scene *s, bool verify) {
    wh_sink sink = {.context = s, .verify = verify, .open = open_chunk, .close = close_chunk, .moved = moved};
    return wh_lane_stream.pull(s->end, 0, &sink, &error);
}

static int next_channel;

static wherry_status connect_pair(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline,
                                  const wh_stop *stop, wh_socket *channel_p, wherry_error *problem) {
    int ends[2];
    (void)group, (void)rank, (void)tag, (void)stop;
    (void)deadline, (void)problem;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    *channel_p = (wh_socket){.fd = ends[0]};
    next_channel = ends[1];
    return WHERRY_OK;
}

static void open_scene(scene *s) {
    static const wh_group_backend ops = {.name = "pairs", .connect = connect_pair};
    static wh_group pairs = {.ops = &ops, .size = 3};
    uint8_t offer[] = {1, 1};
    wh_string request = {0};
    bool assist;
    memset(s, 0, sizeof(*s));
    memset(s->target, 0xA5, TARGET);
    must(wh_stop_init(&s->stop, &error));
    s->site = (wh_lane_site){.group = &pairs,
                             .peer = 1,
                             .threads = 1,
                             .stop = &s->stop,
                             .deadline = wh_deadline_in_ms(LONG_MS),
                             .no_progress_ms = LONG_MS};
    must(wh_lane_stream.probe(&s->site, offer, sizeof(offer), &request, &assist, &s->end, &error));
    assert_int_equal(request.size, 2);
    s->channel = next_channel;
    wh_free(request.bytes);
}

/** Checks that no byte was written outside the chunks or in a chunk that was not opened. */
static void check_target(const scene *s) {
    for (size_t i = 0; i < TARGET; i++) {
        bool inside = i >= GUARD && i < TARGET - GUARD && s->opened[(i - GUARD) / CHUNK];
        assert_true(inside || s->target[i] == 0xA5);
    }
}

static void close_scene(scene *s) {
    check_target(s);
    wh_lane_stream.close(s->end);
    if (s->channel >= 0) {
        close(s->channel);
    }
    wh_stop_destroy(&s->stop);
    wh_free(s->script.bytes);
}

/** The digest of the last chunk. The next header contains it. */
static wherry_digest pending;

static void add_header(wh_string *script, uint64_t chunk, uint64_t length) {
    uint8_t bytes[HEADER] = {0};
    memcpy(bytes, pending.bytes, sizeof(pending.bytes));
    pending = (wherry_digest){{0}};
    wh_store_be64(bytes + 16, chunk);
    wh_store_be64(bytes + 24, length);
    wh_string_append(script, (char *)bytes, sizeof(bytes));
}

static uint8_t byte_of(uint64_t chunk, size_t i) {
    return (uint8_t)(chunk * 31 + i * 7 + 1);
}

/** Appends a valid frame. */
static void add_chunk(wh_string *script, uint64_t chunk, bool digest) {
    uint8_t bytes[CHUNK];
    for (size_t i = 0; i < CHUNK; i++) {
        bytes[i] = byte_of(chunk, i);
    }
    add_header(script, chunk, CHUNK | (digest ? WITH_DIGEST : 0));
    wh_string_append(script, (char *)bytes, CHUNK);
    if (digest) {
        wh_digester *digester = wh_digester_create();
        struct iovec all = {bytes, CHUNK};
        pending = wh_digest_of(digester, &all, 1);
        wh_digester_destroy(digester);
    }
}

/** Sends the first bytes of the script. */
static void play(scene *s, size_t bytes) {
    assert_int_equal(write(s->channel, s->script.bytes, bytes), (ssize_t)bytes);
}

/** The source closes its end. */
static void leave(scene *s) {
    close(s->channel);
    s->channel = -1;
}

static void check_chunk(const scene *s, uint64_t chunk) {
    for (size_t i = 0; i < CHUNK; i++) {
        size_t at = GUARD + chunk * CHUNK + (3 - i / (CHUNK / 4)) * (CHUNK / 4) + i % (CHUNK / 4);
        assert_int_equal(s->target[at], byte_of(chunk, i));
    }
}

/**
 * Truncates the bytes of an honest source at every position. Only the whole sequence succeeds;
 * otherwise the peer counts as lost.
 */
static void test_truncated_streams_are_a_lost_peer(void **state) {
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        size_t all = 1;
        for (size_t bytes = 0; bytes <= all; bytes++) {
            scene s;
            open_scene(&s);
            add_chunk(&s.script, 2, verify);
            add_chunk(&s.script, 0, verify);
            add_header(&s.script, END, 0);
            all = s.script.size;
            play(&s, bytes);
            if (bytes < all) {
                leave(&s);
                must_fail(WHERRY_PEER_LOST, error, pull(&s, verify));
                assert_int_equal(error.rank, 1);
            } else {
                must(pull(&s, verify));
                check_chunk(&s, 0);
                check_chunk(&s, 2);
                assert_true(s.closed[0] == 1 && s.closed[2] == 1 && s.good[0] == verify && s.good[2] == verify);
            }
            close_scene(&s);
        }
    }
}

/**
 * Sends a frame that does not match the expected one, followed by more bytes than any chunk has.
 */
static void expect_malformed(bool verify, bool first, uint64_t chunk, uint64_t length) {
    static const char junk[2 * CHUNK];
    scene s;
    open_scene(&s);
    if (first) {
        add_chunk(&s.script, 1, verify);
    }
    add_header(&s.script, chunk, length);
    wh_string_append(&s.script, junk, sizeof(junk));
    play(&s, s.script.size);
    must_fail(WHERRY_MALFORMED, error, pull(&s, verify));
    assert_int_equal(error.rank, 1);
    assert_int_equal(s.closed[1], first);
    for (size_t i = GUARD; i < TARGET - GUARD; i++) {
        assert_true((first && (i - GUARD) / CHUNK == 1) || s.target[i] == 0xA5);
    }
    close_scene(&s);
}

static void test_refuses_false_headers(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        expect_malformed(false, first, 0, CHUNK - 1);
        expect_malformed(false, first, 0, CHUNK + 1);
        expect_malformed(false, first, 0, 0);
        expect_malformed(false, first, 0, UINT64_MAX / 2);
        expect_malformed(true, first, 0, CHUNK + 1 + WITH_DIGEST);
        expect_malformed(true, first, 0, CHUNK);
        expect_malformed(false, first, CHUNKS, CHUNK);
        expect_malformed(false, first, END - 1, CHUNK);
        expect_malformed(false, first, END, 1);
        expect_malformed(false, first, END, WITH_DIGEST);
    }
    expect_malformed(false, true, 1, CHUNK);
}

/**
 * A source may end a round before all chunks have arrived. That is not an error of the lane, since
 * the sink knows what is missing. The next round follows.
 */
static void test_rounds_end_where_the_source_says(void **state) {
    (void)state;
    scene s;
    open_scene(&s);
    add_header(&s.script, END, 0);
    add_chunk(&s.script, 3, true);
    add_header(&s.script, END, 0);
    play(&s, s.script.size);
    must(pull(&s, false));
    assert_int_equal(s.opened[3], 0);
    must(pull(&s, false)); /* This frame has a digest that was not requested. */
    check_chunk(&s, 3);
    assert_true(s.closed[3] == 1 && s.good[3] == 0);
    leave(&s);
    must_fail(WHERRY_PEER_LOST, error, pull(&s, false));
    close_scene(&s);
}

static void test_damaged_bytes_reach_the_sink_with_both_digests(void **state) {
    (void)state;
    for (size_t at = HEADER; at < HEADER + CHUNK + 16; at += 103) {
        scene s;
        open_scene(&s);
        add_chunk(&s.script, 0, true);
        add_header(&s.script, END, 0);
        s.script.bytes[at] ^= 8;
        play(&s, s.script.size);
        must(pull(&s, true));
        assert_true(s.closed[0] == 1 && s.good[0] == 0);
        close_scene(&s);
    }
}

/** Writes a byte once the receiver has read the one before. */
static void *dribble(void *context) {
    scene *s = context;
    for (size_t i = 0; i < s->script.size; i++) {
        wh_deadline end = wh_deadline_in_ms(LONG_MS);
        if (write(s->channel, s->script.bytes + i, 1) != 1) {
            abort();
        }
        for (int unread = 1; unread; sched_yield()) {
            if (ioctl(s->channel, SIOCOUTQ, &unread) != 0 || wh_deadline_passed(end)) {
                abort();
            }
        }
    }
    return NULL;
}

static void test_single_bytes_arrive(void **state) {
    (void)state;
    scene s;
    pthread_t thread;
    open_scene(&s);
    s.site.deadline = wh_deadline_never(); /* Every byte costs two turns of the scheduler. */
    add_chunk(&s.script, 0, true);
    add_chunk(&s.script, 3, true);
    add_header(&s.script, END, 0);
    assert_int_equal(pthread_create(&thread, NULL, dribble, &s), 0);
    must(pull(&s, true));
    pthread_join(thread, NULL);
    check_chunk(&s, 0);
    check_chunk(&s, 3);
    assert_true(s.good[0] && s.good[3]);
    close_scene(&s);
}

/** Headers and lengths that are slightly wrong, and random bytes. */
static void test_garbage_writes_nothing_outside(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int i = 0; i < 1000; i++) {
        scene s;
        open_scene(&s);
        for (int frames = 0; frames < 5; frames++) {
            uint64_t dice = next_random(&random);
            if (dice % 3) {
                add_chunk(&s.script, dice / 3 % CHUNKS, dice / 32 % 2);
            } else {
                add_header(&s.script, dice / 3 % 7 == 6 ? END : dice / 3 % 7, dice / 32 % 2 ? CHUNK : dice >> 20);
                for (int word = 0; word < 20; word++) {
                    uint64_t bytes = next_random(&random);
                    wh_string_append(&s.script, (char *)&bytes, sizeof(bytes));
                }
            }
        }
        play(&s, s.script.size);
        leave(&s);
        wherry_status status = pull(&s, i & 1);
        assert_true(status == WHERRY_OK || status == WHERRY_MALFORMED || status == WHERRY_PEER_LOST);
        close_scene(&s);
    }
}

static void test_silence_times_out(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        scene s;
        open_scene(&s);
        if (i) {
            s.site.no_progress_ms = SHORT_MS;
        } else {
            s.site.deadline = wh_deadline_in_ms(SHORT_MS);
        }
        uint64_t begun = wh_clock_now();
        must_fail(WHERRY_TIMED_OUT, error, pull(&s, false));
        uint64_t took = (wh_clock_now() - begun) / 1000000;
        assert_true(took + 1 >= SHORT_MS && took < LONG_MS / 4);
        assert_non_null(strstr(error.message, "timed out"));
        assert_int_equal(error.rank, 1);
        close_scene(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_streams_are_a_lost_peer),
        cmocka_unit_test(test_refuses_false_headers),
        cmocka_unit_test(test_rounds_end_where_the_source_says),
        cmocka_unit_test(test_damaged_bytes_reach_the_sink_with_both_digests),
        cmocka_unit_test(test_single_bytes_arrive),
        cmocka_unit_test(test_garbage_writes_nothing_outside),
        cmocka_unit_test(test_silence_times_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
