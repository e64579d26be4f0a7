/* Matching local tensors that are boxes of global ones: the boxes must be the same on both sides. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/plan.h"
#include "state/part.h"

typedef struct box_list {
    wh_part *parts;
    size_t count;
    size_t capacity;
} box_list;

static int add_part(void *context, const wh_part *part) {
    box_list *list = context;
    if (!WH_GROW(list->parts, list->capacity, list->count)) {
        return 1;
    }
    list->parts[list->count++] = *part;
    return 0;
}

/** Whether the local tensors of two DTensors are the same boxes; where that cannot be known, it is not held against them. */
static wherry_status same_boxes(const wherry_value *source, int64_t source_rank, const wherry_value *target,
                                int64_t target_rank, bool *same_p, wherry_error *error) {
    box_list from = {0};
    box_list to = {0};
    wh_parts source_parts = wh_value_visit_parts(source, 0, source_rank, add_part, &from);
    wh_parts target_parts = wh_value_visit_parts(target, 0, target_rank, add_part, &to);
    bool memory = source_parts == WH_PARTS_STOPPED || source_parts == WH_PARTS_NO_MEMORY ||
                  target_parts == WH_PARTS_STOPPED || target_parts == WH_PARTS_NO_MEMORY;
    *same_p = true;
    if (source_parts == WH_PARTS_KNOWN && target_parts == WH_PARTS_KNOWN) {
        *same_p = from.count == to.count;
        for (size_t i = 0; i < from.count && *same_p; i++) {
            *same_p = wh_box_equal(&from.parts[i].global, &to.parts[i].global) &&
                      wh_box_equal(&from.parts[i].local, &to.parts[i].local);
        }
    }
    wh_free(from.parts);
    wh_free(to.parts);
    return memory ? wh_fail_memory(error, "the boxes of a DTensor") : WHERRY_OK;
}

static bool same_sizes(uint32_t a_ndim, const int64_t *a, uint32_t b_ndim, const int64_t *b) {
    return a_ndim == b_ndim && (a_ndim == 0 || memcmp(a, b, a_ndim * sizeof(*a)) == 0);
}

wherry_status wh_match_dtensor(wherry_plan *plan, wherry_value *source, const wherry_value *target, wh_matches *matches,
                               wherry_error *error) {
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
        wherry_status status = same_boxes(source, plan->prepared->rank, target, plan->options.rank, &same, error);
        if (status != WHERRY_OK) {
            return status;
        }
        if (!same) {
            return wh_mismatch(source, target, error, "the local parts are different boxes of the global tensor");
        }
    }
    return wh_match_tensor(plan, from->local, to->local, number, matches, error);
}

/**
 * The target's shard that is the same box as shard number `number` of the source, and no other's yet; the same number is tried first.
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

wherry_status wh_match_sharded(wherry_plan *plan, wherry_value *source, const wherry_value *target, wh_matches *matches,
                               wherry_error *error) {
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
    if (!used) {
        return wh_fail_memory(error, "matching shards");
    }
    wherry_status status = WHERRY_OK;
    for (uint32_t i = 0; i < from->shard_count && status == WHERRY_OK; i++) {
        const wherry_shard *shard = find_shard(from, i, to, any_box, used);
        if (shard) {
            status = wh_match_tensor(plan, from->shards[i].tensor, shard->tensor, first + i, matches, error);
        } else {
            char what[64];
            snprintf(what, sizeof(what), "local shard %u of the source has no box like it", i);
            status = wh_mismatch(source, target, error, what);
        }
    }
    wh_free(used);
    return status;
}
