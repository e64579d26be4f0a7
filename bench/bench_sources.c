/*
 * bench_sources ADDRESS RANK SIZE TENSORS BYTES LANES DELAY_MS ROUND...: one process of a benchmark
 * of receives from several sources, and of sends to several receivers. compare_sources.py starts
 * one per rank.
 *
 * A round is SOURCES>RECEIVERS with an optional event, such as "0,1,2>3" or "0>1,2!stop". All ranks
 * begin a round together. The first receiver begins DELAY_MS later, so that the sends are waiting
 * by then. Events:
 *
 *   !kill   The receiver kills the source that it is using when half of the bytes have come.
 *   Nothing
 *           may follow this round.
 *   !watch  The receiver prints its progress.
 *   !stop   The second receiver stops itself when a tenth of the bytes has come.
 *   !slow   From then on it reads 1 MB/s.
 *
 * The first receiver begins DELAY_MS after the second one is stuck, and lets it continue when it
 * has finished itself. Prints lines of JSON.
 *
 * Built with BENCH_MPI, the ranks are those of MPI_COMM_WORLD, and ADDRESS, RANK and SIZE are
 * ignored.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#ifdef BENCH_MPI
#include <mpi.h>

#include <wherry/mpi.h>
#endif

#define SLOW_RATE 1e6

enum { RANKS_MAX = 8, PID_TAG = 1, GROUP_MS = 60000, HOLD_PART = 10 };

typedef struct round_plan {
    uint32_t number;
    int32_t sources[RANKS_MAX];
    size_t source_count;
    int32_t receivers[RANKS_MAX];
    size_t receiver_count;
    const char *event; /**< The event without the exclamation mark; "" if there is none. */
} round_plan;

typedef struct run {
    int32_t rank;
    int32_t size;
    const char *lanes;
    int64_t delay_ms;
    wherry_group *group;
    wherry_transport *transport;
    bench_state state;
    int64_t pids[RANKS_MAX];
    const round_plan *round;
    _Atomic uint64_t arrived; /**< Number of bytes of this round. */
    atomic_bool held;         /**< True if this receiver has been stopped, or reads slowly. */
    pthread_mutex_t slow;     /**< Held by the worker that waits. */
} run;

/** Set by SIGCONT: the second receiver may continue. */
static atomic_bool released;
/** Set by SIGUSR2: the second receiver is stuck. */
static atomic_bool stuck;

static void take_signal(int number) {
    atomic_store(number == SIGCONT ? &released : &stuck, true);
}

static bool contains(const int32_t *ranks, size_t count, int32_t rank) {
    for (size_t i = 0; i < count; i++) {
        if (ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

/** Prints a line that begins with the moment, at once. */
static void say_event(const run *own, const char *event, uint64_t bytes) {
    char line[256];
    int length = snprintf(line, sizeof(line),
                          "{\"event\": \"%s\", \"rank\": %d, \"round\": %u, \"time\": %.6f, \"bytes\": %" PRIu64 "}\n",
                          event, (int)own->rank, (unsigned)own->round->number, bench_now(), bytes);
    if (write(STDOUT_FILENO, line, (size_t)length) != length) {
        bench_die("cannot write: %s", strerror(errno));
    }
}

/* ---- events ---- */

static bool is_event(const run *own, const char *name) {
    return strcmp(own->round->event, name) == 0;
}

static void wait_slowly(run *own, uint64_t bytes) {
    pthread_mutex_lock(&own->slow);
    double end = bench_now() + (double)bytes / SLOW_RATE;
    while (!atomic_load(&released) && bench_now() < end) {
        usleep(1000);
    }
    pthread_mutex_unlock(&own->slow);
}

/** Called by the workers of a receive for each chunk that has arrived. */
static void on_trace(void *context, const wherry_trace_event *event) {
    run *own = context;
    if (event->chunk == WHERRY_TRACE_PHASE) {
        return;
    }
    uint64_t before = atomic_fetch_add(&own->arrived, event->bytes);
    uint64_t after = before + event->bytes;
    uint64_t half = own->state.bytes / 2;
    if (is_event(own, "kill") && before < half && after >= half) {
        kill((pid_t)own->pids[event->peer], SIGKILL);
        say_event(own, "killed", after);
    }
    bool second = own->round->receiver_count > 1 && own->rank == own->round->receivers[1];
    if (!second || after < own->state.bytes / HOLD_PART || atomic_load(&released)) {
        return;
    }
    if (!atomic_exchange(&own->held, true)) {
        say_event(own, "held", after);
        kill((pid_t)own->pids[own->round->receivers[0]], SIGUSR2);
        if (is_event(own, "stop")) {
            raise(SIGSTOP);
        }
    }
    if (is_event(own, "slow")) {
        wait_slowly(own, event->bytes);
    }
}

static void on_progress(void *context, const wherry_progress *progress) {
    say_event(context, "progress", progress->bytes);
}

/* ---- a round ---- */

static void send_state(run *own, wherry_transfer_options *options) {
    wherry_outcome outcomes[RANKS_MAX];
    wherry_error error;
    bench_check(wherry_checkpoint_send(own->transport, own->round->receivers, own->round->receiver_count,
                                       own->state.value, options, outcomes, &error),
                &error);
}

/** Exits unless the received state has the source's bytes. The bytes of each tensor are equal. */
static void check_state(const run *own) {
    bench_state_check(own->state.value);
    for (size_t i = 0; i < own->state.count; i++) {
        const unsigned char *bytes = own->state.extents[i].iov_base;
        if (memcmp(bytes, bytes + 1, own->state.extents[i].iov_len - 1) != 0) {
            bench_die("tensor %zu of the received state has bytes that are not the source's", i);
        }
    }
}

static void print_receive(const run *own, double begin, double end, const wherry_stats *stats) {
    printf("{\"event\": \"received\", \"rank\": %d, \"round\": %u, \"begin\": %.6f, \"end\": %.6f, \"lane\": \"%s\", "
           "\"offer\": %.6f, \"plan\": %.6f, \"data\": %.6f, \"release\": %.6f, \"moved\": %" PRIu64
           ", \"wanted\": %" PRIu64 ", \"sources\": [",
           (int)own->rank, (unsigned)own->round->number, begin, end, stats->lane, stats->offer_seconds,
           stats->plan_seconds, stats->data_seconds, stats->release_seconds, stats->bytes_moved, stats->bytes_wanted);
    for (uint32_t i = 0; i < stats->source_count; i++) {
        const wherry_source_stats *one = stats->sources + i;
        printf("%s{\"rank\": %d, \"status\": \"%s\", \"bytes\": %" PRIu64 ", \"rate\": %.0f}", i ? ", " : "",
               (int)one->rank, wherry_status_name(one->status), one->bytes, one->rate);
    }
    printf("]}\n");
    fflush(stdout);
}

static void receive_state(run *own, wherry_transfer_options *options) {
    const round_plan *round = own->round;
    bool first = own->rank == round->receivers[0];
    wherry_stats stats;
    wherry_error error;
    options->target = bench_give_target;
    options->target_context = own->state.value;
    options->stats = &stats;
    if (is_event(own, "kill") || (round->receiver_count > 1 && !first)) {
        options->trace = on_trace;
        options->trace_context = own;
    }
    if (is_event(own, "watch")) {
        options->progress = on_progress;
        options->progress_context = own;
    }
    while (first && round->receiver_count > 1 && !atomic_load(&stuck)) {
        usleep(1000);
    }
    if (first) {
        usleep((useconds_t)(own->delay_ms * 1000));
    }
    say_event(own, "begin", 0);
    double begin = bench_now();
    bench_check(wherry_checkpoint_recv_from(own->transport, round->sources, round->source_count, options, NULL, &error),
                &error);
    double end = bench_now();
    for (size_t i = 1; first && i < round->receiver_count; i++) {
        kill((pid_t)own->pids[round->receivers[i]], SIGCONT);
    }
    print_receive(own, begin, end, &stats);
    check_state(own);
}

static void play(run *own, const round_plan *round) {
    wherry_transfer_options options;
    wherry_error error;
    bool receives = contains(round->receivers, round->receiver_count, own->rank);
    own->round = round;
    atomic_store(&own->arrived, 0);
    atomic_store(&own->held, false);
    atomic_store(&released, false);
    atomic_store(&stuck, false);
    if (receives) {
        bench_state_fill(&own->state, false);
    }
    wherry_transfer_options_init(&options);
    options.lanes = *own->lanes ? own->lanes : NULL;
    options.step = round->number;
    bench_check(wherry_group_barrier(own->group, round->number + 1, GROUP_MS, &error), &error);
    if (receives) {
        receive_state(own, &options);
    } else if (contains(round->sources, round->source_count, own->rank)) {
        send_state(own, &options);
    }
}

/* ---- the process ---- */

/** Reads ranks such as "0,1" from *text, up to the character `end`. */
static size_t parse_ranks(const char **text, char end, int32_t *ranks) {
    size_t count = 0;
    while (count < RANKS_MAX) {
        char *rest;
        ranks[count++] = (int32_t)strtol(*text, &rest, 10);
        *text = rest + (*rest != '\0');
        if (*rest == end || *rest == '\0' || *rest == '!') {
            return count;
        }
    }
    bench_die("too many ranks");
}

static round_plan parse_round(const char *text, uint32_t number) {
    round_plan round = {.number = number};
    round.source_count = parse_ranks(&text, '>', round.sources);
    round.receiver_count = parse_ranks(&text, '!', round.receivers);
    round.event = text;
    return round;
}

/** Ranks on one host signal each other. */
static void exchange_pids(run *own) {
    int64_t pid = getpid();
    wherry_error error;
    for (int32_t i = 0; i < own->size; i++) {
        if (i != own->rank) {
            bench_check(wherry_group_send(own->group, i, PID_TAG, &pid, sizeof(pid), GROUP_MS, &error), &error);
        }
    }
    for (int32_t i = 0; i < own->size; i++) {
        void *bytes;
        size_t size;
        int32_t from;
        if (i != own->rank) {
            bench_check(wherry_group_receive(own->group, i, PID_TAG, GROUP_MS, &bytes, &size, &from, &error), &error);
            memcpy(own->pids + i, bytes, sizeof(pid));
            wherry_free(bytes);
        }
    }
}

#ifdef BENCH_MPI
static void join(run *own, char **argv) {
    int provided = 0;
    wherry_error error;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    (void)argv;
    bench_check(wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &own->group, &error), &error);
    own->rank = wherry_group_rank(own->group);
    own->size = wherry_group_size(own->group);
}
#else
static void join(run *own, char **argv) {
    char address[256];
    wherry_error error;
    snprintf(address, sizeof(address), "%s?rank=%s&size=%s", argv[1], argv[2], argv[3]);
    bench_check(wherry_group_join(address, NULL, &own->group, &error), &error);
    own->rank = wherry_group_rank(own->group);
    own->size = wherry_group_size(own->group);
}
#endif

int main(int argc, char **argv) {
    if (argc < 9) {
        fprintf(stderr, "usage: bench_sources ADDRESS RANK SIZE TENSORS BYTES LANES DELAY_MS ROUND...\n");
        return 2;
    }
    run own = {
        .state = bench_state_uniform(strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10)),
        .lanes = argv[6],
        .delay_ms = strtol(argv[7], NULL, 10),
        .slow = PTHREAD_MUTEX_INITIALIZER,
    };
    wherry_error error;
    signal(SIGCONT, take_signal);
    signal(SIGUSR2, take_signal);
    bench_state_fill(&own.state, true);
    join(&own, argv);
    if (own.size > RANKS_MAX) {
        bench_die("at most %d ranks", RANKS_MAX);
    }
    bench_check(wherry_transport_create(own.group, NULL, &own.transport, &error), &error);
    exchange_pids(&own);
    for (int i = 8; i < argc; i++) {
        round_plan round = parse_round(argv[i], (uint32_t)(i - 8));
        play(&own, &round);
    }
    wherry_transport_destroy(own.transport);
    wherry_group_leave(own.group);
    bench_state_destroy(&own.state);
#ifdef BENCH_MPI
    MPI_Finalize();
#endif
    return EXIT_SUCCESS;
}
