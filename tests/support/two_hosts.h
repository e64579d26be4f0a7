/**
 * @file two_hosts.h  Two hosts made of network namespaces, with a link between them. Needs root.
 */
#ifndef WH_TESTS_TWO_HOSTS_H
#define WH_TESTS_TWO_HOSTS_H

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TWO_HOSTS = 2 };

/** The address of the first host; the second one has 10.78.0.2. */
#define TWO_HOSTS_ADDRESS "10.78.0.1"

typedef struct two_hosts {
    pid_t keepers[TWO_HOSTS];  /**< Processes that keep the namespaces. */
    int namespaces[TWO_HOSTS]; /**< Descriptors of the namespaces, for setns. */
} two_hosts;

/** Runs a command of the shell. @return true if it succeeds. */
static inline bool two_hosts_run(char *command) {
    char shell[] = "sh";
    char option[] = "-c";
    char *arguments[] = {shell, option, command, NULL};
    pid_t child;
    int status;
    return posix_spawnp(&child, "sh", NULL, NULL, arguments, environ) == 0 && waitpid(child, &status, 0) == child &&
           status == 0;
}

/** Brings the link up, or cuts it. A cut link drops packets silently. */
static inline bool two_hosts_link(const two_hosts *hosts, bool up) {
    char line[128];
    snprintf(line, sizeof(line), "nsenter -t %d -n ip link set near %s", (int)hosts->keepers[0], up ? "up" : "down");
    return two_hosts_run(line);
}

static inline bool two_hosts_keep(two_hosts *hosts, int which) {
    char path[64];
    char byte;
    int ready[2];
    if (pipe(ready) != 0 || (hosts->keepers[which] = fork()) < 0) {
        return false;
    }
    if (hosts->keepers[which] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(unshare(CLONE_NEWNET) == 0 && write(ready[1], "", 1) == 1 ? pause() : 1);
    }
    close(ready[1]);
    bool kept = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)hosts->keepers[which]);
    hosts->namespaces[which] = kept ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    return hosts->namespaces[which] >= 0;
}

static inline void two_hosts_close(two_hosts *hosts) {
    for (int i = 0; i < TWO_HOSTS; i++) {
        if (hosts->keepers[i] > 0) {
            kill(hosts->keepers[i], SIGKILL);
            waitpid(hosts->keepers[i], NULL, 0);
        }
        if (hosts->namespaces[i] >= 0) {
            close(hosts->namespaces[i]);
        }
    }
}

/** @return NULL, or the reason why this is not possible. Call two_hosts_close in both cases. */
static inline const char *two_hosts_open(two_hosts *hosts) {
    char line[256];
    *hosts = (two_hosts){.namespaces = {-1, -1}};
    if (!two_hosts_keep(hosts, 0) || !two_hosts_keep(hosts, 1)) {
        return "cannot create a network namespace: this needs root";
    }
    snprintf(line, sizeof(line), "nsenter -t %d -n ip link add near type veth peer name near netns %d",
             (int)hosts->keepers[0], (int)hosts->keepers[1]);
    if (!two_hosts_run(line)) {
        return "no link between network namespaces";
    }
    for (int i = 0; i < TWO_HOSTS; i++) {
        snprintf(line, sizeof(line),
                 "nsenter -t %d -n sh -c 'ip addr add 10.78.0.%d/24 dev near && ip link set near up && "
                 "ip link set lo up'",
                 (int)hosts->keepers[i], i + 1);
        if (!two_hosts_run(line)) {
            return "no address for a network namespace";
        }
    }
    return NULL;
}

#endif
