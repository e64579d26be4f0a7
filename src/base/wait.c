#include "base/wait.h"

#include <errno.h>
#include <time.h>

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
