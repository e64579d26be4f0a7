#include "range/copy.h"

#include <assert.h>
#include <string.h>

#include "base/checked.h"

static void insert_level(wh_copy_work *copy, wh_copy_level level) {
    uint32_t at = copy->level_count++;
    while (at > 0 &&
           (copy->levels[at - 1].from_step < level.from_step ||
            (copy->levels[at - 1].from_step == level.from_step && copy->levels[at - 1].to_step < level.to_step))) {
        copy->levels[at] = copy->levels[at - 1];
        at--;
    }
    copy->levels[at] = level;
}

static void remove_level(wh_copy_work *copy, uint32_t at) {
    copy->level_count--;
    for (uint32_t i = at; i < copy->level_count; i++) {
        copy->levels[i] = copy->levels[i + 1];
    }
}

/** Merges a level into the run if its repetitions are contiguous on both sides. */
static bool lengthen(wh_copy_work *copy) {
    for (uint32_t i = copy->level_count; i-- > 0;) {
        wh_copy_level level = copy->levels[i];
        if (level.from_step == copy->length && level.to_step == copy->length) {
            copy->length *= level.count;
            remove_level(copy, i);
            return true;
        }
    }
    return false;
}

/** Merges two adjacent levels if the steps on both sides let one level replace them. */
static bool join(wh_copy_work *copy) {
    for (uint32_t i = 1; i < copy->level_count; i++) {
        wh_copy_level *inner = copy->levels + i;
        const wh_copy_level *outer = copy->levels + i - 1;
        if (inner->from_step * inner->count == outer->from_step && inner->to_step * inner->count == outer->to_step) {
            inner->count *= outer->count;
            remove_level(copy, i - 1);
            return true;
        }
    }
    return false;
}

void wh_copy_simplify(wh_copy_work *copy) {
    while (lengthen(copy) || join(copy)) {
    }
}

bool wh_copy_between_views(const wh_view *from, const wh_view *to, wh_copy_work *copy) {
    copy->from = from->offset;
    copy->to = to->offset;
    copy->length = from->item;
    copy->level_count = 0;
    uint32_t ndim = from->ndim;
    /* Merges the contiguous inner dimensions. Most copies need no more than this. */
    while (ndim > 0 && from->shape[ndim - 1] > 0 && (uint64_t)from->strides[ndim - 1] * from->item == copy->length &&
           (uint64_t)to->strides[ndim - 1] * to->item == copy->length) {
        copy->length *= (uint64_t)from->shape[--ndim];
    }
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t count = (uint64_t)from->shape[d];
        wh_copy_level level = {count, (uint64_t)from->strides[d] * from->item, (uint64_t)to->strides[d] * to->item};
        if (count == 0) {
            return false;
        }
        if (count > 1 && (level.from_step || level.to_step)) {
            insert_level(copy, level);
        }
    }
    wh_copy_simplify(copy);
    return true;
}

void wh_copy_of_extent(const wherry_extent *extent, wh_copy_work *copy) {
    copy->from = copy->to = extent->offset;
    copy->length = extent->length;
    copy->level_count = extent->level_count;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        wherry_level level = extent->levels[i];
        copy->levels[i] = (wh_copy_level){level.count, level.stride, level.stride};
    }
}

wh_copy wh_copy_borrow(const wh_copy_work *copy) {
    return (wh_copy){copy->from, copy->to, copy->length, copy->level_count ? copy->levels : 0, copy->level_count};
}

uint64_t wh_copy_from_span(const wh_copy *copy) {
    uint64_t span = copy->length;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        span += (copy->levels[i].count - 1) * copy->levels[i].from_step;
    }
    return span;
}

uint64_t wh_copy_bytes(const wh_copy *copy) {
    uint64_t bytes = copy->length;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        bytes *= copy->levels[i].count;
    }
    return bytes;
}

typedef struct visit {
    const wh_copy *copy;
    uint64_t begin;
    uint64_t end;
    wh_copy_visit_fn fn;
    void *context;
} visit;

/** Visits the part of one run that is in [v->begin, v->end). */
static int visit_run(const visit *v, uint64_t from, uint64_t to) {
    uint64_t begin = wh_max(from, v->begin);
    uint64_t end = wh_min(from + v->copy->length, v->end);
    if (begin >= end) {
        return 0;
    }
    wh_copy_runs run = {begin, to + (begin - from), end - begin, 1, 0, 0};
    return v->fn(v->context, &run);
}

/**
 * Visits runs `first` to `end` - 1 of the innermost level. All runs that are not cut go into one
 * call of the callback.
 */
static int visit_runs(const visit *v, uint64_t from, uint64_t to, uint64_t first, uint64_t end) {
    const wh_copy_level *level = v->copy->levels + v->copy->level_count - 1;
    uint64_t length = v->copy->length;
    int result = 0;
    while (first < end && from + first * level->from_step < v->begin && !result) {
        result = visit_run(v, from + first * level->from_step, to + first * level->to_step);
        first++;
    }
    uint64_t whole = end;
    while (whole > first && from + (whole - 1) * level->from_step + length > v->end) {
        whole--;
    }
    if (whole > first && !result) {
        wh_copy_runs runs = {from + first * level->from_step,
                             to + first * level->to_step,
                             length,
                             whole - first,
                             level->from_step,
                             level->to_step};
        result = v->fn(v->context, &runs);
    }
    for (; whole < end && !result; whole++) {
        result = visit_run(v, from + whole * level->from_step, to + whole * level->to_step);
    }
    return result;
}

/**
 * Visits the runs of this level and of all inner levels. `span` is the span of these runs on the
 * `from` side.
 */
static int visit_level(const visit *v, uint32_t level, uint64_t from, uint64_t to, uint64_t span) {
    if (level == v->copy->level_count) {
        return visit_run(v, from, to);
    }
    wh_copy_level step = v->copy->levels[level];
    uint64_t inner = span - (step.count - 1) * step.from_step;
    uint64_t first = 0;
    uint64_t end = step.count;
    if (step.from_step) {
        if (from + inner <= v->begin) {
            first = (v->begin - from - inner) / step.from_step + 1;
        }
        end = from >= v->end ? 0 : wh_min(step.count, (v->end - from - 1) / step.from_step + 1);
    }
    if (level + 1 == v->copy->level_count) {
        return first < end ? visit_runs(v, from, to, first, end) : 0;
    }
    int result = 0;
    for (uint64_t i = first; i < end && !result; i++) {
        result = visit_level(v, level + 1, from + i * step.from_step, to + i * step.to_step, inner);
    }
    return result;
}

int wh_copy_visit(const wh_copy *copy, uint64_t begin, uint64_t end, wh_copy_visit_fn visit_fn, void *context) {
    visit v = {copy, begin, end, visit_fn, context};
    return begin < end ? visit_level(&v, 0, copy->from, copy->to, wh_copy_from_span(copy)) : 0;
}

bool wh_box_equal(const wh_box *one, const wh_box *other) {
    size_t bytes = one->ndim * sizeof(*one->offsets);
    return one->ndim == other->ndim && memcmp(one->offsets, other->offsets, bytes) == 0 &&
           memcmp(one->sizes, other->sizes, bytes) == 0;
}

bool wh_box_within(const wh_box *box, const int64_t *shape) {
    for (uint32_t d = 0; d < box->ndim; d++) {
        if (box->offsets[d] < 0 || box->sizes[d] < 0 || box->sizes[d] > shape[d] ||
            box->offsets[d] > shape[d] - box->sizes[d]) {
            return false;
        }
    }
    return true;
}

bool wh_box_intersect(const wh_box *one, const wh_box *other, wh_box *common) {
    common->ndim = one->ndim;
    for (uint32_t d = 0; d < one->ndim; d++) {
        int64_t a_end = one->offsets[d] + one->sizes[d];
        int64_t b_end = other->offsets[d] + other->sizes[d];
        int64_t begin = one->offsets[d] > other->offsets[d] ? one->offsets[d] : other->offsets[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end) {
            return false;
        }
        common->offsets[d] = begin;
        common->sizes[d] = end - begin;
    }
    return true;
}

/** Reduces a view of `box` to the elements in `common`. `common` must be inside `box`. */
static wh_view narrow(const wh_view *view, const wh_box *box, const wh_box *common) {
    wh_view part = *view;
    part.shape = common->sizes;
    for (uint32_t d = 0; d < box->ndim; d++) {
        part.offset += (uint64_t)(common->offsets[d] - box->offsets[d]) * (uint64_t)view->strides[d] * view->item;
    }
    return part;
}

bool wh_copy_between_boxes(const wh_box *from, const wh_view *from_view, const wh_box *to, const wh_view *to_view,
                           wh_copy_work *copy) {
    assert(from->ndim == to->ndim && from_view->ndim == from->ndim && to_view->ndim == to->ndim);
    wh_box common = {.ndim = from->ndim};
    if (!wh_box_intersect(from, to, &common)) {
        return false;
    }
    wh_view source = narrow(from_view, from, &common);
    wh_view target = narrow(to_view, to, &common);
    return wh_copy_between_views(&source, &target, copy);
}
