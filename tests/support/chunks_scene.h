/**
 * @file chunks_scene.h  Chunks of a receive, and the sessions of two sources that deliver them,
 * without a lane.
 */
#ifndef WH_TESTS_CHUNKS_SCENE_H
#define WH_TESTS_CHUNKS_SCENE_H

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/stop.h"
#include "support/counting_allocator.h"
#include "support/local_group.h"
#include "transfer/chunks.h"

enum { CHUNK = 4 << 20, BODY = 3 * CHUNK + 100, GUARD = 4096, LONG_MS = 60000, SOON_MS = 30000 };

/** How the sources of a scene check digests. */
typedef enum check { NO_CHECK, BY_LANE, BY_MESSAGE } check;

static wherry_error error;
static int closes; /**< Lane ends that were closed. */

static inline void count_close(wh_lane_end *end) {
    (void)end;
    closes++;
}

static const wh_lane_ops plain_lane = {.name = "test", .close = count_close};
static const wh_lane_ops digest_lane = {.name = "test digests", .traits = WH_LANE_DIGESTS, .close = count_close};

/**
 * A plan for a tensor "w" of four chunks, into a target between guard bytes, and sessions of two
 * sources. All chunks are assigned to source 0.
 */
typedef struct scene {
    wherry_value *source;
    wherry_value *target;
    wherry_plan *plan;
    wh_stop stop;
    wh_chunks chunks;
    wh_pull pulls[2];
    wh_sink sinks[2];
    wh_landing landing;
} scene;

static inline wherry_value *tensor_of(uint64_t bytes, uint64_t guard, uint8_t seed) {
    int64_t size = (int64_t)bytes;
    wherry_storage *storage = build_storage(bytes + 2 * guard, seed);
    wherry_value *tensor = build_tensor(storage, WHERRY_U8, (int64_t)guard, 1, &size, NULL);
    return build_dict("w", tensor, NULL);
}

/** The options of the scenes that are opened next. */
static wherry_transfer_options scene_options;

static inline bool init_chunks(wh_chunks *chunks, const wherry_plan *plan, const wh_stop *stop,
                               const wherry_interval *intervals, size_t count) {
    wh_chunk_set wanted;
    bool ok = wh_chunk_set_init(&wanted, intervals, count) &&
              wh_chunks_init(chunks, plan, &wanted, &scene_options, stop, wh_deadline_never());
    wh_chunk_set_destroy(&wanted);
    return ok;
}

/** Prepares the session of a source. */
static inline void pull_open(wh_pull *pull, wh_chunks *chunks, uint8_t number, check how) {
    *pull = (wh_pull){.chunks = chunks, .source = number};
    const wh_lane_ops *lane = how == BY_LANE ? &digest_lane : &plain_lane;
    wh_lane_site site = {.threads = 1, .deadline = wh_deadline_never()};
    must(wh_session_prepare(&pull->session, lane, &site, NULL, &error));
    pull->session.queue.last = true; /* Nobody has to be woken. */
    pull->session.verify = how != NO_CHECK;
    if (pull->session.verify) {
        assert_true(wh_chunks_reserve_digests(chunks));
    }
}

/** Opens a scene whose receiver wants only some chunks, and assigns none. */
static inline void scene_open_some(scene *s, check how, const wherry_interval *intervals, size_t count) {
    *s = (scene){.source = tensor_of(BODY, 0, 1), .target = tensor_of(BODY, GUARD, 9)};
    s->plan = build_plan(s->source, s->target);
    must(wh_stop_init(&s->stop, &error));
    assert_true(init_chunks(&s->chunks, s->plan, &s->stop, intervals, count));
    for (uint8_t i = 0; i < 2; i++) {
        pull_open(s->pulls + i, &s->chunks, i, how);
        s->sinks[i] = wh_pull_sink(s->pulls + i);
    }
}

static inline void scene_open(scene *s, check how) {
    scene_open_some(s, how, &(wherry_interval){0, 4}, 1);
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        wh_chunks_assign(&s->chunks, chunk, 0);
    }
}

static inline void scene_close(scene *s) {
    wh_landing_destroy(&s->landing);
    wh_session_close(&s->pulls[0].session);
    wh_session_close(&s->pulls[1].session);
    wh_chunks_destroy(&s->chunks);
    wh_stop_destroy(&s->stop);
    wherry_plan_destroy(s->plan);
    wherry_value_destroy(s->target);
    wherry_value_destroy(s->source);
}

static inline uint8_t *memory_of(const wherry_value *state) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, "w"))->storage);
}

static inline wherry_digest digest_of(uint8_t first) {
    return (wherry_digest){{first}};
}

static inline wherry_status open_chunk(scene *s, uint8_t from, uint64_t chunk) {
    return s->sinks[from].open(s->sinks[from].context, chunk, &s->landing, &error);
}

static inline wherry_status close_chunk(scene *s, uint8_t from, const wherry_digest *digest,
                                        const wherry_digest *claimed) {
    return s->sinks[from].close(s->sinks[from].context, &s->landing, digest, claimed, &error);
}

/** Opens a chunk and closes it with these digests. */
static inline void land(scene *s, uint8_t from, uint64_t chunk, const wherry_digest *digest,
                        const wherry_digest *claimed) {
    must(open_chunk(s, from, chunk));
    must(close_chunk(s, from, digest, claimed));
}

/** Neither the session of a source nor a device lane can open the chunk. */
static inline void refuse(scene *s, uint8_t from, uint64_t chunk) {
    wh_routes routes = {0};
    wh_sink *sink = s->sinks + from;
    must_fail(WHERRY_MALFORMED, error, open_chunk(s, from, chunk));
    must_fail(WHERRY_MALFORMED, error, sink->route(sink->context, chunk, &routes, &error));
    assert_int_equal(routes.count, 0);
    wh_routes_destroy(&routes);
}

static inline wh_chunk_state state_of(const scene *s, uint64_t chunk) {
    return wh_chunks_state(&s->chunks, wh_chunk_set_find(&s->chunks.wanted, chunk));
}

#endif
