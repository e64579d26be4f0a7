/* `wherry bench`: measures each lane and compares it with the limits of this machine. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/times.h>
#include <unistd.h>

#include "command.h"
#include "output.h"
#include "probe.h"

#define MIB (INT64_C(1) << 20)

/* If other programs use more processors than this, the machine is busy. */
#define BUSY 0.5

enum { TENSORS = 16, TABLE_WIDTH = 110 };

typedef struct bench_options {
    wh_common common;
    uint64_t size;
    int64_t repeats;
    const char *group;
} bench_options;

static const wh_option options_taken[] = {
    WH_OPTION(bench_options, size, SIZE, "size", 's', "SIZE",
              "size of the state, at least 1M (default 128M); needs three times as much memory", .least = MIB,
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
    WH_DEFAULTS(bench_options, .size = 128 * MIB, .repeats = 5),
    .run = run,
};

/* ---- lanes ---- */

/** A row of the table. */
typedef struct row {
    char name[32];             /**< The name to print, such as "stream, TCP". */
    const wh_probe_lane *lane; /**< The result of the lane. Its `seconds` are sorted. */
    bench_limit limit;         /**< The limit to compare with; BENCH_LIMITS if there is none. */
    bool used;                 /**< True if Wherry would use this lane. */
    double rate;               /**< Bytes per second; 0 if the lane does not work. */
} row;

typedef struct measurement {
    uint64_t bytes;
    uint32_t repeats;
    bool in_group;
    double limits[BENCH_LIMITS]; /**< Bytes per second; 0 if the measurement failed. */
    /**
     * Number of processors that other programs used; NAN in a group, because its other ranks count
     * as other programs.
     */
    double others;
    size_t count;
    row rows[WH_PROBE_LANES_MAX + 1];
} measurement;

static void add_row(measurement *m, wh_probe_lane *lane, bool tcp, const char *used) {
    row *r = m->rows + m->count++;
    double median = lane->status == WHERRY_OK ? bench_median(lane->seconds, (int)lane->repeats) : 0;
    *r = (row){.lane = lane, .used = strcmp(used, lane->name) == 0, .limit = BENCH_LIMITS};
    r->rate = median > 0 ? (double)m->bytes / median : 0;
    if (!m->in_group) {
        r->limit = tcp                               ? BENCH_LIMIT_TCP
                   : strcmp(lane->name, "cma") == 0  ? BENCH_LIMIT_READ
                   : strcmp(lane->name, "ring") == 0 ? BENCH_LIMIT_COPY
                                                     : BENCH_LIMITS;
    }
    r->limit = r->limit != BENCH_LIMITS && m->limits[r->limit] <= 0 ? BENCH_LIMITS : r->limit;
    snprintf(r->name, sizeof(r->name), "%s%s", lane->name, tcp ? ", TCP" : "");
}

static wherry_status measure(measurement *m, wh_probe *probe, wh_probe *tcp, wherry_error *error) {
    for (int i = 0; i < BENCH_LIMITS && !m->in_group; i++) {
        m->limits[i] = bench_limit_rate((bench_limit)i, m->bytes, m->repeats);
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
        if (wh_probe_suits(probe->lanes[i].name)) {
            add_row(m, probe->lanes + i, false, probe->lanes[0].status == WHERRY_OK ? probe->lanes[0].used : "");
        }
    }
    if (status == WHERRY_OK && tcp->count) {
        add_row(m, tcp->lanes, true, "");
    }
    return status;
}

/** The seconds that processors have spent on other programs and other virtual machines. */
static double used_by_others(void) {
    enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };
    uint64_t ticks[FIELDS] = {0};
    char text[256];
    char *at = text;
    struct tms own;
    wh_read_field("/proc/stat", "cpu ", text, sizeof(text));
    for (int i = 0; i < FIELDS; i++) {
        ticks[i] = strtoull(at, &at, 10);
    }
    times(&own);
    clock_t ours = own.tms_utime + own.tms_stime + own.tms_cutime + own.tms_cstime;
    return ((double)(ticks[USER] + ticks[NICE] + ticks[SYSTEM] + ticks[STEAL]) - (double)ours) /
           (double)sysconf(_SC_CLK_TCK);
}

/* ---- the result ---- */

static void print_row(const measurement *m, const row *r) {
    if (r->rate <= 0) {
        printf("  %-14s  %s: ", r->name, r->lane->refused ? "failed" : "not available");
        wh_print_wrapped(stdout, r->lane->reason, 18, TABLE_WIDTH);
        return;
    }
    bool slow = r->rate < 1e9;
    double bytes = (double)m->bytes * (slow ? 1e-6 : 1e-9);
    int digits = slow ? 1 : 2;
    printf("  %-14s  %6.*f %s (%.*f-%.*f)", r->name, digits, r->rate * (slow ? 1e-6 : 1e-9), slow ? "MB/s" : "GB/s",
           digits, bytes / r->lane->seconds[r->lane->repeats - 1], digits, bytes / r->lane->seconds[0]);
    if (r->limit != BENCH_LIMITS && r->rate > m->limits[r->limit]) {
        printf("  at the limit of %s", bench_limit_names[r->limit]);
    } else if (r->limit != BENCH_LIMITS) {
        printf("  %3.0f%% of %s", 100 * r->rate / m->limits[r->limit], bench_limit_names[r->limit]);
    }
    printf("%s\n", r->used ? "  <- would be used" : "");
}

/** Explains what looks wrong: a faster lane that is not used, and figures above a limit. */
static void print_notes(const measurement *m) {
    const row *used = NULL;
    const row *fastest = m->rows;
    bool above = false;
    for (size_t i = 0; i < m->count; i++) {
        const row *r = m->rows + i;
        used = r->used ? r : used;
        fastest = r->rate > fastest->rate ? r : fastest;
        above = above || (r->limit != BENCH_LIMITS && r->rate > m->limits[r->limit]);
    }
    if (used && fastest->rate > used->rate) {
        printf("\n");
        wh_print_text(stdout,
                      "%s was faster here, but %s is tried first for a state like this one. WHERRY_LANES=%s changes "
                      "the order.",
                      fastest->name, used->name, fastest->lane->name);
    }
    if (above) {
        printf("\n");
        wh_print_text(stdout,
                      "Limits and lanes are measured one after the other, so a lane can come out above its limit.");
    }
    if (m->others >= BUSY) {
        printf("\n");
        wh_print_text(stdout, "This machine was busy (others used %.1f of %ld processors): the figures are too low.",
                      m->others, sysconf(_SC_NPROCESSORS_ONLN));
    }
}

static void print_text(const measurement *m) {
    char size[WH_SIZE_TEXT_MAX];
    char rate[WH_SIZE_TEXT_MAX];
    if (!m->in_group) {
        printf("limits of this machine\n");
        for (int i = 0; i < BENCH_LIMITS; i++) {
            if (m->limits[i] > 0) {
                printf("  %-32s  %11s\n", bench_limit_names[i], wh_rate_text(m->limits[i], rate));
            } else {
                printf("  %-32s  could not be measured\n", bench_limit_names[i]);
            }
        }
        printf("\n");
    }
    printf("lanes: %s in %d tensors, received in place, median of %u calls (min-max)\n", wh_size_text(m->bytes, size),
           TENSORS, m->repeats);
    for (size_t i = 0; i < m->count; i++) {
        print_row(m, m->rows + i);
    }
    print_notes(m);
}

static void print_json(const measurement *m) {
    wh_json json = {.out = stdout};
    wh_json_begin(&json);
    wh_json_text(&json, "version", wherry_version());
    wh_json_count(&json, "bytes", m->bytes);
    wh_json_real(&json, "busy_processors", m->others);
    wh_json_open(&json, "limits", '{');
    for (int i = 0; i < BENCH_LIMITS && !m->in_group; i++) {
        wh_json_real(&json, bench_limit_names[i], m->limits[i]);
    }
    wh_json_close(&json, '}');
    wh_json_open(&json, "lanes", '[');
    for (size_t i = 0; i < m->count; i++) {
        const row *r = m->rows + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "name", r->name);
        wh_json_text(&json, "status", wherry_status_name((wherry_status)r->lane->status));
        wh_json_flag(&json, "used", r->used);
        wh_json_flag(&json, "failed", r->lane->refused);
        wh_json_real(&json, "bytes_per_second", r->rate);
        if (r->limit != BENCH_LIMITS) {
            wh_json_text(&json, "limit", bench_limit_names[r->limit]);
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
    double begin = wh_clock();
    double used = used_by_others();
    wherry_status status = measure(&m, &probe, &tcp, &error);
    m.others = m.in_group ? NAN : (used_by_others() - used) / (wh_clock() - begin);
    if (wh_interrupt_code() || status != WHERRY_OK) {
        return wh_interrupt_code() ? wh_interrupt_code() : wh_fail_status(&wh_command_bench, NULL, &error);
    }
    if (probe.rank == 0) {
        (options->common.json ? print_json : print_text)(&m);
    }
    return WH_EXIT_OK;
}
