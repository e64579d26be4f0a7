/* Writing files: a format lays out, the files are made and mapped, and the caller or wherry_file_write fills them. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <wherry/file.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/options.h"
#include "file/file_fail.h"
#include "file/fill.h"
#include "file/formats.h"
#include "file/part_file.h"
#include "file/restate.h"

struct wherry_file_writer {
    const wh_format *format;
    wherry_file_write_options options;
    char *path;
    char *folder; /**< That it lies in. */
    wh_layout layout;
    wherry_value *target;
    size_t moved; /**< Files that are in place. */
    bool resumed;
    bool begun; /**< There is a target, in which something may have been written. */
    bool finished;
};

void wherry_file_write_options_init(wherry_file_write_options *options) {
    *options = (wherry_file_write_options){
        .struct_size = sizeof(*options), .mode = 0666, .shard_bytes = UINT64_C(5000000000), .rank = -1};
}

/* ---- making the files ---- */

/** Whether a part that is there has the blocks of this layout: then its bytes may be those of the same state. */
static bool has_blocks(const wh_layout *layout, size_t file, const wh_mapping *mapping) {
    bool same = true;
    for (size_t i = 0; i < layout->block_count && same; i++) {
        const wh_block *block = layout->blocks + i;
        if (block->file == file) {
            char *found;
            same = wh_mapping_copy(mapping, block->offset, block->size, &found, NULL) == WHERRY_OK;
            if (same) {
                same = memcmp(found, block->bytes, block->size) == 0;
                wh_free(found);
            }
        }
    }
    return same;
}

static wherry_status write_blocks(const wh_layout *layout, size_t file, const wh_mapping *mapping,
                                  wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < layout->block_count && status == WHERRY_OK; i++) {
        const wh_block *block = layout->blocks + i;
        if (block->file == file) {
            status = wh_part_write(mapping->path, mapping->fd, block->offset, block->bytes, block->size, error);
        }
    }
    return status;
}

static wherry_status make_file(wherry_file_writer *writer, size_t file, wherry_error *error) {
    wh_layout_file *about = writer->layout.files + file;
    int fd;
    uint64_t size;
    wherry_status status = wh_part_open(about->part, writer->options.mode, &fd, &size, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wh_mapping_adopt(about->path, fd, about->size, &about->mapping, error);
    if (status != WHERRY_OK) {
        if (size == 0) {
            unlink(about->part);
        }
        close(fd);
        return status;
    }
    about->resumed = (writer->options.flags & WHERRY_FILE_RESUME) && size == about->size &&
                     has_blocks(&writer->layout, file, about->mapping);
    if (!about->resumed) {
        status = wh_part_clear(about, fd, error);
    }
    if (status == WHERRY_OK) { /* also of one that is resumed: whoever left it may have found no room */
        status = wh_part_reserve(&writer->layout, file, fd, error);
    }
    if (status == WHERRY_OK && !about->resumed) {
        status = write_blocks(&writer->layout, file, about->mapping, error);
    }
    return status == WHERRY_OK ? wh_mapping_map(about->mapping, WH_ACCESS_WRITE, error) : status;
}

/* ---- the target ---- */

typedef struct targeting {
    const wh_layout *layout;
    wherry_storage **storages; /**< One a place. */
} targeting;

static void change(void *context, size_t number, wherry_tensor *tensor) {
    const targeting *t = context;
    if (t->layout->storages) {
        tensor->storage = t->storages[t->layout->storages[number]];
        return;
    }
    tensor->storage = t->storages[number];
    tensor->offset = 0;
    tensor->strides = NULL;
}

static wherry_status make_target(wherry_file_writer *writer, const wherry_value *state, wherry_error *error) {
    const wh_layout *layout = &writer->layout;
    targeting t = {.layout = layout};
    t.storages = wh_alloc_zeroed(layout->place_count, sizeof(wherry_storage *));
    wherry_status status = t.storages ? WHERRY_OK : wh_fail_memory(error, "the tensors of a file");
    for (size_t i = 0; i < layout->place_count && status == WHERRY_OK; i++) {
        const wh_place *place = layout->places + i;
        status =
            wh_mapping_wrap(layout->files[place->file].mapping, place->offset, place->nbytes, t.storages + i, error);
    }
    if (status == WHERRY_OK) {
        status = wh_restate(state, change, &t, &writer->target, error);
    }
    for (size_t i = 0; i < layout->place_count && t.storages; i++) {
        wherry_storage_unref(t.storages[i]);
    }
    wh_free(t.storages);
    return status;
}

/* ---- beginning and ending ---- */

static wherry_status begin(wherry_file_writer *writer, const char *path, const wherry_value *state,
                           wherry_error *error) {
    const char *slash = strrchr(path, '/');
    writer->path = wh_copy_text(path, strlen(path));
    writer->folder = slash ? wh_copy_text(path, (size_t)(slash - path) + 1) : wh_copy_text(".", 1);
    if (!writer->path || !writer->folder) {
        return wh_fail_memory(error, "a file");
    }
    writer->layout.path = writer->path;
    wherry_status status = writer->format->lay_out(state, &writer->options, &writer->layout, error);
    bool all = true;
    for (size_t i = 0; i < writer->layout.file_count && status == WHERRY_OK; i++) {
        status = make_file(writer, i, error);
        all = all && writer->layout.files[i].resumed;
    }
    writer->resumed = all;
    if (status == WHERRY_OK) {
        status = make_target(writer, state, error);
    }
    writer->begun = status == WHERRY_OK;
    return status;
}

/** The caller's options over the defaults. */
static wherry_status take_options(const wherry_file_write_options *given, wherry_file_write_options *options,
                                  wherry_error *error) {
    wherry_file_write_options_init(options);
    if (!wh_options_take(options, sizeof(*options), given)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "options.struct_size is not filled; call wherry_file_write_options_init");
    }
    if (options->flags & ~(uint32_t)WHERRY_FILE_WRITE_FLAGS) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "flags 0x%x has bits that this version does not know",
                       (unsigned)options->flags);
    }
    if (options->rank < -1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank is %lld; it is not negative, or -1: not said",
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
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "'%.200s' is no name of a file", path);
    }
    wherry_file_write_options chosen;
    wherry_status status = take_options(options, &chosen, error);
    if (status != WHERRY_OK) {
        return status;
    }
    const wh_format *format = wh_format_get(chosen.format ? chosen.format : wherry_file_format_of(path));
    if (!format) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "'%.200s' asks for no format; end it with .safetensors, .safetensors.index.json or "
                       ".wherry, or say which in the options",
                       path);
    }
    wherry_file_writer *writer = wh_alloc_zeroed(1, sizeof(*writer));
    if (!writer) {
        return wh_fail_memory(error, "a file");
    }
    writer->format = format;
    writer->options = chosen;
    status = begin(writer, path, state, error);
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

wherry_status wherry_file_writer_finish(wherry_file_writer *writer, wherry_error *error) {
    if (!writer || writer->finished) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the writer is NULL, or finished already");
    }
    wh_layout *layout = &writer->layout;
    bool sync = writer->options.flags & WHERRY_FILE_SYNC;
    wherry_status status = writer->format->seal && writer->moved == 0 ? writer->format->seal(layout, error) : WHERRY_OK;
    for (size_t i = 0; i < layout->file_count && sync && status == WHERRY_OK; i++) {
        if (fsync(layout->files[i].mapping->fd) != 0) {
            status = wh_file_fail_errno(error, errno, layout->files[i].path, "cannot be brought to the disk");
        }
    }
    while (status == WHERRY_OK && writer->moved < layout->file_count) {
        status = wh_part_move(layout->files + writer->moved, error);
        writer->moved += status == WHERRY_OK;
    }
    if (status == WHERRY_OK && sync) {
        status = wh_part_sync_folder(writer->folder, error);
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
            continue; /* not ours: another process writes it */
        }
        if (i >= writer->moved && !(keep && (writer->begun || file->resumed))) {
            unlink(file->part);
        }
        wh_part_unlock(file->mapping->fd); /* states that outlive the writer keep the file open */
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
    if (status == WHERRY_OK) {
        status = wh_layout_fill(&writer->layout, state, error);
    }
    if (status == WHERRY_OK) {
        status = wherry_file_writer_finish(writer, error);
    }
    wherry_file_writer_destroy(writer);
    return status;
}
