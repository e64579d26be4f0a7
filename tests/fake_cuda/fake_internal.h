/** @file fake_internal.h  What the files of the fake driver share. */
#ifndef WH_TESTS_FAKE_INTERNAL_H
#define WH_TESTS_FAKE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_cuda.h"

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_PEERS = 217,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
    DEVICES_MAX = 8,
};

typedef struct fake_context {
    int device;
} fake_context;

extern fake_context fake_contexts[DEVICES_MAX];

typedef enum fake_kind { FAKE_DEVICE, FAKE_PINNED, FAKE_RESERVED } fake_kind;

/** A run of addresses. */
typedef struct fake_block {
    fake_kind kind;
    char *address;
    char *shadow; /**< Where its bytes are; NULL for what is only reserved. */
    size_t size;
    int device;
    int fd;         /**< The memory. */
    bool imported;  /**< Of another process. */
    bool mapped;    /**< Made of a handle. */
    unsigned reach; /**< The devices that reach it by themselves, a bit each. */
    struct fake_block *next;
} fake_block;

/** A physical allocation: cuMemCreate. */
typedef struct fake_handle {
    int fd;
    size_t size;
    int device;
    int references;
} fake_handle;

/**
 * Begins a call: counts it, and lets it fail where a test said so. @return OK, or what it answers.
 */
int fake_call(const char *name, bool may_fail, bool needs_context);

int fake_device_count(void);

/** The device of the context that is current. */
int fake_current_device(void);

bool fake_setting(const char *name);

/** Where [address, address + size) lies. NULL: not within one block; *kind_p is written else. */
void *fake_resolve(const void *address, size_t size, fake_kind *kind_p);

/** The same for as many bytes as lie in one block: mappings may lie side by side. */
void *fake_resolve_part(const void *address, size_t size, size_t *part_p);

/**
 * Whether a run goes beyond the allocation that it begins in, which the driver does not copy;
 * mapped memory may.
 */
bool fake_is_cut(const void *address, size_t size);

/**
 * Whether a device reaches a byte by itself, as a kernel does; only what is some device's is asked
 * for.
 */
bool fake_reaches(const void *address, int device);

/** A fault of the device: everything answers this from now on. */
void fake_fault(int result);

int fake_faulted(void);

#endif
