#include "transfer/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "transfer/call.h"
#include "transfer/reader.h"

/**
 * In wh_waiting_send.nonces: the rank is not paired any more. No nonce has this value, because
 * nonces have the tag bit of conversations.
 */
#define UNPAIRED UINT64_C(1)

/** The tags of WANT messages: one per transport, apart from the tags of a program. */
#define WANT_TAG (UINT64_C(1) << 48)

enum {
    /** Questions that are kept per rank. If there are more, the oldest goes. */
    ASKING_MAX = 64,
    QUESTION_MAX = 4096, /**< Maximum size of a question, because it is kept. */
    STEP_MS = 2,         /**< How long a step for one of several receivers may wait. */
    FLUSH_MS = 5,        /**< How long the loop waits if messages wait in a backlog. */
    TICK_NS = 50000000,  /**< How often readers are looked after, even if messages keep coming. */
};

/* ---- pairing; the lock is held ---- */

static void forget(wh_asking **at) {
    wh_asking *gone = *at;
    *at = gone->next;
    wh_message_clear(&gone->message);
    wh_free(gone);
}

/** Gives a question to the oldest send that waits for its rank. @return false if there is none. */
static bool pair(wherry_transport *transport, wh_asking *asking) {
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        for (size_t i = 0; i < send->count; i++) {
            bool fits = send->ranks[i] == asking->message.rank && send->nonces[i] == 0;
            if (fits && (!asking->finished || asking->step == send->step)) {
                send->nonces[i] = asking->nonce;
                if (!wh_inbox_post(send->inbox, &asking->message)) {
                    wh_log(WHERRY_LOG_ERROR, "out of memory for a question of rank %d", (int)asking->message.rank);
                    send->nonces[i] = 0;
                }
                return true;
            }
        }
    }
    return false;
}

/**
 * Drops the oldest question of a rank if it has too many, and all that say that it has finished.
 */
static void limit_questions(wherry_transport *transport, int32_t rank) {
    size_t count = 0;
    wh_asking **first = NULL;
    wh_asking **at = &transport->asking;
    while (*at) {
        bool same = (*at)->message.rank == rank;
        if (same && (*at)->finished) {
            forget(at);
            continue;
        }
        first = same && !first ? at : first;
        count += same;
        at = &(*at)->next;
    }
    if (count >= ASKING_MAX) {
        forget(first);
    }
}

/** Takes over the message. */
static void take_want(wherry_transport *transport, wh_message *message, const wh_note *want) {
    wh_asking asking = {.message = *message, .nonce = want->nonce, .step = want->step};
    limit_questions(transport, message->rank);
    if (pair(transport, &asking)) {
        return;
    }
    wh_asking *kept = wh_alloc(sizeof(*kept));
    if (!kept) {
        wh_message_clear(message);
        return;
    }
    *kept = asking;
    wh_asking **last = &transport->asking;
    while (*last) {
        last = &(*last)->next;
    }
    *last = kept;
}

/** Drops the question, or tells the send that has it. Takes over the message. */
static void take_withdrawal(wherry_transport *transport, wh_message *message, const wh_note *withdrawal) {
    for (wh_asking **at = &transport->asking; *at; at = &(*at)->next) {
        wh_asking *one = *at;
        if (one->nonce != withdrawal->nonce || one->message.rank != message->rank) {
            continue;
        }
        if (withdrawal->status == WHERRY_OK) {
            wh_message_clear(&one->message);
            one->message = *message;
            one->finished = true;
        } else {
            forget(at);
            wh_message_clear(message);
        }
        return;
    }
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        for (size_t i = 0; i < send->count; i++) {
            if (send->ranks[i] == message->rank && send->nonces[i] == withdrawal->nonce) {
                wh_inbox_post(send->inbox, message);
                return;
            }
        }
    }
    wh_message_clear(message);
}

/** Forgets the questions of incarnations that are gone: their successors ask again. */
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

static void pair_waiting(wherry_transport *transport) {
    forget_the_gone(transport);
    wh_asking **at = &transport->asking;
    while (*at) {
        wh_asking *one = *at;
        if (pair(transport, one)) {
            *at = one->next;
            wh_free(one);
        } else {
            at = &one->next;
        }
    }
}

/** Takes over a message of the transport's own tag that a send did not handle. */
static void take_back(wherry_transport *transport, wh_message *message) {
    wh_note note = {.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, NULL);
    if (status == WHERRY_OK && note.type == WH_WANT) {
        take_want(transport, message, &note);
    } else if (status == WHERRY_OK && note.type == WH_WITHDRAW) {
        take_withdrawal(transport, message, &note);
    } else {
        wh_message_clear(message);
    }
}

/* ---- pairing ---- */

/** The service of the transport's tag. */
static void take_question(void *context, wh_message *message) {
    wherry_transport *transport = context;
    wh_note note = {.nonce = 0};
    wherry_error error;
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, &error);
    bool known = (note.type == WH_WANT || note.type == WH_WITHDRAW) && message->size <= QUESTION_MAX;
    if ((status != WHERRY_OK && status != WHERRY_BAD_VERSION) || !known || !(note.nonce & WH_TAG_CONVERSATION)) {
        wh_log(WHERRY_LOG_WARN, "rank %d sent a malformed question, which is ignored", (int)message->rank);
        wh_message_clear(message);
        return;
    }
    pthread_mutex_lock(&transport->lock);
    if (note.type == WH_WANT) {
        take_want(transport, message, &note);
    } else {
        take_withdrawal(transport, message, &note);
    }
    pthread_mutex_unlock(&transport->lock);
}

/** Begins to pair a send: questions that fit are posted to its inbox. */
static void add_send(wherry_transport *transport, wh_waiting_send *send) {
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

/**
 * Ends the pairing of a send. Questions that it has not read are paired with others. Does nothing
 * the second time.
 */
static void remove_send(wherry_transport *transport, wh_waiting_send *send) {
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
    set_nonce(transport, send, rank, UNPAIRED);
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
    wherry_status status = wh_service_open(group, transport->tag, take_question, transport, error);
    if (status != WHERRY_OK) {
        pthread_mutex_destroy(&transport->lock);
        wh_free(transport);
        return status == WHERRY_INVALID_ARGUMENT
                   ? wh_fail(error, status, "the group already has a transport with number %u", (unsigned)number)
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

const char *wherry_transport_lane(const wherry_transport *transport, size_t index) {
    return transport && index < transport->lane_count ? transport->lanes[index]->name : NULL;
}

static int compare_ranks(const void *one, const void *other) {
    int32_t a = *(const int32_t *)one;
    int32_t b = *(const int32_t *)other;
    return a < b ? -1 : a > b;
}

size_t wherry_transport_waiting(wherry_transport *transport, int32_t *ranks, size_t capacity) {
    size_t count = 0;
    pthread_mutex_lock(&transport->lock);
    forget_the_gone(transport);
    for (const wh_asking *one = transport->asking; one; one = one->next) {
        bool known = one->finished;
        for (const wh_asking *before = transport->asking; before != one && !known; before = before->next) {
            known = !before->finished && before->message.rank == one->message.rank;
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

/* ---- sending ---- */

/** One call of wherry_checkpoint_send. */
typedef struct send_call {
    wh_call call;
    wh_offer *offer;
    wh_inbox *inbox;
    wh_waiting_send waiting;
    wh_reader *readers;
    size_t count;
    size_t turn; /**< Which of the readers that need steps may wait next. */
} send_call;

static wherry_status check_arguments(const wherry_transport *transport, const int32_t *ranks, size_t count,
                                     const wherry_value *state, wherry_error *error) {
    if (!transport || (count && !ranks) || !state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport, ranks or state is NULL");
    }
    return wh_check_ranks(transport, ranks, count, error);
}

static wherry_status open_inbox(wherry_transport *transport, wh_inbox **inbox_p, wherry_error *error) {
    uint64_t tag = wh_random_tag();
    return tag ? wh_inbox_open(transport->group, tag, inbox_p, error)
               : wh_fail(error, WHERRY_SYSTEM, "the system has no random numbers");
}

/** Everything that comes before the first message. */
static wherry_status prepare(send_call *send, const int32_t *ranks, size_t count, const wherry_value *state,
                             wherry_error *error) {
    const wherry_transfer_options *options = &send->call.options;
    wh_sharing sharing = !wh_lane_list_has(&send->call.lanes, WH_LANE_DEVICE) ? WH_SHARE_NOTHING
                         : options->flags & WHERRY_KEEPS_MEMORY               ? WH_SHARE_KEPT_DEVICES
                                                                              : WH_SHARE_DEVICES;
    /* A state with a step may have other sources. */
    bool exact = options->step != WHERRY_STEP_ANY;
    WH_TRY(wh_offer_create(state, wh_call_rank(&send->call), exact, sharing, &send->offer, error));
    WH_TRY(wh_call_await_stream(&send->call, send->offer->devices, error));
    WH_TRY(open_inbox(send->call.transport, &send->inbox, error));
    send->readers = wh_alloc_zeroed(count, sizeof(*send->readers));
    send->waiting = (wh_waiting_send){.inbox = send->inbox,
                                      .ranks = ranks,
                                      .nonces = wh_alloc_zeroed(count, sizeof(uint64_t)),
                                      .count = count,
                                      .step = options->step};
    if (!send->readers || !send->waiting.nonces) {
        return wh_fail_memory(error, "a send");
    }
    double seconds = wh_seconds(send->call.begin, wh_clock_now());
    for (; send->count < count; send->count++) {
        wh_reader *one = send->readers + send->count;
        wh_reader_init(one, &send->call, send->offer, &send->waiting, ranks[send->count]);
        one->outcome.stats.prepare_seconds = seconds;
    }
    return WHERRY_OK;
}

static bool all_ended(const send_call *send) {
    for (size_t i = 0; i < send->count; i++) {
        if (send->readers[i].state != WH_READER_ENDED) {
            return false;
        }
    }
    return true;
}

/** Passes a message to the reader of its rank. */
static void take(send_call *send, wh_message *message) {
    wherry_transport *transport = send->call.transport;
    bool asks = message->kind == WH_MESSAGE_BYTES && message->tag == transport->tag;
    for (size_t i = 0; i < send->count; i++) {
        wh_reader *one = send->readers + i;
        if (one->rank == message->rank && asks && wh_reader_is_decided(one)) {
            pthread_mutex_lock(&transport->lock);
            take_back(transport, message);
            pthread_mutex_unlock(&transport->lock);
            return;
        }
        if (one->rank == message->rank) {
            wh_reader_take(one, message); /* may take the message over */
            if (one->state == WH_READER_CLOSING) {
                wh_reader_tick(one);
            }
            break;
        }
    }
    wh_message_clear(message);
}

/** True if the message says that a receiver has noticed the end of its lease. */
static bool is_acknowledgement(const wh_message *message) {
    wh_note note;
    return message->kind == WH_MESSAGE_LOST ||
           (message->kind == WH_MESSAGE_BYTES &&
            wh_note_decode(message->bytes, message->size, &note, NULL) == WHERRY_OK && note.type == WH_ABORT);
}

/**
 * Gives receivers a moment to notice that their leases have ended, so that they do not read memory
 * that is freed. A receiver that does not answer is not waited for: it will never be released, so
 * it never relies on what it reads from now on.
 */
static void await_acknowledgements(send_call *send, size_t leases, wh_deadline soon) {
    wh_message message;
    while (leases && wh_inbox_take(send->inbox, soon, &message, NULL) == WHERRY_OK) {
        leases -= is_acknowledgement(&message);
        wh_message_clear(&message);
    }
}

/** Ends all readers that are not decided. */
static void revoke_all(send_call *send, wherry_status status, const wherry_error *error) {
    size_t leases = 0;
    wh_deadline soon = wh_call_grace();
    /* From now on, receivers that ask are paired with the next send. */
    remove_send(send->call.transport, &send->waiting);
    for (size_t i = 0; i < send->count; i++) {
        if (wh_reader_holds_lease(send->readers + i)) {
            wh_session_stop(&send->readers[i].data.session);
            leases++;
        }
    }
    for (size_t i = 0; i < send->count; i++) {
        if (!wh_reader_is_decided(send->readers + i)) {
            wh_reader_revoke(send->readers + i, status, error, soon);
        }
    }
    if (status != WHERRY_CLOSED) {
        await_acknowledgements(send, leases, soon);
    }
}

/**
 * Does a step for each reader whose lane runs in this thread. One of them may wait, a different one
 * each time: if none waited, the loop would spin; if all did, they would delay each other.
 * @return true if there was any.
 */
static bool step_all(send_call *send) {
    size_t stepping = 0;
    size_t stepped = 0;
    for (size_t i = 0; i < send->count; i++) {
        stepping += wh_reader_needs_step(send->readers + i);
    }
    uint32_t wait_ms = stepping == 1 ? WH_PATIENT_STEP_MS : STEP_MS;
    for (size_t i = 0; i < send->count; i++) {
        wh_reader *one = send->readers + i;
        if (wh_reader_needs_step(one)) {
            wh_push_step(&one->data, stepped++ == send->turn ? wait_ms : 0);
            if (wh_session_has_ended(&one->data.session)) {
                wh_reader_tick(one);
            }
        }
    }
    send->turn = stepped ? (send->turn + 1) % stepped : 0;
    return stepped > 0;
}

/** In a group that lost ranks cannot join again, a rank that is lost already is not waited for. */
static void give_up_the_lost(send_call *send) {
    const wh_group *group = send->call.transport->group;
    for (size_t i = 0; i < send->count && !wh_group_can(group, WH_GROUP_REJOIN); i++) {
        wh_reader *one = send->readers + i;
        char reason[128];
        if (wh_mailbox_is_lost(group->mailbox, one->rank, reason, sizeof(reason))) {
            wh_message gone = {WH_MESSAGE_LOST, one->rank, UINT64_MAX, 0, reason, strlen(reason), -1};
            wh_reader_take(one, &gone);
        }
    }
}

static bool has_backlog(const send_call *send) {
    for (size_t i = 0; i < send->count; i++) {
        if (wh_reader_has_backlog(send->readers + i)) {
            return true;
        }
    }
    return false;
}

/** Serves until all readers have ended. */
static void serve(send_call *send) {
    uint64_t ticked = 0;
    /* The receiver has probably just started too; poll briefly. */
    wh_mailbox_stay_awake(send->call.transport->group->mailbox);
    while (!all_ended(send)) {
        wherry_error why;
        wh_message message;
        wherry_status status = wh_call_must_end(&send->call, "sending a checkpoint", &why);
        if (status != WHERRY_OK) {
            revoke_all(send, status, &why);
            return;
        }
        bool busy = step_all(send);
        wh_deadline soon = busy ? wh_deadline_in_ms(0) : wh_call_tick(&send->call);
        if (has_backlog(send)) {
            soon = wh_deadline_earlier(soon, wh_deadline_in_ms(FLUSH_MS));
        }
        status = wh_inbox_take(send->inbox, soon, &message, &why);
        if (status == WHERRY_OK) {
            take(send, &message);
        } else if (status == WHERRY_CLOSED) {
            revoke_all(send, status, &why);
            return;
        }
        uint64_t now = wh_clock_now();
        if ((status == WHERRY_TIMED_OUT && !busy) || now - ticked > TICK_NS) {
            ticked = now;
            for (size_t i = 0; i < send->count; i++) {
                wh_reader_tick(send->readers + i);
            }
        }
    }
}

/** Copies the outcomes. @return the first that is not OK. */
static wherry_status settle(const send_call *send, wherry_outcome *outcomes, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    size_t failed = 0;
    for (size_t i = 0; i < send->count; i++) {
        const wherry_outcome *one = &send->readers[i].outcome;
        if (outcomes) {
            outcomes[i] = *one;
        }
        failed += one->status != WHERRY_OK;
        if (one->status == WHERRY_PEER_LOST) {
            wh_transport_forget(send->call.transport, send->call.transport->group, one->rank, true, NULL);
        }
        if (status == WHERRY_OK && one->status != WHERRY_OK) {
            status = one->status;
            *error = one->error;
        }
    }
    if (failed) {
        wh_log(WHERRY_LOG_WARN, "%zu of %zu destinations did not get the checkpoint", failed, send->count);
    }
    return status;
}

static void fill_outcomes(wherry_outcome *outcomes, const int32_t *ranks, size_t count, wherry_status status,
                          const wherry_error *error) {
    for (size_t i = 0; outcomes && i < count; i++) {
        outcomes[i] = (wherry_outcome){.rank = ranks[i], .status = status, .error = *error};
    }
}

wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                     const wherry_value *state, const wherry_transfer_options *options,
                                     wherry_outcome *outcomes, wherry_error *error) {
    send_call send = {.count = 0};
    wherry_error own;
    error = error ? error : &own;
    wherry_status status = check_arguments(transport, ranks, count, state, error);
    WH_THEN(status, wh_call_begin(&send.call, transport, options, error));
    if (status != WHERRY_OK || count == 0) {
        fill_outcomes(outcomes, ranks, ranks ? count : 0, status, error);
        return status;
    }
    status = prepare(&send, ranks, count, state, error);
    if (status == WHERRY_OK) {
        wh_call_attach(&send.call, send.inbox);
        for (size_t i = 0; i < count; i++) {
            wh_group_watch(transport->group, ranks[i]);
        }
        add_send(transport, &send.waiting);
        give_up_the_lost(&send);
        serve(&send);
        wh_call_detach(&send.call);
        remove_send(transport, &send.waiting);
        status = settle(&send, outcomes, error);
    } else {
        fill_outcomes(outcomes, ranks, count, status, error);
    }
    for (size_t i = 0; i < send.count; i++) {
        wh_reader_destroy(send.readers + i);
    }
    wh_inbox_close(send.inbox);
    wh_free(send.waiting.nonces);
    wh_free(send.readers);
    wh_offer_unref(send.offer);
    return status;
}
