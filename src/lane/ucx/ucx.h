/**
 * @file ucx.h  State of the lane `ucx`. A header of its own only because tests look inside; ucx.c
 * has the explanation.
 */
#ifndef WH_LANE_UCX_UCX_H
#define WH_LANE_UCX_UCX_H

#include <stdatomic.h>

#include "lane/lane_common.h"
#include "lane/ucx/ucx_link.h"
#include "lane/ucx/ucx_wire.h"

enum {
    WH_UCX_SLOTS = 8, /**< Pieces in flight per worker: some move while one is packed or hashed. */
    /** Announced pieces that a receiver's worker keeps. A source has fewer in flight. */
    WH_UCX_QUEUE = 2 * WH_UCX_SLOTS,
    WH_UCX_PART = WH_UCX_PIECE_MAX, /**< Bytes of scratch memory per slot. */
    /** Before a peer is given up: the limit may have passed while this process was stopped. */
    WH_UCX_LAST_LOOK_MS = 50,
    WH_UCX_DETAIL_MAX = WH_UCX_TRANSPORTS_MAX + 32, /**< Bytes of "UCX 1.22.0 over tcp/eth0". */
};

/**
 * How long a receiver has to answer HELLO. After that, the lane is refused. A variable for tests.
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

/** A source's worker. */
typedef struct wh_ucx_source {
    bool met;             /**< WELCOME has come. */
    bool ended;           /**< ENDED has come. */
    wh_segments segments; /**< The chunk that is being sent, */
    wh_run_cursor cursor; /**< and the position in it, */
    uint64_t chunk;       /**< its number, */
    uint64_t offset;      /**< and how many of its bytes were sent. */
    uint64_t chunks;      /**< Chunks of this round, except empty ones. */
    wh_ucx_outgoing slots[WH_UCX_SLOTS];
} wh_ucx_source;

/** A piece that was announced and not begun. */
typedef struct wh_ucx_announced {
    wh_ucx_header header;
    void *data;
    size_t bytes;
} wh_ucx_announced;

/** A chunk whose pieces are arriving. */
typedef struct wh_ucx_arriving {
    wh_landing landing;
    uint64_t begun;  /**< Bytes whose pieces have been begun. */
    uint64_t landed; /**< Bytes whose pieces have landed. */
} wh_ucx_arriving;

/** A piece that is being received. */
typedef struct wh_ucx_incoming {
    wh_ucx_operation operation;
    wh_ucx_arriving *chunk;
    wh_run_cursor cursor; /**< Where it belongs. */
    size_t bytes;
    bool direct;      /**< It is received in place; otherwise into scratch memory. */
    wh_digest digest; /**< Last piece of a chunk: the digest that the source claims. */
    uint8_t *to;      /**< Where it is received. */
} wh_ucx_incoming;

/**
 * A receiver's worker. The queue, the slots and the chunks are rings, each in the order of
 * announcement.
 */
typedef struct wh_ucx_receiver {
    uint8_t *hello; /**< Id and address of the source's link; NULL: HELLO has not come. */
    bool answered;  /**< WELCOME was sent. */
    uint8_t ended_header[WH_UCX_HEADER_BYTES];
    wh_ucx_operation ending; /**< ENDED. */
    const char *wrong;       /**< A violation of the protocol by the source; NULL: none. */
    bool ended;              /**< END has come, */
    uint64_t chunks;         /**< and says that there are so many. */
    uint64_t closed;         /**< Chunks of this round that have landed. */
    wh_ucx_announced queue[WH_UCX_QUEUE];
    size_t queue_first;
    size_t queue_count;
    wh_ucx_incoming slots[WH_UCX_SLOTS];
    size_t slot_first;
    size_t slot_count;
    wh_ucx_arriving arriving[WH_UCX_SLOTS + 1];
    size_t arriving_first;
    size_t arriving_count;
    wh_run_cursor cursor; /**< In the chunk that was opened last. */
} wh_ucx_receiver;

struct wh_ucx_end;

/** Used by one thread at a time. */
typedef struct wh_ucx_worker {
    struct wh_ucx_end *end;
    wh_ucx_link *link;
    wh_digester *digester; /**< Created when first needed. */
    wh_deadline patience;  /**< When a peer that makes no progress is given up. */
    bool overdue;          /**< `patience` has passed, and the last look has begun. */
    union {
        wh_ucx_source *source;
        wh_ucx_receiver *receiver;
    };
} wh_ucx_worker;

/** Of a source's end. */
typedef enum wh_ucx_meeting { WH_UCX_CALLING, WH_UCX_MET, WH_UCX_REFUSED } wh_ucx_meeting;

typedef struct wh_ucx_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool is_source;
    uint8_t token[WH_UCX_TOKEN_BYTES];
    char detail[WH_UCX_DETAIL_MAX]; /**< Set by the first worker at the end of a round. */
    atomic_int meeting;             /**< wh_ucx_meeting */
    wh_ucx_worker workers[WH_UCX_WORKERS_MAX];
} wh_ucx_end;

/** The peer has moved something: its limit starts anew. */
void wh_ucx_note_progress(wh_ucx_worker *worker);

/** @return WHERRY_OK to go on; WHERRY_CANCELLED, WHERRY_PEER_LOST or WHERRY_TIMED_OUT. */
wherry_status wh_ucx_check(wh_ucx_worker *worker, wherry_error *error);

/** A message for a receiver: wh_ucx_message_fn, with the worker as context. */
bool wh_ucx_receiver_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                             bool rendezvous);

#endif
