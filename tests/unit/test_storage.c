/* Storages: who owns the memory, and until when. */
#include "../support/build.h"

#include <stdlib.h>

typedef struct releases {
    int count;
    void *data;
} releases;

static void note_release(void *context, void *data) {
    releases *seen = context;
    seen->count++;
    seen->data = data;
}

static void test_wrap(void **state) {
    (void)state;
    releases seen = {0};
    char bytes[24];
    wherry_storage *storage;
    wherry_device device = {WHERRY_DEVICE_CUDA, 3};
    must(wherry_storage_wrap(bytes, sizeof(bytes), device, note_release, &seen, &storage, NULL));
    assert_ptr_equal(wherry_storage_data(storage), bytes);
    assert_int_equal(wherry_storage_nbytes(storage), sizeof(bytes));
    assert_int_equal(wherry_storage_device(storage).kind, WHERRY_DEVICE_CUDA);
    assert_int_equal(wherry_storage_device(storage).index, 3);
    assert_ptr_equal(wherry_storage_ref(storage), storage);
    int64_t shape = 3;
    wherry_value *tensor = build_view(storage, WHERRY_F64, 0, 1, &shape, NULL);
    wherry_storage_unref(storage);
    wherry_storage_unref(storage);
    assert_int_equal(seen.count, 0);
    wherry_value_destroy(tensor);
    assert_int_equal(seen.count, 1);
    assert_ptr_equal(seen.data, bytes);
}

static void test_wrap_without_release(void **state) {
    (void)state;
    char bytes[3] = {1, 2, 3};
    wherry_storage *storage;
    must(wherry_storage_wrap(bytes, 3, wherry_device_cpu(), NULL, NULL, &storage, NULL));
    wherry_storage_unref(storage);
    assert_int_equal(bytes[2], 3);
    wherry_storage_unref(NULL);
}

static void test_wrap_refused(void **state) {
    (void)state;
    releases seen = {0};
    char byte;
    wherry_error error;
    wherry_storage *storage = (wherry_storage *)&byte;
    wherry_device cpu = wherry_device_cpu();
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_storage_wrap(NULL, 1, cpu, note_release, &seen, &storage, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_storage_wrap(&byte, UINT64_C(1) << 63, cpu, note_release, &seen, &storage, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_storage_wrap(&byte, 1, cpu, note_release, &seen, NULL, &error));
    assert_ptr_equal(storage, &byte);
    assert_int_equal(seen.count, 0);
}

static void test_empty(void **state) {
    (void)state;
    releases seen = {0};
    wherry_storage *storage;
    must(wherry_storage_wrap(NULL, 0, wherry_device_cpu(), note_release, &seen, &storage, NULL));
    assert_null(wherry_storage_data(storage));
    assert_int_equal(wherry_storage_nbytes(storage), 0);
    wherry_storage_unref(storage);
    assert_int_equal(seen.count, 1);
    must(wherry_storage_allocate(0, wherry_device_cpu(), &storage, NULL));
    assert_null(wherry_storage_data(storage));
    wherry_storage_unref(storage);
}

/** A storage without bytes has no data pointer, but its memory is released. */
static void test_empty_at_an_address(void **state) {
    (void)state;
    releases seen = {0};
    char byte;
    wherry_storage *storage;
    must(wherry_storage_wrap(&byte, 0, wherry_device_cpu(), note_release, &seen, &storage, NULL));
    void *data = wherry_storage_data(storage);
    wherry_storage_unref(storage);
    assert_int_equal(seen.count, 1);
    assert_ptr_equal(seen.data, &byte);
    assert_null(data);
}

static void test_allocate(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1, 15, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        wherry_storage *storage;
        must(wherry_storage_allocate(sizes[i], wherry_device_cpu(), &storage, NULL));
        char *bytes = wherry_storage_data(storage);
        assert_int_equal(wherry_storage_nbytes(storage), sizes[i]);
        assert_int_equal(wherry_storage_device(storage).kind, WHERRY_DEVICE_CPU);
        for (uint64_t at = 0; at < sizes[i]; at++) {
            if (bytes[at]) {
                fail_msg("byte %llu of %llu is not zero", (unsigned long long)at, (unsigned long long)sizes[i]);
            }
        }
        if (sizes[i] >= 2 << 20) {
            assert_int_equal((uintptr_t)bytes % (2 << 20), 0);
        }
        bytes[0] = bytes[sizes[i] - 1] = 1;
        wherry_storage_unref(storage);
    }
}

static void test_allocate_refused(void **state) {
    (void)state;
    char byte;
    wherry_error error;
    wherry_storage *storage = (wherry_storage *)&byte;
    wherry_device cuda = {WHERRY_DEVICE_CUDA, 0};
    must_fail(WHERRY_UNSUPPORTED, error, wherry_storage_allocate(8, cuda, &storage, &error));
    assert_non_null(strstr(error.message, "cuda:0"));
    wherry_device meta = {WHERRY_DEVICE_META, -1};
    must_fail(WHERRY_UNSUPPORTED, error, wherry_storage_allocate(0, meta, &storage, &error));
    must_fail(WHERRY_NO_MEMORY, error, wherry_storage_allocate(INT64_MAX, wherry_device_cpu(), &storage, &error));
    must_fail(WHERRY_NO_MEMORY, error,
              wherry_storage_allocate(UINT64_C(1) << 60, wherry_device_cpu(), &storage, &error));
    assert_ptr_equal(storage, &byte);
}

static void test_describe(void **state) {
    (void)state;
    wherry_device device = {WHERRY_DEVICE_NPU, 2};
    wherry_storage *storage;
    must(wherry_storage_describe(INT64_MAX, device, &storage, NULL));
    assert_null(wherry_storage_data(storage));
    assert_true(wherry_storage_nbytes(storage) == INT64_MAX);
    assert_int_equal(wherry_storage_device(storage).kind, WHERRY_DEVICE_NPU);
    assert_int_equal(wherry_storage_device(storage).index, 2);
    wherry_storage_unref(storage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_wrap_without_release),
        cmocka_unit_test(test_wrap_refused),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_empty_at_an_address),
        cmocka_unit_test(test_allocate),
        cmocka_unit_test(test_allocate_refused),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests_name("storage", tests, NULL, NULL);
}
