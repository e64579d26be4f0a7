#include "state/tensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/cuda.h"
#include "memory/memory.h"
#include "range/digest.h"
#include "state/path.h"
#include "state/value.h"

/* Element types */

static const wherry_dtype_info dtypes[] = {
#define WHERRY_X(name, value, text, bits, class_) [value] = {text, bits, (bits) / 8, WHERRY_CLASS_##class_},
    WHERRY_DTYPE_LIST(WHERRY_X)
#undef WHERRY_X
};

enum { DTYPES = sizeof(dtypes) / sizeof(*dtypes) };

const wherry_dtype_info *wherry_dtype_describe(wherry_dtype dtype) {
    return (unsigned)dtype < DTYPES ? dtypes + dtype : NULL;
}

int wherry_dtype_find(const char *name) {
    if (!name) {
        return -1;
    }
    if (strncmp(name, "torch.", 6) == 0) {
        name += 6;
    }
    for (int i = 0; i < DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Devices */

wherry_device wherry_device_cpu(void) {
    return (wherry_device){WHERRY_DEVICE_CPU, -1};
}

const char *wherry_device_kind_text(wherry_device_kind kind) {
    switch (kind) {
#define WHERRY_X(name, value, text)                                                                                    \
    case WHERRY_DEVICE_##name:                                                                                         \
        return text;
        WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
    }
    return "?";
}

char *wherry_device_text(wherry_device device, char text[WHERRY_DEVICE_TEXT_MAX]) {
    const char *kind = wherry_device_kind_text(device.kind);
    if (device.index < 0) {
        snprintf(text, WHERRY_DEVICE_TEXT_MAX, "%s", kind);
    } else {
        snprintf(text, WHERRY_DEVICE_TEXT_MAX, "%s:%d", kind, (int)device.index);
    }
    return text;
}

static const struct {
    const char *text;
    wherry_device_kind kind;
} device_kinds[] = {
#define WHERRY_X(name, value, text) {text, WHERRY_DEVICE_##name},
    WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
};

static wherry_status refuse_device(const char *text, wherry_error *error) {
#define WHERRY_X(name, value, kind) kind " "
    return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                   "'%.64s' is not a device; use KIND or KIND:INDEX, with one of these kinds: %s", text,
                   WHERRY_DEVICE_LIST(WHERRY_X));
#undef WHERRY_X
}

wherry_status wherry_device_parse(const char *text, wherry_device *device_p, wherry_error *error) {
    if (!text || !device_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "text and device_p must not be NULL");
    }
    size_t length = strcspn(text, ":");
    wherry_device device = {WHERRY_DEVICE_CPU, -1};
    if (text[length] == ':') {
        const char *digits = text + length + 1;
        char *end;
        long index = strtol(digits, &end, 10);
        if (*digits < '0' || *digits > '9' || *end || index > INT32_MAX) {
            return refuse_device(text, error);
        }
        device.index = (int32_t)index;
    }
    for (size_t i = 0; i < sizeof(device_kinds) / sizeof(*device_kinds); i++) {
        if (strlen(device_kinds[i].text) == length && memcmp(device_kinds[i].text, text, length) == 0) {
            device.kind = device_kinds[i].kind;
            *device_p = device;
            return WHERRY_OK;
        }
    }
    return refuse_device(text, error);
}

/* Storages */

struct wherry_storage {
    atomic_size_t references;
    void *data;
    uint64_t nbytes;
    wherry_device device;
    /** The operations of the memory that the library allocated; NULL if it allocated none. */
    const wh_memory_ops *memory;
    wherry_release_fn release;
    void *context;
    uint32_t pool_offset; /**< Passed to wh_pool_free. */
};

static wherry_status check_size(uint64_t nbytes, wherry_error *error) {
    return nbytes <= INT64_MAX ? WHERRY_OK
                               : wh_fail(error, WHERRY_INVALID_ARGUMENT, "a storage of %llu bytes is too large",
                                         (unsigned long long)nbytes);
}

static wherry_status create_storage(wh_pool *pool, void *data, uint64_t nbytes, wherry_device device,
                                    wherry_storage **storage_p, wherry_error *error) {
    if (!storage_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "storage_p must not be NULL");
    }
    WH_TRY(check_size(nbytes, error));
    uint32_t offset;
    wherry_storage *storage = wh_pool_alloc(pool, sizeof(*storage), &offset);
    WH_TRY_ALLOC(storage, error, "a storage");
    *storage =
        (wherry_storage){.references = 1, .data = data, .nbytes = nbytes, .device = device, .pool_offset = offset};
    *storage_p = storage;
    return WHERRY_OK;
}

wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device, wherry_release_fn release,
                                  void *context, wherry_storage **storage_p, wherry_error *error) {
    if (!data && nbytes > 0) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "data is NULL, but the storage has %llu bytes",
                       (unsigned long long)nbytes);
    }
    if (device.kind == WHERRY_DEVICE_CUDA && device.index < 0 && data && wh_cuda_check(NULL) == WHERRY_OK) {
        WH_TRY(wh_cuda_device_of(data, &device.index, error));
    }
    WH_TRY(create_storage(NULL, data, nbytes, device, storage_p, error));
    (*storage_p)->release = release;
    (*storage_p)->context = context;
    return WHERRY_OK;
}

wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                      wherry_error *error) {
    const wh_memory_ops *memory = wh_memory_of(device.kind);
    if (!memory) {
        char text[WHERRY_DEVICE_TEXT_MAX];
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "cannot allocate memory on %s; provide an allocate function, or receive to the cpu",
                       wherry_device_text(device, text));
    }
    if (!storage_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "storage_p must not be NULL");
    }
    void *data = NULL;
    device.index = device.kind == WHERRY_DEVICE_CUDA && device.index < 0 ? 0 : device.index;
    WH_TRY(check_size(nbytes, error));
    if (nbytes) {
        WH_TRY(memory->allocate(nbytes, device, &data, error));
    }
    wherry_status status = create_storage(NULL, data, nbytes, device, storage_p, error);
    if (status == WHERRY_OK) {
        (*storage_p)->memory = data ? memory : NULL;
    } else if (data) {
        memory->release(data, nbytes);
    }
    return status;
}

wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                      wherry_error *error) {
    return create_storage(NULL, NULL, nbytes, device, storage_p, error);
}

wherry_status wh_storage_describe(wh_pool *pool, uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                  wherry_error *error) {
    return create_storage(pool, NULL, nbytes, device, storage_p, error);
}

wherry_storage *wherry_storage_ref(wherry_storage *storage) {
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
    return storage;
}

void wherry_storage_unref(wherry_storage *storage) {
    if (!storage || atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (storage->memory) {
        storage->memory->release(storage->data, storage->nbytes);
    }
    if (storage->release) {
        storage->release(storage->context, storage->data);
    }
    wh_pool_free(storage, storage->pool_offset);
}

void *wherry_storage_data(const wherry_storage *storage) {
    return storage->nbytes ? storage->data : NULL;
}

uint64_t wherry_storage_nbytes(const wherry_storage *storage) {
    return storage->nbytes;
}

wherry_device wherry_storage_device(const wherry_storage *storage) {
    return storage->device;
}

bool wh_storage_is_bare(const wherry_storage *storage) {
    return !storage->data && storage->nbytes > 0;
}

void wh_storage_traits_add(wh_storage_traits *traits, const wherry_storage *storage) {
    wherry_device device = storage->device;
    traits->devices |= device.kind != WHERRY_DEVICE_CPU;
    if (device.kind == WHERRY_DEVICE_CUDA) {
        traits->cuda |= UINT64_C(1) << (device.index < 0 ? 0 : device.index % WH_CUDA_DEVICES_MAX);
    }
    traits->bare |= wh_storage_is_bare(storage);
    traits->largest = storage->nbytes > traits->largest ? storage->nbytes : traits->largest;
}

/** The maximum number of storages to sample, and the minimum size of a sampled storage in bytes. */
enum { PAGE_SAMPLES = 16, PAGE_SAMPLE_BYTES = 4 << 20 };

static bool is_worth_a_look(const wherry_storage *storage) {
    return storage->nbytes >= PAGE_SAMPLE_BYTES && storage->data && storage->device.kind == WHERRY_DEVICE_CPU;
}

bool wh_storages_on_small_pages(wherry_storage *const *storages, size_t count, const wh_storage_traits *traits) {
    uint64_t bytes[] = {[WH_PAGES_UNKNOWN] = 0, [WH_PAGES_SMALL] = 0, [WH_PAGES_HUGE] = 0};
    size_t large = 0;
    for (size_t i = 0; i < count && traits->largest >= PAGE_SAMPLE_BYTES; i++) {
        large += is_worth_a_look(storages[i]);
    }
    int look = large ? wh_pages_open() : -1;
    if (look < 0) {
        return false;
    }
    for (size_t i = 0, number = 0; i < count; i++) {
        if (is_worth_a_look(storages[i]) && number++ % (large / PAGE_SAMPLES + 1) == 0) {
            bytes[wh_pages_of(look, storages[i]->data, storages[i]->nbytes)] += storages[i]->nbytes;
        }
    }
    close(look);
    return bytes[WH_PAGES_SMALL] > bytes[WH_PAGES_HUGE];
}

/* Tensors */

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
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the shape of the tensor is NULL, or has too many dimensions: %u; the maximum is %d",
                       tensor->ndim, WHERRY_NDIM_MAX);
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
        return wh_fail(error, bounds, "the sizes, strides and offset of the tensor reach beyond 2^63 bytes");
    }
    if (!empty && end > nbytes) {
        return wh_fail(error, bounds, "the tensor ends at byte %llu, but its storage has only %llu bytes",
                       (unsigned long long)end, (unsigned long long)nbytes);
    }
    return WHERRY_OK;
}

wherry_status wh_tensor_build(wh_pool *pool, const wherry_tensor *tensor, wherry_status bounds, wherry_value **value_p,
                              wherry_error *error) {
    WH_TRY(check_numbers(tensor, error));
    size_t array = tensor->ndim * sizeof(int64_t);
    wherry_value *value = wh_value_new(pool, WHERRY_KIND_TENSOR, sizeof(wherry_tensor) + 2 * array);
    WH_TRY_ALLOC(value, error, "a tensor");
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
    wherry_status status =
        fits ? check_bounds(kept, bounds, error) : wh_fail(error, bounds, "the tensor has more than 2^63 elements");
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

/* The tensors of a leaf, and the leaves of a state */

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

/* The digest of a tensor */

/** Finds the dimensions outside of the longest contiguous runs. @return the length of a run. */
static uint64_t find_run(const wherry_tensor *tensor, uint32_t *outer_p) {
    uint64_t elements = 1;
    uint32_t outer = tensor->ndim;
    while (outer > 0 && (tensor->shape[outer - 1] == 1 || (uint64_t)tensor->strides[outer - 1] == elements)) {
        elements *= (uint64_t)tensor->shape[--outer];
    }
    *outer_p = outer;
    return elements;
}

/** Returns the offset of a run. All numbers are in elements. */
static uint64_t run_begin(const wherry_tensor *tensor, uint32_t outer, uint64_t run) {
    uint64_t at = (uint64_t)tensor->offset;
    for (uint32_t d = outer; d-- > 0; run /= (uint64_t)tensor->shape[d]) {
        at += run % (uint64_t)tensor->shape[d] * (uint64_t)tensor->strides[d];
    }
    return at;
}

wherry_status wherry_tensor_digest(const wherry_value *value, wherry_digest *digest_p, wherry_error *error) {
    const wherry_tensor *tensor = value ? wherry_tensor_get(value) : NULL;
    if (!tensor || !digest_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the value is not a tensor, or digest_p is NULL");
    }
    const char *data = wherry_storage_data(tensor->storage);
    uint64_t count = wherry_tensor_count(tensor);
    if (wherry_storage_device(tensor->storage).kind != WHERRY_DEVICE_CPU || (!data && count)) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "the tensor is not in host memory; copy it there first");
    }
    wh_digester *digester = wh_digester_create();
    WH_TRY_ALLOC(digester, error, "a digest");
    uint32_t outer;
    uint64_t run = find_run(tensor, &outer);
    uint64_t item = wherry_dtype_describe(tensor->dtype)->bytes;
    wh_digester_begin(digester);
    for (uint64_t i = 0; i < (count ? count / run : 0); i++) {
        wh_digester_add(digester, data + run_begin(tensor, outer, i) * item, run * item);
    }
    *digest_p = wh_digester_end(digester);
    wh_digester_destroy(digester);
    return WHERRY_OK;
}
