/*
 * How the ends of the stream lane are created, and receivers that read slowly or not at all while a
 * source pushes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "lane/lanes.h"
#include "support/build.h"
#include "support/counting_allocator.h"
#include "support/local_group.h"

enum { CHUNK = 4 << 20, CHUNKS = 12, LONG_MS = 20000, SHORT_MS = 100, CHANNELS = 8 };
#define TAG (WH_TAG_CONVERSATION | 6)

static wherry_error error;
static const wh_lane_ops *const lane = &wh_lane_stream;

/** A group that opens a limited number of channels to itself; several threads may call it. */
typedef struct pairs {
    wh_group base;
    pthread_mutex_t lock;
    int most;              /**< How many channels it opens. */
    wherry_status failure; /**< The status if the lane requests one more. */
    int opened;
    int far[CHANNELS];
} pairs;

static wherry_status connect_pair(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline,
                                  const wh_stop *stop, wh_socket *channel_p, wherry_error *problem) {
    pairs *own = (pairs *)group;
    int ends[2];
    (void)rank, (void)tag, (void)deadline, (void)stop;
    pthread_mutex_lock(&own->lock);
    bool good =
        own->opened < own->most && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0;
    if (good) {
        own->far[own->opened++] = ends[1];
        *channel_p = (wh_socket){.fd = ends[0]};
    }
    pthread_mutex_unlock(&own->lock);
    return good ? WHERRY_OK : wh_fail(problem, own->failure, "no more");
}

static pairs pairs_of(int most, wherry_status failure) {
    static const wh_group_backend ops = {.name = "pairs", .connect = connect_pair};
    return (pairs){
        .base = {.ops = &ops, .size = 2}, .lock = PTHREAD_MUTEX_INITIALIZER, .most = most, .failure = failure};
}

/** True if the lane has closed its end of a channel. Closes the other end. */
static bool was_closed(int far) {
    char byte;
    bool closed = recv(far, &byte, 1, MSG_DONTWAIT) == 0;
    close(far);
    return closed;
}

static wh_lane_site site_of(wh_group *group, uint32_t threads, const wh_stop *stop) {
    return (wh_lane_site){.group = group,
                          .peer = 1,
                          .threads = threads,
                          .stop = stop,
                          .deadline = wh_deadline_in_ms(LONG_MS),
                          .no_progress_ms = LONG_MS};
}

static wherry_status probe(const wh_lane_site *site, uint8_t offered, wh_string *request, wh_lane_end **end_p) {
    uint8_t offer[] = {1, offered};
    bool assist = true;
    wherry_status status = lane->probe(site, offer, sizeof(offer), request, &assist, end_p, &error);
    assert_false(assist);
    return status;
}

/** The lane has as many channels as the side with fewer threads, and at most four. */
static void test_opens_as_many_channels_as_both_sides_have_threads(void **state) {
    (void)state;
    static const struct {
        uint32_t source, receiver, channels;
    } cases[] = {{1, 1, 1}, {1, 9, 1}, {2, 1, 1}, {2, 3, 2}, {3, 3, 3}, {16, 16, 4}, {255, 1000, 4}};
    wh_stop stop;
    must(wh_stop_init(&stop, &error));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        pairs group = pairs_of(CHANNELS, WHERRY_INTERNAL);
        wh_lane_site source = site_of(&group.base, cases[i].source, &stop);
        wh_lane_site receiver = site_of(&group.base, cases[i].receiver, &stop);
        wh_string offer = {0};
        wh_string request = {0};
        wh_lane_end *end = NULL;
        must(lane->offer(&source, &offer, &error));
        must(probe(&receiver, (uint8_t)offer.bytes[1], &request, &end));
        assert_int_equal(end->workers, cases[i].channels);
        assert_int_equal(group.opened, cases[i].channels);
        assert_int_equal(request.size, 2);
        assert_int_equal(request.bytes[1], cases[i].channels);
        lane->close(end);
        for (int c = 0; c < group.opened; c++) {
            assert_true(was_closed(group.far[c]));
        }
        wh_free(offer.bytes);
        wh_free(request.bytes);
    }
    wh_stop_destroy(&stop);
}

/** If not all channels can be opened, fewer are used. If none can, the probe fails. */
static void test_uses_fewer_channels_if_some_fail(void **state) {
    (void)state;
    wh_stop stop;
    wh_string request = {0};
    wh_lane_end *end = NULL;
    must(wh_stop_init(&stop, &error));
    pairs three = pairs_of(3, WHERRY_SYSTEM);
    wh_lane_site site = site_of(&three.base, 4, &stop);
    must(probe(&site, 4, &request, &end));
    assert_int_equal(end->workers, 3);
    assert_memory_equal(request.bytes, "\1\3", 2);
    lane->close(end);
    for (int i = 0; i < 3; i++) {
        assert_true(was_closed(three.far[i]));
    }
    wh_free(request.bytes);

    pairs none = pairs_of(0, WHERRY_REFUSED);
    request = (wh_string){0};
    end = NULL;
    site = site_of(&none.base, 4, &stop);
    must_fail(WHERRY_REFUSED, error, probe(&site, 4, &request, &end));
    assert_null(end);

    pairs many = pairs_of(CHANNELS, WHERRY_INTERNAL);
    site = site_of(&many.base, 4, &stop);
    wh_stop_request(&stop);
    must_fail(WHERRY_CANCELLED, error, probe(&site, 4, &request, &end));
    assert_null(end);
    for (int i = 0; i < many.opened; i++) {
        assert_true(was_closed(many.far[i]));
    }
    wh_free(request.bytes);
    wh_stop_destroy(&stop);
}

/** Over a group without channels, both sides refuse the lane. */
static void test_refuses_groups_without_channels(void **state) {
    (void)state;
    static const wh_group_backend ops = {.name = "bare"};
    wh_group bare = {.ops = &ops, .size = 2};
    wh_stop stop;
    wh_string text = {0};
    wh_lane_end *end = NULL;
    must(wh_stop_init(&stop, &error));
    wh_lane_site site = site_of(&bare, 4, &stop);
    must_fail(WHERRY_UNSUPPORTED, error, lane->offer(&site, &text, &error));
    assert_non_null(strstr(error.message, "no sockets"));
    must_fail(WHERRY_UNSUPPORTED, error, probe(&site, 4, &text, &end));
    assert_null(end);
    pairs group = pairs_of(CHANNELS, WHERRY_INTERNAL);
    site = site_of(&group.base, 4, &stop);
    must_fail(WHERRY_MALFORMED, error, probe(&site, 0, &text, &end));
    assert_int_equal(group.opened, 0);
    wh_free(text.bytes);
    wh_stop_destroy(&stop);
}

/** A group with three open channels. near[i] is the lane's end of each. */
static pairs open_three(wh_socket near[3]) {
    pairs group = pairs_of(CHANNELS, WHERRY_INTERNAL);
    for (int i = 0; i < 3; i++) {
        must(connect_pair(&group.base, 1, TAG, wh_deadline_never(), NULL, near + i, &error));
    }
    return group;
}

/** accept is ready once all its channels have arrived. It takes those and leaves the others. */
static void test_accept_waits_for_all_channels(void **state) {
    (void)state;
    wh_stop stop;
    wh_socket near[3];
    must(wh_stop_init(&stop, &error));
    pairs group = open_three(near);
    wh_lane_site site = site_of(&group.base, 4, &stop);
    wh_lane_end *end = NULL;
    bool ready = true;
    site.channels = near;
    for (site.channel_count = 0; site.channel_count < 2; site.channel_count++) {
        must(lane->accept(&site, "\1\2", 2, &ready, &end, &error));
        assert_false(ready);
        assert_null(end);
    }
    site.channel_count = 3;
    must_fail(WHERRY_MALFORMED, error, lane->accept(&site, "\1\0", 2, &ready, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&site, "\1\5", 2, &ready, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&site, "\3\1", 2, &ready, &end, &error));
    must_fail(WHERRY_MALFORMED, error, lane->accept(&site, "\2\377abcdefg", 9, &ready, &end, &error));
    assert_null(end);
    must(lane->accept(&site, "\1\2", 2, &ready, &end, &error));
    assert_true(ready);
    assert_int_equal(end->workers, 2);
    lane->close(end);
    assert_true(was_closed(group.far[0]) && was_closed(group.far[1]) && !was_closed(group.far[2]));
    wh_socket_close(&near[2]);
    wh_stop_destroy(&stop);
}

/** accept does not take a channel that the receiver has closed because it did not open in time. */
static void test_accept_leaves_closed_channels(void **state) {
    (void)state;
    wh_stop stop;
    wh_socket near[3];
    must(wh_stop_init(&stop, &error));
    pairs group = open_three(near);
    wh_lane_site site = site_of(&group.base, 4, &stop);
    wh_lane_end *end = NULL;
    bool ready = true;
    close(group.far[0]);
    site.channels = near;
    site.channel_count = 2;
    must(lane->accept(&site, "\1\2", 2, &ready, &end, &error));
    assert_false(ready);
    site.channel_count = 3;
    must(lane->accept(&site, "\1\2", 2, &ready, &end, &error));
    assert_true(ready);
    assert_true(near[0].fd < 0 && near[1].fd < 0 && near[2].fd >= 0);
    lane->close(end);
    assert_true(was_closed(group.far[1]) && was_closed(group.far[2]));
    wh_socket_close(&near[2]);
    wh_stop_destroy(&stop);
}

/**
 * Each allocation fails in turn. The result is an error, nothing leaks, and the caller keeps the
 * source's channels.
 */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    for (int accepts = 0; accepts < 2; accepts++) {
        wherry_status status = WHERRY_NO_MEMORY;
        for (uint64_t fail = 1; status != WHERRY_OK; fail++) {
            wh_stop stop;
            counting count;
            wh_socket near[2];
            must(wh_stop_init(&stop, &error));
            pairs group = pairs_of(CHANNELS, WHERRY_INTERNAL);
            wh_lane_site site = site_of(&group.base, 2, &stop);
            wh_string request = {0};
            wh_lane_end *end = NULL;
            bool ready = false;
            for (int i = 0; accepts && i < 2; i++) {
                must(connect_pair(&group.base, 1, TAG, wh_deadline_never(), NULL, near + i, &error));
            }
            site.channels = near;
            site.channel_count = 2;
            counting_begin(&count);
            count.fail = fail;
            status = accepts ? lane->accept(&site, "\1\2", 2, &ready, &end, &error) : probe(&site, 2, &request, &end);
            assert_true(status == WHERRY_OK || (status == WHERRY_NO_MEMORY && error.status == status && !end));
            lane->close(end);
            wh_free(request.bytes);
            assert_int_equal(count.held, 0);
            wherry_allocator_set(NULL);
            for (int i = 0; i < group.opened; i++) {
                assert_true(was_closed(group.far[i]) == (!accepts || status == WHERRY_OK));
            }
            for (int i = 0; accepts && status != WHERRY_OK && i < 2; i++) {
                wh_socket_close(&near[i]);
            }
            wh_stop_destroy(&stop);
            assert_true(fail < 50);
        }
    }
}

/** A source that pushes to a receiver played by the test. */
typedef struct source {
    pairs group;
    wh_lane_site site;
    wh_stop stop;
    wh_lane_end *end;
    uint64_t next;
    uint8_t *memory;
} source;

static bool next_chunk(void *context, uint64_t *chunk_p) {
    source *s = context;
    *chunk_p = s->next++;
    return *chunk_p < CHUNKS;
}

static wherry_status gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *problem) {
    source *s = context;
    (void)chunk, (void)problem;
    wh_segments_clear(segments);
    return wh_segments_add(segments, s->memory, CHUNK) ? WHERRY_OK : WHERRY_NO_MEMORY;
}

static void moved(void *context, uint64_t bytes) {
    (void)context, (void)bytes;
}

static void open_source(source *s) {
    wh_socket near;
    bool ready = false;
    *s = (source){.group = pairs_of(1, WHERRY_INTERNAL), .memory = calloc(1, CHUNK)};
    must(wh_stop_init(&s->stop, &error));
    s->site = site_of(&s->group.base, 1, &s->stop);
    must(connect_pair(&s->group.base, 1, TAG, wh_deadline_never(), NULL, &near, &error));
    s->site.channels = &near;
    s->site.channel_count = 1;
    must(lane->accept(&s->site, "\1\1", 2, &ready, &s->end, &error));
    assert_true(ready);
    assert_int_equal(s->end->workers, 1);
}

static void close_source(source *s) {
    lane->close(s->end);
    close(s->group.far[0]);
    wh_stop_destroy(&s->stop);
    free(s->memory);
}

static wherry_status push(source *s) {
    wh_feed feed = {.context = s, .next = next_chunk, .gather = gather, .moved = moved};
    return lane->push(s->end, 0, &feed, &error);
}

/** A receiver that reads nothing, and one that closes its end. */
static void test_push_fails_if_the_receiver_reads_nothing(void **state) {
    (void)state;
    source s;
    open_source(&s);
    s.site.no_progress_ms = SHORT_MS;
    must_fail(WHERRY_TIMED_OUT, error, push(&s));
    assert_non_null(strstr(error.message, "timed out"));
    assert_int_equal(error.rank, 1);
    close_source(&s);

    open_source(&s);
    shutdown(s.group.far[0], SHUT_RDWR);
    must_fail(WHERRY_PEER_LOST, error, push(&s));
    assert_int_equal(error.rank, 1);
    close_source(&s);
}

/** If the feed ends because of a stop, the round fails. */
static void test_stopped_feed_fails_the_round(void **state) {
    (void)state;
    source s;
    open_source(&s);
    s.next = CHUNKS;
    wh_stop_request(&s.stop);
    must_fail(WHERRY_CANCELLED, error, push(&s));
    close_source(&s);
}

/**
 * Reads a little now and then. Such a receiver is slow but not lost: the limit counts from the last
 * byte.
 */
static void *sip(void *context) {
    const int *channel = context;
    char *bytes = malloc(CHUNK);
    for (size_t left = (size_t)CHUNK + 32; left;) {
        usleep(1000 * SHORT_MS / 3);
        ssize_t got = recv(*channel, bytes, left < CHUNK / 16 ? left : CHUNK / 16, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            break;
        }
        left -= got > 0 ? (size_t)got : 0;
    }
    free(bytes);
    return NULL;
}

static void test_slow_receiver_is_not_lost(void **state) {
    (void)state;
    pthread_t thread;
    source s;
    open_source(&s);
    s.next = CHUNKS - 1;
    s.site.no_progress_ms = SHORT_MS * 2;
    assert_int_equal(pthread_create(&thread, NULL, sip, s.group.far), 0);
    uint64_t begun = wh_clock_now();
    must(push(&s));
    assert_true(wh_clock_now() - begun > 2 * SHORT_MS * UINT64_C(1000000));
    pthread_join(thread, NULL);
    close_source(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_as_many_channels_as_both_sides_have_threads),
        cmocka_unit_test(test_uses_fewer_channels_if_some_fail),
        cmocka_unit_test(test_refuses_groups_without_channels),
        cmocka_unit_test(test_accept_waits_for_all_channels),
        cmocka_unit_test(test_accept_leaves_closed_channels),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_push_fails_if_the_receiver_reads_nothing),
        cmocka_unit_test(test_stopped_feed_fails_the_round),
        cmocka_unit_test(test_slow_receiver_is_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
