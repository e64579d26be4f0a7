/**
 * @file random_space.h  Random spaces for the tests of src/range, with a list of the byte at each
 * position.
 */
#ifndef TEST_RANDOM_SPACE_H
#define TEST_RANDOM_SPACE_H

#include "random_range.h"
#include "range/region.h"
#include "range/space.h"

enum { SPACE_STORAGE = 512, SPACE_STORAGES_MAX = 4, SPACE_BYTES_MAX = 4 * SPACE_STORAGE };

/** A byte of a storage, and the start of the run that contains it. */
typedef struct place {
    size_t storage;
    uint64_t byte;
    uint64_t run;
} place;

/** A space of up to four storages with up to four views each, and the byte at each position. */
typedef struct random_space {
    wh_space space;
    place places[SPACE_BYTES_MAX];
    uint64_t bytes;
} random_space;

static inline void random_space_list(random_space *result) {
    result->bytes = 0;
    for (size_t storage = 0; storage < result->space.storage_count; storage++) {
        size_t count;
        const wherry_extent *extents = wh_space_extents(&result->space, storage, &count);
        for (size_t i = 0; i < count; i++) {
            uint64_t runs = slow_runs(extents + i);
            for (uint64_t run = 0; run < runs; run++) {
                uint64_t at = slow_run(extents + i, run);
                for (uint64_t b = 0; b < extents[i].length; b++) {
                    result->places[result->bytes++] = (place){storage, at + b, at};
                }
            }
        }
    }
}

/**
 * @return false if out of memory. On success, the caller calls wh_space_destroy(&result->space).
 */
static inline bool random_space_make(dice *d, random_space *result) {
    result->space = (wh_space){.chunk_bytes = UINT64_C(32) << below(d, 4)};
    bool ok = true;
    for (uint64_t storages = below(d, SPACE_STORAGES_MAX + 1); storages > 0 && ok; storages--) {
        wh_region region = {0};
        ok = wh_space_add_storage(&result->space);
        for (uint64_t views = below(d, 5); views > 0 && ok; views--) {
            random_view view;
            random_view_make(d, SPACE_STORAGE, &view);
            ok = wh_region_add_view(&region, &view.view, 0);
        }
        ok = ok && wh_region_finish(&region, 0);
        for (size_t i = 0; i < region.count && ok; i++) {
            ok = wh_space_add_extent(&result->space, region.extents + i);
            region.extents[i].levels = NULL;
        }
        wh_region_destroy(&region);
    }
    random_space_list(result);
    return ok;
}

#endif
