#include "conformance/lane_suite.h"
#include "conformance/hub_place.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "conformance/lane_trial.h"
#include "conformance/sockets_place.h"
#include "support/asleep.h"
#include "support/build.h"

enum { MIB = 1 << 20, SEED = 1, STOP_MS = 5000, SHORT_MS = 1500, SLACK_MS = 5000, RUNS = 50, CASES_MAX = 64 };

static const wh_lane_ops *ops;
static wherry_error error;

static const wh_group_kind local_kind = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
static const wh_group_kind unix_kind = {"unix", wh_open_unix_place, wh_join_place, wh_close_place};
static const wh_group_kind tcp_kind = {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place};
const wh_lane_place wh_lane_place_local = {&local_kind, false};
const wh_lane_place wh_lane_place_unix = {&unix_kind, true};

static const lane_shape mixed = {.chunks = 24,
                                 .pieces = 40,
                                 .shortest = 1,
                                 .longest = 16384,
                                 .source_gap = 64,
                                 .target_gap = 300,
                                 .nowhere = 8,
                                 .staged = 5};
static const lane_shape small = {.chunks = 7, .pieces = 3, .shortest = 1, .longest = 9000, .source_gap = 5};
static const lane_shape endless = {
    .chunks = 128, .pieces = 2, .shortest = 2 * MIB, .longest = 2 * MIB, .source_gap = 3, .repeated = true};

static void must_be_good(const lane_side *side, const char *name) {
    if (side->status != WHERRY_OK) {
        fail_msg("%s: %s", name, side->error.message);
    }
}

/** Both sides must succeed, with and without verify. NULL segments need verify off. */
static void move_all(const lane_world *world, const lane_shape *wanted, uint32_t source_threads,
                     uint32_t receiver_threads) {
    for (int verify = 0; verify < 2; verify++) {
        lane_shape shape = *wanted;
        shape.nowhere = verify ? 0 : shape.nowhere;
        lane_data *data = lane_data_create(&shape, SEED, verify);
        lane_trial trial = lane_trial_of(ops, data);
        trial.source_threads = source_threads;
        trial.receiver_threads = receiver_threads;
        lane_trial_run(&trial, world);
        must_be_good(&trial.receiver, "receiver");
        must_be_good(&trial.source, "source");
        assert_null(data->wrong);
        lane_data_destroy(data);
    }
}

static lane_world world_of(void **state) {
    const wh_lane_place *place = *state;
    return lane_world_open(place->kind);
}

static void test_moves_every_byte(void **state) {
    static const lane_shape big = {
        .chunks = 6, .pieces = 1, .shortest = 4 * MIB - 9, .longest = 4 * MIB, .source_gap = 4096, .target_gap = 77};
    static const lane_shape strided = {.chunks = 5,
                                       .pieces = 300,
                                       .shortest = 1024,
                                       .longest = 1024,
                                       .source_gap = 3072,
                                       .target_gap = 8,
                                       .strided = true,
                                       .nowhere = 3};
    static const lane_shape byte = {.chunks = 1, .pieces = 1, .shortest = 1, .longest = 1};
    static const lane_shape nowhere = {.chunks = 3, .pieces = 2, .shortest = 9, .longest = 9999, .nowhere = 1};
    lane_world world = world_of(state);
    move_all(&world, &mixed, 2, 2);
    move_all(&world, &big, 2, 2);
    move_all(&world, &strided, 2, 2);
    move_all(&world, &byte, 2, 2);
    move_all(&world, &nowhere, 2, 2);
    lane_world_close(&world);
}

static void test_works_with_any_number_of_threads(void **state) {
    lane_world world = world_of(state);
    move_all(&world, &mixed, 1, 1);
    move_all(&world, &mixed, 1, 4);
    move_all(&world, &mixed, 4, 1);
    move_all(&world, &small, 16, 16);
    lane_world_close(&world);
}

static void test_moves_ten_thousand_segments(void **state) {
    static const lane_shape tiny = {.chunks = 10,
                                    .pieces = 1000,
                                    .shortest = 1,
                                    .longest = 16,
                                    .source_gap = 7,
                                    .target_gap = 9,
                                    .strided = false,
                                    .nowhere = 50,
                                    .staged = 4};
    lane_world world = world_of(state);
    move_all(&world, &tiny, 2, 2);
    lane_world_close(&world);
}

/** A chunk with more segments than one system call takes, on both sides or on one. */
static void test_moves_more_segments_than_iov_max(void **state) {
    static const size_t gaps[][2] = {{8, 24}, {8, 0}, {0, 8}};
    lane_world world = world_of(state);
    for (size_t i = 0; i < 3; i++) {
        lane_shape wide = {.chunks = 2,
                           .pieces = 3 * IOV_MAX + 7,
                           .shortest = 8,
                           .longest = 8,
                           .source_gap = gaps[i][0],
                           .target_gap = gaps[i][1],
                           .strided = true,
                           .nowhere = 1000};
        move_all(&world, &wide, 2, 2);
    }
    lane_world_close(&world);
}

/** Adjacent chunks at the source, which a lane may move together. */
static void test_moves_adjacent_chunks(void **state) {
    static const lane_shape shapes[] = {
        {.chunks = 100, .pieces = 1, .shortest = 30000, .longest = 40000},
        {.chunks = 100, .pieces = 1, .shortest = 30000, .longest = 40000, .target_gap = 9, .nowhere = 9, .staged = 7},
        {.chunks = 60, .pieces = 2, .shortest = 9, .longest = 40000, .source_gap = 9, .target_gap = 9, .staged = 5}};
    lane_world world = world_of(state);
    for (int i = 0; i < 6; i++) {
        bool verify = i & 1;
        lane_shape shape = shapes[i / 2];
        shape.nowhere = verify ? 0 : shape.nowhere;
        lane_data *data = lane_data_create(&shape, SEED, verify);
        lane_trial trial = lane_trial_of(ops, data);
        trial.round_count = TRIAL_ROUNDS;
        trial.rounds[1] = (lane_round){3, 1};
        trial.rounds[2] = (lane_round){1, 0};
        lane_trial_run(&trial, &world);
        must_be_good(&trial.receiver, "receiver");
        must_be_good(&trial.source, "source");
        lane_data_destroy(data);
    }
    lane_world_close(&world);
}

/** An empty round; some chunks; some of them again together with new ones. */
static void test_moves_chunks_again_in_later_rounds(void **state) {
    lane_world world = world_of(state);
    for (int verify = 0; verify < 2; verify++) {
        lane_shape shape = mixed;
        shape.nowhere = verify ? 0 : shape.nowhere;
        for (uint32_t empty = 0; empty < TRIAL_ROUNDS; empty++) {
            lane_data *data = lane_data_create(&shape, SEED, verify);
            lane_trial trial = lane_trial_of(ops, data);
            trial.round_count = TRIAL_ROUNDS;
            trial.rounds[empty] = (lane_round){0, 0};
            trial.rounds[(empty + 1) % TRIAL_ROUNDS] = (lane_round){3, 1};
            trial.rounds[(empty + 2) % TRIAL_ROUNDS] = (lane_round){2, 1};
            lane_trial_run(&trial, &world);
            must_be_good(&trial.receiver, "receiver");
            must_be_good(&trial.source, "source");
            lane_data_destroy(data);
        }
    }
    lane_world_close(&world);
}

/** Stops the sides after some chunks have arrived. */
typedef struct stopper {
    lane_trial *trial;
    bool stop_source;
    bool stop_receiver;
    size_t at; /**< Number of chunks after which the sides stop. */
    pid_t kill;
    atomic_uint_fast64_t stopped; /**< Time of the stop request. */
} stopper;

static void stop_now(stopper *s) {
    s->stopped = wh_clock_now();
    if (s->kill) {
        siginfo_t info;
        kill(s->kill, SIGKILL);
        waitid(P_PID, (id_t)s->kill, &info, WEXITED | WNOWAIT);
    }
    if (s->stop_source) {
        wh_stop_request(&s->trial->source.stop);
    }
    if (s->stop_receiver) {
        wh_stop_request(&s->trial->receiver.stop);
    }
}

static void chunk_landed(void *context, size_t chunks) {
    stopper *s = context;
    if (chunks == s->at) {
        stop_now(s);
    }
}

static void *stop_soon(void *context) {
    const stopper *s = context;
    while (!atomic_load(&s->trial->begun)) {
        usleep(1000);
    }
    wh_await_asleep(getpid());
    stop_now(context);
    return NULL;
}

static void must_have_ended(const lane_side *side, uint64_t since, uint64_t within_ms) {
    assert_true(side->ended >= since);
    if (side->ended - since > within_ms * 1000000) {
        unsigned long long ms = (side->ended - since) / 1000000;
        fail_msg("the side took %llu ms to end: %s", ms, side->error.message);
    }
}

static void test_stops_in_the_middle(void **state) {
    lane_world world = world_of(state);
    lane_data *data = lane_data_create(&endless, SEED, false);
    lane_trial trial = lane_trial_of(ops, data);
    stopper s = {.trial = &trial, .stop_source = true, .stop_receiver = true, .at = 5};
    data->landed = chunk_landed;
    data->landed_context = &s;
    lane_trial_run(&trial, &world);
    assert_int_equal(trial.receiver.status, WHERRY_CANCELLED);
    must_have_ended(&trial.receiver, s.stopped, STOP_MS);
    assert_true(data->landed_chunks < endless.chunks / 2);
    if (ops->push) {
        /* The source may learn of the receiver's end before it sees the stop. */
        assert_true(trial.source.status == WHERRY_CANCELLED || trial.source.status == WHERRY_PEER_LOST);
        must_have_ended(&trial.source, s.stopped, STOP_MS);
    }
    lane_data_destroy(data);
    lane_world_close(&world);
}

/** A stop also ends workers that wait for the other side. */
static void test_stops_while_waiting(void **state) {
    lane_world world = world_of(state);
    for (int idle_source = 0; idle_source < 2; idle_source++) {
        pthread_t thread;
        lane_data *data = lane_data_create(&endless, SEED, false);
        lane_trial trial = lane_trial_of(ops, data);
        stopper s = {.trial = &trial, .stop_source = true, .stop_receiver = true};
        trial.idle_source = idle_source;
        trial.idle_receiver = !idle_source;
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, &s), 0);
        trial.stopper = &thread;
        lane_trial_run(&trial, &world);
        const lane_side *side = idle_source ? &trial.receiver : &trial.source;
        assert_int_equal(side->status, WHERRY_CANCELLED);
        must_have_ended(side, s.stopped, STOP_MS);
        lane_data_destroy(data);
    }
    lane_world_close(&world);
}

/** A side gives up if the other makes no progress. */
static void test_times_out_without_progress(void **state) {
    lane_world world = world_of(state);
    for (int idle_source = 0; idle_source < 2; idle_source++) {
        lane_data *data = lane_data_create(&endless, SEED, false);
        lane_trial trial = lane_trial_of(ops, data);
        trial.idle_source = idle_source;
        trial.idle_receiver = !idle_source;
        trial.no_progress_ms = SHORT_MS;
        uint64_t begun = wh_clock_now();
        lane_trial_run(&trial, &world);
        const lane_side *side = idle_source ? &trial.receiver : &trial.source;
        assert_int_equal(side->status, WHERRY_TIMED_OUT);
        assert_non_null(strstr(side->error.message, "timed out"));
        must_have_ended(side, begun + SHORT_MS * UINT64_C(1000000) / 2, SHORT_MS + SLACK_MS);
        lane_data_destroy(data);
    }
    lane_world_close(&world);
}

/** The source gives up midway: the receiver notices by the lane or by a timeout. */
static void test_fails_soon_if_the_source_gives_up(void **state) {
    lane_world world = world_of(state);
    lane_data *data = lane_data_create(&endless, SEED, false);
    lane_trial trial = lane_trial_of(ops, data);
    stopper s = {.trial = &trial, .stop_source = true, .at = 4};
    trial.no_progress_ms = SHORT_MS;
    data->landed = chunk_landed;
    data->landed_context = &s;
    lane_trial_run(&trial, &world);
    assert_int_equal(trial.source.status, WHERRY_CANCELLED);
    must_have_ended(&trial.source, s.stopped, STOP_MS);
    assert_true(trial.receiver.status == WHERRY_TIMED_OUT || trial.receiver.status == WHERRY_PEER_LOST ||
                trial.receiver.status == WHERRY_ABORTED);
    must_have_ended(&trial.receiver, s.stopped, SHORT_MS + SLACK_MS);
    lane_data_destroy(data);
    lane_world_close(&world);
}

static void test_moves_between_two_processes(void **state) {
    const wh_lane_place *place = *state;
    static const lane_shape wide = {
        .chunks = 3, .pieces = 2 * IOV_MAX + 3, .shortest = 1, .longest = 600, .source_gap = 9, .staged = 2};
    for (int i = 0; i < 4; i++) {
        bool verify = i & 1;
        lane_shape shape = i & 2 ? mixed : wide;
        shape.nowhere = verify ? 0 : shape.nowhere;
        lane_data *data = lane_data_create(&shape, SEED, verify);
        lane_trial trial = lane_trial_of(ops, data);
        pid_t source;
        trial.rounds[1] = (lane_round){2, 1};
        trial.round_count = 2;
        int status = lane_trial_run_processes(&trial, place->kind, i & 1, &source);
        must_be_good(&trial.receiver, "receiver");
        assert_int_equal(status, 0);
        lane_data_destroy(data);
    }
}

/**
 * The source's process is killed midway. Over TCP, since a killed member cannot remove its Unix
 * socket.
 */
static void test_fails_soon_if_the_source_is_killed(void **state) {
    (void)state;
    lane_data *data = lane_data_create(&endless, SEED, false);
    lane_trial trial = lane_trial_of(ops, data);
    stopper s = {.trial = &trial, .at = endless.chunks / 2};
    trial.no_progress_ms = SHORT_MS;
    data->landed = chunk_landed;
    data->landed_context = &s;
    int status = lane_trial_run_processes(&trial, &tcp_kind, 0, &s.kill);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (ops->traits & WH_LANE_ONE_SIDED) {
        assert_int_equal(trial.receiver.status, WHERRY_PEER_LOST);
    } else {
        assert_true(trial.receiver.status == WHERRY_PEER_LOST || trial.receiver.status == WHERRY_TIMED_OUT);
    }
    must_have_ended(&trial.receiver, s.stopped, SHORT_MS + SLACK_MS);
    lane_data_destroy(data);
}

typedef enum judge { ANY, REFUSE } judge;

/** Time limit for a call that gets forged bytes. */
enum { HOSTILE_MS = 50 };

/** Two sides, and the offer and request that they would exchange. */
typedef struct hostile_world {
    lane_world world;
    lane_trial trial;
    lane_data *data;
    wh_string offer;
    wh_string request;
} hostile_world;

static void open_hostile(void **state, hostile_world *h) {
    *h = (hostile_world){.world = world_of(state), .data = lane_data_create(&small, SEED, false)};
    bool assist = false;
    h->trial = lane_trial_of(ops, h->data);
    h->trial.no_progress_ms = HOSTILE_MS;
    lane_side_begin(&h->trial.source, &h->trial, h->world.source, true);
    lane_side_begin(&h->trial.receiver, &h->trial, h->world.receiver, false);
    h->trial.receiver.site.no_progress_ms = 5000; /* The honest probe may be slow. */
    must(ops->offer(&h->trial.source.site, &h->offer, &error));
    must(ops->probe(&h->trial.receiver.site, h->offer.bytes, h->offer.size, &h->request, &assist,
                    &h->trial.receiver.end, &error));
    assert_true(h->offer.size <= WH_LANE_OFFER_MAX && h->request.size <= WH_LANE_OFFER_MAX);
    h->trial.receiver.site.no_progress_ms = HOSTILE_MS;
}

static void close_hostile(hostile_world *h) {
    lane_side_finish(&h->trial.receiver, ops);
    lane_side_finish(&h->trial.source, ops);
    lane_data_destroy(h->data);
    lane_world_close(&h->world);
    wh_free(h->offer.bytes);
    wh_free(h->request.bytes);
}

/** Checks the result of a call that got forged bytes. */
static void must_refuse(judge verdict, wherry_status status) {
    assert_true(verdict == ANY || status != WHERRY_OK);
    assert_true(status == WHERRY_OK || (error.status == status && error.message[0]));
}

static void try_offer(hostile_world *h, const void *bytes, size_t size, judge verdict) {
    wh_string request = {0};
    wh_lane_end *end = NULL;
    bool assist = false;
    wh_lane_site site = h->trial.receiver.site;
    site.deadline = wh_deadline_in_ms(200);
    wherry_status status = ops->probe(&site, bytes, size, &request, &assist, &end, &error);
    must_refuse(verdict, status);
    assert_true(status == WHERRY_OK || end == NULL);
    ops->close(end);
    wh_free(request.bytes);
}

static void try_request(hostile_world *h, const void *bytes, size_t size, judge verdict) {
    wh_lane_end *end = NULL;
    bool ready = true;
    if (ops->accept) {
        wherry_status status = ops->accept(&h->trial.source.site, bytes, size, &ready, &end, &error);
        must_refuse(verdict, status);
        assert_true((status == WHERRY_OK && ready) || end == NULL);
        ops->close(end);
    }
    if (ops->assist) {
        must_refuse(verdict, ops->assist(&h->trial.source.site, bytes, size, &error));
    }
}

/** Tries each prefix, each flipped bit, extra bytes, random bytes and too many bytes. */
static void torment(hostile_world *h, const wh_string *good,
                    void (*try)(hostile_world *, const void *, size_t, judge)) {
    uint64_t random = 5;
    uint8_t *bytes = malloc(4 * WH_LANE_OFFER_MAX);
    for (size_t size = 0; size < good->size; size++) {
        memcpy(bytes, good->bytes, size);
        try(h, bytes, size, REFUSE);
    }
    for (size_t bit = 0; bit<good->size * 8; bit += good->size> 128 ? 5 : 1) {
        memcpy(bytes, good->bytes, good->size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        try(h, bytes, good->size, ANY);
    }
    for (size_t i = 0; i < 4 * WH_LANE_OFFER_MAX; i++) {
        bytes[i] = (uint8_t)next_random(&random);
    }
    for (size_t size = 1; size <= WH_LANE_OFFER_MAX; size += 1 + size / 3) {
        try(h, bytes + size, size, size == good->size ? ANY : REFUSE);
    }
    try(h, bytes, 4 * WH_LANE_OFFER_MAX, REFUSE);
    memcpy(bytes, good->bytes ? good->bytes : "", good->size);
    try(h, bytes, good->size + 1, REFUSE);
    try(h, bytes, 4 * WH_LANE_OFFER_MAX, REFUSE);
    free(bytes);
}

static void test_refuses_hostile_offers(void **state) {
    hostile_world h;
    open_hostile(state, &h);
    torment(&h, &h.offer, try_offer);
    close_hostile(&h);
}

static void test_refuses_hostile_requests(void **state) {
    hostile_world h;
    open_hostile(state, &h);
    torment(&h, &h.request, try_request);
    close_hostile(&h);
}

/** An end that is opened, never used and closed; closing NULL. */
static void test_closes_without_use(void **state) {
    hostile_world h;
    open_hostile(state, &h);
    lane_side_accept(&h.trial.source, ops, h.request.bytes, h.request.size);
    must_be_good(&h.trial.source, "source");
    close_hostile(&h);
    ops->close(NULL);
}

static size_t count_entries(const char *folder) {
    size_t count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    while (readdir(open)) {
        count++;
    }
    closedir(open);
    return count;
}

/** Waits until other threads have closed their descriptors and have ended. */
static void must_become(const char *folder, size_t count) {
    for (int i = 0; i < 3000 && count_entries(folder) > count; i++) {
        usleep(10000);
    }
    assert_true(count_entries(folder) <= count);
}

static void test_leaks_nothing(void **state) {
    lane_world world = world_of(state);
    move_all(&world, &small, 2, 2);
    wh_await_asleep(getpid());
    size_t descriptors = count_entries("/proc/self/fd");
    size_t threads = count_entries("/proc/self/task");
    for (int i = 0; i < RUNS / 2; i++) {
        move_all(&world, &small, 2, 2);
    }
    must_become("/proc/self/fd", descriptors);
    must_become("/proc/self/task", threads);
    lane_world_close(&world);
}

typedef struct suite_case {
    const char *name;
    CMUnitTestFunction function;
    bool processes; /**< Needs members that are processes. */
    bool two_sided; /**< Needs a lane whose source pushes. */
} suite_case;

/** Cases that fork come first: a library below a lane may not survive a fork after a failure. */
static const suite_case cases[] = {
    {"moves between two processes", test_moves_between_two_processes, true, false},
    {"fails soon if the source is killed", test_fails_soon_if_the_source_is_killed, true, false},
    {"moves every byte", test_moves_every_byte, false, false},
    {"works with any number of threads", test_works_with_any_number_of_threads, false, false},
    {"moves ten thousand segments", test_moves_ten_thousand_segments, false, false},
    {"moves more segments than IOV_MAX", test_moves_more_segments_than_iov_max, false, false},
    {"moves adjacent chunks", test_moves_adjacent_chunks, false, false},
    {"moves chunks again in later rounds", test_moves_chunks_again_in_later_rounds, false, false},
    {"stops in the middle", test_stops_in_the_middle, false, false},
    {"stops while waiting", test_stops_while_waiting, false, true},
    {"times out without progress", test_times_out_without_progress, false, true},
    {"fails soon if the source gives up", test_fails_soon_if_the_source_gives_up, false, true},
    {"refuses hostile offers", test_refuses_hostile_offers, false, false},
    {"refuses hostile requests", test_refuses_hostile_requests, false, false},
    {"closes without use", test_closes_without_use, false, false},
    {"leaks nothing", test_leaks_nothing, false, false},
};

int wh_lane_suite_run(const wh_lane_ops *wanted, const wh_lane_place *const *places, size_t count) {
    static char names[CASES_MAX][96];
    struct CMUnitTest tests[CASES_MAX];
    size_t used = 0;
    ops = wanted;
    wherry_log_set_level(WHERRY_LOG_OFF);
    for (size_t i = 0; i < count; i++) {
        for (size_t c = 0; c < sizeof(cases) / sizeof(*cases) && used < CASES_MAX; c++) {
            if ((places[i]->processes || !cases[c].processes) && (ops->push || !cases[c].two_sided)) {
                snprintf(names[used], sizeof(*names), "%s over %s: %s", ops->name, places[i]->kind->name,
                         cases[c].name);
                tests[used] = (struct CMUnitTest){names[used], cases[c].function, NULL, NULL, (void *)places[i]};
                used++;
            }
        }
    }
    return _cmocka_run_group_tests(ops->name, tests, used, NULL, NULL);
}
