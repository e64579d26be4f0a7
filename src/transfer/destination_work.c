#include "transfer/destination_work.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "state/prepare.h"

/**
 * Digests in one message. How often a receiver may ask for something: each lane once or twice, and
 * a few rounds; one that goes on would fill the way to it with answers that it does not read, until
 * this side had to wait for it.
 */
enum { DIGESTS_MAX = 4096, REQUESTS_MAX = 64, FINISH_LOOK_NS = 100000 };

/* ---- the crew's work ---- */

static bool feed_next(void *context, uint64_t *chunk_p) {
    wh_destination *destination = context;
    if (wh_deadline_passed(destination->transfer->deadline) ||
        wherry_cancel_requested(destination->transfer->options.cancel)) {
        /* so that nobody takes this for the end of the round */
        wh_stop_request(&destination->stop);
    }
    if (wh_stop_requested(&destination->stop)) {
        return false;
    }
    return wh_chunk_set_next(&destination->list, chunk_p);
}

/** Digests a chunk that is about to be sent, for a lane that does not. */
static wherry_status digest_gathered(wh_destination *destination, uint64_t chunk, const wh_segments *segments,
                                     wherry_error *error) {
    wh_digester *digester = wh_digester_create();
    if (!digester) {
        return wh_fail_memory(error, "a digest");
    }
    uint64_t place = wh_chunk_set_find(&destination->list, chunk);
    destination->digests[place] = wh_digest_of(digester, segments->items, segments->count);
    wh_digester_destroy(digester);
    return WHERRY_OK;
}

static wherry_status feed_gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    wh_destination *destination = context;
    wh_point("source gathers a chunk");
    wherry_status status = wh_fetch_exists(&destination->fetch)
                               ? wh_fetch_gather(&destination->fetch, chunk, segments, error)
                               : wh_source_gather(destination->source, chunk, segments, error);
    return status == WHERRY_OK && destination->digests ? digest_gathered(destination, chunk, segments, error) : status;
}

static void feed_moved(void *context, uint64_t bytes) {
    atomic_fetch_add_explicit(&((wh_destination *)context)->moved, bytes, memory_order_relaxed);
}

static uint64_t feed_continues(void *context, uint64_t chunk) {
    return wh_prepared_chunk_continues(((wh_destination *)context)->source->prepared, chunk);
}

static void feed_done(void *context, uint64_t chunk) {
    wh_destination *destination = context;
    if (wh_fetch_exists(&destination->fetch)) {
        wh_fetch_done(&destination->fetch, chunk);
    }
}

static wh_feed feed_of(wh_destination *destination) {
    return (wh_feed){destination, destination->verify, feed_next, feed_gather, feed_moved, feed_continues, feed_done};
}

static wherry_status push(void *context, uint32_t worker, wherry_error *error) {
    wh_destination *destination = context;
    wh_feed feed = feed_of(destination);
    return destination->lane->push(destination->end, worker, &feed, error);
}

/** Makes digests for a receiver that reads the memory itself. */
static wherry_status digest(void *context, uint32_t worker, wherry_error *error) {
    (void)worker;
    wh_destination *destination = context;
    wh_digester *digester = wh_digester_create();
    wh_segments segments = {0};
    wherry_status status = digester ? WHERRY_OK : wh_fail_memory(error, "a digest");
    uint64_t chunk;
    while (status == WHERRY_OK && feed_next(destination, &chunk)) {
        status = wh_source_gather(destination->source, chunk, &segments, error);
        if (status == WHERRY_OK) {
            uint64_t place = wh_chunk_set_find(&destination->list, chunk);
            destination->digests[place] = wh_digest_of(digester, segments.items, segments.count);
            atomic_fetch_add_explicit(&destination->digested, segments.bytes, memory_order_relaxed);
        }
    }
    wh_segments_destroy(&segments);
    wh_digester_destroy(digester);
    return status;
}

/** Sends the digests of the round, an interval of the list after another. */
static wherry_status send_digests(wh_destination *destination, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < destination->list.count && status == WHERRY_OK; i++) {
        const wherry_interval *interval = destination->list.intervals + i;
        for (uint64_t done = 0; done < interval->count && status == WHERRY_OK; done += DIGESTS_MAX) {
            size_t count = wh_min(DIGESTS_MAX, interval->count - done);
            wh_note note = {
                .type = WH_DIGESTS,
                .first = interval->first + done,
                .digests = {destination->digests + destination->list.starts[i] + done, count * WH_DIGEST_BYTES},
            };
            status = wh_destination_tell(destination, &note, error);
        }
    }
    return status;
}

static void forget_digests(wh_destination *destination) {
    wh_free(destination->digests);
    destination->digests = NULL;
}

/** The work of a round has ended with `status`. */
static wherry_status end_work(wh_destination *destination, wherry_status status, wherry_error *error) {
    if (status == WHERRY_OK && destination->digests) {
        status = send_digests(destination, error);
    }
    forget_digests(destination);
    return status;
}

/**
 * Whether it was this side that ended the work: then the send ends, and says so. A table may answer
 * the same for a reason of its own.
 */
static bool was_cancelled(const wh_destination *destination) {
    return wh_stop_requested(&destination->stop) || wh_transfer_cancelled(destination->transfer);
}

/** Chunks of devices go by way of the host, but over a lane that reaches them. */
static wherry_status prepare_fetch(wh_destination *destination, wherry_error *error) {
    bool reaches = destination->lane->traits & WH_LANE_DEVICE;
    wh_fetch_destroy(&destination->fetch);
    if (reaches != destination->on_device && (reaches || !(destination->lane->traits & WH_LANE_STAGES))) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for memory of a %s by the lane %s, which cannot reach it",
                       (int)destination->rank, reaches ? "host" : "device", destination->lane->name);
    }
    if (reaches && destination->verify) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d wants digests over the lane %s, which makes none",
                       (int)destination->rank, destination->lane->name);
    }
    if (reaches || !destination->on_device) {
        return WHERRY_OK;
    }
    return wh_fetch_init(&destination->fetch, destination->source, &destination->list,
                         destination->end ? destination->end->workers : 1, &destination->stop,
                         destination->transfer->deadline, error);
}

/** Starts a round over the list. */
static wherry_status start(wh_destination *destination, wherry_error *error) {
    bool one_sided = destination->lane->traits & WH_LANE_ONE_SIDED;
    bool digests = destination->verify && !(destination->lane->traits & WH_LANE_DIGESTS);
    wherry_status status = prepare_fetch(destination, error);
    if (status != WHERRY_OK || (one_sided && !digests)) {
        return status;
    }
    if (digests) {
        destination->digests = wh_alloc_array(destination->list.total, sizeof(*destination->digests));
        if (!destination->digests) {
            return wh_fail_memory(error, "digests");
        }
    }
    if (!one_sided && wh_lane_runs_in_caller(destination->lane, destination->site.group)) {
        destination->outcome.stats.workers = 1;
        destination->in_parts = true;
        return WHERRY_OK;
    }
    uint32_t workers = one_sided ? (uint32_t)wh_min(destination->site.threads, destination->list.total)
                                 : (uint32_t)wh_min(destination->end->workers, WH_CREW_MAX);
    destination->outcome.stats.workers = workers;
    return wh_crew_start(&destination->crew, workers, one_sided ? digest : push, destination, &destination->stop,
                         destination->inbox, error);
}

wherry_status wh_destination_push_some(wh_destination *destination, uint32_t wait_ms, wherry_error *error) {
    wh_feed feed = feed_of(destination);
    bool done = false;
    wherry_status status = destination->lane->push_some(destination->end, &feed, wait_ms, &done, error);
    if (status == WHERRY_OK && !done) {
        return WHERRY_OK;
    }
    destination->in_parts = false;
    status = end_work(destination, status, error);
    return status == WHERRY_CANCELLED && was_cancelled(destination) ? WHERRY_OK : status;
}

/**
 * Whether a lane's workers may still have to do: all chunks were given out, and nobody wants the
 * end of it.
 */
static bool is_finishing(const wh_destination *destination, wh_deadline soon) {
    return atomic_load(&destination->list.given) >= destination->list.total && !wh_deadline_passed(soon) &&
           !wherry_cancel_requested(destination->transfer->options.cancel);
}

void wh_destination_finish_work(wh_destination *destination) {
    /*
     * The receiver has all: what is under way is through but for a thread's turn. To give it up
     * could end the group for others, or what a lane keeps for the next.
     */
    const wh_lane_ops *lane = destination->lane;
    if (!lane || !lane->finish_ms) {
        return; /* what such a lane has sent needs no further call */
    }
    wherry_error error;
    wh_deadline soon = wh_deadline_earlier(destination->transfer->deadline, wh_deadline_in_ms(lane->finish_ms));
    while (destination->in_parts && is_finishing(destination, soon)) {
        wh_destination_push_some(destination, 1, &error);
    }
    while (wh_crew_exists(&destination->crew) && !wh_crew_ended(&destination->crew) &&
           is_finishing(destination, soon)) {
        nanosleep(&(struct timespec){0, FINISH_LOOK_NS}, NULL);
    }
}

/** Ends the lane, but for channels that no lane has taken. */
static void end_lane(wh_destination *destination) {
    if (wh_crew_exists(&destination->crew)) {
        wh_stop_request(&destination->stop);
        wh_crew_join(&destination->crew, NULL);
    }
    if (destination->end) {
        wh_transfer_describe(destination->lane, destination->end, &destination->outcome.stats);
    }
    if (destination->lane) {
        destination->lane->close(destination->end);
    }
    destination->end = NULL;
    destination->in_parts = false;
    wh_fetch_destroy(&destination->fetch);
    forget_digests(destination);
    wh_free(destination->request.bytes);
    destination->request = (wh_string){0};
    wh_chunk_set_destroy(&destination->list);
}

void wh_destination_end_lane(wh_destination *destination) {
    end_lane(destination);
    for (size_t i = 0; i < destination->site.channel_count; i++) {
        if (destination->channels[i] >= 0) {
            close(destination->channels[i]);
        }
    }
    destination->site.channel_count = 0;
}

/**
 * Leaves those that are still to be taken: a receiver opens the channels of its next lane before it
 * sends the plan for it.
 */
static void forget_taken_channels(wh_destination *destination) {
    size_t kept = 0;
    for (size_t i = 0; i < destination->site.channel_count; i++) {
        if (destination->channels[i] >= 0) {
            destination->channels[kept++] = destination->channels[i];
        }
    }
    destination->site.channel_count = kept;
}

/* ---- the lane ---- */

static wherry_status refuse_lane(wh_destination *destination, wherry_status status, const wherry_error *reason,
                                 wherry_error *error) {
    wh_log(WHERRY_LOG_INFO, "the lane %s to rank %d does not work: %s", destination->lane->name, (int)destination->rank,
           reason->message);
    wh_stats_skip_lane(&destination->outcome.stats, destination->lane->name, reason);
    wh_note note = {.type = WH_REFUSE_LANE};
    wh_note_reason(&note, status, reason);
    /* of the lane before, where there was one: this one has moved nothing */
    char detail[WHERRY_LANE_DETAIL_MAX];
    memcpy(detail, destination->outcome.stats.detail, sizeof(detail));
    wh_destination_end_lane(destination);
    memcpy(destination->outcome.stats.detail, detail, sizeof(detail));
    destination->lane = NULL;
    destination->accepting = false;
    destination->state = WH_DESTINATION_OFFERED;
    return wh_destination_tell(destination, &note, error);
}

/**
 * The lane has found out at work that it does not reach the receiver, which tries the next. The
 * crew's failure has requested the stop: the next needs another.
 */
static wherry_status refuse_work(wh_destination *destination, const wherry_error *reason, wherry_error *error) {
    forget_digests(destination);
    wh_stop_destroy(&destination->stop);
    wherry_status status = wh_stop_init(&destination->stop, error);
    return status == WHERRY_OK ? refuse_lane(destination, WHERRY_REFUSED, reason, error) : status;
}

wherry_status wh_destination_work_ended(wh_destination *destination, wherry_error *error) {
    if (!wh_crew_exists(&destination->crew) || !wh_crew_ended(&destination->crew)) {
        return WHERRY_OK;
    }
    wherry_error reason;
    wherry_status status = wh_crew_join(&destination->crew, &reason);
    if (status == WHERRY_REFUSED) {
        return refuse_work(destination, &reason, error);
    }
    if (status != WHERRY_OK) {
        *error = reason;
    }
    return end_work(destination, status, error);
}

wherry_status wh_destination_accept(wh_destination *destination, wherry_error *error) {
    bool ready = true;
    wherry_error reason;
    wherry_status status = WHERRY_OK;
    if (destination->lane->accept) {
        status = destination->lane->accept(&destination->site, destination->request.bytes, destination->request.size,
                                           &ready, &destination->end, &reason);
    }
    destination->accepting = status == WHERRY_OK && !ready;
    if (status != WHERRY_OK) {
        return refuse_lane(destination, status, &reason, error);
    }
    return ready ? start(destination, error) : WHERRY_OK;
}

static wherry_status count_request(wh_destination *destination, wherry_error *error) {
    return ++destination->requests <= REQUESTS_MAX
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "rank %d has asked %d times and does not get on",
                         (int)destination->rank, REQUESTS_MAX);
}

static wherry_status take_list(wh_destination *destination, wh_bytes bytes, wherry_error *error) {
    wherry_interval *intervals;
    size_t count;
    wherry_status status = wh_intervals_decode(bytes, destination->source->summary.chunks, &intervals, &count, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_chunk_set_destroy(&destination->list);
    bool ok = wh_chunk_set_init(&destination->list, intervals, count);
    wh_free(intervals);
    if (!ok) {
        return wh_fail_memory(error, "a plan");
    }
    if (!count) {
        return wh_fail(error, WHERRY_MALFORMED, "a plan asks for no chunk");
    }
    const wherry_prepared *prepared = destination->source->prepared;
    const wh_chunk_set *list = &destination->list;
    destination->on_device = wh_prepared_chunk_on_device(prepared, wh_chunk_set_at(list, list->total - 1));
    return destination->on_device == wh_prepared_chunk_on_device(prepared, wh_chunk_set_at(list, 0))
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "rank %d asks for chunks of the host and of devices at once",
                         (int)destination->rank);
}

/**
 * The receiver has all of the last round, so that its workers are about to end; one that says so
 * too early is not waited for.
 */
static wherry_status end_round(wh_destination *destination, wherry_error *error) {
    wh_deadline soon = wh_transfer_last_words();
    while (wh_crew_exists(&destination->crew) && !wh_crew_ended(&destination->crew)) {
        if (wh_deadline_passed(soon)) {
            return wh_fail(error, WHERRY_MALFORMED, "rank %d asks again for what it has not got yet",
                           (int)destination->rank);
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    wherry_status status = wh_crew_join(&destination->crew, error);
    forget_digests(destination);
    return status;
}

/**
 * The receiver has all of its last plan, and sends the next, for other chunks over another lane.
 */
static wherry_status end_leg(wh_destination *destination, wherry_error *error) {
    wh_destination_finish_work(destination);
    wherry_status status = end_round(destination, error);
    if (status == WHERRY_OK) {
        wh_stats_add_lane(&destination->outcome.stats, destination->lane->name);
        end_lane(destination);
        forget_taken_channels(destination);
        destination->lane = NULL;
        destination->state = WH_DESTINATION_OFFERED;
    }
    return status;
}

wherry_status wh_destination_plan(wh_destination *destination, const wh_note *plan, wherry_error *error) {
    const wh_lane_ops *lane = wh_lane_choice_find(&destination->transfer->lanes, plan->lane.bytes, plan->lane.size);
    bool second = destination->state == WH_DESTINATION_MOVING && !destination->accepting && !destination->on_device &&
                  destination->source->devices;
    if (second && lane) {
        wherry_status status = end_leg(destination, error);
        if (status != WHERRY_OK) {
            return status;
        }
    }
    if (destination->state != WH_DESTINATION_OFFERED || destination->lane || !lane ||
        wh_crew_exists(&destination->crew)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a plan out of turn, or for a lane that was not offered",
                       (int)destination->rank);
    }
    wherry_status status = count_request(destination, error);
    if (status == WHERRY_OK) {
        status = take_list(destination, plan->intervals, error);
    }
    if (status == WHERRY_OK && second && !destination->on_device) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d sent a second plan for host memory", (int)destination->rank);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    destination->state = WH_DESTINATION_MOVING;
    wh_point("source has the plan");
    destination->heard = wh_clock_now();
    destination->plan_at = destination->plan_at ? destination->plan_at : destination->heard;
    destination->peer_bytes = second ? destination->peer_bytes : 0; /* those that it had compared */
    destination->wanted += wh_min(plan->bytes, INT64_MAX - destination->wanted);
    destination->verify = plan->verify;
    destination->outcome.stats.verified |= plan->verify;
    destination->outcome.stats.chunks += destination->list.total;
    destination->lane = lane;
    destination->request = (wh_string){0};
    wh_string_append(&destination->request, plan->request.bytes, plan->request.size);
    return destination->request.failed ? wh_fail_memory(error, "a plan") : wh_destination_accept(destination, error);
}

wherry_status wh_destination_retry(wh_destination *destination, const wh_note *retry, wherry_error *error) {
    if (destination->state != WH_DESTINATION_MOVING || destination->accepting || destination->in_parts) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks again for what it has not got yet",
                       (int)destination->rank);
    }
    wherry_status status = count_request(destination, error);
    if (status == WHERRY_OK) {
        status = end_round(destination, error);
    }
    if (status == WHERRY_OK) {
        status = take_list(destination, retry->intervals, error);
    }
    destination->outcome.stats.retries += (uint32_t)destination->list.total;
    destination->heard = wh_clock_now();
    return status == WHERRY_OK ? start(destination, error) : status;
}

wherry_status wh_destination_compare(wh_destination *destination, const wh_note *compare, wherry_error *error) {
    if (destination->state != WH_DESTINATION_OFFERED || destination->lane || wh_crew_exists(&destination->crew)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests out of turn", (int)destination->rank);
    }
    wherry_status status = count_request(destination, error);
    if (status == WHERRY_OK) {
        status = take_list(destination, compare->intervals, error);
    }
    if (status == WHERRY_OK && destination->on_device) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d asks for digests of the memory of devices",
                         (int)destination->rank);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    destination->heard = wh_clock_now();
    destination->digests = wh_alloc_array(destination->list.total, sizeof(*destination->digests));
    if (!destination->digests) {
        return wh_fail_memory(error, "digests");
    }
    wh_point("source compares");
    uint32_t workers = (uint32_t)wh_min(destination->site.threads, destination->list.total);
    return wh_crew_start(&destination->crew, workers, digest, destination, &destination->stop, destination->inbox,
                         error);
}

wherry_status wh_destination_assist(wh_destination *destination, const wh_note *assist, wherry_error *error) {
    const wh_lane_ops *lane = wh_lane_choice_find(&destination->transfer->lanes, assist->lane.bytes, assist->lane.size);
    if (!lane || !lane->assist) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for help with a lane that has none",
                       (int)destination->rank);
    }
    wherry_error reason = {.status = WHERRY_OK};
    wherry_status status = count_request(destination, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = lane->assist(&destination->site, assist->request.bytes, assist->request.size, &reason);
    wh_note answer = {.type = WH_ASSISTED};
    wh_note_reason(&answer, status, &reason);
    return wh_destination_tell(destination, &answer, error);
}
