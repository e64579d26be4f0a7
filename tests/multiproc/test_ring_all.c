/*
 * Eight processes send their states to all others and to the next in a ring, and receive from all,
 * at once, for many rounds. The step identifies the round of a state, its bytes the rank.
 */
#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "support/build.h"
#include "support/process_job.h"

enum { RANKS = 8, ROUNDS = JOB_SLOW == 1 ? 200 : 40, TENSORS = 10, RING_NUMBER = 1, LIMIT_S = 60 };

static wherry_value *sent[RANKS];

/** A thread of a rank: rounds of one kind of call. */
typedef struct task {
    job_rank *self;
    wherry_transport *transport;
    int32_t to[RANKS];
    size_t count; /**< 0: receive from to[0]. */
    pthread_t thread;
} task;

static void send_round(const task *one, const wherry_transfer_options *options) {
    job_rank *self = one->self;
    wherry_error error;
    job_must(self, wherry_checkpoint_send(one->transport, one->to, one->count, sent[self->rank], options, NULL, &error),
             error);
}

static void receive_round(const task *one, const wherry_transfer_options *options) {
    job_rank *self = one->self;
    wherry_error error;
    wherry_value *received;
    job_must(self, wherry_checkpoint_recv(one->transport, one->to[0], options, &received, &error), error);
    job_check(self, wherry_value_compare(sent[one->to[0]], received, WHERRY_COMPARE_ALL, NULL) == WHERRY_OK,
              "the state of rank %d differs in round %lld", (int)one->to[0], (long long)options->step);
    wherry_value_destroy(received);
}

static void *work(void *context) {
    static const char *const lanes[] = {"cma", "ring", "stream", NULL};
    const task *one = context;
    for (int round = 0; round < ROUNDS; round++) {
        wherry_transfer_options options = job_options(lanes[round % 4]);
        options.timeout_ms = 3L * JOB_MS;
        options.step = round;
        options.threads = 1;
        (one->count ? send_round : receive_round)(one, &options);
    }
    return NULL;
}

static void be_member(job_rank *self) {
    task tasks[RANKS + 2];
    size_t count = 0;
    wherry_error error;
    wherry_transport *ring;
    wherry_transport_options options;
    wherry_transport_options_init(&options);
    options.number = RING_NUMBER;
    job_must(self, wherry_transport_create(self->group, &options, &ring, &error), error);
    job_must(self, wherry_group_barrier(self->group, 1, JOB_MS, &error), error);
    task *all = tasks + count++;
    *all = (task){.self = self, .transport = self->transport};
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (rank != self->rank) {
            all->to[all->count++] = rank;
            tasks[count++] = (task){.self = self, .transport = self->transport, .to = {rank}};
        }
    }
    tasks[count++] = (task){.self = self, .transport = ring, .to = {(self->rank + 1) % RANKS}, .count = 1};
    tasks[count++] = (task){.self = self, .transport = ring, .to = {(self->rank + RANKS - 1) % RANKS}};
    for (size_t i = 0; i < count; i++) {
        job_check(self, pthread_create(&tasks[i].thread, NULL, work, tasks + i) == 0, "no thread");
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(tasks[i].thread, NULL);
    }
    wherry_transport_destroy(ring);
    job_must(self, wherry_group_barrier(self->group, 2, JOB_MS, &error), error);
}

static wherry_value *state_of(int32_t rank) {
    wherry_value *list = build_list(build_int(rank), NULL);
    for (int i = 0; i < TENSORS; i++) {
        int64_t bytes = 50 + 300 * i;
        must(wherry_sequence_append(
            list, build_tensor(build_storage((uint64_t)bytes, (uint8_t)(31 * rank + i)), WHERRY_U8, 0, 1, &bytes, NULL),
            NULL));
    }
    return list;
}

static void test_all_to_all_and_a_ring_at_once(void **state) {
    (void)state;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        sent[rank] = state_of(rank);
    }
    uint64_t begin = wh_clock_now();
    job *all = job_open("eight ranks", RANKS, false, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, be_member, NULL, NULL);
    }
    bool good = job_close(all);
    double seconds = (double)(wh_clock_now() - begin) * 1e-9;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wherry_value_destroy(sent[rank]);
    }
    assert_true(good);
    if (seconds > LIMIT_S * JOB_SLOW) {
        fail_msg("%d rounds took %.1f s", ROUNDS, seconds);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_to_all_and_a_ring_at_once),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
