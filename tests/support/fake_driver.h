/**
 * @file fake_driver.h  Functions that control the fake CUDA driver: see
 * tests/fake_cuda/fake_cuda.h.
 */
#ifndef WH_TESTS_FAKE_DRIVER_H
#define WH_TESTS_FAKE_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct fake_driver {
    void *(*shadow)(const void *address);
    void (*fail_at)(uint64_t number, int result);
    uint64_t (*calls)(void);
    uint64_t (*count)(const char *name);
    size_t (*device_bytes)(void);
    size_t (*device_peak)(void);
    size_t (*pinned_bytes)(void);
    size_t (*imports)(void);
    void (*forget_peak)(void);
    unsigned (*contexts)(void);
    void (*shut_gate)(void *stream);
    void (*open_gate)(void);
    void (*break_context)(int result);
} fake_driver;

/** Any other function of the library, or NULL. */
static inline void *fake_driver_symbol(const char *name) {
    const char *path = getenv("WHERRY_CUDA_LIBRARY");
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

/** All NULL if the driver is real. */
static inline fake_driver fake_driver_find(void) {
    fake_driver fake;
    *(void **)&fake.shadow = fake_driver_symbol("fake_cuda_shadow");
    *(void **)&fake.fail_at = fake_driver_symbol("fake_cuda_fail_at");
    *(void **)&fake.calls = fake_driver_symbol("fake_cuda_calls");
    *(void **)&fake.count = fake_driver_symbol("fake_cuda_count");
    *(void **)&fake.device_bytes = fake_driver_symbol("fake_cuda_device_bytes");
    *(void **)&fake.device_peak = fake_driver_symbol("fake_cuda_device_peak");
    *(void **)&fake.pinned_bytes = fake_driver_symbol("fake_cuda_pinned_bytes");
    *(void **)&fake.imports = fake_driver_symbol("fake_cuda_imports");
    *(void **)&fake.forget_peak = fake_driver_symbol("fake_cuda_forget_peak");
    *(void **)&fake.contexts = fake_driver_symbol("fake_cuda_contexts");
    *(void **)&fake.shut_gate = fake_driver_symbol("fake_cuda_shut_gate");
    *(void **)&fake.open_gate = fake_driver_symbol("fake_cuda_open_gate");
    *(void **)&fake.break_context = fake_driver_symbol("fake_cuda_break");
    return fake;
}

#endif
