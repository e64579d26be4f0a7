/* From bytes of a storage to positions of the space, compared with a list of all positions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/random_space.h"
#include "base/alloc.h"

enum { CASES = 2000, PLENTY = 1 << 24 };

/**
 * The result as pairs of source byte and target byte, which can be compared with the copy itself.
 */
typedef struct found {
    const random_space *s;
    size_t storage;
    pairs pairs;
    int copies;
    int stop_at;
    bool wrong;
} found;

static bool take(void *context, const wh_copy *copy) {
    found *f = context;
    if (++f->copies == f->stop_at) {
        return false;
    }
    uint64_t runs = wh_copy_bytes(&(wh_copy){0, 0, 1, copy->levels, copy->level_count});
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t from = copy->from;
        uint64_t to = copy->to;
        uint64_t rest = run;
        for (uint32_t i = 0; i < copy->level_count; i++) {
            from += rest % copy->levels[i].count * copy->levels[i].from_step;
            to += rest % copy->levels[i].count * copy->levels[i].to_step;
            rest /= copy->levels[i].count;
        }
        for (uint64_t b = 0; b < copy->length; b++) {
            if (from + b >= f->s->bytes || f->s->places[from + b].storage != f->storage) {
                f->wrong = true;
                return false;
            }
            pairs_add(&f->pairs, f->s->places[from + b].byte, to + b);
        }
    }
    return true;
}

/** True if every run that the copy reads is within one run of the storage. */
static bool covered(const random_space *s, size_t storage, const wh_copy *copy) {
    uint64_t runs[SPACE_STORAGE];
    memset(runs, 0xFF, sizeof(runs));
    for (uint64_t i = 0; i < s->bytes; i++) {
        if (s->places[i].storage == storage) {
            runs[s->places[i].byte] = s->places[i].run;
        }
    }
    uint64_t count = wh_copy_bytes(&(wh_copy){0, 0, 1, copy->levels, copy->level_count});
    for (uint64_t run = 0; run < count; run++) {
        uint64_t at = copy->from;
        uint64_t rest = run;
        for (uint32_t i = 0; i < copy->level_count; i++) {
            at += rest % copy->levels[i].count * copy->levels[i].from_step;
            rest /= copy->levels[i].count;
        }
        for (uint64_t b = 0; b < copy->length; b++) {
            if (runs[at] == UINT64_MAX || runs[at + b] != runs[at]) {
                return false;
            }
        }
    }
    return true;
}

/** Locates a copy with a large budget, then with a small one. */
static void check_copy(uint64_t seed, dice *d, const random_space *s, size_t storage, const wh_copy *copy,
                       bool expected) {
    found f = {.s = s, .storage = storage};
    uint64_t work = PLENTY;
    wh_located located = wh_space_locate(&s->space, storage, copy, &work, take, &f);
    pairs wanted = pairs_of_copy(copy, 0, UINT64_MAX);
    if (located != (expected ? WH_LOCATED : WH_LOCATE_UNCOVERED) || f.wrong ||
        (expected && (f.pairs.count != wanted.count || f.pairs.sum != wanted.sum))) {
        fail_msg("seed %llu: located %d, covered %d, %llu bytes of %llu", (unsigned long long)seed, (int)located,
                 (int)expected, (unsigned long long)f.pairs.count, (unsigned long long)wanted.count);
    }
    uint64_t used = PLENTY - work;
    uint64_t little = below(d, used + 2);
    work = little;
    found hasty = {.s = s, .storage = storage};
    wh_located result = wh_space_locate(&s->space, storage, copy, &work, take, &hasty);
    if (work > little || (result != located && (result != WH_LOCATE_EXHAUSTED || work > 0)) ||
        (little > used && result != located)) {
        fail_msg("seed %llu: with work for %llu, %llu left: %d", (unsigned long long)seed, (unsigned long long)little,
                 (unsigned long long)work, (int)result);
    }
    if (f.copies) {
        found stopped = {.s = s, .storage = storage, .stop_at = (int)between(d, 1, f.copies)};
        work = PLENTY;
        result = wh_space_locate(&s->space, storage, copy, &work, take, &stopped);
        if (result != WH_LOCATE_STOPPED || stopped.copies != stopped.stop_at) {
            fail_msg("seed %llu: it goes on", (unsigned long long)seed);
        }
    }
}

/** The copy of a view of the storage into a dense tensor. */
static bool random_reading(dice *d, random_view *view, wh_copy_work *work) {
    int64_t strides[RANDOM_NDIM_MAX];
    random_dense_strides(d, view->view.ndim, view->shape, 1, strides);
    wh_view to = view->view;
    to.offset = below(d, 100);
    to.strides = strides;
    return wh_copy_between_views(&view->view, &to, work);
}

static void test_random_views_of_random_spaces(void **state) {
    (void)state;
    static random_space s;
    int yes = 0;
    int no = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        assert_true(random_space_make(&d, &s));
        for (size_t storage = 0; storage < s.space.storage_count; storage++) {
            for (int i = 0; i < 4; i++) {
                random_view view;
                wh_copy_work work;
                random_view_make(&d, SPACE_STORAGE, &view);
                if (random_reading(&d, &view, &work)) {
                    wh_copy copy = wh_copy_borrow(&work);
                    bool expected = covered(&s, storage, &copy);
                    check_copy(seed, &d, &s, storage, &copy, expected);
                    yes += expected;
                    no += !expected;
                }
            }
        }
        wh_space_destroy(&s.space);
    }
    assert_true(yes > CASES / 4 && no > CASES / 4);
}

/** Creates a space of one storage from views, then locates each of these views. */
static void check_own_views(uint64_t seed, uint64_t max_gap) {
    static random_space s;
    dice d = {seed};
    random_view views[4];
    uint64_t count = 1 + below(&d, 4);
    wh_region region = {0};
    for (uint64_t i = 0; i < count; i++) {
        random_view_make(&d, SPACE_STORAGE, views + i);
        assert_true(wh_region_add_view(&region, &views[i].view, max_gap));
    }
    assert_true(wh_region_finish(&region, max_gap));
    s.space = (wh_space){.chunk_bytes = 4096};
    assert_true(wh_space_add_storage(&s.space));
    for (size_t i = 0; i < region.count; i++) {
        assert_true(wh_space_add_extent(&s.space, region.extents + i));
        region.extents[i].levels = NULL;
    }
    wh_region_destroy(&region);
    assert_true(s.space.bytes <= SPACE_BYTES_MAX);
    random_space_list(&s);
    for (uint64_t i = 0; i < count; i++) {
        wh_copy_work work;
        if (random_reading(&d, views + i, &work)) {
            wh_copy copy = wh_copy_borrow(&work);
            check_copy(seed, &d, &s, 0, &copy, true);
        }
    }
    wh_space_destroy(&s.space);
}

static void test_views_that_the_space_was_made_of(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        check_own_views(seed, 0);
        check_own_views(seed, 1 + seed % 20);
    }
}

static bool accept(void *context, const wh_copy *copy) {
    (void)copy;
    ++*(uint64_t *)context;
    return true;
}

static bool keep(void *context, const wh_copy *copy) {
    wh_copy_work *kept = context;
    *kept = (wh_copy_work){copy->from, copy->to, copy->length, copy->level_count, {{0}}};
    if (copy->level_count) {
        memcpy(kept->levels, copy->levels, copy->level_count * sizeof(*copy->levels));
    }
    return true;
}

/* Every second row of a huge matrix of columns is one copy, found at once. */
static void test_columns_are_one_copy(void **state) {
    (void)state;
    wh_space space = {.chunk_bytes = 4096};
    wherry_level *levels = wh_alloc_array(1, sizeof(*levels));
    assert_non_null(levels);
    levels[0] = (wherry_level){UINT64_C(1) << 30, 4096};
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){0, 10, NULL, 0}));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){1024, 64, levels, 1}));
    wh_copy_level step = {UINT64_C(1) << 29, 8192, 32};
    const wh_copy copy = {1024 + 4096 + 16, 5, 32, &step, 1};
    wh_copy_work kept;
    uint64_t work = 10;
    assert_int_equal(wh_space_locate(&space, 0, &copy, &work, keep, &kept), WH_LOCATED);
    assert_int_equal(work, 7); /* one extent: its level is compared with the level of the copy */
    assert_int_equal(kept.from, 10 + 64 + 16);
    assert_int_equal(kept.to, 5);
    assert_int_equal(kept.length, 32);
    assert_int_equal(kept.level_count, 1);
    const wh_copy_level expected = {UINT64_C(1) << 29, 128, 32};
    assert_memory_equal(kept.levels, &expected, sizeof(expected));
    step.count++;
    uint64_t copies = 0;
    assert_int_equal(wh_space_locate(&space, 0, &copy, &work, accept, &copies), WH_LOCATE_EXHAUSTED);
    wh_space_destroy(&space);
}

/*
 * A hostile view must not take forever: a copy that runs through two extents 2^40 times ends when
 * the budget is spent.
 */
static void test_work_ends(void **state) {
    (void)state;
    wh_space space = {.chunk_bytes = 4096};
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){0, 16, NULL, 0}));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){32, 16, NULL, 0}));
    const wh_copy_level levels[] = {{UINT64_C(1) << 40, 0, 16}, {2, 32, 8}};
    const wh_copy copy = {0, 0, 8, levels, 2};
    uint64_t work = 1000;
    uint64_t copies = 0;
    assert_int_equal(wh_space_locate(&space, 0, &copy, &work, accept, &copies), WH_LOCATE_EXHAUSTED);
    assert_int_equal(work, 0);
    assert_true(copies > 0 && copies <= 1000);
    work = 0;
    copies = 0;
    assert_int_equal(wh_space_locate(&space, 0, &copy, &work, accept, &copies), WH_LOCATE_EXHAUSTED);
    assert_int_equal(copies, 0);
    wh_space_destroy(&space);
}

/* If a step times its count exceeds 64 bits, the copy is not found by wrapping around. */
static void test_steps_that_overflow(void **state) {
    (void)state;
    wh_space space = {.chunk_bytes = 4096};
    wherry_level *levels = wh_alloc_array(1, sizeof(*levels));
    assert_non_null(levels);
    levels[0] = (wherry_level){1000, 64};
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){0, 32, levels, 1}));
    const wh_copy_level steps[] = {{(UINT64_C(1) << 63) + 1, 2, 8}, {UINT64_C(1) << 62, 64 * 4, 8}};
    for (int i = 0; i < 2; i++) {
        const wh_copy copy = {0, 0, 8, steps + i, 1};
        uint64_t work = 100000;
        uint64_t copies = 0;
        assert_int_equal(wh_space_locate(&space, 0, &copy, &work, accept, &copies), WH_LOCATE_UNCOVERED);
        assert_true(copies <= 250);
    }
    wh_space_destroy(&space);
}

static void test_storage_without_extents(void **state) {
    (void)state;
    wh_space space = {.chunk_bytes = 4096};
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){0, 16, NULL, 0}));
    const wh_copy copy = {0, 0, 8, NULL, 0};
    uint64_t work = 100;
    uint64_t copies = 0;
    assert_int_equal(wh_space_locate(&space, 0, &copy, &work, accept, &copies), WH_LOCATE_UNCOVERED);
    assert_int_equal(copies, 0);
    assert_int_equal(wh_space_locate(&space, 1, &copy, &work, accept, &copies), WH_LOCATED);
    assert_int_equal(copies, 1);
    wh_space_destroy(&space);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_views_of_random_spaces), cmocka_unit_test(test_views_that_the_space_was_made_of),
        cmocka_unit_test(test_columns_are_one_copy),          cmocka_unit_test(test_work_ends),
        cmocka_unit_test(test_steps_that_overflow),           cmocka_unit_test(test_storage_without_extents),
    };
    return cmocka_run_group_tests_name("range_locate", tests, NULL, NULL);
}
