/*
 * Finding a lane that works: the fastest that is allowed and offered, tried for real; and the next
 * where it does not.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "state/tensor.h"
#include "transfer/receive.h"

enum { SMALL_PAGE = 4096 };

static const wh_offered_lane *find_offer(const wh_receive *receive, const wh_lane_ops *lane) {
    for (size_t i = 0; i < receive->offer.lane_count; i++) {
        const wh_offered_lane *one = receive->offer.lanes + i;
        if (one->name.size == strlen(lane->name) && memcmp(one->name.bytes, lane->name, one->name.size) == 0) {
            return one;
        }
    }
    return NULL;
}

static void note_refusal(wh_receive *receive, const wh_lane_ops *lane, const wherry_error *reason) {
    bool refused = reason->status != WHERRY_UNSUPPORTED;
    wh_log(refused ? WHERRY_LOG_WARN : WHERRY_LOG_INFO, "the lane %s from rank %d does not work: %s", lane->name,
           (int)receive->rank, reason->message);
    wh_stats_skip_lane(&receive->stats, lane->name, reason);
}

/** Whether what the source says of its memory fits the manifest. */
static wherry_status check_addresses(const wh_receive *receive, wherry_error *error) {
    wherry_prepared_summary summary;
    wherry_prepared_summarize(wherry_plan_prepared(receive->plan), &summary);
    return receive->offer.addresses.size / 8 == summary.storages && receive->offer.addresses.size % 8 == 0
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "the source gave %zu addresses for %llu storages",
                         receive->offer.addresses.size / 8, (unsigned long long)summary.storages);
}

static bool decide_verify(const wh_receive *receive) {
    wherry_verify said = receive->transfer.options.verify;
    if (said == WHERRY_VERIFY_DEFAULT && receive->offer.verify <= WHERRY_VERIFY_OFF) {
        said = (wherry_verify)receive->offer.verify;
    }
    return said == WHERRY_VERIFY_DEFAULT ? (receive->lane->traits & WH_LANE_NETWORK) != 0 : said == WHERRY_VERIFY_ON;
}

/** Whether a lane can move the chunks of this leg at all. */
static wherry_status check_lane(const wh_receive *receive, wherry_error *error) {
    uint32_t traits = receive->lane->traits;
    if (!receive->leg.device) {
        return traits & WH_LANE_DEVICE ? wh_fail(error, WHERRY_UNSUPPORTED, "it moves the memory of devices alone")
                                       : WHERRY_OK;
    }
    if (!(traits & (WH_LANE_DEVICE | WH_LANE_STAGES))) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "it reads host memory alone, and the source's is on a device");
    }
    return traits & WH_LANE_DEVICE && decide_verify(receive)
               ? wh_fail(error, WHERRY_UNSUPPORTED, "digests are wanted, which are made on the host")
               : WHERRY_OK;
}

/**
 * A new stop and a new site: the last lane's stop may have been requested. A cancel ends a probe by
 * it too, and the probe asks the interrupt.
 */
static wherry_status new_site(wh_receive *receive, wherry_error *error) {
    wherry_cancel *cancel = receive->transfer.options.cancel;
    wh_cancel_aim(cancel, &receive->cancellable, NULL);
    wh_stop_destroy(&receive->stop);
    receive->site = (wh_lane_site){
        .group = receive->transfer.transport->group,
        .peer = receive->rank,
        .tag = receive->offer.id,
        .threads = receive->transfer.options.threads,
        .keep_ptracer = receive->transfer.options.flags & WHERRY_KEEP_PTRACER,
        .stop = &receive->stop,
        .deadline = receive->transfer.deadline,
        .no_progress_ms = (uint32_t)receive->transfer.options.no_progress_ms,
        .devices = receive->plan->traits.cuda,
        .ordered = receive->transfer.lanes.ordered,
        .held_p = &receive->held,
    };
    wherry_status status = wh_stop_init(&receive->stop, error);
    if (status == WHERRY_OK) {
        wh_cancel_aim(cancel, &receive->cancellable, &receive->stop);
        wh_stop_set_question(&receive->stop, wh_transfer_cancelled, &receive->transfer);
    }
    return status;
}

static wherry_status send_plan(wh_receive *receive, const wh_string *request, wherry_error *error) {
    wh_string list = {0};
    wh_intervals_encode(receive->leg.intervals, receive->leg.count, &list);
    wh_note plan = {
        .type = WH_PLAN,
        .lane = {receive->lane->name, strlen(receive->lane->name)},
        .request = {request->bytes, request->size},
        .verify = receive->verify,
        .bytes = receive->leg.bytes,
        .intervals = {list.bytes, list.size},
    };
    wherry_status status =
        list.failed || request->failed ? wh_fail_memory(error, "a plan") : wh_receive_tell(receive, &plan, error);
    wh_free(list.bytes);
    return status;
}

/**
 * Asks the source to open the door, and probes again. @return why the receive must end; `refusal`
 * has the lane's own result.
 */
static wherry_status assist(wh_receive *receive, const wh_offered_lane *offered, wh_string *request,
                            wherry_error *refusal, wherry_error *error) {
    wh_note note = {
        .type = WH_ASSIST,
        .lane = {receive->lane->name, strlen(receive->lane->name)},
        .request = {request->bytes, request->size},
    };
    receive->answer = 0;
    wherry_status status = wh_receive_tell(receive, &note, error);
    if (status == WHERRY_OK) {
        status = wh_receive_await(receive, WH_ASSISTED, "waiting for the source to open a lane", error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (receive->reason.status != WHERRY_OK) {
        wherry_error first = *refusal;
        wh_fail(refusal, first.status, "%s; the source does not open it: %s", first.message, receive->reason.message);
        return WHERRY_OK;
    }
    bool again = false;
    request->size = 0;
    refusal->status = receive->lane->probe(&receive->site, offered->offer.bytes, offered->offer.size, request, &again,
                                           &receive->end, refusal);
    return WHERRY_OK;
}

/**
 * Tries one lane. @return why the receive must end; `refusal->status` is WHERRY_OK where the lane
 * is taken.
 */
static wherry_status try_lane(wh_receive *receive, const wh_offered_lane *offered, wherry_error *refusal,
                              wherry_error *error) {
    wh_string request = {0};
    bool may_assist = false;
    wherry_status status = new_site(receive, error);
    if (status != WHERRY_OK) {
        return status;
    }
    refusal->status = receive->lane->traits & WH_LANE_ONE_SIDED ? check_addresses(receive, refusal) : WHERRY_OK;
    if (refusal->status == WHERRY_OK) {
        refusal->status = receive->lane->probe(&receive->site, offered->offer.bytes, offered->offer.size, &request,
                                               &may_assist, &receive->end, refusal);
    }
    if (refusal->status != WHERRY_OK && may_assist) {
        status = assist(receive, offered, &request, refusal, error);
    }
    if (status == WHERRY_OK && refusal->status == WHERRY_OK) {
        receive->verify = decide_verify(receive);
        wh_point("receiver probed");
        status = send_plan(receive, &request, error);
        wh_point("receiver sent the plan");
    }
    wh_free(request.bytes);
    return status;
}

/** Takes the next lane that works, from number *next on. */
static wherry_status choose(wh_receive *receive, size_t *next, wherry_error *error) {
    const wh_lane_choice *lanes = &receive->transfer.lanes;
    bool failed = false; /* a lane should have worked: the source may have ended it, or be gone, */
    wherry_status failure = WHERRY_UNSUPPORTED; /* which a lane may know before the group does */
    for (; *next < lanes->count; (*next)++) {
        wherry_error refusal = {.status = WHERRY_OK};
        wherry_status status = WHERRY_OK;
        if (wh_lane_choice_passes(lanes, lanes->lanes[*next], receive->leg.device)) {
            continue;
        }
        receive->lane = lanes->lanes[*next];
        const wh_offered_lane *offered = find_offer(receive, receive->lane);
        if (offered && check_lane(receive, &refusal) == WHERRY_OK) {
            status = try_lane(receive, offered, &refusal, error);
        } else if (!offered) {
            wh_fail(&refusal, WHERRY_UNSUPPORTED, "rank %d does not offer it", (int)receive->rank);
            refusal.reason = WHERRY_LANE_NOT_OFFERED;
        }
        if (status == WHERRY_OK && refusal.status == WHERRY_CANCELLED) {
            status = wh_transfer_must_end(&receive->transfer, "probing a lane", error);
            wh_fail_rank(error, receive->rank, status);
        }
        if (status != WHERRY_OK || refusal.status == WHERRY_OK) {
            return status;
        }
        /* the source has gone on: it is not the lane that does not work */
        if (refusal.status == WHERRY_ABORTED) {
            receive->lane = NULL;
            *error = refusal;
            return wh_receive_explain(receive, refusal.status, error);
        }
        failed = failed || refusal.status != WHERRY_UNSUPPORTED;
        failure = refusal.status == WHERRY_PEER_LOST ? WHERRY_PEER_LOST : failure;
        note_refusal(receive, receive->lane, &refusal);
        receive->lane = NULL;
    }
    wh_fail(error, failure, "no lane reaches rank %d: %s", (int)receive->rank,
            *receive->stats.reasons ? receive->stats.reasons : "none is allowed");
    error->rank = receive->rank;
    return failed ? wh_receive_explain(receive, failure, error) : failure;
}

/** Lanes that there are and that this call must not take. */
static void note_forbidden(wh_receive *receive) {
    const wherry_transport *transport = receive->transfer.transport;
    for (size_t i = 0; i < transport->lane_count; i++) {
        const char *name = transport->lanes[i]->name;
        if (!wh_lane_choice_find(&receive->transfer.lanes, name, strlen(name))) {
            wherry_error reason;
            wh_fail(&reason, WHERRY_UNSUPPORTED, "not allowed here");
            reason.reason = WHERRY_LANE_NOT_ALLOWED;
            wh_stats_skip_lane(&receive->stats, name, &reason);
        }
    }
}

/**
 * How many runs of memory are read or written; a small page is one, to a lane that takes each by
 * itself.
 */
static uint64_t count_runs(const wh_receive *receive) {
    const wherry_plan *plan = receive->plan;
    uint64_t pages = receive->summary.bytes / SMALL_PAGE;
    bool small = receive->offer.small_pages || wh_storages_on_small_pages(plan->kept, plan->kept_count, &plan->traits);
    return pages > receive->summary.copies && small ? pages : receive->summary.copies;
}

bool wh_receive_make_leg(wh_receive *receive, bool device) {
    const wh_space *space = &receive->plan->prepared->space;
    uint64_t border = space->order ? space->first_chunks : UINT64_MAX;
    uint64_t least = device ? border : 0;
    uint64_t most = device ? UINT64_MAX : border;
    size_t count = receive->wanted.count;
    const wherry_interval *all = receive->wanted.intervals;
    wh_free(receive->leg.intervals);
    receive->leg = (wh_leg){.device = device, .intervals = wh_alloc_array(count, sizeof(*all))};
    for (size_t i = 0; receive->leg.intervals && i < count; i++) {
        uint64_t first = wh_max(all[i].first, least);
        uint64_t behind = wh_min(all[i].first + all[i].count, most);
        if (first < behind) {
            receive->leg.intervals[receive->leg.count++] = (wherry_interval){first, behind - first};
            receive->leg.bytes += wh_space_chunk_begin(space, behind) - wh_space_chunk_begin(space, first);
        }
    }
    return receive->leg.intervals != NULL;
}

static void note_lane(wh_receive *receive) {
    wh_stats_add_lane(&receive->stats, receive->lane->name);
    receive->trace.lane = receive->lane->name;
    wh_log(WHERRY_LOG_INFO, "the lane from rank %d is %s%s", (int)receive->rank, receive->lane->name,
           receive->leg.device ? ", for the memory of devices" : "");
}

static wherry_status move_leg(wh_receive *receive, wherry_error *error) {
    size_t next = 0;
    wherry_stats before = receive->stats;
    for (;; next++) {
        receive->answer = 0;
        wherry_status status = choose(receive, &next, error);
        if (status != WHERRY_OK) {
            return status;
        }
        if (!receive->leg.device || receive->leg.bytes == receive->wanted_bytes) {
            receive->data_at = wh_clock_now();
        }
        note_lane(receive);
        status = wh_receive_data(receive, error);
        if (status == WHERRY_OK || receive->answer != WH_REFUSE_LANE) {
            return status;
        }
        wh_receive_end_lane(receive);
        if (receive->held) { /* what comes by another lane would be overwritten */
            return wh_fail_rank(
                error, receive->rank,
                wh_fail(error, WHERRY_CLOSED, "rank %d: %s", (int)receive->rank, receive->reason.message));
        }
        memcpy(receive->stats.lane, before.lane, sizeof(before.lane));
        memcpy(receive->stats.detail, before.detail, sizeof(before.detail));
        note_refusal(receive, receive->lane, &receive->reason);
    }
}

wherry_status wh_receive_bytes(wh_receive *receive, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_lane_choice_order(&receive->transfer.lanes, receive->summary.bytes, count_runs(receive));
    note_forbidden(receive);
    if (!wh_chunk_sink_init(&receive->sink, receive->plan, &receive->wanted, &receive->stop,
                            receive->transfer.deadline)) {
        return wh_fail_memory(error, "a receive");
    }
    receive->sink.trace = &receive->trace;
    for (int device = 0; device < 2 && status == WHERRY_OK; device++) {
        if (!wh_receive_make_leg(receive, device)) {
            status = wh_fail_memory(error, "a receive");
        } else if (receive->leg.count) {
            wh_receive_end_lane(receive);
            status = move_leg(receive, error);
        }
    }
    return status;
}
