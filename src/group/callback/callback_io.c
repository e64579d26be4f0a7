/*
 * Writes and reads the headers of frames, and assembles messages from them. Also contains the
 * reader, which puts messages into the mailbox.
 */
#include <stdio.h>
#include <string.h>

#include <wherry/group_ops.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "group/callback/callback_internal.h"

/* ---- frames ---- */

enum { VERSION = 1 };

static const uint8_t magic[4] = {'W', 'H', 'C', 'B'};

void wh_callback_frame_write(const wh_callback_frame *frame, uint8_t header[WH_CALLBACK_HEADER_BYTES]) {
    memcpy(header, magic, sizeof(magic));
    header[4] = VERSION;
    header[5] = (uint8_t)frame->kind;
    header[6] = 0;
    header[7] = 0;
    wh_store_be64(header + 8, frame->from);
    wh_store_be64(header + 16, frame->to);
    wh_store_be64(header + 24, frame->tag);
    wh_store_be64(header + 32, frame->total);
    wh_store_be64(header + 40, frame->offset);
}

/** True if the numbers of a frame are consistent. */
static bool is_sound(const wh_callback_frame *frame) {
    if (!frame->from) {
        return false;
    }
    if (frame->kind == WH_CALLBACK_HELLO || frame->kind == WH_CALLBACK_BYE) {
        return frame->size == 0 && !frame->tag && !frame->total && !frame->offset;
    }
    if (frame->kind == WH_CALLBACK_CREDIT) {
        return frame->size == 0 && frame->tag <= WHERRY_GROUP_CHANNEL_MAX && frame->total <= INT32_MAX &&
               !frame->offset;
    }
    if (frame->kind == WH_CALLBACK_PIECE) {
        return frame->size > 0 && frame->tag <= WHERRY_GROUP_CHANNEL_MAX && frame->total <= INT32_MAX &&
               frame->offset <= frame->total && frame->size <= frame->total - frame->offset;
    }
    if (frame->total > WH_MESSAGE_MAX || frame->offset > frame->total || frame->size > frame->total - frame->offset) {
        return false;
    }
    return frame->size > 0 || frame->total == 0;
}

bool wh_callback_frame_read(const void *block, size_t size, wh_callback_frame *frame_p) {
    const uint8_t *header = block;
    if (size < WH_CALLBACK_HEADER_BYTES || memcmp(header, magic, sizeof(magic)) != 0 || header[4] != VERSION ||
        header[5] > WH_CALLBACK_CREDIT || header[6] || header[7]) {
        return false;
    }
    wh_callback_frame frame = {.kind = (wh_callback_kind)header[5],
                               .from = wh_load_be64(header + 8),
                               .to = wh_load_be64(header + 16),
                               .tag = wh_load_be64(header + 24),
                               .total = wh_load_be64(header + 32),
                               .offset = wh_load_be64(header + 40),
                               .bytes = header + WH_CALLBACK_HEADER_BYTES,
                               .size = size - WH_CALLBACK_HEADER_BYTES};
    if (!is_sound(&frame)) {
        return false;
    }
    *frame_p = frame;
    return true;
}

void wh_assembly_clear(wh_assembly *assembly) {
    wh_free(assembly->bytes);
    *assembly = (wh_assembly){0};
}

wh_assembly_result wh_assembly_add(wh_assembly *assembly, const wh_callback_frame *frame) {
    if (frame->offset == 0) {
        wh_assembly_clear(assembly);
        assembly->open = true;
        assembly->tag = frame->tag;
        assembly->total = frame->total;
    } else if (!assembly->open || assembly->tag != frame->tag || assembly->total != frame->total ||
               assembly->got != frame->offset) {
        wh_assembly_clear(assembly);
        return WH_ASSEMBLY_STRAY;
    }
    uint64_t needed = assembly->got + frame->size;
    if (needed > assembly->capacity || !assembly->bytes) {
        uint64_t room = wh_max(wh_min(assembly->total, 2 * (uint64_t)assembly->capacity), wh_max(needed, 1));
        if (!WH_RESERVE(assembly->bytes, assembly->capacity, (size_t)room)) {
            wh_assembly_clear(assembly);
            return WH_ASSEMBLY_NO_MEMORY;
        }
    }
    memcpy(assembly->bytes + assembly->got, frame->bytes, frame->size);
    assembly->got = needed;
    return assembly->got == assembly->total ? WH_ASSEMBLY_WHOLE : WH_ASSEMBLY_MORE;
}

/* ---- the reader ---- */

/**
 * Updates the known incarnations from a frame. The lock is held.
 * @return true if the content of the frame must be used.
 */
static bool judge(wh_callback *callback, int32_t rank, const wh_callback_frame *frame) {
    wh_callback_peer *peer = callback->peers + rank;
    if (frame->to > callback->incarnation) {
        callback->fenced = true;
        wh_mailbox_close(callback->base.mailbox);
        return false;
    }
    if (frame->from < peer->incarnation) {
        if (peer->fenced != frame->from) {
            peer->fenced = frame->from;
            peer->greet = callback->greetings = true;
        }
        return false;
    }
    if (frame->from > peer->incarnation) {
        wh_assembly_clear(&peer->assembly);
        wh_emulated_forget(peer);
        peer->incarnation = frame->from;
        peer->left = false;
    }
    if (peer->left) {
        return false;
    }
    wh_mailbox_admit(callback->base.mailbox, rank, frame->from);
    if (frame->to != callback->incarnation && peer->greeted != frame->from) {
        peer->greeted = frame->from;
        peer->greet = callback->greetings = true;
    }
    return frame->to == 0 || frame->to == callback->incarnation;
}

/**
 * Fails all waits for a rank. If `gone` is false, the rank itself is not lost, and new waits for it
 * are possible at once.
 */
static void lose(wh_callback *callback, int32_t rank, const char *reason, bool gone) {
    pthread_mutex_lock(&callback->lock);
    uint64_t incarnation = callback->peers[rank].incarnation;
    pthread_mutex_unlock(&callback->lock);
    wh_mailbox_lose(callback->base.mailbox, rank, incarnation, reason);
    if (!gone) {
        wh_mailbox_admit(callback->base.mailbox, rank, incarnation);
    }
}

/**
 * Records that a rank is lost, or that a message from it could not be accepted. hand_over_all
 * reports this later, after it has delivered earlier messages. A loss must not be reported during
 * the table's receive, because the next block from the rank would make the rank present again.
 */
static void note_fault(wh_callback *callback, int32_t rank, const char *reason) {
    wh_assembly_clear(&callback->peers[rank].assembly);
    snprintf(callback->peers[rank].fault, sizeof(callback->peers[rank].fault), "%.95s", reason);
    callback->faults = true;
}

/**
 * Stores a message until the table's receive has returned, because a service that gets the message
 * may call the table.
 */
static void keep_message(wh_callback *callback, wh_message *message) {
    if (!WH_GROW(callback->arrived, callback->arrived_capacity, callback->arrived_count)) {
        note_fault(callback, message->rank, "out of memory for its messages");
        wh_message_clear(message);
        return;
    }
    callback->arrived[callback->arrived_count++] = *message;
    callback->arrived_bytes += message->size;
}

static void take_data(wh_callback *callback, int32_t rank, const wh_callback_frame *frame) {
    wh_assembly *assembly = &callback->peers[rank].assembly;
    switch (wh_assembly_add(assembly, frame)) {
    case WH_ASSEMBLY_WHOLE: {
        wh_message message = {WH_MESSAGE_BYTES, rank,         frame->from, frame->tag,
                              assembly->bytes,  frame->total, WH_NO_SOCKET};
        *assembly = (wh_assembly){0};
        keep_message(callback, &message);
        break;
    }
    case WH_ASSEMBLY_STRAY:
        wh_log(WHERRY_LOG_WARN, "dropping a message from rank %d, because a part of it is missing", (int)rank);
        break;
    case WH_ASSEMBLY_NO_MEMORY:
        note_fault(callback, rank, "out of memory for its messages");
        break;
    case WH_ASSEMBLY_MORE:
        break;
    }
}

/**
 * Logs a block that is not a frame; only the first one as a warning. Another program may use the
 * same transport, or the peer may have another version of Wherry.
 */
static void complain(wh_callback *callback, int32_t rank, size_t size) {
    pthread_mutex_lock(&callback->lock);
    wherry_log_level level = callback->complained ? WHERRY_LOG_DEBUG : WHERRY_LOG_WARN;
    callback->complained = true;
    pthread_mutex_unlock(&callback->lock);
    wh_log(level, "%s: dropping a block of %zu bytes from rank %d, which is not a frame of this group", callback->name,
           size, (int)rank);
}

/** The wherry_group_deliver_fn that is passed to the table's receive. */
static void deliver(void *sink, int32_t rank, const void *bytes, size_t size) {
    wh_callback *callback = sink;
    wh_callback_frame frame;
    bool foreign = rank < 0 || rank >= callback->base.size || rank == callback->base.rank || !bytes;
    if (foreign || !wh_callback_frame_read(bytes, size, &frame)) {
        complain(callback, rank, size);
        return;
    }
    pthread_mutex_lock(&callback->lock);
    bool counts = judge(callback, rank, &frame);
    bool taken = true;
    if (counts && frame.kind == WH_CALLBACK_BYE) {
        callback->peers[rank].left = true;
    } else if (counts && (frame.kind == WH_CALLBACK_PIECE || frame.kind == WH_CALLBACK_CREDIT)) {
        taken = wh_emulated_take(callback, rank, &frame);
    }
    pthread_mutex_unlock(&callback->lock);
    if (!taken) {
        note_fault(callback, rank, "out of memory for its blocks");
    } else if (counts && frame.kind == WH_CALLBACK_DATA) {
        take_data(callback, rank, &frame);
    } else if (counts && frame.kind == WH_CALLBACK_BYE) {
        wh_message gone = {.kind = WH_MESSAGE_LOST, .rank = rank, .incarnation = frame.from, .channel = WH_NO_SOCKET};
        keep_message(callback, &gone);
    }
}

/** Moves the stored messages into the mailbox, and then reports the faults of ranks. */
static void hand_over_all(wh_callback *callback) {
    for (size_t i = 0; i < callback->arrived_count; i++) {
        wh_message message = callback->arrived[i];
        wherry_error error;
        if (message.kind == WH_MESSAGE_LOST) {
            wh_mailbox_lose(callback->base.mailbox, message.rank, message.incarnation, "it has left the group");
        } else if (wh_mailbox_put(callback->base.mailbox, &message, &error) != WHERRY_OK) {
            wh_log(WHERRY_LOG_WARN, "dropping a message from rank %d; all waits for that rank fail: %s",
                   (int)message.rank, error.message);
            wh_message_clear(&message);
            lose(callback, message.rank, error.message, false);
        }
    }
    callback->arrived_count = 0;
    callback->arrived_bytes = 0;
    for (int32_t rank = 0; rank < callback->base.size && callback->faults; rank++) {
        if (callback->peers[rank].fault[0]) {
            lose(callback, rank, callback->peers[rank].fault, callback->peers[rank].gone);
            callback->peers[rank].fault[0] = '\0';
            callback->peers[rank].gone = false;
        }
    }
    callback->faults = false;
}

/**
 * Makes this thread the reader. If another thread is the reader, waits until callback->changed is
 * signalled or the deadline has passed.
 * @return true if this thread is the reader.
 */
static bool begin_reading(wh_callback *callback, wh_deadline deadline) {
    pthread_mutex_lock(&callback->lock);
    bool free = !callback->reading;
    if (free) {
        callback->reading = true;
    } else {
        wh_wait(&callback->changed, &callback->lock, deadline);
    }
    pthread_mutex_unlock(&callback->lock);
    return free;
}

static void end_reading(wh_callback *callback) {
    pthread_mutex_lock(&callback->lock);
    callback->reading = false;
    pthread_cond_broadcast(&callback->changed);
    pthread_mutex_unlock(&callback->lock);
}

/** Calls the table's receive once. Timeouts and lost ranks are not failures. */
static wherry_status receive_blocks(wh_callback *callback, wh_deadline deadline, wherry_error *error) {
    wh_fail(error, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    wherry_status status =
        callback->ops.receive(callback->context, (uint32_t)wh_deadline_poll_ms(deadline), deliver, callback, error);
    wh_callback_leave(callback);
    int32_t lost = error->rank;
    if (status == WHERRY_PEER_LOST && lost >= 0 && lost < callback->base.size && lost != callback->base.rank) {
        wh_callback_settle(callback, status, "receive", lost, error);
        note_fault(callback, lost, error->message);
        callback->peers[lost].gone = true;
        return WHERRY_OK;
    }
    if (status == WHERRY_OK || status == WHERRY_TIMED_OUT) {
        return WHERRY_OK;
    }
    return wh_callback_settle(callback, status, "receive", WHERRY_ANY_RANK, error);
}

wherry_status wh_callback_read(wh_callback *callback, wh_deadline deadline, bool hand_over, wherry_error *error) {
    wh_deadline step = wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_CALLBACK_STEP_MS));
    if (!begin_reading(callback, step)) {
        return WHERRY_OK;
    }
    wherry_error latest;
    wherry_status status = WHERRY_OK;
    bool waiting = callback->arrived_count || callback->faults;
    if (hand_over ? !waiting : callback->arrived_bytes <= WH_CALLBACK_SHARE) {
        status = receive_blocks(callback, step, &latest);
    }
    if (hand_over) {
        hand_over_all(callback);
    }
    end_reading(callback);
    wh_callback_greet(callback);
    if (status != WHERRY_OK && error) {
        *error = latest;
    }
    return status;
}

static void *read_on(void *context) {
    wh_callback *callback = context;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !atomic_load(&callback->ending)) {
        wherry_error error;
        status = wh_callback_read(callback, wh_deadline_in_ms(WH_CALLBACK_STEP_MS), true, &error);
        if (status != WHERRY_OK) {
            wh_log(WHERRY_LOG_ERROR, "rank %d can no longer read from its group: %s", (int)callback->base.rank,
                   error.message);
            wh_mailbox_close(callback->base.mailbox);
        }
    }
    return NULL;
}

wherry_status wh_callback_start_reader(wh_callback *callback, wherry_error *error) {
    int errnum = wh_thread_start(&callback->reader, read_on, callback);
    callback->has_reader = errnum == 0;
    return errnum == 0 ? WHERRY_OK : wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot start the background reader");
}

void wh_callback_stop_reader(wh_callback *callback) {
    if (callback->has_reader) {
        atomic_store(&callback->ending, true);
        pthread_join(callback->reader, NULL);
        callback->has_reader = false;
    }
}
