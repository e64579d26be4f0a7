#include "memory/cuda.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_queue.h"
#include "memory/cuda_wait.h"
#include "memory/memory.h"

wherry_status wh_cuda_check(wherry_error *error) {
    return wh_cuda_driver_find(error) ? WHERRY_OK : WHERRY_UNSUPPORTED;
}

wherry_status wh_cuda_device_of(const void *data, int32_t *device_p, wherry_error *error) {
    const wh_cuda_driver *driver = wh_cuda_driver_find(error);
    unsigned type = 0;
    int device = -1;
    uint64_t address = (uint64_t)(uintptr_t)data;
    if (!driver) {
        return WHERRY_UNSUPPORTED;
    }
    int result = driver->pointer_attribute(&type, WH_CU_POINTER_MEMORY_TYPE, address);
    if (result == WH_CU_OK && type == WH_CU_MEMORY_DEVICE) {
        result = driver->pointer_attribute(&device, WH_CU_POINTER_DEVICE, address);
    }
    if (result != WH_CU_OK || type != WH_CU_MEMORY_DEVICE || device < 0 || device >= wh_cuda_device_count()) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "0x%" PRIx64 " is no address of a CUDA device's memory",
                       address);
    }
    *device_p = device;
    return WHERRY_OK;
}

wherry_status wh_cuda_uuid(int32_t device, uint8_t uuid[WH_CUDA_UUID_BYTES], wherry_error *error) {
    const wh_cuda_driver *driver = wh_cuda_driver_find(error);
    int handle = 0;
    if (!driver) {
        return WHERRY_UNSUPPORTED;
    }
    int result = driver->device_get(&handle, device);
    if (result == WH_CU_OK) {
        result = driver->device_uuid(uuid, handle);
    }
    return result == WH_CU_OK ? WHERRY_OK : wh_cuda_fail(error, result, "cannot tell which CUDA device it is");
}

/* ---- waiting ---- */

enum { SPIN_NS = 300000, AWAKE_NS = 4000000, NAP_FIRST_NS = 10000, NAP_MOST_NS = 100000 };

wherry_status wh_cuda_nap(wh_cuda_patience *patience, const wh_stop *stop, wh_deadline deadline, const char *what,
                          wherry_error *error) {
    uint64_t now = wh_clock_now();
    patience->begun = patience->begun ? patience->begun : now;
    if (stop && wh_stop_requested(stop)) {
        return wh_fail(error, WHERRY_CANCELLED, "%s was stopped", what);
    }
    if (wh_deadline_passed(deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out during %s", what);
    }
    if (now - patience->begun < (patience->awake ? AWAKE_NS : SPIN_NS)) {
        sched_yield();
        return WHERRY_OK;
    }
    patience->nap = patience->nap ? patience->nap * 2 : NAP_FIRST_NS;
    patience->nap = patience->nap < NAP_MOST_NS ? patience->nap : NAP_MOST_NS;
    nanosleep(&(struct timespec){0, (long)patience->nap}, NULL);
    return WHERRY_OK;
}

/** Waits for what was queued on a stream of the current context. */
static wherry_status await_one(const wh_cuda_driver *driver, wh_cu_stream stream, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error) {
    wh_cu_event event;
    wh_cuda_patience patience = {0};
    wherry_status status = WHERRY_OK;
    int result = driver->event_create(&event, WH_CU_EVENT_NO_TIMING);
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "cannot wait for the caller's stream");
    }
    result = driver->event_record(event, stream);
    while (result == WH_CU_OK && status == WHERRY_OK && (result = driver->event_query(event)) == WH_CU_NOT_READY) {
        status = wh_cuda_nap(&patience, stop, deadline, "waiting for the work on the caller's CUDA stream", error);
        result = WH_CU_OK;
        if (status != WHERRY_OK) {
            break;
        }
    }
    driver->event_destroy(event);
    return result == WH_CU_OK ? status : wh_cuda_fail(error, result, "the work on the caller's CUDA stream failed");
}

static wherry_status await_given(wh_cu_stream stream, const wh_stop *stop, wh_deadline deadline, wherry_error *error) {
    const wh_cuda_driver *driver = wh_cuda_driver_find(error);
    wh_cu_context context = NULL;
    if (!driver) {
        return WHERRY_UNSUPPORTED;
    }
    int result = driver->stream_context(stream, &context);
    if (result == WH_CU_OK) {
        result = driver->context_push(context);
    }
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "what was given as a CUDA stream is none");
    }
    wherry_status status = await_one(driver, stream, stop, deadline, error);
    wh_cuda_leave(driver);
    return status;
}

wherry_status wh_cuda_await_stream(void *stream, uint64_t devices, const wh_stop *stop, wh_deadline deadline,
                                   wherry_error *error) {
    if (stream) {
        return await_given(stream, stop, deadline, error);
    }
    wherry_status status = WHERRY_OK;
    for (int32_t device = 0; device < WH_CUDA_DEVICES_MAX && status == WHERRY_OK; device++) {
        const wh_cuda_driver *driver;
        if (!(devices >> device & 1)) {
            continue;
        }
        status = wh_cuda_enter(device, &driver, error);
        if (status == WHERRY_OK) {
            status = await_one(driver, NULL, stop, deadline, error);
            wh_cuda_leave(driver);
        }
    }
    return status;
}

/* ---- the memory space ---- */

/** Something for a queue of its own, done when it returns: whatever stream comes next need not wait for it. @param from  NULL: zeros. */
static wherry_status carry_out(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    wh_cuda_queue *queue;
    uint64_t ticket;
    wh_cuda_run run = {from, to, nbytes};
    wherry_status status = wh_cuda_queue_create(device, &queue, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = from ? wh_cuda_queue_copy(queue, WH_CUDA_WITH_PAGEABLE, &run, 1, error)
                  : wh_cuda_queue_clear(queue, to, nbytes, error);
    if (status == WHERRY_OK) {
        status = wh_cuda_queue_mark(queue, &ticket, error);
    }
    if (status == WHERRY_OK) {
        status = wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_never(), error);
    }
    wh_cuda_queue_destroy(queue);
    return status;
}

static wherry_status write_bytes(void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    int32_t device = -1;
    wherry_status status = wh_cuda_device_of(to, &device, error);
    return status == WHERRY_OK ? carry_out(device, to, from, nbytes, error) : status;
}

wherry_status wh_cuda_read(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    return carry_out(device, to, from, nbytes, error);
}

static wherry_status read_bytes(void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    int32_t device = -1;
    wherry_status status = wh_cuda_device_of(from, &device, error);
    return status == WHERRY_OK ? wh_cuda_read(device, to, from, nbytes, error) : status;
}

static wherry_status allocate(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    uint64_t address = 0;
    int32_t index = device.index < 0 ? 0 : device.index;
    wherry_status status = wh_cuda_enter(index, &driver, error);
    if (status != WHERRY_OK) {
        return status;
    }
    int result = driver->alloc(&address, nbytes);
    wh_cuda_leave(driver);
    if (result != WH_CU_OK) {
        char doing[96];
        snprintf(doing, sizeof(doing), "cannot have %" PRIu64 " bytes on cuda:%d", nbytes, (int)index);
        return wh_cuda_fail(error, result, doing);
    }
    status = carry_out(index, (void *)(uintptr_t)address, NULL, nbytes, error);
    if (status == WHERRY_OK) {
        *data_p = (void *)(uintptr_t)address;
    } else if (wh_cuda_enter(index, &driver, NULL) == WHERRY_OK) {
        driver->free(address);
        wh_cuda_leave(driver);
    }
    return status;
}

static void release(void *data, uint64_t nbytes) {
    const wh_cuda_driver *driver;
    int32_t device = -1;
    (void)nbytes;
    if (wh_cuda_device_of(data, &device, NULL) == WHERRY_OK && wh_cuda_enter(device, &driver, NULL) == WHERRY_OK) {
        driver->free((uint64_t)(uintptr_t)data);
        wh_cuda_leave(driver);
    }
}

const wh_memory_ops wh_memory_cuda = {"cuda", allocate, release, write_bytes, read_bytes};
