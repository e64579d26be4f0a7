/*
 * Runs the scheduler of a receive in a simulated world, without any transfer.
 *     simulate     six default cases
 *     simulate SOURCES RATE_MBPS... [kill I AT_S] [stall I AT_S FOR_S]
 *
 * 4 GiB in chunks of 4 MiB; each source has a link of its own and a latency of 1 ms.
 * Chunks of a killed source are fetched again. "best" is the time of the best possible split
 * between the sources that survive.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "plan/schedule.h"

enum { CHUNKS = 1024, CHUNK = 4 << 20, PIECES = 4, SOURCES = 16 };
#define LATENCY UINT64_C(1000000)
#define NEVER UINT64_MAX

typedef struct sim_source {
    double rate; /* bytes per second */
    uint64_t joins_at;
    uint64_t dies_at;
    uint64_t stalls_from;
    uint64_t stalls_until;
    int number; /* -1: the source has not joined, or is dead */
    uint64_t queue[CHUNKS];
    uint64_t ready_at[CHUNKS]; /* per queued request: the time at which it reaches the source */
    size_t head;               /* The queue is a ring. */
    size_t queued;
    uint64_t free_at; /* The link is busy until this time. */
    int pieces;       /* bytes of the first request that have moved */
} sim_source;

typedef struct world {
    const char *name;
    int count;
    sim_source sources[SOURCES];
    wh_schedule *schedule;
    uint64_t now;
    uint64_t moved;
} world;

static uint64_t chunk_bytes(const void *context, uint64_t chunk) {
    (void)context;
    (void)chunk;
    return CHUNK;
}

/** When the next thing happens to a source: it joins, dies, or a piece arrives. */
static uint64_t event_at(const sim_source *one) {
    if (one->number < 0) {
        return one->joins_at;
    }
    if (!one->queued) {
        return one->dies_at;
    }
    uint64_t start = wh_max(one->free_at, one->ready_at[one->head]);
    uint64_t at = start + (uint64_t)((double)CHUNK / PIECES / one->rate * 1e9);
    if (at > one->stalls_from && start < one->stalls_until) {
        at += one->stalls_until - wh_max(start, one->stalls_from);
    }
    return wh_min(at, one->dies_at);
}

static void happen(world *w, sim_source *one) {
    if (one->number < 0) {
        one->number = wh_schedule_add(w->schedule, NULL, false, w->now);
        one->joins_at = NEVER;
        return;
    }
    if (one->dies_at <= w->now) {
        wh_schedule_remove(w->schedule, one->number);
        wh_schedule_forget(w->schedule, one->number);
        one->number = -1;
        one->queued = 0;
        return;
    }
    one->free_at = w->now;
    w->moved += CHUNK / PIECES;
    wh_schedule_moved(w->schedule, one->number, CHUNK / PIECES, w->now);
    if (++one->pieces == PIECES) {
        wh_schedule_landed(w->schedule, one->number, one->queue[one->head]);
        one->pieces = 0;
        one->head = (one->head + 1) % CHUNKS;
        one->queued--;
    }
}

/** Recalls late sources and asks all, as a receiver does after each event. */
static void look(world *w) {
    for (int late; (late = wh_schedule_late(w->schedule, w->now)) >= 0;) {
        for (int i = 0; i < w->count; i++) {
            if (w->sources[i].number == late) {
                w->sources[i].queued = 0;
                w->sources[i].pieces = 0;
            }
        }
        wh_schedule_recall(w->schedule, late);
    }
    for (int i = 0; i < w->count; i++) {
        sim_source *one = w->sources + i;
        wh_chunk_set chunks = {0};
        if (one->number >= 0 && !wh_schedule_next(w->schedule, one->number, w->now, UINT64_MAX, &chunks)) {
            abort();
        }
        for (uint64_t k = 0; k < chunks.total; k++) {
            size_t at = (one->head + one->queued++) % CHUNKS;
            one->queue[at] = wh_chunk_set_at(&chunks, k);
            one->ready_at[at] = w->now + LATENCY;
        }
        wh_chunk_set_destroy(&chunks);
    }
}

static sim_source *earliest(world *w) {
    sim_source *who = w->sources;
    for (int i = 1; i < w->count; i++) {
        who = event_at(w->sources + i) < event_at(who) ? w->sources + i : who;
    }
    return who;
}

/** @return false if no source is left before everything has landed. */
static bool run(world *w) {
    while (w->now != NEVER) {
        while (event_at(earliest(w)) <= w->now) {
            happen(w, earliest(w));
        }
        look(w);
        if (wh_schedule_is_done(w->schedule)) {
            return true;
        }
        w->now = wh_min(event_at(earliest(w)), wh_schedule_wake_at(w->schedule));
    }
    return false;
}

/** Seconds until the sources that survive could have delivered everything. */
static double best_time(const world *w) {
    double low = 0;
    double high = 1e9;
    while (high - low > 1e-6) {
        double end = (low + high) / 2;
        double sum = 0;
        for (int i = 0; i < w->count; i++) {
            const sim_source *one = w->sources + i;
            double start = (double)(one->joins_at + LATENCY) * 1e-9;
            double from = (double)one->stalls_from * 1e-9;
            double until = (double)one->stalls_until * 1e-9;
            double still = end > from ? (end < until ? end : until) - from : 0;
            double busy = end - start - still;
            sum += (double)one->dies_at * 1e-9 > end && busy > 0 ? busy * one->rate : 0;
        }
        *(sum < (double)CHUNKS * CHUNK ? &low : &high) = end;
    }
    return high;
}

static bool run_case(world *w) {
    wh_chunk_set wanted = {0};
    double best = best_time(w);
    bool ok = wh_chunk_set_add(&wanted, 0, CHUNKS - 1);
    w->schedule = ok ? wh_schedule_create(&wanted, chunk_bytes, NULL, 1) : NULL;
    ok = w->schedule && run(w);
    if (ok) {
        double time = (double)w->now * 1e-9;
        printf("| %-28s | %7.3f | %7.3f | %5.3f | %5.3f |", w->name, time, best, time / best,
               (double)w->moved / ((double)CHUNKS * CHUNK));
        for (int i = 0; i < w->count; i++) {
            int landed = 0;
            for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) {
                landed += wh_schedule_source_of(w->schedule, chunk) == w->sources[i].number;
            }
            printf(" %.1f%%", 100.0 * landed / CHUNKS);
        }
        printf(" |\n");
    } else {
        printf("| %-28s | not finished: no source is left |\n", w->name);
    }
    wh_schedule_destroy(w->schedule);
    wh_chunk_set_destroy(&wanted);
    return ok;
}

static world *new_world(const char *name, int count) {
    static world w;
    w = (world){.name = name, .count = count};
    for (int i = 0; i < count; i++) {
        w.sources[i] = (sim_source){.rate = 1e9, .dies_at = NEVER, .stalls_from = NEVER, .number = -1};
    }
    return &w;
}

static bool run_defaults(void) {
    bool ok = run_case(new_world("1 source", 1));
    ok &= run_case(new_world("3 equal", 3));
    world *w = new_world("3, one ten times slower", 3);
    w->sources[1].rate = 1e8;
    ok &= run_case(w);
    w = new_world("3, one killed at half time", 3);
    w->sources[1].dies_at = UINT64_C(700000000);
    ok &= run_case(w);
    w = new_world("2, one joins after 1 s", 2);
    w->sources[1].joins_at = UINT64_C(1000000000);
    ok &= run_case(w);
    w = new_world("8 with random rates", 8);
    static const double rates[] = {0.93, 0.12, 0.58, 0.31, 0.77, 0.24, 0.66, 0.45};
    for (int i = 0; i < 8; i++) {
        w->sources[i].rate = rates[i] * 1e9;
    }
    return run_case(w) && ok;
}

/** Parses a number that is not negative. @return -1 if the text is not such a number. */
static double number_of(const char *text) {
    char *end;
    double number = strtod(text, &end);
    return *text && !*end && number >= 0 ? number : -1;
}

/** Reads an event, such as "kill 1 0.5". @return the number of its arguments; 0: malformed. */
static int read_event(world *w, int count, char **arguments) {
    int source = count > 2 ? (int)number_of(arguments[1]) : -1;
    double at = count > 2 ? number_of(arguments[2]) * 1e9 : -1;
    bool stalls = count > 3 && strcmp(arguments[0], "stall") == 0 && number_of(arguments[3]) >= 0;
    if (source < 0 || source >= w->count || at < 0 || (!stalls && strcmp(arguments[0], "kill") != 0)) {
        return 0;
    }
    if (stalls) {
        w->sources[source].stalls_from = (uint64_t)at;
        w->sources[source].stalls_until = (uint64_t)(at + number_of(arguments[3]) * 1e9);
        return 4;
    }
    w->sources[source].dies_at = (uint64_t)at;
    return 3;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? (int)number_of(argv[1]) : 1;
    bool good = count >= 1 && count <= SOURCES && (argc == 1 || argc >= 2 + count);
    world *w = new_world("given", good ? count : 1);
    for (int i = 0; good && argc > 1 && i < count; i++) {
        w->sources[i].rate = number_of(argv[2 + i]) * 1e6;
        good = w->sources[i].rate > 0;
    }
    for (int at = 2 + count, used; good && at < argc; at += used) {
        good = (used = read_event(w, argc - at, argv + at)) > 0;
    }
    if (!good) {
        fprintf(stderr, "usage: simulate [SOURCES RATE_MBPS... [kill I AT_S] [stall I AT_S FOR_S]]\n");
        return 2;
    }
    printf("| %-28s | %7s | %7s | %5s | %5s | share per source |\n| --- | --- | --- | --- | --- | --- |\n", "case",
           "time s", "best s", "ratio", "moved");
    return (argc > 1 ? run_case(w) : run_defaults()) ? 0 : 1;
}
