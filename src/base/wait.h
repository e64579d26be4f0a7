/** @file wait.h  Waiting for other threads until a deadline. */
#ifndef WH_BASE_WAIT_H
#define WH_BASE_WAIT_H

#include <pthread.h>
#include <stdbool.h>

#include "base/clock.h"

/** Makes a condition that wh_wait can wait for. */
void wh_condition_init(pthread_cond_t *condition);

/** Waits for a condition, whose lock is held. @return false where the deadline has come; true may also mean nothing. */
bool wh_wait(pthread_cond_t *condition, pthread_mutex_t *lock, wh_deadline deadline);

#endif
