/*
 * Bytes change on the way, and connections break, stall or are slow. With verify, the receiver
 * notices the damage and asks for the chunks again, up to twice. Without it, nobody notices. A
 * broken connection is an error soon. Over a slow connection the transfer succeeds.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "group/mailbox.h"
#include "transfer/message.h"

enum { BODY = (9 << 20) + 7, TRICKLE = 120000, PATIENCE_MS = 30000, STALE_MS = 1500 };

static wherry_error error;

static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
static const wh_group_kind over_unix = {"unix", wh_open_unix_place, wh_join_place, wh_close_place};
static const wh_group_kind over_tcp = {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place};

static wherry_value *make_state(int64_t first, uint8_t seed) {
    int64_t second = 1000;
    return build_dict("w", build_tensor(build_storage((uint64_t)first, seed), WHERRY_U8, 0, 1, &first, NULL), "b",
                      build_tensor(build_storage(1000, seed), WHERRY_U8, 0, 1, &second, NULL), NULL);
}

/** True if the received state equals the sent one. */
static bool is_whole(const wherry_value *state, const wherry_value *received) {
    return wherry_value_compare(state, received, WHERRY_COMPARE_ALL, &error) == WHERRY_OK;
}

/* ---- damage in the receiver's memory ---- */

static atomic_int damages; /* how many more times the first chunk will be damaged */

/** A sink of a lane that damages a chunk in memory. */
typedef struct flawed {
    const wh_sink *sink;
} flawed;

static bool flawed_next(void *context, uint64_t *chunk_p) {
    const flawed *own = context;
    return own->sink->next(own->sink->context, chunk_p);
}

static wherry_status flawed_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *e) {
    const flawed *own = context;
    return own->sink->origin(own->sink->context, chunk, segments, e);
}

static wherry_status flawed_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *e) {
    const flawed *own = context;
    return own->sink->open(own->sink->context, chunk, landing, e);
}

static void flawed_moved(void *context, uint64_t bytes) {
    const flawed *own = context;
    own->sink->moved(own->sink->context, bytes);
}

/** Flips a bit of chunk 0, and computes the digest of the damaged bytes. */
static wherry_status flawed_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                  const wherry_digest *claimed, wherry_error *e) {
    const flawed *own = context;
    wherry_digest changed;
    if (landing->chunk == 0 && atomic_load(&damages) > 0) {
        atomic_fetch_sub(&damages, 1);
        ((uint8_t *)landing->segments.items[0].iov_base)[landing->segments.items[0].iov_len / 2] ^= 0x10;
        wh_digester *digester = wh_digester_create();
        changed = wh_digest_of(digester, landing->segments.items, landing->segments.count);
        wh_digester_destroy(digester);
        digest = digest ? &changed : NULL;
    }
    return own->sink->close(own->sink->context, landing, digest, claimed, e);
}

static const wh_lane_ops *flawed_lane; /* the lane itself, without the damage */

static wherry_status flawed_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *e) {
    flawed own = {sink};
    wh_sink face = {.context = &own,
                    .verify = sink->verify,
                    .next = flawed_next,
                    .origin = flawed_origin,
                    .open = flawed_open,
                    .close = flawed_close,
                    .moved = flawed_moved};
    return flawed_lane->pull(end, worker, &face, e);
}

/** A world whose receiver, rank 1, has only this lane, with the damaging sink. */
static ferry_world open_flawed(const wh_lane_ops *lane) {
    static wh_lane_ops ops;
    static const wh_lane_ops *const lanes[] = {&ops};
    ferry_world world = ferry_open();
    flawed_lane = lane;
    ops = *lane;
    ops.pull = flawed_pull;
    wherry_transport_destroy(world.transports[1]);
    must(wh_transport_create(world.groups[1], 0, lanes, 1, world.transports + 1, &error));
    return world;
}

static void ferry_damaged(const wh_lane_ops *lane, int times, wherry_verify verify) {
    ferry_kind = &local;
    ferry_lane = lane->name;
    ferry_world world = open_flawed(lane);
    wherry_value *state = make_state(BODY, 3);
    wherry_report *report = NULL;
    ferry_call calls[] = {ferry_send(&world, 0, 1, state), ferry_receive(&world, 1, 0)};
    calls[1].options.verify = verify;
    calls[1].options.report_p = &report;
    atomic_store(&damages, times);
    ferry_run(calls, 2);
    assert_int_equal(atomic_load(&damages), verify == WHERRY_VERIFY_OFF ? times - 1 : 0);
    if (verify == WHERRY_VERIFY_ON && times > 2) {
        assert_int_equal(calls[1].status, WHERRY_CORRUPT);
        assert_string_equal(calls[1].error.path, "w");
        assert_int_equal(calls[1].error.rank, 0);
        assert_int_equal(calls[1].stats.retries, 2);
        assert_int_equal(calls[0].status, WHERRY_ABORTED);
        assert_non_null(strstr(calls[0].error.message, "damaged"));
        assert_int_equal(wherry_report_count(report, WHERRY_TENSOR_PARTIAL), 1);
        assert_string_equal(wherry_report_path(report, WHERRY_TENSOR_PARTIAL, 0), "w");
        assert_int_equal(wherry_report_count(report, WHERRY_TENSOR_COMPLETE), 1);
    } else {
        assert_int_equal(calls[1].status, WHERRY_OK);
        assert_int_equal(calls[0].status, WHERRY_OK);
        assert_int_equal(calls[1].stats.retries, verify == WHERRY_VERIFY_ON ? times : 0);
        assert_int_equal(calls[0].outcomes[0].stats.retries, verify == WHERRY_VERIFY_ON ? times : 0);
        assert_true(is_whole(state, calls[1].received) == (verify == WHERRY_VERIFY_ON));
        wherry_value_destroy(calls[1].received);
    }
    wherry_report_destroy(report);
    wherry_value_destroy(state);
    ferry_close(&world);
}

static void each_damage(const wh_lane_ops *lane) {
    for (int times = 1; times <= 3; times++) {
        ferry_damaged(lane, times, WHERRY_VERIFY_ON);
    }
    ferry_damaged(lane, 1, WHERRY_VERIFY_OFF);
}

static void test_damage_over_cma(void **state) {
    (void)state;
    each_damage(&wh_lane_cma);
}

static void test_damage_over_ring(void **state) {
    (void)state;
    each_damage(&wh_lane_ring);
}

static void test_damage_over_stream(void **state) {
    (void)state;
    each_damage(&wh_lane_stream);
}

static void test_damage_over_ucx(void **state) {
    (void)state;
    each_damage(&wh_lane_ucx);
}

/* ---- damage on the wire ---- */

/** The fault of a wire, which affects the bytes from the source to the receiver. */
typedef enum wire_fault { WIRE_FLIPS, WIRE_BREAKS, WIRE_TRICKLES, WIRE_STALLS } wire_fault;

/** A group whose messages and channels go through a wire with a fault. */
typedef struct wired {
    wh_group base;
    wh_group_backend ops;
    wh_group *real;
    wire_fault fault;
    atomic_int flips;   /**< Number of flips that are still to come; one per round. */
    atomic_bool armed;  /**< True while this round has had no flip. */
    atomic_bool ending; /**< The test is over. */
    pthread_t relays[16];
    atomic_int relay_count;
} wired;

typedef struct relay {
    wired *wire;
    int from;
    int to;
} relay;

/** Flips a bit if one is due in this round. */
static void flip(wired *wire, uint8_t *bytes, size_t size) {
    bool armed = true;
    if (size > 4096 && atomic_load(&wire->flips) > 0 && atomic_compare_exchange_strong(&wire->armed, &armed, false)) {
        atomic_fetch_sub(&wire->flips, 1);
        bytes[size / 2] ^= 0x04;
    }
}

/** Writes all bytes, in small pieces if the wire trickles. @return false if the channel ended. */
static bool pass_on(const relay *own, const uint8_t *bytes, size_t size) {
    size_t most = own->wire->fault == WIRE_TRICKLES ? 1777 : size;
    for (size_t at = 0; at < size;) {
        ssize_t put = send(own->to, bytes + at, size - at < most ? size - at : most, MSG_NOSIGNAL);
        if (put <= 0) {
            return false;
        }
        at += (size_t)put;
        if (own->wire->fault == WIRE_TRICKLES && at % 64 == 0) {
            usleep(100);
        }
    }
    return true;
}

static void *run_relay(void *context) {
    relay *own = context;
    wired *wire = own->wire;
    uint8_t *buffer = malloc(1 << 16);
    size_t passed = 0;
    while (!atomic_load(&wire->ending)) {
        struct pollfd fds[] = {{own->from, POLLIN, 0}, {own->to, 0, 0}};
        if (wire->fault == WIRE_STALLS && passed > (1 << 20)) {
            fds[0].events = 0;
        }
        poll(fds, 2, 20);
        if (fds[1].revents & (POLLHUP | POLLERR)) {
            break;
        }
        ssize_t got = fds[0].revents & POLLIN ? recv(own->from, buffer, 1 << 16, MSG_DONTWAIT) : -1;
        if (got == 0 || (wire->fault == WIRE_BREAKS && passed > (1 << 20))) {
            break;
        }
        if (got > 0) {
            passed += (size_t)got;
            flip(wire, buffer, (size_t)got);
            if (!pass_on(own, buffer, (size_t)got)) {
                break;
            }
        }
    }
    free(buffer);
    close(own->from);
    close(own->to);
    free(own);
    return NULL;
}

static wherry_status wired_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline,
                                   const wh_stop *stop, wh_socket *channel_p, wherry_error *e) {
    wired *wire = (wired *)group;
    wh_socket channel;
    int ends[2];
    int small = 1;
    wherry_status status = wire->real->ops->connect(wire->real, rank, tag, deadline, stop, &channel, e);
    if (status != WHERRY_OK) {
        return status;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        abort();
    }
    if (wire->fault == WIRE_TRICKLES) { /* The kernel raises these sizes to its minimum. */
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
        setsockopt(channel.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    }
    relay *one = malloc(sizeof(*one));
    *one = (relay){wire, channel.fd, ends[0]};
    int number = atomic_fetch_add(&wire->relay_count, 1);
    if (number >= 16 || pthread_create(wire->relays + number, NULL, run_relay, one) != 0) {
        abort();
    }
    *channel_p = (wh_socket){.fd = ends[1]};
    return WHERRY_OK;
}

/** Each PLAN opens a session. Each session gets its own flip. */
static wherry_status wired_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                wh_deadline deadline, const wh_stop *stop, wherry_error *e) {
    wired *wire = (wired *)group;
    if (size && *(const uint8_t *)bytes == WH_PLAN) {
        atomic_store(&wire->armed, true);
    }
    return wire->real->ops->send(wire->real, rank, tag, bytes, size, deadline, stop, e);
}

static wherry_status wired_pump(wh_group *group, wh_deadline deadline, wherry_error *e) {
    wired *wire = (wired *)group;
    return wire->real->ops->pump(wire->real, deadline, e);
}

static void wired_nudge(wh_group *group) {
    wired *wire = (wired *)group;
    wire->real->ops->nudge(wire->real);
}

static void wired_watch(wh_group *group, int32_t rank) {
    wh_group_watch(((wired *)group)->real, rank);
}

static int32_t wired_process(wh_group *group, int32_t rank) {
    return wh_group_process(((wired *)group)->real, rank);
}

static wherry_status wired_describe(wh_group *group, int32_t rank, wherry_group_link *link_p, wherry_error *e) {
    wired *wire = (wired *)group;
    return wire->real->ops->describe(wire->real, rank, link_p, e);
}

/** Puts the wire in front of the receiver, rank 1. */
static void wire_up(wired *wire, ferry_world *world, wire_fault fault, int flips) {
    static const wh_lane_ops *const lanes[] = {&wh_lane_stream};
    wh_group *real = world->groups[1];
    *wire = (wired){.real = real, .fault = fault, .flips = flips, .armed = true};
    wire->ops = *real->ops;
    wire->ops.send = wired_send;
    wire->ops.connect = wired_connect;
    wire->ops.pump = real->ops->pump ? wired_pump : NULL;
    wire->ops.nudge = real->ops->nudge ? wired_nudge : NULL;
    wire->ops.watch = wired_watch;
    wire->ops.process = wired_process;
    wire->ops.describe = real->ops->describe ? wired_describe : NULL;
    wire->base = (wh_group){.ops = &wire->ops, .rank = real->rank, .size = real->size, .mailbox = real->mailbox};
    wherry_transport_destroy(world->transports[1]);
    must(wh_transport_create(&wire->base, 0, lanes, 1, world->transports + 1, &error));
}

static void wire_down(wired *wire) {
    atomic_store(&wire->ending, true);
    for (int i = 0; i < atomic_load(&wire->relay_count); i++) {
        pthread_join(wire->relays[i], NULL);
    }
}

static void ferry_wired(const wh_group_kind *kind, wire_fault fault, int flips, wherry_status expected) {
    static wired wire;
    ferry_kind = kind;
    ferry_lane = "stream";
    ferry_world world = ferry_open();
    wire_up(&wire, &world, fault, flips);
    wherry_value *state = make_state(fault == WIRE_TRICKLES ? TRICKLE : BODY, 8);
    ferry_call calls[] = {ferry_send(&world, 0, 1, state), ferry_receive(&world, 1, 0)};
    for (int i = 0; i < 2; i++) {
        calls[i].options.timeout_ms = PATIENCE_MS;
        calls[i].options.no_progress_ms = STALE_MS;
        calls[i].options.threads = 2;
    }
    calls[1].options.verify = WHERRY_VERIFY_ON;
    uint64_t begun = wh_clock_now();
    ferry_run(calls, 2);
    /* The call did not end by timeout_ms. */
    assert_true((wh_clock_now() - begun) / 1000000 < PATIENCE_MS - STALE_MS);
    if (fault == WIRE_STALLS && calls[1].status == WHERRY_REVOKED) {
        expected = WHERRY_REVOKED; /* The source gave up before the receiver did. */
    }
    if (calls[1].status != expected) {
        print_error("%s: %s\n", wherry_status_name(calls[1].status), calls[1].error.message);
    }
    assert_int_equal(calls[1].status, expected);
    if (expected == WHERRY_OK) {
        assert_int_equal(calls[0].status, WHERRY_OK);
        assert_int_equal(calls[1].stats.retries, flips);
        assert_true(is_whole(state, calls[1].received));
        wherry_value_destroy(calls[1].received);
    } else {
        assert_true(calls[0].status == WHERRY_ABORTED || calls[0].status == WHERRY_PEER_LOST ||
                    calls[0].status == WHERRY_TIMED_OUT);
        assert_true(fault != WIRE_FLIPS || calls[1].error.path[0]);
        assert_true(fault == WIRE_FLIPS || calls[1].error.rank == 0);
        assert_true(fault == WIRE_FLIPS || strstr(calls[1].error.message, "half written"));
    }
    wire_down(&wire);
    wherry_value_destroy(state);
    ferry_close(&world);
}

static void test_bits_that_flip_on_the_wire(void **state) {
    (void)state;
    ferry_wired(&over_unix, WIRE_FLIPS, 1, WHERRY_OK);
    ferry_wired(&over_tcp, WIRE_FLIPS, 2, WHERRY_OK);
    ferry_wired(&over_tcp, WIRE_FLIPS, 3, WHERRY_CORRUPT);
}

static void test_a_channel_that_breaks(void **state) {
    (void)state;
    ferry_wired(&over_unix, WIRE_BREAKS, 0, WHERRY_PEER_LOST);
    ferry_wired(&over_tcp, WIRE_BREAKS, 0, WHERRY_PEER_LOST);
}

static void test_a_channel_that_stalls(void **state) {
    (void)state;
    ferry_wired(&over_unix, WIRE_STALLS, 0, WHERRY_TIMED_OUT);
}

/** Short reads and writes, minimal buffers and delays: slow, but the bytes are correct. */
static void test_a_channel_that_trickles(void **state) {
    (void)state;
    ferry_wired(&over_unix, WIRE_TRICKLES, 0, WHERRY_OK);
    ferry_wired(&over_tcp, WIRE_TRICKLES, 0, WHERRY_OK);
}

int main(int count, char **arguments) {
    const struct CMUnitTest over_ucx[] = {cmocka_unit_test(test_damage_over_ucx)};
    wherry_log_set_level(WHERRY_LOG_OFF);
    if (count > 1 && strcmp(arguments[1], "ucx") == 0) {
        return cmocka_run_group_tests_name("damage", over_ucx, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage_over_cma),         cmocka_unit_test(test_damage_over_ring),
        cmocka_unit_test(test_damage_over_stream),      cmocka_unit_test(test_bits_that_flip_on_the_wire),
        cmocka_unit_test(test_a_channel_that_breaks),   cmocka_unit_test(test_a_channel_that_stalls),
        cmocka_unit_test(test_a_channel_that_trickles),
    };
    return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}
