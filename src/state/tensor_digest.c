#include <wherry/expert.h>

#include <string.h>

#include <wherry/tensor.h>

#include "base/error.h"
#include "range/digest.h"

_Static_assert(WHERRY_DIGEST_BYTES == (int)WH_DIGEST_BYTES, "one kind of digest");

/** How many of the last dimensions lie end to end, and the bytes of that run. */
static uint32_t find_run(const wherry_tensor *tensor, uint64_t *run_p) {
    uint64_t elements = 1;
    uint32_t outer = tensor->ndim;
    while (outer > 0 && (tensor->shape[outer - 1] == 1 || (uint64_t)tensor->strides[outer - 1] == elements)) {
        outer--;
        elements *= (uint64_t)tensor->shape[outer];
    }
    *run_p = elements * wherry_dtype_describe(tensor->dtype)->bytes;
    return outer;
}

/** The next index of the outer dimensions, and where it lies. @return false behind the last. */
static bool step(const wherry_tensor *tensor, uint32_t outer, int64_t *index, int64_t *at) {
    for (uint32_t i = outer; i-- > 0;) {
        *at += tensor->strides[i];
        if (++index[i] < tensor->shape[i]) {
            return true;
        }
        *at -= tensor->shape[i] * tensor->strides[i];
        index[i] = 0;
    }
    return false;
}

wherry_status wherry_tensor_digest(const wherry_value *value, wherry_digest *digest_p, wherry_error *error) {
    const wherry_tensor *tensor = value ? wherry_tensor_get(value) : NULL;
    if (!tensor || !digest_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "only a tensor has a digest of its elements");
    }
    const char *data = wherry_storage_data(tensor->storage);
    bool empty = false;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        empty = empty || tensor->shape[i] == 0;
    }
    if (wherry_storage_device(tensor->storage).kind != WHERRY_DEVICE_CPU || (!data && !empty)) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "the tensor is not in host memory; copy it there to digest it");
    }
    wh_digester *digester = wh_digester_create();
    if (!digester) {
        return wh_fail_memory(error, "a digest");
    }
    uint64_t run;
    uint32_t outer = find_run(tensor, &run);
    int64_t index[WHERRY_NDIM_MAX] = {0};
    int64_t at = tensor->offset;
    wh_digester_begin(digester);
    bool more = !empty;
    while (more) {
        wh_digester_add(digester, data + at * wherry_dtype_describe(tensor->dtype)->bytes, run);
        more = step(tensor, outer, index, &at);
    }
    wh_digest digest = wh_digester_end(digester);
    memcpy(digest_p->bytes, digest.bytes, sizeof(digest_p->bytes));
    wh_digester_destroy(digester);
    return WHERRY_OK;
}
