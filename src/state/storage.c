#include "state/storage.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "memory/cuda.h"
#include "memory/memory.h"
#include "memory/pages.h"

struct wherry_storage {
    atomic_size_t references;
    void *data;
    uint64_t nbytes;
    wherry_device device;
    const wh_memory_ops *memory; /**< Of memory that the library allocated; else NULL. */
    wherry_release_fn release;
    void *context;
    uint32_t pool_offset; /**< For wh_pool_free. */
};

static wherry_status check_size(uint64_t nbytes, wherry_error *error) {
    return nbytes <= INT64_MAX ? WHERRY_OK
                               : wh_fail(error, WHERRY_INVALID_ARGUMENT, "a storage of %llu bytes is too large",
                                         (unsigned long long)nbytes);
}

static wherry_status create(wh_pool *pool, void *data, uint64_t nbytes, wherry_device device,
                            wherry_storage **storage_p, wherry_error *error) {
    if (!storage_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "storage_p must not be NULL");
    }
    wherry_status status = check_size(nbytes, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint32_t offset;
    wherry_storage *storage = wh_pool_alloc(pool, sizeof(*storage), &offset);
    if (!storage) {
        return wh_fail_memory(error, "a storage");
    }
    *storage =
        (wherry_storage){.references = 1, .data = data, .nbytes = nbytes, .device = device, .pool_offset = offset};
    *storage_p = storage;
    return WHERRY_OK;
}

wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device, wherry_release_fn release,
                                  void *context, wherry_storage **storage_p, wherry_error *error) {
    if (!data && nbytes > 0) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a storage of %llu bytes cannot be at NULL",
                       (unsigned long long)nbytes);
    }
    if (device.kind == WHERRY_DEVICE_CUDA && device.index < 0 && data && wh_cuda_check(NULL) == WHERRY_OK) {
        wherry_status found = wh_cuda_device_of(data, &device.index, error);
        if (found != WHERRY_OK) {
            return found;
        }
    }
    wherry_status status = create(NULL, data, nbytes, device, storage_p, error);
    if (status == WHERRY_OK) {
        (*storage_p)->release = release;
        (*storage_p)->context = context;
    }
    return status;
}

wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                      wherry_error *error) {
    const wh_memory_ops *memory = wh_memory_of(device.kind);
    if (!memory) {
        char text[WHERRY_DEVICE_TEXT_MAX];
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "this build cannot allocate memory on %s; provide an allocate function or choose cpu",
                       wherry_device_text(device, text));
    }
    if (!storage_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "storage_p must not be NULL");
    }
    void *data = NULL;
    device.index = device.kind == WHERRY_DEVICE_CUDA && device.index < 0 ? 0 : device.index;
    wherry_status status = check_size(nbytes, error);
    if (status == WHERRY_OK && nbytes) {
        status = memory->allocate(nbytes, device, &data, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    status = create(NULL, data, nbytes, device, storage_p, error);
    if (status == WHERRY_OK) {
        (*storage_p)->memory = data ? memory : NULL;
    } else if (data) {
        memory->release(data, nbytes);
    }
    return status;
}

wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                      wherry_error *error) {
    return create(NULL, NULL, nbytes, device, storage_p, error);
}

wherry_status wh_storage_describe(wh_pool *pool, uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                  wherry_error *error) {
    return create(pool, NULL, nbytes, device, storage_p, error);
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

void wh_census_add(wh_census *census, const wherry_storage *storage) {
    wherry_device device = storage->device;
    census->devices |= device.kind != WHERRY_DEVICE_CPU;
    if (device.kind == WHERRY_DEVICE_CUDA) {
        census->cuda |= UINT64_C(1) << (device.index < 0 ? 0 : device.index % WH_CUDA_DEVICES_MAX);
    }
    census->bare |= wh_storage_is_bare(storage);
    census->largest = storage->nbytes > census->largest ? storage->nbytes : census->largest;
}

/** Of which storages samples are taken, and how many. */
enum { PAGE_SAMPLES = 16, PAGE_SAMPLE_BYTES = 4 << 20 };

static bool is_worth_a_look(const wherry_storage *storage) {
    return storage->nbytes >= PAGE_SAMPLE_BYTES && storage->data && storage->device.kind == WHERRY_DEVICE_CPU;
}

bool wh_storages_on_small_pages(wherry_storage *const *storages, size_t count, const wh_census *census) {
    uint64_t bytes[] = {[WH_PAGES_UNKNOWN] = 0, [WH_PAGES_SMALL] = 0, [WH_PAGES_HUGE] = 0};
    size_t large = 0;
    for (size_t i = 0; i < count && census->largest >= PAGE_SAMPLE_BYTES; i++) {
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
