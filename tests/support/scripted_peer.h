/**
 * @file scripted_peer.h  A rank that sends whatever a test tells it to: messages out of order,
 * truncated, or with arbitrary bytes.
 *
 * The other ranks of its group have real transports. All waits have a limit.
 */
#ifndef WH_TESTS_SCRIPTED_PEER_H
#define WH_TESTS_SCRIPTED_PEER_H

#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"
#include "conformance/transfer_world.h"
#include "group/channel.h"
#include "group/mailbox.h"
#include "range/chunkset.h"
#include "transfer/message.h"

enum { SCRIPT_MS = 5000 };

typedef struct scripted {
    wh_group *group;
    int32_t peer;
    uint64_t want_tag; /**< The tag on which transports listen for a WANT. */
    uint64_t own;      /**< The tag that this rank listens on. */
    uint64_t there;    /**< The tag that the peer listens on. */
    wh_inbox *inbox;
    wh_message message; /**< The last received message; `note` points into it. */
    wh_note note;
    wh_socket channel;        /**< A channel of the stream lane; none if it has not come. */
    wh_message offer_message; /**< For a scripted receiver: the OFFER; `offer` points into it. */
    wh_note offer;
} scripted;

static inline wh_bytes text_bytes(const char *text) {
    return (wh_bytes){text, strlen(text)};
}

static inline void script_begin(scripted *s, wh_group *group, int32_t peer, uint64_t want_tag) {
    *s =
        (scripted){.group = group, .peer = peer, .want_tag = want_tag, .own = wh_random_tag(), .channel = WH_NO_SOCKET};
    s->message.channel = s->offer_message.channel = WH_NO_SOCKET;
    must(wh_inbox_open(group, s->own, &s->inbox, NULL));
}

static inline void script_end(scripted *s) {
    wh_message_clear(&s->message);
    wh_message_clear(&s->offer_message);
    wh_socket_close(&s->channel);
    wh_inbox_close(s->inbox);
    s->inbox = NULL;
}

/** Sends any bytes. The peer may be gone. */
static inline void script_send(scripted *s, uint64_t tag, const void *bytes, size_t size) {
    wh_group_send(s->group, s->peer, tag, bytes, size, wh_deadline_in_ms(SCRIPT_MS), NULL);
}

static inline wh_string script_encode(const wh_note *note) {
    wh_string text = {0};
    wh_note_encode(note, &text);
    assert_false(text.failed);
    return text;
}

/** Sends a message to the peer's inbox or, before there is one, to its transport. */
static inline void script_say(scripted *s, const wh_note *note) {
    wh_string text = script_encode(note);
    script_send(s, s->there ? s->there : s->want_tag, text.bytes, text.size);
    wh_free(text.bytes);
}

/**
 * Takes the next message other than PROGRESS, and keeps a channel that the peer opens. @return
 * false if none comes or it is malformed.
 */
static inline bool script_take(scripted *s, int64_t ms) {
    wh_deadline deadline = wh_deadline_in_ms(ms);
    do {
        wh_message_clear(&s->message);
        if (wh_inbox_take(s->inbox, deadline, &s->message, NULL) != WHERRY_OK) {
            return false;
        }
        if (s->message.kind == WH_MESSAGE_CHANNEL) {
            wh_socket_close(&s->channel); /* This channel is from the previous session. */
            s->channel = s->message.channel;
            s->message.channel = WH_NO_SOCKET;
        }
    } while (s->message.kind != WH_MESSAGE_BYTES || *(uint8_t *)s->message.bytes == WH_PROGRESS);
    return wh_note_decode(s->message.bytes, s->message.size, &s->note, NULL) == WHERRY_OK;
}

/** The next message must have this type. */
static inline void script_expect(scripted *s, wh_message_type type) {
    bool came = script_take(s, SCRIPT_MS);
    if (!came) {
        fail_msg("expected a message of type %d, but none came, or a malformed one", (int)type);
    }
    if (s->note.type != type) {
        fail_msg("expected a message of type %d, but got type %d", (int)type, (int)s->note.type);
    }
}

/* ---- as a receiver ---- */

/** Sends a WANT and takes the OFFER. */
static inline void script_ask(scripted *s) {
    wh_note want = {.type = WH_WANT, .nonce = s->own, .step = WHERRY_STEP_ANY};
    script_say(s, &want);
    script_expect(s, WH_OFFER);
    wh_message_clear(&s->offer_message);
    s->offer_message = s->message;
    s->offer = s->note;
    s->message = (wh_message){.channel = WH_NO_SOCKET};
    s->there = s->offer.id;
}

/** Opens a channel, for a plan of the stream lane with the request "\1\1". */
static inline void script_open_channel(scripted *s) {
    must(wh_group_connect(s->group, s->peer, s->there, wh_deadline_in_ms(SCRIPT_MS), NULL, &s->channel, NULL));
}

/** Sends a plan with any request. `intervals` has `count` pairs. */
static inline void script_plan(scripted *s, const char *lane, wh_bytes request, const wherry_interval *intervals,
                               size_t count) {
    wh_string list = {0};
    wh_intervals_encode(intervals, count, &list);
    wh_note plan = {.type = WH_PLAN, .session = 1, .lane = text_bytes(lane), .request = request, .last = 1, .bytes = 1};
    plan.intervals = (wh_bytes){list.bytes, list.size};
    script_say(s, &plan);
    wh_free(list.bytes);
}

/* ---- as a source ---- */

/** Waits for a WANT; its nonce is the tag that the peer listens on. */
static inline void script_await_want(scripted *s) {
    do { /* A peer that gave up earlier withdraws its WANT first. */
        wh_message_clear(&s->message);
        must(wh_group_receive(s->group, s->peer, s->want_tag, wh_deadline_in_ms(SCRIPT_MS), &s->message, NULL));
        must(wh_note_decode(s->message.bytes, s->message.size, &s->note, NULL));
    } while (s->note.type == WH_WITHDRAW);
    assert_int_equal(s->note.type, WH_WANT);
    s->there = s->note.nonce;
}

/** Writes to the channel. The peer may have closed it. */
static inline void script_write(const scripted *s, const void *bytes, size_t size) {
    struct iovec all = {(void *)(uintptr_t)bytes, size};
    wh_stop never = {0};
    must(wh_stop_init(&never, NULL));
    (void)wh_channel_write(&s->channel, &all, 1, &never, wh_deadline_in_ms(SCRIPT_MS), NULL);
    wh_stop_destroy(&never);
}

/** The manifest of a state from rank 0. Free it with wherry_free. */
static inline wh_bytes script_manifest(const wherry_value *state) {
    wherry_prepare_options options;
    wherry_prepared *prepared;
    void *bytes;
    size_t size;
    wherry_prepare_options_init(&options);
    options.rank = 0;
    must(wherry_prepare(state, &options, &prepared, NULL));
    must(wherry_manifest_encode(prepared, &bytes, &size, NULL));
    wherry_prepared_destroy(prepared);
    return (wh_bytes){bytes, size};
}

#endif
