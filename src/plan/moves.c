/* Moves: kept in the order of the space, and from them the chunks to ask for. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "state/path.h"

/** A move counts as so much work: one tensor may be cut into many, which take memory that the manifest does not account for. */
enum { MOVE_WORK = 32 };

typedef struct adding {
    wherry_plan *plan;
    wherry_storage *storage;
    bool exhausted;
} adding;

static bool append(wherry_plan *plan, const wh_copy *copy, wherry_storage *storage) {
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

/** Grows the last move by one that continues it, so that many small views of one storage become one move. */
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

/** Adds a copy whose `from` is positions, cut so that no move skips a whole chunk. */
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
    return extend_last(a->plan, copy, a->storage) || append(a->plan, copy, a->storage);
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
                         "the manifest does not offer all bytes of this tensor; ask another source");
        break;
    case WH_LOCATE_EXHAUSTED:
        status = wh_fail(error, WHERRY_LIMIT, "the manifest's extents are too many and too tangled to plan with");
        break;
    }
    wh_fail_value(error, about);
    return status;
}

static int by_position(const void *one, const void *other) {
    const wh_move *a = one;
    const wh_move *b = other;
    if (a->copy.from != b->copy.from) {
        return a->copy.from < b->copy.from ? -1 : 1;
    }
    if (a->storage != b->storage) {
        return (uintptr_t)a->storage < (uintptr_t)b->storage ? -1 : 1;
    }
    if (a->copy.to != b->copy.to) {
        return a->copy.to < b->copy.to ? -1 : 1;
    }
    if (a->copy.length != b->copy.length || a->copy.level_count != b->copy.level_count) {
        return a->copy.length != b->copy.length ? (a->copy.length < b->copy.length ? -1 : 1)
                                                : (a->copy.level_count < b->copy.level_count ? -1 : 1);
    }
    return a->copy.level_count ? memcmp(a->copy.levels, b->copy.levels, a->copy.level_count * sizeof(*a->copy.levels))
                               : 0;
}

/** Sorts, and keeps each of several equal moves once: tied weights received into tied weights. */
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

static uint64_t saturating_sum(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

uint64_t wh_plan_moved_bytes(const wherry_plan *plan) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->move_count; i++) {
        bytes = saturating_sum(bytes, wh_copy_bytes(&plan->moves[i].copy));
    }
    return bytes;
}

bool wh_plan_finish_moves(wherry_plan *plan) {
    const wh_space *space = &plan->prepared->space;
    sort_moves(plan);
    plan->reach = wh_alloc_array(plan->move_count, sizeof(*plan->reach));
    if (!plan->reach) {
        return false;
    }
    uint64_t reach = 0;
    uint64_t first = 0;
    uint64_t behind = 0; /* all chunks that are wanted so far */
    uint64_t chunk_end = wh_space_chunk_begin(space, 1);
    for (size_t i = 0; i < plan->move_count; i++) {
        const wh_move *move = plan->moves + i;
        if (move->copy.from >= chunk_end) {
            first = wh_space_chunk_of(space, move->copy.from);
            chunk_end = wh_space_chunk_begin(space, first + 1);
        }
        uint64_t last = move->end <= chunk_end ? first : wh_space_chunk_of(space, move->end - 1);
        bool ok = last < behind || wh_chunk_set_add(&plan->wanted, first, last);
        behind = wh_max(behind, last + 1);
        if (move->copy.level_count) {
            ok = ok && wh_chunk_set_add(&plan->tangled, first, last);
        } else if (move->copy.from < reach) {
            uint64_t shared = move->end < reach ? move->end : reach;
            ok = ok && wh_chunk_set_add(&plan->tangled, first, wh_space_chunk_of(space, shared - 1));
        }
        if (!ok) {
            return false;
        }
        reach = move->end > reach ? move->end : reach;
        plan->reach[i] = reach;
        plan->bytes = saturating_sum(plan->bytes, wh_copy_bytes(&move->copy));
    }
    return true;
}
