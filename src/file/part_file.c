#include "file/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/file_fail.h"

/** Tries to open and lock a part that others finish meanwhile. */
enum { TRIES = 100 };

/** Bytes that one call writes. */
enum { WRITE_MAX = 1 << 30 };

/** Whether the open file still has that name: a process that was faster may have moved it into place. */
static bool has_name(const char *path, const struct stat *info) {
    struct stat named;
    return lstat(path, &named) == 0 && named.st_dev == info->st_dev && named.st_ino == info->st_ino;
}

/** @return 1: open and locked; 0: try again; -1: failed. */
static int try_open(const char *part, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_status *status_p,
                    wherry_error *error) {
    struct stat info;
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, (mode_t)mode);
    if (fd < 0) {
        *status_p = wh_file_fail_errno(error, errno, part, "cannot be made");
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        *status_p =
            errno == EWOULDBLOCK
                ? wh_file_fail(error, WHERRY_REFUSED, wh_spot_file(part),
                               "another process, or another writer of this one, is writing it; wait for it to end")
                : wh_file_fail_errno(error, errno, part, "cannot be locked");
    } else if (fstat(fd, &info) != 0) {
        *status_p = wh_file_fail_errno(error, errno, part, "cannot be looked at");
    } else if (!S_ISREG(info.st_mode)) {
        *status_p = wh_file_fail_errno(error, EEXIST, part, "is in the way, and no plain file");
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

wherry_status wh_part_open(const char *part, uint32_t mode, int *fd_p, uint64_t *size_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    int result = 0;
    for (int i = 0; i < TRIES && result == 0; i++) {
        result = try_open(part, mode, fd_p, size_p, &status, error);
    }
    if (result == 0) {
        status = wh_file_fail(error, WHERRY_REFUSED, wh_spot_file(part), "other processes keep writing it");
    }
    return result > 0 ? WHERRY_OK : status;
}

void wh_part_unlock(int fd) {
    flock(fd, LOCK_UN);
}

/** Room on the disk. File systems that cannot promise it are taken as they are. */
static int reserve(int fd, uint64_t offset, uint64_t size) {
    int result = 0;
    while (size > 0 && (result = fallocate(fd, 0, (off_t)offset, (off_t)size)) != 0 && errno == EINTR) {
    }
    return result == 0 || errno == EOPNOTSUPP ? 0 : -1;
}

/**
 * Reserves what lies before the first range, which is the header, and the ranges. Those that follow each other closely are reserved at once: a call for each
 * small tensor would take longer than writing it.
 */
static int reserve_ranges(const wh_place *ranges, size_t count, size_t file, int fd, uint64_t size) {
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

wherry_status wh_part_clear(const wh_layout_file *file, int fd, wherry_error *error) {
    if (file->size > INT64_MAX || ftruncate(fd, 0) != 0 || ftruncate(fd, (off_t)file->size) != 0) {
        return wh_file_fail_errno(error, file->size > INT64_MAX ? EFBIG : errno, file->path,
                                  "cannot be made that large");
    }
    return WHERRY_OK;
}

wherry_status wh_part_reserve(const wh_layout *layout, size_t file, int fd, wherry_error *error) {
    const wh_layout_file *about = layout->files + file;
    const wh_place *ranges = layout->covered ? layout->covered : layout->places;
    size_t count = layout->covered ? layout->covered_count : layout->place_count;
    if (reserve_ranges(ranges, count, file, fd, about->size) != 0) {
        return wh_file_fail_errno(error, errno, about->path, "there is no room for it");
    }
    return WHERRY_OK;
}

wherry_status wh_part_write(const char *path, int fd, uint64_t offset, const void *bytes, uint64_t size,
                            wherry_error *error) {
    uint64_t done = 0;
    while (done < size) {
        uint64_t most = size - done < WRITE_MAX ? size - done : WRITE_MAX;
        ssize_t put = pwrite(fd, (const char *)bytes + done, (size_t)most, (off_t)(offset + done));
        if (put < 0 && errno != EINTR) {
            return wh_file_fail_errno(error, errno, path, "cannot be written");
        }
        done += put > 0 ? (uint64_t)put : 0;
    }
    return WHERRY_OK;
}

wherry_status wh_part_move(const wh_layout_file *file, wherry_error *error) {
    return rename(file->part, file->path) == 0
               ? WHERRY_OK
               : wh_file_fail_errno(error, errno, file->path, "cannot be moved into place");
}

wherry_status wh_part_sync_folder(const char *folder, wherry_error *error) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    wherry_status status = WHERRY_OK;
    if (fd < 0 || fsync(fd) != 0) {
        status = wh_file_fail_errno(error, errno, folder, "cannot be brought to the disk");
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}
