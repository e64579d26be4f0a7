/*
 * The scheduler in simulated worlds: sources with rates and latencies that join late, stall, send
 * wrong bytes, die and come back. Then single rules, one by one.
 */
#include "support/build.h"

#include <stdlib.h>

#include "plan/schedule.h"
#include "support/counting_allocator.h"
#include "support/schedule_world.h"

enum { WORLDS = 10000 };

static void check_all_landed(const world *w) {
    for (uint64_t place = 0; place < w->wanted.total; place++) {
        int from = w->chunks[wh_chunk_set_at(&w->wanted, place)].landed;
        bool live = false;
        for (int i = 0; i < w->count; i++) {
            live = live || (from >= 0 && w->sources[i].number == from);
        }
        assert_true(live);
        assert_int_equal(wh_schedule_source_of(w->schedule, wh_chunk_set_at(&w->wanted, place)), from);
    }
}

static bool nobody_has(const world *w, uint64_t chunk) {
    for (int i = 0; i < w->count; i++) {
        if (w->sources[i].number >= 0 && sim_has(w->sources + i, chunk)) {
            return false;
        }
    }
    return true;
}

/** The world is stuck, so there must be a chunk that no source has. */
static void check_stuck(const world *w) {
    uint64_t place = 0;
    while (place < w->wanted.total && (w->chunks[wh_chunk_set_at(&w->wanted, place)].landed >= 0 ||
                                       !nobody_has(w, wh_chunk_set_at(&w->wanted, place)))) {
        place++;
    }
    assert_true(place < w->wanted.total);
}

/**
 * Seconds that the best possible split takes if every source has everything: each delivers from its
 * first byte to the end. Of the local ones, only as many as may be used at once.
 */
static double best_time(const world *w) {
    double low = 0;
    double high = 1e6;
    while (high - low > 1e-6) {
        double middle = (low + high) / 2;
        double sum = 0;
        for (int i = 0; i < w->count; i++) {
            const sim_source *one = w->sources + i;
            uint32_t before = 0;
            for (int k = 0; k < w->count; k++) {
                before += w->sources[k].local && w->sources[k].number < one->number && w->sources[k].number >= 0;
            }
            double start = (double)(one->joined_at + one->latency) * 1e-9;
            bool used = one->number >= 0 && !(one->local && before >= w->local_limit);
            sum += used && middle > start ? (middle - start) * one->rate : 0;
        }
        *(sum < (double)total_bytes(w) ? &low : &high) = middle;
    }
    return high;
}

/**
 * At most 5% of the bytes may move more than once. A source that stalls in the middle of a chunk
 * may cost that chunk. Chunks that were lost with a source, or rejected, do not count.
 */
static void check_waste(const world *w, uint64_t seed) {
    double total = (double)total_bytes(w);
    double moved = (double)(w->moved - w->lost);
    double limit = 1.05 * total;
    for (int i = 0; i < w->count; i++) {
        limit += w->sources[i].stalls_from == NEVER ? 0 : (double)w->chunk_size;
    }
    if (moved > limit) {
        fail_msg("world %llu moved %.3f times the bytes; the limit is %.3f", (unsigned long long)seed, moved / total,
                 limit / total);
    }
}

/** In a world without faults, the time is near the best possible. */
static void check_quiet(const world *w, uint64_t seed, bool all_have_all) {
    double slowest = 1e18;
    for (int i = 0; i < w->count; i++) {
        slowest = w->sources[i].sent && w->sources[i].rate < slowest ? w->sources[i].rate : slowest;
    }
    double best = best_time(w);
    double limit = 1.15 * best + 2 * (double)w->chunk_size / slowest + 0.2;
    double time = (double)w->now * 1e-9;
    if (all_have_all && time > limit) {
        fail_msg("world %llu took %.3f s; the best is %.3f s, the limit %.3f s", (unsigned long long)seed, time, best,
                 limit);
    }
}

static void draw_trouble(world *w, sim_source *one) {
    one->dies_at = draw(w, 3) == 0 ? draw(w, 2 * SECOND) : NEVER;
    one->returns = draw(w, 2);
    if (draw(w, 4) == 0) {
        one->stalls_from = draw(w, 2 * SECOND);
        one->stalls_until = one->stalls_from + SECOND / 2 + draw(w, 9 * SECOND / 2);
    }
    one->lies = draw(w, 6) == 0;
}

/** Makes a random world. @return true if every source has all chunks. */
static bool draw_world(world *w, uint64_t seed, bool trouble) {
    uint64_t dice = seed;
    uint64_t most = next_random(&dice) % 4 ? 60 : CHUNKS_MAX;
    uint64_t chunks = 1 + next_random(&dice) % most;
    int count = 1 + (int)(next_random(&dice) % SOURCES);
    uint32_t local_limit = 1 + (uint32_t)(next_random(&dice) % 3);
    bool all_have_all = true;
    init_world(w, dice, chunks, count, local_limit);
    w->chunk_size = (uint64_t)1 << (16 + draw(w, 8));
    w->uneven = draw(w, 4) == 0;
    w->confirms = draw(w, 3);
    double link = (double)w->chunk_size * (double)(5 + draw(w, 100));
    for (int k = 0; k < w->count; k++) {
        sim_source *one = w->sources + k;
        one->rate = link * (double)(100 + draw(w, 901)) / 1000;
        one->latency = MS / 10 + draw(w, draw(w, 2) ? MS : 100 * MS);
        one->local = draw(w, 4) == 0;
        one->joins_at = k == 0 || draw(w, 3) ? 0 : draw(w, 2 * SECOND);
        one->partial = draw(w, 8) == 0;
        all_have_all = all_have_all && !one->partial;
        for (uint64_t p = 0; one->partial && p < w->wanted.total; p++) {
            uint64_t chunk = wh_chunk_set_at(&w->wanted, p);
            assert_true(draw(w, 2) || wh_chunk_set_add(&one->have, chunk, chunk));
        }
        if (trouble) {
            draw_trouble(w, one);
        }
    }
    start_world(w);
    return all_have_all;
}

static void test_random_worlds(void **state) {
    static world w;
    (void)state;
    int ended[2] = {0, 0};
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        bool trouble = seed % 2;
        bool all_have_all = draw_world(&w, seed, trouble);
        bool done = run(&w);
        ended[done]++;
        if (!done) {
            check_stuck(&w);
        } else {
            check_all_landed(&w);
        }
        if (done) {
            check_waste(&w, seed);
        }
        if (done && !trouble) {
            check_quiet(&w, seed, all_have_all);
        }
        end_world(&w);
    }
    print_message("# %d worlds ended with all chunks, %d with chunks that nobody has\n", ended[1], ended[0]);
    assert_true(ended[0] > 100 && ended[1] > WORLDS / 2); /* Both outcomes are tested. */
}

/* ---- single rules ---- */

/** Asks a source once. @return the number of chunks that it is to send. */
static size_t ask_once(world *w, int source, uint64_t now, uint64_t chunks[CHUNKS_MAX]) {
    return next_chunks(w->schedule, source, now, chunks, CHUNKS_MAX);
}

/** Delivers chunks at a rate, in pieces. @return the time at which all are delivered. */
static uint64_t serve(world *w, int source, const uint64_t *chunks, size_t count, uint64_t now, double rate) {
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < PIECES; k++) {
            now += (uint64_t)((double)chunk_bytes(w, chunks[i]) / PIECES / rate * 1e9);
            wh_schedule_moved(w->schedule, source, chunk_bytes(w, chunks[i]) / PIECES, now);
        }
        wh_schedule_landed(w->schedule, source, chunks[i]);
    }
    return now;
}

static void init_rules(world *w, uint64_t chunks, int sources) {
    init_world(w, 1, chunks, 0, 1);
    start_world(w);
    for (int i = 0; i < sources; i++) {
        assert_int_equal(wh_schedule_add(w->schedule, NULL, false, 0), i);
    }
}

/** All requests at once and in order. Quadratic time would take minutes here. */
static void test_one_source_gets_everything(void **state) {
    static world w;
    static uint64_t chunks[1000];
    const uint64_t many = 300000;
    (void)state;
    init_rules(&w, many, 1);
    assert_int_equal(wh_schedule_wake_at(w.schedule), NEVER);
    for (uint64_t place = 0; place < many; place += 1000) {
        assert_false(wh_schedule_is_all_requested(w.schedule));
        assert_int_equal(next_chunks(w.schedule, 0, 0, chunks, 1000), 1000);
        assert_int_equal(chunks[0], wh_chunk_set_at(&w.wanted, place));
        assert_int_equal(chunks[999], wh_chunk_set_at(&w.wanted, place + 999));
    }
    assert_true(wh_schedule_is_all_requested(w.schedule));
    assert_int_equal(next_chunks(w.schedule, 0, 0, chunks, 1000), 0);
    for (uint64_t place = 0; place < many; place++) {
        assert_false(wh_schedule_is_done(w.schedule));
        wh_schedule_landed(w.schedule, 0, wh_chunk_set_at(&w.wanted, place));
        /* The second call does nothing. */
        wh_schedule_landed(w.schedule, 0, wh_chunk_set_at(&w.wanted, place));
    }
    assert_true(wh_schedule_is_done(w.schedule));
    end_world(&w);
}

static void test_no_chunks_is_done(void **state) {
    static world w;
    uint64_t chunk;
    (void)state;
    wh_schedule *s = wh_schedule_create(&w.wanted, chunk_bytes, &w, 1);
    assert_non_null(s);
    assert_true(wh_schedule_is_done(s) && wh_schedule_is_all_requested(s));
    assert_int_equal(wh_schedule_add(s, NULL, false, 0), 0);
    assert_int_equal(next_chunks(s, 0, 0, &chunk, 1), 0);
    wh_schedule_remove(s, 0);
    assert_true(wh_schedule_is_done(s));
    for (int i = 1; i < WH_SCHEDULE_SOURCES; i++) {
        assert_int_equal(wh_schedule_add(s, &w.wanted, false, 0), i);
    }
    assert_int_equal(wh_schedule_add(s, NULL, false, 0), 0);
    assert_int_equal(wh_schedule_add(s, NULL, false, 0), -1);
    wh_schedule_destroy(s);
    wh_schedule_destroy(NULL);
}

/** A source that joins again and again always gets a number, and inherits nothing from the past. */
static void test_numbers_are_used_again(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 8, 1);
    uint64_t kept = ask_once(&w, 0, 0, chunks) ? chunks[0] : 0;
    wh_schedule_landed(w.schedule, 0, kept);
    for (int i = 1; i < WH_SCHEDULE_SOURCES; i++) {
        assert_int_equal(wh_schedule_add(w.schedule, &w.wanted, false, 0), i);
    }
    wh_schedule_remove(w.schedule, 0);
    /* A chunk from source 0 may still count. */
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), -1);
    wh_schedule_forget(w.schedule, 0);
    for (int again = 0; again < 100; again++) {
        assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), 0);
        assert_int_equal(ask_once(&w, 0, 0, chunks), 1);
        wh_schedule_rejected(w.schedule, 0, chunks[0]);
        /* Other sources are preferred for a chunk that this one could not deliver. */
        assert_true(wh_schedule_pending(w.schedule, 0) == 0);
        wh_schedule_remove(w.schedule, 0);
    }
    for (int i = 2; i < WH_SCHEDULE_SOURCES; i++) {
        wh_schedule_remove(w.schedule, i);
    }
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), 0);
    wh_schedule_remove(w.schedule, 1);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 8);
    end_world(&w);
}

static void test_out_of_memory(void **state) {
    static world w;
    counting count;
    (void)state;
    init_world(&w, 1, 10, 0, 1);
    for (uint64_t fail = 1; fail <= 5; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_schedule *s = wh_schedule_create(&w.wanted, chunk_bytes, &w, 1);
        assert_int_equal(s != NULL, fail > 4);
        assert_true(!s || wh_schedule_add(s, &w.wanted, false, 0) == -1);
        assert_true(!s || wh_schedule_add(s, NULL, false, 0) == 0);
        wh_schedule_destroy(s);
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
    }
    wh_chunk_set_destroy(&w.wanted);
}

/** The time that a world takes, in relation to the best possible split. */
static double time_ratio(world *w) {
    start_world(w);
    assert_true(run(w));
    check_all_landed(w);
    return (double)w->now * 1e-9 / best_time(w);
}

static void test_equal_sources_share(void **state) {
    static world w;
    (void)state;
    init_world(&w, 1, 256, 3, 1);
    assert_true(time_ratio(&w) < 1.03);
    assert_int_equal(w.moved, total_bytes(&w));
    end_world(&w);
}

static void test_late_joiner_takes_its_share(void **state) {
    static world w;
    (void)state;
    init_world(&w, 1, 256, 2, 1);
    w.sources[1].joins_at = SECOND; /* The first source has everything by then. */
    assert_true(time_ratio(&w) < 1.03);
    assert_int_equal(w.recalls, 1);
    end_world(&w);
}

static void test_slow_source_does_not_hold_up_the_end(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_world(&w, 1, 256, 3, 1);
    w.sources[1].rate = 5e6;
    assert_true(time_ratio(&w) < 1.03);
    assert_true(w.sources[1].sent > 0);
    end_world(&w);

    init_rules(&w, 8, 2);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 2);
    uint64_t fast = serve(&w, 0, chunks, 2, 0, 50e6);
    assert_int_equal(ask_once(&w, 1, 0, chunks), 2);
    uint64_t slow = serve(&w, 1, chunks, 2, 0, 5e6);
    assert_true(wh_schedule_rate(w.schedule, 0) > 45e6 && wh_schedule_rate(w.schedule, 0) < 55e6);
    assert_true(wh_schedule_rate(w.schedule, 1) > 4.5e6 && wh_schedule_rate(w.schedule, 1) < 5.5e6);
    assert_true(fast < slow);
    /*
     * Four chunks are missing. The fast source needs less time for all than the slow one for one.
     */
    assert_int_equal(ask_once(&w, 1, slow, chunks), 0);
    assert_true(ask_once(&w, 0, slow, chunks) > 0);
    assert_int_equal(ask_once(&w, 1, slow, chunks), 0);
    /* A new source may be faster, so it gets chunks. */
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, slow), 2);
    assert_true(ask_once(&w, 2, slow, chunks) > 0);
    /* The slow source gets everything if it is the only one. */
    wh_schedule_remove(w.schedule, 0);
    wh_schedule_forget(w.schedule, 0);
    wh_schedule_remove(w.schedule, 2);
    assert_int_equal(ask_once(&w, 1, slow, chunks), 6);
    end_world(&w);
}

static uint64_t two_large_chunks(const void *context, uint64_t place) {
    (void)context;
    return place == 2 || place == 3 ? 10000000 : 10000;
}

/**
 * One source has a low rate, the other one a high latency. For a missing chunk, each finds that the
 * other one would deliver it sooner. If both left it to the other one, nobody would send it.
 */
static void test_idle_sources_do_not_wait_for_each_other(void **state) {
    wh_chunk_set wanted = {0};
    uint64_t chunks[8];
    (void)state;
    assert_true(wh_chunk_set_add(&wanted, 0, 7));
    wh_schedule *s = wh_schedule_create(&wanted, two_large_chunks, NULL, 1);
    assert_non_null(s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wh_schedule_add(s, NULL, false, 0), i);
    }
    static const int order[] = {0, 0, 2, 2, 1, 2, 2, 2};
    static const uint64_t latencies[] = {MS, SECOND, MS};
    static const uint64_t rates[] = {1, 100, 200}; /* MB/s */
    for (uint64_t i = 0; i < 8; i++) {
        int from = order[i];
        uint64_t start = i * 2 * SECOND;
        assert_int_equal(next_chunks(s, from, start, chunks, 1), 1);
        assert_int_equal(chunks[0], i);
        wh_schedule_moved(s, from, 1000, start + latencies[from]);
        wh_schedule_moved(s, from, rates[from] * 10000, start + latencies[from] + 10 * MS);
        wh_schedule_landed(s, from, i);
    }
    assert_true(wh_schedule_rate(s, 1) > wh_schedule_rate(s, 0));
    wh_schedule_remove(s, 2);
    wh_schedule_forget(s, 2); /* The large chunks and chunks 5 to 7 are missing. */
    assert_int_equal(next_chunks(s, 0, 20 * SECOND, chunks, 8), 0);
    assert_true(next_chunks(s, 1, 20 * SECOND, chunks, 8) > 0);
    assert_int_equal(chunks[0], 5);
    wh_schedule_destroy(s);
    wh_chunk_set_destroy(&wanted);
}

static void test_death_costs_little(void **state) {
    static world w;
    (void)state;
    init_world(&w, 1, 256, 3, 1);
    /* The source dies at about half time. What it had sent is fetched again. */
    w.sources[2].dies_at = 7 * SECOND / 2;
    start_world(&w);
    assert_true(run(&w));
    check_all_landed(&w);
    double best = 3.5 + ((double)total_bytes(&w) - 2 * 50e6 * 3.5) / 100e6;
    assert_true((double)w.now * 1e-9 < best * 1.03);
    end_world(&w);
}

static void test_requests_of_a_dead_source_go_to_others(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 4, 2);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 2);
    uint64_t first = chunks[0];
    assert_int_equal(ask_once(&w, 1, 0, chunks), 1); /* Two chunks are left for two sources. */
    wh_schedule_remove(w.schedule, 0);
    wh_schedule_landed(w.schedule, 0, first); /* This chunk comes too late. */
    assert_int_equal(wh_schedule_source_of(w.schedule, first), -1);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 0);
    assert_int_equal(ask_once(&w, 1, 0, chunks), 3);
    end_world(&w);
}

static void test_confirmed_chunks_stay(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    uint64_t others[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 4, 2);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 2);
    serve(&w, 0, chunks, 2, 0, 50e6);
    wh_schedule_remove(w.schedule, 0);
    assert_int_equal(ask_once(&w, 1, 0, others), 2);
    serve(&w, 1, others, 2, 0, 50e6);
    /* All are requested, but two of the requests do not count. */
    assert_true(wh_schedule_is_all_requested(w.schedule));
    assert_false(wh_schedule_is_done(w.schedule));
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[0]), 0);
    wh_schedule_confirm(w.schedule, chunks[0], 1);
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[0]), 1);
    wh_schedule_confirm(w.schedule, chunks[1], 0); /* A removed source confirms nothing. */
    assert_false(wh_schedule_is_done(w.schedule));
    wh_schedule_forget(w.schedule, 0);
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[1]), -1);
    wh_schedule_confirm(w.schedule, chunks[1], 1); /* The chunk has not landed. */
    assert_int_equal(ask_once(&w, 1, SECOND, others), 1);
    assert_int_equal(others[0], chunks[1]);
    wh_schedule_landed(w.schedule, 1, others[0]);
    assert_true(wh_schedule_is_done(w.schedule));
    end_world(&w);
}

static void test_rejected_chunk_goes_elsewhere(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    uint64_t others[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 2, 2);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 1);
    assert_int_equal(ask_once(&w, 1, 0, others), 1);
    assert_int_equal(ask_once(&w, 0, 0, others), 0);
    wh_schedule_rejected(w.schedule, 1, chunks[0]); /* This chunk was not assigned to source 1. */
    wh_schedule_rejected(w.schedule, 0, chunks[0]);
    assert_false(wh_schedule_is_all_requested(w.schedule));
    assert_int_equal(ask_once(&w, 0, 0, others), 0);
    assert_int_equal(ask_once(&w, 1, 0, others), 1);
    assert_int_equal(others[0], chunks[0]);
    wh_schedule_landed(w.schedule, 1, chunks[0]);
    /* The chunk has landed, and its digest is wrong. */
    wh_schedule_rejected(w.schedule, 1, chunks[0]);
    assert_int_equal(ask_once(&w, 0, 0, others), 1);
    wh_schedule_rejected(w.schedule, 0, chunks[0]);
    wh_schedule_remove(w.schedule, 1);
    assert_int_equal(ask_once(&w, 0, 0, others), 2); /* No other source is left. */
    end_world(&w);
}

static void test_local_sources_stand_by(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    wh_chunk_set some = {0};
    (void)state;
    init_rules(&w, 9, 0); /* The world has chunks 0 to 2 and 8 to 13. */
    assert_true(wh_chunk_set_add(&some, 0, 12));
    assert_int_equal(wh_schedule_add(w.schedule, &some, true, 0), 0);
    assert_int_equal(wh_schedule_add(w.schedule, &some, true, 0), 1);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, true, 0), 2);
    assert_int_equal(ask_once(&w, 1, 0, chunks), 0);
    assert_int_equal(ask_once(&w, 2, 0, chunks), 1); /* Only this source has this chunk. */
    assert_int_equal(chunks[0], 13);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 8);
    assert_int_equal(wh_schedule_late(w.schedule, 2 * SECOND), 0);
    wh_schedule_recall(w.schedule, 0);
    assert_int_equal(ask_once(&w, 0, 2 * SECOND, chunks), 0);
    assert_int_equal(ask_once(&w, 2, 2 * SECOND, chunks), 0);
    assert_int_equal(ask_once(&w, 1, 2 * SECOND, chunks), 8);
    wh_schedule_remove(w.schedule, 1);
    wh_schedule_moved(w.schedule, 2, 1000, 2 * SECOND);
    assert_int_equal(ask_once(&w, 0, 2 * SECOND, chunks), 0);
    assert_int_equal(ask_once(&w, 2, 2 * SECOND, chunks), 8);
    wh_chunk_set_destroy(&some);
    end_world(&w);
}

static void test_stalled_source_is_recalled(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 100, 1);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 100);
    assert_int_equal(wh_schedule_wake_at(w.schedule), SECOND);
    wh_schedule_moved(w.schedule, 0, 1000, 100 * MS);
    assert_int_equal(wh_schedule_wake_at(w.schedule), 1200 * MS); /* The latency is 100 ms. */
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 100 * MS), 1);
    assert_int_equal(wh_schedule_late(w.schedule, 1200 * MS), 0);
    wh_schedule_recall(w.schedule, 0);
    assert_int_equal(wh_schedule_late(w.schedule, 1200 * MS), -1);
    assert_int_equal(wh_schedule_wake_at(w.schedule), NEVER);
    /* The source is on the bench: the other one gets everything. */
    assert_int_equal(ask_once(&w, 0, 1200 * MS, chunks), 0);
    assert_int_equal(ask_once(&w, 1, 1200 * MS, chunks), 100);
    wh_schedule_rejected(w.schedule, 1, chunks[0]);
    wh_schedule_rejected(w.schedule, 1, chunks[1]);
    assert_int_equal(ask_once(&w, 0, 1200 * MS, chunks), 0);
    wh_schedule_moved(w.schedule, 0, 1000, 1300 * MS);
    assert_int_equal(ask_once(&w, 0, 1300 * MS, chunks), 2);
    /* The second time, the source counts as late only after 2 s. */
    wh_schedule_moved(w.schedule, 1, 1000, 3300 * MS);
    assert_int_equal(wh_schedule_late(w.schedule, 3399 * MS), -1);
    assert_int_equal(wh_schedule_late(w.schedule, 3400 * MS), 0);
    end_world(&w);
}

/** A benched source works again if the others have stalled too. */
static void test_bench_ends_if_nobody_works(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 100, 2);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 2);
    assert_int_equal(ask_once(&w, 1, SECOND / 2, chunks), 2);
    assert_int_equal(wh_schedule_late(w.schedule, SECOND), 0);
    wh_schedule_recall(w.schedule, 0);
    assert_int_equal(ask_once(&w, 0, SECOND, chunks), 0);
    assert_int_equal(wh_schedule_wake_at(w.schedule), 3 * SECOND / 2);
    assert_int_equal(wh_schedule_late(w.schedule, 3 * SECOND / 2), -1);
    assert_true(ask_once(&w, 0, 3 * SECOND / 2, chunks) > 0);
    assert_true(wh_schedule_wake_at(w.schedule) > 3 * SECOND / 2);
    end_world(&w);
}

/** If the last source that is not on the bench stalls, those on the bench get another chance. */
static void test_bench_ends_if_the_last_source_stalls(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 100, 2);
    assert_true(ask_once(&w, 0, 0, chunks) > 0);
    assert_int_equal(wh_schedule_late(w.schedule, SECOND), 0);
    wh_schedule_recall(w.schedule, 0);
    assert_int_equal(ask_once(&w, 0, SECOND, chunks), 0);
    assert_int_equal(ask_once(&w, 1, SECOND, chunks), 100);
    /* This source does not count as late sooner than one that was recalled once. */
    assert_int_equal(wh_schedule_late(w.schedule, 3 * SECOND - 1), -1);
    assert_int_equal(wh_schedule_late(w.schedule, 3 * SECOND), 1);
    wh_schedule_recall(w.schedule, 1);
    assert_int_equal(ask_once(&w, 1, 3 * SECOND, chunks), 0);
    assert_int_equal(ask_once(&w, 0, 3 * SECOND, chunks), 100);
    end_world(&w);
}

/**
 * No chunk is left to request, and an idle source would deliver the last requested chunks much
 * sooner.
 */
static void test_slow_last_chunks_are_recalled(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    uint64_t slow[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 40, 2);
    assert_int_equal(ask_once(&w, 1, 0, slow), 2);
    wh_schedule_moved(w.schedule, 1, CHUNK / 16, 100 * MS); /* 2.6 MB/s */
    uint64_t now = 0;
    for (size_t got; (got = ask_once(&w, 0, now, chunks)) > 0;) {
        now = serve(&w, 0, chunks, got, now, 50e6);
        wh_schedule_moved(w.schedule, 1, 1000, now);
    }
    assert_true(wh_schedule_is_all_requested(w.schedule));
    assert_int_equal(wh_schedule_late(w.schedule, now), 1);
    wh_schedule_recall(w.schedule, 1);
    assert_int_equal(ask_once(&w, 1, now, chunks), 0);
    assert_int_equal(ask_once(&w, 0, now, chunks), 2);
    assert_int_equal(wh_schedule_late(w.schedule, now), -1);
    wh_schedule_landed(w.schedule, 1, slow[0]); /* This chunk comes too late. */
    assert_int_equal(wh_schedule_source_of(w.schedule, slow[0]), -1);
    /* There is much to send again, so the benched source helps. */
    wh_schedule_remove(w.schedule, 0);
    wh_schedule_forget(w.schedule, 0);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, now), 2);
    assert_int_equal(ask_once(&w, 1, now, chunks), 2);
    end_world(&w);
}

/** A caller that waits until wake_at must not spin if nobody can replace a stalled source. */
static void test_wake_at_is_not_in_the_past(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    (void)state;
    init_rules(&w, 100, 1);
    assert_int_equal(wh_schedule_wake_at(w.schedule), NEVER);
    assert_int_equal(ask_once(&w, 0, 0, chunks), 100);
    for (uint64_t now = 0; now < 10 * SECOND; now += SECOND) {
        assert_int_equal(wh_schedule_late(w.schedule, now), -1);
        assert_int_equal(wh_schedule_wake_at(w.schedule), now + SECOND);
    }
    serve(&w, 0, chunks, 100, 10 * SECOND, 50e6);
    assert_int_equal(wh_schedule_wake_at(w.schedule), NEVER);
    end_world(&w);
}

static void test_the_only_source_of_a_chunk_is_asked_for_it_first(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX] = {0};
    wh_chunk_set some = {0};
    (void)state;
    init_rules(&w, 3, 0); /* chunks 0, 6, 7 */
    assert_true(wh_chunk_set_add(&some, 0, 6));
    assert_int_equal(wh_schedule_add(w.schedule, &some, false, 0), 0);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), 1);
    assert_int_equal(ask_once(&w, 1, 0, chunks), 1);
    assert_int_equal(chunks[0], 7); /* The chunk that only this source has comes first. */
    serve(&w, 1, chunks, 1, 0, 50e6);
    wh_schedule_remove(w.schedule, 1);
    /* No other source was asked for chunks 0 and 6. */
    assert_false(wh_schedule_is_all_requested(w.schedule));
    /* The chunk may still be confirmed. */
    assert_int_equal(wh_schedule_source_of(w.schedule, 7), 1);
    wh_schedule_forget(w.schedule, 1);
    assert_int_equal(wh_schedule_source_of(w.schedule, 7), -1);
    wh_chunk_set_destroy(&some);
    end_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_source_gets_everything),
        cmocka_unit_test(test_no_chunks_is_done),
        cmocka_unit_test(test_numbers_are_used_again),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_equal_sources_share),
        cmocka_unit_test(test_late_joiner_takes_its_share),
        cmocka_unit_test(test_slow_source_does_not_hold_up_the_end),
        cmocka_unit_test(test_idle_sources_do_not_wait_for_each_other),
        cmocka_unit_test(test_death_costs_little),
        cmocka_unit_test(test_requests_of_a_dead_source_go_to_others),
        cmocka_unit_test(test_confirmed_chunks_stay),
        cmocka_unit_test(test_rejected_chunk_goes_elsewhere),
        cmocka_unit_test(test_local_sources_stand_by),
        cmocka_unit_test(test_stalled_source_is_recalled),
        cmocka_unit_test(test_bench_ends_if_nobody_works),
        cmocka_unit_test(test_bench_ends_if_the_last_source_stalls),
        cmocka_unit_test(test_slow_last_chunks_are_recalled),
        cmocka_unit_test(test_wake_at_is_not_in_the_past),
        cmocka_unit_test(test_the_only_source_of_a_chunk_is_asked_for_it_first),
        cmocka_unit_test(test_random_worlds),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
