/* `wherry bench`: measures each lane and compares it with the limits of this machine. */
#include "bench.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "output.h"
#include "probe.h"

#define MIB (INT64_C(1) << 20)

enum { TENSORS = 16, CONNECTIONS = 2, TABLE_WIDTH = 110 };

typedef struct bench_options {
    wh_common common;
    uint64_t size;
    int64_t repeats;
    const char *group;
} bench_options;

static const wh_option options_taken[] = {
    WH_OPTION(bench_options, size, SIZE, "size", 's', "SIZE",
              "size of the state, at least 1M (default 256M); needs three times as much memory", .least = MIB,
              .most = INT64_C(1) << 40),
    WH_OPTION(bench_options, repeats, NUMBER, "repeats", 'n', "N",
              "how often to measure each lane, 1 to 32 (default 5); prints the median", .least = 1,
              .most = WH_PROBE_REPEATS_MAX),
    WH_OPTION(bench_options, group, TEXT, "group", 'g', "ADDRESS",
              "measure between ranks 0 and 1 of this group, such as env://; every rank must run this command, and rank "
              "0 prints the result (default: two processes on this machine)"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_bench = {
    .name = "bench",
    .summary = "measure each lane against the limits of this machine",
    .operands = "",
    .text = "Sends a state of 16 tensors from one process to another over each lane, in place, and measures the whole "
            "receive call. On one machine, the cma lane, the ring lane and TCP are compared with the limits of the "
            "machine for the same work: reading another process's memory, copying memory, and sending over TCP. Also "
            "shows which lane would be used, and why a lane does not work.\n\n"
            "With --group, measures between two ranks, on one host or two. The limits are then not measured.",
    .options = options_taken,
    .json = true,
    .examples = "wherry bench\n"
                "wherry bench --size 1G --repeats 9\n"
                "# between two hosts, on each of them:\n"
                "torchrun --nnodes 2 --nproc-per-node 1 --no-python wherry bench --group env://\n",
    WH_DEFAULTS(bench_options, .size = 256 * MIB, .repeats = 5),
    .run = run,
};

/* ---- limits of the machine ---- */

typedef enum limit_kind {
    LIMIT_COPY, /**< Two threads copy memory within a process. */
    LIMIT_READ, /**< Two threads read another process's memory. */
    LIMIT_TCP,  /**< Two plain TCP connections over loopback. */
    /** Number of limits. In a row, it means that there is no limit to compare with. */
    LIMITS,
} limit_kind;

static const char *const limit_names[LIMITS] = {
    [LIMIT_COPY] = "memcpy, 2 threads",
    [LIMIT_READ] = "process_vm_readv, 2 threads",
    [LIMIT_TCP] = "TCP over loopback, 2 connections",
};

typedef struct limit_task {
    uint64_t bytes;
    uint32_t repeats;
    limit_kind kind;
} limit_task;

/** Measures a limit. Rank 0 is the source. Rank 1 measures the time, after one warm-up. */
static void measure_limit(bench_world *world, int32_t rank, void *context) {
    const limit_task *task = context;
    if (task->kind == LIMIT_READ) { /* if reading is not allowed, print no error */
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
    if (rank == 1 && task->kind == LIMIT_COPY) {
        other = bench_state_uniform(TENSORS, task->bytes / TENSORS);
        bench_state_fill(&other, false);
    } else if (rank == 1 && task->kind == LIMIT_READ) {
        reads = bench_reads_create(world, 0, &state);
    }
    for (uint32_t i = 0; i <= task->repeats; i++) {
        double seconds = 0;
        if (task->kind == LIMIT_TCP) {
            bench_line_up(world);
            double begin = bench_now();
            bench_plain(world, &state, rank == 0);
            seconds = bench_now() - begin;
        } else if (rank == 1) {
            seconds = task->kind == LIMIT_COPY ? bench_copies_run(&state, &other) : bench_reads_run(&reads);
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

/** Measures a limit between two new processes. @return bytes per second; 0 on failure. */
static double limit_rate(limit_kind kind, uint64_t bytes, uint32_t repeats) {
    limit_task task = {bytes, repeats, kind};
    bench_world *world = bench_world_create(2);
    double median = bench_world_run(world, measure_limit, &task) ? bench_median(world->seconds[0], (int)repeats) : 0;
    bench_world_destroy(world);
    return median > 0 ? (double)bytes / median : 0;
}

/* ---- lanes ---- */

/** A row of the table. */
typedef struct row {
    char name[32];             /**< The name to print, such as "stream, TCP". */
    const wh_probe_lane *lane; /**< The result of the lane. Its `seconds` are sorted. */
    limit_kind limit;          /**< The limit to compare with; LIMITS if there is none. */
    bool used;                 /**< True if Wherry would use this lane. */
    double rate;               /**< Bytes per second; 0 if the lane does not work. */
} row;

typedef struct measurement {
    uint64_t bytes;
    uint32_t repeats;
    bool in_group;
    double limits[LIMITS]; /**< Bytes per second; 0 if the measurement failed. */
    size_t count;
    row rows[WH_PROBE_LANES_MAX + 1];
} measurement;

static void add_row(measurement *m, wh_probe_lane *lane, bool tcp, const char *used) {
    row *r = m->rows + m->count++;
    double median = lane->status == WHERRY_OK ? bench_median(lane->seconds, (int)lane->repeats) : 0;
    *r = (row){.lane = lane, .used = strcmp(used, lane->name) == 0, .limit = LIMITS};
    r->rate = median > 0 ? (double)m->bytes / median : 0;
    if (!m->in_group) {
        r->limit = tcp                               ? LIMIT_TCP
                   : strcmp(lane->name, "cma") == 0  ? LIMIT_READ
                   : strcmp(lane->name, "ring") == 0 ? LIMIT_COPY
                                                     : LIMITS;
    }
    snprintf(r->name, sizeof(r->name), "%s%s", lane->name, tcp ? ", TCP" : "");
}

static wherry_status measure(measurement *m, wh_probe *probe, wh_probe *tcp, wherry_error *error) {
    for (int i = 0; i < LIMITS && !m->in_group; i++) {
        m->limits[i] = limit_rate((limit_kind)i, m->bytes, m->repeats);
    }
    probe->bytes = tcp->bytes = m->bytes;
    probe->repeats = tcp->repeats = m->repeats;
    wherry_status status = wh_interrupted(NULL) ? WHERRY_CANCELLED : wh_probe_run(probe, error);
    if (!m->in_group) {
        tcp->tcp = true;
        tcp->only = "stream";
        WH_THEN(status, wh_probe_run(tcp, error));
    }
    for (size_t i = 1; status == WHERRY_OK && i < probe->count; i++) {
        add_row(m, probe->lanes + i, false, probe->lanes[0].status == WHERRY_OK ? probe->lanes[0].used : "");
    }
    if (status == WHERRY_OK && tcp->count) {
        add_row(m, tcp->lanes, true, "");
    }
    return status;
}

/* ---- the result ---- */

static void print_row(const measurement *m, const row *r) {
    if (r->rate <= 0) {
        printf("  %-14s  %s: ", r->name, r->lane->refused ? "failed" : "not available");
        wh_print_wrapped(stdout, r->lane->reason, 18, TABLE_WIDTH);
        return;
    }
    printf("  %-14s  %6.2f GB/s (%.2f-%.2f)", r->name, r->rate * 1e-9,
           (double)m->bytes / r->lane->seconds[r->lane->repeats - 1] * 1e-9,
           (double)m->bytes / r->lane->seconds[0] * 1e-9);
    if (r->limit != LIMITS && m->limits[r->limit] > 0) {
        printf("  %3.0f%% of %s", 100 * r->rate / m->limits[r->limit], limit_names[r->limit]);
    }
    printf("%s\n", r->used ? "  <- would be used" : "");
}

static void print_text(const measurement *m) {
    char size[WH_SIZE_TEXT_MAX];
    if (!m->in_group) {
        printf("limits of this machine\n");
        for (int i = 0; i < LIMITS; i++) {
            if (m->limits[i] > 0) {
                printf("  %-32s  %6.2f GB/s\n", limit_names[i], m->limits[i] * 1e-9);
            } else {
                printf("  %-32s  could not be measured\n", limit_names[i]);
            }
        }
        printf("\n");
    }
    printf("lanes: %s in %d tensors, received in place, median of %u calls (min-max)\n", wh_size_text(m->bytes, size),
           TENSORS, m->repeats);
    for (size_t i = 0; i < m->count; i++) {
        print_row(m, m->rows + i);
    }
}

static void print_json(const measurement *m) {
    wh_json json = {.out = stdout};
    wh_json_open(&json, NULL, '{');
    wh_json_text(&json, "version", wherry_version());
    wh_json_count(&json, "bytes", m->bytes);
    wh_json_open(&json, "limits", '{');
    for (int i = 0; i < LIMITS && !m->in_group; i++) {
        wh_json_real(&json, limit_names[i], m->limits[i]);
    }
    wh_json_close(&json, '}');
    wh_json_open(&json, "lanes", '[');
    for (size_t i = 0; i < m->count; i++) {
        const row *r = m->rows + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "name", r->name);
        wh_json_text(&json, "status", wherry_status_name((wherry_status)r->lane->status));
        wh_json_flag(&json, "used", r->used);
        wh_json_flag(&json, "refused", r->lane->refused);
        wh_json_real(&json, "bytes_per_second", r->rate);
        if (r->limit != LIMITS) {
            wh_json_text(&json, "limit", limit_names[r->limit]);
        }
        wh_json_text(&json, "reason", r->lane->reason);
        wh_json_open(&json, "seconds", '[');
        for (uint32_t k = 0; k < r->lane->repeats; k++) {
            wh_json_real(&json, NULL, r->lane->seconds[k]);
        }
        wh_json_close(&json, ']');
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
    wh_json_close(&json, '}');
}

static int run(void *context, const wh_operands *operands) {
    const bench_options *options = context;
    (void)operands;
    static measurement m;
    static wh_probe probe;
    static wh_probe tcp;
    wherry_error error;
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_OFF);
    /* Round down to 1 MiB, so that the size can be split evenly into tensors and threads. */
    m.bytes = options->size - options->size % MIB;
    m.repeats = (uint32_t)options->repeats;
    m.in_group = options->group != NULL;
    probe.group = options->group;
    wherry_status status = measure(&m, &probe, &tcp, &error);
    if (wh_interrupt_code() || status != WHERRY_OK) {
        return wh_interrupt_code() ? wh_interrupt_code() : wh_fail_status(&wh_command_bench, NULL, &error);
    }
    if (probe.rank == 0) {
        (options->common.json ? print_json : print_text)(&m);
    }
    return WH_EXIT_OK;
}
