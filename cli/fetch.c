/*
 * `wherry fetch`: receives files from `wherry serve`.
 *
 *  1. A file is received straight into .NAME.part. It is renamed to NAME only when it is complete
 *     and its digests are correct.
 *  2. No received byte is written until the whole target matches the server's offer.
 *  3. Files are fetched byte for byte if possible. For another format, or with --only, the tensors
 *     ("states", see file_set.h) are fetched instead.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <wherry/file.h>

#include "client.h"
#include "command.h"
#include "file_set.h"
#include "output.h"
#include "tensors.h"

typedef struct fetch_options {
    wh_common common;
    const char *output;
    const char *only;
    bool resume;
    bool sync;
    const char *token_file;
    const char *lanes;
    int64_t timeout;
    const char *trace;
} fetch_options;

static const wh_option options_taken[] = {
    WH_OPTION(fetch_options, output, FILE, "output", 'o', "PATH",
              "the file or folder to write (default: the current folder)"),
    WH_OPTION(fetch_options, only, TEXT, "only", 0, "PATTERN",
              "fetch only tensors whose name matches a shell pattern, such as 'layers.*'"),
    WH_OPTION(fetch_options, resume, FLAG, "resume", 'r', NULL,
              "continue an interrupted fetch: receive only what is missing or different, and keep the partial file if "
              "this fetch fails too"),
    WH_OPTION(fetch_options, sync, FLAG, "sync", 0, NULL, "exit only after the files are on the disk (fsync)"),
    WH_OPTION(fetch_options, token_file, FILE, "token-file", 't', "FILE",
              "read the token from FILE (default: the environment variable WHERRY_TOKEN, or a prompt)"),
    WH_OPTION(fetch_options, lanes, TEXT, "lanes", 0, "LANES",
              "lanes to use, such as cma,stream, or ^cma for all but cma (default: all)"),
    WH_OPTION(fetch_options, trace, FILE, "trace", 0, "FILE",
              "write a timeline of the transfer for chrome://tracing or Perfetto"),
    WH_OPTION(fetch_options, timeout, NUMBER, "timeout", 0, "SECONDS",
              "how long to wait for the server to answer (default 30)", .least = 1, .most = 1000000),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_fetch = {
    .name = "fetch",
    .summary = "fetch checkpoint files from `wherry serve`",
    .operands = "ADDRESS",
    .least = 1,
    .most = 1,
    .text = "Fetches the files that are served at ADDRESS, byte for byte, over the fastest lane, and checks them "
            "against digests. A file is written as .NAME.part and renamed when it is complete and correct.\n\n"
            "If PATH ends with the suffix of another format (.safetensors, .wherry), or with --only, the tensors are "
            "written in the format of PATH.\n\n"
            "The token is never an argument, because other users of the machine can see arguments.",
    .options = options_taken,
    .json = true,
    .examples = "WHERRY_TOKEN=... wherry fetch tcp://127.0.0.1:41234 -o model.safetensors\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o models/ --resume\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o part.safetensors --only 'layers.0.*'\n",
    WH_DEFAULTS(fetch_options, .output = "./", .timeout = 30),
    .run = run,
};

/** The state of one fetch. */
typedef struct fetch {
    const fetch_options *options;
    wh_bar bar;
    const char *doing;            /**< The label of the progress bar: "comparing" or "receiving". */
    wherry_file_writer **writers; /**< One writer per file. */
    char **paths;
    size_t count;
    wherry_value *target;
    /** True if the fetch failed because bytes were requested but the target needs tensors. */
    bool needs_states;
    /** Why the offer was not accepted. Its status is WHERRY_OK if the offer was accepted. */
    wherry_error error;
    wherry_stats stats;
} fetch;

/* ---- where the files go ---- */

static bool is_folder(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/** True if the output is not a folder and its name ends with the suffix of a format. */
static bool is_one_checkpoint(const char *output) {
    return wherry_file_format_of(output) != WHERRY_FILE_AUTO && !is_folder(output);
}

/** Decides whether the files go into a folder, and creates the folder if needed. */
static wherry_status find_folder(const char *output, size_t count, bool *inside_p, wherry_error *error) {
    *inside_p = count > 1 || is_folder(output) || output[strlen(output) - 1] == '/';
    if (count > 1 && is_one_checkpoint(output)) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT,
                             "the server offers %zu files, but %s is one file; name a folder, with / at the end", count,
                             output);
    }
    if (*inside_p && !is_folder(output) && mkdir(output, 0777) != 0) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot create the folder %s", output);
    }
    return WHERRY_OK;
}

/* ---- the target ---- */

/** A file to write. */
typedef struct wanted_file {
    const char *name;
    const wherry_value *value; /**< The file's bytes or state; borrowed. */
    /** The part of the state that --only selects; NULL without --only. */
    wherry_value *picked;
} wanted_file;

/** Opens the writer of a file, and adds its target to parts[0] (bytes) or parts[1] (states). */
static wherry_status open_writer(fetch *f, const wanted_file *wanted, bool inside, bool offered_bytes,
                                 const wherry_value *states, wherry_value *parts[2], wherry_error *error) {
    const char *output = f->options->output;
    wherry_file_write_options options;
    wherry_value *target = NULL;
    char **path = f->paths + f->count;
    const char *slash = output[strlen(output) - 1] == '/' ? "" : "/";
    wh_need(asprintf(path, "%s%s%s", output, inside ? slash : "", inside ? wanted->name : "") < 0 ? NULL : *path);
    wherry_file_format format = wherry_file_format_of(*path);
    bool same_format = format == WHERRY_FILE_AUTO || format == wherry_file_format_of(wanted->name);
    bool bytes = offered_bytes && !f->options->only && same_format;
    const wherry_value *value = wanted->picked ? wanted->picked
                                : bytes        ? wanted->value
                                               : wherry_dict_get(states, wanted->name);
    if (!value) {
        f->needs_states = true;
        return wh_fail_error(error, WHERRY_UNSUPPORTED, "%s is a single shard; it cannot be converted to %s",
                             wanted->name, *path);
    }
    wherry_file_write_options_init(&options);
    options.flags = (f->options->resume ? WHERRY_FILE_RESUME | WHERRY_FILE_KEEP_PART : 0) |
                    (f->options->sync ? (unsigned)WHERRY_FILE_SYNC : 0);
    options.format = bytes ? WHERRY_FILE_BYTES : WHERRY_FILE_AUTO;
    wherry_status status = wherry_file_writer_create(*path, value, &options, f->writers + f->count, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_value_copy(wherry_file_writer_target(f->writers[f->count++]), &target, error);
    return status == WHERRY_OK ? wh_dict_give(parts[bytes ? 0 : 1], wanted->name, target, error) : status;
}

/** Lists the files to write: all, or with --only, those that contain a selected tensor. */
static wherry_status list_wanted(const fetch *f, const wherry_value *from, wanted_file *wanted, size_t *count_p,
                                 wherry_error *error) {
    const char *only = f->options->only;
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < wherry_dict_count(from) && status == WHERRY_OK; i++) {
        wanted_file *one = wanted + *count_p;
        *one = (wanted_file){.name = wh_file_set_name(from, i), .value = wherry_dict_at(from, i)};
        if (!one->name) {
            return wh_fail_error(error, WHERRY_MALFORMED, "the server offers a file with an unsafe name");
        }
        if (only) {
            status = wh_leaves_pick(one->value, only, &one->picked, error);
        }
        *count_p += !only || one->picked;
    }
    if (status == WHERRY_OK && *count_p == 0) {
        status = wh_fail_error(error, WHERRY_NOT_FOUND, "no tensor matches '%s'; `wherry inspect` lists the names",
                               only ? only : "*");
    }
    return status;
}

static wherry_status open_writers(fetch *f, const wanted_file *wanted, size_t count, bool offered_bytes,
                                  const wherry_value *states, wherry_error *error) {
    wherry_value *parts[2] = {NULL, NULL};
    bool inside = false;
    wherry_status status = find_folder(f->options->output, count, &inside, error);
    WH_THEN(status, wherry_dict_create(parts, error));
    WH_THEN(status, wherry_dict_create(parts + 1, error));
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = open_writer(f, wanted + i, inside, offered_bytes, states, parts, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(parts[0]);
        wherry_value_destroy(parts[1]);
        return status;
    }
    return wh_file_set_wrap(parts[0], parts[1], &f->target, error);
}

/** Builds the target for the state that the server offers. */
static wherry_status build_target(fetch *f, const wherry_value *state, wherry_error *error) {
    const wherry_value *bytes = wh_file_set_part(state, "bytes");
    const wherry_value *states = wh_file_set_part(state, "states");
    size_t count = 0;
    if (!bytes || !states) {
        return wh_fail_error(error, WHERRY_MALFORMED, "the process at this address does not serve files");
    }
    /* Several files may be shards of one checkpoint. Writing them to one file needs the state. */
    bool merge = wherry_dict_count(bytes) > 1 && is_one_checkpoint(f->options->output);
    if (merge && wherry_dict_count(states) == 0) {
        f->needs_states = true;
        return wh_fail_error(error, WHERRY_UNSUPPORTED,
                             "the server offers %zu files, which cannot be combined into one; name a folder",
                             wherry_dict_count(bytes));
    }
    const wherry_value *from = f->options->only || merge || wherry_dict_count(bytes) == 0 ? states : bytes;
    wanted_file *wanted = wh_need(calloc(wherry_dict_count(from) + 1, sizeof(*wanted)));
    f->writers = wh_need(calloc(wherry_dict_count(from) + 1, sizeof(wherry_file_writer *)));
    f->paths = wh_need(calloc(wherry_dict_count(from) + 1, sizeof(char *)));
    wherry_status status = list_wanted(f, from, wanted, &count, error);
    WH_THEN(status, open_writers(f, wanted, count, from == bytes, states, error));
    for (size_t i = 0; i < count; i++) {
        wherry_value_destroy(wanted[i].picked);
    }
    free(wanted);
    return status;
}

static wherry_status accept_offer(void *context, const wherry_value *state, const wherry_value **target_p) {
    fetch *f = context;
    wherry_status status = build_target(f, state, &f->error);
    f->error.status = status;
    *target_p = f->target;
    return status;
}

/* ---- --trace ---- */

/** Collects events. Several threads may add them at the same time. */
typedef struct trace {
    FILE *out; /**< The trace file; NULL if there is no trace. */
    pthread_mutex_t lock;
    wherry_trace_event *events;
    size_t count;
    size_t capacity;
    bool incomplete; /**< True if some events are missing because there was no memory. */
} trace;

static void add_event(void *context, const wherry_trace_event *event) {
    trace *t = context;
    pthread_mutex_lock(&t->lock);
    if (t->count == t->capacity) {
        size_t more = t->capacity ? 2 * t->capacity : 1024;
        wherry_trace_event *grown = realloc(t->events, more * sizeof(*grown));
        t->incomplete = t->incomplete || !grown;
        t->events = grown ? grown : t->events;
        t->capacity = grown ? more : t->capacity;
    }
    if (t->count < t->capacity) {
        t->events[t->count++] = *event;
    }
    pthread_mutex_unlock(&t->lock);
}

/** Writes an event of type "X" of the Trace Event Format. Phases are shown as thread 0. */
static void write_event(wh_json *json, const wherry_trace_event *event) {
    bool phase = event->chunk == WHERRY_TRACE_PHASE;
    wh_json_open(json, NULL, '{');
    wh_json_text(json, "name", event->name);
    wh_json_text(json, "cat", phase ? "phase" : event->lane);
    wh_json_text(json, "ph", "X");
    wh_json_real(json, "ts", (double)event->begin_ns / 1000);
    wh_json_real(json, "dur", (double)(event->end_ns - event->begin_ns) / 1000);
    wh_json_number(json, "pid", getpid());
    wh_json_count(json, "tid", phase ? 0 : event->thread);
    wh_json_open(json, "args", '{');
    wh_json_number(json, "source", event->peer);
    if (!phase) {
        wh_json_text(json, "lane", event->lane);
        wh_json_count(json, "chunk", event->chunk);
        wh_json_count(json, "bytes", event->bytes);
    }
    wh_json_close(json, '}');
    wh_json_close(json, '}');
}

/** Writes the trace file. @return false, with errno set, if it could not be written. */
static bool write_trace(trace *t) {
    bool good = true;
    if (t->out) {
        wh_json json = {.out = t->out};
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "displayTimeUnit", "ms");
        wh_json_flag(&json, "incomplete", t->incomplete);
        wh_json_open(&json, "traceEvents", '[');
        for (size_t i = 0; i < t->count; i++) {
            write_event(&json, t->events + i);
        }
        wh_json_close(&json, ']');
        wh_json_close(&json, '}');
        good = !ferror(t->out);
        good = fclose(t->out) == 0 && good;
    }
    free(t->events);
    return good;
}

/* ---- receiving ---- */

static void show_progress(void *context, const wherry_progress *progress) {
    fetch *f = context;
    const char *doing = *progress->lane ? "receiving" : "comparing";
    char detail[200];
    if (f->options->common.quiet) {
        return;
    }
    if (f->doing != doing) { /* with --resume, comparing comes first */
        f->doing = doing;
        f->bar.tenths = 0;
    }
    wh_transfer_text(progress->bytes, progress->total, progress->rate, detail, sizeof(detail));
    size_t used = strlen(detail);
    snprintf(detail + used, sizeof(detail) - used, "%s%s", *progress->lane ? "  " : "", progress->lane);
    wh_bar_show(&f->bar, progress->total ? (double)progress->bytes / (double)progress->total : 1, doing, detail);
}

static wherry_status receive_files(fetch *f, wherry_transport *transport, wherry_error *error) {
    wherry_transfer_options options;
    wherry_value *received = NULL;
    trace t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    if (f->options->trace && !(t.out = fopen(f->options->trace, "we"))) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot write the trace to %s", f->options->trace);
    }
    wherry_transfer_options_init(&options);
    options.timeout_ms = -1;
    options.flags = WHERRY_RECV_PARTIAL | (f->options->resume ? (unsigned)WHERRY_RECV_COMPARE : 0);
    options.verify = WHERRY_VERIFY_ON;
    options.lanes = f->options->lanes;
    options.accept = accept_offer;
    options.accept_context = f;
    options.progress = show_progress;
    options.progress_context = f;
    options.interrupt = wh_interrupted;
    options.stats = &f->stats;
    options.trace = t.out ? add_event : NULL;
    options.trace_context = &t;
    wherry_status status = wherry_checkpoint_recv(transport, 0, &options, &received, error);
    bool traced = write_trace(&t);
    int why = errno;
    wh_bar_end(&f->bar);
    if (f->error.status != WHERRY_OK) {
        *error = f->error;
        return error->status;
    }
    wherry_value_destroy(status == WHERRY_OK ? received : NULL);
    for (size_t i = 0; i < f->count; i++) {
        WH_THEN(status, wherry_file_writer_finish(f->writers[i], error));
    }
    if (status == WHERRY_OK && !traced) {
        errno = why;
        status = wh_fail_error(error, WHERRY_SYSTEM, "the files are complete, but the trace cannot be written to %s",
                               f->options->trace);
    }
    return status;
}

/** Connects, requests bytes or states, and receives. */
static wherry_status fetch_files(fetch *f, const char *address, char request, wherry_error *error) {
    wh_client client = {0};
    wh_bar_begin(&f->bar, stderr);
    wherry_status status =
        wh_client_connect(&client, address, f->options->token_file, f->options->timeout, request, error);
    WH_THEN(status, receive_files(f, client.transport, error));
    wh_client_close(&client);
    return status;
}

/** Frees a fetch. Unfinished files are removed; with --resume they are kept as .part. */
static void end_fetch(fetch *f) {
    wherry_value_destroy(f->target);
    for (size_t i = 0; i < f->count; i++) {
        wherry_file_writer_destroy(f->writers[i]);
    }
    for (size_t i = 0; f->paths && (i < f->count || f->paths[i]); i++) {
        free(f->paths[i]);
    }
    free(f->writers);
    free(f->paths);
}

/* ---- the result ---- */

static void print_json(const fetch *f) {
    const wherry_stats *stats = &f->stats;
    wh_json json = {.out = stdout};
    wh_json_open(&json, NULL, '{');
    wh_json_open(&json, "files", '[');
    for (size_t i = 0; i < f->count; i++) {
        wh_json_text(&json, NULL, f->paths[i]);
    }
    wh_json_close(&json, ']');
    wh_json_count(&json, "bytes_wanted", stats->bytes_wanted);
    wh_json_count(&json, "bytes_moved", stats->bytes_moved);
    wh_json_count(&json, "bytes_held", stats->bytes_held);
    wh_json_text(&json, "lane", stats->lane);
    wh_json_open(&json, "skipped_lanes", '{');
    for (uint32_t i = 0; i < stats->skipped_count; i++) {
        wh_json_text(&json, stats->skipped[i].lane, stats->skipped[i].text);
    }
    wh_json_close(&json, '}');
    wh_json_flag(&json, "checked", stats->checked);
    wh_json_real(&json, "seconds", stats->total_seconds);
    wh_json_real(&json, "data_seconds", stats->data_seconds);
    wh_json_close(&json, '}');
}

static void print_text(const fetch *f) {
    const wherry_stats *stats = &f->stats;
    double rate = stats->data_seconds > 0 ? (double)stats->bytes_moved / stats->data_seconds : 0;
    char size[WH_SIZE_TEXT_MAX];
    for (size_t i = 0; i < f->count; i++) {
        wh_print_line(NULL, f->paths[i]);
    }
    printf("%s in %.1f s", wh_size_text(stats->bytes_moved, size), stats->total_seconds);
    if (*stats->lane) {
        printf(", %.2f GB/s over %s, checked", rate * 1e-9, stats->lane);
    }
    if (stats->bytes_held) {
        printf("; already had %s", wh_size_text(stats->bytes_held, size));
    }
    printf("\n");
}

static int run(void *context, const wh_operands *operands) {
    const fetch_options *options = context;
    wherry_error error;
    const char *address = operands->items[0];
    if (!wh_check_address(&wh_command_fetch, address)) {
        return WH_EXIT_USAGE;
    }
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_ERROR);
    fetch f = {.options = options};
    wherry_status status = fetch_files(&f, address, options->only ? WH_REQUEST_STATES : WH_REQUEST_BYTES, &error);
    if (status != WHERRY_OK && f.needs_states && !options->only) {
        end_fetch(&f);
        f = (fetch){.options = options};
        status = fetch_files(&f, address, WH_REQUEST_STATES, &error);
    }
    if (status == WHERRY_OK && options->common.json) {
        print_json(&f);
    } else if (status == WHERRY_OK && !options->common.quiet) {
        print_text(&f);
    }
    end_fetch(&f);
    return wh_end_command(&wh_command_fetch, status, &error);
}
