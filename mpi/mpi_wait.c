/* Waiting. MPI has to be polled, because it cannot wake a thread. */
#include <sched.h>
#include <time.h>

#include "mpi_context.h"

enum {
    FIRST_SLEEP_US = 20,
    /** If sched_yield takes longer than this, other threads need the processor. */
    AWAY_NS = 20000,
};

uint64_t wh_mpi_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

void wh_mpi_alarm_init(wh_mpi_alarm *alarm) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&alarm->ringing, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&alarm->lock, NULL);
}

void wh_mpi_alarm_destroy(wh_mpi_alarm *alarm) {
    pthread_cond_destroy(&alarm->ringing);
    pthread_mutex_destroy(&alarm->lock);
}

void wh_mpi_note_activity(wh_mpi *mpi) {
    atomic_store_explicit(&mpi->active_at, wh_mpi_now(), memory_order_relaxed);
}

void wh_mpi_wake(void *context) {
    wh_mpi *mpi = context;
    wh_mpi_alarm *alarm = &mpi->alarm;
    wh_mpi_note_activity(mpi);
    pthread_mutex_lock(&alarm->lock);
    alarm->rings = true;
    pthread_cond_signal(&alarm->ringing);
    pthread_mutex_unlock(&alarm->lock);
}

/**
 * Sleeps until a time, or until the alarm rings. Resets the alarm. @return true if the alarm had
 * rung.
 */
static bool sleep_until(wh_mpi_alarm *alarm, uint64_t moment) {
    const struct timespec at = {(time_t)(moment / 1000000000), (long)(moment % 1000000000)};
    if (!alarm) {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        return false;
    }
    pthread_mutex_lock(&alarm->lock);
    if (!alarm->rings) {
        pthread_cond_timedwait(&alarm->ringing, &alarm->lock, &at);
    }
    bool rang = atomic_exchange(&alarm->rings, false);
    pthread_mutex_unlock(&alarm->lock);
    return rang;
}

void wh_mpi_wait_begin(wh_mpi_wait *wait, wh_mpi_alarm *alarm, uint32_t timeout_ms, unsigned quick_us,
                       unsigned sleep_max_us) {
    wait->alarm = alarm;
    wait->begin = wh_mpi_now();
    wait->end = wait->begin + timeout_ms * UINT64_C(1000000);
    wait->quick = quick_us * UINT64_C(1000);
    wait->modest = false;
    wait->sleep_us = FIRST_SLEEP_US;
    wait->sleep_max_us = sleep_max_us;
}

bool wh_mpi_wait_on(wh_mpi_wait *wait) {
    uint64_t at = wh_mpi_now();
    if (at >= wait->end) {
        return false;
    }
    if (wait->alarm && atomic_exchange(&wait->alarm->rings, false)) {
        return false;
    }
    if (at - wait->begin < wait->quick) {
        sched_yield(); /* The peer may need this processor. */
        if (wait->modest && wh_mpi_now() - at > AWAY_NS) {
            wait->quick = 0;
        }
        return true;
    }
    uint64_t moment = at + wait->sleep_us * UINT64_C(1000);
    bool rang = sleep_until(wait->alarm, moment < wait->end ? moment : wait->end);
    wait->sleep_us = 2 * wait->sleep_us < wait->sleep_max_us ? 2 * wait->sleep_us : wait->sleep_max_us;
    return !rang;
}
