#include "base/thread.h"

#include <signal.h>

int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(thread_p, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}
