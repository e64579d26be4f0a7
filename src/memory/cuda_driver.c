#include "memory/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/process.h"
#include "memory/cuda.h"

/** What there is once a process. */
static wh_cuda_driver driver;
static bool found;
static wherry_error reason;
static int count;
static bool forked; /**< This is a child of the process that loaded the driver, where CUDA does not work. */

static void note_fork(void) {
    forked = true;
}

/** Guards nothing: its handler notices a fork. */
static wh_fork_lock fork_watch = WH_FORK_LOCK(.in_child = note_fork);

/** The primary contexts, retained when they are first needed and kept: letting the last reference go would destroy what is torch's too. */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_cu_context contexts[WH_CUDA_DEVICES_MAX];

static bool find_calls(void *library, const char *name) {
#define WH_X(member, symbol, arguments)                                                                                \
    *(void **)&driver.member = dlsym(library, #symbol);                                                                \
    if (!driver.member) {                                                                                              \
        wh_fail(&reason, WHERRY_UNSUPPORTED, "%s is too old: it has no " #symbol "; CUDA 11.8 has it", name);          \
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
        wh_fail(&reason, WHERRY_UNSUPPORTED, "there is no driver of CUDA here: %s", why ? why : name);
        return;
    }
    if (!find_calls(library, name)) {
        return;
    }
    wh_fork_lock_take(&fork_watch);
    wh_fork_lock_give(&fork_watch);
    int result = driver.init(0);
    if (result == WH_CU_OK) {
        result = driver.device_count(&count);
    }
    if (result != WH_CU_OK || count == 0) {
        wh_cuda_fail(&reason, result != WH_CU_OK ? result : WH_CU_NO_DEVICE, "CUDA finds no device that it can use");
        reason.status = WHERRY_UNSUPPORTED;
        return;
    }
    count = count < WH_CUDA_DEVICES_MAX ? count : WH_CUDA_DEVICES_MAX;
    found = true;
}

const wh_cuda_driver *wh_cuda_driver_find(wherry_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (!found && error) {
        *error = reason;
    }
    return found ? &driver : NULL;
}

int32_t wh_cuda_device_count(void) {
    return wh_cuda_driver_find(NULL) ? count : 0;
}

static bool is_broken(int result) {
    bool harmless = result == 701 || result == 704 || result == 705 || (result >= 711 && result <= 713);
    return result == WH_CU_ECC_UNCORRECTABLE || result == WH_CU_NVLINK_UNCORRECTABLE ||
           (result >= WH_CU_BROKEN_FIRST && result <= WH_CU_BROKEN_LAST && !harmless);
}

/** What to do about an answer, where that can be said. */
static const char *advise(int result) {
    if (result == WH_CU_NOT_INITIALIZED && forked) {
        return "; this process was forked after CUDA was used: start it by spawn";
    }
    return is_broken(result) ? "; CUDA has given up this process's context: start the process anew" : "";
}

wherry_status wh_cuda_fail(wherry_error *error, int result, const char *doing) {
    const char *name = NULL;
    if (!driver.error_name || driver.error_name(result, &name) != WH_CU_OK || !name) {
        name = "an error without a name";
    }
    wherry_status status = result == WH_CU_OUT_OF_MEMORY ? WHERRY_NO_MEMORY : WHERRY_SYSTEM;
    return wh_fail(error, status, "%s: %s (%d)%s", doing, name, result, advise(result));
}

/** The primary context of a device; NULL with the reason in error. */
static wh_cu_context context_of(int32_t device, wherry_error *error) {
    int handle = 0;
    int result = WH_CU_OK;
    pthread_mutex_lock(&contexts_lock);
    if (!contexts[device]) {
        result = driver.device_get(&handle, device);
        if (result == WH_CU_OK) {
            result = driver.context_retain(contexts + device, handle);
        }
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
    if (device < 0 || device >= count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "there is no cuda:%d here; there are %d devices", (int)device,
                       count);
    }
    wh_cu_context context = context_of(device, error);
    if (!context) {
        return error->status;
    }
    int result = driver.context_push(context);
    if (result != WH_CU_OK) {
        return wh_cuda_fail(error, result, "cannot use the context of the CUDA device");
    }
    *driver_p = &driver;
    return WHERRY_OK;
}

void wh_cuda_leave(const wh_cuda_driver *entered) {
    wh_cu_context context;
    entered->context_pop(&context);
}
