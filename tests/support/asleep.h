/**
 * @file asleep.h  Waits until other threads are blocked, for tests that act while a thread is
 * inside a call.
 */
#ifndef WH_TESTS_ASLEEP_H
#define WH_TESTS_ASLEEP_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/**
 * States of a thread in /proc/PID/stat. HALTED: stopped or ended. ASLEEP: halted, or asleep in the
 * kernel.
 */
#define WH_STATES_HALTED "TtZX"
#define WH_STATES_ASLEEP "S" WH_STATES_HALTED

/** True if each thread of a process has ended or has one of these states. Ignores the caller. */
static inline bool wh_threads_are(pid_t process, const char *states) {
    char path[64];
    bool all = true;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
    DIR *tasks = opendir(path);
    for (struct dirent *one; tasks && (one = readdir(tasks));) {
        char line[512] = "";
        if (one->d_name[0] == '.' || strtol(one->d_name, NULL, 10) == syscall(SYS_gettid)) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)process, one->d_name);
        FILE *file = fopen(path, "re");
        if (!file) {
            continue; /* The thread has ended. */
        }
        const char *name_end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
        fclose(file);
        all = all && name_end && strchr(states, name_end[2]);
    }
    if (tasks) {
        closedir(tasks);
    }
    return all;
}

/**
 * Waits until all other threads of a process sleep, seen twice in a row. A thread that was just
 * started counts as awake until it blocks. So when this returns, the thread is inside its call.
 * Gives up after half a second, because some libraries have threads that poll.
 */
static inline void wh_await_asleep(pid_t process) {
    enum { LOOK_US = 2000, LOOKS_MAX = 250, TWICE = 2 };
    for (int looks = 0, seen = 0; looks < LOOKS_MAX && seen < TWICE; looks++) {
        usleep(LOOK_US);
        seen = wh_threads_are(process, WH_STATES_ASLEEP) ? seen + 1 : 0;
    }
}

/** Waits until a process that got SIGKILL or SIGSTOP is dead or stopped, at most half a second. */
static inline void wh_await_halted(pid_t process) {
    enum { LOOK_US = 500, LOOKS_MAX = 1000 };
    for (int looks = 0; looks < LOOKS_MAX && !wh_threads_are(process, WH_STATES_HALTED); looks++) {
        usleep(LOOK_US);
    }
}

#endif
