/** @file bench_ucx_plain.h  Transfers that use UCX directly: the reference for the ucx lane. */
#ifndef BENCH_UCX_PLAIN_H
#define BENCH_UCX_PLAIN_H

#include "bench.h"

enum { PLAIN_THREADS_MAX = 2, PLAIN_ADDRESS_MAX = 4096 };

typedef enum plain_api { PLAIN_TAG, PLAIN_AM } plain_api;

/** Shared memory in which the processes exchange the addresses of their workers. */
typedef struct plain_meeting {
    size_t sizes[2][PLAIN_THREADS_MAX];
    unsigned char addresses[2][PLAIN_THREADS_MAX][PLAIN_ADDRESS_MAX];
} plain_meeting;

typedef struct plain_ucx plain_ucx;

/**
 * Creates workers and connects them to the workers of the other process. Both processes call it
 * together.
 */
plain_ucx *plain_create(bench_world *world, plain_meeting *meeting, bool source);

/**
 * Moves the extents with one worker per thread. All operations are posted at once. Returns when
 * this side has completed them.
 */
void plain_run(plain_ucx *ucx, const bench_state *state, plain_api api, int threads);

void plain_destroy(plain_ucx *ucx);

#endif
