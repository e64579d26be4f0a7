#include "range/space.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/search.h"

/**
 * The size of the largest element in bytes. A chunk border moves back by less than this, so that it
 * does not split an element.
 */
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

/** Assigns positions to the extents of one part, starting at the current length of the space. */
static void lay_part(wh_space *space, const bool *second, bool which, size_t *next) {
    for (size_t storage = 0; storage < space->storage_count; storage++) {
        size_t first = space->firsts[storage];
        size_t end = storage + 1 < space->storage_count ? space->firsts[storage + 1] : space->extent_count;
        for (size_t i = first; i < end && second[storage] == which; i++) {
            space->order[(*next)++] = i;
            space->begins[i] = space->bytes;
            space->bytes += wh_extent_bytes(space->extents + i);
        }
    }
}

static uint64_t chunks_in(const wh_space *space, uint64_t bytes) {
    return bytes / space->chunk_bytes + (bytes % space->chunk_bytes != 0);
}

bool wh_space_divide(wh_space *space, const bool *second) {
    bool any = false;
    for (size_t i = 0; i < space->storage_count; i++) {
        any = any || second[i];
    }
    if (!any) {
        return true;
    }
    space->order = wh_alloc_array(space->extent_count, sizeof(*space->order));
    if (!space->order) {
        return false;
    }
    size_t next = 0;
    space->bytes = 0;
    lay_part(space, second, false, &next);
    space->first_bytes = space->bytes;
    space->first_chunks = chunks_in(space, space->bytes);
    lay_part(space, second, true, &next);
    return true;
}

void wh_space_clear(wh_space *space) {
    uint64_t chunk_bytes = space->chunk_bytes;
    wh_space_destroy(space);
    space->chunk_bytes = chunk_bytes;
}

void wh_space_destroy(wh_space *space) {
    for (size_t i = 0; i < space->extent_count; i++) {
        wh_free((void *)space->extents[i].levels);
    }
    wh_free(space->extents);
    wh_free(space->begins);
    wh_free(space->order);
    wh_free(space->firsts);
    *space = (wh_space){0};
}

const wherry_extent *wh_space_extents(const wh_space *space, size_t storage, size_t *count_p) {
    size_t first = space->firsts[storage];
    size_t end = storage + 1 < space->storage_count ? space->firsts[storage + 1] : space->extent_count;
    *count_p = end - first;
    return *count_p ? space->extents + first : NULL;
}

uint64_t wh_space_chunk_count(const wh_space *space) {
    return space->first_chunks + chunks_in(space, space->bytes - space->first_bytes);
}

/** Returns the index of the extent that is number `ordinal` when sorted by position. */
static size_t extent_at(const wh_space *space, size_t ordinal) {
    return space->order ? space->order[ordinal] : ordinal;
}

/** Finds the extent that contains a position of the space. @return its ordinal. */
static size_t ordinal_of(const wh_space *space, uint64_t position) {
    size_t low = 0;
    for (size_t count = space->extent_count; count > 1;) {
        size_t half = count / 2;
        if (space->begins[extent_at(space, low + half)] <= position) {
            low += half;
        }
        count -= half;
    }
    return low;
}

uint64_t wh_space_chunk_max(const wh_space *space) {
    return space->chunk_bytes + ELEMENT_MAX;
}

uint64_t wh_space_chunk_begin(const wh_space *space, uint64_t chunk) {
    uint64_t position;
    uint64_t base = chunk < space->first_chunks ? 0 : space->first_bytes;
    chunk -= base ? space->first_chunks : 0;
    if (__builtin_mul_overflow(chunk, space->chunk_bytes, &position) || position >= space->bytes - base) {
        return space->bytes;
    }
    position += base;
    if (position == 0) {
        return 0;
    }
    size_t at = extent_at(space, ordinal_of(space, position));
    const wherry_extent *extent = space->extents + at;
    uint64_t inside = position - space->begins[at];
    uint64_t into_run = inside % extent->length;
    uint64_t byte = wh_extent_run(extent, inside / extent->length) + into_run;
    return position - wh_min(byte % ELEMENT_MAX, into_run);
}

uint64_t wh_space_bytes_of(const wh_space *space, const wh_chunk_set *chunks) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < chunks->count; i++) {
        const wherry_interval *one = chunks->intervals + i;
        bytes += wh_space_chunk_begin(space, one->first + one->count) - wh_space_chunk_begin(space, one->first);
    }
    return bytes;
}

uint64_t wh_space_chunk_of(const wh_space *space, uint64_t position) {
    uint64_t chunk = position < space->first_bytes
                         ? position / space->chunk_bytes
                         : space->first_chunks + (position - space->first_bytes) / space->chunk_bytes;
    return position >= wh_space_chunk_begin(space, chunk + 1) ? chunk + 1 : chunk;
}

/** Visits bytes [begin, end) of an extent. The bytes are counted without the gaps between runs. */
static int visit_extent(const wherry_extent *extent, size_t storage, uint64_t begin, uint64_t end, wh_piece_fn visit,
                        void *context) {
    if (!extent->level_count) { /* This is true for nearly all extents. */
        return begin < end ? visit(context, &(wh_piece){storage, extent->offset + begin, end - begin, 1, 0}) : 0;
    }
    uint64_t length = extent->length;
    wherry_level inner = extent->levels[extent->level_count - 1];
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
    return WH_PARTITION_POINT(space->storage_count, i, space->firsts[i] <= extent) - 1;
}

int wh_space_visit(const wh_space *space, uint64_t begin, uint64_t end, wh_piece_fn visit, void *context) {
    if (begin >= end || end > space->bytes) {
        return 0;
    }
    size_t storage = SIZE_MAX;
    int result = 0;
    for (size_t ordinal = ordinal_of(space, begin); ordinal < space->extent_count && !result; ordinal++) {
        size_t at = extent_at(space, ordinal);
        uint64_t base = space->begins[at];
        if (base >= end) {
            break;
        }
        if (storage == SIZE_MAX || space->order) {
            storage = storage_of(space, at);
        }
        while (storage + 1 < space->storage_count && space->firsts[storage + 1] <= at) {
            storage++;
        }
        uint64_t from = wh_max(begin, base) - base;
        uint64_t to = wh_min(end - base, wh_extent_bytes(space->extents + at));
        result = visit_extent(space->extents + at, storage, from, to, visit, context);
    }
    return result;
}

/*
 * Locating: translating byte offsets of a storage to positions in the space.
 *
 * In a contiguous extent, a position is the byte offset plus a constant. The space does not contain
 * the gaps of a strided extent, so a step of m strides becomes m times the bytes in one repetition.
 * This is exact as long as no index overflows into the next level; `measure` checks this. A copy
 * that is not inside one extent is split along its outermost level, and each part is tried again.
 * If a single run is not inside one extent, the result is WH_LOCATE_UNCOVERED.
 */

typedef struct search {
    const wh_space *space;
    size_t first;
    size_t count;
    uint64_t *work;
    wh_locate_fn found;
    void *context;
} search;

/** Computes, for each level, the distance in the space between two repetitions. */
static void pitches(const wherry_extent *extent, uint64_t pitch[WHERRY_NDIM_MAX]) {
    uint64_t bytes = extent->length;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        pitch[i] = bytes;
        bytes *= extent->levels[i].count;
    }
}

/**
 * Converts a distance in an extent to a distance in the space. Splits the distance into one index
 * per level and an offset within a run. Adds `repeats` times each index to `reach`, and `repeats`
 * times the offset to *rest_p. @return false if the result is beyond the extent.
 */
static bool measure(const wherry_extent *extent, const uint64_t pitch[], uint64_t distance, uint64_t repeats,
                    uint64_t reach[], uint64_t *rest_p, uint64_t *position_p) {
    uint64_t indices[WHERRY_NDIM_MAX];
    uint64_t rest;
    if (!wh_extent_split(extent, distance, indices, &rest)) {
        return false;
    }
    *position_p = rest;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        *position_p += indices[i] * pitch[i];
        if (!wh_add_product(indices[i], repeats, &reach[i]) || reach[i] >= extent->levels[i].count) {
            return false;
        }
    }
    return wh_add_product(rest, repeats, rest_p);
}

/** Translates the copy if one extent covers it completely. */
static bool locate_within(const wherry_extent *extent, uint64_t begin, const wh_copy *copy, wh_copy_work *result) {
    if (!extent->level_count && !copy->level_count) { /* This is true in nearly all calls. */
        uint64_t into = copy->from - extent->offset;
        result->from = begin + into;
        result->to = copy->to;
        result->length = copy->length;
        result->level_count = 0;
        return into <= extent->length && copy->length <= extent->length - into;
    }
    uint64_t pitch[WHERRY_NDIM_MAX];
    uint64_t reach[WHERRY_NDIM_MAX] = {0};
    uint64_t rest = 0;
    uint64_t position;
    pitches(extent, pitch);
    if (!measure(extent, pitch, copy->from - extent->offset, 1, reach, &rest, &position)) {
        return false;
    }
    result->from = begin + position;
    result->to = copy->to;
    result->length = copy->length;
    result->level_count = copy->level_count;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        result->levels[i] = copy->levels[i];
        if (!measure(extent, pitch, copy->levels[i].from_step, copy->levels[i].count - 1, reach, &rest,
                     &result->levels[i].from_step)) {
            return false;
        }
    }
    return rest + copy->length <= extent->length;
}

/** Returns the number of extents of the storage that begin at or before an offset. */
static size_t extents_before(const search *s, uint64_t offset) {
    return WH_PARTITION_POINT(s->count, i, s->space->extents[s->first + i].offset <= offset);
}

/** Subtracts `units` from the work budget. @return false if less than that was left. */
static bool spend(const search *s, uint64_t units) {
    bool enough = *s->work >= units;
    *s->work = enough ? *s->work - units : 0;
    return enough;
}

/** Finds one extent that covers the whole copy. Tries the nearest extent first. */
static bool locate_whole(const search *s, const wh_copy *copy, wh_copy_work *result) {
    for (size_t i = extents_before(s, copy->from); i-- > 0;) {
        const wherry_extent *extent = s->space->extents + s->first + i;
        if (!spend(s, 1 + (uint64_t)extent->level_count * (1 + copy->level_count))) {
            return false;
        }
        if (locate_within(extent, s->space->begins[s->first + i], copy, result)) {
            return true;
        }
        if (extent->level_count == 0 && copy->from < extent->offset + extent->length) {
            return false;
        }
    }
    return false;
}

static wh_located locate(const search *s, const wh_copy *copy) {
    wh_copy_work work;
    if (locate_whole(s, copy, &work)) {
        wh_copy_simplify(&work);
        wh_copy result = wh_copy_borrow(&work);
        return s->found(s->context, &result) ? WH_LOCATED : WH_LOCATE_STOPPED;
    }
    if (*s->work == 0) {
        return WH_LOCATE_EXHAUSTED;
    }
    if (copy->level_count == 0) {
        return WH_LOCATE_UNCOVERED;
    }
    wh_copy_level level = copy->levels[0];
    wh_copy inner = {copy->from, copy->to, copy->length, copy->levels + 1, copy->level_count - 1};
    wh_located located = WH_LOCATED;
    for (uint64_t i = 0; i < level.count && located == WH_LOCATED; i++) {
        located = spend(s, 1) ? locate(s, &inner) : WH_LOCATE_EXHAUSTED;
        inner.from += level.from_step;
        inner.to += level.to_step;
    }
    return located;
}

wh_located wh_space_locate(const wh_space *space, size_t storage, const wh_copy *copy, uint64_t *work,
                           wh_locate_fn found, void *context) {
    search s = {.space = space, .first = space->firsts[storage], .work = work, .found = found, .context = context};
    wh_space_extents(space, storage, &s.count);
    return locate(&s, copy);
}
