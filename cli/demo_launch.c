#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "demo_control.h"
#include "demo_launch.h"

enum { CONTROL = 3, SEAT_ARGUMENTS = 10 };

/** Writes a path as an address wants it: what is not plain becomes %XX, so that it takes three times the room at most. */
static void write_escaped(char *to, const char *path) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
    for (; *path; path++) {
        if (strchr(plain, *path)) {
            *to++ = *path;
        } else {
            to += snprintf(to, 4, "%%%02X", (unsigned char)*path);
        }
    }
    *to = '\0';
}

bool wh_demo_place_create(wh_demo_place *place) {
    static const char scheme[] = "unix://";
    char meeting[WH_DEMO_PATH_MAX + 8];
    const char *below = getenv("TMPDIR");
    if (!below || below[0] != '/') {
        below = "/tmp";
    }
    int size = snprintf(place->folder, sizeof(place->folder), "%s/wherry-demo-XXXXXX", below);
    if (size >= (int)sizeof(place->folder) || !mkdtemp(place->folder)) {
        fprintf(stderr, "wherry demo: cannot make a folder below %s (%s); set TMPDIR to one where that works\n", below,
                size >= (int)sizeof(place->folder) ? "its path is too long" : strerror(errno));
        place->folder[0] = '\0';
        return false;
    }
    snprintf(meeting, sizeof(meeting), "%s/meet", place->folder);
    memcpy(place->address, scheme, sizeof(scheme));
    write_escaped(place->address + strlen(scheme), meeting);
    return true;
}

void wh_demo_place_remove(wh_demo_place *place) {
    DIR *folder = place->folder[0] ? opendir(place->folder) : NULL;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unlinkat(dirfd(folder), entry->d_name, 0); /* "." and ".." refuse */
    }
    if (folder) {
        closedir(folder);
        if (rmdir(place->folder) != 0) {
            fprintf(stderr, "wherry demo: cannot remove %s: %s\n", place->folder, strerror(errno));
        }
    }
    place->folder[0] = '\0';
}

/** In the new process: only what is allowed between fork and exec. */
static void become_rank(int control, char **argv) {
    sigset_t none;
    /* Ctrl-C goes to all processes of the terminal; the conductor alone answers to it. */
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (control == CONTROL ? fcntl(CONTROL, F_SETFD, 0) == 0 : dup2(control, CONTROL) >= 0) {
        execv("/proc/self/exe", argv);
    }
    _exit(127);
}

pid_t wh_demo_start(const wh_demo_options *options, const wh_demo_place *place, int rank, bool heal, int *control_p) {
    int ends[2];
    char numbers[4][24];
    snprintf(numbers[0], sizeof(numbers[0]), "%d", rank);
    snprintf(numbers[1], sizeof(numbers[1]), "%d", options->ranks);
    snprintf(numbers[2], sizeof(numbers[2]), "%" PRIu64, options->size);
    snprintf(numbers[3], sizeof(numbers[3]), "%d", (int)getpid());
    const char *arguments[] = {"wherry",
                               "demo-rank",
                               numbers[0],
                               numbers[1],
                               numbers[2],
                               numbers[3],
                               options->lane,
                               place->address,
                               heal ? "heal" : "begin",
                               options->verify ? "verify" : "-",
                               options->verbose ? "verbose" : "-",
                               NULL};
    if (!wh_demo_control_pair(ends)) {
        fprintf(stderr, "wherry demo: cannot make a pair of sockets: %s\n", strerror(errno));
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        become_rank(ends[1], (char **)arguments);
    }
    close(ends[1]);
    if (pid < 0) {
        fprintf(stderr, "wherry demo: cannot start a process: %s\n", strerror(errno));
        close(ends[0]);
        return -1;
    }
    *control_p = ends[0];
    return pid;
}

bool wh_demo_seat_parse(int argc, char **argv, wh_demo_seat *seat) {
    if (argc != SEAT_ARGUMENTS) {
        return false;
    }
    *seat = (wh_demo_seat){
        .rank = (int)strtol(argv[1], NULL, 10),
        .ranks = (int)strtol(argv[2], NULL, 10),
        .control = CONTROL,
        .size = strtoull(argv[3], NULL, 10),
        .parent = (pid_t)strtol(argv[4], NULL, 10),
        .lane = argv[5],
        .address = argv[6],
        .heal = strcmp(argv[7], "heal") == 0,
        .verify = strcmp(argv[8], "verify") == 0,
        .verbose = strcmp(argv[9], "verbose") == 0,
    };
    return seat->ranks >= 2 && seat->ranks <= WH_DEMO_RANKS_MAX && seat->rank >= 0 && seat->rank < seat->ranks;
}
