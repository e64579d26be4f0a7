/*
 * Mapped memory (expandable segments) needs a file descriptor per mapping while it is offered. A
 * source never takes more of them than the process can spare.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "transfer/offer.h"

enum { PIECES = 101, PIECE = 4096, LIMIT = 300, DESCRIPTORS_MAX = 1024 };

static wherry_error error;

static size_t count_open(void) {
    size_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS_MAX; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void set_limit(rlim_t most) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = most;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static wh_offer *offer_state(const wherry_value *value) {
    wh_offer *offer;
    must(wh_offer_create(value, 0, false, WH_SHARE_DEVICES, &offer, &error));
    return offer;
}

static void test_descriptors(void **state) {
    (void)state;
    wherry_storage *storage;
    int64_t size = (int64_t)PIECE * PIECES;
    void *pieces = map_device_pieces(PIECE, PIECES);
    assert_non_null(pieces);
    must(wherry_storage_wrap(pieces, (uint64_t)size, (wherry_device){WHERRY_DEVICE_CUDA, -1}, NULL, NULL, &storage,
                             &error));
    wherry_value *value = build_tensor(storage, WHERRY_U8, 0, 1, &size, NULL);
    size_t before = count_open();
    set_limit(DESCRIPTORS_MAX);
    for (int i = 0; i < 5; i++) { /* Each offer releases the descriptors that it took. */
        wh_offer *offer = offer_state(value);
        assert_int_equal(offer->shared.count, PIECES);
        for (size_t k = 0; k < PIECES; k++) {
            assert_int_equal(fcntl(offer->shared.items[k].fd, F_GETFD), FD_CLOEXEC);
        }
        assert_ptr_equal(wh_offer_ref(offer), offer);
        wh_offer_unref(offer);
        /* The last reference releases the descriptors. */
        assert_int_equal(count_open(), before + PIECES);
        wh_offer_unref(offer);
        assert_int_equal(count_open(), before);
    }
    set_limit(LIMIT);
    wh_offer *offer = offer_state(value);
    assert_int_equal(offer->shared.count, 0);
    assert_int_equal(offer->shared.reason.status, WHERRY_UNSUPPORTED);
    assert_non_null(strstr(offer->shared.reason.message, "more than 100 mappings"));
    assert_int_equal(count_open(), before);
    wh_offer_unref(offer);
    set_limit(STDERR_FILENO + 1); /* no descriptor is left */
    offer = offer_state(value);
    assert_int_equal(offer->shared.count, 0);
    assert_non_null(strstr(offer->shared.reason.message, "no file descriptor left"));
    set_limit(DESCRIPTORS_MAX);
    wh_offer_unref(offer);
    wherry_value_destroy(value);
}

int main(void) {
    if (!fake_driver_find().shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_descriptors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
