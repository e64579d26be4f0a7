/** @file bench_start.h  How ranks on one host begin a measurement: at one moment, each on a processor of its own, as those of a training run are when a transfer begins. */
#ifndef BENCH_START_H
#define BENCH_START_H

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

/** A moment that is long enough ahead for every rank to hear of it. */
static inline struct timespec bench_moment(void) {
    enum { PAUSE_NS = 5000000, SECOND_NS = 1000000000 };
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    moment.tv_nsec += PAUSE_NS;
    moment.tv_sec += moment.tv_nsec / SECOND_NS;
    moment.tv_nsec %= SECOND_NS;
    return moment;
}

/** Keeps the calling thread on one of its processors, another for each rank. @return false where that is not possible. */
static inline bool bench_keep_apart(int rank, const cpu_set_t *allowed) {
    int count = CPU_COUNT(allowed);
    int left = count > 0 ? rank % count : 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, allowed) && left-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(i, &one);
            return sched_setaffinity(0, sizeof(one), &one) == 0;
        }
    }
    return false;
}

/**
 * Waits, asleep, for a moment that all ranks know of, and wakes on another processor than the others; from then on it may go where it likes. Ranks that leave a barrier are
 * at times on one processor, and one of them would begin only when the other has to wait: some milliseconds that are not the transfer's.
 */
static inline void bench_begin_at(struct timespec moment, int rank) {
    cpu_set_t before;
    bool kept = sched_getaffinity(0, sizeof(before), &before) == 0 && bench_keep_apart(rank, &before);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR) {
    }
    if (kept) {
        sched_setaffinity(0, sizeof(before), &before);
    }
}

#endif
