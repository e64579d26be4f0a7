/* The scheduler in a simulated world: sources with rates and latencies that die, join late, stall and lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plan/schedule.h"

enum { PIECES = 4, SOURCES = 6, CHUNKS_MAX = 600, RUNS = 10000, CHUNK = 4 << 20 };
#define SECOND UINT64_C(1000000000)

static uint64_t seed;

static uint64_t draw(uint64_t below) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % below;
}

typedef struct sim_source {
    int number; /* -1: not added yet, or removed */
    double rate;
    uint64_t latency;
    uint64_t joins_at;
    uint64_t dies_at;
    uint64_t stalls_at; /* delivers nothing more, and does not die */
    uint32_t lies;      /* one in so many chunks is damaged; 0: none */
    bool local;
    wh_chunk_set have;
    bool partial;
    uint64_t queue[CHUNKS_MAX * 2];
    size_t head;
    size_t tail;
    uint64_t free_at; /* the link is busy until then */
    uint64_t sent;
    uint32_t pieces; /* of the first chunk in the queue that have moved */
    uint32_t rejected;
} sim_source;

typedef struct world {
    wh_chunk_set wanted;
    wh_schedule *schedule;
    sim_source sources[SOURCES];
    int count;
    uint64_t now;
    uint64_t moved;
    uint8_t landed[CHUNKS_MAX * 2]; /* by chunk number: from which source + 1 */
} world;

static uint64_t chunk_bytes(const void *context, uint64_t chunk) {
    (void)context;
    return CHUNK - chunk % 16;
}

static void ask_all(world *w) {
    for (int i = 0; i < w->count; i++) {
        sim_source *one = w->sources + i;
        uint64_t chunks[64];
        size_t got;
        while (one->number >= 0 && (got = wh_schedule_next(w->schedule, one->number, w->now, chunks, 64)) > 0) {
            for (size_t k = 0; k < got; k++) {
                assert_true(!one->partial || wh_chunk_set_has(&one->have, chunks[k]));
                assert_true(wh_chunk_set_has(&w->wanted, chunks[k]));
                for (size_t q = one->head; q < one->tail; q++) {
                    assert_true(one->queue[q] != chunks[k]); /* never twice at once */
                }
                if (one->head == one->tail && one->free_at < w->now + one->latency) {
                    one->free_at = w->now + one->latency;
                }
                assert_true(one->tail < CHUNKS_MAX * 2);
                one->queue[one->tail++] = chunks[k];
            }
        }
    }
}

static uint64_t head_at(const sim_source *one) {
    if (one->number < 0 || one->head == one->tail) {
        return UINT64_MAX;
    }
    uint64_t at =
        one->free_at + (uint64_t)((double)chunk_bytes(NULL, one->queue[one->head]) / PIECES / one->rate * 1e9);
    return at >= one->stalls_at ? UINT64_MAX : at;
}

static void lose(world *w, sim_source *one) {
    for (uint64_t c = 0; c < CHUNKS_MAX * 2; c++) {
        if (w->landed[c] == one->number + 1) {
            w->landed[c] = 0;
        }
    }
    wh_schedule_remove(w->schedule, one->number);
    one->number = -1;
    one->head = one->tail = 0;
    one->pieces = 0;
}

static void deliver(world *w, sim_source *one) {
    uint64_t chunk = one->queue[one->head];
    one->free_at = w->now;
    wh_schedule_moved(w->schedule, one->number, chunk_bytes(NULL, chunk) / PIECES, w->now);
    if (++one->pieces < PIECES) {
        return;
    }
    one->head++;
    one->pieces = 0;
    one->sent += chunk_bytes(NULL, chunk);
    w->moved += chunk_bytes(NULL, chunk);
    if (one->lies && draw(one->lies) == 0) {
        wh_schedule_rejected(w->schedule, one->number, chunk);
        if (++one->rejected == 3) {
            lose(w, one);
        }
        return;
    }
    bool fresh = wh_schedule_landed(w->schedule, one->number, chunk);
    assert_int_equal(fresh, w->landed[chunk] == 0);
    if (fresh) {
        w->landed[chunk] = (uint8_t)(one->number + 1);
    }
}

/** Runs until everything has landed or nobody is left. @return true if everything has landed. */
static bool run(world *w) {
    for (uint64_t turns = 0;; turns++) {
        uint64_t next = UINT64_MAX;
        uint64_t stuck;
        sim_source *who = NULL;
        enum { NONE, JOIN, DIE, DELIVER } what = NONE;
        assert_true(turns < 1000000);
        ask_all(w);
        if (wh_schedule_is_done(w->schedule)) {
            return true;
        }
        for (int i = 0; i < w->count; i++) {
            sim_source *one = w->sources + i;
            bool waits = one->number < 0 && one->joins_at != UINT64_MAX;
            uint64_t at = waits ? one->joins_at : head_at(one);
            if (at < next) {
                next = at;
                who = one;
                what = waits ? JOIN : DELIVER;
            }
            if (one->number >= 0 && one->dies_at < next) {
                next = one->dies_at;
                who = one;
                what = DIE;
            }
        }
        uint64_t wake = wh_schedule_wake_at(w->schedule);
        if (wake < next) {
            w->now = wake > w->now ? wake : w->now;
            continue;
        }
        if (what == NONE) {
            /* Nothing will ever happen again: only right if nobody who is left can deliver. */
            for (int i = 0; i < w->count; i++) {
                sim_source *one = w->sources + i;
                assert_true(one->number < 0 || one->partial || w->now >= one->stalls_at ||
                            one->stalls_at != UINT64_MAX);
            }
            (void)wh_schedule_is_stuck(w->schedule, &stuck);
            return false;
        }
        w->now = next > w->now ? next : w->now;
        if (what == JOIN) {
            who->joins_at = UINT64_MAX;
            who->number = wh_schedule_add(w->schedule, who->partial ? &who->have : NULL, who->local, w->now);
            assert_true(who->number >= 0);
        } else if (what == DIE) {
            who->dies_at = UINT64_MAX;
            lose(w, who);
        } else {
            deliver(w, who);
        }
    }
}

static void init_world(world *w, uint64_t chunks, int count, uint32_t local_limit) {
    memset(w, 0, sizeof(*w));
    w->count = count;
    /* Two intervals with a gap. */
    uint64_t first = chunks / 3;
    if (first) {
        assert_true(wh_chunk_set_add(&w->wanted, 0, first - 1));
    }
    assert_true(wh_chunk_set_add(&w->wanted, first + 5, first + 5 + (chunks - first) - 1));
    w->schedule = wh_schedule_create(&w->wanted, chunk_bytes, NULL, local_limit);
    assert_non_null(w->schedule);
    for (int i = 0; i < count; i++) {
        w->sources[i] = (sim_source){
            .number = -1, .rate = 50e6, .latency = 1000000, .dies_at = UINT64_MAX, .stalls_at = UINT64_MAX};
    }
}

static void end_world(world *w) {
    for (int i = 0; i < w->count; i++) {
        wh_chunk_set_destroy(&w->sources[i].have);
    }
    wh_schedule_destroy(w->schedule);
    wh_chunk_set_destroy(&w->wanted);
}

static uint64_t total_bytes(const world *w) {
    uint64_t sum = 0;
    for (uint64_t place = 0; place < w->wanted.total; place++) {
        sum += chunk_bytes(NULL, wh_chunk_set_at(&w->wanted, place));
    }
    return sum;
}

static void check_all_landed(const world *w) {
    for (uint64_t place = 0; place < w->wanted.total; place++) {
        assert_true(w->landed[wh_chunk_set_at(&w->wanted, place)] != 0);
    }
}

/** Random rates, deaths, joins, stalls and lies; it ends, and it is complete if one honest source stays. */
static void test_random_worlds(void **state) {
    static world w;
    (void)state;
    for (uint64_t i = 0; i < RUNS; i++) {
        seed = i * 977 + 1;
        bool trouble = draw(2);
        int count = 1 + (int)draw(SOURCES);
        init_world(&w, 1 + draw(draw(4) ? 60 : CHUNKS_MAX), count, 1 + (uint32_t)draw(3));
        for (int k = 0; k < count; k++) {
            sim_source *one = w.sources + k;
            one->rate = 1e6 * (double)(2 + draw(draw(2) ? 20 : 10000));
            one->latency = draw(2) ? 10000 + draw(50000) : draw(40000000);
            one->local = draw(3) == 0;
            one->joins_at = k == 0 || draw(2) ? 0 : draw(3 * SECOND);
            if (trouble && k > 0) { /* source 0 is honest and stays */
                one->dies_at = draw(3) == 0 ? draw(4 * SECOND) : UINT64_MAX;
                one->stalls_at = draw(5) == 0 ? draw(4 * SECOND) : UINT64_MAX;
                one->lies = draw(4) == 0 ? 1 + (uint32_t)draw(10) : 0;
                one->partial = draw(4) == 0;
                for (uint64_t p = 0; one->partial && p < w.wanted.total; p++) {
                    uint64_t chunk = wh_chunk_set_at(&w.wanted, p);
                    assert_true(draw(2) || wh_chunk_set_add(&one->have, chunk, chunk));
                }
            }
        }
        if (!run(&w)) {
            fail_msg("run %llu did not finish", (unsigned long long)i);
        }
        check_all_landed(&w);
        if (!trouble && w.moved > total_bytes(&w) + total_bytes(&w) / WH_SCHEDULE_WASTE) {
            fail_msg("run %llu moved %llu bytes for %llu", (unsigned long long)i, (unsigned long long)w.moved,
                     (unsigned long long)total_bytes(&w));
        }
        end_world(&w);
    }
}

/** The time that a world takes, in relation to the best possible split over all its links. */
static double efficiency(world *w) {
    double rates = 0;
    for (int i = 0; i < w->count; i++) {
        rates += w->sources[i].rate;
    }
    assert_true(run(w));
    check_all_landed(w);
    return (double)w->now * 1e-9 / ((double)total_bytes(w) / rates);
}

static void test_equal_sources_share(void **state) {
    static world w;
    (void)state;
    init_world(&w, 256, 3, 1);
    double ratio = efficiency(&w);
    if (ratio > 1.05) {
        fail_msg("three equal sources: %.3f of the best time", ratio);
    }
    end_world(&w);
}

static void test_slow_source_gets_less(void **state) {
    static world w;
    (void)state;
    init_world(&w, 256, 3, 1);
    w.sources[1].rate = 5e6;
    double ratio = efficiency(&w);
    if (ratio > 1.10) {
        fail_msg("one of three is ten times slower: %.3f of the best time", ratio);
    }
    end_world(&w);
}

static void test_death_costs_little(void **state) {
    static world w;
    (void)state;
    init_world(&w, 256, 3, 1);
    w.sources[2].dies_at = 3 * SECOND + SECOND / 2; /* about half time; what it had sent is fetched again */
    assert_true(run(&w));
    check_all_landed(&w);
    double remaining = (double)(total_bytes(&w) - (uint64_t)(2 * 50e6 * 3.5));
    double best = 3.5 + remaining / 100e6;
    if ((double)w.now * 1e-9 > best * 1.05) {
        fail_msg("%.2f s instead of %.2f s", (double)w.now * 1e-9, best);
    }
    assert_true(w.moved < total_bytes(&w) * 6 / 5);
    end_world(&w);
}

static void test_standby_steps_in(void **state) {
    static world w;
    (void)state;
    init_world(&w, 64, 3, 1);
    for (int i = 0; i < 3; i++) {
        w.sources[i].local = true;
        w.sources[i].rate = 5e9;
    }
    w.sources[0].dies_at = 20000000;
    assert_true(run(&w));
    check_all_landed(&w);
    assert_true(w.sources[1].sent > 0);
    assert_int_equal(w.sources[2].sent, 0);
    end_world(&w);
}

static void test_confirmed_chunks_stay(void **state) {
    static world w;
    uint64_t chunks[8];
    (void)state;
    init_world(&w, 4, 0, 1);
    int one = wh_schedule_add(w.schedule, NULL, false, 0);
    int other = wh_schedule_add(w.schedule, NULL, false, 0);
    assert_int_equal(wh_schedule_next(w.schedule, one, 0, chunks, 8), 2);
    assert_true(wh_schedule_landed(w.schedule, one, chunks[0]));
    assert_true(wh_schedule_landed(w.schedule, one, chunks[1]));
    assert_false(wh_schedule_landed(w.schedule, one, chunks[1]));
    wh_schedule_confirm(w.schedule, chunks[0], other);
    wh_schedule_remove(w.schedule, one);
    assert_int_equal(wh_schedule_landed_from(w.schedule, other), 1);
    size_t left = 0;
    for (size_t got; (got = wh_schedule_next(w.schedule, other, 3000, chunks, 8)) > 0;) {
        for (size_t i = 0; i < got; i++) {
            assert_true(wh_schedule_landed(w.schedule, other, chunks[i]));
            left++;
        }
    }
    assert_int_equal(left, 3);
    assert_true(wh_schedule_is_done(w.schedule));
    end_world(&w);
}

static void test_stuck_names_the_chunk(void **state) {
    static world w;
    uint64_t chunk;
    (void)state;
    init_world(&w, 3, 0, 1); /* chunks 0, 6, 7 */
    wh_chunk_set some = {0};
    assert_true(wh_chunk_set_add(&some, 0, 6));
    assert_int_equal(wh_schedule_add(w.schedule, &some, false, 0), 0);
    assert_true(wh_schedule_is_stuck(w.schedule, &chunk));
    assert_int_equal(chunk, 7);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), 1);
    assert_false(wh_schedule_is_stuck(w.schedule, &chunk));
    wh_chunk_set_destroy(&some);
    end_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_sources_share),   cmocka_unit_test(test_slow_source_gets_less),
        cmocka_unit_test(test_death_costs_little),    cmocka_unit_test(test_standby_steps_in),
        cmocka_unit_test(test_confirmed_chunks_stay), cmocka_unit_test(test_stuck_names_the_chunk),
        cmocka_unit_test(test_random_worlds),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
