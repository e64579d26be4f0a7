#include "range/space.h"

#include "base/alloc.h"
#include "base/checked.h"

/** Elements are at most this long, and no chunk cuts one. */
enum { ELEMENT_MAX = 16 };

bool wh_space_reserve(wh_space *space, size_t count) {
    return WH_RESERVE(space->firsts, space->first_capacity, count) &&
           WH_RESERVE(space->extents, space->extent_capacity, count) &&
           WH_RESERVE(space->begins, space->begin_capacity, count);
}

bool wh_space_add_storage(wh_space *space) {
    if (!WH_GROW(space->firsts, space->first_capacity, space->storage_count)) {
        return false;
    }
    space->firsts[space->storage_count++] = space->extent_count;
    return true;
}

bool wh_space_add_extent(wh_space *space, const wherry_extent *extent) {
    if (!WH_GROW(space->extents, space->extent_capacity, space->extent_count) ||
        !WH_GROW(space->begins, space->begin_capacity, space->extent_count)) {
        return false;
    }
    space->extents[space->extent_count] = *extent;
    space->begins[space->extent_count] = space->bytes;
    space->extent_count++;
    space->bytes += wh_extent_bytes(extent);
    return true;
}

void wh_space_destroy(wh_space *space) {
    for (size_t i = 0; i < space->extent_count; i++) {
        wh_free((void *)space->extents[i].levels);
    }
    wh_free(space->extents);
    wh_free(space->begins);
    wh_free(space->firsts);
    *space = (wh_space){0};
}

const wherry_extent *wh_space_extents(const wh_space *space, size_t storage, size_t *count_p) {
    size_t first = space->firsts[storage];
    size_t behind = storage + 1 < space->storage_count ? space->firsts[storage + 1] : space->extent_count;
    *count_p = behind - first;
    return *count_p ? space->extents + first : NULL;
}

uint64_t wh_space_chunk_count(const wh_space *space) {
    return space->bytes / space->chunk_bytes + (space->bytes % space->chunk_bytes != 0);
}

/** The last of count ascending numbers that is not above the wanted one; the first one is not. */
static size_t last_not_above(const uint64_t *numbers, size_t count, uint64_t wanted) {
    size_t low = 0;
    while (count > 1) {
        size_t half = count / 2;
        if (numbers[low + half] <= wanted) {
            low += half;
        }
        count -= half;
    }
    return low;
}

uint64_t wh_space_chunk_begin(const wh_space *space, uint64_t chunk) {
    uint64_t position;
    if (__builtin_mul_overflow(chunk, space->chunk_bytes, &position) || position >= space->bytes) {
        return space->bytes;
    }
    if (position == 0) {
        return 0;
    }
    size_t at = last_not_above(space->begins, space->extent_count, position);
    const wherry_extent *extent = space->extents + at;
    uint64_t inside = position - space->begins[at];
    uint64_t into_run = inside % extent->length;
    uint64_t byte = wh_extent_run(extent, inside / extent->length) + into_run;
    return position - wh_min(byte % ELEMENT_MAX, into_run);
}

uint64_t wh_space_chunk_of(const wh_space *space, uint64_t position) {
    uint64_t chunk = position / space->chunk_bytes;
    return position >= wh_space_chunk_begin(space, chunk + 1) ? chunk + 1 : chunk;
}

/** Visits bytes [begin, end) of an extent's runs laid end to end. */
static int visit_extent(const wherry_extent *extent, size_t storage, uint64_t begin, uint64_t end, wh_piece_fn visit,
                        void *context) {
    uint64_t length = extent->length;
    wherry_level inner = extent->level_count ? extent->levels[extent->level_count - 1] : (wherry_level){1, 0};
    while (begin < end) {
        uint64_t run = begin / length;
        uint64_t into = begin % length;
        wh_piece piece = {storage, wh_extent_run(extent, run) + into, wh_min(length - into, end - begin), 1, 0};
        uint64_t whole = (end - begin) / length;
        if (into == 0 && whole > 1) {
            piece.count = wh_min(whole, inner.count - run % inner.count);
            piece.stride = piece.count > 1 ? inner.stride : 0;
        }
        int result = visit(context, &piece);
        if (result) {
            return result;
        }
        begin += piece.length * piece.count;
    }
    return 0;
}

static size_t storage_of(const wh_space *space, size_t extent) {
    size_t low = 0;
    size_t high = space->storage_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (space->firsts[middle] <= extent) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int wh_space_visit(const wh_space *space, uint64_t begin, uint64_t end, wh_piece_fn visit, void *context) {
    if (begin >= end || end > space->bytes) {
        return 0;
    }
    size_t at = last_not_above(space->begins, space->extent_count, begin);
    size_t storage = storage_of(space, at);
    int result = 0;
    for (; at < space->extent_count && space->begins[at] < end && !result; at++) {
        while (storage + 1 < space->storage_count && space->firsts[storage + 1] <= at) {
            storage++;
        }
        uint64_t base = space->begins[at];
        uint64_t from = wh_max(begin, base) - base;
        uint64_t to = wh_min(end - base, wh_extent_bytes(space->extents + at));
        result = visit_extent(space->extents + at, storage, from, to, visit, context);
    }
    return result;
}
