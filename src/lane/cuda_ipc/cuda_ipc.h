/**
 * @file cuda_ipc.h  Inside the cuda_ipc lane: what a source says of its device memory, and that memory as it is open here.
 *
 * An offer: a version (1 byte), flags (1), boot id (36), process (8), device (8) and inode (8) of its pid namespace, the nonce (32), its address (8), how many
 * devices (1) and for each its number (1) and its UUID (16), how many allocations (4) and for each its address (8), its size (8), the number of its device
 * (1), its kind (1) and its handle (64; of a mapping, the number of its descriptor (4) and zeros). Big endian. The nonce lies in the first allocation, which has
 * nothing else. A request for assistance: a version, boot id, process, device and inode.
 */
#ifndef WH_LANE_CUDA_IPC_CUDA_IPC_H
#define WH_LANE_CUDA_IPC_CUDA_IPC_H

#include "base/process.h"
#include "lane/lane_common.h"
#include "memory/cuda_share.h"

enum { WH_IPC_VERSION = 1, WH_IPC_NONCE = 32, WH_IPC_KEEPS = 1, WH_IPC_PLAIN = 0, WH_IPC_MAPPED = 1 };

typedef struct wh_ipc_offer {
    wh_identity identity;
    bool keeps; /**< The source's memory stays: what was opened may stay open. */
    uint8_t nonce[WH_IPC_NONCE];
    uint64_t nonce_address;
    size_t device_count;
    int32_t devices[WH_CUDA_DEVICES_MAX];
    uint8_t uuids[WH_CUDA_DEVICES_MAX][WH_CUDA_UUID_BYTES];
    wh_cuda_allocation *allocations; /**< `fd` is a number of the source's. */
    size_t allocation_count;
} wh_ipc_offer;

void wh_ipc_append_offer(wh_string *string, const wh_ipc_offer *offer);

void wh_ipc_append_request(wh_string *string, const wh_identity *receiver);

/** @return WHERRY_OK; WHERRY_MALFORMED. */
wherry_status wh_ipc_parse_request(const void *bytes, size_t size, wh_identity *receiver_p, wherry_error *error);

/** @param offer_p  its list is the caller's: wh_free. @return WHERRY_OK; WHERRY_MALFORMED, WHERRY_BAD_VERSION, WHERRY_NO_MEMORY. */
wherry_status wh_ipc_parse_offer(const void *bytes, size_t size, wh_ipc_offer *offer_p, wherry_error *error);

/** An allocation of the source's that is open here. */
typedef struct wh_ipc_window {
    uint64_t base; /**< At the source. */
    uint64_t size;
    char *data;                      /**< Here. */
    bool near;                       /**< The device that copies reaches it by itself. */
    struct wh_ipc_open_entry *entry; /**< What keeps it open; NULL: it is this process's own. */
} wh_ipc_window;

/** A process of which something is open here, or about to be. */
typedef struct wh_ipc_owner wh_ipc_owner;

/**
 * The process that an offer is of. What is kept of it and is not in the offer is closed.
 * @param process  its number here; 0: not known, and then nothing of it is kept.
 * @param owner_p  for wh_ipc_owner_give, when all windows are closed.
 */
wherry_status wh_ipc_owner_take(const wh_lane_site *site, const wh_ipc_offer *offer, int32_t process,
                                wh_ipc_owner **owner_p, wherry_error *error);

/** A pidfd of it, the owner's; -1: there is none. */
int wh_ipc_owner_pidfd(const wh_ipc_owner *owner);

/** owner may be NULL. */
void wh_ipc_owner_give(wh_ipc_owner *owner);

/**
 * Opens an allocation, or finds it open.
 * @param keeps  its owner has said that it stays: it may be kept beyond the last window, until a later offer lacks it, or it is forgotten.
 * @param fd     of a mapping, in this process; -1.
 */
wherry_status wh_ipc_open(wh_ipc_owner *owner, bool keeps, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_window *window_p, wherry_error *error);

/** Closes a window that nothing reads through any more. */
void wh_ipc_close(wh_ipc_window *window);

/** Closes what is kept of processes that are gone, and of a rank of a group. @param group  may be NULL. @param rank  -1: all. */
void wh_ipc_forget(const wh_group *group, int32_t rank, bool lost);

/** How many are open, used or kept: for tests. */
size_t wh_ipc_open_count(void);

/** The pulling end. */
typedef struct wh_ipc_end {
    wh_lane_end base;
    const wh_lane_site *site;
    int32_t device;         /**< That copies: the destination's, for which all windows are opened. */
    wh_ipc_owner *owner;    /**< Of the windows; NULL: this process. */
    bool refused;           /**< The kernel does not let this process fetch descriptors: the source may open that. */
    wh_ipc_window *windows; /**< By address at the source. */
    size_t window_count;
} wh_ipc_end;

static inline wh_ipc_end *wh_ipc_end_of(wh_lane_end *end) {
    return (wh_ipc_end *)(void *)end;
}

wherry_status wh_ipc_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
