/*
 * Channels: all bytes arrive in order, however they are split. The ways in which a call ends early.
 */
#include "group/channel.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/asleep.h"
#include "support/build.h"

enum { BYTES = 3 << 20, RUNS = 3 * IOV_MAX + 5, SHORT_MS = 100, LONG_MS = 20000 };

static wherry_error error;

/** Both ends of a channel, and a stop. */
typedef struct pair {
    int ends[2];
    wh_stop stop;
} pair;

static pair open_pair(void) {
    pair p;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p.ends), 0);
    must(wh_stop_init(&p.stop, &error));
    return p;
}

static void close_end(pair *p, int end) {
    close(p->ends[end]);
    p->ends[end] = -1;
}

static void close_pair(pair *p) {
    for (int i = 0; i < 2; i++) {
        if (p->ends[i] >= 0) {
            close(p->ends[i]);
        }
    }
    wh_stop_destroy(&p->stop);
}

/** Divides all of the memory into runs of random lengths, some of them empty. */
static void cut_runs(uint8_t *memory, size_t bytes, struct iovec *runs, size_t count, uint64_t seed) {
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        size_t length = seed >> 60 == 0 ? 0 : (seed >> 33) % (2 * bytes / count);
        length = i + 1 == count || length > bytes - used ? bytes - used : length;
        runs[i] = (struct iovec){memory + used, length};
        used += length;
    }
}

/** Reads until all runs are full. */
static wherry_status read_all(int fd, struct iovec *runs, size_t count, const wh_stop *stop, wh_deadline deadline,
                              wherry_error *failure) {
    wherry_status status = WHERRY_OK;
    const wh_socket channel = {.fd = fd};
    while (status == WHERRY_OK && count) {
        size_t got = 0;
        status = wh_channel_read_some(&channel, runs, count, stop, deadline, &got, failure);
        for (; count && got >= runs->iov_len; runs++, count--) {
            got -= runs->iov_len;
        }
        if (count) {
            runs->iov_base = (char *)runs->iov_base + got;
            runs->iov_len -= got;
        }
    }
    return status;
}

typedef struct writer {
    pair *p;
    uint8_t *memory;
    wherry_status status;
} writer;

static void *write_all(void *context) {
    writer *w = context;
    struct iovec *runs = malloc(RUNS * sizeof(*runs));
    wherry_error unseen;
    cut_runs(w->memory, BYTES, runs, RUNS, 1);
    w->status = wh_channel_write(&(wh_socket){.fd = w->p->ends[0]}, runs, RUNS, &w->p->stop, wh_deadline_in_ms(LONG_MS),
                                 &unseen);
    for (size_t i = 0; w->status == WHERRY_OK && i < RUNS; i++) {
        w->status = runs[i].iov_len ? WHERRY_INTERNAL : WHERRY_OK;
    }
    free(runs);
    return NULL;
}

/**
 * Like the test before, but with sockets that block for a while in the kernel, like the channels of
 * a lane.
 */
static void test_all_bytes_arrive_in_order(void **state) {
    (void)state;
    uint8_t *from = malloc(BYTES);
    uint8_t *to = malloc(BYTES);
    struct iovec *runs = malloc((RUNS + 7) * sizeof(*runs));
    for (size_t i = 0; i < BYTES; i++) {
        from[i] = (uint8_t)(i * 7 + (i >> 11));
    }
    for (int blocking = 0; blocking < 2; blocking++) {
        pair p = open_pair();
        for (int i = 0; blocking && i < 2; i++) {
            struct timeval slice = {0, 1000};
            assert_int_equal(setsockopt(p.ends[i], SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)), 0);
            assert_int_equal(setsockopt(p.ends[i], SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice)), 0);
            assert_int_equal(fcntl(p.ends[i], F_SETFL, 0), 0);
        }
        writer w = {&p, from, WHERRY_OK};
        pthread_t thread;
        memset(to, 0, BYTES);
        cut_runs(to, BYTES, runs, RUNS + 7, 2);
        assert_int_equal(pthread_create(&thread, NULL, write_all, &w), 0);
        wh_await_asleep(getpid());
        must(read_all(p.ends[1], runs, RUNS + 7, &p.stop, wh_deadline_in_ms(LONG_MS), &error));
        pthread_join(thread, NULL);
        must(w.status);
        assert_memory_equal(from, to, BYTES);
        close_pair(&p);
    }
    free(runs);
    free(from);
    free(to);
}

static void test_empty_runs_succeed(void **state) {
    (void)state;
    pair p = open_pair();
    struct iovec empty[IOV_MAX + 1] = {{NULL, 0}};
    size_t got = 9;
    must(wh_channel_write(&(wh_socket){.fd = p.ends[0]}, empty, IOV_MAX + 1, &p.stop, wh_deadline_in_ms(0), &error));
    must(read_all(p.ends[1], empty, IOV_MAX + 1, &p.stop, wh_deadline_in_ms(0), &error));
    must(wh_channel_read_some(&(wh_socket){.fd = p.ends[1]}, empty, IOV_MAX + 1, &p.stop, wh_deadline_in_ms(0), &got,
                              &error));
    assert_int_equal(got, 0);
    close_pair(&p);
}

static void test_read_some_returns_what_is_there(void **state) {
    (void)state;
    pair p = open_pair();
    char to[16] = {0};
    struct iovec runs[IOV_MAX + 2] = {{NULL, 0}};
    size_t got = 0;
    runs[IOV_MAX] = (struct iovec){to, 2};
    runs[IOV_MAX + 1] = (struct iovec){to + 2, sizeof(to) - 2};
    assert_int_equal(write(p.ends[0], "hello", 5), 5);
    must(wh_channel_read_some(&(wh_socket){.fd = p.ends[1]}, runs, IOV_MAX + 2, &p.stop, wh_deadline_in_ms(LONG_MS),
                              &got, &error));
    assert_int_equal(got, 5);
    assert_memory_equal(to, "hello", 6);
    assert_true(runs[IOV_MAX].iov_base == to && runs[IOV_MAX].iov_len == 2);
    close_pair(&p);
}

static void test_read_and_write_time_out(void **state) {
    (void)state;
    pair p = open_pair();
    uint8_t *memory = calloc(1, BYTES);
    struct iovec all = {memory, BYTES};
    size_t got;
    uint64_t begun = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error,
              wh_channel_write(&(wh_socket){.fd = p.ends[0]}, &all, 1, &p.stop, wh_deadline_in_ms(SHORT_MS), &error));
    assert_true(wh_clock_now() - begun >= SHORT_MS * UINT64_C(1000000));
    assert_true(all.iov_len > 0 && all.iov_len < BYTES);
    assert_true((uint8_t *)all.iov_base + all.iov_len == memory + BYTES);
    assert_non_null(strstr(error.message, "timed out"));
    close_pair(&p);

    p = open_pair();
    assert_int_equal(write(p.ends[0], "abc", 3), 3);
    all = (struct iovec){memory, BYTES};
    must_fail(WHERRY_TIMED_OUT, error, read_all(p.ends[1], &all, 1, &p.stop, wh_deadline_in_ms(SHORT_MS), &error));
    assert_int_equal(all.iov_len, BYTES - 3);
    assert_non_null(strstr(error.message, "timed out"));
    must_fail(
        WHERRY_TIMED_OUT, error,
        wh_channel_read_some(&(wh_socket){.fd = p.ends[1]}, &all, 1, &p.stop, wh_deadline_in_ms(0), &got, &error));
    close_pair(&p);
    free(memory);
}

/** Writes a byte every few milliseconds until it is stopped. */
static void *trickle(void *context) {
    pair *p = context;
    while (!wh_stop_requested(&p->stop) && write(p->ends[0], "x", 1) == 1) {
        usleep(2000);
    }
    return NULL;
}

static void test_trickle_ends_at_the_deadline(void **state) {
    (void)state;
    pair p = open_pair();
    wh_stop never;
    uint8_t *memory = malloc(BYTES);
    struct iovec all = {memory, BYTES};
    pthread_t thread;
    must(wh_stop_init(&never, &error));
    assert_int_equal(pthread_create(&thread, NULL, trickle, &p), 0);
    uint64_t begun = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error, read_all(p.ends[1], &all, 1, &never, wh_deadline_in_ms(SHORT_MS), &error));
    assert_true(wh_clock_now() - begun < LONG_MS / 4 * UINT64_C(1000000));
    wh_stop_request(&p.stop);
    pthread_join(thread, NULL);
    wh_stop_destroy(&never);
    close_pair(&p);
    free(memory);
}

static void *stop_soon(void *context) {
    wh_await_asleep(getpid());
    wh_stop_request(context);
    return NULL;
}

static void test_stop_ends_read_and_write(void **state) {
    (void)state;
    uint8_t *memory = calloc(1, BYTES);
    for (int writes = 0; writes < 2; writes++) {
        pair p = open_pair();
        struct iovec all = {memory, BYTES};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, &p.stop), 0);
        uint64_t begun = wh_clock_now();
        if (writes) {
            must_fail(WHERRY_CANCELLED, error,
                      wh_channel_write(&(wh_socket){.fd = p.ends[0]}, &all, 1, &p.stop, wh_deadline_never(), &error));
        } else {
            must_fail(WHERRY_CANCELLED, error, read_all(p.ends[0], &all, 1, &p.stop, wh_deadline_never(), &error));
        }
        assert_true(wh_clock_now() - begun < LONG_MS / 4 * UINT64_C(1000000));
        pthread_join(thread, NULL);
        /* After a stop, waiting bytes are not read either. */
        assert_int_equal(write(p.ends[1], "abc", 3), 3);
        must_fail(WHERRY_CANCELLED, error, read_all(p.ends[0], &all, 1, &p.stop, wh_deadline_never(), &error));
        close_pair(&p);
    }
    free(memory);
}

/** Bytes that the peer wrote before it closed still arrive. */
static void test_reads_the_rest_after_the_peer_closed(void **state) {
    (void)state;
    pair p = open_pair();
    char to[8];
    struct iovec all = {to, sizeof(to)};
    assert_int_equal(write(p.ends[0], "abc", 3), 3);
    close_end(&p, 0);
    must_fail(WHERRY_PEER_LOST, error, read_all(p.ends[1], &all, 1, &p.stop, wh_deadline_never(), &error));
    assert_memory_equal(to, "abc", 3);
    assert_int_equal(all.iov_len, sizeof(to) - 3);
    must_fail(WHERRY_PEER_LOST, error,
              wh_channel_write(&(wh_socket){.fd = p.ends[1]}, &all, 1, &p.stop, wh_deadline_never(), &error));
    close_pair(&p);
}

/** A bad address or a bad descriptor is reported as a local error, not as a lost peer. */
static void test_local_errors_are_not_blamed_on_the_peer(void **state) {
    (void)state;
    pair p = open_pair();
    struct iovec nowhere = {(void *)16, 8};
    must_fail(WHERRY_SYSTEM, error,
              wh_channel_write(&(wh_socket){.fd = p.ends[0]}, &nowhere, 1, &p.stop, wh_deadline_never(), &error));
    assert_int_equal(write(p.ends[0], "abc", 3), 3);
    must_fail(WHERRY_SYSTEM, error, read_all(p.ends[1], &nowhere, 1, &p.stop, wh_deadline_never(), &error));
    must_fail(WHERRY_SYSTEM, error, read_all(-1, &nowhere, 1, &p.stop, wh_deadline_never(), &error));
    close_pair(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_bytes_arrive_in_order),
        cmocka_unit_test(test_empty_runs_succeed),
        cmocka_unit_test(test_read_some_returns_what_is_there),
        cmocka_unit_test(test_read_and_write_time_out),
        cmocka_unit_test(test_trickle_ends_at_the_deadline),
        cmocka_unit_test(test_stop_ends_read_and_write),
        cmocka_unit_test(test_reads_the_rest_after_the_peer_closed),
        cmocka_unit_test(test_local_errors_are_not_blamed_on_the_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
