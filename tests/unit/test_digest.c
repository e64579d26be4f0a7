/*
 * Digests equal those of any other XXH3 implementation, however the bytes are split, and every
 * change is detected.
 */
#include "support/build.h"

#include <stdlib.h>
#include <xxhash.h>

#include "range/digest.h"
#include "support/counting_allocator.h"

enum { BYTES = 300000 };

/** The digest of the packaged library. */
static wherry_digest plain(const void *bytes, size_t size) {
    XXH128_canonical_t canonical;
    wherry_digest digest;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size));
    memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}

static uint8_t *make_bytes(void) {
    uint8_t *bytes = malloc(BYTES);
    uint64_t seed = 6;
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)next_random(&seed);
    }
    return bytes;
}

/** The digest of no bytes is the published 99aa06d3014798d86001c324468d497f. */
static void test_digest_of_no_bytes(void **state) {
    (void)state;
    static const uint8_t expected[] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                       0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    wh_digester *digester = wh_digester_create();
    wherry_digest digest = wh_digester_end(digester);
    assert_memory_equal(digest.bytes, expected, sizeof(expected));
    digest = wh_digest_of(digester, NULL, 0);
    assert_memory_equal(digest.bytes, expected, sizeof(expected));
    wh_digester_destroy(digester);
    wh_digester_destroy(NULL);
}

/** Sizes around the limits of the algorithm, split into pieces of any size, at any alignment. */
static void test_digest_does_not_depend_on_pieces(void **state) {
    (void)state;
    static const size_t sizes[] = {1,   3,   4,   8,   9,    16,   17,   128,   129,
                                   240, 241, 256, 257, 1023, 1024, 1025, 65536, 299990};
    uint8_t *bytes = make_bytes();
    uint64_t seed = 8;
    wh_digester *digester = wh_digester_create();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (size_t shift = 0; shift < 4; shift++) {
            wherry_digest expected = plain(bytes + shift, sizes[i]);
            wh_digester_begin(digester);
            for (size_t at = 0; at < sizes[i];) {
                size_t left = sizes[i] - at;
                size_t part = next_random(&seed) % (left < 5000 ? left + 1 : 5000);
                wh_digester_add(digester, bytes + shift + at, part);
                at += part;
            }
            wherry_digest digest = wh_digester_end(digester);
            assert_true(wh_digest_equal(&digest, &expected));
        }
    }
    wh_digester_destroy(digester);
    free(bytes);
}

/**
 * Segments count as if they were end to end. Empty segments do not matter. The digester is reused.
 */
static void test_segments_count_as_one(void **state) {
    (void)state;
    uint8_t *bytes = make_bytes();
    struct iovec segments[] = {{bytes, 100}, {NULL, 0}, {bytes + 100, 1}, {bytes + 101, 70000}, {bytes + 70101, 0}};
    wherry_digest expected = plain(bytes, 70101);
    wh_digester *digester = wh_digester_create();
    for (int i = 0; i < 3; i++) {
        wherry_digest digest = wh_digest_of(digester, segments, 5);
        assert_true(wh_digest_equal(&digest, &expected));
        wh_digester_add(digester, bytes, 99); /* The next call discards these bytes. */
    }
    wh_digester_destroy(digester);
    free(bytes);
}

static void test_every_bit_counts(void **state) {
    (void)state;
    uint8_t *bytes = make_bytes();
    wh_digester *digester = wh_digester_create();
    struct iovec all = {bytes, 4096};
    wherry_digest right = wh_digest_of(digester, &all, 1);
    for (size_t i = 0; i < 4096; i++) {
        bytes[i] ^= (uint8_t)(1 << i % 8);
        wherry_digest wrong = wh_digest_of(digester, &all, 1);
        assert_false(wh_digest_equal(&right, &wrong));
        bytes[i] ^= (uint8_t)(1 << i % 8);
    }
    wherry_digest again = wh_digest_of(digester, &all, 1);
    assert_true(wh_digest_equal(&right, &again));
    wh_digester_destroy(digester);
    free(bytes);
}

static void test_reports_no_memory(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    count.fail = 1;
    assert_null(wh_digester_create());
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
}

/** The strong digest is the beginning of SHA-256, whatever pieces it comes in. */
static void test_strong(void **state) {
    (void)state;
    /* SHA-256 of "abc" (FIPS 180-2) */
    static const uint8_t wanted[WHERRY_DIGEST_BYTES] = {0xBA, 0x78, 0x16, 0xBF, 0x8F, 0x01, 0xCF, 0xEA,
                                                        0x41, 0x41, 0x40, 0xDE, 0x5D, 0xAE, 0x22, 0x23};
    wh_digester *digester = wh_digester_create_strong();
    assert_non_null(digester);
    for (int i = 0; i < 2; i++) {
        const struct iovec pieces[] = {{(void *)(uintptr_t) "a", 1}, {NULL, 0}, {(void *)(uintptr_t) "bc", 2}};
        wherry_digest digest = wh_digest_of(digester, pieces, 3);
        assert_memory_equal(digest.bytes, wanted, sizeof(wanted));
        wh_digester_begin(digester);
        wh_digester_add(digester, "ab", 2);
        (void)wh_digester_end(digester); /* More bytes may follow. */
        wh_digester_add(digester, "c", 1);
        digest = wh_digester_end(digester);
        assert_memory_equal(digest.bytes, wanted, sizeof(wanted));
    }
    wh_digester_destroy(digester);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strong),
        cmocka_unit_test(test_digest_of_no_bytes),
        cmocka_unit_test(test_digest_does_not_depend_on_pieces),
        cmocka_unit_test(test_segments_count_as_one),
        cmocka_unit_test(test_every_bit_counts),
        cmocka_unit_test(test_reports_no_memory),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
