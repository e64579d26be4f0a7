#include "file/restate.h"

#include <wherry/tensor.h>
#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct restating {
    wh_restate_fn change;
    void *context;
    size_t number; /**< Of the next tensor. */
} restating;

static wherry_status restate_tensor(restating *r, const wherry_value *from, wherry_value **value_p,
                                    wherry_error *error) {
    wherry_tensor tensor = *wherry_tensor_get(from);
    r->change(r->context, r->number++, &tensor);
    return wherry_tensor_create(&tensor, value_p, error);
}

static wherry_status restate_dtensor(restating *r, const wherry_dtensor *from, wherry_value **value_p,
                                     wherry_error *error) {
    wherry_dtensor dtensor = *from;
    wherry_status status = restate_tensor(r, from->local, &dtensor.local, error);
    if (status == WHERRY_OK && (status = wherry_dtensor_create(&dtensor, value_p, error)) != WHERRY_OK) {
        wherry_value_destroy(dtensor.local);
    }
    return status;
}

static wherry_status restate_sharded(restating *r, const wherry_sharded *from, wherry_value **value_p,
                                     wherry_error *error) {
    wherry_shard *shards = wh_alloc_array(from->shard_count, sizeof(*shards));
    if (!shards) {
        return wh_fail_memory(error, "the shards of a sharded tensor");
    }
    wherry_status status = WHERRY_OK;
    uint32_t done = 0;
    while (done < from->shard_count && status == WHERRY_OK) {
        shards[done] = from->shards[done];
        status = restate_tensor(r, from->shards[done].tensor, &shards[done].tensor, error);
        done += status == WHERRY_OK;
    }
    if (status == WHERRY_OK) {
        wherry_sharded sharded = *from;
        sharded.shards = shards;
        status = wherry_sharded_create(&sharded, value_p, error);
    }
    for (uint32_t i = 0; i < done && status != WHERRY_OK; i++) {
        wherry_value_destroy(shards[i].tensor);
    }
    wh_free(shards);
    return status;
}

static wherry_status restate_leaf(restating *r, const wherry_value *leaf, wherry_value **value_p, wherry_error *error) {
    switch (wherry_value_kind(leaf)) {
    case WHERRY_KIND_TENSOR:
        return restate_tensor(r, leaf, value_p, error);
    case WHERRY_KIND_DTENSOR:
        return restate_dtensor(r, wherry_dtensor_get(leaf), value_p, error);
    case WHERRY_KIND_SHARDED:
        return restate_sharded(r, wherry_sharded_get(leaf), value_p, error);
    default:
        return wherry_value_copy(leaf, value_p, error);
    }
}

wherry_status wh_restate(const wherry_value *state, wh_restate_fn change, void *context, wherry_value **state_p,
                         wherry_error *error) {
    restating r = {change, context, 0};
    wherry_flat *flat;
    wherry_status status = wherry_flatten(state, &flat, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t count = wherry_flat_count(flat);
    size_t done = 0;
    wherry_value **leaves = wh_alloc_array(count, sizeof(wherry_value *));
    if (!leaves) {
        wherry_flat_destroy(flat);
        return wh_fail_memory(error, "a state");
    }
    while (done < count && status == WHERRY_OK) {
        status = restate_leaf(&r, wherry_flat_leaf(flat, done), leaves + done, error);
        done += status == WHERRY_OK;
    }
    if (status == WHERRY_OK) {
        status = wherry_unflatten(flat, leaves, count, state_p, error);
    }
    for (size_t i = 0; i < done && status != WHERRY_OK; i++) {
        wherry_value_destroy(leaves[i]);
    }
    wh_free(leaves);
    wherry_flat_destroy(flat);
    return status;
}
