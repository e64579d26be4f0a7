/*
 * Blocks over a table without put and get. The library moves them over send and receive, and checks
 * everything that it receives.
 */
#include <stdlib.h>
#include <string.h>

#include "group/callback/callback.h"
#include "group/callback/callback_internal.h"
#include "support/build.h"
#include "support/callback_pair.h"
#include "support/counting_allocator.h"

enum { SOON_MS = 10000, LONG = 20 << 20, CHANNEL = 7, NOW_MS = 2 };

static wherry_error error;

static void greet(const callback_pair *w, int32_t from) {
    wh_message message;
    must(wh_group_send(w->groups[from], 1 - from, 1, "hello", 5, wh_deadline_in_ms(SOON_MS), &error));
    must(wh_group_receive(w->groups[1 - from], from, 1, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
}

/** Two ranks that know each other. Rank 1 sends blocks to rank 0. */
static callback_pair open_pair(uint32_t flags) {
    callback_hub_options options = {.flags = flags};
    callback_pair w = callback_pair_open(&options);
    greet(&w, 0);
    greet(&w, 1);
    return w;
}

static wherry_status put(const callback_pair *w, uint32_t channel, const void *bytes, size_t size, void **operation_p) {
    return w->groups[1]->ops->put(w->groups[1], 0, channel, bytes, size, operation_p, &error);
}

static wherry_status get(const callback_pair *w, uint32_t channel, void *bytes, size_t size, void **operation_p) {
    return w->groups[0]->ops->get(w->groups[0], 1, channel, bytes, size, operation_p, &error);
}

static wherry_status finish(const callback_pair *w, int32_t rank, void *operation) {
    return w->groups[rank]->ops->finish(w->groups[rank], 1 - rank, operation, NOW_MS, &error);
}

/** Lets both sides work until the put and the get have finished. Fails the test on an error. */
static void finish_both(const callback_pair *w, void *sent, void *got) {
    wh_deadline deadline = wh_deadline_in_ms(SOON_MS);
    wherry_status statuses[RANKS] = {WHERRY_TIMED_OUT, WHERRY_TIMED_OUT};
    while (statuses[0] == WHERRY_TIMED_OUT || statuses[1] == WHERRY_TIMED_OUT) {
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (statuses[rank] == WHERRY_TIMED_OUT) {
                statuses[rank] = finish(w, rank, rank ? sent : got);
            }
        }
        assert_false(wh_deadline_passed(deadline));
    }
    must(statuses[0]);
    must(statuses[1]);
}

static uint8_t *pattern(size_t size, uint8_t seed) {
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(seed + i * 7 + i / 251);
    }
    return bytes;
}

/**
 * Blocks of any size; either side begins first. A long block needs more credit than is given at
 * once.
 */
static void test_blocks_of_any_size_arrive(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 1000, CALLBACK_HUB_BLOCK_MAX - WH_CALLBACK_HEADER_BYTES, CALLBACK_HUB_BLOCK_MAX,
                                   LONG};
    for (int i = 0; i < 4; i++) {
        callback_pair w = open_pair(i & 1 ? CALLBACK_HUB_ALL : 0);
        for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
            uint8_t *from = pattern(sizes[k], (uint8_t)k);
            uint8_t *to = calloc(1, sizes[k]);
            void *sent;
            void *got;
            if (i & 2) {
                must(put(&w, CHANNEL, from, sizes[k], &sent));
                must(get(&w, CHANNEL, to, sizes[k], &got));
            } else {
                must(get(&w, CHANNEL, to, sizes[k], &got));
                must(put(&w, CHANNEL, from, sizes[k], &sent));
            }
            finish_both(&w, sent, got);
            assert_memory_equal(from, to, sizes[k]);
            free(from);
            free(to);
        }
        callback_pair_close(&w);
    }
}

/** With several blocks on two channels, the n-th put of a channel goes to its n-th get. */
static void test_puts_and_gets_match_in_order(void **state) {
    (void)state;
    enum { BLOCKS = 5, SIZE = 300000 };
    callback_pair w = open_pair(0);
    uint8_t *from[2 * BLOCKS];
    uint8_t *to[2 * BLOCKS];
    void *sent[2 * BLOCKS];
    void *got[2 * BLOCKS];
    for (size_t i = 0; i < 2 * BLOCKS; i++) {
        from[i] = pattern(SIZE + i, (uint8_t)(31 * i));
        to[i] = calloc(1, SIZE + i);
        must(get(&w, CHANNEL + i % 2, to[i], SIZE + i, got + i));
    }
    for (size_t i = 0; i < 2 * BLOCKS; i++) { /* The other channel comes first. */
        must(put(&w, CHANNEL + (i ^ 1) % 2, from[i ^ 1], SIZE + (i ^ 1), sent + (i ^ 1)));
    }
    for (size_t i = 0; i < 2 * BLOCKS; i++) {
        finish_both(&w, sent[i], got[i]);
        assert_memory_equal(from[i], to[i], SIZE + i);
        free(from[i]);
        free(to[i]);
    }
    callback_pair_close(&w);
}

/** Without a get, no byte is sent. With one, at most the window is sent. */
static void test_sends_no_more_than_the_credit(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    uint8_t *from = pattern(LONG, 1);
    uint8_t *to = calloc(1, LONG);
    uint8_t block[CALLBACK_HUB_BLOCK_MAX];
    wh_callback_frame frame;
    void *sent;
    void *got;
    must(put(&w, CHANNEL, from, LONG, &sent));
    for (int i = 0; i < 10; i++) {
        assert_int_equal(finish(&w, 1, sent), WHERRY_TIMED_OUT);
    }
    assert_true(wh_callback_frame_read(block, callback_hub_last(w.hub, 1, block, sizeof(block)), &frame));
    assert_int_not_equal(frame.kind, WH_CALLBACK_PIECE);
    must(get(&w, CHANNEL, to, LONG, &got));
    finish_both(&w, sent, got);
    assert_memory_equal(from, to, LONG);
    free(from);
    free(to);
    callback_pair_close(&w);
}

/** Rank 0 reads all waiting messages. */
static void read_all(const callback_pair *w) {
    wh_message message;
    for (int i = 0; i < 20; i++) {
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(w->groups[0], 1, 99, wh_deadline_in_ms(NOW_MS), &message, &error));
    }
}

/** Bytes for an abandoned get are dropped, and the next channel works. */
static void test_bytes_for_an_abandoned_get_are_dropped(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        callback_pair w = open_pair(i ? CALLBACK_HUB_ALL : 0);
        uint8_t *from = pattern(LONG, 1);
        uint8_t *to = calloc(1, LONG);
        void *sent;
        void *got;
        must(get(&w, CHANNEL, to, LONG, &got));
        must(put(&w, CHANNEL, from, LONG, &sent));
        while (to[0] != from[0]) {
            assert_int_equal(finish(&w, 1, sent), WHERRY_TIMED_OUT);
            assert_int_equal(finish(&w, 0, got), WHERRY_TIMED_OUT);
        }
        for (int k = 0; k < 3; k++) {
            /* The block is not complete. */
            assert_int_equal(finish(&w, 1, sent), WHERRY_TIMED_OUT);
        }
        assert_true(w.groups[0]->ops->abandon(w.groups[0], got));
        memset(to, 0xA5, LONG);
        read_all(&w);
        for (size_t k = 0; k < LONG; k++) {
            assert_int_equal(to[k], 0xA5);
        }
        must(get(&w, CHANNEL + 1, to, 1000, &got));
        assert_true(w.groups[1]->ops->abandon(w.groups[1], sent));
        must(put(&w, CHANNEL + 1, from, 1000, &sent));
        finish_both(&w, sent, got);
        assert_memory_equal(from, to, 1000);
        /*
         * The credit of the abandoned get was revoked: nothing is sent on its channel until the
         * next get.
         */
        must(put(&w, CHANNEL, from, 1000, &sent));
        assert_int_equal(finish(&w, 1, sent), WHERRY_TIMED_OUT);
        must(get(&w, CHANNEL, to, 1000, &got));
        finish_both(&w, sent, got);
        free(from);
        free(to);
        callback_pair_close(&w);
    }
}

/** Sends a forged frame of rank 1 to rank 0. */
static void inject(const callback_pair *w, wh_callback_frame frame, size_t size) {
    uint8_t block[WH_CALLBACK_HEADER_BYTES + 256];
    wh_callback_frame known;
    greet(w, 1);
    assert_true(wh_callback_frame_read(block, callback_hub_last(w->hub, 1, block, sizeof(block)), &known));
    memset(block, 0xEE, sizeof(block));
    frame.from = known.from;
    frame.to = known.to;
    wh_callback_frame_write(&frame, block);
    callback_hub_inject(w->hub, 1, 0, block, WH_CALLBACK_HEADER_BYTES + size);
}

static void test_refuses_hostile_pieces(void **state) {
    (void)state;
    static const struct {
        wh_callback_frame frame;
        size_t size;
        wherry_status status;
    } cases[] = {
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = 100}, 100, WHERRY_OK},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = 99}, 99, WHERRY_MALFORMED},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = 200}, 200, WHERRY_MALFORMED},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = 100, .offset = 1}, 99, WHERRY_MALFORMED},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL + 1, .total = 100}, 100, WHERRY_TIMED_OUT},
        {{.kind = WH_CALLBACK_PIECE, .tag = UINT64_MAX, .total = 100}, 100, WHERRY_TIMED_OUT},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = UINT64_MAX}, 100, WHERRY_TIMED_OUT},
        {{.kind = WH_CALLBACK_PIECE, .tag = CHANNEL, .total = 100}, 0, WHERRY_TIMED_OUT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        callback_pair w = open_pair(0);
        uint8_t to[300];
        void *got;
        memset(to, 0xA5, sizeof(to));
        must(get(&w, CHANNEL, to + 100, 100, &got));
        inject(&w, cases[i].frame, cases[i].size);
        wherry_status status = finish(&w, 0, got);
        assert_int_equal(status, cases[i].status);
        assert_true(status != WHERRY_MALFORMED || error.rank == 1);
        for (size_t k = 0; k < sizeof(to); k++) {
            bool inside = status == WHERRY_OK && k >= 100 && k < 200;
            assert_int_equal(to[k], inside ? 0xEE : 0xA5);
        }
        if (status == WHERRY_TIMED_OUT) {
            assert_true(w.groups[0]->ops->abandon(w.groups[0], got));
        }
        inject(&w, cases[0].frame, 100); /* This frame comes without a get. */
        greet(&w, 1);
        callback_pair_close(&w);
    }
}

/**
 * Forged credit for any channel and of any size uses little memory, and no byte is sent without a
 * put.
 */
static void test_hostile_credit_is_harmless(void **state) {
    (void)state;
    callback_pair w = open_pair(0);
    uint8_t bytes[1000] = {0};
    void *sent;
    for (uint64_t i = 0; i < 1500; i++) {
        inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = i, .total = INT32_MAX}, 0);
    }
    inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = 3, .total = INT32_MAX}, 0);
    inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = 4, .total = 0}, 0);
    inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = 4, .total = 0}, 0);
    /* This CREDIT has a payload. */
    inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = 5, .total = 10}, 3);
    /* This CREDIT allows too much. */
    inject(&w, (wh_callback_frame){.kind = WH_CALLBACK_CREDIT, .tag = 5, .total = UINT64_C(1) << 40}, 0);
    greet(&w, 1);
    must(w.groups[0]->ops->put(w.groups[0], 1, 3, bytes, sizeof(bytes), &sent, &error));
    must(finish(&w, 0, sent));
    must(w.groups[0]->ops->put(w.groups[0], 1, 4, bytes, sizeof(bytes), &sent, &error));
    assert_int_equal(finish(&w, 0, sent), WHERRY_TIMED_OUT);
    assert_true(w.groups[0]->ops->abandon(w.groups[0], sent));
    callback_pair_close(&w);
}

/** If a rank leaves or restarts, operations with it fail. */
static void test_operations_fail_if_a_side_leaves(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        callback_pair w = open_pair(0);
        uint8_t bytes[1000] = {0};
        void *operation;
        int32_t leaves = i & 1;
        must(leaves ? get(&w, CHANNEL, bytes, sizeof(bytes), &operation)
                    : put(&w, CHANNEL, bytes, sizeof(bytes), &operation));
        wh_group_destroy(w.groups[leaves]);
        w.groups[leaves] = i & 2 ? callback_pair_join(w.hub, leaves) : NULL;
        wherry_status status = WHERRY_TIMED_OUT;
        for (int k = 0; k < 1000 && status == WHERRY_TIMED_OUT; k++) {
            status = finish(&w, 1 - leaves, operation);
        }
        assert_int_equal(status, WHERRY_PEER_LOST);
        assert_int_equal(error.rank, leaves);
        callback_pair_close(&w);
    }
}

/** Each allocation fails in turn. */
static void test_reports_failed_allocations(void **state) {
    (void)state;
    bool ok = false;
    for (uint64_t fail = 1; !ok; fail++) {
        callback_pair w = open_pair(0);
        uint8_t from[1000] = {1};
        uint8_t to[1000];
        void *sent = NULL;
        void *got = NULL;
        counting count;
        counting_begin(&count);
        count.fail = fail;
        wherry_status received = get(&w, CHANNEL, to, sizeof(to), &got);
        wherry_status status = put(&w, CHANNEL, from, sizeof(from), &sent);
        for (int i = 0; i < 10 && received == WHERRY_OK && status == WHERRY_OK; i++) {
            wherry_status more = sent ? finish(&w, 1, sent) : WHERRY_OK;
            sent = more == WHERRY_TIMED_OUT ? sent : NULL;
            status = more == WHERRY_TIMED_OUT ? WHERRY_OK : more;
            more = got ? finish(&w, 0, got) : WHERRY_OK;
            got = more == WHERRY_TIMED_OUT ? got : NULL;
            received = more == WHERRY_TIMED_OUT ? WHERRY_OK : more;
        }
        ok = received == WHERRY_OK && status == WHERRY_OK && !sent && !got;
        assert_true(!ok || memcmp(from, to, sizeof(to)) == 0);
        if (sent) {
            w.groups[1]->ops->abandon(w.groups[1], sent);
        }
        if (got) {
            w.groups[0]->ops->abandon(w.groups[0], got);
        }
        wherry_allocator_set(NULL);
        callback_pair_close(&w);
        assert_true(fail < 50);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_of_any_size_arrive),
        cmocka_unit_test(test_puts_and_gets_match_in_order),
        cmocka_unit_test(test_sends_no_more_than_the_credit),
        cmocka_unit_test(test_bytes_for_an_abandoned_get_are_dropped),
        cmocka_unit_test(test_refuses_hostile_pieces),
        cmocka_unit_test(test_hostile_credit_is_harmless),
        cmocka_unit_test(test_operations_fail_if_a_side_leaves),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
