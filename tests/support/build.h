/**
 * @file build.h  Builds states for tests. A failure to build fails the test. The caller owns each
 * result.
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

/** The call must fail with this status and fill `error`. The call's arguments include &error. */
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

/** The double with this bit pattern. */
double build_double(uint64_t bits);

/** Lists and tuples. The last argument is NULL. */
#define build_list(...) build_list_of((wherry_value *const[]){__VA_ARGS__})
#define build_tuple(...) build_tuple_of((wherry_value *const[]){__VA_ARGS__})
wherry_value *build_list_of(wherry_value *const *items);
wherry_value *build_tuple_of(wherry_value *const *items);

/** A dict. The arguments are name, value, name, value ..., NULL. */
#define build_dict(...) build_dict_of((const void *const[]){__VA_ARGS__})
wherry_value *build_dict_of(const void *const *pairs);

wherry_value *build_object(const char *type, wherry_value *payload);

/** `depth` nested lists. The innermost holds `inside`, or is empty if that is NULL. */
wherry_value *build_nest(size_t depth, wherry_value *inside);

/** A storage in host memory. Byte i is seed + 7 * i. */
wherry_storage *build_storage(uint64_t nbytes, uint8_t seed);

/** A storage without memory. */
wherry_storage *build_bare(uint64_t nbytes);

/** A tensor over a storage. The caller keeps its reference to the storage. strides may be NULL. */
wherry_value *build_view(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                         const int64_t *shape, const int64_t *strides);

/** Like build_view, but takes over the caller's reference to the storage. */
wherry_value *build_tensor(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                           const int64_t *shape, const int64_t *strides);

/** A mesh of ranks 0, 1, 2 ... */
wherry_mesh *build_mesh(uint32_t ndim, const int64_t *shape);

/**
 * The state that a receiver decodes if `rank` sends the state. -1: a rank that no mesh contains.
 */
wherry_prepared *build_received(const wherry_value *state, int64_t rank);

/** The plan of a receiver of `state`. target may be NULL. */
wherry_plan *build_plan(const wherry_value *state, const wherry_value *target);

/** Copies the bytes of a chunk from the storages of its state. @return their number. */
size_t copy_chunk(const wherry_prepared *sent, uint64_t chunk, void *bytes);

/** Copies the bytes of all chunks that a plan needs from the source to their destinations. */
void execute_plan(const wherry_value *source, const wherry_plan *plan);

/** The next pseudorandom number. The sequence depends only on the first value of *state. */
uint64_t next_random(uint64_t *state);

#endif
