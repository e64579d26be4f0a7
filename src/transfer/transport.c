#include "transfer/transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

/**
 * In wh_waiting_send.nonces: the destination has ended, and is paired no more. No nonce has this
 * value: they have the tag bit of conversations.
 */
#define ENDED UINT64_C(1)

/** Tags of WANTs: one a transport, out of the way of a program's own. */
#define WANT_TAG (UINT64_C(1) << 48)

/**
 * A rank that asks more often than this without an answer is forgotten, the oldest first. What it
 * asks is kept, and so must be short.
 */
enum { ASKING_MAX = 64, QUESTION_MAX = 4096 };

/* ---- pairing; the lock is held ---- */

static void forget(wh_asking **at) {
    wh_asking *gone = *at;
    *at = gone->next;
    wh_message_clear(&gone->message);
    wh_free(gone);
}

/** Gives a WANT to the oldest send that waits for its rank. @return false where there is none. */
static bool pair(wherry_transport *transport, wh_message *message, uint64_t nonce) {
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        for (size_t i = 0; i < send->count; i++) {
            if (send->ranks[i] == message->rank && send->nonces[i] == 0) {
                send->nonces[i] = nonce;
                if (!wh_inbox_post(send->inbox, message)) {
                    wh_log(WHERRY_LOG_ERROR, "no memory for a question of rank %d", (int)message->rank);
                    send->nonces[i] = 0;
                }
                return true;
            }
        }
    }
    return false;
}

/** Keeps a WANT for a send to come, and takes it over. */
static void keep(wherry_transport *transport, wh_message *message, uint64_t nonce) {
    size_t of_rank = 0;
    wh_asking **first = NULL;
    wh_asking **at = &transport->asking;
    for (; *at; at = &(*at)->next) {
        if ((*at)->message.rank == message->rank) {
            of_rank++;
            first = first ? first : at;
        }
    }
    wh_asking *added = wh_alloc(sizeof(*added));
    if (!added) {
        wh_message_clear(message);
        return;
    }
    *added = (wh_asking){NULL, *message, nonce};
    *at = added;
    if (of_rank >= ASKING_MAX) {
        forget(first);
    }
}

static void take_want(wherry_transport *transport, wh_message *message, uint64_t nonce) {
    if (!pair(transport, message, nonce)) {
        keep(transport, message, nonce);
    }
}

/** A WANT is no more: it is forgotten, or the send that has it is told. */
static void take_withdrawal(wherry_transport *transport, wh_message *message, uint64_t nonce) {
    for (wh_asking **at = &transport->asking; *at; at = &(*at)->next) {
        if ((*at)->nonce == nonce && (*at)->message.rank == message->rank) {
            forget(at);
            wh_message_clear(message);
            return;
        }
    }
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        for (size_t i = 0; i < send->count; i++) {
            if (send->ranks[i] == message->rank && send->nonces[i] == nonce) {
                wh_inbox_post(send->inbox, message);
                return;
            }
        }
    }
    wh_message_clear(message);
}

static void serve(void *context, wh_message *message) {
    wherry_transport *transport = context;
    wh_note note = {.nonce = 0};
    wherry_error error;
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, &error);
    bool known = (note.type == WH_WANT || note.type == WH_WITHDRAW) && message->size <= QUESTION_MAX;
    if ((status != WHERRY_OK && status != WHERRY_BAD_VERSION) || !known || !(note.nonce & WH_TAG_CONVERSATION)) {
        wh_log(WHERRY_LOG_WARN, "rank %d asks in a form that is not known; it is not heard", (int)message->rank);
        wh_message_clear(message);
        return;
    }
    pthread_mutex_lock(&transport->lock);
    if (note.type == WH_WANT) {
        take_want(transport, message, note.nonce);
    } else {
        take_withdrawal(transport, message, note.nonce);
    }
    pthread_mutex_unlock(&transport->lock);
}

/**
 * Forgets the WANTs of incarnations that are gone, which must not stand before those of their
 * successors.
 */
static void forget_the_gone(wherry_transport *transport) {
    wh_asking **at = &transport->asking;
    while (*at) {
        const wh_message *message = &(*at)->message;
        if (wh_mailbox_is_present(transport->group->mailbox, message->rank, message->incarnation)) {
            at = &(*at)->next;
        } else {
            forget(at);
        }
    }
}

/** Pairs the WANTs that wait. */
static void pair_waiting(wherry_transport *transport) {
    forget_the_gone(transport);
    wh_asking **at = &transport->asking;
    while (*at) {
        wh_asking *one = *at;
        if (pair(transport, &one->message, one->nonce)) {
            *at = one->next;
            wh_free(one);
        } else {
            at = &one->next;
        }
    }
}

void wh_transport_add_send(wherry_transport *transport, wh_waiting_send *send) {
    pthread_mutex_lock(&transport->lock);
    wh_waiting_send **last = &transport->sends;
    while (*last) {
        last = &(*last)->next;
    }
    send->next = NULL;
    *last = send;
    pair_waiting(transport);
    pthread_mutex_unlock(&transport->lock);
}

static void set_nonce(wherry_transport *transport, wh_waiting_send *send, int32_t rank, uint64_t nonce) {
    pthread_mutex_lock(&transport->lock);
    for (size_t i = 0; i < send->count; i++) {
        if (send->ranks[i] == rank) {
            send->nonces[i] = nonce;
        }
    }
    pair_waiting(transport);
    pthread_mutex_unlock(&transport->lock);
}

void wh_transport_unpair(wherry_transport *transport, wh_waiting_send *send, int32_t rank) {
    set_nonce(transport, send, rank, 0);
}

void wh_transport_end_pairing(wherry_transport *transport, wh_waiting_send *send, int32_t rank) {
    set_nonce(transport, send, rank, ENDED);
}

/**
 * Takes over a message of the transport's own tag that a send has not dealt with; the lock is held.
 */
static void take_back(wherry_transport *transport, wh_message *message) {
    wh_note note = {.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, NULL);
    if (status == WHERRY_OK && note.type == WH_WANT) {
        take_want(transport, message, note.nonce);
    } else if (status == WHERRY_OK && note.type == WH_WITHDRAW) {
        take_withdrawal(transport, message, note.nonce);
    } else {
        wh_message_clear(message);
    }
}

void wh_transport_take_back(wherry_transport *transport, wh_message *message) {
    pthread_mutex_lock(&transport->lock);
    take_back(transport, message);
    pthread_mutex_unlock(&transport->lock);
}

void wh_transport_remove_send(wherry_transport *transport, wh_waiting_send *send) {
    pthread_mutex_lock(&transport->lock);
    wh_waiting_send **at = &transport->sends;
    while (*at && *at != send) {
        at = &(*at)->next;
    }
    wh_message message;
    bool removed = *at != NULL;
    if (removed) {
        *at = send->next;
    }
    while (removed && wh_inbox_poll(send->inbox, &message)) {
        if (message.kind == WH_MESSAGE_BYTES && message.tag == transport->tag) {
            take_back(transport, &message);
        } else {
            wh_message_clear(&message);
        }
    }
    pthread_mutex_unlock(&transport->lock);
}

/* ---- the transport ---- */

wherry_status wh_transport_create(wh_group *group, uint32_t number, const wh_lane_ops *const *lanes, size_t lane_count,
                                  wherry_transport **transport_p, wherry_error *error) {
    wherry_transport *transport = wh_alloc_zeroed(1, sizeof(*transport));
    if (!transport) {
        return wh_fail_memory(error, "a transport");
    }
    transport->group = group;
    transport->tag = WANT_TAG + number;
    transport->lanes = lanes;
    transport->lane_count = lane_count;
    pthread_mutex_init(&transport->lock, NULL);
    wherry_status status = wh_service_open(group, transport->tag, serve, transport, error);
    if (status != WHERRY_OK) {
        pthread_mutex_destroy(&transport->lock);
        wh_free(transport);
        return status == WHERRY_INVALID_ARGUMENT
                   ? wh_fail(error, status, "the group has a transport of number %u already", (unsigned)number)
                   : status;
    }
    *transport_p = transport;
    return WHERRY_OK;
}

void wh_transport_forget(const wherry_transport *transport, const wh_group *group, int32_t rank, bool lost,
                         const wh_lane_ops *but) {
    for (size_t i = 0; i < transport->lane_count; i++) {
        if (transport->lanes[i]->forget && transport->lanes[i] != but) {
            transport->lanes[i]->forget(group, rank, lost);
        }
    }
}

void wherry_transport_destroy(wherry_transport *transport) {
    if (!transport) {
        return;
    }
    wh_transport_forget(transport, transport->group, -1, false, NULL);
    wh_service_close(transport->group, transport->tag);
    while (transport->asking) {
        forget(&transport->asking);
    }
    pthread_mutex_destroy(&transport->lock);
    wh_free(transport);
}

static int compare_ranks(const void *one, const void *other) {
    int32_t a = *(const int32_t *)one;
    int32_t b = *(const int32_t *)other;
    return a < b ? -1 : a > b;
}

const char *wherry_transport_lane(const wherry_transport *transport, size_t index) {
    return transport && index < transport->lane_count ? transport->lanes[index]->name : NULL;
}

size_t wherry_transport_waiting(wherry_transport *transport, int32_t *ranks, size_t capacity) {
    size_t count = 0;
    pthread_mutex_lock(&transport->lock);
    forget_the_gone(transport);
    for (const wh_asking *one = transport->asking; one; one = one->next) {
        bool known = false;
        for (const wh_asking *before = transport->asking; before != one && !known; before = before->next) {
            known = before->message.rank == one->message.rank;
        }
        if (!known && count < capacity) {
            ranks[count] = one->message.rank;
        }
        count += !known;
    }
    pthread_mutex_unlock(&transport->lock);
    if (count && capacity) {
        qsort(ranks, wh_min(count, capacity), sizeof(*ranks), compare_ranks);
    }
    return count;
}

/* ---- talking ---- */

wherry_status wh_transport_tell(wherry_transport *transport, int32_t rank, uint64_t tag, const wh_note *note,
                                wh_deadline deadline, wherry_error *error) {
    wh_string message = {0};
    wh_note_encode(note, &message);
    wherry_status status =
        message.failed ? wh_fail_memory(error, "a message")
                       : wh_group_send(transport->group, rank, tag, message.bytes, message.size, deadline, error);
    wh_free(message.bytes);
    return status;
}

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
