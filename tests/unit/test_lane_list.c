/* Which lanes a text allows, and in which order. Without a text, the environment decides. */
#include "support/build.h"

#include <stdio.h>
#include <stdlib.h>

#include "lane/lane_list.h"
#include "transfer/call.h"

static wherry_error error;

static const wh_lane_ops cma = {.name = "cma", .run_bytes = 16384};
static const wh_lane_ops ring = {.name = "ring"};
static const wh_lane_ops stream = {.name = "stream", .traits = WH_LANE_NETWORK};
static const wh_lane_ops *const lanes[] = {&cma, &ring, &stream};

/** The names of the lanes, separated by commas. */
static const char *names(const wh_lane_list *list) {
    static char text[100];
    text[0] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? "," : "", list->lanes[i]->name);
    }
    return text;
}

static void test_text_sets_lanes_and_order(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {NULL, "cma,ring,stream"},
        {"", "cma,ring,stream"},
        {"stream", "stream"},
        {"stream,cma", "stream,cma"},
        {"ring,stream,cma", "ring,stream,cma"},
        {"cma,stream,cma", "stream,cma"}, /* A repeated name counts at its last position. */
        {"^cma", "ring,stream"},
        {"^ring,^cma", "stream"},
        {"^stream,^stream", "cma,ring"},
    };
    unsetenv("WHERRY_LANES");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wh_lane_list list = {.count = 77};
        must(wh_lane_list_parse(lanes, 3, cases[i].text, &list, &error));
        assert_string_equal(names(&list), cases[i].expected);
    }
}

/** The error quotes the text and lists the valid names. */
static void test_refuses_bad_texts(void **state) {
    (void)state;
    static const char *const texts[] = {"boat",    ",", "cma,",  ",cma",      "cma,,ring", "CMA",
                                        "cma ",    "^", "^^cma", "cma,^ring", "^cma,ring", "^cma,^ring,^stream",
                                        "streamer"};
    unsetenv("WHERRY_LANES");
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        wh_lane_list list = {.count = 77};
        must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_list_parse(lanes, 3, texts[i], &list, &error));
        assert_non_null(strstr(error.message, texts[i]));
        assert_int_equal(list.count, 77);
    }
    wh_lane_list list;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_list_parse(lanes, 3, "boat", &list, &error));
    assert_non_null(strstr(error.message, "cma, ring, stream"));
}

/** The option overrides the environment, which may then be invalid. */
static void test_option_overrides_the_environment(void **state) {
    (void)state;
    wh_lane_list list;
    setenv("WHERRY_LANES", "^ring", 1);
    must(wh_lane_list_parse(lanes, 3, NULL, &list, &error));
    assert_string_equal(names(&list), "cma,stream");
    setenv("WHERRY_LANES", "boat", 1);
    must(wh_lane_list_parse(lanes, 3, "cma", &list, &error));
    assert_string_equal(names(&list), "cma");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_list_parse(lanes, 3, NULL, &list, &error));
    setenv("WHERRY_LANES", "", 1);
    must(wh_lane_list_parse(lanes, 3, NULL, &list, &error));
    assert_int_equal(list.count, 3);
    unsetenv("WHERRY_LANES");
}

/** Names from a peer are not zero-terminated. */
static void test_finds_lanes_by_name(void **state) {
    (void)state;
    wh_lane_list list;
    must(wh_lane_list_parse(lanes, 3, "cma,stream", &list, &error));
    assert_ptr_equal(wh_lane_list_find(&list, "cmaX", 3), &cma);
    assert_ptr_equal(wh_lane_list_find(&list, "stream", 6), &stream);
    assert_null(wh_lane_list_find(&list, "ring", 4));
    assert_null(wh_lane_list_find(&list, "strea", 5));
    assert_null(wh_lane_list_find(&list, "stream\0", 7));
    assert_null(wh_lane_list_find(&list, "", 0));
    assert_null(wh_lane_list_find(&(wh_lane_list){.count = 0}, "cma", 3));
}

/** For short runs, another lane of the same host comes first, unless the user set the order. */
static void test_short_runs_change_the_order(void **state) {
    (void)state;
    const uint64_t large = 64 << 20;
    const struct {
        const char *text;
        uint64_t bytes;
        uint64_t runs;
        const char *order;
    } cases[] = {
        {NULL, large, 16, "cma,ring,stream"},         {NULL, large, large / 4096, "ring,cma,stream"},
        {NULL, 1 << 20, 256, "cma,ring,stream"},      {"cma,ring", large, large / 64, "cma,ring"},
        {"^ring", large, large / 4096, "cma,stream"}, {NULL, large, 0, "cma,ring,stream"},
    };
    unsetenv("WHERRY_LANES");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wh_lane_list list;
        must(wh_lane_list_parse(lanes, 3, cases[i].text, &list, &error));
        wh_lane_list_sort(&list, cases[i].bytes, cases[i].runs);
        assert_string_equal(names(&list), cases[i].order);
    }
}

static void note(wherry_stats *stats, const char *lane, wherry_status status, uint32_t reason) {
    wherry_error why = {.status = status, .reason = reason};
    snprintf(why.message, sizeof(why.message), "because of %s", lane);
    wh_stats_skip_lane(stats, lane, &why);
}

static void test_skipped_lanes_have_reasons(void **state) {
    wherry_stats stats = {0};
    (void)state;
    note(&stats, "cma", WHERRY_SYSTEM, 0);
    note(&stats, "ring", WHERRY_UNSUPPORTED, WHERRY_LANE_OTHER_HOST);
    note(&stats, "ucx", WHERRY_UNSUPPORTED, 0);
    assert_int_equal(stats.skipped_count, 3);
    assert_string_equal(stats.skipped[0].lane, "cma");
    assert_int_equal(stats.skipped[0].reason, WHERRY_LANE_FAILED);
    assert_int_equal(stats.skipped[1].reason, WHERRY_LANE_OTHER_HOST);
    assert_string_equal(stats.skipped[1].text, "because of ring");
    assert_int_equal(stats.skipped[2].reason, WHERRY_LANE_UNSUPPORTED);
    assert_int_equal(stats.lanes_failed, 1);
    assert_string_equal(stats.reasons, "cma: because of cma; ring: because of ring; ucx: because of ucx");
    for (int i = 0; i < 2 * WHERRY_SKIPPED_LANES_MAX; i++) {
        note(&stats, "stream", WHERRY_UNSUPPORTED, 0);
    }
    assert_int_equal(stats.skipped_count, WHERRY_SKIPPED_LANES_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skipped_lanes_have_reasons), cmocka_unit_test(test_text_sets_lanes_and_order),
        cmocka_unit_test(test_refuses_bad_texts),          cmocka_unit_test(test_option_overrides_the_environment),
        cmocka_unit_test(test_finds_lanes_by_name),        cmocka_unit_test(test_short_runs_change_the_order),
    };
    return cmocka_run_group_tests_name("call_lanes", tests, NULL, NULL);
}
