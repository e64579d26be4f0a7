/**
 * @file cargo.h  Files as a state, so that they can be sent: what `serve` offers, and `fetch` takes.
 *
 *     {"cargo": 1, "bytes": {NAME: the file, byte for byte, ...}, "states": {NAME: what it holds, ...}}
 *
 * A receiver asks for what it wants of that: the bytes of a file, or tensors of its state; the others never move. Of sharded files the
 * index has a state, with all tensors, and each shard is a file without one.
 */
#ifndef WH_CLI_CARGO_H
#define WH_CLI_CARGO_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/file.h>
#include <wherry/value.h>

/** Starts as {0}. */
typedef struct wh_cargo {
    wherry_value *bytes_only;  /**< All of it without the states, */
    wherry_value *states_only; /**< and without the bytes. */
    wherry_file **files;       /**< Open: each twice where it has a state, as bytes too. */
    size_t count;
    size_t names; /**< Files that are offered. */
    uint64_t bytes;
    uint64_t tensors;
} wh_cargo;

/**
 * Opens checkpoint files; no bytes of tensors are read.
 * @param paths  their names, without folders, differ.
 * @return what wherry_file_open does; WHERRY_INVALID_ARGUMENT for the same name twice.
 */
wherry_status wh_cargo_open(wh_cargo *cargo, char *const *paths, size_t count, wherry_error *error);

/** Looks whether the files are still what they were: what wherry_file_check does. */
wherry_status wh_cargo_check(const wh_cargo *cargo, wherry_error *error);

void wh_cargo_close(wh_cargo *cargo);

/** The bytes, or the states, of a state of that form, borrowed: a dict by name; NULL where it has another form. */
const wherry_value *wh_cargo_part(const wherry_value *state, const char *part);

/** The name of a file in one of these, borrowed; NULL where that is none for a file: empty, with a slash, "." or "..". */
const char *wh_cargo_name(const wherry_value *part, size_t index);

/** Makes such a state of two dicts, which it takes over in any case; NULL is an empty one. */
wherry_status wh_cargo_wrap(wherry_value *bytes, wherry_value *states, wherry_value **state_p, wherry_error *error);

/** Puts an item into a dict, and destroys it where that fails. */
wherry_status wh_cargo_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error);

#endif
