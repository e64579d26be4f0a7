#include "transfer/recv.h"

#include <assert.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "transfer/transfer_timing.h"

/**
 * Sources on this host that are used at once. One is enough, because memory bandwidth is the limit.
 */
enum { LOCAL_SOURCES = 1 };

/** Room in an error for the names of the sources and the report. */
enum { REPORT_BYTES = 320 };

/* ---- messages ---- */

wherry_status wh_recv_must_end(wh_recv *recv, const char *doing, wherry_error *error) {
    wherry_status status = wh_call_must_end(&recv->call, doing, error);
    return status == WHERRY_OK ? status : wh_fail_rank(error, recv->sources->rank, status);
}

/** Passes a message to the source of its group and rank. */
static void take(wh_recv *recv, const wh_inbox *inbox, wh_message *message) {
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->inbox == inbox && one->rank == message->rank) {
            wh_source_take(one, message); /* This call may take the message over. */
            break;
        }
    }
    wh_message_clear(message);
}

bool wh_recv_is_fatal(const wh_recv *recv, wherry_status status) {
    return status == WHERRY_CANCELLED || (status == WHERRY_CLOSED && recv->inbox_count == 1);
}

/** One of several groups is closed. Its sources are lost, and nobody reads its inbox any more. */
static void lose_group(wh_recv *recv, size_t number, const wherry_error *why) {
    wh_inbox *closed = recv->inboxes[number];
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->inbox == closed) {
            wh_source_fail(one, WHERRY_CLOSED, why, false);
        }
    }
    recv->inboxes[number] = recv->inboxes[--recv->open_inboxes];
    recv->inboxes[recv->open_inboxes] = closed;
}

wherry_status wh_recv_pump(wh_recv *recv, wh_deadline deadline, const char *doing, wherry_error *error) {
    wh_message message;
    wherry_error why;
    size_t from;
    WH_TRY(wh_recv_must_end(recv, doing, error));
    wherry_status status = wh_inbox_take_any(recv->inboxes, recv->open_inboxes, deadline, &message, &from, &why);
    if (status == WHERRY_TIMED_OUT) {
        return WHERRY_OK;
    }
    if (status == WHERRY_CLOSED && recv->open_inboxes > 1) {
        lose_group(recv, from, &why);
        return WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        /*
         * If the call must end anyway, report that reason. A lane may have closed the group because
         * of it.
         */
        wherry_status own = wh_recv_must_end(recv, doing, error);
        if (own == WHERRY_OK) {
            *error = why;
        }
        return own == WHERRY_OK ? status : own;
    }
    take(recv, recv->inboxes[from], &message);
    return WHERRY_OK;
}

wherry_status wh_recv_check_sources(wh_recv *recv, wherry_error *error) {
    size_t gone = 0;
    const wh_recv_source *first = NULL;
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->state != WH_SOURCE_GONE) {
            continue;
        }
        if (one->failure.status == WHERRY_MISMATCH) {
            *error = one->failure;
            return WHERRY_MISMATCH;
        }
        first = first ? first : one;
        gone++;
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
    int each = (int)((sizeof(error->message) - REPORT_BYTES) / recv->source_count);
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_string_format(&text, "%s%s: %.*s", i ? "; " : "", recv->sources[i].name, each,
                         recv->sources[i].failure.message);
    }
    snprintf(error->message, sizeof(error->message), "no source is left: %s", text.failed ? "" : text.bytes);
    wh_free(text.bytes);
    return first->failure.status;
}

/* ---- agreeing ---- */

static wherry_status ask(wh_recv *recv, wherry_error *error) {
    for (WH_EACH_SOURCE(one, recv)) { /* All sources of a group share an inbox. */
        for (const wh_recv_source *before = recv->sources; before < one && !one->inbox; before++) {
            one->inbox = before->transport->group == one->transport->group ? before->inbox : NULL;
        }
        if (!one->inbox) {
            WH_TRY(wh_inbox_open(one->transport->group, 0, &one->inbox, error));
            recv->inboxes[recv->inbox_count++] = one->inbox;
        }
    }
    recv->open_inboxes = recv->inbox_count;
    wh_call_attach(&recv->call, recv->inboxes[0]);
    recv->moments[WH_AT_ASKED] = wh_clock_now();
    recv->moments[WH_AT_TOLD] = recv->moments[WH_AT_ASKED]; /* A short receive shows no progress. */
    for (WH_EACH_SOURCE(one, recv)) {
        WH_TRY(wh_source_ask(one, error));
    }
    return WHERRY_OK;
}

static bool has_joined(const wh_recv_source *source) {
    return wh_mailbox_incarnation(source->transport->group->mailbox, source->rank) != 0;
}

/** Asks again the sources that were absent. */
static wherry_status ask_absent(wh_recv *recv, wherry_error *error) {
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->state == WH_SOURCE_ABSENT && (has_joined(one) || recv->source_count == 1)) {
            WH_TRY(wh_source_ask(one, error));
        }
    }
    return WHERRY_OK;
}

static size_t count_sources(const wh_recv *recv, wh_source_state state) {
    size_t count = 0;
    for (WH_EACH_SOURCE(one, recv)) {
        count += one->state == state;
    }
    return count;
}

/** Returns the usable source with the lowest rank, the first of equals; NULL: none. */
static wh_recv_source *lowest_source(const wh_recv *recv) {
    wh_recv_source *lowest = NULL;
    for (WH_EACH_SOURCE(one, recv)) {
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
        wh_fail(error, WHERRY_MISMATCH, "%s sends no step and step %lld is wanted; pass the step to the send",
                source->name, (long long)wanted);
    } else {
        wh_fail(error, WHERRY_MISMATCH, "%s sends step %lld and step %lld is wanted", source->name, (long long)sent,
                (long long)wanted);
    }
    return wh_fail_rank(error, source->rank, WHERRY_MISMATCH);
}

/** The number of sources that have not joined the group yet, and were not lost. */
static size_t count_joining(const wh_recv *recv) {
    size_t count = 0;
    for (WH_EACH_SOURCE(one, recv)) {
        count +=
            one->state == WH_SOURCE_ABSENT && !wh_mailbox_is_lost(one->transport->group->mailbox, one->rank, NULL, 0);
    }
    return count;
}

enum { WHO_MAX = 192, CALL_MAX = 80 };

/**
 * Says which sources have not offered a state, and what they must call. `call` may be empty.
 */
static void describe_wait(const wh_recv *recv, char who[WHO_MAX], char call[CALL_MAX]) {
    size_t waiting = 0;
    const wh_recv_source *first = NULL;
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->state == WH_SOURCE_ASKED || one->state == WH_SOURCE_ABSENT) {
            first = waiting++ ? first : one;
        }
    }
    char more[32] = "";
    if (waiting == 1 && first->state == WH_SOURCE_ABSENT) {
        snprintf(who, WHO_MAX, "a checkpoint: %s %s", first->name,
                 has_joined(first) ? "takes no messages" : "has not joined the group");
        *call = '\0';
        return;
    }
    if (waiting > 1) {
        snprintf(more, sizeof(more), " and %zu more", waiting - 1);
    }
    snprintf(who, WHO_MAX, "%s%s", first ? first->name : "a source", more);
    snprintf(call, CALL_MAX, "wherry_checkpoint_send with rank %d as a destination",
             first ? (int)first->transport->group->rank : -1);
}

/**
 * Waits for the offer of a source. Then waits for a moment for the offers of other sources that
 * have joined, so that a mismatch is usually found before the first byte.
 */
static wherry_status await_offers(wh_recv *recv, wherry_error *error) {
    uint64_t first = 0;
    bool all = recv->call.options.require == WHERRY_REQUIRE_ALL;
    char who[WHO_MAX];
    char call[CALL_MAX];
    char doing[WHO_MAX + CALL_MAX + 32];
    for (;;) {
        WH_TRY(wh_recv_check_sources(recv, error));
        size_t offered = count_sources(recv, WH_SOURCE_OFFERED);
        first = offered && !first ? wh_clock_now() : first;
        uint64_t waited = first ? wh_clock_now() - first : 0;
        bool asked = count_sources(recv, WH_SOURCE_ASKED) && (all || waited < WH_RECV_GATHER_MS * WH_NS_PER_MS);
        bool joins = count_joining(recv) && (all || waited < WH_RECV_JOIN_MS * WH_NS_PER_MS);
        if (offered && !asked && !joins) {
            break;
        }
        wh_deadline tick = wh_call_tick(&recv->call);
        if (recv->source_count > 1) {
            tick = wh_deadline_earlier(tick, wh_deadline_in_ms(WH_RECV_GATHER_MS / 5));
        } else if (recv->sources->state == WH_SOURCE_ABSENT) {
            tick = wh_deadline_in_ms(0); /* ask_absent waits */
        }
        describe_wait(recv, who, call);
        snprintf(doing, sizeof(doing), "waiting for %s%s%s", who, *call ? ", which must call " : "", call);
        if (wh_wait_is_long(&recv->wait)) {
            wh_log_wait(call, "%s", who);
        }
        WH_TRY(wh_recv_pump(recv, tick, doing, error));
        WH_TRY(ask_absent(recv, error));
    }
    recv->moments[WH_AT_OFFERED] = wh_clock_now();
    wh_point("receiver has the offer");
    return WHERRY_OK;
}

static wherry_status check_offer(wh_recv *recv, const wh_recv_source *source, wherry_error *error) {
    WH_TRY(check_step(recv, source, error));
    return wh_agreement_check(recv->agreed, &recv->call, source, error);
}

/** Asks the sources, and finds out what will be received and where it goes. */
static wherry_status agree(wh_recv *recv, wherry_error *error) {
    wherry_error target = {.status = WHERRY_OK};
    uint64_t begin = wh_clock_now();
    target.status = wh_agreement_begin(recv->agreed, &recv->call, &target);
    recv->ready_ns = wh_clock_now() - begin;
    wherry_status status = ask(recv, error);
    if (target.status != WHERRY_OK) {
        /* The sources were asked anyway, so that they learn why they need not wait. */
        *error = target;
        return target.status;
    }
    WH_TRY(status);
    wh_agreement_plan_ahead(recv->agreed);
    WH_TRY(await_offers(recv, error));
    wh_recv_source *first = lowest_source(recv);
    WH_TRY(check_step(recv, first, error));
    WH_TRY(wh_agreement_make(recv->agreed, &recv->call, first, error));
    for (WH_EACH_SOURCE(one, recv)) {
        if (wh_source_is_usable(one)) {
            WH_TRY(check_offer(recv, one, error));
        }
    }
    return WHERRY_OK;
}

/* ---- moving chunks ---- */

static uint64_t chunk_bytes(const void *context, uint64_t chunk) {
    return wh_prepared_chunk_length(((const wh_recv *)context)->agreed->plan->prepared, chunk);
}

/** Requests what a source should send now. */
static wherry_status feed_source(wh_recv *recv, wh_recv_source *source, wherry_error *error) {
    wh_session *session = &source->pull.session;
    bool open = wh_session_is_open(session);
    wh_chunk_set chunks = {0};
    if (!wh_source_is_usable(source) || source->scheduled < 0 || (open && (session->queue.last || source->recalled))) {
        return WHERRY_OK;
    }
    bool ok = wh_schedule_next(recv->schedule, source->scheduled, wh_clock_now(), UINT64_MAX, &chunks);
    wherry_status status = ok ? WHERRY_OK : wh_fail_memory(error, "a request");
    /* A session without work ends, so that both sides see the end. It can be opened again. */
    bool last = wh_schedule_is_all_requested(recv->schedule) ||
                (open && !wh_schedule_pending(recv->schedule, source->scheduled));
    if (chunks.total || (open && last)) {
        WH_THEN(status, wh_source_request(source, &chunks, last, error));
    }
    if (status == WHERRY_OK && source->recalled) {
        wh_log(WHERRY_LOG_INFO, "other sources are asked first, because %s opens no lane", source->name);
        wh_schedule_recall(recv->schedule, source->scheduled);
        source->recalled = false;
    } else if (!wh_session_is_open(session)) {
        /* No session could be opened, so other sources may take these chunks. */
        for (uint64_t i = 0; i < chunks.total; i++) {
            wh_schedule_rejected(recv->schedule, source->scheduled, wh_chunk_set_at(&chunks, i));
        }
    }
    bool some = chunks.total > 0;
    wh_chunk_set_destroy(&chunks);
    if (status == WHERRY_OK && some && wh_session_has_ended(session)) {
        status = wh_source_look(source, error); /* A small request is done already. */
    }
    return status;
}

/** Does a step for each source whose lane runs in this thread. @return true if there was any. */
static bool step_all(wh_recv *recv) {
    bool stepped = false;
    for (WH_EACH_SOURCE(one, recv)) {
        if (wh_session_needs_step(&one->pull.session)) {
            wh_session_step(&one->pull.session, recv->source_count == 1 ? WH_CALL_STEP_MS : 1);
            stepped = true;
        }
    }
    return stepped;
}

/** Checks sources that have offered, and makes them take part. */
static wherry_status admit_sources(wh_recv *recv, wherry_error *error) {
    /* Rotated by rank, so that several receivers do not all use the same source of their host. */
    size_t turn = (size_t)recv->call.transport->group->rank;
    for (size_t k = 0; k < recv->source_count; k++) {
        wh_recv_source *one = recv->sources + (k + turn) % recv->source_count;
        if (wh_source_is_usable(one) && one->scheduled < 0) {
            WH_TRY(check_offer(recv, one, error));
            bool local = recv->source_count > 1 && wh_group_process(one->transport->group, one->rank) > 0;
            one->scheduled = wh_schedule_add(recv->schedule, NULL, local, wh_clock_now());
            assert(one->scheduled >= 0); /* Lost sources are forgotten before they come back. */
        }
    }
    return WHERRY_OK;
}

bool wh_recv_is_stalled(wh_recv *recv, const wh_recv_source *source) {
    wh_message message;
    for (size_t i = 0; i < recv->open_inboxes; i++) {
        while (wh_inbox_poll(recv->inboxes[i], &message)) {
            take(recv, recv->inboxes[i], &message);
        }
    }
    /*
     * A source that does not match ends the receive, so there is no point in waiting for this one.
     */
    return admit_sources(recv, NULL) != WHERRY_OK ||
           wh_schedule_is_stalled(recv->schedule, source->scheduled, wh_clock_now());
}

bool wh_recv_landed(const wh_recv *recv, const wh_recv_source *source, bool from_it, wh_chunk_set *set) {
    bool ok = true;
    for (uint64_t k = 0; k < recv->moving.total && ok; k++) {
        uint64_t chunk = wh_chunk_set_at(&recv->moving, k);
        bool landed = wh_schedule_source_of(recv->schedule, chunk) == source->scheduled;
        ok = landed != from_it || wh_chunk_set_add(set, chunk, chunk);
    }
    return ok;
}

/**
 * The chunks of a lost source count only if another source with a lease has the same digests.
 * Otherwise they are missing again.
 */
static wherry_status replace_chunks(wh_recv *recv, const wh_chunk_set *kept, wherry_error *error) {
    wh_recv_source *other = lowest_source(recv);
    bool confirms = other && recv->chunks->digests && !recv->on_device;
    wh_chunk_set left = {0};
    bool ok = wh_chunk_set_init(&left, kept->intervals, kept->count);
    wherry_status status = ok ? WHERRY_OK : wh_fail_memory(error, "the chunks of a lost source");
    if (confirms) {
        WH_THEN(status, wh_recv_remove_equal(recv, other, &left, false, NULL, error));
    }
    for (uint64_t k = 0; k < kept->total && status == WHERRY_OK; k++) {
        uint64_t chunk = wh_chunk_set_at(kept, k);
        if (confirms && !wh_chunk_set_has(&left, chunk)) {
            wh_schedule_confirm(recv->schedule, chunk, other->scheduled);
            other->answer = 0; /* That source must confirm these chunks, too. */
            atomic_store(recv->chunks->owners + wh_chunk_set_find(&recv->chunks->wanted, chunk),
                         wh_source_number(other));
        } else {
            wh_chunks_take_back(recv->chunks, chunk);
        }
    }
    wh_chunk_set_destroy(&left);
    return status;
}

/** Replaces lost sources that have no session any more. */
static wherry_status replace_lost(wh_recv *recv, wherry_error *error) {
    for (WH_EACH_SOURCE(gone, recv)) {
        if (gone->state != WH_SOURCE_GONE || gone->scheduled < 0 || wh_session_is_open(&gone->pull.session)) {
            continue;
        }
        wh_chunk_set kept = {0};
        bool ok = wh_recv_landed(recv, gone, true, &kept);
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

/**
 * Passes measured bytes to the schedule, and recalls a source if others would deliver its chunks
 * sooner.
 */
static void look_at_schedule(wh_recv *recv) {
    uint64_t now = wh_clock_now();
    int late = wh_schedule_late(recv->schedule, now);
    for (WH_EACH_SOURCE(one, recv)) {
        uint64_t bytes = wh_source_bytes(one);
        if (one->scheduled < 0) {
            continue;
        }
        if (bytes > one->reported) {
            wh_schedule_moved(recv->schedule, one->scheduled, bytes - one->reported, now);
            one->reported = bytes;
        } else if (one->scheduled == late && !one->recalled && wh_session_is_open(&one->pull.session) &&
                   !(one->pull.session.lane->traits & WH_LANE_GROUP)) {
            /* Not with WH_LANE_GROUP: some groups cannot stop an operation, so it is awaited. */
            wh_log(WHERRY_LOG_INFO, "other sources take over chunks that %s has not sent", one->name);
            /* The schedule is told when no worker can write to these chunks any more. */
            wh_source_recall(one);
        }
    }
}

/** Checks all sources once, and hands out requests. */
static wherry_status work(wh_recv *recv, wherry_error *error) {
    for (WH_EACH_SOURCE(one, recv)) {
        WH_TRY(wh_source_look(one, error));
    }
    WH_TRY(ask_absent(recv, error));
    WH_TRY(wh_recv_check_sources(recv, error));
    look_at_schedule(recv);
    WH_TRY(admit_sources(recv, error)); /* Admit sources before they replace others. */
    WH_TRY(replace_lost(recv, error));
    for (WH_EACH_SOURCE(one, recv)) {
        WH_TRY(feed_source(recv, one, error));
    }
    return WHERRY_OK;
}

/** True if all chunks of `moving` are complete and all sessions are closed. */
static bool has_moved_all(const wh_recv *recv) {
    bool all = wh_schedule_is_done(recv->schedule);
    for (WH_EACH_SOURCE(one, recv)) {
        /* A source that is BROKEN will soon be GONE, and then its chunks must be replaced. */
        all = all && !wh_session_is_open(&one->pull.session) && one->state != WH_SOURCE_BROKEN;
    }
    return all;
}

static wherry_status move_all(wh_recv *recv, wherry_error *error) {
    for (;;) {
        WH_TRY(work(recv, error));
        if (has_moved_all(recv)) {
            return WHERRY_OK;
        }
        bool busy = step_all(recv);
        wh_deadline tick = busy ? wh_deadline_in_ms(0) : wh_call_tick(&recv->call);
        tick = wh_deadline_earlier(tick, (wh_deadline){wh_schedule_wake_at(recv->schedule)});
        WH_TRY(wh_recv_pump(recv, tick, "receiving a checkpoint", error));
        wh_recv_progress(recv, false);
    }
}

/* ---- confirming ---- */

static bool has_chunks(const wh_recv *recv, const wh_recv_source *source) {
    return source->scheduled >= 0 && wh_schedule_landed_count(recv->schedule, source->scheduled) > 0;
}

/** Asks a source whether its state was unchanged. */
static wherry_status ask_to_confirm(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    source->answer = WH_CONFIRM; /* This stays until the answer comes. */
    source->since = wh_clock_now();
    return wh_source_tell(source, note, error);
}

/**
 * True if a source has not answered. A source that takes too long is given up if others can replace
 * it.
 */
static bool awaits_confirmation(wh_recv *recv) {
    bool awaits = false;
    for (WH_EACH_SOURCE(one, recv)) {
        bool pending = wh_source_is_usable(one) && one->answer == WH_CONFIRM;
        int64_t limit =
            count_sources(recv, WH_SOURCE_OFFERED) > 1 ? WH_RECV_CONFIRM_MS : recv->call.options.no_progress_ms;
        if (pending && wh_clock_now() - one->since > (uint64_t)limit * WH_NS_PER_MS) {
            wherry_error error;
            wh_fail(&error, WHERRY_TIMED_OUT, "%s: timed out: it has not confirmed its state for %lld ms", one->name,
                    (long long)limit);
            wh_source_fail(one, WHERRY_TIMED_OUT, &error, true);
            pending = false;
        }
        awaits = awaits || pending;
    }
    return awaits;
}

static wherry_status await_confirmations(wh_recv *recv, wherry_error *error) {
    while (awaits_confirmation(recv)) {
        WH_TRY(wh_recv_pump(recv, wh_call_tick(&recv->call), "waiting for the source to confirm", error));
        if (recv->source_count > 1) { /* A single source was told with DONE. */
            wh_recv_progress(recv, false);
        }
    }
    return WHERRY_OK;
}

/**
 * True if each source whose chunks are kept has confirmed them. A source may have been lost since
 * then.
 */
static bool is_confirmed(const wh_recv *recv) {
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->answer != WH_CONFIRMED && has_chunks(recv, one)) {
            return false;
        }
    }
    return true;
}

/**
 * With several sources, the chunks count when each source of some of them has confirmed them. If
 * one is lost before that, the others replace its chunks and confirm again.
 */
static wherry_status confirm_moved(wh_recv *recv, wherry_error *error) {
    while (recv->source_count > 1) {
        if (recv->call.options.verify == WHERRY_VERIFY_ALL) {
            WH_TRY(wh_recv_compare_sources(recv, error));
        }
        wh_point("receiver asks to confirm");
        for (WH_EACH_SOURCE(one, recv)) {
            if (wh_source_is_usable(one) && one->answer != WH_CONFIRMED && has_chunks(recv, one)) {
                wh_note note = {.type = WH_CONFIRM, .epoch = one->offer.epoch};
                WH_TRY(ask_to_confirm(one, &note, error));
            }
        }
        WH_TRY(await_confirmations(recv, error));
        if (is_confirmed(recv)) {
            return WHERRY_OK;
        }
        /* Chunks that come from now on must be confirmed too, even if they come at once. */
        WH_TRY(move_all(recv, error));
    }
    return WHERRY_OK;
}

bool wh_recv_select(const wh_recv *recv, bool device, wh_chunk_set *set) {
    uint64_t border = wh_space_second_part(&recv->agreed->plan->prepared->space);
    wh_chunk_set_destroy(set);
    return wh_chunk_set_clip(set, &recv->agreed->wanted, device ? border : 0, device ? UINT64_MAX : border);
}

static wherry_status begin_moving(wh_recv *recv, wherry_error *error) {
    for (WH_EACH_SOURCE(one, recv)) {
        one->next_lane = 0;
        one->damaged = 0;
        one->scheduled = -1;
        one->answer = 0; /* The confirmation of host memory does not cover device memory. */
    }
    wh_schedule_destroy(recv->schedule);
    recv->schedule = wh_schedule_create(&recv->moving, chunk_bytes, recv, LOCAL_SOURCES);
    return wh_check_memory(recv->schedule, error, "a schedule");
}

/** Moves all chunks: first those of host memory, then those of devices, over separate lanes. */
static wherry_status move_chunks(wh_recv *recv, wherry_error *error) {
    uint64_t runs = wh_plan_runs(recv->agreed->plan, recv->agreed->first->offer.small_pages);
    wh_lane_list_sort(&recv->call.lanes, recv->agreed->summary.bytes, runs);
    wh_stats_skip_forbidden(&recv->stats, recv->call.transport->lanes, recv->call.transport->lane_count,
                            &recv->call.lanes);
    bool ok = wh_chunks_init(recv->chunks, recv->agreed->plan, &recv->agreed->wanted, &recv->call.options, &recv->stop,
                             recv->call.deadline);
    WH_TRY_ALLOC(ok, error, "a receive");
    for (int device = 0; device < 2; device++) {
        recv->on_device = device;
        WH_TRY_ALLOC(wh_recv_select(recv, device, &recv->moving), error, "a receive");
        if (recv->moving.total) {
            WH_TRY(begin_moving(recv, error));
            WH_TRY(move_all(recv, error));
            WH_TRY(confirm_moved(recv, error));
        }
    }
    return WHERRY_OK;
}

/* ---- the end ---- */

/**
 * Tells all sources that the receive is done, and waits a moment for their answers. If this process
 * ended before they had read the message, their sends would fail.
 */
static void release_sources(wh_recv *recv) {
    wh_deadline soon = wh_deadline_in_ms(WH_RECV_CONFIRM_MS);
    bool waits = true;
    for (WH_EACH_SOURCE(one, recv)) {
        one->answer = 0;
        wh_source_end(one, WHERRY_OK, NULL);
    }
    while (waits && !wh_deadline_passed(soon)) {
        wherry_error ignored;
        waits = false;
        for (WH_EACH_SOURCE(one, recv)) {
            waits = waits || (wh_source_is_usable(one) && one->answer != WH_RELEASED);
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
    wh_transport_forget(source->transport, source->transport->group, source->rank, false, wh_source_lane(source));
    wh_note done = {.type = WH_DONE, .epoch = source->offer.epoch, .bytes = atomic_load(&recv->chunks->moved)};
    WH_TRY(ask_to_confirm(source, &done, error));
    wh_point("receiver said done");
    WH_TRY(await_confirmations(recv, error));
    WH_TRY(wh_recv_check_sources(recv, error));
    source->told = true;
    return WHERRY_OK;
}

static wherry_status receive(wh_recv *recv, wherry_error *error) {
    WH_TRY(agree(recv, error));
    WH_TRY(wh_call_await_stream(&recv->call, recv->agreed->plan->traits.cuda, error));
    if (recv->call.options.flags & WHERRY_RECV_COMPARE && recv->agreed->in_place) {
        WH_TRY(wh_recv_compare(recv, error));
    }
    if (recv->agreed->wanted.total) {
        WH_TRY(move_chunks(recv, error));
    }
    return finish(recv, error);
}

static wherry_status run(wh_recv *recv, wherry_value **state_p, wherry_error *error) {
    wherry_status status = receive(recv, error);
    if (status != WHERRY_OK) {
        wh_stop_request(&recv->stop);
    }
    for (WH_EACH_SOURCE(one, recv)) {
        wh_source_end(one, status, error);
    }
    if (status != WHERRY_OK) {
        wh_recv_report_failure(recv, error);
        error->status = status;
        wh_log(WHERRY_LOG_INFO, "receiving from %s%s failed: %s", recv->sources->name,
               recv->source_count > 1 ? " and others" : "", error->message);
    } else {
        wh_recv_progress(recv, true);
        status = state_p ? wherry_plan_take_state(recv->agreed->own_plan, state_p, error) : WHERRY_OK;
    }
    wh_recv_finish_stats(recv);
    if (status == WHERRY_OK) {
        wh_recv_log_success(recv);
    }
    return status;
}

/**
 * Frees the memory of the receive, unless somebody may still write to it. Then it is never freed:
 * the storages, also those of a target, and the buffers for chunks on their way to a device.
 */
static void free_or_leak(wh_recv *recv) {
    const wherry_plan *plan = recv->agreed->plan;
    if (!recv->held) {
        wh_chunks_destroy(recv->chunks);
        return;
    }
    wh_chunks_leak(recv->chunks);
    for (size_t i = 0; i < plan->kept_count; i++) {
        wherry_storage_ref(plan->kept[i]);
        wh_leak(plan->kept[i]);
    }
    wh_log(WHERRY_LOG_ERROR, "the memory of %zu storages is never freed, because %s may still write to it",
           plan->kept_count, recv->sources->name);
}

static wherry_status check_call(const wh_recv *recv, const wherry_source *sources, size_t count, wherry_error *error) {
    const wherry_transfer_options *options = &recv->call.options;
    for (size_t i = 0; i < count; i++) {
        if (!sources[i].transport) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the transport of source %zu is NULL", i);
        }
        WH_TRY(wh_group_check_rank(sources[i].transport->group, sources[i].rank, error));
        WH_TRY(wh_group_permit(sources[i].transport->group, error));
        for (size_t k = 0; k < i; k++) {
            if (sources[k].transport->group == sources[i].transport->group && sources[k].rank == sources[i].rank) {
                return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %d is named twice", (int)sources[i].rank);
            }
        }
    }
    if (count > 1 && options->step == WHERRY_STEP_ANY) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "receiving from several sources needs the step, so that all send the same state; set step");
    }
    return recv->agreed->wants_state || options->target || options->accept
               ? WHERRY_OK
               : wh_fail(error, WHERRY_INVALID_ARGUMENT, "state_p is NULL, and there is no target to receive into");
}

wherry_status wherry_checkpoint_recv_sources(const wherry_source *sources, size_t count,
                                             const wherry_transfer_options *options, wherry_value **state_p,
                                             wherry_error *error) {
    wherry_error own;
    error = error ? error : &own;
    if (!sources || !count || count > WHERRY_SOURCES_MAX || !sources->transport) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "there are no sources, or more than %d, or the transport of the first one is NULL",
                       WHERRY_SOURCES_MAX);
    }
    wh_agreement agreed = {.wants_state = state_p != NULL};
    wh_chunks chunks = {0};
    wh_recv recv = {.agreed = &agreed, .chunks = &chunks, .stop.event = -1};
    wherry_status status = wh_call_begin(&recv.call, sources->transport, options, error);
    const wherry_transfer_options *taken = &recv.call.options;
    if (taken->report_p) {
        *taken->report_p = NULL;
    }
    if (taken->stats) {
        *taken->stats = (wherry_stats){.struct_size = sizeof(*taken->stats)};
    }
    WH_THEN(status, check_call(&recv, sources, count, error));
    if (status != WHERRY_OK) {
        return status;
    }
    recv.sources = wh_alloc_zeroed(count, sizeof(*recv.sources));
    WH_TRY(wh_check_memory(recv.sources, error, "a receive"));
    recv.source_count = count;
    for (WH_EACH_SOURCE(one, &recv)) {
        const wherry_source *named = sources + (one - recv.sources);
        *one = (wh_recv_source){.recv = &recv,
                                .transport = named->transport,
                                .rank = named->rank,
                                .scheduled = -1,
                                .offer_message.channel = WH_NO_SOCKET};
        snprintf(one->name, sizeof(one->name), "rank %d", (int)named->rank);
        if (named->name) {
            snprintf(one->name, sizeof(one->name), "%s", named->name);
        }
    }
    status = run(&recv, state_p, error);
    wh_call_detach(&recv.call);
    for (size_t i = 0; i < count; i++) {
        wh_source_destroy(recv.sources + i);
    }
    for (size_t i = 0; i < recv.inbox_count; i++) {
        wh_inbox_close(recv.inboxes[i]);
    }
    if (recv.chunks->plan || recv.held) {
        free_or_leak(&recv);
    }
    wh_schedule_destroy(recv.schedule);
    wh_chunk_set_destroy(&recv.moving);
    wh_tensor_table_destroy(&recv.table);
    wh_agreement_destroy(recv.agreed);
    wh_free(recv.sources);
    return status;
}

wherry_status wherry_checkpoint_recv_from(wherry_transport *transport, const int32_t *ranks, size_t count,
                                          const wherry_transfer_options *options, wherry_value **state_p,
                                          wherry_error *error) {
    wherry_source sources[WHERRY_SOURCES_MAX];
    for (size_t i = 0; ranks && i < wh_min(count, WHERRY_SOURCES_MAX); i++) {
        sources[i] = (wherry_source){.transport = transport, .rank = ranks[i]};
    }
    return wherry_checkpoint_recv_sources(ranks ? sources : NULL, count, options, state_p, error);
}

wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank, const wherry_transfer_options *options,
                                     wherry_value **state_p, wherry_error *error) {
    return wherry_checkpoint_recv_from(transport, &rank, 1, options, state_p, error);
}
