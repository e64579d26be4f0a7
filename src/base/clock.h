/**
 * @file clock.h  Monotonic time, deadlines, and waiting for another thread until a deadline.
 *
 * A call computes one deadline and passes it down to every wait in it.
 */
#ifndef WH_BASE_CLOCK_H
#define WH_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/** Nanoseconds of the monotonic clock. */
uint64_t wh_clock_now(void);

/** Nanoseconds since 1970. Orders the incarnations of a rank. */
uint64_t wh_clock_wall(void);

/** A moment of the monotonic clock; UINT64_MAX is never. */
typedef struct wh_deadline {
    uint64_t at;
} wh_deadline;

/** A deadline that never passes. */
wh_deadline wh_deadline_never(void);

/** A deadline some milliseconds from now; a negative number is never. */
wh_deadline wh_deadline_in_ms(int64_t milliseconds);

/** The earlier of two. */
wh_deadline wh_deadline_earlier(wh_deadline one, wh_deadline other);

bool wh_deadline_passed(wh_deadline deadline);

/** Milliseconds left, for poll(): rounded up; 0 if it has passed, -1 if it never passes. */
int wh_deadline_poll_ms(wh_deadline deadline);

/** Initializes a condition for wh_wait. */
void wh_condition_init(pthread_cond_t *condition);

/**
 * Waits for a condition. The caller holds the lock.
 * @return false if the deadline has passed. true may be a spurious wake-up.
 */
bool wh_wait(pthread_cond_t *condition, pthread_mutex_t *lock, wh_deadline deadline);

#endif
