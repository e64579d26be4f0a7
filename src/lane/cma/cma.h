/**
 * @file cma.h  Declarations for the two files of the cma lane. The receiver reads the source's
 * memory with process_vm_readv. If a system call filter blocks that call, the receiver reads
 * /proc/PID/mem instead. The source does nothing while bytes move.
 *
 * 1. The receiver reads only the process that sent the offer. It first checks that the memory of
 *    the process contains the nonce of the offer. After each read, it checks with the pidfd that
 *    the process is still running.
 * 2. The kernel copies the bytes. If the memory does not exist any more at the source, the read
 *    fails with an error, and neither process crashes.
 *
 * All messages have a fixed size. An offer has the version (1 byte), the identity, the address of
 * the nonce (8) and the nonce (32). A request for assistance has the version and the identity.
 * Numbers are big-endian.
 */
#ifndef WH_LANE_CMA_CMA_H
#define WH_LANE_CMA_CMA_H

#include "lane/lane_common.h"

enum {
    WH_CMA_VERSION = 2,
    WH_CMA_REQUEST_BYTES = 1 + WH_IDENTITY_BYTES,
    WH_CMA_OFFER_BYTES = WH_CMA_REQUEST_BYTES + 8 + WH_NONCE_BYTES,
};

typedef struct wh_cma_offer {
    wh_identity identity;
    uint64_t address; /**< The address of the nonce in the source's memory. */
    uint8_t nonce[WH_NONCE_BYTES];
} wh_cma_offer;

void wh_cma_append_offer(wh_string *string, const wh_cma_offer *offer);
void wh_cma_append_request(wh_string *string, const wh_identity *identity);

/** These functions parse messages. @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_BAD_VERSION. */
wherry_status wh_cma_parse_offer(const void *bytes, size_t size, wh_cma_offer *offer_p, wherry_error *error);
wherry_status wh_cma_parse_request(const void *bytes, size_t size, wh_identity *identity_p, wherry_error *error);

/** A process whose memory this process reads. */
typedef struct wh_cma_peer {
    int32_t process;
    int32_t rank;
    /**
     * poll() reports this descriptor as readable once the process has ended. So a later process
     * with the same pid is not mistaken for this one.
     */
    int pidfd;
    int memory; /**< Descriptor of /proc/PID/mem; -1: use process_vm_readv. */
} wh_cma_peer;

/**
 * Opens a pidfd of the process. @return WHERRY_OK; WHERRY_PEER_LOST if there is no such process;
 * WHERRY_UNSUPPORTED, WHERRY_SYSTEM.
 */
wherry_status wh_cma_peer_open(wh_cma_peer *peer, int32_t process, int32_t rank, wherry_error *error);

/** Closes the descriptors. Descriptors that are -1 are ignored. */
void wh_cma_peer_close(wh_cma_peer *peer);

/**
 * Lists of runs with the same total length on both sides. wh_cma_read removes the bytes that it has
 * read from the front of both lists.
 */
typedef struct wh_cma_batch {
    struct iovec *remote;
    struct iovec *local;
    size_t remote_count;
    size_t local_count;
} wh_cma_batch;

/**
 * Reads all of a batch. Then checks that the process is still running.
 * @param errnum_p  receives errno if the system call fails; may be NULL.
 * @return WHERRY_OK; WHERRY_PEER_LOST; WHERRY_REFUSED; WHERRY_UNSUPPORTED if the system does not
 * have process_vm_readv; WHERRY_OUT_OF_BOUNDS if the memory of one side does not exist;
 * WHERRY_NO_MEMORY; WHERRY_SYSTEM.
 */
wherry_status wh_cma_read(const wh_cma_peer *peer, wh_cma_batch *batch, int *errnum_p, wherry_error *error);

/** Why the kernel may have refused to let this process read another process. */
typedef struct wh_cma_refusal {
    int32_t process;
    int32_t rank;
    int call_errnum;   /**< The errno of process_vm_readv. */
    int memory_errnum; /**< The errno of opening or reading /proc/PID/mem. */
    int scope;         /**< Yama's ptrace_scope; -1: the kernel has no Yama. */
    int64_t user;      /**< The effective user of the other process; -1: unknown. */
    int64_t own_user;
    bool dumpable; /**< False only if /proc shows that the other process is not dumpable. */
} wh_cma_refusal;

/** Fills in the members scope, user, own_user and dumpable from /proc. */
void wh_cma_investigate(wh_cma_refusal *refusal);

/**
 * Fills an error that explains the refusal and says what to do. Sets *assist_p to true if the
 * source may be able to allow the read. @return WHERRY_REFUSED.
 */
wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error);

/** The receiver's end of the lane. */
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
