#include "file_set.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "output.h"

enum { LAYOUT_VERSION = 1, SLICE_BYTES = 64 << 20 };

/* ---- the layout ---- */

const wherry_value *wh_file_set_part(const wherry_value *state, const char *part) {
    const wherry_value *version = wherry_dict_get(state, "cargo");
    const wherry_value *found = wherry_dict_get(state, part);
    bool good = version && wherry_value_kind(version) == WHERRY_KIND_INT && wherry_int_get(version) == LAYOUT_VERSION;
    return good && found && wherry_value_kind(found) == WHERRY_KIND_DICT ? found : NULL;
}

const char *wh_file_set_name(const wherry_value *part, size_t index) {
    size_t size;
    const wherry_value *key = wherry_dict_key_at(part, index);
    const char *name = key ? wherry_string_get(key, &size) : NULL;
    bool good =
        name && size && strlen(name) == size && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return good ? name : NULL;
}

wherry_status wh_dict_give(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error) {
    wherry_status status = wherry_dict_put(dict, name, item, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(item);
    }
    return status;
}

wherry_status wh_file_set_wrap(const char *part, wherry_value *files, wherry_value **state_p, wherry_error *error) {
    const char *other = strcmp(part, "bytes") == 0 ? "states" : "bytes";
    wherry_value *state = NULL;
    wherry_value *version = NULL;
    wherry_value *none = NULL;
    wherry_status status = wherry_dict_create(&state, error);
    WH_THEN(status, wherry_int_create(LAYOUT_VERSION, &version, error));
    WH_THEN(status, wh_dict_give(state, "cargo", version, error));
    WH_THEN(status, wherry_dict_create(&none, error));
    WH_THEN(status, wh_dict_give(state, other, none, error));
    if (status != WHERRY_OK) {
        wherry_value_destroy(files);
    }
    WH_THEN(status, wh_dict_give(state, part, files, error));
    if (status != WHERRY_OK) {
        wherry_value_destroy(state);
        return status;
    }
    *state_p = state;
    return WHERRY_OK;
}

/* ---- opening ---- */

/** Opens a file and adds its state to a dict under the file's name. */
static wherry_status add_file(wh_file_set *set, const char *path, wherry_file_format format, wherry_value *dict,
                              wherry_file **file_p, wherry_error *error) {
    wherry_file_open_options options;
    wherry_value *copy;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    set->open = wh_need(realloc(set->open, (set->open_count + 1) * sizeof(wherry_file *)));
    wherry_file_open_options_init(&options);
    options.format = format;
    wherry_status status = wherry_file_open(path, &options, file_p, error);
    if (status != WHERRY_OK) {
        return status;
    }
    set->open[set->open_count++] = *file_p;
    status = wherry_value_copy(wherry_file_state(*file_p), &copy, error);
    WH_THEN(status, wh_dict_give(dict, name, copy, error));
    return status == WHERRY_DUPLICATE_KEY
               ? wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "two files have the name %s", name)
               : status;
}

/** Adds a checkpoint: its state, and the bytes of its files. An index has several files. */
static wherry_status add_checkpoint(wh_file_set *set, const char *path, wherry_value *bytes, wherry_value *states,
                                    wherry_error *error) {
    wherry_file *file = NULL;
    wherry_file *plain = NULL;
    wherry_file_summary summary;
    wherry_status status = add_file(set, path, WHERRY_FILE_AUTO, states, &file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_file_summarize(file, &summary);
    set->tensors += summary.tensors;
    for (size_t i = 0; status == WHERRY_OK && wherry_file_path(file, i); i++) {
        status = add_file(set, wherry_file_path(file, i), WHERRY_FILE_BYTES, bytes, &plain, error);
        if (status == WHERRY_OK) {
            wherry_file_summarize(plain, &summary);
            set->file_bytes += summary.file_bytes;
            set->files++;
        }
    }
    return status;
}

wherry_status wh_file_set_open(wh_file_set *set, char *const *paths, size_t count, wherry_error *error) {
    wherry_value *bytes = NULL;
    wherry_value *states = NULL;
    wherry_status status = wherry_dict_create(&bytes, error);
    WH_THEN(status, wherry_dict_create(&states, error));
    for (size_t i = 0; status == WHERRY_OK && i < count; i++) {
        status = add_checkpoint(set, paths[i], bytes, states, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(bytes);
        wherry_value_destroy(states);
        return status;
    }
    status = wh_file_set_wrap("bytes", bytes, &set->bytes, error);
    wherry_status other = wh_file_set_wrap("states", states, &set->states, error);
    return status != WHERRY_OK ? status : other;
}

/* ---- files that get shorter ---- */

/** The memory of the storages of the guarded set, and whether some of it was replaced. */
static struct {
    struct {
        char *begin;
        char *end;
    } * ranges;
    size_t count;
    uintptr_t page;
    volatile sig_atomic_t lost;
} guard;

/** Handles SIGBUS: replaces the rest of the storage by zeros. Any other SIGBUS ends the process. */
static void replace_lost(int number, siginfo_t *about, void *context) {
    char *at = about->si_addr;
    (void)context;
    for (size_t i = 0; i < guard.count; i++) {
        if (at >= guard.ranges[i].begin && at < guard.ranges[i].end) {
            char *begin = at - (uintptr_t)at % guard.page;
            void *zeros = mmap(begin, (size_t)(guard.ranges[i].end - begin), PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
            if (zeros != MAP_FAILED) {
                guard.lost = 1;
                return;
            }
        }
    }
    signal(number, SIG_DFL); /* The signal is raised again. */
}

static void guard_state(const wherry_value *state) {
    wherry_flat *flat;
    if (wherry_flatten(state, &flat, NULL) != WHERRY_OK) {
        return;
    }
    size_t count = wherry_flat_count(flat);
    guard.ranges = wh_need(realloc(guard.ranges, (guard.count + count + 1) * sizeof(*guard.ranges)));
    for (size_t i = 0; i < count; i++) {
        const wherry_tensor *tensor = wherry_tensor_get(wherry_flat_leaf(flat, i));
        char *begin = tensor ? wherry_storage_data(tensor->storage) : NULL;
        if (begin) {
            guard.ranges[guard.count].begin = begin;
            guard.ranges[guard.count++].end = begin + wherry_storage_nbytes(tensor->storage);
        }
    }
    wherry_flat_destroy(flat);
}

void wh_file_set_guard(const wh_file_set *set) {
    struct sigaction action = {.sa_sigaction = replace_lost, .sa_flags = SA_SIGINFO};
    guard.page = (uintptr_t)sysconf(_SC_PAGESIZE);
    guard_state(set->bytes);
    guard_state(set->states);
    sigaction(SIGBUS, &action, NULL);
}

wherry_status wh_file_set_check(const wh_file_set *set, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < set->open_count; i++) {
        WH_THEN(status, wherry_file_check(set->open[i], error));
    }
    if (status == WHERRY_OK && guard.lost) {
        errno = EIO;
        status = wh_fail_error(error, WHERRY_SYSTEM, "a served file could not be read; start `wherry serve` again");
    }
    return status;
}

/** Prints the name, the size and the digests of the slices of a file. */
static wherry_status digest_file(const char *name, const wherry_value *bytes, FILE *all, void (*busy)(void *),
                                 void *context, wherry_error *error) {
    wherry_tensor slice = *wherry_tensor_get(bytes);
    int64_t size = slice.shape[0];
    double told = wh_clock();
    fprintf(all, "%s%c%lld", name, '\0', (long long)size);
    for (int64_t at = 0; at < size; at += SLICE_BYTES) {
        int64_t length = size - at < SLICE_BYTES ? size - at : SLICE_BYTES;
        char hex[WH_HEX_MAX];
        slice.offset = at;
        slice.shape = &length;
        wherry_status status = wh_digest_slice(&slice, hex, error);
        if (status != WHERRY_OK || wh_interrupted(NULL)) {
            return status != WHERRY_OK ? status : wh_fail_error(error, WHERRY_CANCELLED, "the server ends");
        }
        fprintf(all, " %s", hex);
        if (wh_clock() - told > 1) {
            busy(context);
            told = wh_clock();
        }
    }
    return WHERRY_OK;
}

wherry_status wh_file_set_digest(wh_file_set *set, void (*busy)(void *), void *context, wherry_error *error) {
    const wherry_value *files = wh_file_set_part(set->bytes, "bytes");
    wherry_status status = WHERRY_OK;
    struct timespec soon;
    do {
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
    } while (pthread_mutex_timedlock(&set->digesting, &soon) != 0 && (busy(context), true));
    if (!*set->digest) {
        char *text = NULL;
        size_t size = 0;
        FILE *all = wh_need(open_memstream(&text, &size));
        for (size_t i = 0; i < wherry_dict_count(files); i++) {
            const wherry_value *bytes = wherry_dict_at(files, i);
            WH_THEN(status, digest_file(wh_file_set_name(files, i), bytes, all, busy, context, error));
        }
        fclose(all);
        WH_THEN(status, wh_digest_bytes(wh_need(text), size, set->digest, error));
        free(text);
    }
    pthread_mutex_unlock(&set->digesting);
    return status;
}

int64_t wh_file_set_step(const char *digest) {
    char start[16]; /* 60 bits */
    snprintf(start, sizeof(start), "%s", digest);
    return strtoll(start, NULL, 16);
}

void wh_file_set_close(wh_file_set *set) {
    wherry_value_destroy(set->bytes);
    wherry_value_destroy(set->states);
    for (size_t i = 0; i < set->open_count; i++) {
        wherry_file_close(set->open[i]);
    }
    free(set->open);
    pthread_mutex_destroy(&set->digesting);
}
