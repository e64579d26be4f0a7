#include <wherry/tensor.h>

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "state/path.h"
#include "state/value.h"

bool wh_contiguous_strides(uint32_t ndim, const int64_t *shape, int64_t *strides) {
    uint64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = (int64_t)stride;
        if (shape[d] > 1 && !wh_mul(stride, (uint64_t)shape[d], &stride)) {
            return false;
        }
    }
    return true;
}

bool wh_strides_are_contiguous(uint32_t ndim, const int64_t *shape, const int64_t *strides) {
    uint64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        if ((uint64_t)strides[d] != stride || (shape[d] > 1 && !wh_mul(stride, (uint64_t)shape[d], &stride))) {
            return false;
        }
    }
    return true;
}

wh_view wh_tensor_view(const wherry_tensor *tensor) {
    uint32_t item = wherry_dtype_describe(tensor->dtype)->bytes;
    return (wh_view){(uint64_t)tensor->offset * item, item, tensor->ndim, tensor->shape, tensor->strides};
}

uint64_t wherry_tensor_count(const wherry_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        count *= (uint64_t)tensor->shape[d];
    }
    return count;
}

static wherry_status check_numbers(const wherry_tensor *tensor, wherry_error *error) {
    if (!tensor->storage || !wherry_dtype_describe(tensor->dtype) || tensor->flags & ~(uint32_t)WHERRY_TENSOR_FLAGS) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a tensor needs a storage, a known dtype and known flags");
    }
    if (tensor->ndim > WHERRY_NDIM_MAX || (tensor->ndim > 0 && !tensor->shape)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a tensor has a shape of at most %d dimensions, not %u",
                       WHERRY_NDIM_MAX, tensor->ndim);
    }
    if (tensor->offset < 0) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the offset %lld is negative", (long long)tensor->offset);
    }
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] < 0 || (tensor->strides && tensor->strides[d] < 0)) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "size %lld or stride %lld of dimension %u is negative",
                           (long long)tensor->shape[d], (long long)(tensor->strides ? tensor->strides[d] : 0), d);
        }
    }
    return WHERRY_OK;
}

static wherry_status check_bounds(const wherry_tensor *tensor, wherry_status bounds, wherry_error *error) {
    uint64_t item = wherry_dtype_describe(tensor->dtype)->bytes;
    uint64_t count = 1;
    uint64_t last = (uint64_t)tensor->offset;
    uint64_t end = 0;
    bool fits = true;
    bool empty = false;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        empty |= tensor->shape[d] == 0;
    }
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        uint64_t size = (uint64_t)tensor->shape[d];
        fits = fits && (size < 2 || wh_mul(count, size, &count));
        fits = fits && (size < 2 || empty || wh_add_product(size - 1, (uint64_t)tensor->strides[d], &last));
    }
    uint64_t view;
    fits = fits && wh_mul(count, item, &view);
    fits = fits && wh_mul(last, item, &end) && (empty || wh_add(end, item, &end));
    uint64_t nbytes = wherry_storage_nbytes(tensor->storage);
    if (!fits) {
        return wh_fail(error, bounds, "the tensor's sizes, strides and offset reach beyond 2^63 bytes");
    }
    if (!empty && end > nbytes) {
        return wh_fail(error, bounds, "the tensor's elements end at byte %llu, but its storage has %llu",
                       (unsigned long long)end, (unsigned long long)nbytes);
    }
    return WHERRY_OK;
}

wherry_status wh_tensor_build(wh_pool *pool, const wherry_tensor *tensor, wherry_status bounds, wherry_value **value_p,
                              wherry_error *error) {
    wherry_status status = check_numbers(tensor, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t array = tensor->ndim * sizeof(int64_t);
    wherry_value *value = wh_value_new(pool, WHERRY_KIND_TENSOR, sizeof(wherry_tensor) + 2 * array);
    if (!value) {
        return wh_fail_memory(error, "a tensor");
    }
    wherry_tensor *kept = (wherry_tensor *)(value + 1);
    int64_t *shape = (int64_t *)(kept + 1);
    int64_t *strides = shape + tensor->ndim;
    *kept = *tensor;
    kept->shape = shape;
    kept->strides = strides;
    bool fits = true;
    if (array) {
        memcpy(shape, tensor->shape, array);
        if (tensor->strides) {
            memcpy(strides, tensor->strides, array);
        } else {
            fits = wh_contiguous_strides(tensor->ndim, shape, strides);
        }
    }
    status = fits ? check_bounds(kept, bounds, error)
                  : wh_fail(error, bounds, "the tensor's sizes multiply to more than 2^63 elements");
    if (status != WHERRY_OK) {
        wh_pool_free(value, value->pool_offset);
        return status;
    }
    wherry_storage_ref(kept->storage);
    value->as.tensor = kept;
    *value_p = value;
    return WHERRY_OK;
}

wherry_status wherry_tensor_create(const wherry_tensor *tensor, wherry_value **value_p, wherry_error *error) {
    if (!tensor || !value_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "tensor and value_p must not be NULL");
    }
    return wh_tensor_build(NULL, tensor, WHERRY_INVALID_ARGUMENT, value_p, error);
}

const wherry_tensor *wherry_tensor_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_TENSOR ? value->as.tensor : NULL;
}

wherry_status wherry_tensor_cast(const wherry_tensor *tensor, wherry_dtype dtype, wherry_value **value_p,
                                 wherry_error *error) {
    const wherry_dtype_info *info = wherry_dtype_describe(dtype);
    if (!tensor || !info) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "casting needs a tensor and a known dtype");
    }
    uint64_t nbytes = wherry_storage_nbytes(tensor->storage);
    if (nbytes % info->bytes) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a storage of %llu bytes is not a whole number of %s",
                       (unsigned long long)nbytes, info->name);
    }
    int64_t count = (int64_t)(nbytes / info->bytes);
    wherry_tensor cast = {.storage = tensor->storage, .dtype = dtype, .ndim = 1, .shape = &count};
    return wherry_tensor_create(&cast, value_p, error);
}

size_t wh_value_tensor_count(const wherry_value *value) {
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_TENSOR:
    case WHERRY_KIND_DTENSOR:
        return 1;
    case WHERRY_KIND_SHARDED:
        return value->as.sharded->shard_count;
    default:
        return 0;
    }
}

wherry_value *wh_value_tensor_at(const wherry_value *value, size_t index) {
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_TENSOR:
        return (wherry_value *)value;
    case WHERRY_KIND_DTENSOR:
        return value->as.dtensor->local;
    case WHERRY_KIND_SHARDED:
        return value->as.sharded->shards[index].tensor;
    default:
        return NULL;
    }
}

bool wh_visit_tensor_leaves(const wherry_value *state, wh_leaf_visit_fn visit, void *context) {
    const wherry_value *inside = wh_value_inside(state);
    if (inside->kind >= WHERRY_KIND_TENSOR) {
        return visit(context, (wherry_value *)inside);
    }
    size_t count = wh_child_count(inside);
    for (size_t i = 0; i < count; i++) {
        wherry_step step;
        if (!wh_visit_tensor_leaves(wh_child_at(inside, i, &step), visit, context)) {
            return false;
        }
    }
    return true;
}
