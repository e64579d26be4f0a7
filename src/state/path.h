/**
 * @file path.h  Private functions for paths and for the children of a value; see wherry/value.h.
 */
#ifndef WH_STATE_PATH_H
#define WH_STATE_PATH_H

#include <wherry/value.h>

#include "base/text.h"

struct wherry_path {
    wherry_step *steps;
    size_t count;
    /** True if the path owns the keys of its steps. Otherwise they belong to a tree. */
    bool owns_keys;
};

/** Appends the text of a path. */
void wh_path_append(wh_string *text, const wherry_step *steps, size_t count);

/** Appends a scalar in the form that a path contains. Strings and bytes are in quotation marks. */
void wh_scalar_append(wh_string *text, const wherry_value *scalar);

/**
 * Appends bytes in quotation marks, with escapes. @param escape_all  also escape all bytes that are
 * not ASCII.
 */
void wh_quoted_append(wh_string *text, const char *bytes, size_t size, bool escape_all);

/**
 * Adds the path of a value in its tree to an error record that is already filled. error may be
 * NULL.
 */
void wh_fail_value(wherry_error *error, const wherry_value *value);

/** Like wh_fail_value, but the path begins at `root`, which may be inside of a larger tree. */
void wh_fail_value_below(wherry_error *error, const wherry_value *root, const wherry_value *value);

/** Appends the path of a value in its tree. */
void wh_value_path_append(wh_string *text, const wherry_value *value);

/**
 * The number of children of a container; 0 for a leaf. For an object, the number of children of its
 * payload.
 */
size_t wh_child_count(const wherry_value *value);

/**
 * Prefetches a child that comes after child number `index`, if there is one. Children are usually
 * visited in order. Without the prefetch, each of them would be a cache miss. `value` must not be
 * an OBJECT.
 */
void wh_child_ahead(const wherry_value *value, size_t index);

/**
 * Returns child number `index` and the step to it. Calls wh_child_ahead. `value` must not be an
 * OBJECT.
 */
wherry_value *wh_child_at(const wherry_value *value, size_t index, wherry_step *step_p);

#endif
