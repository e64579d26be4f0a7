/**
 * @file message.h  The messages of the conversation, to bytes and back. Pure; every byte is
 * hostile.
 *
 * WANT and WITHDRAW go to the source under the transport's own tag; what follows goes to the
 * receiver under its nonce and to the source under the id of its send. A message is its type
 * (uint8) and its fields, numbers big endian; docs/wire-format.md has the table.
 */
#ifndef WH_TRANSFER_MESSAGE_H
#define WH_TRANSFER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/expert.h>

#include "base/text.h"
#include "lane/lane.h"

/** The version of the conversation. */
enum { WH_CONVERSATION_VERSION = 2 };

typedef enum wh_message_type {
    WH_WANT = 1,        /**< receiver: send me a checkpoint. */
    WH_WITHDRAW = 2,    /**< receiver: no more, for this reason; before it has an OFFER. */
    WH_OFFER = 3,       /**< source: this is it, and a lease on its memory. */
    WH_PLAN = 4,        /**< receiver: these chunks, over this lane. */
    WH_REFUSE_LANE = 5, /**< source: not over that lane, for this reason. */
    WH_ASSIST = 6,      /**< receiver: open the door for this lane. */
    WH_ASSISTED = 7,    /**< source: done, or not for this reason. */
    WH_RETRY = 8,       /**< receiver: these chunks again. */
    WH_DIGESTS = 9,     /**< source: the digests of these chunks. */
    WH_PROGRESS = 10,   /**< either: alive, and so far. */
    WH_DONE = 11,       /**< receiver: I have it all. */
    WH_RELEASED = 12,   /**< source: then it is valid, and the lease is over. */
    WH_REVOKED = 13,    /**< source: the lease is over, and nothing is valid. */
    WH_ABORT = 14,      /**< either: I give up, for this reason. */
    WH_COMPARE = 15,    /**< receiver: which digests have these chunks? I may hold them. */
} wh_message_type;

/** A run of bytes in a message, borrowed. */
typedef struct wh_bytes {
    const void *bytes;
    size_t size;
} wh_bytes;

enum { WH_OFFERED_LANES_MAX = 8, WH_REASON_MAX = 640, WH_REASON_PATH_MAX = 255 };

/** A lane in an OFFER. */
typedef struct wh_offered_lane {
    wh_bytes name;
    wh_bytes offer;
} wh_offered_lane;

/**
 * All fields of all messages; which are meant depends on the type. What is read borrows from the
 * bytes it was read from.
 */
typedef struct wh_note {
    wh_message_type type;
    uint16_t version; /**< WANT, OFFER */
    uint64_t nonce;   /**< WANT, WITHDRAW */
    uint64_t id;      /**< OFFER: the tag of the source's inbox. */
    uint64_t epoch;   /**< OFFER, DONE, RELEASED, REVOKED */
    int64_t step;     /**< WANT, OFFER */
    uint8_t verify;   /**< WANT, OFFER: a wherry_verify. PLAN: whether digests are wanted. */
    /** OFFER: 1 where the source's memory lies on small pages for the most part. */
    uint8_t small_pages;
    uint64_t bytes;   /**< PLAN: all chunks together. PROGRESS: so far. DONE: that were moved. */
    uint64_t first;   /**< DIGESTS: the first chunk. */
    int32_t status;   /**< WITHDRAW, REVOKED, ABORT: why. ASSISTED: whether. */
    wh_bytes path;    /**< ABORT: the tensor that it is about, a text. */
    wh_bytes text;    /**< WITHDRAW, REFUSE_LANE, ASSISTED, REVOKED, ABORT: a text for people. */
    wh_bytes lane;    /**< PLAN, ASSIST: its name. */
    wh_bytes request; /**< PLAN, ASSIST: for the lane. */
    /** WANT: the fingerprint of a manifest that the receiver has, WH_DIGEST_BYTES; or nothing. */
    wh_bytes known;
    wh_bytes manifest; /**< OFFER; nothing where it is the one that the receiver has. */
    /** OFFER: of the storages, 8 bytes each; none where no lane needs them. */
    wh_bytes addresses;
    wh_bytes intervals; /**< PLAN, RETRY, COMPARE: 16 bytes each: wh_note_intervals. */
    wh_bytes digests;   /**< DIGESTS: WH_DIGEST_BYTES each. */
    size_t lane_count;  /**< OFFER */
    wh_offered_lane lanes[WH_OFFERED_LANES_MAX];
} wh_note;

/**
 * Appends a message. Texts that are too long are cut. Memory that is lacking shows in the string.
 */
void wh_note_encode(const wh_note *note, wh_string *message);

/**
 * Reads a message, which must stay as long as the note.
 * @return WHERRY_OK; WHERRY_MALFORMED where it has another form. A WANT or an OFFER of another
 * version is WHERRY_BAD_VERSION, with nonce or id filled.
 */
wherry_status wh_note_decode(const void *bytes, size_t size, wh_note *note_p, wherry_error *error);

/** Appends intervals in the form of wh_note.intervals. */
void wh_intervals_encode(const wherry_interval *intervals, size_t count, wh_string *bytes);

/**
 * Reads intervals.
 * @param chunks       all must lie below this number, ascending and apart.
 * @param intervals_p  the caller's: wh_free.
 * @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_OUT_OF_BOUNDS; WHERRY_NO_MEMORY.
 */
wherry_status wh_intervals_decode(wh_bytes bytes, uint64_t chunks, wherry_interval **intervals_p, size_t *count_p,
                                  wherry_error *error);

#endif
