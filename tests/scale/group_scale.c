/*
 * Groups of many ranks on one machine, each a process of its own.
 *
 *     group_scale CASE RANKS [TIMES]
 *
 *     join         RANKS ranks join and pass a barrier
 *     hosts        the same on two hosts made of network namespaces (needs root)
 *     one-by-one   TIMES groups of RANKS ranks that start one after the other
 *     at-once      TIMES groups of RANKS ranks that start together
 *     restart      of RANKS ranks, a sixteenth is killed and restarted one after another, rank 0
 *                  first, and then half as many at once
 *     stopped      the listener is stopped for 20 s while two ranks join
 *
 * A row of the results goes to standard output; the exit status says whether all limits hold. The
 * ranks learn what to do next from shared memory, and leave what they measured there.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/group.h>

#include "base/clock.h"
#include "support/two_hosts.h"

enum { RANKS_MAX = 4096, LIMIT_MS = 60000, AGAIN_MS = 10000, STOP_MS = 20000, SOON_MS = 2000, NEAR = 0 };

/** The limits of the case `join`. */
enum { JOIN_MS = 10000, BARRIER_MS = 5000, SENT_MB = 120, FILES = 32 };

/** The address sanitizer's own memory counts, too. */
#if defined(__SANITIZE_ADDRESS__)
enum { MEMORY_MB = 256 };
#else
enum { MEMORY_MB = 64 };
#endif

#define SECRET "a secret of the scale program, as long as it must be"

/** The results of one rank. */
typedef struct rank_state {
    atomic_int joined; /**< 1: the rank has joined; -1: joining failed. */
    uint64_t joined_at;
    atomic_int passed; /**< The last command that this rank has carried out. */
    uint64_t passed_at;
    long memory_kb;
    long files;
    uint64_t sent;
    char error[sizeof(((wherry_error *)NULL)->message)];
} rank_state;

typedef struct shared {
    atomic_int command; /**< The number of the barrier that all ranks are to pass; a futex. */
    rank_state ranks[RANKS_MAX];
} shared;

static shared *world;
static int ranks;
static pid_t processes[RANKS_MAX];
static two_hosts hosts = {.namespaces = {-1, -1}};
static char meeting[64];

/* ---- what this process sends ---- */

static _Atomic uint64_t sent_bytes;

static ssize_t count(ssize_t sent) {
    atomic_fetch_add(&sent_bytes, sent > 0 ? (uint64_t)sent : 0);
    return sent;
}

/* These replace the functions of the C library, for the group in this program. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t send(int fd, const void *bytes, size_t size, int flags);

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return count(syscall(SYS_sendmsg, fd, message, flags));
}

ssize_t send(int fd, const void *bytes, size_t size, int flags) {
    return count(syscall(SYS_sendto, fd, bytes, size, flags, NULL, 0));
}

static void stop(const char *format, ...) WHERRY_PRINTF(1, 2);
static void stop(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static double seconds_since(uint64_t begin) {
    return (double)(wh_clock_now() - begin) * 1e-9;
}

static void pause_ms(int ms) {
    usleep((useconds_t)ms * 1000);
}

/* ---- a rank ---- */

static long read_memory_kb(void) {
    char line[256];
    long kb = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            kb = strtol(line + 6, NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return kb;
}

static long count_files(void) {
    long count_of = -3; /* Do not count ".", ".." and the folder itself. */
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all)) {
        count_of++;
    }
    if (all) {
        closedir(all);
    }
    return count_of;
}

static void measure(rank_state *own, long files_before) {
    own->memory_kb = read_memory_kb();
    own->files = count_files() - files_before;
    own->sent = atomic_load(&sent_bytes);
}

/** @param done  the number of the last command that is not for this process. */
static int be_rank(int rank, uint32_t timeout_ms, int done) {
    rank_state *own = world->ranks + rank;
    wherry_group_options options;
    wherry_group *group;
    wherry_error error;
    char address[128];
    long files = count_files();
    if (hosts.namespaces[0] >= 0 && setns(hosts.namespaces[rank % TWO_HOSTS], CLONE_NEWNET) != 0) {
        return 3;
    }
    wherry_group_options_init(&options);
    options.timeout_ms = timeout_ms;
    options.secret = hosts.namespaces[0] >= 0 ? SECRET : NULL;
    options.secret_size = hosts.namespaces[0] >= 0 ? sizeof(SECRET) - 1 : 0;
    snprintf(address, sizeof(address), "%s?rank=%d&size=%d&job=scale", meeting, rank, ranks);
    wherry_status status = wherry_group_join(address, &options, &group, &error);
    own->joined_at = wh_clock_now();
    if (status != WHERRY_OK) {
        snprintf(own->error, sizeof(own->error), "%s", error.message);
        atomic_store(&own->joined, -1);
        return 1;
    }
    atomic_store(&own->joined, 1);
    for (;;) {
        syscall(SYS_futex, &world->command, FUTEX_WAIT, done, NULL, NULL, 0);
        int wanted = atomic_load(&world->command);
        if (wanted == done) {
            continue;
        }
        if (wanted < 0) {
            wherry_group_leave(group);
            return 0;
        }
        for (wh_deadline end = wh_deadline_in_ms(LIMIT_MS); !wh_deadline_passed(end);) {
            status = wherry_group_barrier(group, (uint64_t)wanted, LIMIT_MS, &error);
            if (status != WHERRY_PEER_LOST) {
                break;
            }
            pause_ms(50); /* This rank is being restarted. */
        }
        done = wanted;
        own->passed_at = wh_clock_now();
        snprintf(own->error, sizeof(own->error), "%s", status == WHERRY_OK ? "" : error.message);
        measure(own, files);
        atomic_store(&own->passed, status == WHERRY_OK ? wanted : -wanted);
    }
}

/* ---- the program that starts them ---- */

static void start(int rank, uint32_t timeout_ms) {
    memset(world->ranks + rank, 0, sizeof(*world->ranks));
    int done = atomic_load(&world->command);
    pid_t child = fork();
    if (child < 0) {
        stop("cannot start rank %d", rank);
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(be_rank(rank, timeout_ms, done));
    }
    processes[rank] = child;
}

static void end(int rank, int signal) {
    kill(processes[rank], signal);
    waitpid(processes[rank], NULL, 0);
    processes[rank] = 0;
}

static void command(int number) {
    atomic_store(&world->command, number);
    syscall(SYS_futex, &world->command, FUTEX_WAKE, RANKS_MAX, NULL, NULL, 0);
}

static void open_meeting(void) {
    if (hosts.namespaces[0] >= 0) {
        snprintf(meeting, sizeof(meeting), "tcp://" TWO_HOSTS_ADDRESS ":4711");
        return;
    }
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(probe, (struct sockaddr *)&at, size) != 0 || getsockname(probe, (struct sockaddr *)&at, &size) != 0) {
        stop("no free port");
    }
    close(probe);
    snprintf(meeting, sizeof(meeting), "tcp://127.0.0.1:%d", ntohs(at.sin_port));
}

/** Waits until all ranks have joined. @return the seconds; below 0 if some have not joined. */
static double await_joined(uint64_t begin, int ms) {
    wh_deadline end_at = wh_deadline_in_ms(ms);
    uint64_t last = begin;
    for (int rank = 0; rank < ranks; rank++) {
        while (!atomic_load(&world->ranks[rank].joined) && !wh_deadline_passed(end_at)) {
            pause_ms(5);
        }
        if (atomic_load(&world->ranks[rank].joined) != 1) {
            fprintf(stderr, "rank %d has not joined: %s\n", rank, world->ranks[rank].error);
            return -1;
        }
        last = world->ranks[rank].joined_at > last ? world->ranks[rank].joined_at : last;
    }
    return (double)(last - begin) * 1e-9;
}

/** All ranks pass a barrier. @return the seconds; below 0 if some do not pass it. */
static double pass(int number, int ms) {
    uint64_t begin = wh_clock_now();
    uint64_t last = begin;
    wh_deadline end_at = wh_deadline_in_ms(ms);
    command(number);
    for (int rank = 0; rank < ranks; rank++) {
        while (abs(atomic_load(&world->ranks[rank].passed)) != number && !wh_deadline_passed(end_at)) {
            pause_ms(5);
        }
        if (atomic_load(&world->ranks[rank].passed) != number) {
            fprintf(stderr, "rank %d has not passed barrier %d: %s\n", rank, number, world->ranks[rank].error);
            return -1;
        }
        last = world->ranks[rank].passed_at > last ? world->ranks[rank].passed_at : last;
    }
    return (double)(last - begin) * 1e-9;
}

static void end_all(void) {
    command(-1);
    for (int rank = 0; rank < ranks; rank++) {
        if (processes[rank] && hosts.namespaces[0] < 0 && atomic_load(&world->ranks[rank].joined) == 1) {
            waitpid(processes[rank], NULL, 0);
        } else if (processes[rank]) {
            end(rank, SIGKILL);
        }
        processes[rank] = 0;
    }
    atomic_store(&world->command, 0);
}

static double start_all(int gap_ms) {
    open_meeting();
    uint64_t begin = wh_clock_now();
    for (int rank = 0; rank < ranks; rank++) {
        start(rank, LIMIT_MS);
        pause_ms(gap_ms);
    }
    return await_joined(begin, LIMIT_MS);
}

static bool run_join(const char *name) {
    double joined = start_all(0);
    double passed = joined < 0 ? -1 : pass(1, LIMIT_MS);
    long memory = 0;
    long files[2] = {0};
    uint64_t sent = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const rank_state *one = world->ranks + rank;
        memory = one->memory_kb > memory ? one->memory_kb : memory;
        sent = one->sent > sent ? one->sent : sent;
        if (one->files > files[0]) { /* These are the largest and the second largest value. */
            files[1] = files[0];
            files[0] = one->files;
        } else {
            files[1] = one->files > files[1] ? one->files : files[1];
        }
    }
    end_all();
    bool listener = files[0] <= ranks + FILES;
    bool ok = joined >= 0 && joined * 1000 <= JOIN_MS && passed >= 0 && passed * 1000 <= BARRIER_MS &&
              memory <= MEMORY_MB * 1024L && sent <= SENT_MB * UINT64_C(1000000) && listener && files[1] <= FILES;
    printf("| %d ranks join, %s | %.1f s, then a barrier %.1f s; at most %.1f MB of memory, %.1f MB sent, %ld "
           "descriptors (the listener %ld) |\n",
           ranks, name, joined, passed, (double)memory / 1024, (double)sent / 1e6, files[1], files[0]);
    return ok;
}

static bool run_groups(int gap_ms, int times, const char *name) {
    int complete = 0;
    double longest = 0;
    for (int i = 0; i < times; i++) {
        double joined = start_all(gap_ms);
        complete += joined >= 0;
        longest = joined > longest ? joined : longest;
        end_all();
    }
    printf("| %d groups of %d ranks, %s | %d complete; the slowest in %.1f s |\n", times, ranks, name, complete,
           longest);
    return complete == times;
}

static bool run_restart(void) {
    int some = ranks / 16 > 0 ? ranks / 16 : 1;
    double slowest = 0;
    int number = 1;
    bool ok = start_all(0) >= 0 && pass(number++, LIMIT_MS) >= 0;
    uint64_t begin = wh_clock_now();
    for (int i = 0; ok && i < some; i++) {
        int rank = i * 16;
        end(rank, SIGKILL);
        start(rank, LIMIT_MS);
        while (!atomic_load(&world->ranks[rank].joined) && seconds_since(begin) * 1000 < LIMIT_MS) {
            pause_ms(1);
        }
        ok = atomic_load(&world->ranks[rank].joined) == 1;
    }
    double all = seconds_since(begin);
    double again = ok ? pass(number++, AGAIN_MS) : -1;
    slowest = again;
    begin = wh_clock_now();
    for (int i = 0; ok && i < some / 2; i++) {
        end(i * 16, SIGKILL);
    }
    for (int i = 0; ok && i < some / 2; i++) {
        start(i * 16, LIMIT_MS);
    }
    double together = ok && again >= 0 ? pass(number++, AGAIN_MS) : -1;
    double at_once = together >= 0 ? seconds_since(begin) : -1;
    end_all();
    printf("| of %d ranks, %d killed and restarted one after another, rank 0 first | %.1f s; all pass a barrier %.1f s "
           "later |\n| the same, %d at once | %.1f s until all have passed a barrier |\n",
           ranks, some, all, slowest, some / 2, at_once);
    return again >= 0 && together >= 0 && at_once * 1000 <= AGAIN_MS;
}

static bool run_stopped(void) {
    double after = -1;
    int joiners[2] = {ranks - 2, ranks - 1};
    bool ok = start_all(20) >= 0 && pass(1, LIMIT_MS) >= 0; /* Rank 0 comes first, and listens. */
    for (int i = 0; ok && i < 2; i++) {
        end(joiners[i], SIGKILL);
    }
    kill(processes[NEAR], SIGSTOP);
    start(joiners[0], LIMIT_MS);    /* This rank joins after the stop. */
    start(joiners[1], STOP_MS / 2); /* This rank fails before the stop ends. */
    pause_ms(STOP_MS);
    bool named =
        atomic_load(&world->ranks[joiners[1]].joined) == -1 && strstr(world->ranks[joiners[1]].error, "is stopped");
    bool waits = atomic_load(&world->ranks[joiners[0]].joined) == 0;
    char error[sizeof(((wherry_error *)NULL)->message)];
    snprintf(error, sizeof(error), "%s", world->ranks[joiners[1]].error);
    uint64_t begin = wh_clock_now();
    kill(processes[NEAR], SIGCONT);
    waitpid(processes[joiners[1]], NULL, 0);
    start(joiners[1], LIMIT_MS);
    while (ok && seconds_since(begin) * 1000 < LIMIT_MS && after < 0) {
        after = atomic_load(&world->ranks[joiners[0]].joined) == 1 ? seconds_since(begin) : -1;
        pause_ms(1);
    }
    ok = ok && pass(2, LIMIT_MS) >= 0;
    end_all();
    printf("| %d ranks, the listener stopped for %d s | a joiner gets in %.2f s after it; one with a deadline before "
           "that: \"%s\" |\n",
           ranks, STOP_MS / 1000, after, error);
    return ok && named && waits && after >= 0 && after * 1000 <= SOON_MS;
}

int main(int argc, char **argv) {
    int times = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1;
    const char *name = argc > 2 ? argv[1] : "";
    struct rlimit files;
    ranks = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    if (ranks < 1 || ranks > RANKS_MAX) {
        stop("usage: group_scale join|hosts|one-by-one|at-once|restart|stopped RANKS [TIMES]");
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > 1024) {
        /* This is the limit on most machines. The listener raises it itself. */
        files.rlim_cur = 1024;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) {
        stop("no shared memory");
    }
    wherry_log_set_level(getenv("WHERRY_LOG") ? wherry_log_get_level() : WHERRY_LOG_OFF);
    bool ok = false;
    if (strcmp(name, "join") == 0) {
        ok = run_join("loopback");
    } else if (strcmp(name, "hosts") == 0) {
        const char *missing = two_hosts_open(&hosts);
        if (missing) {
            stop("%s", missing);
        }
        ok = run_join("two hosts");
        two_hosts_close(&hosts);
    } else if (strcmp(name, "one-by-one") == 0) {
        ok = run_groups(2, times, "started one by one");
    } else if (strcmp(name, "at-once") == 0) {
        ok = run_groups(0, times, "started all at once");
    } else if (strcmp(name, "restart") == 0) {
        ok = run_restart();
    } else if (strcmp(name, "stopped") == 0) {
        ok = run_stopped();
    } else {
        stop("no such case: %s", name);
    }
    fflush(stdout);
    return ok ? 0 : 1;
}
