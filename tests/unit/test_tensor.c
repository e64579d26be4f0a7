/* Tensors, storages, devices and element types. */
#include "../support/build.h"

#include <stdio.h>
#include <stdlib.h>

#include <wherry/expert.h>

/* Tensors: valid views of a storage, and views that reach outside it. */

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

static void test_creates_tensors_of_every_dtype(void **state) {
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

static void test_number_of_dimensions_is_limited(void **state) {
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

static void test_creates_scalars(void **state) {
    (void)state;
    wherry_tensor tensor = {.dtype = WHERRY_F64, .offset = 2};
    assert_int_equal(wherry_tensor_count(&tensor), 1);
    assert_int_equal(try_tensor(24, tensor), WHERRY_OK);
    assert_int_equal(try_tensor(23, tensor), WHERRY_INVALID_ARGUMENT);
    assert_int_equal(try_tensor(0, tensor), WHERRY_INVALID_ARGUMENT);
}

static void test_creates_tensors_without_elements(void **state) {
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
static void test_strides_must_stay_within_the_storage(void **state) {
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

/** Products and sums above 63 bits are refused and do not wrap around. */
static void test_refuses_sizes_that_overflow(void **state) {
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

static void test_refuses_bad_tensors(void **state) {
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
static void test_digest_depends_only_on_elements(void **state) {
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

/* Storages: ownership of the memory. */

typedef struct releases {
    int count;
    void *data;
} releases;

static void note_release(void *context, void *data) {
    releases *seen = context;
    seen->count++;
    seen->data = data;
}

static void test_wrapped_memory_is_released_once(void **state) {
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

static void test_wrapped_memory_may_have_no_release(void **state) {
    (void)state;
    char bytes[3] = {1, 2, 3};
    wherry_storage *storage;
    must(wherry_storage_wrap(bytes, 3, wherry_device_cpu(), NULL, NULL, &storage, NULL));
    wherry_storage_unref(storage);
    assert_int_equal(bytes[2], 3);
    wherry_storage_unref(NULL);
}

static void test_refuses_bad_wraps(void **state) {
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

static void test_creates_empty_storages(void **state) {
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
static void test_empty_storage_releases_its_memory(void **state) {
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

static void test_allocated_storage_is_zeroed(void **state) {
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

static void test_refuses_bad_allocations(void **state) {
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

static void test_describes_a_storage_without_memory(void **state) {
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

/* Devices and element types: their names, and the numbers of the wire format. */

static const char *const device_texts[] = {"cpu", "cuda", "xpu", "hip",  "mps",          "hpu",
                                           "xla", "mtia", "npu", "meta", "privateuseone"};
enum { DEVICES = sizeof(device_texts) / sizeof(*device_texts) };

static void test_formats_and_parses_devices(void **state) {
    (void)state;
    static const int32_t numbers[] = {-1, 0, 7, INT32_MAX};
    for (int kind = 0; kind < DEVICES; kind++) {
        assert_string_equal(wherry_device_kind_text((wherry_device_kind)kind), device_texts[kind]);
        for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
            char expected[64];
            char text[WHERRY_DEVICE_TEXT_MAX];
            snprintf(expected, sizeof(expected), numbers[i] < 0 ? "%s" : "%s:%d", device_texts[kind], numbers[i]);
            wherry_device device = {(wherry_device_kind)kind, numbers[i]};
            assert_ptr_equal(wherry_device_text(device, text), text);
            assert_string_equal(text, expected);
            wherry_device parsed = {WHERRY_DEVICE_META, 99};
            must(wherry_device_parse(text, &parsed, NULL));
            assert_int_equal(parsed.kind, kind);
            assert_int_equal(parsed.index, numbers[i]);
        }
    }
    assert_string_equal(wherry_device_kind_text((wherry_device_kind)DEVICES), "?");
    assert_string_equal(wherry_device_kind_text((wherry_device_kind)255), "?");
}

static void test_cpu_device_has_no_index(void **state) {
    (void)state;
    assert_int_equal(wherry_device_cpu().kind, WHERRY_DEVICE_CPU);
    assert_int_equal(wherry_device_cpu().index, -1);
}

static void test_refuses_bad_devices(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",         "cpu:",  "cpu:-1",          "cpu:x", "cpu:1x", "cpu: 1",  "cpu:+1",
        "CPU",      "cud",   "cudaa",           ":",     ":1",     "gpu",     "cuda:99999999999999999999",
        "cuda:1:2", " cuda", "cuda:2147483648", "cuda ", "cuda,0", "cuda:0 ", "cuda:0x1",
    };
    wherry_error error;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_device device = {WHERRY_DEVICE_NPU, 42};
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_device_parse(bad[i], &device, &error));
        assert_true(device.kind == WHERRY_DEVICE_NPU && device.index == 42);
        for (int kind = 0; kind < DEVICES; kind++) {
            assert_non_null(strstr(error.message, device_texts[kind]));
        }
        assert_int_equal(wherry_device_parse(bad[i], &device, NULL), WHERRY_INVALID_ARGUMENT);
    }
    wherry_device device;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_device_parse(NULL, &device, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_device_parse("cpu", NULL, &error));
}

/** A second copy of the table, because a changed number would break the wire format. */
static const struct {
    const char *name;
    uint32_t bytes;
    wherry_dtype_class class_;
} dtypes[] = {
    {"bool", 1, WHERRY_CLASS_BOOL},
    {"uint8", 1, WHERRY_CLASS_UNSIGNED},
    {"int8", 1, WHERRY_CLASS_SIGNED},
    {"uint16", 2, WHERRY_CLASS_UNSIGNED},
    {"int16", 2, WHERRY_CLASS_SIGNED},
    {"uint32", 4, WHERRY_CLASS_UNSIGNED},
    {"int32", 4, WHERRY_CLASS_SIGNED},
    {"uint64", 8, WHERRY_CLASS_UNSIGNED},
    {"int64", 8, WHERRY_CLASS_SIGNED},
    {"float16", 2, WHERRY_CLASS_FLOAT},
    {"bfloat16", 2, WHERRY_CLASS_FLOAT},
    {"float32", 4, WHERRY_CLASS_FLOAT},
    {"float64", 8, WHERRY_CLASS_FLOAT},
    {"complex32", 4, WHERRY_CLASS_COMPLEX},
    {"complex64", 8, WHERRY_CLASS_COMPLEX},
    {"complex128", 16, WHERRY_CLASS_COMPLEX},
    {"float8_e4m3fn", 1, WHERRY_CLASS_FLOAT},
    {"float8_e4m3fnuz", 1, WHERRY_CLASS_FLOAT},
    {"float8_e5m2", 1, WHERRY_CLASS_FLOAT},
    {"float8_e5m2fnuz", 1, WHERRY_CLASS_FLOAT},
    {"float8_e8m0fnu", 1, WHERRY_CLASS_FLOAT},
    {"float4_e2m1fn_x2", 1, WHERRY_CLASS_PACKED},
    {"qint8", 1, WHERRY_CLASS_QUANTIZED},
    {"quint8", 1, WHERRY_CLASS_QUANTIZED},
    {"qint32", 4, WHERRY_CLASS_QUANTIZED},
    {"quint4x2", 1, WHERRY_CLASS_QUANTIZED},
    {"quint2x4", 1, WHERRY_CLASS_QUANTIZED},
    {"bits8", 1, WHERRY_CLASS_BITS},
    {"bits16", 2, WHERRY_CLASS_BITS},
    {"bits1x8", 1, WHERRY_CLASS_BITS},
    {"bits2x4", 1, WHERRY_CLASS_BITS},
    {"bits4x2", 1, WHERRY_CLASS_BITS},
    {"uint1", 1, WHERRY_CLASS_PACKED},
    {"uint2", 1, WHERRY_CLASS_PACKED},
    {"uint3", 1, WHERRY_CLASS_PACKED},
    {"uint4", 1, WHERRY_CLASS_PACKED},
    {"uint5", 1, WHERRY_CLASS_PACKED},
    {"uint6", 1, WHERRY_CLASS_PACKED},
    {"uint7", 1, WHERRY_CLASS_PACKED},
    {"int1", 1, WHERRY_CLASS_PACKED},
    {"int2", 1, WHERRY_CLASS_PACKED},
    {"int3", 1, WHERRY_CLASS_PACKED},
    {"int4", 1, WHERRY_CLASS_PACKED},
    {"int5", 1, WHERRY_CLASS_PACKED},
    {"int6", 1, WHERRY_CLASS_PACKED},
    {"int7", 1, WHERRY_CLASS_PACKED},
};
enum { DTYPE_ROWS = sizeof(dtypes) / sizeof(*dtypes) };

static void test_dtype_numbers_never_change(void **state) {
    (void)state;
    for (int i = 0; i < DTYPE_ROWS; i++) {
        const wherry_dtype_info *info = wherry_dtype_describe((wherry_dtype)i);
        assert_non_null(info);
        assert_string_equal(info->name, dtypes[i].name);
        assert_int_equal(info->bytes, dtypes[i].bytes);
        assert_int_equal(info->bits, dtypes[i].bytes * 8);
        assert_int_equal(info->class_, dtypes[i].class_);
    }
    assert_null(wherry_dtype_describe((wherry_dtype)DTYPE_ROWS));
    assert_null(wherry_dtype_describe((wherry_dtype)-1));
    assert_int_equal(WHERRY_BF16, 10);
    assert_int_equal(WHERRY_I7, 45);
}

static void test_finds_dtypes_by_name(void **state) {
    (void)state;
    for (int i = 0; i < DTYPE_ROWS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "torch.%s", dtypes[i].name);
        assert_int_equal(wherry_dtype_find(name), i);
        assert_int_equal(wherry_dtype_find(name + 6), i);
    }
    static const char *const unknown[] = {"",         "torch.",       "torch.torch.int8", "float",
                                          "Float32",  "float3",       "float322",         "torch.float32 ",
                                          " float32", "torchfloat32", "np.float32"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
        assert_int_equal(wherry_dtype_find(unknown[i]), -1);
    }
    assert_int_equal(wherry_dtype_find(NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creates_tensors_of_every_dtype),
        cmocka_unit_test(test_number_of_dimensions_is_limited),
        cmocka_unit_test(test_creates_scalars),
        cmocka_unit_test(test_creates_tensors_without_elements),
        cmocka_unit_test(test_strides_must_stay_within_the_storage),
        cmocka_unit_test(test_strides_are_kept),
        cmocka_unit_test(test_refuses_sizes_that_overflow),
        cmocka_unit_test(test_refuses_bad_tensors),
        cmocka_unit_test(test_digest_depends_only_on_elements),
        cmocka_unit_test(test_wrapped_memory_is_released_once),
        cmocka_unit_test(test_wrapped_memory_may_have_no_release),
        cmocka_unit_test(test_refuses_bad_wraps),
        cmocka_unit_test(test_creates_empty_storages),
        cmocka_unit_test(test_empty_storage_releases_its_memory),
        cmocka_unit_test(test_allocated_storage_is_zeroed),
        cmocka_unit_test(test_refuses_bad_allocations),
        cmocka_unit_test(test_describes_a_storage_without_memory),
        cmocka_unit_test(test_formats_and_parses_devices),
        cmocka_unit_test(test_cpu_device_has_no_index),
        cmocka_unit_test(test_refuses_bad_devices),
        cmocka_unit_test(test_dtype_numbers_never_change),
        cmocka_unit_test(test_finds_dtypes_by_name),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
