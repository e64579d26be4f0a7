/** @file random_state.h  Random states of every kind, from a seed. */
#ifndef WH_TESTS_RANDOM_STATE_H
#define WH_TESTS_RANDOM_STATE_H

#include <stdint.h>

#include <wherry/wherry.h>

/** A small generator of random numbers; start it with any seed. */
typedef struct wh_random {
    uint64_t state;
} wh_random;

uint64_t wh_random_next(wh_random *random);

/** A number from 0 to below - 1, both included. */
uint64_t wh_random_below(wh_random *random, uint64_t below);

/**
 * A state whose storages are filled with random bytes; the caller destroys it. Allocation failures
 * are fatal.
 */
wherry_value *wh_random_state(wh_random *random);

/** A storage of random bytes. */
wherry_storage *wh_random_storage(wh_random *random, uint64_t nbytes);

/** A small shape of at most max_ndim dimensions. @return the number of dimensions. */
uint32_t wh_random_shape(wh_random *random, uint32_t max_ndim, int64_t *shape);

/** The least size of a storage that can hold this tensor, in bytes. */
uint64_t wh_tensor_needs(const wherry_tensor *tensor);

/**
 * A state with the same containers and leaves as `source`. Its tensors have the same dtype and
 * shape, but their own memory.
 * @param alike  nonzero: clones each storage, so that views, strides and sharing stay the same. 0:
 * each tensor gets its own storage, with random strides, offset and gaps.
 */
wherry_value *wh_random_target(wh_random *random, const wherry_value *source, int alike);

/**
 * A copy of a state, over the same storages, without some of its entries: any entries of a dict, or
 * the last ones of a sequence. An empty container may change its kind.
 */
wherry_value *wh_random_thinned(wh_random *random, const wherry_value *state);

#endif
