/*
 * Messages that wait until the peer takes them: their order, their limits, and messages that are
 * sent in parts.
 */
#include "support/build.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "group/backlog.h"
#include "support/local_group.h"
#include "transfer/message.h"

static wherry_error error;

enum { SENT_MAX = 8, PEER = 1 };

/** A group whose peer takes a message only while `verdict` is WHERRY_OK. */
typedef struct stubborn {
    wh_local_hub *hub;
    wh_group *group;
    const wh_group_backend *former;
    wh_group_backend ops;
    wh_backlog backlog;
} stubborn;

static wherry_status verdict;
static uint64_t sent[SENT_MAX]; /* The `bytes` of each PROGRESS message that the peer took. */
static size_t sent_count;

static wherry_status take_or_not(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                 wh_deadline deadline, const wh_stop *stop, wherry_error *e) {
    wh_note note;
    (void)group, (void)tag, (void)deadline, (void)stop;
    assert_int_equal(rank, PEER);
    if (verdict != WHERRY_OK) {
        return wh_fail(e, verdict, "not now");
    }
    must(wh_note_decode(bytes, size, &note, &error));
    sent[sent_count++] = note.bytes;
    return WHERRY_OK;
}

static void stubborn_open(stubborn *s) {
    *s = (stubborn){.hub = wh_local_hub_create(2)};
    s->group = wh_local_join(s->hub, 0);
    s->former = s->group->ops;
    s->ops = *s->former;
    s->ops.send = take_or_not;
    s->group->ops = &s->ops;
    s->backlog = (wh_backlog){
        .group = s->group,
        .rank = PEER,
        .tag = 5,
        .stop.event = -1,
        .deadline = wh_deadline_never(),
        .parts_ms = 1000,
    };
    sent_count = 0;
}

static void stubborn_close(stubborn *s) {
    wh_backlog_clear(&s->backlog);
    assert_int_equal(s->backlog.count, 0);
    assert_int_equal(s->backlog.bytes, 0);
    s->group->ops = s->former;
    wh_group_destroy(s->group);
    wh_local_hub_release(s->hub);
}

static wherry_status tell(stubborn *s, const wh_note *note) {
    wh_string message = {0};
    wh_note_encode(note, &message);
    return wh_backlog_send(&s->backlog, &message, &error);
}

static wherry_status flush(stubborn *s) {
    return wh_backlog_flush(&s->backlog, &error);
}

static void test_messages_wait_in_their_order(void **state) {
    (void)state;
    static stubborn s;
    stubborn_open(&s);
    wh_note note = {.type = WH_PROGRESS};
    verdict = WHERRY_OK;
    must(tell(&s, &note)); /* This message is sent at once. */
    assert_int_equal(sent_count, 1);
    verdict = WHERRY_TIMED_OUT;
    for (note.bytes = 1; note.bytes < 4; note.bytes++) {
        must(tell(&s, &note));
    }
    must(flush(&s)); /* The peer still takes no message. */
    assert_int_equal(s.backlog.count, 3);
    verdict = WHERRY_OK;
    must(tell(&s, &note)); /* This message is queued behind those that wait. */
    assert_int_equal(sent_count, 1);
    must(flush(&s));
    assert_int_equal(s.backlog.count, 0);
    assert_int_equal(sent_count, 5);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(sent[i], i);
    }
    verdict = WHERRY_TIMED_OUT;
    must(tell(&s, &note));
    verdict = WHERRY_PEER_LOST;
    must_fail(WHERRY_PEER_LOST, error, flush(&s));
    stubborn_close(&s);
}

/** A peer that takes nothing costs a bounded amount of memory. */
static void test_too_many_messages_wait(void **state) {
    (void)state;
    static stubborn s;
    size_t size = 24 << 20;
    void *digests = calloc(1, size);
    stubborn_open(&s);
    wh_note note = {.type = WH_DIGESTS, .digests = {digests, size}};
    verdict = WHERRY_TIMED_OUT;
    must(tell(&s, &note));
    must(tell(&s, &note));
    must_fail(WHERRY_TIMED_OUT, error, tell(&s, &note));
    assert_non_null(strstr(error.message, "takes no messages"));
    assert_int_equal(s.backlog.count, 2);
    stubborn_close(&s);
    free(digests);
}

/**
 * The sender waits for a message that is sent in parts, but the message keeps its place behind
 * others.
 */
static void test_a_long_message_waits_behind_others(void **state) {
    (void)state;
    static stubborn s;
    static char digests[128 << 10];
    stubborn_open(&s);
    s.ops.connect = NULL;
    wh_note brief = {.type = WH_PROGRESS, .bytes = 7};
    wh_note lengthy = {.type = WH_DIGESTS, .digests = {digests, sizeof(digests)}};
    verdict = WHERRY_TIMED_OUT;
    must_fail(WHERRY_TIMED_OUT, error, tell(&s, &lengthy));
    assert_int_equal(s.backlog.count, 0);
    must(tell(&s, &brief));
    must(tell(&s, &lengthy));
    assert_int_equal(s.backlog.count, 2);
    verdict = WHERRY_OK;
    must(flush(&s));
    assert_int_equal(sent_count, 2);
    assert_int_equal(sent[0], 7);
    must(tell(&s, &brief));
    must(tell(&s, &lengthy));
    assert_int_equal(sent_count, 4);
    stubborn_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_wait_in_their_order),
        cmocka_unit_test(test_too_many_messages_wait),
        cmocka_unit_test(test_a_long_message_waits_behind_others),
    };
    return cmocka_run_group_tests_name("backlog", tests, NULL, NULL);
}
