#include "base/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"

ssize_t wh_read_all(int fd, void *bytes, size_t most) {
    size_t size = 0;
    ssize_t got = 1;
    while (size < most && got > 0) {
        got = read(fd, (char *)bytes + size, most - size);
        size += got > 0 ? (size_t)got : 0;
        got = got < 0 && errno == EINTR ? 1 : got;
    }
    return got < 0 ? -1 : (ssize_t)size;
}

ssize_t wh_private_file_read(int folder, const char *name, int flags, void *bytes, size_t most) {
    struct stat file;
    int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
    if (fd < 0) {
        return -1;
    }
    ssize_t size = -1;
    if (fstat(fd, &file) == 0) {
        bool ours = S_ISREG(file.st_mode) && file.st_uid == geteuid() && !(file.st_mode & (S_IRWXG | S_IRWXO));
        errno = !ours ? EPERM : EFBIG;
        size = ours && (uint64_t)file.st_size <= most ? wh_read_all(fd, bytes, most) : -1;
    }
    int errnum = errno;
    close(fd);
    errno = errnum;
    return size;
}

/** A name beside `name` that no other process uses. @return false with errno. */
static bool choose_name(const char *name, char temporary[PATH_MAX]) {
    uint64_t number = 0;
    if (wh_random_fill(&number, sizeof(number), NULL) != WHERRY_OK) {
        errno = EIO;
        return false;
    }
    int length = snprintf(temporary, PATH_MAX, "%s.%llx", name, (unsigned long long)number);
    errno = ENAMETOOLONG;
    return length > 0 && length < PATH_MAX;
}

int wh_private_file_make(int folder, const char *name, const void *bytes, size_t size) {
    char temporary[PATH_MAX];
    if (!choose_name(name, temporary)) {
        return -1;
    }
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    bool made = fd >= 0 && write(fd, bytes, size) == (ssize_t)size && fsync(fd) == 0 &&
                (linkat(folder, temporary, folder, name, 0) == 0 || errno == EEXIST);
    int errnum = errno;
    if (fd >= 0) {
        close(fd);
        unlinkat(folder, temporary, 0);
    }
    errno = errnum;
    return made ? 0 : -1;
}
