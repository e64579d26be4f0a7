/**
 * @file open.h  An open file: its mappings, the table of formats, and errors that name file, tensor
 * and byte.
 *
 * Headers are read into memory first (wh_mapping_read) and checked there. So what was checked is
 * what is used: somebody who writes the file meanwhile can change bytes of tensors, but never a
 * checked length or offset. Only bytes of tensors are used through the mapping.
 */
#ifndef WH_FILE_OPEN_H
#define WH_FILE_OPEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <wherry/base.h>
#include <wherry/file.h>
#include <wherry/tensor.h>

#include "file/writer.h"

/* ---- errors ---- */

/** What an error is about. */
typedef struct wh_spot {
    const char *path; /**< The file. */
    const char *name; /**< A tensor in it; NULL: none. May contain any characters. */
    size_t name_size;
    uint64_t offset; /**< A byte of the file; UINT64_MAX: none. */
} wh_spot;

/** A file as a whole. */
static inline wh_spot wh_spot_file(const char *path) {
    return (wh_spot){path, NULL, 0, UINT64_MAX};
}

/** A byte of a file. */
static inline wh_spot wh_spot_byte(const char *path, uint64_t offset) {
    return (wh_spot){path, NULL, 0, offset};
}

/** Fills the record with "FILE: tensor PATH: TEXT". @return status. */
wherry_status wh_file_fail(wherry_error *error, wherry_status status, wh_spot spot, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** Fills the record with WHERRY_SYSTEM, "FILE: WHAT" and the text of errno. */
wherry_status wh_file_fail_errno(wherry_error *error, int errnum, const char *path, const char *what);

/* ---- mappings ---- */

/** An open and mapped file. It lives until its last storage is gone. */
struct wh_mapping {
    atomic_size_t references;
    char *path;
    int fd;
    uint8_t *base; /**< NULL until mapped, and for an empty file. */
    uint64_t size;
    struct timespec modified; /**< When the file was opened. */
};

/** How a mapping may be used. */
typedef enum wh_access {
    WH_ACCESS_READ,    /**< Writing is a fault. */
    WH_ACCESS_PRIVATE, /**< Changes stay in this process. */
    WH_ACCESS_WRITE,   /**< Changes go to the file. */
} wh_access;

/** Opens a regular file for reading. @param mapping_p  one reference: wh_mapping_unref. */
wherry_status wh_mapping_open(const char *path, wh_mapping **mapping_p, wherry_error *error);

/** The same for a file that is open already. @param fd  owned by the mapping on success. */
wherry_status wh_mapping_adopt(const char *path, int fd, uint64_t size, wh_mapping **mapping_p, wherry_error *error);

/** Maps the whole file. */
wherry_status wh_mapping_map(wh_mapping *mapping, wh_access access, wherry_error *error);

/** Reads `size` bytes; WHERRY_TRUNCATED if there are fewer. */
wherry_status wh_mapping_read(const wh_mapping *mapping, uint64_t offset, void *bytes, size_t size,
                              wherry_error *error);

/**
 * Reads `size` bytes into new memory, followed by a zero.
 * @param size     bounded by the caller.
 * @param bytes_p  free with wh_free.
 */
wherry_status wh_mapping_copy(const wh_mapping *mapping, uint64_t offset, size_t size, char **bytes_p,
                              wherry_error *error);

/**
 * Makes a storage of a part of a mapped file; it keeps the mapping alive. The caller has checked
 * the bounds.
 */
wherry_status wh_mapping_wrap(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_storage **storage_p,
                              wherry_error *error);

/** mapping may be NULL. */
void wh_mapping_unref(wh_mapping *mapping);

/* ---- open files ---- */

struct wherry_file {
    wherry_value *state;
    wh_mapping **mappings; /**< The opened file, then the files that it names. */
    size_t mapping_count;
    size_t mapping_capacity;
    wherry_file_summary summary;
    wherry_limits limits;
    wh_access access;

    /** Compares the digests; NULL if the file has none. */
    wherry_status (*verify)(const wherry_file *file, wherry_error *error);
};

/** Opens another file and appends it to the mappings of `file`. */
wherry_status wh_opened_add(wherry_file *file, const char *path, wherry_error *error);

/**
 * Creates a dense tensor over bytes of a mapping.
 * @param tensor  complete except for its storage.
 */
wherry_status wh_opened_tensor(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_tensor tensor,
                               wherry_value **value_p, wherry_error *error);

/* ---- formats ---- */

/** A format: a table of operations. */
typedef struct wh_format {
    wherry_file_format format;
    const char *name;
    const char *suffix; /**< Of file names; NULL: the format is used only on request. */

    /** True if a file starts like this format; NULL: its name alone decides. */
    bool (*matches)(const uint8_t *head, size_t size);

    /**
     * Fills file->state and the summary. The first mapping is open and not mapped yet. On failure
     * the caller closes the file, with what was filled so far.
     */
    wherry_status (*open)(wherry_file *file, wherry_error *error);

    /** wherry_file_accepts. */
    wherry_status (*accepts)(const wherry_value *state, wherry_error *error);

    /** Lays out the files for a state; fails as accepts does. */
    wherry_status (*lay_out)(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error);

    /** Adds what depends on the tensors' bytes, once all of them are written; NULL: nothing. */
    wherry_status (*seal)(const wh_layout *layout, wherry_error *error);
} wh_format;

/** @return NULL for a value that is not a format. */
const wh_format *wh_format_get(wherry_file_format format);

extern const wh_format wh_format_safetensors;
extern const wh_format wh_format_sharded;
extern const wh_format wh_format_native;

#endif
