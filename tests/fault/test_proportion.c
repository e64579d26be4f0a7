/*
 * Hostile manifests: the cost of decoding and planning is proportional to their size. Each manifest
 * is small, but made to take a lot of time or memory.
 */
#include <malloc.h>

#include "base/clock.h"
#include "support/build.h"

enum { MANIFEST_MAX = 1 << 20, SECONDS_MAX = 20 };

static long live_bytes;
static long peak_bytes;

static void *allocate(void *context, size_t size) {
    (void)context;
    void *memory = malloc(size);
    live_bytes += (long)malloc_usable_size(memory);
    peak_bytes = live_bytes > peak_bytes ? live_bytes : peak_bytes;
    return memory;
}

static void release(void *context, void *memory) {
    (void)context;
    live_bytes -= (long)malloc_usable_size(memory);
    free(memory);
}

static void *reallocate(void *context, void *memory, size_t size) {
    void *larger = allocate(context, size);
    if (larger && memory) {
        size_t before = malloc_usable_size(memory);
        memcpy(larger, memory, before < size ? before : size);
        release(context, memory);
    }
    return larger;
}

static int set_up(void **state) {
    (void)state;
    static const wherry_allocator counting = {allocate, reallocate, release, NULL};
    wherry_allocator_set(&counting);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return 0;
}

/** A manifest that is written by hand, because the library would not write it. */
typedef struct draft {
    unsigned char bytes[MANIFEST_MAX];
    size_t size;
} draft;

static void head(draft *to, unsigned major, uint64_t number) {
    unsigned char *at = to->bytes + to->size;
    unsigned width = number < 24            ? 0
                     : number <= UINT8_MAX  ? 1
                     : number <= UINT16_MAX ? 2
                     : number <= UINT32_MAX ? 4
                                            : 8;
    static const unsigned char forms[] = {0, 24, 25, 0, 26, 0, 0, 0, 27};
    assert_true(to->size + 9 <= sizeof(to->bytes));
    at[0] = (unsigned char)(major << 5 | (width ? forms[width] : number));
    for (unsigned i = 0; i < width; i++) {
        at[1 + i] = (unsigned char)(number >> 8 * (width - 1 - i));
    }
    to->size += 1 + width;
}

static void number(draft *to, uint64_t content) {
    head(to, 0, content);
}

static void array(draft *to, uint64_t count) {
    head(to, 4, count);
}

static void byte(draft *to, unsigned char content) {
    to->bytes[to->size++] = content;
}

static draft *begin(uint64_t chunk_bytes) {
    draft *to = calloc(1, sizeof(*to));
    array(to, 7);
    head(to, 3, 6);
    for (const char *letter = "wherry"; *letter; letter++) {
        byte(to, (unsigned char)*letter);
    }
    number(to, 1);
    number(to, chunk_bytes);
    head(to, 1, 0); /* rank -1 */
    return to;
}

static void whole_storage(draft *to, uint64_t nbytes) {
    array(to, 4);
    number(to, nbytes);
    number(to, 0);
    head(to, 1, 0);
    byte(to, 0xF6);
}

/** A tensor of bytes. */
static void tensor(draft *to, uint64_t storage, uint64_t offset, uint32_t ndim, const uint64_t *sizes,
                   const uint64_t *strides) {
    array(to, 7);
    number(to, WHERRY_KIND_TENSOR);
    number(to, storage);
    number(to, WHERRY_U8);
    number(to, 0);
    number(to, offset);
    array(to, ndim);
    for (uint32_t i = 0; i < ndim; i++) {
        number(to, sizes[i]);
    }
    array(to, ndim);
    for (uint32_t i = 0; i < ndim; i++) {
        number(to, strides[i]);
    }
}

/**
 * Decodes and plans, with or without a target. This must not take more than `bytes` of memory, nor
 * a long time.
 */
static void expect_into(const draft *hostile, const wherry_value *target, wherry_status decoded, wherry_status planned,
                        long bytes) {
    wherry_error error;
    wherry_prepared *prepared;
    wherry_plan_options options;
    wherry_plan *plan;
    uint64_t began = wh_clock_now();
    wherry_plan_options_init(&options);
    options.flags = target ? WHERRY_PLAN_NEW : 0;
    live_bytes = peak_bytes = 0;
    wherry_status status = wherry_manifest_decode(hostile->bytes, hostile->size, NULL, &prepared, &error);
    assert_int_equal(status, decoded);
    if (status == WHERRY_OK) {
        status = wherry_plan_create(prepared, target, &options, &plan, &error);
        if (status != planned) {
            fail_msg("%s instead of %s", wherry_status_name(status), wherry_status_name(planned));
        }
        if (status == WHERRY_OK) {
            wherry_plan_destroy(plan);
        } else {
            wherry_prepared_destroy(prepared);
        }
    }
    if (peak_bytes > bytes) {
        fail_msg("%zu bytes of manifest took %ld bytes of memory", hostile->size, peak_bytes);
    }
    assert_int_equal(live_bytes, 0);
    assert_true(wh_clock_now() - began < SECONDS_MAX * UINT64_C(1000000000));
}

static void expect(draft *hostile, wherry_status decoded, wherry_status planned, long bytes) {
    expect_into(hostile, NULL, decoded, planned, bytes);
    free(hostile);
}

/** The same for a list, also into a target that has none of its tensors. */
static void expect_list(draft *hostile, wherry_status planned, long bytes) {
    wherry_value *target = build_list(NULL);
    expect_into(hostile, target, WHERRY_OK, planned, bytes);
    wherry_value_destroy(target);
    expect(hostile, WHERRY_OK, planned, bytes);
}

/** Nested dicts, each of which claims as many entries as there are bytes left. */
static void test_nested_claims(void **state) {
    (void)state;
    draft *to = begin(4096);
    array(to, 0);
    array(to, 0);
    for (uint64_t i = 0; i < 200; i++) {
        array(to, MANIFEST_MAX - 10000 + 1);
        number(to, WHERRY_KIND_DICT);
        for (uint64_t key = 0; key < 20; key++) {
            number(to, key);
            byte(to, 0xF6);
        }
        number(to, 100);
    }
    to->size = MANIFEST_MAX;
    expect(to, WHERRY_REPEATED_KEY, WHERRY_OK, 32L << 20);
}

static void test_claimed_storages(void **state) {
    (void)state;
    draft *to = begin(4096);
    array(to, MANIFEST_MAX - 100);
    to->size = MANIFEST_MAX;
    expect(to, WHERRY_MALFORMED, WHERRY_OK, 32L << 20);
}

/** A small tensor with each element in a different chunk. */
static void test_elements_far_apart(void **state) {
    (void)state;
    draft *to = begin(4096);
    array(to, 1);
    whole_storage(to, UINT64_C(1) << 40);
    array(to, 0);
    tensor(to, 0, 0, 1, (uint64_t[]){UINT64_C(1) << 26}, (uint64_t[]){16384});
    expect(to, WHERRY_OK, WHERRY_LIMIT, 256L << 20);
}

/** Two views that are normal, but interleave when they are merged. */
static void test_merging_that_interleaves(void **state) {
    (void)state;
    enum { STORAGES = 64 };
    draft *to = begin(4096);
    array(to, STORAGES);
    for (int i = 0; i < STORAGES; i++) {
        whole_storage(to, 1 << 19);
    }
    array(to, 0);
    array(to, 1 + 2 * STORAGES);
    number(to, WHERRY_KIND_LIST);
    for (uint64_t i = 0; i < STORAGES; i++) {
        tensor(to, i, 0, 2, (uint64_t[]){65536, 2}, (uint64_t[]){4, 3});
        tensor(to, i, 1, 2, (uint64_t[]){65536, 2}, (uint64_t[]){4, 3});
    }
    /* The limit allows for the storages, and for little more. */
    expect_list(to, WHERRY_OK, (32L + 8) << 20);
}

/**
 * 2,000 views that overlap, each of nearly a whole storage: hundreds of gigabytes to copy for one
 * storage.
 */
static void test_crossing_views(void **state) {
    (void)state;
    enum { VIEWS = 2000 };
    draft *to = begin(4096);
    array(to, 1);
    whole_storage(to, 1 << 30);
    array(to, 0);
    array(to, 1 + VIEWS);
    number(to, WHERRY_KIND_LIST);
    for (uint64_t i = 0; i < VIEWS; i++) {
        uint64_t stride = 5000 + i;
        tensor(to, 0, i, 2, (uint64_t[]){(1 << 29) / stride, stride - 1}, (uint64_t[]){stride, 1});
    }
    expect_list(to, WHERRY_LIMIT, 64L << 20);
}

/**
 * Thousands of tensors, each found only after thousands of strided extents that do not contain it.
 */
static void test_many_extents_to_search(void **state) {
    (void)state;
    enum { EXTENTS = 10000, TENSORS = 3000 };
    draft *to = begin(4096);
    array(to, 1);
    array(to, 4);
    number(to, UINT64_C(1) << 40);
    number(to, 0);
    head(to, 1, 0);
    array(to, 1 + EXTENTS);
    array(to, 2);
    number(to, 0);
    number(to, UINT64_C(1) << 30);
    for (uint64_t i = 0; i < EXTENTS; i++) {
        array(to, 3);
        number(to, 1 + i);
        number(to, 1);
        array(to, 8);
        for (int level = 3; level >= 0; level--) {
            number(to, 2);
            number(to, UINT64_C(100000) << level);
        }
    }
    array(to, 0);
    array(to, 1 + TENSORS);
    number(to, WHERRY_KIND_LIST);
    for (uint64_t i = 0; i < TENSORS; i++) {
        tensor(to, 0, 1000000 + 3 * i, 1, (uint64_t[]){2}, (uint64_t[]){2});
    }
    expect_list(to, WHERRY_LIMIT, 64L << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nested_claims),      cmocka_unit_test(test_claimed_storages),
        cmocka_unit_test(test_elements_far_apart), cmocka_unit_test(test_merging_that_interleaves),
        cmocka_unit_test(test_crossing_views),     cmocka_unit_test(test_many_extents_to_search),
    };
    return cmocka_run_group_tests_name("proportion", tests, set_up, tear_down);
}
