/*
 * The plan of a receiver whose state is as the source's, so that every tensor goes to where it lies. Nothing is matched, since both sides are the same; what is
 * checked is that tensors which share memory here do so in the source as well.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "plan/plan.h"

/** The bytes of a storage, which has one contiguous tensor, that are written. */
static wh_stretch stretch_of(const wherry_prepared *prepared, size_t storage) {
    const wherry_extent *extent = prepared->space.extents + prepared->space.firsts[storage];
    uint64_t begin = (uintptr_t)prepared->holdings[storage].memory + extent->offset;
    return (wh_stretch){begin, begin + extent->length};
}

/** Whether no two storages share bytes that are written. false also where there is no memory to tell. */
static bool are_apart(const wherry_prepared *prepared) {
    uint64_t end = 0;
    size_t ascending = 0;
    for (wh_stretch next; ascending < prepared->storage_count; ascending++, end = next.end) {
        next = stretch_of(prepared, ascending);
        if (next.begin < end) {
            break;
        }
    }
    if (ascending == prepared->storage_count) {
        return true; /* nearly always */
    }
    wh_stretch *stretches = wh_alloc_array(prepared->storage_count, sizeof(*stretches));
    for (size_t s = 0; s < prepared->storage_count && stretches; s++) {
        stretches[s] = stretch_of(prepared, s);
    }
    bool apart = stretches && wh_stretches_are_apart(stretches, prepared->storage_count);
    wh_free(stretches);
    return apart;
}

/** Adds all storages, each of which has one contiguous tensor. */
static void add_all_solid(wherry_plan *plan) {
    const wherry_prepared *prepared = plan->prepared;
    const wh_space *space = &prepared->space;
    for (size_t s = 0; s < prepared->storage_count; s++) {
        const wherry_extent *extent = space->extents + space->firsts[s];
        uint64_t begin = space->begins[space->firsts[s]];
        plan->moves[s] = (wh_move){{.from = begin, .to = extent->offset, .length = extent->length},
                                   begin + extent->length,
                                   prepared->storages[s],
                                   prepared->holdings[s].memory};
    }
    plan->move_count = prepared->storage_count;
    plan->census = prepared->census;
}

static bool list_leaf(void *context, wherry_value *leaf) {
    wh_matches *matches = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        wherry_value *tensor = wh_value_tensor_at(leaf, i);
        matches->items[matches->count++] = (wh_match){tensor, tensor, 0};
    }
    return true;
}

/** Adds tensors of any form, each by itself. */
static wherry_status add_all(wherry_plan *plan, wherry_error *error) {
    const wherry_prepared *prepared = plan->prepared;
    wh_matches matches = {0};
    if (!WH_RESERVE(matches.items, matches.capacity, prepared->tensor_count)) {
        return wh_fail_memory(error, "a plan");
    }
    wh_visit_tensor_leaves(prepared->state, list_leaf, &matches);
    for (size_t i = 0; i < matches.count; i++) {
        matches.items[i].storage = prepared->places[i];
    }
    wherry_status status = wh_plan_check_aliases(&matches, error);
    for (size_t i = 0; i < matches.count && status == WHERRY_OK; i++) {
        status = wh_plan_add_match(plan, matches.items + i, error);
    }
    wh_free(matches.items);
    return status;
}

wherry_status wh_plan_same(const wherry_prepared *prepared, wherry_plan **plan_p, wherry_error *error) {
    wherry_plan *plan = wh_alloc_zeroed(1, sizeof(*plan));
    if (!plan) {
        return wh_fail_memory(error, "a plan");
    }
    plan->prepared = (wherry_prepared *)prepared;
    plan->kept = prepared->storages;
    plan->kept_count = prepared->storage_count;
    plan->borrowed = true;
    wherry_plan_options_init(&plan->options);
    plan->options.rank = prepared->rank;
    plan->work = WH_PLAN_WORK + prepared->tensor_count * WH_PLAN_WORK_PER_TENSOR;
    plan->tensor_count = prepared->tensor_count;
    wherry_status status = WHERRY_OK;
    if (!WH_RESERVE(plan->moves, plan->move_capacity, prepared->tensor_count)) {
        status = wh_fail_memory(error, "a plan");
    } else if (prepared->solid && are_apart(prepared)) {
        add_all_solid(plan);
    } else {
        status = add_all(plan, error);
    }
    if (status == WHERRY_OK && !wh_plan_finish_moves(plan)) {
        status = wh_fail_memory(error, "a plan");
    }
    if (status != WHERRY_OK) {
        wherry_plan_destroy(plan);
        return status;
    }
    *plan_p = plan;
    return WHERRY_OK;
}
