/** @file part_file.h  A file that is written beside its place, `.NAME.part`, and moved there when it is whole. */
#ifndef WH_FILE_PART_FILE_H
#define WH_FILE_PART_FILE_H

#include "file/layout.h"

/**
 * Opens a part, or makes it, and locks it: one process at a time.
 * @param size_p  its length so far.
 * @return WHERRY_OK; WHERRY_REFUSED where another process has it; WHERRY_SYSTEM.
 */
wherry_status wh_part_open(const char *part, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_error *error);

/** Lets others write it. */
void wh_part_unlock(int fd);

/** Empties it, and gives it its length. */
wherry_status wh_part_clear(const wh_layout_file *file, int fd, wherry_error *error);

/**
 * Takes room on the disk for what will be written, where it has none yet, so that writing to the mapping cannot fail. What lies between takes
 * none.
 */
wherry_status wh_part_reserve(const wh_layout *layout, size_t file, int fd, wherry_error *error);

/** Writes all bytes. */
wherry_status wh_part_write(const char *path, int fd, uint64_t offset, const void *bytes, uint64_t size,
                            wherry_error *error);

/** Moves a part to its name. */
wherry_status wh_part_move(const wh_layout_file *file, wherry_error *error);

/** Waits until a folder is on the disk. */
wherry_status wh_part_sync_folder(const char *folder, wherry_error *error);

#endif
