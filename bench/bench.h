/**
 * @file bench.h  What the benchmarks of transfers share: processes that start together, states, and what Wherry is
 * measured against.
 *
 * A benchmark runs as rank 0, the source, and one or more receivers, each a process of its own. A process that cannot
 * go on says why and ends; whoever started it ends the others.
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

/* ---- time, and failing ---- */

/** Seconds of the clock that all processes share. */
double bench_now(void);

/** Ends the process with a message, as printf's. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Ends the process unless the status is WHERRY_OK. */
void bench_check(wherry_status status, const wherry_error *error);

/** Memory that is never lacking. */
void *bench_alloc(size_t count, size_t size);

/** The middle one of some figures, which are sorted. */
double bench_median(double *figures, int count);

/** options.target of a receive into options.target_context. */
wherry_status bench_give_target(void *context, const wherry_value **target_p);

/* ---- processes ---- */

/** What one measured thing left behind, besides its seconds. */
typedef struct bench_note {
    wherry_stats receiver[BENCH_REPEATS_MAX]; /**< Of each repeat, where it is a transfer; of the first receiver. */
    wherry_stats source[BENCH_REPEATS_MAX];   /**< Likewise. */
    int64_t growth[BENCH_RANKS_MAX]; /**< Bytes that each rank took for its first call; INT64_MIN: not known. */
} bench_note;

/** Memory that all processes of a benchmark share. */
typedef struct bench_world {
    uint32_t ranks;
    pthread_barrier_t gate;
    struct timespec moment;                /**< At which all ranks leave bench_line_up. */
    pid_t source;                          /**< The process of rank 0, */
    struct iovec tables[BENCH_STATES_MAX]; /**< and where it keeps the extents of its states. */
    double begin[BENCH_RANKS_MAX];         /**< Of the measured thing, as each rank saw it. */
    double end[BENCH_RANKS_MAX];
    uint32_t connections;              /**< That the first receiver's last transfer used. */
    int streams[BENCH_STREAMS_MAX][2]; /**< TCP connections over loopback: the source's end, the receiver's. */
    int pair[2];                       /**< A Unix socket: the first receiver's end, the source's. */
    double seconds[BENCH_STEPS_MAX][BENCH_REPEATS_MAX];
    bench_note notes[BENCH_STEPS_MAX];
} bench_world;

/** What each process does. */
typedef void (*bench_role_fn)(bench_world *world, int32_t rank, void *context);

/** Makes a world, with its sockets. */
bench_world *bench_world_create(uint32_t ranks);

/** Runs a role as so many processes, and waits for them. @return false where one failed: the others have been ended. */
bool bench_world_run(bench_world *world, bench_role_fn role, void *context);

void bench_world_destroy(bench_world *world);

/** Waits, asleep, for all ranks. */
void bench_gate(bench_world *world);

/** The same, and then all leave at one moment, each on a processor of its own: bench_start.h. */
void bench_line_up(bench_world *world);

/** Sets the peak of this process's resident memory back to what it has now. @return that; negative: not possible. */
int64_t bench_memory_mark(void);

/** The peak of this process's resident memory, in bytes, since then. */
int64_t bench_memory_peak(void);

/* ---- states ---- */

/** A state, and where its tensors lie. */
typedef struct bench_state {
    wherry_value *value;
    struct iovec *extents;
    size_t count;
    uint64_t bytes;
} bench_state;

/** So many tensors of so many bytes, each of its own storage. */
bench_state bench_state_uniform(size_t tensors, uint64_t nbytes);

/** Layers of a language model of 7 billion parameters in bfloat16. */
bench_state bench_state_layers(size_t layers);

void bench_state_destroy(bench_state *state);

/** Writes every byte: as the source has them, or zeros. */
void bench_state_fill(const bench_state *state, bool source);

/** Ends the process unless each tensor of a received value begins and ends with the source's bytes. */
void bench_state_check(const wherry_value *value);

/* ---- what is measured against ---- */

/** Extents here and at the source, cut into pieces and ready for a call each. */
typedef struct bench_reads {
    pid_t source;
    struct iovec *local;
    struct iovec *remote;
    size_t count;
    struct bench_batch *batches;
    size_t batch_count;
} bench_reads;

/** Reads the source's table of the extents of its state of that number, which has the shape of this one. */
bench_reads bench_reads_create(const bench_world *world, size_t number, const bench_state *state);

void bench_reads_destroy(bench_reads *reads);

/** Two threads read all of it by process_vm_readv. @return seconds, without those of starting the threads. */
double bench_reads_run(const bench_reads *reads);

/** The same into new memory in huge pages, which the threads touch first. @return seconds from before it is mapped. */
double bench_reads_run_fresh(const bench_reads *reads, const bench_state *state);

/** Two threads copy a state to another of the same shape, within this process. @return seconds, without those of starting the threads. */
double bench_copies_run(const bench_state *from, const bench_state *to);

/** Moves a state's bytes over plain sockets, a thread a connection: `write`, the source's side, or the receiver's. */
void bench_plain(const bench_world *world, const bench_state *state, bool write);

/** So many messages of one byte to and fro over a Unix socket; the receiver asks, the source answers. */
void bench_round_trips(const bench_world *world, bool source, int count);

#endif
