/*
 * Plans: which chunks to ask for, and where their bytes go.
 *
 * 1. All checks are done before anything is changed. If a plan exists, all of its chunks can be
 *    placed.
 * 2. Moves are sorted by the first position that they read. reach[i] is the largest end of moves 0
 *    to i, so a binary search finds the first move of a chunk.
 * 3. `wanted` has every chunk that a move reads. It may also have a chunk that lies in a gap
 *    between two runs of a move. `indirect` has the wanted chunks that a lane cannot read straight
 *    into their destinations.
 * 4. Only elements of received tensors are ever written.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/search.h"
#include "memory/memory.h"
#include "state/path.h"
#include "state/sharded.h"

/* Moves: copies from positions of the space into storages */

/**
 * The part of the work budget that one move uses. One tensor may need many moves, so the size of
 * the manifest does not limit the memory for moves.
 */
enum { MOVE_WORK = 32 };

typedef struct adding {
    wherry_plan *plan;
    wherry_storage *storage;
    bool exhausted;
} adding;

static bool append_move(wherry_plan *plan, const wh_copy *copy, wherry_storage *storage) {
    if (!WH_GROW(plan->moves, plan->move_capacity, plan->move_count)) {
        return false;
    }
    wh_copy kept = *copy;
    kept.levels = NULL;
    if (copy->level_count) {
        wh_copy_level *levels = wh_alloc_array(copy->level_count, sizeof(*levels));
        if (!levels) {
            return false;
        }
        memcpy(levels, copy->levels, copy->level_count * sizeof(*levels));
        kept.levels = levels;
    }
    plan->moves[plan->move_count++] =
        (wh_move){kept, copy->from + wh_copy_from_span(copy), storage, wherry_storage_data(storage)};
    return true;
}

/**
 * Extends the last move if the copy continues it. This turns many small views of one storage into
 * one move.
 */
static bool extend_last(wherry_plan *plan, const wh_copy *copy, wherry_storage *storage) {
    wh_move *last = plan->move_count ? plan->moves + plan->move_count - 1 : NULL;
    if (!last || last->storage != storage || last->copy.level_count || copy->level_count || last->end != copy->from ||
        last->copy.to + last->copy.length != copy->to) {
        return false;
    }
    last->copy.length += copy->length;
    last->end += copy->length;
    return true;
}

/**
 * Adds a copy from positions of the space. A copy with steps of more than two chunks is split, so
 * that `wanted` does not contain the chunks in its gaps.
 */
static bool add_located(void *context, const wh_copy *copy) {
    adding *a = context;
    if (copy->level_count && copy->levels[0].from_step > 2 * a->plan->prepared->space.chunk_bytes) {
        wh_copy inner = {copy->from, copy->to, copy->length, copy->levels + 1, copy->level_count - 1};
        for (uint64_t i = 0; i < copy->levels[0].count; i++) {
            if (!add_located(a, &inner)) {
                return false;
            }
            inner.from += copy->levels[0].from_step;
            inner.to += copy->levels[0].to_step;
        }
        return true;
    }
    if (a->plan->work < MOVE_WORK) {
        a->exhausted = true;
        return false;
    }
    a->plan->work -= MOVE_WORK;
    return extend_last(a->plan, copy, a->storage) || append_move(a->plan, copy, a->storage);
}

wherry_status wh_plan_add_copy(wherry_plan *plan, size_t from, const wh_copy *copy, wherry_storage *to,
                               const wherry_value *about, wherry_error *error) {
    adding a = {plan, to, false};
    wherry_status status = WHERRY_OK;
    wh_located located = wh_space_locate(&plan->prepared->space, from, copy, &plan->work, add_located, &a);
    switch (a.exhausted ? WH_LOCATE_EXHAUSTED : located) {
    case WH_LOCATED:
        return WHERRY_OK;
    case WH_LOCATE_STOPPED:
        return wh_fail_memory(error, "the copies of a plan");
    case WH_LOCATE_UNCOVERED:
        status = wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                         "the extents in the manifest do not cover all bytes of this tensor; use another source");
        break;
    case WH_LOCATE_EXHAUSTED:
        status = wh_fail(error, WHERRY_LIMIT,
                         "cannot plan: the manifest has too many extents, or its tensors need too many copies");
        break;
    }
    wh_fail_value(error, about);
    return status;
}

static int by_position(const void *one, const void *other) {
    const wh_move *a = one;
    const wh_move *b = other;
    int order = wh_order(a->copy.from, b->copy.from);
    order = order ? order : wh_order((uintptr_t)a->storage, (uintptr_t)b->storage);
    order = order ? order : wh_order(a->copy.to, b->copy.to);
    order = order ? order : wh_order(a->copy.length, b->copy.length);
    order = order ? order : wh_order(a->copy.level_count, b->copy.level_count);
    return order || !a->copy.level_count
               ? order
               : memcmp(a->copy.levels, b->copy.levels, a->copy.level_count * sizeof(*a->copy.levels));
}

/**
 * Sorts the moves and drops duplicates. Duplicates occur if tied weights are received into tied
 * weights.
 */
static void sort_moves(wherry_plan *plan) {
    bool sorted = true;
    for (size_t i = 1; i < plan->move_count && sorted; i++) {
        sorted = by_position(plan->moves + i - 1, plan->moves + i) < 0;
    }
    if (sorted) {
        return;
    }
    qsort(plan->moves, plan->move_count, sizeof(*plan->moves), by_position);
    size_t kept = 0;
    for (size_t i = 1; i < plan->move_count; i++) {
        if (by_position(plan->moves + kept, plan->moves + i) == 0) {
            wh_free((void *)plan->moves[i].copy.levels);
        } else {
            plan->moves[++kept] = plan->moves[i];
        }
    }
    plan->move_count = kept + 1;
}

static uint64_t moved_bytes(const wherry_plan *plan) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->move_count; i++) {
        bytes = wh_add_saturating(bytes, wh_copy_bytes(&plan->moves[i].copy));
    }
    return bytes;
}

/**
 * Sorts the moves and fills reach, wanted, indirect and bytes. No move is added afterwards.
 * @return false if out of memory.
 */
static bool finish_moves(wherry_plan *plan) {
    const wh_space *space = &plan->prepared->space;
    sort_moves(plan);
    plan->reach = wh_alloc_array(plan->move_count, sizeof(*plan->reach));
    if (!plan->reach) {
        return false;
    }
    uint64_t reach = 0;
    uint64_t first = 0;
    uint64_t end = 0; /* number of the chunk after the last wanted one */
    uint64_t chunk_end = wh_space_chunk_begin(space, 1);
    for (size_t i = 0; i < plan->move_count; i++) {
        const wh_move *move = plan->moves + i;
        if (move->copy.from >= chunk_end) {
            first = wh_space_chunk_of(space, move->copy.from);
            chunk_end = wh_space_chunk_begin(space, first + 1);
        }
        uint64_t last = move->end <= chunk_end ? first : wh_space_chunk_of(space, move->end - 1);
        bool ok = last < end || wh_chunk_set_add(&plan->wanted, first, last);
        end = wh_max(end, last + 1);
        if (move->copy.level_count) {
            ok = ok && wh_chunk_set_add(&plan->indirect, first, last);
        } else if (move->copy.from < reach) {
            uint64_t shared = move->end < reach ? move->end : reach;
            ok = ok && wh_chunk_set_add(&plan->indirect, first, wh_space_chunk_of(space, shared - 1));
        }
        if (!ok) {
            return false;
        }
        reach = move->end > reach ? move->end : reach;
        plan->reach[i] = reach;
        plan->bytes = wh_add_saturating(plan->bytes, wh_copy_bytes(&move->copy));
    }
    return true;
}

/* Creating a plan: first everything that can fail, then the changes that cannot */

void wherry_plan_options_init(wherry_plan_options *options) {
    *options = (wherry_plan_options){.struct_size = sizeof(*options), .device = wherry_device_cpu(), .rank = -1};
}

bool wh_plan_keep(wherry_plan *plan, wherry_storage *storage) {
    if (plan->borrowed) {
        wh_storage_traits_add(&plan->traits, storage);
        return true;
    }
    if (plan->kept_count && plan->kept[plan->kept_count - 1] == storage) {
        return true;
    }
    if (!WH_GROW(plan->kept, plan->kept_capacity, plan->kept_count)) {
        return false;
    }
    plan->kept[plan->kept_count++] = wherry_storage_ref(storage);
    wh_storage_traits_add(&plan->traits, storage);
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

/** Changes the places of the local shards to the receiving rank, if it is known, and device. */
static bool update_places(void *context, wherry_value *leaf) {
    const wherry_plan *plan = context;
    wherry_sharded *sharded = leaf->kind == WHERRY_KIND_SHARDED ? leaf->as.sharded : NULL;
    for (uint32_t i = 0; sharded && i < sharded->shard_count; i++) {
        wherry_shard_place *place = &((wherry_shard *)sharded->shards)[i].info.place;
        place->rank = plan->options.rank >= 0 ? plan->options.rank : place->rank;
        place->device = wherry_storage_device(sharded->shards[i].tensor->as.tensor->storage);
    }
    return true;
}

void wh_plan_bind(wherry_tensor *tensor, wherry_storage *storage) {
    wherry_storage_ref(storage);
    wherry_storage_unref(tensor->storage);
    tensor->storage = storage;
}

/** Makes the tensors of the received state views of the targets' storages. */
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

/** Replaces the tensors that have no target by none values. */
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

/**
 * Limits the number of bytes that the plan copies into new memory. If tensors overlap, a byte is
 * copied several times, so the number can exceed the length of the space.
 * @param in_place  the number of bytes that the plan copies into targets.
 */
static wherry_status check_overlap(const wherry_plan *plan, uint64_t in_place, wherry_error *error) {
    uint64_t anew = plan->bytes > in_place ? plan->bytes - in_place : 0;
    if (anew / WH_PLAN_OVERLAP <= plan->prepared->space.bytes) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_LIMIT,
                   "the tensors of the manifest overlap too much: the receiver would write %llu bytes, but the source "
                   "sends only %llu; send copies that do not overlap",
                   (unsigned long long)anew, (unsigned long long)plan->prepared->space.bytes);
}

/** Adds the moves into new memory, if any, and finishes the moves. */
static wherry_status complete(wherry_plan *plan, wh_fresh *fresh, wherry_error *error) {
    uint64_t in_place = fresh->count ? moved_bytes(plan) : 0;
    wherry_status status = fresh->count ? wh_plan_fresh(plan, fresh, error) : WHERRY_OK;
    if (status == WHERRY_OK && !finish_moves(plan)) {
        status = wh_fail_memory(error, "a plan");
    }
    return status == WHERRY_OK && fresh->count ? check_overlap(plan, in_place, error) : status;
}

/**
 * Matches the target. Tensors without a target that are received into new memory are added to
 * `fresh`.
 */
static wherry_status match_targets(wherry_plan *plan, const wherry_value *target, bool disjoint, wh_matches *matches,
                                   wh_fresh *fresh, wherry_error *error) {
    size_t count = plan->prepared->tensor_count;
    /* Reserve room for all tensors, because growing would touch new memory again and again. */
    WH_TRY_ALLOC(WH_RESERVE(matches->items, matches->capacity, count) &&
                     WH_RESERVE(plan->moves, plan->move_capacity, count) &&
                     WH_RESERVE(plan->kept, plan->kept_capacity, count),
                 error, "a plan");
    WH_TRY(wh_plan_match(plan, target, matches, error));
    if (!disjoint) {
        WH_TRY(wh_plan_check_aliases(matches, error));
    }
    if (matches->unmatched_count && plan->options.flags & WHERRY_PLAN_NEW) {
        WH_TRY_ALLOC(wh_fresh_init(fresh, plan->prepared), error, "a plan");
        for (size_t i = 0; i < matches->unmatched_count; i++) {
            wh_fresh_add(fresh, matches->unmatched[i].leaf, matches->unmatched[i].first);
        }
    }
    return WHERRY_OK;
}

static wherry_status plan_in_place(wherry_plan *plan, const wherry_value *target, bool disjoint, wherry_error *error) {
    wh_matches matches = {0};
    wh_fresh fresh = {0};
    wherry_status status = match_targets(plan, target, disjoint, &matches, &fresh, error);
    WH_THEN(status, complete(plan, &fresh, error));
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

/** The context of list_leaf, which adds all leaves of the source to `fresh`. */
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
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a plan needs a prepared state from wherry_manifest_decode");
    }
    if (!wh_options_take(chosen, sizeof(*chosen), options) || chosen->flags & ~(uint32_t)WHERRY_PLAN_FLAGS ||
        chosen->rank < -1) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "initialize the options with wherry_plan_options_init; flags must be known, and rank must be at least -1");
    }
    return WHERRY_OK;
}

wherry_status wherry_plan_create(wherry_prepared *prepared, const wherry_value *target,
                                 const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error) {
    return wh_plan_create(prepared, target, false, options, plan_p, error);
}

wherry_status wh_plan_create(wherry_prepared *prepared, const wherry_value *target, bool disjoint,
                             const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error) {
    wherry_plan_options chosen;
    WH_TRY(check_arguments(prepared, plan_p, options, &chosen, error));
    wherry_plan *plan = wh_alloc_zeroed(1, sizeof(*plan));
    WH_TRY_ALLOC(plan, error, "a plan");
    plan->prepared = prepared;
    plan->options = chosen;
    plan->work = WH_PLAN_WORK + prepared->tensor_count * WH_PLAN_WORK_PER_TENSOR;
    wherry_status status = target ? plan_in_place(plan, target, disjoint, error) : plan_fresh(plan, error);
    if (status != WHERRY_OK) {
        plan->prepared = NULL;
        wherry_plan_destroy(plan);
        return status;
    }
    wh_visit_tensor_leaves(prepared->state, update_places, plan);
    wh_log(WHERRY_LOG_DEBUG, "planned %llu tensors: %llu bytes in %zu copies", (unsigned long long)plan->tensor_count,
           (unsigned long long)plan->bytes, plan->move_count);
    *plan_p = plan;
    return WHERRY_OK;
}

/*
 * A plan for equal states. Every tensor goes to the same tensor of the target. No matching is
 * needed, because both sides have the same fingerprint. The only check is that tensors which share
 * memory in the target also share it at the source.
 */

/** The addresses that are written in a storage. The storage must have one contiguous tensor. */
static wh_stretch stretch_of(const wherry_prepared *prepared, size_t storage) {
    const wherry_extent *extent = prepared->space.extents + prepared->space.firsts[storage];
    uint64_t begin = (uintptr_t)prepared->storage_fields[storage].memory + extent->offset;
    return (wh_stretch){begin, begin + extent->length};
}

/** True if no two storages overlap in the bytes that are written. Also false if out of memory. */
static bool are_disjoint(const wherry_prepared *prepared) {
    uint64_t end = 0;
    size_t ascending = 0;
    for (wh_stretch next; ascending < prepared->storage_count; ascending++, end = next.end) {
        next = stretch_of(prepared, ascending);
        if (next.begin < end) {
            break;
        }
    }
    if (ascending == prepared->storage_count) {
        return true; /* This is the usual case. */
    }
    wh_stretch *stretches = wh_alloc_array(prepared->storage_count, sizeof(*stretches));
    for (size_t s = 0; s < prepared->storage_count && stretches; s++) {
        stretches[s] = stretch_of(prepared, s);
    }
    bool disjoint = stretches && wh_stretches_are_disjoint(stretches, prepared->storage_count);
    wh_free(stretches);
    return disjoint;
}

/** Adds one move per storage. Each storage has one contiguous tensor. */
static void add_all_solid(wherry_plan *plan) {
    const wherry_prepared *prepared = plan->prepared;
    const wh_space *space = &prepared->space;
    for (size_t s = 0; s < prepared->storage_count; s++) {
        const wherry_extent *extent = space->extents + space->firsts[s];
        uint64_t begin = space->begins[space->firsts[s]];
        plan->moves[s] = (wh_move){{.from = begin, .to = extent->offset, .length = extent->length},
                                   begin + extent->length,
                                   prepared->storages[s],
                                   prepared->storage_fields[s].memory};
    }
    plan->move_count = prepared->storage_count;
    plan->traits = prepared->traits;
}

static bool list_match(void *context, wherry_value *leaf) {
    wh_matches *matches = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        wherry_value *tensor = wh_value_tensor_at(leaf, i);
        matches->items[matches->count++] = (wh_match){tensor, tensor, 0};
    }
    return true;
}

/** Adds tensors of any layout, one by one. */
static wherry_status add_all(wherry_plan *plan, wherry_error *error) {
    const wherry_prepared *prepared = plan->prepared;
    wh_matches matches = {0};
    WH_TRY_ALLOC(WH_RESERVE(matches.items, matches.capacity, prepared->tensor_count), error, "a plan");
    wh_visit_tensor_leaves(prepared->state, list_match, &matches);
    for (size_t i = 0; i < matches.count; i++) {
        matches.items[i].storage = prepared->tensor_storages[i];
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
    WH_TRY_ALLOC(plan, error, "a plan");
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
    } else if (prepared->solid && are_disjoint(prepared)) {
        add_all_solid(plan);
    } else {
        status = add_all(plan, error);
    }
    if (status == WHERRY_OK && !finish_moves(plan)) {
        status = wh_fail_memory(error, "a plan");
    }
    if (status != WHERRY_OK) {
        wherry_plan_destroy(plan);
        return status;
    }
    *plan_p = plan;
    return WHERRY_OK;
}

/* Using a plan: its statistics, its chunks, and placing their bytes */

static void destroy_paths(wh_paths *paths) {
    for (size_t i = 0; i < paths->count; i++) {
        wh_free(paths->items[i]);
    }
    wh_free(paths->items);
}

void wherry_plan_destroy(wherry_plan *plan) {
    if (!plan) {
        return;
    }
    for (size_t i = 0; i < plan->move_count; i++) {
        wh_free((void *)plan->moves[i].copy.levels);
    }
    for (size_t i = 0; i < plan->kept_count && !plan->borrowed; i++) {
        wherry_storage_unref(plan->kept[i]);
    }
    wh_free(plan->moves);
    wh_free(plan->reach);
    wh_chunk_set_destroy(&plan->wanted);
    wh_chunk_set_destroy(&plan->indirect);
    destroy_paths(&plan->missing);
    destroy_paths(&plan->extra);
    if (!plan->borrowed) {
        wh_free(plan->kept);
        wherry_prepared_destroy(plan->prepared);
    }
    wh_free(plan);
}

const wherry_prepared *wherry_plan_prepared(const wherry_plan *plan) {
    return plan->prepared;
}

wherry_status wherry_plan_take_state(wherry_plan *plan, wherry_value **state_p, wherry_error *error) {
    if (!plan || !state_p || plan->state_taken) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the state was already taken out of the plan, or an argument is NULL");
    }
    *state_p = (wherry_value *)plan->prepared->state;
    plan->prepared->state = NULL;
    plan->prepared->owns_state = false;
    plan->state_taken = true;
    return WHERRY_OK;
}

const wherry_interval *wherry_plan_intervals(const wherry_plan *plan, size_t *count_p) {
    *count_p = plan->wanted.count;
    return plan->wanted.intervals;
}

/** The smallest page size of host memory. */
enum { SMALL_PAGE = 4096 };

uint64_t wh_plan_runs(const wherry_plan *plan, bool small_pages) {
    uint64_t pages = plan->bytes / SMALL_PAGE;
    bool small = small_pages || wh_storages_on_small_pages(plan->kept, plan->kept_count, &plan->traits);
    return pages > plan->move_count && small ? pages : plan->move_count;
}

void wherry_plan_summarize(const wherry_plan *plan, wherry_plan_summary *summary_p) {
    *summary_p = (wherry_plan_summary){
        .tensors = plan->tensor_count,
        .bytes = plan->bytes,
        .copies = plan->move_count,
        .missing = plan->missing.count,
        .extra = plan->extra.count,
        .chunks = plan->wanted.total,
        .chunk_bytes = wh_space_bytes_of(&plan->prepared->space, &plan->wanted),
        .direct = plan->wanted.total - plan->indirect.total,
    };
}

const char *wherry_plan_missing(const wherry_plan *plan, size_t index) {
    return index < plan->missing.count ? plan->missing.items[index] : NULL;
}

const char *wherry_plan_extra(const wherry_plan *plan, size_t index) {
    return index < plan->extra.count ? plan->extra.items[index] : NULL;
}

bool wherry_plan_chunk_is_direct(const wherry_plan *plan, uint64_t chunk) {
    return wh_chunk_set_has(&plan->wanted, chunk) && !wh_chunk_set_has(&plan->indirect, chunk);
}

typedef struct visit {
    const wh_move *move;
    uint64_t begin;
    wherry_copy_fn fn;
    void *context;
} visit;

static int visit_runs(void *context, const wh_copy_runs *runs) {
    const visit *v = context;
    char *memory = v->move->memory;
    wherry_copy copy = {.storage = v->move->storage,
                        .chunk_offset = runs->from - v->begin,
                        .storage_offset = runs->to,
                        .length = runs->length,
                        .count = runs->count,
                        .chunk_stride = runs->from_step,
                        .storage_stride = runs->to_step,
                        .memory = memory ? memory + runs->to : NULL};
    return v->fn(v->context, &copy);
}

int wherry_plan_visit_chunk(const wherry_plan *plan, uint64_t chunk, wherry_copy_fn visit_fn, void *context) {
    if (!wh_chunk_set_has(&plan->wanted, chunk)) {
        return 0;
    }
    uint64_t begin = wh_space_chunk_begin(&plan->prepared->space, chunk);
    uint64_t end = wh_space_chunk_begin(&plan->prepared->space, chunk + 1);
    int result = 0;
    size_t first = WH_PARTITION_POINT(plan->move_count, m, plan->reach[m] <= begin);
    for (size_t i = first; i < plan->move_count && plan->moves[i].copy.from < end && !result; i++) {
        if (plan->moves[i].end > begin) {
            visit v = {plan->moves + i, begin, visit_fn, context};
            result = wh_copy_visit(&plan->moves[i].copy, begin, end, visit_runs, &v);
        }
    }
    return result;
}

/** A chunk that is being placed. */
typedef struct placing {
    const char *bytes;
    wherry_status status;
    wherry_error *error;
} placing;

static int place_copy(void *context, const wherry_copy *copy) {
    placing *p = context;
    const char *from = p->bytes + copy->chunk_offset;
    const wh_memory_ops *memory = wh_memory_of(wherry_storage_device(copy->storage).kind);
    char *to = copy->memory;
    if (!memory) {
        p->status = wh_fail(p->error, WHERRY_UNSUPPORTED, "this process cannot write to the destination of a chunk");
        return 1;
    }
    for (uint64_t i = 0; i < copy->count && p->status == WHERRY_OK; i++) {
        p->status = memory->write(to + i * copy->storage_stride, from + i * copy->chunk_stride, copy->length, p->error);
    }
    return p->status != WHERRY_OK;
}

wherry_status wherry_plan_place(const wherry_plan *plan, uint64_t chunk, const void *bytes, size_t size,
                                wherry_error *error) {
    uint64_t begin = wh_space_chunk_begin(&plan->prepared->space, chunk);
    uint64_t length = wh_space_chunk_begin(&plan->prepared->space, chunk + 1) - begin;
    if (!bytes || !wh_chunk_set_has(&plan->wanted, chunk) || size != length) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "bytes is NULL, the plan does not ask for chunk %llu, or the chunk has %llu bytes, not %zu",
                       (unsigned long long)chunk, (unsigned long long)length, size);
    }
    placing p = {bytes, WHERRY_OK, error};
    wherry_plan_visit_chunk(plan, chunk, place_copy, &p);
    return p.status;
}

/* Reading chunks back from the memory that a plan would write to */

static int gather_copy(void *context, const wherry_copy *copy) {
    wh_gathered *g = context;
    const char *from = copy->memory;
    g->unsure = g->unsure || wherry_storage_device(copy->storage).kind != WHERRY_DEVICE_CPU || !from;
    for (uint64_t i = 0; i < copy->count && !g->unsure; i++) {
        uint64_t at = copy->chunk_offset + i * copy->chunk_stride;
        g->unsure = memchr(g->covered + at, 1, copy->length) != NULL;
        memset(g->covered + at, 1, copy->length);
        memcpy(g->bytes + at, from + i * copy->storage_stride, copy->length);
        g->found += copy->length;
    }
    return g->unsure;
}

/** Finds the run of memory that has a whole chunk. This is the usual case, and needs no copy. */
static int find_run(void *context, const wherry_copy *copy) {
    struct iovec *run = context;
    bool whole = !run->iov_base && copy->count == 1 && copy->chunk_offset == 0 && copy->length == run->iov_len &&
                 wherry_storage_device(copy->storage).kind == WHERRY_DEVICE_CPU;
    run->iov_base = whole ? copy->memory : NULL;
    return !whole;
}

bool wh_plan_gather(const wherry_plan *plan, uint64_t chunk, wh_gathered *g, struct iovec *run_p) {
    g->length = wh_prepared_chunk_length(plan->prepared, chunk);
    *run_p = (struct iovec){NULL, g->length};
    if (wherry_plan_visit_chunk(plan, chunk, find_run, run_p) == 0 && run_p->iov_base) {
        return true;
    }
    if (!wh_reserve((void **)&g->bytes, &g->room, g->length, 1) ||
        !wh_reserve((void **)&g->covered, &g->covered_room, g->length, 1)) {
        return false;
    }
    memset(g->covered, 0, g->length);
    g->found = 0;
    g->unsure = false;
    wherry_plan_visit_chunk(plan, chunk, gather_copy, g);
    *run_p = (struct iovec){g->bytes, g->length};
    return !g->unsure && g->found == g->length;
}

void wh_gathered_destroy(wh_gathered *gathered) {
    wh_free(gathered->bytes);
    wh_free(gathered->covered);
    *gathered = (wh_gathered){0};
}
