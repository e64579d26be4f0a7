/* The hash index: many keys, collisions, growth, failing allocations, the salt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "base/index.h"

enum { KEYS = 20000 };

static uint64_t keys[KEYS];
static uint64_t compared;

static bool equal(const void *owner, size_t element, const void *key) {
    compared++;
    return ((const uint64_t *)owner)[element] == *(const uint64_t *)key;
}

static uint64_t good_hash(uint64_t key) {
    return wh_hash(&key, sizeof(key), 1);
}

static uint64_t same_hash(uint64_t key) {
    (void)key;
    return 12345;
}

/** Hashes that differ only in the upper half, which the index does not store. */
static uint64_t high_hash(uint64_t key) {
    return key << 32 | 0xFFFFFFFF;
}

/** Hashes that differ only in bits that a small index does not use. */
static uint64_t striding_hash(uint64_t key) {
    return key << 12;
}

static void check_all(const wh_index *index, size_t count, uint64_t (*hash)(uint64_t)) {
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(wh_index_find(index, hash(keys[i]), equal, keys, keys + i), i);
    }
    for (uint64_t missing = 1; missing < 2 * count; missing += 2) {
        assert_true(wh_index_find(index, hash(missing), equal, keys, &missing) == WH_INDEX_NONE);
    }
}

static void fill(size_t count, uint64_t (*hash)(uint64_t)) {
    wh_index index = {0};
    for (size_t i = 0; i < count; i++) {
        keys[i] = 2 * i;
        assert_true(wh_index_find(&index, hash(keys[i]), equal, keys, keys + i) == WH_INDEX_NONE);
        assert_true(wh_index_add(&index, hash(keys[i]), i));
        assert_int_equal(index.count, i + 1);
        assert_true((index.capacity & (index.capacity - 1)) == 0);
        assert_true(index.capacity >= index.count + index.count / 3);
    }
    check_all(&index, count, hash);
    wh_index_destroy(&index);
    assert_null(index.slots);
    assert_int_equal(index.count, 0);
}

/*
 * Each process chooses a salt once, and two children choose different ones. This test must run
 * before this process hashes anything.
 */
static void test_salt_differs_between_processes(void **state) {
    (void)state;
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            uint64_t hash = wh_hash("key", 3, 0);
            _exit(write(ends[1], &hash, sizeof(hash)) != sizeof(hash));
        }
        close(ends[1]);
        assert_int_equal(read(ends[0], hashes + i, sizeof(*hashes)), sizeof(*hashes));
        close(ends[0]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_true(hashes[0] != hashes[1]);
}

static void test_hash_depends_on_bytes_and_salt(void **state) {
    (void)state;
    const char text[] = "some bytes";
    char copy[sizeof(text)];
    memcpy(copy, text, sizeof(text));
    assert_true(wh_hash(text, 10, 5) == wh_hash(copy, 10, 5));
    assert_true(wh_hash(text, 10, 5) != wh_hash(text, 10, 6));
    assert_true(wh_hash(text, 10, 5) != wh_hash(text, 9, 5));
    assert_true(wh_hash(text, 0, 5) == wh_hash(copy, 0, 5));
    assert_true(wh_hash(text, 0, 5) != wh_hash(text, 0, 6));
}

static void test_empty_index_finds_nothing(void **state) {
    (void)state;
    wh_index index = {0};
    uint64_t key = 1;
    assert_true(wh_index_find(&index, 1, equal, keys, &key) == WH_INDEX_NONE);
    assert_true(wh_index_reserve(&index, 100));
    assert_true(wh_index_find(&index, 1, equal, keys, &key) == WH_INDEX_NONE);
    wh_index_destroy(&index);
    wh_index_destroy(&index);
}

static void test_finds_many_keys(void **state) {
    (void)state;
    compared = 0;
    fill(KEYS, good_hash);
    /* The stored hash avoids nearly all comparisons with other elements. */
    assert_in_range(compared, KEYS, KEYS + KEYS / 10);
}

static void test_finds_keys_that_collide(void **state) {
    (void)state;
    fill(300, same_hash);
    fill(300, high_hash);
    fill(2000, striding_hash);
}

static void test_reserve_prevents_growth(void **state) {
    (void)state;
    wh_index index = {0};
    assert_true(wh_index_reserve(&index, 1000));
    size_t capacity = index.capacity;
    for (size_t i = 0; i < 1000; i++) {
        keys[i] = 2 * i;
        assert_true(wh_index_add(&index, good_hash(keys[i]), i));
    }
    assert_int_equal(index.capacity, capacity);
    assert_true(wh_index_reserve(&index, 10));
    assert_int_equal(index.capacity, capacity);
    assert_true(wh_index_reserve(&index, 100000));
    assert_true(index.capacity > 100000);
    check_all(&index, 1000, good_hash);
    wh_index_destroy(&index);
}

static void test_failed_growth_changes_nothing(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    wh_index index = {0};
    count.fail = 1;
    assert_false(wh_index_add(&index, 1, 0));
    assert_false(wh_index_reserve(&index, 1));
    count.fail = 0;
    size_t added = 0;
    for (; added < 12; added++) {
        keys[added] = 2 * added;
        assert_true(wh_index_add(&index, good_hash(keys[added]), added));
    }
    count.fail = 1;
    while (wh_index_add(&index, good_hash(2 * added), added)) {
        keys[added] = 2 * added;
        added++;
    }
    assert_int_equal(index.count, added);
    check_all(&index, added, good_hash);
    count.fail = 0;
    assert_false(wh_index_reserve(&index, UINT32_MAX));
    assert_false(wh_index_reserve(&index, SIZE_MAX));
    check_all(&index, added, good_hash);
    wh_index_destroy(&index);
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_salt_differs_between_processes), cmocka_unit_test(test_hash_depends_on_bytes_and_salt),
        cmocka_unit_test(test_empty_index_finds_nothing),      cmocka_unit_test(test_finds_many_keys),
        cmocka_unit_test(test_finds_keys_that_collide),        cmocka_unit_test(test_reserve_prevents_growth),
        cmocka_unit_test(test_failed_growth_changes_nothing),
    };
    return cmocka_run_group_tests_name("base_index", tests, NULL, NULL);
}
