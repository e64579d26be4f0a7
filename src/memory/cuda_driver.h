/**
 * @file cuda_driver.h  The functions of the CUDA driver that Wherry uses. For src/memory/ only.
 *
 * They are loaded at run time, so Wherry builds and runs without CUDA. The declarations are our own
 * and follow the driver's binary interface. Wherry uses the versions of the functions in CUDA 11.8,
 * whose binary interface does not change. Handles are pointers, and device addresses are numbers.
 */
#ifndef WH_MEMORY_CUDA_DRIVER_H
#define WH_MEMORY_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

typedef struct wh_cu_context_tag *wh_cu_context;
typedef struct wh_cu_stream_tag *wh_cu_stream;
typedef struct wh_cu_event_tag *wh_cu_event;
typedef struct wh_cu_module_tag *wh_cu_module;
typedef struct wh_cu_function_tag *wh_cu_function;

/**
 * Results of the driver that Wherry handles. For other results, the error text contains the
 * driver's name for the result.
 */
enum {
    WH_CU_OK = 0,
    WH_CU_INVALID_VALUE = 1,
    WH_CU_OUT_OF_MEMORY = 2,
    WH_CU_NOT_INITIALIZED = 3, /**< Also the result of every call in a forked child. */
    WH_CU_NO_DEVICE = 100,
    WH_CU_ECC_UNCORRECTABLE = 214,    /**< The context is broken. */
    WH_CU_NVLINK_UNCORRECTABLE = 220, /**< The context is broken. */
    WH_CU_NOT_READY = 600,
    /** Results 700 to 719 mean that the context is broken, except 701, 704, 705 and 711 to 713. */
    WH_CU_BROKEN_FIRST = 700,
    WH_CU_BROKEN_LAST = 719,
};

/** Evaluates `call` and assigns its result to `result`, unless `result` is already an error. */
#define WH_CU_THEN(result, call) ((void)((result) == WH_CU_OK ? ((result) = (call)) : WH_CU_OK))

/** Constants of the driver. */
enum {
    WH_CU_EVENT_NO_TIMING = 2,
    WH_CU_STREAM_NON_BLOCKING = 1,
    WH_CU_HOST_PORTABLE = 1,
    WH_CU_MEMORY_DEVICE = 2, /**< A value of WH_CU_POINTER_MEMORY_TYPE. */
    WH_CU_POINTER_MEMORY_TYPE = 2,
    WH_CU_POINTER_DEVICE = 9,
    WH_CU_POINTER_LEGACY_IPC = 10,
    WH_CU_POINTER_RANGE_START = 11,
    WH_CU_POINTER_RANGE_SIZE = 12,
    WH_CU_POINTER_MAPPING_SIZE = 18,
    WH_CU_POINTER_MAPPING_BASE = 19,
    WH_CU_IPC_LAZY_PEER = 1,
    WH_CU_IPC_BYTES = 64,
    WH_CU_HANDLE_FD = 1,
    WH_CU_LOCATION_DEVICE = 1,
    WH_CU_ACCESS_READ = 1,
};

typedef struct wh_cu_ipc_handle {
    char bytes[WH_CU_IPC_BYTES];
} wh_cu_ipc_handle;

/** Which device may access a mapping, and how. */
typedef struct wh_cu_access {
    int location_type;
    int device;
    int flags;
} wh_cu_access;

/** All functions that Wherry uses, as X(MEMBER, SYMBOL, ARGUMENTS). They return 0 or an error. */
#define WH_CUDA_CALLS(X)                                                                                               \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(error_name, cuGetErrorName, (int result, const char **name))                                                     \
    X(device_count, cuDeviceGetCount, (int *count))                                                                    \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                                             \
    X(device_uuid, cuDeviceGetUuid, (void *uuid, int device))                                                          \
    X(context_retain, cuDevicePrimaryCtxRetain, (wh_cu_context * context, int device))                                 \
    X(context_push, cuCtxPushCurrent_v2, (wh_cu_context context))                                                      \
    X(context_pop, cuCtxPopCurrent_v2, (wh_cu_context * context))                                                      \
    X(pointer_attribute, cuPointerGetAttribute, (void *data, int attribute, uint64_t address))                         \
    X(address_range, cuMemGetAddressRange_v2, (uint64_t * base, size_t * size, uint64_t address))                      \
    X(alloc, cuMemAlloc_v2, (uint64_t * address, size_t size))                                                         \
    X(free, cuMemFree_v2, (uint64_t address))                                                                          \
    X(host_alloc, cuMemHostAlloc, (void **memory, size_t size, unsigned flags))                                        \
    X(host_free, cuMemFreeHost, (void *memory))                                                                        \
    X(set_async, cuMemsetD8Async, (uint64_t address, unsigned char value, size_t size, wh_cu_stream stream))           \
    X(copy_async, cuMemcpyAsync, (uint64_t to, uint64_t from, size_t size, wh_cu_stream stream))                       \
    X(stream_create, cuStreamCreate, (wh_cu_stream * stream, unsigned flags))                                          \
    X(stream_destroy, cuStreamDestroy_v2, (wh_cu_stream stream))                                                       \
    X(stream_synchronize, cuStreamSynchronize, (wh_cu_stream stream))                                                  \
    X(stream_context, cuStreamGetCtx, (wh_cu_stream stream, wh_cu_context * context))                                  \
    X(event_create, cuEventCreate, (wh_cu_event * event, unsigned flags))                                              \
    X(event_destroy, cuEventDestroy_v2, (wh_cu_event event))                                                           \
    X(event_record, cuEventRecord, (wh_cu_event event, wh_cu_stream stream))                                           \
    X(event_query, cuEventQuery, (wh_cu_event event))                                                                  \
    X(module_load, cuModuleLoadData, (wh_cu_module * module, const void *image))                                       \
    X(module_function, cuModuleGetFunction, (wh_cu_function * function, wh_cu_module module, const char *name))        \
    X(launch, cuLaunchKernel,                                                                                          \
      (wh_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
       unsigned block_z, unsigned shared, wh_cu_stream stream, void **arguments, void **extra))                        \
    X(ipc_get, cuIpcGetMemHandle, (wh_cu_ipc_handle * handle, uint64_t address))                                       \
    X(ipc_open, cuIpcOpenMemHandle_v2, (uint64_t * address, wh_cu_ipc_handle handle, unsigned flags))                  \
    X(ipc_close, cuIpcCloseMemHandle, (uint64_t address))                                                              \
    X(handle_retain, cuMemRetainAllocationHandle, (uint64_t * handle, void *address))                                  \
    X(handle_release, cuMemRelease, (uint64_t handle))                                                                 \
    X(handle_export, cuMemExportToShareableHandle,                                                                     \
      (void *shared, uint64_t handle, int type, unsigned long long flags))                                             \
    X(handle_import, cuMemImportFromShareableHandle, (uint64_t * handle, void *shared, int type))                      \
    X(address_reserve, cuMemAddressReserve,                                                                            \
      (uint64_t * address, size_t size, size_t alignment, uint64_t wanted, unsigned long long flags))                  \
    X(address_free, cuMemAddressFree, (uint64_t address, size_t size))                                                 \
    X(map, cuMemMap, (uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags))        \
    X(unmap, cuMemUnmap, (uint64_t address, size_t size))                                                              \
    X(set_access, cuMemSetAccess, (uint64_t address, size_t size, const wh_cu_access *access, size_t count))

typedef struct wh_cuda_driver {
#define WH_X(member, symbol, arguments) int(*member) arguments;
    WH_CUDA_CALLS(WH_X)
#undef WH_X
} wh_cuda_driver;

/**
 * Returns the driver. Loads it on the first call. Any thread may call this.
 * @return NULL, with the reason in `error`, if there is no driver or no device.
 */
const wh_cuda_driver *wh_cuda_driver_find(wherry_error *error);

/**
 * Fills an error for a result of the driver. The text also says whether the context is broken.
 * @param doing  what failed, such as "cannot copy".
 * @return WHERRY_NO_MEMORY if the device is out of memory, else WHERRY_SYSTEM.
 */
wherry_status wh_cuda_fail(wherry_error *error, int result, const char *doing);

/**
 * Makes the primary context of a device current. After success, call wh_cuda_leave, which restores
 * the previous context.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if there is no driver or no device; WHERRY_INVALID_ARGUMENT
 * for an unknown device; WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_cuda_enter(int32_t device, const wh_cuda_driver **driver_p, wherry_error *error);

void wh_cuda_leave(const wh_cuda_driver *driver);

#endif
