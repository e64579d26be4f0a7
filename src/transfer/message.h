/**
 * @file message.h  The messages between source and receiver: their form, encoding, decoding and
 * sending.
 *
 * WANT and WITHDRAW go to the source under the tag of the transport. All later messages go to the
 * receiver under its nonce, and to the source under the id of its send. A message is its type
 * (uint8) and its fields; numbers are big endian. docs/wire-format.md has the table.
 *
 * 1. Encoding and decoding are pure. Every decoded byte may come from a hostile peer.
 * 2. A decoded note borrows from the bytes it was decoded from.
 *
 * Any thread may call these functions, except wh_note_send, which is for the thread inside the
 * call.
 */
#ifndef WH_TRANSFER_MESSAGE_H
#define WH_TRANSFER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/expert.h>

#include "base/bytes.h"
#include "base/text.h"
#include "group/group.h"
#include "lane/lane_list.h"

struct wh_call;

/** Version of this protocol, in WANT and OFFER. */
enum { WH_CONVERSATION_VERSION = 3 };

typedef enum wh_message_type {
    WH_WANT = 1,        /**< receiver: send me a checkpoint. */
    WH_WITHDRAW = 2,    /**< receiver: I give up, for this reason. Only before an OFFER. */
    WH_OFFER = 3,       /**< source: this is the state, with a lease on its memory. */
    WH_PLAN = 4,        /**< receiver: open this lane, and send these chunks over it. */
    WH_REFUSE_LANE = 5, /**< source: that lane does not work, for this reason. */
    WH_ASSIST = 6,      /**< receiver: give me access for this lane. */
    WH_ASSISTED = 7,    /**< source: done, or refused for this reason. */
    WH_REQUEST = 8,     /**< receiver: send these chunks too, over the lane that is open. */
    WH_DIGESTS = 9,     /**< source: the digests of these chunks. */
    WH_PROGRESS = 10,   /**< either: I have moved this many bytes. */
    WH_DONE = 11,       /**< receiver: I have all bytes. */
    WH_RELEASED = 12,   /**< source: the bytes are valid; the lease has ended. */
    WH_REVOKED = 13,    /**< source: the lease has ended; no received byte is valid. */
    WH_ABORT = 14,      /**< either: I give up, for this reason. */
    /** receiver: send the digests of these chunks, because I may have the chunks. */
    WH_COMPARE = 15,
    WH_CLOSE = 16,     /**< receiver: close the lane; I do not want the rest of its chunks. */
    WH_CONFIRM = 17,   /**< receiver: is your state unchanged? I have read from it. */
    WH_CONFIRMED = 18, /**< source: my state is unchanged, and the lease continues. */
} wh_message_type;

enum { WH_REASON_MAX = 640, WH_REASON_PATH_MAX = 255 };

/** The fields of all messages. Each comment says which types have the field. */
typedef struct wh_note {
    wh_message_type type;
    uint64_t version; /**< WANT, OFFER: the version of the message that was read. */
    uint64_t nonce;   /**< WANT, WITHDRAW */
    uint64_t id;      /**< OFFER: the tag of the source's inbox. */
    uint64_t epoch;   /**< OFFER, DONE, RELEASED, REVOKED, CONFIRM, CONFIRMED */
    int64_t step;     /**< WANT, OFFER */
    uint64_t verify;  /**< WANT, OFFER: a wherry_verify. PLAN: 1 if digests are wanted. */
    /** OFFER: 1 if most of the source's memory is on small pages. */
    uint64_t small_pages;
    /** PLAN, REQUEST: 1 if no REQUEST follows; the lane ends after its chunks. DONE: 1 if the
     * receiver does not rely on the answer. */
    uint64_t last;
    /** PLAN, REFUSE_LANE: the number of the PLAN in this conversation, counted from 1. */
    uint64_t session;
    /** PLAN, REQUEST: bytes of all its chunks. PROGRESS, DONE: bytes moved so far. */
    uint64_t bytes;
    uint64_t strong;  /**< COMPARE, DIGESTS: 1 for digests that an attacker cannot match. */
    uint64_t first;   /**< DIGESTS: number of the first chunk. */
    int64_t status;   /**< WITHDRAW, REVOKED, ABORT: the reason. ASSISTED: the result. */
    wh_bytes path;    /**< All messages with a status: the path of the tensor, as text. */
    wh_bytes text;    /**< WITHDRAW, REFUSE_LANE, ASSISTED, REVOKED, ABORT: a message for people. */
    wh_bytes lane;    /**< PLAN, ASSIST: the name of the lane. */
    wh_bytes request; /**< PLAN, ASSIST: bytes for the lane. */
    /** WANT: fingerprint of the manifest that the receiver has (WHERRY_DIGEST_BYTES), or empty. */
    wh_bytes known;
    wh_bytes manifest; /**< OFFER: the manifest; empty if the receiver has the same one. */
    /** OFFER: address of each storage, 8 bytes each; empty if no lane needs them. */
    wh_bytes addresses;
    /** PLAN, REQUEST, COMPARE: intervals of chunks, 16 bytes each: see wh_intervals_decode. */
    wh_bytes intervals;
    wh_bytes digests; /**< DIGESTS: WHERRY_DIGEST_BYTES each. */
    wh_bytes lanes;   /**< OFFER: encoded; wh_lanes_add, wh_lanes_find. */
} wh_note;

/** Appends the message. Cuts texts that are too long. Without memory, sets message->failed. */
void wh_note_encode(const wh_note *note, wh_string *message);

/**
 * Reads a message. The bytes must stay valid as long as the note.
 * @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_BAD_VERSION for a WANT or OFFER of another version,
 * with only nonce and id filled.
 */
wherry_status wh_note_decode(const void *bytes, size_t size, wh_note *note_p, wherry_error *error);

/** Appends a lane to the list of an OFFER. `lanes` starts as {0}. */
void wh_lanes_add(wh_string *lanes, const char *name, const void *offer, size_t size);

/** Finds the offer of a lane in the lanes of an OFFER. @return false if there is no such lane. */
bool wh_lanes_find(wh_bytes lanes, const char *name, wh_bytes *offer_p);

/** Fills status, path and text of a note. The note borrows from the error. */
void wh_note_reason(wh_note *note, wherry_status status, const wherry_error *error);

/**
 * Fills an error with the reason that a peer gave: "rank 2 <what>: <text of the note>".
 * @return status.
 */
wherry_status wh_fail_note(wherry_error *error, wherry_status status, int32_t rank, const char *name,
                           const wh_note *note, const char *what);

/**
 * Encodes and sends a message. Blocks while the peer takes no messages.
 * @param call  a cancel or an interrupt of it ends the wait; NULL: nothing does.
 * @return as wh_group_send; WHERRY_CANCELLED if the call was cancelled or interrupted meanwhile.
 */
wherry_status wh_note_send(const wh_note *note, struct wh_call *call, wh_group *group, int32_t rank, uint64_t tag,
                           wh_deadline deadline, wherry_error *error);

/**
 * Encodes and sends a message that the peer can do without: progress, or the reason why a call
 * ends. Ignores a cancel of the call, and all errors.
 */
void wh_note_try_send(const wh_note *note, wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline);

#endif
