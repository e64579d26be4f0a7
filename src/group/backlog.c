#include "group/backlog.h"

#include "base/alloc.h"
#include "base/error.h"

enum {
    /** Size of the messages that may wait together. A single one may be larger. */
    BACKLOG_BYTES = 64 << 20,
    /** Longer messages are sent in parts, over a group without sockets. */
    LONG_MESSAGE = 64 << 10,
};

typedef struct wh_waiting_message {
    struct wh_waiting_message *next;
    wh_string text;
} wh_waiting_message;

static bool goes_in_parts(const wh_backlog *backlog, const wh_string *text) {
    return !backlog->group->ops->connect && text->size > LONG_MESSAGE;
}

/** Sends a message. Waits only if the message is sent in parts. @return as wh_group_send. */
static wherry_status try_send(const wh_backlog *backlog, const wh_string *text, wherry_error *error) {
    wh_deadline patience = wh_deadline_in_ms(goes_in_parts(backlog, text) ? backlog->parts_ms : 0);
    return wh_group_send_until(backlog->group, backlog->rank, backlog->tag, text->bytes, text->size,
                               wh_deadline_earlier(backlog->deadline, patience), &backlog->stop, error);
}

/** Keeps a message until the peer takes it. Takes it over. */
static wherry_status keep(wh_backlog *backlog, wh_string *message, wherry_error *error) {
    bool full = backlog->count && backlog->bytes + message->size > BACKLOG_BYTES;
    wh_waiting_message *added = full ? NULL : wh_alloc_zeroed(1, sizeof(*added));
    if (!added) {
        wh_free(message->bytes);
        return full ? wh_fail(error, WHERRY_TIMED_OUT, "timed out: rank %d takes no messages", (int)backlog->rank)
                    : wh_fail_memory(error, "a message");
    }
    added->text = *message;
    *(backlog->first ? &backlog->last->next : &backlog->first) = added;
    backlog->last = added;
    backlog->count++;
    backlog->bytes += message->size;
    return WHERRY_OK;
}

wherry_status wh_backlog_send(wh_backlog *backlog, wh_string *message, wherry_error *error) {
    if (message->failed) {
        wh_free(message->bytes);
        return wh_fail_memory(error, "a message");
    }
    wherry_status status = backlog->first ? WHERRY_TIMED_OUT : try_send(backlog, message, error);
    if (backlog->first || (status == WHERRY_TIMED_OUT && !goes_in_parts(backlog, message))) {
        return keep(backlog, message, error);
    }
    wh_free(message->bytes);
    return status;
}

static void drop_first(wh_backlog *backlog) {
    wh_waiting_message *first = backlog->first;
    backlog->first = first->next;
    backlog->count--;
    backlog->bytes -= first->text.size;
    wh_free(first->text.bytes);
    wh_free(first);
}

wherry_status wh_backlog_flush(wh_backlog *backlog, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (backlog->first && status == WHERRY_OK) {
        status = try_send(backlog, &backlog->first->text, error);
        if (status == WHERRY_TIMED_OUT && !goes_in_parts(backlog, &backlog->first->text)) {
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
