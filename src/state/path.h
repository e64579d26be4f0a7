/** @file path.h  Private side of paths; see wherry/value.h. */
#ifndef WH_STATE_PATH_H
#define WH_STATE_PATH_H

#include <wherry/value.h>

#include "base/text.h"

struct wherry_path {
    wherry_step *steps;
    size_t count;
    bool owns_keys; /**< Else they are borrowed from a tree. */
};

/** A chain of steps from a value up to the root, as a walk down a tree has it on its stack. */
typedef struct wh_trail {
    const struct wh_trail *above; /**< NULL at the first step. */
    wherry_step step;
} wh_trail;

/** Appends the text of a path. */
void wh_path_append(wh_string *text, const wherry_step *steps, size_t count);

/** Appends a scalar as it stands in a path's braces. */
void wh_scalar_append(wh_string *text, const wherry_value *scalar);

/** Appends bytes between quotation marks, with escapes; what is not ASCII stays where it is UTF-8, and is escaped in bytes. */
void wh_quoted_append(wh_string *text, const char *bytes, size_t size, bool escape_all);

/** Appends the text of the path that a trail is; NULL is the root. */
void wh_trail_append(wh_string *text, const wh_trail *trail);

/** Adds a trail's path to an error record that is filled; NULL for error is allowed. */
void wh_fail_trail(wherry_error *error, const wh_trail *trail);

/** Adds the path of a value within its tree to an error record that is filled, climbing from parent to parent. */
void wh_fail_value(wherry_error *error, const wherry_value *value);

/** Appends the path of a value within its tree. */
void wh_value_path_append(wh_string *text, const wherry_value *value);

/** The number of children that a container or object leads to by a step; 0 for a leaf. Objects are passed through. */
size_t wh_child_count(const wherry_value *value);

/** Asks for the memory of a child further on than this one: children are mostly visited in order, and each lies somewhere else. */
void wh_child_ahead(const wherry_value *value, size_t index);

/** A child, and the step that leads to it; wh_child_ahead is done. The value is one that wh_value_inside has given. */
wherry_value *wh_child_at(const wherry_value *value, size_t index, wherry_step *step_p);

#endif
