/** @file fake_library.h  Functions that control the fake NCCL: see tests/fake_nccl/fake_nccl.h. */
#ifndef WH_TESTS_FAKE_LIBRARY_H
#define WH_TESTS_FAKE_LIBRARY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct fake_nccl {
    void (*fail_at)(uint64_t number, int result);
    uint64_t (*calls)(void);
    uint64_t (*begun)(void);
    uint64_t (*aborted)(void);
    uint64_t (*messages)(void);
} fake_nccl;

/** All NULL if the library is real. */
static inline fake_nccl fake_nccl_find(void) {
    const char *path = getenv("WHERRY_NCCL_LIBRARY");
    void *library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    fake_nccl fake = {0};
    if (library) {
        *(void **)&fake.fail_at = dlsym(library, "fake_nccl_fail_at");
        *(void **)&fake.calls = dlsym(library, "fake_nccl_calls");
        *(void **)&fake.begun = dlsym(library, "fake_nccl_begun");
        *(void **)&fake.aborted = dlsym(library, "fake_nccl_aborted");
        *(void **)&fake.messages = dlsym(library, "fake_nccl_messages");
    }
    return fake;
}

#endif
