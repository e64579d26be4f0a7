#include "base/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"

wherry_status wh_stop_init(wh_stop *stop, wherry_error *error) {
    atomic_init(&stop->requested, false);
    wh_stop_set_question(stop, NULL, NULL);
    stop->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return stop->event >= 0 ? WHERRY_OK : wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot create an eventfd");
}

void wh_stop_destroy(wh_stop *stop) {
    wh_close(stop->event);
    stop->event = -1;
}

void wh_stop_request(wh_stop *stop) {
    uint64_t one = 1;
    atomic_store_explicit(&stop->requested, true, memory_order_release);
    if (stop->event >= 0 && write(stop->event, &one, sizeof(one)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "cannot signal the eventfd of a stop; it may already be signalled");
    }
}

void wh_stop_set_question(wh_stop *stop, wh_stop_fn ask, void *context) {
    stop->ask = ask;
    stop->context = context;
}

bool wh_stop_ask(const wh_stop *stop) {
    bool stops = stop->ask(stop->context);
    if (stops) {
        wh_stop_request((wh_stop *)stop);
    }
    return stops;
}

bool wh_stop_wait_fd(const wh_stop *stop, int fd, short events, wh_deadline deadline) {
    struct pollfd fds[2] = {{fd, events, 0}, {stop->event, POLLIN, 0}};
    int ready;
    bool again;
    do {
        wh_deadline slice = stop->ask ? wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_STOP_LOOK_MS)) : deadline;
        ready = poll(fds, 2, wh_deadline_poll_ms(slice));
        again = ready < 0 ? errno == EINTR : ready == 0 && !wh_deadline_passed(deadline);
    } while (again && !wh_stop_requested(stop));
    return ready > 0 && fds[0].revents && !wh_stop_requested(stop);
}

int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context) {
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};
    sigset_t others;
    sigset_t before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        /* If its signal is blocked, a fault ends the process without calling a handler. */
        sigdelset(&others, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int result = pthread_create(thread_p, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}
