/**
 * @file callback_frame.h  The frames of a callback group: what is in front of each block that the program's table carries.
 *
 *   0  magic (uint32)          "WHCB"
 *   4  version (uint8)         1
 *   5  kind (uint8)            a wh_frame_kind
 *   6  zero (uint16)
 *   8  from (uint64)           the sender's incarnation, over 0
 *  16  to (uint64)             the incarnation of the receiver that the sender knows; 0: none
 *  24  tag (uint64)
 *  32  total (uint64)          bytes of the message
 *  40  offset (uint64)         of this frame's bytes in the message
 *  48  bytes, to the end of the block
 *
 * Numbers are big endian. HELLO and BYE have no bytes, and zeros from 24 on. The frames of a message come in order, each of
 * them but that of an empty message with at least a byte; one that begins a message ends what was not complete.
 *
 * PIECE and CREDIT are for tables without put and get, see callback_blocks.c. Their tag is the channel. A PIECE has bytes of
 * a block: `total` is the size of the block and `offset` the place of the bytes in it. A CREDIT has no bytes: it allows
 * `total` more bytes; a total of 0 takes back what was allowed and not used.
 */
#ifndef WH_GROUP_CALLBACK_FRAME_H
#define WH_GROUP_CALLBACK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WH_FRAME_HEADER = 48 };

/** The numbers are in the frames. */
typedef enum wh_frame_kind {
    WH_FRAME_DATA = 0,
    WH_FRAME_HELLO = 1,  /**< Says who is there, and nothing else. */
    WH_FRAME_BYE = 2,    /**< The sender has left the group. */
    WH_FRAME_PIECE = 3,  /**< Bytes of a block. */
    WH_FRAME_CREDIT = 4, /**< The receiver of blocks allows more bytes. */
} wh_frame_kind;

typedef struct wh_frame {
    wh_frame_kind kind;
    uint64_t from;
    uint64_t to;
    uint64_t tag;
    uint64_t total;
    uint64_t offset;
    const uint8_t *bytes; /**< Of the block that was read; not used by wh_frame_write. */
    size_t size;
} wh_frame;

void wh_frame_write(const wh_frame *frame, uint8_t header[WH_FRAME_HEADER]);

/** Reads a block, of which nothing is believed. @return false where it is not a frame. */
bool wh_frame_read(const void *block, size_t size, wh_frame *frame_p);

/** A message of which frames are still to come. Starts as {0}. */
typedef struct wh_assembly {
    bool open;
    uint64_t tag;
    uint64_t total;
    uint8_t *bytes;
    size_t capacity;
    uint64_t got;
} wh_assembly;

typedef enum wh_assembly_result {
    WH_ASSEMBLY_MORE,      /**< More frames are to come. */
    WH_ASSEMBLY_WHOLE,     /**< The message is whole. */
    WH_ASSEMBLY_STRAY,     /**< The frame continues nothing: dropped, with what was there. */
    WH_ASSEMBLY_NO_MEMORY, /**< The same, for lack of memory. */
} wh_assembly_result;

/** Adds a DATA frame. Memory is only taken in proportion to what has come. */
wh_assembly_result wh_assembly_add(wh_assembly *assembly, const wh_frame *frame);

/** Forgets what is there. */
void wh_assembly_clear(wh_assembly *assembly);

#endif
