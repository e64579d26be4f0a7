/* The machine's own limits, by the code that the project's benchmarks are held against. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "measure.h"

enum { TENSORS = 16, CONNECTIONS = 2 };

const char *const wh_limit_names[WH_LIMITS] = {
    [WH_LIMIT_COPY] = "memcpy, 2 threads",
    [WH_LIMIT_READ] = "process_vm_readv, 2 threads",
    [WH_LIMIT_TCP] = "TCP over loopback, 2 connections",
};

typedef struct wishes {
    uint64_t bytes;
    uint32_t repeats;
    wh_limit_kind kind;
} wishes;

static void copy_all(bench_world *world, const bench_state *state, const wishes *w) {
    bench_state other = bench_state_uniform(TENSORS, w->bytes / TENSORS);
    bench_state_fill(&other, false);
    for (uint32_t i = 0; i <= w->repeats; i++) {
        double seconds = bench_copies_run(state, &other);
        world->seconds[0][i ? i - 1 : 0] = seconds;
    }
    bench_state_destroy(&other);
}

static void read_all(bench_world *world, const bench_state *state, const wishes *w) {
    bench_reads reads = bench_reads_create(world, 0, state);
    for (uint32_t i = 0; i <= w->repeats; i++) {
        double seconds = bench_reads_run(&reads);
        world->seconds[0][i ? i - 1 : 0] = seconds;
    }
    bench_reads_destroy(&reads);
}

static void stream_all(bench_world *world, int32_t rank, const bench_state *state, const wishes *w) {
    for (uint32_t i = 0; i <= w->repeats; i++) {
        bench_line_up(world);
        double begin = bench_now();
        bench_plain(world, state, rank == 0);
        if (rank == 1) {
            world->seconds[0][i ? i - 1 : 0] = bench_now() - begin;
        }
    }
}

static void play(bench_world *world, int32_t rank, void *context) {
    const wishes *w = context;
    if (w->kind == WH_LIMIT_READ) {
        /* Where that is forbidden there is no limit to tell, and nothing to complain about. */
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(nowhere, STDERR_FILENO);
    }
    bench_state state = bench_state_uniform(TENSORS, w->bytes / TENSORS);
    bench_state_fill(&state, true);
    if (rank == 0) {
        world->tables[0] = (struct iovec){state.extents, state.count * sizeof(*state.extents)};
        world->connections = CONNECTIONS;
    }
    bench_gate(world);
    if (w->kind == WH_LIMIT_TCP) {
        stream_all(world, rank, &state, w);
    } else if (rank == 1) {
        (w->kind == WH_LIMIT_COPY ? copy_all : read_all)(world, &state, w);
    }
    bench_gate(world);
    bench_state_destroy(&state);
}

void wh_limits_measure(uint64_t bytes, uint32_t repeats, wh_limit limits[WH_LIMITS]) {
    for (int i = 0; i < WH_LIMITS; i++) {
        wishes w = {bytes, repeats, (wh_limit_kind)i};
        bench_world *world = bench_world_create(2);
        wh_trial_lane seconds = {.repeats = repeats};
        limits[i].rate = 0;
        if (bench_world_run(world, play, &w)) {
            memcpy(seconds.seconds, world->seconds[0], repeats * sizeof(double));
            double median = wh_trial_median(&seconds);
            limits[i].rate = median > 0 ? (double)bytes / median : 0;
        }
        bench_world_destroy(world);
    }
}
