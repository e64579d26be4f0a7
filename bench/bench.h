/**
 * @file bench.h  Code for the benchmarks of transfers: processes that start together, states, and
 * the references that Wherry is compared with.
 *
 * A benchmark runs as rank 0, the source, and one or more receivers, each in its own process. A
 * process that fails prints the reason and exits. Then the parent kills the others.
 */
#ifndef BENCH_H
#define BENCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <wherry/wherry.h>

enum {
    BENCH_RANKS_MAX = 4,
    BENCH_STEPS_MAX = 4,
    BENCH_STATES_MAX = 2,
    BENCH_REPEATS_MAX = 99,
    BENCH_STREAMS_MAX = 8,
    BENCH_HUGE_PAGE = 2 << 20,
};

/* ---- time and errors ---- */

/** The time in seconds, of a clock that is the same in all processes. */
double bench_now(void);

/** Prints a message, formatted like printf, and exits. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Exits unless the status is WHERRY_OK. */
void bench_check(wherry_status status, const wherry_error *error);

/** Like calloc, but exits if out of memory. */
void *bench_alloc(size_t count, size_t size);

/** Sorts the figures and returns their median. */
double bench_median(double *figures, int count);

/** For options.target: provides options.target_context, a value, as the target. */
wherry_status bench_give_target(void *context, const wherry_value **target_p);

/* ---- processes ---- */

/** The results of one step, other than its duration. */
typedef struct bench_note {
    /** Statistics of the first receiver per repeat, if the step is a transfer. */
    wherry_stats receiver[BENCH_REPEATS_MAX];
    wherry_stats source[BENCH_REPEATS_MAX]; /**< Statistics of the source per repeat. */
    /** Extra memory per rank during its first call, in bytes; INT64_MIN if unknown. */
    int64_t growth[BENCH_RANKS_MAX];
} bench_note;

/** Memory that all processes of a benchmark share. */
typedef struct bench_world {
    uint32_t ranks;
    pthread_barrier_t gate;
    struct timespec moment; /**< The time when all ranks leave bench_line_up. */
    pid_t source;           /**< The process of rank 0. */
    /** The addresses of its tables of extents, one per state. */
    struct iovec tables[BENCH_STATES_MAX];
    double begin[BENCH_RANKS_MAX]; /**< Per rank: the time when the step began. */
    double end[BENCH_RANKS_MAX];
    /** Number of connections that the last transfer of the first receiver used. */
    uint32_t connections;
    /** TCP connections over loopback: the end of the source and the end of the receiver. */
    int streams[BENCH_STREAMS_MAX][2];
    /** A pair of Unix sockets: the end of the first receiver and the end of the source. */
    int pair[2];
    double seconds[BENCH_STEPS_MAX][BENCH_REPEATS_MAX];
    bench_note notes[BENCH_STEPS_MAX];
} bench_world;

/** The function that each process runs. */
typedef void (*bench_role_fn)(bench_world *world, int32_t rank, void *context);

/** Creates the shared memory and the sockets. */
bench_world *bench_world_create(uint32_t ranks);

/**
 * Runs a role in one process per rank and waits for all processes. @return false if a process
 * failed; then the others were killed.
 */
bool bench_world_run(bench_world *world, bench_role_fn role, void *context);

void bench_world_destroy(bench_world *world);

/** Waits until all ranks are here. */
void bench_gate(bench_world *world);

/**
 * Waits until all ranks are here. All leave at the same time, on different processors: see
 * bench_start.h.
 */
void bench_line_up(bench_world *world);

/**
 * Resets the peak of this process's resident memory. @return the current resident memory in bytes;
 * negative if the peak cannot be reset.
 */
int64_t bench_memory_mark(void);

/** The peak of this process's resident memory since bench_memory_mark, in bytes. */
int64_t bench_memory_peak(void);

/* ---- states ---- */

/** A state and the memory of its tensors. */
typedef struct bench_state {
    wherry_value *value;
    struct iovec *extents;
    size_t count;
    uint64_t bytes;
} bench_state;

/** Creates a state of tensors of the same size, each with its own storage. */
bench_state bench_state_uniform(size_t tensors, uint64_t nbytes);

/** Creates a state of layers of a language model with 7 billion parameters, in bfloat16. */
bench_state bench_state_layers(size_t layers);

void bench_state_destroy(bench_state *state);

/** Writes every byte: with the content of the source if `source` is true, otherwise with zeros. */
void bench_state_fill(const bench_state *state, bool source);

/** Exits unless each tensor of a received value begins and ends with the source's bytes. */
void bench_state_check(const wherry_value *value);

/* ---- references ---- */

/**
 * The extents of a state here and at the source, cut into pieces. Each piece is read by one system
 * call.
 */
typedef struct bench_reads {
    pid_t source;
    struct iovec *local;
    struct iovec *remote;
    size_t count;
    struct bench_batch *batches;
    size_t batch_count;
} bench_reads;

/** Prepares to read state number `number` of the source, which has the same shape as `state`. */
bench_reads bench_reads_create(const bench_world *world, size_t number, const bench_state *state);

void bench_reads_destroy(bench_reads *reads);

/**
 * Two threads read everything with process_vm_readv. @return the seconds, without the time to start
 * the threads.
 */
double bench_reads_run(const bench_reads *reads);

/**
 * Like bench_reads_run, but into new huge pages, which the threads touch first. @return the
 * seconds, including the time to map the pages.
 */
double bench_reads_run_fresh(const bench_reads *reads, const bench_state *state);

/**
 * Two threads copy a state to another of the same shape. @return the seconds, without the time to
 * start the threads.
 */
double bench_copies_run(const bench_state *from, const bench_state *to);

/** Moves a state over plain sockets, one thread per connection. `write` is true at the source. */
void bench_plain(const bench_world *world, const bench_state *state, bool write);

/** What limits a transfer on this machine. */
typedef enum bench_limit {
    BENCH_LIMIT_COPY, /**< Two threads copy memory within a process. */
    BENCH_LIMIT_READ, /**< Two threads read another process's memory. */
    BENCH_LIMIT_TCP,  /**< Two plain TCP connections over loopback. */
    BENCH_LIMITS,     /**< Number of limits. */
} bench_limit;

extern const char *const bench_limit_names[BENCH_LIMITS];

/**
 * Measures a limit between two new processes. @return bytes per second, the median of `repeats`
 * after a warm-up; 0 on failure.
 */
double bench_limit_rate(bench_limit limit, uint64_t bytes, uint32_t repeats);

/** Does `count` round trips of one byte over a Unix socket. The receiver starts. */
void bench_round_trips(const bench_world *world, bool source, int count);

#endif
