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

/** The CPU time of a thread, in clock ticks. @param name_end  points into its stat line. */
static inline unsigned long wh_ticks_of(const char *name_end) {
    enum { USER = 14, KERNEL = 15 };
    unsigned long ticks = 0;
    const char *at = name_end + 1; /* Field 3 follows. */
    for (int field = 3; at && field <= KERNEL; field++) {
        at += *at == ' ';
        ticks += field >= USER ? strtoul(at, NULL, 10) : 0;
        at = strchr(at, ' ');
    }
    return ticks;
}

/**
 * True if each thread of a process has ended or has one of these states. Ignores the caller.
 * @param ticks_p  receives the CPU time of these threads, in clock ticks; may be NULL.
 */
static inline bool wh_threads_are(pid_t process, const char *states, unsigned long *ticks_p) {
    char path[64];
    bool all = true;
    unsigned long ticks = 0;
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
        ticks += name_end ? wh_ticks_of(name_end) : 0;
    }
    if (tasks) {
        closedir(tasks);
    }
    if (ticks_p) {
        *ticks_p = ticks;
    }
    return all;
}

/**
 * Waits until all other threads of a process sleep, seen twice in a row. A thread that was just
 * started counts as awake until it blocks. So when this returns, the thread is inside its call.
 * Some libraries have threads that poll, so this gives up after half a second if the threads have
 * used a processor meanwhile. On a busy machine, a thread may wait that long for one; then this
 * gives up after five seconds.
 */
static inline void wh_await_asleep(pid_t process) {
    enum { LOOK_US = 2000, LOOKS_MIN = 250, LOOKS_MAX = 2500, TWICE = 2 };
    unsigned long before;
    unsigned long now;
    unsigned long polling = (unsigned long)sysconf(_SC_CLK_TCK) / 4;
    wh_threads_are(process, WH_STATES_ASLEEP, &before);
    for (int looks = 0, seen = 0; looks < LOOKS_MAX && seen < TWICE; looks++) {
        usleep(LOOK_US);
        seen = wh_threads_are(process, WH_STATES_ASLEEP, &now) ? seen + 1 : 0;
        if (looks >= LOOKS_MIN && now >= before + polling) {
            return;
        }
    }
}

/** Waits until a process that got SIGKILL or SIGSTOP is dead or stopped, at most ten seconds. */
static inline void wh_await_halted(pid_t process) {
    enum { LOOK_US = 500, LOOKS_MAX = 20000 };
    for (int looks = 0; looks < LOOKS_MAX && !wh_threads_are(process, WH_STATES_HALTED, NULL); looks++) {
        usleep(LOOK_US);
    }
}

#endif
