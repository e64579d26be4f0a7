#include "cargo.h"

#include <stdlib.h>
#include <string.h>

#include "leaves.h"

enum { CARGO_VERSION = 1 };

/* ---- the form ---- */

const wherry_value *wh_cargo_part(const wherry_value *state, const char *part) {
    const wherry_value *version = wherry_dict_get(state, "cargo");
    const wherry_value *found = wherry_dict_get(state, part);
    bool good = version && wherry_value_kind(version) == WHERRY_KIND_INT && wherry_int_get(version) == CARGO_VERSION;
    return good && found && wherry_value_kind(found) == WHERRY_KIND_DICT ? found : NULL;
}

const char *wh_cargo_name(const wherry_value *part, size_t index) {
    size_t size;
    const wherry_value *key = wherry_dict_key_at(part, index);
    const char *name = key ? wherry_string_get(key, &size) : NULL;
    bool good =
        name && size && strlen(name) == size && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return good ? name : NULL;
}

wherry_status wh_cargo_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error) {
    wherry_status status = wherry_dict_put(dict, name, item, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(item);
    }
    return status;
}

wherry_status wh_cargo_wrap(wherry_value *bytes, wherry_value *states, wherry_value **state_p, wherry_error *error) {
    wherry_value *state = NULL;
    wherry_value *version = NULL;
    wherry_status status = wherry_dict_create(&state, error);
    if (status == WHERRY_OK && !bytes) {
        status = wherry_dict_create(&bytes, error);
    }
    if (status == WHERRY_OK && !states) {
        status = wherry_dict_create(&states, error);
    }
    if (status == WHERRY_OK) {
        status = wherry_int_create(CARGO_VERSION, &version, error);
    }
    if (status == WHERRY_OK) {
        status = wh_cargo_put(state, "cargo", version, error);
    }
    if (status == WHERRY_OK) {
        status = wh_cargo_put(state, "bytes", bytes, error);
        bytes = NULL;
    }
    if (status == WHERRY_OK) {
        status = wh_cargo_put(state, "states", states, error);
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

/** Opens a file that the cargo keeps. */
static wherry_status keep_open(wh_cargo *cargo, const char *path, wherry_file_format format, wherry_file **file_p,
                               wherry_error *error) {
    wherry_file_open_options options;
    wherry_file **grown = realloc(cargo->files, (cargo->count + 1) * sizeof(wherry_file *));
    if (!grown) {
        return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for %zu files", cargo->count + 1);
    }
    cargo->files = grown;
    wherry_file_open_options_init(&options);
    options.format = format;
    wherry_status status = wherry_file_open(path, &options, file_p, error);
    if (status == WHERRY_OK) {
        cargo->files[cargo->count++] = *file_p;
    }
    return status;
}

static wherry_status put_copy(wherry_value *dict, const char *name, const wherry_value *value, wherry_error *error) {
    wherry_value *copy;
    wherry_status status = wherry_value_copy(value, &copy, error);
    return status == WHERRY_OK ? wh_cargo_put(dict, name, copy, error) : status;
}

/** What a file is called by receivers. */
static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static wherry_status add_bytes(wh_cargo *cargo, wherry_value *bytes, const char *path, wherry_error *error) {
    wherry_file *file = NULL;
    wherry_file_summary summary;
    wherry_status status = keep_open(cargo, path, WHERRY_FILE_BYTES, &file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_file_summarize(file, &summary);
    cargo->bytes += summary.file_bytes;
    cargo->names++;
    status = put_copy(bytes, name_of(path), wherry_file_state(file), error);
    return status == WHERRY_DUPLICATE_KEY
               ? wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "there are two files of the name %s", name_of(path))
               : status;
}

/** Adds a checkpoint: its file, and its shards where it is an index. */
static wherry_status add_checkpoint(wh_cargo *cargo, wherry_value *bytes, wherry_value *states, const char *path,
                                    wherry_error *error) {
    wherry_file *file = NULL;
    wherry_file_summary summary;
    wherry_status status = keep_open(cargo, path, WHERRY_FILE_AUTO, &file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_file_summarize(file, &summary);
    cargo->tensors += summary.tensors;
    for (size_t i = 0; status == WHERRY_OK && wherry_file_path(file, i); i++) {
        status = add_bytes(cargo, bytes, wherry_file_path(file, i), error);
    }
    return status == WHERRY_OK ? put_copy(states, name_of(path), wherry_file_state(file), error) : status;
}

wherry_status wh_cargo_open(wh_cargo *cargo, char *const *paths, size_t count, wherry_error *error) {
    wherry_value *bytes = NULL;
    wherry_value *states = NULL;
    wherry_status status = wherry_dict_create(&bytes, error);
    if (status == WHERRY_OK) {
        status = wherry_dict_create(&states, error);
    }
    for (size_t i = 0; status == WHERRY_OK && i < count; i++) {
        status = add_checkpoint(cargo, bytes, states, paths[i], error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(bytes);
        wherry_value_destroy(states);
        return status;
    }
    status = wh_cargo_wrap(bytes, NULL, &cargo->bytes_only, error);
    wherry_status other = wh_cargo_wrap(NULL, states, &cargo->states_only, error);
    return status != WHERRY_OK ? status : other;
}

wherry_status wh_cargo_check(const wh_cargo *cargo, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < cargo->count && status == WHERRY_OK; i++) {
        status = wherry_file_check(cargo->files[i], error);
    }
    return status;
}

void wh_cargo_close(wh_cargo *cargo) {
    wherry_value_destroy(cargo->bytes_only);
    wherry_value_destroy(cargo->states_only);
    for (size_t i = 0; i < cargo->count; i++) {
        wherry_file_close(cargo->files[i]);
    }
    free(cargo->files);
    *cargo = (wh_cargo){0};
}
