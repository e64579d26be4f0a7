/*
 * Fetching chunks of device memory for a lane whose workers are several: where the driver refuses
 * one, none of them gets bytes that never came.
 */
#include <stdio.h>

#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "transfer/fetch.h"

enum { UNKNOWN = 999, BYTES = 9 << 20, CALLS = 40 };

static wherry_error error;
static fake_driver fake;

static void expect_bytes(const wh_segments *segments, uint64_t begin) {
    for (size_t i = 0; i < segments->count; i++) {
        const uint8_t *bytes = segments->items[i].iov_base;
        for (size_t k = 0; k < segments->items[i].iov_len; k++) {
            assert_int_equal(bytes[k], (uint8_t)(5 + 7 * begin++));
        }
    }
}

/**
 * Lets a call of the driver fail while chunks are fetched. @return whether one of them could not
 * be.
 */
static bool fetch_all(const wh_source *source, uint64_t number) {
    wh_stop stop;
    wh_fetch fetch = {0};
    wh_chunk_set list = {0};
    wh_segments segments = {0};
    uint64_t chunks = source->summary.chunks;
    bool failed = false;
    must(wh_stop_init(&stop, &error));
    assert_true(wh_chunk_set_init(&list, &(wherry_interval){0, chunks}, 1));
    must(wh_fetch_init(&fetch, source, &list, 2, &stop, wh_deadline_in_ms(20000), &error));
    fake.fail_at(number, UNKNOWN);
    for (uint64_t turn = 0; turn < 2 * chunks; turn++) { /* each by two workers */
        uint64_t begin;
        uint64_t length;
        wherry_status status = wh_fetch_gather(&fetch, turn / 2, &segments, &error);
        assert_true(!failed || status == WHERRY_SYSTEM);
        failed = status != WHERRY_OK;
        wherry_prepared_chunk(source->prepared, turn / 2, &begin, &length);
        if (!failed) {
            expect_bytes(&segments, begin);
        }
    }
    fake.fail_at(0, 0);
    wh_fetch_destroy(&fetch);
    wh_segments_destroy(&segments);
    wh_chunk_set_destroy(&list);
    wh_stop_destroy(&stop);
    return failed;
}

static void test_a_fetch_that_fails(void **state) {
    (void)state;
    int64_t size = BYTES;
    wherry_value *value = build_tensor(build_device_storage(0, BYTES, 5), WHERRY_U8, 0, 1, &size, NULL);
    wh_source source = {0};
    int failures = 0;
    must(wh_source_init(&source, value, 0, &error));
    assert_true(source.summary.chunks > 2);
    assert_false(fetch_all(&source, 0));
    for (uint64_t number = 1; number < CALLS; number++) {
        failures += fetch_all(&source, number);
    }
    assert_true(failures > 3);
    wh_source_destroy(&source);
    wherry_value_destroy(value);
}

int main(void) {
    fake = fake_driver_find();
    if (!fake.shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_fetch_that_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
