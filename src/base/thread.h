/** @file thread.h  Threads of the library. */
#ifndef WH_BASE_THREAD_H
#define WH_BASE_THREAD_H

#include <pthread.h>

/** Starts a thread with all signals blocked: those are for the program's own threads. @return 0, or an errno. */
int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context);

#endif
