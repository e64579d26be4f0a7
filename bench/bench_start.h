/**
 * @file bench_start.h  Starts the ranks of a benchmark on one host at the same time, on different
 * processors.
 */
#ifndef BENCH_START_H
#define BENCH_START_H

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

/** A moment that is far enough in the future for every rank to learn it. */
static inline struct timespec bench_moment(void) {
    enum { PAUSE_NS = 5000000, SECOND_NS = 1000000000 };
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    moment.tv_nsec += PAUSE_NS;
    moment.tv_sec += moment.tv_nsec / SECOND_NS;
    moment.tv_nsec %= SECOND_NS;
    return moment;
}

/**
 * Pins the calling thread to a processor that no other rank uses. @return false if that is not
 * possible.
 */
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
 * Sleeps until a time that all ranks know. The thread wakes on a different processor than the other
 * ranks. Then it is no longer pinned. Without this, ranks that leave a barrier are sometimes on the
 * same processor, and one of them starts milliseconds late.
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
