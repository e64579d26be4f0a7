/*
 * bench_tls: what TLS costs a group over TCP on loopback. Each case alternates between a group with
 * a secret ("tls") and one without ("clear"), and prints a line of JSON with the seconds of both.
 *
 *     talk REPEATS              a round trip of a small message between two ranks
 *     connect REPEATS           joining a running group: the first time in a process, and later
 *     join RANKS REPEATS        RANKS processes join, until the last one has
 *     state MIB REPEATS         a state over the lane stream, received in place and checked; "tls"
 *                               encrypts it
 *     rank RANK ADDRESS MIB REPEATS   one of two ranks that move such a state, with the variables
 *     of
 *                               the environment; prints what the receiver took
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { CLEAR, TLS, KINDS };
enum { TAG = 1, TIMEOUT_MS = 60000, TRIPS = 500, MESSAGE = 64, LATER = 5, RANKS_MAX = 1024, MIB = 1 << 20 };

#define SECRET "a secret of the benchmark, which is long enough"

static const char *const kinds[KINDS] = {"clear", "tls"};

/** Memory that the processes share. */
typedef struct shared {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    pthread_barrier_t gate;
    double figures[2 * RANKS_MAX];
} shared;

static void *share(size_t size) {
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        bench_die("mmap: %s", strerror(errno));
    }
    return bytes;
}

/**
 * Joins as the host of a meeting point at a port that the system chooses, or joins at such a point.
 */
static wherry_group *join(int kind, int rank, int size, char meeting[WHERRY_GROUP_MEETING_MAX]) {
    wherry_group_options options;
    wherry_group *group;
    wherry_error error;
    char address[WHERRY_GROUP_MEETING_MAX + 64];
    wherry_group_options_init(&options);
    options.secret = kind == TLS ? SECRET : NULL;
    options.secret_size = kind == TLS ? strlen(SECRET) : 0;
    options.allow_insecure = kind != TLS;
    options.timeout_ms = TIMEOUT_MS;
    options.wait_for = rank == 0 ? 1 : 0;
    options.flags = rank == 0 ? 0 : WHERRY_JOIN_CLIENT;
    snprintf(address, sizeof(address), "%s?rank=%d&size=%d&shortcut=0", rank == 0 ? "tcp://127.0.0.1:0" : meeting, rank,
             size);
    bench_check(wherry_group_join(address, &options, &group, &error), &error);
    if (rank == 0) {
        bench_check(wherry_group_meeting(group, meeting, &error), &error);
    }
    return group;
}

/** Starts a process that ends when this one ends. @return true in the new process. */
static bool in_child(void) {
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        bench_die("fork: %s", strerror(errno));
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child == 0;
}

static void await_children(void) {
    int status;
    while (wait(&status) > 0) {
        if (status != 0) {
            bench_die("a process failed");
        }
    }
}

static void print_list(const char *name, const double *figures, int count, const char *before) {
    printf("%s\"%s\": [", before, name);
    for (int i = 0; i < count; i++) {
        printf("%s%.9f", i ? ", " : "", figures[i]);
    }
    printf("]");
}

/* ---- the messages ---- */

static void send_one(wherry_group *group, int to) {
    char text[MESSAGE] = {0};
    wherry_error error;
    bench_check(wherry_group_send(group, to, TAG, text, sizeof(text), TIMEOUT_MS, &error), &error);
}

static void take_one(wherry_group *group, int from) {
    void *bytes;
    size_t size;
    wherry_error error;
    bench_check(wherry_group_receive(group, from, TAG, TIMEOUT_MS, &bytes, &size, NULL, &error), &error);
    wherry_free(bytes);
}

/** @return the seconds of one round trip. */
static double round_trips(wherry_group *group, int rank) {
    double begin = bench_now();
    for (int i = 0; i < TRIPS; i++) {
        if (rank == 0) {
            take_one(group, 1);
            send_one(group, 1);
        } else {
            send_one(group, 0);
            take_one(group, 0);
        }
    }
    return (bench_now() - begin) / TRIPS;
}

/** Both ranks run this. The figures of a kind follow each other. */
static void talk(bench_world *world, int32_t rank, void *context) {
    const int repeats = *(const int *)context;
    wherry_group *groups[KINDS];
    for (int kind = 0; kind < KINDS; kind++) {
        char *meeting = (char *)world->notes + kind * WHERRY_GROUP_MEETING_MAX;
        groups[kind] = rank == 0 ? join(kind, 0, 2, meeting) : NULL;
        bench_gate(world);
        groups[kind] = rank == 1 ? join(kind, 1, 2, meeting) : groups[kind];
    }
    for (int repeat = -1; repeat < repeats; repeat++) {
        for (int kind = 0; kind < KINDS; kind++) {
            bench_line_up(world);
            double seconds = round_trips(groups[kind], rank);
            if (rank == 1 && repeat >= 0) {
                world->seconds[kind][repeat] = seconds;
            }
        }
    }
    bench_gate(world);
    for (int kind = 0; kind < KINDS; kind++) {
        wherry_group_leave(groups[kind]);
    }
}

/* ---- the states ---- */

static double move(bench_world *world, wherry_transport *transport, int rank, const bench_state *state) {
    wherry_transfer_options options;
    wherry_error error;
    wherry_value *received;
    wherry_transfer_options_init(&options);
    options.lanes = "stream";
    options.verify = WHERRY_VERIFY_ON;
    if (world) {
        bench_line_up(world);
    }
    double begin = bench_now();
    if (rank == 0) {
        bench_check(wherry_checkpoint_send(transport, (int32_t[]){1}, 1, state->value, &options, NULL, &error), &error);
        return bench_now() - begin;
    }
    options.target = bench_give_target;
    options.target_context = state->value;
    bench_check(wherry_checkpoint_recv(transport, 0, &options, &received, &error), &error);
    double seconds = bench_now() - begin;
    bench_state_check(received);
    wherry_value_destroy(received);
    return seconds;
}

typedef struct state_case {
    uint64_t bytes;
    int repeats;
} state_case;

static bench_state make_state(uint64_t bytes, int rank) {
    bench_state state = bench_state_uniform(16, bytes / 16);
    bench_state_fill(&state, rank == 0);
    return state;
}

static void move_states(bench_world *world, int32_t rank, void *context) {
    const state_case *what = context;
    bench_state state = make_state(what->bytes, rank);
    wherry_group *groups[KINDS];
    wherry_transport *transports[KINDS];
    wherry_error error;
    for (int kind = 0; kind < KINDS; kind++) {
        char *meeting = (char *)world->notes + kind * WHERRY_GROUP_MEETING_MAX;
        setenv("WHERRY_ENCRYPT", kind == TLS ? "all" : "control", 1);
        groups[kind] = rank == 0 ? join(kind, 0, 2, meeting) : NULL;
        bench_gate(world);
        groups[kind] = rank == 1 ? join(kind, 1, 2, meeting) : groups[kind];
        bench_check(wherry_transport_create(groups[kind], NULL, transports + kind, &error), &error);
        bench_gate(world);
    }
    for (int repeat = -1; repeat < what->repeats; repeat++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double seconds = move(world, transports[kind], rank, &state);
            if (rank == 1 && repeat >= 0) {
                world->seconds[kind][repeat] = seconds;
            }
        }
    }
    bench_gate(world);
    for (int kind = 0; kind < KINDS; kind++) {
        wherry_transport_destroy(transports[kind]);
        wherry_group_leave(groups[kind]);
    }
    bench_state_destroy(&state);
}

static int run_pair(bench_role_fn role, void *context, int repeats) {
    bench_world *world = bench_world_create(2);
    bool good = bench_world_run(world, role, context);
    for (int kind = 0; good && kind < KINDS; kind++) {
        print_list(kinds[kind], world->seconds[kind], repeats, kind ? ", " : "{");
    }
    bench_world_destroy(world);
    printf(good ? "}\n" : "");
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

/** One rank of two. Another program starts it, with the environment's secret and WHERRY_ENCRYPT. */
static int be_rank(int rank, const char *address, uint64_t bytes, int repeats) {
    bench_state state = make_state(bytes, rank);
    wherry_group *group;
    wherry_transport *transport;
    wherry_error error;
    double figures[BENCH_REPEATS_MAX];
    char text[512];
    snprintf(text, sizeof(text), "%s?rank=%d&size=2&shortcut=0", address, rank);
    bench_check(wherry_group_join(text, NULL, &group, &error), &error);
    bench_check(wherry_transport_create(group, NULL, &transport, &error), &error);
    for (int repeat = 0; repeat < repeats; repeat++) {
        bench_check(wherry_group_barrier(group, (uint64_t)repeat + 1, TIMEOUT_MS, &error), &error);
        figures[repeat] = move(NULL, transport, rank, &state);
    }
    if (rank == 1) {
        print_list("seconds", figures, repeats, "{");
        printf("}\n");
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    bench_state_destroy(&state);
    return EXIT_SUCCESS;
}

/* ---- joining ---- */

/** Makes a new gate for processes that are forked later. */
static void make_gate(shared *common, int processes) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&common->gate, &attributes, (unsigned)processes);
}

/** A new process joins the group of another one, several times. */
static void connect_once(shared *common, int kind, double *first, double *later) {
    make_gate(common, 2);
    for (int rank = 0; rank < 2; rank++) {
        if (!in_child()) {
            continue;
        }
        if (rank == 0) {
            (void)join(kind, 0, 2, common->meeting);
        }
        pthread_barrier_wait(&common->gate);
        for (int i = 0; rank == 1 && i <= LATER; i++) {
            double begin = bench_now();
            wherry_group *group = join(kind, 1, 2, common->meeting);
            common->figures[i] = bench_now() - begin;
            wherry_group_leave(group);
        }
        pthread_barrier_wait(&common->gate);
        _exit(EXIT_SUCCESS);
    }
    await_children();
    *first = common->figures[0];
    *later = bench_median(common->figures + 1, LATER);
}

static int run_connect(int repeats) {
    double figures[KINDS][2][BENCH_REPEATS_MAX];
    shared *common = share(sizeof(*common));
    for (int repeat = -1; repeat < repeats; repeat++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double first;
            double later;
            connect_once(common, kind, &first, &later);
            if (repeat >= 0) {
                figures[kind][0][repeat] = first;
                figures[kind][1][repeat] = later;
            }
        }
    }
    for (int kind = 0; kind < KINDS; kind++) {
        printf("%s\"%s\": ", kind ? ", " : "{", kinds[kind]);
        print_list("first", figures[kind][0], repeats, "{");
        print_list("later", figures[kind][1], repeats, ", ");
        printf("}");
    }
    printf("}\n");
    return EXIT_SUCCESS;
}

/** @return the seconds until the last rank has joined. */
static double join_all(shared *common, int kind, int ranks) {
    make_gate(common, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        if (in_child()) {
            wherry_group *group = rank == 0 ? join(kind, 0, ranks, common->meeting) : NULL;
            pthread_barrier_wait(&common->gate);
            common->figures[2 * rank] = bench_now();
            if (!group) {
                (void)join(kind, rank, ranks, common->meeting);
            }
            common->figures[2 * rank + 1] = bench_now();
            pthread_barrier_wait(&common->gate);
            _exit(EXIT_SUCCESS);
        }
    }
    await_children();
    double begin = common->figures[0];
    double end = common->figures[1];
    for (int rank = 1; rank < ranks; rank++) {
        begin = common->figures[2 * rank] < begin ? common->figures[2 * rank] : begin;
        end = common->figures[2 * rank + 1] > end ? common->figures[2 * rank + 1] : end;
    }
    return end - begin;
}

static int run_join(int ranks, int repeats) {
    double figures[KINDS][BENCH_REPEATS_MAX];
    shared *common = share(sizeof(*common));
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int repeat = -1; repeat < repeats; repeat++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double seconds = join_all(common, kind, ranks);
            if (repeat >= 0) {
                figures[kind][repeat] = seconds;
            }
        }
    }
    for (int kind = 0; kind < KINDS; kind++) {
        print_list(kinds[kind], figures[kind], repeats, kind ? ", " : "{");
    }
    printf("}\n");
    return EXIT_SUCCESS;
}

/* ---- all cases ---- */

static int number(const char *text, int most) {
    long value = strtol(text, NULL, 10);
    if (value < 1 || value > most) {
        bench_die("'%s' is not a number from 1 to %d", text, most);
    }
    return (int)value;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (argc == 6 && strcmp(what, "rank") == 0) {
        return be_rank((int)strtol(argv[2], NULL, 10), argv[3], (uint64_t)number(argv[4], 1 << 20) * MIB,
                       number(argv[5], BENCH_REPEATS_MAX));
    }
    const char *const unwanted[] = {"WHERRY_SECRET",   "WHERRY_SECRET_FILE", "WHERRY_ENCRYPT", "WHERRY_LANES",
                                    "WHERRY_TLS_CERT", "WHERRY_TLS_KEY",     "WHERRY_TLS_CA",  "WHERRY_TLS_NAME"};
    for (size_t i = 0; i < sizeof(unwanted) / sizeof(unwanted[0]); i++) {
        unsetenv(unwanted[i]);
    }
    int repeats = argc > 2 ? number(argv[argc - 1], BENCH_REPEATS_MAX) : 0;
    if (argc == 3 && strcmp(what, "talk") == 0) {
        return run_pair(talk, &repeats, repeats);
    }
    if (argc == 3 && strcmp(what, "connect") == 0) {
        return run_connect(repeats);
    }
    if (argc == 4 && strcmp(what, "join") == 0) {
        return run_join(number(argv[2], RANKS_MAX), repeats);
    }
    if (argc == 4 && strcmp(what, "state") == 0) {
        state_case state = {(uint64_t)number(argv[2], 1 << 20) * MIB, repeats};
        return run_pair(move_states, &state, repeats);
    }
    fprintf(stderr, "usage: bench_tls talk REPEATS | connect REPEATS | join RANKS REPEATS | state MIB REPEATS | "
                    "rank RANK ADDRESS MIB REPEATS\n");
    return 2;
}
