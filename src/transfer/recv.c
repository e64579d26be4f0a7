#include "transfer/recv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "state/tensor.h"

#define MS UINT64_C(1000000)

enum {
    /** How long to wait for the offers of further sources after the first one. */
    GATHER_MS = 100,
    /** The same for sources that have not joined: the sends of those that join later would wait. */
    JOIN_MS = 500,
    CONFIRM_MS = 1000, /**< How long a source may take to confirm, if others can replace it. */
    /** Sources on this host that are used at once: memory bandwidth feeds one. */
    LOCAL_SOURCES = 1,
    SMALL_PAGE = 4096,
    BATCH = 1024, /**< Chunks that are taken from the schedule at once. */
};

/* ---- messages ---- */

/** Why the receive must end by itself, if it must. */
static wherry_status must_end(wh_recv *recv, const char *doing, wherry_error *error) {
    wherry_status status = wh_call_must_end(&recv->call, doing, error);
    return status == WHERRY_OK ? status : wh_fail_rank(error, recv->sources->rank, status);
}

/** Passes a message to the source of its rank. */
static void take(wh_recv *recv, wh_message *message) {
    for (size_t i = 0; i < recv->source_count; i++) {
        if (recv->sources[i].rank == message->rank) {
            wh_source_take(recv->sources + i, message); /* may take the message over */
            break;
        }
    }
    wh_message_clear(message);
}

wherry_status wh_recv_pump(wh_recv *recv, wh_deadline deadline, const char *doing, wherry_error *error) {
    wh_message message;
    wherry_error why;
    WH_TRY(must_end(recv, doing, error));
    wherry_status status = wh_inbox_take(recv->inbox, deadline, &message, &why);
    if (status == WHERRY_TIMED_OUT) {
        return WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        /* If the call ends anyway, that is the reason: a lane may have closed the group then. */
        wherry_status own = must_end(recv, doing, error);
        if (own == WHERRY_OK) {
            *error = why;
        }
        return own == WHERRY_OK ? status : own;
    }
    take(recv, &message);
    return WHERRY_OK;
}

void wh_recv_take_waiting(wh_recv *recv) {
    wh_message message;
    while (wh_inbox_poll(recv->inbox, &message)) {
        take(recv, &message);
    }
}

wherry_status wh_recv_check_sources(wh_recv *recv, wherry_error *error) {
    size_t gone = 0;
    const wh_recv_source *first = NULL;
    for (size_t i = 0; i < recv->source_count; i++) {
        const wh_recv_source *one = recv->sources + i;
        if (one->state == WH_SOURCE_GONE) {
            first = first ? first : one;
            gone++;
        }
    }
    bool all = recv->call.options.require == WHERRY_REQUIRE_ALL;
    if (!gone || (gone < recv->source_count && !all)) {
        return WHERRY_OK;
    }
    *error = first->failure;
    if (recv->source_count == 1 || all) {
        return first->failure.status;
    }
    wh_string text = {0};
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_string_format(&text, "%srank %d: %s", i ? "; " : "", (int)recv->sources[i].rank,
                         recv->sources[i].failure.message);
    }
    snprintf(error->message, sizeof(error->message), "no source is left: %s", text.failed ? "" : text.bytes);
    wh_free(text.bytes);
    return first->failure.status;
}

/* ---- agreeing ---- */

static wherry_status ask(wh_recv *recv, wherry_error *error) {
    uint64_t nonce = wh_random_tag();
    if (!nonce) {
        return wh_fail(error, WHERRY_SYSTEM, "the system has no random numbers");
    }
    WH_TRY(wh_inbox_open(recv->call.transport->group, nonce, &recv->inbox, error));
    wh_call_attach(&recv->call, recv->inbox);
    recv->moments[WH_AT_ASKED] = wh_clock_now();
    for (size_t i = 0; i < recv->source_count; i++) {
        WH_TRY(wh_source_ask(recv->sources + i, error));
    }
    return WHERRY_OK;
}

/** Asks sources that were absent again. */
static wherry_status ask_absent(wh_recv *recv, wherry_error *error) {
    const wh_mailbox *mailbox = recv->call.transport->group->mailbox;
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_recv_source *one = recv->sources + i;
        if (one->state == WH_SOURCE_ABSENT && wh_mailbox_incarnation(mailbox, one->rank)) {
            WH_TRY(wh_source_ask(one, error));
        }
    }
    return WHERRY_OK;
}

static size_t count_sources(const wh_recv *recv, wh_source_state state) {
    size_t count = 0;
    for (size_t i = 0; i < recv->source_count; i++) {
        count += recv->sources[i].state == state;
    }
    return count;
}

/** The usable source with the lowest rank; NULL: none. */
static wh_recv_source *lowest_source(const wh_recv *recv) {
    wh_recv_source *lowest = NULL;
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_recv_source *one = recv->sources + i;
        if (wh_source_is_usable(one) && (!lowest || one->rank < lowest->rank)) {
            lowest = one;
        }
    }
    return lowest;
}

static wherry_status check_step(const wh_recv *recv, const wh_recv_source *source, wherry_error *error) {
    int64_t wanted = recv->call.options.step;
    int64_t sent = source->offer.step;
    if (sent == wanted || (recv->source_count == 1 && (sent == WHERRY_STEP_ANY || wanted == WHERRY_STEP_ANY))) {
        return WHERRY_OK;
    }
    if (sent == WHERRY_STEP_ANY) {
        wh_fail(error, WHERRY_MISMATCH, "rank %d sends no step and step %lld is wanted; pass the step to the send",
                (int)source->rank, (long long)wanted);
    } else {
        wh_fail(error, WHERRY_MISMATCH, "rank %d sends step %lld and step %lld is wanted", (int)source->rank,
                (long long)sent, (long long)wanted);
    }
    return wh_fail_rank(error, source->rank, WHERRY_MISMATCH);
}

/** A source that sends another step ends the whole receive, as a mismatch of the states does. */
static wherry_status find_mismatch(const wh_recv *recv, wherry_error *error) {
    for (size_t i = 0; i < recv->source_count; i++) {
        const wh_recv_source *one = recv->sources + i;
        if (one->state == WH_SOURCE_GONE && one->failure.status == WHERRY_MISMATCH) {
            *error = one->failure;
            return WHERRY_MISMATCH;
        }
    }
    return WHERRY_OK;
}

/** The number of sources that have not joined the group yet, and were not lost. */
static size_t count_joining(const wh_recv *recv) {
    const wh_mailbox *mailbox = recv->call.transport->group->mailbox;
    size_t count = 0;
    for (size_t i = 0; i < recv->source_count; i++) {
        const wh_recv_source *one = recv->sources + i;
        count += one->state == WH_SOURCE_ABSENT && !wh_mailbox_is_lost(mailbox, one->rank, NULL, 0);
    }
    return count;
}

/**
 * Waits for the offer of a source, and for a moment for those of the others that have joined, so
 * that a mismatch is usually found before the first byte.
 */
static wherry_status await_offers(wh_recv *recv, wherry_error *error) {
    uint64_t first = 0;
    bool all = recv->call.options.require == WHERRY_REQUIRE_ALL;
    for (;;) {
        WH_TRY(find_mismatch(recv, error));
        WH_TRY(wh_recv_check_sources(recv, error));
        size_t offered = count_sources(recv, WH_SOURCE_OFFERED);
        first = offered && !first ? wh_clock_now() : first;
        uint64_t waited = first ? wh_clock_now() - first : 0;
        bool asked = count_sources(recv, WH_SOURCE_ASKED) && (all || waited < GATHER_MS * MS);
        bool joins = count_joining(recv) && (all || waited < JOIN_MS * MS);
        if (offered && !asked && !joins) {
            break;
        }
        wh_deadline tick = wh_call_tick(&recv->call);
        tick = recv->source_count > 1 ? wh_deadline_earlier(tick, wh_deadline_in_ms(GATHER_MS / 5)) : tick;
        WH_TRY(wh_recv_pump(recv, tick, "waiting for the source to send", error));
        WH_TRY(ask_absent(recv, error));
    }
    recv->moments[WH_AT_OFFERED] = wh_clock_now();
    wh_point("receiver has the offer");
    return WHERRY_OK;
}

static wherry_status check_offer(wh_recv *recv, const wh_recv_source *source, wherry_error *error) {
    WH_TRY(check_step(recv, source, error));
    return source == recv->first ? WHERRY_OK
                                 : wh_agreement_check(&recv->agreed, &recv->call, &recv->first->offer,
                                                      recv->first->rank, &source->offer, source->rank, error);
}

/** Asks, and finds out what will be received where. */
static wherry_status agree(wh_recv *recv, wherry_error *error) {
    wherry_error target = {.status = WHERRY_OK};
    uint64_t begin = wh_clock_now();
    target.status = wh_agreement_begin(&recv->agreed, &recv->call, &target);
    recv->ready_ns = wh_clock_now() - begin;
    wherry_status status = ask(recv, error);
    if (target.status != WHERRY_OK) {
        /* The sources were asked all the same, so that they learn why they need not wait. */
        *error = target;
        return target.status;
    }
    WH_TRY(status);
    wh_agreement_plan_ahead(&recv->agreed);
    WH_TRY(await_offers(recv, error));
    recv->first = lowest_source(recv);
    WH_TRY(check_step(recv, recv->first, error));
    WH_TRY(wh_agreement_make(&recv->agreed, &recv->call, &recv->first->offer, recv->first->rank, error));
    for (size_t i = 0; i < recv->source_count; i++) {
        if (wh_source_is_usable(recv->sources + i)) {
            WH_TRY(check_offer(recv, recv->sources + i, error));
        }
    }
    return WHERRY_OK;
}

/* ---- moving chunks ---- */

static uint64_t chunk_bytes(const void *context, uint64_t chunk) {
    const wh_recv *recv = context;
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(wherry_plan_prepared(recv->agreed.plan), chunk, &begin, &length);
    return length;
}

uint64_t wh_recv_bytes_of_chunks(const wh_recv *recv, const uint64_t *chunks, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += chunk_bytes(recv, chunks[i]);
    }
    return bytes;
}

void wh_recv_note_landed(wh_recv *recv, wh_recv_source *source, uint64_t chunk) {
    if (recv->schedule && source->scheduled >= 0) {
        wh_schedule_landed(recv->schedule, source->scheduled, chunk);
    }
}

void wh_recv_note_lost(wh_recv *recv, wh_recv_source *source, uint64_t chunk) {
    if (recv->schedule && source->scheduled >= 0) {
        wh_schedule_rejected(recv->schedule, source->scheduled, chunk);
    }
}

void wh_recv_note_recalled(wh_recv *recv, wh_recv_source *source) {
    if (recv->schedule && source->scheduled >= 0) {
        wh_schedule_recall(recv->schedule, source->scheduled);
    }
}

wherry_status wh_recv_settle(wh_recv *recv, wherry_error *error) {
    if (recv->source_count == 1) { /* no worker runs, so this thread may ask the interrupt */
        wh_stop_set_question(&recv->stop, wh_call_is_cancelled, &recv->call);
    }
    wherry_status status = wh_chunks_settle(&recv->chunks, error);
    wh_stop_set_question(&recv->stop, NULL, NULL);
    return status;
}

/** Number of runs of memory; a small page counts as one, for lanes that handle pages one by one. */
static uint64_t count_runs(const wh_recv *recv) {
    const wherry_plan *plan = recv->agreed.plan;
    uint64_t pages = recv->agreed.summary.bytes / SMALL_PAGE;
    bool small =
        recv->first->offer.small_pages || wh_storages_on_small_pages(plan->kept, plan->kept_count, &plan->traits);
    return pages > recv->agreed.summary.copies && small ? pages : recv->agreed.summary.copies;
}

/** Records the lanes that exist but are not allowed. */
static void note_forbidden(wh_recv *recv) {
    const wherry_transport *transport = recv->call.transport;
    for (size_t i = 0; i < transport->lane_count; i++) {
        const char *name = transport->lanes[i]->name;
        if (!wh_lane_list_find(&recv->call.lanes, name, strlen(name))) {
            wherry_error reason;
            wh_fail(&reason, WHERRY_UNSUPPORTED, "not allowed here");
            reason.reason = WHERRY_LANE_NOT_ALLOWED;
            wh_stats_skip_lane(&recv->stats, name, &reason);
        }
    }
}

/** The chunks of the leg that are not complete, in a new array. */
static wherry_status list_missing(const wh_recv *recv, uint64_t **chunks_p, size_t *count_p, wherry_error *error) {
    uint64_t *chunks = wh_alloc_array(wh_max(recv->leg.total, 1), sizeof(*chunks));
    size_t count = 0;
    WH_TRY(wh_check_memory(chunks, error, "a request"));
    for (uint64_t i = 0; i < recv->leg.total; i++) {
        uint64_t chunk = wh_chunk_set_at(&recv->leg, i);
        wh_chunk_state state = wh_chunks_state(&recv->chunks, wh_chunk_set_find(&recv->chunks.wanted, chunk));
        if (state != WH_CHUNK_LANDED) {
            chunks[count++] = chunk;
        }
    }
    *chunks_p = chunks;
    *count_p = count;
    return WHERRY_OK;
}

static int compare_chunks(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one;
    uint64_t b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

/** What the schedule wants from a source now, ascending, in a new array. */
static wherry_status list_scheduled(const wh_recv *recv, const wh_recv_source *source, uint64_t **chunks_p,
                                    size_t *count_p, wherry_error *error) {
    uint64_t *chunks = NULL;
    size_t capacity = 0;
    size_t count = 0;
    size_t got = BATCH;
    while (got == BATCH) {
        if (!WH_RESERVE(chunks, capacity, count + BATCH)) {
            wh_free(chunks);
            return wh_fail_memory(error, "a request");
        }
        got = wh_schedule_next(recv->schedule, source->scheduled, wh_clock_now(), chunks + count, BATCH);
        count += got;
    }
    if (count) {
        qsort(chunks, count, sizeof(*chunks), compare_chunks);
    }
    *chunks_p = chunks;
    *count_p = count;
    return WHERRY_OK;
}

/** Requests what a source should send now. */
static wherry_status feed_source(wh_recv *recv, wh_recv_source *source, wherry_error *error) {
    wh_session *session = &source->pull.session;
    bool open = wh_session_is_open(session);
    uint64_t *chunks = NULL;
    size_t count = 0;
    if (!wh_source_is_usable(source) || (recv->schedule && source->scheduled < 0) ||
        (open && (session->queue.last || source->recalled))) {
        return WHERRY_OK;
    }
    if (recv->schedule) {
        WH_TRY(list_scheduled(recv, source, &chunks, &count, error));
    } else {
        WH_TRY(list_missing(recv, &chunks, &count, error));
    }
    /* A session without work ends, so that both sides see its end. It can be opened again. */
    bool last = !recv->schedule || wh_schedule_is_all_requested(recv->schedule) ||
                (open && !count && !source->outstanding_count);
    wherry_status status = WHERRY_OK;
    if (count || (open && last)) {
        status = wh_source_request(source, chunks, count, last, error);
    }
    if (status == WHERRY_OK && source->slow) {
        wh_log(WHERRY_LOG_INFO, "other sources are asked first, because rank %d opens no lane", (int)source->rank);
        wh_schedule_suspend(recv->schedule, source->scheduled);
        source->slow = false;
    } else if (status == WHERRY_OK && count && !source->outstanding_count && !wh_session_is_open(session)) {
        /* No session could be opened: others may take these chunks. */
        for (size_t i = 0; i < count; i++) {
            wh_recv_note_lost(recv, source, chunks[i]);
        }
    }
    wh_free(chunks);
    if (status == WHERRY_OK && count && wh_session_has_ended(session)) {
        status = wh_source_look(source, error); /* a small request is done already */
    }
    return status;
}

/** Does a step for each source whose lane runs in this thread. @return true if there was any. */
static bool step_all(wh_recv *recv) {
    bool stepped = false;
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_pull *pull = &recv->sources[i].pull;
        if (wh_session_needs_step(&pull->session)) {
            wh_sink sink = wh_pull_sink(pull);
            wherry_error error;
            bool done = false;
            uint32_t wait_ms = recv->source_count == 1 ? WH_PATIENT_STEP_MS : 1;
            wherry_status status = pull->session.lane->pull_some(pull->session.end, &sink, wait_ms, &done, &error);
            wh_session_note_step(&pull->session, done, status, &error);
            stepped = true;
        }
    }
    return stepped;
}

/** Sources that have offered are checked, and take part. */
static wherry_status admit_sources(wh_recv *recv, wherry_error *error) {
    /* Rotated by rank, so that several receivers do not all use the same source of their host. */
    size_t turn = (size_t)recv->call.transport->group->rank;
    for (size_t k = 0; k < recv->source_count && recv->schedule; k++) {
        wh_recv_source *one = recv->sources + (k + turn) % recv->source_count;
        if (wh_source_is_usable(one) && one->scheduled < 0) {
            WH_TRY(check_offer(recv, one, error));
            one->scheduled = wh_schedule_add(
                recv->schedule, NULL, wh_group_process(recv->call.transport->group, one->rank) > 0, wh_clock_now());
        }
    }
    return WHERRY_OK;
}

/**
 * The chunks of a source that is gone count only if another source with a lease has the same
 * digests. The others are missing again.
 */
static wherry_status replace_chunks(wh_recv *recv, const wh_chunk_set *kept, wherry_error *error) {
    wh_recv_source *other = lowest_source(recv);
    bool *equal = wh_alloc_zeroed(wh_max(kept->total, 1), sizeof(*equal));
    wherry_status status = wh_check_memory(equal, error, "the chunks of a lost source");
    if (status == WHERRY_OK && kept->total && other && recv->chunks.landed && !recv->on_device) {
        status = wh_recv_confirm_by_digest(recv, other, kept, equal, error);
    }
    for (uint64_t k = 0; k < kept->total && status == WHERRY_OK; k++) {
        uint64_t chunk = wh_chunk_set_at(kept, k);
        if (other && equal[k]) {
            wh_schedule_confirm(recv->schedule, chunk, other->scheduled);
            other->answer = 0; /* it must confirm them, too */
            atomic_store(recv->chunks.owners + wh_chunk_set_find(&recv->chunks.wanted, chunk), other->number);
        } else {
            wh_chunks_reset(&recv->chunks, chunk);
        }
    }
    wh_free(equal);
    return status;
}

/** Replaces sources that are gone and have no session any more. */
static wherry_status replace_lost(wh_recv *recv, wherry_error *error) {
    for (size_t i = 0; i < recv->source_count && recv->schedule; i++) {
        wh_recv_source *gone = recv->sources + i;
        if (gone->state != WH_SOURCE_GONE || gone->scheduled < 0 || wh_session_is_open(&gone->pull.session)) {
            continue;
        }
        wh_chunk_set kept = {0};
        bool ok = true;
        for (uint64_t k = 0; k < recv->leg.total && ok; k++) {
            uint64_t chunk = wh_chunk_set_at(&recv->leg, k);
            bool landed = wh_schedule_source_of(recv->schedule, chunk) == gone->scheduled;
            ok = !landed || wh_chunk_set_add(&kept, chunk, chunk);
        }
        wh_schedule_remove(recv->schedule, gone->scheduled);
        wherry_status status =
            ok ? replace_chunks(recv, &kept, error) : wh_fail_memory(error, "the chunks of a lost source");
        wh_schedule_forget(recv->schedule, gone->scheduled);
        gone->scheduled = -1;
        wh_chunk_set_destroy(&kept);
        WH_TRY(status);
    }
    return WHERRY_OK;
}

/** Passes measured bytes to the schedule, and recalls a source that others would outrun. */
static void look_at_schedule(wh_recv *recv) {
    uint64_t now = wh_clock_now();
    int late = recv->schedule ? wh_schedule_late(recv->schedule, now) : -1;
    for (size_t i = 0; i < recv->source_count && recv->schedule; i++) {
        wh_recv_source *one = recv->sources + i;
        uint64_t bytes = wh_source_bytes(one);
        if (one->scheduled < 0) {
            continue;
        }
        if (bytes > one->reported) {
            wh_schedule_moved(recv->schedule, one->scheduled, bytes - one->reported, now);
            one->reported = bytes;
        } else if (one->scheduled == late && !one->recalled && !(one->lane && one->lane->traits & WH_LANE_GROUP)) {
            /*
             * An operation of the group may not be possible to stop, so such a source is awaited.
             */
            wh_log(WHERRY_LOG_INFO, "other sources take over chunks that rank %d has not sent", (int)one->rank);
            /* The schedule learns of it when no worker can write to these chunks any more. */
            wh_source_recall(one);
        }
    }
}

/** True if all chunks of the leg are complete. */
static bool is_leg_done(const wh_recv *recv) {
    if (recv->schedule) {
        return wh_schedule_is_done(recv->schedule);
    }
    bool done = !wh_session_is_open(&recv->sources->pull.session);
    for (uint64_t i = 0; i < recv->leg.total && done; i++) {
        uint64_t place = wh_chunk_set_find(&recv->chunks.wanted, wh_chunk_set_at(&recv->leg, i));
        done = wh_chunks_state(&recv->chunks, place) == WH_CHUNK_LANDED;
    }
    return done;
}

/** Looks after all sources once, and hands out requests. */
static wherry_status work(wh_recv *recv, wherry_error *error) {
    for (size_t i = 0; i < recv->source_count; i++) {
        WH_TRY(wh_source_look(recv->sources + i, error));
    }
    WH_TRY(find_mismatch(recv, error));
    WH_TRY(ask_absent(recv, error));
    look_at_schedule(recv);
    WH_TRY(admit_sources(recv, error)); /* before they replace others */
    WH_TRY(replace_lost(recv, error));
    WH_TRY(wh_recv_check_sources(recv, error));
    for (size_t i = 0; i < recv->source_count; i++) {
        WH_TRY(feed_source(recv, recv->sources + i, error));
    }
    return WHERRY_OK;
}

static bool are_sessions_closed(const wh_recv *recv) {
    for (size_t i = 0; i < recv->source_count; i++) {
        if (wh_session_is_open(&recv->sources[i].pull.session)) {
            return false;
        }
    }
    return true;
}

/** Works until all chunks of the leg are complete and all sessions are closed. */
static wherry_status move_leg(wh_recv *recv, wherry_error *error) {
    for (;;) {
        WH_TRY(work(recv, error));
        /* A source that is BROKEN is GONE soon, and its chunks must be replaced. */
        if (is_leg_done(recv) && are_sessions_closed(recv) && !count_sources(recv, WH_SOURCE_BROKEN)) {
            return WHERRY_OK;
        }
        bool busy = step_all(recv);
        uint64_t wake = recv->schedule ? wh_schedule_wake_at(recv->schedule) : UINT64_MAX;
        wh_deadline tick = busy ? wh_deadline_in_ms(0) : wh_call_tick(&recv->call);
        tick = wh_deadline_earlier(tick, (wh_deadline){wake});
        WH_TRY(wh_recv_pump(recv, tick, "receiving a checkpoint", error));
        wh_recv_progress(recv, false);
    }
}

/* ---- confirming ---- */

static bool has_chunks(const wh_recv *recv, const wh_recv_source *source) {
    for (uint64_t i = 0; i < recv->leg.total; i++) {
        if (wh_schedule_source_of(recv->schedule, wh_chunk_set_at(&recv->leg, i)) == source->scheduled) {
            return true;
        }
    }
    return false;
}

static wherry_status fail_different(wh_recv *recv, const wh_recv_source *one, uint64_t chunk, wherry_error *error) {
    uint64_t place = wh_chunk_set_find(&recv->chunks.wanted, chunk);
    const wh_recv_source *other = recv->sources + atomic_load(recv->chunks.owners + place);
    wh_fail(error, WHERRY_MISMATCH,
            "ranks %d and %d have different bytes at the same step %lld; one of these states is wrong",
            (int)other->rank, (int)one->rank, (long long)recv->call.options.step);
    wh_recv_fail_chunk(recv, chunk, error);
    return wh_fail_rank(error, one->rank, WHERRY_MISMATCH);
}

/** With WHERRY_VERIFY_ALL: asks each source for the digests of the chunks that came from others. */
static wherry_status compare_sources(wh_recv *recv, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < recv->source_count && status == WHERRY_OK && !recv->on_device; i++) {
        wh_recv_source *one = recv->sources + i;
        wh_chunk_set others = {0};
        bool ok = true;
        for (uint64_t k = 0; k < recv->leg.total && ok && wh_source_is_usable(one); k++) {
            uint64_t chunk = wh_chunk_set_at(&recv->leg, k);
            bool own = wh_schedule_source_of(recv->schedule, chunk) == one->scheduled;
            ok = own || wh_chunk_set_add(&others, chunk, chunk);
        }
        bool *equal = wh_alloc_zeroed(wh_max(others.total, 1), sizeof(*equal));
        status = ok && equal ? WHERRY_OK : wh_fail_memory(error, "comparing sources");
        if (others.total) {
            WH_THEN(status, wh_recv_confirm_by_digest(recv, one, &others, equal, error));
        }
        for (uint64_t k = 0; k < others.total && status == WHERRY_OK && wh_source_is_usable(one); k++) {
            if (!equal[k]) {
                status = fail_different(recv, one, wh_chunk_set_at(&others, k), error);
            }
        }
        wh_free(equal);
        wh_chunk_set_destroy(&others);
    }
    return status;
}

/** Asks all sources whose chunks are kept whether their states were unchanged. */
static wherry_status ask_to_confirm(wh_recv *recv, wherry_error *error) {
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_recv_source *one = recv->sources + i;
        if (wh_source_is_usable(one) && one->answer != WH_CONFIRMED && has_chunks(recv, one)) {
            wh_note note = {.type = WH_CONFIRM, .epoch = one->offer.epoch};
            one->answer = WH_CONFIRM; /* until the answer comes */
            one->since = wh_clock_now();
            WH_TRY(wh_source_tell(one, &note, error));
        }
    }
    return WHERRY_OK;
}

/**
 * True if a source has not answered. One that takes too long is given up if others can replace it.
 */
static bool awaits_confirmation(wh_recv *recv) {
    bool awaits = false;
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_recv_source *one = recv->sources + i;
        bool pending = wh_source_is_usable(one) && one->answer == WH_CONFIRM;
        int64_t limit = count_sources(recv, WH_SOURCE_OFFERED) > 1 ? CONFIRM_MS : recv->call.options.no_progress_ms;
        if (pending && wh_clock_now() - one->since > (uint64_t)limit * MS) {
            wherry_error error;
            wh_fail(&error, WHERRY_TIMED_OUT, "rank %d: timed out: it has not confirmed its state for %lld ms",
                    (int)one->rank, (long long)limit);
            wh_source_fail(one, WHERRY_TIMED_OUT, &error, true);
            pending = false;
        }
        awaits = awaits || pending;
    }
    return awaits;
}

/** True if each source whose chunks are kept has confirmed them. It may be gone since. */
static bool is_confirmed(const wh_recv *recv) {
    for (size_t i = 0; i < recv->source_count; i++) {
        const wh_recv_source *one = recv->sources + i;
        if (one->answer != WH_CONFIRMED && has_chunks(recv, one)) {
            return false;
        }
    }
    return true;
}

/**
 * With several sources: the chunks of the leg count when each source that sent some has confirmed
 * them. If one is lost before, the others replace its chunks, and confirm again.
 */
static wherry_status confirm_leg(wh_recv *recv, wherry_error *error) {
    while (recv->schedule) {
        if (recv->call.options.verify == WHERRY_VERIFY_ALL) {
            WH_TRY(compare_sources(recv, error));
        }
        wh_point("receiver asks to confirm");
        WH_TRY(ask_to_confirm(recv, error));
        while (awaits_confirmation(recv)) {
            WH_TRY(wh_recv_pump(recv, wh_call_tick(&recv->call), "waiting for the sources to confirm", error));
            wh_recv_progress(recv, false);
        }
        if (is_confirmed(recv)) {
            return WHERRY_OK;
        }
        /* what comes now must be confirmed, too, even if it comes at once */
        WH_TRY(move_leg(recv, error));
    }
    return WHERRY_OK;
}

static wherry_status begin_leg(wh_recv *recv, wherry_error *error) {
    for (size_t i = 0; i < recv->source_count; i++) {
        recv->sources[i].next_lane = 0;
        recv->sources[i].damaged = 0;
        recv->sources[i].scheduled = -1;
        recv->sources[i].answer = 0; /* a confirmation is for one leg */
    }
    wh_schedule_destroy(recv->schedule);
    recv->schedule = NULL;
    if (recv->source_count == 1) {
        return WHERRY_OK;
    }
    recv->schedule = wh_schedule_create(&recv->leg, chunk_bytes, recv, LOCAL_SOURCES);
    return wh_check_memory(recv->schedule, error, "a schedule");
}

/** Moves all chunks: first those of host memory, then those of devices, over lanes of their own. */
static wherry_status move_chunks(wh_recv *recv, wherry_error *error) {
    wh_lane_list_sort(&recv->call.lanes, recv->agreed.summary.bytes, count_runs(recv));
    note_forbidden(recv);
    if (!wh_chunks_init(&recv->chunks, recv->agreed.plan, &recv->agreed.wanted, &recv->stop, recv->call.deadline) ||
        !wh_chunks_set_trace(&recv->chunks, &recv->trace)) {
        return wh_fail_memory(error, "a receive");
    }
    for (int device = 0; device < 2; device++) {
        recv->on_device = device;
        if (!wh_recv_select(recv, device, &recv->leg)) {
            return wh_fail_memory(error, "a receive");
        }
        if (recv->leg.total) {
            WH_TRY(begin_leg(recv, error));
            WH_TRY(move_leg(recv, error));
            WH_TRY(confirm_leg(recv, error));
        }
    }
    return WHERRY_OK;
}

/* ---- the end ---- */

/**
 * Tells all sources that the receive is done, and waits a moment for their answers: if this process
 * ended before they had read the message, their sends would fail.
 */
static void release_sources(wh_recv *recv) {
    wh_deadline soon = wh_deadline_in_ms(CONFIRM_MS);
    bool waits = true;
    for (size_t i = 0; i < recv->source_count; i++) {
        recv->sources[i].answer = 0;
        wh_source_end(recv->sources + i, WHERRY_OK, NULL);
    }
    while (waits && !wh_deadline_passed(soon)) {
        wherry_error ignored;
        waits = false;
        for (size_t i = 0; i < recv->source_count; i++) {
            waits = waits || (wh_source_is_usable(recv->sources + i) && recv->sources[i].answer != WH_RELEASED);
        }
        waits = waits && wh_recv_pump(recv, soon, "releasing the sources", &ignored) == WHERRY_OK;
    }
}

/**
 * With one source: DONE, and its answer, which makes the bytes valid. With several, they are
 * confirmed already.
 */
static wherry_status finish(wh_recv *recv, wherry_error *error) {
    wh_recv_source *source = recv->sources;
    recv->moments[WH_AT_DONE] = wh_clock_now();
    wh_point("receiver has all bytes");
    if (recv->source_count > 1) {
        release_sources(recv);
        return WHERRY_OK;
    }
    wherry_transport *transport = recv->call.transport;
    wh_transport_forget(transport, transport->group, source->rank, false, source->lane);
    wh_note done = {.type = WH_DONE, .epoch = source->offer.epoch, .bytes = atomic_load(&recv->chunks.moved)};
    source->answer = 0;
    WH_TRY(wh_source_tell(source, &done, error));
    wh_point("receiver said done");
    WH_TRY(wh_source_await(source, WH_RELEASED, "waiting for the source to confirm", error));
    WH_TRY(wh_recv_check_sources(recv, error));
    source->told = true;
    return source->answer == WH_RELEASED
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "rank %d refused a lane after all bytes had come", (int)source->rank);
}

static wherry_status receive(wh_recv *recv, wherry_error *error) {
    WH_TRY(agree(recv, error));
    WH_TRY(wh_call_await_stream(&recv->call, recv->agreed.plan->traits.cuda, error));
    if (recv->call.options.flags & WHERRY_RECV_COMPARE && recv->agreed.in_place) {
        WH_TRY(wh_recv_compare(recv, error));
    }
    if (recv->agreed.wanted.total) {
        WH_TRY(move_chunks(recv, error));
    }
    return finish(recv, error);
}

static wherry_status run(wh_recv *recv, wherry_value **state_p, wherry_error *error) {
    wherry_status status = receive(recv, error);
    if (status != WHERRY_OK) {
        wh_stop_request(&recv->stop);
    }
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_source_end(recv->sources + i, status, error);
    }
    if (status != WHERRY_OK) {
        wh_recv_report_failure(recv, error);
        error->status = status;
        wh_log(WHERRY_LOG_WARN, "receiving from rank %d%s failed: %s", (int)recv->sources->rank,
               recv->source_count > 1 ? " and others" : "", error->message);
    } else {
        wh_recv_progress(recv, true);
        status = state_p ? wherry_plan_take_state(recv->agreed.own_plan, state_p, error) : WHERRY_OK;
    }
    wh_recv_finish_stats(recv);
    if (status == WHERRY_OK) {
        wh_recv_log_success(recv);
    }
    return status;
}

/**
 * If somebody may still write to the memory that was received into, none of it is ever freed: the
 * storages, also those of a target, and the buffers for chunks on their way to a device.
 */
static void free_or_leak(wh_recv *recv) {
    const wherry_plan *plan = recv->agreed.plan;
    if (!recv->held) {
        wh_chunks_destroy(&recv->chunks);
        return;
    }
    wh_chunks_leak(&recv->chunks);
    for (size_t i = 0; i < plan->kept_count; i++) {
        wherry_storage_ref(plan->kept[i]);
        wh_leak(plan->kept[i]);
    }
    wh_log(WHERRY_LOG_ERROR, "the memory of %zu storages is never freed, because rank %d may still write to it",
           plan->kept_count, (int)recv->sources->rank);
}

static wherry_status check_call(const wh_recv *recv, size_t count, wherry_error *error) {
    const wherry_transfer_options *options = &recv->call.options;
    if (count > 1 && options->step == WHERRY_STEP_ANY) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "receiving from several sources needs the step, so that all send the same state; set step");
    }
    return recv->agreed.wants_state || options->target || options->accept
               ? WHERRY_OK
               : wh_fail(error, WHERRY_INVALID_ARGUMENT, "state_p is NULL, and there is no target to receive into");
}

wherry_status wherry_checkpoint_recv_from(wherry_transport *transport, const int32_t *ranks, size_t count,
                                          const wherry_transfer_options *options, wherry_value **state_p,
                                          wherry_error *error) {
    wherry_error own;
    error = error ? error : &own;
    if (!transport || !ranks || !count || count > WHERRY_SOURCES_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport or ranks is NULL, or there are not 1 to %d ranks",
                       WHERRY_SOURCES_MAX);
    }
    wh_recv recv = {.agreed.wants_state = state_p != NULL, .stop.event = -1};
    wherry_status status = wh_check_ranks(transport, ranks, count, error);
    WH_THEN(status, wh_call_begin(&recv.call, transport, options, error));
    const wherry_transfer_options *taken = &recv.call.options;
    if (taken->report_p) {
        *taken->report_p = NULL;
    }
    if (taken->stats) {
        *taken->stats = (wherry_stats){.struct_size = sizeof(*taken->stats)};
    }
    WH_THEN(status, check_call(&recv, count, error));
    if (status != WHERRY_OK) {
        return status;
    }
    recv.sources = wh_alloc_zeroed(count, sizeof(*recv.sources));
    WH_TRY(wh_check_memory(recv.sources, error, "a receive"));
    for (; recv.source_count < count; recv.source_count++) {
        recv.sources[recv.source_count] = (wh_recv_source){.recv = &recv,
                                                           .rank = ranks[recv.source_count],
                                                           .number = (uint8_t)recv.source_count,
                                                           .scheduled = -1,
                                                           .offer_message.channel = -1};
    }
    recv.trace = (wh_trace){taken->trace, taken->trace_context, ranks[0]};
    status = run(&recv, state_p, error);
    wh_call_detach(&recv.call);
    for (size_t i = 0; i < count; i++) {
        wh_source_destroy(recv.sources + i);
    }
    wh_inbox_close(recv.inbox);
    if (recv.chunks.plan || recv.held) {
        free_or_leak(&recv);
    }
    wh_schedule_destroy(recv.schedule);
    wh_chunk_set_destroy(&recv.leg);
    wh_tensor_table_destroy(&recv.table);
    wh_agreement_destroy(&recv.agreed);
    wh_free(recv.sources);
    return status;
}

wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank, const wherry_transfer_options *options,
                                     wherry_value **state_p, wherry_error *error) {
    return wherry_checkpoint_recv_from(transport, &rank, 1, options, state_p, error);
}
