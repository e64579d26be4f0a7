/**
 * @file build.h  Building states in tests. What cannot be built fails the test; each result belongs
 * to the caller.
 */
#ifndef WH_TEST_BUILD_H
#define WH_TEST_BUILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <wherry/wherry.h>
#include <cmocka.h>

/** The call must succeed. */
#define must(call) assert_int_equal((call), WHERRY_OK)

/** The call, which is given &error, must fail with this status and say so in error. */
#define must_fail(expected, error, call)                                                                               \
    do {                                                                                                               \
        memset(&(error), 0xEE, sizeof(error));                                                                         \
        assert_int_equal((call), (expected));                                                                          \
        assert_int_equal((error).status, (expected));                                                                  \
        assert_true((error).message[0] &&                                                                              \
                    strnlen((error).message, sizeof((error).message)) < sizeof((error).message));                      \
    } while (0)

wherry_value *build_none(void);
wherry_value *build_bool(bool content);
wherry_value *build_int(int64_t content);
wherry_value *build_float(double content);
wherry_value *build_complex(double real, double imaginary);
wherry_value *build_string(const char *text);
wherry_value *build_bytes(const void *bytes, size_t size);

/** An integer of `size` bytes that are all `byte`. */
wherry_value *build_bigint(bool negative, uint8_t byte, size_t size);

/** A double of exactly these bits. */
double build_double(uint64_t bits);

/** Lists and tuples of the items, which end with NULL. */
#define build_list(...) build_list_of((wherry_value *const[]){__VA_ARGS__})
#define build_tuple(...) build_tuple_of((wherry_value *const[]){__VA_ARGS__})
wherry_value *build_list_of(wherry_value *const *items);
wherry_value *build_tuple_of(wherry_value *const *items);

/** A dict of names and values in turn, which end with NULL. */
#define build_dict(...) build_dict_of((const void *const[]){__VA_ARGS__})
wherry_value *build_dict_of(const void *const *pairs);

wherry_value *build_object(const char *type, wherry_value *payload);

/**
 * `depth` lists within each other; the innermost is empty, or holds `inside` where that is not
 * NULL.
 */
wherry_value *build_nest(size_t depth, wherry_value *inside);

/** Host memory whose byte i is seed + 7 * i. */
wherry_storage *build_storage(uint64_t nbytes, uint8_t seed);

/** A storage without memory. */
wherry_storage *build_bare(uint64_t nbytes);

/** A tensor over a storage, whose reference stays the caller's; strides may be NULL. */
wherry_value *build_view(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                         const int64_t *shape, const int64_t *strides);

/** The same, which takes over the caller's reference. */
wherry_value *build_tensor(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                           const int64_t *shape, const int64_t *strides);

/** A mesh of ranks 0, 1, 2 ... */
wherry_mesh *build_mesh(uint32_t ndim, const int64_t *shape);

/** What the other rank decodes of a state that a rank sends (-1: of none that meshes name). */
wherry_prepared *build_received(const wherry_value *state, int64_t rank);

/** What a receiver of a state, perhaps into a target, plans. */
wherry_plan *build_plan(const wherry_value *state, const wherry_value *target);

/** The next of a row of numbers that is the same in every run; *state starts as anything. */
uint64_t next_random(uint64_t *state);

#endif
