/**
 * @file schedule_world.h  A simulated world for the scheduler: sources with rates and latencies
 * that join late, stall, send wrong bytes, die and come back. Every step checks what the scheduler
 * asks for.
 */
#ifndef WH_TESTS_SCHEDULE_WORLD_H
#define WH_TESTS_SCHEDULE_WORLD_H

#include "support/build.h"

#include "plan/schedule.h"

enum { PIECES = 4, SOURCES = 8, CHUNKS_MAX = 400, GAP = 5, CHUNK = 4 << 20 };
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define NEVER UINT64_MAX

typedef struct request {
    uint64_t chunk;
    uint64_t starts_at; /* time when the request reaches the source */
} request;

typedef struct sim_source {
    int number; /* -1: the source has not joined, or was removed */
    double rate;
    uint64_t latency;
    uint64_t joins_at;
    uint64_t joined_at;
    uint64_t dies_at;
    uint64_t settles_at; /* the time when the chunks of a dead source are confirmed or forgotten */
    int dead;            /* the source's number before it died */
    uint64_t stalls_from;
    uint64_t stalls_until;
    bool lies;
    bool returns;
    bool local;
    bool partial;
    wh_chunk_set have;
    request queue[CHUNKS_MAX];
    size_t head; /* The queued requests are a ring. */
    size_t queued;
    uint64_t free_at; /* The link is busy until this time. */
    uint32_t pieces;  /* pieces of the first request that have moved */
    uint64_t sent;
} sim_source;

/* What the test knows about a chunk, to check the scheduler. */
typedef struct sim_chunk {
    int requested; /* the source that it came from; -1: none */
    int landed;
} sim_chunk;

typedef struct world {
    uint64_t seed;
    wh_chunk_set wanted;
    wh_schedule *schedule;
    sim_source sources[SOURCES];
    int count;
    uint32_t local_limit;
    uint64_t chunk_size; /* bytes of the largest chunk */
    bool uneven;         /* True if other chunks have down to a sixteenth of this. */
    uint64_t confirms;   /* One of this many chunks of a dead source is confirmed; 0: none. */
    uint64_t now;
    uint64_t moved;
    uint64_t lost; /* The bytes of these that were rejected, or lost with their source. */
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
    uint64_t first = chunks / 3; /* There are two intervals with a gap between them. */
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

/** @return the number of chunks; less than `capacity` if the source gets nothing more for now. */
static size_t next_chunks(wh_schedule *schedule, int source, uint64_t now, uint64_t *chunks, size_t capacity) {
    wh_chunk_set set = {0};
    assert_true(wh_schedule_next(schedule, source, now, capacity, &set));
    size_t count = (size_t)set.total;
    assert_true(count <= capacity);
    for (size_t i = 0; i < count; i++) {
        chunks[i] = wh_chunk_set_at(&set, i);
    }
    wh_chunk_set_destroy(&set);
    return count;
}

static void ask(world *w, sim_source *one) {
    uint64_t chunks[64];
    size_t capacity = 1 + (size_t)draw(w, 64);
    size_t got = capacity;
    while (one->number >= 0 && got == capacity) {
        got = next_chunks(w->schedule, one->number, w->now, chunks, capacity);
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

/** The time at which the next piece of a source arrives. */
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

static uint64_t piece_bytes(const world *w, uint64_t chunk) {
    return chunk_bytes(w, chunk) / PIECES;
}

static void lose(world *w, sim_source *one) {
    w->lost += one->pieces ? one->pieces * piece_bytes(w, one->queue[one->head].chunk) : 0;
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
            w->lost += chunk_bytes(w, chunk);
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
        w->lost += bytes;
        wh_schedule_rejected(w->schedule, one->number, chunk);
        lose(w, one);
        return;
    }
    wh_schedule_landed(w->schedule, one->number, chunk);
    w->chunks[chunk].landed = one->number;
    assert_int_equal(wh_schedule_source_of(w->schedule, chunk), one->number);
}

/** The next thing that happens to a source. @return the time of it. */
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

#endif
