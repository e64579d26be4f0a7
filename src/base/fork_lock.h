/**
 * @file fork_lock.h  A lock over what the whole process has. A fork waits until nobody holds it: so the child finds it free, and what it guards whole. Whoever holds
 * one takes no other, and no lock that another fork handler takes.
 */
#ifndef WH_BASE_FORK_LOCK_H
#define WH_BASE_FORK_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/** Static, and for ever. */
typedef struct wh_fork_lock {
    pthread_mutex_t mutex;
    void (*before)(void);   /**< Under the lock, in the parent, before a fork. May be NULL. */
    void (*in_child)(void); /**< Under the lock, in the child. May be NULL. */
    atomic_bool known;      /**< Forks see to it: from the first time that it is taken on. */
    struct wh_fork_lock *next;
} wh_fork_lock;

#define WH_FORK_LOCK(before, in_child)                                                                                 \
    { PTHREAD_MUTEX_INITIALIZER, before, in_child, false, NULL }

void wh_fork_lock_take(wh_fork_lock *lock);
void wh_fork_lock_give(wh_fork_lock *lock);

#endif
