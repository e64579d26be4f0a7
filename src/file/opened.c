#include "file/opened.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/options.h"
#include "file/file_fail.h"
#include "file/formats.h"

void wherry_file_open_options_init(wherry_file_open_options *options) {
    *options = (wherry_file_open_options){.struct_size = sizeof(*options)};
}

wherry_status wh_opened_add(wherry_file *file, const char *path, wherry_error *error) {
    wh_mapping *mapping;
    if (!WH_GROW(file->mappings, file->mapping_capacity, file->mapping_count)) {
        return wh_fail_memory(error, "a file");
    }
    wherry_status status = wh_mapping_open(path, &mapping, error);
    if (status == WHERRY_OK) {
        file->mappings[file->mapping_count++] = mapping;
        file->summary.file_bytes += mapping->size;
    }
    return status;
}

wherry_status wh_opened_tensor(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_tensor tensor,
                               wherry_value **value_p, wherry_error *error) {
    wherry_status status = wh_mapping_wrap(mapping, offset, nbytes, &tensor.storage, error);
    if (status == WHERRY_OK) {
        status = wherry_tensor_create(&tensor, value_p, error);
        wherry_storage_unref(tensor.storage);
    }
    return status;
}

wherry_status wh_opened_put(wh_mapping *mapping, wherry_value *dict, const char *name, uint64_t offset, uint64_t nbytes,
                            wherry_tensor tensor, wherry_error *error) {
    wherry_value *value;
    wherry_status status = wh_opened_tensor(mapping, offset, nbytes, tensor, &value, error);
    if (status == WHERRY_OK && (status = wherry_dict_put(dict, name, value, error)) != WHERRY_OK) {
        wherry_value_destroy(value);
    }
    return status;
}

/** Opens a file as what its first bytes say that it is. */
static wherry_status open_detected(wherry_file *file, wherry_file_format wanted, wherry_error *error) {
    uint8_t head[WH_FORMAT_HEAD];
    const wh_mapping *mapping = file->mappings[0];
    size_t size = mapping->size < sizeof(head) ? (size_t)mapping->size : sizeof(head);
    wherry_status status = wh_mapping_read(mapping, 0, head, size, error);
    if (status != WHERRY_OK) {
        return status;
    }
    const wh_format *format =
        wanted == WHERRY_FILE_BYTES ? wh_format_get(wanted) : wh_format_detect(mapping->path, head, size);
    if (!format) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 0),
                            "is not in a format that Wherry reads: safetensors, a safetensors index, or Wherry's own");
    }
    if (wanted != WHERRY_FILE_AUTO && wanted != format->format) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 0), "is of the format %s, and not %s",
                            format->name, wherry_file_format_name(wanted));
    }
    file->summary.format = format->format;
    file->summary.files = 1;
    file->summary.rank = -1;
    return format->open(file, error);
}

static wherry_status open_as(wherry_file *file, const char *path, const wherry_file_open_options *options,
                             wherry_error *error) {
    wherry_status status = wh_opened_add(file, path, error);
    if (status == WHERRY_OK) {
        status = open_detected(file, options->format, error);
    }
    if (status == WHERRY_OK && options->flags & WHERRY_FILE_VERIFY && file->verify) {
        status = file->verify(file, error);
    }
    return status;
}

wherry_status wherry_file_open(const char *path, const wherry_file_open_options *options, wherry_file **file_p,
                               wherry_error *error) {
    wherry_file_open_options chosen;
    wherry_file_open_options_init(&chosen);
    if (!path || !file_p || !wh_options_take(&chosen, sizeof(chosen), options)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "path or file_p is NULL, or options.struct_size is not filled; call wherry_file_open_options_init");
    }
    wherry_limits limits;
    wherry_limits_init(&limits);
    if ((chosen.flags & ~(uint32_t)WHERRY_FILE_OPEN_FLAGS) ||
        (chosen.format != WHERRY_FILE_AUTO && !wh_format_get(chosen.format)) ||
        !wh_options_take(&limits, sizeof(limits), chosen.limits)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "options has a flag, a format or limits that this version does not know");
    }
    wherry_file *file = wh_alloc_zeroed(1, sizeof(*file));
    if (!file) {
        return wh_fail_memory(error, "a file");
    }
    file->limits = limits;
    file->access = chosen.flags & WHERRY_FILE_PRIVATE ? WH_ACCESS_PRIVATE : WH_ACCESS_READ;
    wherry_status status = open_as(file, path, &chosen, error);
    if (status != WHERRY_OK) {
        wherry_file_close(file);
        return status;
    }
    *file_p = file;
    return WHERRY_OK;
}

void wherry_file_close(wherry_file *file) {
    if (!file) {
        return;
    }
    wherry_value_destroy(file->state);
    for (size_t i = 0; i < file->mapping_count; i++) {
        wh_mapping_unref(file->mappings[i]);
    }
    wh_free(file->mappings);
    wh_free(file);
}

const wherry_value *wherry_file_state(const wherry_file *file) {
    return file->state;
}

const char *wherry_file_path(const wherry_file *file, size_t index) {
    return index < file->mapping_count ? file->mappings[index]->path : NULL;
}

void wherry_file_summarize(const wherry_file *file, wherry_file_summary *summary_p) {
    *summary_p = file->summary;
    summary_p->has_digests = file->verify != NULL;
}

wherry_status wherry_file_check(const wherry_file *file, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < file->mapping_count && status == WHERRY_OK; i++) {
        status = wh_mapping_check(file->mappings[i], error);
    }
    return status;
}

wherry_status wherry_file_verify(const wherry_file *file, wherry_error *error) {
    if (!file->verify) {
        return wh_file_fail(error, WHERRY_UNSUPPORTED, wh_spot_file(file->mappings[0]->path),
                            "has no digests that its bytes could be compared with");
    }
    wherry_status status = wherry_file_check(file, error);
    return status == WHERRY_OK ? file->verify(file, error) : status;
}
