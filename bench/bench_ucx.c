/*
 * bench_ucx PAGES TENSORS BYTES REPEATS: transfers a state between two processes over the
 * ucx lane, alternating with plain UCX: tagged and active messages, with one and with two threads.
 * PAGES is the memory of long tensors: "small" pages, as malloc provides them, or "huge" pages, as
 * wherry_storage_allocate provides them. Prints a line of JSON with the seconds of each repeat.
 * UCX_TLS applies to both. The first round is a warm-up. Its data is checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_ucx_plain.h"

enum { STEPS = 6 };

typedef struct step {
    const char *name;
    int threads; /**< Number of threads of plain UCX; 0 for the lane. */
    plain_api api;
    wherry_verify verify;
} step;

static const step steps[STEPS] = {
    {.name = "lane", .verify = WHERRY_VERIFY_OFF},     {.name = "tag 1", .threads = 1, .api = PLAIN_TAG},
    {.name = "tag 2", .threads = 2, .api = PLAIN_TAG}, {.name = "am 1", .threads = 1, .api = PLAIN_AM},
    {.name = "am 2", .threads = 2, .api = PLAIN_AM},   {.name = "checked", .verify = WHERRY_VERIFY_ON},
};

/** Memory that both processes share, in addition to the world. */
typedef struct board {
    plain_meeting meeting;
    double seconds[STEPS][BENCH_REPEATS_MAX];
    wherry_stats stats;
} board;

typedef struct run {
    bool huge;
    size_t tensors;
    uint64_t bytes;
    int repeats;
    board *board;
    wherry_transport *transport;
    bench_state state;
} run;

/** Creates a state whose memory is untouched. */
static bench_state create_state(const run *own) {
    bench_state state = bench_state_uniform(own->tensors, own->bytes);
    for (size_t i = 0; i < state.count && own->bytes >= BENCH_HUGE_PAGE; i++) {
        if (madvise(state.extents[i].iov_base, state.extents[i].iov_len, own->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) !=
            0) {
            bench_die("the system does not let a program choose the size of its pages");
        }
    }
    return state;
}

static void ferry(run *own, bool source, const step *what, bool first) {
    wherry_transfer_options options;
    wherry_error error;
    wherry_transfer_options_init(&options);
    options.lanes = "ucx";
    options.verify = what->verify;
    if (source) {
        bench_check(wherry_checkpoint_send(own->transport, (int32_t[]){1}, 1, own->state.value, &options, NULL, &error),
                    &error);
        return;
    }
    options.target = bench_give_target;
    options.target_context = own->state.value;
    options.stats = &own->board->stats;
    bench_check(wherry_checkpoint_recv(own->transport, 0, &options, NULL, &error), &error);
    if (first) {
        bench_state_check(own->state.value);
    }
}

static void play(bench_world *world, int32_t rank, void *context) {
    run *own = context;
    wherry_group *group;
    wherry_error error;
    char address[128];
    bool source = rank == 0;
    own->state = create_state(own);
    bench_state_fill(&own->state, source);
    snprintf(address, sizeof(address), "unix:///tmp/wherry-bench-ucx-%d.sock?rank=%d&size=2", (int)getppid(),
             (int)rank);
    bench_check(wherry_group_join(address, NULL, &group, &error), &error);
    bench_check(wherry_transport_create(group, NULL, &own->transport, &error), &error);
    plain_ucx *plain = plain_create(world, &own->board->meeting, source);
    for (int repeat = -1; repeat < own->repeats; repeat++) {
        for (int i = 0; i < STEPS; i++) {
            if (repeat < 0 && !source) {
                /* With this, the check sees only data of this step. */
                bench_state_fill(&own->state, false);
            }
            bench_line_up(world);
            double begin = bench_now();
            if (steps[i].threads) {
                plain_run(plain, &own->state, steps[i].api, steps[i].threads);
            } else {
                ferry(own, source, steps + i, repeat < 0);
            }
            if (!source && repeat >= 0) {
                own->board->seconds[i][repeat] = bench_now() - begin;
            }
            bench_gate(world);
        }
    }
    bench_gate(world);
    plain_destroy(plain);
    wherry_transport_destroy(own->transport);
    wherry_group_leave(group);
    bench_state_destroy(&own->state);
}

static void print_list(const char *before, const char *name, const double *values, int repeats) {
    printf("%s\"%s\": [", before, name);
    for (int repeat = 0; repeat < repeats; repeat++) {
        printf("%s%.9f", repeat ? ", " : "", values[repeat]);
    }
    printf("]");
}

static void print_board(const run *own) {
    const board *all = own->board;
    printf("{\"bytes\": %llu, \"detail\": \"%s\", \"workers\": %u, \"steps\": {",
           (unsigned long long)own->tensors * own->bytes, all->stats.detail, (unsigned)all->stats.workers);
    for (int i = 0; i < STEPS; i++) {
        print_list(i ? ", " : "", steps[i].name, all->seconds[i], own->repeats);
    }
    printf("}}\n");
}

int main(int argc, char **argv) {
    run own = {.huge = argc == 5 && strcmp(argv[1], "huge") == 0};
    if (argc == 5 && (own.huge || strcmp(argv[1], "small") == 0)) {
        own.tensors = strtoul(argv[2], NULL, 10);
        own.bytes = strtoull(argv[3], NULL, 10);
        own.repeats = (int)strtol(argv[4], NULL, 10);
    }
    if (!own.tensors || own.bytes < 64 || own.bytes % 64 || own.repeats < 1 || own.repeats > BENCH_REPEATS_MAX) {
        fprintf(stderr,
                "usage: bench_ucx small|huge TENSORS BYTES REPEATS (bytes a multiple of 64, at most %d repeats)\n",
                BENCH_REPEATS_MAX);
        return 2;
    }
    own.board = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (own.board == MAP_FAILED) {
        bench_die("cannot map shared memory");
    }
    unsetenv("WHERRY_LANES");
    bench_world *world = bench_world_create(2);
    bool good = bench_world_run(world, play, &own);
    if (good) {
        print_board(&own);
    }
    bench_world_destroy(world);
    munmap(own.board, sizeof(board));
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
