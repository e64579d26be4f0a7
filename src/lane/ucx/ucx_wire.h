/**
 * @file ucx_wire.h  What the sides of the lane `ucx` say to each other. Pure: needs no UCX, and believes nothing. Numbers are big endian.
 *
 *     offer     version u8, workers u8: as many as the source would use; long segments u8: 1 if it would use them
 *     request   version u8, token 16 bytes, workers u8, long segments u8: 1 if both use them; for each worker:
 *               id 16 bytes, length u16, its address; digest 16 bytes of all that is before it
 *     message   an active message of UCX with a header of 64 bytes:
 *               kind u8, flags u8, 6 bytes of zeros, token 16 bytes, chunk u64, bytes u64, offset u64, digest 16 bytes
 *
 *     HELLO     source -> receiver, the first: the data is the id of the source's worker, 16 bytes, and its address
 *     WELCOME   receiver -> source: it has come
 *     PIECE     `bytes` is the length of the whole chunk; the data are its bytes from `offset` on. With flag DIGEST, the last piece, the digest of the chunk
 *     END       `chunk` chunks have come from this worker in this round
 *     ENDED     receiver -> source: all of them are here. Until then the source lets UCX get on
 *
 * The digest of a request is there because UCX reads addresses without checking them: bytes that were damaged must not get that far. Both
 * sides have to agree on long segments (512 KiB from TCP at once) because UCX does not ask: a segment that is longer than expected would overwrite memory.
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
    WH_UCX_PIECE_MAX = 2 << 20, /**< Bytes of a piece. */
};

typedef enum wh_ucx_kind {
    WH_UCX_HELLO = 1,
    WH_UCX_WELCOME = 2,
    WH_UCX_PIECE = 3,
    WH_UCX_END = 4,
    WH_UCX_ENDED = 5,
} wh_ucx_kind;

enum { WH_UCX_DIGEST = 1 };

/** A header, in the machine's own form. */
typedef struct wh_ucx_header {
    wh_ucx_kind kind;
    uint8_t flags;
    uint64_t chunk;
    uint64_t bytes;
    uint64_t offset;
    wh_digest digest;
} wh_ucx_header;

void wh_ucx_header_write(uint8_t bytes[WH_UCX_HEADER_BYTES], const uint8_t token[WH_UCX_TOKEN_BYTES],
                         const wh_ucx_header *header);

/** @return NULL, or what is wrong with it, in words; "" where it has another token: it is not for this transfer. */
const char *wh_ucx_header_read(const void *bytes, size_t size, const uint8_t token[WH_UCX_TOKEN_BYTES],
                               wh_ucx_header *header_p);

/** Whether a piece of `length` bytes can be the next of a chunk of which `come` bytes of `bytes` have been announced. @return as wh_ucx_header_read. */
const char *wh_ucx_piece_check(const wh_ucx_header *header, uint64_t length, uint64_t come, uint64_t bytes,
                               bool verify);

typedef struct wh_ucx_offer {
    uint32_t workers;
    bool long_segments;
} wh_ucx_offer;

void wh_ucx_offer_write(const wh_ucx_offer *offer, wh_string *bytes);

/** @return WHERRY_OK; WHERRY_BAD_VERSION, WHERRY_MALFORMED. */
wherry_status wh_ucx_offer_read(const void *bytes, size_t size, int32_t peer, wh_ucx_offer *offer_p,
                                wherry_error *error);

/** A worker, borrowed: a number that no other has, and UCX's address. */
typedef struct wh_ucx_address {
    const uint8_t *id;
    const void *bytes;
    size_t size;
} wh_ucx_address;

typedef struct wh_ucx_request {
    uint8_t token[WH_UCX_TOKEN_BYTES];
    uint32_t workers;
    bool long_segments;
    wh_ucx_address addresses[WH_UCX_WORKERS_MAX];
} wh_ucx_request;

/** Leaves out the last workers where the request would be longer than it may be. @return how many are in it; 0: not even one fits. */
uint32_t wh_ucx_request_write(const wh_ucx_request *request, wh_string *bytes);

/** The addresses are borrowed from the bytes. @return WHERRY_OK; WHERRY_BAD_VERSION, WHERRY_MALFORMED. */
wherry_status wh_ucx_request_read(const void *bytes, size_t size, int32_t peer, wh_ucx_request *request_p,
                                  wherry_error *error);

#endif
