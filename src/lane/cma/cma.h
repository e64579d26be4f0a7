/**
 * @file cma.h  What the two files of the lane `cma` share. The receiver reads the source's memory
 * with process_vm_readv, or through /proc/PID/mem if that call is filtered. The source does nothing
 * while bytes move.
 *
 * 1. The process that is read is the one that sent the offer: its memory holds the nonce of the
 *    offer, and a pidfd shows after each read that it is still the same process.
 * 2. Reading is a copy by the kernel. Memory that the source has freed is an error here, and
 *    nothing else.
 *
 * On the wire, everything has a fixed size. An offer: version (1 byte), identity, address of the
 * nonce (8), nonce (32). A request for assistance: version, identity. Numbers are big endian.
 */
#ifndef WH_LANE_CMA_CMA_H
#define WH_LANE_CMA_CMA_H

#include "lane/lane_common.h"

enum {
    WH_CMA_VERSION = 2,
    WH_CMA_NONCE = 32,
    WH_CMA_REQUEST_BYTES = 1 + WH_IDENTITY_BYTES,
    WH_CMA_OFFER_BYTES = WH_CMA_REQUEST_BYTES + 8 + WH_CMA_NONCE,
};

typedef struct wh_cma_offer {
    wh_identity identity;
    uint64_t address; /**< Of the nonce, in the source's memory. */
    uint8_t nonce[WH_CMA_NONCE];
} wh_cma_offer;

/**
 * The nonce of this process. A child of fork() has another one. @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_cma_nonce(const uint8_t **nonce_p, wherry_error *error);

void wh_cma_append_offer(wh_string *string, const wh_cma_offer *offer);
void wh_cma_append_request(wh_string *string, const wh_identity *identity);

/** @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_BAD_VERSION. */
wherry_status wh_cma_parse_offer(const void *bytes, size_t size, wh_cma_offer *offer_p, wherry_error *error);
wherry_status wh_cma_parse_request(const void *bytes, size_t size, wh_identity *identity_p, wherry_error *error);

/** A process whose memory is read. */
typedef struct wh_cma_peer {
    int32_t process;
    int32_t rank;
    /**
     * Readable once the process has ended, so a later process with the same pid is not mistaken for
     * it.
     */
    int pidfd;
    int memory; /**< /proc/PID/mem, if that is read instead; else -1. */
} wh_cma_peer;

/**
 * @return WHERRY_OK; WHERRY_PEER_LOST if there is no such process; WHERRY_UNSUPPORTED,
 * WHERRY_SYSTEM.
 */
wherry_status wh_cma_peer_open(wh_cma_peer *peer, int32_t process, int32_t rank, wherry_error *error);

/** Does nothing for {.pidfd = -1, .memory = -1}. */
void wh_cma_peer_close(wh_cma_peer *peer);

/**
 * Runs of memory with the same total length at both sides. wh_cma_read removes from the front what
 * it has read.
 */
typedef struct wh_cma_batch {
    struct iovec *remote;
    struct iovec *local;
    size_t remote_count;
    size_t local_count;
} wh_cma_batch;

/**
 * Reads all of a batch, and checks that the process is still the same.
 * @param errnum_p  receives errno if the call fails, for wh_cma_refuse; may be NULL.
 * @return WHERRY_OK; WHERRY_PEER_LOST; WHERRY_REFUSED; WHERRY_UNSUPPORTED if the system has no such
 * call; WHERRY_OUT_OF_BOUNDS if the memory does not exist; WHERRY_NO_MEMORY; WHERRY_SYSTEM.
 */
wherry_status wh_cma_read(const wh_cma_peer *peer, wh_cma_batch *batch, int *errnum_p, wherry_error *error);

/** What is known about a refusal. */
typedef struct wh_cma_refusal {
    int32_t process;
    int32_t rank;
    int call_errnum;   /**< Of process_vm_readv. */
    int memory_errnum; /**< Of /proc/PID/mem. */
    int scope;         /**< Yama's ptrace_scope; -1: no Yama. */
    int64_t user;      /**< The user of the process; -1: unknown. */
    int64_t own_user;
    bool dumpable; /**< False if it is known not to be. */
} wh_cma_refusal;

/** Fills in scope, users and dumpable from /proc. */
void wh_cma_investigate(wh_cma_refusal *refusal);

/**
 * Explains the refusal and what to do. Sets *assist_p if the source can allow it. @return
 * WHERRY_REFUSED.
 */
wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error);

/** The pulling end. */
typedef struct wh_cma_end {
    wh_lane_end base;
    wh_cma_peer peer;
    const wh_stop *stop;
} wh_cma_end;

static inline wh_cma_end *wh_cma_end_of(wh_lane_end *end) {
    return (void *)end;
}

wherry_status wh_cma_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
