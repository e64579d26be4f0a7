#include "transfer/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "transfer/call.h"
#include "transfer/reader.h"
#include "transfer/transfer_timing.h"

/**
 * In wh_served_rank.nonce: the rank is not paired any more. No nonce has this value, because nonces
 * have the tag bit of conversations.
 */
#define UNPAIRED UINT64_C(1)

/** The tags of WANT messages: one per transport, apart from the tags of a program. */
#define WANT_TAG (UINT64_C(1) << 48)

enum {
    /**
     * Maximum number of questions that are kept per rank. If there are more, the oldest is dropped.
     */
    ASKING_MAX = 64,
    QUESTION_MAX = 4096, /**< Maximum size of a question, because it is kept. */
};

/* ---- pairing; the lock is held ---- */

/** Removes a question from the list. Its message was taken over. */
static void drop(wherry_transport *transport, size_t at) {
    wh_asking *one = transport->asking + at;
    memmove(one, one + 1, (--transport->asking_count - at) * sizeof(*one));
    if (!transport->asking_count) { /* a transport at rest holds nothing */
        wh_free(transport->asking);
        transport->asking = NULL;
        transport->asking_capacity = 0;
    }
}

static void forget(wherry_transport *transport, size_t at) {
    wh_message_clear(&transport->asking[at].message);
    drop(transport, at);
}

static wh_served_rank *find_rank(const wh_waiting_send *send, int32_t rank) {
    for (size_t i = 0; i < send->count; i++) {
        if (send->ranks[i].rank == rank) {
            return send->ranks + i;
        }
    }
    return NULL;
}

/** Adds a rank from which this send awaits a question. @return NULL if out of memory. */
static wh_served_rank *add_rank(wh_waiting_send *send, int32_t rank) {
    if (!WH_GROW(send->ranks, send->capacity, send->count)) {
        return NULL;
    }
    send->ranks[send->count] = (wh_served_rank){rank, 0};
    return send->ranks + send->count++;
}

/** Gives a question to the oldest send that waits for its rank. @return false if there is none. */
static bool pair(wherry_transport *transport, wh_asking *asking) {
    int32_t rank = asking->message.rank;
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        wh_served_rank *one = find_rank(send, rank);
        if (!one && send->any && !send->closed && !asking->finished) {
            one = add_rank(send, rank);
        }
        if (one && !one->nonce && !send->closed && (!asking->finished || asking->step == send->step)) {
            one->nonce = asking->nonce;
            if (!wh_inbox_post(send->inbox, &asking->message)) {
                wh_log(WHERRY_LOG_ERROR, "out of memory for a question of rank %d", (int)rank);
                one->nonce = 0;
            }
            return true;
        }
    }
    return false;
}

/**
 * Makes room for a question of a rank: drops its oldest ones if it has too many, and all that say
 * that it has finished.
 */
static void limit_questions(wherry_transport *transport, int32_t rank) {
    size_t newer = 0;
    for (size_t i = transport->asking_count; i-- > 0;) {
        const wh_asking *one = transport->asking + i;
        if (one->message.rank == rank && (one->finished || ++newer == ASKING_MAX)) {
            forget(transport, i);
        }
    }
}

/** Keeps a question. Takes over its message. */
static void take_want(wherry_transport *transport, wh_message *message, const wh_note *want) {
    wh_asking asking = {.message = *message, .nonce = want->nonce, .step = want->step};
    limit_questions(transport, message->rank);
    if (pair(transport, &asking)) {
        return;
    }
    if (WH_GROW(transport->asking, transport->asking_capacity, transport->asking_count)) {
        transport->asking[transport->asking_count++] = asking;
    } else {
        wh_message_clear(message);
    }
}

/** Drops the question, or tells the send that has it. Takes over the message. */
static void take_withdrawal(wherry_transport *transport, wh_message *message, const wh_note *withdrawal) {
    for (size_t i = 0; i < transport->asking_count; i++) {
        wh_asking *one = transport->asking + i;
        if (one->nonce != withdrawal->nonce || one->message.rank != message->rank) {
            continue;
        }
        if (withdrawal->status == WHERRY_OK) {
            wh_message_clear(&one->message);
            one->message = *message;
            one->finished = true;
        } else {
            forget(transport, i);
            wh_message_clear(message);
        }
        return;
    }
    for (wh_waiting_send *send = transport->sends; send; send = send->next) {
        const wh_served_rank *one = find_rank(send, message->rank);
        if (one && one->nonce == withdrawal->nonce) {
            wh_inbox_post(send->inbox, message);
            return;
        }
    }
    wh_message_clear(message);
}

/** True if the incarnation that has asked still exists. Otherwise its successor asks again. */
static bool is_present(const wherry_transport *transport, const wh_asking *one) {
    return wh_mailbox_is_present(transport->group->mailbox, one->message.rank, one->message.incarnation);
}

static void pair_waiting(wherry_transport *transport) {
    for (size_t i = 0; i < transport->asking_count;) {
        if (!is_present(transport, transport->asking + i)) {
            forget(transport, i);
        } else if (pair(transport, transport->asking + i)) {
            drop(transport, i);
        } else {
            i++;
        }
    }
}

/** Takes over a message of the transport's own tag, which read_question has read. */
static void take_question(wherry_transport *transport, wh_message *message, const wh_note *note) {
    if (note->type == WH_WANT) {
        take_want(transport, message, note);
    } else {
        take_withdrawal(transport, message, note);
    }
}

/* ---- pairing ---- */

/** @return false if the message is malformed. One of another version is not: it gets an answer. */
static bool read_question(const wh_message *message, wh_note *note) {
    wherry_error error;
    *note = (wh_note){.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, note, &error);
    return (status == WHERRY_OK || status == WHERRY_BAD_VERSION) && message->size <= QUESTION_MAX &&
           (note->type == WH_WANT || note->type == WH_WITHDRAW) && note->nonce & WH_TAG_CONVERSATION;
}

/** The service of the transport's tag. */
static void serve_question(void *context, wh_message *message) {
    wherry_transport *transport = context;
    wh_note note;
    if (!read_question(message, &note)) {
        wh_log(WHERRY_LOG_WARN, "rank %d sent a malformed question, which is ignored", (int)message->rank);
        wh_message_clear(message);
        return;
    }
    pthread_mutex_lock(&transport->lock);
    take_question(transport, message, &note);
    pthread_mutex_unlock(&transport->lock);
}

/** Begins to pair a send: matching questions are posted to its inbox. */
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
    wh_note note;
    bool removed = *at != NULL;
    if (removed) {
        *at = send->next;
        send->closed = true;
    }
    while (removed && wh_inbox_poll(send->inbox, &message)) {
        if (message.kind == WH_MESSAGE_BYTES && message.tag == transport->tag && read_question(&message, &note)) {
            take_question(transport, &message, &note);
        } else {
            wh_message_clear(&message);
        }
    }
    pthread_mutex_unlock(&transport->lock);
}

void wh_transport_unpair(wherry_transport *transport, wh_waiting_send *send, int32_t rank, bool again) {
    pthread_mutex_lock(&transport->lock);
    find_rank(send, rank)->nonce = again ? 0 : UNPAIRED;
    pair_waiting(transport);
    pthread_mutex_unlock(&transport->lock);
}

/* ---- the transport ---- */

wherry_status wh_transport_create(wh_group *group, uint32_t number, const wh_lane_ops *const *lanes, size_t lane_count,
                                  wherry_transport **transport_p, wherry_error *error) {
    wherry_transport *transport = wh_alloc_zeroed(1, sizeof(*transport));
    WH_TRY_ALLOC(transport, error, "a transport");
    transport->group = group;
    transport->tag = WANT_TAG + number;
    transport->lanes = lanes;
    transport->lane_count = lane_count;
    pthread_mutex_init(&transport->lock, NULL);
    wherry_status status = wh_service_open(group, transport->tag, serve_question, transport, error);
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
    for (size_t i = 0; i < transport->asking_count; i++) {
        wh_message_clear(&transport->asking[i].message);
    }
    wh_free(transport->asking);
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
    for (size_t i = 0; i < transport->asking_count; i++) {
        const wh_asking *one = transport->asking + i;
        bool counts = !one->finished && is_present(transport, one);
        for (const wh_asking *older = transport->asking; older < one && counts; older++) {
            counts = older->message.rank != one->message.rank || older->finished || !is_present(transport, older);
        }
        if (counts && count < capacity) {
            ranks[count] = one->message.rank;
        }
        count += counts;
    }
    pthread_mutex_unlock(&transport->lock);
    if (count && capacity) {
        qsort(ranks, wh_min(count, capacity), sizeof(*ranks), compare_ranks);
    }
    return count;
}

/* ---- sending ---- */

/** One call of wherry_checkpoint_send or wherry_checkpoint_serve. */
typedef struct send_call {
    wh_call call;
    wh_offer *offer;
    wh_inbox *inbox;
    wh_waiting_send waiting;
    wh_reader **readers; /**< In the order of the ranks. While any rank is served, in no order. */
    size_t count;
    size_t capacity;
    /** The number of the reader that may wait next, among the readers that need steps. */
    size_t turn;
    /** For wherry_checkpoint_serve: ends the call when all readers have ended. */
    wherry_cancel *withdraw;
    wh_cancel_listener wakes;
    wherry_served_fn served;
    void *served_context;
} send_call;

/** Does everything that comes before the first message. */
static wherry_status prepare(send_call *send, const wherry_value *state, wherry_error *error) {
    const wherry_transfer_options *options = &send->call.options;
    wh_sharing sharing = !wh_lane_list_has(&send->call.lanes, WH_LANE_DEVICE) ? WH_SHARE_NOTHING
                         : options->flags & WHERRY_SEND_MEMORY_STAYS          ? WH_SHARE_KEPT_DEVICES
                                                                              : WH_SHARE_DEVICES;
    /* A state with a step may have other sources. */
    bool exact = options->step != WHERRY_STEP_ANY;
    WH_TRY(wh_offer_create(state, wh_call_rank(&send->call), exact, sharing, &send->offer, error));
    WH_TRY(wh_call_await_stream(&send->call, send->offer->devices, error));
    WH_TRY(wh_inbox_open(send->call.transport->group, 0, &send->inbox, error));
    send->waiting.inbox = send->inbox;
    send->waiting.step = options->step;
    return WHERRY_OK;
}

/** @return NULL if out of memory. */
static wh_reader *add_reader(send_call *send, int32_t rank, double prepare_seconds) {
    bool room = WH_GROW(send->readers, send->capacity, send->count);
    wh_reader *one = room ? wh_reader_create(&send->call, send->offer, &send->waiting, rank) : NULL;
    if (!one) {
        return NULL;
    }
    one->outcome.stats.prepare_seconds = prepare_seconds;
    send->readers[send->count++] = one;
    wh_group_watch(send->call.transport->group, rank);
    return one;
}

/**
 * Returns the reader for a message of this rank; NULL: none.
 * @param asks  the message is a WANT.
 */
static wh_reader *find_reader(const send_call *send, int32_t rank, bool asks) {
    for (size_t i = 0; i < send->count; i++) {
        wh_reader *one = send->readers[i];
        if (one->rank == rank && (asks ? !wh_reader_is_decided(one) : one->state < WH_READER_CLOSING)) {
            return one;
        }
    }
    return NULL;
}

/** Passes a message to the reader of its rank. */
static void take(send_call *send, wh_message *message) {
    wherry_transport *transport = send->call.transport;
    bool asks = message->kind == WH_MESSAGE_BYTES && message->tag == transport->tag;
    wh_reader *one = find_reader(send, message->rank, asks);
    if (!one && asks && send->waiting.any) {
        one = add_reader(send, message->rank, 0);
        asks = one != NULL;
        if (!one) { /* There was no memory, so the question is lost. The receiver may ask again. */
            wh_transport_unpair(transport, &send->waiting, message->rank, true);
        }
    }
    if (one) {
        wh_reader_take(one, message); /* This call may take the message over. */
        if (one->state == WH_READER_CLOSING) {
            wh_reader_tick(one);
        }
    } else if (asks) {
        serve_question(transport, message); /* The question is for another send. */
        return;
    }
    wh_message_clear(message);
}

/** Ends all readers whose outcome is not decided. */
static void revoke_all(send_call *send, wherry_status status, const wherry_error *error) {
    /* From now on, receivers that ask are paired with the next send. */
    remove_send(send->call.transport, &send->waiting);
    for (size_t i = 0; i < send->count; i++) {
        if (!wh_reader_is_decided(send->readers[i])) {
            wh_reader_revoke(send->readers[i], status, error);
        }
    }
}

/** What the readers of a send are doing. */
typedef struct census {
    size_t ended;
    size_t stepping; /**< Number of readers whose lanes run in this thread. */
    size_t waiting;  /**< Number of readers whose ranks have not asked yet. */
    int32_t first_waiting;
    bool backlog; /**< True if one of the readers has waiting messages. */
} census;

static census count_readers(const send_call *send) {
    census all = {.ended = 0};
    for (size_t i = 0; i < send->count; i++) {
        wh_reader *one = send->readers[i];
        all.ended += one->state == WH_READER_ENDED;
        all.stepping += wh_session_needs_step(&one->lane.push.session);
        all.backlog = all.backlog || one->backlog.count;
        if (one->state == WH_READER_WAITING && !one->nonce) {
            all.first_waiting = all.waiting++ ? all.first_waiting : one->rank;
        }
    }
    return all;
}

/**
 * Does a step for each reader whose lane runs in this thread. One of them may wait, a different one
 * each time: if none waited, the loop would spin; if all did, they would delay each other.
 */
static void step_all(send_call *send, size_t stepping) {
    size_t stepped = 0;
    uint32_t wait_ms = stepping == 1 ? WH_CALL_STEP_MS : WH_SERVE_STEP_MS;
    for (size_t i = 0; i < send->count && stepping; i++) {
        wh_session *session = &send->readers[i]->lane.push.session;
        if (wh_session_needs_step(session)) {
            wh_session_step(session, stepped++ == send->turn ? wait_ms : 0);
            if (wh_session_has_ended(session)) {
                wh_reader_tick(send->readers[i]);
            }
        }
    }
    send->turn = stepped ? (send->turn + 1) % stepped : 0;
}

/**
 * The call does not wait for a rank that is lost already, if the rank cannot join again or if the
 * caller says so.
 */
static void give_up_the_lost(send_call *send) {
    const wh_group *group = send->call.transport->group;
    bool patient = wh_group_can(group, WH_GROUP_REJOIN) && !(send->call.options.flags & WHERRY_SEND_PRESENT);
    for (size_t i = 0; i < send->count && !patient; i++) {
        wh_reader *one = send->readers[i];
        char reason[128];
        if (wh_mailbox_is_lost(group->mailbox, one->rank, reason, sizeof(reason))) {
            wh_message gone = {WH_MESSAGE_LOST, one->rank, UINT64_MAX, 0, reason, strlen(reason), WH_NO_SOCKET};
            wh_reader_take(one, &gone);
        }
    }
}

/** Tells the caller and the lanes how a reader has ended. */
static void report(send_call *send, const wh_reader *reader) {
    wherry_transport *transport = send->call.transport;
    if (reader->outcome.status == WHERRY_PEER_LOST) {
        wh_transport_forget(transport, transport->group, reader->rank, true, NULL);
    }
    if (send->served) {
        send->served(send->served_context, &reader->outcome);
    } else if (send->waiting.any && reader->outcome.status != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "serving rank %d failed: %s", (int)reader->rank, reader->outcome.error.message);
    }
}

/** While any rank is served: reports readers that have ended. Their ranks may ask again. */
static void drop_ended(send_call *send) {
    size_t kept = 0;
    for (size_t i = 0; i < send->count; i++) {
        wh_reader *one = send->readers[i];
        bool withdrawn = one->state == WH_READER_WAITING;
        if (one->state == WH_READER_ENDED) {
            report(send, one);
            wh_transport_unpair(send->call.transport, &send->waiting, one->rank, true);
        }
        if (one->state == WH_READER_ENDED || withdrawn) {
            wh_reader_destroy(one);
        } else {
            send->readers[kept++] = one;
        }
    }
    send->count = kept;
}

/** Logs the ranks that have not asked for the state, if there are any. */
static void log_waiting(const census *all) {
    if (all->waiting == 1) {
        wh_log_wait("wherry_checkpoint_recv", "rank %d", (int)all->first_waiting);
    } else if (all->waiting) {
        wh_log_wait("wherry_checkpoint_recv", "rank %d and %zu more", (int)all->first_waiting, all->waiting - 1);
    }
}

/**
 * Serves until all readers have ended.
 * @return WHERRY_OK; else why the call must end: all readers were revoked.
 */
static wherry_status serve(send_call *send, wherry_error *error) {
    wherry_transport *transport = send->call.transport;
    uint64_t ticked = wh_clock_now();
    wh_wait_log wait = {0};
    wherry_status result = WHERRY_OK;
    /* The receiver has probably just started too; poll briefly. */
    wh_mailbox_stay_awake(transport->group->mailbox);
    for (;;) {
        if (send->waiting.any) {
            drop_ended(send);
            if (wherry_cancel_requested(send->withdraw)) {
                /* Later questions go to other sends. Those in its inbox are still read. */
                pthread_mutex_lock(&transport->lock);
                send->waiting.closed = true;
                pthread_mutex_unlock(&transport->lock);
            }
        }
        census all = count_readers(send);
        if (all.ended == send->count && (!send->waiting.any || send->waiting.closed)) {
            return result;
        }
        if (result == WHERRY_OK) {
            result = wh_call_must_end(&send->call, "sending a checkpoint", error);
            if (result != WHERRY_OK) {
                revoke_all(send, result, error); /* The loop goes on until all have ended. */
                continue;
            }
        }
        step_all(send, all.stepping);
        wh_message message;
        wherry_error why;
        wh_deadline soon = wh_deadline_in_ms(all.stepping ? 0 : WH_SERVE_FLUSH_MS);
        soon = all.stepping || all.backlog || result != WHERRY_OK ? soon : wh_call_tick(&send->call);
        wherry_status status = wh_inbox_take(send->inbox, soon, &message, &why);
        if (status == WHERRY_OK) {
            take(send, &message);
        } else if (status == WHERRY_CLOSED) {
            revoke_all(send, status, &why);
            *error = result == WHERRY_OK ? why : *error;
            return result == WHERRY_OK ? status : result;
        }
        uint64_t now = wh_clock_now();
        if ((status == WHERRY_TIMED_OUT && !all.stepping) || now - ticked > WH_SERVE_TICK_NS) {
            ticked = now;
            if (wh_wait_is_long(&wait)) {
                log_waiting(&all);
            }
            for (size_t i = 0; i < send->count; i++) {
                wh_reader_tick(send->readers[i]);
            }
        }
    }
}

/** Pairs receivers with this call, and serves them. @return as serve. */
static wherry_status run(send_call *send, wherry_error *error) {
    wherry_transport *transport = send->call.transport;
    wh_call_attach(&send->call, send->inbox);
    wh_cancel_add(send->withdraw, &send->wakes, wh_wake_inbox, send->inbox);
    add_send(transport, &send->waiting);
    give_up_the_lost(send);
    wherry_status status = serve(send, error);
    wh_call_detach(&send->call);
    wh_cancel_remove(send->withdraw, &send->wakes);
    remove_send(transport, &send->waiting);
    for (size_t i = 0; i < send->count; i++) {
        report(send, send->readers[i]);
    }
    return status;
}

static void destroy(send_call *send) {
    for (size_t i = 0; i < send->count; i++) {
        wh_reader_destroy(send->readers[i]);
    }
    wh_inbox_close(send->inbox);
    wh_free(send->waiting.ranks);
    wh_free(send->readers);
    wh_offer_unref(send->offer);
}

/** Copies the outcomes. @return the first that is not OK. */
static wherry_status settle(const send_call *send, wherry_outcome *outcomes, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    size_t failed = 0;
    for (size_t i = 0; i < send->count; i++) {
        const wherry_outcome *one = &send->readers[i]->outcome;
        if (outcomes) {
            outcomes[i] = *one;
        }
        failed += one->status != WHERRY_OK;
        if (status == WHERRY_OK && one->status != WHERRY_OK) {
            status = one->status;
            *error = one->error;
        }
    }
    if (failed) {
        wh_log(WHERRY_LOG_INFO, "%zu of %zu destinations did not get the checkpoint", failed, send->count);
    }
    return status;
}

wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                     const wherry_value *state, const wherry_transfer_options *options,
                                     wherry_outcome *outcomes, wherry_error *error) {
    send_call send = {.count = 0};
    wherry_error own;
    error = error ? error : &own;
    wherry_status status = WHERRY_OK;
    if (!transport || (count && !ranks) || !state) {
        status = wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport, ranks or state is NULL");
    }
    WH_THEN(status, wh_group_check_ranks(transport->group, ranks, count, error));
    WH_THEN(status, wh_call_begin(&send.call, transport, options, error));
    if (status == WHERRY_OK && count == 0) {
        return WHERRY_OK;
    }
    WH_THEN(status, prepare(&send, state, error));
    double prepared = wh_seconds(send.call.begin, wh_clock_now());
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        bool ok = add_rank(&send.waiting, ranks[i]) && add_reader(&send, ranks[i], prepared);
        status = ok ? WHERRY_OK : wh_fail_memory(error, "a send");
    }
    if (status == WHERRY_OK) {
        run(&send, error);
        status = settle(&send, outcomes, error);
    } else {
        for (size_t i = 0; i < count && outcomes && ranks; i++) {
            outcomes[i] = (wherry_outcome){.rank = ranks[i], .status = status, .error = *error};
        }
    }
    destroy(&send);
    return status;
}

wherry_status wherry_checkpoint_serve(wherry_transport *transport, const wherry_value *state, wherry_cancel *withdraw,
                                      const wherry_transfer_options *options, wherry_served_fn served, void *context,
                                      wherry_error *error) {
    send_call send = {.waiting.any = true, .withdraw = withdraw, .served = served, .served_context = context};
    wherry_error own;
    error = error ? error : &own;
    if (!transport || !state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport or state is NULL");
    }
    WH_TRY(wh_call_begin(&send.call, transport, options, error));
    send.call.deadline = wh_deadline_never(); /* The timeout applies to each reader. */
    wherry_status status = prepare(&send, state, error);
    WH_THEN(status, run(&send, error));
    destroy(&send);
    return status;
}
