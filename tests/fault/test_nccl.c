/*
 * Faults of the nccl lane, on the fake driver and the fake NCCL: every call fails in turn,
 * communicators cannot be created, peers stall, a call is cancelled. Also: which communicators are
 * kept, how much memory a transfer takes, and malformed messages of a peer.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
#include "lane/nccl/nccl.h"
#include "memory/cuda.h"
#include "support/asleep.h"
#include "support/device_memory.h"
#include "support/device_state.h"
#include "support/fake_driver.h"
#include "support/fake_library.h"
#include "support/process_job.h"

#define MS UINT64_C(1000000)
#define BIT(state) (1U << (state))

enum { SOON_MS = 6000, LONG_MS = 60000, LARGE = 44 << 20, SMALL = 300, PACKED_MAX = (32 + 4 + 1) << 20 };

static wherry_error error;
static fake_driver driver;
static fake_nccl nccl;

/**
 * Two ranks, and a state on the device that takes several messages: many small tensors and, unless
 * scene_open was called with `small`, one of many chunks.
 */
typedef struct scene {
    ferry_world world;
    wherry_value *host; /**< A copy of the state in host memory. */
    wherry_value *source;
} scene;

static scene scene_open(bool small) {
    int64_t large = small ? 1000 : LARGE;
    scene s = {ferry_open(), ferry_state(SMALL, large, 3), ferry_state(SMALL, large, 3)};
    move_state(s.source, all_on_device);
    return s;
}

static void scene_close(scene *s) {
    wherry_value_destroy(s->source);
    wherry_value_destroy(s->host);
    ferry_close(&s->world);
}

/** Runs one transfer, which must succeed. @return the receiver's stats. */
static wherry_stats must_ferry(const scene *s, const char *lanes) {
    ferry_call calls[] = {ferry_send(&s->world, 0, 1, s->source), ferry_receive(&s->world, 1, 0)};
    calls[0].options.lanes = calls[1].options.lanes = lanes;
    calls[1].options.verify = WHERRY_VERIFY_OFF;
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    expect_state(calls[1].received, s->host);
    return calls[1].stats;
}

/** Checks that no communicator is in use, and that the next transfer uses the lane. */
static void must_be_usable(const scene *s) {
    assert_int_equal(wh_nccl_count(BIT(WH_NCCL_BUSY)), 0);
    wh_nccl_end_all();
    assert_int_equal(wh_nccl_count(~0U), 0);
    assert_string_equal(must_ferry(s, "nccl").lane, "nccl");
}

/** A communicator is created once for many transfers, and aborted by wh_nccl_end_all. */
static void test_a_communicator_is_kept(void **state) {
    (void)state;
    scene s = scene_open(true);
    uint64_t before = nccl.begun();
    for (int i = 0; i < 5; i++) {
        assert_string_equal(must_ferry(&s, "nccl").lane, "nccl");
    }
    assert_int_equal(nccl.begun() - before, 2);
    assert_int_equal(wh_nccl_count(BIT(WH_NCCL_IDLE)), 2);
    uint64_t aborted = nccl.aborted();
    wh_nccl_end_all();
    assert_int_equal(nccl.aborted() - aborted, 2);
    must_be_usable(&s);
    scene_close(&s);
}

/** One side has lost a communicator that the other has kept: both create a new one. */
static void test_a_communicator_is_kept_by_one_side(void **state) {
    (void)state;
    scene s = scene_open(true);
    for (int is_source = 0; is_source < 2; is_source++) {
        wh_nccl_end_all();
        must_ferry(&s, "nccl");
        wh_nccl_pair pair = {.rank = is_source, .own = !is_source, .is_source = is_source};
        must(wh_nccl_process(pair.process, &error));
        wh_nccl_drop(&pair, NULL, 0);
        assert_int_equal(wh_nccl_count(BIT(WH_NCCL_IDLE)), 1);
        assert_string_equal(must_ferry(&s, "nccl").lane, "nccl");
        assert_int_equal(wh_nccl_count(BIT(WH_NCCL_IDLE)), 2);
    }
    scene_close(&s);
}

/**
 * A contiguous tensor needs no additional device memory. A packed one needs a buffer for one
 * message.
 */
static void test_memory(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    for (int packed = 0; packed < 2; packed++) {
        int64_t shape[] = {LARGE / 1024, 1024};
        int64_t apart[] = {2048, 1};
        wherry_storage *bytes = build_device_storage(0, LARGE, 3);
        wherry_value *host = build_tensor(build_storage(LARGE, 3), WHERRY_U8, 0, 2, shape, NULL);
        wherry_value *source = build_tensor(bytes, WHERRY_U8, 0, 2, shape, NULL);
        wherry_value *target = build_tensor(build_device_storage(0, (uint64_t)LARGE * (packed ? 2 : 1), 9), WHERRY_U8,
                                            0, 2, shape, packed ? apart : NULL);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
        driver.forget_peak();
        size_t before = driver.device_bytes();
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        size_t beyond = driver.device_peak() - before;
        assert_true(packed ? beyond > 0 && beyond <= PACKED_MAX : beyond == 0);
        assert_true(driver.device_bytes() == before);
        move_state(calls[1].received, to_host);
        if (!packed) {
            must(wherry_value_compare(host, calls[1].received, WHERRY_COMPARE_ALL, &error));
        }
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        wherry_value_destroy(host);
    }
    ferry_close(&world);
}

/**
 * Every call of NCCL fails in turn. The transfer succeeds, perhaps over another lane, or both sides
 * fail soon. The lane works again afterwards.
 */
static void test_every_call_fails(void **state) {
    (void)state;
    scene s = scene_open(false);
    uint64_t fallen = 0;
    uint64_t failed = 0;
    for (uint64_t number = 1;; number++) {
        wh_nccl_end_all();
        ferry_call calls[] = {ferry_send(&s.world, 0, 1, s.source), ferry_receive(&s.world, 1, 0)};
        calls[0].options.lanes = calls[1].options.lanes = "nccl,stream";
        calls[1].options.verify = WHERRY_VERIFY_OFF;
        calls[0].options.no_progress_ms = calls[1].options.no_progress_ms = SOON_MS;
        nccl.fail_at(number, number % 2 ? 2 : 6);
        uint64_t begin = wh_clock_now();
        ferry_run(calls, 2);
        bool reached = nccl.calls() >= number;
        nccl.fail_at(0, 0);
        assert_true(wh_clock_now() - begin < 2 * JOB_SLOW * SOON_MS * MS);
        if (calls[1].status == WHERRY_OK) {
            fallen += strcmp(calls[1].stats.lane, "stream") == 0;
            expect_state(calls[1].received, s.host);
        } else {
            failed++;
            assert_true(calls[0].status != WHERRY_OK);
            assert_non_null(strstr(
                strstr(calls[1].error.message, "NCCL") ? calls[1].error.message : calls[0].error.message, "NCCL"));
        }
        assert_int_equal(wh_nccl_count(BIT(WH_NCCL_BUSY)), 0);
        if (!reached || number > 60) {
            break;
        }
    }
    assert_true(fallen > 0 && failed > 0);
    must_be_usable(&s);
    scene_close(&s);
}

/** The same for some of the driver's many calls. */
static void test_calls_of_the_driver_fail(void **state) {
    (void)state;
    scene s = scene_open(true);
    bool reached = true;
    for (uint64_t number = 4; reached && number < 300; number += number < 30 ? 3 : 17) {
        wh_nccl_end_all();
        ferry_call calls[] = {ferry_send(&s.world, 0, 1, s.source), ferry_receive(&s.world, 1, 0)};
        calls[0].options.lanes = calls[1].options.lanes = "nccl";
        calls[1].options.verify = WHERRY_VERIFY_OFF;
        calls[0].options.no_progress_ms = calls[1].options.no_progress_ms = SOON_MS;
        /* Ends the receiver if the source fails before the receiver has asked it. */
        calls[0].options.timeout_ms = calls[1].options.timeout_ms = 1000;
        driver.fail_at(number, 999);
        uint64_t begin = wh_clock_now();
        ferry_run(calls, 2);
        reached = driver.calls() >= number;
        driver.fail_at(0, 0);
        assert_true(wh_clock_now() - begin < 2 * JOB_SLOW * SOON_MS * MS);
        if (calls[1].status == WHERRY_OK) {
            wherry_value_destroy(calls[1].received);
        }
        assert_int_equal(wh_nccl_count(BIT(WH_NCCL_BUSY)), 0);
    }
    must_be_usable(&s);
    scene_close(&s);
}

/**
 * NCCL refuses to connect the two ranks. The next lane is used, the stats have NCCL's reason, and
 * the next transfer does not try again.
 */
static void test_nccl_refuses_a_communicator(void **state) {
    (void)state;
    scene s = scene_open(true);
    wh_nccl_end_all();
    setenv("FAKE_NCCL_REFUSE", "1", 1);
    wherry_stats stats = must_ferry(&s, "nccl,stream");
    assert_string_equal(stats.lane, "stream");
    assert_non_null(strstr(stats.reasons, "Duplicate GPU detected"));
    uint64_t begun = nccl.begun();
    stats = must_ferry(&s, "nccl,stream");
    assert_string_equal(stats.lane, "stream");
    assert_non_null(strstr(stats.reasons, "the nccl lane failed"));
    assert_true(nccl.begun() == begun);
    unsetenv("FAKE_NCCL_REFUSE");
    must_be_usable(&s);
    scene_close(&s);
}

/**
 * The two ranks never find each other in NCCL. They give up after half of no_progress_ms, so that
 * the source does not give up the receiver, and use the next lane.
 */
static void test_a_communicator_never_completes(void **state) {
    (void)state;
    scene s = scene_open(true);
    wh_nccl_end_all();
    setenv("FAKE_NCCL_DEAF", "1", 1);
    ferry_call calls[] = {ferry_send(&s.world, 0, 1, s.source), ferry_receive(&s.world, 1, 0)};
    calls[0].options.lanes = calls[1].options.lanes = "nccl,stream";
    calls[0].options.no_progress_ms = calls[1].options.no_progress_ms = 8000;
    uint64_t begin = wh_clock_now();
    ferry_run(calls, 2);
    unsetenv("FAKE_NCCL_DEAF");
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    assert_true(wh_clock_now() - begin < 2 * JOB_SLOW * SOON_MS * MS);
    assert_string_equal(calls[1].stats.lane, "stream");
    assert_non_null(strstr(calls[1].stats.reasons, "timed out"));
    wherry_value_destroy(calls[1].received);
    must_be_usable(&s);
    scene_close(&s);
}

/**
 * Waits until both sides use a communicator and `messages` messages have passed, so that they wait
 * for the next one.
 */
static void await_stall(uint64_t messages) {
    wh_deadline limit = wh_deadline_in_ms(LONG_MS);
    while (wh_nccl_count(BIT(WH_NCCL_BUSY)) < 2 || nccl.messages() < messages) {
        assert_false(wh_deadline_passed(limit));
        usleep(1000);
    }
    wh_await_asleep(getpid());
}

/**
 * Messages stop in the middle. Both sides give up after their limit, or when the receiver is
 * cancelled.
 */
static void stall(bool cancelled, bool small) {
    scene s = scene_open(small);
    wherry_cancel *cancel;
    must(wherry_cancel_create(&cancel, &error));
    wh_nccl_end_all();
    char text[32];
    uint64_t messages = nccl.messages() + (small ? 0 : 2);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)messages);
    setenv("FAKE_NCCL_STALL", text, 1);
    ferry_call calls[] = {ferry_send(&s.world, 0, 1, s.source), ferry_receive(&s.world, 1, 0)};
    calls[0].options.lanes = calls[1].options.lanes = "nccl";
    calls[0].options.no_progress_ms = calls[1].options.no_progress_ms = cancelled ? 2 * LONG_MS : 800;
    for (int i = 0; i < 2; i++) {
        calls[i].options.timeout_ms = 3L * LONG_MS;
    }
    calls[1].options.cancel = cancel;
    uint64_t begin = wh_clock_now();
    ferry_start(calls);
    ferry_start(calls + 1);
    if (cancelled) {
        await_stall(messages);
        begin = wh_clock_now();
        wherry_cancel_request(cancel);
    }
    ferry_join(calls + 1);
    ferry_join(calls);
    unsetenv("FAKE_NCCL_STALL");
    assert_true(wh_clock_now() - begin < SOON_MS * MS);
    assert_int_equal(calls[1].status, cancelled ? WHERRY_CANCELLED : calls[1].status);
    assert_true(calls[1].status != WHERRY_OK && calls[0].status != WHERRY_OK);
    assert_true(cancelled || strstr(calls[1].error.message, "timed out"));
    wherry_cancel_destroy(cancel);
    must_be_usable(&s);
    scene_close(&s);
}

static void test_messages_stall(void **state) {
    (void)state;
    stall(false, false);
    stall(false, true);
}

static void test_a_stalled_transfer_is_cancelled(void **state) {
    (void)state;
    stall(true, false);
    stall(true, true);
}

/**
 * On one host, the lane is used only if it is named, because others are faster there. A receiver on
 * another host asks the source to create its side of the communicator.
 */
static void test_same_host(void **state) {
    (void)state;
    scene s = scene_open(true);
    wherry_stats stats = must_ferry(&s, "^cuda_ipc");
    assert_true(strcmp(stats.lane, "nccl") != 0);
    assert_non_null(strstr(stats.reasons, "is on this host, where other lanes are faster"));
    wh_nccl_end_all();
    wh_lane_site site = {.peer = 0, .devices = 1, .no_progress_ms = 1000, .tag = 5};
    wh_string offer = {0};
    wh_string request = {0};
    wh_lane_end *end;
    bool may_assist = false;
    must(wh_lane_nccl.offer(&site, &offer, &error));
    offer.bytes[1] ^= 1; /* Changes the boot id, so that the source seems to be on another host. */
    must_fail(WHERRY_REFUSED, error,
              wh_lane_nccl.probe(&site, offer.bytes, offer.size, &request, &may_assist, &end, &error));
    assert_true(may_assist && request.size > WH_NCCL_ID_BYTES);
    wh_nccl_end_all();
    wh_free(offer.bytes);
    wh_free(request.bytes);
    scene_close(&s);
}

/** Connects two ends of the lane in this process, over their own communicator. */
static void connect_ends(const wh_lane_site sites[2], wh_lane_end *ends[2]) {
    wh_string offer = {0};
    wh_string request = {0};
    bool flag = false;
    must(wh_lane_nccl.offer(sites, &offer, &error));
    must_fail(WHERRY_REFUSED, error,
              wh_lane_nccl.probe(sites + 1, offer.bytes, offer.size, &request, &flag, ends + 1, &error));
    assert_true(flag);
    must(wh_lane_nccl.assist(sites, request.bytes, request.size, &error));
    request.size = 0;
    must(wh_lane_nccl.probe(sites + 1, offer.bytes, offer.size, &request, &flag, ends + 1, &error));
    must(wh_lane_nccl.accept(sites, request.bytes, request.size, &flag, ends, &error));
    wh_free(offer.bytes);
    wh_free(request.bytes);
}

/** A feed that requests a stop after its first chunk. */
typedef struct short_feed {
    wh_stop stop;
    void *data;
    uint64_t given;
} short_feed;

static bool next_of_short(void *context, uint64_t *chunk_p) {
    short_feed *feed = context;
    *chunk_p = 0;
    if (feed->given++) {
        wh_stop_request(&feed->stop);
    }
    return feed->given == 1;
}

static wherry_status gather_short(void *context, uint64_t chunk, wh_segments *segments, wherry_error *why) {
    (void)chunk, (void)why;
    wh_segments_clear(segments);
    assert_true(wh_segments_add(segments, ((short_feed *)context)->data, 1000));
    return WHERRY_OK;
}

/**
 * A message that is being assembled when a stop is requested is not sent, because it is shorter
 * than the receiver expects.
 */
static void test_an_incomplete_message_is_not_sent(void **state) {
    (void)state;
    wh_nccl_end_all();
    wherry_storage *storage = build_device_storage(0, 4096, 1);
    short_feed feed = {.data = wherry_storage_data(storage)};
    must(wh_stop_init(&feed.stop, &error));
    wh_lane_site common = {.tag = 5, .devices = 1, .no_progress_ms = SOON_MS, .stop = &feed.stop, .ordered = true};
    common.deadline = wh_deadline_in_ms(SOON_MS);
    wh_lane_site sites[] = {common, common};
    sites[0].peer = 1;
    wh_lane_end *ends[2];
    connect_ends(sites, ends);
    wh_feed face = {.context = &feed, .next = next_of_short, .gather = gather_short};
    nccl.fail_at(0, 0);
    must_fail(WHERRY_CANCELLED, error, wh_lane_nccl.push(ends[0], 0, &face, &error));
    /* The lane asks whether the communicator is ready, and sends nothing. */
    assert_int_equal(nccl.calls(), 1);
    wh_lane_nccl.close(ends[0]);
    wh_lane_nccl.close(ends[1]);
    wh_nccl_end_all();
    wh_stop_destroy(&feed.stop);
    wherry_storage_unref(storage);
}

/** Offers and requests that are truncated or have impossible values. */
static void test_malformed_offers_and_requests(void **state) {
    (void)state;
    wh_nccl_offer offer = {.count = 2, .ids = {1, 2}};
    wh_nccl_request request = {.id = 7, .library = 22707, .message_mib = 32};
    wh_string words[2] = {{0}, {0}};
    wh_nccl_append_offer(words, &offer);
    wh_nccl_append_request(words + 1, &request);
    must(wh_nccl_parse_offer(words[0].bytes, words[0].size, &offer, &error));
    must(wh_nccl_parse_request(words[1].bytes, words[1].size, &request, &error));
    assert_true(offer.count == 2 && offer.ids[1] == 2 && request.id == 7 && request.library == 22707);
    for (size_t size = 0; size < words[0].size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_nccl_parse_offer(words[0].bytes, size, &offer, &error));
    }
    for (size_t size = 0; size < words[1].size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_nccl_parse_request(words[1].bytes, size, &request, &error));
    }
    words[1].bytes[1 + 16 + 8 + 4] = 65; /* MiB */
    must_fail(WHERRY_MALFORMED, error, wh_nccl_parse_request(words[1].bytes, words[1].size, &request, &error));
    words[0].bytes[1 + 36 + 16] = 5; /* number of kept communicators */
    must_fail(WHERRY_MALFORMED, error, wh_nccl_parse_offer(words[0].bytes, words[0].size, &offer, &error));
    words[0].bytes[0] = words[1].bytes[0] = 9;
    must_fail(WHERRY_BAD_VERSION, error, wh_nccl_parse_offer(words[0].bytes, words[0].size, &offer, &error));
    must_fail(WHERRY_BAD_VERSION, error, wh_nccl_parse_request(words[1].bytes, words[1].size, &request, &error));
    wh_free(words[0].bytes);
    wh_free(words[1].bytes);
}

/**
 * A receiver names a communicator that does not exist, has another version of NCCL, or asks twice
 * or too often.
 */
static void test_hostile_receiver(void **state) {
    (void)state;
    wh_lane_site site = {.peer = 4, .devices = 1, .no_progress_ms = 1000};
    wh_nccl_request request = {.id = 7, .library = 22707, .message_mib = 32, .unique = {"nowhere"}};
    wh_string words = {0};
    wh_lane_end *end;
    bool ready;
    wh_nccl_append_request(&words, &request);
    must_fail(WHERRY_REFUSED, error, wh_lane_nccl.accept(&site, words.bytes, words.size, &ready, &end, &error));
    wh_nccl_end_all();
    must(wh_lane_nccl.assist(&site, words.bytes, words.size, &error));
    must_fail(WHERRY_MALFORMED, error, wh_lane_nccl.assist(&site, words.bytes, words.size, &error));
    for (uint64_t i = 1; i <= WH_NCCL_MEETING_MAX; i++) {
        words.size = 0;
        request.id = 7 + i;
        wh_nccl_append_request(&words, &request);
        wherry_status expected = i < WH_NCCL_MEETING_MAX ? WHERRY_OK : WHERRY_LIMIT;
        assert_int_equal(wh_lane_nccl.assist(&site, words.bytes, words.size, &error), expected);
    }
    words.size = 0;
    request.library = 22000;
    wh_nccl_append_request(&words, &request);
    must_fail(WHERRY_UNSUPPORTED, error, wh_lane_nccl.assist(&site, words.bytes, words.size, &error));
    assert_non_null(strstr(error.message, "22000"));
    site.devices = 0;
    wh_string none = {0};
    must_fail(WHERRY_UNSUPPORTED, error, wh_lane_nccl.offer(&site, &none, &error));
    wh_nccl_end_all();
    assert_int_equal(wh_nccl_count(~0U), 0);
    wh_free(none.bytes);
    wh_free(words.bytes);
}

int main(void) {
    if (wh_cuda_check(&error) != WHERRY_OK || !wh_nccl_find(&error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    driver = fake_driver_find();
    nccl = fake_nccl_find();
    if (!driver.shadow || !nccl.fail_at) {
        printf("1..0 # SKIP needs the fake driver and the fake NCCL\n");
        return 0;
    }
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    ferry_kind = &local;
    ferry_lane = "nccl";
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_communicator_is_kept),
        cmocka_unit_test(test_a_communicator_is_kept_by_one_side),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_calls_of_the_driver_fail),
        cmocka_unit_test(test_nccl_refuses_a_communicator),
        cmocka_unit_test(test_a_communicator_never_completes),
        cmocka_unit_test(test_messages_stall),
        cmocka_unit_test(test_a_stalled_transfer_is_cancelled),
        cmocka_unit_test(test_same_host),
        cmocka_unit_test(test_malformed_offers_and_requests),
        cmocka_unit_test(test_hostile_receiver),
        cmocka_unit_test(test_an_incomplete_message_is_not_sent),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    wh_nccl_end_all();
    return failed;
}
