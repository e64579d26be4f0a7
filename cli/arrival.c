#include "arrival.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cargo.h"
#include "interrupt.h"
#include "json_out.h"
#include "leaves.h"
#include "trace_out.h"

/* ---- where files go ---- */

static bool is_folder(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static char *path_of(const wh_arrival *arrival, const char *name, bool inside) {
    char *path = NULL;
    size_t length = strlen(arrival->output);
    bool slash = length && arrival->output[length - 1] == '/';
    int made = inside ? asprintf(&path, "%s%s%s", arrival->output, slash ? "" : "/", name)
                      : asprintf(&path, "%s", arrival->output);
    return made < 0 ? NULL : path;
}

/** Whether the output is the name of one checkpoint: not a folder, and with the ending of a format. */
static bool is_one(const wh_arrival *arrival) {
    return wherry_file_format_of(arrival->output) != WHERRY_FILE_AUTO && !is_folder(arrival->output);
}

/** Whether the files go into a folder, which is made where it is missing. */
static wherry_status find_folder(const wh_arrival *arrival, size_t count, bool *inside_p, wherry_error *error) {
    size_t length = strlen(arrival->output);
    *inside_p = count > 1 || is_folder(arrival->output) || arrival->output[length - 1] == '/';
    if (count > 1 && is_one(arrival)) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT,
                             "%zu files are offered, and %s is the name of one; give a folder, with a / at its end",
                             count, arrival->output);
    }
    if (*inside_p && !is_folder(arrival->output) && mkdir(arrival->output, 0777) != 0) {
        return wh_fail_error(error, WHERRY_SYSTEM, "the folder %s cannot be made for %zu files", arrival->output,
                             count);
    }
    return WHERRY_OK;
}

/* ---- the target ---- */

/** Byte for byte, unless another format, or only a part, is wanted. */
static bool takes_bytes(const wh_arrival *arrival, const char *name, const char *path) {
    wherry_file_format wanted = wherry_file_format_of(path);
    return !arrival->only && (wanted == WHERRY_FILE_AUTO || wanted == wherry_file_format_of(name));
}

static wherry_status begin_writer(wh_arrival *arrival, const char *path, const wherry_value *state, bool bytes,
                                  wherry_error *error) {
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = (arrival->resume ? WHERRY_FILE_RESUME | WHERRY_FILE_KEEP_PART : 0) |
                    (arrival->sync ? (unsigned)WHERRY_FILE_SYNC : 0);
    options.format = bytes ? WHERRY_FILE_BYTES : WHERRY_FILE_AUTO;
    wherry_status status = wherry_file_writer_create(path, state, &options, arrival->writers + arrival->count, error);
    arrival->count += status == WHERRY_OK;
    return status;
}

/** A file that will be written. */
typedef struct parcel {
    const char *name;
    const wherry_value *value; /**< The bytes, or the state; borrowed. */
    wherry_value *picked;      /**< The part of the state that is wanted, where that is not all of it. */
} parcel;

/** Begins the file of a parcel, and adds where it goes to one of the target's parts. */
static wherry_status begin_file(wh_arrival *arrival, const parcel *one, bool inside, bool from_bytes,
                                const wherry_value *states, wherry_value *parts[2], wherry_error *error) {
    wherry_value *target = NULL;
    size_t number = arrival->count;
    char *path = arrival->paths[number] = path_of(arrival, one->name, inside);
    if (!path) {
        return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for the name of a file");
    }
    bool bytes = from_bytes && takes_bytes(arrival, one->name, path);
    const wherry_value *value = one->picked ? one->picked : bytes ? one->value : wherry_dict_get(states, one->name);
    if (!value) {
        arrival->needs_states = true;
        return wh_fail_error(error, WHERRY_UNSUPPORTED, "%s is a shard, and has no state of its own to write to %s",
                             one->name, path);
    }
    wherry_status status = begin_writer(arrival, path, value, bytes, error);
    if (status == WHERRY_OK) {
        status = wherry_value_copy(wherry_file_writer_target(arrival->writers[number]), &target, error);
    }
    return status == WHERRY_OK ? wh_cargo_put(parts[bytes ? 0 : 1], one->name, target, error) : status;
}

/** Lists what will be written: all files, or those whose state has something that fits. */
static wherry_status list_parcels(const wh_arrival *arrival, const wherry_value *from, parcel *parcels, size_t *count_p,
                                  wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < wherry_dict_count(from) && status == WHERRY_OK; i++) {
        parcel *one = parcels + *count_p;
        *one = (parcel){.name = wh_cargo_name(from, i), .value = wherry_dict_at(from, i)};
        if (!one->name) {
            return wh_fail_error(error, WHERRY_MALFORMED, "a file that is offered has no name for a file");
        }
        if (arrival->only) {
            status = wh_leaves_pick(one->value, arrival->only, &one->picked, error);
        }
        *count_p += !arrival->only || one->picked;
    }
    if (status == WHERRY_OK && *count_p == 0) {
        status = wh_fail_error(error, WHERRY_NOT_FOUND,
                               "nothing that is offered fits '%s'; `wherry inspect` lists the names",
                               arrival->only ? arrival->only : "*");
    }
    return status;
}

static wherry_status begin_files(wh_arrival *arrival, const parcel *parcels, size_t count, bool from_bytes,
                                 const wherry_value *states, wherry_error *error) {
    wherry_value *parts[2] = {NULL, NULL};
    bool inside = false;
    wherry_status status = find_folder(arrival, count, &inside, error);
    for (int i = 0; i < 2 && status == WHERRY_OK; i++) {
        status = wherry_dict_create(parts + i, error);
    }
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = begin_file(arrival, parcels + i, inside, from_bytes, states, parts, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(parts[0]);
        wherry_value_destroy(parts[1]);
        return status;
    }
    return wh_cargo_wrap(parts[0], parts[1], &arrival->target, error);
}

static wherry_status lay_out(wh_arrival *arrival, const wherry_value *state, wherry_error *error) {
    const wherry_value *bytes = wh_cargo_part(state, "bytes");
    const wherry_value *states = wh_cargo_part(state, "states");
    size_t count = 0;
    if (!bytes || !states) {
        return wh_fail_error(error, WHERRY_MALFORMED, "the other side does not send files");
    }
    /* Several files can be one checkpoint, in shards: to have it in one file takes its state. */
    bool gathered = wherry_dict_count(bytes) > 1 && is_one(arrival);
    if (gathered && wherry_dict_count(states) == 0) {
        arrival->needs_states = true;
        return wh_fail_error(error, WHERRY_UNSUPPORTED, "%zu files are offered, and one is wanted",
                             wherry_dict_count(bytes));
    }
    const wherry_value *from = arrival->only || gathered || wherry_dict_count(bytes) == 0 ? states : bytes;
    parcel *parcels = calloc(wherry_dict_count(from) + 1, sizeof(*parcels));
    arrival->writers = calloc(wherry_dict_count(from) + 1, sizeof(wherry_file_writer *));
    arrival->paths = calloc(wherry_dict_count(from) + 1, sizeof(char *));
    wherry_status status = parcels && arrival->writers && arrival->paths
                               ? list_parcels(arrival, from, parcels, &count, error)
                               : wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a list of files");
    if (status == WHERRY_OK) {
        status = begin_files(arrival, parcels, count, from == bytes, states, error);
    }
    for (size_t i = 0; parcels && i < count; i++) {
        wherry_value_destroy(parcels[i].picked);
    }
    free(parcels);
    return status;
}

static wherry_status accept(void *context, const wherry_value *state, const wherry_value **target_p) {
    wh_arrival *arrival = context;
    wherry_status status = lay_out(arrival, state, &arrival->error);
    arrival->error.status = status;
    *target_p = arrival->target;
    return status;
}

/* ---- receiving ---- */

static void show(void *context, const wherry_progress *progress) {
    wh_arrival *arrival = context;
    if (arrival->bar) {
        const char *doing = *progress->lane ? "receiving" : "comparing";
        arrival->bar->tenths = strcmp(doing, arrival->bar->doing) == 0 ? arrival->bar->tenths : 0;
        arrival->bar->doing = doing;
        wh_bar_show(arrival->bar, progress->bytes, progress->total, progress->rate, progress->lane);
    }
}

wherry_status wh_arrival_receive(wh_arrival *arrival, wherry_transport *transport, int32_t rank, const char *lanes,
                                 wherry_error *error) {
    wherry_transfer_options options;
    wherry_value *received = NULL;
    wherry_transfer_options_init(&options);
    options.timeout_ms = -1;
    options.flags = WHERRY_RECV_PARTIAL | (arrival->resume ? (unsigned)WHERRY_RECV_COMPARE : 0);
    options.verify = WHERRY_VERIFY_ON;
    options.lanes = lanes;
    options.accept = accept;
    options.accept_context = arrival;
    options.progress = show;
    options.progress_context = arrival;
    options.interrupt = wh_interrupted;
    options.stats = &arrival->stats;
    wh_trace_log trace;
    wherry_status status = WHERRY_OK;
    if (!wh_trace_begin(&trace, arrival->trace)) { /* before anything is moved */
        status = wh_fail_error(error, WHERRY_SYSTEM, "no trace can be written to %s", arrival->trace);
    }
    options.trace = arrival->trace ? wh_trace_note : NULL;
    options.trace_context = &trace;
    if (status == WHERRY_OK) {
        status = wherry_checkpoint_recv(transport, rank, &options, &received, error);
    }
    bool traced = wh_trace_end(&trace);
    int why = errno;
    if (arrival->bar) {
        wh_bar_end(arrival->bar);
    }
    if (arrival->error.status != WHERRY_OK) {
        *error = arrival->error;
        return error->status;
    }
    wherry_value_destroy(status == WHERRY_OK ? received : NULL);
    for (size_t i = 0; i < arrival->count && status == WHERRY_OK; i++) {
        status = wherry_file_writer_finish(arrival->writers[i], error);
    }
    if (status == WHERRY_OK && !traced) {
        errno = why;
        status = wh_fail_error(error, WHERRY_SYSTEM, "the files are here, but the trace cannot be written to %s",
                               arrival->trace);
    }
    return status;
}

void wh_arrival_end(wh_arrival *arrival) {
    wherry_value_destroy(arrival->target);
    for (size_t i = 0; i < arrival->count; i++) {
        wherry_file_writer_destroy(arrival->writers[i]);
    }
    for (size_t i = 0; arrival->paths && (i < arrival->count || arrival->paths[i]); i++) {
        free(arrival->paths[i]);
    }
    free(arrival->writers);
    free(arrival->paths);
}

void wh_arrival_tell(const wh_arrival *arrival, const wh_common *common) {
    const wherry_stats *stats = &arrival->stats;
    double rate = stats->data_seconds > 0 ? (double)stats->bytes_moved / stats->data_seconds : 0;
    if (common->json) {
        wh_json json = {.out = stdout};
        wh_json_open(&json, NULL, '{');
        wh_json_open(&json, "files", '[');
        for (size_t i = 0; i < arrival->count; i++) {
            wh_json_text(&json, NULL, arrival->paths[i]);
        }
        wh_json_close(&json, ']');
        wh_json_count(&json, "bytes_wanted", stats->bytes_wanted);
        wh_json_count(&json, "bytes_moved", stats->bytes_moved);
        wh_json_count(&json, "bytes_held", stats->bytes_held);
        wh_json_text(&json, "lane", stats->lane);
        wh_json_text(&json, "why_no_other", stats->reasons);
        wh_json_flag(&json, "verified", stats->verified);
        wh_json_real(&json, "seconds", stats->total_seconds);
        wh_json_real(&json, "data_seconds", stats->data_seconds);
        wh_json_close(&json, '}');
        return;
    }
    if (common->quiet) {
        return;
    }
    char sizes[2][WH_SIZE_TEXT_MAX];
    for (size_t i = 0; i < arrival->count; i++) {
        wh_print_plain(stdout, arrival->paths[i]);
        printf("\n");
    }
    printf("%s in %.1f s", wh_size_text(stats->bytes_moved, sizes[0]), stats->total_seconds);
    if (*stats->lane) {
        printf(", %.2f GB/s over %s, verified", rate * 1e-9, stats->lane);
    }
    if (stats->bytes_held) {
        printf("; %s were here already", wh_size_text(stats->bytes_held, sizes[1]));
    }
    printf("\n");
}
