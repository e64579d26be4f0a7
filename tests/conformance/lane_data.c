#include "conformance/lane_data.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "support/build.h"

enum { UNWANTED, WANTED, OPEN, CLOSED };
enum { UNTOUCHED = 0xA5, MARGIN = 64, MOVED_MAX = 16 << 20 };

static size_t piece_gap(const lane_shape *shape, size_t gap, uint64_t *random) {
    if (gap == 0 || shape->strided) {
        return gap;
    }
    uint64_t number = next_random(random);
    return number & 1 ? 0 : 1 + (size_t)(number >> 1) % gap;
}

/** Chooses the pieces. They have the same order on both sides, but different gaps. */
static void lay_out(lane_data *data, uint64_t seed) {
    const lane_shape *shape = &data->shape;
    size_t source = MARGIN;
    size_t target = MARGIN;
    for (size_t chunk = 0, at = 0; chunk < shape->chunks; chunk++) {
        data->first[chunk] = at;
        source = shape->repeated ? MARGIN : source;
        for (size_t i = 0; i < shape->pieces; i++, at++) {
            size_t length = shape->shortest + next_random(&seed) % (shape->longest - shape->shortest + 1);
            bool nowhere = shape->repeated || (shape->nowhere && next_random(&seed) % shape->nowhere == 0);
            source += piece_gap(shape, shape->source_gap, &seed);
            target += nowhere ? 0 : piece_gap(shape, shape->target_gap, &seed);
            data->pieces[at] = (lane_piece){source, nowhere ? SIZE_MAX : target, length};
            source += length;
            target += nowhere ? 0 : length;
            data->source_bytes = wh_max(data->source_bytes, source + MARGIN);
        }
        data->first[chunk + 1] = at;
    }
    data->target_bytes = target + MARGIN;
}

static void fill_random(uint8_t *bytes, size_t size, uint64_t seed) {
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t number = next_random(&seed);
        memcpy(bytes + at, &number, wh_min(sizeof(number), size - at));
    }
}

void lane_data_fill(lane_data *data, uint64_t seed) {
    fill_random(data->source, data->source_bytes, seed);
}

void lane_data_expect(lane_data *data, uint64_t seed) {
    fill_random(data->image, data->source_bytes, seed);
    wh_digester *digester = wh_digester_create();
    for (size_t chunk = 0; chunk < data->shape.chunks; chunk++) {
        wh_digester_begin(digester);
        for (size_t i = data->first[chunk]; i < data->first[chunk + 1]; i++) {
            wh_digester_add(digester, data->image + data->pieces[i].source, data->pieces[i].length);
        }
        data->digests[chunk] = wh_digester_end(digester);
    }
    wh_digester_destroy(digester);
}

lane_data *lane_data_create(const lane_shape *shape, uint64_t seed, bool verify) {
    lane_data *data = calloc(1, sizeof(*data));
    size_t chunks = shape->chunks;
    data->shape = *shape;
    data->verify = verify;
    data->pieces = calloc(chunks * shape->pieces + 1, sizeof(*data->pieces));
    data->first = calloc(chunks + 1, sizeof(*data->first));
    data->digests = calloc(chunks + 1, sizeof(*data->digests));
    data->states = calloc(chunks + 1, sizeof(*data->states));
    data->received = calloc(chunks + 1, sizeof(*data->received));
    lay_out(data, seed);
    data->source = malloc(data->source_bytes + 1);
    data->image = malloc(data->source_bytes + 1);
    data->target = malloc(data->target_bytes + 1);
    memset(data->target, UNTOUCHED, data->target_bytes);
    lane_data_fill(data, seed);
    lane_data_expect(data, seed);
    return data;
}

void lane_data_destroy(lane_data *data) {
    free(data->pieces);
    free(data->first);
    free(data->digests);
    free(data->states);
    free(data->received);
    free(data->source);
    free(data->image);
    free(data->target);
    free(data);
}

static bool in_round(lane_round round, size_t chunk) {
    return round.stride != 0 && chunk % round.stride == round.phase;
}

void lane_data_begin_feed(lane_data *data, lane_round round) {
    data->feed_round = round;
    atomic_store(&data->feed_next, 0);
    atomic_store(&data->feed_moved, 0);
    atomic_store(&data->gathered_chunks, 0);
    atomic_store(&data->done_chunks, 0);
}

void lane_data_begin_sink(lane_data *data, lane_round round) {
    data->sink_round = round;
    atomic_store(&data->sink_next, 0);
    atomic_store(&data->sink_moved, 0);
    for (size_t chunk = 0; chunk < data->shape.chunks; chunk++) {
        bool wanted = in_round(round, chunk);
        atomic_store(data->states + chunk, wanted ? WANTED : UNWANTED);
        data->received[chunk] |= wanted;
    }
}

uint64_t lane_data_bytes(const lane_data *data, lane_round round, bool placed) {
    uint64_t bytes = 0;
    for (size_t chunk = 0; chunk < data->shape.chunks; chunk++) {
        for (size_t i = data->first[chunk]; in_round(round, chunk) && i < data->first[chunk + 1]; i++) {
            bytes += placed && data->pieces[i].target == SIZE_MAX ? 0 : data->pieces[i].length;
        }
    }
    return bytes;
}

const char *lane_data_check(const lane_data *data) {
    if (data->wrong) {
        return data->wrong;
    }
    uint64_t moved = atomic_load(&data->sink_moved);
    if (moved > lane_data_bytes(data, data->sink_round, false) ||
        moved < lane_data_bytes(data, data->sink_round, true)) {
        return "the lane reported another number of moved bytes than the round has";
    }
    uint8_t *expected = malloc(data->target_bytes + 1);
    memset(expected, UNTOUCHED, data->target_bytes);
    const char *wrong = NULL;
    for (size_t chunk = 0; chunk < data->shape.chunks; chunk++) {
        if (in_round(data->sink_round, chunk) && atomic_load(data->states + chunk) != CLOSED) {
            wrong = "the lane did not close each chunk of the round";
        }
        for (size_t i = data->first[chunk]; data->received[chunk] && i < data->first[chunk + 1]; i++) {
            const lane_piece *piece = data->pieces + i;
            if (piece->target != SIZE_MAX) {
                memcpy(expected + piece->target, data->image + piece->source, piece->length);
            }
        }
    }
    if (!wrong && memcmp(expected, data->target, data->target_bytes) != 0) {
        wrong = "the target has wrong bytes";
    }
    free(expected);
    return wrong;
}

static bool next_chunk(const lane_data *data, lane_round round, atomic_size_t *next, const wh_stop *stop,
                       uint64_t *chunk_p) {
    size_t chunk;
    do {
        chunk = atomic_fetch_add(next, 1);
    } while (chunk < data->shape.chunks && !in_round(round, chunk));
    if (chunk >= data->shape.chunks || wh_stop_requested(stop)) {
        return false;
    }
    *chunk_p = chunk;
    return true;
}

static bool sink_next(void *context, uint64_t *chunk_p) {
    lane_data *data = context;
    return next_chunk(data, data->sink_round, &data->sink_next, data->sink_stop, chunk_p);
}

static bool feed_next(void *context, uint64_t *chunk_p) {
    lane_data *data = context;
    return next_chunk(data, data->feed_round, &data->feed_next, data->feed_stop, chunk_p);
}

/** Both sides use this: the source's addresses are the same in a child that is forked later. */
static wherry_status gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    const lane_data *data = context;
    wh_segments_clear(segments);
    if (chunk >= data->shape.chunks) {
        return wh_fail(error, WHERRY_INTERNAL, "there is no such chunk");
    }
    for (size_t i = data->first[chunk]; i < data->first[chunk + 1]; i++) {
        if (!wh_segments_add(segments, data->source + data->pieces[i].source, data->pieces[i].length)) {
            return wh_fail_memory(error, "segments");
        }
    }
    return WHERRY_OK;
}

static bool is_staged(const lane_data *data, uint64_t chunk) {
    return data->shape.repeated || (data->shape.staged && chunk % data->shape.staged == data->shape.staged - 1);
}

static bool make_scratch(wh_landing *landing, size_t size) {
    if (landing->scratch_bytes < size) {
        wh_free(landing->scratch);
        landing->scratch = wh_alloc(size);
        landing->scratch_bytes = landing->scratch ? size : 0;
    }
    return landing->scratch_bytes >= size;
}

static bool aim(const lane_data *data, uint64_t chunk, wh_landing *landing) {
    size_t longest = 0;
    size_t all = 0;
    bool good = true;
    wh_segments_clear(&landing->segments);
    for (size_t i = data->first[chunk]; i < data->first[chunk + 1]; i++) {
        const lane_piece *piece = data->pieces + i;
        all += piece->length;
        if (!landing->staged) {
            void *to = piece->target == SIZE_MAX ? NULL : data->target + piece->target;
            good = good && wh_segments_add(&landing->segments, to, piece->length);
        }
    }
    for (size_t i = 0; i < landing->segments.count; i++) {
        const struct iovec *segment = landing->segments.items + i;
        longest = segment->iov_base ? longest : wh_max(longest, segment->iov_len);
    }
    good = good && make_scratch(landing, landing->staged ? all : longest);
    return good && (!landing->staged || wh_segments_add(&landing->segments, landing->scratch, all));
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error) {
    lane_data *data = context;
    int wanted = WANTED;
    if (chunk >= data->shape.chunks || !atomic_compare_exchange_strong(data->states + chunk, &wanted, OPEN)) {
        data->wrong = "the lane opened a chunk that is not in the round, or is open already";
        return wh_fail(error, WHERRY_MALFORMED, "chunk not expected");
    }
    landing->chunk = chunk;
    landing->staged = is_staged(data, chunk);
    return aim(data, chunk, landing) ? WHERRY_OK : wh_fail_memory(error, "a landing");
}

static void place_staged(lane_data *data, const wh_landing *landing) {
    const uint8_t *from = landing->scratch;
    for (size_t i = data->first[landing->chunk]; i < data->first[landing->chunk + 1]; i++) {
        if (data->pieces[i].target != SIZE_MAX) {
            memcpy(data->target + data->pieces[i].target, from, data->pieces[i].length);
        }
        from += data->pieces[i].length;
    }
}

static wherry_status sink_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                const wherry_digest *claimed, wherry_error *error) {
    lane_data *data = context;
    int open = OPEN;
    if (landing->chunk >= data->shape.chunks ||
        !atomic_compare_exchange_strong(data->states + landing->chunk, &open, CLOSED)) {
        data->wrong = "the lane closed a chunk that is not open";
        return wh_fail(error, WHERRY_MALFORMED, "the chunk is not open");
    }
    const wherry_digest *right = data->digests + landing->chunk;
    if (data->verify != (digest != NULL)) {
        data->wrong = "the lane closed a chunk without the digest it needs, or with one it must not have";
    } else if (digest && !wh_digest_equal(digest, right)) {
        data->wrong = "the lane computed a wrong digest";
    } else if (data->verify && data->claims && !claimed) {
        data->wrong = "the lane did not pass on the source's digest of a chunk";
    } else if (claimed && !wh_digest_equal(claimed, right)) {
        data->wrong = "the lane passed on a wrong digest from the source";
    }
    if (landing->staged && !data->shape.repeated) {
        place_staged(data, landing);
    }
    size_t landed = atomic_fetch_add(&data->landed_chunks, 1) + 1;
    if (data->landed) {
        data->landed(data->landed_context, landed);
    }
    return WHERRY_OK;
}

static void count_moved(lane_data *data, atomic_uint_fast64_t *moved, uint64_t bytes) {
    atomic_fetch_add(moved, bytes);
    if (bytes > MOVED_MAX) {
        data->wrong = "the lane reports progress too rarely";
    }
}

static void sink_moved(void *context, uint64_t bytes) {
    lane_data *data = context;
    count_moved(data, &data->sink_moved, bytes);
}

static void feed_moved(void *context, uint64_t bytes) {
    lane_data *data = context;
    count_moved(data, &data->feed_moved, bytes);
}

static wherry_status feed_gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    lane_data *data = context;
    atomic_fetch_add(&data->gathered_chunks, 1);
    return gather(context, chunk, segments, error);
}

static void feed_done(void *context, uint64_t chunk) {
    lane_data *data = context;
    atomic_fetch_add(&data->done_chunks, 1);
    if (chunk >= data->shape.chunks || data->done_chunks > data->gathered_chunks) {
        data->wrong = "the lane reported a chunk as done before gathering it";
    }
}

/** True if a chunk is one run at the source. Sets its start and length. */
static bool source_run(const lane_data *data, uint64_t chunk, size_t *begin_p, size_t *bytes_p) {
    *begin_p = data->pieces[data->first[chunk]].source;
    *bytes_p = 0;
    for (size_t i = data->first[chunk]; i < data->first[chunk + 1]; i++) {
        if (data->pieces[i].source != *begin_p + *bytes_p) {
            return false;
        }
        *bytes_p += data->pieces[i].length;
    }
    return true;
}

static uint64_t continues(void *context, uint64_t chunk) {
    const lane_data *data = context;
    size_t before;
    size_t before_bytes;
    size_t begin;
    size_t bytes;
    bool does = chunk > 0 && chunk < data->shape.chunks && source_run(data, chunk - 1, &before, &before_bytes) &&
                source_run(data, chunk, &begin, &bytes) && before + before_bytes == begin;
    return does ? bytes : 0;
}

wh_sink lane_data_sink(lane_data *data) {
    return (wh_sink){.context = data,
                     .verify = data->verify,
                     .next = sink_next,
                     .origin = gather,
                     .open = sink_open,
                     .close = sink_close,
                     .moved = sink_moved,
                     .continues = continues};
}

wh_feed lane_data_feed(lane_data *data) {
    return (wh_feed){.context = data,
                     .verify = data->verify,
                     .next = feed_next,
                     .gather = feed_gather,
                     .moved = feed_moved,
                     .continues = continues,
                     .done = feed_done};
}
