/**
 * @file ucx_wire.h  The messages of the ucx lane. This file needs no UCX. All input is treated as
 * hostile. Numbers are big-endian.
 *
 *     offer     version u8; workers u8: maximum number of workers of the source;
 *               long segments u8: 1 if the source can use them
 *     request   version u8, token 16 bytes, workers u8, long segments u8: 1 if both sides use them;
 *               for each worker: id 16 bytes, length u16, UCX address;
 *               16 bytes: the digest of everything before it
 *     message   a UCX active message with a header of 64 bytes:
 *               kind u8, flags u8, 6 zeros, token 16 bytes, chunk u64, bytes u64, offset u64,
 *               digest 16 bytes
 *
 *     HELLO     source -> receiver, first message. Data: id of the source's worker (16 bytes),
 *               then its address
 *     WELCOME   receiver -> source: HELLO has arrived
 *     PIECE     source -> receiver. `bytes` is the length of the whole chunk. Data: its bytes,
 *               beginning at `offset`. In the last piece of a chunk, the flag DIGEST means that the
 *               header has the chunk's digest
 *     END       source -> receiver: this worker has sent `chunk` chunks in this round
 *     ENDED     receiver -> source: all chunks have arrived. Until then, the source lets UCX work
 *
 * A request has a digest because UCX does not check the addresses that it parses, so it must never
 * get a damaged address. Long segments are TCP segments of 512 KiB. Both sides must agree on them,
 * because UCX does not negotiate their size. A segment that is longer than the receiver expects
 * would overwrite its memory.
 */
#ifndef WH_LANE_UCX_WIRE_H
#define WH_LANE_UCX_WIRE_H

#include "lane/lane.h"

enum {
    WH_UCX_VERSION = 5,
    WH_UCX_OFFER_BYTES = 3,
    WH_UCX_TOKEN_BYTES = 16,
    WH_UCX_ID_BYTES = 16,
    WH_UCX_WORKERS_MAX = 4,
    WH_UCX_HEADER_BYTES = 64,
    WH_UCX_PIECE_MAX = 2 << 20, /**< Maximum size of a piece. */
};

typedef enum wh_ucx_kind {
    WH_UCX_HELLO = 1,
    WH_UCX_WELCOME = 2,
    WH_UCX_PIECE = 3,
    WH_UCX_END = 4,
    WH_UCX_ENDED = 5,
} wh_ucx_kind;

/** A flag of a PIECE: the header has the digest of the chunk. */
enum { WH_UCX_DIGEST = 1 };

typedef struct wh_ucx_header {
    wh_ucx_kind kind;
    uint8_t flags;
    uint64_t chunk;
    uint64_t bytes;
    uint64_t offset;
    wherry_digest digest;
} wh_ucx_header;

void wh_ucx_header_write(uint8_t bytes[WH_UCX_HEADER_BYTES], const uint8_t token[WH_UCX_TOKEN_BYTES],
                         const wh_ucx_header *header);

/**
 * Parses a header.
 * @return NULL on success; "" if the message must be ignored, because its header does not have the
 * token of this transfer; otherwise a description of what the peer has sent, for the text
 * "rank 1 sent ...".
 */
const char *wh_ucx_header_read(const void *bytes, size_t size, const uint8_t token[WH_UCX_TOKEN_BYTES],
                               wh_ucx_header *header_p);

/**
 * Checks that a piece of `length` bytes is the next piece of a chunk.
 * @param come  number of bytes in the earlier pieces of the chunk.
 * @param bytes  length of the chunk.
 * @return NULL if it is; otherwise a description, as from wh_ucx_header_read.
 */
const char *wh_ucx_piece_check(const wh_ucx_header *header, uint64_t length, uint64_t come, uint64_t bytes,
                               bool verify);

typedef struct wh_ucx_offer {
    uint32_t workers;
    bool long_segments;
} wh_ucx_offer;

void wh_ucx_offer_write(const wh_ucx_offer *offer, wh_string *bytes);

/** Parses an offer. @return WHERRY_OK, WHERRY_BAD_VERSION or WHERRY_MALFORMED. */
wherry_status wh_ucx_offer_read(const void *bytes, size_t size, int32_t peer, wh_ucx_offer *offer_p,
                                wherry_error *error);

/** The address of a worker of the receiver. The pointers are borrowed. */
typedef struct wh_ucx_address {
    const uint8_t *id; /**< A random number of WH_UCX_ID_BYTES. */
    const void *bytes; /**< The address, in UCX's format. */
    size_t size;
} wh_ucx_address;

typedef struct wh_ucx_request {
    uint8_t token[WH_UCX_TOKEN_BYTES];
    uint32_t workers;
    bool long_segments;
    wh_ucx_address addresses[WH_UCX_WORKERS_MAX];
} wh_ucx_request;

/**
 * Appends a request. If it would be longer than WH_LANE_OFFER_MAX, the last workers are omitted.
 * @return the number of workers in the request; 0 if no worker fits, or if bytes->failed.
 */
uint32_t wh_ucx_request_write(const wh_ucx_request *request, wh_string *bytes);

/**
 * Parses a request. Its addresses point into `bytes`.
 * @return WHERRY_OK, WHERRY_BAD_VERSION, WHERRY_MALFORMED or WHERRY_NO_MEMORY.
 */
wherry_status wh_ucx_request_read(const void *bytes, size_t size, int32_t peer, wh_ucx_request *request_p,
                                  wherry_error *error);

#endif
