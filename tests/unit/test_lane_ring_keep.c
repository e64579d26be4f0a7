/* The memory that a source keeps: whose it is, when it is used again, and when it is given back. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "group/mailbox.h"
#include "lane/lanes.h"
#include "lane/ring/ring_internal.h"
#include "support/build.h"
#include "support/descriptors.h"

enum { ALONE = 1, TWO = 2, RANKS = 9 };

static wh_stop stop;
static wherry_error error;
static wh_group group;
static wh_group other;

/* Both ends of a lane from this process to a rank. */
typedef struct pair {
    wh_lane_site site;
    wh_lane_end *receiver;
    wh_lane_end *source;
    ino_t memory; /* which the source has handed over */
} pair;

/** As far as the source goes by itself: it has handed the memory over. */
static void pair_begin(pair *p, wh_group *of, int32_t rank, uint32_t workers) {
    wh_string offer = {0};
    wh_string request = {0};
    bool assist = true;
    bool ready = false;
    *p = (pair){.site = {.group = of, .peer = rank, .threads = workers, .stop = &stop, .no_progress_ms = 5000}};
    p->site.deadline = wh_deadline_never();
    must(wh_lane_ring.offer(&p->site, &offer, &error));
    must(wh_lane_ring.probe(&p->site, offer.bytes, offer.size, &request, &assist, &p->receiver, &error));
    must(wh_lane_ring.accept(&p->site, request.bytes, request.size, &ready, &p->source, &error));
    struct stat about;
    assert_int_equal(fstat(wh_ring_end_of(p->source)->memory, &about), 0);
    p->memory = about.st_ino;
    wh_free(offer.bytes);
    wh_free(request.bytes);
}

static void pair_open(pair *p, wh_group *of, int32_t rank, uint32_t workers) {
    pair_begin(p, of, rank, workers);
    must(wh_ring_enter(wh_ring_end_of(p->receiver), &error));
    must(wh_ring_admit(wh_ring_end_of(p->source), &error));
}

static void pair_close(pair *p) {
    wh_lane_ring.close(p->source);
    wh_lane_ring.close(p->receiver);
}

/** A transfer, as far as the memory sees it: the frames that went through it are counted at both sides. @return which memory it had. */
static ino_t transfer(wh_group *of, int32_t rank, uint32_t workers) {
    pair p;
    pair_open(&p, of, rank, workers);
    wh_ring_shared *shared = wh_ring_end_of(p.source)->shared;
    for (uint32_t i = 0; i < workers; i++) {
        assert_int_equal(atomic_load(&shared->rings[i].head), 0);
        assert_int_equal(atomic_load(&shared->rings[i].tail), 0);
        atomic_store(&shared->rings[i].head, 7);
        atomic_store(&shared->rings[i].tail, 7);
    }
    assert_int_equal(atomic_load(&shared->push_closed) + atomic_load(&shared->pull_closed), 0);
    memset(wh_ring_slot(wh_ring_end_of(p.source), workers - 1, 0), 'x', 100);
    pair_close(&p);
    return p.memory;
}

static void test_used_again(void **state) {
    (void)state;
    int before = open_descriptors();
    ino_t first = transfer(&group, 1, TWO);
    assert_int_equal(transfer(&group, 1, TWO), first);
    assert_int_equal(transfer(&group, 1, TWO), first);
    assert_int_not_equal(transfer(&group, 2, TWO), first);
    assert_int_not_equal(transfer(&other, 1, TWO), first);
    assert_int_not_equal(transfer(&group, 1, ALONE), first);
    assert_int_equal(transfer(&group, 1, TWO), first);
    wh_lane_ring.forget(NULL, -1, false);
    assert_int_equal(open_descriptors(), before + 4);
    wh_lane_ring.forget(&group, -1, false);
    wh_lane_ring.forget(&other, -1, false);
    assert_int_equal(open_descriptors(), before);
}

/* Two transfers to one rank at once have a memory each. */
static void test_one_each(void **state) {
    (void)state;
    pair one;
    pair two;
    ino_t kept = transfer(&group, 1, TWO);
    pair_open(&one, &group, 1, TWO);
    pair_open(&two, &group, 1, TWO);
    assert_int_equal(one.memory, kept);
    assert_int_not_equal(two.memory, kept);
    pair_close(&one);
    pair_close(&two);
    wh_lane_ring.forget(&group, 1, false);
}

/* A receiver that has not closed its end may still write there. */
static void test_receiver_still_there(void **state) {
    (void)state;
    pair p;
    pair_open(&p, &group, 1, TWO);
    wh_lane_ring.close(p.source);
    assert_int_not_equal(transfer(&group, 1, TWO), p.memory);
    wh_lane_ring.close(p.receiver);
    wh_lane_ring.forget(&group, -1, false);
}

/* Whoever got the memory and did not prove who it is has it still, whatever it says about its end: it must not see the next transfer. */
static void test_stranger(void **state) {
    (void)state;
    int before = open_descriptors();
    pair p;
    pair_begin(&p, &group, 1, TWO);
    wh_ring_end *source = wh_ring_end_of(p.source);
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    atomic_store(&source->shared->answer[0], 7);
    must_fail(WHERRY_REFUSED, error, wh_ring_admit(source, &error));
    pair_close(&p);
    assert_int_equal(open_descriptors(), before);
    assert_int_not_equal(transfer(&group, 1, TWO), p.memory);
    wh_lane_ring.forget(&group, -1, false);
}

static bool no_chunk(void *context, uint64_t *chunk_p) {
    (void)context, (void)chunk_p;
    return false;
}

/* What a transfer that failed has left behind is nobody's. */
static void test_failed(void **state) {
    (void)state;
    int before = open_descriptors();
    const wh_feed nothing = {.next = no_chunk};
    pair p;
    pair_begin(&p, &group, 1, TWO);
    must(wh_ring_enter(wh_ring_end_of(p.receiver), &error));
    must(wh_lane_ring.push(p.source, 0, &nothing, &error));
    wh_stop_request(&stop);
    must_fail(WHERRY_CANCELLED, error, wh_lane_ring.push(p.source, 1, &nothing, &error));
    wh_stop_destroy(&stop);
    must(wh_stop_init(&stop, &error));
    pair_close(&p);
    assert_int_equal(open_descriptors(), before);
}

static void test_forgotten(void **state) {
    (void)state;
    int before = open_descriptors();
    ino_t one = transfer(&group, 1, TWO);
    ino_t two = transfer(&group, 2, TWO);
    wh_lane_ring.forget(&group, 1, true);
    assert_int_equal(open_descriptors(), before + 1);
    assert_int_equal(transfer(&group, 2, TWO), two);
    assert_int_not_equal(transfer(&group, 1, TWO), one);
    wh_lane_ring.forget(&group, -1, false);
    assert_int_equal(open_descriptors(), before);
}

/* However many ranks there are, only a few have memory that is kept. */
static void test_few(void **state) {
    (void)state;
    int before = open_descriptors();
    for (int32_t rank = 0; rank < RANKS; rank++) {
        transfer(&group, rank, ALONE);
        assert_in_range(open_descriptors(), before + 1, before + 4);
    }
    wh_lane_ring.forget(&group, -1, false);
    assert_int_equal(open_descriptors(), before);
}

/* What a process keeps is not its child's. */
static void test_fork(void **state) {
    (void)state;
    int before = open_descriptors();
    ino_t kept = transfer(&group, 1, TWO);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (open_descriptors() != before) {
            _exit(2); /* what was kept is not held open either */
        }
        ino_t own = transfer(&group, 1, TWO);
        _exit(own != kept && transfer(&group, 1, TWO) == own ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(transfer(&group, 1, TWO), kept);
    wh_lane_ring.forget(&group, -1, false);
}

/* Another process that has a rank now must not get what the one before may still have. */
static void test_another_incarnation(void **state) {
    (void)state;
    int before = open_descriptors();
    assert_true(wh_mailbox_admit(group.mailbox, 1, 5));
    ino_t kept = transfer(&group, 1, TWO);
    assert_int_equal(transfer(&group, 1, TWO), kept);
    assert_true(wh_mailbox_admit(group.mailbox, 1, 6));
    ino_t own = transfer(&group, 1, TWO);
    assert_int_not_equal(own, kept);
    assert_int_equal(transfer(&group, 1, TWO), own);
    wh_lane_ring.forget(&group, -1, false);
    assert_int_equal(open_descriptors(), before);
}

static int set_up(void **state) {
    (void)state;
    group.mailbox = wh_mailbox_create(RANKS, 1);
    other.mailbox = wh_mailbox_create(RANKS, 1);
    return wh_stop_init(&stop, &error);
}

static int tear_down(void **state) {
    (void)state;
    wh_mailbox_destroy(group.mailbox);
    wh_mailbox_destroy(other.mailbox);
    wh_stop_destroy(&stop);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_used_again), cmocka_unit_test(test_one_each), cmocka_unit_test(test_receiver_still_there),
        cmocka_unit_test(test_stranger),   cmocka_unit_test(test_failed),   cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_few),        cmocka_unit_test(test_fork),     cmocka_unit_test(test_another_incarnation),
    };
    return cmocka_run_group_tests_name("lane_ring_keep", tests, set_up, tear_down);
}
