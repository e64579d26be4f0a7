/*
 * The connection between two ranks is reset at every point of a transfer. Both sides end soon, with
 * success or PEER_LOST, and the next transfer uses a new connection. Ranks are threads of one
 * process.
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/point.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "group/mailbox.h"
#include "group/sockets/internal.h"

enum { SOON_MS = 3000, LIMIT_MS = 8000, TRIES = 5 };

static const char *const points[] = {
    "receiver asked",          "source was asked",        "source offered",         "receiver has the offer",
    "receiver planned",        "receiver probed",         "receiver sent the plan", "source has the plan",
    "receiver opened a chunk", "receiver closed a chunk", "receiver has all bytes", "receiver said done",
    "source was told done",    "source released",
};

static wherry_error error;
static ferry_world world;
static const char *reset_at;
static atomic_bool reset;
static atomic_bool source_ended;
static atomic_bool lost;
static bool returns;

/** Shuts all connections between ranks 0 and 1, as a router that forgets them would. */
static void cut(void) {
    wh_sockets *sockets = (wh_sockets *)world.groups[0];
    pthread_mutex_lock(&sockets->lock);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->rank == 1) {
            shutdown(one->socket.fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&sockets->lock);
}

static void cut_there(const char *name) {
    if (reset_at && strcmp(name, reset_at) == 0 && !atomic_exchange(&reset, true)) {
        cut();
    }
}

static bool is_expected(wherry_status status) {
    return status == WHERRY_OK || status == WHERRY_PEER_LOST || status == WHERRY_ABORTED || status == WHERRY_TIMED_OUT;
}

/** @return true if both sides succeeded; then the received state is correct. */
static bool ferry(const char *lane, const wherry_value *source) {
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    for (int i = 0; i < 2; i++) {
        calls[i].options.lanes = lane;
        calls[i].options.timeout_ms = SOON_MS;
    }
    ferry_run(calls, 2);
    if (!is_expected(calls[0].status) || !is_expected(calls[1].status)) {
        fail_msg("%s over %s: %s; %s", reset_at ? reset_at : "after it", lane, calls[0].error.message,
                 calls[1].error.message);
    }
    if (calls[1].status == WHERRY_OK) {
        must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[1].received);
    }
    return calls[0].status == WHERRY_OK && calls[1].status == WHERRY_OK;
}

/** The next call may still notice the loss. On a busy machine, a call may time out. */
static void ferry_until_it_succeeds(const char *lane, const wherry_value *source) {
    int tries = 0;
    while (!ferry(lane, source)) {
        assert_true(++tries < TRIES);
    }
}

static void run(const char *lane) {
    wherry_value *source = ferry_tensor(9 << 20, 3);
    world = ferry_open();
    ferry_until_it_succeeds(lane, source);
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        reset_at = points[i];
        atomic_store(&reset, false);
        wh_point_hook = cut_there;
        ferry(lane, source);
        assert_true(atomic_load(&reset));
        reset_at = NULL;
        ferry_until_it_succeeds(lane, source);
    }
    wh_point_hook = NULL;
    ferry_close(&world);
    wherry_value_destroy(source);
}

/**
 * A hook that lets the source lose the receiver when the receiver is about to try the lane. The
 * receiver does not notice. If `returns`, the receiver is back before the source looks: the source
 * is held until all of this has happened.
 */
static void lose_there(const char *name) {
    wh_deadline limit = wh_deadline_in_ms(LIMIT_MS);
    while (strcmp(name, "source offered") == 0 && !atomic_load(&lost) && !wh_deadline_passed(limit)) {
        sched_yield();
    }
    if (strcmp(name, "receiver planned") == 0 && !atomic_exchange(&reset, true)) {
        wh_mailbox *mailbox = world.groups[0]->mailbox;
        uint64_t incarnation = ((wh_sockets *)world.groups[1])->incarnation;
        wh_mailbox_lose(mailbox, 1, incarnation, "heard late");
        if (returns) {
            wh_mailbox_admit(mailbox, 1, incarnation);
        }
        atomic_store(&lost, true);
        while (!atomic_load(&source_ended) && !wh_deadline_passed(limit)) {
            sched_yield();
        }
    }
}

static void hear_late(const char *lane, bool is_back) {
    wherry_value *source = ferry_tensor(9 << 20, 3);
    world = ferry_open();
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[0].options.lanes = calls[1].options.lanes = lane;
    atomic_store(&reset, false);
    atomic_store(&source_ended, false);
    atomic_store(&lost, false);
    returns = is_back;
    wh_point_hook = lose_there;
    ferry_start(&calls[0]);
    ferry_start(&calls[1]);
    ferry_join(&calls[0]);
    atomic_store(&source_ended, true);
    ferry_join(&calls[1]);
    wh_point_hook = NULL;
    assert_int_equal(calls[0].status, WHERRY_PEER_LOST);
    assert_int_equal(calls[1].status, WHERRY_ABORTED);
    assert_int_equal(calls[1].error.rank, 0);
    assert_true(!is_back || strstr(calls[1].error.message, "rank 0 gave up: rank 1 was lost: heard late"));
    assert_true(calls[1].stats.total_seconds < 1e-3 * LIMIT_MS);
    ferry_close(&world);
    wherry_value_destroy(source);
}

/**
 * A rank is back and has asked again before the source notices that its earlier connection was
 * lost. The source tells it that its transfer is over.
 */
static void test_a_loss_is_noticed_late(void **state) {
    (void)state;
    hear_late("cma", true);
    hear_late("ring", true);
    hear_late("stream", true);
}

/**
 * The source does not tell it. The receiver finds that the source's side of the conversation is
 * over, and does not blame the lane.
 */
static void test_the_source_has_moved_on(void **state) {
    (void)state;
    hear_late("stream", false);
}

static void test_cma(void **state) {
    (void)state;
    run("cma");
}

static void test_ring(void **state) {
    (void)state;
    run("ring");
}

static void test_stream(void **state) {
    (void)state;
    run("stream");
}

static void test_ucx(void **state) {
    (void)state;
    run("ucx");
    hear_late("ucx", true);
}

int main(int count, char **arguments) {
    const struct CMUnitTest over_ucx[] = {cmocka_unit_test(test_ucx)};
    static const wh_group_kind kind = {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cma),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_a_loss_is_noticed_late),
        cmocka_unit_test(test_the_source_has_moved_on),
    };
    ferry_kind = &kind;
    ferry_lane = "cma";
    wherry_log_set_level(WHERRY_LOG_OFF);
    if (count > 1 && strcmp(arguments[1], "ucx") == 0) {
        return cmocka_run_group_tests_name("reset", over_ucx, NULL, NULL);
    }
    return cmocka_run_group_tests_name("reset", tests, NULL, NULL);
}
