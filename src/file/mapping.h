/**
 * @file mapping.h  A file, open and mapped, that lives as long as anything in it is used.
 *
 * Headers are read into memory of our own first (wh_mapping_read), so that what was checked is what is used: whoever writes the file
 * meanwhile can change bytes of tensors, never a length or an offset. The mapping itself is for bytes of tensors alone.
 */
#ifndef WH_FILE_MAPPING_H
#define WH_FILE_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include <wherry/base.h>
#include <wherry/tensor.h>

typedef struct wh_mapping {
    atomic_size_t references;
    char *path;
    int fd;
    uint8_t *base; /**< NULL until it is mapped, and for an empty file. */
    uint64_t size;
    struct timespec written; /**< When it was changed last, as of opening. */
} wh_mapping;

/** How a mapping may be used. */
typedef enum wh_access {
    WH_ACCESS_READ,    /**< Writing is a fault. */
    WH_ACCESS_PRIVATE, /**< What is written stays in this process. */
    WH_ACCESS_WRITE,   /**< What is written is in the file. */
} wh_access;

/** Opens a plain file for reading. @param mapping_p  with one reference: wh_mapping_unref. */
wherry_status wh_mapping_open(const char *path, wh_mapping **mapping_p, wherry_error *error);

/**
 * The same for a file that is open already.
 * @param fd  taken over on success.
 */
wherry_status wh_mapping_adopt(const char *path, int fd, uint64_t size, wh_mapping **mapping_p, wherry_error *error);

/** Maps all of it. */
wherry_status wh_mapping_map(wh_mapping *mapping, wh_access access, wherry_error *error);

/** Reads `size` bytes; WHERRY_TRUNCATED where there are fewer. */
wherry_status wh_mapping_read(const wh_mapping *mapping, uint64_t offset, void *bytes, size_t size,
                              wherry_error *error);

/** Reads `size` bytes into new memory, with a zero behind them: wh_free. The caller has bounded size. */
wherry_status wh_mapping_copy(const wh_mapping *mapping, uint64_t offset, size_t size, char **bytes_p,
                              wherry_error *error);

/** A part of a mapped file as a storage, which keeps the mapping alive. The caller has checked that it lies inside. */
wherry_status wh_mapping_wrap(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_storage **storage_p,
                              wherry_error *error);

/** Whether the file still is as it was when it was opened. */
wherry_status wh_mapping_check(const wh_mapping *mapping, wherry_error *error);

/** mapping may be NULL. */
void wh_mapping_unref(wh_mapping *mapping);

#endif
