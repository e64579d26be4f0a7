/* Receiving from several sources: ranks 0 and 1 send to rank 2. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "conformance/transfer_suite.h"
#include "conformance/transfer_world.h"
#include "support/asleep.h"
#include "transfer/message.h"

enum { STEP = 5, PROMPT_MS = 8000 };

static wherry_error error;

/** The sends of both sources, and the receive. */
typedef struct trio {
    ferry_world world;
    wherry_value *states[2];
    ferry_call sends[2];
    ferry_call receive;
} trio;

static void trio_open(trio *t, uint8_t first_seed, uint8_t second_seed) {
    t->world = ferry_open();
    t->states[0] = ferry_large_state(first_seed);
    t->states[1] = ferry_large_state(second_seed);
    for (int32_t i = 0; i < 2; i++) {
        t->sends[i] = ferry_send(&t->world, i, 2, t->states[i]);
        t->sends[i].options.step = STEP;
    }
    t->receive = ferry_receive_from_two(&t->world);
}

/** If a source is slow to answer, the receive would else begin, and perhaps end, without it. */
static void await_all_offers(trio *t) {
    t->receive.options.require = WHERRY_REQUIRE_ALL;
}

static void trio_run(trio *t) {
    ferry_start(t->sends);
    ferry_start(t->sends + 1);
    wh_await_asleep(getpid()); /* Both sources are inside their sends, and answer at once. */
    ferry_start(&t->receive);
    ferry_join(&t->receive);
    ferry_join(t->sends);
    ferry_join(t->sends + 1);
}

static void trio_close(trio *t) {
    if (t->receive.status == WHERRY_OK && !t->receive.in_target) {
        wherry_value_destroy(t->receive.received);
    }
    wherry_value_destroy(t->states[0]);
    wherry_value_destroy(t->states[1]);
    ferry_close(&t->world);
}

static uint64_t chunks_of(const ferry_call *call) {
    return call->stats.sources[0].chunks + call->stats.sources[1].chunks;
}

static void expect_received(const trio *t, const wherry_value *state) {
    ferry_expect_ok(&t->receive);
    must(wherry_value_compare(state, t->receive.received, WHERRY_COMPARE_ALL, &error));
}

static void test_two_sources_send_one_state(void **state) {
    (void)state;
    for (int verify = WHERRY_VERIFY_DEFAULT; verify <= WHERRY_VERIFY_ALL; verify++) {
        trio t;
        trio_open(&t, 3, 3);
        t.receive.options.verify = (wherry_verify)verify;
        if (verify == WHERRY_VERIFY_ALL) {
            await_all_offers(&t);
        }
        bool swapped = verify % 2; /* The order of the ranks does not matter. */
        t.receive.ranks[0] = swapped;
        t.receive.ranks[1] = !swapped;
        trio_run(&t);
        expect_received(&t, t.states[0]);
        ferry_expect_ok(t.sends);
        ferry_expect_ok(t.sends + 1);
        const wherry_stats *stats = &t.receive.stats;
        assert_int_equal(stats->source_count, 2);
        assert_true(stats->sources[swapped].rank == 0 && stats->sources[!swapped].rank == 1);
        assert_true(stats->sources[0].status == WHERRY_OK && stats->sources[1].status == WHERRY_OK);
        assert_int_equal(stats->sources[0].bytes + stats->sources[1].bytes, stats->bytes_moved);
        assert_true(stats->bytes_moved >= stats->bytes_wanted);
        assert_true(chunks_of(&t.receive) > 0);
        for (int i = 0; i < 2; i++) {
            bool unused = stats->sources[i == 0 ? swapped : !swapped].bytes == 0;
            /* A source may have a plan, and be too slow to deliver anything. */
            bool not_needed = t.sends[i].outcomes[0].not_needed;
            assert_true(!not_needed || (unused && verify != WHERRY_VERIFY_ALL));
        }
        trio_close(&t);
    }
}

static void test_two_sources_into_a_target(void **state) {
    (void)state;
    for (int in_target = 0; in_target < 2; in_target++) {
        trio t;
        trio_open(&t, 3, 3);
        wherry_value *target = ferry_large_state(9);
        t.receive.options.target = ferry_target;
        t.receive.options.target_context = target;
        t.receive.in_target = in_target;
        trio_run(&t);
        ferry_expect_ok(&t.receive);
        must(wherry_value_compare(t.states[0], target, WHERRY_COMPARE_ALL, &error));
        trio_close(&t);
        wherry_value_destroy(target);
    }
}

static void test_a_source_that_does_not_send_is_left_out(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    ferry_start(t.sends);
    ferry_start(&t.receive);
    ferry_join(&t.receive);
    ferry_join(t.sends);
    expect_received(&t, t.states[0]);
    assert_int_equal(t.receive.stats.sources[1].bytes, 0);
    assert_int_equal(t.receive.stats.sources[1].status, WHERRY_TIMED_OUT);
    /* Its send comes too late and is not needed, so it returns at once. */
    uint64_t begin = wh_clock_now();
    ferry_start(t.sends + 1);
    ferry_join(t.sends + 1);
    ferry_expect_ok(t.sends + 1);
    assert_int_equal(t.sends[1].outcomes[0].not_needed, 1);
    assert_true(wh_clock_now() - begin < PROMPT_MS * UINT64_C(1000000));
    trio_close(&t);
}

/**
 * Rank 1 sends a later step. The receiver's answer about the previous step, which rank 1 did not
 * send, does not end that send.
 */
static void test_a_later_step_is_awaited(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    ferry_start(t.sends);
    ferry_start(&t.receive);
    ferry_join(&t.receive);
    ferry_join(t.sends);
    expect_received(&t, t.states[0]);
    if (!wh_group_can(t.world.groups[1], WH_GROUP_BACKGROUND)) {
        /* Rank 1 reads only inside a call, so it would find the question of step 5 first. */
        trio_close(&t);
        return;
    }
    wherry_value_destroy(t.receive.received);
    t.sends[1].options.step = STEP + 1;
    ferry_start(t.sends + 1);
    t.receive = ferry_receive(&t.world, 2, 1);
    t.receive.options.step = STEP + 1;
    ferry_start(&t.receive);
    ferry_join(&t.receive);
    ferry_join(t.sends + 1);
    ferry_expect_ok(t.sends + 1);
    assert_int_equal(t.sends[1].outcomes[0].not_needed, 0);
    expect_received(&t, t.states[1]);
    trio_close(&t);
}

static void test_all_sources_are_required(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    t.receive.options.require = WHERRY_REQUIRE_ALL;
    t.receive.options.timeout_ms = 300;
    ferry_start(t.sends);
    ferry_start(&t.receive);
    ferry_join(&t.receive);
    ferry_join(t.sends);
    assert_int_equal(t.receive.status, WHERRY_TIMED_OUT);
    assert_int_not_equal(t.sends[0].status, WHERRY_OK);
    trio_close(&t);
}

/**
 * Nothing is written, and both sends fail.
 * @param twin  a copy of the target.
 */
static void expect_mismatch(trio *t, const wherry_value *target, const wherry_value *twin) {
    await_all_offers(t);
    t->receive.options.target = ferry_target;
    t->receive.options.target_context = (void *)target;
    trio_run(t);
    assert_int_equal(t->receive.status, WHERRY_MISMATCH);
    assert_int_equal(t->receive.error.status, WHERRY_MISMATCH);
    must(wherry_value_compare(target, twin, WHERRY_COMPARE_ALL, &error));
    assert_int_not_equal(t->sends[0].status, WHERRY_OK);
    assert_int_not_equal(t->sends[1].status, WHERRY_OK);
}

/** Either source may have the wrong step, which is later or earlier, or have none. */
static void test_sources_with_different_steps(void **state) {
    (void)state;
    static const int64_t wrong[] = {STEP + 1, STEP - 1, WHERRY_STEP_ANY};
    for (size_t i = 0; i < 2 * sizeof(wrong) / sizeof(*wrong); i++) {
        trio t;
        char name[16];
        char said[16];
        int rank = (int)(i % 2);
        trio_open(&t, 3, 3);
        wherry_value *target = ferry_large_state(9);
        wherry_value *twin = ferry_large_state(9);
        t.sends[rank].options.step = wrong[i / 2];
        expect_mismatch(&t, target, twin);
        snprintf(name, sizeof(name), "rank %d", rank);
        snprintf(said, sizeof(said), wrong[i / 2] == WHERRY_STEP_ANY ? "no step" : "step %d", (int)wrong[i / 2]);
        assert_int_equal(t.receive.error.rank, rank);
        assert_non_null(strstr(t.receive.error.message, name));
        assert_non_null(strstr(t.receive.error.message, said));
        assert_non_null(strstr(t.receive.error.message, "step 5"));
        trio_close(&t);
        wherry_value_destroy(target);
        wherry_value_destroy(twin);
    }
}

/** What a layout consists of, apart from the first tensor. */
typedef struct layout {
    const char *name;
    wherry_dtype dtype;
    int64_t shape[2];
    const char *path; /**< Where it differs from the first layout. */
} layout;

/** The bytes of the second one are divided like those of the first. */
static const layout layouts[] = {
    {"x", WHERRY_F32, {3, 4}, NULL}, {"x", WHERRY_I32, {3, 4}, "x"}, {"x", WHERRY_F32, {4, 3}, "x"},
    {"x", WHERRY_F32, {3, 5}, "x"},  {"y", WHERRY_F32, {3, 4}, ""},
};

static wherry_value *with_layout(const layout *l, uint8_t seed) {
    const int64_t large = 21 << 20;
    const uint64_t bytes = (uint64_t)(4 * l->shape[0] * l->shape[1]);
    return build_dict("w", build_tensor(build_storage((uint64_t)large, seed), WHERRY_U8, 0, 1, &large, NULL), l->name,
                      build_tensor(build_storage(bytes, seed), l->dtype, 0, 2, l->shape, NULL), NULL);
}

static void test_sources_with_different_layouts(void **state) {
    (void)state;
    for (size_t i = 1; i < sizeof(layouts) / sizeof(*layouts); i++) {
        trio t;
        trio_open(&t, 3, 3);
        wherry_value *target = with_layout(layouts, 9);
        wherry_value *twin = with_layout(layouts, 9);
        for (size_t k = 0; k < 2; k++) {
            wherry_value_destroy(t.states[k]);
            t.states[k] = with_layout(layouts + k * i, 3);
            t.sends[k].state = t.states[k];
        }
        expect_mismatch(&t, target, twin);
        assert_non_null(strstr(t.receive.error.message, "rank 0 and rank 1"));
        assert_int_equal(t.receive.error.rank, 1);
        assert_string_equal(t.receive.error.path, layouts[i].path);
        trio_close(&t);
        wherry_value_destroy(target);
        wherry_value_destroy(twin);
    }
}

static wherry_value *with_number(int64_t number) {
    return build_dict("state", ferry_large_state(3), "number", build_int(number), NULL);
}

static char logged[1024];

static void keep_warning(void *context, wherry_log_level level, const char *line) {
    (void)context;
    if (level == WHERRY_LOG_WARN && strstr(line, "plain values")) {
        snprintf(logged, sizeof(logged), "%s", line);
    }
}

/** Plain values may differ. Those of the lowest rank are used, and the log names the path. */
static void test_sources_with_different_values(void **state) {
    (void)state;
    for (int swapped = 0; swapped < 2; swapped++) { /* The order of the ranks does not matter. */
        trio t;
        trio_open(&t, 3, 3);
        for (int i = 0; i < 2; i++) {
            wherry_value_destroy(t.states[i]);
            t.states[i] = with_number(i);
            t.sends[i].state = t.states[i];
        }
        t.receive.ranks[0] = swapped;
        t.receive.ranks[1] = !swapped;
        await_all_offers(&t);
        *logged = '\0';
        wherry_log_to(keep_warning, NULL);
        wherry_log_set_level(WHERRY_LOG_WARN);
        trio_run(&t);
        wherry_log_set_level(WHERRY_LOG_OFF);
        wherry_log_to(NULL, NULL);
        expect_received(&t, t.states[0]);
        assert_non_null(
            strstr(logged, "plain values of rank 0 and rank 1 differ, and those of rank 0 are used: number"));
        trio_close(&t);
    }
}

/** Same step, same layout, different bytes: only a comparison of the sources finds that. */
static void test_sources_with_different_bytes(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 4);
    t.receive.options.verify = WHERRY_VERIFY_ALL;
    await_all_offers(&t);
    trio_run(&t);
    assert_int_equal(t.receive.status, WHERRY_MISMATCH);
    assert_non_null(strstr(t.receive.error.message, "different bytes"));
    assert_true(t.receive.error.path[0]);
    trio_close(&t);
}

static void test_several_sources_need_a_step(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    t.receive.options.step = WHERRY_STEP_ANY;
    ferry_start(&t.receive);
    ferry_join(&t.receive);
    assert_int_equal(t.receive.status, WHERRY_INVALID_ARGUMENT);
    assert_non_null(strstr(t.receive.error.message, "step"));
    int32_t twice[] = {1, 1};
    wherry_transfer_options options = ferry_options();
    options.step = STEP;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv_from(t.world.transports[2], twice, 2, &options, &t.receive.received, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv_from(t.world.transports[2], twice, 0, &options, &t.receive.received, &error));
    trio_close(&t);
}

/** Requests a cancel of the send that reports progress. */
static void cancel_at_once(void *context, const wherry_progress *progress) {
    (void)progress;
    wherry_cancel_request(context);
}

/** Either source is cancelled, before or while it sends: the other one delivers everything. */
static void test_a_source_is_cancelled(void **state) {
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        for (int midway = 0; midway < 2; midway++) {
            trio t;
            wherry_cancel *cancel;
            must(wherry_cancel_create(&cancel, &error));
            trio_open(&t, 3, 3);
            t.sends[victim].options.cancel = cancel;
            if (midway) {
                t.sends[victim].options.progress = cancel_at_once;
                t.sends[victim].options.progress_context = cancel;
            } else {
                wherry_cancel_request(cancel);
            }
            trio_run(&t);
            expect_received(&t, t.states[0]);
            ferry_expect_ok(t.sends + !victim);
            trio_close(&t);
            wherry_cancel_destroy(cancel);
        }
    }
}

/** For options.check. */
static wherry_status always_changed(void *context, wherry_error *why) {
    (void)context;
    *why = (wherry_error){.status = WHERRY_CORRUPT, .rank = -1, .message = "it has changed"};
    return WHERRY_CORRUPT;
}

/** Chunks from a source whose state has changed count only if the other source confirms them. */
static void test_a_source_has_changed(void **state) {
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        trio t;
        trio_open(&t, 3, 3);
        t.sends[victim].options.check = always_changed;
        trio_run(&t);
        expect_received(&t, t.states[0]);
        ferry_expect_ok(t.sends + !victim);
        trio_close(&t);
    }
    trio t;
    trio_open(&t, 3, 3);
    t.sends[0].options.check = t.sends[1].options.check = always_changed;
    trio_run(&t);
    assert_int_equal(t.receive.status, WHERRY_REVOKED);
    trio_close(&t);
}

static void test_both_sources_are_cancelled(void **state) {
    (void)state;
    trio t;
    wherry_cancel *cancel;
    must(wherry_cancel_create(&cancel, &error));
    trio_open(&t, 3, 3);
    t.receive.options.timeout_ms = 500;
    t.sends[0].options.cancel = t.sends[1].options.cancel = cancel;
    wherry_cancel_request(cancel);
    trio_run(&t);
    assert_int_not_equal(t.receive.status, WHERRY_OK);
    trio_close(&t);
    wherry_cancel_destroy(cancel);
}

/** One of two sources begins to send later than the other one. */
static void test_a_source_comes_late(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    ferry_start(&t.receive);
    ferry_start(t.sends + 1);
    ferry_start(t.sends);
    ferry_join(&t.receive);
    ferry_join(t.sends);
    ferry_join(t.sends + 1);
    expect_received(&t, t.states[0]);
    ferry_expect_ok(t.sends);
    ferry_expect_ok(t.sends + 1);
    trio_close(&t);
}

/** The target has most of the state already. */
static void test_two_sources_compare_first(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    wherry_value *target = ferry_large_state(3);
    t.receive.options.target = ferry_target;
    t.receive.options.target_context = target;
    t.receive.options.flags = WHERRY_RECV_COMPARE;
    trio_run(&t);
    ferry_expect_ok(&t.receive);
    assert_int_equal(t.receive.stats.bytes_moved, 0);
    assert_true(t.receive.stats.bytes_held > 0);
    trio_close(&t);
    wherry_value_destroy(target);
}

/* ---- sources in different groups ---- */

/** Rank 0 of each of two groups sends to rank 2, which is the same receiver in both groups. */
static void pair_open(trio *t, ferry_world *other, uint8_t second_seed) {
    trio_open(t, 3, second_seed);
    *other = ferry_open();
    t->sends[1] = ferry_send(other, 0, 2, t->states[1]);
    t->sends[1].options.step = STEP;
    t->receive.ranks[1] = 0;
    t->receive.transports[0] = t->world.transports[2];
    t->receive.transports[1] = other->transports[2];
}

static void test_sources_in_two_groups(void **state) {
    (void)state;
    for (int verify = WHERRY_VERIFY_DEFAULT; verify <= WHERRY_VERIFY_ALL; verify++) {
        trio t;
        ferry_world other;
        pair_open(&t, &other, 3);
        t.receive.options.verify = (wherry_verify)verify;
        trio_run(&t);
        expect_received(&t, t.states[0]);
        ferry_expect_ok(t.sends);
        ferry_expect_ok(t.sends + 1);
        const wherry_stats *stats = &t.receive.stats;
        assert_int_equal(stats->source_count, 2);
        assert_int_equal(stats->sources[0].bytes + stats->sources[1].bytes, stats->bytes_moved);
        assert_true(stats->sources[0].status == WHERRY_OK && stats->sources[1].status == WHERRY_OK);
        trio_close(&t);
        ferry_close(&other);
    }
}

static void test_only_one_of_two_groups_sends(void **state) {
    (void)state;
    for (int sender = 0; sender < 2; sender++) {
        trio t;
        ferry_world other;
        pair_open(&t, &other, 3);
        ferry_start(&t.receive);
        ferry_start(t.sends + sender);
        ferry_join(&t.receive);
        ferry_join(t.sends + sender);
        expect_received(&t, t.states[sender]);
        assert_int_equal(t.receive.stats.sources[!sender].status, WHERRY_TIMED_OUT);
        trio_close(&t);
        ferry_close(&other);
    }
}

static void test_sources_in_two_groups_differ(void **state) {
    (void)state;
    trio t;
    ferry_world other;
    pair_open(&t, &other, 4);
    t.receive.options.verify = WHERRY_VERIFY_ALL;
    await_all_offers(&t);
    trio_run(&t);
    assert_int_equal(t.receive.status, WHERRY_MISMATCH);
    assert_non_null(strstr(t.receive.error.message, "rank 0"));
    assert_non_null(strstr(t.receive.error.message, "the other server"));
    trio_close(&t);
    ferry_close(&other);
}

/** The receiver loses one of its groups: the source in the other one delivers everything. */
static void test_one_of_two_groups_is_closed(void **state) {
    (void)state;
    for (int closed = 0; closed < 2; closed++) {
        trio t;
        ferry_world other;
        pair_open(&t, &other, 3);
        ferry_start(&t.receive);
        wh_await_asleep(getpid());
        wh_mailbox_close((closed ? &other : &t.world)->groups[2]->mailbox);
        ferry_start(t.sends + !closed);
        ferry_join(&t.receive);
        ferry_join(t.sends + !closed);
        expect_received(&t, t.states[0]);
        ferry_expect_ok(t.sends + !closed);
        assert_int_equal(t.receive.stats.sources[closed].status, WHERRY_CLOSED);
        trio_close(&t);
        ferry_close(&other);
    }
}

/* ---- messages that the receiver sends ---- */

static const wh_group_backend *former;

typedef wherry_status (*send_fn)(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                 wh_deadline deadline, const wh_stop *stop, wherry_error *e);

/** Runs while the receiver sends its messages by another function. */
static void trio_run_with(trio *t, send_fn send) {
    wh_group *group = t->world.groups[2];
    former = group->ops;
    wh_group_backend changed = *former;
    changed.send = send;
    group->ops = &changed;
    trio_run(t);
    group->ops = former;
}

/** Rank 0 does not take the plan. */
static wherry_status send_no_plan(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *e) {
    if (rank != 0 || !size || *(const uint8_t *)bytes != WH_PLAN) {
        return former->send(group, rank, tag, bytes, size, deadline, stop, e);
    }
    while (!wh_deadline_passed(deadline)) {
        usleep(1000);
    }
    return wh_fail(e, WHERRY_TIMED_OUT, "it takes no messages");
}

/**
 * A receiver with several sources gives up such a source much sooner than a receiver with only one.
 */
static void test_a_source_takes_no_messages(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    t.receive.options.no_progress_ms = FERRY_MS;
    trio_run_with(&t, send_no_plan);
    expect_received(&t, t.states[1]);
    ferry_expect_ok(t.sends + 1);
    const wherry_source_stats *sources = t.receive.stats.sources;
    if (sources[1].bytes == t.receive.stats.bytes_moved && sources[0].status != WHERRY_OK) {
        assert_int_equal(sources[0].status, WHERRY_TIMED_OUT);
        assert_int_equal(t.sends[0].status, WHERRY_ABORTED);
    } else {
        /* The receiver did not ask this source. */
        assert_true(sources[0].status == WHERRY_OK && !sources[0].bytes);
    }
    assert_true(t.receive.stats.total_seconds < 1e-3 * FERRY_MS / 2);
    trio_close(&t);
}

static _Atomic int comparisons[2]; /* Number of COMPARE messages, by the value of `strong`. */

static wherry_status send_and_look(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                   wh_deadline deadline, const wh_stop *stop, wherry_error *e) {
    wh_note note;
    if (size && *(const uint8_t *)bytes == WH_COMPARE) {
        must(wh_note_decode(bytes, size, &note, e));
        comparisons[note.strong]++;
    }
    return former->send(group, rank, tag, bytes, size, deadline, stop, e);
}

/** Weak digests decide only if both sources are known to be on this host. */
static void test_digests_over_networks_are_strong(void **state) {
    (void)state;
    trio t;
    trio_open(&t, 3, 3);
    t.receive.options.verify = WHERRY_VERIFY_ALL;
    await_all_offers(&t);
    comparisons[0] = comparisons[1] = 0;
    trio_run_with(&t, send_and_look);
    expect_received(&t, t.states[0]);
    bool local = wh_group_is_local(t.world.groups[2], 0) && wh_group_is_local(t.world.groups[2], 1);
    assert_true(comparisons[!local] > 0);
    assert_int_equal(comparisons[local], 0);
    trio_close(&t);
}

const struct CMUnitTest ferry_several_cases[] = {
    cmocka_unit_test(test_two_sources_send_one_state),
    cmocka_unit_test(test_two_sources_into_a_target),
    cmocka_unit_test(test_a_source_that_does_not_send_is_left_out),
    cmocka_unit_test(test_a_later_step_is_awaited),
    cmocka_unit_test(test_all_sources_are_required),
    cmocka_unit_test(test_sources_with_different_steps),
    cmocka_unit_test(test_sources_with_different_layouts),
    cmocka_unit_test(test_sources_with_different_values),
    cmocka_unit_test(test_sources_with_different_bytes),
    cmocka_unit_test(test_several_sources_need_a_step),
    cmocka_unit_test(test_a_source_is_cancelled),
    cmocka_unit_test(test_a_source_has_changed),
    cmocka_unit_test(test_both_sources_are_cancelled),
    cmocka_unit_test(test_a_source_comes_late),
    cmocka_unit_test(test_two_sources_compare_first),
    cmocka_unit_test(test_sources_in_two_groups),
    cmocka_unit_test(test_only_one_of_two_groups_sends),
    cmocka_unit_test(test_sources_in_two_groups_differ),
    cmocka_unit_test(test_one_of_two_groups_is_closed),
    cmocka_unit_test(test_a_source_takes_no_messages),
    cmocka_unit_test(test_digests_over_networks_are_strong),
};

const size_t ferry_several_case_count = sizeof(ferry_several_cases) / sizeof(*ferry_several_cases);
