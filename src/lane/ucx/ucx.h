/**
 * @file ucx.h  The state of the ucx lane. It is in a header so that tests can inspect it. ucx.c
 * explains how the lane works.
 */
#ifndef WH_LANE_UCX_UCX_H
#define WH_LANE_UCX_UCX_H

#include <stdatomic.h>

#include "lane/lane_common.h"
#include "lane/ucx/ucx_link.h"
#include "lane/ucx/ucx_wire.h"

enum {
    /**
     * Maximum number of pieces in flight per worker. Some pieces move while another is packed or
     * hashed.
     */
    WH_UCX_SLOTS = 8,
    /** Room for announced pieces per worker of a receiver. A correct source never fills it. */
    WH_UCX_QUEUE = 2 * WH_UCX_SLOTS,
    WH_UCX_SLOT_BYTES = WH_UCX_PIECE_MAX,           /**< Bytes of scratch memory per slot. */
    WH_UCX_DETAIL_MAX = WH_UCX_TRANSPORTS_MAX + 32, /**< Room for "UCX 1.22.0 over tcp/eth0". */
};

/**
 * If a receiver does not answer HELLO within this time, the lane is refused. This is a variable so
 * that tests can change it.
 */
extern uint32_t wh_ucx_meet_ms;

/** A piece that is being sent. */
typedef struct wh_ucx_outgoing {
    wh_ucx_operation operation;
    uint64_t chunk;
    size_t bytes;    /**< 0: the slot is free. */
    uint8_t *packed; /**< A part of the scratch memory; NULL: the piece is sent from the tensor. */
    uint8_t header[WH_UCX_HEADER_BYTES];
} wh_ucx_outgoing;

/** The state of a worker of a source. */
typedef struct wh_ucx_source {
    bool met;             /**< WELCOME has arrived. */
    bool ended;           /**< ENDED has arrived. */
    wh_segments segments; /**< The runs of the chunk that is being sent. */
    wh_run_cursor cursor; /**< The position of the next byte of this chunk to send. */
    uint64_t chunk;       /**< The number of this chunk. */
    uint64_t offset;      /**< How many bytes of this chunk were sent. */
    uint64_t chunks;      /**< Number of chunks sent in this round, without empty ones. */
    wh_ucx_outgoing slots[WH_UCX_SLOTS];
} wh_ucx_source;

/** A piece that the source has announced, and that this side has not begun to receive. */
typedef struct wh_ucx_announced {
    wh_ucx_header header;
    void *data;
    size_t bytes;
} wh_ucx_announced;

/** A chunk whose pieces are arriving. */
typedef struct wh_ucx_arriving {
    wh_landing landing;
    uint64_t begun;  /**< Bytes in pieces that have begun. */
    uint64_t landed; /**< Bytes in pieces that are complete. */
} wh_ucx_arriving;

/** A piece that is being received. */
typedef struct wh_ucx_incoming {
    wh_ucx_operation operation;
    wh_ucx_arriving *chunk;
    wh_run_cursor cursor; /**< The destination of its first byte. */
    size_t bytes;
    bool direct;          /**< Received directly into the tensor, not into scratch memory. */
    wherry_digest digest; /**< For the last piece of a chunk: the source's digest of the chunk. */
    uint8_t *to;          /**< Where UCX writes the bytes. */
} wh_ucx_incoming;

/**
 * The state of a worker of a receiver. `queue`, `slots` and `arriving` are ring buffers. Their
 * entries are in the order in which the source announced the pieces.
 */
typedef struct wh_ucx_receiver {
    uint8_t *hello; /**< Id and address of the source's link; NULL: HELLO has not arrived. */
    bool answered;  /**< WELCOME was sent. */
    uint8_t ended_header[WH_UCX_HEADER_BYTES];
    wh_ucx_operation ending; /**< The operation that sends ENDED. */
    const char *wrong;       /**< A violation of the protocol by the source; NULL: none. */
    bool ended;              /**< END has arrived. */
    uint64_t chunks;         /**< The number of chunks in this round, from END. */
    uint64_t closed;         /**< Number of chunks of this round that are complete. */
    wh_ucx_announced queue[WH_UCX_QUEUE];
    size_t queue_first;
    size_t queue_count;
    wh_ucx_incoming slots[WH_UCX_SLOTS];
    size_t slot_first;
    size_t slot_count;
    wh_ucx_arriving arriving[WH_UCX_SLOTS + 1];
    size_t arriving_first;
    size_t arriving_count;
    wh_run_cursor cursor; /**< The position in the chunk that was opened last. */
} wh_ucx_receiver;

struct wh_ucx_end;

/** A worker. Only one thread at a time may use it. */
typedef struct wh_ucx_worker {
    struct wh_ucx_end *end;
    wh_ucx_link *link;
    wh_digester *digester; /**< Created when first needed. */
    wh_deadline patience;  /**< When to give up if the peer makes no progress. */
    bool overdue;          /**< `patience` has passed once; WH_UCX_LAST_LOOK_MS is running. */
    union {
        wh_ucx_source *source;
        wh_ucx_receiver *receiver;
    };
} wh_ucx_worker;

/** The state of a source's end: has the receiver answered? See ucx.c. */
typedef enum wh_ucx_meeting { WH_UCX_CALLING, WH_UCX_MET, WH_UCX_REFUSED } wh_ucx_meeting;

typedef struct wh_ucx_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool is_source;
    uint8_t token[WH_UCX_TOKEN_BYTES];
    char detail[WH_UCX_DETAIL_MAX]; /**< Set by the first worker at the end of a round. */
    atomic_int meeting;             /**< A wh_ucx_meeting. Used only by a source. */
    wh_ucx_worker workers[WH_UCX_WORKERS_MAX];
} wh_ucx_end;

/** Call this when the peer has made progress. Restarts the time limit of the peer. */
void wh_ucx_note_progress(wh_ucx_worker *worker);

/**
 * Checks whether the worker may continue. @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_PEER_LOST or
 * WHERRY_TIMED_OUT.
 */
wherry_status wh_ucx_check(wh_ucx_worker *worker, wherry_error *error);

/** Handles a message for a receiver. Implements wh_ucx_message_fn; the context is the worker. */
bool wh_ucx_receiver_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                             bool rendezvous);

#endif
