/*
 * Blocks of several chunks: which chunks form a block, equally on both sides; which memory they
 * move from and to; how many move at once.
 */
#include <sched.h>
#include <string.h>

#include "base/checked.h"
#include "support/blocks_scene.h"
#include "support/counting_allocator.h"

enum { KIB = 1 << 10, LONG_PATIENCE_MS = 10000 };

/** Chunks that are adjacent on both sides, and chunks that are adjacent only at the source. */
static const lane_shape side_by_side = {.chunks = 10, .pieces = 1, .shortest = 300 * KIB, .longest = 300 * KIB};
static const lane_shape apart = {
    .chunks = 10, .pieces = 1, .shortest = 300 * KIB, .longest = 300 * KIB, .target_gap = 64, .strided = true};

static int reset(void **state) {
    (void)state;
    wh_blocks_limit = (wh_blocks_limits){1, LONG_PATIENCE_MS};
    scene_part_bytes = 0;
    return 0;
}

static uint64_t chunk_bytes(const lane_data *data, size_t chunk) {
    uint64_t bytes = 0;
    for (size_t i = data->first[chunk]; i < data->first[chunk + 1]; i++) {
        bytes += data->pieces[i].length;
    }
    return bytes;
}

/** True if a chunk and the one before it are contiguous and adjacent at the source. */
static bool follows(const lane_data *data, size_t chunk) {
    for (size_t i = data->first[chunk - 1] + 1; i < data->first[chunk + 1]; i++) {
        if (data->pieces[i].source != data->pieces[i - 1].source + data->pieces[i - 1].length) {
            return false;
        }
    }
    return true;
}

/** The sizes of a round's blocks, as docs/wire-format.md defines them. @return their number. */
static size_t expect_blocks(const lane_data *data, lane_round round, uint64_t longest, uint64_t sizes[SEEN_MAX]) {
    size_t count = 0;
    size_t chunks = 0;
    size_t last = SIZE_MAX;
    for (size_t chunk = round.phase; chunk < data->shape.chunks; chunk += round.stride) {
        uint64_t bytes = chunk_bytes(data, chunk);
        if (count && last + 1 == chunk && chunks < WH_BLOCKS_CHUNKS && sizes[count - 1] + bytes <= longest &&
            follows(data, chunk)) {
            sizes[count - 1] += bytes;
            chunks++;
        } else {
            assert_true(count < SEEN_MAX);
            sizes[count++] = bytes;
            chunks = 1;
        }
        last = chunk;
    }
    return count;
}

/**
 * Checks that both sides form these blocks: from all chunks, from every second or third one, and
 * again in later rounds. @return the number of blocks of all chunks.
 */
static size_t check_blocks(const lane_shape *shape, uint8_t longest_mib) {
    static const lane_round rounds[] = {{1, 0}, {2, 1}, {1, 0}, {3, 0}};
    uint64_t sizes[SEEN_MAX];
    size_t all = 0;
    wh_blocks_limit.longest_mib = longest_mib;
    for (int source = 0; source < 2; source++) {
        scene s;
        scene_begin(&s, shape, source, false, NULL);
        for (size_t i = 0; i < sizeof(rounds) / sizeof(*rounds); i++) {
            size_t count = expect_blocks(s.data, rounds[i], (uint64_t)longest_mib * MIB, sizes);
            lane_data_begin_feed(s.data, rounds[i]);
            lane_data_begin_sink(s.data, rounds[i]);
            s.group.count = 0;
            must(work(&s, source));
            assert_int_equal(s.group.count, count);
            for (size_t k = 0; k < count; k++) {
                assert_int_equal(s.group.seen[k].size, sizes[k]);
            }
            uint64_t moved = source ? s.data->feed_moved : s.data->sink_moved;
            assert_int_equal(moved, lane_data_bytes(s.data, rounds[i], false));
            all = i ? all : count;
        }
        assert_true(!s.data->wrong);
        scene_end(&s);
    }
    return all;
}

static void test_both_sides_form_the_same_blocks(void **state) {
    (void)state;
    static const lane_shape many = {.chunks = 150, .pieces = 1, .shortest = 900, .longest = 1100};
    static const lane_shape broken = {
        .chunks = 60, .pieces = 1, .shortest = 20 * KIB, .longest = 90 * KIB, .source_gap = 9, .target_gap = 9};
    static const lane_shape pieces = {
        .chunks = 30, .pieces = 2, .shortest = 20 * KIB, .longest = 90 * KIB, .source_gap = 9, .staged = 5};
    assert_int_equal(check_blocks(&side_by_side, 1), 4);
    assert_int_equal(check_blocks(&apart, 1), 4);
    assert_int_equal(check_blocks(&side_by_side, 2), 2);
    assert_int_equal(check_blocks(&side_by_side, 0), 10);
    assert_int_equal(check_blocks(&many, 64), 3); /* The number of chunks limits the length. */
    size_t count = check_blocks(&broken, 1);
    assert_true(count > 10 && count < 60);
    count = check_blocks(&pieces, 1);
    assert_true(count > 5 && count < 30);
}

/**
 * Blocks move without a copy if their chunks are adjacent on this side too. Otherwise they use a
 * scratch buffer, which is reused.
 */
static void test_adjacent_chunks_move_without_a_copy(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool source = i & 1;
        bool in_place = source || i < 2;
        scene s;
        scene_begin(&s, i < 2 ? &side_by_side : &apart, source, false, NULL);
        must(work(&s, source));
        assert_int_equal(s.group.count, 4);
        for (size_t k = 0; k < 4; k++) {
            const uint8_t *bytes = s.group.seen[k].bytes;
            const lane_piece *piece = s.data->pieces + 3 * k;
            if (in_place || k == 3) { /* The last block is a single chunk. */
                assert_ptr_equal(bytes, source ? s.data->source + piece->source : s.data->target + piece->target);
            } else {
                assert_true(bytes < s.data->target || bytes >= s.data->target + s.data->target_bytes);
            }
        }
        scene_end(&s);
    }
}

/**
 * A source has two long blocks in progress, and a receiver all of them. Only one block that needs
 * the scratch buffer is in progress at a time.
 */
static void test_long_blocks_in_progress_are_limited(void **state) {
    (void)state;
    static const lane_shape large = {.chunks = 39, .pieces = 1, .shortest = MIB, .longest = MIB};
    wh_blocks_limit.longest_mib = 13;
    for (int number = 0; number < 3; number++) {
        bool source = number == 2;
        bool packed = number == 1;
        lane_shape shape = large;
        shape.target_gap = packed ? 64 : 0;
        shape.strided = packed;
        scene s;
        scene_begin(&s, &shape, source, false, NULL);
        must(work(&s, source));
        assert_int_equal(s.group.count, 3);
        assert_int_equal(s.group.most_open, packed ? 1 : source ? 2 : 3);
        for (size_t i = 1; packed && i < 3; i++) {
            assert_ptr_equal(s.group.seen[i].bytes, s.group.seen[0].bytes);
        }
        scene_end(&s);
    }
}

/**
 * Both use the shorter of the two block lengths. If one has a short timeout, a block is a chunk.
 */
static void test_both_sides_agree_on_the_block_length(void **state) {
    (void)state;
    static const struct {
        uint8_t offered;
        uint8_t own;
        uint32_t no_progress_ms;
        uint8_t agreed;
    } cases[] = {{64, 64, LONG_PATIENCE_MS, 64},    {64, 5, LONG_PATIENCE_MS, 5}, {7, 64, LONG_PATIENCE_MS, 7},
                 {64, 64, LONG_PATIENCE_MS - 1, 0}, {0, 64, LONG_PATIENCE_MS, 0}, {64, 0, LONG_PATIENCE_MS, 0}};
    scene s;
    scene_begin(&s, &side_by_side, false, false, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const uint8_t offer[SCENE_OFFER_BYTES] = {SCENE_VERSION, cases[i].offered, 0};
        wh_string text = {0};
        wh_string made = {0};
        wh_lane_end *end = NULL;
        bool flag;
        wh_blocks_limit.longest_mib = cases[i].own;
        s.site.no_progress_ms = cases[i].no_progress_ms;
        must(lane->probe(&s.site, offer, sizeof(offer), &text, &flag, &end, &error));
        assert_int_equal(text.bytes[1], cases[i].agreed);
        assert_int_equal(((wh_blocks_end *)(void *)end)->longest, (uint64_t)cases[i].agreed * MIB);
        lane->close(end);
        must(lane->offer(&s.site, &made, &error));
        assert_true(made.size == SCENE_OFFER_BYTES && made.bytes[0] == SCENE_VERSION);
        assert_int_equal(made.bytes[1], cases[i].no_progress_ms < LONG_PATIENCE_MS ? 0 : cases[i].own);
        must(lane->accept(&s.site, text.bytes, text.size, &flag, &end, &error));
        assert_int_equal(((wh_blocks_end *)(void *)end)->longest, (uint64_t)cases[i].agreed * MIB);
        lane->close(end);
        wh_free(text.bytes);
        wh_free(made.bytes);
    }
    scene_end(&s);
}

/** Both use the shorter of the two part lengths. If one has none, there are no parts. */
static void test_both_sides_agree_on_the_part_length(void **state) {
    (void)state;
    static const struct {
        uint8_t offered;
        uint8_t own;
        uint8_t agreed;
    } cases[] = {{8, 8, 8}, {8, 2, 2}, {3, 8, 3}, {255, 128, 128}, {0, 8, 0}, {8, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const uint8_t offer[SCENE_OFFER_BYTES] = {SCENE_VERSION, 0, cases[i].offered};
        scene s;
        wh_string text = {0};
        wh_string made = {0};
        wh_lane_end *end = NULL;
        bool flag;
        scene_part_bytes = (uint32_t)cases[i].own * WH_BLOCKS_PART_UNIT;
        scene_begin(&s, &side_by_side, false, false, NULL);
        must(lane->probe(&s.site, offer, sizeof(offer), &text, &flag, &end, &error));
        assert_int_equal((uint8_t)text.bytes[2], cases[i].agreed);
        assert_int_equal(((wh_blocks_end *)(void *)end)->part, (uint64_t)cases[i].agreed * WH_BLOCKS_PART_UNIT);
        lane->close(end);
        must(lane->offer(&s.site, &made, &error));
        assert_int_equal((uint8_t)made.bytes[2], cases[i].own);
        must(lane->accept(&s.site, text.bytes, text.size, &flag, &end, &error));
        assert_int_equal(((wh_blocks_end *)(void *)end)->part, (uint64_t)cases[i].agreed * WH_BLOCKS_PART_UNIT);
        lane->close(end);
        wh_free(text.bytes);
        wh_free(made.bytes);
        scene_end(&s);
    }
}

/**
 * A block of one chunk moves in parts, equally on both sides, without a copy if it is contiguous. A
 * block of several chunks does not.
 */
static void test_single_chunks_move_in_parts(void **state) {
    (void)state;
    static const lane_shape alone = {
        .chunks = 3, .pieces = 1, .shortest = 300 * KIB, .longest = 300 * KIB, .source_gap = 9, .target_gap = 9};
    static const lane_shape in_pieces = {.chunks = 3,
                                         .pieces = 9,
                                         .shortest = 40 * KIB,
                                         .longest = 50 * KIB,
                                         .source_gap = 9,
                                         .target_gap = 20,
                                         .strided = true};
    const lane_shape *const shapes[] = {&alone, &in_pieces, &side_by_side};
    for (int i = 0; i < 6; i++) {
        bool source = i & 1;
        const lane_shape *shape = shapes[i / 2];
        scene s;
        size_t expected_count = 0;
        wh_blocks_limit.longest_mib = shape == &side_by_side;
        scene_part_bytes = 2 * WH_BLOCKS_PART_UNIT;
        scene_begin(&s, shape, source, !source, NULL);
        must(work(&s, source));
        for (size_t chunk = 0; chunk < shape->chunks && shape != &side_by_side; chunk++) {
            for (uint64_t left = chunk_bytes(s.data, chunk), size; left; left -= size) {
                size = wh_min(left, scene_part_bytes);
                assert_int_equal(s.group.seen[expected_count++].size, size);
            }
        }
        /* Only the last block is a single chunk. */
        assert_int_equal(s.group.count, shape == &side_by_side ? 3 + 3 : expected_count);
        const uint8_t *expected =
            source ? s.data->source + s.data->pieces->source : s.data->target + s.data->pieces->target;
        for (size_t k = 0; k < 3 && shape == &alone; k++) {
            assert_ptr_equal(s.group.seen[k].bytes, expected + k * scene_part_bytes);
        }
        assert_int_equal(source ? s.data->feed_moved : s.data->sink_moved,
                         lane_data_bytes(s.data, (lane_round){1, 0}, false));
        assert_int_equal(s.group.most_open, WH_BLOCKS_PARTS);
        scene_end(&s);
    }
}

static void test_refuses_hostile_lengths(void **state) {
    (void)state;
    scene s;
    wh_string text = {0};
    wh_lane_end *end = NULL;
    bool flag;
    wh_blocks_limit.longest_mib = WH_BLOCKS_LONG_MIB;
    scene_begin(&s, &side_by_side, false, false, NULL);
    must_fail(WHERRY_MALFORMED, error, lane->probe(&s.site, "\2\x41\0", 3, &text, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->probe(&s.site, "\2\xFF\0", 3, &text, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->probe(&s.site, "\2\0", 2, &text, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&s.site, "\2\0\0\x41\0", 5, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&s.site, "\2\0\0\xFF\0", 5, &flag, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&s.site, "\2\0\0\0", 4, &flag, &end, &error));
    wh_blocks_limit.longest_mib = 3; /* This length is more than the source offered. */
    must_fail(WHERRY_MALFORMED, error, lane->accept(&s.site, "\2\0\0\4\0", 5, &flag, &end, &error));
    /* parts */
    must_fail(WHERRY_MALFORMED, error, lane->accept(&s.site, "\2\0\0\3\1", 5, &flag, &end, &error));
    assert_true(!text.size && !end);
    scene_end(&s);
}

/** The stop that stop_and_continue requests, while a block is being formed. */
static wh_stop *stop_at_once;

static uint64_t stop_and_continue(void *context, uint64_t chunk) {
    const lane_data *data = context;
    wh_stop_request(stop_at_once);
    return chunk_bytes(data, chunk);
}

/** A stop while a block is formed makes it shorter than on the other side, so it must not begin. */
static void test_stop_while_forming_a_block_begins_none(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        scene s;
        scene_begin(&s, &side_by_side, source, false, NULL);
        wh_feed feed = lane_data_feed(s.data);
        wh_sink sink = lane_data_sink(s.data);
        feed.continues = sink.continues = stop_and_continue;
        stop_at_once = &s.stop;
        must_fail(WHERRY_CANCELLED, error, work_with(&s, source, &feed, &sink));
        assert_int_equal(s.group.count, 0);
        scene_end(&s);
    }
}

/** A feed with this function falsely reports that all chunks are adjacent. */
static uint64_t always(void *context, uint64_t chunk) {
    return chunk_bytes(context, chunk);
}

static void test_detects_a_wrong_feed(void **state) {
    (void)state;
    static const lane_shape gaps = {
        .chunks = 4, .pieces = 1, .shortest = 100, .longest = 100, .source_gap = 8, .strided = true};
    static const lane_shape parts = {
        .chunks = 4, .pieces = 2, .shortest = 100, .longest = 100, .source_gap = 8, .strided = true};
    for (int i = 0; i < 2; i++) {
        scene s;
        scene_begin(&s, i ? &gaps : &parts, true, false, NULL);
        wh_feed feed = lane_data_feed(s.data);
        feed.continues = always;
        must_fail(WHERRY_INTERNAL, error, work_with(&s, true, &feed, NULL));
        assert_int_equal(s.group.count, 0);
        scene_end(&s);
    }
}

/**
 * Whatever fails, no operation is in progress when the lane returns. The pending chunk of a failed
 * round is not part of the next round.
 */
static void test_failure_leaves_nothing_in_progress(void **state) {
    (void)state;
    for (int source = 0; source < 2; source++) {
        for (size_t at = 1; at <= 4; at++) {
            scene s;
            scene_begin(&s, &apart, source, false, NULL);
            s.group.begin_fails = at;
            must_fail(WHERRY_SYSTEM, error, work(&s, source));
            assert_true(error.rank == PEER && s.group.open == 0 && s.group.count == at - 1);
            s.group.begin_fails = 0;
            s.group.count = 0;
            lane_data_begin_feed(s.data, (lane_round){5, 0});
            lane_data_begin_sink(s.data, (lane_round){5, 0});
            must(work(&s, source));
            assert_int_equal(s.group.count, 2);
            assert_int_equal(s.group.seen[0].size, apart.longest);
            scene_end(&s);

            scene_begin(&s, &apart, source, false, NULL);
            s.group.finish_stops = at;
            s.group.answer = WHERRY_PEER_LOST;
            must_fail(WHERRY_PEER_LOST, error, work(&s, source));
            assert_true(error.rank == PEER && s.group.open == 0 && s.group.finished == at - 1);
            scene_end(&s);
        }
    }
}

/** Each allocation of a round fails in turn. */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    static const lane_shape staged = {.chunks = 10, .pieces = 1, .shortest = 9000, .longest = 9000, .staged = 2};
    static const lane_shape *const shapes[] = {&side_by_side, &apart, &staged};
    for (int i = 0; i < 6; i++) {
        bool source = i & 1;
        for (uint64_t fail = 1;; fail++) {
            scene s;
            counting count;
            scene_begin(&s, shapes[i / 2], source, !source, NULL);
            counting_begin(&count);
            count.fail = fail;
            wherry_status status = work(&s, source);
            bool failed = count.calls >= fail;
            wherry_allocator_set(NULL);
            assert_int_equal(status, failed ? WHERRY_NO_MEMORY : WHERRY_OK);
            assert_true(s.group.open == 0 && (!failed || error.status == WHERRY_NO_MEMORY));
            scene_end(&s);
            if (!failed) {
                assert_true(fail > (source ? 1 : 8));
                break;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_both_sides_form_the_same_blocks, reset),
        cmocka_unit_test_setup(test_adjacent_chunks_move_without_a_copy, reset),
        cmocka_unit_test_setup(test_long_blocks_in_progress_are_limited, reset),
        cmocka_unit_test_setup(test_both_sides_agree_on_the_block_length, reset),
        cmocka_unit_test_setup(test_both_sides_agree_on_the_part_length, reset),
        cmocka_unit_test_setup(test_single_chunks_move_in_parts, reset),
        cmocka_unit_test_setup(test_refuses_hostile_lengths, reset),
        cmocka_unit_test_setup(test_stop_while_forming_a_block_begins_none, reset),
        cmocka_unit_test_setup(test_detects_a_wrong_feed, reset),
        cmocka_unit_test_setup(test_failure_leaves_nothing_in_progress, reset),
        cmocka_unit_test_setup(test_reports_failed_allocations, reset),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("lane_blocks_long", tests, NULL, NULL);
}
