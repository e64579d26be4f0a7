#include "plan/schedule.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

/**
 * What happened to a chunk is one byte: the number of a source, and one of these. 0: landed from
 * it. MISSING with a source: that source could not deliver it, so others are preferred.
 */
enum { REQUESTED = 64, MISSING = 128, NOBODY = 127 };

enum {
    LEAST_CHUNKS = 2,     /**< Requests per source while its rate is unknown or low. */
    WASTE = 20,           /**< One in so many bytes may be requested twice only to finish sooner. */
    RECALLS_MAX = 8,      /**< How often a source is recalled only to finish sooner. */
    BACKOFF_MAX = 5,      /**< How often the time until a source counts as stalled doubles. */
    OVERLOADED_CHUNKS = 4 /**< With fewer requests, sharing them is not worth a recall. */
};

/** Requests cover this much time beyond the latency, so that a source never runs out of them. */
#define AHEAD_NS UINT64_C(100000000)
/** A rate is measured over at least this time, because chunks arrive in bursts. */
#define SAMPLE_NS UINT64_C(20000000)
/** A source is stalled if nothing moves for this long beyond its latency. */
#define STALL_NS UINT64_C(1000000000)
/** Longer than any transfer, in seconds. */
#define FOREVER 1e18

typedef struct source {
    uint64_t *have; /**< A bit per place; NULL: all. */
    bool local;
    uint8_t recalls;     /**< How often it was recalled. */
    uint64_t cursor;     /**< The place to look at next for a missing chunk. */
    uint64_t dry[2];     /**< The version in which a search found nothing: all chunks, its own. */
    uint64_t requested;  /**< Bytes requested and not landed. */
    uint64_t partial;    /**< Bytes of those that have moved. */
    uint64_t chunks;     /**< Chunks requested and not landed. */
    uint64_t landed;     /**< Chunks that count for it. */
    double rate;         /**< Bytes per second; 0: unknown. */
    bool rough;          /**< The rate is that of the first bytes, with the latency in it. */
    bool waiting;        /**< It was idle, and nothing has moved since it was asked. */
    uint64_t latency_ns; /**< Shortest time from a request to an idle source until bytes moved. */
    uint64_t asked_at;   /**< When it was last asked while idle. */
    uint64_t heard_at;   /**< When bytes last moved, or asked_at if that is later. */
    uint64_t sample_ns;  /**< Time and bytes that are not yet part of the rate. */
    uint64_t sample_bytes;
} source;

/** A place is the index of a chunk in the wanted set. A set of sources is a bit per source. */
struct wh_schedule {
    const wh_chunk_set *wanted;
    wh_chunk_bytes_fn bytes;
    const void *context;
    uint8_t *states;   /**< Per place. */
    uint64_t *missing; /**< A bit per place: those that are MISSING. */
    uint64_t words;    /**< Of a bitmap. */
    uint64_t missing_count;
    uint64_t missing_bytes;
    uint64_t requested_count; /**< Chunks that are requested from any source. */
    uint64_t landed_count;    /**< Chunks that count for a live source. */
    uint64_t total_bytes;
    uint64_t wasted;  /**< Bytes that had moved of requests that were recalled. */
    uint64_t live;    /**< Sources that were not removed. */
    uint64_t standby; /**< Local sources that are not used because enough others are. */
    uint64_t benched; /**< Recalled sources that get no requests while others can be used. */
    uint64_t silent;  /**< Benched sources that were recalled because nothing moved. */
    uint64_t version; /**< Changes whenever a search may find more than before. */
    uint64_t seen_at; /**< The latest time that the caller passed. */
    uint64_t *seen;   /**< Points there: wh_schedule_late is const, but notes the time. */
    double mean_rate; /**< Of the live sources whose rate is known; 0 if there is none. */
    uint32_t local_limit;
    int count;
    source sources[WH_SCHEDULE_SOURCES];
};

static uint64_t bit(int number) {
    return UINT64_C(1) << number;
}

/** Iterates over a set of sources: the lowest number; `set &= set - 1` goes to the next one. */
static int first_of(uint64_t set) {
    return __builtin_ctzll(set);
}

static uint64_t in_use(const wh_schedule *s) {
    return s->live & ~s->benched & ~s->standby;
}

static uint64_t bytes_at(const wh_schedule *s, uint64_t place) {
    return s->bytes(s->context, wh_chunk_set_at(s->wanted, place));
}

static uint64_t have_word(const wh_schedule *s, int number, uint64_t word) {
    return s->sources[number].have ? s->sources[number].have[word] : UINT64_MAX;
}

static bool has(const wh_schedule *s, int number, uint64_t place) {
    return have_word(s, number, place / 64) >> place % 64 & 1;
}

/* ---- the states of chunks ---- */

/** Takes a chunk out of its state, which the caller then replaces. */
static void leave(wh_schedule *s, uint64_t place) {
    uint8_t state = s->states[place];
    if (state & MISSING) {
        s->missing[place / 64] &= ~(UINT64_C(1) << place % 64);
        s->missing_count--;
        s->missing_bytes -= bytes_at(s, place);
    } else if (state & REQUESTED) {
        source *one = s->sources + (state & ~REQUESTED);
        uint64_t bytes = bytes_at(s, place);
        one->requested -= bytes;
        one->partial -= wh_min(one->partial, bytes);
        one->chunks--;
        s->requested_count--;
    } else {
        s->sources[state].landed--;
        s->landed_count -= s->live >> state & 1;
    }
}

/** @param by  the source that could not deliver it; NOBODY. */
static void become_missing(wh_schedule *s, uint64_t place, int by) {
    leave(s, place);
    s->states[place] = (uint8_t)(MISSING | by);
    s->missing[place / 64] |= UINT64_C(1) << place % 64;
    s->missing_count++;
    s->missing_bytes += bytes_at(s, place);
    s->version++;
}

static void become_landed(wh_schedule *s, uint64_t place, int from) {
    leave(s, place);
    s->states[place] = (uint8_t)from;
    s->sources[from].landed++;
    s->landed_count += s->live >> from & 1;
}

static void become_requested(wh_schedule *s, uint64_t place, int from, uint64_t now) {
    source *one = s->sources + from;
    leave(s, place);
    s->states[place] = (uint8_t)(REQUESTED | from);
    if (!one->chunks) {
        one->asked_at = now;
        one->heard_at = now;
        one->waiting = true;
        one->partial = 0;
    }
    one->chunks++;
    one->requested += bytes_at(s, place);
    one->cursor = place + 1 < s->wanted->total ? place + 1 : 0;
    s->requested_count++;
}

/** The first place from `from` on that has a state; UINT64_MAX: none. */
static uint64_t find_state(const wh_schedule *s, uint8_t state, uint64_t from) {
    const uint8_t *found = memchr(s->states + from, state, s->wanted->total - from);
    return found ? (uint64_t)(found - s->states) : UINT64_MAX;
}

/** All chunks with a state are missing again. */
static void drop_state(wh_schedule *s, int state) {
    for (uint64_t at = find_state(s, (uint8_t)state, 0); at != UINT64_MAX; at = find_state(s, (uint8_t)state, at)) {
        become_missing(s, at, NOBODY);
    }
}

wh_schedule *wh_schedule_create(const wh_chunk_set *wanted, wh_chunk_bytes_fn bytes, const void *context,
                                uint32_t local_limit) {
    wh_schedule *s = wh_alloc_zeroed(1, sizeof(*s));
    if (!s) {
        return NULL;
    }
    *s = (wh_schedule){.wanted = wanted,
                       .bytes = bytes,
                       .context = context,
                       .local_limit = local_limit,
                       .words = wanted->total / 64 + 1,
                       .version = 1};
    s->states = wh_alloc_array(wh_max(wanted->total, 1), 1);
    s->missing = wh_alloc_zeroed(s->words, sizeof(*s->missing));
    if (!s->states || !s->missing) {
        wh_schedule_destroy(s);
        return NULL;
    }
    memset(s->states, MISSING | NOBODY, wanted->total);
    for (uint64_t place = 0; place < wanted->total; place++) {
        s->missing[place / 64] |= UINT64_C(1) << place % 64;
        s->missing_bytes += bytes_at(s, place);
    }
    s->seen = &s->seen_at;
    s->missing_count = wanted->total;
    s->total_bytes = s->missing_bytes;
    return s;
}

void wh_schedule_destroy(wh_schedule *s) {
    if (s) {
        for (int i = 0; i < s->count; i++) {
            wh_free(s->sources[i].have);
        }
        wh_free(s->states);
        wh_free(s->missing);
        wh_free(s);
    }
}

/* ---- sources ---- */

/** Decides which local sources are used: the first ones that are live and not benched. */
static void choose_locals(wh_schedule *s) {
    uint32_t used = 0;
    s->standby = 0;
    for (uint64_t set = s->live & ~s->benched; set; set &= set - 1) {
        if (s->sources[first_of(set)].local && used++ >= s->local_limit) {
            s->standby |= bit(first_of(set));
        }
    }
    s->version++;
}

static void update_mean(wh_schedule *s) {
    double sum = 0;
    int known = 0;
    for (uint64_t set = s->live; set; set &= set - 1) {
        sum += s->sources[first_of(set)].rate;
        known += s->sources[first_of(set)].rate > 0;
    }
    s->mean_rate = known ? sum / known : 0;
}

/** Sets the bit of each wanted chunk that a source has. Walks both lists of intervals at once. */
static void fill_have(const wh_schedule *s, const wh_chunk_set *have, uint64_t *bits) {
    size_t first = 0;
    for (size_t i = 0; i < s->wanted->count; i++) {
        wherry_interval want = s->wanted->intervals[i];
        while (first < have->count && have->intervals[first].first + have->intervals[first].count <= want.first) {
            first++;
        }
        for (size_t k = first; k < have->count && have->intervals[k].first < want.first + want.count; k++) {
            wherry_interval part = have->intervals[k];
            uint64_t end = wh_min(part.first + part.count, want.first + want.count);
            for (uint64_t chunk = wh_max(part.first, want.first); chunk < end; chunk++) {
                uint64_t place = s->wanted->starts[i] + (chunk - want.first);
                bits[place / 64] |= UINT64_C(1) << place % 64;
            }
        }
    }
}

int wh_schedule_add(wh_schedule *s, const wh_chunk_set *have, bool local, uint64_t now) {
    uint64_t *bits = NULL;
    if (s->count == WH_SCHEDULE_SOURCES || (have && !(bits = wh_alloc_zeroed(s->words, sizeof(*bits))))) {
        return -1;
    }
    if (have) {
        fill_have(s, have, bits);
    }
    /* Sources start at different places, so that each reads long runs. */
    uint64_t start = (uint64_t)__builtin_popcountll(s->live) * 7 % 16;
    s->sources[s->count] = (source){
        .have = bits, .local = local, .cursor = s->wanted->total / 16 * start, .asked_at = now, .heard_at = now};
    *s->seen = wh_max(*s->seen, now);
    s->live |= bit(s->count++);
    choose_locals(s);
    return s->count - 1;
}

/** There is more to do than expected: sources that were recalled for being slow help again. */
static void end_rest(wh_schedule *s) {
    s->benched &= s->silent;
    choose_locals(s);
}

void wh_schedule_remove(wh_schedule *s, int number) {
    if (!(s->live & bit(number))) {
        return;
    }
    drop_state(s, REQUESTED | number);
    s->landed_count -= s->sources[number].landed;
    s->live &= ~bit(number);
    s->benched &= s->live;
    s->silent &= s->live;
    update_mean(s);
    end_rest(s);
}

void wh_schedule_forget(wh_schedule *s, int number) {
    drop_state(s, number);
    end_rest(s);
}

void wh_schedule_confirm(wh_schedule *s, uint64_t chunk, int by) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place != UINT64_MAX && s->states[place] < REQUESTED && s->live & bit(by)) {
        become_landed(s, place, by);
    }
}

/* ---- estimates ---- */

/** The rate of a source; if unknown, the mean of the others; 0 if no rate is known. */
static double guess_rate(const wh_schedule *s, int number) {
    return s->sources[number].rate > 0 ? s->sources[number].rate : s->mean_rate;
}

/** Seconds until a source has delivered its requests and `more` bytes. */
static double time_for(const wh_schedule *s, int number, uint64_t more) {
    const source *one = s->sources + number;
    double rate = guess_rate(s, number);
    double left = (double)(one->requested - wh_min(one->partial, one->requested) + more);
    bool pays_latency = !one->chunks || one->waiting;
    return rate > 0 ? left / rate + (pays_latency ? (double)one->latency_ns * 1e-9 : 0) : FOREVER;
}

/** The sum of the rates of all sources in use. */
static double used_rate(const wh_schedule *s) {
    double sum = 0;
    for (uint64_t set = in_use(s); set; set &= set - 1) {
        sum += guess_rate(s, first_of(set));
    }
    return sum;
}

/** Seconds until all sources together have delivered everything. */
static double time_for_all(const wh_schedule *s, double rates) {
    uint64_t left = s->missing_bytes;
    for (uint64_t set = s->live; set; set &= set - 1) {
        const source *one = s->sources + first_of(set);
        left += one->requested - wh_min(one->partial, one->requested);
    }
    return rates > 0 ? (double)left / rates : FOREVER;
}

/**
 * How many bytes a source should have requested. Near the end only its share, so that all end
 * together.
 */
static uint64_t window(const wh_schedule *s, int number, double rates) {
    const source *one = s->sources + number;
    double ahead = one->rate * (double)(one->latency_ns + AHEAD_NS) * 1e-9;
    double share = rates > 0 ? (double)(s->missing_bytes + one->requested) * one->rate / rates : 0;
    return (uint64_t)(ahead < share ? ahead : share);
}

/** Each recall doubles the time, so that a source that stalls again and again is left alone. */
static uint64_t stalled_at(const source *one) {
    return one->heard_at + one->latency_ns + (STALL_NS << wh_min(one->recalls, BACKOFF_MAX));
}

/** The sources that have requests and move nothing. */
static uint64_t stalled(const wh_schedule *s, uint64_t now) {
    uint64_t result = 0;
    for (uint64_t set = s->live; set; set &= set - 1) {
        const source *one = s->sources + first_of(set);
        result |= one->chunks && now >= stalled_at(one) ? bit(first_of(set)) : 0;
    }
    return result;
}

/* ---- requests ---- */

/**
 * True if a source may be asked for a missing chunk. If it failed to deliver it, others come first.
 */
static bool may_ask(const wh_schedule *s, int number, uint64_t place) {
    if (s->states[place] == (MISSING | number)) {
        for (uint64_t set = in_use(s) & ~bit(number); set; set &= set - 1) {
            if (has(s, first_of(set), place)) {
                return false;
            }
        }
    }
    return has(s, number, place);
}

/**
 * The next missing place that a source can be asked for, from its cursor on, around the end;
 * UINT64_MAX: none. Chunks that a source of `avoid` has are left to it.
 */
static uint64_t search(const wh_schedule *s, int number, uint64_t avoid) {
    uint64_t cursor = s->sources[number].cursor;
    for (uint64_t set = avoid; set; set &= set - 1) {
        if (!s->sources[first_of(set)].have) {
            return UINT64_MAX;
        }
    }
    for (uint64_t step = 0; s->missing_count && step <= s->words; step++) {
        uint64_t word = (cursor / 64 + step) % s->words;
        uint64_t bits = s->missing[word] & have_word(s, number, word) & (step ? UINT64_MAX : UINT64_MAX << cursor % 64);
        for (uint64_t set = avoid; set && bits; set &= set - 1) {
            bits &= ~have_word(s, first_of(set), word);
        }
        for (; bits; bits &= bits - 1) {
            uint64_t place = word * 64 + (uint64_t)__builtin_ctzll(bits);
            if (may_ask(s, number, place)) {
                return place;
            }
        }
    }
    return UINT64_MAX;
}

/**
 * Like search, but does not search again if nothing can have changed.
 * @param own  only chunks that no other source in use has.
 */
static uint64_t search_once(wh_schedule *s, int number, bool own) {
    source *one = s->sources + number;
    uint64_t place = UINT64_MAX;
    if (one->dry[own] != s->version) {
        place = search(s, number, own ? in_use(s) & ~bit(number) : 0);
        one->dry[own] = place == UINT64_MAX ? s->version : 0;
    }
    return place;
}

/**
 * Chooses a chunk. First those that no other source in use has, so that none of those is left for
 * the end. A source on standby gets only those. A benched one gets what no working source has.
 */
static uint64_t choose(wh_schedule *s, int number, uint64_t now) {
    if (s->benched & bit(number)) {
        return search(s, number, s->live & ~s->benched & ~stalled(s, now));
    }
    uint64_t place = search_once(s, number, true);
    return place == UINT64_MAX && !(s->standby & bit(number)) ? search_once(s, number, false) : place;
}

/** True if no other source in use has a missing chunk. */
static bool is_only_one(wh_schedule *s, int number) {
    for (uint64_t set = in_use(s) & ~bit(number); set; set &= set - 1) {
        if (search_once(s, first_of(set), false) != UINT64_MAX) {
            return false;
        }
    }
    return in_use(s) & bit(number);
}

/**
 * True if a source would hold up the end with this chunk: it needs clearly longer than all sources
 * need for the rest, and than another one needs for this chunk.
 */
static bool is_too_slow(const wh_schedule *s, int number, uint64_t place, double end) {
    uint64_t bytes = bytes_at(s, place);
    double rate = s->sources[number].rate;
    double needed = time_for(s, number, bytes);
    double best = FOREVER;
    if (rate <= 0 || needed <= 1.5 * end + 0.02) {
        return false;
    }
    for (uint64_t set = in_use(s) & ~bit(number); set; set &= set - 1) {
        int i = first_of(set);
        /* If nothing is requested, the fastest must not refuse because of another one's latency. */
        if (may_ask(s, i, place) && (s->requested_count || guess_rate(s, i) > rate)) {
            double other = time_for(s, i, bytes);
            best = other < best ? other : best;
        }
    }
    return needed > 1.5 * best + 0.02;
}

size_t wh_schedule_next(wh_schedule *s, int number, uint64_t now, uint64_t *chunks, size_t capacity) {
    const source *one = s->sources + number;
    size_t count = 0;
    *s->seen = wh_max(*s->seen, now);
    if (!(s->live & bit(number)) || !s->missing_count) {
        return 0;
    }
    bool everything = is_only_one(s, number);
    double rates = used_rate(s);
    double end = time_for_all(s, rates);
    uint64_t users = (uint64_t)__builtin_popcountll(in_use(s));
    uint64_t least = s->missing_count + one->chunks >= LEAST_CHUNKS * users ? LEAST_CHUNKS : 1;
    while (count < capacity) {
        if (!everything && one->chunks >= least && one->requested >= window(s, number, rates)) {
            break;
        }
        uint64_t place = choose(s, number, now);
        if (place == UINT64_MAX || (!everything && is_too_slow(s, number, place, end))) {
            break;
        }
        become_requested(s, place, number, now);
        chunks[count++] = wh_chunk_set_at(s->wanted, place);
    }
    return count;
}

/* ---- what happened ---- */

void wh_schedule_moved(wh_schedule *s, int number, uint64_t bytes, uint64_t now) {
    source *one = s->sources + number;
    *s->seen = wh_max(*s->seen, now);
    if (!(s->live & bit(number))) {
        return;
    }
    if (s->benched & bit(number)) {
        s->benched &= ~bit(number);
        s->silent &= ~bit(number);
        choose_locals(s);
    }
    uint64_t elapsed = now - wh_min(now, one->waiting ? one->asked_at : one->heard_at);
    one->heard_at = wh_max(one->heard_at, now);
    if (!one->chunks) {
        return; /* the rest of requests that were recalled says nothing about the rate */
    }
    one->partial += bytes;
    if (one->waiting) {
        /* These bytes took the latency and an unknown time: good for a first, rough rate only. */
        one->latency_ns = one->latency_ns ? wh_min(one->latency_ns, elapsed) : elapsed;
        one->waiting = false;
        if (one->rate <= 0 && elapsed) {
            one->rate = (double)bytes / ((double)elapsed * 1e-9);
            one->rough = true;
            update_mean(s);
        }
        return;
    }
    one->sample_ns += elapsed;
    one->sample_bytes += bytes;
    if (one->sample_ns >= (one->rough ? SAMPLE_NS / 4 : SAMPLE_NS) || (one->sample_ns && one->rate <= 0)) {
        double rate = (double)one->sample_bytes / ((double)one->sample_ns * 1e-9);
        one->rate = one->rate > 0 && !one->rough ? 0.6 * one->rate + 0.4 * rate : rate;
        one->rough = false;
        one->sample_ns = 0;
        one->sample_bytes = 0;
        update_mean(s);
    }
}

void wh_schedule_landed(wh_schedule *s, int number, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place != UINT64_MAX && s->states[place] == (REQUESTED | number)) {
        become_landed(s, place, number);
    }
}

void wh_schedule_rejected(wh_schedule *s, int number, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place != UINT64_MAX && (s->states[place] == (REQUESTED | number) || s->states[place] == number)) {
        become_missing(s, place, number);
    }
}

/* ---- late sources ---- */

/** True if a source has all requests of another one, or at least one of them. */
static bool could_deliver(const wh_schedule *s, int number, int late, bool all) {
    uint8_t state = (uint8_t)(REQUESTED | late);
    if (!s->sources[number].have) {
        return true;
    }
    for (uint64_t at = find_state(s, state, 0); at != UINT64_MAX; at = find_state(s, state, at + 1)) {
        if (has(s, number, at) != all) {
            return !all;
        }
    }
    return all;
}

/** True if nothing moves, and a source that works has some of the requests. */
static bool is_stalled(const wh_schedule *s, int number, uint64_t now) {
    uint64_t quiet = stalled(s, now);
    for (uint64_t set = quiet & bit(number) ? s->live & ~s->benched & ~quiet : 0; set; set &= set - 1) {
        if (could_deliver(s, first_of(set), number, false)) {
            return true;
        }
    }
    return false;
}

static bool is_overloaded(const wh_schedule *s, int number) {
    const source *one = s->sources + number;
    return one->chunks >= OVERLOADED_CHUNKS && one->requested > 2 * window(s, number, used_rate(s));
}

/**
 * True if idle sources make it worth to recall a source: one of them needs less than half of the
 * time, or all of them would share what it was given when it was the only one.
 */
static bool is_outrun(const wh_schedule *s, int number) {
    const source *one = s->sources + number;
    double left = time_for(s, number, 0);
    double shared = one->rate;
    if (one->rate <= 0 || one->recalls >= RECALLS_MAX || s->wasted + one->partial > s->total_bytes / WASTE) {
        return false;
    }
    for (uint64_t set = in_use(s) & ~bit(number); set; set &= set - 1) {
        int i = first_of(set);
        if (s->sources[i].chunks || !could_deliver(s, i, number, true)) {
            continue;
        }
        double other = time_for(s, i, one->requested);
        if (s->sources[i].rate > 0 && other < 0.5 * left && left - other > 0.05) {
            return true;
        }
        shared += guess_rate(s, i);
    }
    double share = (double)one->requested / shared;
    return share < 0.9 * left && left - share > 0.1 && is_overloaded(s, number);
}

int wh_schedule_late(const wh_schedule *s, uint64_t now) {
    int result = -1;
    double longest = 0;
    *s->seen = wh_max(*s->seen, now);
    for (uint64_t set = s->live; set; set &= set - 1) {
        int i = first_of(set);
        if (s->sources[i].chunks && is_stalled(s, i, now)) {
            return i;
        }
        if (s->sources[i].chunks && !s->missing_count && time_for(s, i, 0) > longest && is_outrun(s, i)) {
            result = i;
            longest = time_for(s, i, 0);
        }
    }
    return result;
}

static void recall(wh_schedule *s, int number, bool is_silent) {
    source *one = s->sources + number;
    if (!(s->live & bit(number))) {
        return;
    }
    if (is_silent || !is_overloaded(s, number)) {
        s->benched |= bit(number);
        s->silent |= is_silent ? bit(number) : 0;
    }
    s->wasted += one->partial;
    drop_state(s, REQUESTED | number);
    one->partial = 0;
    one->recalls += one->recalls < UINT8_MAX;
    choose_locals(s);
}

void wh_schedule_recall(wh_schedule *s, int number) {
    recall(s, number, *s->seen >= stalled_at(s->sources + number));
}

void wh_schedule_suspend(wh_schedule *s, int number) {
    recall(s, number, true);
}

/* ---- questions ---- */

bool wh_schedule_is_done(const wh_schedule *s) {
    return s->landed_count == s->wanted->total;
}

bool wh_schedule_is_all_requested(const wh_schedule *s) {
    return !s->missing_count;
}

bool wh_schedule_is_stuck(const wh_schedule *s, uint64_t *chunk_p) {
    for (uint64_t word = 0; s->missing_count && word < s->words; word++) {
        uint64_t bits = s->missing[word];
        for (uint64_t set = s->live; set && bits; set &= set - 1) {
            if (!s->sources[first_of(set)].have) {
                return false;
            }
            bits &= ~have_word(s, first_of(set), word);
        }
        if (bits) {
            *chunk_p = wh_chunk_set_at(s->wanted, word * 64 + (uint64_t)__builtin_ctzll(bits));
            return true;
        }
    }
    return false;
}

uint64_t wh_schedule_wake_at(const wh_schedule *s) {
    uint64_t at = UINT64_MAX;
    for (uint64_t set = s->live; set; set &= set - 1) {
        const source *one = s->sources + first_of(set);
        if (one->chunks) {
            /* One that had stalled by then cannot be replaced, or it would have been recalled. */
            uint64_t due = stalled_at(one);
            at = wh_min(at, due > s->seen_at ? due : s->seen_at + STALL_NS);
        }
    }
    return at;
}

double wh_schedule_rate(const wh_schedule *s, int number) {
    return s->sources[number].rate;
}

int wh_schedule_source_of(const wh_schedule *s, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    return place != UINT64_MAX && s->states[place] < REQUESTED ? s->states[place] : -1;
}
