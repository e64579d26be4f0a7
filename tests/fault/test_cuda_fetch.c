/*
 * Fetching chunks of device memory for a lane with several workers. If the driver fails to copy a
 * chunk, no worker gets its bytes.
 */
#include <stdio.h>

#include "plan/staging.h"
#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "transfer/offer.h"

enum { UNKNOWN = 999, BYTES = 9 << 20, CALLS = 40 };

static wherry_error error;
static fake_driver fake;

static void expect_bytes(const struct iovec *run, uint64_t begin, uint64_t length) {
    const uint8_t *bytes = run->iov_base;
    assert_int_equal(run->iov_len, length);
    for (size_t i = 0; i < length; i++) {
        assert_int_equal(bytes[i], (uint8_t)(5 + 7 * (begin + i)));
    }
}

/** Makes a call of the driver fail while chunks are fetched. @return true if a fetch failed. */
static bool fetch_all(const wh_offer *offer, uint64_t number) {
    wh_stop stop;
    wh_fetch fetch = {0};
    uint64_t chunks = offer->summary.chunks;
    bool failed = false;
    must(wh_stop_init(&stop, &error));
    wh_fetch_init(&fetch, offer->prepared, 2, &stop, wh_deadline_in_ms(20000));
    assert_true(wh_fetch_add(&fetch, &(wherry_interval){0, chunks}, 1));
    fake.fail_at(number, UNKNOWN);
    for (uint64_t turn = 0; turn < 2 * chunks; turn++) { /* Two workers fetch each chunk. */
        uint64_t begin;
        uint64_t length;
        struct iovec run;
        wherry_status status = wh_fetch_gather(&fetch, turn / 2, &run, &error);
        assert_true(!failed || status == WHERRY_SYSTEM);
        failed = status != WHERRY_OK;
        wherry_prepared_chunk(offer->prepared, turn / 2, &begin, &length);
        if (!failed) {
            expect_bytes(&run, begin, length);
        }
    }
    fake.fail_at(0, 0);
    wh_fetch_destroy(&fetch);
    wh_stop_destroy(&stop);
    return failed;
}

static void test_a_fetch_fails(void **state) {
    (void)state;
    int64_t size = BYTES;
    wherry_value *value = build_tensor(build_device_storage(0, BYTES, 5), WHERRY_U8, 0, 1, &size, NULL);
    wh_offer *offer;
    int failures = 0;
    must(wh_offer_create(value, 0, false, WH_SHARE_NOTHING, &offer, &error));
    assert_true(offer->summary.chunks > 2);
    assert_false(fetch_all(offer, 0));
    for (uint64_t number = 1; number < CALLS; number++) {
        failures += fetch_all(offer, number);
    }
    assert_true(failures > 3);
    wh_offer_unref(offer);
    wherry_value_destroy(value);
}

int main(void) {
    fake = fake_driver_find();
    if (!fake.shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_fetch_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
