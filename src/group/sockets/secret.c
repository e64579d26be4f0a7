#include "group/sockets/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/error.h"
#include "base/log.h"
#include "base/private_file.h"
#include "base/process.h"

wherry_status wh_secret_take(const void *secret, size_t size, const char *origin, wh_secrets *secrets,
                             wherry_error *error) {
    if (size < WH_SECRET_MIN || size > WH_SECRET_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "%s has %zu bytes; a secret has %d to %d, and must be hard to guess: `openssl rand -hex 32` "
                       "makes one",
                       origin, size, WH_SECRET_MIN, WH_SECRET_MAX);
    }
    if (secrets->count == WH_SECRETS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%s has more than %d secrets, one per line; remove the oldest",
                       origin, WH_SECRETS_MAX);
    }
    return wh_group_key_derive(secret, size, secrets->keys + secrets->count++, error);
}

/** Takes the secret of each line. Empty lines do not count. */
static wherry_status take_lines(const char *bytes, size_t size, wh_secrets *secrets, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t at = 0; at < size && status == WHERRY_OK;) {
        const char *end = memchr(bytes + at, '\n', size - at);
        size_t line = end ? (size_t)(end - bytes) - at : size - at;
        size_t length = line > 0 && bytes[at + line - 1] == '\r' ? line - 1 : line;
        if (length) {
            status = wh_secret_take(bytes + at, length, "the file that WHERRY_SECRET_FILE names", secrets, error);
        }
        at += line + 1;
    }
    return status != WHERRY_OK || secrets->count
               ? status
               : wh_fail(error, WHERRY_INVALID_ARGUMENT,
                         "the file that WHERRY_SECRET_FILE names is empty; `openssl rand -hex 32` makes a secret");
}

wherry_status wh_secrets_read(const char *path, wh_secrets *secrets_p, wherry_error *error) {
    /* There is room for a text that is too long, so that this is noticed. */
    char bytes[WH_SECRETS_MAX * (WH_SECRET_MAX + 2) + 1];
    struct stat file;
    wh_secrets secrets = {.count = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open %s, which WHERRY_SECRET_FILE names", path);
    }
    ssize_t size = fstat(fd, &file) == 0 ? wh_read_all(fd, bytes, sizeof(bytes)) : -1;
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
    wherry_status status = take_lines(bytes, (size_t)size, &secrets, error);
    if (status == WHERRY_OK) {
        *secrets_p = secrets;
    }
    OPENSSL_cleanse(bytes, sizeof(bytes));
    OPENSSL_cleanse(&secrets, sizeof(secrets));
    return status;
}

wherry_status wh_secrets_find(const void *given, size_t given_size, wh_secrets *secrets_p, const char **path_p,
                              wherry_error *error) {
    const char *secret = getenv("WHERRY_SECRET");
    const char *path = getenv("WHERRY_SECRET_FILE");
    bool has_secret = secret && *secret;
    bool has_path = path && *path;
    *secrets_p = (wh_secrets){.count = 0};
    *path_p = NULL;
    if (given) {
        return wh_secret_take(given, given_size, "the secret", secrets_p, error);
    }
    if (has_secret && has_path) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "WHERRY_SECRET and WHERRY_SECRET_FILE are both set; unset one");
    }
    if (has_secret) {
        return wh_secret_take(secret, strlen(secret), "WHERRY_SECRET", secrets_p, error);
    }
    *path_p = has_path ? path : NULL;
    return has_path ? wh_secrets_read(path, secrets_p, error) : WHERRY_OK;
}

/* ---- the key of the user ---- */

enum { PASSWD_BYTES = 16 << 10 };

/** Opens a folder that only this user may use. Creates it if needed. @return -1 on failure. */
static int open_folder(const char *path, wherry_error *error) {
    struct stat folder;
    bool made = mkdir(path, S_IRWXU) == 0;
    int fd = made || errno == EEXIST ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd < 0) {
        wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open the folder %s", path);
        return -1;
    }
    if (fstat(fd, &folder) != 0 || folder.st_uid != geteuid() || (folder.st_mode & (S_IRWXG | S_IRWXO))) {
        wh_fail(error, WHERRY_SYSTEM, "the folder %s belongs to another user, or others may use it", path);
        close(fd);
        return -1;
    }
    return fd;
}

/** Reads the key. @return false with errno ENOENT if there is none. */
static bool read_key(int folder, uint8_t key[WH_KEY_BYTES]) {
    ssize_t size = wh_private_file_read(folder, "key", O_NOFOLLOW, key, WH_KEY_BYTES);
    errno = size < 0 ? errno : EPERM;
    return size == WH_KEY_BYTES;
}

/** Creates a key, unless another process was faster. */
static bool make_key(int folder) {
    uint8_t bytes[WH_KEY_BYTES];
    bool made = wh_random_fill(bytes, sizeof(bytes), NULL) == WHERRY_OK &&
                wh_private_file_make(folder, "key", bytes, sizeof(bytes)) == 0;
    int errnum = errno;
    OPENSSL_cleanse(bytes, sizeof(bytes));
    errno = errnum;
    return made;
}

wherry_status wh_key_read(const char *path, uint8_t key[WH_KEY_BYTES], wherry_error *error) {
    int folder = open_folder(path, error);
    if (folder < 0) {
        return WHERRY_SYSTEM;
    }
    bool found = read_key(folder, key) || (errno == ENOENT && make_key(folder) && read_key(folder, key));
    int errnum = errno;
    close(folder);
    return found ? WHERRY_OK : wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot read or make the key %s/key", path);
}

wherry_status wh_key_find(uint8_t key[WH_KEY_BYTES], wherry_error *error) {
    char path[4096];
    char room[PASSWD_BYTES];
    struct passwd entry;
    struct passwd *user = NULL;
    struct stat home;
    /* Do not use $HOME, because sudo and service managers set it differently for one user. */
    bool known = getpwuid_r(geteuid(), &entry, room, sizeof(room), &user) == 0 && user && *user->pw_dir == '/' &&
                 stat(user->pw_dir, &home) == 0 && home.st_uid == geteuid();
    wherry_status status = WHERRY_SYSTEM;
    if (known) {
        snprintf(path, sizeof(path), "%s/.wherry", user->pw_dir);
        status = wh_key_read(path, key, error);
    }
    if (status != WHERRY_OK && (!known || access(user->pw_dir, W_OK) != 0)) {
        snprintf(path, sizeof(path), "/tmp/wherry-%u", (unsigned)geteuid());
        status = wh_key_read(path, key, error);
    }
    if (status != WHERRY_OK && error) {
        char why[sizeof(error->message)];
        snprintf(why, sizeof(why), "%s", error->message);
        wh_fail(error, WHERRY_SYSTEM, "no key for the processes of this user, so set WHERRY_SECRET on all ranks: %s",
                why);
    }
    return status;
}
