/* The processes of a benchmark. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "bench_start.h"

/** A process that takes longer than this counts as hanging. */
enum { PATIENCE_S = 240 };

double bench_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void bench_die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(EXIT_FAILURE);
}

void bench_check(wherry_status status, const wherry_error *error) {
    if (status != WHERRY_OK) {
        bench_die("%s: %s", wherry_status_name(status), error->message);
    }
}

void *bench_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        bench_die("out of memory for %zu times %zu bytes", count, size);
    }
    return memory;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one;
    double b = *(const double *)other;
    return a < b ? -1 : a > b;
}

double bench_median(double *figures, int count) {
    qsort(figures, (size_t)count, sizeof(*figures), by_size);
    return figures[count / 2];
}

wherry_status bench_give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/* ---- the world ---- */

/** Creates both ends of each connection over loopback. */
static void connect_streams(bench_world *world) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bool good = listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 &&
                listen(listener, BENCH_STREAMS_MAX) == 0 &&
                getsockname(listener, (struct sockaddr *)&address, &size) == 0;
    for (int i = 0; good && i < BENCH_STREAMS_MAX; i++) {
        int *ends = world->streams[i];
        ends[0] = socket(AF_INET, SOCK_STREAM, 0);
        good = ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&address, size) == 0;
        ends[1] = good ? accept(listener, NULL, NULL) : -1;
        good = ends[1] >= 0 && setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0;
    }
    if (!good || socketpair(AF_UNIX, SOCK_STREAM, 0, world->pair) != 0) {
        bench_die("cannot connect sockets: %s", strerror(errno));
    }
    close(listener);
}

bench_world *bench_world_create(uint32_t ranks) {
    bench_world *world = mmap(NULL, sizeof(bench_world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    if (world == MAP_FAILED) {
        bench_die("cannot map shared memory: %s", strerror(errno));
    }
    world->ranks = ranks;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&world->gate, &shared, ranks);
    pthread_barrierattr_destroy(&shared);
    connect_streams(world);
    return world;
}

void bench_world_destroy(bench_world *world) {
    for (int i = 0; i < BENCH_STREAMS_MAX; i++) {
        close(world->streams[i][0]);
        close(world->streams[i][1]);
    }
    close(world->pair[0]);
    close(world->pair[1]);
    munmap(world, sizeof(*world));
}

static int own_rank;

static pid_t start(bench_world *world, int32_t rank, bench_role_fn role, void *context) {
    pid_t starter = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != starter) {
            _exit(EXIT_FAILURE);
        }
        alarm(PATIENCE_S);
        own_rank = rank;
        if (rank == 0) {
            /* Needed if Yama restricts process_vm_readv; fails harmlessly otherwise. */
            world->source = getpid();
            (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        }
        role(world, rank, context);
        exit(EXIT_SUCCESS);
    }
    return pid;
}

bool bench_world_run(bench_world *world, bench_role_fn role, void *context) {
    pid_t pids[BENCH_RANKS_MAX];
    uint32_t running = 0;
    bool good = true;
    fflush(stdout);
    for (; running < world->ranks && good; running += good) {
        pids[running] = start(world, (int32_t)running, role, context);
        good = pids[running] > 0;
    }
    uint32_t started = running;
    while (running > 0) {
        int result = 0;
        if (!good) {
            for (uint32_t i = 0; i < started; i++) {
                if (pids[i] > 0) {
                    kill(pids[i], SIGKILL);
                }
            }
        }
        pid_t ended = waitpid(-1, &result, 0);
        for (uint32_t i = 0; i < started; i++) {
            if (pids[i] == ended) {
                pids[i] = 0;
                running--;
                good = good && WIFEXITED(result) && WEXITSTATUS(result) == EXIT_SUCCESS;
            }
        }
    }
    return good;
}

/* ---- starting together ---- */

void bench_gate(bench_world *world) {
    pthread_barrier_wait(&world->gate);
}

void bench_line_up(bench_world *world) {
    int arrival = pthread_barrier_wait(&world->gate);
    if (arrival == PTHREAD_BARRIER_SERIAL_THREAD) { /* This is true for exactly one rank. */
        world->moment = bench_moment();
    }
    bench_gate(world);
    bench_begin_at(world->moment, own_rank);
}

/* ---- memory ---- */

int64_t bench_memory_peak(void) {
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long long kib = -1;
    while (file && kib < 0 && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            kib = strtoll(line + 6, NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return kib < 0 ? -1 : kib * 1024;
}

int64_t bench_memory_mark(void) {
    FILE *file = fopen("/proc/self/clear_refs", "we");
    bool good = file && fputs("5\n", file) >= 0;
    if (file) {
        good = fclose(file) == 0 && good;
    }
    return good ? bench_memory_peak() : -1;
}
