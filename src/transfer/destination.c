#include "transfer/destination.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "transfer/destination_work.h"

#define MS UINT64_C(1000000)

/**
 * How long a broken lane waits for the receiver's own account of it; how often progress is shown.
 */
enum { EXPLAIN_MS = 500, SHOW_MS = 100 };

void wh_destination_init(wh_destination *destination, wh_transfer *transfer, const wh_source *source,
                         wh_waiting_send *waiting, int32_t rank) {
    *destination = (wh_destination){
        .transfer = transfer, .source = source, .waiting = waiting, .inbox = waiting->inbox, .rank = rank};
    destination->stop.event = -1;
    destination->outcome.rank = rank;
    destination->outcome.stats.struct_size = sizeof(wherry_stats);
}

void wh_destination_destroy(wh_destination *destination) {
    wh_destination_end_lane(destination);
    wh_stop_destroy(&destination->stop);
}

wherry_status wh_destination_tell(wh_destination *destination, const wh_note *note, wherry_error *error) {
    destination->outcome.stats.messages++;
    /* One that does not read must not keep the others waiting until the deadline of all. */
    wh_deadline patience = wh_deadline_in_ms(destination->transfer->options.no_progress_ms);
    return wh_transfer_tell(destination->transfer, destination->rank, destination->nonce, note,
                            wh_deadline_earlier(destination->transfer->deadline, patience), error);
}

/**
 * Sends it a message that it can do without: last words, also of a call that was cancelled, and
 * progress.
 */
static void say(wh_destination *destination, const wh_note *note, wh_deadline deadline) {
    destination->outcome.stats.messages++;
    wh_transport_tell(destination->transfer->transport, destination->rank, destination->nonce, note, deadline, NULL);
}

/**
 * Whether something ended because the call does: then the send revokes the lease in a moment, and
 * says why.
 */
static bool is_cancelled(wh_destination *destination, wherry_status status) {
    return status == WHERRY_CANCELLED && wh_transfer_cancelled(destination->transfer);
}

/** The figures, once it has ended. */
static void finish_stats(wh_destination *destination) {
    wherry_stats *stats = &destination->outcome.stats;
    uint64_t now = wh_clock_now();
    stats->offer_seconds = wh_seconds(destination->transfer->begin, destination->asked_at);
    stats->plan_seconds = wh_seconds(destination->asked_at, destination->plan_at);
    stats->data_seconds = wh_seconds(destination->plan_at, now);
    stats->total_seconds = wh_seconds(destination->transfer->begin, now);
    stats->bytes_wanted = destination->wanted;
    stats->bytes_moved = wh_max(atomic_load(&destination->moved), destination->peer_bytes);
    stats->tensors = destination->source->summary.tensors;
    if (destination->lane) {
        wh_stats_add_lane(stats, destination->lane->name);
    }
}

static void set_failed(wh_destination *destination, wherry_status status, const wherry_error *error) {
    destination->state = WH_DESTINATION_FAILED;
    destination->outcome.status = status;
    destination->outcome.error = *error;
    destination->outcome.error.status = status;
    destination->outcome.error.rank = destination->rank;
    finish_stats(destination);
    wh_log(WHERRY_LOG_WARN, "sending to rank %d failed: %s", (int)destination->rank, error->message);
    wh_destination_end_lane(destination);
    wh_transport_end_pairing(destination->transfer->transport, destination->waiting, destination->rank);
}

void wh_destination_fail(wh_destination *destination, wherry_status status, const wherry_error *error) {
    if (destination->nonce) {
        wh_note note = {.type = WH_ABORT};
        wh_note_reason(&note, status, error);
        say(destination, &note, wh_transfer_last_words());
    }
    set_failed(destination, status, error);
}

void wh_destination_revoke(wh_destination *destination, wherry_status status, const wherry_error *error,
                           wh_deadline deadline) {
    wherry_error about = *error;
    if (!destination->nonce) {
        wh_fail(&about, status, "rank %d has not asked for the checkpoint: %s", (int)destination->rank, error->message);
    } else if (wh_destination_holds_lease(destination)) {
        wh_stop_request(&destination->stop);
        wh_note note = {.type = WH_REVOKED, .epoch = destination->epoch};
        wh_note_reason(&note, status, error);
        say(destination, &note, deadline);
        wh_fail(&about, status, "rank %d was not done, at %llu of %llu bytes: %s", (int)destination->rank,
                (unsigned long long)wh_max(destination->peer_bytes, atomic_load(&destination->moved)),
                (unsigned long long)destination->wanted, error->message);
    }
    set_failed(destination, status, &about);
}

/* ---- WANT ---- */

static void offer_lanes(wh_destination *destination, wh_note *offer, wh_string texts[WH_OFFERED_LANES_MAX]) {
    const wh_lane_choice *lanes = &destination->transfer->lanes;
    for (size_t i = 0; i < lanes->count; i++) {
        wherry_error error;
        wh_string *text = texts + offer->lane_count;
        if (wh_lane_choice_passes(lanes, lanes->lanes[i], destination->source->devices != 0)) {
            continue;
        }
        wherry_status status = lanes->lanes[i]->offer(&destination->site, text, &error);
        if (status != WHERRY_OK || text->failed) {
            if (status == WHERRY_OK) {
                wh_fail_memory(&error, "the offer of a lane");
            }
            wh_log(WHERRY_LOG_INFO, "the lane %s is not offered to rank %d: %s", lanes->lanes[i]->name,
                   (int)destination->rank, error.message);
            wh_stats_skip_lane(&destination->outcome.stats, lanes->lanes[i]->name, &error);
            wh_free(text->bytes);
            *text = (wh_string){0};
            continue;
        }
        offer->lanes[offer->lane_count++] =
            (wh_offered_lane){{lanes->lanes[i]->name, strlen(lanes->lanes[i]->name)}, {text->bytes, text->size}};
        if (lanes->lanes[i]->traits & WH_LANE_ONE_SIDED) {
            offer->addresses = (wh_bytes){destination->source->addresses.bytes, destination->source->addresses.size};
        }
    }
}

/** Offers the state; a manifest that the receiver knows is left out. */
static wherry_status send_offer(wh_destination *destination, const wh_bytes *known, wherry_error *error) {
    const wh_source *source = destination->source;
    bool knows = known->size && memcmp(known->bytes, source->fingerprint.bytes, sizeof(source->fingerprint)) == 0;
    wh_string texts[WH_OFFERED_LANES_MAX] = {{0}};
    wh_note offer = {
        .type = WH_OFFER,
        .id = wh_inbox_tag(destination->inbox),
        .epoch = destination->epoch,
        .step = destination->transfer->options.step,
        .verify = (uint8_t)destination->transfer->options.verify,
        .small_pages = source->small_pages,
        .manifest = {source->manifest, knows ? 0 : source->manifest_size},
    };
    if (source->summary.bytes) {
        offer_lanes(destination, &offer, texts);
    }
    wherry_status status = wh_destination_tell(destination, &offer, error);
    for (size_t i = 0; i < WH_OFFERED_LANES_MAX; i++) {
        wh_free(texts[i].bytes);
    }
    return status;
}

static wherry_status check_step(const wh_destination *destination, const wh_note *want, wherry_error *error) {
    int64_t own = destination->transfer->options.step;
    if (own == WHERRY_STEP_ANY || want->step == WHERRY_STEP_ANY || own == want->step) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_MISMATCH, "the source sends step %lld and rank %d wants step %lld", (long long)own,
                   (int)destination->rank, (long long)want->step);
}

static void take_want(wh_destination *destination, const wh_message *message) {
    wherry_error error;
    wh_note want = {.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, &want, &error);
    if (want.type != WH_WANT) {
        return; /* withdrawn twice */
    }
    if (!wh_mailbox_is_present(destination->transfer->transport->group->mailbox, message->rank, message->incarnation)) {
        return; /* its next incarnation asks anew */
    }
    wh_point("source was asked");
    destination->nonce = want.nonce;
    destination->incarnation = message->incarnation;
    destination->epoch = wh_random_tag();
    destination->heard = destination->asked_at = wh_clock_now();
    destination->site = (wh_lane_site){
        .group = destination->transfer->transport->group,
        .peer = destination->rank,
        .tag = wh_inbox_tag(destination->inbox),
        .threads = destination->transfer->options.threads,
        .keep_ptracer = destination->transfer->options.flags & WHERRY_KEEP_PTRACER,
        .stop = &destination->stop,
        .deadline = destination->transfer->deadline,
        .no_progress_ms = (uint32_t)destination->transfer->options.no_progress_ms,
        .channels = destination->channels,
        .shared = &destination->source->shared,
        .devices = destination->source->devices,
        .ordered = destination->transfer->lanes.ordered,
    };
    if (status == WHERRY_OK) {
        status = check_step(destination, &want, &error);
    }
    if (status == WHERRY_OK) {
        status = wh_stop_init(&destination->stop, &error);
    }
    if (status == WHERRY_OK) {
        destination->state = WH_DESTINATION_OFFERED;
        status = send_offer(destination, &want.known, &error);
        wh_point("source offered");
    }
    if (status != WHERRY_OK && !is_cancelled(destination, status)) {
        wh_destination_fail(destination, status, &error);
    }
}

/* ---- what comes then ---- */

/** What this side has done so far, in bytes. */
static uint64_t work_done(const wh_destination *destination) {
    return atomic_load(&destination->moved) + atomic_load(&destination->digested);
}

static void show_progress(const wh_destination *destination, uint64_t now) {
    const wherry_transfer_options *options = &destination->transfer->options;
    if (options->progress) {
        uint64_t bytes = wh_max(destination->peer_bytes, atomic_load(&destination->moved));
        double seconds = wh_seconds(destination->plan_at, now);
        wherry_progress progress = {destination->rank,
                                    bytes,
                                    destination->wanted,
                                    seconds > 0 ? (double)bytes / seconds : 0,
                                    "",
                                    destination->lane ? destination->lane->name : ""};
        options->progress(options->progress_context, &progress);
    }
}

static void take_done(wh_destination *destination, const wh_note *note) {
    if (!wh_destination_holds_lease(destination) || note->epoch != destination->epoch) {
        return;
    }
    wherry_error error;
    destination->peer_bytes = note->bytes;
    wh_point("source was told done");
    wh_note released = {.type = WH_RELEASED, .epoch = destination->epoch};
    wherry_status status = wh_destination_tell(destination, &released, &error);
    if (status != WHERRY_OK) {
        if (!is_cancelled(destination, status)) {
            set_failed(destination, status, &error);
        }
        return;
    }
    destination->state = WH_DESTINATION_RELEASED;
    wh_point("source released");
    finish_stats(destination);
    wh_transport_end_pairing(destination->transfer->transport, destination->waiting, destination->rank);
    show_progress(destination, wh_clock_now());
    wh_destination_finish_work(destination);
    wh_destination_end_lane(destination);
    const wherry_stats *stats = &destination->outcome.stats;
    wh_log(WHERRY_LOG_INFO,
           "rank %d has the checkpoint: %llu bytes over %s%s%s%s; waited %.3f s, planned %.3f, data %.3f",
           (int)destination->rank, (unsigned long long)stats->bytes_moved, *stats->lane ? stats->lane : "no lane",
           *stats->detail ? " (" : "", stats->detail, *stats->detail ? ")" : "", stats->offer_seconds,
           stats->plan_seconds, stats->data_seconds);
}

static void take_abort(wh_destination *destination, const wh_note *note) {
    wherry_error error;
    wh_fail_note(&error, WHERRY_ABORTED, destination->rank, note, "gave up");
    set_failed(destination, WHERRY_ABORTED, &error);
}

/**
 * The receiver has gone before it had the offer. Where its time was up it may ask again; another
 * reason is the end.
 */
static wherry_status take_withdrawal(wh_destination *destination, const wh_note *note, wherry_error *error) {
    if (note->nonce != destination->nonce) {
        return WHERRY_OK;
    }
    if (destination->state != WH_DESTINATION_OFFERED) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d withdrew its question after it had the answer",
                       (int)destination->rank);
    }
    if (note->status != WHERRY_TIMED_OUT && note->status != WHERRY_CANCELLED) {
        take_abort(destination, note);
        return WHERRY_OK;
    }
    wh_destination_end_lane(destination); /* channels that it has opened all the same */
    wh_stop_destroy(&destination->stop);
    destination->state = WH_DESTINATION_WAITING;
    destination->nonce = 0;
    wh_transport_unpair(destination->transfer->transport, destination->waiting, destination->rank);
    return WHERRY_OK;
}

static void take_progress(wh_destination *destination, const wh_note *note) {
    if (note->bytes > destination->peer_bytes) {
        destination->peer_bytes = wh_min(note->bytes, INT64_MAX);
        destination->heard = wh_clock_now();
    }
}

static void take_note(wh_destination *destination, const wh_message *message) {
    wherry_error error;
    wh_note note;
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, &error);
    if (status == WHERRY_OK && wh_destination_holds_lease(destination)) {
        switch (note.type) {
        case WH_PLAN:
            status = wh_destination_plan(destination, &note, &error);
            break;
        case WH_RETRY:
            status = wh_destination_retry(destination, &note, &error);
            break;
        case WH_COMPARE:
            status = wh_destination_compare(destination, &note, &error);
            break;
        case WH_ASSIST:
            status = wh_destination_assist(destination, &note, &error);
            break;
        case WH_PROGRESS:
            take_progress(destination, &note);
            break;
        case WH_DONE:
            take_done(destination, &note);
            break;
        case WH_WITHDRAW:
            status = take_withdrawal(destination, &note, &error);
            break;
        case WH_ABORT:
            take_abort(destination, &note);
            break;
        default:
            status = wh_fail(&error, WHERRY_MALFORMED, "rank %d sent a message of type %d, which a receiver does not",
                             (int)destination->rank, (int)note.type);
        }
    }
    if (status != WHERRY_OK && !wh_destination_ended(destination) && !is_cancelled(destination, status)) {
        wh_destination_fail(destination, status, &error);
    }
}

static void take_loss(wh_destination *destination, const wh_message *message) {
    wherry_error error;
    if (destination->nonce && message->incarnation < destination->incarnation) {
        return;
    }
    wh_fail(&error, WHERRY_PEER_LOST, "rank %d was lost: %.*s", (int)destination->rank, (int)message->size,
            message->bytes ? (const char *)message->bytes : "");
    /* One that is back may have asked before this was heard, and is told. */
    if (wh_mailbox_is_lost(destination->transfer->transport->group->mailbox, destination->rank, NULL, 0)) {
        set_failed(destination, WHERRY_PEER_LOST, &error);
    } else {
        wh_destination_fail(destination, WHERRY_PEER_LOST, &error);
    }
}

static void take_channel(wh_destination *destination, wh_message *message) {
    if (!wh_destination_holds_lease(destination) || destination->site.channel_count == WH_CREW_MAX) {
        return;
    }
    destination->channels[destination->site.channel_count++] = message->channel;
    message->channel = -1;
    wherry_error error;
    wherry_status status = destination->accepting ? wh_destination_accept(destination, &error) : WHERRY_OK;
    if (status != WHERRY_OK && !is_cancelled(destination, status)) {
        wh_destination_fail(destination, status, &error);
    }
}

void wh_destination_take(wh_destination *destination, wh_message *message) {
    bool want = message->kind == WH_MESSAGE_BYTES && message->tag == destination->transfer->transport->tag &&
                destination->state == WH_DESTINATION_WAITING;
    if (wh_destination_ended(destination)) {
        return;
    }
    if (want) {
        take_want(destination, message);
    } else if (message->kind == WH_MESSAGE_LOST) {
        take_loss(destination, message);
    } else if (message->incarnation != destination->incarnation) {
        wh_log(WHERRY_LOG_DEBUG, "a message of another incarnation of rank %d is dropped", (int)destination->rank);
    } else if (message->kind == WH_MESSAGE_CHANNEL) {
        take_channel(destination, message);
    } else if (message->kind == WH_MESSAGE_BYTES) {
        take_note(destination, message);
    }
}

/* ---- looking after it ---- */

/** To the user, at most so often; to the receiver, so that silence means trouble. */
static void tell_progress(wh_destination *destination, uint64_t now) {
    if (destination->state == WH_DESTINATION_MOVING && now - destination->shown_at >= SHOW_MS * MS) {
        destination->shown_at = now;
        show_progress(destination, now);
    }
    wh_note note = {.type = WH_PROGRESS, .bytes = work_done(destination)};
    say(destination, &note, wh_deadline_in_ms(0));
}

static void check_progress(wh_destination *destination, uint64_t now) {
    uint64_t bytes = work_done(destination);
    int64_t limit = destination->transfer->options.no_progress_ms;
    if (bytes != destination->heard_bytes) {
        destination->heard_bytes = bytes;
        destination->heard = now;
    }
    if (now > destination->heard && now - destination->heard > (uint64_t)limit * MS) {
        wherry_error error;
        wh_fail(&error, WHERRY_TIMED_OUT, "timed out: no byte moved for %lld ms", (long long)limit);
        wh_destination_revoke(destination, WHERRY_TIMED_OUT, &error, wh_transfer_last_words());
    }
}

/** Its work failed: it is ended in a moment, since the receiver may tell better why. */
static void note_breakage(wh_destination *destination, const wherry_error *error, uint64_t now) {
    if (!destination->broken) {
        destination->broken = true;
        destination->breakage = *error;
        destination->broken_at = now;
    }
}

void wh_destination_step(wh_destination *destination, uint32_t wait_ms) {
    wherry_error error;
    if (wh_destination_push_some(destination, wait_ms, &error) != WHERRY_OK) {
        note_breakage(destination, &error, wh_clock_now());
    }
}

void wh_destination_tick(wh_destination *destination) {
    uint64_t now = wh_clock_now();
    if (!wh_destination_holds_lease(destination)) {
        return;
    }
    wherry_error error;
    if (wh_destination_work_ended(destination, &error) != WHERRY_OK) {
        note_breakage(destination, &error, now);
    }
    if (destination->broken && now - destination->broken_at > EXPLAIN_MS * MS) {
        wh_destination_fail(destination, destination->breakage.status, &destination->breakage);
        return;
    }
    if (destination->state == WH_DESTINATION_MOVING || wh_crew_exists(&destination->crew)) {
        tell_progress(destination, now);
    }
    check_progress(destination, now);
}
