#include <string.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"
#include "state/path.h"
#include "state/rebuild.h"
#include "state/value.h"

/** A leaf: its path's steps are path.count of them from `first` on. */
typedef struct leaf {
    const wherry_value *value;
    wherry_path path;
    size_t first;
} leaf;

struct wherry_flat {
    const wherry_value *state;
    leaf *leaves;
    size_t count;
    size_t capacity;
    wherry_step *steps; /**< Of all leaves, end to end; the keys are the tree's. */
    size_t step_count;
    size_t step_capacity;
};

static bool add_leaf(wherry_flat *flat, const wherry_value *value, const wh_trail *trail) {
    if (!WH_GROW(flat->leaves, flat->capacity, flat->count)) {
        return false;
    }
    leaf *added = flat->leaves + flat->count;
    *added = (leaf){value, {NULL, 0, false}, flat->step_count};
    for (const wh_trail *at = trail; at; at = at->above) {
        added->path.count++;
    }
    if (!WH_GROW(flat->steps, flat->step_capacity, flat->step_count + added->path.count)) {
        return false;
    }
    flat->step_count += added->path.count;
    size_t behind = flat->step_count;
    for (const wh_trail *at = trail; at; at = at->above) {
        flat->steps[--behind] = at->step;
    }
    flat->count++;
    return true;
}

static bool walk(wherry_flat *flat, const wherry_value *value, const wh_trail *above) {
    const wherry_value *inside = wh_value_inside(value);
    size_t count = wh_child_count(inside);
    if (count == 0) {
        return add_leaf(flat, inside, above);
    }
    for (size_t i = 0; i < count; i++) {
        wh_trail trail = {.above = above};
        const wherry_value *child = wh_child_at(inside, i, &trail.step);
        if (!walk(flat, child, &trail)) {
            return false;
        }
    }
    return true;
}

wherry_status wherry_flatten(const wherry_value *state, wherry_flat **flat_p, wherry_error *error) {
    if (!state || !flat_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "state and flat_p must not be NULL");
    }
    wherry_flat *flat = wh_alloc_zeroed(1, sizeof(*flat));
    if (!flat) {
        return wh_fail_memory(error, "the leaves of a state");
    }
    flat->state = state;
    if (!walk(flat, state, NULL)) {
        wherry_flat_destroy(flat);
        return wh_fail_memory(error, "the leaves of a state");
    }
    for (size_t i = 0; i < flat->count; i++) {
        flat->leaves[i].path.steps = flat->steps + flat->leaves[i].first;
    }
    *flat_p = flat;
    return WHERRY_OK;
}

void wherry_flat_destroy(wherry_flat *flat) {
    if (flat) {
        wh_free(flat->leaves);
        wh_free(flat->steps);
        wh_free(flat);
    }
}

size_t wherry_flat_count(const wherry_flat *flat) {
    return flat->count;
}

const wherry_path *wherry_flat_path(const wherry_flat *flat, size_t index) {
    return index < flat->count ? &flat->leaves[index].path : NULL;
}

const wherry_value *wherry_flat_leaf(const wherry_flat *flat, size_t index) {
    return index < flat->count ? flat->leaves[index].value : NULL;
}

/** Puts the leaves, in order, in place of the nones. */
static void plant(wherry_value **slot, wherry_value *parent, wherry_value *const **next) {
    wherry_value *value = *slot;
    if (value->kind == WHERRY_KIND_OBJECT) {
        plant(&value->as.object.payload, value, next);
    } else if (wh_child_count(value) == 0) {
        wherry_value_destroy(value);
        *slot = *(*next)++;
        wh_value_adopt(parent, *slot);
    } else {
        bool dict = value->kind == WHERRY_KIND_DICT;
        for (size_t i = 0; i < wh_child_count(value); i++) {
            plant(dict ? &value->as.dict->entries[i].item : value->as.sequence.items + i, value, next);
        }
    }
}

static wherry_status none_for_leaf(const wherry_value *before, wherry_value **copy_p, wherry_error *error) {
    (void)before;
    return wherry_none_create(copy_p, error);
}

/** How many containers and objects of the flat state are around a leaf. */
static uint32_t depth_of(const wherry_flat *flat, size_t index) {
    uint32_t depth = 0;
    for (const wherry_value *at = flat->leaves[index].value; at != flat->state; at = at->parent) {
        depth++;
    }
    return depth;
}

/** Whether every leaf is a value of its own that no container has, and none makes the tree too deep. */
static bool leaves_are_fit(const wherry_flat *flat, wherry_value *const *leaves) {
    size_t seen = 0;
    bool fit = true;
    while (seen < flat->count && fit) {
        fit = leaves[seen] && wh_value_claim(leaves[seen]);
        if (fit) {
            fit = depth_of(flat, seen) + leaves[seen]->height <= WHERRY_DEPTH_MAX;
            seen++;
        }
    }
    for (size_t i = 0; i < seen; i++) {
        leaves[i]->parent = NULL;
    }
    return fit;
}

wherry_status wherry_unflatten(const wherry_flat *flat, wherry_value *const *leaves, size_t count,
                               wherry_value **state_p, wherry_error *error) {
    if (!flat || !leaves || !state_p || count != flat->count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%zu leaves were given for the %zu of the flat state", count,
                       flat ? flat->count : 0);
    }
    if (!leaves_are_fit(flat, leaves)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "each leaf must be a value of its own that no container has, and not too deep");
    }
    wherry_value *state;
    wherry_status status = wh_value_rebuild(flat->state, none_for_leaf, &state, error);
    if (status != WHERRY_OK) {
        return status;
    }
    plant(&state, NULL, &leaves);
    *state_p = state;
    return WHERRY_OK;
}
