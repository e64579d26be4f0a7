/** @file fake_internal.h  Shared by the source files of the fake driver. */
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

/** A range of addresses. */
typedef struct fake_block {
    fake_kind kind;
    char *address;
    char *shadow; /**< Accessible address of the bytes; NULL if the range is only reserved. */
    size_t size;
    int device;
    int fd;         /**< The memfd. */
    bool imported;  /**< True if it belongs to another process. */
    bool mapped;    /**< True if it was mapped from a handle. */
    unsigned reach; /**< Devices that can access it, one bit per device. */
    struct fake_block *next;
} fake_block;

/** A physical allocation, made by cuMemCreate. */
typedef struct fake_handle {
    int fd;
    size_t size;
    int device;
    int references;
} fake_handle;

/**
 * Begins a call of the driver: counts it, and makes it fail if a test asked for that. @return OK,
 * or the result that the call must return.
 */
int fake_call(const char *name, bool may_fail, bool needs_context);

int fake_device_count(void);

/** The device of the current context. */
int fake_current_device(void);

bool fake_setting(const char *name);

/** Accessible address of [address, address + size). Sets *kind_p. NULL: not within one block. */
void *fake_resolve(const void *address, size_t size, fake_kind *kind_p);

/** Like fake_resolve. *part_p is how many of the `size` bytes are in the same block. */
void *fake_resolve_part(const void *address, size_t size, size_t *part_p);

/**
 * True if a range ends outside the allocation in which it begins. The driver refuses to copy it,
 * unless the memory is mapped.
 */
bool fake_is_cut(const void *address, size_t size);

/** True if a kernel on the device can access this byte of device memory. */
bool fake_reaches(const void *address, int device);

/** Simulates a fault of the device: all calls return this result from now on. */
void fake_fault(int result);

int fake_faulted(void);

#endif
