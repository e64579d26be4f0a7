/**
 * @file open.h  Open files: their mappings, the table of formats, and errors that name the file,
 * the tensor and the offset.
 *
 * Headers are read into memory first (wh_mapping_read), and only this copy is checked and used. So
 * a process that writes to the file meanwhile can change bytes of tensors, but never a length or an
 * offset that was already checked. Through the mapping, a reader accesses only bytes of tensors.
 */
#ifndef WH_FILE_OPEN_H
#define WH_FILE_OPEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <wherry/base.h>
#include <wherry/file.h>
#include <wherry/tensor.h>

#include "file/writer.h"

/* ---- errors ---- */

/** The file, tensor and byte that an error is about. */
typedef struct wh_spot {
    const char *path; /**< The file. */
    /**
     * The name of the tensor, which may contain any characters; NULL if the error is not about a
     * tensor.
     */
    const char *name;
    size_t name_size;
    uint64_t offset; /**< An offset in the file; UINT64_MAX if there is none. */
} wh_spot;

/** The spot of an error about a file as a whole. */
static inline wh_spot wh_spot_file(const char *path) {
    return (wh_spot){path, NULL, 0, UINT64_MAX};
}

/** The spot of an error about a byte of a file. */
static inline wh_spot wh_spot_byte(const char *path, uint64_t offset) {
    return (wh_spot){path, NULL, 0, offset};
}

/**
 * Fills the error record with the message "FILE: tensor PATH: TEXT", or "FILE: TEXT" if the spot
 * has no tensor. @return status.
 */
wherry_status wh_file_fail(wherry_error *error, wherry_status status, wh_spot spot, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/**
 * Fills the error record with WHERRY_SYSTEM and the message "FILE: WHAT: TEXT OF ERRNO".
 * @return WHERRY_SYSTEM.
 */
wherry_status wh_file_fail_errno(wherry_error *error, int errnum, const char *path, const char *what);

/* ---- mappings ---- */

/**
 * An open file, which may be mapped. It is reference-counted, and each storage in it holds a
 * reference, unless the storage is empty.
 */
struct wh_mapping {
    atomic_size_t references;
    char *path;
    int fd;
    uint8_t *base; /**< The mapped bytes; NULL before the file is mapped, and for an empty file. */
    uint64_t size;
    struct stat opened; /**< The file's attributes when wh_mapping_open opened it. */
};

/** How a mapping may be used. */
typedef enum wh_access {
    WH_ACCESS_READ,    /**< The mapping is read-only. */
    WH_ACCESS_PRIVATE, /**< Changes stay in this process. */
    WH_ACCESS_WRITE,   /**< Changes go to the file. */
} wh_access;

/**
 * Opens a regular file for reading. @param mapping_p  one reference, which the caller drops with
 * wh_mapping_unref.
 */
wherry_status wh_mapping_open(const char *path, wh_mapping **mapping_p, wherry_error *error);

/**
 * Creates a mapping for a file that is already open. Does not set `opened`.
 * @param fd    owned by the mapping after success, by the caller after a failure.
 * @param size  the size that the file has, or will have before it is mapped.
 */
wherry_status wh_mapping_adopt(const char *path, int fd, uint64_t size, wh_mapping **mapping_p, wherry_error *error);

/** Maps the whole file. */
wherry_status wh_mapping_map(wh_mapping *mapping, wh_access access, wherry_error *error);

/** Reads `size` bytes at an offset. Fails with WHERRY_TRUNCATED if the file has fewer. */
wherry_status wh_mapping_read(const wh_mapping *mapping, uint64_t offset, void *bytes, size_t size,
                              wherry_error *error);

/**
 * Reads `size` bytes into new memory, followed by a zero.
 * @param size     checked against a limit by the caller.
 * @param bytes_p  freed by the caller with wh_free.
 */
wherry_status wh_mapping_copy(const wh_mapping *mapping, uint64_t offset, size_t size, char **bytes_p,
                              wherry_error *error);

/**
 * Creates a storage for a part of a mapped file. The storage holds a reference to the mapping,
 * unless it is empty. The caller has checked the bounds.
 */
wherry_status wh_mapping_wrap(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_storage **storage_p,
                              wherry_error *error);

/** Drops a reference. mapping may be NULL. */
void wh_mapping_unref(wh_mapping *mapping);

/* ---- open files ---- */

struct wherry_file {
    wherry_value *state;
    wh_mapping **mappings; /**< The opened file, followed by the files that it names. */
    size_t mapping_count;
    size_t mapping_capacity;
    wherry_file_summary summary;
    wherry_limits limits;
    wh_access access;

    /** Compares the bytes with their digests; NULL if the file has no digests. */
    wherry_status (*verify)(const wherry_file *file, wherry_error *error);
};

/** Opens a file and appends it to the mappings of `file`. */
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
    /** The suffix of file names; NULL if the format is used only on request. */
    const char *suffix;

    /**
     * Returns true if a file that begins with these bytes has this format. NULL: the format is
     * recognized only by its suffix. If the suffix is NULL too, the format is never recognized and
     * must be requested.
     */
    bool (*matches)(const uint8_t *head, size_t size);

    /**
     * Fills file->state and the summary. The first file is open but not mapped yet. On failure the
     * caller closes the file and frees what was filled so far.
     */
    wherry_status (*open)(wherry_file *file, wherry_error *error);

    /** Implements wherry_file_accepts. */
    wherry_status (*accepts)(const wherry_value *state, wherry_error *error);

    /**
     * Lays out the files for a state. Fails if `accepts` fails, or if the path or the options do
     * not suit the format.
     */
    wherry_status (*lay_out)(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error);

    /**
     * Writes the parts of the files that depend on the bytes of the tensors, such as digests.
     * Called when all tensors are written. NULL if the format has no such parts.
     */
    wherry_status (*seal)(const wh_layout *layout, wherry_error *error);
} wh_format;

/** Returns the table of a format; NULL for a value that is not a format. */
const wh_format *wh_format_get(wherry_file_format format);

extern const wh_format wh_format_safetensors;
extern const wh_format wh_format_sharded;
extern const wh_format wh_format_native;

#endif
