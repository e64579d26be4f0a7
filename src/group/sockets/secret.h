/** @file secret.h  The secret that all members of a group know, and where it comes from. */
#ifndef WH_GROUP_SOCKETS_SECRET_H
#define WH_GROUP_SOCKETS_SECRET_H

#include <stddef.h>

#include <wherry/base.h>

/**
 * Copies the secret: the one that is given, else WHERRY_SECRET itself, else what the file
 * WHERRY_SECRET_FILE contains, without the end of its last line; a variable that is empty counts as
 * not set. A file that others can read is used, with a warning.
 * @param secret_p  belongs to the caller, who wipes and releases it; NULL where there is none,
 * which is a success.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where it is empty or too long, or both variables are
 * set; WHERRY_SYSTEM where the file cannot be read; WHERRY_NO_MEMORY.
 */
wherry_status wh_secret_find(const void *given, size_t given_size, void **secret_p, size_t *size_p,
                             wherry_error *error);

#endif
