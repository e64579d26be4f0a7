/*
 * Mapped memory (expandable segments) takes a file descriptor for each mapping while it is offered:
 * never more of them than the process can spare.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "transfer/source.h"

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

static void test_descriptors(void **state) {
    (void)state;
    wherry_storage *storage;
    int64_t size = (int64_t)PIECE * PIECES;
    void *pieces = map_device_pieces(PIECE, PIECES);
    assert_non_null(pieces);
    must(wherry_storage_wrap(pieces, (uint64_t)size, (wherry_device){WHERRY_DEVICE_CUDA, -1}, NULL, NULL, &storage,
                             &error));
    wherry_value *value = build_tensor(storage, WHERRY_U8, 0, 1, &size, NULL);
    wh_source source = {0};
    must(wh_source_init(&source, value, 0, &error));
    size_t before = count_open();
    set_limit(DESCRIPTORS_MAX);
    for (int i = 0; i < 5; i++) { /* each gives back what it took */
        wh_source_share(&source, false);
        assert_int_equal(source.shared.count, PIECES);
        for (size_t k = 0; k < PIECES; k++) {
            assert_int_equal(fcntl(source.shared.items[k].fd, F_GETFD), FD_CLOEXEC);
        }
        wh_source_unshare(&source);
        assert_int_equal(count_open(), before);
    }
    set_limit(LIMIT);
    wh_source_share(&source, false);
    assert_int_equal(source.shared.count, 0);
    assert_int_equal(source.shared.reason.status, WHERRY_UNSUPPORTED);
    assert_non_null(strstr(source.shared.reason.message, "more than 100 mappings"));
    assert_int_equal(count_open(), before);
    set_limit(STDERR_FILENO + 1); /* none is left */
    wh_source_share(&source, false);
    assert_int_equal(source.shared.count, 0);
    assert_non_null(strstr(source.shared.reason.message, "no file descriptor left"));
    set_limit(DESCRIPTORS_MAX);
    wh_source_destroy(&source);
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
