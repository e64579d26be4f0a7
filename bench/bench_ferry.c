/*
 * bench_ferry CASE REPEATS: transfers a state between processes repeatedly, alternating with a
 * reference. Prints a line of JSON: the seconds per repeat and per phase, and the extra memory of
 * the first call. The first round is a warm-up. Its data is checked.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

#define MIB (UINT64_C(1) << 20)

typedef enum step_kind {
    STEP_NONE,
    FERRY,       /**< A transfer in place. */
    FERRY_NEW,   /**< A transfer into new memory. */
    READ,        /**< Two threads read with process_vm_readv. */
    READ_NEW,    /**< The same as READ, but into new memory. */
    PLAIN,       /**< The bytes go over plain sockets. */
    ROUND_TRIPS, /**< Round trips of one byte. */
} step_kind;

/** One measurement. */
typedef struct step {
    step_kind kind;
    const char *name;
    size_t state; /**< Index of the state. */
    /** Number of calls that are measured together, if one is too short; 0 means one. */
    int calls;
    const char *lanes; /**< Same as wherry_transfer_options.lanes. */
    wherry_verify verify;
} step;

/**
 * The measurements in one set of processes. The first one is a transfer, so that its memory is
 * untouched before.
 */
typedef struct bench_case {
    const char *name;
    uint32_t receivers;
    bool tcp;
    bench_state (*create[BENCH_STATES_MAX])(void);
    step steps[BENCH_STEPS_MAX];
} bench_case;

static bench_state one_gib(void) {
    return bench_state_uniform(16, 64 * MIB);
}

static bench_state eight_layers(void) {
    return bench_state_layers(8);
}

static bench_state pages_20000(void) {
    return bench_state_uniform(20000, 4096);
}

static bench_state small_20000(void) {
    return bench_state_uniform(20000, 64);
}

static bench_state small_200000(void) {
    return bench_state_uniform(200000, 64);
}

static bench_state nothing(void) {
    return bench_state_uniform(0, 0);
}

/** Each lane alone. */
#define LANES                                                                                                          \
    {                                                                                                                  \
        {.kind = FERRY, .name = "cma", .lanes = "cma"}, {.kind = FERRY, .name = "ring", .lanes = "ring"}, {            \
            .kind = FERRY, .name = "stream", .lanes = "stream"                                                         \
        }                                                                                                              \
    }

static const bench_case cases[] = {
    {"gib", 1, false, {one_gib}, {{.kind = FERRY, .name = "ours"}, {.kind = READ, .name = "limit"}}},
    {"layers", 1, false, {eight_layers}, {{.kind = FERRY, .name = "ours"}, {.kind = READ, .name = "limit"}}},
    {"pages", 1, false, {pages_20000}, {{.kind = FERRY, .name = "ours"}, {.kind = READ, .name = "limit"}}},
    {"small",
     1,
     false,
     {small_200000, small_20000},
     {{.kind = FERRY, .name = "ours"},
      {.kind = FERRY, .name = "limit", .state = 1},
      {.kind = READ, .name = "read"},
      {.kind = READ, .name = "read20", .state = 1}}},
    {"new", 1, false, {one_gib}, {{.kind = FERRY_NEW, .name = "ours"}, {.kind = READ_NEW, .name = "limit"}}},
    {"tcp",
     1,
     true,
     {one_gib},
     {{.kind = FERRY, .name = "ours", .lanes = "stream", .verify = WHERRY_VERIFY_OFF},
      {.kind = PLAIN, .name = "limit"},
      {.kind = FERRY, .name = "verify", .lanes = "stream", .verify = WHERRY_VERIFY_ON}}},
    {"three", 3, false, {one_gib}, {{.kind = FERRY, .name = "ours"}, {.kind = READ, .name = "limit"}}},
    {"empty",
     1,
     false,
     {nothing},
     {{.kind = FERRY, .name = "ours", .calls = 20}, {.kind = ROUND_TRIPS, .name = "limit", .calls = 200}}},
    {"lanes", 1, false, {one_gib}, LANES},
    {"lanes-pages", 1, false, {pages_20000}, LANES},
    {"lanes-small", 1, false, {small_200000}, LANES},
};

enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/** A run of a case, in one of its processes. */
typedef struct run {
    const bench_case *what;
    int repeats;
    char address[128];
    bench_world *world;
    int32_t rank;
    wherry_group *group;
    wherry_transport *transport;
    bench_state states[BENCH_STATES_MAX];
    bench_reads reads[BENCH_STATES_MAX]; /**< Used by the first receiver, in some steps. */
} run;

/* ---- the steps ---- */

static bool is_ferry(const step *what) {
    return what->kind == FERRY || what->kind == FERRY_NEW;
}

static void send_once(run *own, const step *what, const wherry_transfer_options *options, wherry_stats *stats) {
    static const int32_t ranks[] = {1, 2, 3};
    wherry_outcome outcomes[BENCH_RANKS_MAX];
    wherry_error error;
    bench_check(wherry_checkpoint_send(own->transport, ranks, own->what->receivers, own->states[what->state].value,
                                       options, outcomes, &error),
                &error);
    *stats = outcomes[0].stats;
}

/** Receives once. @return the state, owned by the caller. */
static wherry_value *receive_once(run *own, const step *what, wherry_transfer_options *options, wherry_stats *stats) {
    wherry_error error;
    wherry_value *state;
    if (what->kind == FERRY) {
        options->target = bench_give_target;
        options->target_context = own->states[what->state].value;
    }
    options->stats = stats;
    bench_check(wherry_checkpoint_recv(own->transport, 0, options, &state, &error), &error);
    own->world->end[own->rank] = bench_now();
    if (own->rank == 1) {
        own->world->connections = stats->workers;
    }
    return state;
}

/** One transfer. @return the seconds that the receiver's call took. */
static double ferry(run *own, const step *what, bool first, wherry_stats *stats, int64_t *growth) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.lanes = what->lanes;
    options.verify = what->verify;
    int64_t before = first ? bench_memory_mark() : 0;
    wherry_value *received = NULL;
    bench_line_up(own->world);
    own->world->begin[own->rank] = bench_now();
    if (own->rank == 0) {
        send_once(own, what, &options, stats);
    } else {
        received = receive_once(own, what, &options, stats);
    }
    double seconds = own->world->end[own->rank] - own->world->begin[own->rank];
    if (first) {
        int64_t expected = received && what->kind == FERRY_NEW ? (int64_t)own->states[what->state].bytes : 0;
        *growth = before < 0 ? INT64_MIN : bench_memory_peak() - before - expected;
        if (received) {
            bench_state_check(received);
        }
    }
    wherry_value_destroy(received);
    return seconds;
}

/** The seconds until the last receiver had finished. */
static double until_the_last(const run *own) {
    const bench_world *world = own->world;
    double begin = world->begin[1];
    double end = world->end[1];
    for (uint32_t i = 2; i <= own->what->receivers; i++) {
        begin = world->begin[i] < begin ? world->begin[i] : begin;
        end = world->end[i] > end ? world->end[i] : end;
    }
    return end - begin;
}

static double ferry_step(run *own, const step *what, int repeat) {
    bench_note *note = own->world->notes + (what - own->what->steps);
    int calls = what->calls && repeat >= 0 ? what->calls : 1;
    double sum = 0;
    wherry_stats stats;
    for (int i = 0; i < calls; i++) {
        sum += ferry(own, what, repeat < 0, &stats, note->growth + own->rank);
    }
    if (repeat >= 0 && own->rank < 2) {
        (own->rank == 0 ? note->source : note->receiver)[repeat] = stats;
    }
    bench_gate(own->world);
    return own->what->receivers > 1 ? until_the_last(own) : sum / calls;
}

/** Runs a step that only the source and the first receiver take part in. The others wait. */
static double other_step(run *own, const step *what) {
    const bench_state *state = own->states + what->state;
    double seconds = 0;
    bench_line_up(own->world);
    double begin = bench_now();
    if (own->rank > 1) {
        bench_gate(own->world);
        return 0;
    }
    if (what->kind == PLAIN) {
        bench_plain(own->world, state, own->rank == 0);
        seconds = bench_now() - begin;
    } else if (what->kind == ROUND_TRIPS) {
        bench_round_trips(own->world, own->rank == 0, what->calls);
        seconds = (bench_now() - begin) / what->calls;
    } else if (own->rank == 1) {
        const bench_reads *reads = own->reads + what->state;
        seconds = what->kind == READ ? bench_reads_run(reads) : bench_reads_run_fresh(reads, state);
    }
    bench_gate(own->world);
    return seconds;
}

/* ---- a process ---- */

static void set_up(run *own) {
    wherry_error error;
    char address[192];
    for (size_t i = 0; i < BENCH_STATES_MAX && own->what->create[i]; i++) {
        own->states[i] = own->what->create[i]();
        bench_state_fill(own->states + i, own->rank == 0);
        if (own->rank == 0) {
            own->world->tables[i] = (struct iovec){own->states[i].extents, own->states[i].count * sizeof(struct iovec)};
        }
    }
    /* Without shortcut=0, the TCP case would use Unix sockets. */
    snprintf(address, sizeof(address), "%s?rank=%d&size=%u&shortcut=0", own->address, (int)own->rank,
             (unsigned)own->world->ranks);
    bench_check(wherry_group_join(address, NULL, &own->group, &error), &error);
    bench_check(wherry_transport_create(own->group, NULL, &own->transport, &error), &error);
    bench_gate(own->world);
}

/**
 * Prepares the reads of a step. Called after the first transfer, because it would hide the extra
 * memory of that transfer.
 */
static void make_reads(run *own, const step *what) {
    if (own->rank == 1 && (what->kind == READ || what->kind == READ_NEW) && !own->reads[what->state].source) {
        own->reads[what->state] = bench_reads_create(own->world, what->state, own->states + what->state);
    }
}

static void play(bench_world *world, int32_t rank, void *context) {
    run *own = context;
    own->world = world;
    own->rank = rank;
    set_up(own);
    for (int repeat = -1; repeat < own->repeats; repeat++) {
        for (const step *what = own->what->steps; what < own->what->steps + BENCH_STEPS_MAX && what->kind; what++) {
            make_reads(own, what);
            double seconds = is_ferry(what) ? ferry_step(own, what, repeat) : other_step(own, what);
            if (rank == 1 && repeat >= 0) {
                world->seconds[what - own->what->steps][repeat] = seconds;
            }
        }
    }
    wherry_transport_destroy(own->transport);
    wherry_group_leave(own->group);
    for (size_t i = 0; i < BENCH_STATES_MAX; i++) {
        bench_reads_destroy(own->reads + i);
        bench_state_destroy(own->states + i);
    }
}

/* ---- all processes ---- */

static void choose_address(run *own) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    if (!own->what->tcp) {
        snprintf(own->address, sizeof(own->address), "unix:///tmp/wherry-bench-%d.sock", (int)getpid());
        return;
    }
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    if (probe < 0 || bind(probe, (struct sockaddr *)&address, size) != 0 ||
        getsockname(probe, (struct sockaddr *)&address, &size) != 0) {
        bench_die("cannot find a free port: %s", strerror(errno));
    }
    close(probe);
    snprintf(own->address, sizeof(own->address), "tcp://127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
}

/** Prints one number per repeat. The numbers are `apart` bytes apart in memory. */
static void print_list(const char *name, const double *first, size_t apart, int count) {
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const char *)first + (size_t)i * apart, sizeof(value));
        printf("%s%.9f", i ? ", " : "", value);
    }
    printf("]");
}

static void print_transfer(const bench_note *note, uint32_t ranks, int repeats) {
    const wherry_stats *stats = note->receiver;
    printf(", \"lane\": \"%s\", \"workers\": %u, \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"growth\": [",
           stats->lane, (unsigned)stats->workers, stats->tensors, stats->bytes_wanted);
    for (uint32_t i = 0; i < ranks; i++) {
        printf("%s", i ? ", " : "");
        if (note->growth[i] == INT64_MIN) {
            printf("null");
        } else {
            printf("%" PRId64, note->growth[i]);
        }
    }
    printf("], \"phases\": {");
    print_list("prepare", &note->source->prepare_seconds, sizeof(wherry_stats), repeats);
    printf(", ");
    print_list("offer", &stats->offer_seconds, sizeof(wherry_stats), repeats);
    printf(", ");
    print_list("plan", &stats->plan_seconds, sizeof(wherry_stats), repeats);
    printf(", ");
    print_list("data", &stats->data_seconds, sizeof(wherry_stats), repeats);
    printf(", ");
    print_list("release", &stats->release_seconds, sizeof(wherry_stats), repeats);
    printf(", ");
    print_list("total", &stats->total_seconds, sizeof(wherry_stats), repeats);
    printf("}");
}

static void print_world(const run *own, const bench_world *world) {
    printf("{\"case\": \"%s\", \"receivers\": %u, \"steps\": {", own->what->name, (unsigned)own->what->receivers);
    for (int i = 0; i < BENCH_STEPS_MAX && own->what->steps[i].kind; i++) {
        const step *what = own->what->steps + i;
        printf("%s\"%s\": {", i ? ", " : "", what->name);
        print_list("seconds", world->seconds[i], sizeof(double), own->repeats);
        if (is_ferry(what)) {
            print_transfer(world->notes + i, world->ranks, own->repeats);
        }
        printf("}");
    }
    printf("}}\n");
}

int main(int argc, char **argv) {
    run own = {.repeats = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9};
    for (size_t i = 0; argc > 1 && i < CASES; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            own.what = cases + i;
        }
    }
    if (!own.what || own.repeats < 1 || own.repeats > BENCH_REPEATS_MAX) {
        fprintf(stderr, "usage: bench_ferry CASE REPEATS (at most %d); cases:", BENCH_REPEATS_MAX);
        for (size_t i = 0; i < CASES; i++) {
            fprintf(stderr, " %s", cases[i].name);
        }
        fprintf(stderr, "\n");
        return 2;
    }
    unsetenv("WHERRY_LANES");
    choose_address(&own);
    bench_world *world = bench_world_create(own.what->receivers + 1);
    bool good = bench_world_run(world, play, &own);
    if (good) {
        print_world(&own, world);
    }
    bench_world_destroy(world);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
