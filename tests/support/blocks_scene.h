/**
 * @file blocks_scene.h  One side of the blocks lane over a fake group that records the blocks to
 * move and moves nothing. wh_blocks_limit sets the block length.
 */
#ifndef WH_TEST_BLOCKS_SCENE_H
#define WH_TEST_BLOCKS_SCENE_H

#include "base/alloc.h"
#include "base/error.h"
#include "conformance/lane_data.h"
#include "lane/blocks/blocks_internal.h"
#include "lane/lanes.h"
#include "support/build.h"

/** The version of the wire format, and the lengths of its messages. */
enum { SCENE_VERSION = 4, SCENE_OFFER_BYTES = 3, SCENE_REQUEST_BYTES = 5 };

enum { MIB = 1 << 20, PEER = 1, SEEN_MAX = 128, LONG_MS = 20000, SHORT_MS = 60, UNDER_WAY = 3 };

static wherry_error error;
static uint32_t scene_part_bytes; /**< part_bytes of the next scene's group. */
static const wh_lane_ops *const lane = &wh_lane_blocks;

/** A recorded operation. */
typedef struct seen {
    uint8_t *bytes;
    size_t size;
    uint32_t channel;
    bool is_put;
    bool gone;
} seen;

/** A group that records operations and reports them as done. */
typedef struct fake {
    wh_group base;
    wh_group_backend ops;
    seen seen[SEEN_MAX];
    size_t count;
    size_t open;
    size_t most_open;
    size_t abandoned;
    size_t begin_fails; /**< The put or get that fails, counted from 1; 0: none. */
    size_t finished;
    size_t finish_stops; /**< From this call of finish on, finish returns `answer`. */
    wherry_status answer;
} fake;

static inline wherry_status begin(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                                  bool is_put, void **operation_p, wherry_error *problem) {
    fake *own = (fake *)group;
    assert_int_equal(rank, PEER);
    assert_true(own->count < SEEN_MAX);
    if (own->begin_fails && own->count + 1 == own->begin_fails) {
        return wh_fail(problem, WHERRY_SYSTEM, "the fake operation cannot begin");
    }
    seen *one = own->seen + own->count++;
    *one = (seen){(uint8_t *)bytes, size, channel, is_put, false};
    *operation_p = one;
    own->open++;
    own->most_open = own->open > own->most_open ? own->open : own->most_open;
    return WHERRY_OK;
}

static inline wherry_status fake_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                                     void **operation_p, wherry_error *problem) {
    return begin(group, rank, channel, bytes, size, true, operation_p, problem);
}

static inline wherry_status fake_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                                     void **operation_p, wherry_error *problem) {
    memset(bytes, 0x11, size); /* This lets ASan report a buffer that is too short. */
    return begin(group, rank, channel, bytes, size, false, operation_p, problem);
}

static inline void let_go(fake *own, seen *one) {
    assert_false(one->gone);
    one->gone = true;
    own->open--;
}

static inline wherry_status fake_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                        wherry_error *problem) {
    fake *own = (fake *)group;
    (void)rank, (void)timeout_ms;
    if (own->finish_stops && own->finished + 1 >= own->finish_stops) {
        if (own->answer != WHERRY_TIMED_OUT) {
            let_go(own, operation);
        }
        return wh_fail(problem, own->answer, "the fake operation does not end");
    }
    own->finished++;
    let_go(own, operation);
    return WHERRY_OK;
}

static inline bool fake_abandon(wh_group *group, void *operation) {
    fake *own = (fake *)group;
    const seen *one = operation;
    while (++one < own->seen + own->count) {
        assert_true(one->gone); /* Otherwise the next operation would get the data of this one. */
    }
    let_go(own, operation);
    own->abandoned++;
    return true;
}

static inline fake fake_of(void) {
    return (fake){.base = {.size = 2},
                  .ops = {.name = "fake",
                          .part_bytes = scene_part_bytes,
                          .put = fake_put,
                          .get = fake_get,
                          .finish = fake_finish,
                          .abandon = fake_abandon}};
}

/** One side of the lane, over the fake group. */
typedef struct scene {
    fake group;
    wh_stop stop;
    wh_lane_site site;
    lane_data *data;
    wh_lane_end *end;
} scene;

static inline wh_lane_end *open_end(const wh_lane_site *site, bool source, uint32_t *channel_p) {
    wh_string request = {0};
    wh_lane_end *end = NULL;
    bool assist = true;
    bool ready = false;
    const uint8_t offer[SCENE_OFFER_BYTES] = {SCENE_VERSION, WH_BLOCKS_LONG_MIB, UINT8_MAX};
    must(lane->probe(site, offer, sizeof(offer), &request, &assist, &end, &error));
    assert_false(assist);
    assert_int_equal(request.size, SCENE_REQUEST_BYTES);
    if (source) {
        lane->close(end);
        end = NULL;
        must(lane->accept(site, request.bytes, request.size, &ready, &end, &error));
        assert_true(ready);
    }
    *channel_p = (uint32_t)(uint8_t)request.bytes[3] << 8 | (uint8_t)request.bytes[4];
    assert_true(*channel_p <= WHERRY_GROUP_CHANNEL_MAX);
    assert_int_equal(end->workers, 1);
    wh_free(request.bytes);
    return end;
}

static inline void scene_begin(scene *s, const lane_shape *shape, bool source, bool verify, uint32_t *channel_p) {
    *s = (scene){.group = fake_of(), .data = lane_data_create(shape, 1, verify)};
    s->group.base.ops = &s->group.ops;
    must(wh_stop_init(&s->stop, &error));
    s->site = (wh_lane_site){.group = &s->group.base,
                             .peer = PEER,
                             .threads = 2,
                             .stop = &s->stop,
                             .deadline = wh_deadline_in_ms(LONG_MS),
                             .no_progress_ms = LONG_MS};
    s->data->feed_stop = s->data->sink_stop = &s->stop;
    lane_data_begin_feed(s->data, (lane_round){1, 0});
    lane_data_begin_sink(s->data, (lane_round){1, 0});
    uint32_t channel;
    s->end = open_end(&s->site, source, channel_p ? channel_p : &channel);
}

static inline void scene_end(scene *s) {
    lane->close(s->end);
    assert_int_equal(s->group.open, 0);
    lane_data_destroy(s->data);
    wh_stop_destroy(&s->stop);
}

/** Does one step with any feed, or with any sink. The other one may be NULL. */
static inline wherry_status step_with(scene *s, bool source, const wh_feed *feed, const wh_sink *sink, uint32_t wait_ms,
                                      bool *done_p) {
    wh_feed own_feed = source ? *feed : (wh_feed){0};
    wh_sink own_sink = source ? (wh_sink){0} : *sink;
    bool again = false;
    own_feed.wait_ms = own_sink.wait_ms = wait_ms;
    own_feed.again_p = own_sink.again_p = &again;
    wherry_status status = source ? lane->push(s->end, 0, &own_feed, &error) : lane->pull(s->end, 0, &own_sink, &error);
    *done_p = status == WHERRY_OK && !again;
    return status;
}

/** Works until the end, with any feed and sink. */
static inline wherry_status work_with(scene *s, bool source, const wh_feed *feed, const wh_sink *sink) {
    wherry_status status = WHERRY_OK;
    bool done = false;
    while (status == WHERRY_OK && !done) {
        status = step_with(s, source, feed, sink, 5, &done);
    }
    return status;
}

static inline wherry_status work(scene *s, bool source) {
    wh_feed feed = lane_data_feed(s->data);
    wh_sink sink = lane_data_sink(s->data);
    return work_with(s, source, &feed, &sink);
}

static inline wherry_status work_some(scene *s, bool source, bool *done_p) {
    wh_feed feed = lane_data_feed(s->data);
    wh_sink sink = lane_data_sink(s->data);
    return step_with(s, source, &feed, &sink, 1, done_p);
}

#endif
