#include "file/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "file/file_fail.h"

wherry_status wh_mapping_adopt(const char *path, int fd, uint64_t size, wh_mapping **mapping_p, wherry_error *error) {
    wh_mapping *mapping = wh_alloc_zeroed(1, sizeof(*mapping));
    char *copy = wh_copy_text(path, strlen(path));
    if (!mapping || !copy) {
        wh_free(mapping);
        wh_free(copy);
        return wh_fail_memory(error, "a file");
    }
    *mapping = (wh_mapping){.references = 1, .path = copy, .fd = fd, .size = size};
    *mapping_p = mapping;
    return WHERRY_OK;
}

wherry_status wh_mapping_open(const char *path, wh_mapping **mapping_p, wherry_error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe must not be waited for */
    if (fd < 0) {
        return wh_file_fail_errno(error, errno, path, "cannot be opened");
    }
    struct stat info;
    wherry_status status;
    if (fstat(fd, &info) != 0) {
        status = wh_file_fail_errno(error, errno, path, "cannot be looked at");
    } else if (!S_ISREG(info.st_mode)) {
        status = wh_file_fail_errno(error, S_ISDIR(info.st_mode) ? EISDIR : EINVAL, path, "is no plain file");
    } else {
        status = wh_mapping_adopt(path, fd, (uint64_t)info.st_size, mapping_p, error);
    }
    if (status != WHERRY_OK) {
        close(fd);
        return status;
    }
    (*mapping_p)->written = info.st_mtim;
    return WHERRY_OK;
}

wherry_status wh_mapping_map(wh_mapping *mapping, wh_access access, wherry_error *error) {
    if (mapping->size == 0) {
        return WHERRY_OK;
    }
    int protection = access == WH_ACCESS_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = access == WH_ACCESS_PRIVATE ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void *base = mapping->size <= SIZE_MAX ? mmap(NULL, mapping->size, protection, flags, mapping->fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        return wh_file_fail_errno(error, errno, mapping->path, "cannot be mapped");
    }
    mapping->base = base;
    return WHERRY_OK;
}

wherry_status wh_mapping_read(const wh_mapping *mapping, uint64_t offset, void *bytes, size_t size,
                              wherry_error *error) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(mapping->fd, (char *)bytes + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return wh_file_fail_errno(error, errno, mapping->path, "cannot be read");
        }
        if (got == 0) {
            return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, offset + done),
                                "ends at byte %llu, within its header; get it anew", (unsigned long long)offset + done);
        }
        done += (size_t)got;
    }
    return WHERRY_OK;
}

wherry_status wh_mapping_copy(const wh_mapping *mapping, uint64_t offset, size_t size, char **bytes_p,
                              wherry_error *error) {
    char *bytes = wh_alloc(size + 1);
    if (!bytes) {
        return wh_fail_memory(error, "the header of a file");
    }
    wherry_status status = wh_mapping_read(mapping, offset, bytes, size, error);
    if (status != WHERRY_OK) {
        wh_free(bytes);
        return status;
    }
    bytes[size] = '\0';
    *bytes_p = bytes;
    return WHERRY_OK;
}

static void release(void *context, void *data) {
    (void)data;
    wh_mapping_unref(context);
}

wherry_status wh_mapping_wrap(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_storage **storage_p,
                              wherry_error *error) {
    if (nbytes == 0) {
        return wherry_storage_describe(0, wherry_device_cpu(), storage_p, error);
    }
    wherry_status status =
        wherry_storage_wrap(mapping->base + offset, nbytes, wherry_device_cpu(), release, mapping, storage_p, error);
    if (status == WHERRY_OK) {
        atomic_fetch_add_explicit(&mapping->references, 1, memory_order_relaxed);
    }
    return status;
}

wherry_status wh_mapping_check(const wh_mapping *mapping, wherry_error *error) {
    struct stat info;
    if (fstat(mapping->fd, &info) != 0) {
        return wh_file_fail_errno(error, errno, mapping->path, "cannot be looked at");
    }
    if ((uint64_t)info.st_size < mapping->size) {
        return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, (uint64_t)info.st_size),
                            "had %llu bytes when it was opened and has %llu; do not use what was opened",
                            (unsigned long long)mapping->size, (unsigned long long)info.st_size);
    }
    if ((uint64_t)info.st_size > mapping->size || info.st_mtim.tv_sec != mapping->written.tv_sec ||
        info.st_mtim.tv_nsec != mapping->written.tv_nsec) {
        return wh_file_fail(error, WHERRY_CORRUPT, wh_spot_file(mapping->path),
                            "was written since it was opened; open it again when nobody writes it");
    }
    return WHERRY_OK;
}

void wh_mapping_unref(wh_mapping *mapping) {
    if (!mapping || atomic_fetch_sub_explicit(&mapping->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (mapping->base) {
        munmap(mapping->base, mapping->size);
    }
    close(mapping->fd);
    wh_free(mapping->path);
    wh_free(mapping);
}
