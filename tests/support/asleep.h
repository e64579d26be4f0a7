/**
 * @file asleep.h  Waiting until other threads wait: for tests that act while somebody is blocked in
 * a call.
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
 * True if each thread of a process sleeps in the kernel, is stopped or has ended. The calling
 * thread is not counted.
 */
static inline bool wh_all_asleep(pid_t process) {
    char path[64];
    bool asleep = true;
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
            continue; /* it has ended */
        }
        const char *name_end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
        fclose(file);
        asleep = asleep && name_end && strchr("STtZX", name_end[2]);
    }
    if (tasks) {
        closedir(tasks);
    }
    return asleep;
}

/**
 * Waits until all other threads of a process sleep, seen twice in a row. A thread that was just
 * started counts as awake until it blocks, so that it is inside its call when this returns. Gives
 * up after half a second: some libraries have threads that poll.
 */
static inline void wh_await_asleep(pid_t process) {
    enum { LOOK_US = 2000, LOOKS_MAX = 250, TWICE = 2 };
    for (int looks = 0, seen = 0; looks < LOOKS_MAX && seen < TWICE; looks++) {
        usleep(LOOK_US);
        seen = wh_all_asleep(process) ? seen + 1 : 0;
    }
}

#endif
