/** @file part_file.h  A file that is written beside its place, `.NAME.part`, and moved there when it is whole. */
#ifndef WH_FILE_PART_FILE_H
#define WH_FILE_PART_FILE_H

#include "file/layout.h"

/** The path of the part of a file, to wh_free; NULL where there is no memory. */
char *wh_part_path(const char *path);

/**
 * Opens the part of a file, or makes it, and locks it: one process at a time.
 * @param size_p  its length so far.
 * @return WHERRY_OK; WHERRY_REFUSED where another process has it; WHERRY_SYSTEM; WHERRY_NO_MEMORY.
 */
wherry_status wh_part_open(const char *path, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_error *error);

/**
 * Empties it, gives it its length, and takes room on the disk for its places and blocks, so that writing to the mapping cannot fail. What lies between
 * takes none.
 */
wherry_status wh_part_reserve(const wh_layout *layout, size_t file, int fd, wherry_error *error);

/** Writes all bytes. */
wherry_status wh_part_write(const char *path, int fd, uint64_t offset, const void *bytes, uint64_t size,
                            wherry_error *error);

/** Moves the part to its name. */
wherry_status wh_part_move(const char *path, wherry_error *error);

/** Waits until the folder of a path is on the disk. */
wherry_status wh_part_sync_folder(const char *path, wherry_error *error);

#endif
