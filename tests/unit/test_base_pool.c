/* Pools: objects lie apart, live on without the pool, and give their block back with the last of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "../support/random_range.h"
#include "base/pool.h"

enum { OBJECTS = 3000 };

typedef struct object {
    uint8_t *bytes;
    size_t size;
    uint32_t offset;
} object;

static counting count;

static int begin(void **state) {
    (void)state;
    counting_begin(&count);
    return 0;
}

static int end(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return count.held != 0 || count.wrong != 0;
}

static void check_bytes(const object *o, uint8_t byte) {
    for (size_t i = 0; i < o->size; i++) {
        assert_int_equal(o->bytes[i], byte);
    }
}

static void test_objects(void **state) {
    (void)state;
    static object objects[OBJECTS];
    dice d = {1};
    wh_pool pool = {0};
    for (size_t i = 0; i < OBJECTS; i++) {
        object *o = objects + i;
        o->size = 1 + below(&d, i % 100 ? 120 : 30000);
        o->bytes = wh_pool_alloc(&pool, o->size, &o->offset);
        assert_non_null(o->bytes);
        assert_int_equal((uintptr_t)o->bytes % sizeof(uint64_t), 0);
        memset(o->bytes, (int)(i & 0xFF), o->size);
    }
    assert_in_range(count.calls, 2, OBJECTS / 20);
    wh_pool_close(&pool);
    wh_pool_close(&pool);
    for (size_t left = OBJECTS; left > 0; left--) {
        size_t at = (size_t)below(&d, left);
        object o = objects[at];
        check_bytes(&o, o.bytes[0]);
        wh_pool_free(o.bytes, o.offset);
        objects[at] = objects[left - 1];
    }
    assert_int_equal(count.held, 0);
}

static void test_without_a_pool(void **state) {
    (void)state;
    uint32_t offset = 7;
    void *bytes = wh_pool_alloc(NULL, 100, &offset);
    assert_non_null(bytes);
    assert_int_equal(offset, 0);
    assert_int_equal(count.held, 1);
    wh_pool_free(bytes, offset);
    assert_int_equal(count.held, 0);
}

/* A pool whose objects are all gone may still be cutting; closed, it may begin anew. */
static void test_pool_outlives_its_objects(void **state) {
    (void)state;
    wh_pool pool = {0};
    for (int i = 0; i < 2; i++) {
        uint32_t offsets[2];
        void *one = wh_pool_alloc(&pool, 10, offsets);
        assert_non_null(one);
        wh_pool_free(one, offsets[0]);
        assert_int_equal(count.held, 1);
        void *other = wh_pool_alloc(&pool, 10, offsets + 1);
        assert_non_null(other);
        wh_pool_close(&pool);
        assert_int_equal(count.held, 1);
        memset(other, 1, 10);
        wh_pool_free(other, offsets[1]);
        assert_int_equal(count.held, 0);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    wh_pool pool = {0};
    uint32_t offset;
    count.fail = 1;
    assert_null(wh_pool_alloc(&pool, 10, &offset));
    assert_null(wh_pool_alloc(&pool, 1 << 20, &offset));
    assert_null(wh_pool_alloc(NULL, 10, &offset));
    count.fail = 0;
    void *first = wh_pool_alloc(&pool, 10, &offset);
    assert_non_null(first);
    count.fail = 1;
    uint32_t other;
    assert_null(wh_pool_alloc(&pool, 10000, &other));
    memset(first, 1, 10);
    wh_pool_free(first, offset);
    wh_pool_close(&pool);
}

#define HELD_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        HELD_TEST(test_objects),
        HELD_TEST(test_without_a_pool),
        HELD_TEST(test_pool_outlives_its_objects),
        HELD_TEST(test_no_memory),
    };
    return cmocka_run_group_tests_name("base_pool", tests, NULL, NULL);
}
