/* `wherry bench`: each lane against what the machine can do. */
#include "measure.h"

#include <stdio.h>
#include <string.h>

#include <wherry/base.h>

#include "command.h"
#include "interrupt.h"
#include "json_out.h"
#include "show.h"

#define MIB (INT64_C(1) << 20)

typedef struct bench_options {
    wh_common common;
    uint64_t size;
    int64_t repeats;
    const char *group;
} bench_options;

static const wh_option options_taken[] = {
    {"size", 's', WH_OPTION_SIZE, offsetof(bench_options, size), "SIZE",
     "bytes of the state that goes to and fro, from 1M on (default 256M); three times as much memory is needed", MIB,
     INT64_C(1) << 40, NULL},
    {"repeats", 'n', WH_OPTION_NUMBER, offsetof(bench_options, repeats), "N",
     "how often each lane is measured, 1 to 32 (default 5); the median counts", 1, WH_TRIAL_REPEATS_MAX, NULL},
    {"group", 'g', WH_OPTION_TEXT, offsetof(bench_options, group), "ADDRESS",
     "measure between ranks 0 and 1 of this group, such as env://, in which every rank runs this command; rank 0 tells "
     "(default: two processes here)",
     0, 0, NULL},
    {.name = NULL},
};

static int run(int argc, char **argv);

const wh_command wh_command_bench = {
    .name = "bench",
    .summary = "measure each lane against the limits of this machine",
    .operands = "",
    .text = "Sends a state of 16 tensors from one process to another, in place, over each lane in turn, and measures "
            "the whole "
            "call. Beside each lane stands what the machine can do at best in the same way: copy memory, read another "
            "process's memory, move bytes over TCP. Tells which lane would be used, and why not a better one.\n\n"
            "With --group the lanes are measured between two ranks, on one host or on two.",
    .options = options_taken,
    .json = true,
    .examples = "wherry bench\n"
                "wherry bench --size 1G\n"
                "# between two hosts, on each of them:\n"
                "torchrun --nnodes 2 --nproc-per-node 1 --no-python wherry bench --group env://\n",
    .run = run,
};

double wh_measured_rate(const wh_measurement *measurement, const wh_measured *row) {
    double seconds = row->lane->status == WHERRY_OK ? wh_trial_median(row->lane) : 0;
    return seconds > 0 ? (double)measurement->bytes / seconds : 0;
}

/* ---- measuring ---- */

static const wh_limit *limit_of(const wh_measurement *m, const char *lane, bool tcp) {
    wh_limit_kind kind = tcp                         ? WH_LIMIT_TCP
                         : strcmp(lane, "cma") == 0  ? WH_LIMIT_READ
                         : strcmp(lane, "ring") == 0 ? WH_LIMIT_COPY
                                                     : WH_LIMITS;
    return kind == WH_LIMITS || m->in_group ? NULL : m->limits + kind;
}

static void add_row(wh_measurement *m, const wh_trial_lane *lane, bool tcp, bool used) {
    wh_measured *row = m->rows + m->count++;
    *row = (wh_measured){.lane = lane, .limit = limit_of(m, lane->name, tcp), .used = used};
    snprintf(row->name, sizeof(row->name), "%s%s", lane->name, tcp ? ", TCP" : "");
}

static wherry_status measure(wh_measurement *m, wh_trial *trial, wh_trial *tcp, wherry_error *error) {
    if (!m->in_group) {
        wh_limits_measure(m->bytes, m->repeats, m->limits);
    }
    trial->bytes = tcp->bytes = m->bytes;
    trial->repeats = tcp->repeats = m->repeats;
    wherry_status status = wh_interrupted(NULL) ? WHERRY_CANCELLED : wh_trial_run(trial, error);
    if (status == WHERRY_OK && !m->in_group) {
        tcp->tcp = true;
        tcp->only = "stream";
        status = wh_trial_run(tcp, error);
    }
    const wh_trial_lane *all = trial->lanes;
    for (size_t i = 1; status == WHERRY_OK && i < trial->count; i++) {
        add_row(m, trial->lanes + i, false, all->status == WHERRY_OK && strcmp(all->taken, trial->lanes[i].name) == 0);
    }
    if (status == WHERRY_OK && tcp->count) {
        add_row(m, tcp->lanes, true, false);
    }
    return status;
}

/* ---- telling ---- */

static void print_row(const wh_measurement *m, const wh_measured *row) {
    double rate = wh_measured_rate(m, row);
    if (rate <= 0) {
        printf("  %-14s  %s: ", row->name, row->lane->refused ? "refused" : "not here");
        wh_print_wrapped(stdout, row->lane->reason, 18, 110);
        return;
    }
    double least = row->lane->seconds[0];
    double most = least;
    for (uint32_t i = 1; i < row->lane->repeats; i++) {
        double one = row->lane->seconds[i];
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    printf("  %-14s  %6.2f GB/s (%.2f-%.2f)", row->name, rate * 1e-9, (double)m->bytes / most * 1e-9,
           (double)m->bytes / least * 1e-9);
    if (row->limit && row->limit->rate > 0) {
        printf("  %3.0f%% of %s", 100 * rate / row->limit->rate, wh_limit_names[row->limit - m->limits]);
    }
    printf("%s\n", row->used ? "  <- would be used" : "");
}

static void print_text(const wh_measurement *m) {
    char size[WH_SIZE_TEXT_MAX];
    if (!m->in_group) {
        printf("limits of this machine\n");
        for (int i = 0; i < WH_LIMITS; i++) {
            if (m->limits[i].rate > 0) {
                printf("  %-32s  %6.2f GB/s\n", wh_limit_names[i], m->limits[i].rate * 1e-9);
            } else {
                printf("  %-32s  not allowed here\n", wh_limit_names[i]);
            }
        }
        printf("\n");
    }
    printf("lanes, %s in 16 tensors, in place, the whole call, median of %u (least-most)\n",
           wh_size_text(m->bytes, size), m->repeats);
    for (size_t i = 0; i < m->count; i++) {
        print_row(m, m->rows + i);
    }
}

static void print_json(const wh_measurement *m) {
    wh_json json = {.out = stdout};
    wh_json_open(&json, NULL, '{');
    wh_json_text(&json, "version", wherry_version());
    wh_json_count(&json, "bytes", m->bytes);
    wh_json_open(&json, "limits", '{');
    for (int i = 0; i < WH_LIMITS && !m->in_group; i++) {
        wh_json_real(&json, wh_limit_names[i], m->limits[i].rate);
    }
    wh_json_close(&json, '}');
    wh_json_open(&json, "lanes", '[');
    for (size_t i = 0; i < m->count; i++) {
        const wh_measured *row = m->rows + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "name", row->name);
        wh_json_text(&json, "status", wherry_status_name((wherry_status)row->lane->status));
        wh_json_flag(&json, "used", row->used);
        wh_json_flag(&json, "refused", row->lane->refused);
        wh_json_real(&json, "bytes_per_second", wh_measured_rate(m, row));
        if (row->limit) {
            wh_json_text(&json, "limit", wh_limit_names[row->limit - m->limits]);
        }
        wh_json_text(&json, "reason", row->lane->status == WHERRY_OK ? "" : row->lane->reason);
        wh_json_open(&json, "seconds", '[');
        for (uint32_t k = 0; k < row->lane->repeats; k++) {
            wh_json_real(&json, NULL, row->lane->seconds[k]);
        }
        wh_json_close(&json, ']');
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
    wh_json_close(&json, '}');
}

static int run(int argc, char **argv) {
    static wh_measurement m;
    static wh_trial trial;
    static wh_trial tcp;
    bench_options options = {.size = 256 * MIB, .repeats = 5};
    wherry_error error;
    int code;
    if (!wh_options_parse(&wh_command_bench, argc, argv, &options, NULL, &code)) {
        return code;
    }
    wh_interrupt_catch();
    wherry_log_set_level(options.common.verbose ? WHERRY_LOG_INFO : WHERRY_LOG_OFF);
    m = (wh_measurement){
        .bytes = options.size, .repeats = (uint32_t)options.repeats, .in_group = options.group != NULL};
    m.bytes -= m.bytes % MIB; /* the same for all that is measured */
    trial.group = options.group;
    wherry_status status = measure(&m, &trial, &tcp, &error);
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    if (status != WHERRY_OK) {
        return wh_fail_status(&wh_command_bench, NULL, &error);
    }
    if (trial.rank != 0) {
        return WH_EXIT_OK;
    }
    if (options.common.json) {
        print_json(&m);
    } else {
        print_text(&m);
    }
    return WH_EXIT_OK;
}
