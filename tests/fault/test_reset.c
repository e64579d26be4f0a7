/*
 * The connection between two ranks is reset in the middle of a transfer, at every point of the conversation: both sides end soon, in success or as lost, and
 * the next transfer goes over a new connection. Ranks are threads of one process.
 */
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/point.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "group/sockets/internal.h"

enum { SOON_MS = 3000, TRIES = 5 };

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

/** Shuts all connections between ranks 0 and 1, as a router that forgets them would. */
static void cut(void) {
    wh_sockets *sockets = (wh_sockets *)world.groups[0];
    pthread_mutex_lock(&sockets->lock);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->rank == 1) {
            shutdown(one->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&sockets->lock);
}

static void cut_there(const char *name) {
    if (reset_at && strcmp(name, reset_at) == 0 && !atomic_exchange(&reset, true)) {
        cut();
    }
}

static wherry_value *one_tensor(int64_t bytes, uint8_t seed) {
    return build_dict("w", build_tensor(build_storage((uint64_t)bytes, seed), WHERRY_U8, 0, 1, &bytes, NULL), NULL);
}

static bool is_expected(wherry_status status) {
    return status == WHERRY_OK || status == WHERRY_PEER_LOST || status == WHERRY_ABORTED || status == WHERRY_TIMED_OUT;
}

/** @return whether both sides succeeded; what was received is right then. */
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

static void run(const char *lane) {
    wherry_value *source = one_tensor(9 << 20, 3);
    world = ferry_open();
    assert_true(ferry(lane, source));
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        reset_at = points[i];
        atomic_store(&reset, false);
        wh_point_hook = cut_there;
        ferry(lane, source);
        assert_true(atomic_load(&reset));
        reset_at = NULL;
        /* The first of the next calls may still hear of the loss. */
        int tries = 0;
        while (!ferry(lane, source)) {
            assert_true(++tries < TRIES);
        }
    }
    wh_point_hook = NULL;
    ferry_close(&world);
    wherry_value_destroy(source);
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

int main(void) {
    static const wh_group_kind kind = {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cma),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_stream),
    };
    ferry_kind = &kind;
    ferry_lane = "cma";
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("reset", tests, NULL, NULL);
}
