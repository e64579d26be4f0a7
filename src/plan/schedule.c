#include "plan/schedule.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

/**
 * The state of a chunk is one byte: the number of a source, and one of these values. 0: landed from
 * the source. MISSING with a source: the source could not deliver it, so others are preferred.
 */
enum { REQUESTED = 64, MISSING = 128, NOBODY = 127 };

enum {
    LEAST_CHUNKS = 2, /**< Requests per source while its rate is unknown or low. */
    WASTE = 20,       /**< 1/WASTE of the bytes may be requested twice to finish sooner. */
    RECALLS_MAX = 8,  /**< Maximum number of recalls of a source only to finish sooner. */
    /** Maximum number of times that the time limit of a stalled source doubles. */
    BACKOFF_MAX = 5,
    OVERLOADED_CHUNKS = 4 /**< With fewer requests than this, sharing them is not worth a recall. */
};

/** Requests cover this much time beyond the latency, so that a source never runs out of them. */
#define AHEAD_NS UINT64_C(100000000)
/** A rate is measured over at least this time, because chunks arrive in bursts. */
#define SAMPLE_NS UINT64_C(20000000)
/** A source is stalled if nothing moves for this long, in addition to its latency. */
#define STALL_NS UINT64_C(1000000000)
/** Longer than any transfer, in seconds. */
#define FOREVER 1e18

typedef struct source {
    uint64_t *have; /**< One bit per place that the source has; NULL: it has all. */
    bool local;
    uint8_t recalls; /**< Number of times that the source was recalled. */
    uint64_t cursor; /**< The place at which the next search for a missing chunk begins. */
    /**
     * The versions in which a search found nothing: among all chunks, and among those that only
     * this source has.
     */
    uint64_t dry[2];
    uint64_t requested; /**< Bytes that are requested and have not landed. */
    uint64_t partial;   /**< Bytes of `requested` that have moved. */
    uint64_t chunks;    /**< Number of chunks that are requested and have not landed. */
    uint64_t landed;    /**< Number of chunks that have landed from this source. */
    double rate;        /**< Bytes per second; 0: unknown. */
    /** True if the rate was measured over the first bytes, including the latency. */
    bool rough;
    /** True if the source was idle, and nothing has moved since it was asked. */
    bool waiting;
    /** The shortest time from a request until bytes moved, measured when the source was idle. */
    uint64_t latency_ns;
    uint64_t asked_at;  /**< When it was last asked while idle. */
    uint64_t heard_at;  /**< When bytes last moved, or asked_at if that is later. */
    uint64_t sample_ns; /**< Time and bytes that the rate does not include yet. */
    uint64_t sample_bytes;
} source;

/** A place is the index of a chunk in the wanted set. A set of sources has one bit per source. */
struct wh_schedule {
    const wh_chunk_set *wanted;
    wh_chunk_bytes_fn bytes;
    const void *context;
    uint8_t *states;   /**< The state of each place. */
    uint64_t *missing; /**< A bit per place: set if it is MISSING. */
    uint64_t *chosen;  /**< A bit per place, for wh_schedule_next; no bit is set outside of it. */
    uint64_t words;    /**< Number of words in a bitmap. */
    uint64_t missing_count;
    uint64_t missing_bytes;
    uint64_t requested_count; /**< Number of chunks that are requested from any source. */
    uint64_t landed_count;    /**< Number of chunks that count for a live source. */
    uint64_t total_bytes;
    uint64_t wasted;  /**< Bytes that had moved before their requests were recalled. */
    uint64_t live;    /**< The sources that were not removed. */
    uint64_t standby; /**< The local sources that are not used, because enough others are used. */
    uint64_t benched; /**< The recalled sources that get no requests while others can be used. */
    uint64_t silent;  /**< The benched sources that were recalled because nothing moved. */
    uint64_t version; /**< Changes whenever a search may find more than before. */
    uint64_t seen_at; /**< The latest time that the caller passed. */
    double mean_rate; /**< Mean rate of the live sources whose rate is known; 0 if none is. */
    uint32_t local_limit;
    int count;
    source sources[WH_SCHEDULE_SOURCES];
};

static uint64_t bit(int number) {
    return UINT64_C(1) << number;
}

/** For iterating over a set of sources: returns the lowest number; `set &= set - 1` removes it. */
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

/** Takes a chunk out of its state. The caller then sets the new state. */
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

/** Makes all chunks with a state missing again. */
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
    s->chosen = wh_alloc_zeroed(s->words, sizeof(*s->chosen));
    if (!s->states || !s->missing || !s->chosen) {
        wh_schedule_destroy(s);
        return NULL;
    }
    memset(s->states, MISSING | NOBODY, wanted->total);
    for (uint64_t place = 0; place < wanted->total; place++) {
        s->missing[place / 64] |= UINT64_C(1) << place % 64;
        s->missing_bytes += bytes_at(s, place);
    }
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
        wh_free(s->chosen);
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

/**
 * Returns a number for a new source: one that was not used yet, or that of a source that was
 * forgotten.
 */
static int new_number(wh_schedule *s) {
    if (s->count < WH_SCHEDULE_SOURCES) {
        return s->count++;
    }
    for (int i = 0; i < s->count; i++) {
        if (!(s->live & bit(i)) && !s->sources[i].landed) {
            uint8_t failed = (uint8_t)(MISSING | i);
            for (uint64_t at = 0; (at = find_state(s, failed, at)) != UINT64_MAX;) {
                s->states[at] = MISSING | NOBODY; /* The new source may be able to deliver it. */
            }
            wh_free(s->sources[i].have);
            return i;
        }
    }
    return -1;
}

int wh_schedule_add(wh_schedule *s, const wh_chunk_set *have, bool local, uint64_t now) {
    uint64_t *bits = have ? wh_alloc_zeroed(s->words, sizeof(*bits)) : NULL;
    int number = have && !bits ? -1 : new_number(s);
    if (number < 0) {
        wh_free(bits);
        return -1;
    }
    if (have) {
        fill_have(s, have, bits);
    }
    /* Sources start at different places, so that each reads long runs. */
    uint64_t start = (uint64_t)__builtin_popcountll(s->live) * 7 % 16;
    s->sources[number] = (source){
        .have = bits, .local = local, .cursor = s->wanted->total / 16 * start, .asked_at = now, .heard_at = now};
    s->seen_at = wh_max(s->seen_at, now);
    s->live |= bit(number);
    choose_locals(s);
    return number;
}

/** There is more to do than expected, so sources that were recalled for being slow help again. */
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
 * Returns how many bytes a source should have requested. Near the end it gets only its share, so
 * that all sources end together.
 */
static uint64_t window(const wh_schedule *s, int number, double rates) {
    const source *one = s->sources + number;
    double ahead = one->rate * (double)(one->latency_ns + AHEAD_NS) * 1e-9;
    double share = rates > 0 ? (double)(s->missing_bytes + one->requested) * one->rate / rates : 0;
    return (uint64_t)(ahead < share ? ahead : share);
}

/** Returns the time at which a source has been silent for too long. It grows with each recall. */
static uint64_t silent_at(const source *one, uint8_t recalls) {
    return one->heard_at + one->latency_ns + (STALL_NS << wh_min(recalls, BACKOFF_MAX));
}

/** Each recall doubles the time, so that a source that stalls again and again is left alone. */
static uint64_t stalled_at(const source *one) {
    return silent_at(one, one->recalls);
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
 * True if a source may be asked for a missing chunk. If the source failed to deliver the chunk,
 * other sources come first.
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
 * Returns the next missing place for which a source can be asked, from its cursor on and around the
 * end; UINT64_MAX: none. Chunks that a source in `avoid` has are left to that source.
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
 * Chooses a chunk. Chunks that no other source in use has come first, so that none of them is left
 * for the end. A source on standby gets only those. A benched source gets only chunks that no
 * working source has.
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
 * True if a source would delay the end with this chunk: it needs clearly longer than all sources
 * need for the rest, and than another source needs for this chunk.
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
        /*
         * If nothing is requested, the fastest source must not refuse because of another source's
         * latency.
         */
        if (may_ask(s, i, place) && (s->requested_count || guess_rate(s, i) > rate)) {
            double other = time_for(s, i, bytes);
            best = other < best ? other : best;
        }
    }
    return needed > 1.5 * best + 0.02;
}

/** Moves the chosen places between two words to a set. */
static bool hand_out(wh_schedule *s, uint64_t first, uint64_t last, wh_chunk_set *chunks) {
    bool ok = true;
    for (uint64_t word = first; word <= last; word++) {
        for (uint64_t bits = s->chosen[word]; bits; bits &= bits - 1) {
            uint64_t chunk = wh_chunk_set_at(s->wanted, word * 64 + (uint64_t)__builtin_ctzll(bits));
            ok = ok && wh_chunk_set_add(chunks, chunk, chunk);
        }
        s->chosen[word] = 0;
    }
    return ok;
}

bool wh_schedule_next(wh_schedule *s, int number, uint64_t now, uint64_t most, wh_chunk_set *chunks) {
    const source *one = s->sources + number;
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    s->seen_at = wh_max(s->seen_at, now);
    if (!(s->live & bit(number)) || !s->missing_count) {
        return true;
    }
    bool everything = is_only_one(s, number);
    double rates = used_rate(s);
    double end = time_for_all(s, rates);
    uint64_t users = (uint64_t)__builtin_popcountll(in_use(s));
    uint64_t least = s->missing_count + one->chunks >= LEAST_CHUNKS * users ? LEAST_CHUNKS : 1;
    for (uint64_t count = 0; count < most; count++) {
        if (!everything && one->chunks >= least && one->requested >= window(s, number, rates)) {
            break;
        }
        uint64_t place = choose(s, number, now);
        if (place == UINT64_MAX || (!everything && is_too_slow(s, number, place, end))) {
            break;
        }
        become_requested(s, place, number, now);
        s->chosen[place / 64] |= UINT64_C(1) << place % 64;
        first = wh_min(first, place / 64);
        last = wh_max(last, place / 64);
    }
    return hand_out(s, first, last, chunks);
}

/* ---- what happened ---- */

void wh_schedule_moved(wh_schedule *s, int number, uint64_t bytes, uint64_t now) {
    source *one = s->sources + number;
    s->seen_at = wh_max(s->seen_at, now);
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
        return; /* The rest of requests that were recalled says nothing about the rate. */
    }
    one->partial += bytes;
    if (one->waiting) {
        /*
         * These bytes took the latency and an unknown time, so they give only a first, rough rate.
         */
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

bool wh_schedule_is_stalled(wh_schedule *s, int number, uint64_t now) {
    s->seen_at = wh_max(s->seen_at, now);
    const source *one = s->sources + number;
    uint64_t quiet = stalled(s, now);
    for (uint64_t set = quiet & bit(number) ? s->live & ~quiet : 0; set; set &= set - 1) {
        int i = first_of(set);
        /* A source that was itself recalled may have been slow for a moment, as all others were. */
        bool waits = s->benched & bit(i) && now < silent_at(one, wh_max(one->recalls, s->sources[i].recalls));
        if (!waits && could_deliver(s, i, number, false)) {
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
 * True if it is worth recalling a source because others are idle: one of them needs less than half
 * of the time, or all of them would share the requests that the source got when it was the only
 * one.
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

int wh_schedule_late(wh_schedule *s, uint64_t now) {
    int result = -1;
    double longest = 0;
    s->seen_at = wh_max(s->seen_at, now);
    for (uint64_t set = s->live; set; set &= set - 1) {
        int i = first_of(set);
        if (s->sources[i].chunks && wh_schedule_is_stalled(s, i, now)) {
            return i;
        }
        if (s->sources[i].chunks && !s->missing_count && time_for(s, i, 0) > longest && is_outrun(s, i)) {
            result = i;
            longest = time_for(s, i, 0);
        }
    }
    return result;
}

void wh_schedule_recall(wh_schedule *s, int number) {
    source *one = s->sources + number;
    bool is_silent = s->seen_at >= stalled_at(one);
    if (!(s->live & bit(number))) {
        return;
    }
    if (is_silent || !is_overloaded(s, number)) {
        s->benched |= bit(number);
        s->silent |= is_silent ? bit(number) : 0;
        if (!(s->live & ~s->benched)) { /* The other sources get another chance. */
            s->benched &= bit(number);
            s->silent &= bit(number);
        }
    }
    s->wasted += one->partial;
    drop_state(s, REQUESTED | number);
    one->partial = 0;
    one->recalls += one->recalls < UINT8_MAX;
    choose_locals(s);
}

/* ---- questions ---- */

uint64_t wh_schedule_pending(const wh_schedule *s, int number) {
    return s->sources[number].chunks;
}

bool wh_schedule_next_pending(const wh_schedule *s, int number, uint64_t *at_p, uint64_t *chunk_p) {
    uint64_t place = s->sources[number].chunks ? find_state(s, (uint8_t)(REQUESTED | number), *at_p) : UINT64_MAX;
    if (place == UINT64_MAX) {
        return false;
    }
    *at_p = place + 1;
    *chunk_p = wh_chunk_set_at(s->wanted, place);
    return true;
}

bool wh_schedule_is_done(const wh_schedule *s) {
    return s->landed_count == s->wanted->total;
}

bool wh_schedule_is_all_requested(const wh_schedule *s) {
    return !s->missing_count;
}

uint64_t wh_schedule_wake_at(const wh_schedule *s) {
    uint64_t at = UINT64_MAX;
    for (uint64_t set = s->live; set; set &= set - 1) {
        const source *one = s->sources + first_of(set);
        if (one->chunks) {
            /* A source that has stalled already could not be replaced, so check it again later. */
            uint64_t due = stalled_at(one);
            at = wh_min(at, due > s->seen_at ? due : s->seen_at + STALL_NS);
        }
    }
    return at;
}

double wh_schedule_rate(const wh_schedule *s, int number) {
    return s->sources[number].rate;
}

uint64_t wh_schedule_landed_count(const wh_schedule *s, int number) {
    return s->sources[number].landed;
}

int wh_schedule_source_of(const wh_schedule *s, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    return place != UINT64_MAX && s->states[place] < REQUESTED ? s->states[place] : -1;
}
