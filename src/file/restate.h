/** @file restate.h  The same state over other storages. */
#ifndef WH_FILE_RESTATE_H
#define WH_FILE_RESTATE_H

#include <wherry/tensor.h>
#include <wherry/value.h>

/**
 * Says how a tensor looks in the new state.
 * @param number  of the tensor, in the order of the walk: depth first, the shards of a ShardedTensor in their order.
 * @param tensor  as it is; its storage is to be replaced by one that the caller keeps a reference to until the restating is over.
 */
typedef void (*wh_restate_fn)(void *context, size_t number, wherry_tensor *tensor);

/** Builds the same containers, keys, objects and other values, with tensors as `change` says. */
wherry_status wh_restate(const wherry_value *state, wh_restate_fn change, void *context, wherry_value **state_p,
                         wherry_error *error);

#endif
