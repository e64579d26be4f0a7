/*
 * The transfer suite's cases about options: interrupts, ranks in meshes, memory for missing leaves
 * of a target.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "base/point.h"
#include "conformance/transfer_world.h"

#define MS UINT64_C(1000000)

/** How soon an interrupted call must end, and how long a held side waits for the test. */
enum { SOON_MS = 8000, HELD_MS = 10000 };

static wherry_error error;

/** The interrupt and progress callbacks of one side. */
typedef struct side {
    atomic_bool *ends;   /**< The interrupt callback returns true once this is true; NULL: never. */
    atomic_bool *begins; /**< Callbacks block once this is true; NULL: they block at once. */
    atomic_bool *waits;  /**< A blocked callback waits for this; NULL: callbacks do not block. */
    atomic_bool held;    /**< A callback blocks, or has blocked. */
    atomic_uint asked;   /**< Number of calls of the interrupt callback. */
    uint64_t last_asked; /**< Time of the last call. */
    uint64_t ended;      /**< Time when the callback returned true. */
    bool too_often;      /**< Two calls came within 50 ms. */
    pthread_t thread;    /**< The thread that made the first call. */
    bool other_thread;   /**< True if another thread has called it too. */
} side;

/**
 * Waits until a flag is set, but not forever: callbacks call this, and they cannot fail the test.
 * @return true if it is set.
 */
static bool wait_for(atomic_bool *what) {
    for (int i = 0; i < HELD_MS && !atomic_load(what) && !ferry_is_over(); i++) {
        usleep(1000);
    }
    return atomic_load(what);
}

static void hold(side *own) {
    if (own->waits && (!own->begins || atomic_load(own->begins)) && !atomic_exchange(&own->held, true)) {
        wait_for(own->waits);
    }
}

static bool interrupt(void *context) {
    side *own = context;
    uint64_t now = wh_clock_now();
    if (atomic_fetch_add(&own->asked, 1) == 0) {
        own->thread = pthread_self();
    } else {
        own->too_often = own->too_often || now - own->last_asked < 50 * MS;
        own->other_thread = own->other_thread || !pthread_equal(own->thread, pthread_self());
    }
    hold(own);
    bool ends = own->ends && atomic_load(own->ends);
    own->last_asked = wh_clock_now();
    own->ended = ends ? own->last_asked : 0;
    return ends;
}

#define ALL_BYTES "receiver has all bytes" /* The source has not confirmed the bytes yet. */
#define FIRST_CHUNK "receiver opened a chunk"

/** The receiver to block, and the point where it blocks. Set before threads start. */
static side *held_side;
static const char *held_point;

static void hold_at_point(const char *name) {
    if (strcmp(name, held_point) == 0) {
        hold(held_side);
    }
}

/** @param receiver NULL: no receiver is blocked any more. */
static void hold_receiver(side *receiver, const char *point) {
    held_side = receiver;
    held_point = point;
    wh_point_hook = receiver ? hold_at_point : NULL;
}

static void ask(ferry_call *call, side *own) {
    call->options.interrupt = interrupt;
    call->options.interrupt_context = own;
}

/** The side was interrupted in the thread of its call, which ended soon after. */
static void expect_interrupted(const ferry_call *call, const side *own, uint64_t ended) {
    if (call->status != WHERRY_CANCELLED) {
        print_error("%s: %s\n", wherry_status_name(call->status), call->error.message);
    }
    assert_int_equal(call->status, WHERRY_CANCELLED);
    assert_non_null(strstr(call->error.message, "interrupted"));
    assert_true(own->ended && ended - own->ended < SOON_MS * MS);
    assert_false(own->too_often);
    assert_false(own->other_thread);
    assert_true(pthread_equal(own->thread, call->thread));
}

/**
 * A call without a peer asks the interrupt callback regularly, and ends soon after it returns true.
 */
static void test_interrupt_ends_a_call_without_a_peer(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1000, 1);
    for (int receives = 0; receives < 2; receives++) {
        atomic_bool ends = false;
        side own = {.ends = &ends};
        ferry_call call = receives ? ferry_receive(&world, 1, 0) : ferry_send(&world, 0, 1, source);
        ask(&call, &own);
        ferry_start(&call);
        for (int i = 0; i < HELD_MS && atomic_load(&own.asked) < 4; i++) {
            usleep(1000);
        }
        atomic_store(&ends, true);
        ferry_join(&call);
        expect_interrupted(&call, &own, wh_clock_now());
        assert_true(atomic_load(&own.asked) >= 4);
    }
    ferry_one(&world, source, NULL, NULL, 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** A call that is never interrupted succeeds. */
static void test_call_succeeds_if_never_interrupted(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(3);
    side sides[2] = {{.ends = NULL}, {.ends = NULL}};
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    ask(calls, sides);
    ask(calls + 1, sides + 1);
    ferry_start(calls);
    for (int i = 0; i < HELD_MS && atomic_load(&sides[0].asked) < 1; i++) {
        usleep(1000);
    }
    ferry_start(calls + 1);
    ferry_join(calls);
    ferry_join(calls + 1);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    assert_true(sides[0].asked >= 1 && !sides[0].too_often && !sides[1].too_often);
    must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Interrupts the source while the receiver makes no progress. */
static void test_interrupt_ends_the_source(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(5);
    atomic_bool over = false;
    side receiver = {.waits = &over};
    side sender = {.ends = &receiver.held};
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    ask(calls, &sender);
    hold_receiver(&receiver, ALL_BYTES);
    /* This is needed if the group cannot buffer the source's last message. */
    calls[1].options.no_progress_ms = 1500;
    ferry_start(calls);
    ferry_start(calls + 1);
    ferry_join(calls);
    expect_interrupted(calls, &sender, wh_clock_now());
    atomic_store(&over, true);
    ferry_join(calls + 1);
    hold_receiver(NULL, NULL);
    assert_true(calls[1].status == WHERRY_REVOKED || calls[1].status == WHERRY_TIMED_OUT);
    ferry_one(&world, source, NULL, NULL, 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Interrupts the receiver while bytes are moving and the source is blocked in its callback. */
static void test_interrupt_ends_the_receiver(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(7);
    atomic_bool over = false;
    side sender = {.waits = &over};
    side receiver = {.ends = &sender.held};
    side opens = {.waits = &sender.held};
    sender.begins = &opens.held;
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    ask(calls, &sender);
    ask(calls + 1, &receiver);
    hold_receiver(&opens, FIRST_CHUNK);
    calls[0].options.no_progress_ms =
        1500; /* A source that pushes in the calling thread does not read messages meanwhile. */
    ferry_start(calls);
    ferry_start(calls + 1);
    ferry_join(calls + 1);
    expect_interrupted(calls + 1, &receiver, wh_clock_now());
    atomic_store(&over, true);
    ferry_join(calls);
    hold_receiver(NULL, NULL);
    /* The source may learn that all bytes arrived before it learns that the receiver gave up. */
    assert_true(calls[0].status == WHERRY_ABORTED || calls[0].status == WHERRY_OK ||
                calls[0].status == WHERRY_TIMED_OUT);
    assert_true(calls[0].status != WHERRY_ABORTED || strstr(calls[0].error.message, "interrupted"));
    ferry_one(&world, source, NULL, NULL, 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** A cancel also stops a source that pushes in the calling thread. */
static void test_cancel_ends_both_sides_in_the_middle(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(9);
    atomic_bool over = false;
    wherry_cancel *cancel;
    side receiver = {.waits = &over};
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    must(wherry_cancel_create(&cancel, &error));
    calls[0].options.cancel = cancel;
    hold_receiver(&receiver, ALL_BYTES);
    calls[1].options.no_progress_ms = 1500;
    ferry_start(calls);
    ferry_start(calls + 1);
    assert_true(wait_for(&receiver.held));
    uint64_t begin = wh_clock_now();
    wherry_cancel_request(cancel);
    ferry_join(calls);
    assert_true(wh_clock_now() - begin < SOON_MS * MS);
    assert_int_equal(calls[0].status, WHERRY_CANCELLED);
    atomic_store(&over, true);
    ferry_join(calls + 1);
    hold_receiver(NULL, NULL);
    assert_true(calls[1].status == WHERRY_REVOKED || calls[1].status == WHERRY_TIMED_OUT);
    wherry_cancel_destroy(cancel);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Random states into targets without some leaves, for which memory is allocated. */
static void test_missing_leaves_of_the_target_get_memory(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wh_random random = {17};
    for (int i = 0; i < 40; i++) {
        wherry_value *source = wh_random_state(&random);
        wh_random again = random;
        wherry_value *targets[2];
        for (int k = 0; k < 2; k++) {
            wh_random *own = k ? &again : &random;
            wherry_value *whole = wh_random_target(own, source, i % 2);
            targets[k] = wh_random_thinned(own, whole);
            wherry_value_destroy(whole);
        }
        ferry_one(&world, source, targets[0], targets[1], WHERRY_RECV_NEW);
        wherry_value_destroy(targets[0]);
        wherry_value_destroy(targets[1]);
        wherry_value_destroy(source);
    }
    ferry_close(&world);
}

/** The shard of rank 11 in a mesh of ranks 10 and 11. */
wherry_value *ferry_shard_of_eleven(uint8_t seed) {
    int64_t two[] = {2};
    int64_t ranks[] = {10, 11};
    wherry_mesh_info info = {.device = WHERRY_DEVICE_CPU, .ndim = 1, .shape = two, .ranks = ranks};
    wherry_placement placement = {.kind = WHERRY_SHARD};
    int64_t local[] = {3};
    int64_t global[] = {6};
    int64_t stride[] = {1};
    wherry_mesh *mesh;
    wherry_value *value;
    must(wherry_mesh_create(&info, &mesh, &error));
    wherry_dtensor dtensor = {.local = build_tensor(build_storage(3, seed), WHERRY_U8, 0, 1, local, NULL),
                              .mesh = mesh,
                              .placements = &placement,
                              .dtype = WHERRY_U8,
                              .ndim = 1,
                              .shape = global,
                              .strides = stride};
    must(wherry_dtensor_create(&dtensor, &value, &error));
    wherry_mesh_unref(mesh);
    return build_dict("w", value, NULL);
}

/** A DTensor's box depends on options.rank, the rank in its mesh, not on the rank in the group. */
static void test_rank_in_the_mesh_decides_the_shard(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_shard_of_eleven(1);
    static const struct {
        int64_t source, receiver;
        wherry_status status;
    } cases[] = {{10, 10, WHERRY_OK}, {11, 11, WHERRY_OK}, {10, 11, WHERRY_MISMATCH}, {-1, 11, WHERRY_OK}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_value *target = ferry_shard_of_eleven(90);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[0].options.rank = cases[i].source;
        calls[1].options.rank = cases[i].receiver;
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
        ferry_run(calls, 2);
        assert_int_equal(calls[1].status, cases[i].status);
        if (calls[1].status == WHERRY_OK) {
            must(wherry_value_compare(source, target, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[1].received);
        } else {
            assert_non_null(strstr(calls[1].error.message, "different boxes"));
        }
        wherry_value_destroy(target);
    }
    wherry_value *received;
    wherry_transfer_options options = ferry_options();
    options.rank = -2;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[1], 0, &options, &received, &error));
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Rejects objects with a name. */
static wherry_status refuse(void *context, const wherry_value *state) {
    const wherry_value *odd = wherry_dict_get(state, "odd");
    const wherry_value *tensor = wherry_dict_get(state, "w");
    assert_null(wherry_storage_data(wherry_tensor_get(tensor)->storage));
    return strcmp(wherry_object_type(odd), context) == 0 ? WHERRY_UNSUPPORTED : WHERRY_OK;
}

/** A receiver that rejects an offer receives nothing, and the source is told. */
static void test_receiver_can_reject_an_offer(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1 << 20, 3);
    wherry_value *untouched = ferry_tensor(1 << 20, 77);
    wherry_value *odd;
    must(wherry_object_create("some.type", build_dict(NULL), &odd, &error));
    must(wherry_dict_put(source, "odd", odd, &error));
    char *refused[] = {(char *)"some.type", (char *)"another.type"};
    for (size_t i = 0; i < 2; i++) {
        wherry_value *target = ferry_tensor(1 << 20, 77);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.flags = WHERRY_RECV_NEW;
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
        calls[1].options.inspect = refuse;
        calls[1].options.inspect_context = refused[i];
        ferry_run(calls, 2);
        assert_int_equal(calls[0].status, i ? WHERRY_OK : WHERRY_ABORTED);
        assert_int_equal(calls[1].status, i ? WHERRY_OK : WHERRY_UNSUPPORTED);
        must(wherry_value_compare(wherry_dict_get(target, "w"), wherry_dict_get(i ? source : untouched, "w"),
                                  WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[1].status == WHERRY_OK ? calls[1].received : NULL);
        wherry_value_destroy(target);
    }
    wherry_value_destroy(untouched);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Receives with WHERRY_RECV_COMPARE into a target. @return the statistics. */
static wherry_stats receive_difference(ferry_world *world, const wherry_value *source, const wherry_value *target) {
    ferry_call calls[] = {ferry_send(world, 0, 1, source), ferry_receive(world, 1, 0)};
    calls[1].options.flags = WHERRY_RECV_COMPARE;
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = (void *)target;
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    must(wherry_value_compare(source, target, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(calls[1].received);
    return calls[1].stats;
}

static void damage(const wherry_value *target, uint64_t offset) {
    const wherry_tensor *large = wherry_tensor_get(wherry_dict_get(target, "large"));
    ((char *)wherry_storage_data(large->storage))[offset] ^= 1;
}

/**
 * Only chunks that differ move. The cases: no chunk differs, one, the chunks of small tensors, all.
 */
static void test_only_chunks_that_differ_move(void **state) {
    (void)state;
    enum { CHUNK = 4 << 20 };
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(3);
    wherry_value *target = ferry_large_state(3);
    wherry_stats stats = receive_difference(&world, source, target);
    uint64_t all = stats.bytes_held;
    assert_true(all > 21 << 20 && stats.bytes_wanted == 0 && stats.bytes_moved == 0 && stats.chunks == 0);
    assert_string_equal(stats.lane, "");
    damage(target, 9 << 20);
    stats = receive_difference(&world, source, target);
    assert_true(stats.bytes_wanted > CHUNK - 16 && stats.bytes_wanted < CHUNK + 16);
    assert_int_equal(stats.bytes_held + stats.bytes_wanted, all);
    assert_int_equal(stats.bytes_moved, stats.bytes_wanted);
    assert_int_equal(stats.chunks, 1);
    const wherry_value *first = wherry_sequence_at(wherry_dict_get(target, "small"), 0);
    *(char *)wherry_storage_data(wherry_tensor_get(first)->storage) ^= 1;
    damage(target, (21 << 20) - 1);
    stats = receive_difference(&world, source, target);
    assert_int_equal(stats.chunks, 2);
    wherry_value_destroy(target);
    target = ferry_large_state(99);
    stats = receive_difference(&world, source, target);
    assert_true(stats.bytes_held == 0 && stats.bytes_wanted == all);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/**
 * A chunk that includes gaps between the rows of a tensor cannot be compared, so it always moves.
 */
static void test_chunks_that_cannot_be_compared_move(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    int64_t rows[] = {512, 100};
    int64_t strides[] = {200, 1};
    wherry_storage *storages[] = {build_storage(512 * 200, 1), build_storage(512 * 200, 1)};
    wherry_value *states[2];
    /* Every second block of 100 bytes is in the tensor. The gaps are transferred too. */
    for (int i = 0; i < 2; i++) {
        states[i] = build_dict("w", build_tensor(storages[i], WHERRY_U8, 0, 2, rows, strides), NULL);
    }
    wherry_stats stats = receive_difference(&world, states[0], states[1]);
    assert_true(stats.bytes_wanted > 0 && stats.bytes_held == 0);
    wherry_value_destroy(states[0]);
    wherry_value_destroy(states[1]);
    ferry_close(&world);
}

static wherry_cancel *ended_at_point;

static void end_at_compare(const char *name) {
    if (strcmp(name, "source compares") == 0) {
        wherry_cancel_request(ended_at_point);
    }
}

/** A receiver cancelled during the comparison has written nothing, and the source is told. */
static void test_cancel_while_comparing_writes_nothing(void **state) {
    (void)state;
    must(wherry_cancel_create(&ended_at_point, &error));
    wh_point_hook = end_at_compare;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(3);
    wherry_value *target = ferry_large_state(5);
    wherry_value *untouched = ferry_large_state(5);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.flags = WHERRY_RECV_COMPARE;
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = target;
    calls[1].options.cancel = ended_at_point;
    ferry_run(calls, 2);
    assert_int_equal(calls[1].status, WHERRY_CANCELLED);
    assert_int_equal(calls[0].status, WHERRY_ABORTED);
    must(wherry_value_compare(target, untouched, WHERRY_COMPARE_ALL, &error));
    receive_difference(&world, source, target);
    wherry_value_destroy(target);
    wherry_value_destroy(untouched);
    wherry_value_destroy(source);
    ferry_close(&world);
    wh_point_hook = NULL;
    wherry_cancel_destroy(ended_at_point);
}

typedef struct acceptance {
    wherry_value *target; /**< Created when the offer arrives. */
    uint64_t nbytes;      /**< Size of the target; 0: the size of the offered state. */
} acceptance;

/** Creates a target for the offer. */
static wherry_status accept(void *context, const wherry_value *state, const wherry_value **target_p) {
    acceptance *made = context;
    const wherry_tensor *offered = wherry_tensor_get(wherry_dict_get(state, "w"));
    assert_null(wherry_storage_data(offered->storage));
    made->target = ferry_tensor(made->nbytes ? made->nbytes : wherry_storage_nbytes(offered->storage), 77);
    *target_p = made->target;
    return WHERRY_OK;
}

static wherry_status accept_nothing(void *context, const wherry_value *state, const wherry_value **target_p) {
    (void)context;
    (void)state;
    (void)target_p;
    return WHERRY_LIMIT;
}

/**
 * A receiver may choose its target when it sees the offer. The target is checked like any other.
 */
static void test_receiver_can_choose_a_target_for_the_offer(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1 << 20, 3);
    for (uint64_t i = 0; i < 3; i++) {
        acceptance made = {NULL, i == 1 ? 1 << 10 : 0};
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.accept = i == 2 ? accept_nothing : accept;
        calls[1].options.accept_context = &made;
        ferry_run(calls, 2);
        assert_int_equal(calls[0].status, i ? WHERRY_ABORTED : WHERRY_OK);
        assert_int_equal(calls[1].status, ((wherry_status[]){WHERRY_OK, WHERRY_MISMATCH, WHERRY_LIMIT})[i]);
        if (i == 0) {
            must(wherry_value_compare(made.target, source, WHERRY_COMPARE_ALL, &error));
            assert_ptr_equal(wherry_tensor_get(wherry_dict_get(calls[1].received, "w"))->storage,
                             wherry_tensor_get(wherry_dict_get(made.target, "w"))->storage);
            wherry_value_destroy(calls[1].received);
        }
        wherry_value_destroy(made.target);
    }
    wherry_value *received;
    wherry_transfer_options options = ferry_options();
    options.target = ferry_target;
    options.accept = accept;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[1], 0, &options, &received, &error));
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** If ranks cannot come back, or if the caller says so, sends do not wait for one that has left. */
static void test_calls_fail_at_once_if_the_rank_has_left(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(5000, 1);
    wherry_transport_destroy(world.transports[2]);
    wh_group_destroy(world.groups[2]);
    world.transports[2] = NULL;
    world.groups[2] = NULL;
    for (int i = 0; i < 2; i++) {
        ferry_call calls[] = {ferry_send(&world, 0, 2, source), ferry_receive(&world, 1, 0)};
        calls[0].ranks[1] = 1;
        calls[0].count = 2;
        if (wh_group_can(world.groups[0], WH_GROUP_REJOIN)) {
            calls[0].options.flags |= WHERRY_SEND_PRESENT;
        }
        ferry_run(calls, 2);
        ferry_expect_ok(calls + 1);
        wherry_value_destroy(calls[1].received);
        assert_int_equal(calls[0].status, WHERRY_PEER_LOST);
        assert_int_equal(calls[0].outcomes[0].error.rank, 2);
        assert_int_equal(calls[0].outcomes[1].status, WHERRY_OK);
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** For options.check: the state has changed if *context is true. */
static wherry_status has_changed(void *context, wherry_error *why) {
    *why = (wherry_error){.status = WHERRY_CORRUPT, .rank = -1, .message = "the file has changed"};
    return *(bool *)context ? WHERRY_CORRUPT : WHERRY_OK;
}

static void test_a_state_that_has_changed_is_not_released(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(1);
    for (int changed = 1; changed >= 0; changed--) {
        bool answer = changed;
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[0].options.check = has_changed;
        calls[0].options.check_context = &answer;
        ferry_run(calls, 2);
        if (changed) {
            assert_int_equal(calls[1].status, WHERRY_REVOKED);
            assert_non_null(strstr(calls[1].error.message, "the file has changed"));
            assert_int_equal(calls[0].status, WHERRY_CORRUPT);
            assert_non_null(strstr(calls[0].error.message, "the file has changed"));
        } else {
            ferry_expect_ok(calls);
            ferry_expect_ok(calls + 1);
            wherry_value_destroy(calls[1].received);
        }
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

const struct CMUnitTest ferry_option_cases[] = {
    cmocka_unit_test(test_interrupt_ends_a_call_without_a_peer),
    cmocka_unit_test(test_call_succeeds_if_never_interrupted),
    cmocka_unit_test(test_interrupt_ends_the_source),
    cmocka_unit_test(test_interrupt_ends_the_receiver),
    cmocka_unit_test(test_cancel_ends_both_sides_in_the_middle),
    cmocka_unit_test(test_missing_leaves_of_the_target_get_memory),
    cmocka_unit_test(test_rank_in_the_mesh_decides_the_shard),
    cmocka_unit_test(test_receiver_can_reject_an_offer),
    cmocka_unit_test(test_only_chunks_that_differ_move),
    cmocka_unit_test(test_chunks_that_cannot_be_compared_move),
    cmocka_unit_test(test_cancel_while_comparing_writes_nothing),
    cmocka_unit_test(test_receiver_can_choose_a_target_for_the_offer),
    cmocka_unit_test(test_calls_fail_at_once_if_the_rank_has_left),
    cmocka_unit_test(test_a_state_that_has_changed_is_not_released),
};
const size_t ferry_option_case_count = sizeof(ferry_option_cases) / sizeof(*ferry_option_cases);
