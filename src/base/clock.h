/**
 * @file clock.h  Monotonic time, deadlines, and waiting for another thread until a deadline.
 *
 * A public call computes one deadline and passes it to every wait inside it.
 */
#ifndef WH_BASE_CLOCK_H
#define WH_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/** The time of the monotonic clock in nanoseconds. */
uint64_t wh_clock_now(void);

/**
 * The wall-clock time in nanoseconds since 1970. It is used to order the incarnations of a rank.
 */
uint64_t wh_clock_wall(void);

/** A time of the monotonic clock, in nanoseconds. UINT64_MAX means that it never passes. */
typedef struct wh_deadline {
    uint64_t at;
} wh_deadline;

/** A deadline that never passes. */
wh_deadline wh_deadline_never(void);

/**
 * A deadline this many milliseconds from now. It never passes if the number is negative or too
 * large.
 */
wh_deadline wh_deadline_in_ms(int64_t milliseconds);

/** The earlier of two deadlines. */
wh_deadline wh_deadline_earlier(wh_deadline one, wh_deadline other);

bool wh_deadline_passed(wh_deadline deadline);

/**
 * The milliseconds until a deadline, rounded up, as a timeout for poll(): 0 if it has passed, -1 if
 * it never passes.
 */
int wh_deadline_poll_ms(wh_deadline deadline);

/** Initializes a condition variable for wh_wait. */
void wh_condition_init(pthread_cond_t *condition);

/**
 * Waits for a condition variable. The caller holds the lock.
 * @return false if the deadline has passed. true may be a spurious wake-up.
 */
bool wh_wait(pthread_cond_t *condition, pthread_mutex_t *lock, wh_deadline deadline);

#endif
