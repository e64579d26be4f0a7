#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

static uint64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 * WH_NS_PER_MS + (uint64_t)now.tv_nsec;
}

uint64_t wh_clock_now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t wh_clock_wall(void) {
    return read_clock(CLOCK_REALTIME);
}

wh_deadline wh_deadline_never(void) {
    return (wh_deadline){UINT64_MAX};
}

wh_deadline wh_deadline_in_ms(int64_t milliseconds) {
    uint64_t wait;
    uint64_t at;
    if (milliseconds < 0 || __builtin_mul_overflow((uint64_t)milliseconds, WH_NS_PER_MS, &wait) ||
        __builtin_add_overflow(wh_clock_now(), wait, &at)) {
        return wh_deadline_never();
    }
    return (wh_deadline){at};
}

wh_deadline wh_deadline_earlier(wh_deadline one, wh_deadline other) {
    return one.at < other.at ? one : other;
}

bool wh_deadline_passed(wh_deadline deadline) {
    return deadline.at != UINT64_MAX && wh_clock_now() >= deadline.at;
}

int wh_deadline_poll_ms(wh_deadline deadline) {
    if (deadline.at == UINT64_MAX) {
        return -1;
    }
    uint64_t now = wh_clock_now();
    if (now >= deadline.at) {
        return 0;
    }
    uint64_t left = (deadline.at - now - 1) / WH_NS_PER_MS + 1;
    return left > INT_MAX ? INT_MAX : (int)left;
}

#define NS_PER_S UINT64_C(1000000000)

void wh_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool wh_wait(pthread_cond_t *condition, pthread_mutex_t *lock, wh_deadline deadline) {
    if (deadline.at == UINT64_MAX) {
        pthread_cond_wait(condition, lock);
        return true;
    }
    struct timespec at = {(time_t)(deadline.at / NS_PER_S), (long)(deadline.at % NS_PER_S)};
    return pthread_cond_timedwait(condition, lock, &at) != ETIMEDOUT;
}

double wh_seconds(uint64_t from, uint64_t to) {
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}

bool wh_liveness_is_over(wh_liveness *heard, uint64_t bytes, int64_t limit_ms) {
    uint64_t now = wh_clock_now();
    if (bytes != heard->bytes) {
        heard->at = now;
        heard->bytes = bytes;
    }
    return now > heard->at && now - heard->at > (uint64_t)limit_ms * WH_NS_PER_MS;
}
