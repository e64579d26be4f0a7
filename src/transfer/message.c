#include "transfer/message.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "transfer/call.h"

/* ---- the form of the messages ---- */

typedef enum field_kind {
    END,     /**< No field. It ends the form. */
    VERSION, /**< A number, always WH_CONVERSATION_VERSION. The tag for an answer follows. */
    NUMBER,  /**< Big endian. */
    STATUS,  /**< A number of 4 bytes with a sign. */
    BYTES,   /**< A length, followed by the bytes. */
    TEXT,    /**< Like BYTES, but cut if the text is too long. */
    LANES,   /**< The lanes of an OFFER: wh_note.lanes. */
} field_kind;

/** A member of wh_note in a message: a number of 64 bits, or wh_bytes. */
typedef struct field {
    field_kind kind;
    uint8_t width; /**< Size in bytes of the number, or of the length. */
    uint8_t unit;  /**< For BYTES: the length is a multiple of this. */
    size_t offset; /**< Offset of the member in wh_note. */
    uint64_t most; /**< The largest allowed number or length. */
} field;

#define OF(kind, width, unit, member, most)                                                                            \
    { kind, width, unit, offsetof(wh_note, member), most }
#define OF_NUMBER(member, width, most) OF(NUMBER, width, 1, member, most)
#define OF_BYTES(member, width, most, unit) OF(BYTES, width, unit, member, most)
#define OF_TEXT(member, most) OF(TEXT, 2, 1, member, most)
#define OF_VERSION OF(VERSION, 2, 1, version, UINT64_MAX)
#define OF_LANES OF(LANES, 1, 1, lanes, WH_OFFERED_LANES_MAX)
#define OF_STATUS OF(STATUS, 4, 1, status, UINT64_MAX)
#define OF_TAG(member) OF_NUMBER(member, 8, UINT64_MAX)
#define OF_STEP OF_NUMBER(step, 8, UINT64_MAX)
#define OF_VERIFY OF_NUMBER(verify, 1, UINT8_MAX)
#define OF_FLAG(member) OF_NUMBER(member, 1, 1)
#define OF_SESSION OF_NUMBER(session, 4, UINT32_MAX)
#define OF_SIZE OF_NUMBER(bytes, 8, UINT64_MAX)
#define OF_INTERVALS OF_BYTES(intervals, 4, UINT64_MAX, 1)
#define OF_REQUEST OF_BYTES(lane, 1, UINT64_MAX, 1), OF_BYTES(request, 2, WH_LANE_OFFER_MAX, 1)
#define OF_CHUNKS OF_FLAG(last), OF_SIZE, OF_INTERVALS
#define OF_REASON OF_STATUS, OF_TEXT(path, WH_REASON_PATH_MAX), OF_TEXT(text, WH_REASON_MAX)
#define OF_OFFER OF_BYTES(manifest, 8, UINT64_MAX, 1), OF_BYTES(addresses, 8, UINT64_MAX, 1)

/** The fields of each message, in their order. */
static const field forms[][10] = {
    [WH_WANT] = {OF_VERSION, OF_TAG(nonce), OF_STEP, OF_VERIFY,
                 OF_BYTES(known, 1, WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES)},
    [WH_WITHDRAW] = {OF_TAG(nonce), OF_REASON},
    [WH_OFFER] = {OF_VERSION, OF_TAG(id), OF_TAG(epoch), OF_STEP, OF_VERIFY, OF_FLAG(small_pages), OF_LANES, OF_OFFER},
    [WH_PLAN] = {OF_SESSION, OF_REQUEST, OF_VERIFY, OF_CHUNKS},
    [WH_REFUSE_LANE] = {OF_SESSION, OF_REASON},
    [WH_ASSIST] = {OF_REQUEST},
    [WH_ASSISTED] = {OF_REASON},
    [WH_REQUEST] = {OF_CHUNKS},
    [WH_DIGESTS] = {OF_FLAG(strong), OF_NUMBER(first, 8, UINT64_MAX),
                    OF_BYTES(digests, 4, UINT64_MAX, WHERRY_DIGEST_BYTES)},
    [WH_PROGRESS] = {OF_SIZE},
    [WH_DONE] = {OF_TAG(epoch), OF_FLAG(last), OF_SIZE},
    [WH_RELEASED] = {OF_TAG(epoch)},
    [WH_REVOKED] = {OF_TAG(epoch), OF_REASON},
    [WH_ABORT] = {OF_REASON},
    [WH_COMPARE] = {OF_FLAG(strong), OF_INTERVALS},
    [WH_CLOSE] = {{.kind = END}},
    [WH_CONFIRM] = {OF_TAG(epoch)},
    [WH_CONFIRMED] = {OF_TAG(epoch)},
};

/** The fields of a message; none for a type that does not exist. */
static const field *form_of(uint64_t type) {
    return forms[type < sizeof(forms) / sizeof(*forms) ? type : 0];
}

/* ---- encoding ---- */

static void append_field(wh_string *message, const wh_note *note, const field *form) {
    const void *member = (const char *)note + form->offset;
    const wh_bytes *bytes = member;
    switch (form->kind) {
    case END:
        break;
    case VERSION:
        wh_append_number(message, WH_CONVERSATION_VERSION, form->width);
        break;
    case NUMBER:
    case STATUS:
        wh_append_number(message, *(const uint64_t *)member, form->width);
        break;
    case BYTES:
        wh_append_sized(message, bytes->bytes, bytes->size, form->width);
        break;
    case TEXT:
        wh_append_sized(message, bytes->bytes, wh_utf8_cut(bytes->bytes, bytes->size, form->most), form->width);
        break;
    case LANES:
        wh_string_append(message, bytes->size ? bytes->bytes : "\0", wh_max(bytes->size, 1));
        break;
    }
}

void wh_note_encode(const wh_note *note, wh_string *message) {
    wh_append_number(message, note->type, 1);
    for (const field *at = form_of(note->type); at->kind != END; at++) {
        append_field(message, note, at);
    }
}

/* ---- decoding ---- */

/**
 * Reads a text for errors and logs. If it is too long, not UTF-8 or has control characters, another
 * text replaces it, because the message is still useful without the text.
 */
static wh_bytes take_text(wh_cursor *cursor, const field *form) {
    static const char unprintable[] = "(a text that cannot be printed)";
    wh_bytes text = wh_cursor_sized(cursor, form->width);
    bool printable = text.size <= form->most && (!text.bytes || wh_utf8_printable(text.bytes, text.size));
    return printable ? text : (wh_bytes){unprintable, sizeof(unprintable) - 1};
}

/** Reads the next lane of an OFFER. */
static void take_lane(wh_cursor *cursor, wh_bytes *name, wh_bytes *offer) {
    *name = wh_cursor_sized(cursor, 1);
    *offer = wh_cursor_sized(cursor, 4);
    cursor->failed = cursor->failed || offer->size > WH_LANE_LONG_OFFER_MAX;
}

static wh_bytes take_lanes(wh_cursor *cursor, const field *form) {
    const uint8_t *begin = cursor->at;
    uint64_t count = wh_cursor_number(cursor, form->width);
    cursor->failed = cursor->failed || count > form->most;
    for (uint64_t i = 0; i < count && !cursor->failed; i++) {
        wh_bytes name;
        wh_bytes offer;
        take_lane(cursor, &name, &offer);
    }
    return (wh_bytes){begin, (size_t)(cursor->at - begin)};
}

static void take_field(wh_cursor *cursor, wh_note *note, const field *form) {
    void *member = (char *)note + form->offset;
    wh_bytes *bytes = member;
    uint64_t *number = member;
    switch (form->kind) {
    case END:
        break;
    case VERSION:
    case NUMBER:
        *number = wh_cursor_number(cursor, form->width);
        cursor->failed = cursor->failed || *number > form->most;
        break;
    case STATUS:
        *(int64_t *)member = (int32_t)wh_cursor_number(cursor, form->width);
        break;
    case BYTES:
        *bytes = wh_cursor_sized(cursor, form->width);
        cursor->failed = cursor->failed || bytes->size > form->most || bytes->size % form->unit;
        break;
    case TEXT:
        *bytes = take_text(cursor, form);
        break;
    case LANES:
        *bytes = take_lanes(cursor, form);
        break;
    }
}

static wherry_status fail_version(wh_note *note_p, uint64_t version, uint64_t tag, wherry_error *error) {
    *note_p = (wh_note){.type = note_p->type, .version = version, .nonce = tag, .id = tag};
    return wh_fail(error, WHERRY_BAD_VERSION,
                   "the other side speaks version %d of the conversation and this one %d; use the same version of "
                   "Wherry on both",
                   (int)version, WH_CONVERSATION_VERSION);
}

wherry_status wh_note_decode(const void *bytes, size_t size, wh_note *note_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    uint64_t type = wh_cursor_number(&cursor, 1);
    bool known = type == WH_CLOSE || form_of(type)->kind != END;
    wh_note note = {.type = (wh_message_type)type};
    for (const field *at = form_of(type); at->kind != END; at++) {
        take_field(&cursor, &note, at);
        if (at->kind == VERSION && note.version != WH_CONVERSATION_VERSION) {
            uint64_t tag = wh_cursor_number(&cursor, 8);
            note_p->type = note.type;
            if (!cursor.failed) {
                return fail_version(note_p, note.version, tag, error);
            }
        }
    }
    if (!known || !wh_cursor_ended(&cursor)) {
        return wh_fail(error, WHERRY_MALFORMED, "the message of %zu bytes with type %d is malformed", size, (int)type);
    }
    *note_p = note;
    return WHERRY_OK;
}

/* ---- lanes ---- */

void wh_lanes_add(wh_string *lanes, const char *name, const void *offer, size_t size) {
    if (!lanes->size) {
        wh_append_number(lanes, 0, 1);
    }
    wh_append_sized(lanes, name, strlen(name), 1);
    wh_append_sized(lanes, offer, size, 4);
    if (!lanes->failed) {
        lanes->bytes[0]++;
    }
}

bool wh_lanes_find(wh_bytes lanes, const char *name, wh_bytes *offer_p) {
    wh_cursor cursor = wh_cursor_over(lanes.bytes, lanes.size);
    for (uint64_t left = wh_cursor_number(&cursor, 1); left && !cursor.failed; left--) {
        wh_bytes found;
        take_lane(&cursor, &found, offer_p);
        if (found.bytes && found.size == strlen(name) && memcmp(found.bytes, name, found.size) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- reasons ---- */

void wh_note_reason(wh_note *note, wherry_status status, const wherry_error *error) {
    note->status = status;
    note->path = (wh_bytes){error->path, strlen(error->path)};
    note->text = (wh_bytes){error->message, strlen(error->message)};
}

wherry_status wh_fail_note(wherry_error *error, wherry_status status, int32_t rank, const char *name,
                           const wh_note *note, const char *what) {
    wh_fail(error, status, "%s %s: %.*s", name, what, (int)note->text.size, (const char *)note->text.bytes);
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

wherry_status wh_note_send(const wh_note *note, wh_call *call, wh_group *group, int32_t rank, uint64_t tag,
                           wh_deadline deadline, wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call};
    wh_string message = {0};
    wh_note_encode(note, &message);
    wherry_status status = message.failed ? wh_fail_memory(error, "a message")
                                          : wh_group_send_until(group, rank, tag, message.bytes, message.size, deadline,
                                                                call ? &stop : NULL, error);
    wh_free(message.bytes);
    if (status == WHERRY_CANCELLED && call && wh_call_is_cancelled(call)) {
        status = wh_fail_rank(error, rank, wh_call_must_end(call, "sending a message", error));
    }
    return status;
}

void wh_note_try_send(const wh_note *note, wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline) {
    wh_note_send(note, NULL, group, rank, tag, deadline, NULL);
}
