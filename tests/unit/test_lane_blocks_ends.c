/*
 * The ends of the blocks lane: which memory they move from and to, and how many blocks move at
 * once. After a failure no operation is in progress. Each block is one chunk here;
 * test_lane_blocks_long.c tests blocks of several chunks.
 */
#include <stdlib.h>

#include "group/callback/callback.h"
#include "support/blocks_scene.h"
#include "support/callback_hub.h"
#include "support/counting_allocator.h"

static const lane_shape whole = {
    .chunks = 10, .pieces = 1, .shortest = 1000, .longest = 5000, .source_gap = 9, .target_gap = 20};
static const lane_shape pieces = {
    .chunks = 10, .pieces = 4, .shortest = 1000, .longest = 5000, .source_gap = 9, .target_gap = 20, .strided = true};

/** How many of ten small chunks are in progress at once. A receiver begins all of them. */
static size_t at_once(bool source) {
    return source ? UNDER_WAY : 10;
}

/**
 * A chunk that is one run moves without a copy, in the order of the chunks, on the channel of the
 * request.
 */
static void test_single_runs_move_without_a_copy(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        uint32_t channel;
        scene_begin(&s, &whole, source, false, &channel);
        must(work(&s, source));
        assert_int_equal(s.group.count, whole.chunks);
        assert_int_equal(s.group.most_open, at_once(source));
        assert_int_equal(s.group.abandoned, 0);
        for (size_t i = 0; i < s.group.count; i++) {
            const seen *one = s.group.seen + i;
            const lane_piece *piece = s.data->pieces + i;
            assert_ptr_equal(one->bytes, source ? s.data->source + piece->source : s.data->target + piece->target);
            assert_int_equal(one->size, piece->length);
            assert_int_equal(one->channel, channel);
            assert_true(one->is_put == source && one->gone);
        }
        uint64_t moved = source ? s.data->feed_moved : s.data->sink_moved;
        assert_int_equal(moved, lane_data_bytes(s.data, (lane_round){1, 0}, false));
        assert_true(!source || !s.data->wrong);
        scene_end(&s);
    }
}

/** A chunk of several runs moves through a buffer of the lane, which is reused. */
static void test_several_runs_move_through_a_buffer(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        scene_begin(&s, &pieces, source, false, NULL);
        must(work(&s, source));
        assert_int_equal(s.group.count, pieces.chunks);
        for (size_t i = 0; i < s.group.count; i++) {
            const uint8_t *bytes = s.group.seen[i].bytes;
            assert_true(bytes < s.data->source || bytes >= s.data->source + s.data->source_bytes);
            assert_true(bytes < s.data->target || bytes >= s.data->target + s.data->target_bytes);
        }
        scene_end(&s);
    }
}

/**
 * A receiver begins blocks ahead, up to a limit. It begins the next ones together when half of them
 * have finished.
 */
static void test_receiver_begins_blocks_ahead(void **state) {
    (void)state;
    static const lane_shape many = {.chunks = 100, .pieces = 1, .shortest = 100, .longest = 200};
    enum { HALF = WH_BLOCKS_AHEAD / 2 };
    scene s;
    bool done = false;
    scene_begin(&s, &many, false, false, NULL);
    s.group.answer = WHERRY_TIMED_OUT;
    for (size_t through = 0; through < 2 * HALF; through++) {
        s.group.finish_stops = through + 1;
        must(work_some(&s, false, &done));
        assert_true(!done && s.group.finished == through);
        assert_int_equal(s.group.count, WH_BLOCKS_AHEAD + through / HALF * HALF);
    }
    s.group.finish_stops = 0;
    must(work(&s, false));
    assert_true(s.group.finished == many.chunks && s.group.most_open == WH_BLOCKS_AHEAD);
    scene_end(&s);
}

/** A receiver has no more staged chunks in progress than a source has. */
static void test_staged_chunks_are_limited(void **state) {
    (void)state;
    static const lane_shape staged = {.chunks = 20, .pieces = 1, .shortest = 100, .longest = 200, .staged = 1};
    scene s;
    scene_begin(&s, &staged, false, false, NULL);
    must(work(&s, false));
    assert_int_equal(s.group.count, staged.chunks);
    assert_int_equal(s.group.most_open, UNDER_WAY);
    scene_end(&s);
}

/** Fewer large chunks are sent at once. */
static void test_fewer_large_chunks_move_at_once(void **state) {
    (void)state;
    static const lane_shape large = {.chunks = 4, .pieces = 1, .shortest = 7 * MIB, .longest = 7 * MIB};
    scene s;
    scene_begin(&s, &large, true, false, NULL);
    must(work(&s, true));
    assert_int_equal(s.group.count, 4);
    assert_int_equal(s.group.most_open, 2);
    scene_end(&s);
}

/**
 * A call that works in parts moves a few chunks and returns. It also returns if it cannot proceed.
 * The next call continues.
 */
static void test_works_in_parts(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        bool done = true;
        scene_begin(&s, &whole, source, false, NULL);
        s.group.finish_stops = 3;
        s.group.answer = WHERRY_TIMED_OUT;
        must(work_some(&s, source, &done));
        assert_false(done);
        assert_true(s.group.finished == 2 && s.group.open == (source ? UNDER_WAY : whole.chunks - 2));
        must(work_some(&s, source, &done));
        assert_true(!done && s.group.finished == 2);
        s.group.finish_stops = 0;
        int parts = 0;
        while (!done) {
            must(work_some(&s, source, &done));
            parts++;
        }
        assert_true(parts > 1 && s.group.finished == whole.chunks && s.group.open == 0);
        lane_data_begin_feed(s.data, (lane_round){2, 1});
        lane_data_begin_sink(s.data, (lane_round){2, 1});
        must(work_some(&s, source, &done)); /* The next round begins here. */
        assert_false(done);
        must(work(&s, source));
        assert_int_equal(s.group.finished, whole.chunks + whole.chunks / 2);
        scene_end(&s);
    }
}

/**
 * Whatever fails, no operation is in progress when the lane returns, and the error names the peer.
 */
static void test_failure_leaves_nothing_in_progress(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        for (size_t at = 1; at <= whole.chunks; at++) {
            scene s;
            scene_begin(&s, &whole, source, false, NULL);
            s.group.begin_fails = at;
            must_fail(WHERRY_SYSTEM, error, work(&s, source));
            assert_true(error.rank == PEER && s.group.open == 0 && s.group.count == at - 1);
            scene_end(&s);

            scene_begin(&s, &whole, source, false, NULL);
            s.group.finish_stops = at;
            s.group.answer = WHERRY_PEER_LOST;
            must_fail(WHERRY_PEER_LOST, error, work(&s, source));
            assert_true(error.rank == PEER && s.group.open == 0 && s.group.finished == at - 1);
            scene_end(&s);
        }
    }
}

static void test_times_out_without_progress_and_at_the_deadline(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        scene_begin(&s, &whole, source, false, NULL);
        s.group.finish_stops = 2;
        s.group.answer = WHERRY_TIMED_OUT;
        s.site.no_progress_ms = SHORT_MS;
        must_fail(WHERRY_TIMED_OUT, error, work(&s, source));
        assert_non_null(strstr(error.message, "has not moved a byte for 60 ms"));
        assert_true(error.rank == PEER && s.group.open == 0);
        assert_int_equal(s.group.abandoned, source ? UNDER_WAY : whole.chunks - 1);
        scene_end(&s);

        scene_begin(&s, &whole, source, false, NULL);
        s.group.finish_stops = 2;
        s.group.answer = WHERRY_TIMED_OUT;
        s.site.deadline = wh_deadline_in_ms(SHORT_MS);
        must_fail(WHERRY_TIMED_OUT, error, work(&s, source));
        assert_non_null(strstr(error.message, "before all bytes had moved"));
        assert_int_equal(s.group.open, 0);
        scene_end(&s);
    }
}

/** A stop fails the round, even if it is noticed only after the last chunk. */
static void test_stop_fails_the_round(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        bool done = false;
        scene_begin(&s, &whole, source, false, NULL);
        s.group.finish_stops = 2;
        s.group.answer = WHERRY_TIMED_OUT;
        must(work_some(&s, source, &done));
        wh_stop_request(&s.stop);
        must_fail(WHERRY_CANCELLED, error, work_some(&s, source, &done));
        assert_true(!done && s.group.open == 0 && s.group.abandoned == (source ? UNDER_WAY : whole.chunks - 1));
        scene_end(&s);
    }
}

/** Closing an end in the middle of a round leaves no operation in progress. */
static void test_close_leaves_nothing_in_progress(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        bool done = true;
        scene_begin(&s, &pieces, source, true, NULL);
        s.group.finish_stops = 1;
        s.group.answer = WHERRY_TIMED_OUT;
        must(work_some(&s, source, &done));
        assert_true(!done && s.group.open == at_once(source));
        scene_end(&s);
        assert_int_equal(s.group.abandoned, at_once(source));
    }
}

/** Each transfer of a receiver has its own channel. */
static void test_each_transfer_has_its_own_channel(void **state) {
    (void)state;
    enum { TRIES = 1000 };
    static bool used[WHERRY_GROUP_CHANNEL_MAX + 1];
    scene s;
    scene_begin(&s, &whole, false, false, NULL);
    for (int i = 0; i < TRIES; i++) {
        uint32_t channel;
        lane->close(open_end(&s.site, i % 2, &channel));
        assert_false(used[channel]);
        used[channel] = true;
    }
    scene_end(&s);
}

static void test_refuses_groups_and_messages_it_cannot_use(void **state) {
    (void)state;
    static const wh_group_backend none = {.name = "messages"};
    scene s;
    wh_string text = {0};
    wh_lane_end *end = NULL;
    bool flag;
    static const uint8_t offer[SCENE_OFFER_BYTES] = {SCENE_VERSION};
    static const uint8_t request[SCENE_REQUEST_BYTES] = {SCENE_VERSION};
    static const uint8_t channel_too_high[SCENE_REQUEST_BYTES] = {SCENE_VERSION, 0, 0, 0x40};
    static const uint8_t highest_channel[SCENE_REQUEST_BYTES] = {SCENE_VERSION, 0, 0, 0x3F, 0xFF};
    static const uint8_t older[SCENE_OFFER_BYTES] = {SCENE_VERSION - 1};
    static const uint8_t older_request[SCENE_REQUEST_BYTES] = {SCENE_VERSION - 1};
    scene_begin(&s, &whole, false, false, NULL);
    wh_group other = {.ops = &none, .size = 2};
    wh_lane_site site = s.site;
    site.group = &other;
    for (int own_rank = 0; own_rank < 2; own_rank++) {
        must_fail(WHERRY_UNSUPPORTED, error, lane->offer(&site, &text, &error));
        must_fail(WHERRY_UNSUPPORTED, error, lane->probe(&site, offer, sizeof(offer), &text, &flag, &end, &error));
        must_fail(WHERRY_UNSUPPORTED, error, lane->accept(&site, request, sizeof(request), &flag, &end, &error));
        assert_true(text.size == 0 && !end);
        site = s.site;
        site.peer = site.group->rank;
    }
    must_fail(WHERRY_MALFORMED, error, lane->probe(&s.site, older, sizeof(older), &text, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error,
              lane->accept(&s.site, channel_too_high, sizeof(channel_too_high), &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error,
              lane->accept(&s.site, older_request, sizeof(older_request), &flag, &end, &error));
    must(lane->accept(&s.site, highest_channel, sizeof(highest_channel), &flag, &end, &error));
    lane->close(end);
    scene_end(&s);
}

/** Each allocation of a round fails in turn. */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        for (uint64_t fail = 1;; fail++) {
            scene s;
            counting count;
            scene_begin(&s, &pieces, source, !source, NULL);
            counting_begin(&count);
            count.fail = fail;
            wherry_status status = work(&s, source);
            bool failed = count.calls >= fail;
            wherry_allocator_set(NULL);
            assert_int_equal(status, failed ? WHERRY_NO_MEMORY : WHERRY_OK);
            assert_true(s.group.open == 0 && (!failed || error.status == WHERRY_NO_MEMORY));
            scene_end(&s);
            if (!failed) {
                assert_true(fail > UNDER_WAY);
                break;
            }
        }
    }
}

/**
 * If a source sends blocks of a wrong size, the receiver reports it and writes nothing outside its
 * memory.
 */
static void test_refuses_blocks_of_a_wrong_size(void **state) {
    (void)state;
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL, .blocks = true};
    for (int longer = 0; longer < 2; longer++) {
        callback_hub *hub = callback_hub_open(2, &options);
        wh_group *groups[2];
        for (int32_t rank = 0; rank < 2; rank++) {
            wherry_group_ops ops;
            void *context = callback_hub_member(hub, rank, &ops);
            must(wh_callback_create(&ops, context, groups + rank, &error));
        }
        scene s;
        uint32_t channel;
        void *operation;
        static uint8_t bytes[10000];
        scene_begin(&s, &whole, false, false, NULL);
        lane->close(s.end);
        s.site.group = groups[0];
        s.end = open_end(&s.site, false, &channel);
        size_t size = s.data->pieces[0].length + (longer ? 4000 : -1);
        must(groups[1]->ops->put(groups[1], 0, channel, bytes, size, &operation, &error));
        must_fail(WHERRY_MALFORMED, error, work(&s, false));
        assert_int_equal(error.rank, PEER);
        const lane_piece *first = s.data->pieces;
        for (size_t i = 0; i < s.data->target_bytes; i++) {
            assert_true((i >= first->target && i < first->target + first->length) || s.data->target[i] == 0xA5);
        }
        must(groups[1]->ops->finish(groups[1], 0, operation, 0, &error));
        scene_end(&s);
        wh_group_destroy(groups[0]);
        wh_group_destroy(groups[1]);
        callback_hub_close(hub);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_runs_move_without_a_copy),
        cmocka_unit_test(test_several_runs_move_through_a_buffer),
        cmocka_unit_test(test_fewer_large_chunks_move_at_once),
        cmocka_unit_test(test_works_in_parts),
        cmocka_unit_test(test_failure_leaves_nothing_in_progress),
        cmocka_unit_test(test_times_out_without_progress_and_at_the_deadline),
        cmocka_unit_test(test_stop_fails_the_round),
        cmocka_unit_test(test_close_leaves_nothing_in_progress),
        cmocka_unit_test(test_each_transfer_has_its_own_channel),
        cmocka_unit_test(test_refuses_groups_and_messages_it_cannot_use),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_refuses_blocks_of_a_wrong_size),
        cmocka_unit_test(test_receiver_begins_blocks_ahead),
        cmocka_unit_test(test_staged_chunks_are_limited),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    wh_blocks_limit.longest_mib = 0;
    return cmocka_run_group_tests_name("lane_blocks_ends", tests, NULL, NULL);
}
