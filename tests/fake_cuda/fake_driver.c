/* Devices, contexts and modules. Counts calls and makes them fail. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_internal.h"

/* The driver's functions have no header here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { NAMES_MAX = 64, STACK_MAX = 16 };

fake_context fake_contexts[DEVICES_MAX];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *names[NAMES_MAX];
static uint64_t counts[NAMES_MAX];
static uint64_t calls;
static uint64_t fail_number;
static int fail_result;
static atomic_int fault;
static atomic_uint retained;
/* The process that called cuInit. The driver does not work in a fork of it. */
static pid_t process;
static _Thread_local fake_context *stack[STACK_MAX];
static _Thread_local int depth;

bool fake_setting(const char *name) {
    const char *text = getenv(name);
    return text && strcmp(text, "1") == 0;
}

void fake_fault(int result) {
    int none = OK;
    atomic_compare_exchange_strong(&fault, &none, result);
}

int fake_faulted(void) {
    return atomic_load(&fault);
}

void fake_cuda_break(int result) {
    atomic_store(&fault, result);
}

static void count(const char *name) {
    int i = 0;
    while (names[i] && strcmp(names[i], name) != 0) {
        i++;
    }
    names[i] = name;
    counts[i]++;
}

int fake_call(const char *name, bool may_fail, bool needs_context) {
    int result = OK;
    pthread_mutex_lock(&lock);
    count(name);
    calls += may_fail;
    if (may_fail && fail_number && calls == fail_number) {
        result = fail_result;
    }
    pthread_mutex_unlock(&lock);
    if (may_fail && process && process != getpid()) {
        result = NOT_INITIALIZED;
    }
    if (result == OK && may_fail && fake_faulted()) {
        result = fake_faulted();
    }
    return result == OK && needs_context && depth == 0 ? INVALID_CONTEXT : result;
}

void fake_cuda_fail_at(uint64_t number, int result) {
    pthread_mutex_lock(&lock);
    calls = 0;
    fail_number = number;
    fail_result = result;
    pthread_mutex_unlock(&lock);
}

uint64_t fake_cuda_calls(void) {
    pthread_mutex_lock(&lock);
    uint64_t value = calls;
    pthread_mutex_unlock(&lock);
    return value;
}

uint64_t fake_cuda_count(const char *name) {
    uint64_t found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; names[i]; i++) {
        found = strcmp(names[i], name) == 0 ? counts[i] : found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

unsigned fake_cuda_contexts(void) {
    return atomic_load(&retained);
}

int fake_device_count(void) {
    const char *text = getenv("FAKE_CUDA_DEVICES");
    int number = text ? (int)strtol(text, NULL, 10) : 2;
    return number < DEVICES_MAX ? number : DEVICES_MAX;
}

int fake_current_device(void) {
    return depth ? stack[depth - 1]->device : 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    process = process ? process : getpid();
    for (int i = 0; i < DEVICES_MAX; i++) {
        fake_contexts[i].device = i;
    }
    return fake_call("cuInit", true, false);
}

int cuGetErrorName(int result, const char **name) {
    *name = result == ILLEGAL_ADDRESS   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : result == NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED"
            : result == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
                                        : "CUDA_ERROR_OF_THE_FAKE";
    return OK;
}

int cuDeviceGetCount(int *number) {
    *number = fake_device_count();
    return fake_call("cuDeviceGetCount", true, false);
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < fake_device_count() ? fake_call("cuDeviceGet", true, false) : INVALID_DEVICE;
}

int cuDeviceGetUuid(void *uuid, int device) {
    memset(uuid, 0, 16);
    memcpy(uuid, "fakecuda", 8);
    ((char *)uuid)[15] = (char)device;
    return fake_call("cuDeviceGetUuid", true, false);
}

int cuDevicePrimaryCtxRetain(fake_context **context, int device) {
    *context = fake_contexts + device;
    atomic_fetch_or(&retained, 1U << device);
    return fake_call("cuDevicePrimaryCtxRetain", true, false);
}

int cuCtxPushCurrent_v2(fake_context *context) {
    int result = fake_call("cuCtxPushCurrent_v2", false, false);
    if (depth == STACK_MAX) {
        abort();
    }
    stack[depth++] = context;
    return result;
}

int cuCtxPopCurrent_v2(fake_context **context) {
    int result = fake_call("cuCtxPopCurrent_v2", false, true);
    if (result == OK) {
        *context = stack[--depth];
    }
    return result;
}

int cuCtxGetCurrent(fake_context **context) {
    *context = depth ? stack[depth - 1] : NULL;
    return OK;
}

int cuCtxSetCurrent(fake_context *context) {
    depth = depth ? depth : 1;
    stack[depth - 1] = context;
    return OK;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    *total = (size_t)1 << 37;
    *available = *total - fake_cuda_device_bytes();
    return OK;
}

int cuModuleLoadData(void **module, const void *image) {
    int result = fake_call("cuModuleLoadData", true, true);
    if (result == OK && (fake_setting("FAKE_CUDA_NO_KERNEL") || strncmp(image, ".version ", 9) != 0)) {
        result = 218; /* not PTX */
    }
    *module = (void *)image;
    return result;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    int result = fake_call("cuModuleGetFunction", true, true);
    if (result == OK && (strcmp(name, "wherry_copy") != 0 || !strstr(module, name))) {
        result = NOT_FOUND;
    }
    *function = module;
    return result;
}
