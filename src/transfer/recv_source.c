#include "transfer/recv_source.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "lane/lane_timing.h"
#include "plan/plan.h"
#include "transfer/recv.h"

/**
 * A device copies this much, in runs of this length on average, before threads would have started.
 */
#define QUICK_BYTES (UINT64_C(4) << 30)
#define QUICK_RUN (UINT64_C(256) << 10)

enum {
    EXPLAIN_MS = 300,      /**< How long a broken lane waits for the source's own reason. */
    COMPARE_MS = 2000,     /**< How long one that compares may be silent, if there are others. */
    END_MS = 1000,         /**< How long a session may take to end when all its chunks have come. */
    OPEN_MS = 2000,        /**< How long a source may take to open a lane, if there are others. */
    OPEN_DOUBLES_MAX = 5,  /**< How often that time doubles, so that slow ones succeed at last. */
    ALONE_BYTES = 1 << 20, /**< Up to this size, starting threads costs more than it saves. */
    DAMAGED_MAX = 2,       /**< How often a source may send damaged chunks. */
};

uint64_t wh_source_bytes(const wh_recv_source *source) {
    return source->recv->stats.sources[source->number].bytes + atomic_load(&source->pull.session.moved);
}

/* ---- failures ---- */

void wh_source_fail(wh_recv_source *source, wherry_status status, const wherry_error *error, bool tell) {
    if (source->state == WH_SOURCE_GONE) {
        return;
    }
    source->told = source->told || !tell || source->state == WH_SOURCE_ABSENT;
    source->failure = *error;
    source->failure.status = status;
    if (source->failure.rank < 0) {
        source->failure.rank = source->rank;
    }
    source->state = WH_SOURCE_GONE;
    wh_session_stop(&source->pull.session);
    if (source->recv->source_count > 1) {
        wh_log(WHERRY_LOG_WARN, "the receive goes on without rank %d: %s", (int)source->rank, error->message);
    }
}

/** Tells the source how the receive from it has ended, unless it knows. Its session is closed. */
static void say_goodbye(wh_recv_source *source, wherry_status status, const wherry_error *error, wh_deadline deadline) {
    wherry_transport *transport = source->recv->call.transport;
    bool offered = source->offer_message.bytes != NULL;
    if (source->told || source->state == WH_SOURCE_ABSENT) {
        return;
    }
    wh_note note = {.type = offered ? WH_ABORT : WH_WITHDRAW, .nonce = wh_inbox_tag(source->recv->inbox)};
    source->told = true;
    if (status == WHERRY_OK && offered) {
        note = (wh_note){.type = WH_DONE, .epoch = source->offer.epoch, .bytes = wh_source_bytes(source)};
    } else if (status != WHERRY_OK) {
        wh_note_reason(&note, status, error);
    }
    wh_note_try_send(&note, transport->group, source->rank, offered ? source->offer.id : transport->tag, deadline);
}

/** The lane failed: the source fails a moment later, because a better reason may come. */
static void break_source(wh_recv_source *source, wherry_status status, const wherry_error *error) {
    if (source->state < WH_SOURCE_BROKEN) {
        source->state = WH_SOURCE_BROKEN;
        source->failure = *error;
        source->failure.status = status;
        source->failure.rank = source->rank;
        source->since = wh_clock_now();
        wh_session_stop(&source->pull.session);
    }
}

wherry_status wh_source_tell(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_error why;
    recv->stats.messages++;
    wh_deadline patience = wh_deadline_in_ms(recv->call.options.no_progress_ms);
    wherry_status status = wh_note_send(note, &recv->call, source->rank, source->offer.id,
                                        wh_deadline_earlier(recv->call.deadline, patience), &why);
    if (status == WHERRY_OK) {
        return WHERRY_OK;
    }
    if (wh_call_must_end(&recv->call, "sending a message", error) != WHERRY_OK || status == WHERRY_CLOSED) {
        *error = why;
        return status;
    }
    wh_source_fail(source, status, &why, false);
    return WHERRY_OK;
}

/* ---- messages ---- */

wherry_status wh_source_ask(wh_recv_source *source, wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_transport *transport = recv->call.transport;
    const wherry_transfer_options *options = &recv->call.options;
    wh_mailbox *mailbox = transport->group->mailbox;
    bool alone = recv->source_count == 1;
    wh_note want = {
        .type = WH_WANT,
        .nonce = wh_inbox_tag(recv->inbox),
        .step = options->step,
        .verify = (uint8_t)(options->verify == WHERRY_VERIFY_ALL ? WHERRY_VERIFY_ON : options->verify),
    };
    if (recv->agreed.as_source) {
        want.known = (wh_bytes){recv->agreed.as_source->fingerprint.bytes, WHERRY_DIGEST_BYTES};
    }
    source->incarnation = wh_mailbox_incarnation(mailbox, source->rank);
    if (!alone && !source->incarnation) {
        wh_group_watch(transport->group, source->rank);
    }
    wherry_error why;
    wherry_status status = wh_note_send(&want, &recv->call, source->rank, transport->tag,
                                        alone ? recv->call.deadline : wh_deadline_in_ms(0), &why);
    if (status == WHERRY_OK) {
        recv->stats.messages++;
        source->state = WH_SOURCE_ASKED;
        wh_point("receiver asked");
        return WHERRY_OK;
    }
    if (status == WHERRY_TIMED_OUT && !alone) {
        return WHERRY_OK; /* It has not joined yet: asked again later. */
    }
    if (status == WHERRY_TIMED_OUT) {
        wh_fail(error, status, "timed out after %.3f s while asking for a checkpoint: rank %d %s",
                wh_seconds(recv->call.begin, wh_clock_now()), (int)source->rank,
                wh_mailbox_incarnation(mailbox, source->rank) ? "takes no messages" : "has not joined");
        return wh_fail_rank(error, source->rank, status);
    }
    if (alone || status == WHERRY_CANCELLED || status == WHERRY_CLOSED) {
        *error = why;
        return status;
    }
    wh_source_fail(source, status, &why, false);
    return WHERRY_OK;
}

static void take_answer(wh_recv_source *source, const wh_note *note) {
    if (source->answer == WH_CONFIRM) {
        return; /* only CONFIRMED answers that */
    }
    source->answer = note->type;
    source->reason = (wherry_error){.status = WHERRY_OK};
    if (note->status != WHERRY_OK) {
        wh_fail(&source->reason, WHERRY_REFUSED, "%.*s", (int)note->text.size, (const char *)note->text.bytes);
    }
    if (note->type == WH_REFUSE_LANE) {
        wh_session_stop(&source->pull.session);
    }
}

static wherry_status take_digests(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    wh_liveness_note(&source->heard);
    size_t count = note->digests.size / WHERRY_DIGEST_BYTES;
    /* A source is compared only in chunks that came from others: this tells the answers apart. */
    /* else, digests of a recalled session may come */
    bool strict = source->recv->source_count == 1;
    bool compared = source->comparing && wh_chunk_set_has(source->comparing->chunks, note->first);
    bool taken = compared ? wh_comparing_take(source->comparing, note->first, note->digests.bytes, count, strict)
                          : wh_chunks_claim(&source->recv->chunks, source->number, note->first, note->digests.bytes,
                                            count, strict);
    return taken ? WHERRY_OK
                 : wh_fail(error, WHERRY_MALFORMED, "rank %d sent digests that nobody asked for", (int)source->rank);
}

static wherry_status take_note(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    switch (note->type) {
    case WH_RELEASED:
    case WH_CONFIRMED:
        if (note->epoch == source->offer.epoch) {
            source->answer = note->type;
        }
        return WHERRY_OK;
    case WH_REFUSE_LANE:
        if (note->session == source->sessions) {
            take_answer(source, note);
        }
        return WHERRY_OK;
    case WH_ASSISTED:
        take_answer(source, note);
        return WHERRY_OK;
    case WH_DIGESTS:
        return take_digests(source, note, error);
    case WH_PROGRESS:
        wh_liveness_report(&source->heard, note->bytes);
        return WHERRY_OK;
    case WH_REVOKED:
        return wh_fail_note(error, WHERRY_REVOKED, source->rank, note,
                            "took its offer back, what was received is not valid");
    case WH_ABORT:
        source->told = true;
        return wh_fail_note(error, note->status == WHERRY_MISMATCH ? WHERRY_MISMATCH : WHERRY_ABORTED, source->rank,
                            note, "gave up");
    default:
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of type %d, which only a receiver sends",
                       (int)source->rank, (int)note->type);
    }
}

/** Takes over the message. */
static wherry_status take_offer(wh_recv_source *source, wh_message *message, const wh_note *note) {
    source->offer_message = *message;
    source->offer = *note;
    *message = (wh_message){.channel = -1};
    source->state = WH_SOURCE_OFFERED;
    wh_liveness_note(&source->heard);
    return WHERRY_OK;
}

void wh_source_take(wh_recv_source *source, wh_message *message) {
    wherry_error error;
    wh_note note;
    if (source->state == WH_SOURCE_GONE || source->state == WH_SOURCE_ABSENT) {
        return;
    }
    if (message->kind == WH_MESSAGE_LOST) {
        if (message->incarnation >= source->incarnation) {
            wh_fail(&error, WHERRY_PEER_LOST, "rank %d was lost: %.*s", (int)source->rank, (int)message->size,
                    message->bytes ? (const char *)message->bytes : "");
            wh_source_fail(source, WHERRY_PEER_LOST, &error, false);
        }
        return;
    }
    if (message->kind != WH_MESSAGE_BYTES) {
        return;
    }
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, &error);
    if (status == WHERRY_OK && note.type == WH_OFFER && source->state == WH_SOURCE_ASKED) {
        status = take_offer(source, message, &note);
    } else if (status == WHERRY_OK) {
        status = take_note(source, &note, &error);
    }
    if (status != WHERRY_OK) {
        wh_source_fail(source, status, &error, true);
    }
}

/** True if another source can be asked instead. */
static bool has_others(const wh_recv_source *source) {
    const wh_recv *recv = source->recv;
    for (size_t i = 0; i < recv->source_count; i++) {
        if (recv->sources + i != source && wh_source_is_usable(recv->sources + i)) {
            return true;
        }
    }
    return false;
}

/**
 * True if the source takes so long to open a lane that others should be asked: meanwhile, this
 * thread serves nobody else.
 */
static bool is_slow(wh_recv_source *source) {
    uint64_t limit = (uint64_t)OPEN_MS << wh_min(source->slow_times, OPEN_DOUBLES_MAX);
    source->slow = source->slow || (source->opening && has_others(source) &&
                                    wh_clock_now() - source->since > limit * UINT64_C(1000000));
    return source->slow;
}

wherry_status wh_source_await(wh_recv_source *source, wh_message_type type, const char *doing, wherry_error *error) {
    wh_recv *recv = source->recv;
    int64_t patience = recv->call.options.no_progress_ms;
    wh_deadline limit = wh_deadline_in_ms(patience);
    while (source->state == WH_SOURCE_OFFERED && source->answer != type && source->answer != WH_REFUSE_LANE &&
           !is_slow(source)) {
        if (wh_deadline_passed(limit)) {
            wherry_error why;
            wh_fail(&why, WHERRY_TIMED_OUT, "rank %d: timed out while %s: no answer for %lld ms", (int)source->rank,
                    doing, (long long)patience);
            wh_source_fail(source, WHERRY_TIMED_OUT, &why, true);
            break;
        }
        WH_TRY(wh_recv_pump(recv, wh_deadline_earlier(limit, wh_call_tick(&recv->call)), doing, error));
    }
    return WHERRY_OK;
}

/* ---- choosing a lane ---- */

static const wh_offered_lane *find_offer(const wh_recv_source *source, const wh_lane_ops *lane) {
    for (size_t i = 0; i < source->offer.lane_count; i++) {
        const wh_offered_lane *one = source->offer.lanes + i;
        if (one->name.size == strlen(lane->name) && memcmp(one->name.bytes, lane->name, one->name.size) == 0) {
            return one;
        }
    }
    return NULL;
}

static void note_refusal(wh_recv_source *source, const wh_lane_ops *lane, const wherry_error *reason) {
    bool failed = reason->status != WHERRY_UNSUPPORTED;
    wh_log(failed ? WHERRY_LOG_WARN : WHERRY_LOG_INFO, "the lane %s from rank %d does not work: %s", lane->name,
           (int)source->rank, reason->message);
    wh_stats_skip_lane(&source->recv->stats, lane->name, reason);
}

/** Checks that the source gave one address per storage. */
static wherry_status check_addresses(const wh_recv_source *source, wherry_error *error) {
    wherry_prepared_summary summary;
    wherry_prepared_summarize(wherry_plan_prepared(source->recv->agreed.plan), &summary);
    size_t size = source->offer.addresses.size;
    return size / 8 == summary.storages && size % 8 == 0
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "the source gave %zu addresses for %" PRIu64 " storages", size / 8,
                         summary.storages);
}

static bool decide_verify(const wh_recv_source *source, const wh_lane_ops *lane) {
    wherry_verify said = source->recv->call.options.verify;
    if (said == WHERRY_VERIFY_DEFAULT && source->offer.verify <= WHERRY_VERIFY_OFF) {
        said = (wherry_verify)source->offer.verify;
    }
    return said == WHERRY_VERIFY_DEFAULT ? (lane->traits & WH_LANE_NETWORK) != 0 : said != WHERRY_VERIFY_OFF;
}

/** Checks whether a lane can move the chunks of this leg at all. */
static wherry_status check_lane(const wh_recv_source *source, const wh_lane_ops *lane, wherry_error *error) {
    uint32_t traits = lane->traits;
    if (!source->recv->on_device) {
        return traits & WH_LANE_DEVICE ? wh_fail(error, WHERRY_UNSUPPORTED, "it moves only device memory") : WHERRY_OK;
    }
    if (!(traits & (WH_LANE_DEVICE | WH_LANE_STAGES))) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "it moves only host memory, and the source's is on a device");
    }
    return traits & WH_LANE_DEVICE && decide_verify(source, lane)
               ? wh_fail(error, WHERRY_UNSUPPORTED, "digests are wanted, and they are computed on the host")
               : WHERRY_OK;
}

/**
 * The question of the stop while this thread probes. Offers of other sources are taken meanwhile:
 * without them, a stopped source would seem to be the only one, and hold up the receive.
 */
static bool must_stop_probe(void *context) {
    wh_recv_source *source = context;
    if (source->recv->source_count > 1) {
        wh_recv_take_waiting(source->recv);
    }
    return wh_call_is_cancelled(&source->recv->call) || is_slow(source);
}

static wherry_status prepare_session(wh_recv_source *source, const wh_lane_ops *lane, wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_call *call = &recv->call;
    wh_lane_site site = {
        .group = call->transport->group,
        .peer = source->rank,
        .tag = source->offer.id,
        .threads = call->options.threads,
        .keep_ptracer = call->options.flags & WHERRY_KEEP_PTRACER,
        .deadline = call->deadline,
        .no_progress_ms = (uint32_t)call->options.no_progress_ms,
        .devices = recv->agreed.plan->traits.cuda,
        .ordered = call->lanes.ordered,
        .held_p = &recv->held,
    };
    source->pull = (wh_pull){.chunks = &recv->chunks, .source = source->number};
    WH_TRY(wh_session_prepare(&source->pull.session, lane, &site, recv->inbox, error));
    /* While this thread probes, it asks the interrupt, and a cancel ends the probe. */
    wh_call_set_stop(call, &source->pull.session.stop);
    wh_stop_set_question(&source->pull.session.stop, must_stop_probe, source);
    /* A lane between devices takes long to open, and is not tried again soon after a failure. */
    source->opening = !(lane->traits & WH_LANE_DEVICE);
    source->slow = false;
    source->since = wh_clock_now();
    return WHERRY_OK;
}

static void close_session(wh_recv_source *source) {
    wh_call_set_stop(&source->recv->call, &source->recv->stop);
    wh_session_close(&source->pull.session);
}

/** Asks the source for help, and probes again. `refusal` receives the result of the probe. */
static wherry_status assist(wh_recv_source *source, const wh_offered_lane *offered, wh_string *request,
                            wherry_error *refusal, wherry_error *error) {
    wh_session *session = &source->pull.session;
    wh_note note = {
        .type = WH_ASSIST,
        .lane = {session->lane->name, strlen(session->lane->name)},
        .request = {request->bytes, request->size},
    };
    source->answer = 0;
    WH_TRY(wh_source_tell(source, &note, error));
    WH_TRY(wh_source_await(source, WH_ASSISTED, "waiting for the source to open a lane", error));
    if (source->state != WH_SOURCE_OFFERED || source->slow) {
        return WHERRY_OK;
    }
    if (source->reason.status != WHERRY_OK) {
        wherry_error first = *refusal;
        wh_fail(refusal, first.status, "%s; the source does not open it: %s", first.message, source->reason.message);
        return WHERRY_OK;
    }
    bool again = false;
    request->size = 0;
    refusal->status = session->lane->probe(&session->site, offered->offer.bytes, offered->offer.size, request, &again,
                                           &session->end, refusal);
    return WHERRY_OK;
}

/** Tries one lane. refusal->status is WHERRY_OK if it works; then `request` is for the source. */
static wherry_status try_lane(wh_recv_source *source, const wh_lane_ops *lane, const wh_offered_lane *offered,
                              wh_string *request, wherry_error *refusal, wherry_error *error) {
    wh_session *session = &source->pull.session;
    bool may_assist = false;
    wherry_status status = WHERRY_OK;
    WH_TRY(prepare_session(source, lane, error));
    refusal->status = lane->traits & WH_LANE_ONE_SIDED ? check_addresses(source, refusal) : WHERRY_OK;
    if (refusal->status == WHERRY_OK) {
        refusal->status = lane->probe(&session->site, offered->offer.bytes, offered->offer.size, request, &may_assist,
                                      &session->end, refusal);
    }
    if (refusal->status != WHERRY_OK && may_assist) {
        status = assist(source, offered, request, refusal, error);
    }
    source->opening = false;
    source->slow_times += source->slow;
    if (status != WHERRY_OK || refusal->status != WHERRY_OK || source->state != WH_SOURCE_OFFERED || source->slow) {
        close_session(source);
        request->size = 0;
    }
    return status;
}

/**
 * Finds the next lane that works, from source->next_lane on, and opens its end. If none does, the
 * source is BROKEN or GONE.
 */
static wherry_status choose_lane(wh_recv_source *source, wh_string *request, wherry_error *error) {
    wh_recv *recv = source->recv;
    const wh_lane_list *lanes = &recv->call.lanes;
    bool failed = false; /* A lane should have worked: the source may be gone. */
    wherry_status failure = WHERRY_UNSUPPORTED;
    wherry_error why;
    for (; source->next_lane < lanes->count && source->state == WH_SOURCE_OFFERED; source->next_lane++) {
        const wh_lane_ops *lane = lanes->lanes[source->next_lane];
        wherry_error refusal = {.status = WHERRY_OK};
        if (wh_lane_is_skipped(lanes, lane, recv->on_device)) {
            continue;
        }
        const wh_offered_lane *offered = find_offer(source, lane);
        if (!offered) {
            wh_fail(&refusal, WHERRY_UNSUPPORTED, "rank %d does not offer it", (int)source->rank);
            refusal.reason = WHERRY_LANE_NOT_OFFERED;
        } else if (check_lane(source, lane, &refusal) == WHERRY_OK) {
            WH_TRY(try_lane(source, lane, offered, request, &refusal, error));
        }
        if (refusal.status == WHERRY_OK || source->slow) {
            return WHERRY_OK;
        }
        if (refusal.status == WHERRY_CANCELLED) {
            wherry_status status = wh_call_must_end(&recv->call, "probing a lane", error);
            if (status != WHERRY_OK) {
                return wh_fail_rank(error, source->rank, status);
            }
        }
        /* The source has ended; the lane is not at fault. */
        if (refusal.status == WHERRY_ABORTED) {
            break_source(source, refusal.status, &refusal);
            return WHERRY_OK;
        }
        failed = failed || refusal.status != WHERRY_UNSUPPORTED;
        failure = refusal.status == WHERRY_PEER_LOST ? WHERRY_PEER_LOST : failure;
        note_refusal(source, lane, &refusal);
    }
    if (source->state == WH_SOURCE_OFFERED) {
        wh_fail(&why, failure, "no lane reaches rank %d: %s", (int)source->rank,
                *recv->stats.reasons ? recv->stats.reasons : "none is allowed");
        why.rank = source->rank;
        if (failed) {
            break_source(source, failure, &why);
        } else {
            wh_source_fail(source, failure, &why, true);
        }
    }
    return WHERRY_OK;
}

/* ---- requests ---- */

/** The chunks as intervals. @return NULL if there is no memory. */
static wherry_interval *intervals_of(const uint64_t *chunks, size_t count, size_t *interval_count_p) {
    wherry_interval *intervals = wh_alloc_array(wh_max(count, 1), sizeof(*intervals));
    size_t used = 0;
    for (size_t i = 0; intervals && i < count; i++) {
        if (used && intervals[used - 1].first + intervals[used - 1].count == chunks[i]) {
            intervals[used - 1].count++;
        } else {
            intervals[used++] = (wherry_interval){chunks[i], 1};
        }
    }
    *interval_count_p = used;
    return intervals;
}

static wherry_status pull_all(void *context, uint32_t worker, wherry_error *error) {
    wh_pull *pull = context;
    wh_sink sink = wh_pull_sink(pull);
    const wh_lane_ops *lane = pull->session.lane;
    wherry_status status = WHERRY_OK;
    bool done = false;
    if (lane->pull) {
        return lane->pull(pull->session.end, worker, &sink, error);
    }
    while (status == WHERRY_OK && !done) {
        status = lane->pull_some(pull->session.end, &sink, WH_BLOCKS_WAIT_MS, &done, error);
    }
    return status;
}

/** True if starting threads costs more than it saves. */
static bool is_quick(const wh_recv_source *source, uint64_t bytes) {
    uint32_t traits = source->lane->traits;
    uint64_t runs = source->recv->agreed.summary.copies + 1;
    return (traits & WH_LANE_ONE_SIDED && bytes <= ALONE_BYTES) ||
           (traits & WH_LANE_DEVICE && bytes <= QUICK_BYTES && bytes / runs >= QUICK_RUN);
}

/** Starts to pull, in threads or in this one. */
static wherry_status start(wh_recv_source *source, size_t chunks, uint64_t bytes, bool last, wherry_error *error) {
    wh_session *session = &source->pull.session;
    wh_recv *recv = source->recv;
    wherry_error why;
    wh_liveness_note(&source->heard);
    recv->stats.workers = 1;
    if (wh_lane_runs_in_caller(session->lane, session->site.group)) {
        session->in_caller = true;
        return WHERRY_OK;
    }
    if (last && is_quick(source, bytes)) {
        session->in_caller = true;
        wherry_status status = pull_all(&source->pull, 0, &why);
        wh_session_note_step(session, true, status, &why);
        return WHERRY_OK;
    }
    /* The workers do not ask the interrupt: this thread does. */
    wh_call_set_stop(&recv->call, &recv->stop);
    wh_stop_set_question(&session->stop, NULL, NULL);
    uint64_t workers = wh_min(session->end->workers, WH_WORKERS_MAX);
    workers = session->lane->traits & WH_LANE_ONE_SIDED && last ? wh_min(workers, chunks) : workers;
    recv->stats.workers = (uint32_t)workers;
    return wh_session_start(session, (uint32_t)workers, pull_all, &source->pull, error);
}

static void note_lane(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    wh_stats_add_lane(&recv->stats, source->lane->name);
    recv->chunks.sources[source->number].rank = source->rank;
    recv->chunks.sources[source->number].lane = source->lane->name;
    recv->checked = recv->checked || source->pull.verify;
    wh_log(WHERRY_LOG_INFO, "the lane from rank %d is %s%s", (int)source->rank, source->lane->name,
           recv->on_device ? ", for device memory" : "");
}

/** Sends PLAN or REQUEST, and appends the same chunks to the session. */
static wherry_status send_request(wh_recv_source *source, wh_note *note, const uint64_t *chunks, size_t count,
                                  wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_string list = {0};
    size_t interval_count;
    wherry_interval *intervals = intervals_of(chunks, count, &interval_count);
    bool ok = intervals != NULL;
    for (size_t i = 0; i < count && ok; i++) {
        ok = WH_GROW(source->outstanding, source->outstanding_capacity, source->outstanding_count);
        if (ok) {
            source->outstanding[source->outstanding_count++] = chunks[i];
            wh_chunks_assign(&recv->chunks, chunks[i], source->number);
        }
    }
    /* Workers may begin at once, so the chunks are assigned before. After the last request there is
     * nothing to ask for: waking this thread for each chunk would take time from the workers. */
    atomic_store(&source->pull.wakes, recv->schedule && !note->last);
    ok = ok && wh_session_request(&source->pull.session, intervals, interval_count, note->last);
    if (ok) {
        wh_intervals_encode(intervals, interval_count, &list);
    }
    note->intervals = (wh_bytes){list.bytes, list.size};
    wherry_status status =
        !ok || list.failed ? wh_fail_memory(error, "a request") : wh_source_tell(source, note, error);
    recv->stats.chunks += count;
    wh_free(intervals);
    wh_free(list.bytes);
    return status;
}

/** Opens a session over the next lane that works, with these chunks as its first request. */
static wherry_status open_session(wh_recv_source *source, const uint64_t *chunks, size_t count, bool last,
                                  wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_pull *pull = &source->pull;
    wh_string request = {0};
    source->answer = 0;
    source->slow = false;
    wherry_status status = choose_lane(source, &request, error);
    if (status == WHERRY_OK && wh_session_is_open(&pull->session)) {
        source->lane = pull->session.lane;
        pull->verify = decide_verify(source, source->lane);
        pull->addresses = source->lane->traits & WH_LANE_ONE_SIDED ? source->offer.addresses.bytes : NULL;
        source->sessions++;
        wh_point("receiver probed");
        uint64_t bytes = wh_recv_bytes_of_chunks(recv, chunks, count);
        wh_note plan = {
            .type = WH_PLAN,
            .session = source->sessions,
            .lane = {source->lane->name, strlen(source->lane->name)},
            .request = {request.bytes, request.size},
            .verify = pull->verify,
            .last = last,
            .bytes = bytes,
        };
        bool ok = !request.failed && (!pull->verify || wh_chunks_reserve_digests(&recv->chunks));
        status = ok ? send_request(source, &plan, chunks, count, error) : wh_fail_memory(error, "a plan");
        wh_point("receiver sent the plan");
        if (status == WHERRY_OK && source->state == WH_SOURCE_OFFERED) {
            if (!recv->moments[WH_AT_DATA]) {
                recv->moments[WH_AT_DATA] = wh_clock_now();
            }
            note_lane(source);
            source->since = wh_clock_now();
            status = start(source, count, bytes, last, error);
        }
    }
    wh_free(request.bytes);
    return status;
}

wherry_status wh_source_request(wh_recv_source *source, const uint64_t *chunks, size_t count, bool last,
                                wherry_error *error) {
    if (!wh_session_is_open(&source->pull.session)) {
        return open_session(source, chunks, count, last, error);
    }
    wh_note note = {.type = WH_REQUEST, .last = last, .bytes = wh_recv_bytes_of_chunks(source->recv, chunks, count)};
    return send_request(source, &note, chunks, count, error);
}

/* ---- looking after it ---- */

static void fail_corrupt(wh_recv_source *source, uint64_t chunk, uint64_t count) {
    wherry_error error;
    wh_fail(&error, WHERRY_CORRUPT,
            "%" PRIu64 " chunks from rank %d came damaged %d times; suspect the memory or the network between the two",
            count, (int)source->rank, DAMAGED_MAX + 1);
    wh_recv_fail_chunk(source->recv, chunk, &error);
    error.rank = source->rank;
    wh_source_fail(source, WHERRY_CORRUPT, &error, true);
}

/** Reports chunks that are complete or damaged, and removes them from the outstanding list. */
static void collect(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    size_t kept = 0;
    for (size_t i = 0; i < source->outstanding_count; i++) {
        uint64_t chunk = source->outstanding[i];
        wh_chunk_state state = wh_chunks_judge(&recv->chunks, chunk);
        if (state == WH_CHUNK_LANDED) {
            recv->stats.sources[source->number].chunks++;
            wh_recv_note_landed(recv, source, chunk);
        } else if (state == WH_CHUNK_BAD && !recv->schedule) {
            source->outstanding[kept++] = chunk; /* counted when the session has ended */
        } else if (state == WH_CHUNK_BAD) {
            recv->stats.retries++;
            source->damaged++;
            wh_chunks_take_back(&recv->chunks, chunk);
            wh_recv_note_lost(recv, source, chunk);
            if (source->damaged > DAMAGED_MAX) {
                fail_corrupt(source, chunk, 1);
            }
        } else {
            source->outstanding[kept++] = chunk;
        }
    }
    source->outstanding_count = kept;
}

/** Takes back what was requested and has not come. No worker runs. */
static void take_back_all(wh_recv_source *source) {
    wh_chunks_settle(&source->recv->chunks, NULL); /* nothing may be written to a device any more */
    collect(source);
    for (size_t i = 0; i < source->outstanding_count; i++) {
        wh_chunks_take_back(&source->recv->chunks, source->outstanding[i]);
        wh_recv_note_lost(source->recv, source, source->outstanding[i]);
    }
    source->outstanding_count = 0;
}

/** Closes a session whose workers have ended or were stopped. */
static void end_session(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    wh_session *session = &source->pull.session;
    wh_workers_join(&session->workers, NULL);
    wh_stats_describe_lane(&recv->stats, session->lane, session->end);
    recv->stats.sources[source->number].bytes += atomic_load(&session->moved);
    /* so far, seconds */
    recv->stats.sources[source->number].rate += wh_seconds(session->opened_at, wh_clock_now());
    close_session(source);
    source->recalled = false;
}

/**
 * With one source: chunks that came damaged are requested again, a few times. No session is open.
 */
static void look_at_damage(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    uint64_t bad = 0;
    uint64_t first = 0;
    for (size_t i = 0; i < source->outstanding_count; i++) {
        uint64_t place = wh_chunk_set_find(&recv->chunks.wanted, source->outstanding[i]);
        if (wh_chunks_state(&recv->chunks, place) == WH_CHUNK_BAD) {
            first = bad++ ? first : source->outstanding[i];
        }
    }
    if (!bad) {
        return;
    }
    if (source->damaged++ == DAMAGED_MAX) {
        fail_corrupt(source, first, bad);
        return;
    }
    wh_log(WHERRY_LOG_WARN, "%" PRIu64 " chunks from rank %d came damaged and are requested again", bad,
           (int)source->rank);
    recv->stats.retries += (uint32_t)bad;
}

/** The workers of the session have ended by themselves. */
static wherry_status look_at_end(wh_recv_source *source, wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_error why;
    if (wh_workers_exist(&source->pull.session.workers) || !recv->moments[WH_AT_LANDED]) {
        recv->moments[WH_AT_LANDED] = wh_clock_now();
    }
    wherry_status status = wh_session_join(&source->pull.session, &why);
    WH_THEN(status, wh_recv_settle(recv, &why));
    collect(source);
    if (source->answer == WH_REFUSE_LANE) {
        const wh_lane_ops *lane = source->lane;
        char detail[WHERRY_LANE_DETAIL_MAX]; /* this lane has moved nothing */
        memcpy(detail, recv->stats.detail, sizeof(detail));
        end_session(source);
        memcpy(recv->stats.detail, detail, sizeof(detail));
        wh_stats_remove_lane(&recv->stats, lane->name);
        if (recv->held) { /* what comes over another lane could be overwritten */
            wh_fail(error, WHERRY_CLOSED, "rank %d: %s", (int)source->rank, source->reason.message);
            return wh_fail_rank(error, source->rank, WHERRY_CLOSED);
        }
        take_back_all(source);
        note_refusal(source, lane, &source->reason);
        source->next_lane++;
        return WHERRY_OK;
    }
    if (source->recalled) {
        wh_recv_note_recalled(recv, source);
        end_session(source);
        take_back_all(source);
        return WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        break_source(source, status, &why);
        return WHERRY_OK;
    }
    bool unchecked = false;
    uint64_t missing = 0;
    for (size_t i = 0; i < source->outstanding_count; i++) {
        uint64_t place = wh_chunk_set_find(&recv->chunks.wanted, source->outstanding[i]);
        wh_chunk_state state = wh_chunks_state(&recv->chunks, place);
        unchecked = unchecked || state == WH_CHUNK_UNCHECKED;
        missing += state < WH_CHUNK_UNCHECKED;
    }
    if (missing) {
        wh_fail(&why, WHERRY_TRUNCATED, "rank %d ended before %" PRIu64 " chunks had come", (int)source->rank, missing);
        wh_source_fail(source, WHERRY_TRUNCATED, &why, true);
    }
    if (unchecked && source->state == WH_SOURCE_OFFERED) {
        return WHERRY_OK; /* the digests are on their way */
    }
    end_session(source);
    look_at_damage(source);
    take_back_all(source);
    return WHERRY_OK;
}

void wh_source_check_progress(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    int64_t limit = recv->call.options.no_progress_ms;
    bool works = source->outstanding_count || source->comparing;
    bool compares_first = source->comparing && !recv->schedule;
    uint64_t bytes = compares_first ? atomic_load(&recv->chunks.moved) : wh_source_bytes(source);
    if (source->comparing && has_others(source)) {
        limit = wh_min(limit, COMPARE_MS); /* everybody waits for these digests */
    }
    if (works && source->state == WH_SOURCE_OFFERED && wh_liveness_is_over(&source->heard, bytes, limit)) {
        wherry_error error;
        wh_fail(&error, WHERRY_TIMED_OUT,
                "rank %d: timed out: no byte has come for %lld ms, at %" PRIu64 " of %" PRIu64, (int)source->rank,
                (long long)limit, wh_source_bytes(source), recv->agreed.wanted_bytes);
        wh_source_fail(source, WHERRY_TIMED_OUT, &error, true);
    }
}

/** A rank that was lost and is back may be asked again. */
static void look_for_return(wh_recv_source *source) {
    wh_mailbox *mailbox = source->recv->call.transport->group->mailbox;
    uint64_t present = wh_mailbox_incarnation(mailbox, source->rank);
    bool replaced = source->scheduled < 0 && source != source->recv->first;
    if (source->failure.status == WHERRY_PEER_LOST && present > source->incarnation && replaced) {
        wh_log(WHERRY_LOG_INFO, "rank %d is back and is asked again", (int)source->rank);
        wh_message_clear(&source->offer_message);
        source->offer_message = (wh_message){.channel = -1};
        source->told = false;
        source->next_lane = 0;
        source->state = WH_SOURCE_ABSENT;
    }
}

/**
 * All chunks of a session have come, but some lanes end only when the source says so. One that has
 * stopped must not hold up the receive.
 */
static void look_at_idle_session(wh_recv_source *source) {
    const wh_session *session = &source->pull.session;
    bool stoppable = !(session->lane->traits & WH_LANE_GROUP);
    if (!session->queue.last || source->outstanding_count || source->recalled || !stoppable) {
        source->idle_since = 0;
    } else if (!source->idle_since) {
        source->idle_since = wh_clock_now();
    } else if (wh_clock_now() - source->idle_since > END_MS * UINT64_C(1000000)) {
        wh_log(WHERRY_LOG_INFO, "rank %d does not end its session, so it is closed here", (int)source->rank);
        wh_source_recall(source);
    }
}

wherry_status wh_source_look(wh_recv_source *source, wherry_error *error) {
    wh_session *session = &source->pull.session;
    bool open = wh_session_is_open(session);
    if (open && source->recv->schedule) {
        wh_delivery_poll(&source->recv->chunks.delivery);
        collect(source);
        look_at_idle_session(source);
    }
    if (open && source->state == WH_SOURCE_OFFERED && wh_session_has_ended(session)) {
        WH_TRY(look_at_end(source, error));
    }
    if (open && source->state == WH_SOURCE_GONE && wh_session_has_ended(session)) {
        end_session(source);
        take_back_all(source);
    }
    if (source->state == WH_SOURCE_BROKEN && wh_clock_now() - source->since > EXPLAIN_MS * UINT64_C(1000000)) {
        wherry_error why = source->failure;
        wh_source_fail(source, why.status, &why, true);
    }
    wh_source_check_progress(source);
    if (source->state == WH_SOURCE_GONE && !wh_session_is_open(session) && source->recv->source_count > 1) {
        say_goodbye(source, source->failure.status, &source->failure, wh_deadline_in_ms(0));
        look_for_return(source);
    }
    return WHERRY_OK;
}

void wh_source_recall(wh_recv_source *source) {
    if (!source->recalled && wh_session_is_open(&source->pull.session)) {
        wh_note note = {.type = WH_CLOSE};
        source->recalled = true;
        wh_session_stop(&source->pull.session);
        wh_note_try_send(&note, source->recv->call.transport->group, source->rank, source->offer.id, wh_call_grace());
    }
}

void wh_source_end(wh_recv_source *source, wherry_status status, const wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_transport *transport = recv->call.transport;
    bool offered = source->offer_message.bytes != NULL;
    if (wh_session_is_open(&source->pull.session)) {
        wh_session_stop(&source->pull.session);
        end_session(source);
        if (!recv->held) {
            wh_chunks_settle(&recv->chunks, NULL);
        }
        collect(source);
    }
    bool lost = source->state == WH_SOURCE_GONE && source->failure.status == WHERRY_PEER_LOST;
    if (lost || offered) {
        wh_transport_forget(transport, transport->group, source->rank, lost, lost ? NULL : source->lane);
    }
    say_goodbye(source, status, error, wh_call_grace());
}

void wh_source_destroy(wh_recv_source *source) {
    wh_session_close(&source->pull.session);
    wh_message_clear(&source->offer_message);
    wh_free(source->outstanding);
}
