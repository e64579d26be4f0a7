/** @file secret.h  The secret that all members of a group know, and where it comes from. */
#ifndef WH_GROUP_SOCKETS_SECRET_H
#define WH_GROUP_SOCKETS_SECRET_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "group/key.h"

enum {
    WH_SECRET_MIN = 16, /**< Size of a secret. A shorter one can be found by trying. */
    WH_SECRET_MAX = 4096,
    WH_SECRETS_MAX = 2, /**< Maximum number of secrets that are accepted at the same time. */
};

/** Secrets as keys, the preferred one first. Wipe them with OPENSSL_cleanse. */
typedef struct wh_secrets {
    wh_group_key keys[WH_SECRETS_MAX];
    size_t count; /**< 0: there is no secret. */
} wh_secrets;

/**
 * Finds the secret: the given one; otherwise WHERRY_SECRET; otherwise the file that
 * WHERRY_SECRET_FILE names. An empty variable counts as unset. It is no error if there is none.
 * @param path_p  receives the path of the file, which belongs to the environment; NULL if the
 * secret comes from elsewhere.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if both variables are set; as wh_secrets_read and
 * wh_secret_take.
 */
wherry_status wh_secrets_find(const void *given, size_t given_size, wh_secrets *secrets_p, const char **path_p,
                              wherry_error *error);

/**
 * Takes one secret. @param origin the source of the secret, for errors. @return WHERRY_OK;
 * WHERRY_INVALID_ARGUMENT.
 */
wherry_status wh_secret_take(const void *secret, size_t size, const char *origin, wh_secrets *secrets,
                             wherry_error *error);

/**
 * Reads a file with one secret per line, the preferred one first. If others can read the file, it
 * is used with a warning.
 * @return WHERRY_OK; WHERRY_SYSTEM if the file cannot be read; WHERRY_INVALID_ARGUMENT if it has no
 * secret, too many, or one that is too short or too long.
 */
wherry_status wh_secrets_read(const char *path, wh_secrets *secrets_p, wherry_error *error);

/**
 * Finds the key of this user, which protects groups without a secret. Creates it if there is none:
 * 32 random bytes in .wherry/key in the home folder of the user database, or in /tmp/wherry-UID/key
 * if that folder belongs to another user or cannot be written. The environment has no influence, so
 * all processes of a user find the same key.
 * @return WHERRY_OK; WHERRY_SYSTEM, with an error that says to set WHERRY_SECRET.
 */
wherry_status wh_key_find(uint8_t key[WH_KEY_BYTES], wherry_error *error);

/**
 * Reads the key in a folder. Creates the folder and the key if needed. Only this user may have
 * access to them.
 */
wherry_status wh_key_read(const char *path, uint8_t key[WH_KEY_BYTES], wherry_error *error);

#endif
