#include "plan/schedule.h"

#include "base/alloc.h"
#include "base/checked.h"

enum { NOBODY = -1, LEAST_CHUNKS = 2, TWICE = 2 };

/** Requests cover this much time beyond the latency, so that a source never waits for the caller. */
#define AHEAD_NS UINT64_C(100000000)
/** A rate is measured over at least this time, because chunks arrive in bursts. */
#define SAMPLE_NS UINT64_C(20000000)
/** A source is stalled if nothing moves for this long beyond its latency. */
#define STALL_NS UINT64_C(1000000000)

/** One chunk, by its place in the wanted set. */
typedef struct chunk_state {
    uint64_t asked; /**< A bit per source that it is requested from. */
    int8_t from;    /**< The source that it landed from; NOBODY. */
} chunk_state;

typedef struct source {
    const wh_chunk_set *have;
    bool local;
    bool standby;        /**< Local, and enough other local sources are in use. */
    uint64_t cursor;     /**< The place to look at next for a missing chunk. */
    uint64_t requested;  /**< Bytes requested and not landed. */
    uint64_t chunks;     /**< Chunks requested and not landed. */
    uint64_t landed;     /**< Chunks that count for it. */
    double rate;         /**< Bytes per second; 0: unknown. */
    uint64_t latency_ns; /**< Shortest time from a request to an idle source until bytes moved. */
    uint64_t asked_at;   /**< When it was last asked while idle. */
    bool measures;       /**< The next bytes give a latency. */
    uint64_t heard_at;   /**< When bytes last moved, or asked_at if that is later. */
    uint64_t sample_at;
    uint64_t sample_bytes;
} source;

struct wh_schedule {
    const wh_chunk_set *wanted;
    wh_chunk_bytes_fn bytes;
    const void *context;
    chunk_state *states;
    uint64_t *missing; /**< A bit per place: not landed, and requested from no active source. */
    uint64_t missing_count;
    uint64_t missing_bytes;
    uint64_t landed_count;
    uint64_t total_bytes;
    uint64_t twice_bytes; /**< Bytes requested although an active source was asked already. */
    uint64_t live;        /**< A bit per source that was not removed. */
    uint64_t stalled;     /**< A bit per live source that moves nothing. Live, not stalled: active. */
    uint32_t local_limit;
    int count;
    source sources[WH_SCHEDULE_SOURCES];
};

static uint64_t bit(int number) {
    return UINT64_C(1) << number;
}

static bool is_live(const wh_schedule *s, int number) {
    return s->live & bit(number);
}

static uint64_t active(const wh_schedule *s) {
    return s->live & ~s->stalled;
}

static uint64_t bytes_at(const wh_schedule *s, uint64_t place) {
    return s->bytes(s->context, wh_chunk_set_at(s->wanted, place));
}

/** Brings the missing bit of a place up to date after any change. */
static void update(wh_schedule *s, uint64_t place) {
    const chunk_state *state = s->states + place;
    bool missing = state->from == NOBODY && !(state->asked & active(s));
    uint64_t bytes = bytes_at(s, place);
    if (missing != (s->missing[place / 64] >> place % 64 & 1)) {
        s->missing[place / 64] ^= UINT64_C(1) << place % 64;
        s->missing_count += missing ? 1 : -1;
        s->missing_bytes += missing ? bytes : -bytes;
    }
}

/** True if a source has a chunk and was not asked for it. */
static bool can_ask(const wh_schedule *s, int number, uint64_t place) {
    const wh_chunk_set *have = s->sources[number].have;
    return !(s->states[place].asked & bit(number)) &&
           (!have || wh_chunk_set_has(have, wh_chunk_set_at(s->wanted, place)));
}

wh_schedule *wh_schedule_create(const wh_chunk_set *wanted, wh_chunk_bytes_fn bytes, const void *context,
                                uint32_t local_limit) {
    wh_schedule *s = wh_alloc_zeroed(1, sizeof(*s));
    if (!s) {
        return NULL;
    }
    *s = (wh_schedule){.wanted = wanted, .bytes = bytes, .context = context, .local_limit = local_limit};
    s->states = wh_alloc_array(wh_max(wanted->total, 1), sizeof(*s->states));
    s->missing = wh_alloc_zeroed(wanted->total / 64 + 1, sizeof(*s->missing));
    if (!s->states || !s->missing) {
        wh_schedule_destroy(s);
        return NULL;
    }
    for (uint64_t place = 0; place < wanted->total; place++) {
        s->states[place] = (chunk_state){.from = NOBODY};
        update(s, place);
    }
    s->total_bytes = s->missing_bytes;
    return s;
}

void wh_schedule_destroy(wh_schedule *schedule) {
    if (schedule) {
        wh_free(schedule->states);
        wh_free(schedule->missing);
        wh_free(schedule);
    }
}

/* ---- sources ---- */

/** Decides which local sources are used: the first ones that are live. */
static void choose_locals(wh_schedule *s) {
    uint32_t used = 0;
    for (int i = 0; i < s->count; i++) {
        if (is_live(s, i) && s->sources[i].local) {
            s->sources[i].standby = used >= s->local_limit;
            used += !s->sources[i].standby;
        }
    }
}

int wh_schedule_add(wh_schedule *s, const wh_chunk_set *have, bool local, uint64_t now) {
    if (s->count == WH_SCHEDULE_SOURCES) {
        return -1;
    }
    /* Sources start at different places, so that each reads long runs. */
    uint64_t place = (uint64_t)__builtin_popcountll(s->live) * 7 % 16;
    s->sources[s->count] = (source){
        .have = have, .local = local, .cursor = s->wanted->total / 16 * place, .asked_at = now, .heard_at = now};
    s->live |= bit(s->count++);
    choose_locals(s);
    return s->count - 1;
}

/** Forgets a request, if there is one. */
static void take_back(wh_schedule *s, int number, uint64_t place) {
    chunk_state *state = s->states + place;
    if (state->asked & bit(number)) {
        state->asked &= ~bit(number);
        s->sources[number].requested -= bytes_at(s, place);
        s->sources[number].chunks--;
    }
}

static void forget_landed(wh_schedule *s, int number, uint64_t place) {
    if (s->states[place].from == number) {
        s->states[place].from = NOBODY;
        s->landed_count--;
        s->sources[number].landed--;
    }
}

void wh_schedule_remove(wh_schedule *s, int number) {
    s->live &= ~bit(number);
    s->stalled &= ~bit(number);
    for (uint64_t place = 0; place < s->wanted->total; place++) {
        forget_landed(s, number, place);
        take_back(s, number, place);
        update(s, place);
    }
    choose_locals(s);
}

/** Marks a source as stalled or not: its requests then count as missing, or not. */
static void set_stalled(wh_schedule *s, int number, bool stalled) {
    s->stalled = stalled ? s->stalled | bit(number) : s->stalled & ~bit(number);
    for (uint64_t place = 0; place < s->wanted->total; place++) {
        if (s->states[place].asked & bit(number)) {
            update(s, place);
        }
    }
}

void wh_schedule_confirm(wh_schedule *s, uint64_t chunk, int by) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place != UINT64_MAX && s->states[place].from != NOBODY) {
        s->sources[s->states[place].from].landed--;
        s->states[place].from = (uint8_t)by;
        s->sources[by].landed++;
    }
}

/* ---- requests ---- */

/** The rate of a source; if unknown, the mean of the known ones; 0 if none is known. */
static double guess_rate(const wh_schedule *s, int number) {
    double sum = 0;
    int known = 0;
    if (s->sources[number].rate > 0) {
        return s->sources[number].rate;
    }
    for (int i = 0; i < s->count; i++) {
        sum += is_live(s, i) ? s->sources[i].rate : 0;
        known += is_live(s, i) && s->sources[i].rate > 0;
    }
    return known ? sum / known : 0;
}

/** Seconds until a source has delivered all that it was asked for, and `more` bytes. */
static double time_for(const wh_schedule *s, int number, uint64_t more) {
    const source *one = s->sources + number;
    double rate = guess_rate(s, number);
    return rate > 0 ? (double)one->latency_ns * 1e-9 + (double)(one->requested + more) / rate : 1e9;
}

static uint64_t stalled_at(const source *one) {
    return one->heard_at + one->latency_ns + STALL_NS;
}

/** How many bytes a source should have outstanding. Near the end, only its share, so that all end together. */
static uint64_t window(const wh_schedule *s, int number) {
    const source *one = s->sources + number;
    double rates = 0;
    for (int i = 0; i < s->count; i++) {
        rates += active(s) & bit(i) && !s->sources[i].standby ? guess_rate(s, i) : 0;
    }
    double ahead = one->rate * (double)(one->latency_ns + AHEAD_NS) * 1e-9;
    double share = rates > 0 ? (double)(s->missing_bytes + one->requested) * one->rate / rates : 0;
    return (uint64_t)(ahead < share ? ahead : share);
}

/** The next missing place that a source can be asked for, from its cursor on, around the end; UINT64_MAX: none. */
static uint64_t find_missing(const wh_schedule *s, int number) {
    uint64_t cursor = s->sources[number].cursor;
    uint64_t words = s->wanted->total / 64 + 1;
    for (uint64_t step = 0; s->missing_count && step <= words; step++) {
        uint64_t word = (cursor / 64 + step) % words;
        uint64_t bits = s->missing[word] & (step ? UINT64_MAX : UINT64_MAX << cursor % 64);
        for (; bits; bits &= bits - 1) {
            uint64_t place = word * 64 + (uint64_t)__builtin_ctzll(bits);
            if (can_ask(s, number, place)) {
                return place;
            }
        }
    }
    return UINT64_MAX;
}

/**
 * Nothing is missing: a chunk that active sources would deliver clearly later than this one, if it were
 * asked too. The last chunks are requested twice rather than waited for. UINT64_MAX: none.
 */
static uint64_t find_late(const wh_schedule *s, int number) {
    uint64_t best = UINT64_MAX;
    double latest = 0;
    for (uint64_t place = s->wanted->total; place-- > 0;) {
        const chunk_state *state = s->states + place;
        uint64_t askers = state->asked & active(s);
        uint64_t bytes = bytes_at(s, place);
        if (state->from != NOBODY || !askers || __builtin_popcountll(askers) >= TWICE ||
            s->twice_bytes + bytes > s->total_bytes / WH_SCHEDULE_WASTE || !can_ask(s, number, place)) {
            continue;
        }
        double late = time_for(s, __builtin_ctzll(askers), 0);
        if (late > latest && time_for(s, number, bytes) < late * 0.8) {
            best = place;
            latest = late;
        }
    }
    return best;
}

static void request(wh_schedule *s, int number, uint64_t place, uint64_t now) {
    source *one = s->sources + number;
    if (!one->chunks) {
        one->asked_at = now;
        one->heard_at = now;
        one->measures = true;
        one->sample_at = now;
        one->sample_bytes = 0;
    }
    one->chunks++;
    one->requested += bytes_at(s, place);
    one->cursor = place + 1 < s->wanted->total ? place + 1 : 0;
    s->states[place].asked |= bit(number);
    update(s, place);
}

/** True if another local source is preferred to this one, which is on standby. */
static bool must_stand_by(const wh_schedule *s, int number) {
    for (int i = 0; s->sources[number].standby && i < s->count; i++) {
        const source *other = s->sources + i;
        if (active(s) & bit(i) && other->local && !other->standby &&
            (other->chunks || find_missing(s, i) != UINT64_MAX)) {
            return true;
        }
    }
    return false;
}

size_t wh_schedule_next(wh_schedule *s, int number, uint64_t now, uint64_t *chunks, size_t capacity) {
    const source *one = s->sources + number;
    size_t count = 0;
    for (int i = 0; i < s->count; i++) {
        if (active(s) & bit(i) && s->sources[i].chunks && now >= stalled_at(s->sources + i)) {
            set_stalled(s, i, true);
        }
    }
    if (!(active(s) & bit(number)) || must_stand_by(s, number)) {
        return 0;
    }
    while (count < capacity && (one->chunks < LEAST_CHUNKS || one->requested < window(s, number))) {
        uint64_t place = find_missing(s, number);
        if (place == UINT64_MAX && one->chunks < LEAST_CHUNKS) {
            place = find_late(s, number);
            s->twice_bytes += place == UINT64_MAX ? 0 : bytes_at(s, place);
        }
        if (place == UINT64_MAX) {
            break;
        }
        request(s, number, place, now);
        chunks[count++] = wh_chunk_set_at(s->wanted, place);
    }
    return count;
}

/* ---- what happened ---- */

void wh_schedule_moved(wh_schedule *s, int number, uint64_t bytes, uint64_t now) {
    source *one = s->sources + number;
    if (one->measures) {
        uint64_t latency = now - one->asked_at;
        one->latency_ns = one->latency_ns ? wh_min(one->latency_ns, latency) : latency;
        one->measures = false;
    }
    one->heard_at = now;
    if (s->stalled & bit(number)) {
        set_stalled(s, number, false);
    }
    one->sample_bytes += bytes;
    uint64_t elapsed = now - one->sample_at;
    if (elapsed && (elapsed >= SAMPLE_NS || one->rate <= 0)) {
        double rate = (double)one->sample_bytes / ((double)elapsed * 1e-9);
        one->rate = one->rate > 0 ? 0.6 * one->rate + 0.4 * rate : rate;
        one->sample_at = now;
        one->sample_bytes = 0;
    }
}

bool wh_schedule_landed(wh_schedule *s, int number, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place == UINT64_MAX || !(s->states[place].asked & bit(number))) {
        return false;
    }
    bool first = s->states[place].from == NOBODY;
    if (first) {
        s->states[place].from = (int8_t)number;
        s->landed_count++;
        s->sources[number].landed++;
    }
    take_back(s, number, place);
    update(s, place);
    return first;
}

void wh_schedule_rejected(wh_schedule *s, int number, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(s->wanted, chunk);
    if (place != UINT64_MAX) {
        forget_landed(s, number, place);
        take_back(s, number, place);
        update(s, place);
    }
}

bool wh_schedule_is_done(const wh_schedule *s) {
    return s->landed_count == s->wanted->total;
}

bool wh_schedule_is_stuck(const wh_schedule *s, uint64_t *chunk_p) {
    for (uint64_t place = 0; s->missing_count && place < s->wanted->total; place++) {
        uint64_t chunk = wh_chunk_set_at(s->wanted, place);
        bool held = s->states[place].from != NOBODY || s->states[place].asked;
        for (int i = 0; i < s->count && !held; i++) {
            held = is_live(s, i) && can_ask(s, i, place);
        }
        if (!held) {
            *chunk_p = chunk;
            return true;
        }
    }
    return false;
}

uint64_t wh_schedule_wake_at(const wh_schedule *s) {
    uint64_t at = UINT64_MAX;
    for (int i = 0; i < s->count; i++) {
        if (active(s) & bit(i) && s->sources[i].chunks) {
            at = wh_min(at, stalled_at(s->sources + i));
        }
    }
    return at;
}

double wh_schedule_rate(const wh_schedule *s, int number) {
    return s->sources[number].rate;
}

uint64_t wh_schedule_landed_from(const wh_schedule *s, int number) {
    return s->sources[number].landed;
}
