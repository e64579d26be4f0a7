/**
 * @file clock.h  Monotonic time, deadlines, waiting for another thread until a deadline, and
 * whether a peer makes progress.
 *
 * A public call computes one deadline and passes it to every wait inside it.
 */
#ifndef WH_BASE_CLOCK_H
#define WH_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define WH_NS_PER_MS UINT64_C(1000000)

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

/** Seconds between two moments of wh_clock_now; 0 if `from` is 0 or later than `to`. */
double wh_seconds(uint64_t from, uint64_t to);

/** Initializes a condition variable for wh_wait. */
void wh_condition_init(pthread_cond_t *condition);

/**
 * Waits for a condition variable. The caller holds the lock.
 * @return false if the deadline has passed. true may be a spurious wake-up.
 */
bool wh_wait(pthread_cond_t *condition, pthread_mutex_t *lock, wh_deadline deadline);

/* ---- progress of a peer ---- */

/** When a peer last made progress, and how many bytes it had then. */
typedef struct wh_liveness {
    uint64_t at;         /**< By wh_clock_now. */
    uint64_t bytes;      /**< Bytes that this side has counted. */
    uint64_t peer_bytes; /**< Bytes that the peer has reported. */
} wh_liveness;

/** Records that something came from the peer. */
static inline void wh_liveness_note(wh_liveness *heard) {
    heard->at = wh_clock_now();
}

/** Records a PROGRESS message. */
static inline void wh_liveness_report(wh_liveness *heard, uint64_t peer_bytes) {
    if (peer_bytes != heard->peer_bytes) {
        heard->peer_bytes = peer_bytes < INT64_MAX ? peer_bytes : INT64_MAX;
        wh_liveness_note(heard);
    }
}

/** Records progress if `bytes` has changed. @return true if nothing has happened for limit_ms. */
bool wh_liveness_is_over(wh_liveness *heard, uint64_t bytes, int64_t limit_ms);

#endif
