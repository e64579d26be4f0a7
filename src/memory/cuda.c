#include "memory/cuda.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_queue.h"
#include "memory/memory.h"

/* ---- the driver ---- */

static wh_cuda_driver loaded; /**< Valid if `found` is set. */
static bool found;
static wherry_error reason;
static int device_count;
/** True if this process was forked after the driver was loaded. CUDA cannot work in it. */
static bool forked;

static void note_fork(void) {
    forked = true;
}

/** Protects no data. It exists for its handler, which runs in a forked child. */
static wh_fork_lock fork_watch = WH_FORK_LOCK(.in_child = note_fork);

/**
 * The primary contexts. Each is retained at its first use and never released. Releasing the last
 * reference would destroy torch's memory in that context.
 */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_cu_context contexts[WH_CUDA_DEVICES_MAX];

static bool find_calls(void *library, const char *name) {
#define WH_X(member, symbol, arguments)                                                                                \
    *(void **)&loaded.member = dlsym(library, #symbol);                                                                \
    if (!loaded.member) {                                                                                              \
        wh_fail(&reason, WHERRY_UNSUPPORTED, "%s is too old: it has no " #symbol "; CUDA 11.8 or newer is needed",     \
                name);                                                                                                 \
        return false;                                                                                                  \
    }
    WH_CUDA_CALLS(WH_X)
#undef WH_X
    return true;
}

static void find(void) {
    const char *name = getenv("WHERRY_CUDA_LIBRARY");
    name = name && *name ? name : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        wh_fail(&reason, WHERRY_UNSUPPORTED, "no CUDA driver: %s", why ? why : name);
        return;
    }
    if (!find_calls(library, name)) {
        return;
    }
    wh_fork_lock_take(&fork_watch);
    wh_fork_lock_give(&fork_watch);
    int result = loaded.init(0);
    WH_CU_THEN(result, loaded.device_count(&device_count));
    if (result != WH_CU_OK || device_count == 0) {
        wh_cuda_fail(&reason, result != WH_CU_OK ? result : WH_CU_NO_DEVICE, "CUDA finds no usable device");
        reason.status = WHERRY_UNSUPPORTED;
        return;
    }
    device_count = device_count < WH_CUDA_DEVICES_MAX ? device_count : WH_CUDA_DEVICES_MAX;
    found = true;
}

const wh_cuda_driver *wh_cuda_driver_find(wherry_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (!found && error) {
        *error = reason;
    }
    return found ? &loaded : NULL;
}

int32_t wh_cuda_device_count(void) {
    return wh_cuda_driver_find(NULL) ? device_count : 0;
}

static bool is_broken(int result) {
    bool harmless = result == 701 || result == 704 || result == 705 || (result >= 711 && result <= 713);
    return result == WH_CU_ECC_UNCORRECTABLE || result == WH_CU_NVLINK_UNCORRECTABLE ||
           (result >= WH_CU_BROKEN_FIRST && result <= WH_CU_BROKEN_LAST && !harmless);
}

/** Returns text that tells the user what to do about an error; may be empty. */
static const char *advise(int result) {
    if (result == WH_CU_NOT_INITIALIZED && forked) {
        return "; this process was forked after CUDA was used: use the start method spawn";
    }
    return is_broken(result) ? "; the CUDA context of this process is broken: restart the process" : "";
}

wherry_status wh_cuda_fail(wherry_error *error, int result, const char *doing) {
    const char *name = NULL;
    if (!loaded.error_name || loaded.error_name(result, &name) != WH_CU_OK || !name) {
        name = "unknown error";
    }
    wherry_status status = result == WH_CU_OUT_OF_MEMORY ? WHERRY_NO_MEMORY : WHERRY_SYSTEM;
    return wh_fail(error, status, "%s: %s (%d)%s", doing, name, result, advise(result));
}

/** Returns the primary context of a device; NULL, with the reason in `error`, if that fails. */
static wh_cu_context context_of(int32_t device, wherry_error *error) {
    int handle = 0;
    int result = WH_CU_OK;
    pthread_mutex_lock(&contexts_lock);
    if (!contexts[device]) {
        result = loaded.device_get(&handle, device);
        WH_CU_THEN(result, loaded.context_retain(contexts + device, handle));
        if (result != WH_CU_OK) {
            contexts[device] = NULL;
            wh_cuda_fail(error, result, "cannot use the CUDA device");
        }
    }
    wh_cu_context context = contexts[device];
    pthread_mutex_unlock(&contexts_lock);
    return context;
}

wherry_status wh_cuda_enter(int32_t device, const wh_cuda_driver **driver_p, wherry_error *error) {
    wherry_error own = {.status = WHERRY_SYSTEM};
    error = error ? error : &own;
    if (!wh_cuda_driver_find(error)) {
        return WHERRY_UNSUPPORTED;
    }
    if (device < 0 || device >= device_count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "there is no cuda:%d; the number of CUDA devices that this process can use is %d", (int)device,
                       device_count);
    }
    wh_cu_context context = context_of(device, error);
    if (!context) {
        return error->status != WHERRY_OK ? error->status : WHERRY_SYSTEM;
    }
    int result = loaded.context_push(context);
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "cannot use the context of the CUDA device");
    }
    *driver_p = &loaded;
    return WHERRY_OK;
}

void wh_cuda_leave(const wh_cuda_driver *entered) {
    wh_cu_context context;
    entered->context_pop(&context);
}

/* ---- devices ---- */

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
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "address 0x%" PRIx64 " is not in CUDA device memory", address);
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
    WH_CU_THEN(result, driver->device_uuid(uuid, handle));
    return result == WH_CU_OK ? WHERRY_OK : wh_cuda_fail(error, result, "cannot read the UUID of the CUDA device");
}

/* ---- waiting ---- */

/**
 * How long to yield before the first sleep. BUSY_NS is for busy waits, SPIN_NS for others.
 */
enum { SPIN_NS = 300000, BUSY_NS = 4000000 };

/**
 * The first and the longest sleep. Each sleep is twice as long as the one before, up to the
 * longest.
 */
enum { SLEEP_FIRST_NS = 10000, SLEEP_MAX_NS = 100000 };

wherry_status wh_cuda_back_off(wh_cuda_backoff *backoff, const wh_stop *stop, wh_deadline deadline, const char *what,
                               wherry_error *error) {
    uint64_t now = wh_clock_now();
    backoff->start = backoff->start ? backoff->start : now;
    if (stop && wh_stop_requested(stop)) {
        return wh_fail(error, WHERRY_CANCELLED, "stopped while %s", what);
    }
    if (wh_deadline_passed(deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out while %s", what);
    }
    if (now - backoff->start < (backoff->busy ? BUSY_NS : SPIN_NS)) {
        sched_yield();
        return WHERRY_OK;
    }
    backoff->sleep_ns = backoff->sleep_ns ? wh_min(backoff->sleep_ns * 2, SLEEP_MAX_NS) : SLEEP_FIRST_NS;
    nanosleep(&(struct timespec){0, (long)backoff->sleep_ns}, NULL);
    return WHERRY_OK;
}

/** Waits for a stream of the current context. */
static wherry_status await_one(const wh_cuda_driver *driver, wh_cu_stream stream, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error) {
    wh_cu_event event;
    wh_cuda_backoff backoff = {0};
    wherry_status status = WHERRY_OK;
    int result = driver->event_create(&event, WH_CU_EVENT_NO_TIMING);
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "cannot wait for the caller's stream");
    }
    result = driver->event_record(event, stream);
    while (result == WH_CU_OK && status == WHERRY_OK && (result = driver->event_query(event)) == WH_CU_NOT_READY) {
        status = wh_cuda_back_off(&backoff, stop, deadline, "waiting for the work on the caller's CUDA stream", error);
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
    WH_CU_THEN(result, driver->context_push(context));
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "the stream passed by the caller is not a CUDA stream");
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

/** Copies memory and waits until the copy is complete. If `from` is NULL, writes zeros. */
static wherry_status copy_now(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    wh_cuda_queue *queue;
    uint64_t ticket;
    wh_cuda_run run = {from, to, nbytes};
    WH_TRY(wh_cuda_queue_create(device, &queue, error));
    wherry_status status = from ? wh_cuda_queue_copy(queue, WH_CUDA_WITH_PAGEABLE, &run, 1, error)
                                : wh_cuda_queue_clear(queue, to, nbytes, error);
    WH_THEN(status, wh_cuda_queue_mark(queue, &ticket, error));
    WH_THEN(status, wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_never(), error));
    wh_cuda_queue_destroy(queue);
    return status;
}

static wherry_status write_bytes(void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    int32_t device = -1;
    WH_TRY(wh_cuda_device_of(to, &device, error));
    return copy_now(device, to, from, nbytes, error);
}

wherry_status wh_cuda_read(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    return copy_now(device, to, from, nbytes, error);
}

static wherry_status allocate(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    uint64_t address = 0;
    int32_t index = device.index < 0 ? 0 : device.index;
    WH_TRY(wh_cuda_enter(index, &driver, error));
    int result = driver->alloc(&address, nbytes);
    wh_cuda_leave(driver);
    if (result != WH_CU_OK) {
        char doing[96];
        snprintf(doing, sizeof(doing), "cannot allocate %" PRIu64 " bytes on cuda:%d", nbytes, (int)index);
        return wh_cuda_fail(error, result, doing);
    }
    wherry_status status = copy_now(index, (void *)(uintptr_t)address, NULL, nbytes, error);
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

const wh_memory_ops wh_memory_cuda = {
    .allocate = allocate,
    .release = release,
    .write = write_bytes,
};
