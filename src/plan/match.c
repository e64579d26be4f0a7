/*
 * Matching: walks both trees together, and pairs each leaf of the source with the leaf of the
 * target at the same path.
 */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "memory/memory.h"
#include "state/dump.h"
#include "state/path.h"
#include "state/sharded.h"
#include "state/tensor.h"

typedef struct walk {
    wherry_plan *plan;
    wh_matches *matches;
    wherry_error *error;
} walk;

wherry_status wh_mismatch(const wherry_value *source, const wherry_value *target, wherry_error *error,
                          const char *what) {
    wh_string text = {0};
    wh_string path = {0};
    wh_value_path_append(&path, source);
    wh_describe_leaf(&text, source);
    wh_string_append(&text, "; the target has ", 17);
    const char *quote = path.size ? "'" : "";
    wh_describe_leaf(&text, target);
    wh_fail(error, WHERRY_MISMATCH, "%s at %s%.150s%s: the source has %s", what, quote,
            path.size ? path.bytes : "the root", quote,
            text.failed || !text.bytes ? "(out of memory for the details)" : text.bytes);
    wh_fail_value(error, source);
    wh_free(text.bytes);
    wh_free(path.bytes);
    return WHERRY_MISMATCH;
}

/**
 * Checks that a target and its source have the same dtype, shape, conj and neg flags and kind of
 * device, and that the memory of the target can be written. With WHERRY_PLAN_ANY_DEVICE, the kinds
 * of device may differ.
 */
static wherry_status check_tensor(const wherry_plan *plan, const wherry_value *source, const wherry_value *target,
                                  wherry_error *error) {
    const wherry_tensor *from = source->as.tensor;
    const wherry_tensor *to = target->as.tensor;
    uint32_t bits = WHERRY_TENSOR_CONJ | WHERRY_TENSOR_NEG;
    wherry_device device = wherry_storage_device(to->storage);
    if (from->dtype != to->dtype) {
        return wh_mismatch(source, target, error, "the dtypes differ");
    }
    if (from->ndim != to->ndim ||
        (from->ndim && memcmp(from->shape, to->shape, from->ndim * sizeof(*to->shape)) != 0)) {
        return wh_mismatch(source, target, error, "the shapes differ");
    }
    if ((from->flags & bits) != (to->flags & bits)) {
        return wh_mismatch(source, target, error, "the conj or neg flags differ");
    }
    if (!(plan->options.flags & WHERRY_PLAN_ANY_DEVICE) && wherry_storage_device(from->storage).kind != device.kind) {
        return wh_mismatch(source, target, error, "the devices differ");
    }
    if (!wh_memory_of(device.kind) || wh_storage_is_bare(to->storage)) {
        char text[WHERRY_DEVICE_TEXT_MAX];
        wherry_status status = wh_fail(error, WHERRY_UNSUPPORTED,
                                       "the target is on %s, which this process cannot write, or it has no memory",
                                       wherry_device_text(device, text));
        wh_fail_value(error, target);
        return status;
    }
    return WHERRY_OK;
}

static wherry_status match_tensor(wherry_plan *plan, wherry_value *source, const wherry_value *target, size_t number,
                                  wh_matches *matches, wherry_error *error) {
    WH_TRY(check_tensor(plan, source, target, error));
    WH_TRY_ALLOC(WH_GROW(matches->items, matches->capacity, matches->count), error, "matching a state");
    matches->items[matches->count] = (wh_match){source, target, plan->prepared->tensor_storages[number]};
    return wh_plan_add_match(plan, matches->items + matches->count++, error);
}

/*
 * DTensor and ShardedTensor: the local tensors of both sides must be the same boxes of the global
 * tensor, unless WHERRY_PLAN_ANY_BOX is set.
 */

static bool same_sizes(uint32_t a_ndim, const int64_t *a, uint32_t b_ndim, const int64_t *b) {
    return a_ndim == b_ndim && (a_ndim == 0 || memcmp(a, b, a_ndim * sizeof(*a)) == 0);
}

static wherry_status different_boxes(const wherry_plan *plan, const wherry_value *source, const wherry_value *target,
                                     wherry_error *error) {
    wh_string text = {0};
    wh_string_format(&text, "the local tensors are different boxes of the global tensor, ");
    wh_boxes_append(&text, source, plan->prepared->rank);
    wh_string_format(&text, " at the source and ");
    wh_boxes_append(&text, target, plan->options.rank);
    wh_string_format(&text, " in the target (receive from a rank that has the same box)");
    wh_mismatch(source, target, error, text.failed || !text.bytes ? "the boxes differ" : text.bytes);
    wh_free(text.bytes);
    return WHERRY_MISMATCH;
}

static wherry_status match_dtensor(wherry_plan *plan, wherry_value *source, const wherry_value *target,
                                   wh_matches *matches, wherry_error *error) {
    const wherry_dtensor *from = source->as.dtensor;
    const wherry_dtensor *to = target->as.dtensor;
    size_t number = matches->next_tensor - 1;
    if (!(plan->options.flags & WHERRY_PLAN_ANY_BOX)) {
        if (!same_sizes(from->ndim, from->shape, to->ndim, to->shape)) {
            return wh_mismatch(source, target, error, "the global shapes differ");
        }
        if (!wh_placements_equal(from, to)) {
            return wh_mismatch(source, target, error, "the placements differ");
        }
        bool same = true;
        WH_TRY(wh_boxes_equal(source, plan->prepared->rank, target, plan->options.rank, &same, error));
        if (!same) {
            return different_boxes(plan, source, target, error);
        }
    }
    return match_tensor(plan, from->local, to->local, number, matches, error);
}

/**
 * Finds an unused shard of the target that has the same box as shard `number` of the source, or any
 * box if `any_box` is true. Tries the shard with the same number first.
 */
static const wherry_shard *find_shard(const wherry_sharded *from, uint32_t number, const wherry_sharded *to,
                                      bool any_box, bool *used) {
    const wherry_shard_info *wanted = &from->shards[number].info;
    for (uint32_t i = 0; i < to->shard_count; i++) {
        uint32_t candidate = (number + i) % to->shard_count;
        const wherry_shard *shard = to->shards + candidate;
        if (used[candidate]) {
            continue;
        }
        if (any_box || (same_sizes(from->ndim, wanted->offsets, to->ndim, shard->info.offsets) &&
                        same_sizes(from->ndim, wanted->sizes, to->ndim, shard->info.sizes))) {
            used[candidate] = true;
            return shard;
        }
    }
    return NULL;
}

static wherry_status match_sharded(wherry_plan *plan, wherry_value *source, const wherry_value *target,
                                   wh_matches *matches, wherry_error *error) {
    const wherry_sharded *from = source->as.sharded;
    const wherry_sharded *to = target->as.sharded;
    bool any_box = plan->options.flags & WHERRY_PLAN_ANY_BOX;
    size_t first = matches->next_tensor - from->shard_count;
    if (from->shard_count != to->shard_count) {
        return wh_mismatch(source, target, error, "the numbers of local shards differ");
    }
    if (from->dtype != to->dtype || (!any_box && !same_sizes(from->ndim, from->shape, to->ndim, to->shape))) {
        return wh_mismatch(source, target, error, "the dtypes or the global shapes differ");
    }
    bool *used = wh_alloc_zeroed(to->shard_count, sizeof(*used));
    WH_TRY_ALLOC(used, error, "matching shards");
    wherry_status status = WHERRY_OK;
    for (uint32_t i = 0; i < from->shard_count && status == WHERRY_OK; i++) {
        const wherry_shard *shard = find_shard(from, i, to, any_box, used);
        if (shard) {
            status = match_tensor(plan, from->shards[i].tensor, shard->tensor, first + i, matches, error);
        } else {
            char what[80];
            snprintf(what, sizeof(what), "the target has no shard with the box of local shard %u", i);
            status = wh_mismatch(source, target, error, what);
        }
    }
    wh_free(used);
    return status;
}

/* The trees */

static bool add_path(wh_paths *paths, const wherry_value *leaf) {
    wh_string text = {0};
    wh_value_path_append(&text, leaf);
    char *path = wh_string_take(&text);
    if (!path || !WH_GROW(paths->items, paths->capacity, paths->count)) {
        wh_free(path);
        return false;
    }
    paths->items[paths->count++] = path;
    return true;
}

/** Records all leaves below a value that the other side lacks. */
static wherry_status add_unmatched(walk *w, wherry_value *value, bool of_source) {
    wherry_value *inside = (wherry_value *)wh_value_inside(value);
    size_t count = wh_child_count(inside);
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        wherry_step step;
        status = add_unmatched(w, wh_child_at(inside, i, &step), of_source);
    }
    if (count) {
        return status;
    }
    bool ok = add_path(of_source ? &w->plan->extra : &w->plan->missing, inside);
    wh_matches *m = w->matches;
    if (ok && of_source && inside->kind >= WHERRY_KIND_TENSOR) {
        ok = WH_GROW(m->unmatched, m->unmatched_capacity, m->unmatched_count);
        if (ok) {
            m->unmatched[m->unmatched_count++] = (wh_unmatched){inside, m->next_tensor};
        }
        m->next_tensor += wh_value_tensor_count(inside);
    }
    return ok ? WHERRY_OK : wh_fail_memory(w->error, "matching a state");
}

/**
 * Finds the target's value for a step of the source. Tries the same index first, then looks up the
 * key.
 */
static wherry_value *counterpart(const wherry_value *target, size_t index, const wherry_step *step) {
    if (!step->key) {
        return wherry_sequence_at(target, index);
    }
    const wherry_value *key = wherry_dict_key_at(target, index);
    return key && wh_scalar_equal(key, step->key) ? wherry_dict_at(target, index) : wherry_dict_find(target, step->key);
}

static bool is_container(const wherry_value *value) {
    return value->kind >= WHERRY_KIND_LIST && value->kind <= WHERRY_KIND_DICT;
}

static wherry_status match(walk *w, wherry_value *source, const wherry_value *target);

static wherry_status match_children(walk *w, wherry_value *source, const wherry_value *target) {
    size_t count = wh_child_count(source);
    size_t found = 0;
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        wherry_step step;
        wherry_value *child = wh_child_at(source, i, &step);
        wh_child_ahead(target, i);
        const wherry_value *other = counterpart(target, i, &step);
        found += other != NULL;
        status = other ? match(w, child, other) : add_unmatched(w, child, true);
    }
    for (size_t i = 0; found < wh_child_count(target) && i < wh_child_count(target) && status == WHERRY_OK; i++) {
        wherry_step step;
        wherry_value *child = wh_child_at(target, i, &step);
        if (!counterpart(source, i, &step)) {
            status = add_unmatched(w, child, false);
        }
    }
    return status;
}

static wherry_status match(walk *w, wherry_value *source, const wherry_value *target) {
    source = (wherry_value *)wh_value_inside(source);
    target = wh_value_inside(target);
    if (is_container(source) && is_container(target)) {
        bool same_steps = (source->kind == WHERRY_KIND_DICT) == (target->kind == WHERRY_KIND_DICT);
        bool takes_any =
            wh_child_count(target) == 0 && (wh_child_count(source) == 0 || w->plan->options.flags & WHERRY_PLAN_NEW);
        return same_steps || takes_any ? match_children(w, source, target)
                                       : wh_mismatch(source, target, w->error, "the kinds of containers differ");
    }
    if (wh_value_is_scalar(source) && wh_value_is_scalar(target)) {
        return WHERRY_OK;
    }
    if (target->kind == WHERRY_KIND_NONE && w->plan->options.flags & WHERRY_PLAN_NEW) {
        /* A none in the target is a placeholder for any value. */
        return add_unmatched(w, source, true);
    }
    if (source->kind != target->kind) {
        return wh_mismatch(source, target, w->error, "the kinds differ");
    }
    size_t first = w->matches->next_tensor;
    w->matches->next_tensor += wh_value_tensor_count(source);
    switch (wherry_value_kind(source)) {
    case WHERRY_KIND_TENSOR:
        return match_tensor(w->plan, source, target, first, w->matches, w->error);
    case WHERRY_KIND_DTENSOR:
        return match_dtensor(w->plan, source, target, w->matches, w->error);
    default:
        return match_sharded(w->plan, source, target, w->matches, w->error);
    }
}

/** Appends the number of paths, and the first few of them. */
static void append_some(wh_string *text, const wh_paths *paths, const char *what) {
    enum { SHOWN = 3 };
    if (!paths->count) {
        return;
    }
    wh_string_format(text, "%s%s (%zu):", text->size ? "; " : "", what, paths->count);
    for (size_t i = 0; i < paths->count && i < SHOWN; i++) {
        wh_string_format(text, "%s '%.60s'", i ? "," : "", paths->items[i]);
    }
    wh_string_format(text, "%s", paths->count > SHOWN ? ", ..." : "");
}

/**
 * Fails if leaves are missing from the source or from the target. WHERRY_PLAN_PARTIAL allows both.
 * WHERRY_PLAN_NEW allows leaves that are missing from the target.
 */
static wherry_status check_complete(const wherry_plan *plan, wherry_error *error) {
    bool anew = plan->options.flags & WHERRY_PLAN_NEW;
    if (plan->options.flags & WHERRY_PLAN_PARTIAL || plan->missing.count + (anew ? 0 : plan->extra.count) == 0) {
        return WHERRY_OK;
    }
    wh_string text = {0};
    append_some(&text, &plan->missing, "missing from the source");
    if (!anew) {
        append_some(&text, &plan->extra, "missing from the target");
    }
    wh_fail(error, WHERRY_MISMATCH, "%s; use WHERRY_RECV_PARTIAL to receive what both have%s",
            text.failed ? "the paths differ" : text.bytes,
            anew || plan->missing.count ? "" : ", or WHERRY_RECV_NEW to receive the rest into new memory");
    if (error) {
        wh_fail_path(error, plan->missing.count ? plan->missing.items[0] : plan->extra.items[0]);
    }
    wh_free(text.bytes);
    return WHERRY_MISMATCH;
}

wherry_status wh_plan_match(wherry_plan *plan, const wherry_value *target, wh_matches *matches, wherry_error *error) {
    walk w = {plan, matches, error};
    WH_TRY(match(&w, (wherry_value *)plan->prepared->state, target));
    return check_complete(plan, error);
}
