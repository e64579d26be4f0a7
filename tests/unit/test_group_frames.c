/* The frames of a callback group, blocks that are not frames, and tables that fail. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "group/callback/callback.h"
#include "group/callback/callback_internal.h"
#include "group/mailbox.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/callback_pair.h"
#include "support/counting_allocator.h"

enum { SOON_MS = 10000, SHORT_MS = 60 };

static wherry_error error;

static wh_deadline soon(void) {
    return wh_deadline_in_ms(SOON_MS);
}

static void expect_not_a_frame(const uint8_t *good, size_t size, size_t at, uint8_t value) {
    uint8_t block[WH_CALLBACK_HEADER_BYTES + 8];
    wh_callback_frame frame;
    memcpy(block, good, size);
    block[at] = value;
    assert_false(wh_callback_frame_read(block, size, &frame));
}

static void test_frames_are_written_and_read(void **state) {
    (void)state;
    uint8_t block[WH_CALLBACK_HEADER_BYTES + 3] = {0};
    wh_callback_frame written = {
        .kind = WH_CALLBACK_DATA, .from = 7, .to = UINT64_MAX, .tag = 1, .total = 10, .offset = 7};
    wh_callback_frame read;
    wh_callback_frame_write(&written, block);
    assert_true(wh_callback_frame_read(block, sizeof(block), &read));
    assert_true(read.kind == WH_CALLBACK_DATA && read.from == 7 && read.to == UINT64_MAX && read.tag == 1);
    assert_true(read.total == 10 && read.offset == 7 && read.size == 3 &&
                read.bytes == block + WH_CALLBACK_HEADER_BYTES);
    for (size_t size = 0; size <= WH_CALLBACK_HEADER_BYTES; size++) {
        assert_false(wh_callback_frame_read(block, size, &read));
    }
    expect_not_a_frame(block, sizeof(block), 0, 'X');
    expect_not_a_frame(block, sizeof(block), 4, 2);
    expect_not_a_frame(block, sizeof(block), 5, 5);
    expect_not_a_frame(block, sizeof(block), 5, WH_CALLBACK_CREDIT);
    expect_not_a_frame(block, sizeof(block), 5, WH_CALLBACK_HELLO);
    expect_not_a_frame(block, sizeof(block), 7, 1);
    expect_not_a_frame(block, sizeof(block), 15, 0);
    expect_not_a_frame(block, sizeof(block), 39, 9);
    expect_not_a_frame(block, sizeof(block), 32, 0x80);
    expect_not_a_frame(block, sizeof(block), 40, 0xFF);
    expect_not_a_frame(block, sizeof(block), 47, 8);
}

static wh_assembly_result add(wh_assembly *assembly, uint64_t tag, uint64_t total, uint64_t offset, const char *text) {
    wh_callback_frame frame = {.tag = tag, .total = total, .offset = offset};
    frame.bytes = (const uint8_t *)text;
    frame.size = strlen(text);
    return wh_assembly_add(assembly, &frame);
}

static void test_messages_are_assembled_from_frames(void **state) {
    (void)state;
    wh_assembly a = {0};
    assert_int_equal(add(&a, 1, 6, 3, "def"), WH_ASSEMBLY_STRAY);
    assert_int_equal(add(&a, 1, 6, 0, "abc"), WH_ASSEMBLY_MORE);
    assert_int_equal(add(&a, 1, 6, 3, "def"), WH_ASSEMBLY_WHOLE);
    assert_memory_equal(a.bytes, "abcdef", 6);
    assert_int_equal(add(&a, 1, 0, 0, ""), WH_ASSEMBLY_WHOLE);
    assert_int_equal(add(&a, 1, 6, 0, "abc"), WH_ASSEMBLY_MORE);
    assert_int_equal(add(&a, 2, 6, 3, "def"), WH_ASSEMBLY_STRAY);
    assert_int_equal(add(&a, 1, 6, 3, "def"), WH_ASSEMBLY_STRAY);
    assert_int_equal(add(&a, 1, 6, 0, "abc"), WH_ASSEMBLY_MORE);
    assert_int_equal(add(&a, 1, 7, 3, "def"), WH_ASSEMBLY_STRAY);
    assert_int_equal(add(&a, 1, 9, 0, "abc"), WH_ASSEMBLY_MORE);
    assert_int_equal(add(&a, 1, 9, 2, "def"), WH_ASSEMBLY_STRAY);
    assert_int_equal(add(&a, 1, 6, 0, "not this"), WH_ASSEMBLY_MORE);
    assert_int_equal(add(&a, 2, 2, 0, "ok"), WH_ASSEMBLY_WHOLE);
    assert_memory_equal(a.bytes, "ok", 2);
    counting count;
    wh_assembly_clear(&a);
    counting_begin(&count);
    assert_int_equal(add(&a, 1, WH_MESSAGE_MAX, 0, "a claim"), WH_ASSEMBLY_MORE);
    assert_true(count.last <= 64);
    count.fail = 1;
    assert_int_equal(add(&a, 1, WH_MESSAGE_MAX, 7, "more"), WH_ASSEMBLY_NO_MEMORY);
    wh_assembly_clear(&a);
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
}

static callback_pair open_pair(uint32_t flags) {
    callback_hub_options options = {.flags = flags, .max_block = 1024};
    return callback_pair_open(&options);
}

static void send_text(callback_pair *w, int32_t from, const char *text) {
    must(wh_group_send(w->groups[from], 1 - from, 1, text, strlen(text), soon(), &error));
}

static void expect_text(callback_pair *w, int32_t at, const char *text) {
    wh_message message;
    must(wh_group_receive(w->groups[at], 1 - at, 1, soon(), &message, &error));
    assert_int_equal(message.size, strlen(text));
    assert_memory_equal(message.bytes, text, message.size);
    wh_message_clear(&message);
}

static void expect_nothing(callback_pair *w, int32_t at) {
    wh_message message;
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_receive(w->groups[at], 1 - at, 1, wh_deadline_in_ms(SHORT_MS), &message, &error));
}

/** Sends messages both ways, so that both ranks know each other. */
static void meet(callback_pair *w) {
    send_text(w, 0, "hello");
    expect_text(w, 1, "hello");
    send_text(w, 1, "hello");
    expect_text(w, 0, "hello");
}

/** Sends a forged frame of rank 1 to rank 0. */
static void inject(callback_pair *w, const wh_callback_frame *frame, const char *bytes) {
    uint8_t block[WH_CALLBACK_HEADER_BYTES + 64];
    wh_callback_frame_write(frame, block);
    size_t size = WH_CALLBACK_HEADER_BYTES;
    while (*bytes) {
        block[size++] = (uint8_t)*bytes++;
    }
    callback_hub_inject(w->hub, 1, 0, block, size);
}

/** Makes the header of the last frame that a rank has sent, with the incarnations of both ranks. */
static wh_callback_frame last_frame(callback_pair *w, int32_t rank) {
    uint8_t block[CALLBACK_HUB_BLOCK_MAX];
    wh_callback_frame frame;
    assert_true(wh_callback_frame_read(block, callback_hub_last(w->hub, rank, block, sizeof(block)), &frame));
    return frame;
}

static void test_blocks_that_are_not_frames_are_ignored(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    static const char noise[] = "this is a message of somebody else, and longer than a header of a frame";
    meet(&w);
    callback_hub_inject(w.hub, 1, 0, noise, sizeof(noise));
    callback_hub_inject(w.hub, 1, 0, noise, 0);
    callback_hub_inject(w.hub, 0, 0, noise, sizeof(noise));
    callback_hub_inject(w.hub, -1, 0, noise, sizeof(noise));
    callback_hub_inject(w.hub, RANKS, 0, noise, sizeof(noise));
    wh_callback_frame frame = last_frame(&w, 1);
    frame.total = 8;
    frame.offset = 4;
    inject(&w, &frame, "rear");
    expect_nothing(&w, 0);
    send_text(&w, 1, "goes on");
    expect_text(&w, 0, "goes on");
    callback_pair_close(&w);
}

/** An incomplete message is dropped when the next one begins. */
static void test_incomplete_messages_are_dropped(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    meet(&w);
    wh_callback_frame frame = last_frame(&w, 1);
    frame.tag = 1;
    frame.total = 100;
    frame.offset = 0;
    inject(&w, &frame, "only this");
    send_text(&w, 1, "whole");
    expect_text(&w, 0, "whole");
    callback_pair_close(&w);
}

/** A frame that announces too long a message is ignored. */
static void test_frames_of_too_long_messages_are_ignored(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    meet(&w);
    wh_callback_frame frame = last_frame(&w, 1);
    frame.tag = 1;
    frame.total = WH_MESSAGE_MAX + 1;
    frame.offset = 0;
    inject(&w, &frame, "a claim");
    send_text(&w, 1, "whole");
    expect_text(&w, 0, "whole");
    callback_pair_close(&w);
}

/** Messages from or to a former incarnation are dropped. */
static void test_messages_of_former_incarnations_are_dropped(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    meet(&w);
    wh_callback_frame frame = last_frame(&w, 1);
    frame.tag = 1;
    frame.total = 5;
    frame.offset = 0;
    wh_callback_frame former = frame;
    former.from--;
    inject(&w, &former, "stale");
    former = frame;
    former.to--;
    inject(&w, &former, "stale");
    expect_nothing(&w, 0);
    inject(&w, &frame, "fresh");
    expect_text(&w, 0, "fresh");
    callback_pair_close(&w);
}

/** A rank learns that the other one has restarted, even if the restarted rank only waits. */
static void test_rank_learns_that_its_peer_restarted(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    wh_message message;
    meet(&w);
    callback_hub_break(w.hub, 0, WHERRY_SYSTEM, WHERRY_OK);
    wh_group *former = w.groups[0];
    w.groups[0] = callback_pair_join(w.hub, 0);
    callback_hub_break(w.hub, 0, WHERRY_OK, WHERRY_OK);
    send_text(&w, 1, "to the former one");
    expect_nothing(&w, 0);
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_receive(w.groups[1], WHERRY_ANY_RANK, 9, wh_deadline_in_ms(SHORT_MS), &message, &error));
    send_text(&w, 1, "to the new one");
    expect_text(&w, 0, "to the new one");
    wh_group_destroy(former);
    callback_pair_close(&w);
}

/** An incarnation that learns of a newer one of its own rank leaves the group. */
static void test_replaced_incarnation_leaves(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    wh_message message;
    meet(&w);
    wh_callback_frame frame = last_frame(&w, 1);
    frame.kind = WH_CALLBACK_HELLO;
    frame.to++;
    frame.tag = frame.total = frame.offset = 0;
    inject(&w, &frame, "");
    must_fail(WHERRY_CLOSED, error, wh_group_receive(w.groups[0], 1, 1, soon(), &message, &error));
    must_fail(WHERRY_CLOSED, error, wh_group_send(w.groups[0], 1, 1, "x", 1, soon(), &error));
    callback_pair_close(&w);
}

/** The newest incarnation answers a former one, so that it learns that it was replaced. */
static void test_replaced_incarnation_is_told(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    meet(&w);
    wh_callback_frame frame = last_frame(&w, 1);
    uint64_t present = frame.from;
    frame.from--;
    frame.kind = WH_CALLBACK_HELLO;
    frame.tag = frame.total = frame.offset = 0;
    send_text(&w, 0, "the last frame so far");
    assert_int_equal(last_frame(&w, 0).kind, WH_CALLBACK_DATA);
    inject(&w, &frame, "");
    expect_nothing(&w, 0);
    wh_callback_frame answer = last_frame(&w, 0);
    assert_int_equal(answer.kind, WH_CALLBACK_HELLO);
    assert_true(answer.to == present);
    callback_pair_close(&w);
}

/**
 * Without WHERRY_GROUP_OPS_DEATH, deaths are not reported. A call that waits for a dead rank ends
 * at its deadline.
 */
static void test_unreported_death_ends_at_the_deadline(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    meet(&w);
    callback_hub_kill(w.hub, 1);
    uint64_t begin = wh_clock_now();
    expect_nothing(&w, 0);
    uint64_t waited = (wh_clock_now() - begin) / 1000000;
    assert_true(waited >= SHORT_MS && waited < SOON_MS / 2);
    assert_true(wh_mailbox_incarnation(w.groups[0]->mailbox, 1) != 0);
    assert_false(wh_group_can(w.groups[0], WH_GROUP_DEATH));
    callback_pair_close(&w);
}

static void test_reported_death_is_a_loss(void **state) {
    (void)state;
    callback_pair w = open_pair(WHERRY_GROUP_OPS_DEATH);
    wh_message message;
    meet(&w);
    assert_true(wh_group_can(w.groups[0], WH_GROUP_DEATH));
    send_text(&w, 1, "last words");
    callback_hub_kill(w.hub, 1);
    expect_text(&w, 0, "last words");
    must_fail(WHERRY_PEER_LOST, error, wh_group_receive(w.groups[0], 1, 1, soon(), &message, &error));
    assert_int_equal(error.rank, 1);
    must_fail(WHERRY_PEER_LOST, error, wh_group_send(w.groups[0], 1, 1, "x", 1, soon(), &error));
    callback_pair_close(&w);
}

static void test_failed_send_is_reported(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    wh_message message;
    meet(&w);
    callback_hub_break(w.hub, 0, WHERRY_SYSTEM, WHERRY_OK);
    must_fail(WHERRY_SYSTEM, error, wh_group_send(w.groups[0], 1, 1, "x", 1, soon(), &error));
    assert_int_equal(error.rank, 1);
    assert_non_null(strstr(error.message, "callback_hub"));
    callback_hub_break(w.hub, 0, (wherry_status)17, WHERRY_OK);
    must_fail(WHERRY_INTERNAL, error, wh_group_send(w.groups[0], 1, 1, "x", 1, soon(), &error));
    callback_hub_break(w.hub, 0, WHERRY_TIMED_OUT, WHERRY_OK);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_send(w.groups[0], 1, 1, "x", 1, wh_deadline_in_ms(SHORT_MS), &error));
    assert_non_null(strstr(error.message, "timed out"));
    callback_hub_break(w.hub, 0, WHERRY_PEER_LOST, WHERRY_OK);
    must_fail(WHERRY_PEER_LOST, error, wh_group_send(w.groups[0], 1, 1, "x", 1, soon(), &error));
    must_fail(WHERRY_PEER_LOST, error, wh_group_receive(w.groups[0], 1, 1, soon(), &message, &error));
    callback_hub_break(w.hub, 0, WHERRY_OK, WHERRY_OK);
    send_text(&w, 0, "mended");
    expect_text(&w, 1, "mended");
    callback_pair_close(&w);
}

static void test_failed_receive_is_reported(void **state) {
    (void)state;
    static const wherry_status answers[] = {WHERRY_SYSTEM, WHERRY_PEER_LOST, WHERRY_CLOSED, (wherry_status)17};
    for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
        callback_pair w = open_pair(0);
        wh_message message;
        meet(&w);
        callback_hub_break(w.hub, 0, WHERRY_OK, WHERRY_TIMED_OUT);
        expect_nothing(&w, 0);
        callback_hub_break(w.hub, 0, WHERRY_OK, answers[i]);
        must_fail(WHERRY_CLOSED, error, wh_group_receive(w.groups[0], 1, 1, soon(), &message, &error));
        callback_pair_close(&w);
    }
}

static void count_message(void *context, wh_message *message) {
    ++*(int *)context;
    wh_message_clear(message);
}

/**
 * A send that cannot proceed reads messages but calls no service, because its caller may hold a
 * lock that the service takes. A waiting receive calls services.
 */
static void test_send_calls_no_service(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    wh_message message;
    int served = 0;
    meet(&w);
    must(wh_service_open(w.groups[0], 9, count_message, &served, &error));
    must(wh_group_send(w.groups[1], 0, 9, "x", 1, soon(), &error));
    callback_hub_break(w.hub, 0, WHERRY_TIMED_OUT, WHERRY_OK);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_send(w.groups[0], 1, 1, "x", 1, wh_deadline_in_ms(SHORT_MS), &error));
    assert_int_equal(served, 0);
    callback_hub_break(w.hub, 0, WHERRY_OK, WHERRY_SYSTEM);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(w.groups[0], 1, 1, wh_deadline_in_ms(0), &message, &error));
    assert_int_equal(served, 1);
    callback_hub_break(w.hub, 0, WHERRY_OK, WHERRY_OK);
    wh_service_close(w.groups[0], 9);
    callback_pair_close(&w);
}

/** A rank that sends a long message and then receives one. */
typedef struct talker {
    wh_group *group;
    size_t size;
    int failures;
} talker;

static void *talk(void *context) {
    talker *t = context;
    int32_t peer = 1 - t->group->rank;
    unsigned char *bytes = malloc(t->size);
    wh_message message = {.size = 0};
    memset(bytes, 'a' + t->group->rank, t->size);
    t->failures += wh_group_send(t->group, peer, 1, bytes, t->size, soon(), NULL) != WHERRY_OK;
    t->failures += wh_group_receive(t->group, peer, 1, soon(), &message, NULL) != WHERRY_OK;
    memset(bytes, 'a' + peer, t->size);
    t->failures += message.size != t->size || memcmp(message.bytes, bytes, t->size) != 0;
    wh_message_clear(&message);
    free(bytes);
    return NULL;
}

/**
 * Two ranks send each other far more than the sockets hold, and receive afterwards. They must not
 * deadlock.
 */
static void test_ranks_that_both_send_first_do_not_deadlock(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    talker talkers[RANKS];
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; i++) {
        talkers[i] = (talker){w.groups[i], 4 << 20, 0};
        assert_int_equal(pthread_create(threads + i, NULL, talk, talkers + i), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(talkers[i].failures, 0);
    }
    callback_pair_close(&w);
}

/**
 * If the peer does not read, sending a message longer than the socket's buffer times out. Its part
 * is never delivered.
 */
static void test_send_times_out_if_the_peer_does_not_read(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    size_t size = 4 << 20;
    char *bytes = calloc(1, size);
    meet(&w);
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_send(w.groups[0], 1, 1, bytes, size, wh_deadline_in_ms(SHORT_MS), &error));
    assert_int_equal(error.rank, 1);
    free(bytes);
    expect_nothing(&w, 1);
    send_text(&w, 0, "the next");
    expect_text(&w, 1, "the next");
    callback_pair_close(&w);
}

/** Returns true once the deadline has passed. */
static bool is_over(void *context) {
    return wh_deadline_passed(*(wh_deadline *)context);
}

typedef struct stopped_send {
    wh_group *group;
    wh_stop stop;
    size_t size;
    wherry_status status;
    pthread_t thread;
} stopped_send;

static void *send_until_stopped(void *context) {
    stopped_send *s = context;
    char *bytes = calloc(1, s->size);
    s->status = wh_group_send_until(s->group, 1, 1, bytes, s->size, soon(), &s->stop, NULL);
    free(bytes);
    return NULL;
}

/**
 * The peer does not read, and two threads send: one is in the middle of its message, the other
 * waits for it. A stop ends both, by a request or by its question. Their parts are never delivered.
 */
static void test_stop_ends_blocked_sends(void **state) {
    (void)state;
    for (int asks = 0; asks < 2; asks++) {
        callback_pair w = open_pair(0);
        wh_deadline moment = wh_deadline_in_ms(SHORT_MS);
        stopped_send sends[2];
        meet(&w);
        for (int i = 0; i < 2; i++) {
            sends[i] = (stopped_send){.group = w.groups[0], .stop.event = -1, .size = 4 << 20};
            wh_stop_set_question(&sends[i].stop, asks ? is_over : NULL, &moment);
            assert_int_equal(pthread_create(&sends[i].thread, NULL, send_until_stopped, sends + i), 0);
            wh_await_asleep(getpid());
        }
        /* stop the waiting thread first, so that the end of the other one does not release it */
        for (int i = 1; i >= 0; i--) {
            if (!asks) {
                wh_stop_request(&sends[i].stop);
            }
            pthread_join(sends[i].thread, NULL);
            assert_int_equal(sends[i].status, WHERRY_CANCELLED);
        }
        expect_nothing(&w, 1);
        send_text(&w, 0, "the next");
        expect_text(&w, 1, "the next");
        callback_pair_close(&w);
    }
}

static wherry_status (*hub_receive)(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                    wherry_error *why);
static atomic_uint reads;
static atomic_uint open_reads; /* Number of reads by a thread that does not block signals. */

static wherry_status look_and_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                      wherry_error *why) {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    atomic_fetch_add(&open_reads, !sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGALRM));
    atomic_fetch_add(&reads, 1);
    return hub_receive(context, timeout_ms, deliver, sink, why);
}

/** The background reader blocks the program's signals. */
static void test_background_reader_blocks_signals(void **state) {
    (void)state;
    callback_hub_options options = {.flags = CALLBACK_HUB_ALL | WHERRY_GROUP_OPS_BACKGROUND};
    callback_hub *hub = callback_hub_open(RANKS, &options);
    wherry_group_ops ops;
    wh_group *group;
    void *context = callback_hub_member(hub, 0, &ops);
    hub_receive = ops.receive;
    ops.receive = look_and_receive;
    must(wh_callback_create(&ops, context, &group, &error));
    for (wh_deadline end = soon(); !atomic_load(&reads) && !wh_deadline_passed(end);) {
        usleep(1000);
    }
    wh_group_destroy(group);
    callback_hub_close(hub);
    assert_true(atomic_load(&reads) > 0);
    assert_int_equal(atomic_load(&open_reads), 0);
}

/**
 * Each allocation fails in turn while a message goes back and forth. The result is an error or a
 * lost rank, and nothing leaks.
 */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    bool through = false;
    for (uint64_t fail = 1; !through; fail++) {
        static const char text[] = "of two frames at least";
        char bytes[1500] = {0};
        counting count;
        counting_begin(&count);
        callback_pair w = open_pair(0);
        wh_message message;
        meet(&w);
        memcpy(bytes, text, sizeof(text));
        count.calls = 0;
        count.fail = fail;
        wherry_status status = wh_group_send(w.groups[0], 1, 1, bytes, sizeof(bytes), soon(), &error);
        assert_true(status == WHERRY_OK || status == WHERRY_NO_MEMORY);
        if (status == WHERRY_OK) {
            status = wh_group_receive(w.groups[1], 0, 1, soon(), &message, &error);
            assert_true(status == WHERRY_OK || status == WHERRY_PEER_LOST);
            through = status == WHERRY_OK;
        }
        if (through) {
            assert_memory_equal(message.bytes, bytes, sizeof(bytes));
            wh_message_clear(&message);
            assert_true(fail > 3);
        }
        count.fail = 0;
        callback_pair_close(&w);
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_are_written_and_read),
        cmocka_unit_test(test_messages_are_assembled_from_frames),
        cmocka_unit_test(test_blocks_that_are_not_frames_are_ignored),
        cmocka_unit_test(test_incomplete_messages_are_dropped),
        cmocka_unit_test(test_frames_of_too_long_messages_are_ignored),
        cmocka_unit_test(test_messages_of_former_incarnations_are_dropped),
        cmocka_unit_test(test_rank_learns_that_its_peer_restarted),
        cmocka_unit_test(test_replaced_incarnation_leaves),
        cmocka_unit_test(test_replaced_incarnation_is_told),
        cmocka_unit_test(test_unreported_death_ends_at_the_deadline),
        cmocka_unit_test(test_reported_death_is_a_loss),
        cmocka_unit_test(test_failed_send_is_reported),
        cmocka_unit_test(test_failed_receive_is_reported),
        cmocka_unit_test(test_send_calls_no_service),
        cmocka_unit_test(test_ranks_that_both_send_first_do_not_deadlock),
        cmocka_unit_test(test_send_times_out_if_the_peer_does_not_read),
        cmocka_unit_test(test_stop_ends_blocked_sends),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_background_reader_blocks_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
