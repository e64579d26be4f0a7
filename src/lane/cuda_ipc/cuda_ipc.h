/**
 * @file cuda_ipc.h  Declarations for the files of the cuda_ipc lane.
 *
 * An offer has, with sizes in bytes:
 * - version (1), flags (1), identity, nonce (32), address of the nonce (8)
 * - number of devices (1); for each device: number (1), UUID (16)
 * - number of allocations (4); for each allocation: address (8), size (8), device (1), kind (1),
 *   handle (64). The handle of a mapping is its file descriptor (4) and zeros.
 *
 * The first allocation is the one that contains the nonce. A request for assistance has the version
 * and the identity. Numbers are big-endian.
 */
#ifndef WH_LANE_CUDA_IPC_CUDA_IPC_H
#define WH_LANE_CUDA_IPC_CUDA_IPC_H

#include "base/process.h"
#include "lane/lane_common.h"
#include "memory/cuda_share.h"

enum { WH_IPC_VERSION = 1, WH_IPC_KEEPS = 1, WH_IPC_PLAIN = 0, WH_IPC_MAPPED = 1 };

typedef struct wh_ipc_offer {
    wh_identity identity;
    bool keeps; /**< The source keeps its memory allocated, so the receiver may keep it open. */
    uint8_t nonce[WH_NONCE_BYTES];
    uint64_t nonce_address;
    size_t device_count;
    int32_t devices[WH_CUDA_DEVICES_MAX];
    uint8_t uuids[WH_CUDA_DEVICES_MAX][WH_CUDA_UUID_BYTES];
    wh_cuda_allocation *allocations; /**< Each `fd` is a descriptor in the source's process. */
    size_t allocation_count;
} wh_ipc_offer;

void wh_ipc_append_offer(wh_string *string, const wh_ipc_offer *offer);

void wh_ipc_append_request(wh_string *string, const wh_identity *receiver);

/** Parses a request for assistance. @return WHERRY_OK; WHERRY_MALFORMED. */
wherry_status wh_ipc_parse_request(const void *bytes, size_t size, wh_identity *receiver_p, wherry_error *error);

/**
 * Parses an offer, which may be hostile.
 * @param offer_p  the caller frees its `allocations` with wh_free.
 * @return WHERRY_OK; WHERRY_MALFORMED, WHERRY_BAD_VERSION, WHERRY_NO_MEMORY.
 */
wherry_status wh_ipc_parse_offer(const void *bytes, size_t size, wh_ipc_offer *offer_p, wherry_error *error);

/** An allocation of the source that is open in this process. */
typedef struct wh_ipc_window {
    uint64_t base; /**< Its address in the source's process. */
    uint64_t size;
    char *data;  /**< Its address in this process. */
    bool direct; /**< True if the copying device can access it directly. */
    /** Keeps the allocation open; NULL if the allocation belongs to this process. */
    struct wh_ipc_open_entry *entry;
} wh_ipc_window;

/** Another process whose memory is open in this process, or will be opened. */
typedef struct wh_ipc_owner wh_ipc_owner;

/**
 * Finds or adds the owner of the memory in an offer. Closes the owner's cached allocations that are
 * not in the offer. Closes all of them if the offer does not promise to keep the memory.
 * @param process  the owner's pid in this process's pid namespace; 0: unknown. Allocations of a new
 *                 owner without a pid are not cached.
 * @param owner_p  give it back with wh_ipc_owner_give when all windows are closed.
 */
wherry_status wh_ipc_owner_take(const wh_lane_site *site, const wh_ipc_offer *offer, int32_t process,
                                wh_ipc_owner **owner_p, wherry_error *error);

/** Returns the pidfd of the process; -1 if there is none. Do not close it. */
int wh_ipc_owner_pidfd(const wh_ipc_owner *owner);

/** Gives an owner back. `owner` may be NULL. */
void wh_ipc_owner_give(wh_ipc_owner *owner);

/**
 * Opens an allocation, or reuses it if it is already open.
 * @param keeps  true if the source keeps the memory allocated. The allocation may then stay open
 *               after its last window is closed, until wh_ipc_owner_take or wh_ipc_forget closes
 *               it.
 * @param fd     for a mapping, its descriptor, duplicated into this process. Otherwise -1.
 */
wherry_status wh_ipc_open(wh_ipc_owner *owner, bool keeps, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_window *window_p, wherry_error *error);

/** Closes a window. All copies from it must be done. */
void wh_ipc_close(wh_ipc_window *window);

/**
 * Implements wh_lane_ops.forget. Closes the cached allocations of processes that have ended, and
 * those of the given rank.
 * @param group  NULL: no rank is given.
 * @param rank   -1: all ranks of the group.
 * @param lost   not used.
 */
void wh_ipc_forget(const wh_group *group, int32_t rank, bool lost);

/** For tests: returns the number of open allocations. */
size_t wh_ipc_open_count(void);

/** The receiver's end of the lane. */
typedef struct wh_ipc_end {
    wh_lane_end base;
    const wh_lane_site *site;
    /**
     * The device that copies. It holds tensors of the destination, unless these are all in host
     * memory. All windows are opened for this device.
     */
    int32_t device;
    wh_ipc_owner *owner; /**< The process that owns the windows; NULL: this process. */
    /**
     * The kernel refused to duplicate a descriptor. The source may be able to allow the
     * duplication.
     */
    bool refused;
    wh_ipc_window *windows; /**< Sorted by `base`. */
    size_t window_count;
} wh_ipc_end;

static inline wh_ipc_end *wh_ipc_end_of(wh_lane_end *end) {
    return (wh_ipc_end *)(void *)end;
}

wherry_status wh_ipc_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
