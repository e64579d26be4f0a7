/*
 * Overlapping targets.
 *
 * Two targets may overlap only if their sources overlap in the same way: then both write the same
 * values to the shared bytes, and their order does not matter. Overlap is determined by address,
 * because two storages may use the same memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "state/dump.h"
#include "state/path.h"

enum { ALIAS_WORK = 1 << 26 };

/** The memory of a target. */
typedef struct footprint {
    wh_stretch bytes; /**< Must be the first member, because by_begin compares it. */
    const wh_match *match;
} footprint;

static int by_begin(const void *one, const void *other) {
    const wh_stretch *a = one;
    const wh_stretch *b = other;
    return wh_order(a->begin, b->begin);
}

/**
 * Computes the bytes that a target covers, as addresses. @return false if the target may cover a
 * byte more than once. In that case the extent may not be in normal form.
 */
static bool extent_of_target(const wherry_tensor *tensor, wh_extent *extent) {
    wh_view view = wh_tensor_view(tensor);
    view.offset += (uintptr_t)wherry_storage_data(tensor->storage);
    wh_extent_of_view(&view, extent);
    bool once = true;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        once = once && (tensor->shape[d] == 1 || tensor->strides[d] > 0);
        for (uint32_t e = 0; e < d; e++) {
            once = once && (tensor->shape[d] == 1 || tensor->shape[e] == 1 || tensor->strides[d] != tensor->strides[e]);
        }
    }
    uint64_t span = extent->length;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        once = once && extent->levels[i].stride >= span;
        span += (extent->levels[i].count - 1) * extent->levels[i].stride;
    }
    return wh_extent_normalize(extent, 0) == 0 && once;
}

/**
 * True if a source and its target have the same strides in all dimensions with more than one
 * element.
 */
static bool same_layout(const wh_match *match) {
    const wherry_tensor *from = match->source->as.tensor;
    const wherry_tensor *to = match->target->as.tensor;
    for (uint32_t d = 0; d < from->ndim; d++) {
        if (from->shape[d] > 1 && from->strides[d] != to->strides[d]) {
            return false;
        }
    }
    return true;
}

/**
 * The distance in bytes, modulo 2^64, from the offset of an element in the source's storage to its
 * address in the target.
 */
static uint64_t distance(const wh_match *match) {
    const wherry_tensor *from = match->source->as.tensor;
    const wherry_tensor *to = match->target->as.tensor;
    uint64_t item = wherry_dtype_describe(from->dtype)->bytes;
    return (uintptr_t)wherry_storage_data(to->storage) + ((uint64_t)to->offset - (uint64_t)from->offset) * item;
}

/** True if two tensors are the same view, apart from their storages. */
static bool same_view(const wherry_tensor *a, const wherry_tensor *b) {
    size_t array = a->ndim * sizeof(*a->shape);
    return a->dtype == b->dtype && a->ndim == b->ndim && a->offset == b->offset &&
           (array == 0 || (memcmp(a->shape, b->shape, array) == 0 && memcmp(a->strides, b->strides, array) == 0));
}

/**
 * True for tied weights: both sources are the same view, and both targets are the same view. The
 * strides of sources and targets may differ.
 */
static bool tied_on_both_sides(const wh_match *a, const wh_match *b) {
    const wherry_tensor *a_to = a->target->as.tensor;
    const wherry_tensor *b_to = b->target->as.tensor;
    return same_view(a->source->as.tensor, b->source->as.tensor) && same_view(a_to, b_to) &&
           wherry_storage_data(a_to->storage) == wherry_storage_data(b_to->storage);
}

/**
 * True if a simple check shows that every byte that both targets share comes from the same byte of
 * the source. May be false even if that is the case.
 */
static bool sources_alias_alike(const wh_match *a, const wh_match *b) {
    bool moved_as_one = same_layout(a) && same_layout(b) && distance(a) == distance(b);
    return a->storage == b->storage && (moved_as_one || tied_on_both_sides(a, b));
}

static bool targets_overlap(const wh_match *a, const wh_match *b, int64_t *work) {
    wh_extent one;
    wh_extent other;
    bool normal = extent_of_target(a->target->as.tensor, &one);
    normal = extent_of_target(b->target->as.tensor, &other) && normal;
    wherry_extent x = wh_extent_borrow(&one);
    wherry_extent y = wh_extent_borrow(&other);
    return !normal || wh_extents_cross(&x, &y, work);
}

static wherry_status refuse(const wh_match *a, const wh_match *b, wherry_error *error) {
    wh_string one = {0};
    wh_string other = {0};
    wh_value_path_append(&one, a->target);
    wh_value_path_append(&other, b->target);
    wh_fail(error, WHERRY_MISMATCH,
            "the targets '%.150s' and '%.150s' share memory, but the source's tensors at these paths do not share "
            "memory in the same way; give each target its own memory",
            one.bytes ? one.bytes : "", other.bytes ? other.bytes : "");
    wh_fail_value(error, b->target);
    wh_free(one.bytes);
    wh_free(other.bytes);
    return WHERRY_MISMATCH;
}

static wherry_status check_self(const wh_match *match, wherry_error *error) {
    wh_extent extent;
    if (same_layout(match) || extent_of_target(match->target->as.tensor, &extent)) {
        return WHERRY_OK;
    }
    return wh_mismatch(match->source, match->target, error,
                       "elements of the target may overlap, but those of the source do not overlap in the same way");
}

/** Compares each footprint with all earlier footprints that overlap it. */
static wherry_status check_pairs(const footprint *prints, size_t count, wherry_error *error) {
    int64_t work = ALIAS_WORK;
    size_t first = 0;
    uint64_t reach = 0;
    for (size_t i = 0; i < count; i++) {
        if (prints[i].bytes.begin >= reach) {
            first = i;
        }
        for (size_t j = first; j < i && work > 0; j++, work--) {
            const wh_match *a = prints[j].match;
            const wh_match *b = prints[i].match;
            if (prints[j].bytes.end > prints[i].bytes.begin && !sources_alias_alike(a, b) &&
                targets_overlap(a, b, &work)) {
                return refuse(a, b, error);
            }
        }
        reach = prints[i].bytes.end > reach ? prints[i].bytes.end : reach;
    }
    return work > 0 ? WHERRY_OK
                    : wh_fail(error, WHERRY_UNSUPPORTED,
                              "too many targets overlap to check them all; give them separate memory");
}

wherry_status wh_plan_check_aliases(const wh_matches *matches, wherry_error *error) {
    footprint *prints = wh_alloc_array(matches->count, sizeof(*prints));
    WH_TRY_ALLOC(prints, error, "checking targets");
    size_t count = 0;
    bool sorted = true;
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < matches->count && status == WHERRY_OK; i++) {
        const wh_match *match = matches->items + i;
        const wherry_tensor *to = match->target->as.tensor;
        wh_view view = wh_tensor_view(to);
        wh_extent extent;
        if (!wh_extent_of_view(&view, &extent)) {
            continue;
        }
        wherry_extent whole = wh_extent_borrow(&extent);
        uint64_t begin = (uintptr_t)wherry_storage_data(to->storage) + extent.offset;
        prints[count++] = (footprint){{begin, begin + wh_extent_span(&whole)}, match};
        sorted = sorted && (count < 2 || prints[count - 2].bytes.begin <= begin);
        status = check_self(match, error);
    }
    if (status == WHERRY_OK && !sorted) {
        qsort(prints, count, sizeof(*prints), by_begin);
    }
    WH_THEN(status, check_pairs(prints, count, error));
    wh_free(prints);
    return status;
}

/** The end of the ascending sequence that begins at `first`. */
static size_t end_of_run(const wh_stretch *stretches, size_t first, size_t count) {
    size_t end = first;
    do {
        end++;
    } while (end < count && stretches[end - 1].begin <= stretches[end].begin);
    return end < count ? end : count;
}

/** Merges pairs of ascending sequences. @return the number of sequences that are left. */
static size_t merge_runs(const wh_stretch *from, wh_stretch *to, size_t count) {
    size_t runs = 0;
    for (size_t begin = 0; begin < count; runs++) {
        size_t middle = end_of_run(from, begin, count);
        size_t end = middle < count ? end_of_run(from, middle, count) : middle;
        for (size_t one = begin, other = middle; begin < end; begin++) {
            bool first = other == end || (one < middle && from[one].begin <= from[other].begin);
            to[begin] = first ? from[one++] : from[other++];
        }
    }
    return runs;
}

/*
 * The addresses from an allocator usually form a few ascending sequences. Merging them is several
 * times faster than sorting.
 */
bool wh_stretches_are_disjoint(wh_stretch *stretches, size_t count) {
    wh_stretch *sorted = stretches;
    wh_stretch *spare = NULL;
    bool apart = true;
    if (end_of_run(stretches, 0, count) < count) {
        wh_stretch *to = spare = wh_alloc_array(count, sizeof(*spare));
        apart = spare != NULL;
        for (size_t runs = count; runs > 1 && apart;) {
            runs = merge_runs(sorted, to, count);
            wh_stretch *from = sorted;
            sorted = to;
            to = from;
        }
    }
    for (size_t i = 1; i < count && apart; i++) {
        apart = sorted[i - 1].end <= sorted[i].begin;
    }
    wh_free(spare);
    return apart;
}

/** Collects the memory of all tensors of a target. */
typedef struct scan {
    wh_stretch *stretches;
    size_t count;
    size_t capacity;
    bool once; /**< True if no tensor covers a byte twice. */
} scan;

static bool scan_leaf(void *context, wherry_value *leaf) {
    scan *s = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf) && s->once; i++) {
        const wherry_tensor *tensor = wh_value_tensor_at(leaf, i)->as.tensor;
        wh_view view = wh_tensor_view(tensor);
        wh_extent extent;
        if (!wh_extent_of_view(&view, &extent)) {
            continue;
        }
        if (!WH_GROW(s->stretches, s->capacity, s->count)) {
            return false;
        }
        s->once = extent_of_target(tensor, &extent);
        wherry_extent whole = wh_extent_borrow(&extent);
        s->stretches[s->count++] = (wh_stretch){extent.offset, extent.offset + wh_extent_span(&whole)};
    }
    return s->once;
}

bool wh_targets_are_disjoint(const wherry_value *target) {
    scan s = {.once = true};
    bool apart = wh_visit_tensor_leaves(target, scan_leaf, &s) && wh_stretches_are_disjoint(s.stretches, s.count);
    wh_free(s.stretches);
    return apart;
}
