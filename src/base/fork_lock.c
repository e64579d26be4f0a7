#include "base/fork_lock.h"

static pthread_once_t registered = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_fork_lock *all;

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (wh_fork_lock *one = all; one; one = one->next) {
        pthread_mutex_lock(&one->mutex);
        if (one->before) {
            one->before();
        }
    }
}

static void after_fork(void) {
    for (wh_fork_lock *one = all; one; one = one->next) {
        pthread_mutex_unlock(&one->mutex);
    }
    pthread_mutex_unlock(&list_lock);
}

static void after_fork_in_child(void) {
    for (wh_fork_lock *one = all; one; one = one->next) {
        if (one->in_child) {
            one->in_child();
        }
    }
    after_fork();
}

static void begin(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void wh_fork_lock_take(wh_fork_lock *lock) {
    if (!atomic_load(&lock->known)) {
        pthread_once(&registered, begin);
        pthread_mutex_lock(&list_lock);
        if (!atomic_load(&lock->known)) {
            lock->next = all;
            all = lock;
            atomic_store(&lock->known, true);
        }
        pthread_mutex_unlock(&list_lock);
    }
    pthread_mutex_lock(&lock->mutex);
}

void wh_fork_lock_give(wh_fork_lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
}
