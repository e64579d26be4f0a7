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

/** A number from 0 to below - 1. */
uint64_t wh_random_below(wh_random *random, uint64_t below);

/**
 * A state whose storages are filled with random bytes; the caller destroys it. Allocation failures
 * are fatal.
 */
wherry_value *wh_random_state(wh_random *random);

/** A storage of random bytes. */
wherry_storage *wh_random_storage(wh_random *random, uint64_t nbytes);

/** A shape of at most max_ndim dimensions of few elements. @return the number of dimensions. */
uint32_t wh_random_shape(wh_random *random, uint32_t max_ndim, int64_t *shape);

/** Bytes that a tensor of that geometry needs of its storage. */
uint64_t wh_tensor_needs(const wherry_tensor *tensor);

/**
 * A state of the same containers and leaves as `source`, with tensors of the same dtype and shape
 * over memory of its own.
 * @param alike  each storage is cloned, so that views, strides and sharing stay as they are;
 * otherwise every tensor has a storage of its own, with strides and offset of its own and gaps in
 * between.
 */
wherry_value *wh_random_target(wh_random *random, const wherry_value *source, int alike);

/**
 * A copy of a state, over the same storages, that lacks some of its entries: any of a dict, the
 * last ones of a sequence. A container that has lost all of them may become one of another kind.
 */
wherry_value *wh_random_thinned(wh_random *random, const wherry_value *state);

#endif
