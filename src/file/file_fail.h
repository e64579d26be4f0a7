/** @file file_fail.h  Errors about files: which file, which tensor, which byte. */
#ifndef WH_FILE_FILE_FAIL_H
#define WH_FILE_FILE_FAIL_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/** What an error is about. */
typedef struct wh_spot {
    const char *path; /**< The file. */
    const char *name; /**< A tensor in it; NULL: none. May have any characters. */
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

/** Fills the record: "FILE: tensor PATH: TEXT". @return status. */
wherry_status wh_file_fail(wherry_error *error, wherry_status status, wh_spot spot, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** WHERRY_SYSTEM with errno, its text appended. */
wherry_status wh_file_fail_errno(wherry_error *error, int errnum, const char *path, const char *what);

#endif
