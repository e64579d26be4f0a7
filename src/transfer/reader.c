#include "transfer/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"

#define MS UINT64_C(1000000)

enum {
    EXPLAIN_MS = 500, /**< How long a broken lane waits for the receiver's own reason. */
    SHOW_MS = 100,    /**< How often progress is shown to the user. */
    /**
     * How long workers may take to end after the receiver has everything. What they do then is
     * short, such as waiting for the last acknowledgement. Stopping them could break the group or a
     * connection that the lane keeps for the next transfer.
     */
    CLOSE_MS = 5000,
    QUESTIONS_MAX = 64, /**< Messages that this side answers, per conversation. */
    TIMES_MAX = 8,      /**< How often a receiver may request a chunk. */
    OUTBOX_MAX = 64,    /**< Messages that wait until the receiver reads. */
};

/** Indices of wh_reader.moments. */
enum { ASKED, PLANNED, SHOWN, BROKEN };

void wh_reader_init(wh_reader *reader, wh_call *call, const wh_offer *offer, wh_waiting_send *waiting, int32_t rank) {
    *reader = (wh_reader){.call = call, .offer = offer, .waiting = waiting, .rank = rank, .plan = {.channel = -1}};
    reader->outcome.rank = rank;
    reader->outcome.stats.struct_size = sizeof(wherry_stats);
}

/* ---- messages to the receiver ---- */

/** Sends a message to the receiver, or keeps it until the receiver takes messages again. */
static wherry_status tell(wh_reader *reader, const wh_note *note, wherry_error *error) {
    reader->outcome.stats.messages++;
    return wh_backlog_tell(&reader->backlog, note, reader->call, reader->rank, reader->nonce, error);
}

/** Sends a message that the receiver can do without: progress, or why this side ends. */
static void say(wh_reader *reader, const wh_note *note, wh_deadline deadline) {
    reader->outcome.stats.messages++;
    wh_note_try_send(note, reader->call->transport->group, reader->rank, reader->nonce, deadline);
}

static wherry_status tell_digests(void *context, uint64_t first, const wherry_digest *digests, size_t count,
                                  wherry_error *error) {
    wh_note note = {.type = WH_DIGESTS, .first = first, .digests = {digests, count * WHERRY_DIGEST_BYTES}};
    return tell(context, &note, error);
}

/* ---- the end ---- */

static uint64_t work_done(const wh_reader *reader) {
    return wh_push_work(&reader->data) + wh_push_work(&reader->compare);
}

/** What the receiver says it has; with several sources, of all of them. */
static uint64_t peer_bytes(const wh_reader *reader) {
    return wh_min(reader->heard.peer_bytes, reader->outcome.stats.bytes_wanted);
}

static void finish_stats(wh_reader *reader) {
    wherry_stats *stats = &reader->outcome.stats;
    uint64_t now = wh_clock_now();
    stats->offer_seconds = wh_seconds(reader->call->begin, reader->moments[ASKED]);
    stats->plan_seconds = wh_seconds(reader->moments[ASKED], reader->moments[PLANNED]);
    stats->data_seconds = wh_seconds(reader->moments[PLANNED], now);
    stats->total_seconds = wh_seconds(reader->call->begin, now);
    stats->bytes_moved = wh_max(stats->bytes_moved + atomic_load(&reader->data.session.moved), peer_bytes(reader));
    stats->tensors = reader->offer->summary.tensors;
    if (wh_session_is_open(&reader->data.session)) {
        wh_stats_add_lane(stats, reader->data.session.lane->name);
    }
}

static void close_channels(wh_reader *reader) {
    for (size_t i = 0; i < reader->channel_count; i++) {
        if (reader->channels[i] >= 0) {
            close(reader->channels[i]);
        }
    }
    reader->channel_count = 0;
}

/** Closes the lane. Its workers have ended or were stopped, so this takes at most 100 ms. */
static void close_data(wh_reader *reader) {
    wherry_stats *stats = &reader->outcome.stats;
    wh_push *data = &reader->data;
    size_t kept = 0;
    if (!wh_session_is_open(&data->session)) {
        return;
    }
    wh_workers_join(&data->session.workers, NULL);
    wh_stats_describe_lane(stats, data->session.lane, data->session.end);
    if (!wh_reader_is_decided(reader)) {
        stats->bytes_moved += atomic_load(&data->session.moved);
    }
    wh_push_close(data);
    wh_free(reader->request.bytes);
    reader->request = (wh_string){0};
    reader->accepting = reader->lane_ends = false;
    if (!wh_reader_is_decided(reader)) {
        reader->moments[BROKEN] = 0; /* the next lane may work */
    }
    /* A receiver opens the channels of its next lane before it sends the plan for it. */
    for (size_t i = 0; i < reader->channel_count; i++) {
        if (reader->channels[i] >= 0) {
            reader->channels[kept++] = reader->channels[i];
        }
    }
    reader->channel_count = kept;
}

/** Decides the outcome. @param graceful  workers may end by themselves, for a moment. */
static void end(wh_reader *reader, wherry_status status, const wherry_error *error, bool graceful) {
    reader->outcome.status = status;
    if (status != WHERRY_OK) {
        reader->outcome.error = *error;
        reader->outcome.error.status = status;
        reader->outcome.error.rank = reader->rank;
        wh_log(WHERRY_LOG_WARN, "sending to rank %d failed: %s", (int)reader->rank, error->message);
    }
    finish_stats(reader);
    reader->state = WH_READER_CLOSING;
    /* After a success, the receiver must also get the last message. */
    reader->close_by = wh_deadline_in_ms(status == WHERRY_OK ? CLOSE_MS : 0);
    wh_session_stop(&reader->compare.session);
    if (!graceful) {
        wh_session_stop(&reader->data.session);
    }
    wh_transport_end_pairing(reader->call->transport, reader->waiting, reader->rank);
}

static void set_failed(wh_reader *reader, wherry_status status, const wherry_error *error) {
    end(reader, status, error, false);
}

/** Ends the reader, and tells the receiver why. */
static void fail(wh_reader *reader, wherry_status status, const wherry_error *error) {
    if (reader->nonce) {
        wh_note note = {.type = WH_ABORT};
        wh_note_reason(&note, status, error);
        say(reader, &note, wh_call_grace());
    }
    set_failed(reader, status, error);
}

/** Handles the result of a step of the conversation. */
static void settle(wh_reader *reader, wherry_status status, const wherry_error *error) {
    bool cancelled = status == WHERRY_CANCELLED && wh_call_is_cancelled(reader->call);
    if (status != WHERRY_OK && !cancelled && !wh_reader_is_decided(reader)) {
        fail(reader, status, error);
    }
}

void wh_reader_revoke(wh_reader *reader, wherry_status status, const wherry_error *error, wh_deadline deadline) {
    wherry_error about = *error;
    if (!reader->nonce) {
        wh_fail(&about, status, "rank %d has not asked for the checkpoint: %s", (int)reader->rank, error->message);
    } else if (wh_reader_holds_lease(reader)) {
        wh_session_stop(&reader->data.session);
        wh_note note = {.type = WH_REVOKED, .epoch = reader->epoch};
        wh_note_reason(&note, status, error);
        say(reader, &note, deadline);
        wh_fail(&about, status, "rank %d was not done, at %" PRIu64 " of %" PRIu64 " bytes: %s", (int)reader->rank,
                wh_max(peer_bytes(reader), atomic_load(&reader->data.session.moved)),
                reader->outcome.stats.bytes_wanted, error->message);
    }
    set_failed(reader, status, &about);
}

/** Forgets the PLAN that waits, and its REQUESTs. */
static void drop_plan(wh_reader *reader) {
    wh_message_clear(&reader->plan);
    reader->plan = (wh_message){.channel = -1};
    while (reader->later_count) {
        wh_message_clear(reader->later + --reader->later_count);
    }
}

void wh_reader_destroy(wh_reader *reader) {
    wh_session_stop(&reader->data.session);
    wh_session_stop(&reader->compare.session);
    close_data(reader);
    wh_push_close(&reader->compare);
    close_channels(reader);
    drop_plan(reader);
    wh_free(reader->times);
    wh_backlog_clear(&reader->backlog);
}

/* ---- WANT and OFFER ---- */

static wh_lane_site site_of(wh_reader *reader) {
    const wh_call *call = reader->call;
    return (wh_lane_site){
        .group = call->transport->group,
        .peer = reader->rank,
        .tag = wh_inbox_tag(reader->waiting->inbox),
        .threads = call->options.threads,
        .keep_ptracer = call->options.flags & WHERRY_KEEP_PTRACER,
        .deadline = call->deadline,
        .no_progress_ms = (uint32_t)call->options.no_progress_ms,
        .channels = reader->channels,
        .channel_count = reader->channel_count,
        .shared = &reader->offer->shared,
        .devices = reader->offer->devices,
        .ordered = call->lanes.ordered,
    };
}

/** Fills the lanes of an OFFER. texts must stay valid as long as the note. */
static void offer_lanes(wh_reader *reader, wh_note *offer, wh_string texts[WH_OFFERED_LANES_MAX]) {
    const wh_lane_list *lanes = &reader->call->lanes;
    wh_stop never = {.event = -1};
    wh_lane_site site = site_of(reader);
    site.stop = &never;
    for (size_t i = 0; i < lanes->count; i++) {
        wherry_error error;
        wh_string *text = texts + offer->lane_count;
        const wh_lane_ops *lane = lanes->lanes[i];
        if (wh_lane_is_skipped(lanes, lane, reader->offer->devices != 0)) {
            continue;
        }
        wherry_status status = lane->offer(&site, text, &error);
        if (status != WHERRY_OK || text->failed) {
            if (status == WHERRY_OK) {
                wh_fail_memory(&error, "the offer of a lane");
            }
            wh_log(WHERRY_LOG_INFO, "the lane %s is not offered to rank %d: %s", lane->name, (int)reader->rank,
                   error.message);
            wh_stats_skip_lane(&reader->outcome.stats, lane->name, &error);
            wh_free(text->bytes);
            *text = (wh_string){0};
            continue;
        }
        offer->lanes[offer->lane_count++] =
            (wh_offered_lane){{lane->name, strlen(lane->name)}, {text->bytes, text->size}};
        if (lane->traits & WH_LANE_ONE_SIDED) {
            offer->addresses = (wh_bytes){reader->offer->addresses.bytes, reader->offer->addresses.size};
        }
    }
}

/** Sends the OFFER. Leaves out the manifest if the receiver has the same one. */
static wherry_status send_offer(wh_reader *reader, const wh_bytes *known, wherry_error *error) {
    const wh_offer *state = reader->offer;
    bool same = known->size && memcmp(known->bytes, state->fingerprint.bytes, sizeof(state->fingerprint)) == 0;
    wh_string texts[WH_OFFERED_LANES_MAX] = {{0}};
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
        offer_lanes(reader, &offer, texts);
    }
    wherry_status status = tell(reader, &offer, error);
    for (size_t i = 0; i < WH_OFFERED_LANES_MAX; i++) {
        wh_free(texts[i].bytes);
    }
    return status;
}

static wherry_status check_step(const wh_reader *reader, const wh_note *want, wherry_error *error) {
    int64_t own = reader->call->options.step;
    if (own == WHERRY_STEP_ANY || want->step == WHERRY_STEP_ANY || own == want->step) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_MISMATCH, "the source sends step %lld and rank %d wants step %lld", (long long)own,
                   (int)reader->rank, (long long)want->step);
}

/** The receiver has finished with other sources. */
static void end_unneeded(wh_reader *reader) {
    wh_log(WHERRY_LOG_INFO, "rank %d has the checkpoint from other sources", (int)reader->rank);
    reader->outcome.not_needed = 1;
    end(reader, WHERRY_OK, NULL, true);
}

static void take_want(wh_reader *reader, const wh_message *message) {
    wherry_error error;
    wh_note want = {.nonce = 0};
    wherry_status status = wh_note_decode(message->bytes, message->size, &want, &error);
    if (!wh_mailbox_is_present(reader->call->transport->group->mailbox, message->rank, message->incarnation)) {
        return; /* its next incarnation asks again */
    }
    if (want.type == WH_WITHDRAW && want.status == WHERRY_OK) {
        end_unneeded(reader);
        return;
    }
    if (want.type != WH_WANT) {
        return; /* withdrawn twice */
    }
    wh_point("source was asked");
    reader->nonce = want.nonce;
    reader->incarnation = message->incarnation;
    reader->epoch = wh_random_tag();
    wh_liveness_note(&reader->heard);
    reader->moments[ASKED] = reader->heard.at;
    WH_THEN(status, check_step(reader, &want, &error));
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
    wherry_stats *stats = &reader->outcome.stats;
    const wh_lane_ops *lane = reader->data.session.lane;
    wh_note note = {.type = WH_REFUSE_LANE, .session = reader->data.session.number};
    wh_log(WHERRY_LOG_INFO, "the lane %s to rank %d does not work: %s", lane->name, (int)reader->rank, reason->message);
    wh_stats_skip_lane(stats, lane->name, reason);
    for (size_t i = 0; i < reader->data.session.queue.count; i++) {
        const wh_chunk_set *request = reader->data.session.queue.requests + i;
        for (uint64_t k = 0; k < request->total; k++) {
            reader->times[wh_chunk_set_at(request, k)]--; /* the next lane is not a retry */
        }
    }
    /* This lane has moved nothing, so the detail stays that of the lane before. */
    char detail[WHERRY_LANE_DETAIL_MAX];
    memcpy(detail, stats->detail, sizeof(detail));
    wh_session_stop(&reader->data.session);
    close_data(reader);
    close_channels(reader);
    memcpy(stats->detail, detail, sizeof(detail));
    reader->state = WH_READER_OFFERED;
    reader->lane_refused = true;
    wh_note_reason(&note, status, reason);
    return tell(reader, &note, error);
}

/** Accepts the lane, now or when the next channel has come, and starts to move chunks. */
static wherry_status accept(wh_reader *reader, wherry_error *error) {
    wh_session *session = &reader->data.session;
    bool ready = true;
    wherry_error reason;
    wherry_status status = WHERRY_OK;
    session->site.channel_count = reader->channel_count;
    if (session->lane->accept) {
        status = session->lane->accept(&session->site, reader->request.bytes, reader->request.size, &ready,
                                       &session->end, &reason);
    }
    reader->accepting = status == WHERRY_OK && !ready;
    if (status != WHERRY_OK) {
        return refuse_lane(reader, status, &reason, error);
    }
    uint32_t workers = 0;
    status = ready ? wh_push_start(&reader->data, &workers, error) : WHERRY_OK;
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
    uint64_t chunks = 0;
    if (!reader->times) {
        reader->times = wh_alloc_zeroed(wh_max(reader->offer->summary.chunks, 1), sizeof(*reader->times));
        WH_TRY(wh_check_memory(reader->times, error, "a plan"));
    }
    WH_TRY(wh_push_request(&reader->data, note->intervals, note->last, &chunks, error));
    const wh_request_queue *queue = &reader->data.session.queue;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t chunk = wh_chunk_set_at(queue->requests + queue->count - 1, i);
        if (reader->times[chunk] == TIMES_MAX) {
            return wh_fail(error, WHERRY_MALFORMED, "rank %d has requested chunk %" PRIu64 " more than %d times",
                           (int)reader->rank, chunk, TIMES_MAX);
        }
        stats->retries += reader->times[chunk]++ > 0;
    }
    stats->chunks += chunks;
    stats->bytes_wanted += wh_min(note->bytes, INT64_MAX - stats->bytes_wanted);
    wh_liveness_note(&reader->heard);
    return WHERRY_OK;
}

static wherry_status open_lane(wh_reader *reader, const wh_note *plan, wherry_error *error) {
    const wh_lane_ops *lane = wh_lane_list_find(&reader->call->lanes, plan->lane.bytes, plan->lane.size);
    wh_lane_site site = site_of(reader);
    if (!lane) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a plan for a lane that was not offered",
                       (int)reader->rank);
    }
    WH_TRY(count_question(reader, error));
    reader->lane_refused = false;
    WH_TRY(wh_push_prepare(&reader->data, reader->offer, lane, &site, reader->waiting->inbox, plan->verify, error));
    WH_TRY(append_chunks(reader, plan, error));
    if (!reader->moments[PLANNED]) {
        reader->heard.peer_bytes = 0; /* these were bytes that the receiver has compared */
    }
    reader->state = WH_READER_MOVING;
    reader->data.session.number = plan->session;
    wh_point("source has the plan");
    reader->moments[PLANNED] = reader->moments[PLANNED] ? reader->moments[PLANNED] : reader->heard.at;
    reader->outcome.stats.checked |= plan->verify;
    wh_string_append(&reader->request, plan->request.bytes, plan->request.size);
    return reader->request.failed ? wh_fail_memory(error, "a plan") : accept(reader, error);
}

/**
 * Opens a lane, or keeps the plan until the lane before is closed: its workers are about to end,
 * because the receiver has all its chunks or wants no more of them.
 */
static wherry_status take_plan(wh_reader *reader, wh_message *message, const wh_note *plan, wherry_error *error) {
    if (reader->state == WH_READER_OFFERED) {
        return open_lane(reader, plan, error);
    }
    /* If the receiver reads by itself, this side does not know how far it is. */
    bool ends =
        reader->lane_ends || !wh_push_hands_out(&reader->data) || wh_session_is_finishing(&reader->data.session);
    if (reader->plan.bytes || (reader->accepting && !reader->lane_ends) || !ends) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a plan before it had the chunks of the last one",
                       (int)reader->rank);
    }
    reader->close_by = reader->lane_ends ? reader->close_by : wh_deadline_in_ms(CLOSE_MS);
    reader->lane_ends = true;
    reader->plan = *message;
    *message = (wh_message){.channel = -1};
    return WHERRY_OK;
}

/** The receiver does not want the rest. */
static void take_close(wh_reader *reader) {
    if (reader->plan.bytes) {
        drop_plan(reader); /* it is about the lane that has not been opened */
    } else if (reader->state == WH_READER_MOVING) {
        wh_session_stop(&reader->data.session);
        reader->lane_ends = true;
        reader->close_by = wh_deadline_in_ms(0);
    }
}

/**
 * Appends to the open lane, also if its channels are missing yet: they come on their own ways. A
 * receiver does not wait until its PLAN was taken before it requests more.
 */
static wherry_status take_request(wh_reader *reader, wh_message *message, const wh_note *note, wherry_error *error) {
    if (reader->plan.bytes && reader->later_count < WH_LATER_MAX) {
        reader->later[reader->later_count++] = *message;
        *message = (wh_message){.channel = -1};
        return WHERRY_OK;
    }
    if (reader->state == WH_READER_OFFERED && reader->lane_refused) {
        return WHERRY_OK; /* it was sent before the receiver learned of the refusal */
    }
    if (reader->state != WH_READER_MOVING || reader->lane_ends) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d requests chunks, but no lane is open", (int)reader->rank);
    }
    return append_chunks(reader, note, error);
}

static wherry_status take_compare(wh_reader *reader, const wh_note *note, wherry_error *error) {
    uint32_t workers;
    uint64_t chunks;
    wh_lane_site site = site_of(reader);
    if (wh_session_is_open(&reader->compare.session) && wh_push_has_told(&reader->compare)) {
        wh_push_close(&reader->compare); /* its workers are about to end */
    }
    if (wh_session_is_open(&reader->compare.session)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests before it has those of its last question",
                       (int)reader->rank);
    }
    WH_TRY(count_question(reader, error));
    WH_TRY(
        wh_push_prepare(&reader->compare, reader->offer, &wh_lane_digests, &site, reader->waiting->inbox, true, error));
    WH_TRY(wh_push_request(&reader->compare, note->intervals, true, &chunks, error));
    if (reader->compare.on_device) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests of device memory", (int)reader->rank);
    }
    wh_liveness_note(&reader->heard);
    wh_point("source compares");
    return wh_push_start(&reader->compare, &workers, error);
}

static wherry_status take_assist(wh_reader *reader, const wh_note *note, wherry_error *error) {
    const wh_lane_ops *lane = wh_lane_list_find(&reader->call->lanes, note->lane.bytes, note->lane.size);
    wherry_error reason = {.status = WHERRY_OK};
    wh_stop never = {.event = -1};
    wh_lane_site site = site_of(reader);
    site.stop = &never;
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
    if (!wh_reader_holds_lease(reader) || reader->channel_count == WH_WORKERS_MAX) {
        return;
    }
    reader->channels[reader->channel_count++] = message->channel;
    message->channel = -1;
    wherry_error error;
    wherry_status status = reader->accepting && !reader->lane_ends ? accept(reader, &error) : WHERRY_OK;
    settle(reader, status, &error);
}

/* ---- other messages ---- */

static void show_progress(wh_reader *reader, uint64_t now) {
    const wherry_transfer_options *options = &reader->call->options;
    if (options->progress) {
        const wherry_stats *stats = &reader->outcome.stats;
        uint64_t moved = stats->bytes_moved + atomic_load(&reader->data.session.moved);
        uint64_t bytes = wh_max(peer_bytes(reader), wh_reader_is_decided(reader) ? stats->bytes_moved : moved);
        double seconds = wh_seconds(reader->moments[PLANNED], now);
        const wh_lane_ops *lane = reader->data.session.lane;
        wherry_progress progress = {
            reader->rank,          bytes, stats->bytes_wanted, seconds > 0 ? (double)bytes / seconds : 0, "",
            lane ? lane->name : ""};
        options->progress(options->progress_context, &progress);
    }
}

/** A receiver that reads by itself may be done before the lane of its last plan was opened here. */
static void note_pending_plan(wh_reader *reader) {
    wherry_stats *stats = &reader->outcome.stats;
    wh_note plan;
    if (reader->plan.bytes && wh_note_decode(reader->plan.bytes, reader->plan.size, &plan, NULL) == WHERRY_OK) {
        const wh_lane_ops *lane = wh_lane_list_find(&reader->call->lanes, plan.lane.bytes, plan.lane.size);
        wherry_interval *intervals;
        size_t count;
        wh_stats_add_lane(stats, lane ? lane->name : "");
        stats->bytes_wanted += wh_min(plan.bytes, INT64_MAX - stats->bytes_wanted);
        if (wh_intervals_decode(plan.intervals, reader->offer->summary.chunks, &intervals, &count, NULL) == WHERRY_OK) {
            for (size_t i = 0; i < count; i++) {
                stats->chunks += intervals[i].count;
            }
            wh_free(intervals);
        }
    }
}

static wherry_status take_done(wh_reader *reader, const wh_note *note, wherry_error *error) {
    if (note->epoch != reader->epoch) {
        return WHERRY_OK;
    }
    reader->heard.peer_bytes = note->bytes;
    wh_point("source was told done");
    wh_note released = {.type = WH_RELEASED, .epoch = reader->epoch};
    WH_TRY(tell(reader, &released, error));
    wh_point("source released");
    reader->outcome.not_needed = !reader->moments[PLANNED] && reader->offer->summary.bytes && !reader->questions;
    end(reader, WHERRY_OK, NULL,
        wh_session_is_open(&reader->data.session) && wh_session_is_finishing(&reader->data.session));
    note_pending_plan(reader);
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
    if (note->epoch != reader->epoch) {
        return WHERRY_OK;
    }
    WH_TRY(count_question(reader, error));
    return tell(reader, &answer, error);
}

static void take_abort(wh_reader *reader, const wh_note *note) {
    wherry_error error;
    wh_fail_note(&error, WHERRY_ABORTED, reader->rank, note, "gave up");
    set_failed(reader, WHERRY_ABORTED, &error);
}

/**
 * The receiver has gone before it had the offer. After a timeout or a cancel it may ask again; any
 * other reason is final.
 */
static wherry_status take_withdrawal(wh_reader *reader, const wh_note *note, wherry_error *error) {
    if (note->nonce != reader->nonce) {
        return WHERRY_OK;
    }
    if (reader->state != WH_READER_OFFERED) {
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
    wh_backlog_clear(&reader->backlog); /* it is for the question that was withdrawn */
    wh_push_close(&reader->compare);
    reader->state = WH_READER_WAITING;
    reader->nonce = 0;
    wh_transport_unpair(reader->call->transport, reader->waiting, reader->rank);
    return WHERRY_OK;
}

static void take_progress(wh_reader *reader, const wh_note *note) {
    const wh_session *session = &reader->data.session;
    wh_liveness_report(&reader->heard, note->bytes);
    /* A receiver that takes everything from other sources, or has all that it wanted from this one,
     * reports the same number again and again: it is alive, and nothing is due here. */
    if (reader->state == WH_READER_OFFERED || (wh_session_has_ended(session) && !reader->accepting)) {
        wh_liveness_note(&reader->heard);
    }
}

static wherry_status take_note(wh_reader *reader, wh_message *message, wherry_error *error) {
    wh_note note;
    WH_TRY(wh_note_decode(message->bytes, message->size, &note, error));
    if (note.intervals.size / 16 > reader->offer->summary.chunks) {
        /* Before the message is kept: this bounds the memory that a receiver can take. */
        return wh_fail(error, WHERRY_OUT_OF_BOUNDS, "rank %d sent more intervals than there are chunks",
                       (int)reader->rank);
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
    /* A receiver that is back may have asked before this side heard of the loss. It is told. */
    if (wh_mailbox_is_lost(reader->call->transport->group->mailbox, reader->rank, NULL, 0)) {
        set_failed(reader, WHERRY_PEER_LOST, &error);
    } else {
        fail(reader, WHERRY_PEER_LOST, &error);
    }
}

void wh_reader_take(wh_reader *reader, wh_message *message) {
    bool want = message->kind == WH_MESSAGE_BYTES && message->tag == reader->call->transport->tag &&
                reader->state == WH_READER_WAITING;
    if (wh_reader_is_decided(reader)) {
        return;
    }
    if (want) {
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

/**
 * A worker failed. The reader fails a moment later, because the receiver may tell a better reason.
 * After a stop of this side's own, the send ends anyway.
 */
static void note_breakage(wh_reader *reader, wherry_status status, const wherry_error *error) {
    if (!reader->moments[BROKEN] && !(status == WHERRY_CANCELLED && wh_call_is_cancelled(reader->call))) {
        reader->broken = *error;
        reader->broken.status = status;
        reader->moments[BROKEN] = wh_clock_now();
    }
}

/** Takes in what the workers of the lane have done, if they have ended. */
static wherry_status look_at_data(wh_reader *reader, wherry_error *error) {
    wh_push *data = &reader->data;
    wherry_error reason;
    if (!wh_session_is_open(&data->session) || reader->accepting || reader->lane_ends || reader->moments[BROKEN]) {
        return WHERRY_OK;
    }
    wherry_status status = wh_session_has_ended(&data->session) ? wh_session_join(&data->session, &reason) : WHERRY_OK;
    if (status == WHERRY_REFUSED) {
        return refuse_lane(reader, status, &reason, error);
    }
    if (status != WHERRY_OK) {
        note_breakage(reader, status, &reason);
        return WHERRY_OK;
    }
    return wh_push_tell_digests(data, tell_digests, reader, error);
}

static wherry_status look_at_compare(wh_reader *reader, wherry_error *error) {
    wh_push *compare = &reader->compare;
    if (!wh_session_is_open(&compare->session)) {
        return WHERRY_OK;
    }
    WH_TRY(wh_push_tell_digests(compare, tell_digests, reader, error));
    if (wh_push_has_ended(compare)) {
        wherry_status status = wh_session_join(&compare->session, error);
        wh_push_close(compare);
        return status;
    }
    return wh_session_has_ended(&compare->session) ? wh_session_join(&compare->session, error) : WHERRY_OK;
}

/** Closes a lane that ends, once its workers have ended, and opens that of the next plan. */
static wherry_status look_at_lane(wh_reader *reader, wherry_error *error) {
    wh_push *data = &reader->data;
    if (!reader->lane_ends) {
        return WHERRY_OK;
    }
    WH_TRY(wh_push_tell_digests(data, tell_digests, reader, error));
    if (wh_deadline_passed(reader->close_by)) {
        wh_session_stop(&data->session);
    }
    if (!wh_session_has_ended(&data->session)) {
        return WHERRY_OK;
    }
    wh_message message = reader->plan;
    wh_note plan;
    reader->plan = (wh_message){.channel = -1};
    wh_stats_add_lane(&reader->outcome.stats, data->session.lane->name);
    close_data(reader);
    reader->state = WH_READER_OFFERED;
    wherry_status status = WHERRY_OK;
    if (message.bytes) {
        status = wh_note_decode(message.bytes, message.size, &plan, error);
        WH_THEN(status, open_lane(reader, &plan, error));
    }
    wh_message_clear(&message);
    for (size_t i = 0; i < reader->later_count; i++) {
        wh_note request;
        WH_THEN(status, wh_note_decode(reader->later[i].bytes, reader->later[i].size, &request, error));
        WH_THEN(status, take_request(reader, reader->later + i, &request, error));
    }
    drop_plan(reader);
    return status;
}

/** The reader has ended when its workers have, and the receiver has its last message. */
static void look_at_closing(wh_reader *reader) {
    wherry_error ignored;
    bool over = wh_deadline_passed(reader->close_by) || wh_call_is_cancelled(reader->call) ||
                wh_deadline_passed(reader->call->deadline);
    if (over) {
        wh_session_stop(&reader->data.session);
    }
    wh_backlog_flush(&reader->backlog, reader->call, reader->rank, reader->nonce, &ignored);
    if (wh_session_has_ended(&reader->data.session) && wh_session_has_ended(&reader->compare.session) &&
        (!reader->backlog.count || over)) {
        close_data(reader);
        wh_push_close(&reader->compare);
        close_channels(reader);
        reader->state = WH_READER_ENDED;
    }
}

/** Shows progress to the user, and tells the receiver, so that silence means trouble. */
static void tell_progress(wh_reader *reader) {
    uint64_t now = wh_clock_now();
    bool moving = reader->state == WH_READER_MOVING;
    if (moving && now - reader->moments[SHOWN] >= SHOW_MS * MS) {
        reader->moments[SHOWN] = now;
        show_progress(reader, now);
    }
    if ((moving || wh_session_is_open(&reader->compare.session)) && !reader->backlog.count) {
        wh_note note = {.type = WH_PROGRESS, .bytes = work_done(reader)};
        say(reader, &note, wh_deadline_in_ms(0));
    }
}

static void check_progress(wh_reader *reader) {
    int64_t limit = reader->call->options.no_progress_ms;
    if (wh_liveness_is_over(&reader->heard, work_done(reader), limit)) {
        wherry_error error;
        wh_fail(&error, WHERRY_TIMED_OUT, "timed out: no byte moved for %lld ms", (long long)limit);
        wh_reader_revoke(reader, WHERRY_TIMED_OUT, &error, wh_call_grace());
    }
}

void wh_reader_tick(wh_reader *reader) {
    wherry_error error;
    if (reader->state == WH_READER_CLOSING) {
        look_at_closing(reader);
    }
    if (!wh_reader_holds_lease(reader)) {
        return;
    }
    size_t waiting = reader->backlog.count;
    wherry_status status = wh_backlog_flush(&reader->backlog, reader->call, reader->rank, reader->nonce, &error);
    if (reader->backlog.count < waiting) {
        wh_liveness_note(&reader->heard);
    }
    WH_THEN(status, look_at_data(reader, &error));
    WH_THEN(status, look_at_compare(reader, &error));
    WH_THEN(status, look_at_lane(reader, &error));
    settle(reader, status, &error);
    if (!wh_reader_is_decided(reader) && reader->moments[BROKEN] &&
        wh_clock_now() - reader->moments[BROKEN] > EXPLAIN_MS * MS) {
        fail(reader, reader->broken.status, &reader->broken);
    }
    if (wh_reader_holds_lease(reader)) {
        tell_progress(reader);
        check_progress(reader);
    }
}
