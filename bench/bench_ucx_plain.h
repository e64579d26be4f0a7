/** @file bench_ucx_plain.h  What a program does that uses UCX itself: its own workers, large buffers, nothing else. */
#ifndef BENCH_UCX_PLAIN_H
#define BENCH_UCX_PLAIN_H

#include "bench.h"

enum { PLAIN_THREADS_MAX = 2, PLAIN_ADDRESS_MAX = 4096 };

typedef enum plain_api { PLAIN_TAG, PLAIN_AM } plain_api;

/** Where the addresses of the workers are exchanged: memory that both processes share. */
typedef struct plain_meeting {
    size_t sizes[2][PLAIN_THREADS_MAX];
    unsigned char addresses[2][PLAIN_THREADS_MAX][PLAIN_ADDRESS_MAX];
} plain_meeting;

typedef struct plain_ucx plain_ucx;

/** Makes workers and connects them, those of one process with those of the other. Both call it at once. */
plain_ucx *plain_create(bench_world *world, plain_meeting *meeting, bool source);

/** Moves the extents: all sends and all receives are posted at once, by so many threads, each on a worker of its own. Returns when this side is through. */
void plain_run(plain_ucx *ucx, const bench_state *state, plain_api api, int threads);

void plain_destroy(plain_ucx *ucx);

#endif
