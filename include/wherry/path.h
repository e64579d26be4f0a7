/**
 * @file wherry/path.h  Paths: where in a tree a value is.
 *
 * A path is a list of steps from the root. As text: `layers[3].attn["q.weight"]`, `optimizer.state{0}.exp_avg`.
 *
 *     .name       a string key that is a C identifier (the first step is written without the dot)
 *     ["text"]    any other string key; escapes: \" \\ \n \r \t \xHH
 *     [3]         an item of a list or a tuple
 *     {7}         a dict key of another kind: {none} {true} {-12} {0x1ffffffffffffffff} {1.5} {-inf}
 *                 {nan:7ff8000000000001} {c(1.0,-0.0)} {b"bytes"}
 *
 * The empty text is the root. Objects have no step of their own. The same path always gives the same text, and the text
 * gives the same path back.
 *
 * No function here blocks. Paths are never changed: any thread. All since 0.1.
 */
#ifndef WHERRY_PATH_H
#define WHERRY_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A path. Opaque. */
typedef struct wherry_path wherry_path;

/** One step: into a dict by a key, or into a list or tuple by a number. */
typedef struct wherry_step {
    const wherry_value *key; /**< The key, a scalar; NULL where the step is by number. */
    uint64_t index;          /**< The number, where key is NULL. */
} wherry_step;

/** The most steps that a path may have. */
#define WHERRY_PATH_STEPS_MAX WHERRY_DEPTH_MAX

/**
 * Makes a path.
 * @param steps   borrowed; the keys are copied. May be NULL where count is 0.
 * @param path_p  belongs to the caller: wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a key is not a scalar or there are too many steps.
 */
WHERRY_API wherry_status wherry_path_create(const wherry_step *steps, size_t count, wherry_path **path_p,
                                            wherry_error *error);

/**
 * Reads the text of a path.
 * @param text    borrowed, need not be zero-terminated.
 * @param path_p  belongs to the caller: wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_BAD_PATH, where error->offset tells at which byte.
 */
WHERRY_API wherry_status wherry_path_parse(const char *text, size_t size, wherry_path **path_p, wherry_error *error);

/**
 * Writes the text of a path.
 * @param text_p  zero-terminated; release with wherry_free.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_path_format(const wherry_path *path, char **text_p, wherry_error *error);

/** Destroys a path that its creator owns. path may be NULL. */
WHERRY_API void wherry_path_destroy(wherry_path *path);

/** The number of steps. */
WHERRY_API size_t wherry_path_count(const wherry_path *path);

/** A step, borrowed; NULL where there is none of that number. */
WHERRY_API const wherry_step *wherry_path_at(const wherry_path *path, size_t index);

/** Whether two paths have the same steps. */
WHERRY_API bool wherry_path_equal(const wherry_path *one, const wherry_path *other);

/** The value at a path below root, borrowed; NULL where there is none. An object is passed through to its payload. */
WHERRY_API wherry_value *wherry_value_at(const wherry_value *root, const wherry_path *path);

/**
 * The value at a path given as text.
 * @param text     zero-terminated.
 * @param value_p  borrowed from the tree.
 * @return WHERRY_OK; WHERRY_NOT_FOUND; WHERRY_BAD_PATH; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_find(const wherry_value *root, const char *text, wherry_value **value_p,
                                           wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
