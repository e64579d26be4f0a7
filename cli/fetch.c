/*
 * `wherry fetch`: receives files from `wherry serve`.
 *
 *  1. A file is received straight into .NAME.part. It is renamed to NAME only when it is complete
 *     and its digests are correct.
 *  2. No received byte is written until the whole target matches the server's offer.
 *  3. Files are fetched byte for byte if possible. For another format, or with --only, the tensors
 *     ("states", see file_set.h) are fetched instead.
 *  4. Several servers must have the same names and bytes: their digests are compared before the
 *     transfer, and the library compares the digests' first bits again, as the step.
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
    bool force;
    bool sync;
    const char *token_file;
    const char *ca;
    const char *lanes;
    int64_t timeout;
    bool wait;
    const char *trace;
} fetch_options;

static const wh_option options_taken[] = {
    WH_OPTION(fetch_options, output, FILE, "output", 'o', "PATH",
              "the file or folder to write (default: the current folder); a file is replaced if it exists"),
    WH_OPTION(fetch_options, force, FLAG, "force", 'f', NULL, "also replace files that exist in a folder"),
    WH_OPTION(fetch_options, only, TEXT, "only", 0, "PATTERN",
              "fetch only tensors whose name matches a shell pattern, such as 'layers.*'"),
    WH_OPTION(fetch_options, resume, FLAG, "resume", 'r', NULL,
              "continue an interrupted fetch: receive only what is missing or different, and keep the partial file if "
              "this fetch fails too"),
    WH_OPTION(fetch_options, sync, FLAG, "sync", 0, NULL, "exit only after the files are on the disk (fsync)"),
    WH_OPTION(fetch_options, token_file, FILE, "token-file", 't', "FILE",
              "read the token from FILE (default: the environment variable WHERRY_TOKEN, or a prompt)"),
    WH_OPTION(fetch_options, ca, FILE, "ca", 0, "FILE",
              "servers have certificates of the CA in this PEM file, for the host in ADDRESS (`wherry serve --cert`)"),
    WH_OPTION(fetch_options, lanes, TEXT, "lanes", 0, "LANES",
              "lanes to use, such as cma,stream, or ^cma for all but cma (default: all)"),
    WH_OPTION(fetch_options, trace, FILE, "trace", 0, "FILE",
              "write a timeline of the transfer for chrome://tracing or Perfetto"),
    WH_OPTION(fetch_options, timeout, NUMBER, "timeout", 0, "SECONDS",
              "how long to wait for the server to answer (default 30)", .least = 1, .most = 1000000),
    WH_OPTION(fetch_options, wait, FLAG, "wait", 'w', NULL,
              "wait for a server that has not been started, as long as --timeout says"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_fetch = {
    .name = "fetch",
    .summary = "fetch checkpoint files from `wherry serve`",
    .operands = "ADDRESS...",
    .least = 1,
    .most = WHERRY_SOURCES_MAX,
    .text = "Fetches the files that are served at ADDRESS, byte for byte, over the fastest lane, and checks them "
            "against digests. A file is written as .NAME.part and renamed when it is complete and correct.\n\n"
            "With several addresses, the bytes come from all servers at the same time. They must serve the same files. "
            "If a server is lost, the others send its share. If the servers have different tokens, give the tokens in "
            "the order of the addresses, with spaces between them.\n\n"
            "If PATH ends with the suffix of another format (.safetensors, .wherry), or with --only, the tensors are "
            "written in the format of PATH.\n\n"
            "The token is never an argument, because other users of the machine can see arguments.",
    .options = options_taken,
    .json = true,
    .examples = "WHERRY_TOKEN=... wherry fetch tcp://127.0.0.1:41234 -o model.safetensors\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o models/ --resume\n"
                "wherry fetch tcp://trainer7:29700 tcp://trainer8:29700 --token-file tokens\n"
                "wherry fetch tcp://trainer7:29700 --token-file token -o part.safetensors --only 'layers.0.*'\n",
    WH_DEFAULTS(fetch_options, .output = "./", .timeout = 30),
    .run = run,
};

/** The state of one fetch. */
typedef struct fetch {
    const fetch_options *options;
    wh_client *clients;
    size_t client_count;
    bool bytes; /**< Fetch the files byte for byte. */
    wh_bar bar;
    const char *doing;            /**< The label of the progress bar: "comparing" or "receiving". */
    wherry_file_writer **writers; /**< One writer per file. */
    char **paths;
    size_t count;
    wherry_value *target;
    uint64_t bytes_wanted; /**< Size of the files, or of the selected tensors. */
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

/** True if files with these names, as a server told them, can be fetched byte for byte. */
static bool can_fetch_bytes(const fetch_options *options, const char *names) {
    const char *output = options->output;
    size_t count = 0;
    for (const char *name = names; *name; name += strlen(name) + 1) {
        count++;
    }
    wherry_file_format format = wherry_file_format_of(output);
    bool same = count == 1 && format == wherry_file_format_of(names);
    return !options->only && (same || !is_one_checkpoint(output));
}

/** The path of a file. @param name  NULL: the output is the file. @return owned by the caller. */
static char *path_of(const char *output, const char *name) {
    const char *slash = output[strlen(output) - 1] == '/' ? "" : "/";
    char *path = NULL;
    wh_need(asprintf(&path, "%s%s%s", output, name ? slash : "", name ? name : "") < 0 ? NULL : path);
    return path;
}

/** The path of the part file of a file. @return owned by the caller. */
static char *part_of(const char *path) {
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash + 1 - path) : 0;
    char *part = NULL;
    wh_need(asprintf(&part, "%.*s.%s.part", folder, path, path + folder) < 0 ? NULL : part);
    return part;
}

/** True if there is a file to continue with, so that comparing it is worth the time. */
static bool can_resume(const fetch_options *options, const char *names) {
    bool found = false;
    for (const char *name = NULL; !found && (!name || *name); name = name ? name + strlen(name) + 1 : names) {
        char *path = path_of(options->output, name);
        char *part = part_of(path);
        found = access(part, F_OK) == 0 || (access(path, F_OK) == 0 && !is_folder(path));
        free(part);
        free(path);
    }
    return options->resume && found;
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

/** Says what to do about a file that must not be replaced. @return the error's status. */
static wherry_status explain_existing(const char *path, wherry_error *error) {
    if (error->status == WHERRY_SYSTEM && error->errnum == EEXIST) {
        *error->path = '\0';
        snprintf(error->message, sizeof(error->message), "%.600s exists; use --force to replace it, or -o FILE", path);
    }
    return error->status;
}

/** Opens the writer of a file, and adds its target to `part`. */
static wherry_status open_writer(fetch *f, const wanted_file *wanted, bool inside, wherry_value *part,
                                 wherry_error *error) {
    wherry_file_write_options options;
    wherry_value *target = NULL;
    char **path = f->paths + f->count;
    *path = path_of(f->options->output, inside ? wanted->name : NULL);
    if (inside && *wanted->name == '.') {
        return wh_fail_error(error, WHERRY_REFUSED, "the server offers the hidden file %s; fetch it with -o FILE",
                             wanted->name);
    }
    wherry_file_write_options_init(&options);
    options.flags = (f->options->resume ? WHERRY_FILE_RESUME | WHERRY_FILE_KEEP_PART : 0) |
                    (f->options->sync ? (unsigned)WHERRY_FILE_SYNC : 0) |
                    (inside && !f->options->force ? (unsigned)WHERRY_FILE_NEW : 0);
    options.format = f->bytes ? WHERRY_FILE_BYTES : WHERRY_FILE_AUTO;
    wherry_status status = wherry_file_writer_create(*path, wanted->picked ? wanted->picked : wanted->value, &options,
                                                     f->writers + f->count, error);
    if (status != WHERRY_OK) {
        return explain_existing(*path, error);
    }
    status = wherry_value_copy(wherry_file_writer_target(f->writers[f->count++]), &target, error);
    f->bytes_wanted += status == WHERRY_OK ? wh_tensor_bytes(target) : 0;
    return status == WHERRY_OK ? wh_dict_give(part, wanted->name, target, error) : status;
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

static wherry_status open_writers(fetch *f, const wanted_file *wanted, size_t count, wherry_error *error) {
    wherry_value *part = NULL;
    bool inside = false;
    wherry_status status = find_folder(f->options->output, count, &inside, error);
    WH_THEN(status, wherry_dict_create(&part, error));
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = open_writer(f, wanted + i, inside, part, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(part);
        return status;
    }
    return wh_file_set_wrap(f->bytes ? "bytes" : "states", part, &f->target, error);
}

/** Builds the target for the state that the server offers. */
static wherry_status build_target(fetch *f, const wherry_value *state, wherry_error *error) {
    const wherry_value *from = wh_file_set_part(state, f->bytes ? "bytes" : "states");
    size_t count = 0;
    if (!from || wherry_dict_count(from) == 0) {
        return wh_fail_error(error, WHERRY_MALFORMED, "the process at this address does not serve files");
    }
    wanted_file *wanted = wh_need(calloc(wherry_dict_count(from), sizeof(*wanted)));
    f->writers = wh_need(calloc(wherry_dict_count(from), sizeof(wherry_file_writer *)));
    f->paths = wh_need(calloc(wherry_dict_count(from) + 1, sizeof(char *)));
    wherry_status status = list_wanted(f, from, wanted, &count, error);
    WH_THEN(status, open_writers(f, wanted, count, error));
    for (size_t i = 0; i < wherry_dict_count(from); i++) {
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
    char detail[WH_TRANSFER_TEXT_MAX];
    if (f->options->common.quiet || !progress->total) { /* All bytes are there already. */
        return;
    }
    if (f->doing != doing) { /* With --resume, the comparison comes first. */
        f->doing = doing;
        f->bar.tenths = 0;
    }
    /* Whole chunks are transferred. Without --resume, count only what the user has asked for. */
    double part = (double)progress->bytes / (double)progress->total;
    uint64_t total = f->options->resume ? progress->total : f->bytes_wanted;
    wh_transfer_text((uint64_t)(part * (double)total), total, progress->rate, f->client_count, detail);
    wh_bar_show(&f->bar, part, doing, detail, progress->lane);
}

/**
 * Says what the loss of the servers means for the user: what has arrived, and how to continue. The
 * library's message lists tensors instead. @return the error's status.
 */
static wherry_status explain_loss(const fetch *f, wherry_error *error) {
    wherry_status_class group = wherry_status_class_of(error->status);
    char sizes[2][WH_SIZE_TEXT_MAX];
    const wherry_stats *stats = &f->stats;
    const char *why = "";
    for (uint32_t i = 0; i < stats->source_count && !*why; i++) {
        why = stats->sources[i].status == error->status ? stats->sources[i].reason : "";
    }
    bool lost = group == WHERRY_STATUS_CLASS_PEER || group == WHERRY_STATUS_CLASS_DEADLINE;
    /* A long reason is cut. */
    bool whole = *why && strlen(why) + 1 < sizeof(stats->sources[0].reason);
    if (!lost || !whole || !stats->bytes_wanted) {
        return error->status;
    }
    return wh_fail_error(error, error->status, "%s; %s of %s had arrived; %s", why,
                         wh_size_text(stats->bytes_moved, sizes[0]), wh_size_text(stats->bytes_wanted, sizes[1]),
                         f->options->resume ? "the same command continues from there"
                                            : "with --resume, the next fetch can continue after a failure");
}

/** True if two files have the same bytes. */
static bool are_equal(const char *one, const char *other) {
    const char *paths[] = {one, other};
    wherry_file *files[2] = {NULL, NULL};
    wherry_file_open_options options;
    wherry_status status = WHERRY_OK;
    wherry_file_open_options_init(&options);
    options.format = WHERRY_FILE_BYTES;
    for (int i = 0; i < 2; i++) {
        WH_THEN(status, wherry_file_open(paths[i], &options, files + i, NULL));
    }
    WH_THEN(status, wherry_value_compare(wherry_file_state(files[0]), wherry_file_state(files[1]), 0, NULL));
    wherry_file_close(files[0]);
    wherry_file_close(files[1]);
    return status == WHERRY_OK;
}

/** Gives the files their names. A file that exists may stay if it is the same. */
static wherry_status finish_files(fetch *f, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < f->count && status == WHERRY_OK; i++) {
        status = wherry_file_writer_finish(f->writers[i], error);
        if (status == WHERRY_SYSTEM && error->errnum == EEXIST) {
            char *part = part_of(f->paths[i]);
            bool same = are_equal(part, f->paths[i]);
            status = same ? WHERRY_OK : explain_existing(f->paths[i], error);
            if (same) {
                unlink(part);
            }
            free(part);
        }
    }
    return status;
}

static wherry_status receive_files(fetch *f, wherry_error *error) {
    wherry_transfer_options options;
    wherry_source sources[WHERRY_SOURCES_MAX];
    wherry_value *received = NULL;
    trace t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    if (f->options->trace && !(t.out = fopen(f->options->trace, "we"))) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot write the trace to %s", f->options->trace);
    }
    for (size_t i = 0; i < f->client_count; i++) {
        sources[i] = (wherry_source){.transport = f->clients[i].transport, .name = f->clients[i].address};
    }
    wherry_transfer_options_init(&options);
    options.timeout_ms = -1;
    options.flags =
        WHERRY_RECV_PARTIAL | (can_resume(f->options, f->clients->files) ? (unsigned)WHERRY_RECV_COMPARE : 0);
    options.verify = WHERRY_VERIFY_ON;
    options.step = *f->clients->digest ? wh_file_set_step(f->clients->digest) : WHERRY_STEP_ANY;
    options.lanes = f->options->lanes;
    options.accept = accept_offer;
    options.accept_context = f;
    options.progress = show_progress;
    options.progress_context = f;
    options.interrupt = wh_interrupted;
    options.stats = &f->stats;
    options.trace = t.out ? add_event : NULL;
    options.trace_context = &t;
    wh_bar_begin(&f->bar, stderr);
    wherry_status status = wherry_checkpoint_recv_sources(sources, f->client_count, &options, &received, error);
    bool traced = write_trace(&t);
    int why = errno;
    wh_bar_end(&f->bar);
    if (f->error.status != WHERRY_OK) {
        *error = f->error;
        return error->status;
    }
    if (status != WHERRY_OK) {
        return explain_loss(f, error);
    }
    wherry_value_destroy(received);
    status = finish_files(f, error);
    if (status == WHERRY_OK && !traced) {
        errno = why;
        status = wh_fail_error(error, WHERRY_SYSTEM, "the files are complete, but the trace cannot be written to %s",
                               f->options->trace);
    }
    return status;
}

/* ---- servers ---- */

/**
 * Moves the clients that are connected to the front. Says why the others are not, once.
 * @return WHERRY_MISMATCH if two servers have different files.
 */
static wherry_status keep_connected(fetch *f, wherry_error *error) {
    size_t kept = 0;
    for (size_t i = 0; i < f->client_count; i++) {
        wh_client swap = f->clients[i];
        if (swap.group) {
            f->clients[i] = f->clients[kept];
            f->clients[kept++] = swap;
        } else {
            wh_fail_command(&wh_command_fetch, 0, "going on without %s: %s", swap.address, swap.error.message);
        }
    }
    f->client_count = kept;
    for (size_t i = 1; i < kept && f->clients[i].digest; i++) {
        if (strcmp(f->clients->digest, f->clients[i].digest) != 0) {
            return wh_fail_error(error, WHERRY_MISMATCH,
                                 "%s and %s serve different files (digests %s and %s); fetch from servers of the same "
                                 "files",
                                 f->clients->address, f->clients[i].address, f->clients->digest, f->clients[i].digest);
        }
    }
    return WHERRY_OK;
}

/** Connects to all servers, requests bytes or states, and receives. */
static wherry_status fetch_files(fetch *f, wherry_error *error) {
    const fetch_options *options = f->options;
    const wh_patience patience = {options->timeout, options->wait, .can_wait = true, .ca = options->ca};
    bool several = f->client_count > 1;
    wherry_status status = wh_clients_connect(f->clients, f->client_count, options->token_file, &patience, error);
    for (size_t i = 1; i < f->client_count && status != WHERRY_OK && *f->clients[i].error.message; i++) {
        /* The error of the first server follows. */
        wh_fail_command(&wh_command_fetch, 0, "%s", f->clients[i].error.message);
    }
    WH_THEN(status, keep_connected(f, error));
    if (status == WHERRY_OK) {
        f->bytes = can_fetch_bytes(options, f->clients->files);
        status = wh_clients_request(f->clients, f->client_count, f->bytes ? WH_REQUEST_BYTES : WH_REQUEST_STATES,
                                    several, &patience, error);
    }
    WH_THEN(status, keep_connected(f, error));
    WH_THEN(status, receive_files(f, error));
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
    wh_json_begin(&json);
    wh_json_open(&json, "files", '[');
    for (size_t i = 0; i < f->count; i++) {
        wh_json_text(&json, NULL, f->paths[i]);
    }
    wh_json_close(&json, ']');
    wh_json_count(&json, "bytes", f->bytes_wanted);
    wh_json_count(&json, "bytes_requested", stats->bytes_wanted);
    wh_json_count(&json, "bytes_received", stats->bytes_moved);
    wh_json_count(&json, "bytes_present", stats->bytes_held);
    wh_json_text(&json, "lane", stats->lane);
    wh_json_open(&json, "skipped_lanes", '{');
    for (uint32_t i = 0; i < stats->skipped_count; i++) {
        wh_json_text(&json, stats->skipped[i].lane, stats->skipped[i].text);
    }
    wh_json_close(&json, '}');
    wh_json_flag(&json, "checked", stats->checked);
    wh_json_flag(&json, "verified", stats->verified);
    wh_json_real(&json, "seconds", stats->total_seconds);
    wh_json_real(&json, "data_seconds", stats->data_seconds);
    wh_json_open(&json, "servers", '[');
    for (uint32_t i = 0; i < stats->source_count; i++) {
        const wherry_source_stats *source = stats->sources + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "address", f->clients[i].address);
        wh_json_count(&json, "bytes", source->bytes);
        wh_json_count(&json, "chunks", source->chunks);
        wh_json_real(&json, "bytes_per_second", source->rate);
        wh_json_text(&json, "lane", source->lane);
        wh_json_text(&json, "error", source->reason);
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
    wh_json_close(&json, '}');
}

static void print_text(const fetch *f) {
    const wherry_stats *stats = &f->stats;
    uint64_t bytes = stats->bytes_held ? stats->bytes_moved : f->bytes_wanted;
    char size[WH_SIZE_TEXT_MAX];
    char held[WH_SIZE_TEXT_MAX];
    char speed[WH_SPEED_TEXT_MAX];
    for (size_t i = 0; i < f->count; i++) {
        wh_print_text(stdout, "%s", f->paths[i]);
    }
    wh_print_text(stdout, "%s%s%s%s%s%s%s", bytes ? wh_size_text(bytes, size) : "nothing to fetch",
                  wh_speed_text(bytes, stats->data_seconds, speed), *stats->lane ? " over " : "", stats->lane,
                  !*stats->lane     ? ""
                  : stats->verified ? ", verified"
                                    : ", checked",
                  stats->bytes_held ? "; already had " : "",
                  stats->bytes_held ? wh_size_text(stats->bytes_held, held) : "");
    for (uint32_t i = 0; f->client_count > 1 && i < stats->source_count; i++) {
        const wherry_source_stats *source = stats->sources + i;
        wh_rate_text(source->rate, speed);
        wh_print_text(stdout, "  %s: %s%s%s%s%s%s%s", f->clients[i].address, wh_size_text(source->bytes, size),
                      source->bytes ? " at " : "", source->bytes ? speed : "", source->bytes ? " over " : "",
                      source->bytes ? source->lane : "", *source->reason ? "; lost: " : "", source->reason);
    }
}

static int run(void *context, const wh_operands *operands) {
    const fetch_options *options = context;
    wherry_error error;
    size_t count = (size_t)operands->count;
    for (size_t i = 0; i < count; i++) {
        if (!wh_check_address(&wh_command_fetch, operands->items[i])) {
            return WH_EXIT_USAGE;
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(operands->items[i], operands->items[k]) == 0) {
                return wh_fail_command(&wh_command_fetch, WH_EXIT_USAGE, "%s is given twice", operands->items[i]);
            }
        }
    }
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_OFF);
    fetch f = {.options = options, .clients = wh_need(calloc(count, sizeof(wh_client))), .client_count = count};
    for (size_t i = 0; i < count; i++) {
        f.clients[i].address = operands->items[i];
    }
    wherry_status status = fetch_files(&f, &error);
    if (status == WHERRY_OK && options->common.json) {
        print_json(&f);
    } else if (status == WHERRY_OK && !options->common.quiet) {
        print_text(&f);
    }
    end_fetch(&f);
    for (size_t i = 0; i < count; i++) {
        wh_client_close(f.clients + i);
    }
    free(f.clients);
    return wh_end_command(&wh_command_fetch, status, &error);
}
