/** @file private_file.h  Small files with secrets, which only their owner may access. */
#ifndef WH_BASE_PRIVATE_FILE_H
#define WH_BASE_PRIVATE_FILE_H

#include <stddef.h>
#include <sys/types.h>

/** Reads at most `most` bytes of a file. @return their number; -1 with errno. */
ssize_t wh_read_all(int fd, void *bytes, size_t most);

/**
 * Reads a whole file of at most `most` bytes. It must be a regular file of this user, and
 * nobody else may have access to it.
 * @param folder  as for openat(); AT_FDCWD for a path.
 * @param flags   further flags for openat(), such as O_NOFOLLOW.
 * @return its size; -1 with errno: ENOENT if there is none, EPERM if others have access to it,
 * EFBIG if it is larger.
 */
ssize_t wh_private_file_read(int folder, const char *name, int flags, void *bytes, size_t most);

/**
 * Creates a file with these bytes for its owner only (mode 0600), unless there is one. The file is
 * complete before it has its name, so another process never reads half of it.
 * @return 0 if the file exists now, even if another process has created it; -1 with errno.
 */
int wh_private_file_make(int folder, const char *name, const void *bytes, size_t size);

#endif
