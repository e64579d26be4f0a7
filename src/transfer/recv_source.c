#include "transfer/recv_source.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/recv.h"
#include "transfer/transfer_timing.h"

/**
 * A device copies this many bytes, in runs of this average length, in less time than it takes to
 * start threads.
 */
#define QUICK_BYTES (UINT64_C(4) << 30)
#define QUICK_RUN (UINT64_C(256) << 10)

enum {
    ALONE_BYTES = 1 << 20, /**< Up to this size, starting threads costs more than it saves. */
    DAMAGED_MAX = 2,       /**< How often a source may send damaged chunks. */
};

uint8_t wh_source_number(const wh_recv_source *source) {
    return (uint8_t)(source - source->recv->sources);
}

const wh_lane_ops *wh_source_lane(const wh_recv_source *source) {
    return source->recv->chunks->sources[wh_source_number(source)].lane;
}

static wherry_source_stats *stats_of(const wh_recv_source *source) {
    return source->recv->stats.sources + wh_source_number(source);
}

uint64_t wh_source_bytes(const wh_recv_source *source) {
    return stats_of(source)->bytes + atomic_load(&source->pull.session.moved);
}

/* ---- failures ---- */

static void set_failure(wh_recv_source *source, wh_source_state state, wherry_status status,
                        const wherry_error *error) {
    source->state = state;
    source->failure = *error;
    source->failure.status = status;
    source->failure.rank = error->rank < 0 ? source->rank : error->rank;
    wh_session_stop(&source->pull.session);
}

void wh_source_fail(wh_recv_source *source, wherry_status status, const wherry_error *error, bool tell) {
    if (source->state == WH_SOURCE_GONE) {
        return;
    }
    source->told = source->told || !tell || source->state == WH_SOURCE_ABSENT;
    set_failure(source, WH_SOURCE_GONE, status, error);
    if (source->recv->source_count > 1) {
        wh_log(WHERRY_LOG_WARN, "the receive goes on without %s: %s", source->name, error->message);
    }
}

/** Tells the source how the receive from it has ended, unless it knows. Its session is closed. */
static void say_goodbye(wh_recv_source *source, wherry_status status, const wherry_error *error, wh_deadline deadline) {
    wherry_transport *transport = source->transport;
    bool offered = source->offer.type == WH_OFFER;
    if (source->told || source->state == WH_SOURCE_ABSENT) {
        return;
    }
    wh_note note = {.type = offered ? WH_ABORT : WH_WITHDRAW, .nonce = wh_inbox_tag(source->inbox)};
    source->told = true;
    if (status == WHERRY_OK && offered) {
        /* Sources of several have confirmed the chunks that are kept. */
        note = (wh_note){.type = WH_DONE, .epoch = source->offer.epoch, .last = 1, .bytes = wh_source_bytes(source)};
    } else if (status != WHERRY_OK) {
        wh_note_reason(&note, status, error);
    }
    wh_note_try_send(&note, transport->group, source->rank, offered ? source->offer.id : transport->tag, deadline);
}

/** The lane failed. The source fails a moment later: a message may still tell a better reason. */
static void break_source(wh_recv_source *source, wherry_status status, const wherry_error *error) {
    if (source->state < WH_SOURCE_BROKEN) {
        set_failure(source, WH_SOURCE_BROKEN, status, error);
        source->since = wh_clock_now();
    }
}

/** True if another source can be asked instead. */
static bool has_others(const wh_recv_source *source) {
    const wh_recv *recv = source->recv;
    for (WH_EACH_SOURCE(one, recv)) {
        if (one != source && wh_source_is_usable(one)) {
            return true;
        }
    }
    return false;
}

wherry_status wh_source_tell(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_error why;
    recv->stats.messages++;
    wh_deadline patience = wh_deadline_in_ms(recv->call.options.no_progress_ms);
    if (has_others(source)) { /* This thread serves none of the other sources meanwhile. */
        patience = wh_deadline_earlier(patience, wh_deadline_in_ms(WH_SOURCE_PATIENCE_MS));
    }
    wherry_status status = wh_note_send(note, &recv->call, source->transport->group, source->rank, source->offer.id,
                                        wh_deadline_earlier(recv->call.deadline, patience), &why);
    if (status == WHERRY_OK) {
        return WHERRY_OK;
    }
    /* If the call must end anyway, report that reason, not the failure of the message. */
    WH_TRY(wh_recv_must_end(recv, "sending a message", error));
    if (wh_recv_is_fatal(recv, status)) {
        *error = why;
        return status;
    }
    wh_source_fail(source, status, &why, status == WHERRY_TIMED_OUT);
    return WHERRY_OK;
}

/* ---- messages ---- */

wherry_status wh_source_ask(wh_recv_source *source, wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_group *group = source->transport->group;
    const wherry_transfer_options *options = &recv->call.options;
    wh_note want = {
        .type = WH_WANT,
        .nonce = wh_inbox_tag(source->inbox),
        .step = options->step,
        .verify = (uint8_t)(options->verify == WHERRY_VERIFY_ALL ? WHERRY_VERIFY_ON : options->verify),
    };
    if (recv->agreed->as_source) {
        want.known = (wh_bytes){recv->agreed->as_source->fingerprint.bytes, WHERRY_DIGEST_BYTES};
    }
    source->incarnation = wh_mailbox_incarnation(group->mailbox, source->rank);
    if (!source->incarnation) {
        wh_group_watch(group, source->rank);
    }
    /* With only one source, no other source is waiting meanwhile. */
    wh_deadline patience = recv->source_count == 1 ? wh_call_tick(&recv->call) : wh_deadline_in_ms(0);
    wherry_error why;
    wherry_status status =
        wh_note_send(&want, &recv->call, group, source->rank, source->transport->tag, patience, &why);
    if (status == WHERRY_OK) {
        recv->stats.messages++;
        source->state = WH_SOURCE_ASKED;
        wh_point("receiver asked");
    } else if (wh_recv_is_fatal(recv, status)) {
        *error = why;
        return status;
    } else if (status != WHERRY_TIMED_OUT) { /* Otherwise the source is asked again later. */
        wh_source_fail(source, status, &why, false);
    }
    return WHERRY_OK;
}

static void take_answer(wh_recv_source *source, const wh_note *note) {
    if (source->answer == WH_CONFIRM || source->state != WH_SOURCE_OFFERED) {
        return; /* Only CONFIRMED answers a CONFIRM. */
    }
    source->answer = note->type;
    source->failure = (wherry_error){.status = WHERRY_OK};
    if (note->status != WHERRY_OK) {
        wh_fail(&source->failure, WHERRY_REFUSED, "%.*s", (int)note->text.size, (const char *)note->text.bytes);
    }
    if (note->type == WH_REFUSE_LANE) {
        wh_session_stop(&source->pull.session);
    }
}

static wherry_status take_digests(wh_recv_source *source, const wh_note *note, wherry_error *error) {
    wh_liveness_note(&source->heard);
    size_t count = note->digests.size / WHERRY_DIGEST_BYTES;
    /*
     * Digests of a recalled session may arrive late. A source is compared only in chunks that came
     * from other sources. This usually distinguishes the two. Digests of sessions are never strong.
     */
    bool strict = source->recv->source_count == 1;
    const wh_comparing *comparing = source->comparing;
    bool compared =
        comparing && comparing->strong == (note->strong != 0) && wh_chunk_set_has(comparing->chunks, note->first);
    bool taken = compared       ? wh_comparing_take(source->comparing, note->first, note->digests.bytes, count, strict)
                 : note->strong ? !strict /* the answer to a question that was given up */
                                : wh_chunks_claim(source->recv->chunks, wh_source_number(source), note->first,
                                                  note->digests.bytes, count, strict);
    return taken ? WHERRY_OK : wh_fail(error, WHERRY_MALFORMED, "%s sent digests that nobody asked for", source->name);
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
        if (note->session != source->sessions) {
            return WHERRY_OK;
        }
        if (source->answer == WH_CONFIRM && source->recv->source_count == 1) {
            return wh_fail(error, WHERRY_MALFORMED, "%s refused a lane after all bytes had come", source->name);
        }
        take_answer(source, note);
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
        return wh_fail_note(error, WHERRY_REVOKED, source->rank, source->name, note, "took its offer back");
    case WH_ABORT:
        source->told = true;
        return wh_fail_note(error, note->status == WHERRY_MISMATCH ? WHERRY_MISMATCH : WHERRY_ABORTED, source->rank,
                            source->name, note, "gave up");
    default:
        return wh_fail(error, WHERRY_MALFORMED, "%s sent a message of type %d, which only a receiver sends",
                       source->name, (int)note->type);
    }
}

void wh_source_take(wh_recv_source *source, wh_message *message) {
    wherry_error error;
    wh_note note;
    if (source->state == WH_SOURCE_GONE || source->state == WH_SOURCE_ABSENT) {
        return;
    }
    if (message->kind == WH_MESSAGE_LOST) {
        if (message->incarnation >= source->incarnation) {
            wh_fail(&error, WHERRY_PEER_LOST, "%s was lost: %.*s", source->name, (int)message->size,
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
        source->offer = note;
        source->offer_message = *message; /* Takes it over: `offer` borrows from it. */
        *message = (wh_message){.channel = WH_NO_SOCKET};
        source->state = WH_SOURCE_OFFERED;
        source->recv->remote |= !wh_group_is_local(source->transport->group, source->rank);
        wh_liveness_note(&source->heard);
    } else if (status == WHERRY_OK) {
        status = take_note(source, &note, &error);
    }
    if (status != WHERRY_OK) {
        wh_source_fail(source, status, &error, true);
    }
}

/**
 * True if the probe of a lane must end: after a cancel, and if other sources should be asked
 * instead, because this thread serves no other source meanwhile. A lane between devices takes long
 * to open, and is not tried again soon after a failure. So the probe of such a lane is not ended
 * for other sources.
 */
static bool must_stop_probe(void *context) {
    wh_recv_source *source = context;
    const wh_session *session = &source->pull.session;
    bool probes = wh_session_is_open(session) && !session->end && !(session->lane->traits & WH_LANE_DEVICE);
    if (source->recv->source_count > 1 && probes && wh_recv_is_stalled(source->recv, source)) {
        source->recalled = true;
    }
    return source->recalled || wh_call_is_cancelled(&source->recv->call);
}

/** Waits for the answer to ASSIST: ASSISTED or REFUSE_LANE; or until the source is gone. */
static wherry_status await_help(wh_recv_source *source, wherry_error *error) {
    wh_recv *recv = source->recv;
    int64_t patience = recv->call.options.no_progress_ms;
    wh_deadline limit = wh_deadline_in_ms(patience);
    const char *doing = "waiting for the source to open a lane";
    while (source->state == WH_SOURCE_OFFERED && !source->answer && !source->recalled) {
        if (wh_deadline_passed(limit)) {
            wherry_error why;
            wh_fail(&why, WHERRY_TIMED_OUT, "%s: timed out while %s: no answer for %lld ms", source->name, doing,
                    (long long)patience);
            wh_source_fail(source, WHERRY_TIMED_OUT, &why, true);
            break;
        }
        WH_TRY(wh_recv_pump(recv, wh_deadline_earlier(limit, wh_call_tick(&recv->call)), doing, error));
        must_stop_probe(source);
    }
    return WHERRY_OK;
}

/* ---- choosing a lane ---- */

static void note_refusal(wh_recv_source *source, const wh_lane_ops *lane, const wherry_error *reason) {
    bool failed = reason->status != WHERRY_UNSUPPORTED;
    wh_log(failed ? WHERRY_LOG_WARN : WHERRY_LOG_INFO, "the lane %s from %s does not work: %s", lane->name,
           source->name, reason->message);
    wh_stats_skip_lane(&source->recv->stats, lane->name, reason);
}

static bool decide_verify(const wh_recv_source *source, const wh_lane_ops *lane) {
    wherry_verify said = source->recv->call.options.verify;
    if (said == WHERRY_VERIFY_DEFAULT && source->offer.verify <= WHERRY_VERIFY_OFF) {
        said = (wherry_verify)source->offer.verify;
    }
    return said == WHERRY_VERIFY_DEFAULT ? (lane->traits & WH_LANE_NETWORK) != 0 : said != WHERRY_VERIFY_OFF;
}

/** Checks whether a lane can move the chunks that move now. */
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

static wherry_status prepare_session(wh_recv_source *source, const wh_lane_ops *lane, wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_call *call = &recv->call;
    wh_lane_site site =
        wh_call_site(call, source->transport->group, source->rank, source->offer.id, recv->agreed->plan->traits.cuda);
    site.held_p = &recv->held;
    source->pull = (wh_pull){.chunks = recv->chunks, .source = wh_source_number(source)};
    WH_TRY(wh_session_prepare(&source->pull.session, lane, &site, source->inbox, error));
    /* While this thread probes, it asks the interrupt, and a cancel ends the probe. */
    wh_call_set_stop(call, &source->pull.session.stop);
    wh_stop_set_question(&source->pull.session.stop, must_stop_probe, source);
    return WHERRY_OK;
}

static void close_session(wh_recv_source *source) {
    wh_call_set_stop(&source->recv->call, &source->recv->stop);
    wh_session_close(&source->pull.session);
}

/** Asks the source for help, and probes again. `refusal` receives the result of the probe. */
static wherry_status assist(wh_recv_source *source, const wh_bytes *offered, wh_string *request, wherry_error *refusal,
                            wherry_error *error) {
    wh_session *session = &source->pull.session;
    wh_note note = {
        .type = WH_ASSIST,
        .lane = {session->lane->name, strlen(session->lane->name)},
        .request = {request->bytes, request->size},
    };
    source->answer = 0;
    WH_TRY(wh_source_tell(source, &note, error));
    WH_TRY(await_help(source, error));
    if (source->state != WH_SOURCE_OFFERED || source->recalled) {
        return WHERRY_OK;
    }
    if (source->failure.status != WHERRY_OK) {
        wherry_error first = *refusal;
        wh_fail(refusal, first.status, "%s; the source does not open it: %s", first.message, source->failure.message);
        return WHERRY_OK;
    }
    bool again = false;
    request->size = 0;
    refusal->status =
        session->lane->probe(&session->site, offered->bytes, offered->size, request, &again, &session->end, refusal);
    return WHERRY_OK;
}

/** Tries one lane. refusal->status is WHERRY_OK if it works; then `request` is for the source. */
static wherry_status try_lane(wh_recv_source *source, const wh_lane_ops *lane, const wh_bytes *offered,
                              wh_string *request, wherry_error *refusal, wherry_error *error) {
    wh_session *session = &source->pull.session;
    bool may_assist = false;
    wherry_status status = WHERRY_OK;
    WH_TRY(prepare_session(source, lane, error));
    size_t addresses = source->offer.addresses.size / 8;
    size_t storages = source->recv->agreed->plan->prepared->storage_count;
    refusal->status = WHERRY_OK;
    if (lane->traits & WH_LANE_ONE_SIDED && source->offer.addresses.size != 8 * storages) {
        wh_fail(refusal, WHERRY_MALFORMED, "the source gave %zu addresses for %zu storages", addresses, storages);
    }
    WH_THEN(refusal->status,
            lane->probe(&session->site, offered->bytes, offered->size, request, &may_assist, &session->end, refusal));
    if (refusal->status != WHERRY_OK && may_assist) {
        status = assist(source, offered, request, refusal, error);
    }
    if (status != WHERRY_OK || refusal->status != WHERRY_OK || source->state != WH_SOURCE_OFFERED || source->recalled) {
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
    bool failed = false; /* A lane should have worked, so the source may be lost. */
    wherry_status failure = WHERRY_UNSUPPORTED;
    wherry_error why;
    for (; source->next_lane < lanes->count && source->state == WH_SOURCE_OFFERED; source->next_lane++) {
        const wh_lane_ops *lane = lanes->lanes[source->next_lane];
        wherry_error refusal = {.status = WHERRY_OK};
        if (wh_lane_is_skipped(lanes, lane, recv->on_device)) {
            continue;
        }
        wh_bytes offered = {0};
        /* First, because a source does not tell why it offers no lane. */
        wherry_status allowed = wh_lane_check_encryption(lane, source->transport->group, &refusal);
        if (allowed == WHERRY_OK && !wh_lanes_find(source->offer.lanes, lane->name, &offered)) {
            wh_fail(&refusal, WHERRY_UNSUPPORTED, "%s does not offer it", source->name);
            refusal.reason = WHERRY_LANE_NOT_OFFERED;
        } else if (allowed == WHERRY_OK && check_lane(source, lane, &refusal) == WHERRY_OK) {
            WH_TRY(try_lane(source, lane, &offered, request, &refusal, error));
        }
        if (refusal.status == WHERRY_OK || source->recalled) {
            return WHERRY_OK;
        }
        if (refusal.status == WHERRY_CANCELLED) {
            WH_TRY(wh_recv_must_end(recv, "probing a lane", error));
        }
        /* The source has ended the conversation, so the lane is not at fault. */
        if (refusal.status == WHERRY_ABORTED) {
            break_source(source, refusal.status, &refusal);
            return WHERRY_OK;
        }
        failed = failed || refusal.status != WHERRY_UNSUPPORTED;
        failure = refusal.status == WHERRY_PEER_LOST ? WHERRY_PEER_LOST : failure;
        note_refusal(source, lane, &refusal);
    }
    if (source->state == WH_SOURCE_OFFERED) {
        wh_fail(&why, failure, "no lane reaches %s: %s", source->name,
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

static wherry_status pull_all(wh_session *session, uint32_t worker, uint32_t wait_ms, bool *again_p,
                              wherry_error *error) {
    wh_sink sink = wh_pull_sink((wh_pull *)session);
    sink.wait_ms = wait_ms;
    sink.again_p = again_p;
    return session->lane->pull(session->end, worker, &sink, error);
}

/** Starts to pull, in threads or in this thread. */
static wherry_status start(wh_recv_source *source, uint64_t chunks, uint64_t bytes, bool last, wherry_error *error) {
    wh_session *session = &source->pull.session;
    wh_recv *recv = source->recv;
    uint32_t traits = session->lane->traits;
    uint64_t runs = recv->agreed->summary.copies + 1;
    /* Starting threads costs more than it saves. */
    bool quick = last && ((traits & WH_LANE_ONE_SIDED && bytes <= ALONE_BYTES) ||
                          (traits & WH_LANE_DEVICE && bytes <= QUICK_BYTES && bytes / runs >= QUICK_RUN));
    wh_liveness_note(&source->heard);
    recv->stats.workers = 1;
    if (quick || wh_lane_runs_in_caller(session->lane, session->site.group)) {
        WH_TRY(wh_session_start(session, 0, pull_all, error));
        if (quick) {
            wh_session_step(session, 0);
        }
        return WHERRY_OK;
    }
    /* The workers do not ask the interrupt: this thread does. */
    wh_call_set_stop(&recv->call, &recv->stop);
    wh_stop_set_question(&session->stop, NULL, NULL);
    uint64_t workers = wh_min(session->end->workers, WH_WORKERS_MAX);
    workers = traits & WH_LANE_ONE_SIDED && last ? wh_min(workers, chunks) : workers;
    recv->stats.workers = (uint32_t)workers;
    return wh_session_start(session, (uint32_t)workers, pull_all, error);
}

/** Sends PLAN or REQUEST, and appends the same chunks to the session. */
static wherry_status send_request(wh_recv_source *source, wh_note *note, const wh_chunk_set *chunks,
                                  wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_string list = {0};
    note->bytes = wh_space_bytes_of(&recv->agreed->plan->prepared->space, chunks);
    for (uint64_t i = 0; i < chunks->total; i++) {
        wh_chunks_assign(recv->chunks, wh_chunk_set_at(chunks, i), wh_source_number(source));
    }
    /* Workers may begin at once, so the chunks are assigned before. */
    bool ok = wh_session_request(&source->pull.session, chunks->intervals, chunks->count, note->last);
    wh_intervals_encode(chunks->intervals, chunks->count, &list);
    note->intervals = (wh_bytes){list.bytes, list.size};
    wherry_status status =
        !ok || list.failed ? wh_fail_memory(error, "a request") : wh_source_tell(source, note, error);
    recv->stats.chunks += chunks->total;
    wh_free(list.bytes);
    return status;
}

/** Opens a session over the next lane that works, with these chunks as its first request. */
static wherry_status open_session(wh_recv_source *source, const wh_chunk_set *chunks, bool last, wherry_error *error) {
    wh_recv *recv = source->recv;
    wh_pull *pull = &source->pull;
    wh_string request = {0};
    source->answer = 0;
    wherry_status status = choose_lane(source, &request, error);
    if (status == WHERRY_OK && wh_session_is_open(&pull->session)) {
        const wh_lane_ops *lane = pull->session.lane;
        bool one_sided = lane->traits & WH_LANE_ONE_SIDED;
        pull->chunks->sources[pull->source].rank = source->rank;
        pull->chunks->sources[pull->source].lane = lane;
        pull->chunks->sources[pull->source].addresses = one_sided ? source->offer.addresses.bytes : NULL;
        bool compares = recv->call.options.verify == WHERRY_VERIFY_ALL;
        pull->session.verify = decide_verify(source, lane) && (compares || !pull->session.end->encrypted);
        source->sessions++;
        wh_point("receiver probed");
        wh_note plan = {
            .type = WH_PLAN,
            .session = source->sessions,
            .lane = {lane->name, strlen(lane->name)},
            .request = {request.bytes, request.size},
            .verify = pull->session.verify,
            .last = last,
        };
        bool ok = !request.failed && (!pull->session.verify || wh_chunks_reserve_digests(recv->chunks));
        status = ok ? send_request(source, &plan, chunks, error) : wh_fail_memory(error, "a plan");
        wh_point("receiver sent the plan");
        if (status == WHERRY_OK && source->state == WH_SOURCE_OFFERED) {
            if (!recv->moments[WH_AT_DATA]) {
                recv->moments[WH_AT_DATA] = wh_clock_now();
            }
            bool encrypted = pull->session.end->encrypted;
            recv->stats.checked |= pull->session.verify || encrypted;
            recv->clear = recv->clear || !encrypted;
            wh_log(WHERRY_LOG_INFO, "the lane from %s is %s%s", source->name, lane->name,
                   recv->on_device ? ", for device memory" : "");
            source->since = wh_clock_now();
            status = start(source, chunks->total, plan.bytes, last, error);
        }
    }
    wh_free(request.bytes);
    return status;
}

wherry_status wh_source_request(wh_recv_source *source, const wh_chunk_set *chunks, bool last, wherry_error *error) {
    if (!wh_session_is_open(&source->pull.session)) {
        return open_session(source, chunks, last, error);
    }
    wh_note note = {.type = WH_REQUEST, .last = last};
    return send_request(source, &note, chunks, error);
}

/* ---- looking after it ---- */

/**
 * Handles damaged chunks. A source may send damaged chunks a few times. If other sources can
 * deliver them, each chunk counts; otherwise each session with damaged chunks counts.
 */
static void note_damage(wh_recv_source *source, uint64_t first, uint32_t count) {
    wh_recv *recv = source->recv;
    bool others = has_others(source);
    bool counted = source->damaged_session == source->sessions;
    source->damaged += others ? count : !counted;
    source->damaged_session = source->sessions;
    if (others || source->damaged <= DAMAGED_MAX) {
        recv->stats.retries += count;
        wh_log(WHERRY_LOG_WARN, "%u chunks from %s came damaged and are requested again", (unsigned)count,
               source->name);
    }
    if (source->damaged > DAMAGED_MAX) {
        wherry_error error;
        wh_fail(&error, WHERRY_CORRUPT,
                "%s has sent damaged chunks too often; suspect the memory or the network between the two",
                source->name);
        wh_recv_fail_chunk(recv, first, &error);
        wh_source_fail(source, WHERRY_CORRUPT, &error, true);
    }
}

/** Reports chunks that are complete or damaged to the schedule. */
static void collect(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    uint64_t at = 0;
    uint64_t chunk;
    uint64_t first = 0;
    uint32_t bad = 0;
    while (source->scheduled >= 0 && wh_schedule_next_pending(recv->schedule, source->scheduled, &at, &chunk)) {
        wh_chunk_state state = wh_chunks_judge(recv->chunks, chunk);
        if (state == WH_CHUNK_LANDED) {
            stats_of(source)->chunks++;
            wh_schedule_landed(recv->schedule, source->scheduled, chunk);
        } else if (state == WH_CHUNK_BAD) {
            first = bad++ ? first : chunk;
            wh_chunks_take_back(recv->chunks, chunk);
            wh_schedule_rejected(recv->schedule, source->scheduled, chunk);
        }
    }
    if (bad) {
        note_damage(source, first, bad);
    }
}

/** Takes back the chunks that were requested and have not arrived. No worker runs. */
static void take_back_all(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    uint64_t at = 0;
    uint64_t chunk;
    /* Nothing may be written to a device any more. */
    wh_delivery_settle(&recv->chunks->delivery, NULL);
    collect(source);
    while (source->scheduled >= 0 && wh_schedule_next_pending(recv->schedule, source->scheduled, &at, &chunk)) {
        wh_chunks_take_back(recv->chunks, chunk);
        if (!source->recalled) {
            wh_schedule_rejected(recv->schedule, source->scheduled, chunk);
        }
    }
    if (source->recalled) {
        /* The schedule takes back all requests, and learns the reason. */
        wh_schedule_recall(recv->schedule, source->scheduled);
    }
    source->recalled = false;
}

/** Closes a session whose workers have ended or were stopped. */
static void end_session(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    wh_session *session = &source->pull.session;
    wherry_source_stats *stats = stats_of(source);
    wh_workers_join(&session->workers, NULL);
    if (source->answer != WH_REFUSE_LANE) { /* Otherwise the session has moved nothing. */
        wh_stats_add_lane(&recv->stats, session->lane->name);
        wh_stats_describe_lane(&recv->stats, session->lane, session->end);
    }
    /* The rate is the mean over all sessions. */
    double seconds = wh_seconds(session->opened_at, wh_clock_now());
    seconds += stats->rate > 0 ? (double)stats->bytes / stats->rate : 0;
    stats->bytes += atomic_load(&session->moved);
    stats->rate = seconds > 0 ? (double)stats->bytes / seconds : 0;
    close_session(source);
}

/** The workers of the session have ended by themselves. */
static wherry_status look_at_end(wh_recv_source *source, wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_error why;
    if (wh_workers_exist(&source->pull.session.workers) || !recv->moments[WH_AT_LANDED]) {
        recv->moments[WH_AT_LANDED] = wh_clock_now();
    }
    wherry_status status = wh_workers_join(&source->pull.session.workers, &why);
    if (recv->source_count == 1) { /* No worker runs, so this thread may call the interrupt. */
        wh_stop_set_question(&recv->stop, wh_call_is_cancelled, &recv->call);
    }
    WH_THEN(status, wh_delivery_settle(&recv->chunks->delivery, &why));
    wh_stop_set_question(&recv->stop, NULL, NULL);
    collect(source);
    if (source->answer == WH_REFUSE_LANE) {
        end_session(source);
        /* Bytes that arrive over another lane could be overwritten by this one. */
        if (recv->held) {
            wh_fail(error, WHERRY_CLOSED, "%s: %s", source->name, source->failure.message);
            return wh_fail_rank(error, source->rank, WHERRY_CLOSED);
        }
        take_back_all(source);
        note_refusal(source, wh_source_lane(source), &source->failure);
        source->next_lane++;
        return WHERRY_OK;
    }
    if (status != WHERRY_OK && !source->recalled) {
        break_source(source, status, &why);
        return WHERRY_OK;
    }
    bool unchecked = false;
    uint64_t missing = 0;
    uint64_t at = 0;
    uint64_t chunk;
    while (!source->recalled && wh_schedule_next_pending(recv->schedule, source->scheduled, &at, &chunk)) {
        wh_chunk_state state = wh_chunks_state(recv->chunks, wh_chunk_set_find(&recv->chunks->wanted, chunk));
        unchecked = unchecked || state == WH_CHUNK_UNCHECKED;
        missing += state < WH_CHUNK_UNCHECKED;
    }
    if (missing) {
        wh_fail(&why, WHERRY_TRUNCATED, "%s ended before %" PRIu64 " chunks had come", source->name, missing);
        wh_source_fail(source, WHERRY_TRUNCATED, &why, true);
    }
    if (unchecked && source->state == WH_SOURCE_OFFERED) {
        return WHERRY_OK; /* The digests are on their way. */
    }
    end_session(source);
    take_back_all(source);
    return WHERRY_OK;
}

/** True if chunks were requested and are not complete. */
static bool has_pending(const wh_recv_source *source) {
    return source->scheduled >= 0 && wh_schedule_pending(source->recv->schedule, source->scheduled);
}

void wh_source_check_progress(wh_recv_source *source) {
    wh_recv *recv = source->recv;
    int64_t limit = recv->call.options.no_progress_ms;
    bool works = has_pending(source) || (source->comparing && source->comparing->left);
    bool compares_first = source->comparing && !recv->schedule;
    uint64_t bytes = compares_first ? atomic_load(&recv->chunks->moved) : wh_source_bytes(source);
    if (source->comparing && has_others(source)) {
        limit = wh_min(limit, WH_SOURCE_PATIENCE_MS); /* All sources wait for these digests. */
    }
    if (works && source->state == WH_SOURCE_OFFERED && wh_liveness_is_over(&source->heard, bytes, limit)) {
        wherry_error error;
        wh_fail(&error, WHERRY_TIMED_OUT, "%s: timed out: no byte has come for %lld ms, at %" PRIu64 " of %" PRIu64,
                source->name, (long long)limit, wh_source_bytes(source), recv->agreed->wanted_bytes);
        wh_source_fail(source, WHERRY_TIMED_OUT, &error, true);
    }
}

/** A rank that was lost and is back may be asked again. */
static void look_for_return(wh_recv_source *source) {
    wh_mailbox *mailbox = source->transport->group->mailbox;
    uint64_t present = wh_mailbox_incarnation(mailbox, source->rank);
    bool replaced = source->scheduled < 0;
    if (source->failure.status == WHERRY_PEER_LOST && present > source->incarnation && replaced) {
        wh_log(WHERRY_LOG_INFO, "%s is back and is asked again", source->name);
        wh_message_clear(&source->offer_message);
        source->offer_message = (wh_message){.channel = WH_NO_SOCKET};
        source->offer = (wh_note){0};
        source->told = false;
        source->next_lane = 0;
        source->state = WH_SOURCE_ABSENT;
    }
}

/**
 * All chunks of a session have arrived, but some lanes end only when the source ends them. A
 * stopped source must not delay the receive.
 */
static void look_at_idle_session(wh_recv_source *source) {
    const wh_session *session = &source->pull.session;
    bool stoppable = !(session->lane->traits & WH_LANE_GROUP);
    if (source->state != WH_SOURCE_OFFERED) {
        return;
    }
    if (!session->queue.last || has_pending(source) || !stoppable) {
        source->since = wh_clock_now();
    } else if (!source->recalled && wh_clock_now() - source->since > WH_SOURCE_END_MS * WH_NS_PER_MS) {
        wh_log(WHERRY_LOG_INFO, "%s does not end its session, so it is closed here", source->name);
        wh_source_recall(source);
    }
}

wherry_status wh_source_look(wh_recv_source *source, wherry_error *error) {
    wh_session *session = &source->pull.session;
    if (wh_session_is_open(session)) {
        wh_delivery_poll(&source->recv->chunks->delivery);
        collect(source);
        look_at_idle_session(source);
    }
    if (wh_session_is_open(session) && wh_session_has_ended(session) && source->state == WH_SOURCE_OFFERED) {
        WH_TRY(look_at_end(source, error));
    }
    if (wh_session_is_open(session) && wh_session_has_ended(session) && source->state == WH_SOURCE_GONE) {
        end_session(source);
        take_back_all(source);
    }
    if (source->state == WH_SOURCE_BROKEN && wh_clock_now() - source->since > WH_SOURCE_EXPLAIN_MS * WH_NS_PER_MS) {
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
        wh_note_try_send(&note, source->transport->group, source->rank, source->offer.id,
                         wh_deadline_in_ms(WH_CALL_GRACE_MS));
    }
}

void wh_source_end(wh_recv_source *source, wherry_status status, const wherry_error *error) {
    wh_recv *recv = source->recv;
    wherry_transport *transport = source->transport;
    bool offered = source->offer.type == WH_OFFER;
    if (wh_session_is_open(&source->pull.session)) {
        wh_session_stop(&source->pull.session);
        end_session(source);
        if (!recv->held) {
            wh_delivery_settle(&recv->chunks->delivery, NULL);
        }
        collect(source);
    }
    bool lost = source->state == WH_SOURCE_GONE && source->failure.status == WHERRY_PEER_LOST;
    if (lost || offered) {
        wh_transport_forget(transport, transport->group, source->rank, lost, lost ? NULL : wh_source_lane(source));
    }
    say_goodbye(source, status, error, wh_deadline_in_ms(WH_CALL_GRACE_MS));
}

void wh_source_destroy(wh_recv_source *source) {
    wh_session_close(&source->pull.session);
    wh_message_clear(&source->offer_message);
}
