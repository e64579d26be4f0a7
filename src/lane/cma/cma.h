/**
 * @file cma.h  Inside the cma lane: who a process is, reading its memory, and why it could not be read.
 *
 * What goes over the wire is of fixed size. An offer: a version (1 byte), the identity, the address of the nonce (8), the nonce (32). A request for
 * assistance: a version, the identity. Numbers are big endian.
 */
#ifndef WH_LANE_CMA_CMA_H
#define WH_LANE_CMA_CMA_H

#include "base/process.h"
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

/** This process's nonce, which lives as long as the process and is not inherited by a fork. @return WHERRY_OK; WHERRY_SYSTEM. */
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
    int pidfd; /**< Readable from the process's end on; so a process that got the same number later is never taken for it. */
    int memory; /**< /proc/PID/mem where that is read instead, else -1. */
} wh_cma_peer;

/** @return WHERRY_OK; WHERRY_PEER_LOST where there is no such process; WHERRY_UNSUPPORTED, WHERRY_SYSTEM. */
wherry_status wh_cma_peer_open(wh_cma_peer *peer, int32_t process, int32_t rank, wherry_error *error);

/** On {.pidfd = -1, .memory = -1} it does nothing. */
void wh_cma_peer_close(wh_cma_peer *peer);

/** Runs of memory of the same length in all at both sides, of which the front is cut off as it is read. */
typedef struct wh_cma_batch {
    struct iovec *remote;
    struct iovec *local;
    size_t remote_count;
    size_t local_count;
} wh_cma_batch;

/**
 * Reads all of a batch, and sees that the process is still the one it was.
 * @param errnum_p  errno where it was refused, for wh_cma_refuse; may be NULL. Written on failure too.
 * @return WHERRY_OK; WHERRY_PEER_LOST; WHERRY_REFUSED; WHERRY_UNSUPPORTED where the system has no such call; WHERRY_OUT_OF_BOUNDS where memory is not
 * there; WHERRY_NO_MEMORY; WHERRY_SYSTEM.
 */
wherry_status wh_cma_read(const wh_cma_peer *peer, wh_cma_batch *batch, int *errnum_p, wherry_error *error);

/** What is known of a refusal. */
typedef struct wh_cma_refusal {
    int32_t process;
    int32_t rank;
    int call_errnum;   /**< Of process_vm_readv. */
    int memory_errnum; /**< Of /proc/PID/mem. */
    int scope;         /**< Yama's ptrace_scope; -1: there is none. */
    int64_t user;      /**< Whose process it is; -1: unknown. */
    int64_t own_user;
    bool dumpable; /**< False where it is known not to be. */
} wh_cma_refusal;

/** Fills in scope, users and dumpable from what /proc tells. */
void wh_cma_investigate(wh_cma_refusal *refusal);

/** Says why, and what to do. *assist_p is set where the source can open the door. @return WHERRY_REFUSED. */
wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error);

wherry_status wh_cma_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

/** The pulling end. */
typedef struct wh_cma_end {
    wh_lane_end base;
    wh_cma_peer peer;
    const wh_stop *stop;
} wh_cma_end;

/** The whole of an end of this lane. */
static inline wh_cma_end *wh_cma_end_of(wh_lane_end *end) {
    return (void *)end;
}

#endif
