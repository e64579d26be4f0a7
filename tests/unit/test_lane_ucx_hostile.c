/* A hostile source that sends invalid messages to a receiver of the ucx lane, over real UCX. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "conformance/hub_place.h"
#include "conformance/lane_trial.h"
#include "lane/lanes.h"
#include "lane/ucx/ucx.h"
#include "support/build.h"

enum { MESSAGES = 8, CHUNKS = 4, CHUNK_BYTES = 5000, SEED = 1, LONG_MS = 20000, SHORT_MS = 300 };

/** One message of a script. */
typedef struct line {
    wh_ucx_kind kind;
    uint64_t chunk;
    uint64_t bytes;
    uint64_t offset;
    size_t size;     /**< Bytes of the data. */
    bool eager;      /**< True if the piece comes without rendezvous. */
    uint8_t flip;    /**< XORed with the first byte of the header. */
    uint8_t garble;  /**< XORed with the second byte. */
    uint8_t foreign; /**< XORed with the token. */
} line;

#define HELLO                                                                                                          \
    { .kind = WH_UCX_HELLO, .eager = true }
#define WHOLE(number)                                                                                                  \
    { .kind = WH_UCX_PIECE, .chunk = (number), .bytes = CHUNK_BYTES, .size = CHUNK_BYTES }
#define END(count)                                                                                                     \
    { .kind = WH_UCX_END, .chunk = (count), .eager = true }

typedef struct script {
    const char *name;
    wherry_status expected;
    const char *text; /**< Part of the error message. */
    bool verify;
    line lines[MESSAGES];
} script;

static const script scripts[] = {
    {"valid", WHERRY_OK, "", false, {HELLO, WHOLE(0), WHOLE(1), WHOLE(2), WHOLE(3), END(4)}},
    {"chunks in another order", WHERRY_OK, "", false, {HELLO, WHOLE(2), WHOLE(1), WHOLE(3), WHOLE(0), END(4)}},
    {"messages of another transfer are ignored",
     WHERRY_OK,
     "",
     false,
     {HELLO,
      {.kind = WH_UCX_PIECE, .chunk = 77, .size = 9, .foreign = 1},
      WHOLE(0),
      WHOLE(1),
      WHOLE(2),
      WHOLE(3),
      {.kind = WH_UCX_END, .eager = true, .foreign = 9},
      END(4)}},
    {"a piece without HELLO",
     WHERRY_MALFORMED,
     "a piece before HELLO, after END, or without rendezvous",
     false,
     {WHOLE(0)}},
    {"two HELLOs", WHERRY_MALFORMED, "a malformed HELLO or a second HELLO", false, {HELLO, HELLO}},
    {"bytes without rendezvous",
     WHERRY_MALFORMED,
     "a piece before HELLO, after END, or without rendezvous",
     false,
     {HELLO, {.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES, .size = CHUNK_BYTES, .eager = true}}},
    {"an unexpected chunk", WHERRY_MALFORMED, "not", false, {HELLO, WHOLE(CHUNKS)}},
    {"a chunk twice", WHERRY_MALFORMED, "not", false, {HELLO, WHOLE(1), WHOLE(1)}},
    {"a chunk of wrong length",
     WHERRY_MALFORMED,
     "a piece with a wrong chunk length",
     false,
     {HELLO, {.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES + 1, .size = CHUNK_BYTES}}},
    {"a chunk that begins in the middle",
     WHERRY_MALFORMED,
     "out of order",
     false,
     {HELLO, {.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES, .offset = 1, .size = 1}}},
    {"a piece beyond the end of the chunk",
     WHERRY_MALFORMED,
     "empty or too long",
     false,
     {HELLO, {.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES, .size = CHUNK_BYTES + 1}}},
    {"two chunks at once",
     WHERRY_MALFORMED,
     "another chunk",
     false,
     {HELLO, {.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES, .size = 9}, WHOLE(1)}},
    {"a chunk without its digest", WHERRY_MALFORMED, "a chunk without a digest", true, {HELLO, WHOLE(0)}},
    {"a WELCOME", WHERRY_MALFORMED, "out of order", false, {HELLO, {.kind = WH_UCX_WELCOME, .eager = true}}},
    {"two ENDs", WHERRY_MALFORMED, "out of order", false, {HELLO, END(4), END(4)}},
    {"a piece after END", WHERRY_MALFORMED, "after END", false, {HELLO, END(4), WHOLE(0)}},
    {"END too early", WHERRY_TIMED_OUT, "timed out", false, {HELLO, WHOLE(0), END(2)}},
    {"more than END says", WHERRY_MALFORMED, "more chunks", false, {HELLO, WHOLE(0), WHOLE(1), END(1)}},
    {"an unknown kind",
     WHERRY_MALFORMED,
     "a message of an unknown kind",
     false,
     {HELLO, {.kind = WH_UCX_END, .eager = true, .flip = 0x40}}},
    {"unknown bits",
     WHERRY_MALFORMED,
     "a header with unknown flags or nonzero padding",
     false,
     {HELLO, {.kind = WH_UCX_END, .eager = true, .garble = 0x80}}},
};

enum { SCRIPTS = sizeof(scripts) / sizeof(*scripts) };

/** A running receiver. */
typedef struct stage {
    lane_world world;
    lane_trial trial;
    lane_data *data;
    wherry_status status;
    atomic_bool over;
} stage;

static void *pull(void *context) {
    stage *s = context;
    wh_sink sink = lane_data_sink(s->data);
    s->status = wh_lane_ucx.pull(s->trial.receiver.end, 0, &sink, &s->trial.receiver.error);
    atomic_store(&s->over, true);
    return NULL;
}

static void open_stage(stage *s, bool verify, uint32_t no_progress_ms, wh_string *request) {
    static const wh_group_kind kind = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    static const lane_shape shape = {
        .chunks = CHUNKS, .pieces = 5, .shortest = CHUNK_BYTES / 5, .longest = CHUNK_BYTES / 5, .target_gap = 9};
    wherry_error error;
    bool assist;
    wh_string offer = {0};
    *s = (stage){.world = lane_world_open(&kind), .data = lane_data_create(&shape, SEED, verify)};
    s->trial = lane_trial_of(&wh_lane_ucx, s->data);
    s->trial.receiver_threads = 1;
    s->trial.no_progress_ms = no_progress_ms;
    lane_side_begin(&s->trial.source, &s->trial, s->world.source, true);
    lane_side_begin(&s->trial.receiver, &s->trial, s->world.receiver, false);
    s->data->sink_stop = &s->trial.receiver.stop;
    lane_data_begin_sink(s->data, (lane_round){1, 0});
    must(wh_lane_ucx.offer(&s->trial.source.site, &offer, &error));
    must(wh_lane_ucx.probe(&s->trial.receiver.site, offer.bytes, offer.size, request, &assist, &s->trial.receiver.end,
                           &error));
    wh_free(offer.bytes);
}

static void close_stage(stage *s) {
    lane_side_finish(&s->trial.receiver, &wh_lane_ucx);
    lane_side_finish(&s->trial.source, &wh_lane_ucx);
    lane_data_destroy(s->data);
    lane_world_close(&s->world);
}

/** Sends a script to a receiver until the receiver ends. */
static void say(wh_ucx_link *link, const stage *s, const wh_ucx_request *request, const line *lines) {
    static uint8_t data[CHUNK_BYTES + 1];
    uint8_t headers[MESSAGES][WH_UCX_HEADER_BYTES];
    wh_ucx_operation operations[MESSAGES];
    for (size_t i = 0; i < MESSAGES && lines[i].kind; i++) {
        const line *one = lines + i;
        bool hello = one->kind == WH_UCX_HELLO;
        wh_ucx_header_write(
            headers[i], request->token,
            &(wh_ucx_header){.kind = one->kind, .chunk = one->chunk, .bytes = one->bytes, .offset = one->offset});
        headers[i][0] ^= one->flip;
        headers[i][1] ^= one->garble;
        headers[i][8] ^= one->foreign;
        wh_ucx_send(link, operations + i, headers[i], hello ? link->hello : data,
                    hello ? WH_UCX_ID_BYTES + link->address_size : one->size, !one->eager);
    }
    while (!atomic_load(&s->over)) {
        wh_ucx_link_progress(link, &s->trial.source.stop);
    }
    wh_ucx_link_disconnect(link);
}

static void play(const script *what) {
    stage s;
    wh_string bytes = {0};
    wh_ucx_request request;
    wh_ucx_link *link;
    wherry_error error;
    pthread_t thread;
    open_stage(&s, what->verify, what->expected == WHERRY_TIMED_OUT ? SHORT_MS : LONG_MS, &bytes);
    must(wh_ucx_request_read(bytes.bytes, bytes.size, 1, &request, &error));
    must(wh_ucx_link_take(request.addresses[0].id, request.long_segments, &link, &error));
    must(wh_ucx_link_connect(link, request.addresses[0].id, request.addresses[0].bytes, 1, &error));
    assert_int_equal(pthread_create(&thread, NULL, pull, &s), 0);
    say(link, &s, &request, what->lines);
    pthread_join(thread, NULL);
    wh_ucx_link_give(link);
    if (s.status != what->expected || (s.status != WHERRY_OK && !strstr(s.trial.receiver.error.message, what->text))) {
        fail_msg("%s: %s: %s", what->name, wherry_status_name(s.status), s.trial.receiver.error.message);
    }
    assert_true(s.data->wrong == NULL || s.status != WHERRY_OK);
    wh_free(bytes.bytes);
    close_stage(&s);
}

static void test_refuses_hostile_scripts(void **state) {
    (void)state;
    for (size_t i = 0; i < SCRIPTS; i++) {
        play(scripts + i);
    }
}

/** A receiver keeps only a few announced pieces, however many arrive. */
static void test_refuses_too_many_pieces(void **state) {
    (void)state;
    stage s;
    wh_string bytes = {0};
    uint8_t header[WH_UCX_HEADER_BYTES];
    open_stage(&s, false, LONG_MS, &bytes);
    wh_ucx_end *end = (void *)s.trial.receiver.end;
    uint8_t hello[WH_UCX_ID_BYTES + 9] = {0};
    wh_ucx_header_write(header, end->token, &(wh_ucx_header){.kind = WH_UCX_HELLO});
    assert_false(wh_ucx_receiver_message(end->workers, header, sizeof(header), hello, sizeof(hello), false));
    wh_ucx_header_write(header, end->token, &(wh_ucx_header){.kind = WH_UCX_PIECE, .bytes = CHUNK_BYTES});
    for (int i = 0; i < WH_UCX_QUEUE; i++) {
        assert_true(wh_ucx_receiver_message(end->workers, header, sizeof(header), hello, 1, true));
        assert_null(end->workers->receiver->wrong);
    }
    assert_false(wh_ucx_receiver_message(end->workers, header, sizeof(header), hello, 1, true));
    assert_non_null(strstr(end->workers->receiver->wrong, "too many pieces"));
    wh_free(bytes.bytes);
    close_stage(&s);
}

/**
 * Long segments are used only if no user has set their length. A request for them is refused
 * otherwise.
 */
static void test_long_segments_need_both_sides(void **state) {
    (void)state;
    static const char *const variables[] = {"UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"};
    stage s;
    wh_string with = {0};
    wh_ucx_request request;
    wh_lane_end *end;
    wherry_error error;
    bool ready;
    open_stage(&s, false, LONG_MS, &with);
    must(wh_ucx_request_read(with.bytes, with.size, 1, &request, &error));
    assert_true(request.long_segments);
    close_stage(&s);
    for (size_t i = 0; i < 2; i++) {
        wh_string without = {0};
        setenv(variables[i], "64k", 1);
        open_stage(&s, false, LONG_MS, &without);
        must(wh_ucx_request_read(without.bytes, without.size, 1, &request, &error));
        assert_false(request.long_segments);
        must_fail(WHERRY_MALFORMED, error,
                  wh_lane_ucx.accept(&s.trial.source.site, with.bytes, with.size, &ready, &end, &error));
        assert_non_null(strstr(error.message, "long segments"));
        unsetenv(variables[i]);
        close_stage(&s);
        wh_free(without.bytes);
    }
    wh_free(with.bytes);
}

static void await_limit(const wh_ucx_worker *worker) {
    while (!wh_deadline_passed(worker->patience)) {
        usleep(1000);
    }
}

/**
 * When the progress limit has passed, the peer gets some extra time. If it makes progress in that
 * time, the limit starts again.
 */
static void test_peer_gets_extra_time_after_the_limit(void **state) {
    (void)state;
    enum { LIMIT_MS = 20 };
    wherry_error error;
    wh_stop stop;
    must(wh_stop_init(&stop, &error));
    wh_lane_site site = {.peer = 1, .stop = &stop, .deadline = wh_deadline_never(), .no_progress_ms = LIMIT_MS};
    wh_ucx_end end = {.site = &site};
    wh_ucx_link link = {.lost = UCS_OK};
    wh_ucx_worker worker = {.end = &end, .link = &link};
    for (int i = 0; i < 3; i++) {
        wh_ucx_note_progress(&worker);
        must(wh_ucx_check(&worker, &error));
        wh_ucx_note_progress(&worker);
        await_limit(&worker);
        /* This process may have been suspended, so the worker checks for progress first. */
        must(wh_ucx_check(&worker, &error));
    }
    await_limit(&worker);
    must_fail(WHERRY_TIMED_OUT, error, wh_ucx_check(&worker, &error));
    wh_ucx_note_progress(&worker);
    site.deadline = wh_deadline_in_ms(0);
    await_limit(&worker);
    /* The deadline of the transfer is not extended. */
    must_fail(WHERRY_TIMED_OUT, error, wh_ucx_check(&worker, &error));
    wh_stop_destroy(&stop);
}

int main(void) {
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refuses_hostile_scripts),
                                       cmocka_unit_test(test_refuses_too_many_pieces),
                                       cmocka_unit_test(test_long_segments_need_both_sides),
                                       cmocka_unit_test(test_peer_gets_extra_time_after_the_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
