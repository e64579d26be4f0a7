/**
 * @file ucx_link.h  A link: a UCX context, one worker in it, and the connection to one link of a
 * peer.
 *
 * 1. Only one thread at a time uses a link, and links share no state. So UCX needs no thread
 *    support.
 * 2. The same two links never connect twice. UCX counts the connections between two workers on both
 *    sides. If one side misses a connection, the counts never match again. So a link of a source
 *    stays connected to the same link of the receiver.
 * 3. The memory of an operation is in use until the operation is done. wh_ucx_link_disconnect ends
 *    all operations, and UCX does not access the caller's memory afterwards. If UCX does not end an
 *    operation in time, the link is never freed.
 * 4. UCX does not survive a fork, because its threads and sockets do not exist in the child. Cached
 *    links are destroyed before a fork, unless another link is in use. If a link is in use during a
 *    fork, or if the program had loaded UCX before Wherry did, the child refuses to use UCX.
 *
 *     (none)    -> in use    wh_ucx_link_take, for a new link
 *     in use    -> in use    wh_ucx_link_connect, wh_ucx_link_disconnect
 *     in use    -> cached    wh_ucx_link_give, if the link is clean and connected
 *     cached    -> in use    wh_ucx_link_take; the link is still connected
 *     in use    -> (none)    wh_ucx_link_give, in all other cases
 *     cached    -> (none)    if too many are cached; before a fork; at exit; if the peer is lost
 */
#ifndef WH_LANE_UCX_LINK_H
#define WH_LANE_UCX_LINK_H

#include "lane/lane.h"
#include "lane/ucx/ucx_library.h"
#include "lane/ucx/ucx_wire.h"

/** A send or a receive. The caller owns it, and must not move it in memory until it is done. */
typedef struct wh_ucx_operation {
    struct wh_ucx_link *link;
    bool done;
    ucs_status_t status; /**< Valid if `done` is set. */
} wh_ucx_operation;

/**
 * Handles a message that has arrived. Called inside wh_ucx_link_progress.
 * @param data  the bytes. With `rendezvous`, a handle for wh_ucx_receive or ucp_am_data_release.
 * @return true if the function keeps `data`. Only a handle can be kept.
 */
typedef bool (*wh_ucx_message_fn)(void *context, const void *header, size_t header_size, void *data, size_t size,
                                  bool rendezvous);

/** Maximum size of the text that names UCX's transports. */
enum { WH_UCX_TRANSPORTS_MAX = 128 };

typedef struct wh_ucx_link {
    const wh_ucx_library *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_size;
    bool long_segments;               /**< Both sides have agreed to use long segments. */
    uint8_t id[WH_UCX_ID_BYTES];      /**< A random number that identifies this link. */
    uint8_t peer_id[WH_UCX_ID_BYTES]; /**< The id of the link that this one is connected to. */
    uint8_t *hello;                   /**< The data of HELLO: the id, then the address. */
    bool of_source;                   /**< True: a source uses the link. False: a receiver. */
    /** The last round succeeded, so the connection may be used again. */
    bool clean;
    /** The receiver's link has a newer connection, to another link of this process. */
    bool stale;
    uint8_t greeting_header[WH_UCX_HEADER_BYTES];
    /**
     * The operation that sends HELLO or WELCOME. The link owns it because it may outlive a failed
     * transfer.
     */
    wh_ucx_operation greeting;
    /** The operation that closes the connection. The link owns it because UCX may end it late. */
    wh_ucx_operation closing;
    /** A descriptor of UCX. After ucp_worker_arm, it is readable when there is work to do. */
    int wake;
    ucp_ep_h peer;                          /**< NULL: not connected. */
    ucs_status_t lost;                      /**< Why the peer is lost; UCS_OK: it is not lost. */
    char transports[WH_UCX_TRANSPORTS_MAX]; /**< See wh_ucx_link_transports; "": not known yet. */
    uint32_t pending;                       /**< Number of operations that are not done. */
    /** Number of consecutive calls of wh_ucx_link_progress that found nothing to do. */
    uint32_t idle;
    /** Memory for packed pieces. The link keeps it, because touching new memory is expensive. */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint32_t scratch_used; /**< A bit mask of the parts that are in use. */
    wh_ucx_message_fn message;
    void *message_context;
    struct wh_ucx_link *next; /**< The next cached link, or the next one in use. */
} wh_ucx_link;

/**
 * Returns a cached link, with its connection, or a new link. Creating one takes about 6 ms. Any
 * thread may call this.
 * @param peer_id        at a source, the id of the receiver's link; a cached link is used only if
 *                       it is connected to that link. At a receiver, NULL.
 * @param long_segments  true if both sides have agreed to use long segments.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the reason if UCX is missing or finds no transport;
 * WHERRY_NO_MEMORY; WHERRY_SYSTEM.
 */
wherry_status wh_ucx_link_take(const uint8_t *peer_id, bool long_segments, wh_ucx_link **link_p, wherry_error *error);

/**
 * Gives a link back. If it is clean and connected, it is cached for the next transfer, otherwise
 * destroyed. `link` may be NULL. Any thread may call this.
 */
void wh_ucx_link_give(wh_ucx_link *link);

/** True unless the user has set the size of UCX's TCP segments in the environment. */
bool wh_ucx_may_use_long_segments(void);

/**
 * Connects a link to a peer's link. Does nothing if the two are already connected. If the link is
 * connected to another link, disconnects first. Does not wait for the peer: if the peer cannot be
 * reached, link->lost is set later.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if UCX has no transport to the peer.
 */
wherry_status wh_ucx_link_connect(wh_ucx_link *link, const uint8_t id[WH_UCX_ID_BYTES], const void *address,
                                  int32_t rank, wherry_error *error);

/**
 * Closes the connection at once. Data that has not moved is lost. Does not wait for the peer, but
 * may wait for about a second until UCX has cleaned up.
 */
void wh_ucx_link_disconnect(wh_ucx_link *link);

/** Sends HELLO or WELCOME. */
void wh_ucx_link_greet(wh_ucx_link *link, wh_ucx_kind kind, const uint8_t token[WH_UCX_TOKEN_BYTES]);

/**
 * Sends a header and data. The caller must not free or change either until the operation is done.
 * With `rendezvous`, the data moves only when the receiver calls wh_ucx_receive.
 */
void wh_ucx_send(wh_ucx_link *link, wh_ucx_operation *operation, const uint8_t header[WH_UCX_HEADER_BYTES],
                 const void *data, size_t size, bool rendezvous);

/** Fetches the data of a message that was sent with `rendezvous`. */
void wh_ucx_receive(wh_ucx_link *link, wh_ucx_operation *operation, void *data, void *to, size_t size);

/**
 * Lets UCX work. If UCX had nothing to do in the last few calls, waits at most WH_UCX_WAIT_MS for
 * work or for a stop request.
 */
void wh_ucx_link_progress(wh_ucx_link *link, const wh_stop *stop);

/**
 * Returns the transports to a peer that has answered, such as "tcp/lo, cma/memory"; "" if UCX does
 * not report them. The text is valid until the link disconnects.
 */
const char *wh_ucx_link_transports(wh_ucx_link *link);

#endif
