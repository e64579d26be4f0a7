/**
 * @file ucx_station.h  A place from which one thread at a time talks over UCX: a context, a worker of it, and the connection to one peer's.
 *
 * Each has a context of its own: so nothing is shared between threads, and a UCX that was built without support for them will do.
 */
#ifndef WH_LANE_UCX_STATION_H
#define WH_LANE_UCX_STATION_H

#include "lane/lane.h"
#include "lane/ucx/ucx_library.h"
#include "lane/ucx/ucx_wire.h"

/** What UCX was asked to do. Belongs to whoever asked, and stays where it is until it is done. */
typedef struct wh_ucx_operation {
    struct wh_ucx_station *station;
    bool done; /**< Also where there is none. */
    ucs_status_t status;
} wh_ucx_operation;

/**
 * A message has come. Called within wh_ucx_turn.
 * @param data  the bytes, or with `rendezvous` what ucp_am_recv_data_nbx or ucp_am_data_release takes.
 * @return true: `data` was kept, which only one with `rendezvous` can be.
 */
typedef bool (*wh_ucx_message_fn)(void *context, const void *header, size_t header_size, void *data, size_t size,
                                  bool rendezvous);

/** The ways to a peer, in words. */
enum { WH_UCX_WAYS_MAX = 128 };

typedef struct wh_ucx_station {
    const wh_ucx_library *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_size;
    uint8_t *card;                    /**< The id, and behind it the address: what goes out with HELLO. */
    bool long_segments;               /**< As both sides have agreed. */
    uint8_t id[WH_UCX_ID_BYTES];      /**< Random. */
    uint8_t peer_id[WH_UCX_ID_BYTES]; /**< Of the station that it is connected with. */
    bool calls;                       /**< It is a source's. */
    bool clean;                       /**< Its last round went well: it may be used again. */
    uint8_t greeting_header[WH_UCX_HEADER_BYTES];
    wh_ucx_operation greeting;  /**< HELLO or WELCOME. Here, since it may outlive a transfer that failed. */
    int wake;                   /**< Readable when there is something to do, once it is armed. */
    ucp_ep_h peer;              /**< NULL: it is not connected. */
    ucs_status_t lost;          /**< Why the peer is; UCS_OK: it is not. */
    char ways[WH_UCX_WAYS_MAX]; /**< To the peer, in words; "": not asked for. */
    uint32_t pending;           /**< Operations that are not done. */
    uint32_t idle;              /**< Turns in which nothing happened. */
    uint8_t *scratch; /**< Memory to pack into, kept with the station: touching new memory takes longer than packing. */
    size_t scratch_bytes;
    uint32_t scratch_used; /**< A bit for each part that is. */
    wh_ucx_message_fn message;
    void *message_context;
    struct wh_ucx_station *next; /**< ucx_pool.h */
} wh_ucx_station;

/** @return WHERRY_OK; WHERRY_UNSUPPORTED where UCX finds nothing to talk over; WHERRY_NO_MEMORY, WHERRY_SYSTEM. Takes milliseconds. */
wherry_status wh_ucx_station_create(const wh_ucx_library *ucx, bool long_segments, wh_ucx_station **station_p,
                                    wherry_error *error);

/** @return false if the user has set the length of UCX's segments in the environment. */
bool wh_ucx_may_use_long_segments(void);

/** Disconnects it first. */
void wh_ucx_station_destroy(wh_ucx_station *station);

/**
 * Connects to a peer's station, unless it is connected with that one already; with another one, it is not any more. Does not wait: what cannot be reached becomes
 * `lost` later.
 */
wherry_status wh_ucx_station_connect(wh_ucx_station *station, const uint8_t id[WH_UCX_ID_BYTES], const void *address,
                                     int32_t rank, wherry_error *error);

/** Says HELLO, with this station's card, or WELCOME. */
void wh_ucx_station_greet(wh_ucx_station *station, wh_ucx_kind kind, const uint8_t token[WH_UCX_TOKEN_BYTES]);

/** Whether the peer was not lost meanwhile, as far as is known here. */
bool wh_ucx_station_alive(wh_ucx_station *station);

/**
 * Ends the connection at once; then no operation is under way any more, and no memory is touched. What had not moved is lost. Waits for no peer, but for what UCX
 * has to tidy up, a moment.
 */
void wh_ucx_station_disconnect(wh_ucx_station *station);

/** Lets UCX get on. Where it has nothing to do, waits for it or for the stop, a few milliseconds at most. */
void wh_ucx_turn(wh_ucx_station *station, const wh_stop *stop);

/** Sends a header and data, both kept by the caller until it is done. With `rendezvous`, the receiver says when and where to. */
void wh_ucx_send(wh_ucx_station *station, wh_ucx_operation *operation, const uint8_t header[WH_UCX_HEADER_BYTES],
                 const void *data, size_t size, bool rendezvous);

/** Takes what a message with `rendezvous` has. */
void wh_ucx_receive(wh_ucx_station *station, wh_ucx_operation *operation, void *data, void *to, size_t size);

/** What UCX takes to reach the peer, which has answered: "tcp/lo, cma/memory"; "" where it does not tell. The station's, as long as it is connected. */
const char *wh_ucx_station_ways(wh_ucx_station *station);

#endif
