#include "file_set.h"

#include <stdlib.h>
#include <string.h>

#include "command.h"

enum { LAYOUT_VERSION = 1 };

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

wherry_status wh_file_set_wrap(wherry_value *bytes, wherry_value *states, wherry_value **state_p, wherry_error *error) {
    wherry_value *state = NULL;
    wherry_value *version = NULL;
    wherry_status status = wherry_dict_create(&state, error);
    WH_THEN(status, wherry_int_create(LAYOUT_VERSION, &version, error));
    WH_THEN(status, wh_dict_give(state, "cargo", version, error));
    if (!bytes) {
        WH_THEN(status, wherry_dict_create(&bytes, error));
    }
    if (!states) {
        WH_THEN(status, wherry_dict_create(&states, error));
    }
    if (status == WHERRY_OK) {
        status = wh_dict_give(state, "bytes", bytes, error);
        bytes = NULL;
    }
    if (status == WHERRY_OK) {
        status = wh_dict_give(state, "states", states, error);
        states = NULL;
    }
    wherry_value_destroy(bytes);
    wherry_value_destroy(states);
    if (status != WHERRY_OK) {
        wherry_value_destroy(state);
    } else {
        *state_p = state;
    }
    return status;
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
    status = wh_file_set_wrap(bytes, NULL, &set->bytes, error);
    wherry_status other = wh_file_set_wrap(NULL, states, &set->states, error);
    return status != WHERRY_OK ? status : other;
}

wherry_status wh_file_set_check(const wh_file_set *set, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < set->open_count; i++) {
        WH_THEN(status, wherry_file_check(set->open[i], error));
    }
    return status;
}

void wh_file_set_close(wh_file_set *set) {
    wherry_value_destroy(set->bytes);
    wherry_value_destroy(set->states);
    for (size_t i = 0; i < set->open_count; i++) {
        wherry_file_close(set->open[i]);
    }
    free(set->open);
    *set = (wh_file_set){0};
}
