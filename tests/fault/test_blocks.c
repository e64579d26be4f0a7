/*
 * Faults of the blocks lane. The cases run over a table that any thread may call, and over one that
 * only the thread inside the transfer may call, which then both moves the bytes and runs the
 * conversation. A block has one chunk or several. In all cases both sides end in time, no operation
 * is left, and no memory is written later.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/transfer_world.h"
#include "group/callback/callback.h"
#include "lane/blocks/blocks_internal.h"
#include "support/callback_hub.h"
#include "support/process_job.h"

enum { RANKS = 4, BODY = (22 << 20) + 5, CHUNKS = 6, SOON_MS = 5000 * JOB_SLOW, STALE_MS = 1500 * JOB_SLOW, AFTER = 2 };

/**
 * Blocks of up to 8 MiB have chunks 0 and 1; 2 and 3; 4; and 5, which also has the beginning of
 * another tensor.
 */
enum { LONG_MIB = 8, LONG_BLOCKS = 4 };

static wherry_error error;
static wh_blocks_limits standard; /* The default limits. Some tests change them. */

typedef struct world {
    callback_hub *hub;
    wh_group *groups[RANKS];
    wherry_transport *transports[RANKS];
} world;

/** The table that a case runs over, and the maximum length of a block. */
typedef struct kind {
    uint32_t flags;
    uint8_t longest_mib;
    size_t blocks; /**< Number of blocks of the state. */
    bool bare;     /**< True if the table has no put and get. */
} kind;

static const kind kinds[] = {{CALLBACK_HUB_ALL, 0, CHUNKS, false},
                             {0, LONG_MIB, LONG_BLOCKS, false},
                             {0, 0, CHUNKS, false},
                             {CALLBACK_HUB_ALL, LONG_MIB, LONG_BLOCKS, false}};

/** Slow cases run only over the first two kinds, which together have every property. */
enum { KINDS = 4, SOME_KINDS = 2 };

static world open_world(kind of) {
    static const wh_lane_ops *const lanes[] = {&wh_lane_blocks};
    callback_hub_options options = {.flags = of.flags, .blocks = !of.bare};
    wh_blocks_limit = (wh_blocks_limits){of.longest_mib, STALE_MS};
    world w = {.hub = callback_hub_open(RANKS, &options)};
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wherry_group_ops ops;
        void *context = callback_hub_member(w.hub, rank, &ops);
        must(wh_callback_create(&ops, context, w.groups + rank, &error));
        must(wh_transport_create(w.groups[rank], 0, lanes, 1, w.transports + rank, &error));
    }
    return w;
}

static void close_world(world *w) {
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wherry_transport_destroy(w->transports[rank]);
        wh_group_destroy(w->groups[rank]);
    }
    callback_hub_close(w->hub); /* Fails the test if an operation is left in the hub. */
}

static wherry_value *make_state(uint8_t seed) {
    int64_t body = BODY;
    int64_t little = 1000;
    return build_dict("w", build_tensor(build_storage(BODY, seed), WHERRY_U8, 0, 1, &body, NULL), "b",
                      build_tensor(build_storage(1000, seed), WHERRY_U8, 0, 1, &little, NULL), NULL);
}

static ferry_call call_of(const world *w, int32_t rank) {
    ferry_call call = {.transport = w->transports[rank]};
    wherry_transfer_options_init(&call.options);
    call.options.timeout_ms = FERRY_MS;
    return call;
}

static ferry_call send_to(const world *w, const wherry_value *state, size_t count) {
    ferry_call call = call_of(w, 0);
    call.count = count;
    call.state = state;
    for (size_t i = 0; i < count; i++) {
        call.ranks[i] = (int32_t)i + 1;
    }
    return call;
}

static ferry_call receive_at(const world *w, int32_t rank, const wherry_value *target) {
    ferry_call call = call_of(w, rank);
    if (target) {
        call.options.target = ferry_target;
        call.options.target_context = (void *)target;
    }
    return call;
}

static void expect(const ferry_call *call, wherry_status status) {
    if (call->status != status) {
        fail_msg("%s instead of %s: %s", wherry_status_name(call->status), wherry_status_name(status),
                 call->error.message);
    }
}

/** The next transfer between the two ranks must succeed. */
static void expect_next_works(const world *w, int32_t rank, const wherry_value *state) {
    ferry_call calls[] = {send_to(w, state, 1), receive_at(w, rank, NULL)};
    calls[0].ranks[0] = rank;
    ferry_run(calls, 2);
    expect(calls, WHERRY_OK);
    expect(calls + 1, WHERRY_OK);
    assert_string_equal(calls[1].stats.lane, "blocks");
    assert_string_equal(calls[0].outcomes[0].stats.lane, "blocks");
    must(wherry_value_compare(state, calls[1].received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(calls[1].received);
}

/**
 * Waits until `count` blocks have moved to a rank. Both that rank and the source have then started
 * further blocks, which do not move.
 */
static void await_standstill(const world *w, int32_t rank, size_t count) {
    bool there = false;
    for (int i = 0; i < FERRY_MS && !there; i++) {
        there = callback_hub_moved(w->hub, rank) == count && callback_hub_under_way(w->hub, rank) &&
                callback_hub_under_way(w->hub, 0);
        usleep(1000);
    }
    assert_true(there);
}

static uint8_t *bytes_of(const wherry_value *state) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, "w"))->storage);
}

static uint64_t ms_since(uint64_t begin) {
    return (wh_clock_now() - begin) / 1000000;
}

/**
 * Either side is cancelled during the transfer. The other side learns it at once. Blocks that the
 * source puts later are not written to memory that belongs to the user again.
 */
static void test_cancel_during_a_transfer(void **state) {
    (void)state;
    for (int i = 0; i < 2 * KINDS; i++) {
        bool at_source = i & 1;
        world w = open_world(kinds[i / 2]);
        wherry_value *source = make_state(1);
        wherry_value *target = make_state(2);
        wherry_cancel *cancel;
        must(wherry_cancel_create(&cancel, &error));
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, target)};
        calls[!at_source].options.cancel = cancel;
        callback_hub_hold(w.hub, 1, AFTER);
        ferry_start(calls);
        ferry_start(calls + 1);
        await_standstill(&w, 1, AFTER);
        uint64_t begin = wh_clock_now();
        wherry_cancel_request(cancel);
        ferry_join(calls + !at_source);
        ferry_join(calls + at_source);
        assert_true(ms_since(begin) < SOON_MS);
        expect(calls + !at_source, WHERRY_CANCELLED);
        expect(calls + at_source, at_source ? WHERRY_REVOKED : WHERRY_ABORTED);
        assert_true(callback_hub_abandoned(w.hub, 0) > 0 && callback_hub_abandoned(w.hub, 1) > 0);
        memset(bytes_of(target), 0x77, BODY);
        callback_hub_hold(w.hub, 1, SIZE_MAX);
        expect_next_works(&w, 1, source);
        for (size_t at = 0; at < BODY; at++) {
            if (bytes_of(target)[at] != 0x77) {
                fail_msg("byte %zu was written to after the receive had returned", at);
            }
        }
        wherry_cancel_destroy(cancel);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

static void note_release(void *context, void *data) {
    (void)data;
    *(bool *)context = true;
}

/** A state of one tensor whose storage says when it is released. */
static wherry_value *make_watched(bool *released) {
    static uint8_t memory[BODY]; /* It is never freed, because the hub still writes to it. */
    int64_t shape[] = {BODY};
    wherry_storage *storage;
    wherry_value *tensor;
    must(wherry_storage_wrap(memory, BODY, wherry_device_cpu(), note_release, released, &storage, &error));
    must(wherry_tensor_create(&(wherry_tensor){.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = shape},
                              &tensor, &error));
    wherry_storage_unref(storage);
    int64_t little = 1000;
    return build_dict("w", tensor, "b", build_tensor(build_storage(1000, 2), WHERRY_U8, 0, 1, &little, NULL), NULL);
}

/**
 * If the table cannot cancel its receives, none of their memory is freed: neither scratch memory
 * and new tensors, nor the tensors of a target.
 */
static void test_memory_that_stays_in_use(void **state) {
    (void)state;
    /*
     * The receive goes into new memory, then into a target, then into a target without a returned
     * state.
     */
    for (int i = 0; i < 3 * KINDS; i++) {
        bool released = false;
        world w = open_world(kinds[i / 3]);
        wherry_value *source = make_state(1);
        wherry_value *target = i % 3 ? make_watched(&released) : NULL;
        wherry_cancel *cancel;
        must(wherry_cancel_create(&cancel, &error));
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, target)};
        /* The receiver is stuck, so it cannot tell the source. */
        calls[0].options.no_progress_ms = STALE_MS;
        calls[1].options.cancel = cancel;
        calls[1].in_target = i % 3 == 2;
        callback_hub_hold(w.hub, 1, AFTER);
        callback_hub_cling(w.hub, 1);
        ferry_start(calls);
        ferry_start(calls + 1);
        await_standstill(&w, 1, AFTER);
        wherry_cancel_request(cancel);
        ferry_join(calls + 1);
        wherry_value_destroy(target);
        assert_false(released);
        /* An address sanitizer would report a write to freed memory. */
        assert_true(callback_hub_write_late(w.hub, 1) > 0);
        expect(calls + 1, WHERRY_CANCELLED);
        assert_non_null(strstr(calls[1].error.message, "may still be written to"));
        ferry_join(calls);
        assert_true(calls[0].status != WHERRY_OK);
        wherry_cancel_destroy(cancel);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/**
 * A rank dies during the transfer. If the table notices deaths, the other side gets PEER_LOST, else
 * it times out.
 */
static void test_a_side_dies(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SOME_KINDS; i++) {
        int32_t dead = i & 1;
        bool noticed = kinds[i / 2].flags & WHERRY_GROUP_OPS_DEATH;
        world w = open_world(kinds[i / 2]);
        wherry_value *source = make_state(1);
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, NULL)};
        calls[1 - dead].options.no_progress_ms = noticed ? FERRY_MS : STALE_MS;
        callback_hub_hold(w.hub, 1, AFTER);
        ferry_start(calls);
        ferry_start(calls + 1);
        await_standstill(&w, 1, AFTER);
        uint64_t begin = wh_clock_now();
        callback_hub_kill(w.hub, dead);
        ferry_join(calls + (1 - dead));
        assert_true(ms_since(begin) < SOON_MS);
        expect(calls + (1 - dead), noticed ? WHERRY_PEER_LOST : WHERRY_TIMED_OUT);
        assert_int_equal(calls[1 - dead].error.rank, dead);
        ferry_join(calls + dead);
        assert_true(calls[dead].status != WHERRY_OK);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/**
 * One of three receivers makes no progress. The source serves the others meanwhile, also if it has
 * only one thread.
 */
static void test_one_of_three_makes_no_progress(void **state) {
    (void)state;
    /* the time in which the others finish, also on a busy machine */
    enum { LONG_MS = 4 * STALE_MS };
    for (int i = 0; i < SOME_KINDS; i++) {
        world w = open_world(kinds[i]);
        wherry_value *source = make_state(3);
        ferry_call calls[] = {send_to(&w, source, 3), receive_at(&w, 1, NULL), receive_at(&w, 2, NULL),
                              receive_at(&w, 3, NULL)};
        calls[0].options.no_progress_ms = LONG_MS;
        callback_hub_hold(w.hub, 1, AFTER);
        ferry_start(calls);
        ferry_start(calls + 1);
        await_standstill(&w, 1, AFTER); /* The source is already serving it when the others ask. */
        uint64_t begin = wh_clock_now();
        ferry_start(calls + 2);
        ferry_start(calls + 3);
        for (int rank = 2; rank < RANKS; rank++) {
            ferry_join(calls + rank);
            expect(calls + rank, WHERRY_OK);
            assert_string_equal(calls[rank].stats.lane, "blocks");
            must(wherry_value_compare(source, calls[rank].received, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[rank].received);
        }
        assert_true(ms_since(begin) < LONG_MS);
        ferry_join(calls);
        ferry_join(calls + 1);
        expect(calls, WHERRY_TIMED_OUT);
        assert_int_equal(calls[0].outcomes[0].status, WHERRY_TIMED_OUT);
        assert_int_equal(calls[0].outcomes[1].status, WHERRY_OK);
        assert_int_equal(calls[0].outcomes[2].status, WHERRY_OK);
        assert_true(calls[1].status == WHERRY_REVOKED || calls[1].status == WHERRY_ABORTED);
        callback_hub_hold(w.hub, 1, SIZE_MAX);
        expect_next_works(&w, 1, source);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/** Three receivers at once. None waits until another one is done. */
static void test_three_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 2 * KINDS; i++) {
        world w = open_world(kinds[i / 2]);
        wherry_value *source = make_state(4);
        ferry_call calls[] = {send_to(&w, source, 3), receive_at(&w, 1, NULL), receive_at(&w, 2, NULL),
                              receive_at(&w, 3, NULL)};
        calls[0].options.verify = i & 1 ? WHERRY_VERIFY_OFF : WHERRY_VERIFY_ON;
        ferry_run(calls, 4);
        expect(calls, WHERRY_OK);
        for (int rank = 1; rank < RANKS; rank++) {
            expect(calls + rank, WHERRY_OK);
            assert_string_equal(calls[rank].stats.lane, "blocks");
            assert_int_equal(calls[rank].stats.checked, !(i & 1));
            assert_int_equal(callback_hub_moved(w.hub, rank), kinds[i / 2].blocks);
            assert_int_equal(callback_hub_abandoned(w.hub, rank), 0);
            must(wherry_value_compare(source, calls[rank].received, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[rank].received);
        }
        assert_int_equal(callback_hub_abandoned(w.hub, 0), 0);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/** A point where a receiver waits until the other one is done. */
typedef struct pause_point {
    atomic_bool begun;
    atomic_bool go_on;
} pause_point;

static void wait_in_the_middle(void *context, const wherry_trace_event *event) {
    pause_point *p = context;
    (void)event;
    atomic_store(&p->begun, true);
    for (int i = 0; i < FERRY_MS && !atomic_load(&p->go_on); i++) {
        usleep(1000);
    }
}

/**
 * The table has no put and get. One of two receivers is served while the other one waits in the
 * middle of its transfer.
 */
static void test_two_at_once_without_put_and_get(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        int slow = 1 + (i & 1);
        world w = open_world((kind){i & 2 ? CALLBACK_HUB_ALL : 0, 0, CHUNKS, true});
        wherry_value *source = make_state(6);
        pause_point middle = {.begun = false};
        ferry_call calls[] = {send_to(&w, source, 2), receive_at(&w, 1, NULL), receive_at(&w, 2, NULL)};
        calls[slow].options.trace = wait_in_the_middle;
        calls[slow].options.trace_context = &middle;
        ferry_start(calls);
        ferry_start(calls + slow);
        for (int k = 0; k < FERRY_MS && !atomic_load(&middle.begun); k++) {
            usleep(1000);
        }
        /* It has a chunk, and the source is serving it when the other receiver asks. */
        assert_true(atomic_load(&middle.begun));
        ferry_start(calls + 3 - slow);
        ferry_join(calls + 3 - slow);
        expect(calls + 3 - slow, WHERRY_OK);
        atomic_store(&middle.go_on, true);
        ferry_join(calls + slow);
        ferry_join(calls);
        expect(calls, WHERRY_OK);
        for (int rank = 1; rank <= 2; rank++) {
            expect(calls + rank, WHERRY_OK);
            assert_string_equal(calls[rank].stats.lane, "blocks");
            must(wherry_value_compare(source, calls[rank].received, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[rank].received);
        }
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/**
 * A byte changes on the way. The receiver notices it by the digest, which comes in a message, and
 * asks for the chunk again. The byte is in the middle of a block, so of two chunks the second one
 * is damaged. Long blocks are therefore sent again as chunks 1, 3 and 4 together, and 5.
 */
static void test_damage(void **state) {
    (void)state;
    static const struct {
        wherry_verify verify;
        wherry_status status;
        struct {
            size_t damaged;
            uint32_t retries;
            size_t moved;
        } by_length[2]; /* first for blocks of one chunk, then for long blocks */
    } cases[] = {{WHERRY_VERIFY_DEFAULT, WHERRY_OK, {{1, 1, CHUNKS + 1}, {1, 1, LONG_BLOCKS + 1}}},
                 {WHERRY_VERIFY_ON,
                  WHERRY_OK,
                  {{CHUNKS + 2, CHUNKS + 2, 2 * CHUNKS + 2}, {LONG_BLOCKS + 2, LONG_BLOCKS + 2, LONG_BLOCKS + 3 + 2}}},
                 {WHERRY_VERIFY_ON,
                  WHERRY_CORRUPT,
                  {{1000, 2 * CHUNKS, 3 * CHUNKS}, {1000, LONG_BLOCKS + 3, LONG_BLOCKS + 3 + 3}}},
                 {WHERRY_VERIFY_OFF, WHERRY_OK, {{1, 0, CHUNKS}, {1, 0, LONG_BLOCKS}}}};
    for (size_t i = 0; i < KINDS * sizeof(cases) / sizeof(*cases); i++) {
        size_t c = i / KINDS;
        bool is_long = kinds[i % KINDS].longest_mib;
        size_t damaged = cases[c].by_length[is_long].damaged;
        world w = open_world(kinds[i % KINDS]);
        wherry_value *source = make_state(1);
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, NULL)};
        calls[1].options.verify = cases[c].verify;
        callback_hub_damage(w.hub, 1, damaged);
        ferry_run(calls, 2);
        expect(calls + 1, cases[c].status);
        expect(calls, cases[c].status == WHERRY_OK ? WHERRY_OK : WHERRY_ABORTED);
        assert_int_equal(calls[1].stats.retries, cases[c].by_length[is_long].retries);
        size_t moved = cases[c].by_length[is_long].moved;
        /* The receive ends at the first block that stays damaged. */
        if (cases[c].status == WHERRY_CORRUPT) {
            assert_in_range(callback_hub_moved(w.hub, 1), (is_long ? LONG_BLOCKS + 3 : 2 * CHUNKS) + 1, moved);
        } else {
            assert_int_equal(callback_hub_moved(w.hub, 1), moved);
        }
        if (cases[c].status == WHERRY_OK) {
            bool right = wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error) == WHERRY_OK;
            assert_int_equal(right, cases[c].verify != WHERRY_VERIFY_OFF);
            wherry_value_destroy(calls[1].received);
        }
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/** Compares two matrices of 4 bytes per element that may have different strides. */
static void expect_same_elements(const wherry_value *a, const wherry_value *b) {
    const wherry_tensor *one = wherry_tensor_get(wherry_dict_get(a, "w"));
    const wherry_tensor *other = wherry_tensor_get(wherry_dict_get(b, "w"));
    for (int64_t row = 0; row < one->shape[0]; row++) {
        for (int64_t column = 0; column < one->shape[1]; column++) {
            int64_t at = row * one->strides[0] + column * one->strides[1];
            int64_t there = row * other->strides[0] + column * other->strides[1];
            if (memcmp(bytes_of(a) + 4 * at, bytes_of(b) + 4 * there, 4) != 0) {
                fail_msg("element %d, %d differs from the source", (int)row, (int)column);
            }
        }
    }
}

/**
 * Receives into tensors that are not contiguous: rows with gaps between them, and a transposed
 * matrix. Damaged chunks are sent again there too.
 */
static void test_other_strides(void **state) {
    (void)state;
    static const int64_t shape[] = {2816, 2048};
    static const int64_t strides[][2] = {{2048 + 4, 1}, {1, 2816}};
    for (int i = 0; i < 2 * 2 * KINDS; i++) {
        bool damaged = i & 1;
        const int64_t *steps = strides[i / 2 % 2];
        world w = open_world(kinds[i / 4]);
        wherry_value *source =
            build_dict("w", build_tensor(build_storage(22 << 20, 1), WHERRY_F32, 0, 2, shape, NULL), NULL);
        wherry_value *target =
            build_dict("w", build_tensor(build_storage(23 << 20, 2), WHERRY_F32, 0, 2, shape, steps), NULL);
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, target)};
        calls[1].options.verify = damaged ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
        callback_hub_damage(w.hub, 1, damaged);
        ferry_run(calls, 2);
        expect(calls + 1, WHERRY_OK);
        expect(calls, WHERRY_OK);
        assert_int_equal(calls[1].stats.retries, damaged);
        assert_int_equal(callback_hub_moved(w.hub, 1), (kinds[i / 4].longest_mib ? 3 : CHUNKS) + damaged);
        expect_same_elements(source, calls[1].received);
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/**
 * By default a block has up to 64 MiB. If no_progress_ms of either side is less than 10 s, a block
 * is a chunk.
 */
static void test_length_depends_on_no_progress_ms(void **state) {
    (void)state;
    static const struct {
        int64_t source_ms;
        int64_t receiver_ms;
        size_t blocks;
    } cases[] = {{30000, 30000, 2}, {10000, 10000, 2}, {9999, 30000, CHUNKS}, {30000, 9999, CHUNKS}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        world w = open_world(kinds[i % 2]);
        wh_blocks_limit = standard;
        wherry_value *source = make_state(1);
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, NULL)};
        calls[0].options.no_progress_ms = cases[i].source_ms;
        calls[1].options.no_progress_ms = cases[i].receiver_ms;
        ferry_run(calls, 2);
        expect(calls + 1, WHERRY_OK);
        expect(calls, WHERRY_OK);
        assert_int_equal(callback_hub_moved(w.hub, 1), cases[i].blocks);
        must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/** If a function of the table fails, both sides end soon, each with its reason. */
static void test_a_table_fails(void **state) {
    (void)state;
    for (int i = 0; i < 8 * SOME_KINDS; i++) {
        /* put and finish fail at the source; get and finish fail at the receiver. */
        int which = i % 4;
        int side = which / 2;
        bool finish = which % 2;
        /* The table may return CANCELLED although nobody has cancelled the call. */
        wherry_status answer = i % 8 < 4 ? WHERRY_SYSTEM : WHERRY_CANCELLED;
        world w = open_world(kinds[i / 8]);
        wherry_value *source = make_state(1);
        ferry_call calls[] = {send_to(&w, source, 1), receive_at(&w, 1, NULL)};
        callback_hub_break_blocks(w.hub, side, finish ? WHERRY_OK : answer, finish ? WHERRY_OK : answer,
                                  finish ? answer : WHERRY_OK);
        uint64_t begin = wh_clock_now();
        ferry_run(calls, 2);
        assert_true(ms_since(begin) < SOON_MS);
        expect(calls + side, answer);
        expect(calls + 1 - side, WHERRY_ABORTED);
        assert_int_equal(calls[side].error.rank, 1 - side);
        assert_non_null(strstr(calls[side].error.message, finish ? "the table's finish returned"
                                                          : side ? "the table's get"
                                                                 : "the table's put"));
        callback_hub_break_blocks(w.hub, side, WHERRY_OK, WHERRY_OK, WHERRY_OK);
        expect_next_works(&w, 1, source);
        wherry_value_destroy(source);
        close_world(&w);
    }
}

/**
 * A put to a former process of a rank fails late. The process that has taken the rank since then
 * does not count as lost.
 */
static void test_a_loss_is_noticed_late(void **state) {
    (void)state;
    static const wh_lane_ops *const lanes[] = {&wh_lane_blocks};
    world w = open_world(kinds[0]);
    uint8_t bytes[64] = {0};
    void *operation = NULL;
    wherry_group_ops ops;
    wh_message message;
    must(wh_group_send(w.groups[1], 0, 1, bytes, 1, wh_deadline_in_ms(SOON_MS), &error));
    must(wh_group_receive(w.groups[0], 1, 1, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    callback_hub_hold(w.hub, 1, 0);
    must(w.groups[0]->ops->put(w.groups[0], 1, 7, bytes, sizeof(bytes), &operation, &error));
    wherry_transport_destroy(w.transports[1]);
    wh_group_destroy(w.groups[1]);
    void *context = callback_hub_member(w.hub, 1, &ops);
    must(wh_callback_create(&ops, context, w.groups + 1, &error));
    must(wh_transport_create(w.groups[1], 0, lanes, 1, w.transports + 1, &error));
    must(wh_group_send(w.groups[1], 0, 1, bytes, 1, wh_deadline_in_ms(SOON_MS), &error));
    wherry_status status = WHERRY_PEER_LOST; /* The predecessor is lost first. */
    for (int i = 0; i < 5 && status == WHERRY_PEER_LOST; i++) {
        status = wh_group_receive(w.groups[0], 1, 1, wh_deadline_in_ms(SOON_MS), &message, &error);
    }
    must(status);
    wh_message_clear(&message);
    assert_true(wh_mailbox_incarnation(w.groups[0]->mailbox, 1) != 0);
    callback_hub_break_blocks(w.hub, 0, WHERRY_OK, WHERRY_OK, WHERRY_PEER_LOST);
    assert_int_equal(w.groups[0]->ops->finish(w.groups[0], 1, operation, 1, &error), WHERRY_PEER_LOST);
    assert_true(wh_mailbox_incarnation(w.groups[0]->mailbox, 1) != 0);
    callback_hub_break_blocks(w.hub, 0, WHERRY_OK, WHERRY_OK, WHERRY_OK);
    callback_hub_hold(w.hub, 1, SIZE_MAX);
    close_world(&w);
}

/**
 * A table must have all of put, get, finish and abandon, or none of them. Without them the library
 * does their work.
 */
static void test_incomplete_tables(void **state) {
    (void)state;
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL, .blocks = true};
    static const wh_lane_ops *const lanes[] = {&wh_lane_blocks};
    callback_hub *hub = callback_hub_open(2, &options);
    wherry_group_ops ops;
    wh_group *group;
    void *context = callback_hub_member(hub, 0, &ops);
    wherry_group_ops some = ops;
    some.get = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_callback_create(&some, context, &group, &error));
    some = ops;
    some.put = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_callback_create(&some, context, &group, &error));
    assert_non_null(strstr(error.message, "3 of put, get"));
    static const uint64_t parts[] = {1, (64 << 10) - 1, (8 << 20) + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        some = ops;
        some.part_bytes = parts[i];
        must_fail(WHERRY_INVALID_ARGUMENT, error, wh_callback_create(&some, context, &group, &error));
        assert_non_null(strstr(error.message, "part_bytes"));
    }
    world w = {.hub = hub};
    for (int32_t rank = 0; rank < 2; rank++) {
        context = rank ? callback_hub_member(hub, rank, &ops) : context;
        ops.struct_size = offsetof(wherry_group_ops, put);
        must(wh_callback_create(&ops, context, w.groups + rank, &error));
        must(wh_transport_create(w.groups[rank], 0, lanes, 1, w.transports + rank, &error));
    }
    wherry_value *source = make_state(1);
    for (int from = 0; from < 2; from++) {
        ferry_call calls[] = {call_of(&w, from), call_of(&w, 1 - from)};
        calls[0].count = 1;
        calls[0].state = source;
        calls[0].ranks[0] = 1 - from;
        calls[1].ranks[0] = from;
        ferry_run(calls, 2);
        expect(calls, WHERRY_OK);
        expect(calls + 1, WHERRY_OK);
        assert_string_equal(calls[1].stats.lane, "blocks");
        wherry_value_destroy(calls[1].received);
    }
    wherry_value_destroy(source);
    for (int32_t rank = 0; rank < 2; rank++) {
        wherry_transport_destroy(w.transports[rank]);
        wh_group_destroy(w.groups[rank]);
    }
    callback_hub_close(hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_during_a_transfer),
        cmocka_unit_test(test_memory_that_stays_in_use),
        cmocka_unit_test(test_a_side_dies),
        cmocka_unit_test(test_one_of_three_makes_no_progress),
        cmocka_unit_test(test_three_at_once),
        cmocka_unit_test(test_two_at_once_without_put_and_get),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_other_strides),
        cmocka_unit_test(test_length_depends_on_no_progress_ms),
        cmocka_unit_test(test_a_table_fails),
        cmocka_unit_test(test_a_loss_is_noticed_late),
        cmocka_unit_test(test_incomplete_tables),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    standard = wh_blocks_limit;
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
