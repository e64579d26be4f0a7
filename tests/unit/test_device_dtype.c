/* Devices and element types: their names, and the numbers of the wire format. */
#include "../support/build.h"

#include <stdio.h>

static const char *const device_texts[] = {"cpu", "cuda", "xpu", "hip",  "mps",          "hpu",
                                           "xla", "mtia", "npu", "meta", "privateuseone"};
enum { DEVICES = sizeof(device_texts) / sizeof(*device_texts) };

static void test_device_text(void **state) {
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

static void test_device_cpu(void **state) {
    (void)state;
    assert_int_equal(wherry_device_cpu().kind, WHERRY_DEVICE_CPU);
    assert_int_equal(wherry_device_cpu().index, -1);
}

static void test_device_refused(void **state) {
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

/** The table once more: a number that changes breaks the wire format. */
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
enum { DTYPES = sizeof(dtypes) / sizeof(*dtypes) };

static void test_dtype_table(void **state) {
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        const wherry_dtype_info *info = wherry_dtype_describe((wherry_dtype)i);
        assert_non_null(info);
        assert_string_equal(info->name, dtypes[i].name);
        assert_int_equal(info->bytes, dtypes[i].bytes);
        assert_int_equal(info->bits, dtypes[i].bytes * 8);
        assert_int_equal(info->class_, dtypes[i].class_);
    }
    assert_null(wherry_dtype_describe((wherry_dtype)DTYPES));
    assert_null(wherry_dtype_describe((wherry_dtype)-1));
    assert_int_equal(WHERRY_BF16, 10);
    assert_int_equal(WHERRY_I7, 45);
}

static void test_dtype_find(void **state) {
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
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
        cmocka_unit_test(test_device_text), cmocka_unit_test(test_device_cpu), cmocka_unit_test(test_device_refused),
        cmocka_unit_test(test_dtype_table), cmocka_unit_test(test_dtype_find),
    };
    return cmocka_run_group_tests_name("device_dtype", tests, NULL, NULL);
}
