/*
 * Opening checkpoint files: errors, mappings, the list of formats, and the functions of
 * wherry/file.h that read.
 *
 * Invariants:
 *  1. A header is copied into memory before it is checked, and only the copy is used.
 *  2. A file is mapped only after its whole header was checked against its size.
 *  3. A storage keeps its mapping alive, so a copy of the state can outlive the wherry_file.
 *
 * States of a mapping:
 *  closed -> open: wh_mapping_open, wh_mapping_adopt
 *  open -> mapped: wh_mapping_map
 *  open or mapped -> closed: the last wh_mapping_unref
 */
#include "file/open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/options.h"

/* ---- errors ---- */

/**
 * Maximum number of bytes of a file path and of a tensor's name in a message. A message shows the
 * end of a long path, which is more useful than the start.
 */
enum { PATH_SHOWN = 200, NAME_SHOWN = 150 };

/**
 * Formats the name of the tensor as a path with one step. @return the text, which the caller frees
 * with wherry_free; NULL if out of memory.
 */
static char *path_text(const wh_spot *spot) {
    wherry_value *key = NULL;
    wherry_path *path = NULL;
    char *text = NULL;
    if (wherry_string_create(spot->name, spot->name_size, &key, NULL) == WHERRY_OK &&
        wherry_path_create(&(wherry_step){key, 0}, 1, &path, NULL) == WHERRY_OK) {
        wherry_path_format(path, &text, NULL);
    }
    wherry_path_destroy(path);
    wherry_value_destroy(key);
    return text;
}

/**
 * Returns the end of a file path, for a message. The text starts with a complete UTF-8 character.
 */
static const char *shown_end(const char *path) {
    size_t length = strlen(path);
    const char *at = length > PATH_SHOWN ? path + (length - PATH_SHOWN) : path;
    while (wh_utf8_continues(*at)) {
        at++;
    }
    return at;
}

wherry_status wh_file_fail(wherry_error *error, wherry_status status, wh_spot spot, const char *format, ...) {
    if (!error) {
        return status;
    }
    char text[WHERRY_ERROR_MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const char *shown = shown_end(spot.path);
    char *name = spot.name ? path_text(&spot) : NULL;
    if (name) {
        wh_fail_at(error, status, spot.offset, "%s%s: tensor %.*s: %s", shown > spot.path ? "..." : "", shown,
                   NAME_SHOWN, name, text);
        wh_fail_path(error, name);
    } else {
        wh_fail_at(error, status, spot.offset, "%s%s: %s", shown > spot.path ? "..." : "", shown, text);
    }
    wherry_free(name);
    return status;
}

wherry_status wh_file_fail_errno(wherry_error *error, int errnum, const char *path, const char *what) {
    const char *shown = shown_end(path);
    return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "%s%s: %s", shown > path ? "..." : "", shown, what);
}

/* ---- mappings ---- */

wherry_status wh_mapping_adopt(const char *path, int fd, uint64_t size, wh_mapping **mapping_p, wherry_error *error) {
    wh_mapping *mapping = wh_alloc_zeroed(1, sizeof(*mapping));
    char *copy = wh_text_copy(path, strlen(path));
    if (!mapping || !copy) {
        wh_free(mapping);
        wh_free(copy);
        return wh_fail_memory(error, "a file");
    }
    *mapping = (wh_mapping){.references = 1, .path = copy, .fd = fd, .size = size};
    *mapping_p = mapping;
    return WHERRY_OK;
}

wherry_status wh_mapping_open(const char *path, wh_mapping **mapping_p, wherry_error *error) {
    /* With O_NONBLOCK, the call does not wait if the path is a named pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return wh_file_fail_errno(error, errno, path, "cannot open the file");
    }
    struct stat info;
    wherry_status status;
    if (fstat(fd, &info) != 0) {
        status = wh_file_fail_errno(error, errno, path, "cannot read the file's attributes");
    } else if (!S_ISREG(info.st_mode)) {
        status = wh_file_fail_errno(error, S_ISDIR(info.st_mode) ? EISDIR : EINVAL, path, "not a regular file");
    } else {
        status = wh_mapping_adopt(path, fd, (uint64_t)info.st_size, mapping_p, error);
    }
    if (status != WHERRY_OK) {
        close(fd);
        return status;
    }
    (*mapping_p)->opened = info;
    return WHERRY_OK;
}

wherry_status wh_mapping_map(wh_mapping *mapping, wh_access access, wherry_error *error) {
    if (mapping->size == 0) {
        return WHERRY_OK;
    }
    int protection = access == WH_ACCESS_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = access == WH_ACCESS_PRIVATE ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void *base = mapping->size <= SIZE_MAX ? mmap(NULL, mapping->size, protection, flags, mapping->fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        return wh_file_fail_errno(error, errno, mapping->path, "cannot map the file");
    }
    mapping->base = base;
    return WHERRY_OK;
}

wherry_status wh_mapping_read(const wh_mapping *mapping, uint64_t offset, void *bytes, size_t size,
                              wherry_error *error) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(mapping->fd, (char *)bytes + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return wh_file_fail_errno(error, errno, mapping->path, "cannot read the file");
        }
        if (got == 0) {
            return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, offset + done),
                                "the file ends inside its header, at byte %llu; copy or download it again",
                                (unsigned long long)offset + done);
        }
        done += (size_t)got;
    }
    return WHERRY_OK;
}

wherry_status wh_mapping_copy(const wh_mapping *mapping, uint64_t offset, size_t size, char **bytes_p,
                              wherry_error *error) {
    char *bytes = wh_alloc(size + 1);
    WH_TRY_ALLOC(bytes, error, "the header of a file");
    wherry_status status = wh_mapping_read(mapping, offset, bytes, size, error);
    if (status != WHERRY_OK) {
        wh_free(bytes);
        return status;
    }
    bytes[size] = '\0';
    *bytes_p = bytes;
    return WHERRY_OK;
}

static void release_storage(void *context, void *data) {
    (void)data;
    wh_mapping_unref(context);
}

wherry_status wh_mapping_wrap(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_storage **storage_p,
                              wherry_error *error) {
    if (nbytes == 0) {
        return wherry_storage_describe(0, wherry_device_cpu(), storage_p, error);
    }
    wherry_status status = wherry_storage_wrap(mapping->base + offset, nbytes, wherry_device_cpu(), release_storage,
                                               mapping, storage_p, error);
    if (status == WHERRY_OK) {
        atomic_fetch_add_explicit(&mapping->references, 1, memory_order_relaxed);
    }
    return status;
}

static bool same_time(const struct timespec *one, const struct timespec *other) {
    return one->tv_sec == other->tv_sec && one->tv_nsec == other->tv_nsec;
}

/** Fails if the file has changed since it was opened. */
static wherry_status check_unchanged(const wh_mapping *mapping, wherry_error *error) {
    struct stat info;
    if (fstat(mapping->fd, &info) != 0) {
        return wh_file_fail_errno(error, errno, mapping->path, "cannot read the file's attributes");
    }
    if ((uint64_t)info.st_size < mapping->size) {
        return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, (uint64_t)info.st_size),
                            "the file has shrunk from %llu to %llu bytes since it was opened; do not use its tensors, "
                            "because accessing missing bytes raises SIGBUS",
                            (unsigned long long)mapping->size, (unsigned long long)info.st_size);
    }
    /* A change of the number of links, as when another file takes its name, also sets the ctime. */
    const struct stat *opened = &mapping->opened;
    bool written = info.st_size != opened->st_size || !same_time(&info.st_mtim, &opened->st_mtim);
    bool touched = info.st_nlink == opened->st_nlink && !same_time(&info.st_ctim, &opened->st_ctim);
    if (written || touched) {
        return wh_file_fail(error, WHERRY_CORRUPT, wh_spot_file(mapping->path),
                            "the file%s been modified since it was opened; open it again when no process writes to it",
                            written ? " has" : ", or one of its attributes, has");
    }
    return WHERRY_OK;
}

void wh_mapping_unref(wh_mapping *mapping) {
    if (!mapping || atomic_fetch_sub_explicit(&mapping->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (mapping->base) {
        munmap(mapping->base, mapping->size);
    }
    close(mapping->fd);
    wh_free(mapping->path);
    wh_free(mapping);
}

/* ---- the format `bytes`: any file as one tensor ---- */

wherry_status wh_opened_tensor(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_tensor tensor,
                               wherry_value **value_p, wherry_error *error) {
    wherry_status status = wh_mapping_wrap(mapping, offset, nbytes, &tensor.storage, error);
    if (status == WHERRY_OK) {
        status = wherry_tensor_create(&tensor, value_p, error);
        wherry_storage_unref(tensor.storage);
    }
    return status;
}

static wherry_status bytes_open(wherry_file *file, wherry_error *error) {
    wh_mapping *mapping = file->mappings[0];
    int64_t shape[] = {(int64_t)mapping->size};
    wherry_tensor tensor = {.dtype = WHERRY_U8, .ndim = 1, .shape = shape};
    file->summary.tensors = 1;
    WH_TRY(wh_mapping_map(mapping, file->access, error));
    return wh_opened_tensor(mapping, 0, mapping->size, tensor, &file->state, error);
}

static wherry_status bytes_accepts(const wherry_value *state, wherry_error *error) {
    const wherry_tensor *tensor = wherry_tensor_get(state);
    if (!tensor || tensor->dtype != WHERRY_U8 || tensor->ndim != 1 || tensor->flags || !wh_tensor_is_dense(tensor)) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "the bytes format holds only one contiguous uint8 tensor with one dimension; the state is %s",
                       tensor ? "another kind of tensor" : wherry_kind_name(wherry_value_kind(state)));
    }
    return WHERRY_OK;
}

static wherry_status bytes_lay_out(const wherry_value *state, const wherry_file_write_options *options,
                                   wh_layout *layout, wherry_error *error) {
    (void)options;
    WH_TRY(bytes_accepts(state, error));
    uint64_t size = wh_dense_bytes(wherry_tensor_get(state));
    WH_TRY_ALLOC(wh_layout_add_file(layout, layout->path) && wh_layout_add_range(layout, 0, 0, size), error,
                 "the layout of a file");
    layout->files[0].size = size;
    return WHERRY_OK;
}

static const wh_format bytes_format = {
    .format = WHERRY_FILE_BYTES,
    .name = "bytes",
    .open = bytes_open,
    .accepts = bytes_accepts,
    .lay_out = bytes_lay_out,
};

/* ---- the list of formats ---- */

/**
 * All formats. The order matters. If a suffix ends with a shorter one, the longer one comes first.
 * A strict test of the first bytes comes before a weaker one.
 */
static const wh_format *const formats[] = {&wh_format_native, &wh_format_sharded, &wh_format_safetensors,
                                           &bytes_format};

enum { FORMATS = sizeof(formats) / sizeof(*formats) };

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text);
    size_t wanted = suffix ? strlen(suffix) : SIZE_MAX;
    return length >= wanted && strcmp(text + length - wanted, suffix) == 0;
}

const wh_format *wh_format_get(wherry_file_format format) {
    for (size_t i = 0; i < FORMATS; i++) {
        if (formats[i]->format == format) {
            return formats[i];
        }
    }
    return NULL;
}

const char *wherry_file_format_name(wherry_file_format format) {
    const wh_format *found = wh_format_get(format);
    return found ? found->name : format == WHERRY_FILE_AUTO ? "auto" : "?";
}

wherry_file_format wherry_file_format_of(const char *path) {
    for (size_t i = 0; i < FORMATS; i++) {
        if (ends_with(path, formats[i]->suffix)) {
            return formats[i]->format;
        }
    }
    return WHERRY_FILE_AUTO;
}

wherry_status wherry_file_accepts(wherry_file_format format, const wherry_value *state, wherry_error *error) {
    const wh_format *found = wh_format_get(format);
    if (!found || !state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "state is NULL, or %d is not a format that can be written",
                       (int)format);
    }
    return found->accepts(state, error);
}

/** Detects the format of a file by its first bytes or its name. @return NULL if it is unknown. */
static const wh_format *detect(const char *path, const uint8_t *head, size_t size) {
    for (size_t i = 0; i < FORMATS; i++) {
        const wh_format *format = formats[i];
        if (format->matches ? format->matches(head, size) : ends_with(path, format->suffix)) {
            return format;
        }
    }
    return NULL;
}

/* ---- opening ---- */

void wherry_file_open_options_init(wherry_file_open_options *options) {
    *options = (wherry_file_open_options){.struct_size = sizeof(*options)};
}

wherry_status wh_opened_add(wherry_file *file, const char *path, wherry_error *error) {
    wh_mapping *mapping;
    WH_TRY_ALLOC(WH_GROW(file->mappings, file->mapping_capacity, file->mapping_count), error, "a file");
    wherry_status status = wh_mapping_open(path, &mapping, error);
    if (status == WHERRY_OK) {
        file->mappings[file->mapping_count++] = mapping;
        file->summary.file_bytes += mapping->size;
    }
    return status;
}

/** Detects the format of the first file and reads the file. */
static wherry_status open_as(wherry_file *file, wherry_file_format wanted, wherry_error *error) {
    enum { HEAD = 16 }; /* These are enough bytes to recognize every format. */
    uint8_t head[HEAD];
    const wh_mapping *mapping = file->mappings[0];
    size_t size = mapping->size < sizeof(head) ? (size_t)mapping->size : sizeof(head);
    WH_TRY(wh_mapping_read(mapping, 0, head, size, error));
    const wh_format *format = wanted == WHERRY_FILE_BYTES ? &bytes_format : detect(mapping->path, head, size);
    if (!format) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 0),
                            size ? "unknown format; Wherry reads safetensors, safetensors indexes and .wherry files"
                                 : "the file is empty; copy or download it again");
    }
    if (wanted != WHERRY_FILE_AUTO && wanted != format->format) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 0),
                            "this is a %s file, but the format %s was requested", format->name,
                            wherry_file_format_name(wanted));
    }
    file->summary.format = format->format;
    file->summary.files = 1;
    file->summary.rank = -1;
    return format->open(file, error);
}

wherry_status wherry_file_open(const char *path, const wherry_file_open_options *options, wherry_file **file_p,
                               wherry_error *error) {
    wherry_file_open_options chosen;
    wherry_file_open_options_init(&chosen);
    if (!path || !file_p || !wh_options_take(&chosen, sizeof(chosen), options)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "path or file_p is NULL, or options.struct_size is not set; call wherry_file_open_options_init");
    }
    wherry_limits limits;
    wherry_limits_init(&limits);
    if ((chosen.flags & ~(uint32_t)WHERRY_FILE_OPEN_FLAGS) ||
        (chosen.format != WHERRY_FILE_AUTO && !wh_format_get(chosen.format)) ||
        !wh_options_take(&limits, sizeof(limits), chosen.limits)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "options has a flag or a format that this version does not know, or invalid limits");
    }
    wherry_file *file = wh_alloc_zeroed(1, sizeof(*file));
    WH_TRY_ALLOC(file, error, "a file");
    file->limits = limits;
    file->access = chosen.flags & WHERRY_FILE_PRIVATE ? WH_ACCESS_PRIVATE : WH_ACCESS_READ;
    wherry_status status = wh_opened_add(file, path, error);
    WH_THEN(status, open_as(file, chosen.format, error));
    if (status == WHERRY_OK && chosen.flags & WHERRY_FILE_VERIFY && file->verify) {
        status = file->verify(file, error);
    }
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
    for (size_t i = 0; i < file->mapping_count; i++) {
        WH_TRY(check_unchanged(file->mappings[i], error));
    }
    return WHERRY_OK;
}

wherry_status wherry_file_verify(const wherry_file *file, wherry_error *error) {
    if (!file->verify) {
        return wh_file_fail(error, WHERRY_UNSUPPORTED, wh_spot_file(file->mappings[0]->path),
                            "the file has no digests to compare its bytes with");
    }
    WH_TRY(wherry_file_check(file, error));
    return file->verify(file, error);
}
