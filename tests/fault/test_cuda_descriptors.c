/* Mapped memory (expandable segments) takes a file descriptor for each mapping while it is offered: never more of them than the process can spare. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "transfer/source.h"

enum { PIECES = 101, PIECE = 4096, LIMIT = 300, DESCRIPTORS_MAX = 1024 };

static wherry_error error;

/** As the driver has it. */
typedef struct properties {
    int type;
    int handle_types;
    int location_type;
    int device;
    void *rest;
    unsigned char flags[8];
} properties;

static void *map_pieces(void) {
    int (*create)(uint64_t *, size_t, const properties *, unsigned long long);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
    int (*release)(uint64_t);
    void (*set_current)(void *);
    int (*retain)(void **, int);
    *(void **)&create = fake_driver_symbol("cuMemCreate");
    *(void **)&reserve = fake_driver_symbol("cuMemAddressReserve");
    *(void **)&map = fake_driver_symbol("cuMemMap");
    *(void **)&release = fake_driver_symbol("cuMemRelease");
    *(void **)&retain = fake_driver_symbol("cuDevicePrimaryCtxRetain");
    *(void **)&set_current = fake_driver_symbol("cuCtxSetCurrent");
    properties wanted = {1, 1, 1, 0, NULL, {0}};
    uint64_t address = 0;
    void *context;
    must(wh_cuda_check(&error));
    assert_int_equal(retain(&context, 0), 0);
    set_current(context);
    assert_int_equal(reserve(&address, (size_t)PIECE * PIECES, 0, 0, 0), 0);
    for (uint64_t i = 0; i < PIECES; i++) {
        uint64_t handle;
        assert_int_equal(create(&handle, PIECE, &wanted, 0), 0);
        assert_int_equal(map(address + i * PIECE, PIECE, 0, handle, 0), 0);
        assert_int_equal(release(handle), 0);
    }
    return (void *)(uintptr_t)address;
}

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
    must(wherry_storage_wrap(map_pieces(), (uint64_t)size, (wherry_device){WHERRY_DEVICE_CUDA, -1}, NULL, NULL,
                             &storage, &error));
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
    assert_non_null(strstr(source.shared.reason.message, "no file descriptor is left"));
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
