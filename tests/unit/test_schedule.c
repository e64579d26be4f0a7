/*
 * The scheduler in simulated worlds: sources with rates and latencies that join late, stall, lie,
 * die and return. Then single rules, one by one.
 */
#include "support/build.h"

#include <stdlib.h>

#include "plan/schedule.h"
#include "support/counting_allocator.h"

enum { PIECES = 4, SOURCES = 8, CHUNKS_MAX = 400, GAP = 5, WORLDS = 10000, CHUNK = 4 << 20 };
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define NEVER UINT64_MAX

typedef struct request {
    uint64_t chunk;
    uint64_t starts_at; /* the request has reached the source */
} request;

typedef struct sim_source {
    int number; /* -1: has not joined, or was removed */
    double rate;
    uint64_t latency;
    uint64_t joins_at;
    uint64_t joined_at;
    uint64_t dies_at;
    uint64_t settles_at; /* chunks of a dead source are confirmed or forgotten then */
    int dead;            /* its number before it died */
    uint64_t stalls_from;
    uint64_t stalls_until;
    bool lies;
    bool returns;
    bool local;
    bool partial;
    wh_chunk_set have;
    request queue[CHUNKS_MAX];
    size_t head; /* queued requests are a ring */
    size_t queued;
    uint64_t free_at; /* the link is busy until then */
    uint32_t pieces;  /* of the first request that have moved */
    uint64_t sent;
} sim_source;

/* What the world knows of a chunk, to check the scheduler. */
typedef struct sim_chunk {
    int requested; /* from which source; -1 */
    int landed;
} sim_chunk;

typedef struct world {
    uint64_t seed;
    wh_chunk_set wanted;
    wh_schedule *schedule;
    sim_source sources[SOURCES];
    int count;
    uint32_t local_limit;
    uint64_t chunk_size; /* of the largest chunk */
    bool uneven;         /* others have down to a sixteenth of it */
    uint64_t confirms;   /* one in so many chunks of a dead source; 0: none */
    uint64_t now;
    uint64_t moved;
    uint64_t recalls;
    sim_chunk chunks[CHUNKS_MAX + GAP];
} world;

static uint64_t draw(world *w, uint64_t below) {
    return next_random(&w->seed) % below;
}

static uint64_t chunk_bytes(const void *context, uint64_t chunk) {
    const world *w = context;
    return w->uneven ? w->chunk_size >> chunk * 7 % 5 : w->chunk_size - chunk % 16 * 64;
}

static uint64_t total_bytes(const world *w) {
    uint64_t sum = 0;
    for (uint64_t place = 0; place < w->wanted.total; place++) {
        sum += chunk_bytes(w, wh_chunk_set_at(&w->wanted, place));
    }
    return sum;
}

static bool sim_has(const sim_source *one, uint64_t chunk) {
    return !one->partial || wh_chunk_set_has(&one->have, chunk);
}

static void init_world(world *w, uint64_t seed, uint64_t chunks, int count, uint32_t local_limit) {
    memset(w, 0, sizeof(*w));
    *w = (world){.seed = seed, .count = count, .local_limit = local_limit, .chunk_size = CHUNK};
    uint64_t first = chunks / 3; /* two intervals with a gap */
    assert_true(!first || wh_chunk_set_add(&w->wanted, 0, first - 1));
    assert_true(wh_chunk_set_add(&w->wanted, first + GAP, GAP + chunks - 1));
    for (size_t i = 0; i < CHUNKS_MAX + GAP; i++) {
        w->chunks[i] = (sim_chunk){-1, -1};
    }
    for (int i = 0; i < count; i++) {
        w->sources[i] = (sim_source){.number = -1,
                                     .dead = -1,
                                     .rate = 50e6,
                                     .latency = MS,
                                     .dies_at = NEVER,
                                     .settles_at = NEVER,
                                     .stalls_from = NEVER};
    }
}

static void start_world(world *w) {
    w->schedule = wh_schedule_create(&w->wanted, chunk_bytes, w, w->local_limit);
    assert_non_null(w->schedule);
}

static void end_world(world *w) {
    for (int i = 0; i < w->count; i++) {
        wh_chunk_set_destroy(&w->sources[i].have);
    }
    wh_schedule_destroy(w->schedule);
    wh_chunk_set_destroy(&w->wanted);
}

static void drop_requests(world *w, sim_source *one) {
    for (size_t i = 0; i < one->queued; i++) {
        w->chunks[one->queue[(one->head + i) % CHUNKS_MAX].chunk].requested = -1;
    }
    one->queued = 0;
    one->pieces = 0;
}

static void ask(world *w, sim_source *one) {
    uint64_t chunks[64];
    size_t capacity = 1 + (size_t)draw(w, 64);
    size_t got = capacity;
    while (one->number >= 0 && got == capacity) {
        got = wh_schedule_next(w->schedule, one->number, w->now, chunks, capacity);
        assert_true(got <= capacity);
        for (size_t k = 0; k < got; k++) {
            assert_true(wh_chunk_set_has(&w->wanted, chunks[k]));
            assert_true(sim_has(one, chunks[k]));
            assert_int_equal(w->chunks[chunks[k]].requested, -1);
            assert_int_equal(w->chunks[chunks[k]].landed, -1);
            w->chunks[chunks[k]].requested = one->number;
            one->queue[(one->head + one->queued++) % CHUNKS_MAX] = (request){chunks[k], w->now + one->latency};
        }
    }
}

/** Recalls late sources, then asks all, beginning with any of them. */
static void look(world *w) {
    for (int late; (late = wh_schedule_late(w->schedule, w->now)) >= 0;) {
        sim_source *one = w->sources;
        while (one->number != late) {
            one++;
        }
        assert_true(one < w->sources + w->count && one->queued > 0);
        assert_true(++w->recalls < 1000);
        drop_requests(w, one);
        wh_schedule_recall(w->schedule, late);
    }
    int first = (int)draw(w, (uint64_t)w->count);
    for (int i = 0; i < w->count; i++) {
        ask(w, w->sources + (first + i) % w->count);
    }
}

/** When the next piece of a source arrives. */
static uint64_t piece_at(const world *w, const sim_source *one) {
    if (one->number < 0 || !one->queued) {
        return NEVER;
    }
    const request *next = one->queue + one->head;
    uint64_t start = one->free_at > next->starts_at ? one->free_at : next->starts_at;
    uint64_t at = start + (uint64_t)((double)chunk_bytes(w, next->chunk) / PIECES / one->rate * 1e9);
    if (at > one->stalls_from && start < one->stalls_until) {
        at += one->stalls_until - (start > one->stalls_from ? start : one->stalls_from);
    }
    return at;
}

static void lose(world *w, sim_source *one) {
    drop_requests(w, one);
    wh_schedule_remove(w->schedule, one->number);
    wh_schedule_remove(w->schedule, one->number);
    one->dead = one->number;
    one->number = -1;
    one->dies_at = NEVER;
    one->settles_at = w->now + draw(w, 100 * MS);
}

/** Another source confirms some chunks of a dead one; the others are forgotten. */
static void settle(world *w, sim_source *one) {
    const sim_source *by = w->sources + draw(w, (uint64_t)w->count);
    for (uint64_t place = 0; place < w->wanted.total; place++) {
        uint64_t chunk = wh_chunk_set_at(&w->wanted, place);
        if (w->chunks[chunk].landed != one->dead) {
            continue;
        }
        assert_int_equal(wh_schedule_source_of(w->schedule, chunk), one->dead);
        if (w->confirms && by->number >= 0 && sim_has(by, chunk) && draw(w, w->confirms) == 0) {
            wh_schedule_confirm(w->schedule, chunk, by->number);
            w->chunks[chunk].landed = by->number;
        } else {
            w->chunks[chunk].landed = -1;
        }
    }
    wh_schedule_forget(w->schedule, one->dead);
    one->settles_at = NEVER;
    one->dead = -1;
    one->joins_at = one->returns ? w->now + draw(w, SECOND) : NEVER;
    one->returns = false;
    one->lies = false;
}

static void deliver(world *w, sim_source *one) {
    uint64_t chunk = one->queue[one->head].chunk;
    uint64_t bytes = chunk_bytes(w, chunk);
    uint64_t piece = one->pieces + 1 < PIECES ? bytes / PIECES : bytes - bytes / PIECES * (PIECES - 1);
    one->free_at = w->now;
    one->sent += piece;
    w->moved += piece;
    wh_schedule_moved(w->schedule, one->number, piece, w->now);
    if (++one->pieces < PIECES) {
        return;
    }
    one->pieces = 0;
    one->head = (one->head + 1) % CHUNKS_MAX;
    one->queued--;
    w->chunks[chunk].requested = -1;
    if (one->lies && draw(w, 4) == 0) {
        wh_schedule_rejected(w->schedule, one->number, chunk);
        lose(w, one);
        return;
    }
    wh_schedule_landed(w->schedule, one->number, chunk);
    w->chunks[chunk].landed = one->number;
    assert_int_equal(wh_schedule_source_of(w->schedule, chunk), one->number);
}

/** The next thing that happens to a source. @return when. */
static uint64_t event_at(const world *w, const sim_source *one) {
    uint64_t at = piece_at(w, one);
    at = one->number < 0 && one->dead < 0 && one->joins_at < at ? one->joins_at : at;
    at = one->number >= 0 && one->dies_at < at ? one->dies_at : at;
    return one->settles_at < at ? one->settles_at : at;
}

static void happen(world *w, sim_source *one) {
    if (one->settles_at <= w->now) {
        settle(w, one);
    } else if (one->number >= 0 && one->dies_at <= w->now) {
        lose(w, one);
    } else if (one->number < 0) {
        one->number = wh_schedule_add(w->schedule, one->partial ? &one->have : NULL, one->local, w->now);
        assert_true(one->number >= 0);
        one->joined_at = w->now;
        one->joins_at = NEVER;
    } else {
        deliver(w, one);
    }
}

/** The source to which something happens next; NULL: none. */
static sim_source *next_event(world *w, uint64_t *at_p) {
    sim_source *who = NULL;
    *at_p = NEVER;
    for (int i = 0; i < w->count; i++) {
        uint64_t at = event_at(w, w->sources + i);
        if (at < *at_p) {
            *at_p = at;
            who = w->sources + i;
        }
    }
    return who;
}

/** Runs until all chunks have landed, or nothing can happen. @return true if all have landed. */
static bool run(world *w) {
    for (uint64_t turns = 0;; turns++) {
        uint64_t next;
        assert_true(turns < 100000);
        for (sim_source *who; (who = next_event(w, &next)) && next <= w->now;) {
            happen(w, who);
        }
        look(w);
        if (wh_schedule_is_done(w->schedule)) {
            return true;
        }
        if (!next_event(w, &next)) {
            return false;
        }
        uint64_t wake = wh_schedule_wake_at(w->schedule);
        assert_true(wake > w->now);
        w->now = wake < next ? wake : next;
    }
}

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

/** Nothing happens any more: there must be a chunk that nobody has. */
static void check_stuck(const world *w) {
    uint64_t chunk = 0;
    assert_true(wh_schedule_is_stuck(w->schedule, &chunk));
    assert_int_equal(w->chunks[chunk].landed, -1);
    for (int i = 0; i < w->count; i++) {
        assert_true(w->sources[i].number < 0 || !sim_has(w->sources + i, chunk));
    }
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

/** In a world without trouble: little is wasted, and the time is near the best possible. */
static void check_quiet(const world *w, uint64_t seed, bool all_have_all) {
    double total = (double)total_bytes(w);
    if ((double)w->moved > 1.05 * total) {
        fail_msg("world %llu moved %.3f of the bytes", (unsigned long long)seed, (double)w->moved / total);
    }
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

/** A random world. @return true if every source has all chunks. */
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
        if (done && !trouble) {
            check_quiet(&w, seed, all_have_all);
        }
        end_world(&w);
    }
    print_message("# %d worlds ended with all chunks, %d with chunks that nobody has\n", ended[1], ended[0]);
    assert_true(ended[0] > 100 && ended[1] > WORLDS / 2); /* both ends are tested */
}

/* ---- single rules ---- */

/** Asks a source once. @return how many chunks. */
static size_t ask_once(world *w, int source, uint64_t now, uint64_t chunks[CHUNKS_MAX]) {
    return wh_schedule_next(w->schedule, source, now, chunks, CHUNKS_MAX);
}

/** Delivers chunks at a rate, in pieces. @return when it has. */
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
        assert_int_equal(wh_schedule_next(w.schedule, 0, 0, chunks, 1000), 1000);
        assert_int_equal(chunks[0], wh_chunk_set_at(&w.wanted, place));
        assert_int_equal(chunks[999], wh_chunk_set_at(&w.wanted, place + 999));
    }
    assert_true(wh_schedule_is_all_requested(w.schedule));
    assert_int_equal(wh_schedule_next(w.schedule, 0, 0, chunks, 1000), 0);
    for (uint64_t place = 0; place < many; place++) {
        assert_false(wh_schedule_is_done(w.schedule));
        wh_schedule_landed(w.schedule, 0, wh_chunk_set_at(&w.wanted, place));
        wh_schedule_landed(w.schedule, 0, wh_chunk_set_at(&w.wanted, place)); /* does nothing */
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
    assert_true(wh_schedule_is_done(s) && wh_schedule_is_all_requested(s) && !wh_schedule_is_stuck(s, &chunk));
    assert_int_equal(wh_schedule_add(s, NULL, false, 0), 0);
    assert_int_equal(wh_schedule_next(s, 0, 0, &chunk, 1), 0);
    wh_schedule_remove(s, 0);
    assert_true(wh_schedule_is_done(s));
    for (int i = 1; i < WH_SCHEDULE_SOURCES; i++) {
        assert_int_equal(wh_schedule_add(s, &w.wanted, false, 0), i);
    }
    assert_int_equal(wh_schedule_add(s, NULL, false, 0), -1);
    wh_schedule_destroy(s);
    wh_schedule_destroy(NULL);
}

static void test_out_of_memory(void **state) {
    static world w;
    counting count;
    (void)state;
    init_world(&w, 1, 10, 0, 1);
    for (uint64_t fail = 1; fail <= 4; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_schedule *s = wh_schedule_create(&w.wanted, chunk_bytes, &w, 1);
        assert_int_equal(s != NULL, fail > 3);
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
    w.sources[1].joins_at = SECOND; /* the first one has everything by then */
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
    /* A new source may be faster. */
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, slow), 2);
    assert_true(ask_once(&w, 2, slow, chunks) > 0);
    /* The slow one gets everything if it is the only one. */
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
 * One source has a low rate, the other one a high latency. Each finds a chunk first that the other
 * one would deliver sooner. If both left it to the other one, nothing would happen any more.
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
        assert_int_equal(wh_schedule_next(s, from, start, chunks, 1), 1);
        assert_int_equal(chunks[0], i);
        wh_schedule_moved(s, from, 1000, start + latencies[from]);
        wh_schedule_moved(s, from, rates[from] * 10000, start + latencies[from] + 10 * MS);
        wh_schedule_landed(s, from, i);
    }
    assert_true(wh_schedule_rate(s, 1) > wh_schedule_rate(s, 0));
    wh_schedule_remove(s, 2);
    wh_schedule_forget(s, 2); /* the large ones and 5 to 7 are missing */
    assert_int_equal(wh_schedule_next(s, 0, 20 * SECOND, chunks, 8), 0);
    assert_true(wh_schedule_next(s, 1, 20 * SECOND, chunks, 8) > 0);
    assert_int_equal(chunks[0], 5);
    wh_schedule_destroy(s);
    wh_chunk_set_destroy(&wanted);
}

static void test_death_costs_little(void **state) {
    static world w;
    (void)state;
    init_world(&w, 1, 256, 3, 1);
    w.sources[2].dies_at = 7 * SECOND / 2; /* about half time; what it had sent is fetched again */
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
    assert_int_equal(ask_once(&w, 1, 0, chunks), 1); /* two are left for two sources */
    wh_schedule_remove(w.schedule, 0);
    wh_schedule_landed(w.schedule, 0, first); /* too late */
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
    assert_true(wh_schedule_is_all_requested(w.schedule)); /* but two of them do not count */
    assert_false(wh_schedule_is_done(w.schedule));
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[0]), 0);
    wh_schedule_confirm(w.schedule, chunks[0], 1);
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[0]), 1);
    wh_schedule_confirm(w.schedule, chunks[1], 0); /* a removed source confirms nothing */
    assert_false(wh_schedule_is_done(w.schedule));
    wh_schedule_forget(w.schedule, 0);
    assert_int_equal(wh_schedule_source_of(w.schedule, chunks[1]), -1);
    wh_schedule_confirm(w.schedule, chunks[1], 1); /* has not landed */
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
    wh_schedule_rejected(w.schedule, 1, chunks[0]); /* not its chunk */
    wh_schedule_rejected(w.schedule, 0, chunks[0]);
    assert_false(wh_schedule_is_all_requested(w.schedule));
    assert_int_equal(ask_once(&w, 0, 0, others), 0);
    assert_int_equal(ask_once(&w, 1, 0, others), 1);
    assert_int_equal(others[0], chunks[0]);
    wh_schedule_landed(w.schedule, 1, chunks[0]);
    wh_schedule_rejected(w.schedule, 1, chunks[0]); /* it has landed, and its digest is wrong */
    assert_int_equal(ask_once(&w, 0, 0, others), 1);
    wh_schedule_rejected(w.schedule, 0, chunks[0]);
    wh_schedule_remove(w.schedule, 1);
    assert_int_equal(ask_once(&w, 0, 0, others), 2); /* nobody else is left */
    end_world(&w);
}

static void test_local_sources_stand_by(void **state) {
    static world w;
    uint64_t chunks[CHUNKS_MAX];
    wh_chunk_set some = {0};
    (void)state;
    init_rules(&w, 9, 0); /* chunks 0 to 2 and 8 to 13 */
    assert_true(wh_chunk_set_add(&some, 0, 12));
    assert_int_equal(wh_schedule_add(w.schedule, &some, true, 0), 0);
    assert_int_equal(wh_schedule_add(w.schedule, &some, true, 0), 1);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, true, 0), 2);
    assert_int_equal(ask_once(&w, 1, 0, chunks), 0);
    assert_int_equal(ask_once(&w, 2, 0, chunks), 1); /* only it has this one */
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
    assert_int_equal(wh_schedule_wake_at(w.schedule), 1200 * MS); /* the latency is 100 ms */
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 100 * MS), 1);
    assert_int_equal(wh_schedule_late(w.schedule, 1200 * MS), 0);
    wh_schedule_recall(w.schedule, 0);
    assert_int_equal(wh_schedule_late(w.schedule, 1200 * MS), -1);
    assert_int_equal(wh_schedule_wake_at(w.schedule), NEVER);
    /* It is on the bench: the other one gets everything. */
    assert_int_equal(ask_once(&w, 0, 1200 * MS, chunks), 0);
    assert_int_equal(ask_once(&w, 1, 1200 * MS, chunks), 100);
    wh_schedule_rejected(w.schedule, 1, chunks[0]);
    wh_schedule_rejected(w.schedule, 1, chunks[1]);
    assert_int_equal(ask_once(&w, 0, 1200 * MS, chunks), 0);
    wh_schedule_moved(w.schedule, 0, 1000, 1300 * MS);
    assert_int_equal(ask_once(&w, 0, 1300 * MS, chunks), 2);
    /* The second time, it takes 2 s. */
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

/** Nothing is missing, and an idle source would deliver the last chunks much sooner. */
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
    wh_schedule_landed(w.schedule, 1, slow[0]); /* too late */
    assert_int_equal(wh_schedule_source_of(w.schedule, slow[0]), -1);
    /* There is much to do again: it helps. */
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

static void test_stuck_names_the_chunk(void **state) {
    static world w;
    uint64_t chunk;
    uint64_t chunks[CHUNKS_MAX];
    wh_chunk_set some = {0};
    (void)state;
    init_rules(&w, 3, 0); /* chunks 0, 6, 7 */
    assert_true(wh_schedule_is_stuck(w.schedule, &chunk));
    assert_int_equal(chunk, 0);
    assert_true(wh_chunk_set_add(&some, 0, 6));
    assert_int_equal(wh_schedule_add(w.schedule, &some, false, 0), 0);
    assert_true(wh_schedule_is_stuck(w.schedule, &chunk));
    assert_int_equal(chunk, 7);
    assert_int_equal(wh_schedule_add(w.schedule, NULL, false, 0), 1);
    assert_false(wh_schedule_is_stuck(w.schedule, &chunk));
    assert_int_equal(ask_once(&w, 1, 0, chunks), 1);
    assert_int_equal(chunks[0], 7); /* the one that only it has comes first */
    serve(&w, 1, chunks, 1, 0, 50e6);
    wh_schedule_remove(w.schedule, 1);
    assert_false(wh_schedule_is_stuck(w.schedule, &chunk)); /* it may be confirmed */
    wh_schedule_forget(w.schedule, 1);
    assert_true(wh_schedule_is_stuck(w.schedule, &chunk));
    assert_int_equal(chunk, 7);
    wh_chunk_set_destroy(&some);
    end_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_source_gets_everything),
        cmocka_unit_test(test_no_chunks_is_done),
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
        cmocka_unit_test(test_slow_last_chunks_are_recalled),
        cmocka_unit_test(test_wake_at_is_not_in_the_past),
        cmocka_unit_test(test_stuck_names_the_chunk),
        cmocka_unit_test(test_random_worlds),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
