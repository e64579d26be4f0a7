#include "transfer/message.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "transfer/call.h"

/* ---- encoding ---- */

/** Cuts a text that is too long, but never inside a character. */
static void append_text(wh_string *message, wh_bytes text, size_t most) {
    const uint8_t *bytes = text.bytes;
    size_t size = wh_min(text.size, most);
    while (size > 0 && size < text.size && (bytes[size] & 0xC0) == 0x80) {
        size--;
    }
    wh_append_sized(message, text.bytes, size, 2);
}

static void append_lanes(wh_string *message, const wh_note *note) {
    wh_append_number(message, note->lane_count, 1);
    for (size_t i = 0; i < note->lane_count; i++) {
        wh_append_sized(message, note->lanes[i].name.bytes, note->lanes[i].name.size, 1);
        wh_append_sized(message, note->lanes[i].offer.bytes, note->lanes[i].offer.size, 4);
    }
}

static void append_request(wh_string *message, const wh_note *note) {
    wh_append_sized(message, note->lane.bytes, note->lane.size, 1);
    wh_append_sized(message, note->request.bytes, note->request.size, 2);
}

static void append_chunks(wh_string *message, const wh_note *note) {
    wh_append_number(message, note->last, 1);
    wh_append_number(message, note->bytes, 8);
    wh_append_sized(message, note->intervals.bytes, note->intervals.size, 4);
}

static void append_reason(wh_string *message, const wh_note *note) {
    wh_append_number(message, (uint32_t)note->status, 4);
    append_text(message, note->path, WH_REASON_PATH_MAX);
    append_text(message, note->text, WH_REASON_MAX);
}

static void append_offer(wh_string *message, const wh_note *note) {
    wh_append_number(message, note->id, 8);
    wh_append_number(message, note->epoch, 8);
    wh_append_number(message, (uint64_t)note->step, 8);
    wh_append_number(message, note->verify, 1);
    wh_append_number(message, note->small_pages, 1);
    append_lanes(message, note);
    wh_append_sized(message, note->manifest.bytes, note->manifest.size, 8);
    wh_append_sized(message, note->addresses.bytes, note->addresses.size, 8);
}

void wh_note_encode(const wh_note *note, wh_string *message) {
    wh_append_number(message, note->type, 1);
    switch (note->type) {
    case WH_WANT:
        wh_append_number(message, WH_CONVERSATION_VERSION, 2);
        wh_append_number(message, note->nonce, 8);
        wh_append_number(message, (uint64_t)note->step, 8);
        wh_append_number(message, note->verify, 1);
        wh_append_sized(message, note->known.bytes, note->known.size, 1);
        break;
    case WH_WITHDRAW:
        wh_append_number(message, note->nonce, 8);
        append_reason(message, note);
        break;
    case WH_OFFER:
        wh_append_number(message, WH_CONVERSATION_VERSION, 2);
        append_offer(message, note);
        break;
    case WH_PLAN:
        wh_append_number(message, note->session, 4);
        append_request(message, note);
        wh_append_number(message, note->verify, 1);
        append_chunks(message, note);
        break;
    case WH_REQUEST:
        append_chunks(message, note);
        break;
    case WH_COMPARE:
        wh_append_sized(message, note->intervals.bytes, note->intervals.size, 4);
        break;
    case WH_CLOSE:
        break;
    case WH_ASSIST:
        append_request(message, note);
        break;
    case WH_DIGESTS:
        wh_append_number(message, note->first, 8);
        wh_append_sized(message, note->digests.bytes, note->digests.size, 4);
        break;
    case WH_PROGRESS:
        wh_append_number(message, note->bytes, 8);
        break;
    case WH_DONE:
        wh_append_number(message, note->epoch, 8);
        wh_append_number(message, note->bytes, 8);
        break;
    case WH_RELEASED:
    case WH_CONFIRM:
    case WH_CONFIRMED:
        wh_append_number(message, note->epoch, 8);
        break;
    case WH_REVOKED:
        wh_append_number(message, note->epoch, 8);
        append_reason(message, note);
        break;
    case WH_REFUSE_LANE:
        wh_append_number(message, note->session, 4);
        append_reason(message, note);
        break;
    case WH_ASSISTED:
    case WH_ABORT:
        append_reason(message, note);
        break;
    }
}

/* ---- decoding ---- */

static wh_bytes take_sized(wh_cursor *cursor, size_t width) {
    wh_bytes taken;
    taken.bytes = wh_cursor_sized(cursor, width, &taken.size);
    return taken;
}

/**
 * Reads a text for errors and logs. If it is too long, not UTF-8 or has control characters, another
 * text replaces it: the message is still useful without it.
 */
static wh_bytes take_text(wh_cursor *cursor, size_t most) {
    static const char unprintable[] = "(a text that cannot be printed)";
    wh_bytes text = take_sized(cursor, 2);
    bool printable = text.size <= most && (!text.bytes || wh_utf8_printable(text.bytes, text.size));
    return printable ? text : (wh_bytes){unprintable, sizeof(unprintable) - 1};
}

static void take_reason(wh_cursor *cursor, wh_note *note) {
    note->status = (int32_t)(uint32_t)wh_cursor_number(cursor, 4);
    note->path = take_text(cursor, WH_REASON_PATH_MAX);
    note->text = take_text(cursor, WH_REASON_MAX);
}

static void take_request(wh_cursor *cursor, wh_note *note) {
    note->lane = take_sized(cursor, 1);
    note->request = take_sized(cursor, 2);
    cursor->failed = cursor->failed || note->request.size > WH_LANE_OFFER_MAX;
}

static void take_chunks(wh_cursor *cursor, wh_note *note) {
    note->last = (uint8_t)wh_cursor_number(cursor, 1);
    cursor->failed = cursor->failed || note->last > 1;
    note->bytes = wh_cursor_number(cursor, 8);
    note->intervals = take_sized(cursor, 4);
}

static void take_offer(wh_cursor *cursor, wh_note *note) {
    note->id = wh_cursor_number(cursor, 8);
    note->epoch = wh_cursor_number(cursor, 8);
    note->step = (int64_t)wh_cursor_number(cursor, 8);
    note->verify = (uint8_t)wh_cursor_number(cursor, 1);
    note->small_pages = (uint8_t)wh_cursor_number(cursor, 1);
    cursor->failed = cursor->failed || note->small_pages > 1;
    note->lane_count = (size_t)wh_cursor_number(cursor, 1);
    cursor->failed = cursor->failed || note->lane_count > WH_OFFERED_LANES_MAX;
    for (size_t i = 0; i < note->lane_count && !cursor->failed; i++) {
        note->lanes[i].name = take_sized(cursor, 1);
        note->lanes[i].offer = take_sized(cursor, 4);
        cursor->failed = cursor->failed || note->lanes[i].offer.size > WH_LANE_LONG_OFFER_MAX;
    }
    note->manifest = take_sized(cursor, 8);
    note->addresses = take_sized(cursor, 8);
}

/** Reads the fields of all types except WANT and OFFER, which have a version. */
static void take_fields(wh_cursor *cursor, wh_note *note) {
    switch (note->type) {
    case WH_WITHDRAW:
        note->nonce = wh_cursor_number(cursor, 8);
        take_reason(cursor, note);
        break;
    case WH_PLAN:
        note->session = (uint32_t)wh_cursor_number(cursor, 4);
        take_request(cursor, note);
        note->verify = (uint8_t)wh_cursor_number(cursor, 1);
        take_chunks(cursor, note);
        break;
    case WH_REQUEST:
        take_chunks(cursor, note);
        break;
    case WH_COMPARE:
        note->intervals = take_sized(cursor, 4);
        break;
    case WH_CLOSE:
        break;
    case WH_ASSIST:
        take_request(cursor, note);
        break;
    case WH_DIGESTS:
        note->first = wh_cursor_number(cursor, 8);
        note->digests = take_sized(cursor, 4);
        cursor->failed = cursor->failed || note->digests.size % WHERRY_DIGEST_BYTES;
        break;
    case WH_PROGRESS:
        note->bytes = wh_cursor_number(cursor, 8);
        break;
    case WH_DONE:
        note->epoch = wh_cursor_number(cursor, 8);
        note->bytes = wh_cursor_number(cursor, 8);
        break;
    case WH_RELEASED:
    case WH_CONFIRM:
    case WH_CONFIRMED:
        note->epoch = wh_cursor_number(cursor, 8);
        break;
    case WH_REVOKED:
        note->epoch = wh_cursor_number(cursor, 8);
        take_reason(cursor, note);
        break;
    case WH_REFUSE_LANE:
        note->session = (uint32_t)wh_cursor_number(cursor, 4);
        take_reason(cursor, note);
        break;
    case WH_ASSISTED:
    case WH_ABORT:
        take_reason(cursor, note);
        break;
    default:
        cursor->failed = true;
    }
}

static wherry_status fail_version(const wh_note *note, wherry_error *error) {
    return wh_fail(error, WHERRY_BAD_VERSION,
                   "the other side speaks version %u of the conversation and this one %d; use the same version of "
                   "Wherry on both",
                   note->version, WH_CONVERSATION_VERSION);
}

wherry_status wh_note_decode(const void *bytes, size_t size, wh_note *note_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_note note = {.type = (wh_message_type)wh_cursor_number(&cursor, 1)};
    if (note.type == WH_WANT || note.type == WH_OFFER) {
        note.version = (uint16_t)wh_cursor_number(&cursor, 2);
        uint64_t first = wh_cursor_number(&cursor, 8);
        if (note.version != WH_CONVERSATION_VERSION && !cursor.failed) {
            note.nonce = note.id = first;
            *note_p = note;
            return fail_version(&note, error);
        }
        if (note.type == WH_OFFER) {
            cursor = wh_cursor_over((const uint8_t *)bytes + 3, size - wh_min(size, 3));
            take_offer(&cursor, &note);
        } else {
            note.nonce = first;
            note.step = (int64_t)wh_cursor_number(&cursor, 8);
            note.verify = (uint8_t)wh_cursor_number(&cursor, 1);
            note.known = take_sized(&cursor, 1);
            cursor.failed = cursor.failed || (note.known.size && note.known.size != WHERRY_DIGEST_BYTES);
        }
    } else {
        take_fields(&cursor, &note);
    }
    if (!wh_cursor_ended(&cursor)) {
        return wh_fail(error, WHERRY_MALFORMED, "a message of %zu bytes, type %d, is not of the form of the protocol",
                       size, (int)note.type);
    }
    *note_p = note;
    return WHERRY_OK;
}

/* ---- intervals ---- */

void wh_intervals_encode(const wherry_interval *intervals, size_t count, wh_string *bytes) {
    for (size_t i = 0; i < count; i++) {
        wh_append_number(bytes, intervals[i].first, 8);
        wh_append_number(bytes, intervals[i].count, 8);
    }
}

wherry_status wh_intervals_decode(wh_bytes bytes, uint64_t chunks, wherry_interval **intervals_p, size_t *count_p,
                                  wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes.bytes, bytes.size);
    size_t count = bytes.size / 16;
    wherry_interval *intervals = wh_alloc_array(count, sizeof(*intervals));
    if (!intervals) {
        return wh_fail_memory(error, "a plan");
    }
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t first = wh_cursor_number(&cursor, 8);
        uint64_t length = wh_cursor_number(&cursor, 8);
        if (first >= chunks || length == 0 || length > chunks - first || (i && first <= end)) {
            wh_free(intervals);
            return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                           "chunks %" PRIu64 " to %" PRIu64 " were asked for, out of order or of only %" PRIu64, first,
                           first + length, chunks);
        }
        intervals[i] = (wherry_interval){first, length};
        end = first + length;
    }
    if (!wh_cursor_ended(&cursor)) {
        wh_free(intervals);
        return wh_fail(error, WHERRY_MALFORMED, "a list of chunks is not of the form of the protocol");
    }
    *intervals_p = intervals;
    *count_p = count;
    return WHERRY_OK;
}

/* ---- reasons ---- */

void wh_note_reason(wh_note *note, wherry_status status, const wherry_error *error) {
    note->status = status;
    note->path = (wh_bytes){error->path, strlen(error->path)};
    note->text = (wh_bytes){error->message, strlen(error->message)};
}

wherry_status wh_fail_note(wherry_error *error, wherry_status status, int32_t rank, const wh_note *note,
                           const char *what) {
    wh_fail(error, status, "rank %d %s: %.*s", (int)rank, what, (int)note->text.size, (const char *)note->text.bytes);
    if (error) {
        char path[WH_REASON_PATH_MAX + 1];
        size_t size = wh_min(note->path.size, WH_REASON_PATH_MAX);
        memcpy(path, note->path.size ? note->path.bytes : "", size);
        path[size] = '\0';
        wh_fail_path(error, path);
        error->rank = rank;
    }
    return status;
}

/* ---- sending ---- */

static wherry_status send_until(wh_group *group, int32_t rank, uint64_t tag, const wh_note *note, wh_deadline deadline,
                                const wh_stop *stop, wherry_error *error) {
    wh_string message = {0};
    wh_note_encode(note, &message);
    wherry_status status =
        message.failed ? wh_fail_memory(error, "a message")
                       : wh_group_send_until(group, rank, tag, message.bytes, message.size, deadline, stop, error);
    wh_free(message.bytes);
    return status;
}

wherry_status wh_note_send(const wh_note *note, wh_call *call, int32_t rank, uint64_t tag, wh_deadline deadline,
                           wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call};
    wherry_status status = send_until(call->transport->group, rank, tag, note, deadline, &stop, error);
    if (status == WHERRY_CANCELLED && wh_call_is_cancelled(call)) {
        status = wh_fail_rank(error, rank, wh_call_must_end(call, "sending a message", error));
    }
    return status;
}

void wh_note_try_send(const wh_note *note, wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline) {
    send_until(group, rank, tag, note, deadline, NULL, NULL);
}

/* ---- messages that wait ---- */

enum {
    BACKLOG_BYTES = 64 << 20, /**< More messages wait only if there were none. */
    LONG_MESSAGE = 64 << 10,  /**< Longer ones go in parts, over a group without sockets. */
};

typedef struct wh_waiting_message {
    struct wh_waiting_message *next;
    wh_string text;
} wh_waiting_message;

/** True if the group sends the message in parts, which cannot be left half sent. */
static bool goes_in_parts(const wh_string *text, const wh_call *call) {
    return !call->transport->group->ops->connect && text->size > LONG_MESSAGE;
}

/** Waits only if the message goes in parts. @return as wh_group_send. */
static wherry_status try_send(const wh_string *text, wh_call *call, int32_t rank, uint64_t tag, wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call};
    wh_deadline deadline = wh_deadline_in_ms(goes_in_parts(text, call) ? call->options.no_progress_ms : 0);
    return wh_group_send_until(call->transport->group, rank, tag, text->bytes, text->size,
                               wh_deadline_earlier(call->deadline, deadline), &stop, error);
}

wherry_status wh_backlog_tell(wh_backlog *backlog, const wh_note *note, wh_call *call, int32_t rank, uint64_t tag,
                              wherry_error *error) {
    wh_string text = {0};
    wh_note_encode(note, &text);
    wherry_status status = text.failed      ? wh_fail_memory(error, "a message")
                           : backlog->first ? WHERRY_TIMED_OUT
                                            : try_send(&text, call, rank, tag, error);
    if (status != WHERRY_TIMED_OUT || goes_in_parts(&text, call)) {
        wh_free(text.bytes);
        return status;
    }
    wh_waiting_message **last = &backlog->first;
    while (*last) {
        last = &(*last)->next;
    }
    bool full = backlog->count && backlog->bytes + text.size > BACKLOG_BYTES;
    wh_waiting_message *added = full ? NULL : wh_alloc_zeroed(1, sizeof(*added));
    if (!added) {
        wh_free(text.bytes);
        return full ? wh_fail(error, WHERRY_TIMED_OUT, "timed out: rank %d takes no messages", (int)rank)
                    : wh_fail_memory(error, "a message");
    }
    added->text = text;
    *last = added;
    backlog->count++;
    backlog->bytes += text.size;
    return WHERRY_OK;
}

static void drop_first(wh_backlog *backlog) {
    wh_waiting_message *first = backlog->first;
    backlog->first = first->next;
    backlog->count--;
    backlog->bytes -= first->text.size;
    wh_free(first->text.bytes);
    wh_free(first);
}

wherry_status wh_backlog_flush(wh_backlog *backlog, wh_call *call, int32_t rank, uint64_t tag, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (backlog->first && status == WHERRY_OK) {
        status = try_send(&backlog->first->text, call, rank, tag, error);
        if (status == WHERRY_TIMED_OUT) {
            return WHERRY_OK;
        }
        drop_first(backlog);
    }
    return status;
}

void wh_backlog_clear(wh_backlog *backlog) {
    while (backlog->first) {
        drop_first(backlog);
    }
}
