/** @file cpu.h  The processors that a thread may run on, and keeping it on one. */
#ifndef WH_BASE_CPU_H
#define WH_BASE_CPU_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Finds the processors that the calling thread may run on.
 * @param numbers  receives the first `most` of their numbers; may be NULL where most is 0.
 * @return how many there are; at least 1, also where that cannot be found out, and then numbers[0] is 0.
 */
size_t wh_cpu_list(uint32_t *numbers, size_t most);

/** Whether the calling thread may run on a processor. */
bool wh_cpu_allows(uint32_t number);

/** A thread that is kept on one processor. */
typedef struct wh_cpu_hold {
    bool held;
    cpu_set_t before;
} wh_cpu_hold;

/** Keeps the calling thread on a processor that it may run on; does nothing where it may not. */
void wh_cpu_hold_begin(wh_cpu_hold *hold, uint32_t number);

/** Lets the thread, the same one, run where it ran before. */
void wh_cpu_hold_end(const wh_cpu_hold *hold);

#endif
