/**
 * @file ucx_link.h  A link: a UCX context, one worker in it, and the connection to one link of a
 * peer.
 *
 * 1. One thread at a time uses a link, and links share nothing. A UCX without thread support is
 *    enough.
 * 2. Two links are never connected twice. UCX counts the connections between two workers on both
 *    sides, and if one side has missed one, the counts never match again. So a source uses a link
 *    for one link of one peer as long as the connection lasts.
 * 3. An operation's memory stays in use until it is done. After wh_ucx_link_disconnect no operation
 *    is pending, and UCX touches no memory of the caller any more.
 * 4. Nothing of UCX survives a fork: its threads and sockets do not exist in the child. Links that
 *    are kept are destroyed before a fork. If one is in use then, or if the program uses UCX
 *    itself, the child refuses to use UCX.
 *
 *     (none)    -> in use    wh_ucx_link_take: a new one
 *     in use    -> in use    wh_ucx_link_connect, wh_ucx_link_disconnect
 *     in use    -> kept      wh_ucx_link_give, if it is clean and connected
 *     kept      -> in use    wh_ucx_link_take, with the connection
 *     in use    -> (none)    wh_ucx_link_give, in all other cases
 *     kept      -> (none)    too many are kept; before a fork; at exit; the peer was lost
 */
#ifndef WH_LANE_UCX_LINK_H
#define WH_LANE_UCX_LINK_H

#include "lane/lane.h"
#include "lane/ucx/ucx_library.h"
#include "lane/ucx/ucx_wire.h"

/** A send or a receive. Belongs to the caller, and must not move until it is done. */
typedef struct wh_ucx_operation {
    struct wh_ucx_link *link;
    bool done;
    ucs_status_t status; /**< Valid if done. */
} wh_ucx_operation;

/**
 * A message has come. Called inside wh_ucx_link_progress.
 * @param data  the bytes; or, with `rendezvous`, a handle for wh_ucx_receive or
 *              ucp_am_data_release.
 * @return true if `data` is kept, which only a handle can be.
 */
typedef bool (*wh_ucx_message_fn)(void *context, const void *header, size_t header_size, void *data, size_t size,
                                  bool rendezvous);

/** Bytes of the text that names UCX's transports. */
enum { WH_UCX_TRANSPORTS_MAX = 128 };

typedef struct wh_ucx_link {
    const wh_ucx_library *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_size;
    bool long_segments;               /**< As both sides have agreed. */
    uint8_t id[WH_UCX_ID_BYTES];      /**< Random. */
    uint8_t peer_id[WH_UCX_ID_BYTES]; /**< Of the link that it is connected to. */
    uint8_t *hello;                   /**< The data of HELLO: the id, then the address. */
    bool of_source;                   /**< A source uses it, otherwise a receiver. */
    /** The last round was a success: the connection may be used again. */
    bool clean;
    uint8_t greeting_header[WH_UCX_HEADER_BYTES];
    /** HELLO or WELCOME. Part of the link because it may outlive a failed transfer. */
    wh_ucx_operation greeting;
    /** UCX's descriptor: readable if there is work to do, once the worker is armed. */
    int wake;
    ucp_ep_h peer;                          /**< NULL: not connected. */
    ucs_status_t lost;                      /**< Why the peer is lost; UCS_OK: it is not. */
    char transports[WH_UCX_TRANSPORTS_MAX]; /**< See wh_ucx_link_transports; "": not asked yet. */
    uint32_t pending;                       /**< Operations that are not done. */
    /** Calls of wh_ucx_link_progress in a row that found nothing to do. */
    uint32_t idle;
    /** For packed pieces. Kept with the link: touching fresh memory costs more than packing. */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint32_t scratch_used; /**< One bit per part. */
    wh_ucx_message_fn message;
    void *message_context;
    struct wh_ucx_link *next; /**< Among those that are kept. */
} wh_ucx_link;

/**
 * Takes a kept link, with its connection, or creates one, which takes about 6 ms. Any thread.
 * @param peer_id        SOURCE: id of the receiver's link, to find the link that is connected to
 *                       it. RECEIVER: NULL.
 * @param long_segments  as both sides have agreed.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the reason if UCX is missing or finds no transport;
 * WHERRY_NO_MEMORY; WHERRY_SYSTEM.
 */
wherry_status wh_ucx_link_take(const uint8_t *peer_id, bool long_segments, wh_ucx_link **link_p, wherry_error *error);

/**
 * Keeps a link for the next transfer if it is clean and connected, and destroys it otherwise. NULL
 * is allowed. Any thread.
 */
void wh_ucx_link_give(wh_ucx_link *link);

/** @return false if the user has set the length of UCX's segments in the environment. */
bool wh_ucx_may_use_long_segments(void);

/**
 * Connects to a peer's link, and disconnects from another one first. Does nothing if it is
 * connected to that one already. Does not wait: if the peer cannot be reached, `lost` is set later.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if UCX has no transport to it.
 */
wherry_status wh_ucx_link_connect(wh_ucx_link *link, const uint8_t id[WH_UCX_ID_BYTES], const void *address,
                                  int32_t rank, wherry_error *error);

/**
 * Closes the connection at once. Data that has not moved is lost. Does not wait for the peer, but
 * for UCX to clean up, about a second at most.
 */
void wh_ucx_link_disconnect(wh_ucx_link *link);

/** Sends HELLO or WELCOME. */
void wh_ucx_link_greet(wh_ucx_link *link, wh_ucx_kind kind, const uint8_t token[WH_UCX_TOKEN_BYTES]);

/**
 * Sends a header and data. Both stay the caller's, unchanged, until the operation is done. With
 * `rendezvous`, the data moves when the receiver asks for it.
 */
void wh_ucx_send(wh_ucx_link *link, wh_ucx_operation *operation, const uint8_t header[WH_UCX_HEADER_BYTES],
                 const void *data, size_t size, bool rendezvous);

/** Fetches the data of a message that came with `rendezvous`. */
void wh_ucx_receive(wh_ucx_link *link, wh_ucx_operation *operation, void *data, void *to, size_t size);

/**
 * Lets UCX work. If it has nothing to do, waits for it or for the stop, a few milliseconds at most.
 */
void wh_ucx_link_progress(wh_ucx_link *link, const wh_stop *stop);

/**
 * The transports to a peer that has answered, "tcp/lo, cma/memory"; "" if UCX does not tell. The
 * link's, until it disconnects.
 */
const char *wh_ucx_link_transports(wh_ucx_link *link);

#endif
