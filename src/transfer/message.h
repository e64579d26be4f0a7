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

#include "base/text.h"
#include "lane/lane.h"

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
    WH_RELEASED = 12,   /**< source: they are valid; the lease has ended. */
    WH_REVOKED = 13,    /**< source: the lease has ended; nothing that was received is valid. */
    WH_ABORT = 14,      /**< either: I give up, for this reason. */
    WH_COMPARE = 15,    /**< receiver: send the digests of these chunks; I may have them. */
    WH_CLOSE = 16,      /**< receiver: close the lane; I do not want the rest of its chunks. */
    WH_CONFIRM = 17,    /**< receiver: is your state unchanged? I have read from it. */
    WH_CONFIRMED = 18,  /**< source: it is unchanged, and the lease goes on. */
} wh_message_type;

/** Borrowed bytes of a message. */
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

/** The fields of all messages. Each comment says which types have the field. */
typedef struct wh_note {
    wh_message_type type;
    uint16_t version; /**< WANT, OFFER */
    uint64_t nonce;   /**< WANT, WITHDRAW */
    uint64_t id;      /**< OFFER: the tag of the source's inbox. */
    uint64_t epoch;   /**< OFFER, DONE, RELEASED, REVOKED, CONFIRM, CONFIRMED */
    int64_t step;     /**< WANT, OFFER */
    uint8_t verify;   /**< WANT, OFFER: a wherry_verify. PLAN: 1 if digests are wanted. */
    /** OFFER: 1 if most of the source's memory is on small pages. */
    uint8_t small_pages;
    uint8_t last; /**< PLAN, REQUEST: 1 if no REQUEST follows; the lane ends after its chunks. */
    /** PLAN, REFUSE_LANE: the number of the PLAN in this conversation, counted from 1. */
    uint32_t session;
    uint64_t bytes;   /**< PLAN, REQUEST: of all its chunks. PROGRESS, DONE: moved so far. */
    uint64_t first;   /**< DIGESTS: the first chunk. */
    int32_t status;   /**< WITHDRAW, REVOKED, ABORT: why. ASSISTED: the result. */
    wh_bytes path;    /**< With status: the path of the tensor, as text. */
    wh_bytes text;    /**< WITHDRAW, REFUSE_LANE, ASSISTED, REVOKED, ABORT: a message for people. */
    wh_bytes lane;    /**< PLAN, ASSIST: the name of the lane. */
    wh_bytes request; /**< PLAN, ASSIST: for the lane. */
    /** WANT: fingerprint of the manifest that the receiver has (WHERRY_DIGEST_BYTES), or empty. */
    wh_bytes known;
    wh_bytes manifest; /**< OFFER; empty if the receiver has the same one. */
    /** OFFER: address of each storage, 8 bytes each; empty if no lane needs them. */
    wh_bytes addresses;
    wh_bytes intervals; /**< PLAN, REQUEST, COMPARE: 16 bytes each: wh_intervals_decode. */
    wh_bytes digests;   /**< DIGESTS: WHERRY_DIGEST_BYTES each. */
    size_t lane_count;  /**< OFFER */
    wh_offered_lane lanes[WH_OFFERED_LANES_MAX];
} wh_note;

/** Appends the message. Cuts texts that are too long. Without memory, sets message->failed. */
void wh_note_encode(const wh_note *note, wh_string *message);

/**
 * Reads a message. The bytes must stay valid as long as the note.
 * @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_BAD_VERSION for a WANT or OFFER of another version,
 * with only nonce and id filled.
 */
wherry_status wh_note_decode(const void *bytes, size_t size, wh_note *note_p, wherry_error *error);

/** Appends intervals in the encoding of wh_note.intervals. */
void wh_intervals_encode(const wherry_interval *intervals, size_t count, wh_string *bytes);

/**
 * Reads intervals, which must be ascending and must not touch.
 * @param chunks       the number of chunks: all intervals must be below it.
 * @param intervals_p  belongs to the caller: wh_free.
 * @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_OUT_OF_BOUNDS; WHERRY_NO_MEMORY.
 */
wherry_status wh_intervals_decode(wh_bytes bytes, uint64_t chunks, wherry_interval **intervals_p, size_t *count_p,
                                  wherry_error *error);

/** Fills status, path and text of a note. The note borrows from the error. */
void wh_note_reason(wh_note *note, wherry_status status, const wherry_error *error);

/**
 * Fills an error with the reason that a peer gave: "rank 2 <what>: <text of the note>".
 * @return status.
 */
wherry_status wh_fail_note(wherry_error *error, wherry_status status, int32_t rank, const wh_note *note,
                           const char *what);

/**
 * Encodes and sends a message. Blocks while the peer takes no messages.
 * @return as wh_group_send; WHERRY_CANCELLED if the call was cancelled or interrupted meanwhile.
 */
wherry_status wh_note_send(const wh_note *note, struct wh_call *call, int32_t rank, uint64_t tag, wh_deadline deadline,
                           wherry_error *error);

/**
 * Encodes and sends a message that the peer can do without: progress, or the reason why a call
 * ends. Ignores a cancel of the call, and all errors.
 */
void wh_note_try_send(const wh_note *note, wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline);

/* ---- messages that wait ---- */

/** Encoded messages for one peer that could not be sent at once. Starts as {0}. */
typedef struct wh_backlog {
    struct wh_waiting_message *first; /**< Oldest first. */
    size_t count;
    size_t bytes;
} wh_backlog;

/**
 * Sends a message if that is possible without waiting, or keeps it. Over a group without sockets, a
 * long message is sent at once, because it goes in parts.
 * @return WHERRY_OK, also if it is kept; WHERRY_TIMED_OUT if too many wait; as wh_group_send.
 */
wherry_status wh_backlog_tell(wh_backlog *backlog, const wh_note *note, struct wh_call *call, int32_t rank,
                              uint64_t tag, wherry_error *error);

/** Sends what waits, as far as that is possible without waiting. @return as wh_group_send. */
wherry_status wh_backlog_flush(wh_backlog *backlog, struct wh_call *call, int32_t rank, uint64_t tag,
                               wherry_error *error);

/** Drops all messages. */
void wh_backlog_clear(wh_backlog *backlog);

#endif
