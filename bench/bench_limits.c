/* The references that Wherry is compared with: the same bytes, moved in the simplest way. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

enum { THREADS = 2, PIECE = 4 << 20, CONNECTIONS = 2, TENSORS = 16 };

/** The pieces that one call reads. */
typedef struct bench_batch {
    size_t first;
    size_t count;
    size_t bytes;
} bench_batch;

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* ---- threads ---- */

/** One of the threads that share the work, and when it began and ended. */
typedef struct lap {
    void (*work)(void *context);
    void *context;
    double begin;
    double end;
} lap;

static void *run_lap(void *context) {
    lap *own = context;
    own->begin = bench_now();
    own->work(own->context);
    own->end = bench_now();
    return NULL;
}

/** Runs work on all threads. @return the seconds from the first start to the last end. */
static double run_laps(void (*work)(void *context), void *context) {
    lap laps[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        laps[i] = (lap){.work = work, .context = context};
        if (pthread_create(threads + i, NULL, run_lap, laps + i) != 0) {
            bench_die("cannot start a thread");
        }
    }
    double begin = 0;
    double end = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        begin = i == 0 || laps[i].begin < begin ? laps[i].begin : begin;
        end = laps[i].end > end ? laps[i].end : end;
    }
    return end - begin;
}

/* ---- reading another process's memory ---- */

static struct iovec *fetch_table(const bench_world *world, size_t number, size_t count) {
    struct iovec remote = world->tables[number];
    struct iovec *table = bench_alloc(count, sizeof(*table));
    struct iovec local = {table, count * sizeof(*table)};
    if (remote.iov_len != local.iov_len ||
        process_vm_readv(world->source, &local, 1, &remote, 1, 0) != (ssize_t)local.iov_len) {
        bench_die("cannot read the memory of the source, which is the reference: %s", strerror(errno));
    }
    return table;
}

/** Cuts all extents into pieces. */
static void cut(bench_reads *reads, const struct iovec *local, const struct iovec *remote, size_t count) {
    size_t pieces = 0;
    for (size_t i = 0; i < count; i++) {
        pieces += local[i].iov_len / PIECE + 1;
    }
    reads->local = bench_alloc(pieces, sizeof(struct iovec));
    reads->remote = bench_alloc(pieces, sizeof(struct iovec));
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; at < local[i].iov_len; at += PIECE) {
            size_t size = least(PIECE, local[i].iov_len - at);
            reads->local[reads->count] = (struct iovec){(char *)local[i].iov_base + at, size};
            reads->remote[reads->count++] = (struct iovec){(char *)remote[i].iov_base + at, size};
        }
    }
}

bench_reads bench_reads_create(const bench_world *world, size_t number, const bench_state *state) {
    bench_reads reads = {.source = world->source};
    struct iovec *remote = fetch_table(world, number, state->count);
    cut(&reads, state->extents, remote, state->count);
    free(remote);
    reads.batches = bench_alloc(reads.count, sizeof(bench_batch));
    for (size_t i = 0; i < reads.count; i++) {
        bench_batch *last = reads.batches + reads.batch_count - (reads.batch_count > 0);
        if (reads.batch_count == 0 || last->count == IOV_MAX || last->bytes + reads.local[i].iov_len > PIECE) {
            last = reads.batches + reads.batch_count++;
            last->first = i;
        }
        last->count++;
        last->bytes += reads.local[i].iov_len;
    }
    return reads;
}

void bench_reads_destroy(bench_reads *reads) {
    free(reads->local);
    free(reads->remote);
    free(reads->batches);
    *reads = (bench_reads){0};
}

/** Work that the reading threads share. */
typedef struct reading {
    const bench_reads *reads;
    atomic_size_t next;
    bool touch;
} reading;

static void read_batches(void *context) {
    reading *own = context;
    const bench_reads *reads = own->reads;
    size_t number;
    while ((number = atomic_fetch_add(&own->next, 1)) < reads->batch_count) {
        const bench_batch *batch = reads->batches + number;
        const struct iovec *local = reads->local + batch->first;
        for (size_t i = 0; own->touch && i < batch->count; i++) {
            for (size_t at = 0; at < local[i].iov_len; at += BENCH_HUGE_PAGE) {
                ((volatile char *)local[i].iov_base)[at] = 0;
            }
        }
        if (process_vm_readv(reads->source, local, batch->count, reads->remote + batch->first, batch->count, 0) !=
            (ssize_t)batch->bytes) {
            bench_die("process_vm_readv failed: %s", strerror(errno));
        }
    }
}

static double run_readers(const bench_reads *reads, bool touch) {
    reading own = {.reads = reads, .touch = touch};
    return run_laps(read_batches, &own);
}

double bench_reads_run(const bench_reads *reads) {
    return run_readers(reads, false);
}

double bench_reads_run_fresh(const bench_reads *reads, const bench_state *state) {
    bench_reads fresh = *reads;
    fresh.local = bench_alloc(reads->count, sizeof(struct iovec));
    double begin = bench_now();
    size_t size = 0;
    for (size_t i = 0; i < state->count; i++) {
        size += (state->extents[i].iov_len + BENCH_HUGE_PAGE - 1) / BENCH_HUGE_PAGE * BENCH_HUGE_PAGE;
    }
    char *memory = mmap(NULL, size + BENCH_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        bench_die("cannot map %zu bytes: %s", size, strerror(errno));
    }
    char *at = memory + (BENCH_HUGE_PAGE - (uintptr_t)memory % BENCH_HUGE_PAGE) % BENCH_HUGE_PAGE;
    madvise(at, size, MADV_HUGEPAGE);
    for (size_t i = 0, piece = 0; i < state->count; i++) {
        for (size_t done = 0; done < state->extents[i].iov_len; piece++) {
            fresh.local[piece] = (struct iovec){at + done, reads->local[piece].iov_len};
            done += reads->local[piece].iov_len;
        }
        at += (state->extents[i].iov_len + BENCH_HUGE_PAGE - 1) / BENCH_HUGE_PAGE * BENCH_HUGE_PAGE;
    }
    run_readers(&fresh, true);
    double seconds = bench_now() - begin;
    munmap(memory, size + BENCH_HUGE_PAGE);
    free(fresh.local);
    return seconds;
}

/* ---- copying within a process ---- */

/** Work that the copying threads share. */
typedef struct copying {
    const bench_state *from;
    const bench_state *to;
    atomic_size_t next;
} copying;

static void copy_extents(void *context) {
    copying *own = context;
    size_t number;
    while ((number = atomic_fetch_add(&own->next, 1)) < own->from->count) {
        memcpy(own->to->extents[number].iov_base, own->from->extents[number].iov_base,
               own->from->extents[number].iov_len);
    }
}

double bench_copies_run(const bench_state *from, const bench_state *to) {
    copying own = {.from = from, .to = to};
    return run_laps(copy_extents, &own);
}

/* ---- plain sockets ---- */

typedef struct stream {
    int socket;
    uint32_t number;
    uint32_t of;
    bool write;
    const bench_state *state;
} stream;

static void move_piece(const stream *own, char *bytes, size_t size) {
    while (size > 0) {
        ssize_t moved = own->write ? write(own->socket, bytes, size) : read(own->socket, bytes, size);
        if (moved <= 0) {
            bench_die("a plain socket failed: %s", moved ? strerror(errno) : "the other side has closed it");
        }
        bytes += moved;
        size -= (size_t)moved;
    }
}

/** Distributes pieces over the connections in turn, in the same order on both sides. */
static void *move_pieces(void *context) {
    const stream *own = context;
    size_t piece = 0;
    for (size_t i = 0; i < own->state->count; i++) {
        struct iovec extent = own->state->extents[i];
        for (size_t at = 0; at < extent.iov_len; at += PIECE, piece++) {
            if (piece % own->of == own->number) {
                move_piece(own, (char *)extent.iov_base + at, least(PIECE, extent.iov_len - at));
            }
        }
    }
    return NULL;
}

void bench_plain(const bench_world *world, const bench_state *state, bool write) {
    pthread_t threads[BENCH_STREAMS_MAX];
    stream streams[BENCH_STREAMS_MAX];
    uint32_t count = world->connections;
    if (count < 1 || count > BENCH_STREAMS_MAX) {
        bench_die("%u connections; the number must be 1 to %d", (unsigned)count, BENCH_STREAMS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        streams[i] = (stream){world->streams[i][write ? 0 : 1], i, count, write, state};
        if (pthread_create(threads + i, NULL, move_pieces, streams + i) != 0) {
            bench_die("cannot start a thread");
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* ---- round trips ---- */

static void pass(int socket, bool receive) {
    char byte = 0;
    if ((receive ? read(socket, &byte, 1) : write(socket, &byte, 1)) != 1) {
        bench_die("a round trip failed: %s", strerror(errno));
    }
}

void bench_round_trips(const bench_world *world, bool source, int count) {
    int socket = world->pair[source ? 1 : 0];
    for (int i = 0; i < count; i++) {
        pass(socket, source);
        pass(socket, !source);
    }
}

/* ---- limits between two processes ---- */

const char *const bench_limit_names[BENCH_LIMITS] = {
    [BENCH_LIMIT_COPY] = "memcpy, 2 threads",
    [BENCH_LIMIT_READ] = "process_vm_readv, 2 threads",
    [BENCH_LIMIT_TCP] = "TCP over loopback, 2 connections",
};

typedef struct limit_task {
    uint64_t bytes;
    uint32_t repeats;
    bench_limit limit;
} limit_task;

/** Rank 0 is the source. Rank 1 measures the time. */
static void measure_limit(bench_world *world, int32_t rank, void *context) {
    const limit_task *task = context;
    if (task->limit == BENCH_LIMIT_READ) { /* If reading is not allowed, print no error. */
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    }
    bench_state state = bench_state_uniform(TENSORS, task->bytes / TENSORS);
    bench_state other = {0};
    bench_reads reads = {0};
    bench_state_fill(&state, true);
    if (rank == 0) {
        world->tables[0] = (struct iovec){state.extents, state.count * sizeof(*state.extents)};
        world->connections = CONNECTIONS;
    }
    bench_gate(world);
    if (rank == 1 && task->limit == BENCH_LIMIT_COPY) {
        other = bench_state_uniform(TENSORS, task->bytes / TENSORS);
        bench_state_fill(&other, false);
    } else if (rank == 1 && task->limit == BENCH_LIMIT_READ) {
        reads = bench_reads_create(world, 0, &state);
    }
    for (uint32_t i = 0; i <= task->repeats; i++) {
        double seconds = 0;
        if (task->limit == BENCH_LIMIT_TCP) {
            bench_line_up(world);
            double begin = bench_now();
            bench_plain(world, &state, rank == 0);
            seconds = bench_now() - begin;
        } else if (rank == 1) {
            seconds = other.count ? bench_copies_run(&state, &other) : bench_reads_run(&reads);
        }
        if (rank == 1) {
            world->seconds[0][i ? i - 1 : 0] = seconds;
        }
    }
    bench_gate(world);
    if (reads.count) {
        bench_reads_destroy(&reads);
    }
    if (other.count) {
        bench_state_destroy(&other);
    }
    bench_state_destroy(&state);
}

double bench_limit_rate(bench_limit limit, uint64_t bytes, uint32_t repeats) {
    limit_task task = {bytes, repeats, limit};
    bench_world *world = bench_world_create(2);
    double median = bench_world_run(world, measure_limit, &task) ? bench_median(world->seconds[0], (int)repeats) : 0;
    bench_world_destroy(world);
    return median > 0 ? (double)bytes / median : 0;
}
