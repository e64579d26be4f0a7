/**
 * @file cuda_ipc.h  What the files of the lane `cuda_ipc` share.
 *
 * An offer: version (1 byte), flags (1), identity, nonce (32), address of the nonce (8), number of
 * devices (1), per device its number (1) and its UUID (16), number of allocations (4), per
 * allocation its address (8), size (8), device (1), kind (1) and handle (64; of a mapping, the
 * descriptor (4) and zeros). The nonce is in the first allocation, which contains nothing else. A
 * request for assistance: version, identity. Numbers are big endian.
 */
#ifndef WH_LANE_CUDA_IPC_CUDA_IPC_H
#define WH_LANE_CUDA_IPC_CUDA_IPC_H

#include "base/process.h"
#include "lane/lane_common.h"
#include "memory/cuda_share.h"

enum { WH_IPC_VERSION = 1, WH_IPC_NONCE = 32, WH_IPC_KEEPS = 1, WH_IPC_PLAIN = 0, WH_IPC_MAPPED = 1 };

typedef struct wh_ipc_offer {
    wh_identity identity;
    bool keeps; /**< The source's memory stays allocated, so it may stay open here. */
    uint8_t nonce[WH_IPC_NONCE];
    uint64_t nonce_address;
    size_t device_count;
    int32_t devices[WH_CUDA_DEVICES_MAX];
    uint8_t uuids[WH_CUDA_DEVICES_MAX][WH_CUDA_UUID_BYTES];
    wh_cuda_allocation *allocations; /**< `fd` is a descriptor of the source. */
    size_t allocation_count;
} wh_ipc_offer;

void wh_ipc_append_offer(wh_string *string, const wh_ipc_offer *offer);

void wh_ipc_append_request(wh_string *string, const wh_identity *receiver);

/** @return WHERRY_OK; WHERRY_MALFORMED. */
wherry_status wh_ipc_parse_request(const void *bytes, size_t size, wh_identity *receiver_p, wherry_error *error);

/**
 * @param offer_p  the caller frees its allocations by wh_free. @return WHERRY_OK; WHERRY_MALFORMED,
 *                 WHERRY_BAD_VERSION, WHERRY_NO_MEMORY.
 */
wherry_status wh_ipc_parse_offer(const void *bytes, size_t size, wh_ipc_offer *offer_p, wherry_error *error);

/** An allocation of the source that is open here. */
typedef struct wh_ipc_window {
    uint64_t base; /**< Its address at the source. */
    uint64_t size;
    char *data;                      /**< Its address here. */
    bool direct;                     /**< The copying device can access it directly. */
    struct wh_ipc_open_entry *entry; /**< Keeps it open; NULL: memory of this process. */
} wh_ipc_window;

/** A process some of whose memory is open here, or about to be. */
typedef struct wh_ipc_owner wh_ipc_owner;

/**
 * Finds or adds the process of an offer. Closes what is kept of it but not in the offer.
 * @param process  its pid here; 0: unknown, then nothing of it is kept.
 * @param owner_p  give it back by wh_ipc_owner_give when all windows are closed.
 */
wherry_status wh_ipc_owner_take(const wh_lane_site *site, const wh_ipc_offer *offer, int32_t process,
                                wh_ipc_owner **owner_p, wherry_error *error);

/** Its pidfd, which stays the owner's; -1: none. */
int wh_ipc_owner_pidfd(const wh_ipc_owner *owner);

/** owner may be NULL. */
void wh_ipc_owner_give(wh_ipc_owner *owner);

/**
 * Opens an allocation, or finds it open.
 * @param keeps  the source keeps it allocated: it may stay open beyond the last window, until a
 *               later offer lacks it or it is forgotten.
 * @param fd     of a mapping, in this process; else -1.
 */
wherry_status wh_ipc_open(wh_ipc_owner *owner, bool keeps, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_window *window_p, wherry_error *error);

/** Closes a window that is not in use. */
void wh_ipc_close(wh_ipc_window *window);

/**
 * Closes what is kept of processes that have ended, and of a rank of a group. @param group  may be
 * NULL. @param rank  -1: all.
 */
void wh_ipc_forget(const wh_group *group, int32_t rank, bool lost);

/** How many allocations are open. For tests. */
size_t wh_ipc_open_count(void);

/** The pulling end. */
typedef struct wh_ipc_end {
    wh_lane_end base;
    const wh_lane_site *site;
    /** The device that copies: the destination's. All windows are opened for it. */
    int32_t device;
    wh_ipc_owner *owner; /**< Of the windows; NULL: this process. */
    /** The kernel refused to duplicate a descriptor; the source may be able to allow it. */
    bool refused;
    wh_ipc_window *windows; /**< Sorted by address at the source. */
    size_t window_count;
} wh_ipc_end;

static inline wh_ipc_end *wh_ipc_end_of(wh_lane_end *end) {
    return (wh_ipc_end *)(void *)end;
}

wherry_status wh_ipc_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
