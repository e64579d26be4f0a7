/** @file clock.h  Monotonic time, and deadlines: one for a whole call, handed down to every wait in it. */
#ifndef WH_BASE_CLOCK_H
#define WH_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/** Nanoseconds of a clock that only goes forward. */
uint64_t wh_clock_now(void);

/** Nanoseconds of the calendar's clock since 1970: what orders the incarnations of a rank. */
uint64_t wh_clock_wall(void);

/** A moment on the first of these; UINT64_MAX is never. */
typedef struct wh_deadline {
    uint64_t at;
} wh_deadline;

/** A deadline that never comes. */
wh_deadline wh_deadline_never(void);

/** A deadline so many milliseconds from now; a negative number is never. */
wh_deadline wh_deadline_in_ms(int64_t milliseconds);

/** The earlier of two. */
wh_deadline wh_deadline_earlier(wh_deadline one, wh_deadline other);

/** Whether it has come. */
bool wh_deadline_passed(wh_deadline deadline);

/** Milliseconds left as poll() takes them: rounded up, 0 where it has passed, -1 where it never comes. */
int wh_deadline_poll_ms(wh_deadline deadline);

#endif
