/* Tensors: valid views of a storage, and views that reach outside it. */
#include <wherry/expert.h>

#include "../support/build.h"

enum { DTYPES = WHERRY_I7 + 1 };

static wherry_status try_tensor(uint64_t nbytes, wherry_tensor tensor) {
    wherry_storage *storage = build_bare(nbytes);
    wherry_value *const untouched = (wherry_value *)&storage;
    wherry_value *value = untouched;
    wherry_error error = {.message = ""};
    tensor.storage = storage;
    wherry_status status = wherry_tensor_create(&tensor, &value, &error);
    if (status == WHERRY_OK) {
        wherry_value_destroy(value);
    } else {
        assert_ptr_equal(value, untouched);
        assert_int_equal(error.status, status);
        assert_true(error.message[0]);
    }
    wherry_storage_unref(storage);
    return status;
}

static void test_every_dtype(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 3};
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        uint32_t bytes = wherry_dtype_describe((wherry_dtype)dtype)->bytes;
        wherry_storage *storage = build_storage(6 * bytes, 0);
        wherry_value *value = build_view(storage, (wherry_dtype)dtype, 0, 2, shape, NULL);
        const wherry_tensor *tensor = wherry_tensor_get(value);
        assert_int_equal(wherry_value_kind(value), WHERRY_KIND_TENSOR);
        assert_int_equal(tensor->dtype, dtype);
        assert_ptr_equal(tensor->storage, storage);
        assert_int_equal(wherry_tensor_count(tensor), 6);
        assert_true(tensor->shape != shape && tensor->shape[0] == 2 && tensor->shape[1] == 3);
        assert_true(tensor->strides[0] == 3 && tensor->strides[1] == 1);
        wherry_value_destroy(value);
        wherry_storage_unref(storage);
        assert_int_equal(try_tensor(6 * bytes - 1, (wherry_tensor){.dtype = dtype, .ndim = 2, .shape = shape}),
                         WHERRY_INVALID_ARGUMENT);
        assert_int_equal(try_tensor(7 * bytes, (wherry_tensor){.dtype = dtype, .ndim = 2, .shape = shape, .offset = 1}),
                         WHERRY_OK);
    }
}

static void test_dimensions(void **state) {
    (void)state;
    int64_t shape[WHERRY_NDIM_MAX + 1];
    for (uint32_t ndim = 0; ndim <= WHERRY_NDIM_MAX + 1; ndim++) {
        uint64_t count = 1;
        for (uint32_t d = 0; d < ndim; d++) {
            shape[d] = d < 20 ? 2 : 1;
            count *= (uint64_t)shape[d];
        }
        wherry_tensor tensor = {.dtype = WHERRY_U8, .ndim = ndim, .shape = shape};
        bool allowed = ndim <= WHERRY_NDIM_MAX;
        assert_int_equal(try_tensor(count, tensor), allowed ? WHERRY_OK : WHERRY_INVALID_ARGUMENT);
        assert_int_equal(try_tensor(count - 1, tensor), WHERRY_INVALID_ARGUMENT);
    }
}

static void test_scalar(void **state) {
    (void)state;
    wherry_tensor tensor = {.dtype = WHERRY_F64, .offset = 2};
    assert_int_equal(wherry_tensor_count(&tensor), 1);
    assert_int_equal(try_tensor(24, tensor), WHERRY_OK);
    assert_int_equal(try_tensor(23, tensor), WHERRY_INVALID_ARGUMENT);
    assert_int_equal(try_tensor(0, tensor), WHERRY_INVALID_ARGUMENT);
}

static void test_without_elements(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{0, 1, 1}, {3, 0, 2}, {5, 7, 0}, {0, 0, 0}};
    static const int64_t strides[] = {1000, 1000, 1000};
    for (int i = 0; i < 4; i++) {
        wherry_tensor tensor = {.dtype = WHERRY_C128, .ndim = 3, .shape = shapes[i]};
        assert_int_equal(wherry_tensor_count(&tensor), 0);
        assert_int_equal(try_tensor(0, tensor), WHERRY_OK);
        tensor.strides = strides;
        tensor.offset = 1000;
        assert_int_equal(try_tensor(0, tensor), WHERRY_OK);
    }
}

/** A 4 by 6 matrix of float32 (96 bytes) and views of it. */
static void test_strides(void **state) {
    (void)state;
    static const struct {
        int64_t shape[2];
        int64_t strides[2];
        int64_t offset;
        uint64_t needs;
    } views[] = {
        {{4, 6}, {6, 1}, 0, 24},  {{6, 4}, {1, 6}, 0, 24},   {{4, 2}, {6, 1}, 4, 24}, {{4, 1}, {6, 1}, 5, 24},
        {{2, 3}, {12, 2}, 7, 24}, {{4, 100}, {6, 0}, 0, 19}, {{9, 9}, {0, 0}, 3, 4},  {{5, 5}, {1, 1}, 0, 9},
        {{1, 1}, {50, 50}, 0, 1}, {{1, 6}, {99, 1}, 18, 24}, {{3, 8}, {8, 1}, 0, 24}, {{2, 2}, {3, 5}, 1, 10},
    };
    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++) {
        wherry_tensor tensor = {.dtype = WHERRY_F32,
                                .ndim = 2,
                                .shape = views[i].shape,
                                .strides = views[i].strides,
                                .offset = views[i].offset};
        assert_int_equal(try_tensor(4 * views[i].needs, tensor), WHERRY_OK);
        assert_int_equal(try_tensor(4 * views[i].needs - 1, tensor), WHERRY_INVALID_ARGUMENT);
        tensor.offset++;
        assert_int_equal(try_tensor(4 * views[i].needs, tensor), WHERRY_INVALID_ARGUMENT);
        assert_int_equal(try_tensor(4 * views[i].needs + 4, tensor), WHERRY_OK);
    }
}

static void test_strides_are_kept(void **state) {
    (void)state;
    int64_t shape[] = {6, 4};
    int64_t strides[] = {1, 6};
    wherry_value *value = build_tensor(build_storage(96, 0), WHERRY_F32, 0, 2, shape, strides);
    shape[0] = strides[0] = 9;
    const wherry_tensor *tensor = wherry_tensor_get(value);
    assert_true(tensor->shape[0] == 6 && tensor->shape[1] == 4);
    assert_true(tensor->strides[0] == 1 && tensor->strides[1] == 6);
    wherry_value_destroy(value);
}

/** Products and sums above 63 bits are refused; they do not wrap around. */
static void test_overflow(void **state) {
    (void)state;
    const int64_t big = INT64_C(1) << 62;
    const struct {
        wherry_dtype dtype;
        int64_t shape[3];
        int64_t strides[3];
        int64_t offset;
    } views[] = {
        {WHERRY_U8, {big, 4, 1}, {1, 1, 1}, 0},
        {WHERRY_U8, {big, big, 1}, {0, 0, 0}, 0},
        {WHERRY_U8, {2, 1, 1}, {INT64_MAX, 1, 1}, 1},
        {WHERRY_U8, {3, 1, 1}, {INT64_MAX, 1, 1}, 0},
        {WHERRY_U8, {1, 1, 1}, {1, 1, 1}, INT64_MAX},
        {WHERRY_U16, {2, 1, 1}, {big, 1, 1}, 0},
        {WHERRY_C128, {1, 1, 1}, {1, 1, 1}, INT64_C(1) << 60},
        {WHERRY_C128, {2, 1, 1}, {INT64_C(1) << 59, 1, 1}, 0},
        {WHERRY_F64, {INT64_C(1) << 61, 1, 1}, {0, 0, 0}, 0},
        {WHERRY_U8, {INT64_MAX, 2, 1}, {1, 1, 1}, 0},
    };
    for (size_t i = 0; i < sizeof(views) / sizeof(*views); i++) {
        wherry_tensor tensor = {.dtype = views[i].dtype,
                                .ndim = 3,
                                .shape = views[i].shape,
                                .strides = views[i].strides,
                                .offset = views[i].offset};
        assert_int_equal(try_tensor(INT64_MAX, tensor), WHERRY_INVALID_ARGUMENT);
    }
    static const int64_t huge[] = {INT64_C(1) << 32, INT64_C(1) << 31};
    assert_int_equal(try_tensor(INT64_MAX, (wherry_tensor){.dtype = WHERRY_U8, .ndim = 2, .shape = huge}),
                     WHERRY_INVALID_ARGUMENT);
    static const int64_t largest[] = {INT64_MAX};
    assert_int_equal(try_tensor(INT64_MAX, (wherry_tensor){.dtype = WHERRY_U8, .ndim = 1, .shape = largest}),
                     WHERRY_OK);
    assert_int_equal(try_tensor(INT64_MAX - 1, (wherry_tensor){.dtype = WHERRY_U8, .ndim = 1, .shape = largest}),
                     WHERRY_INVALID_ARGUMENT);
}

static void test_refused(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 2};
    static const int64_t negative[] = {1, -1};
    wherry_tensor fine = {.dtype = WHERRY_U8, .ndim = 2, .shape = shape};
    assert_int_equal(try_tensor(100, fine), WHERRY_OK);
    wherry_tensor bad = fine;
    bad.dtype = (wherry_dtype)DTYPES;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    bad = fine;
    bad.flags = WHERRY_TENSOR_FLAGS + 1;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    bad.flags = WHERRY_TENSOR_FLAGS;
    assert_int_equal(try_tensor(100, bad), WHERRY_OK);
    bad = fine;
    bad.offset = -1;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    bad = fine;
    bad.shape = negative;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    bad = fine;
    bad.strides = negative;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    bad = fine;
    bad.shape = NULL;
    assert_int_equal(try_tensor(100, bad), WHERRY_INVALID_ARGUMENT);
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_create(&fine, &value, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_create(NULL, &value, &error));
    assert_null(value);
}

/** A cast covers the whole storage, whatever the tensor covers. */
static void test_cast_to_bytes(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 2};
    static const int64_t strides[] = {1, 3};
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        uint32_t bytes = wherry_dtype_describe((wherry_dtype)dtype)->bytes;
        wherry_value *value = build_tensor(build_storage(8 * bytes, 3), (wherry_dtype)dtype, 2, 2, shape, strides);
        const wherry_tensor *tensor = wherry_tensor_get(value);
        wherry_value *cast;
        must(wherry_tensor_cast(tensor, WHERRY_U8, &cast, NULL));
        const wherry_tensor *plain = wherry_tensor_get(cast);
        assert_ptr_equal(plain->storage, tensor->storage);
        assert_true(plain->dtype == WHERRY_U8 && plain->ndim == 1 && plain->offset == 0 && plain->flags == 0);
        assert_true(plain->shape[0] == 8 * (int64_t)bytes && plain->strides[0] == 1);
        wherry_value *back;
        must(wherry_tensor_cast(plain, (wherry_dtype)dtype, &back, NULL));
        assert_int_equal(wherry_tensor_get(back)->shape[0], 8);
        wherry_value_destroy(value);
        assert_int_equal(((uint8_t *)wherry_storage_data(wherry_tensor_get(cast)->storage))[1], 10);
        wherry_value_destroy(cast);
        wherry_value_destroy(back);
    }
}

static void test_cast_refused(void **state) {
    (void)state;
    static const int64_t shape[] = {15};
    wherry_value *value = build_tensor(build_storage(15, 0), WHERRY_U8, 0, 1, shape, NULL);
    const wherry_tensor *tensor = wherry_tensor_get(value);
    wherry_error error;
    wherry_value *cast = NULL;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        if (wherry_dtype_describe((wherry_dtype)dtype)->bytes > 1) {
            must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_cast(tensor, (wherry_dtype)dtype, &cast, &error));
        }
    }
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_cast(tensor, (wherry_dtype)DTYPES, &cast, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_cast(NULL, WHERRY_U8, &cast, &error));
    assert_null(cast);
    wherry_value_destroy(value);
}

static void test_cast_of_nothing(void **state) {
    (void)state;
    static const int64_t shape[] = {0};
    wherry_value *value = build_tensor(build_storage(0, 0), WHERRY_F32, 0, 1, shape, NULL);
    wherry_value *cast;
    must(wherry_tensor_cast(wherry_tensor_get(value), WHERRY_C128, &cast, NULL));
    assert_int_equal(wherry_tensor_count(wherry_tensor_get(cast)), 0);
    wherry_value_destroy(cast);
    wherry_value_destroy(value);
}

static wherry_digest digest_of(wherry_value *tensor) {
    wherry_digest digest;
    wherry_error error;
    must(wherry_tensor_digest(tensor, &digest, &error));
    wherry_value_destroy(tensor);
    return digest;
}

/**
 * The same elements have the same digest, whatever their strides; other elements have another
 * digest.
 */
static void test_digest(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 5 };
    int64_t shape[] = {ROWS, COLUMNS};
    int64_t by_column[] = {1, ROWS};
    int64_t apart[] = {2 * COLUMNS, 2};
    int64_t one = 1;
    wherry_storage *plain = build_storage(ROWS * COLUMNS * 2, 1);
    wherry_storage *turned = build_storage(ROWS * COLUMNS * 2, 1);
    wherry_storage *wide = build_storage(4 * ROWS * COLUMNS * 2, 1);
    uint16_t *from = wherry_storage_data(plain);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        ((uint16_t *)wherry_storage_data(turned))[i % COLUMNS * ROWS + i / COLUMNS] = from[i];
        ((uint16_t *)wherry_storage_data(wide))[1 + 2 * i] = from[i];
    }
    wherry_digest digest = digest_of(build_view(plain, WHERRY_U16, 0, 2, shape, NULL));
    wherry_digest others[] = {digest_of(build_view(turned, WHERRY_U16, 0, 2, shape, by_column)),
                              digest_of(build_view(wide, WHERRY_U16, 1, 2, shape, apart))};
    assert_memory_equal(&digest, others, sizeof(digest));
    assert_memory_equal(&digest, others + 1, sizeof(digest));
    from[ROWS * COLUMNS - 1] ^= 1;
    others[0] = digest_of(build_view(plain, WHERRY_U16, 0, 2, shape, NULL));
    assert_memory_not_equal(&digest, others, sizeof(digest));
    /* The published XXH3 of no bytes. */
    static const uint8_t nothing[] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                      0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    shape[0] = 0;
    digest = digest_of(build_view(plain, WHERRY_U16, 0, 2, shape, NULL));
    assert_memory_equal(&digest, nothing, sizeof(nothing));
    wherry_storage_unref(plain);
    wherry_storage_unref(turned);
    wherry_storage_unref(wide);
    wherry_error error;
    wherry_value *scalar = build_int(1);
    wherry_value *bare = build_tensor(build_bare(8), WHERRY_U8, 0, 1, &one, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_digest(scalar, &digest, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_tensor_digest(NULL, &digest, &error));
    must_fail(WHERRY_UNSUPPORTED, error, wherry_tensor_digest(bare, &digest, &error));
    wherry_value_destroy(scalar);
    wherry_value_destroy(bare);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype),     cmocka_unit_test(test_dimensions),
        cmocka_unit_test(test_scalar),          cmocka_unit_test(test_without_elements),
        cmocka_unit_test(test_strides),         cmocka_unit_test(test_strides_are_kept),
        cmocka_unit_test(test_overflow),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cast_to_bytes),   cmocka_unit_test(test_cast_refused),
        cmocka_unit_test(test_cast_of_nothing), cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
