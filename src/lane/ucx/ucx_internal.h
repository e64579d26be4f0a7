/** @file ucx_internal.h  What the files of the lane `ucx` share: its ends. */
#ifndef WH_LANE_UCX_INTERNAL_H
#define WH_LANE_UCX_INTERNAL_H

#include <stdatomic.h>

#include "lane/run_cursor.h"
#include "lane/ucx/ucx_pool.h"
#include "lane/ucx/ucx_wire.h"

/**
 * Pieces that are under way at once, a worker: while one is packed or hashed, the others move. A run that is shorter than WH_UCX_DIRECT is packed with its
 * neighbours into pieces that are still in the cache when they go out: hence there are few of these at once, though long ones, since each takes UCX some
 * messages, whatever its length.
 */
enum { WH_UCX_SLOTS = 8, WH_UCX_DIRECT = 64 << 10 };

/** How long such a piece is at most, WH_UCX_PART or less, and how many are under way at once. */
typedef struct wh_ucx_packing {
    size_t bytes;
    int most;
} wh_ucx_packing;

/** A part of the memory that pieces are packed into, and land in. */
enum { WH_UCX_PART = WH_UCX_PIECE_MAX };

/** How many pieces a receiver keeps that were announced and not begun. A source has no more than its slots under way. */
enum { WH_UCX_QUEUE = 2 * WH_UCX_SLOTS };

/** What UCX chose, in words. */
enum { WH_UCX_CHOSEN_MAX = WH_UCX_WAYS_MAX + 32 };

/**
 * How long a receiver has to answer the first message. Where it does not, there is no way to it: the lane is refused, and the next one tried. A variable for
 * tests.
 */
extern uint32_t wh_ucx_meet_ms;

/** The last moment of a peer that is to be given up: the limit may have passed while this process did not run. */
enum { WH_UCX_LAST_MS = 50 };

/** A piece that is on its way from here. */
typedef struct wh_ucx_outgoing {
    wh_ucx_operation operation;
    uint64_t chunk;
    size_t bytes;    /**< 0: the slot is free. */
    uint8_t *packed; /**< Where it was packed; NULL: it lies where it belongs. */
    uint8_t header[WH_UCX_HEADER_BYTES];
} wh_ucx_outgoing;

/** What a source's worker has. */
typedef struct wh_ucx_pusher {
    bool met;             /**< WELCOME has come. */
    bool ended;           /**< ENDED has come. */
    wh_segments segments; /**< Of the chunk that is being sent, */
    wh_run_cursor cursor; /**< and how far it is. */
    uint64_t chunk;
    uint64_t offset;
    uint64_t chunks; /**< Begun in this round. */
    wh_ucx_packing packing;
    wh_ucx_outgoing slots[WH_UCX_SLOTS];
} wh_ucx_pusher;

/** A piece that was announced. */
typedef struct wh_ucx_announced {
    wh_ucx_header header;
    void *data;
    size_t bytes;
} wh_ucx_announced;

/** A chunk that is landing. */
typedef struct wh_ucx_arriving {
    wh_landing landing;
    uint64_t begun;  /**< Bytes whose pieces are under way or have landed. */
    uint64_t landed; /**< Bytes. */
} wh_ucx_arriving;

/** A piece that is on its way to here. */
typedef struct wh_ucx_incoming {
    wh_ucx_operation operation;
    wh_ucx_arriving *chunk;
    wh_run_cursor cursor; /**< Where it lands. */
    size_t bytes;
    bool direct;      /**< It goes to where it belongs; else by way of scratch. */
    wh_digest digest; /**< The last piece's: of the chunk, as the source says. */
    uint8_t *to;      /**< Where it goes: there, or a part of the station's scratch. */
} wh_ucx_incoming;

/** What a receiver's worker has. Pieces are begun, and end, in the order in which they were announced; so do chunks. */
typedef struct wh_ucx_puller {
    uint8_t *hello; /**< The id and the address of the source's station; NULL: they have not come. */
    bool answered;  /**< WELCOME was sent. */
    uint8_t over[WH_UCX_HEADER_BYTES];
    wh_ucx_operation ending;
    const char *wrong; /**< What the source did that it must not; NULL: nothing. */
    bool ended;        /**< END has come, */
    uint64_t chunks;   /**< after so many chunks. */
    uint64_t closed;   /**< Chunks of this round that have landed. */
    wh_ucx_announced queue[WH_UCX_QUEUE];
    size_t queue_first;
    size_t queue_count;
    wh_ucx_incoming slots[WH_UCX_SLOTS];
    size_t slot_first;
    size_t slot_count;
    wh_ucx_arriving arriving[WH_UCX_SLOTS + 1];
    size_t arriving_first;
    size_t arriving_count;
    wh_run_cursor cursor; /**< In the chunk that was begun last. */
} wh_ucx_puller;

struct wh_ucx_end;

/** One worker of an end: used by one thread at a time. */
typedef struct wh_ucx_worker {
    struct wh_ucx_end *end;
    wh_ucx_station *station;
    wh_digester *digester; /**< Made when first needed. */
    wh_deadline patience;  /**< When a peer that moves nothing is given up. */
    bool overdue;          /**< It was to be, and has a last moment. */
    union {
        wh_ucx_pusher *push; /**< A source's. */
        wh_ucx_puller *pull; /**< A receiver's. */
    };
} wh_ucx_worker;

/** Whether bytes may move: once one worker has met its counterpart, the lane cannot be refused any more. */
typedef enum wh_ucx_meeting { WH_UCX_CALLING, WH_UCX_MET, WH_UCX_REFUSED } wh_ucx_meeting;

typedef struct wh_ucx_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool pushes;
    uint8_t token[WH_UCX_TOKEN_BYTES];
    char chosen[WH_UCX_CHOSEN_MAX]; /**< By the first worker, at the end of a round. */
    atomic_int meeting;             /**< A source's: wh_ucx_meeting. */
    wh_ucx_worker workers[WH_UCX_WORKERS_MAX];
} wh_ucx_end;

/** The lane's operations: lane.h. */
wherry_status wh_ucx_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_ucx_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

/** Messages for either side: wh_ucx_message_fn, with the worker. */
bool wh_ucx_push_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                         bool rendezvous);
bool wh_ucx_pull_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                         bool rendezvous);

/** Releases what a worker has beyond its station. */
void wh_ucx_pusher_destroy(wh_ucx_pusher *push);
void wh_ucx_puller_destroy(wh_ucx_puller *pull);

/**
 * Takes WH_UCX_PART bytes of the station's scratch memory, for a piece in a slot: those of all that are free that come first, since the others may be in no
 * cache. Gives them back. @return NULL where there is no memory.
 */
uint8_t *wh_ucx_scratch_take(wh_ucx_worker *worker);
void wh_ucx_scratch_give(wh_ucx_worker *worker, const uint8_t *part);

/** Begins a round: the digester, where it is verified, and patience. */
wherry_status wh_ucx_begin_round(wh_ucx_worker *worker, bool verify, wherry_error *error);

/** Why the work must not go on: the stop, the deadline, a peer that is lost or does not get on. */
wherry_status wh_ucx_must_end(wh_ucx_worker *worker, wherry_error *error);

/** WHERRY_PEER_LOST, with UCX's reason. */
wherry_status wh_ucx_fail_lost(const wh_ucx_worker *worker, ucs_status_t why, wherry_error *error);

/** A peer has moved something. */
void wh_ucx_got_on(wh_ucx_worker *worker);

/** Notes what UCX chose, and says so: once. */
void wh_ucx_note_chosen(wh_ucx_worker *worker);

#endif
