/* `wherry send` and `wherry recv`: files between the ranks of a group. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "arrival.h"
#include "cargo.h"
#include "command.h"
#include "interrupt.h"
#include "json_out.h"
#include "leaves.h"
#include "show.h"
#include "visit.h"

enum { RANKS_MAX = 4096 };

typedef struct convoy_options {
    wh_common common;
    const char *group;
    int64_t timeout;
    const char *lanes;
    const char *to;
    int64_t from;
    const char *output;
    bool resume;
    bool sync;
    const char *trace;
} convoy_options;

#define GROUP_OPTION                                                                                                   \
    {                                                                                                                  \
        "group", 'g', WH_OPTION_TEXT, offsetof(convoy_options, group), "ADDRESS",                                      \
            "where the ranks meet (default env://: as the launcher says)", 0, 0, NULL                                  \
    }
#define TIMEOUT_OPTION                                                                                                 \
    {                                                                                                                  \
        "timeout", 0, WH_OPTION_NUMBER, offsetof(convoy_options, timeout), "SECONDS",                                  \
            "how long to wait for the other ranks, and for the transfer (default 300)", 1, 1000000, NULL               \
    }
#define LANES_OPTION                                                                                                   \
    {                                                                                                                  \
        "lanes", 0, WH_OPTION_TEXT, offsetof(convoy_options, lanes), "LANES",                                          \
            "which lanes may be used, such as stream or ^cma (default: all)", 0, 0, NULL                               \
    }

static const wh_option send_options[] = {
    {"to", 't', WH_OPTION_TEXT, offsetof(convoy_options, to), "RANKS",
     "who gets them: ranks with commas between them, or all (default all: all others)", 0, 0, NULL},
    GROUP_OPTION,
    TIMEOUT_OPTION,
    LANES_OPTION,
    {.name = NULL},
};

static const wh_option recv_options[] = {
    {"from", 'f', WH_OPTION_NUMBER, offsetof(convoy_options, from), "RANK", "who sends them (default 0)", 0, INT32_MAX,
     NULL},
    {"output", 'o', WH_OPTION_FILE, offsetof(convoy_options, output), "PATH",
     "the file, or the folder, to write (default: the present folder)", 0, 0, NULL},
    {"resume", 'r', WH_OPTION_FLAG, offsetof(convoy_options, resume), NULL,
     "go on with what an earlier one left: only what is missing or differs is asked for", 0, 0, NULL},
    {"sync", 0, WH_OPTION_FLAG, offsetof(convoy_options, sync), NULL, "end when the bytes are on the disk", 0, 0, NULL},
    {"trace", 0, WH_OPTION_FILE, offsetof(convoy_options, trace), "FILE",
     "write what was done when, for chrome://tracing or Perfetto: phases, and each range by thread and lane", 0, 0,
     NULL},
    GROUP_OPTION,
    TIMEOUT_OPTION,
    LANES_OPTION,
    {.name = NULL},
};

static int run_send(int argc, char **argv);
static int run_recv(int argc, char **argv);

const wh_command wh_command_send = {
    .name = "send",
    .summary = "send checkpoint files to other ranks of a group",
    .operands = "FILE...",
    .least = 1,
    .most = -1,
    .text = "Sends files to the ranks of a group that run `wherry recv` at the same time, to all of them at once. Rank "
            "and size come "
            "from the launcher (torchrun, Slurm, Open MPI), or stand in the address of the group.",
    .options = send_options,
    .json = true,
    .examples = "# rank 0 of a job, by any launcher:\n"
                "wherry send model.safetensors --to 1,2,3\n"
                "# without one:\n"
                "wherry send model.safetensors --group 'tcp://host1:29600?rank=0&size=2'\n",
    .run = run_send,
};

const wh_command wh_command_recv = {
    .name = "recv",
    .summary = "receive checkpoint files from another rank of a group",
    .operands = "",
    .text = "Receives the files that a rank of a group sends by `wherry send`, byte for byte, and verifies them by "
            "digests. A file is "
            "written beside, as .NAME.part, and has its name when all of it is there and is right.",
    .options = recv_options,
    .json = true,
    .examples = "wherry recv --from 0 -o models/\n"
                "wherry recv --from 0 -o models/ --group 'tcp://host1:29600?rank=1&size=2'\n",
    .run = run_recv,
};

static wherry_status join(const convoy_options *options, wherry_group **group_p, wherry_transport **transport_p,
                          wherry_error *error) {
    wherry_group_options group;
    wherry_group_options_init(&group);
    group.timeout_ms = (uint32_t)(options->timeout * 1000);
    group.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(options->group, &group, group_p, error);
    return status == WHERRY_OK ? wherry_transport_create(*group_p, NULL, transport_p, error) : status;
}

/* ---- sending ---- */

/** Reads "1,2,3" or "all". */
static wherry_status read_ranks(const char *text, const wherry_group *group, int32_t *ranks, size_t *count_p,
                                wherry_error *error) {
    size_t count = 0;
    if (strcmp(text, "all") == 0) {
        for (int32_t i = 0; i < wherry_group_size(group) && count < RANKS_MAX; i++) {
            ranks[count] = i;
            count += i != wherry_group_rank(group);
        }
        *count_p = count;
        return count ? WHERRY_OK : wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the group has no other rank");
    }
    for (const char *at = text; count < RANKS_MAX; at++) {
        char *end;
        errno = 0;
        long rank = strtol(at, &end, 10);
        if (errno || end == at || (*end && *end != ',') || rank < 0 || rank >= wherry_group_size(group)) {
            break;
        }
        ranks[count++] = (int32_t)rank;
        if (!*end) {
            *count_p = count;
            return WHERRY_OK;
        }
        at = end;
    }
    return wh_fail_error(error, WHERRY_INVALID_ARGUMENT,
                         "--to takes ranks from 0 to %d with commas between them, or all, not '%s'",
                         (int)wherry_group_size(group) - 1, text);
}

static void show_send(void *context, const wherry_progress *progress) {
    wh_bar_show(context, progress->bytes, progress->total, progress->rate, progress->lane);
}

static void tell_outcomes(const wherry_outcome *outcomes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char size[WH_SIZE_TEXT_MAX];
        if (outcomes[i].status == WHERRY_OK) {
            printf("rank %d has %s over %s\n", (int)outcomes[i].rank, wh_size_text(outcomes[i].stats.bytes_moved, size),
                   *outcomes[i].stats.lane ? outcomes[i].stats.lane : "nothing");
        } else {
            printf("rank %d failed: ", (int)outcomes[i].rank);
            wh_print_plain(stdout, outcomes[i].error.message);
            printf("\n");
        }
    }
}

static void print_outcomes(const wherry_outcome *outcomes, size_t count) {
    wh_json json = {.out = stdout};
    wh_json_open(&json, NULL, '[');
    for (size_t i = 0; i < count; i++) {
        wh_json_open(&json, NULL, '{');
        wh_json_number(&json, "rank", outcomes[i].rank);
        wh_json_text(&json, "status", wherry_status_name(outcomes[i].status));
        wh_json_text(&json, "error", outcomes[i].status == WHERRY_OK ? "" : outcomes[i].error.message);
        wh_json_text(&json, "lane", outcomes[i].stats.lane);
        wh_json_count(&json, "bytes_moved", outcomes[i].stats.bytes_moved);
        wh_json_real(&json, "seconds", outcomes[i].stats.total_seconds);
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
}

static wherry_status send_cargo(const convoy_options *options, const wh_cargo *cargo, wherry_group *group,
                                wherry_transport *transport, wherry_error *error) {
    static int32_t ranks[RANKS_MAX];
    wherry_transfer_options transfer;
    wh_bar bar;
    size_t count = 0;
    wherry_status status = read_ranks(options->to, group, ranks, &count, error);
    wherry_outcome *outcomes = calloc(count ? count : 1, sizeof(*outcomes));
    if (status != WHERRY_OK || !outcomes) {
        free(outcomes);
        return status != WHERRY_OK ? status : wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for %zu ranks", count);
    }
    wh_bar_begin(&bar, &options->common, "sending");
    wherry_transfer_options_init(&transfer);
    transfer.timeout_ms = options->timeout * 1000;
    transfer.lanes = options->lanes;
    transfer.interrupt = wh_interrupted;
    transfer.progress = count == 1 ? show_send : NULL;
    transfer.progress_context = &bar;
    status = wherry_checkpoint_send(transport, ranks, count, cargo->state, &transfer, outcomes, error);
    wh_bar_end(&bar);
    if (options->common.json) {
        print_outcomes(outcomes, count);
    } else if (!options->common.quiet) {
        tell_outcomes(outcomes, count);
    }
    free(outcomes);
    return status;
}

static int run_send(int argc, char **argv) {
    convoy_options options = {.group = "env://", .timeout = 300, .to = "all"};
    wh_operands operands;
    wherry_error error;
    wh_cargo cargo = {0};
    wherry_group *group = NULL;
    wherry_transport *transport = NULL;
    int code;
    if (!wh_options_parse(&wh_command_send, argc, argv, &options, &operands, &code)) {
        return code;
    }
    wh_interrupt_catch();
    wh_set_log(&options.common);
    wherry_status status = wh_cargo_open(&cargo, operands.items, (size_t)operands.count, &error);
    if (status == WHERRY_OK) {
        status = join(&options, &group, &transport, &error);
    }
    if (status == WHERRY_OK) {
        status = send_cargo(&options, &cargo, group, transport, &error);
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    wh_cargo_close(&cargo);
    return wh_end_command(&wh_command_send, status, &error);
}

/* ---- receiving ---- */

static int run_recv(int argc, char **argv) {
    convoy_options options = {.group = "env://", .timeout = 300, .output = "./"};
    wherry_error error;
    wherry_group *group = NULL;
    wherry_transport *transport = NULL;
    wh_bar bar;
    int code;
    if (!wh_options_parse(&wh_command_recv, argc, argv, &options, NULL, &code)) {
        return code;
    }
    wh_interrupt_catch();
    wh_set_log(&options.common);
    wh_bar_begin(&bar, &options.common, "receiving");
    wh_arrival arrival = {
        .output = options.output, .resume = options.resume, .sync = options.sync, .bar = &bar, .trace = options.trace};
    wherry_status status = join(&options, &group, &transport, &error);
    if (status == WHERRY_OK) {
        status = wh_arrival_receive(&arrival, transport, (int32_t)options.from, options.timeout, options.lanes, &error);
    }
    if (status == WHERRY_OK) {
        wh_arrival_tell(&arrival, &options.common);
    }
    wh_arrival_end(&arrival);
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    return wh_end_command(&wh_command_recv, status, &error);
}
