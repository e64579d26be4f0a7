/* Making a plan: everything that can fail first, then the changes that cannot. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "plan/plan.h"
#include "state/storage.h"

void wherry_plan_options_init(wherry_plan_options *options) {
    *options = (wherry_plan_options){.struct_size = sizeof(*options), .device = wherry_device_cpu(), .rank = -1};
}

bool wh_plan_keep(wherry_plan *plan, wherry_storage *storage) {
    if (plan->borrowed) {
        wh_census_add(&plan->census, storage);
        return true;
    }
    if (plan->kept_count && plan->kept[plan->kept_count - 1] == storage) {
        return true;
    }
    if (!WH_GROW(plan->kept, plan->kept_capacity, plan->kept_count)) {
        return false;
    }
    plan->kept[plan->kept_count++] = wherry_storage_ref(storage);
    wh_census_add(&plan->census, storage);
    return true;
}

wherry_status wh_plan_add_match(wherry_plan *plan, const wh_match *match, wherry_error *error) {
    const wherry_tensor *to = match->target->as.tensor;
    wh_view from_view = wh_tensor_view(match->source->as.tensor);
    wh_view to_view = wh_tensor_view(to);
    wh_copy_work copy;
    if (!wh_copy_between_views(&from_view, &to_view, &copy)) {
        return WHERRY_OK;
    }
    wh_copy borrowed = wh_copy_borrow(&copy);
    return wh_plan_keep(plan, to->storage)
               ? wh_plan_add_copy(plan, match->storage, &borrowed, to->storage, match->source, error)
               : wh_fail_memory(error, "a plan");
}

/** Shards live with the receiver from now on. */
static void rename_places(const wherry_plan *plan, wherry_value *leaf) {
    wherry_sharded *sharded = leaf->as.sharded;
    for (uint32_t i = 0; i < sharded->shard_count; i++) {
        wherry_shard_place *place = &((wherry_shard *)sharded->shards)[i].info.place;
        place->rank = plan->options.rank >= 0 ? plan->options.rank : place->rank;
        place->device = wherry_storage_device(sharded->shards[i].tensor->as.tensor->storage);
    }
}

static bool rename_leaf(void *context, wherry_value *leaf) {
    if (leaf->kind == WHERRY_KIND_SHARDED) {
        rename_places(context, leaf);
    }
    return true;
}

void wh_plan_bind(wherry_tensor *tensor, wherry_storage *storage) {
    wherry_storage_ref(storage);
    wherry_storage_unref(tensor->storage);
    tensor->storage = storage;
}

/** Makes the source's tensors views of the targets' storages. */
static void adopt_targets(const wh_matches *matches) {
    for (size_t i = 0; i < matches->count; i++) {
        wherry_tensor *tensor = matches->items[i].source->as.tensor;
        const wherry_tensor *target = matches->items[i].target->as.tensor;
        wh_plan_bind(tensor, target->storage);
        tensor->offset = target->offset;
        tensor->flags = target->flags;
        for (uint32_t d = 0; d < tensor->ndim; d++) {
            ((int64_t *)tensor->strides)[d] = target->strides[d];
        }
    }
}

/** Makes the source's tensors without a target none. */
static void drop_unmatched(const wh_matches *matches) {
    for (size_t i = 0; i < matches->unmatched_count; i++) {
        wherry_value *leaf = matches->unmatched[i].leaf;
        if (leaf->kind == WHERRY_KIND_TENSOR) {
            wherry_storage_unref(leaf->as.tensor->storage);
        } else if (leaf->kind == WHERRY_KIND_DTENSOR) {
            wh_dtensor_clear(leaf->as.dtensor);
        } else {
            wh_sharded_clear(leaf->as.sharded);
        }
        leaf->kind = WHERRY_KIND_NONE;
    }
}

/** A byte of the space may be copied into new memory many times over, because tensors cross each other, but not without end. */
static wherry_status check_overlap(const wherry_plan *plan, uint64_t in_place, wherry_error *error) {
    uint64_t anew = plan->bytes > in_place ? plan->bytes - in_place : 0;
    if (anew / WH_PLAN_OVERLAP <= plan->prepared->space.bytes) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_LIMIT,
                   "the manifest's tensors cross each other so often that %llu bytes would "
                   "be copied for the %llu that it offers",
                   (unsigned long long)anew, (unsigned long long)plan->prepared->space.bytes);
}

/** Adds what is received anew, which may be nothing, and ends the moves. */
static wherry_status complete(wherry_plan *plan, wh_fresh *fresh, wherry_error *error) {
    uint64_t in_place = fresh->count ? wh_plan_moved_bytes(plan) : 0;
    wherry_status status = fresh->count ? wh_plan_fresh(plan, fresh, error) : WHERRY_OK;
    if (status == WHERRY_OK && !wh_plan_finish_moves(plan)) {
        status = wh_fail_memory(error, "a plan");
    }
    return status == WHERRY_OK && fresh->count ? check_overlap(plan, in_place, error) : status;
}

/** Matches the targets; what has none and is to be received all the same is listed. */
static wherry_status match_targets(wherry_plan *plan, const wherry_value *target, bool apart, wh_matches *matches,
                                   wh_fresh *fresh, wherry_error *error) {
    size_t count =
        plan->prepared->tensor_count; /* room for nearly always all, since growing touches new memory again and again */
    if (!WH_RESERVE(matches->items, matches->capacity, count) || !WH_RESERVE(plan->moves, plan->move_capacity, count) ||
        !WH_RESERVE(plan->kept, plan->kept_capacity, count)) {
        return wh_fail_memory(error, "a plan");
    }
    wherry_status status = wh_plan_match(plan, target, matches, error);
    if (status == WHERRY_OK && !apart) {
        status = wh_plan_check_aliases(matches, error);
    }
    if (status == WHERRY_OK && matches->unmatched_count && plan->options.flags & WHERRY_PLAN_NEW) {
        if (!wh_fresh_init(fresh, plan->prepared)) {
            return wh_fail_memory(error, "a plan");
        }
        for (size_t i = 0; i < matches->unmatched_count; i++) {
            wh_fresh_add(fresh, matches->unmatched[i].leaf, matches->unmatched[i].first);
        }
    }
    return status;
}

static wherry_status plan_in_place(wherry_plan *plan, const wherry_value *target, bool apart, wherry_error *error) {
    wh_matches matches = {0};
    wh_fresh fresh = {0};
    wherry_status status = match_targets(plan, target, apart, &matches, &fresh, error);
    if (status == WHERRY_OK) {
        status = complete(plan, &fresh, error);
    }
    if (status == WHERRY_OK) {
        plan->tensor_count = matches.count + fresh.count;
        plan->prepared->adopted = true;
        adopt_targets(&matches);
        if (plan->options.flags & WHERRY_PLAN_NEW) {
            wh_fresh_adopt(&fresh, plan->prepared);
        } else {
            drop_unmatched(&matches);
        }
    }
    wh_fresh_destroy(&fresh, plan->prepared);
    wh_free(matches.items);
    wh_free(matches.unmatched);
    return status;
}

/** All leaves of the source, as they are met. */
typedef struct listing {
    wh_fresh *fresh;
    size_t next;
} listing;

static bool list_leaf(void *context, wherry_value *leaf) {
    listing *list = context;
    wh_fresh_add(list->fresh, leaf, list->next);
    list->next += wh_value_tensor_count(leaf);
    return true;
}

static wherry_status plan_fresh(wherry_plan *plan, wherry_error *error) {
    wh_fresh fresh = {0};
    listing list = {&fresh, 0};
    wherry_status status = WHERRY_NO_MEMORY;
    if (wh_fresh_init(&fresh, plan->prepared)) {
        wh_visit_tensor_leaves(plan->prepared->state, list_leaf, &list);
        status = complete(plan, &fresh, error);
    } else {
        wh_fail_memory(error, "a plan");
    }
    if (status == WHERRY_OK) {
        plan->tensor_count = fresh.count;
        wh_fresh_adopt(&fresh, plan->prepared);
    }
    wh_fresh_destroy(&fresh, plan->prepared);
    return status;
}

static wherry_status check_arguments(const wherry_prepared *prepared, wherry_plan *const *plan_p,
                                     const wherry_plan_options *options, wherry_plan_options *chosen,
                                     wherry_error *error) {
    wherry_plan_options_init(chosen);
    if (!prepared || !plan_p || !prepared->state || !prepared->owns_state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a plan is made of what wherry_manifest_decode gave");
    }
    if (!wh_options_take(chosen, sizeof(*chosen), options) || chosen->flags & ~(uint32_t)WHERRY_PLAN_FLAGS ||
        chosen->rank < -1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "fill the options by wherry_plan_options_init; flags must be known, and a rank is -1 or more");
    }
    return WHERRY_OK;
}

wherry_status wherry_plan_create(wherry_prepared *prepared, const wherry_value *target,
                                 const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error) {
    return wh_plan_create(prepared, target, false, options, plan_p, error);
}

wherry_status wh_plan_create(wherry_prepared *prepared, const wherry_value *target, bool apart,
                             const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error) {
    wherry_plan_options chosen;
    wherry_status status = check_arguments(prepared, plan_p, options, &chosen, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_plan *plan = wh_alloc_zeroed(1, sizeof(*plan));
    if (!plan) {
        return wh_fail_memory(error, "a plan");
    }
    plan->prepared = prepared;
    plan->options = chosen;
    plan->work = WH_PLAN_WORK + prepared->tensor_count * WH_PLAN_WORK_PER_TENSOR;
    status = target ? plan_in_place(plan, target, apart, error) : plan_fresh(plan, error);
    if (status != WHERRY_OK) {
        plan->prepared = NULL;
        wherry_plan_destroy(plan);
        return status;
    }
    wh_visit_tensor_leaves(prepared->state, rename_leaf, plan);
    wh_log(WHERRY_LOG_DEBUG, "planned %llu tensors: %llu bytes by %zu copies", (unsigned long long)plan->tensor_count,
           (unsigned long long)plan->bytes, plan->move_count);
    *plan_p = plan;
    return WHERRY_OK;
}
