/*
 * A thousand transfers in a row between two processes, over every lane and in both directions.
 * Afterwards the processes have no more memory, threads and descriptors than after the first
 * hundred.
 */
#include <unistd.h>

#include "base/clock.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/holdings.h"
#include "support/process_job.h"

enum { ROUNDS = 1000 / (JOB_SLOW == 1 ? 1 : 2), WARM = ROUNDS / 10, RANKS = 2, TENSORS = 40 };

static bool is_within(const holdings *last, const holdings *first) {
    return last->threads <= first->threads && last->descriptors <= first->descriptors &&
           last->blocks <= first->blocks + 2 && (JOB_SLOW > 1 || last->resident < first->resident + 2048);
}

static void meet(job_rank *self) {
    static uint64_t number;
    wherry_error error;
    job_must(self, wherry_group_barrier(self->group, ++number, JOB_MS, &error), error);
}

/**
 * Takes stock while neither side has a transfer. A side notices a moment later that the other one
 * has closed a channel, so this waits until all threads are idle.
 */
static holdings take_stock_when_idle(job_rank *self) {
    meet(self);
    wh_await_asleep(getpid());
    meet(self);
    wh_await_asleep(getpid());
    holdings found = take_stock();
    meet(self);
    return found;
}

/** Waits until nothing is left of the transfers, but not forever. */
static holdings take_stock_at_the_end(job_rank *self, const holdings *first) {
    wh_deadline limit = wh_deadline_in_ms(JOB_MS / 4);
    meet(self);
    holdings last = take_stock();
    while (!is_within(&last, first) && !wh_deadline_passed(limit)) {
        usleep(5000);
        last = take_stock();
    }
    meet(self);
    return last;
}

/* ---- the transfers ---- */

static wherry_value *sent[RANKS];
static const char *named; /**< The lane of all transfers; NULL: several lanes in turn. */

static wherry_value *small_state(uint8_t seed) {
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < TENSORS; i++) {
        int64_t bytes = 100 + 97 * i;
        must(wherry_sequence_append(
            list, build_tensor(build_storage((uint64_t)bytes, (uint8_t)(seed + i)), WHERRY_U8, 0, 1, &bytes, NULL),
            NULL));
    }
    int64_t large = 150000;
    return build_dict("list", list, "large",
                      build_tensor(build_storage((uint64_t)large, seed), WHERRY_U8, 0, 1, &large, NULL), NULL);
}

static void transfer(job_rank *self, int round) {
    static const char *const in_turn[] = {"cma", "ring", "stream"};
    const char *lane = named ? named : in_turn[round % 3];
    wherry_transfer_options options = job_options(lane);
    wherry_error error;
    wherry_value *received;
    int32_t other = 1 - self->rank;
    options.step = round;
    options.verify = round % 4 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
    if (round / 3 % 2 == self->rank) {
        job_must(self, wherry_checkpoint_send(self->transport, &other, 1, sent[self->rank], &options, NULL, &error),
                 error);
        return;
    }
    wherry_stats stats;
    options.stats = &stats;
    job_must(self, wherry_checkpoint_recv(self->transport, other, &options, &received, &error), error);
    job_check(self, strcmp(stats.lane, lane) == 0, "the lane was %s", stats.lane);
    job_check(self, wherry_value_compare(sent[other], received, WHERRY_COMPARE_ALL, NULL) == WHERRY_OK,
              "round %d: the received state differs", round);
    wherry_value_destroy(received);
}

static void go_round(job_rank *self) {
    holdings first = {0};
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM) {
            first = take_stock_when_idle(self);
        }
        transfer(self, round);
    }
    holdings last = take_stock_at_the_end(self, &first);
    job_check(self, last.threads <= first.threads, "%d threads, then %d", first.threads, last.threads);
    job_check(self, last.descriptors <= first.descriptors, "%d descriptors, then %d", first.descriptors,
              last.descriptors);
    job_check(self, last.blocks <= first.blocks + 2, "%lld blocks, then %lld", (long long)first.blocks,
              (long long)last.blocks);
    job_check(self, JOB_SLOW > 1 || last.resident < first.resident + 2048, "%ld KiB, then %ld", first.resident,
              last.resident);
}

static void test_a_thousand_transfers(void **state) {
    (void)state;
    holdings_begin();
    sent[0] = small_state(1);
    sent[1] = small_state(100);
    job *all = job_open("a thousand transfers", RANKS, false, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, go_round, NULL, NULL);
    }
    bool good = job_close(all);
    wherry_value_destroy(sent[0]);
    wherry_value_destroy(sent[1]);
    wherry_allocator_set(NULL);
    assert_true(good);
}

int main(int count, char **arguments) {
    named = count > 1 ? arguments[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thousand_transfers),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
