/* Which lanes a text allows, in which order; and the environment where there is no text. */
#include "support/build.h"

#include <stdio.h>
#include <stdlib.h>

#include "transfer/lane_choice.h"
#include "transfer/transfer.h"

static wherry_error error;

static const wh_lane_ops cma = {.name = "cma", .run_bytes = 16384};
static const wh_lane_ops ring = {.name = "ring"};
static const wh_lane_ops stream = {.name = "stream", .traits = WH_LANE_NETWORK};
static const wh_lane_ops *const lanes[] = {&cma, &ring, &stream};
static wherry_transport transport = {.lanes = lanes, .lane_count = 3};

/** The names, with commas between them. */
static const char *names(const wh_lane_choice *choice) {
    static char text[100];
    text[0] = '\0';
    for (size_t i = 0; i < choice->count; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? "," : "", choice->lanes[i]->name);
    }
    return text;
}

static void test_texts(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {NULL, "cma,ring,stream"},
        {"", "cma,ring,stream"},
        {"stream", "stream"},
        {"stream,cma", "stream,cma"},
        {"ring,stream,cma", "ring,stream,cma"},
        {"cma,stream,cma", "stream,cma"}, /* a name twice is its last place */
        {"^cma", "ring,stream"},
        {"^ring,^cma", "stream"},
        {"^stream,^stream", "cma,ring"},
    };
    unsetenv("WHERRY_LANES");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wh_lane_choice choice = {.count = 77};
        must(wh_lane_choice_make(&transport, cases[i].text, &choice, &error));
        assert_string_equal(names(&choice), cases[i].expected);
    }
}

/** Said with what was written, and what could have been. */
static void test_texts_that_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"boat",    ",", "cma,",  ",cma",      "cma,,ring", "CMA",
                                        "cma ",    "^", "^^cma", "cma,^ring", "^cma,ring", "^cma,^ring,^stream",
                                        "streamer"};
    unsetenv("WHERRY_LANES");
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        wh_lane_choice choice = {.count = 77};
        must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_choice_make(&transport, texts[i], &choice, &error));
        assert_non_null(strstr(error.message, texts[i]));
        assert_int_equal(choice.count, 77);
    }
    wh_lane_choice choice;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_choice_make(&transport, "boat", &choice, &error));
    assert_non_null(strstr(error.message, "cma, ring, stream"));
}

/** The option goes before the environment, which may be wrong then. */
static void test_environment(void **state) {
    (void)state;
    wh_lane_choice choice;
    setenv("WHERRY_LANES", "^ring", 1);
    must(wh_lane_choice_make(&transport, NULL, &choice, &error));
    assert_string_equal(names(&choice), "cma,stream");
    setenv("WHERRY_LANES", "boat", 1);
    must(wh_lane_choice_make(&transport, "cma", &choice, &error));
    assert_string_equal(names(&choice), "cma");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_lane_choice_make(&transport, NULL, &choice, &error));
    setenv("WHERRY_LANES", "", 1);
    must(wh_lane_choice_make(&transport, NULL, &choice, &error));
    assert_int_equal(choice.count, 3);
    unsetenv("WHERRY_LANES");
}

/** Names from a peer have no zero at their end. */
static void test_finding(void **state) {
    (void)state;
    wh_lane_choice choice;
    must(wh_lane_choice_make(&transport, "cma,stream", &choice, &error));
    assert_ptr_equal(wh_lane_choice_find(&choice, "cmaX", 3), &cma);
    assert_ptr_equal(wh_lane_choice_find(&choice, "stream", 6), &stream);
    assert_null(wh_lane_choice_find(&choice, "ring", 4));
    assert_null(wh_lane_choice_find(&choice, "strea", 5));
    assert_null(wh_lane_choice_find(&choice, "stream\0", 7));
    assert_null(wh_lane_choice_find(&choice, "", 0));
    assert_null(wh_lane_choice_find(&(wh_lane_choice){.count = 0}, "cma", 3));
}

/** Short runs go over another lane of the same host first; a user's order stands. */
static void test_order(void **state) {
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
        wh_lane_choice choice;
        must(wh_lane_choice_make(&transport, cases[i].text, &choice, &error));
        wh_lane_choice_order(&choice, cases[i].bytes, cases[i].runs);
        assert_string_equal(names(&choice), cases[i].order);
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
    assert_int_equal(stats.lanes_refused, 1);
    assert_string_equal(stats.reasons, "cma: because of cma; ring: because of ring; ucx: because of ucx");
    for (int i = 0; i < 2 * WHERRY_SKIPPED_LANES_MAX; i++) {
        note(&stats, "stream", WHERRY_UNSUPPORTED, 0);
    }
    assert_int_equal(stats.skipped_count, WHERRY_SKIPPED_LANES_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skipped_lanes_have_reasons),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_texts_that_are_refused),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_finding),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests_name("lane_choice", tests, NULL, NULL);
}
