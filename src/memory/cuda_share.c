#include "memory/cuda_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/search.h"
#include "memory/cuda_driver.h"

_Static_assert((int)WH_CUDA_HANDLE_BYTES == (int)WH_CU_IPC_BYTES, "the driver's handle has the expected size");

enum { READ_WRITE = 3 };

/**
 * Each mapping of device memory takes a file descriptor while it is offered. All offers together
 * use at most this part (a third) of the descriptors that the process may have.
 */
enum { DESCRIPTORS_SHARE = 3 };

/** Like wh_cuda_fail, but sets the given status. */
static wherry_status refuse(wherry_error *error, wherry_status status, int result, const char *doing) {
    wherry_error reason;
    wh_cuda_fail(&reason, result, doing);
    return wh_fail(error, status, "%s", reason.message);
}

/* ---- in the process that owns the memory ---- */

static wherry_status describe_plain(const wh_cuda_driver *driver, uint64_t address, wh_cuda_allocation *allocation,
                                    wherry_error *error) {
    wh_cu_ipc_handle handle;
    size_t size = 0;
    int result = driver->address_range(&allocation->base, &size, address);
    WH_CU_THEN(result, driver->ipc_get(&handle, allocation->base));
    if (result != WH_CU_OK) {
        return refuse(error, WHERRY_UNSUPPORTED, result, "CUDA cannot share this memory with other processes");
    }
    allocation->size = size;
    memcpy(allocation->handle, handle.bytes, sizeof(allocation->handle));
    return WHERRY_OK;
}

/** True if this process has no free file descriptor. The driver does not report that reason. */
static bool lacks_descriptors(void) {
    int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool none = spare < 0 && errno == EMFILE;
    wh_close(spare);
    return none;
}

static wherry_status describe_mapped(const wh_cuda_driver *driver, uint64_t address, wh_cuda_allocation *allocation,
                                     wherry_error *error) {
    uint64_t handle = 0;
    size_t size = 0;
    int result = driver->pointer_attribute(&allocation->base, WH_CU_POINTER_MAPPING_BASE, address);
    WH_CU_THEN(result, driver->pointer_attribute(&size, WH_CU_POINTER_MAPPING_SIZE, address));
    WH_CU_THEN(result, driver->handle_retain(&handle, (void *)(uintptr_t)address));
    if (result == WH_CU_OK) {
        result = driver->handle_export(&allocation->fd, handle, WH_CU_HANDLE_FD, 0);
        driver->handle_release(handle);
    }
    if (result != WH_CU_OK) {
        allocation->fd = -1;
        if (lacks_descriptors()) {
            return wh_fail_errno(error, WHERRY_UNSUPPORTED, EMFILE,
                                 "no file descriptor left to share expandable segments; raise ulimit -n");
        }
        return refuse(error, WHERRY_UNSUPPORTED, result,
                      "this memory was not allocated for sharing with other processes");
    }
    fcntl(allocation->fd, F_SETFD, FD_CLOEXEC);
    allocation->size = size;
    return WHERRY_OK;
}

wherry_status wh_cuda_describe(const void *data, wh_cuda_allocation *allocation_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    wh_cuda_allocation allocation = {.fd = -1};
    uint64_t address = (uint64_t)(uintptr_t)data;
    WH_TRY(wh_cuda_device_of(data, &allocation.device, error));
    WH_TRY(wh_cuda_enter(allocation.device, &driver, error));
    int plain = 0;
    if (driver->pointer_attribute(&plain, WH_CU_POINTER_LEGACY_IPC, address) != WH_CU_OK) {
        plain = 1;
    }
    wherry_status status = plain ? describe_plain(driver, address, &allocation, error)
                                 : describe_mapped(driver, address, &allocation, error);
    wh_cuda_leave(driver);
    if (status == WHERRY_OK) {
        *allocation_p = allocation;
    }
    return status;
}

/* ---- in the process that reads the memory ---- */

/** Returns the bytes from an address to the end of its allocation; 0 if that is unknown. */
static uint64_t size_after(const wh_cuda_driver *driver, uint64_t address) {
    uint64_t base = 0;
    size_t size = 0;
    int result = driver->address_range(&base, &size, address);
    if (result != WH_CU_OK) {
        result = driver->pointer_attribute(&base, WH_CU_POINTER_RANGE_START, address);
        result = result == WH_CU_OK ? driver->pointer_attribute(&size, WH_CU_POINTER_RANGE_SIZE, address) : result;
    }
    return result == WH_CU_OK && base <= address && address - base <= size ? size - (address - base) : 0;
}

static wherry_status open_plain(const wh_cuda_driver *driver, const wh_cuda_allocation *allocation,
                                wh_cuda_import *import, wherry_error *error) {
    wh_cu_ipc_handle handle;
    uint64_t address = 0;
    memcpy(handle.bytes, allocation->handle, sizeof(handle.bytes));
    int result = driver->ipc_open(&address, handle, WH_CU_IPC_LAZY_PEER);
    if (result != WH_CU_OK) {
        return refuse(error, WHERRY_REFUSED, result, "CUDA cannot open the other process's memory");
    }
    uint64_t size = size_after(driver, address);
    if (size < allocation->size) {
        driver->ipc_close(address);
        return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                       "the other process's allocation has %llu bytes, but that process claims %llu",
                       (unsigned long long)size, (unsigned long long)allocation->size);
    }
    import->data = (void *)(uintptr_t)address;
    return WHERRY_OK;
}

/** Maps memory read-only, or read-write if the driver does not support read-only access. */
static int map(const wh_cuda_driver *driver, uint64_t address, uint64_t size, uint64_t handle, int32_t device) {
    wh_cu_access access = {WH_CU_LOCATION_DEVICE, device, WH_CU_ACCESS_READ};
    int result = driver->map(address, size, 0, handle, 0);
    if (result != WH_CU_OK) {
        return result;
    }
    result = driver->set_access(address, size, &access, 1);
    if (result != WH_CU_OK) {
        access.flags = READ_WRITE;
        result = driver->set_access(address, size, &access, 1);
    }
    if (result != WH_CU_OK) {
        driver->unmap(address, size);
    }
    return result;
}

static wherry_status open_mapped(const wh_cuda_driver *driver, const wh_cuda_allocation *allocation,
                                 wh_cuda_import *import, wherry_error *error) {
    uint64_t handle = 0;
    uint64_t address = 0;
    int result = driver->handle_import(&handle, (void *)(intptr_t)allocation->fd, WH_CU_HANDLE_FD);
    if (result != WH_CU_OK) {
        return refuse(error, WHERRY_REFUSED, result, "CUDA cannot import the other process's memory");
    }
    result = driver->address_reserve(&address, allocation->size, 0, 0, 0);
    if (result == WH_CU_OK) {
        result = map(driver, address, allocation->size, handle, import->device);
        if (result != WH_CU_OK) {
            driver->address_free(address, allocation->size);
        }
    }
    driver->handle_release(handle); /* The mapping keeps a reference. */
    import->data = (void *)(uintptr_t)address;
    return result == WH_CU_OK ? WHERRY_OK
                              : refuse(error, WHERRY_REFUSED, result, "CUDA cannot map the other process's memory");
}

wherry_status wh_cuda_open(const wh_cuda_allocation *allocation, int32_t device, wh_cuda_import *import_p,
                           wherry_error *error) {
    const wh_cuda_driver *driver;
    wh_cuda_import import = {.size = allocation->size, .device = device, .mapped = allocation->fd >= 0};
    WH_TRY(wh_cuda_enter(device, &driver, error));
    wherry_status status = import.mapped ? open_mapped(driver, allocation, &import, error)
                                         : open_plain(driver, allocation, &import, error);
    wh_cuda_leave(driver);
    if (status == WHERRY_OK) {
        *import_p = import;
    }
    return status;
}

void wh_cuda_close(const wh_cuda_import *import) {
    const wh_cuda_driver *driver;
    uint64_t address = (uint64_t)(uintptr_t)import->data;
    if (wh_cuda_enter(import->device, &driver, NULL) != WHERRY_OK) {
        return;
    }
    if (import->mapped) {
        driver->unmap(address, import->size);
        driver->address_free(address, import->size);
    } else {
        driver->ipc_close(address);
    }
    wh_cuda_leave(driver);
}

/* ---- all memory of a state ---- */

/** Descriptors of all offers of this process. */
static atomic_size_t descriptors;

static wherry_status count_descriptor(wherry_error *error) {
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &limit);
    size_t most = limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : (size_t)(limit.rlim_cur / DESCRIPTORS_SHARE);
    if (atomic_fetch_add(&descriptors, 1) < most) {
        return WHERRY_OK;
    }
    atomic_fetch_sub(&descriptors, 1);
    return wh_fail(error, WHERRY_UNSUPPORTED,
                   "the state lies in more than %zu mappings (expandable segments), each of which takes a file "
                   "descriptor while it is sent: allow more by ulimit -n",
                   most);
}

static void close_descriptor(const wh_cuda_allocation *one) {
    if (one->fd >= 0) {
        close(one->fd);
        atomic_fetch_sub(&descriptors, 1);
    }
}

/** The number of allocations that begin at or before an address. */
static size_t count_before(const wh_shared_memory *shared, uint64_t address) {
    return WH_PARTITION_POINT(shared->count, i, shared->items[i].base <= address);
}

/** Takes over the file descriptor of the allocation, also on failure. */
static wherry_status insert(wh_shared_memory *shared, const wh_cuda_allocation *one, wherry_error *error) {
    wherry_status status = one->fd >= 0 ? count_descriptor(error) : WHERRY_OK;
    if (status != WHERRY_OK) {
        close(one->fd);
        return status;
    }
    if (!WH_GROW(shared->items, shared->capacity, shared->count)) {
        close_descriptor(one);
        return wh_fail_memory(error, "the allocations of a state");
    }
    size_t at = count_before(shared, one->base);
    memmove(shared->items + at + 1, shared->items + at, (shared->count++ - at) * sizeof(*shared->items));
    shared->items[at] = *one;
    return WHERRY_OK;
}

wherry_status wh_shared_memory_add(wh_shared_memory *shared, const void *data, uint64_t bytes, wherry_error *error) {
    uint64_t at = (uint64_t)(uintptr_t)data;
    uint64_t end = at + bytes;
    wherry_status status = WHERRY_OK;
    while (at < end && status == WHERRY_OK) {
        size_t before = count_before(shared, at);
        const wh_cuda_allocation *known = before ? shared->items + before - 1 : NULL;
        wh_cuda_allocation found;
        if (known && at - known->base < known->size) {
            at = known->base + known->size;
            continue;
        }
        status = wh_cuda_describe((void *)(uintptr_t)at, &found, error);
        if (status == WHERRY_OK) {
            status = insert(shared, &found, error);
            at = found.base + found.size;
        }
    }
    return status;
}

void wh_shared_memory_destroy(wh_shared_memory *shared) {
    for (size_t i = 0; i < shared->count; i++) {
        close_descriptor(shared->items + i);
    }
    wh_free(shared->items);
    *shared = (wh_shared_memory){0};
}
