/*
 * Writing checkpoint files: layouts, part files, and the functions of wherry/file.h that write.
 *
 * Invariants:
 *  1. A file is written as `.NAME.part` in the same folder and renamed when it is complete. So a
 *     process that opens NAME gets the complete old file or the complete new file.
 *  2. Disk space is reserved before the mapping is handed out, so that writing to the mapping
 *     cannot fail. A file system that cannot reserve space is an exception: if it is full, writing
 *     raises SIGBUS.
 *  3. Only one writer at a time can use a part file. The writer holds a flock() on the part file
 *     until the writer is destroyed.
 *  4. A file that names other files is renamed after them.
 *
 * States of a writer:
 *
 *     (none) -> begun      wherry_file_writer_create
 *     begun  -> finished   wherry_file_writer_finish
 *     begun  -> begun      a failed wherry_file_writer_finish, which can be repeated
 *     any    -> (none)     wherry_file_writer_destroy
 */
#include "file/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/options.h"
#include "file/open.h"
#include "range/extent.h"
#include "state/value.h"

/* ---- layouts ---- */

void wh_layout_destroy(wh_layout *layout) {
    for (size_t i = 0; i < layout->file_count; i++) {
        wh_free(layout->files[i].path);
        wh_free(layout->files[i].part);
        wh_mapping_unref(layout->files[i].mapping);
    }
    for (size_t i = 0; i < layout->header_count; i++) {
        wh_free(layout->headers[i].bytes);
    }
    wh_free(layout->files);
    wh_free(layout->headers);
    wh_free(layout->ranges);
    wh_free(layout->covered);
    wh_free(layout->storage_of);
    *layout = (wh_layout){0};
}

bool wh_layout_add_file(wh_layout *layout, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    wh_string text = {0};
    wh_string_append(&text, path, (size_t)(name - path));
    wh_string_format(&text, ".%s.part", name);
    wh_layout_file file = {.path = wh_text_copy(path, strlen(path)), .part = wh_string_take(&text)};
    if (!file.path || !file.part || !WH_GROW(layout->files, layout->file_capacity, layout->file_count)) {
        wh_free(file.path);
        wh_free(file.part);
        return false;
    }
    layout->files[layout->file_count++] = file;
    return true;
}

bool wh_layout_add_header(wh_layout *layout, size_t file, uint64_t offset, wh_string *text) {
    size_t size = text->size;
    char *bytes = wh_string_take(text);
    if (!bytes || !WH_GROW(layout->headers, layout->header_capacity, layout->header_count)) {
        wh_free(bytes);
        return false;
    }
    layout->headers[layout->header_count++] = (wh_header){file, offset, bytes, size};
    return true;
}

bool wh_layout_add_range(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes) {
    if (!WH_GROW(layout->ranges, layout->range_capacity, layout->range_count)) {
        return false;
    }
    layout->ranges[layout->range_count++] = (wh_file_range){file, offset, nbytes};
    return true;
}

bool wh_layout_add_covered(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes) {
    if (!WH_GROW(layout->covered, layout->covered_capacity, layout->covered_count)) {
        return false;
    }
    layout->covered[layout->covered_count++] = (wh_file_range){file, offset, nbytes};
    return true;
}

uint64_t wh_dense_bytes(const wherry_tensor *tensor) {
    return wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes;
}

bool wh_tensor_is_dense(const wherry_tensor *tensor) {
    uint64_t expected = 1;
    if (wherry_tensor_count(tensor) == 0) {
        return true;
    }
    for (uint32_t at = tensor->ndim; at-- > 0;) {
        if (tensor->shape[at] != 1 && (uint64_t)tensor->strides[at] != expected) {
            return false;
        }
        expected *= (uint64_t)tensor->shape[at];
    }
    return true;
}

wherry_prepare_options wh_file_prepare_options(void) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.max_gap = 0;
    return options;
}

/* ---- copying a state to other storages ---- */

typedef struct replacement {
    wherry_storage *const *storages;
    const uint32_t *storage_of;
    size_t next; /**< The number of the next tensor. */
} replacement;

static wherry_status replace_tensor(void *context, const wherry_value *from, wherry_value **value_p,
                                    wherry_error *error) {
    replacement *r = context;
    wherry_tensor tensor = *wherry_tensor_get(from);
    size_t number = r->next++;
    if (r->storage_of) {
        tensor.storage = r->storages[r->storage_of[number]];
    } else {
        tensor.storage = r->storages[number];
        tensor.offset = 0;
        tensor.strides = NULL;
    }
    return wherry_tensor_create(&tensor, value_p, error);
}

wherry_status wh_replace_storages(const wherry_value *state, wherry_storage *const *storages,
                                  const uint32_t *storage_of, wherry_value **state_p, wherry_error *error) {
    replacement r = {storages, storage_of, 0};
    return wh_value_copy_with(state, replace_tensor, &r, state_p, error);
}

wherry_status wh_map_state(const wherry_value *state, wh_mapping *const *mappings, const wh_file_range *ranges,
                           size_t range_count, const uint32_t *storage_of, wherry_value **state_p,
                           wherry_error *error) {
    wherry_storage **storages = wh_alloc_zeroed(range_count, sizeof(wherry_storage *));
    wherry_status status = storages ? WHERRY_OK : wh_fail_memory(error, "the storages of a file");
    for (size_t i = 0; i < range_count && status == WHERRY_OK; i++) {
        status = wh_mapping_wrap(mappings[ranges[i].file], ranges[i].offset, ranges[i].nbytes, storages + i, error);
    }
    WH_THEN(status, wh_replace_storages(state, storages, storage_of, state_p, error));
    for (size_t i = 0; i < range_count && storages; i++) {
        wherry_storage_unref(storages[i]);
    }
    wh_free(storages);
    return status;
}

/* ---- part files ---- */

/**
 * Maximum number of attempts to open and lock a part file, if other processes keep renaming or
 * removing it.
 */
enum { OPEN_ATTEMPTS = 100 };

/** Maximum number of bytes per pwrite(). Linux allows slightly less than 2 GiB. */
enum { WRITE_MAX = 1 << 30 };

/**
 * True if the open file still has this path. Another process may have renamed or removed the file
 * before this process locked it.
 */
static bool has_name(const char *path, const struct stat *info) {
    struct stat named;
    return lstat(path, &named) == 0 && named.st_dev == info->st_dev && named.st_ino == info->st_ino;
}

/**
 * Tries once to open and lock a part file. @return 1 if it is open and locked; 0 to try again; -1
 * if it failed.
 */
static int try_open(const char *part, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_status *status_p,
                    wherry_error *error) {
    struct stat info;
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, (mode_t)mode);
    if (fd < 0) {
        *status_p = wh_file_fail_errno(error, errno, part, "cannot open or create the file");
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        *status_p = errno == EWOULDBLOCK
                        ? wh_file_fail(error, WHERRY_REFUSED, wh_spot_file(part),
                                       "another process or writer is writing this file; wait until it has finished")
                        : wh_file_fail_errno(error, errno, part, "cannot lock the file");
    } else if (fstat(fd, &info) != 0) {
        *status_p = wh_file_fail_errno(error, errno, part, "cannot read the file's attributes");
    } else if (!S_ISREG(info.st_mode)) {
        *status_p = wh_file_fail_errno(error, EEXIST, part, "the path exists and is not a regular file; remove it");
    } else if (has_name(part, &info)) {
        *fd_p = fd;
        *size_p = (uint64_t)info.st_size;
        return 1;
    } else {
        close(fd);
        return 0;
    }
    close(fd);
    return -1;
}

/**
 * Opens or creates a part file, and locks it.
 * @param size_p  its current size.
 * @return WHERRY_OK; WHERRY_REFUSED if other writers use it; WHERRY_SYSTEM.
 */
static wherry_status open_part(const char *part, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    int result = 0;
    for (int i = 0; i < OPEN_ATTEMPTS && result == 0; i++) {
        result = try_open(part, mode, fd_p, size_p, &status, error);
    }
    if (result == 0) {
        status = wh_file_fail(error, WHERRY_REFUSED, wh_spot_file(part),
                              "other processes keep writing this file; try again later");
    }
    return result > 0 ? WHERRY_OK : status;
}

/**
 * Reserves disk space. Does nothing and succeeds if the file system does not support that.
 * @return 0; -1 on failure, with errno set.
 */
static int reserve(int fd, uint64_t offset, uint64_t size) {
    int result = 0;
    while (size > 0 && (result = fallocate(fd, 0, (off_t)offset, (off_t)size)) != 0 && errno == EINTR) {
    }
    return result == 0 || errno == EOPNOTSUPP ? 0 : -1;
}

/**
 * Reserves disk space for the ranges of a file, and for everything before its first range. If the
 * file has no ranges, reserves space for the whole file. Successive ranges that are close together
 * are reserved with one call, because one call per small tensor would take longer than writing the
 * tensor.
 * @return 0; -1 on failure, with errno set.
 */
static int reserve_ranges(const wh_file_range *ranges, size_t count, size_t file, int fd, uint64_t size) {
    enum { GAP = 1 << 16 };
    uint64_t begin = 0;
    uint64_t end = size;
    int result = 0;
    for (size_t i = 0; i < count; i++) {
        end = ranges[i].file == file && ranges[i].nbytes > 0 && ranges[i].offset < end ? ranges[i].offset : end;
    }
    for (size_t i = 0; i < count && result == 0; i++) {
        uint64_t from = ranges[i].offset;
        uint64_t to = from + ranges[i].nbytes;
        if (ranges[i].file != file || from == to) {
            continue;
        }
        if (from <= end + GAP && to + GAP >= begin) {
            begin = from < begin ? from : begin;
            end = to > end ? to : end;
            continue;
        }
        result = reserve(fd, begin, end - begin);
        begin = from;
        end = to;
    }
    return result == 0 ? reserve(fd, begin, end - begin) : result;
}

static wherry_status write_all(const wh_mapping *mapping, uint64_t offset, const void *bytes, uint64_t size,
                               wherry_error *error) {
    uint64_t done = 0;
    while (done < size) {
        uint64_t most = size - done < WRITE_MAX ? size - done : WRITE_MAX;
        ssize_t put = pwrite(mapping->fd, (const char *)bytes + done, (size_t)most, (off_t)(offset + done));
        if (put < 0 && errno != EINTR) {
            return wh_file_fail_errno(error, errno, mapping->path, "cannot write the file");
        }
        done += put > 0 ? (uint64_t)put : 0;
    }
    return WHERRY_OK;
}

static wherry_status sync_folder(const char *folder, wherry_error *error) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    wherry_status status = WHERRY_OK;
    if (fd < 0 || fsync(fd) != 0) {
        status = wh_file_fail_errno(error, errno, folder, "cannot sync the folder");
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/**
 * True if an existing part file has the headers of this layout. In that case, it was begun for a
 * state with the same layout.
 */
static bool has_headers(const wh_layout *layout, size_t file, const wh_mapping *mapping) {
    bool same = true;
    for (size_t i = 0; i < layout->header_count && same; i++) {
        const wh_header *header = layout->headers + i;
        if (header->file == file) {
            char *found;
            same = wh_mapping_copy(mapping, header->offset, header->size, &found, NULL) == WHERRY_OK;
            if (same) {
                same = memcmp(found, header->bytes, header->size) == 0;
                wh_free(found);
            }
        }
    }
    return same;
}

/**
 * Prepares to replace an existing file: gives its permissions to the part file, and with
 * WHERRY_FILE_RESUME its bytes to a part file that is empty.
 * @param size_p  the size of the part file.
 */
static wherry_status take_over(const wh_layout_file *about, int fd, uint32_t flags, uint64_t *size_p,
                               wherry_error *error) {
    struct stat old;
    if (lstat(about->path, &old) != 0) {
        return WHERRY_OK;
    }
    if ((flags & WHERRY_FILE_NEW) && !(flags & WHERRY_FILE_RESUME)) {
        return wh_file_fail_errno(error, EEXIST, about->path, "the file must not be replaced");
    }
    if (!S_ISREG(old.st_mode)) {
        return WHERRY_OK;
    }
    if (fchmod(fd, old.st_mode & 0777) != 0) {
        return wh_file_fail_errno(error, errno, about->part, "cannot set the permissions of the file");
    }
    int from = *size_p == 0 && (flags & WHERRY_FILE_RESUME) ? open(about->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    ssize_t copied = from >= 0 ? 1 : 0;
    for (off_t at = 0; copied > 0 && *size_p < about->size; *size_p += (uint64_t)(copied > 0 ? copied : 0)) {
        copied = copy_file_range(from, &at, fd, NULL, (size_t)(about->size - *size_p), 0);
    }
    if (from >= 0) {
        close(from); /* The bytes that were not copied are received. */
    }
    return WHERRY_OK;
}

/** Creates or resumes one file: locks it, reserves disk space, writes the headers and maps it. */
static wherry_status create_file(wh_layout *layout, size_t file, const wherry_file_write_options *options,
                                 wherry_error *error) {
    wh_layout_file *about = layout->files + file;
    int fd = -1;
    uint64_t size = 0;
    WH_TRY(open_part(about->part, options->mode, &fd, &size, error));
    wherry_status status = wh_mapping_adopt(about->path, fd, about->size, &about->mapping, error);
    if (status != WHERRY_OK) {
        if (size == 0) {
            unlink(about->part);
        }
        close(fd);
        return status;
    }
    WH_TRY(take_over(about, fd, options->flags, &size, error));
    about->resumed = (options->flags & WHERRY_FILE_RESUME) && size > 0 && size <= about->size &&
                     has_headers(layout, file, about->mapping);
    bool too_large = about->size > INT64_MAX;
    if (too_large || (!about->resumed && ftruncate(fd, 0) != 0) || ftruncate(fd, (off_t)about->size) != 0) {
        return wh_file_fail_errno(error, too_large ? EFBIG : errno, about->path, "cannot set the size of the file");
    }
    /*
     * A resumed part file may lack space too, if its first writer failed early. Large gaps that no
     * tensor covers get no space.
     */
    const wh_file_range *ranges = layout->covered ? layout->covered : layout->ranges;
    size_t count = layout->covered ? layout->covered_count : layout->range_count;
    if (reserve_ranges(ranges, count, file, fd, about->size) != 0) {
        return wh_file_fail_errno(error, errno, about->path, "cannot reserve disk space");
    }
    for (size_t i = 0; i < layout->header_count && !about->resumed; i++) {
        const wh_header *header = layout->headers + i;
        if (header->file == file) {
            WH_TRY(write_all(about->mapping, header->offset, header->bytes, header->size, error));
        }
    }
    return wh_mapping_map(about->mapping, WH_ACCESS_WRITE, error);
}

/* ---- copying a state in memory ---- */

/**
 * A run of at least this many bytes is written with pwrite(), which causes no page faults in the
 * mapping. A shorter run is copied to the mapping.
 */
enum { WRITE_FROM = 16 << 10 };

static wherry_status check_memory(const wherry_storage *storage, wherry_error *error) {
    if (wherry_storage_nbytes(storage) == 0 ||
        (wherry_storage_device(storage).kind == WHERRY_DEVICE_CPU && wherry_storage_data(storage))) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_UNSUPPORTED,
                   "a tensor of the state is on a device, or has no memory; copy it to the host first");
}

/** Writes bytes at `offset` within a range. */
static wherry_status write_run(const wh_layout *layout, const wh_file_range *range, uint64_t offset, const void *bytes,
                               uint64_t size, wherry_error *error) {
    const wh_mapping *mapping = layout->files[range->file].mapping;
    if (size >= WRITE_FROM) {
        return write_all(mapping, range->offset + offset, bytes, size, error);
    }
    memcpy(mapping->base + range->offset + offset, bytes, size);
    return WHERRY_OK;
}

static wherry_status write_extent(const wh_layout *layout, const wh_file_range *range, const char *data,
                                  const wherry_extent *extent, wherry_error *error) {
    wherry_level inner = extent->level_count ? extent->levels[extent->level_count - 1] : (wherry_level){1, 0};
    uint64_t runs = wh_extent_runs(extent);
    uint64_t offset = 0;
    for (uint64_t i = 0; i < runs; i++) {
        offset = i % inner.count ? offset + inner.stride : wh_extent_run(extent, i);
        WH_TRY(write_run(layout, range, offset, data + offset, extent->length, error));
    }
    return WHERRY_OK;
}

/**
 * Fills a layout whose ranges are storages. Writes only those bytes of a storage that tensors
 * cover.
 */
static wherry_status fill_storages(const wh_layout *layout, const wherry_value *state, wherry_error *error) {
    wherry_prepared *prepared;
    wherry_prepare_options options = wh_file_prepare_options();
    WH_TRY(wherry_prepare(state, &options, &prepared, error));
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < layout->range_count && status == WHERRY_OK; i++) {
        const wherry_storage *storage = wherry_prepared_storage(prepared, i);
        size_t count;
        const wherry_extent *extents = wherry_prepared_extents(prepared, i, &count);
        status = check_memory(storage, error);
        for (size_t k = 0; k < count && status == WHERRY_OK; k++) {
            status = write_extent(layout, layout->ranges + i, wherry_storage_data(storage), extents + k, error);
        }
    }
    wherry_prepared_destroy(prepared);
    return status;
}

/** Fills a layout whose ranges are dense tensors. */
static wherry_status fill_tensors(const wh_layout *layout, const wherry_value *state, wherry_error *error) {
    wherry_flat *flat;
    WH_TRY(wherry_flatten(state, &flat, error));
    wherry_status status = WHERRY_OK;
    size_t leaves = wherry_flat_count(flat);
    size_t number = 0;
    for (size_t i = 0; i < leaves && status == WHERRY_OK; i++) {
        const wherry_tensor *tensor = wherry_tensor_get(wherry_flat_leaf(flat, i));
        if (!tensor) {
            continue;
        }
        const wh_file_range *range = layout->ranges + number++;
        status = check_memory(tensor->storage, error);
        if (status == WHERRY_OK && range->nbytes > 0) {
            const char *data = wherry_storage_data(tensor->storage);
            uint64_t begin = (uint64_t)tensor->offset * wherry_dtype_describe(tensor->dtype)->bytes;
            status = write_run(layout, range, 0, data + begin, range->nbytes, error);
        }
    }
    wherry_flat_destroy(flat);
    return status;
}

/* ---- the writer ---- */

struct wherry_file_writer {
    const wh_format *format;
    wherry_file_write_options options;
    char *path;
    char *folder;
    wh_layout layout;
    wherry_value *target;
    size_t renamed; /**< Number of files that already have their final name. */
    bool resumed;
    /** True if the target exists, so that the part files may contain bytes of tensors. */
    bool begun;
    bool finished;
};

void wherry_file_write_options_init(wherry_file_write_options *options) {
    *options = (wherry_file_write_options){
        .struct_size = sizeof(*options), .mode = 0666, .shard_bytes = UINT64_C(5000000000), .rank = -1};
}

static wherry_status make_target(wherry_file_writer *writer, const wherry_value *state, wherry_error *error) {
    const wh_layout *layout = &writer->layout;
    wh_mapping **mappings = wh_alloc_array(layout->file_count, sizeof(wh_mapping *));
    WH_TRY_ALLOC(mappings, error, "the files of a state");
    for (size_t i = 0; i < layout->file_count; i++) {
        mappings[i] = layout->files[i].mapping;
    }
    wherry_status status =
        wh_map_state(state, mappings, layout->ranges, layout->range_count, layout->storage_of, &writer->target, error);
    wh_free(mappings);
    return status;
}

static wherry_status begin(wherry_file_writer *writer, const char *path, const wherry_value *state,
                           wherry_error *error) {
    const char *slash = strrchr(path, '/');
    writer->path = wh_text_copy(path, strlen(path));
    writer->folder = slash ? wh_text_copy(path, (size_t)(slash - path) + 1) : wh_text_copy(".", 1);
    WH_TRY_ALLOC(writer->path && writer->folder, error, "a file");
    writer->layout.path = writer->path;
    wherry_status status = writer->format->lay_out(state, &writer->options, &writer->layout, error);
    bool all_resumed = true;
    for (size_t i = 0; i < writer->layout.file_count && status == WHERRY_OK; i++) {
        status = create_file(&writer->layout, i, &writer->options, error);
        all_resumed = all_resumed && writer->layout.files[i].resumed;
    }
    writer->resumed = all_resumed;
    WH_THEN(status, make_target(writer, state, error));
    writer->begun = status == WHERRY_OK;
    return status;
}

static wherry_status take_options(const wherry_file_write_options *given, wherry_file_write_options *options,
                                  wherry_error *error) {
    wherry_file_write_options_init(options);
    if (!wh_options_take(options, sizeof(*options), given)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "options.struct_size is not set; call wherry_file_write_options_init");
    }
    if (options->flags & ~(uint32_t)WHERRY_FILE_WRITE_FLAGS) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "options.flags 0x%x has bits that this version does not know",
                       (unsigned)options->flags);
    }
    if (options->rank < -1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "options.rank is %lld; it must be at least 0, or -1 if the rank is unknown",
                       (long long)options->rank);
    }
    return WHERRY_OK;
}

wherry_status wherry_file_writer_create(const char *path, const wherry_value *state,
                                        const wherry_file_write_options *options, wherry_file_writer **writer_p,
                                        wherry_error *error) {
    if (!path || !state || !writer_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "path, state and writer_p must not be NULL");
    }
    const char *slash = strrchr(path, '/');
    if (slash ? !slash[1] : !*path) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "'%.200s' is not the name of a file", path);
    }
    wherry_file_write_options chosen;
    WH_TRY(take_options(options, &chosen, error));
    const wh_format *format = wh_format_get(chosen.format ? chosen.format : wherry_file_format_of(path));
    if (!format) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the name '%.200s' does not determine the format; use .safetensors, .safetensors.index.json or "
                       ".wherry, or set options.format",
                       path);
    }
    wherry_file_writer *writer = wh_alloc_zeroed(1, sizeof(*writer));
    WH_TRY_ALLOC(writer, error, "a file");
    writer->format = format;
    writer->options = chosen;
    wherry_status status = begin(writer, path, state, error);
    if (status != WHERRY_OK) {
        wherry_file_writer_destroy(writer);
        return status;
    }
    *writer_p = writer;
    return WHERRY_OK;
}

const wherry_value *wherry_file_writer_target(const wherry_file_writer *writer) {
    return writer->target;
}

bool wherry_file_writer_resumed(const wherry_file_writer *writer) {
    return writer->resumed;
}

/** Gives a part file its final name. @return 0; -1 on failure, with errno set. */
static int give_name(const wh_layout_file *file, bool is_new) {
    if (!is_new) {
        return rename(file->part, file->path);
    }
    int result = renameat2(AT_FDCWD, file->part, AT_FDCWD, file->path, RENAME_NOREPLACE);
    /* Not every file system can do this. */
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
        result = link(file->part, file->path) == 0 ? unlink(file->part) : -1;
    }
    return result;
}

wherry_status wherry_file_writer_finish(wherry_file_writer *writer, wherry_error *error) {
    if (!writer || writer->finished) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the writer is NULL or already finished");
    }
    wh_layout *layout = &writer->layout;
    bool sync = writer->options.flags & WHERRY_FILE_SYNC;
    wherry_status status =
        writer->format->seal && writer->renamed == 0 ? writer->format->seal(layout, error) : WHERRY_OK;
    for (size_t i = 0; i < layout->file_count && sync && status == WHERRY_OK; i++) {
        if (fsync(layout->files[i].mapping->fd) != 0) {
            status = wh_file_fail_errno(error, errno, layout->files[i].path, "cannot sync the file");
        }
    }
    for (; status == WHERRY_OK && writer->renamed < layout->file_count; writer->renamed++) {
        const wh_layout_file *file = layout->files + writer->renamed;
        if (give_name(file, writer->options.flags & WHERRY_FILE_NEW) != 0) {
            status = wh_file_fail_errno(error, errno, file->path, "cannot rename the finished file to its final name");
            break;
        }
    }
    if (status == WHERRY_OK && sync) {
        status = sync_folder(writer->folder, error);
    }
    writer->finished = status == WHERRY_OK;
    return status;
}

void wherry_file_writer_destroy(wherry_file_writer *writer) {
    if (!writer) {
        return;
    }
    bool keep = writer->options.flags & WHERRY_FILE_KEEP_PART;
    for (size_t i = 0; i < writer->layout.file_count; i++) {
        const wh_layout_file *file = writer->layout.files + i;
        if (!file->mapping) {
            /* This writer has not opened the file. Another process may be writing it. */
            continue;
        }
        if (i >= writer->renamed && !(keep && (writer->begun || file->resumed))) {
            unlink(file->part);
        }
        /* Unlock now, because a state that outlives the writer keeps the file open. */
        flock(file->mapping->fd, LOCK_UN);
    }
    wherry_value_destroy(writer->target);
    wh_layout_destroy(&writer->layout);
    wh_free(writer->folder);
    wh_free(writer->path);
    wh_free(writer);
}

wherry_status wherry_file_write(const char *path, const wherry_value *state, const wherry_file_write_options *options,
                                wherry_error *error) {
    wherry_file_writer *writer = NULL;
    wherry_status status = wherry_file_writer_create(path, state, options, &writer, error);
    if (writer) {
        const wh_layout *layout = &writer->layout;
        status = (layout->storage_of ? fill_storages : fill_tensors)(layout, state, error);
    }
    WH_THEN(status, wherry_file_writer_finish(writer, error));
    wherry_file_writer_destroy(writer);
    return status;
}
