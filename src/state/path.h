/** @file path.h  The private side of paths, and the children of a value; see wherry/value.h. */
#ifndef WH_STATE_PATH_H
#define WH_STATE_PATH_H

#include <wherry/value.h>

#include "base/text.h"

struct wherry_path {
    wherry_step *steps;
    size_t count;
    bool owns_keys; /**< Otherwise they are borrowed from a tree. */
};

/** A step and the steps above it, as a recursive walk has them on its stack. */
typedef struct wh_trail {
    const struct wh_trail *above; /**< NULL at the first step. */
    wherry_step step;
} wh_trail;

/** Appends the text of a path. */
void wh_path_append(wh_string *text, const wherry_step *steps, size_t count);

/** Appends a scalar as it is written between the braces of a path. */
void wh_scalar_append(wh_string *text, const wherry_value *scalar);

/**
 * Appends bytes in quotation marks, with escapes. @param escape_all  escape all bytes that are not
 * ASCII, too.
 */
void wh_quoted_append(wh_string *text, const char *bytes, size_t size, bool escape_all);

/** Appends the path of a trail; NULL is the root. */
void wh_trail_append(wh_string *text, const wh_trail *trail);

/** Adds the path of a trail to an error that was filled before. error may be NULL. */
void wh_fail_trail(wherry_error *error, const wh_trail *trail);

/** Adds the path of a value in its tree to an error that was filled before. error may be NULL. */
void wh_fail_value(wherry_error *error, const wherry_value *value);

/** Appends the path of a value in its tree. */
void wh_value_path_append(wh_string *text, const wherry_value *value);

/** The number of children of a container, also through objects; 0 for a leaf. */
size_t wh_child_count(const wherry_value *value);

/**
 * Prefetches a child behind this one. Children are mostly visited in order, and each is a cache
 * miss.
 */
void wh_child_ahead(const wherry_value *value, size_t index);

/** A child and the step to it. Calls wh_child_ahead. `value` is a result of wh_value_inside. */
wherry_value *wh_child_at(const wherry_value *value, size_t index, wherry_step *step_p);

#endif
