/**
 * @file file_set.h  Checkpoint files combined into one state. `wherry serve` sends this state to
 * `wherry fetch`.
 *
 *     {"cargo": 1, "bytes": {NAME: the file, ...}, "states": {NAME: its tensors and values, ...}}
 *
 * A client requests one of the two parts, and receives only what its target contains. The index of
 * a sharded checkpoint has a state with all tensors; its shards are in "bytes" only. "cargo" is the
 * version of this layout.
 */
#ifndef WH_CLI_FILE_SET_H
#define WH_CLI_FILE_SET_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/file.h>
#include <wherry/value.h>

#include "tensors.h"

/** The files that a server offers. Initialize it with {.digesting = PTHREAD_MUTEX_INITIALIZER}. */
typedef struct wh_file_set {
    wherry_value *bytes;  /**< The state that clients get, with only its member "bytes". */
    wherry_value *states; /**< The state that clients get, with only its member "states". */
    wherry_file **open;   /**< The open files. A file that has a state is open twice. */
    size_t open_count;
    size_t files;
    uint64_t file_bytes;
    uint64_t tensors;
    pthread_mutex_t digesting;
    char digest[WH_HEX_MAX]; /**< Digest of all names, sizes and bytes; "" if unknown. */
} wh_file_set;

/**
 * Opens checkpoint files. Does not read tensors.
 * @param paths  the files. Their names, without folders, must be different.
 * @return the statuses of wherry_file_open; WHERRY_INVALID_ARGUMENT if two files have the same
 * name.
 */
wherry_status wh_file_set_open(wh_file_set *set, char *const *paths, size_t count, wherry_error *error);

/**
 * From now on, reading bytes that a file has lost gives zeros instead of the signal SIGBUS, and
 * wh_file_set_check fails. Only one set of a process can be guarded.
 */
void wh_file_set_guard(const wh_file_set *set);

/**
 * Checks that no file has changed. Same statuses as wherry_file_check, and WHERRY_SYSTEM if the
 * guard has replaced bytes.
 */
wherry_status wh_file_set_check(const wh_file_set *set, wherry_error *error);

/**
 * Computes `digest` if it is unknown. Several threads may call this at the same time.
 * @param busy  called about every second while the digest is computed, by any thread.
 */
wherry_status wh_file_set_digest(wh_file_set *set, void (*busy)(void *context), void *context, wherry_error *error);

/**
 * The step with which files are sent and received if there are several servers, so that the library
 * checks once more that they send the same files.
 */
int64_t wh_file_set_step(const char *digest);

void wh_file_set_close(wh_file_set *set);

/** Returns the dict "bytes" or "states", borrowed; NULL if the state does not have this layout. */
const wherry_value *wh_file_set_part(const wherry_value *state, const char *part);

/**
 * Gets a file name from a dict that wh_file_set_part returned. @return the name, borrowed; NULL if
 * it is not safe: not a string, empty, ".", "..", or with a slash or a zero byte.
 */
const char *wh_file_set_name(const wherry_value *part, size_t index);

/**
 * Builds a state with this layout, whose other part is empty. Always takes ownership of the files.
 * @param part  "bytes" or "states".
 */
wherry_status wh_file_set_wrap(const char *part, wherry_value *files, wherry_value **state_p, wherry_error *error);

/** Adds an item to a dict. Takes ownership of the item, even on failure. */
wherry_status wh_dict_give(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error);

#endif
