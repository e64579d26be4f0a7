/* The public group API: joining, messages, and the barrier. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/group_handle.h"
#include "base/bytes.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/callback_hub.h"
#include "support/counting_allocator.h"
#include "support/local_group.h"

enum { RANKS = 3, SOON_MS = 10000 };

static wherry_error error;

/** A group of three within this process. */
typedef struct world {
    wh_local_hub *hub;
    wherry_group *groups[RANKS];
} world;

static void join_local(world *w, int32_t rank) {
    wh_group *inner = wh_local_join(w->hub, rank);
    assert_non_null(inner);
    must(wh_group_wrap(inner, w->groups + rank, &error));
}

static world open_world(void) {
    world w = {wh_local_hub_create(RANKS), {NULL}};
    for (int32_t rank = 0; rank < RANKS; rank++) {
        join_local(&w, rank);
    }
    return w;
}

static void leave(world *w, int32_t rank) {
    wherry_group_leave(w->groups[rank]);
    w->groups[rank] = NULL;
}

static void close_world(world *w) {
    for (int32_t rank = 0; rank < RANKS; rank++) {
        leave(w, rank);
    }
    wh_local_hub_release(w->hub);
}

static void expect_text(wherry_group *group, int32_t from, uint32_t tag, const char *text, int32_t sender) {
    void *bytes = NULL;
    size_t size = 99;
    int32_t rank = -5;
    must(wherry_group_receive(group, from, tag, SOON_MS, &bytes, &size, &rank, &error));
    assert_int_equal(size, strlen(text));
    assert_memory_equal(bytes, text, size);
    assert_int_equal(rank, sender);
    wherry_free(bytes);
}

static void test_messages_arrive(void **state) {
    (void)state;
    world w = open_world();
    assert_int_equal(wherry_group_rank(w.groups[2]), 2);
    assert_int_equal(wherry_group_size(w.groups[2]), RANKS);
    must(wherry_group_send(w.groups[0], 1, UINT32_MAX, "one", 3, SOON_MS, &error));
    must(wherry_group_send(w.groups[2], 1, 0, "two", 3, SOON_MS, &error));
    must(wherry_group_send(w.groups[1], 1, 7, NULL, 0, SOON_MS, &error));
    expect_text(w.groups[1], 2, 0, "two", 2);
    expect_text(w.groups[1], WHERRY_ANY_RANK, UINT32_MAX, "one", 0);
    void *bytes;
    size_t size;
    must(wherry_group_receive(w.groups[1], 1, 7, 0, &bytes, &size, NULL, &error));
    assert_int_equal(size, 0);
    wherry_free(bytes);
    close_world(&w);
}

/** Messages of the program and of the library do not mix, even with the same tag. */
static void test_library_and_program_tags_do_not_mix(void **state) {
    (void)state;
    world w = open_world();
    void *bytes;
    size_t size;
    wh_message message;
    must(wh_group_send(wh_group_of(w.groups[0]), 1, 5, "library", 7, wh_deadline_in_ms(SOON_MS), &error));
    must(wherry_group_send(w.groups[0], 1, 5, "program", 7, SOON_MS, &error));
    expect_text(w.groups[1], 0, 5, "program", 0);
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_receive(w.groups[1], 0, 5, 10, &bytes, &size, NULL, &error));
    assert_int_equal(error.rank, 0);
    must(wh_group_receive(wh_group_of(w.groups[1]), 0, 5, wh_deadline_in_ms(0), &message, &error));
    wh_message_clear(&message);
    close_world(&w);
}

static void test_refuses_invalid_arguments(void **state) {
    (void)state;
    world w = open_world();
    void *bytes;
    size_t size;
    wherry_group *g = w.groups[0];
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_send(NULL, 1, 1, "x", 1, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_send(g, RANKS, 1, "x", 1, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_send(g, WHERRY_ANY_RANK, 1, "x", 1, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_send(g, 1, 1, "x", WHERRY_GROUP_MESSAGE_MAX + 1, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_send(g, 1, 1, NULL, 1, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_receive(NULL, 1, 1, 0, &bytes, &size, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_receive(g, -2, 1, 0, &bytes, &size, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_receive(g, 1, 1, 0, NULL, &size, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_receive(g, 1, 1, 0, &bytes, NULL, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_barrier(NULL, 1, 0, &error));
    assert_false(wherry_group_alive(g, -1));
    assert_false(wherry_group_alive(g, RANKS));
    wherry_group_leave(NULL);
    close_world(&w);
}

static void test_reports_a_lost_rank(void **state) {
    (void)state;
    world w = open_world();
    void *bytes;
    size_t size;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        assert_true(wherry_group_alive(w.groups[0], rank));
    }
    must(wherry_group_send(w.groups[1], 0, 3, "last", 4, SOON_MS, &error));
    leave(&w, 1);
    assert_false(wherry_group_alive(w.groups[0], 1));
    assert_true(wherry_group_alive(w.groups[0], 2));
    must_fail(WHERRY_PEER_LOST, error, wherry_group_send(w.groups[0], 1, 3, "x", 1, SOON_MS, &error));
    assert_int_equal(error.rank, 1);
    expect_text(w.groups[0], 1, 3, "last", 1);
    must_fail(WHERRY_PEER_LOST, error, wherry_group_receive(w.groups[0], 1, 3, SOON_MS, &bytes, &size, NULL, &error));
    assert_int_equal(error.rank, 1);
    join_local(&w, 1);
    assert_true(wherry_group_alive(w.groups[0], 1));
    close_world(&w);
}

static void test_refuses_bad_options(void **state) {
    (void)state;
    wherry_group_options good;
    wherry_group *group = NULL;
    memset(&good, 0xEE, sizeof(good));
    wherry_group_options_init(&good);
    assert_int_equal(good.struct_size, sizeof(good));
    good.timeout_ms = 0;
    wherry_group_options bad[9];
    for (size_t i = 0; i < 9; i++) {
        bad[i] = good;
    }
    bad[0].struct_size = 0;
    bad[1].struct_size = sizeof(good) + 8;
    bad[2].reserved = 1;
    bad[7].flags = WHERRY_JOIN_FLAGS + 1;
    bad[8].wait_for = 3;
    bad[3].secret = "";
    bad[4].secret_size = 4;
    bad[5].dead_after_ms = bad[5].heartbeat_ms;
    bad[6].allow_insecure = 2;
    for (size_t i = 0; i < 9; i++) {
        must_fail(WHERRY_INVALID_ARGUMENT, error,
                  wherry_group_join("unix:///tmp/nowhere?rank=0&size=2", bad + i, &group, &error));
    }
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_join(NULL, &good, &group, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_join("unix:///tmp/a?rank=0&size=2", &good, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_join("http://a", &good, &group, &error));
    assert_null(group);
}

/** A thread that joins over a Unix socket. */
typedef struct joiner {
    char address[128];
    wherry_group *group;
    wherry_status status;
} joiner;

static void *join_unix(void *context) {
    joiner *j = context;
    wherry_group_options options;
    wherry_group_options_init(&options);
    options.timeout_ms = SOON_MS;
    j->status = wherry_group_join(j->address, &options, &j->group, NULL);
    return NULL;
}

static void test_joins_over_a_socket(void **state) {
    (void)state;
    char folder[] = "/tmp/wherry-test-XXXXXX";
    joiner joiners[2];
    pthread_t threads[2];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        joiners[i] = (joiner){.status = WHERRY_INTERNAL};
        snprintf(joiners[i].address, sizeof(joiners[i].address), "unix://%s/meet?rank=%d&size=2", folder, i);
        assert_int_equal(pthread_create(threads + i, NULL, join_unix, joiners + i), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        must(joiners[i].status);
        assert_int_equal(wherry_group_rank(joiners[i].group), i);
        assert_int_equal(wherry_group_size(joiners[i].group), 2);
        assert_true(wherry_group_alive(joiners[i].group, 1 - i));
    }
    must(wherry_group_send(joiners[0].group, 1, 1, "over a socket", 13, SOON_MS, &error));
    expect_text(joiners[1].group, 0, 1, "over a socket", 0);
    wherry_group_leave(joiners[0].group);
    wherry_group_leave(joiners[1].group);

    wherry_group_options options;
    wherry_group *alone = NULL;
    wherry_group_options_init(&options);
    options.timeout_ms = 50;
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_join(joiners[0].address, &options, &alone, &error));
    assert_non_null(strstr(error.message, "timed out"));
    assert_null(alone);

    assert_int_equal(rmdir(folder), 0);
}

/** A thread in a barrier. */
typedef struct comer {
    wherry_group *group;
    uint64_t number;
    uint32_t timeout_ms;
    wherry_status status;
    wherry_error error;
    atomic_bool done;
} comer;

static void *come(void *context) {
    comer *c = context;
    c->status = wherry_group_barrier(c->group, c->number, c->timeout_ms, &c->error);
    atomic_store(&c->done, true);
    return NULL;
}

static pthread_t start_comer(comer *c, wherry_group *group, uint64_t number) {
    pthread_t thread;
    *c = (comer){.group = group, .number = number, .timeout_ms = SOON_MS};
    assert_int_equal(pthread_create(&thread, NULL, come, c), 0);
    return thread;
}

static void test_barrier_waits_for_all(void **state) {
    (void)state;
    world w = open_world();
    for (uint64_t number = 0; number < 50; number++) {
        comer comers[2];
        pthread_t threads[2] = {start_comer(comers, w.groups[0], number), start_comer(comers + 1, w.groups[2], number)};
        if (number % 10 == 0) {
            wh_await_asleep(getpid());
            assert_false(atomic_load(&comers[0].done) || atomic_load(&comers[1].done));
        }
        must(wherry_group_barrier(w.groups[1], number, SOON_MS, &error));
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            must(comers[i].status);
        }
    }
    close_world(&w);
}

/** A barrier notices a death while it waits for another rank that has never joined. */
static void test_barrier_notices_a_death(void **state) {
    (void)state;
    char folder[] = "/tmp/wherry-test-XXXXXX";
    wherry_group *groups[2];
    assert_non_null(mkdtemp(folder));
    for (int rank = 0; rank < 2; rank++) {
        char address[128];
        wherry_group_options options;
        wherry_group_options_init(&options);
        options.wait_for = (uint32_t)rank + 1;
        options.timeout_ms = SOON_MS;
        snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=3", folder, rank);
        must(wherry_group_join(address, &options, groups + rank, &error));
    }
    comer waiting;
    pthread_t thread = start_comer(&waiting, groups[0], 1);
    wh_await_asleep(getpid());
    assert_false(atomic_load(&waiting.done));
    wherry_group_leave(groups[1]);
    for (int i = 0; i < SOON_MS / 4 && !atomic_load(&waiting.done); i++) {
        usleep(1000);
    }
    assert_true(atomic_load(&waiting.done));
    pthread_join(thread, NULL);
    assert_int_equal(waiting.status, WHERRY_PEER_LOST);
    assert_int_equal(waiting.error.rank, 1);
    wherry_group_leave(groups[0]);

    assert_int_equal(rmdir(folder), 0);
}

/**
 * A rank that is behind passes all barriers that the others have passed. In a group of one, a
 * barrier does not wait.
 */
static void test_late_rank_passes_old_barriers(void **state) {
    (void)state;
    world w = open_world();
    comer comers[2];
    pthread_t threads[2] = {start_comer(comers, w.groups[0], 9), start_comer(comers + 1, w.groups[2], 9)};
    for (uint64_t number = 5; number <= 9; number++) {
        must(wherry_group_barrier(w.groups[1], number, SOON_MS, &error));
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        must(comers[i].status);
    }
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[1], 10, 0, &error));
    close_world(&w);
    wh_local_hub *hub = wh_local_hub_create(1);
    wherry_group *alone;
    must(wh_group_wrap(wh_local_join(hub, 0), &alone, &error));
    must(wherry_group_barrier(alone, 1, 0, &error));
    wherry_group_leave(alone);
    wh_local_hub_release(hub);
}

static void test_barrier_reports_loss_and_timeout(void **state) {
    (void)state;
    world w = open_world();
    comer waiting;
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[0], 1, 50, &error));
    assert_int_equal(error.rank, 1);
    assert_non_null(strstr(error.message, "timed out"));
    pthread_t thread = start_comer(&waiting, w.groups[0], 1);
    wh_await_asleep(getpid());
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_barrier(w.groups[0], 1, SOON_MS, &error));
    uint64_t begin = wh_clock_now();
    leave(&w, 2);
    pthread_join(thread, NULL);
    assert_int_equal(waiting.status, WHERRY_PEER_LOST);
    assert_int_equal(waiting.error.rank, 2);
    assert_true((wh_clock_now() - begin) / 1000000 < SOON_MS / 2);
    must_fail(WHERRY_PEER_LOST, error, wherry_group_barrier(w.groups[1], 1, SOON_MS, &error));
    assert_int_equal(error.rank, 2);

    join_local(&w, 2);
    comer comers[2];
    pthread_t threads[2] = {start_comer(comers, w.groups[0], 1), start_comer(comers + 1, w.groups[1], 1)};
    must(wherry_group_barrier(w.groups[2], 1, SOON_MS, &error));
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        must(comers[i].status);
    }
    close_world(&w);
}

/** A rank counts as arrived even if it leaves before the others notice its arrival. */
static void test_barrier_counts_a_rank_that_left_after_it(void **state) {
    (void)state;
    world w = open_world();
    comer comers[2];
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[2], 4, 0, &error));
    leave(&w, 2);
    pthread_t threads[2] = {start_comer(comers, w.groups[0], 4), start_comer(comers + 1, w.groups[1], 4)};
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        must(comers[i].status);
    }
    close_world(&w);
}

/** The arrival of a former incarnation does not count for the present one. */
static void test_barrier_ignores_former_incarnations(void **state) {
    (void)state;
    world w = open_world();
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[1], 7, 0, &error));
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[2], 7, 0, &error));
    must(wherry_group_barrier(w.groups[0], 7, SOON_MS, &error));
    leave(&w, 2);
    join_local(&w, 2);
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[0], 7, 60, &error));
    assert_int_equal(error.rank, 2);
    close_world(&w);
}

/**
 * A rank restarts while the others wait at the barrier. They notice its loss or its arrival, and it
 * learns that they have arrived.
 */
static void test_barrier_tells_a_restarted_rank(void **state) {
    (void)state;
    world w = open_world();
    comer waiting;
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[1], 3, 0, &error));
    pthread_t thread = start_comer(&waiting, w.groups[0], 3);
    wh_await_asleep(getpid());
    wherry_group *former = w.groups[2];
    join_local(&w, 2);
    must(wherry_group_send(w.groups[2], 1, 1, "x", 1, 0, &error));
    comer newcomer;
    pthread_t other = start_comer(&newcomer, w.groups[2], 3);
    pthread_join(thread, NULL);
    if (waiting.status == WHERRY_PEER_LOST) {
        assert_int_equal(waiting.error.rank, 2);
        must(wherry_group_barrier(w.groups[0], 3, SOON_MS, &error));
    } else {
        must(waiting.status);
    }
    must(wherry_group_barrier(w.groups[1], 3, SOON_MS, &error));
    pthread_join(other, NULL);
    must(newcomer.status);
    wherry_group_leave(former);
    close_world(&w);
}

static void test_barrier_ignores_hostile_messages(void **state) {
    (void)state;
    world w = open_world();
    wh_group *rogue = wh_group_of(w.groups[1]);
    wh_deadline soon = wh_deadline_in_ms(SOON_MS);
    must(wh_group_send(rogue, 0, WH_TAG_BARRIER, "x", 1, soon, &error));
    must(wh_group_send(rogue, 0, WH_TAG_BARRIER, NULL, 0, soon, &error));
    must(wh_group_send(rogue, 0, WH_TAG_BARRIER, "123456789", 9, soon, &error));
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(w.groups[0], 0, 60, &error));
    assert_int_equal(error.rank, 1);
    close_world(&w);
}

static atomic_int destroyed;

static void count_destroy(void *context) {
    (void)context;
    destroyed++;
}

static wherry_status send_nothing(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                                  wherry_error *failure) {
    (void)context, (void)rank, (void)bytes, (void)size, (void)timeout_ms, (void)failure;
    return WHERRY_OK;
}

static wherry_status receive_nothing(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                     wherry_error *failure) {
    (void)context, (void)deliver, (void)sink, (void)failure;
    usleep(timeout_ms * 1000);
    return WHERRY_OK;
}

static wherry_status put_no_runs(void *context, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                                 void **operation_p, wherry_error *failure) {
    (void)context, (void)rank, (void)channel, (void)runs, (void)count, (void)operation_p, (void)failure;
    return WHERRY_OK;
}

static wherry_group_ops idle_table(void) {
    wherry_group_ops ops;
    wherry_group_ops_init(&ops);
    ops.rank = 0;
    ops.size = 2;
    ops.send = send_nothing;
    ops.receive = receive_nothing;
    ops.destroy = count_destroy;
    return ops;
}

static void test_refuses_bad_tables(void **state) {
    (void)state;
    wherry_group *group = NULL;
    enum { BAD = 13 };
    wherry_group_ops bad[BAD];
    for (size_t i = 0; i < BAD; i++) {
        bad[i] = idle_table();
    }
    bad[0].struct_size = 0;
    bad[1].struct_size = sizeof(bad[1]) + 8;
    bad[2].send = NULL;
    bad[3].receive = NULL;
    bad[4].rank = 2;
    bad[5].rank = -1;
    bad[6].size = 0;
    bad[7].max_block = 1023;
    bad[8].flags = WHERRY_GROUP_OPS_FLAGS + 1;
    bad[9].name = NULL;
    bad[10].flags = WHERRY_GROUP_OPS_BACKGROUND;
    bad[11].part_bytes = 64 << 10;
    bad[12].put_runs = put_no_runs;
    destroyed = 0;
    for (size_t i = 0; i < BAD; i++) {
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_from_ops(bad + i, NULL, &group, &error));
    }
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_from_ops(NULL, NULL, &group, &error));
    wherry_group_ops good = idle_table();
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_from_ops(&good, NULL, NULL, &error));
    assert_null(group);
    assert_int_equal(destroyed, 0);
    must(wherry_group_from_ops(&good, NULL, &group, &error));
    char meeting[WHERRY_GROUP_MEETING_MAX];
    must_fail(WHERRY_UNSUPPORTED, error, wherry_group_meeting(group, meeting, &error));
    wherry_group_leave(group);
    assert_int_equal(destroyed, 1);
}

/** Messages and barriers over a callback table. */
static void test_group_works_over_a_table(void **state) {
    (void)state;
    static const callback_hub_options options = {.flags = WHERRY_GROUP_OPS_DEATH};
    callback_hub *hub = callback_hub_open(RANKS, &options);
    wherry_group *groups[RANKS];
    comer comers[RANKS];
    pthread_t threads[RANKS];
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wherry_group_ops ops;
        void *context = callback_hub_member(hub, rank, &ops);
        must(wherry_group_from_ops(&ops, context, groups + rank, &error));
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        threads[rank] = start_comer(comers + rank, groups[rank], 1);
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
        must(comers[rank].status);
        assert_true(wherry_group_alive(groups[rank], (rank + 1) % RANKS));
    }
    must(wherry_group_send(groups[2], 0, 1, "over a table", 12, SOON_MS, &error));
    expect_text(groups[0], WHERRY_ANY_RANK, 1, "over a table", 2);
    callback_hub_kill(hub, 1);
    must_fail(WHERRY_PEER_LOST, error, wherry_group_barrier(groups[0], 2, SOON_MS, &error));
    assert_int_equal(error.rank, 1);
    assert_false(wherry_group_alive(groups[0], 1));
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wherry_group_leave(groups[rank]);
    }
    callback_hub_close(hub);
}

/** The result of permit() for the calling thread. */
static wherry_status permission;

static wherry_status permit(void *context, wherry_error *failure) {
    (void)context;
    if (permission != WHERRY_OK) {
        *failure = (wherry_error){.status = permission, .rank = -1, .offset = UINT64_MAX};
        snprintf(failure->message, sizeof(failure->message), "not by this thread");
    }
    return permission;
}

/**
 * If a thread may not use the table, every call fails with the table's reason, and the group does
 * not change.
 */
static void test_table_can_refuse_a_thread(void **state) {
    (void)state;
    wherry_group *group = NULL;
    wherry_transport *transport;
    wherry_value *received;
    wherry_value *sent = build_dict(NULL);
    void *bytes;
    size_t size;
    wherry_group_ops ops = idle_table();
    ops.permit = permit;
    destroyed = 0;
    permission = WHERRY_UNSUPPORTED;
    must_fail(WHERRY_UNSUPPORTED, error, wherry_group_from_ops(&ops, NULL, &group, &error));
    assert_string_equal(error.message, "not by this thread");
    assert_int_equal(destroyed, 0);
    permission = WHERRY_OK;
    must(wherry_group_from_ops(&ops, NULL, &group, &error));
    must(wherry_transport_create(group, NULL, &transport, &error));
    for (int round = 0; round < 2; round++) {
        permission = WHERRY_UNSUPPORTED;
        must_fail(WHERRY_UNSUPPORTED, error, wherry_group_send(group, 1, 1, "x", 1, 0, &error));
        must_fail(WHERRY_UNSUPPORTED, error, wherry_group_receive(group, 1, 1, 0, &bytes, &size, NULL, &error));
        must_fail(WHERRY_UNSUPPORTED, error, wherry_group_barrier(group, 1, 0, &error));
        wherry_outcome outcome = {.rank = -1};
        wherry_stats stats = {.struct_size = 0};
        wherry_report *report = (wherry_report *)(void *)&stats;
        wherry_transfer_options options;
        wherry_transfer_options_init(&options);
        options.stats = &stats;
        options.report_p = &report;
        must_fail(WHERRY_UNSUPPORTED, error, wherry_checkpoint_recv(transport, 1, &options, &received, &error));
        assert_true(stats.struct_size == sizeof(stats) && !report);
        must_fail(WHERRY_UNSUPPORTED, error,
                  wherry_checkpoint_send(transport, (int32_t[]){1}, 1, sent, NULL, &outcome, &error));
        assert_true(outcome.rank == 1 && outcome.status == WHERRY_UNSUPPORTED);
        assert_string_equal(outcome.error.message, "not by this thread");
        assert_string_equal(error.message, "not by this thread");
        permission = WHERRY_OK;
        must(wherry_group_send(group, 1, 1, "x", 1, 0, &error));
        must_fail(WHERRY_TIMED_OUT, error, wherry_group_receive(group, 1, 1, 0, &bytes, &size, NULL, &error));
    }
    wherry_transport_destroy(transport);
    permission = WHERRY_CLOSED;
    wherry_log_set_level(WHERRY_LOG_OFF);
    wherry_group_leave(group);
    wherry_log_set_level(WHERRY_LOG_WARN);
    assert_int_equal(destroyed, 1);
    wherry_value_destroy(sent);
}

/** Creates a group from a table and runs a barrier, with each allocation failing in turn. */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    wherry_status status = WHERRY_NO_MEMORY;
    uint64_t fail = 0;
    while (status == WHERRY_NO_MEMORY) {
        counting count;
        wherry_group *group = NULL;
        wherry_group_ops ops = idle_table();
        ops.size = 1;
        destroyed = 0;
        counting_begin(&count);
        count.fail = ++fail;
        status = wherry_group_from_ops(&ops, NULL, &group, &error);
        assert_true((status == WHERRY_OK) == (group != NULL));
        if (group) {
            status = wherry_group_barrier(group, 1, 0, &error);
        }
        wherry_group_leave(group);
        assert_int_equal(destroyed, group != NULL);
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
    }
    must(status);
    assert_true(fail > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_arrive),
        cmocka_unit_test(test_library_and_program_tags_do_not_mix),
        cmocka_unit_test(test_refuses_invalid_arguments),
        cmocka_unit_test(test_reports_a_lost_rank),
        cmocka_unit_test(test_refuses_bad_options),
        cmocka_unit_test(test_joins_over_a_socket),
        cmocka_unit_test(test_barrier_waits_for_all),
        cmocka_unit_test(test_barrier_notices_a_death),
        cmocka_unit_test(test_late_rank_passes_old_barriers),
        cmocka_unit_test(test_barrier_reports_loss_and_timeout),
        cmocka_unit_test(test_barrier_counts_a_rank_that_left_after_it),
        cmocka_unit_test(test_barrier_ignores_former_incarnations),
        cmocka_unit_test(test_barrier_tells_a_restarted_rank),
        cmocka_unit_test(test_barrier_ignores_hostile_messages),
        cmocka_unit_test(test_refuses_bad_tables),
        cmocka_unit_test(test_group_works_over_a_table),
        cmocka_unit_test(test_table_can_refuse_a_thread),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
