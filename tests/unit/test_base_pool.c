/* Pools: objects do not overlap and outlive the pool. The last object of a block frees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pthread.h>
#include <stdlib.h>
#include <cmocka.h>

#include "../support/counting_fixture.h"
#include "../support/random_range.h"
#include "base/alloc.h"

enum { OBJECTS = 3000 };

typedef struct object {
    uint8_t *bytes;
    size_t size;
    uint32_t offset;
} object;

static void check_bytes(const object *o, uint8_t byte) {
    for (size_t i = 0; i < o->size; i++) {
        assert_int_equal(o->bytes[i], byte);
    }
}

static void test_objects_do_not_overlap(void **state) {
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
    assert_in_range(counted.calls, 2, OBJECTS / 20);
    wh_pool_close(&pool);
    wh_pool_close(&pool);
    for (size_t left = OBJECTS; left > 0; left--) {
        size_t at = (size_t)below(&d, left);
        object o = objects[at];
        check_bytes(&o, o.bytes[0]);
        wh_pool_free(o.bytes, o.offset);
        objects[at] = objects[left - 1];
    }
    assert_int_equal(counted.held, 0);
}

static void test_allocates_without_a_pool(void **state) {
    (void)state;
    uint32_t offset = 7;
    void *bytes = wh_pool_alloc(NULL, 100, &offset);
    assert_non_null(bytes);
    assert_int_equal(offset, 0);
    assert_int_equal(counted.held, 1);
    wh_pool_free(bytes, offset);
    assert_int_equal(counted.held, 0);
}

/* A pool whose objects are all released can still allocate; after closing, it can start again. */
static void test_pool_outlives_its_objects(void **state) {
    (void)state;
    wh_pool pool = {0};
    for (int i = 0; i < 2; i++) {
        uint32_t offsets[2];
        void *one = wh_pool_alloc(&pool, 10, offsets);
        assert_non_null(one);
        wh_pool_free(one, offsets[0]);
        assert_int_equal(counted.held, 1);
        void *other = wh_pool_alloc(&pool, 10, offsets + 1);
        assert_non_null(other);
        wh_pool_close(&pool);
        assert_int_equal(counted.held, 1);
        memset(other, 1, 10);
        wh_pool_free(other, offsets[1]);
        assert_int_equal(counted.held, 0);
    }
}

static void test_failed_allocation_is_reported(void **state) {
    (void)state;
    wh_pool pool = {0};
    uint32_t offset;
    counted.fail = 1;
    assert_null(wh_pool_alloc(&pool, 10, &offset));
    assert_null(wh_pool_alloc(&pool, 1 << 20, &offset));
    assert_null(wh_pool_alloc(NULL, 10, &offset));
    counted.fail = 0;
    void *first = wh_pool_alloc(&pool, 10, &offset);
    assert_non_null(first);
    counted.fail = 1;
    uint32_t other;
    assert_null(wh_pool_alloc(&pool, 10000, &other));
    memset(first, 1, 10);
    wh_pool_free(first, offset);
    wh_pool_close(&pool);
}

/** Allocates objects and checks that no other thread wrote to them. @return NULL on success. */
static void *make_and_release(void *context) {
    enum { MINE = 500 };
    static _Thread_local object mine[MINE];
    uint8_t byte = *(uint8_t *)context;
    bool well = true;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < MINE; i++) {
            mine[i].size = 1 + (i * 37 + (size_t)round) % 300;
            mine[i].bytes = wh_pool_alloc(NULL, mine[i].size, &mine[i].offset);
            memset(mine[i].bytes, byte, mine[i].size);
        }
        for (size_t i = 0; i < MINE; i++) {
            well = well && mine[i].bytes[0] == byte && mine[i].bytes[mine[i].size - 1] == byte;
            wh_pool_free(mine[i].bytes, mine[i].offset);
        }
    }
    return well ? NULL : context;
}

/*
 * With the default allocator, objects of the shared pool are adjacent in memory, even if any thread
 * allocates other memory in between.
 */
static void test_shared_pool_keeps_objects_together(void **state) {
    (void)state;
    enum { MANY = 1000, THREADS = 4 };
    static object objects[MANY];
    static void *between[MANY];
    size_t near = 0;
    wherry_allocator_set(NULL);
    for (size_t i = 0; i < MANY; i++) {
        objects[i].bytes = wh_pool_alloc(NULL, 100, &objects[i].offset);
        between[i] = malloc(4096);
        assert_non_null(objects[i].bytes);
        memset(objects[i].bytes, (int)i & 0xFF, 100);
        near += i && objects[i].bytes - objects[i - 1].bytes == 104;
    }
    assert_true(near > MANY * 9 / 10 || !wh_alloc_may_cache());
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(objects[i].bytes[99], i & 0xFF);
        wh_pool_free(objects[i].bytes, objects[i].offset);
        free(between[i]);
    }
    pthread_t threads[THREADS];
    uint8_t bytes[THREADS] = {1, 2, 3, 4};
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(threads + i, NULL, make_and_release, bytes + i), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    uint32_t offset;
    void *large = wh_pool_alloc(NULL, 100000, &offset);
    assert_non_null(large);
    assert_int_equal(offset, 0);
    wh_pool_free(large, offset);
    wherry_allocator_set(&(wherry_allocator){counting_allocate, counting_reallocate, counting_release, &counted});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        counted_test(test_objects_do_not_overlap),
        counted_test(test_allocates_without_a_pool),
        counted_test(test_pool_outlives_its_objects),
        counted_test(test_failed_allocation_is_reported),
        counted_test(test_shared_pool_keeps_objects_together),
    };
    return cmocka_run_group_tests_name("base_pool", tests, NULL, NULL);
}
