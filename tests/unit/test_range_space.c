/*
 * The space: chunk borders and visits as in docs/wire-format.md, and locating copies in it,
 * compared with lists of positions.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "../support/random_space.h"
#include "base/alloc.h"

/*
 * The space, compared with a list of its positions: chunk borders as in docs/wire-format.md, and
 * visits in order.
 */

enum { CASES = 1000, WINDOWS = 10 };

static uint64_t slow_chunk_begin(const random_space *s, uint64_t chunk) {
    uint64_t position = chunk * s->space.chunk_bytes;
    if (position >= s->bytes) {
        return s->bytes;
    }
    uint64_t x = s->places[position].byte;
    uint64_t r = s->places[position].run;
    return position - (x % 16 < x - r ? x % 16 : x - r);
}

static void check_chunks(uint64_t seed, const random_space *s) {
    uint64_t count = (s->bytes + s->space.chunk_bytes - 1) / s->space.chunk_bytes;
    if (s->space.bytes != s->bytes || wh_space_chunk_count(&s->space) != count) {
        fail_msg("seed %llu: %llu chunks", (unsigned long long)seed,
                 (unsigned long long)wh_space_chunk_count(&s->space));
    }
    uint64_t position = 0;
    for (uint64_t chunk = 0; chunk < count; chunk++) {
        uint64_t begin = wh_space_chunk_begin(&s->space, chunk);
        uint64_t end = wh_space_chunk_begin(&s->space, chunk + 1);
        if (begin != slow_chunk_begin(s, chunk) || end != slow_chunk_begin(s, chunk + 1) || begin != position) {
            fail_msg("seed %llu: chunk %llu begins at %llu, not at %llu", (unsigned long long)seed,
                     (unsigned long long)chunk, (unsigned long long)begin,
                     (unsigned long long)slow_chunk_begin(s, chunk));
        }
        for (; position < end; position++) {
            if (wh_space_chunk_of(&s->space, position) != chunk) {
                fail_msg("seed %llu: position %llu is in chunk %llu, not %llu", (unsigned long long)seed,
                         (unsigned long long)position, (unsigned long long)wh_space_chunk_of(&s->space, position),
                         (unsigned long long)chunk);
            }
        }
    }
    assert_int_equal(position, s->bytes);
    assert_int_equal(wh_space_chunk_begin(&s->space, UINT64_MAX), s->bytes);
    assert_int_equal(wh_space_chunk_begin(&s->space, UINT64_MAX / 32 + 2), s->bytes);
}

static void test_chunk_borders_are_right(void **state) {
    (void)state;
    static random_space s;
    int moved = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        assert_true(random_space_make(&d, &s));
        check_chunks(seed, &s);
        moved += slow_chunk_begin(&s, 1) % s.space.chunk_bytes != 0 && slow_chunk_begin(&s, 1) < s.bytes;
        wh_space_destroy(&s.space);
    }
    assert_true(moved > CASES / 20);
}

/*
 * No chunk cuts an element. An element of 16 bytes in an aligned run stays whole, and so does each
 * element that has the alignment of its run.
 */
static void test_chunks_never_split_elements(void **state) {
    (void)state;
    static const struct {
        uint64_t offset;
        uint64_t begin;
    } rows[] = {{0, 64}, {1, 63}, {8, 56}, {15, 49}, {16, 64}, {60, 52}, {63, 49}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        wh_space space = {.chunk_bytes = 64};
        assert_true(wh_space_add_storage(&space));
        assert_true(wh_space_add_extent(&space, &(wherry_extent){rows[i].offset, 100, NULL, 0}));
        assert_int_equal(wh_space_chunk_begin(&space, 0), 0);
        assert_int_equal(wh_space_chunk_begin(&space, 1), rows[i].begin);
        assert_int_equal(wh_space_chunk_begin(&space, 2), 100);
        wh_space_destroy(&space);
    }
    wh_space space = {.chunk_bytes = 64};
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){0, 62, NULL, 0}));
    assert_true(wh_space_add_storage(&space));
    assert_true(wh_space_add_extent(&space, &(wherry_extent){13, 62, NULL, 0}));
    assert_int_equal(wh_space_chunk_begin(&space, 1), 62);
    wh_space_destroy(&space);
}

typedef struct walk {
    const random_space *s;
    uint64_t position;
    uint64_t end;
    int pieces;
    int stop_at;
} walk;

static int step(void *context, const wh_piece *piece) {
    walk *w = context;
    if (++w->pieces == w->stop_at) {
        return 9;
    }
    bool tidy = piece->length > 0 && piece->count > 0 && (piece->count == 1) == (piece->stride == 0);
    for (uint64_t i = 0; i < piece->count; i++) {
        for (uint64_t b = 0; b < piece->length; b++) {
            const place *at = w->s->places + w->position;
            if (!tidy || w->position >= w->end || at->storage != piece->storage ||
                at->byte != piece->offset + i * piece->stride + b) {
                return -1;
            }
            w->position++;
        }
    }
    return 0;
}

static void check_visit(uint64_t seed, dice *d, const random_space *s, uint64_t begin, uint64_t end) {
    walk all = {s, begin, end, 0, 0};
    int result = wh_space_visit(&s->space, begin, end, step, &all);
    if (result != 0 || all.position != end) {
        fail_msg("seed %llu: visiting [%llu, %llu) gives a wrong byte at %llu", (unsigned long long)seed,
                 (unsigned long long)begin, (unsigned long long)end, (unsigned long long)all.position);
    }
    if (all.pieces) {
        walk some = {s, begin, end, 0, (int)between(d, 1, all.pieces)};
        result = wh_space_visit(&s->space, begin, end, step, &some);
        if (result != 9 || some.pieces != some.stop_at) {
            fail_msg("seed %llu: a visit continues after the visitor ended it", (unsigned long long)seed);
        }
    }
}

static void test_visits_have_all_bytes_in_order(void **state) {
    (void)state;
    static random_space s;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        assert_true(random_space_make(&d, &s));
        check_visit(seed, &d, &s, 0, s.bytes);
        for (int i = 0; i < WINDOWS && s.bytes; i++) {
            uint64_t begin = below(&d, s.bytes);
            check_visit(seed, &d, &s, begin, begin + below(&d, s.bytes - begin + 1));
        }
        for (uint64_t chunk = 0; chunk < wh_space_chunk_count(&s.space); chunk++) {
            check_visit(seed, &d, &s, wh_space_chunk_begin(&s.space, chunk), wh_space_chunk_begin(&s.space, chunk + 1));
        }
        walk none = {&s, 0, 0, 0, 1};
        assert_int_equal(wh_space_visit(&s.space, 0, s.bytes + 1, step, &none), 0);
        assert_int_equal(wh_space_visit(&s.space, s.bytes, s.bytes, step, &none), 0);
        wh_space_destroy(&s.space);
    }
}

/*
 * Complete runs of the innermost level form one piece, so that a chunk of columns does not need one
 * call per row.
 */
static void test_complete_runs_are_one_piece(void **state) {
    (void)state;
    static random_space s;
    wherry_level *levels = wh_alloc_array(2, sizeof(*levels));
    assert_non_null(levels);
    levels[0] = (wherry_level){3, 200};
    levels[1] = (wherry_level){10, 16};
    s.space = (wh_space){.chunk_bytes = 64};
    assert_true(wh_space_add_storage(&s.space));
    assert_true(wh_space_add_extent(&s.space, &(wherry_extent){0, 8, levels, 2}));
    random_space_list(&s);
    walk w = {&s, 0, 240, 0, 0};
    assert_int_equal(wh_space_visit(&s.space, 0, 240, step, &w), 0);
    assert_int_equal(w.pieces, 3);
    w = (walk){&s, 4, 236, 0, 0};
    assert_int_equal(wh_space_visit(&s.space, 4, 236, step, &w), 0);
    assert_int_equal(w.pieces, 5);
    wh_space_destroy(&s.space);
}

static void test_lists_the_extents_of_a_storage(void **state) {
    (void)state;
    wh_space space = {.chunk_bytes = 4096};
    const size_t counts[] = {0, 3, 0, 0, 2, 0};
    for (size_t storage = 0; storage < 6; storage++) {
        assert_true(wh_space_add_storage(&space));
        for (uint64_t i = 0; i < counts[storage]; i++) {
            assert_true(wh_space_add_extent(&space, &(wherry_extent){storage * 100 + i, 1, NULL, 0}));
        }
    }
    for (size_t storage = 0; storage < 6; storage++) {
        size_t count;
        const wherry_extent *extents = wh_space_extents(&space, storage, &count);
        assert_int_equal(count, counts[storage]);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(extents[i].offset, storage * 100 + i);
        }
    }
    assert_int_equal(space.bytes, 5);
    assert_int_equal(wh_space_chunk_count(&space), 1);
    wh_space_destroy(&space);
    assert_int_equal(space.bytes, 0);
}

static void test_reserve_prevents_growth(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    wh_space space = {.chunk_bytes = 4096};
    assert_true(wh_space_reserve(&space, 100));
    uint64_t calls = count.calls;
    for (uint64_t i = 0; i < 99; i++) {
        assert_true(wh_space_add_storage(&space));
        assert_true(wh_space_add_extent(&space, &(wherry_extent){i, 10, NULL, 0}));
    }
    assert_int_equal(count.calls, calls);
    assert_int_equal(space.bytes, 990);
    wh_space_destroy(&space);
    count.fail = count.calls + 2;
    assert_false(wh_space_reserve(&space, 100));
    wh_space_destroy(&space);
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    counting count;
    bool made = false;
    for (uint64_t fail = 1; !made; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_space space = {.chunk_bytes = 4096};
        made = true;
        for (uint64_t i = 0; i < 20 && made; i++) {
            uint64_t before = space.bytes;
            made = wh_space_add_storage(&space) && wh_space_add_extent(&space, &(wherry_extent){i, 10, NULL, 0});
            assert_int_equal(space.bytes, made ? before + 10 : before);
        }
        wh_space_destroy(&space);
        assert_int_equal(count.held, 0);
        assert_int_equal(count.wrong, 0);
        assert_true(fail < 1000);
    }
    wherry_allocator_set(NULL);
    assert_true(count.calls >= 9);
}

/** The positions of a space in two parts, in the order of its chunks. */
typedef struct parted {
    const place *expected;
    const bool *second;
    uint64_t at;
    bool part;
} parted;

static int compare_piece(void *context, const wh_piece *piece) {
    parted *w = context;
    for (uint64_t run = 0; run < piece->count; run++) {
        for (uint64_t i = 0; i < piece->length; i++, w->at++) {
            assert_int_equal(piece->storage, w->expected[w->at].storage);
            assert_int_equal(piece->offset + run * piece->stride + i, w->expected[w->at].byte);
            assert_int_equal(w->second[piece->storage], w->part);
        }
    }
    return 0;
}

/**
 * The two parts behave like two spaces. No chunk has bytes of both, and the chunks of each part are
 * counted from its start.
 */
static void test_two_parts_share_no_chunk(void **state) {
    (void)state;
    static random_space s;
    static place expected[SPACE_BYTES_MAX];
    int mixed = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        bool second[SPACE_STORAGES_MAX] = {below(&d, 2), below(&d, 2), below(&d, 2), below(&d, 2)};
        assert_true(random_space_make(&d, &s));
        uint64_t count = 0;
        uint64_t first = 0;
        for (int part = 0; part < 2; part++) {
            first = part ? count : first;
            for (uint64_t i = 0; i < s.bytes; i++) {
                if (second[s.places[i].storage] == part) {
                    expected[count++] = s.places[i];
                }
            }
        }
        assert_true(wh_space_divide(&s.space, second));
        assert_int_equal(s.space.bytes, s.bytes);
        uint64_t chunks[] = {(first + s.space.chunk_bytes - 1) / s.space.chunk_bytes,
                             (s.bytes - first + s.space.chunk_bytes - 1) / s.space.chunk_bytes};
        assert_int_equal(wh_space_chunk_count(&s.space), chunks[0] + chunks[1]);
        mixed += chunks[0] && chunks[1];
        parted w = {.expected = expected, .second = second};
        for (uint64_t chunk = 0; chunk < chunks[0] + chunks[1]; chunk++) {
            w.part = chunk >= chunks[0];
            uint64_t plain = w.part ? first + (chunk - chunks[0]) * s.space.chunk_bytes : chunk * s.space.chunk_bytes;
            uint64_t into = expected[plain].byte - expected[plain].run;
            uint64_t begin = plain - (expected[plain].byte % 16 < into ? expected[plain].byte % 16 : into);
            assert_int_equal(wh_space_chunk_begin(&s.space, chunk), begin);
            assert_int_equal(w.at, begin);
            uint64_t end = wh_space_chunk_begin(&s.space, chunk + 1);
            assert_int_equal(wh_space_visit(&s.space, begin, end, compare_piece, &w), 0);
            assert_int_equal(wh_space_chunk_of(&s.space, begin), chunk);
            assert_int_equal(wh_space_chunk_of(&s.space, end - 1), chunk);
        }
        assert_int_equal(w.at, s.bytes);
        wh_space_destroy(&s.space);
    }
    assert_true(mixed > CASES / 4);
}

/* Locating bytes of a storage in the space, compared with a list of all positions. */

enum { LOCATE_CASES = 2000, PLENTY = 1 << 24 };

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
    uint64_t runs = slow_copy_runs(copy);
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t from;
        uint64_t to;
        slow_copy_run(copy, run, &from, &to);
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
        fail_msg("seed %llu: budget %llu, %llu left: wrong result %d", (unsigned long long)seed,
                 (unsigned long long)little, (unsigned long long)work, (int)result);
    }
    if (f.copies) {
        found stopped = {.s = s, .storage = storage, .stop_at = (int)between(d, 1, f.copies)};
        work = PLENTY;
        result = wh_space_locate(&s->space, storage, copy, &work, take, &stopped);
        if (result != WH_LOCATE_STOPPED || stopped.copies != stopped.stop_at) {
            fail_msg("seed %llu: locating continues after the visitor ended it", (unsigned long long)seed);
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

static void test_locates_random_views(void **state) {
    (void)state;
    static random_space s;
    int yes = 0;
    int no = 0;
    for (uint64_t seed = 1; seed <= LOCATE_CASES; seed++) {
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
    assert_true(yes > LOCATE_CASES / 4 && no > LOCATE_CASES / 4);
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

static void test_locates_its_own_views(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= LOCATE_CASES; seed++) {
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
    /* There is one extent. Its level is compared with the level of the copy. */
    assert_int_equal(work, 7);
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
 * A hostile view must not take forever. A copy that visits two extents 2^40 times ends when its
 * budget is spent.
 */
static void test_locating_ends_when_the_budget_is_spent(void **state) {
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
static void test_overflowing_steps_are_not_found(void **state) {
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

static void test_storage_without_extents_covers_nothing(void **state) {
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
        cmocka_unit_test(test_chunk_borders_are_right),
        cmocka_unit_test(test_chunks_never_split_elements),
        cmocka_unit_test(test_visits_have_all_bytes_in_order),
        cmocka_unit_test(test_complete_runs_are_one_piece),
        cmocka_unit_test(test_lists_the_extents_of_a_storage),
        cmocka_unit_test(test_reserve_prevents_growth),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_two_parts_share_no_chunk),
        cmocka_unit_test(test_locates_random_views),
        cmocka_unit_test(test_locates_its_own_views),
        cmocka_unit_test(test_columns_are_one_copy),
        cmocka_unit_test(test_locating_ends_when_the_budget_is_spent),
        cmocka_unit_test(test_overflowing_steps_are_not_found),
        cmocka_unit_test(test_storage_without_extents_covers_nothing),
    };
    return cmocka_run_group_tests_name("range_space", tests, NULL, NULL);
}
