/**
 * @file file_set.h  Checkpoint files as one state: what `wherry serve` sends to `wherry fetch`.
 *
 *     {"cargo": 1, "bytes": {NAME: the file, ...}, "states": {NAME: its tensors and values, ...}}
 *
 * A client asks for either part, and receives only what its target has room for. An index of
 * sharded files has a state with all tensors; its shards are files without a state. "cargo" is the
 * version of this layout.
 */
#ifndef WH_CLI_FILE_SET_H
#define WH_CLI_FILE_SET_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/file.h>
#include <wherry/value.h>

/** Starts as {0}. */
typedef struct wh_file_set {
    wherry_value *bytes;  /**< The layout above with "bytes" only, */
    wherry_value *states; /**< and with "states" only. */
    wherry_file **open;   /**< A file that has a state is open twice. */
    size_t open_count;
    size_t files;
    uint64_t file_bytes;
    uint64_t tensors;
} wh_file_set;

/**
 * Opens checkpoint files. Does not read tensors.
 * @param paths  their names without folders must differ.
 * @return as wherry_file_open; WHERRY_INVALID_ARGUMENT if two have the same name.
 */
wherry_status wh_file_set_open(wh_file_set *set, char *const *paths, size_t count, wherry_error *error);

/** Checks that no file has changed: as wherry_file_check. */
wherry_status wh_file_set_check(const wh_file_set *set, wherry_error *error);

void wh_file_set_close(wh_file_set *set);

/** @return the dict "bytes" or "states" of a state, borrowed; NULL if it has another layout. */
const wherry_value *wh_file_set_part(const wherry_value *state, const char *part);

/** @return a file name in such a dict, borrowed; NULL if unsafe: "", with a slash, "." or "..". */
const char *wh_file_set_name(const wherry_value *part, size_t index);

/** Builds a state with this layout. Always takes ownership of both dicts; NULL: an empty one. */
wherry_status wh_file_set_wrap(wherry_value *bytes, wherry_value *states, wherry_value **state_p, wherry_error *error);

/** Adds an item to a dict. Always takes ownership of the item. */
wherry_status wh_dict_give(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error);

#endif
