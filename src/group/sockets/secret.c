#include "group/sockets/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "group/hello.h"

static wherry_status copy(const void *bytes, size_t size, const char *origin, void **secret_p, size_t *size_p,
                          wherry_error *error) {
    if (size == 0 || size > WH_HELLO_SECRET_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%s has %zu bytes; a secret has 1 to %d", origin, size,
                       WH_HELLO_SECRET_MAX);
    }
    void *secret = wh_copy_text(bytes, size);
    if (!secret) {
        return wh_fail_memory(error, "a secret");
    }
    *secret_p = secret;
    *size_p = size;
    return WHERRY_OK;
}

/** Reads what a file has, up to so many bytes. @return how many, or -1 and errno. */
static ssize_t read_all(int fd, char *bytes, size_t most) {
    size_t size = 0;
    ssize_t got = 1;
    while (size < most && got > 0) {
        got = read(fd, bytes + size, most - size);
        size += got > 0 ? (size_t)got : 0;
        got = got < 0 && errno == EINTR ? 1 : got;
    }
    return got < 0 ? -1 : (ssize_t)size;
}

static wherry_status read_file(const char *path, void **secret_p, size_t *size_p, wherry_error *error) {
    /* one that is too long is to be seen as such, with the end of its line */
    char bytes[WH_HELLO_SECRET_MAX + 3];
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open %s, which WHERRY_SECRET_FILE names", path);
    }
    ssize_t size = fstat(fd, &file) == 0 ? read_all(fd, bytes, sizeof(bytes)) : -1;
    int errnum = errno;
    close(fd);
    if (size < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot read %s, which WHERRY_SECRET_FILE names", path);
    }
    if (file.st_mode & (S_IRWXG | S_IRWXO)) {
        wh_log(WHERRY_LOG_WARN,
               "others than its owner have access to %s, which WHERRY_SECRET_FILE names: chmod 600 it, or set "
               "WHERRY_SECRET",
               path);
    }
    if (size > 0 && bytes[size - 1] == '\n') {
        size -= size > 1 && bytes[size - 2] == '\r' ? 2 : 1;
    }
    wherry_status status = copy(bytes, (size_t)size, "the file that WHERRY_SECRET_FILE names", secret_p, size_p, error);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return status;
}

wherry_status wh_secret_find(const void *given, size_t given_size, void **secret_p, size_t *size_p,
                             wherry_error *error) {
    if (given) {
        return copy(given, given_size, "the secret", secret_p, size_p, error);
    }
    const char *secret = getenv("WHERRY_SECRET");
    const char *path = getenv("WHERRY_SECRET_FILE");
    bool has_secret = secret && *secret;
    bool has_path = path && *path;
    if (has_secret && has_path) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "WHERRY_SECRET and WHERRY_SECRET_FILE are both set; unset one");
    }
    if (has_secret) {
        return copy(secret, strlen(secret), "WHERRY_SECRET", secret_p, size_p, error);
    }
    *secret_p = NULL;
    *size_p = 0;
    return has_path ? read_file(path, secret_p, size_p, error) : WHERRY_OK;
}
