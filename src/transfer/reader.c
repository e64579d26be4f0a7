#include "transfer/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/process.h"
#include "transfer/transfer_timing.h"

enum {
    QUESTIONS_MAX = 64, /**< Messages that this side answers, per conversation. */
    TIMES_MAX = 8,      /**< How often a receiver may request the same chunk. */
    DIGESTS_MAX = 4096, /**< Digests in one message. */
};

/** Indices of wh_reader.moments. */
enum { BEGUN, ASKED, PLANNED, SHOWN, BROKEN };

wh_reader *wh_reader_create(wh_call *call, const wh_offer *offer, wh_waiting_send *waiting, int32_t rank) {
    wh_reader *reader = wh_alloc(sizeof(*reader));
    if (!reader) {
        return NULL;
    }
    *reader = (wh_reader){.call = call, .offer = offer, .waiting = waiting, .rank = rank};
    reader->backlog = (wh_backlog){
        .group = call->transport->group,
        .rank = rank,
        .stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call},
        .deadline = call->deadline,
        .parts_ms = call->options.no_progress_ms,
    };
    reader->moments[BEGUN] = waiting->any ? wh_clock_now() : call->begin;
    reader->outcome.rank = rank;
    reader->outcome.stats.struct_size = sizeof(wherry_stats);
    return reader;
}

/* ---- messages to the receiver ---- */

/** Sends a message to the receiver, or keeps it until the receiver takes messages again. */
static wherry_status tell(wh_reader *reader, const wh_note *note, wherry_error *error) {
    wh_string message = {0};
    wh_note_encode(note, &message);
    reader->outcome.stats.messages++;
    return wh_backlog_send(&reader->backlog, &message, error);
}

/** Sends the digests of requests that are complete, unless the lane carries them. */
static wherry_status tell_digests(wh_reader *reader, wh_push *push, wherry_error *error) {
    if (!wh_session_is_open(&push->session) || !push->digests) {
        return WHERRY_OK;
    }
    wherry_status status = WHERRY_OK;
    for (; status == WHERRY_OK && wh_session_is_complete(&push->session, push->told); push->told++) {
        /* Only this thread appends requests, so it may read them without the lock. */
        const wh_chunk_set *request = &push->session.queue.requests[push->told].chunks;
        for (size_t i = 0; i < request->count && status == WHERRY_OK; i++) {
            const wherry_interval *interval = request->intervals + i;
            for (uint64_t done = 0; done < interval->count && status == WHERRY_OK; done += DIGESTS_MAX) {
                uint64_t first = interval->first + done;
                wh_bytes digests = {push->digests + first,
                                    wh_min(DIGESTS_MAX, interval->count - done) * WHERRY_DIGEST_BYTES};
                wh_note note = {.type = WH_DIGESTS, .strong = push->strong, .first = first, .digests = digests};
                status = tell(reader, &note, error);
            }
        }
    }
    return status;
}

/* ---- the end ---- */

static bool has_lane(const wh_reader *reader) {
    return reader->lane.state > WH_LANE_REFUSED;
}

static uint64_t work_done(const wh_reader *reader) {
    return wh_push_work(&reader->lane.push) + wh_push_work(&reader->compare);
}

/** Bytes that the receiver reports to have; with several sources, from all of them. */
static uint64_t peer_bytes(const wh_reader *reader) {
    return wh_min(reader->heard.peer_bytes, reader->outcome.stats.bytes_wanted);
}

/** The lane that a PLAN or an ASSIST names; NULL: this call may not use a lane of that name. */
static const wh_lane_ops *find_lane(const wh_reader *reader, const wh_note *note) {
    const wh_lane_ops *lane = wh_lane_list_find(&reader->call->lanes, note->lane.bytes, note->lane.size);
    return lane && wh_lane_check_encryption(lane, reader->call->transport->group, NULL) == WHERRY_OK ? lane : NULL;
}

static void finish_stats(wh_reader *reader) {
    wherry_stats *stats = &reader->outcome.stats;
    uint64_t now = wh_clock_now();
    stats->offer_seconds = wh_seconds(reader->moments[BEGUN], reader->moments[ASKED]);
    stats->plan_seconds = wh_seconds(reader->moments[ASKED], reader->moments[PLANNED]);
    stats->data_seconds = wh_seconds(reader->moments[PLANNED], now);
    stats->total_seconds = wh_seconds(reader->moments[BEGUN], now);
    stats->bytes_moved = wh_max(stats->bytes_moved + atomic_load(&reader->lane.push.session.moved), peer_bytes(reader));
    stats->tensors = reader->offer->summary.tensors;
    if (wh_session_is_open(&reader->lane.push.session)) {
        wh_stats_add_lane(stats, reader->lane.push.session.lane->name);
    }
    /* A receiver that reads by itself may be done before its last lane was opened here. */
    wh_note plan;
    if (reader->later_count && wh_note_decode(reader->later->bytes, reader->later->size, &plan, NULL) == WHERRY_OK) {
        const wh_lane_ops *lane = find_lane(reader, &plan);
        wh_stats_add_lane(stats, lane ? lane->name : "");
    }
}

static void close_channels(wh_reader *reader) {
    for (size_t i = 0; i < reader->lane.channel_count; i++) {
        wh_socket_close(&reader->lane.channels[i]);
    }
    reader->lane.channel_count = 0;
}

/** Closes the lane. Its workers have ended or were stopped, so this takes at most 100 ms. */
static void close_data(wh_reader *reader) {
    wherry_stats *stats = &reader->outcome.stats;
    wh_push *data = &reader->lane.push;
    size_t kept = 0;
    if (!wh_session_is_open(&data->session)) {
        return;
    }
    wh_workers_join(&data->session.workers, NULL);
    if (reader->lane.state != WH_LANE_REFUSED) {
        wh_stats_describe_lane(stats, data->session.lane, data->session.end);
        reader->lane.state = WH_LANE_CLOSED;
    }
    if (!wh_reader_is_decided(reader)) {
        stats->bytes_moved += atomic_load(&data->session.moved);
    }
    wh_push_close(data);
    wh_free(reader->lane.request.bytes);
    reader->lane.request = (wh_string){0};
    /* A receiver opens the channels of its next lane before it sends the plan for it. */
    for (size_t i = 0; i < reader->lane.channel_count; i++) {
        if (reader->lane.channels[i].fd >= 0) {
            reader->lane.channels[kept++] = reader->lane.channels[i];
        }
    }
    reader->lane.channel_count = kept;
}

/**
 * Decides the outcome. After a failure, messages that wait are of no use any more.
 * @param graceful  workers may end by themselves, for a moment.
 */
static void end(wh_reader *reader, wherry_status status, const wherry_error *error, bool graceful) {
    reader->outcome.status = status;
    if (status != WHERRY_OK) {
        reader->outcome.error = *error;
        reader->outcome.error.status = status;
        reader->outcome.error.rank = reader->rank;
        wh_log(WHERRY_LOG_INFO, "sending to rank %d failed: %s", (int)reader->rank, error->message);
    }
    finish_stats(reader);
    reader->state = WH_READER_CLOSING;
    /* Until this time, the receiver may also get the last message. */
    reader->lane.close_by = wh_deadline_in_ms(status == WHERRY_OK ? WH_READER_CLOSE_MS : WH_CALL_GRACE_MS);
    if (status != WHERRY_OK) {
        wh_backlog_clear(&reader->backlog);
        /* The receiver is told the reason, also after a cancel, which the stop may have noticed. */
        reader->backlog.stop = (wh_stop){.event = -1};
    }
    wh_session_stop(&reader->compare.session);
    if (!graceful) {
        wh_session_stop(&reader->lane.push.session);
    }
    wh_transport_unpair(reader->call->transport, reader->waiting, reader->rank, false);
}

/** Tells the receiver why this side has ended. */
static void tell_end(wh_reader *reader, wh_message_type type, wherry_status status, const wherry_error *error) {
    wh_note note = {.type = type, .epoch = reader->epoch};
    wherry_error ignored;
    wh_note_reason(&note, status, error);
    tell(reader, &note, &ignored);
}

/** Ends the reader, and tells the receiver why. */
static void fail(wh_reader *reader, wherry_status status, const wherry_error *error) {
    end(reader, status, error, false);
    if (reader->nonce) {
        tell_end(reader, WH_ABORT, status, error);
    }
}

/** Handles the result of a step of the conversation. */
static void settle(wh_reader *reader, wherry_status status, const wherry_error *error) {
    bool cancelled = status == WHERRY_CANCELLED && wh_call_is_cancelled(reader->call);
    if (status != WHERRY_OK && !cancelled && !wh_reader_is_decided(reader)) {
        fail(reader, status, error);
    }
}

void wh_reader_revoke(wh_reader *reader, wherry_status status, const wherry_error *error) {
    wherry_error about = *error;
    bool leased = wh_reader_holds_lease(reader);
    if (!reader->nonce) {
        wh_fail(&about, status, "rank %d has not called wherry_checkpoint_recv: %s", (int)reader->rank, error->message);
    } else if (leased) {
        wh_fail(&about, status, "rank %d was not done, at %" PRIu64 " of %" PRIu64 " bytes: %s", (int)reader->rank,
                wh_max(peer_bytes(reader), atomic_load(&reader->lane.push.session.moved)),
                reader->outcome.stats.bytes_wanted, error->message);
    }
    end(reader, status, &about, false);
    if (leased) {
        reader->state = WH_READER_REVOKED;
        tell_end(reader, WH_REVOKED, status, error);
    }
}

/** True if the state is still the one that was offered. If it is not, revokes the lease. */
static bool is_unchanged(wh_reader *reader) {
    const wherry_transfer_options *options = &reader->call->options;
    wherry_error error = {.message = "the state has changed"};
    wherry_status status = options->check ? options->check(options->check_context, &error) : WHERRY_OK;
    if (status != WHERRY_OK) {
        wh_reader_revoke(reader, status, &error);
    }
    return status == WHERRY_OK;
}

/** Forgets the waiting PLAN and its REQUESTs. */
static void drop_later(wh_reader *reader) {
    while (reader->later_count) {
        wh_message_clear(reader->later + --reader->later_count);
    }
}

void wh_reader_destroy(wh_reader *reader) {
    wh_session_stop(&reader->lane.push.session);
    wh_session_stop(&reader->compare.session);
    close_data(reader);
    wh_push_close(&reader->compare);
    close_channels(reader);
    drop_later(reader);
    wh_free(reader->times);
    wh_backlog_clear(&reader->backlog);
    wh_free(reader);
}

/* ---- WANT and OFFER ---- */

static wh_lane_site site_of(wh_reader *reader) {
    wh_lane_site site = wh_call_site(reader->call, reader->call->transport->group, reader->rank,
                                     wh_inbox_tag(reader->waiting->inbox), reader->offer->devices);
    site.channels = reader->lane.channels;
    site.channel_count = reader->lane.channel_count;
    site.shared = &reader->offer->shared;
    return site;
}

/** Sends the OFFER. Leaves out the manifest if the receiver has the same one. */
static wherry_status send_offer(wh_reader *reader, const wh_bytes *known, wherry_error *error) {
    const wh_offer *state = reader->offer;
    bool same = known->size && memcmp(known->bytes, state->fingerprint.bytes, sizeof(state->fingerprint)) == 0;
    wh_string lanes = {0};
    wh_note offer = {
        .type = WH_OFFER,
        .id = wh_inbox_tag(reader->waiting->inbox),
        .epoch = reader->epoch,
        .step = reader->call->options.step,
        .verify = (uint8_t)reader->call->options.verify,
        .small_pages = state->small_pages,
        .manifest = {state->manifest, same ? 0 : state->manifest_size},
    };
    if (state->summary.bytes) {
        wh_lane_site site = site_of(reader);
        wh_offer_lanes(state, &reader->call->lanes, &site, &offer, &lanes, &reader->outcome.stats);
    }
    wherry_status status = lanes.failed ? wh_fail_memory(error, "an offer") : tell(reader, &offer, error);
    wh_free(lanes.bytes);
    return status;
}

/** The receiver has finished with other sources. */
static void end_unneeded(wh_reader *reader) {
    wh_log(WHERRY_LOG_INFO, "rank %d has the checkpoint from other sources", (int)reader->rank);
    reader->outcome.not_needed = 1;
    wh_backlog_clear(&reader->backlog); /* The receiver does not read the OFFER any more. */
    end(reader, WHERRY_OK, NULL, true);
}

static void take_want(wh_reader *reader, const wh_message *message) {
    wherry_error error;
    wh_note want = {.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, &want, &error);
    if (!wh_mailbox_is_present(reader->call->transport->group->mailbox, message->rank, message->incarnation)) {
        wh_transport_unpair(reader->call->transport, reader->waiting, reader->rank, true);
        return; /* The next incarnation of the rank asks again. */
    }
    if (want.type == WH_WITHDRAW && want.status == WHERRY_OK) {
        end_unneeded(reader);
        return;
    }
    if (want.type != WH_WANT) {
        return; /* The receiver has withdrawn the question twice. */
    }
    wh_point("source was asked");
    reader->nonce = want.nonce;
    reader->backlog.tag = want.nonce;
    reader->incarnation = message->incarnation;
    reader->epoch = wh_random_tag();
    wh_liveness_note(&reader->heard);
    reader->moments[ASKED] = reader->heard.at;
    reader->moments[SHOWN] = reader->heard.at; /* A short transfer shows no progress. */
    int64_t own = reader->call->options.step;
    bool same = own == WHERRY_STEP_ANY || want.step == WHERRY_STEP_ANY || own == want.step;
    if (status == WHERRY_OK && !same) {
        status = wh_fail(&error, WHERRY_MISMATCH, "the source sends step %lld and rank %d wants step %lld",
                         (long long)own, (int)reader->rank, (long long)want.step);
    }
    if (status == WHERRY_OK) {
        reader->state = WH_READER_OFFERED;
        status = send_offer(reader, &want.known, &error);
        wh_point("source offered");
    }
    settle(reader, status, &error);
}

/* ---- lanes ---- */

/** The lane does not work: the receiver learns why, and tries the next one. */
static wherry_status refuse_lane(wh_reader *reader, wherry_status status, const wherry_error *reason,
                                 wherry_error *error) {
    const wh_lane_ops *lane = reader->lane.push.session.lane;
    wh_note note = {.type = WH_REFUSE_LANE, .session = reader->lane.push.session.number};
    wh_log(WHERRY_LOG_INFO, "the lane %s to rank %d does not work: %s", lane->name, (int)reader->rank, reason->message);
    wh_stats_skip_lane(&reader->outcome.stats, lane->name, reason);
    for (size_t i = 0; i < reader->lane.push.session.queue.count; i++) {
        const wh_chunk_set *request = &reader->lane.push.session.queue.requests[i].chunks;
        for (uint64_t k = 0; k < request->total; k++) {
            /* The next lane does not count as a retry. */
            reader->times[wh_chunk_set_at(request, k)]--;
        }
    }
    wh_session_stop(&reader->lane.push.session);
    reader->lane.state = WH_LANE_REFUSED;
    close_data(reader);
    close_channels(reader);
    wh_note_reason(&note, status, reason);
    return tell(reader, &note, error);
}

/** Accepts the lane, now or when the next channel has come, and starts to move chunks. */
static wherry_status accept(wh_reader *reader, wherry_error *error) {
    wh_session *session = &reader->lane.push.session;
    bool ready = true;
    wherry_error reason;
    wherry_status status = WHERRY_OK;
    session->site.channel_count = reader->lane.channel_count;
    if (session->lane->accept) {
        status = session->lane->accept(&session->site, reader->lane.request.bytes, reader->lane.request.size, &ready,
                                       &session->end, &reason);
    }
    if (status != WHERRY_OK) {
        return refuse_lane(reader, status, &reason, error);
    }
    if (!ready) {
        return WHERRY_OK;
    }
    uint32_t workers;
    reader->lane.state = WH_LANE_OPEN;
    status = wh_push_start(&reader->lane.push, &workers, error);
    reader->outcome.stats.workers = workers ? workers : reader->outcome.stats.workers;
    return status;
}

/** Counts a message that this side answers. */
static wherry_status count_question(wh_reader *reader, wherry_error *error) {
    return ++reader->questions <= QUESTIONS_MAX
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "rank %d has sent more than %d questions", (int)reader->rank,
                         QUESTIONS_MAX);
}

/** Appends the chunks of a PLAN or a REQUEST to the session. */
static wherry_status append_chunks(wh_reader *reader, const wh_note *note, wherry_error *error) {
    wherry_stats *stats = &reader->outcome.stats;
    const wh_request_queue *queue = &reader->lane.push.session.queue;
    size_t before = queue->count;
    if (!reader->times) {
        reader->times = wh_alloc_zeroed(wh_max(reader->offer->summary.chunks, 1), sizeof(*reader->times));
        WH_TRY(wh_check_memory(reader->times, error, "a plan"));
    }
    WH_TRY(wh_push_request(&reader->lane.push, note->intervals, note->last, error));
    const wh_chunk_set *added = queue->count > before ? &queue->requests[before].chunks : &(wh_chunk_set){0};
    for (uint64_t i = 0; i < added->total; i++) {
        uint64_t chunk = wh_chunk_set_at(added, i);
        if (reader->times[chunk] == TIMES_MAX) {
            return wh_fail(error, WHERRY_MALFORMED, "rank %d has requested chunk %" PRIu64 " more than %d times",
                           (int)reader->rank, chunk, TIMES_MAX);
        }
        stats->retries += reader->times[chunk]++ > 0;
    }
    wh_liveness_note(&reader->heard);
    return WHERRY_OK;
}

static wherry_status look_at_lane(wh_reader *reader, wherry_error *error);

static wherry_status open_lane(wh_reader *reader, const wh_note *plan, wherry_error *error) {
    const wh_lane_ops *lane = find_lane(reader, plan);
    wh_lane_site site = site_of(reader);
    if (!lane) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a plan for a lane that was not offered",
                       (int)reader->rank);
    }
    WH_TRY(count_question(reader, error));
    WH_TRY(
        wh_push_prepare(&reader->lane.push, reader->offer, lane, &site, reader->waiting->inbox, plan->verify, error));
    WH_TRY(append_chunks(reader, plan, error));
    if (!reader->moments[PLANNED]) {
        reader->heard.peer_bytes = 0; /* The receiver had compared these bytes. */
    }
    reader->lane.state = WH_LANE_ACCEPTING;
    reader->lane.push.session.number = plan->session;
    wh_point("source has the plan");
    reader->moments[PLANNED] = reader->moments[PLANNED] ? reader->moments[PLANNED] : reader->heard.at;
    reader->outcome.stats.checked |= plan->verify;
    wh_string_append(&reader->lane.request, plan->request.bytes, plan->request.size);
    return reader->lane.request.failed ? wh_fail_memory(error, "a plan") : accept(reader, error);
}

/** Keeps a message until the lane has ended. */
static void keep(wh_reader *reader, wh_message *message) {
    reader->later[reader->later_count++] = *message;
    *message = (wh_message){.channel = WH_NO_SOCKET};
}

/** The receiver has all chunks of the lane, so its workers end soon, or have ended. */
static void finish_lane(wh_reader *reader) {
    if (reader->lane.state == WH_LANE_OPEN || reader->lane.state == WH_LANE_BROKEN) {
        reader->lane.close_by = wh_deadline_in_ms(WH_READER_CLOSE_MS);
        reader->lane.state = WH_LANE_ENDING;
    }
}

/**
 * Opens a lane, or keeps the plan until the previous lane is closed. The workers of that lane are
 * about to end, because the receiver has all its chunks or wants no more of them.
 */
static wherry_status take_plan(wh_reader *reader, wh_message *message, const wh_note *plan, wherry_error *error) {
    wh_reader_lane *lane = &reader->lane;
    if (!has_lane(reader)) {
        return open_lane(reader, plan, error);
    }
    /* If the receiver reads by itself, this side does not know how far the receiver is. */
    bool finishing = lane->state != WH_LANE_ACCEPTING &&
                     (!wh_push_hands_out(&lane->push) || wh_session_is_finishing(&lane->push.session));
    if (reader->later_count || (lane->state != WH_LANE_ENDING && !finishing)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a plan before it had the chunks of the last one",
                       (int)reader->rank);
    }
    finish_lane(reader);
    keep(reader, message);
    return look_at_lane(reader, error);
}

/** The receiver does not need the lane any more. */
static void end_lane(wh_reader *reader) {
    wh_session_stop(&reader->lane.push.session);
    reader->lane.state = WH_LANE_ENDING;
    reader->lane.close_by = wh_deadline_in_ms(0);
}

/** The receiver does not want the rest of the chunks. */
static void take_close(wh_reader *reader) {
    if (reader->later_count) {
        drop_later(reader); /* The message is about the lane that has not been opened. */
    } else if (has_lane(reader)) {
        end_lane(reader);
    }
}

/** Appends a request to the lane, even if some of the lane's channels have not arrived yet. */
static wherry_status take_request(wh_reader *reader, wh_message *message, const wh_note *note, wherry_error *error) {
    if (reader->later_count && reader->later_count < WH_LATER_MAX) {
        keep(reader, message);
        return WHERRY_OK;
    }
    if (reader->lane.state == WH_LANE_REFUSED) {
        return WHERRY_OK; /* The request was sent before the receiver learned of the refusal. */
    }
    if (!has_lane(reader) || reader->lane.state == WH_LANE_ENDING) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d requests chunks, but no lane is open", (int)reader->rank);
    }
    return append_chunks(reader, note, error);
}

static wherry_status take_compare(wh_reader *reader, const wh_note *note, wherry_error *error) {
    uint32_t workers;
    wh_lane_site site = site_of(reader);
    if (wh_session_is_open(&reader->compare.session) && wh_push_has_told(&reader->compare)) {
        wh_push_close(&reader->compare); /* The workers of the lane are about to end. */
    }
    if (wh_session_is_open(&reader->compare.session)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests before it has those of its last question",
                       (int)reader->rank);
    }
    WH_TRY(count_question(reader, error));
    WH_TRY(
        wh_push_prepare(&reader->compare, reader->offer, &wh_lane_digests, &site, reader->waiting->inbox, true, error));
    reader->compare.strong = note->strong;
    WH_TRY(wh_push_request(&reader->compare, note->intervals, true, error));
    if (reader->compare.on_device) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests of device memory", (int)reader->rank);
    }
    wh_liveness_note(&reader->heard);
    wh_point("source compares");
    return wh_push_start(&reader->compare, &workers, error);
}

static wherry_status take_assist(wh_reader *reader, const wh_note *note, wherry_error *error) {
    const wh_lane_ops *lane = find_lane(reader, note);
    wherry_error reason = {.status = WHERRY_OK};
    wh_lane_site site = site_of(reader);
    if (!lane || !lane->assist) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for help with a lane that gives none", (int)reader->rank);
    }
    WH_TRY(count_question(reader, error));
    wherry_status status = lane->assist(&site, note->request.bytes, note->request.size, &reason);
    wh_note answer = {.type = WH_ASSISTED};
    wh_note_reason(&answer, status, &reason);
    return tell(reader, &answer, error);
}

static void take_channel(wh_reader *reader, wh_message *message) {
    if (!wh_reader_holds_lease(reader) || reader->lane.channel_count == WH_WORKERS_MAX) {
        return;
    }
    reader->lane.channels[reader->lane.channel_count++] = message->channel;
    message->channel = WH_NO_SOCKET;
    wherry_error error;
    wherry_status status = reader->lane.state == WH_LANE_ACCEPTING ? accept(reader, &error) : WHERRY_OK;
    settle(reader, status, &error);
}

/* ---- other messages ---- */

static void show_progress(wh_reader *reader, uint64_t now) {
    const wherry_transfer_options *options = &reader->call->options;
    if (options->progress) {
        const wherry_stats *stats = &reader->outcome.stats;
        uint64_t moved = stats->bytes_moved + atomic_load(&reader->lane.push.session.moved);
        uint64_t bytes = wh_max(peer_bytes(reader), wh_reader_is_decided(reader) ? stats->bytes_moved : moved);
        double seconds = wh_seconds(reader->moments[PLANNED], now);
        const wh_lane_ops *lane = reader->lane.push.session.lane;
        wherry_progress progress = {
            reader->rank,          bytes, stats->bytes_wanted, seconds > 0 ? (double)bytes / seconds : 0, "",
            lane ? lane->name : ""};
        options->progress(options->progress_context, &progress);
    }
}

static wherry_status take_done(wh_reader *reader, const wh_note *note, wherry_error *error) {
    if (note->epoch != reader->epoch) {
        return WHERRY_OK;
    }
    reader->heard.peer_bytes = note->bytes;
    wh_point("source was told done");
    if (!is_unchanged(reader)) {
        return WHERRY_OK;
    }
    reader->outcome.not_needed = !reader->moments[PLANNED] && reader->offer->summary.bytes && !reader->questions;
    wh_note released = {.type = WH_RELEASED, .epoch = reader->epoch};
    wherry_status status = tell(reader, &released, error);
    if (status != WHERRY_PEER_LOST || !note->last) { /* one with several sources may have left */
        WH_TRY(status);
    }
    wh_point("source released");
    end(reader, WHERRY_OK, NULL,
        wh_session_is_open(&reader->lane.push.session) && wh_session_is_finishing(&reader->lane.push.session));
    show_progress(reader, wh_clock_now());
    const wherry_stats *stats = &reader->outcome.stats;
    wh_log(WHERRY_LOG_INFO,
           "rank %d has the checkpoint: %" PRIu64 " bytes over %s; waited %.3f s, planned %.3f, data %.3f",
           (int)reader->rank, stats->bytes_moved, *stats->lane ? stats->lane : "no lane", stats->offer_seconds,
           stats->plan_seconds, stats->data_seconds);
    return WHERRY_OK;
}

static wherry_status take_confirm(wh_reader *reader, const wh_note *note, wherry_error *error) {
    wh_note answer = {.type = WH_CONFIRMED, .epoch = reader->epoch};
    wh_liveness_note(&reader->heard);
    if (note->epoch != reader->epoch || !is_unchanged(reader)) {
        return WHERRY_OK;
    }
    WH_TRY(count_question(reader, error));
    finish_lane(reader); /* It may break, or have broken, when the receiver closes its end. */
    return tell(reader, &answer, error);
}

static void take_abort(wh_reader *reader, const wh_note *note) {
    wherry_error error;
    char name[16];
    snprintf(name, sizeof(name), "rank %d", (int)reader->rank);
    wh_fail_note(&error, WHERRY_ABORTED, reader->rank, name, note, "gave up");
    error.reason = (uint32_t)-note->status;
    end(reader, WHERRY_ABORTED, &error, false);
}

/** The receiver gave up before it had the offer. After a timeout or a cancel it may ask again. */
static wherry_status take_withdrawal(wh_reader *reader, const wh_note *note, wherry_error *error) {
    if (note->nonce != reader->nonce) {
        return WHERRY_OK;
    }
    if (has_lane(reader)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d withdrew its question after it had the answer",
                       (int)reader->rank);
    }
    if (note->status == WHERRY_OK) {
        end_unneeded(reader);
        return WHERRY_OK;
    }
    if (note->status != WHERRY_TIMED_OUT && note->status != WHERRY_CANCELLED) {
        take_abort(reader, note);
        return WHERRY_OK;
    }
    close_channels(reader);
    wh_backlog_clear(&reader->backlog); /* This message is for the question that was withdrawn. */
    wh_push_close(&reader->compare);
    reader->state = WH_READER_WAITING;
    reader->nonce = 0;
    wh_transport_unpair(reader->call->transport, reader->waiting, reader->rank, true);
    return WHERRY_OK;
}

static void take_progress(wh_reader *reader, const wh_note *note) {
    if (note->bytes != reader->heard.peer_bytes) {
        /* it gets on: perhaps it does not need a lane that broke any more */
        reader->moments[BROKEN] = wh_clock_now();
    }
    wh_liveness_report(&reader->heard, note->bytes);
    /* A receiver that needs nothing more from here repeats its number: it is alive. */
    if (reader->lane.state != WH_LANE_ACCEPTING && wh_session_has_ended(&reader->lane.push.session)) {
        wh_liveness_note(&reader->heard);
    }
}

static wherry_status take_note(wh_reader *reader, wh_message *message, wherry_error *error) {
    wh_note note;
    WH_TRY(wh_note_decode(message->bytes, message->size, &note, error));
    if (note.intervals.size / 16 > reader->offer->summary.chunks) {
        /* Check this before the message is kept. It limits the memory that a receiver can use. */
        return wh_fail(error, WHERRY_OUT_OF_BOUNDS, "rank %d sent more intervals than there are chunks",
                       (int)reader->rank);
    }
    if (note.type == WH_PLAN || note.type == WH_REQUEST) {
        wherry_stats *stats = &reader->outcome.stats;
        stats->bytes_wanted += wh_min(note.bytes, INT64_MAX - stats->bytes_wanted);
        stats->chunks += wh_intervals_total(note.intervals);
    }
    switch (note.type) {
    case WH_PLAN:
        return take_plan(reader, message, &note, error);
    case WH_REQUEST:
        return take_request(reader, message, &note, error);
    case WH_CLOSE:
        take_close(reader);
        return WHERRY_OK;
    case WH_COMPARE:
        return take_compare(reader, &note, error);
    case WH_ASSIST:
        return take_assist(reader, &note, error);
    case WH_PROGRESS:
        take_progress(reader, &note);
        return WHERRY_OK;
    case WH_CONFIRM:
        return take_confirm(reader, &note, error);
    case WH_DONE:
        return take_done(reader, &note, error);
    case WH_WITHDRAW:
        return take_withdrawal(reader, &note, error);
    case WH_ABORT:
        take_abort(reader, &note);
        return WHERRY_OK;
    default:
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of type %d, which only a source sends",
                       (int)reader->rank, (int)note.type);
    }
}

static void take_loss(wh_reader *reader, const wh_message *message) {
    wherry_error error;
    if (reader->nonce && message->incarnation < reader->incarnation) {
        return;
    }
    wh_fail(&error, WHERRY_PEER_LOST, "rank %d was lost: %.*s", (int)reader->rank, (int)message->size,
            message->bytes ? (const char *)message->bytes : "");
    /* If it is back, it may have asked before this side heard of the loss: it is told. */
    if (wh_mailbox_is_lost(reader->call->transport->group->mailbox, reader->rank, NULL, 0)) {
        end(reader, WHERRY_PEER_LOST, &error, false);
    } else {
        fail(reader, WHERRY_PEER_LOST, &error);
    }
}

/** After REVOKED: the receiver answers with ABORT, or it is lost. */
static void take_acknowledgement(wh_reader *reader, const wh_message *message) {
    wh_note note;
    bool lost = message->kind == WH_MESSAGE_LOST;
    bool aborts = message->kind == WH_MESSAGE_BYTES &&
                  wh_note_decode(message->bytes, message->size, &note, NULL) == WHERRY_OK && note.type == WH_ABORT;
    if (reader->state == WH_READER_REVOKED && (lost || aborts)) {
        reader->state = WH_READER_CLOSING;
    }
}

void wh_reader_take(wh_reader *reader, wh_message *message) {
    bool want = message->kind == WH_MESSAGE_BYTES && message->tag == reader->call->transport->tag &&
                reader->state == WH_READER_WAITING;
    if (wh_reader_is_decided(reader)) {
        take_acknowledgement(reader, message);
    } else if (want) {
        take_want(reader, message);
    } else if (message->kind == WH_MESSAGE_LOST) {
        take_loss(reader, message);
    } else if (message->incarnation != reader->incarnation) {
        wh_log(WHERRY_LOG_DEBUG, "a message of another incarnation of rank %d is dropped", (int)reader->rank);
    } else if (message->kind == WH_MESSAGE_CHANNEL) {
        take_channel(reader, message);
    } else if (message->kind == WH_MESSAGE_BYTES && wh_reader_holds_lease(reader)) {
        wherry_error error;
        wherry_status status = take_note(reader, message, &error);
        settle(reader, status, &error);
    }
}

/* ---- looking after it ---- */

static wherry_status look_at_compare(wh_reader *reader, wherry_error *error) {
    wh_push *compare = &reader->compare;
    if (!wh_session_is_open(&compare->session)) {
        return WHERRY_OK;
    }
    WH_TRY(tell_digests(reader, compare, error));
    if (!wh_session_has_ended(&compare->session)) {
        return WHERRY_OK;
    }
    wherry_status status = wh_workers_join(&compare->session.workers, error);
    if (wh_push_has_told(compare)) {
        wh_push_close(compare);
    }
    return status;
}

/**
 * Takes in what the workers of the lane have done. If one failed, the reader fails a moment later,
 * because the receiver may tell a better reason.
 */
static wherry_status look_at_open_lane(wh_reader *reader, wherry_error *error) {
    wh_session *session = &reader->lane.push.session;
    wherry_error reason;
    wherry_status status = wh_session_has_ended(session) ? wh_workers_join(&session->workers, &reason) : WHERRY_OK;
    if (status == WHERRY_REFUSED) {
        return refuse_lane(reader, status, &reason, error);
    }
    if (status == WHERRY_OK) {
        return tell_digests(reader, &reader->lane.push, error);
    }
    if (status != WHERRY_CANCELLED || !wh_call_is_cancelled(reader->call)) {
        reader->lane.state = WH_LANE_BROKEN;
        reader->lane.broken = reason;
        reader->lane.broken.status = status;
        reader->moments[BROKEN] = wh_clock_now();
    }
    return WHERRY_OK;
}

/** Closes a lane once its workers have ended. Then handles the messages that came since. */
static wherry_status look_at_ending_lane(wh_reader *reader, wherry_error *error) {
    wh_push *data = &reader->lane.push;
    WH_TRY(tell_digests(reader, data, error));
    if (wh_deadline_passed(reader->lane.close_by)) {
        wh_session_stop(&data->session);
    }
    if (!wh_session_has_ended(&data->session)) {
        return WHERRY_OK;
    }
    wh_stats_add_lane(&reader->outcome.stats, data->session.lane->name);
    close_data(reader);
    wherry_status status = WHERRY_OK;
    size_t count = reader->later_count;
    reader->later_count = 0;
    for (size_t i = 0; i < count; i++) {
        wh_note note;
        WH_THEN(status, wh_note_decode(reader->later[i].bytes, reader->later[i].size, &note, error));
        WH_THEN(status, i ? take_request(reader, reader->later + i, &note, error) : open_lane(reader, &note, error));
        wh_message_clear(reader->later + i);
    }
    return status;
}

static wherry_status look_at_lane(wh_reader *reader, wherry_error *error) {
    return reader->lane.state == WH_LANE_OPEN     ? look_at_open_lane(reader, error)
           : reader->lane.state == WH_LANE_ENDING ? look_at_ending_lane(reader, error)
                                                  : WHERRY_OK;
}

/** The reader has ended when its workers have, and the receiver has its last message. */
static void look_at_closing(wh_reader *reader) {
    wherry_error ignored;
    bool late = wh_deadline_passed(reader->lane.close_by);
    bool over = late || wh_call_is_cancelled(reader->call) || wh_deadline_passed(reader->call->deadline);
    if (over) {
        wh_session_stop(&reader->lane.push.session);
    }
    wh_backlog_flush(&reader->backlog, &ignored);
    if (reader->state == WH_READER_REVOKED && !late) {
        return;
    }
    if (wh_session_has_ended(&reader->lane.push.session) && wh_session_has_ended(&reader->compare.session) &&
        (!reader->backlog.count || over)) {
        close_data(reader);
        wh_push_close(&reader->compare);
        close_channels(reader);
        reader->state = WH_READER_ENDED;
    }
}

/** Shows progress to the user, and reports it to the receiver, so that silence means trouble. */
static void tell_progress(wh_reader *reader) {
    uint64_t now = wh_clock_now();
    bool moving = has_lane(reader);
    if (now - reader->moments[SHOWN] < WH_SHOW_MS * WH_NS_PER_MS) {
        return;
    }
    reader->moments[SHOWN] = now;
    if (moving) {
        show_progress(reader, now);
    }
    if ((moving || wh_session_is_open(&reader->compare.session)) && !reader->backlog.count) {
        wh_note note = {.type = WH_PROGRESS, .bytes = work_done(reader)};
        reader->outcome.stats.messages++;
        wh_note_try_send(&note, reader->call->transport->group, reader->rank, reader->nonce, wh_deadline_in_ms(0));
    }
}

/**
 * Revokes the lease if nothing moves, or if the call has no time limit and this transfer takes too
 * long.
 */
static void check_time(wh_reader *reader) {
    const wherry_transfer_options *options = &reader->call->options;
    uint64_t taken = wh_clock_now() - reader->moments[BEGUN];
    bool late =
        reader->waiting->any && options->timeout_ms >= 0 && taken / WH_NS_PER_MS >= (uint64_t)options->timeout_ms;
    if (late || wh_liveness_is_over(&reader->heard, work_done(reader), options->no_progress_ms)) {
        wherry_error error;
        wh_fail(&error, WHERRY_TIMED_OUT,
                late ? "timed out: it took more than %lld ms" : "timed out: no byte moved for %lld ms",
                (long long)(late ? options->timeout_ms : options->no_progress_ms));
        wh_reader_revoke(reader, WHERRY_TIMED_OUT, &error);
    }
}

void wh_reader_tick(wh_reader *reader) {
    wherry_error error;
    if (reader->state == WH_READER_REVOKED || reader->state == WH_READER_CLOSING) {
        look_at_closing(reader);
    }
    if (!wh_reader_holds_lease(reader)) {
        return;
    }
    size_t waiting = reader->backlog.count;
    wherry_status status = wh_backlog_flush(&reader->backlog, &error);
    if (reader->backlog.count < waiting) {
        wh_liveness_note(&reader->heard);
    }
    WH_THEN(status, look_at_lane(reader, &error));
    WH_THEN(status, look_at_compare(reader, &error));
    settle(reader, status, &error);
    if (wh_reader_holds_lease(reader) && reader->lane.state == WH_LANE_BROKEN &&
        wh_clock_now() - reader->moments[BROKEN] > WH_READER_EXPLAIN_MS * WH_NS_PER_MS && is_unchanged(reader)) {
        fail(reader, reader->lane.broken.status, &reader->lane.broken);
    }
    if (wh_reader_holds_lease(reader)) {
        tell_progress(reader);
        check_time(reader);
    }
}
