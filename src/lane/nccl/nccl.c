/*
 * The nccl lane: moves CUDA memory between hosts, over an NCCL communicator of its own. In this
 * file, the two sides agree on a communicator. nccl_comm.c caches communicators, nccl_move.c moves
 * bytes.
 *
 *     source                                     receiver
 *     offer: ids of cached communicators  ---->  probe: if both sides have one, sends PLAN
 *     assist: begins to create one  <----------  otherwise asks for a new one
 *                                                second probe: creates its half and waits
 *     accept  <--------------------------------  PLAN: id of the communicator
 */
#include "lane/nccl/nccl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/lanes.h"

#define BIT(state) (1U << (state))

/* ---- the wire ---- */

static wherry_status check_version(wh_cursor *cursor, wherry_error *error) {
    uint64_t version = wh_cursor_number(cursor, 1);
    return cursor->failed || version == WH_NCCL_VERSION
               ? WHERRY_OK
               : wh_fail(error, WHERRY_BAD_VERSION,
                         "the other side has version %u of the nccl lane, but this side has version %d",
                         (unsigned)version, WH_NCCL_VERSION);
}

void wh_nccl_append_offer(wh_string *string, const wh_nccl_offer *offer) {
    wh_append_number(string, WH_NCCL_VERSION, 1);
    wh_string_append(string, offer->boot, sizeof(offer->boot));
    wh_string_append(string, (const char *)offer->process, sizeof(offer->process));
    wh_append_number(string, offer->count, 1);
    for (size_t i = 0; i < offer->count; i++) {
        wh_append_number(string, offer->ids[i], 8);
    }
}

wherry_status wh_nccl_parse_offer(const void *bytes, size_t size, wh_nccl_offer *offer_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_nccl_offer offer = {.count = 0};
    WH_TRY(check_version(&cursor, error));
    wh_cursor_copy(&cursor, offer.boot, sizeof(offer.boot));
    wh_cursor_copy(&cursor, offer.process, sizeof(offer.process));
    offer.count = (size_t)wh_cursor_number(&cursor, 1);
    cursor.failed = cursor.failed || offer.count > WH_NCCL_KEPT_MAX;
    for (size_t i = 0; i < offer.count && !cursor.failed; i++) {
        offer.ids[i] = wh_cursor_number(&cursor, 8);
    }
    if (!wh_cursor_ended(&cursor)) {
        return wh_fail(error, WHERRY_MALFORMED, "malformed nccl offer of %zu bytes", size);
    }
    *offer_p = offer;
    return WHERRY_OK;
}

void wh_nccl_append_request(wh_string *string, const wh_nccl_request *request) {
    wh_append_number(string, WH_NCCL_VERSION, 1);
    wh_string_append(string, (const char *)request->process, sizeof(request->process));
    wh_append_number(string, request->id, 8);
    wh_append_number(string, request->library, 4);
    wh_append_number(string, request->message_mib, 1);
    wh_string_append(string, request->unique.bytes, sizeof(request->unique.bytes));
}

wherry_status wh_nccl_parse_request(const void *bytes, size_t size, wh_nccl_request *request_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_nccl_request request = {.id = 0};
    WH_TRY(check_version(&cursor, error));
    wh_cursor_copy(&cursor, request.process, sizeof(request.process));
    request.id = wh_cursor_number(&cursor, 8);
    request.library = (uint32_t)wh_cursor_number(&cursor, 4);
    request.message_mib = (uint8_t)wh_cursor_number(&cursor, 1);
    wh_cursor_copy(&cursor, request.unique.bytes, sizeof(request.unique.bytes));
    bool sane = request.message_mib > 0 && request.message_mib <= WH_NCCL_MESSAGE_MIB_MAX;
    if (!wh_cursor_ended(&cursor) || !sane) {
        return wh_fail(error, WHERRY_MALFORMED, "malformed nccl request of %zu bytes", size);
    }
    *request_p = request;
    return WHERRY_OK;
}

/* ---- the source ---- */

static wherry_status check_device(const wh_lane_site *site, wherry_error *error) {
    return site->devices ? wh_cuda_check(error)
                         : wh_fail(error, WHERRY_UNSUPPORTED, "no tensor of the state is in CUDA memory");
}

/**
 * Describes the communicators that a transfer may use.
 * @param process  identifies the other process; NULL: not known yet.
 */
static wh_nccl_pair pair_of(const wh_lane_site *site, bool is_source, const uint8_t *process) {
    wh_nccl_pair pair = {
        .rank = site->peer,
        .own = site->group ? site->group->rank : -1,
        .device = site->devices ? wh_site_device(site) : 0,
        .is_source = is_source,
    };
    if (process) {
        memcpy(pair.process, process, sizeof(pair.process));
    }
    return pair;
}

/** Does not load NCCL, because loading takes a long time and most receivers do not need it. */
static wherry_status nccl_offer(const wh_lane_site *site, wh_string *text, wherry_error *error) {
    wh_nccl_offer offer = {.count = 0};
    WH_TRY(check_device(site, error));
    WH_TRY(wh_boot_read(offer.boot, error));
    WH_TRY(wh_nccl_process(offer.process, error));
    wh_nccl_pair pair = pair_of(site, true, NULL);
    offer.count = wh_nccl_kept(&pair, offer.ids, WH_NCCL_KEPT_MAX);
    wh_nccl_append_offer(text, &offer);
    return text->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
}

/** Begins to create a communicator. Both sides must do so at the same time. */
static wherry_status nccl_assist(const wh_lane_site *site, const void *bytes, size_t size, wherry_error *error) {
    wh_nccl_request request;
    WH_TRY(wh_nccl_parse_request(bytes, size, &request, error));
    WH_TRY(check_device(site, error));
    const wh_nccl_library *library = wh_nccl_find(error);
    if (!library) {
        return WHERRY_UNSUPPORTED;
    }
    if (request.library != (uint32_t)library->version) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "rank %d has version %u of NCCL, but this rank has version %d; both need the same version",
                       (int)site->peer, (unsigned)request.library, library->version);
    }
    wh_nccl_pair pair = pair_of(site, true, request.process);
    /* The receiver asks for a new communicator only if it has none of the offered ones. */
    wh_nccl_drop(&pair, NULL, 0);
    return wh_nccl_meet(&pair, request.id, &request.unique, error);
}

static wherry_status new_end(const wh_lane_site *site, wh_nccl_comm *comm, uint8_t message_mib, wh_lane_end **end_p,
                             wherry_error *error) {
    wh_nccl_end *end = wh_alloc_zeroed(1, sizeof(*end));
    if (!end) {
        wh_nccl_give(comm);
        return wh_fail_memory(error, "an end of the nccl lane");
    }
    *end =
        (wh_nccl_end){.base = {.workers = 1}, .site = site, .comm = comm, .message_bytes = (uint64_t)message_mib << 20};
    *end_p = &end->base;
    return WHERRY_OK;
}

static wherry_status nccl_accept(const wh_lane_site *site, const void *bytes, size_t size, bool *ready_p,
                                 wh_lane_end **end_p, wherry_error *error) {
    wh_nccl_request request;
    WH_TRY(wh_nccl_parse_request(bytes, size, &request, error));
    wh_nccl_pair pair = pair_of(site, true, request.process);
    wh_nccl_comm *comm = wh_nccl_take(&pair, request.id, BIT(WH_NCCL_MEETING) | BIT(WH_NCCL_IDLE));
    if (!comm) {
        return wh_fail(error, WHERRY_REFUSED, "the NCCL communicator that rank %d requested does not exist any more",
                       (int)site->peer);
    }
    *ready_p = true;
    return new_end(site, comm, request.message_mib, end_p, error);
}

/* ---- the receiver ---- */

static wherry_status check_host(const wh_lane_site *site, const wh_nccl_offer *offer, wherry_error *error) {
    char boot[WH_BOOT_BYTES];
    WH_TRY(wh_boot_read(boot, error));
    if (!site->ordered && memcmp(boot, offer->boot, sizeof(boot)) == 0) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "rank %d is on this host, where other lanes are faster; to use nccl anyway, name it in `lanes`",
                       (int)site->peer);
    }
    return wh_cuda_check(error);
}

static wherry_status append_request(wh_string *text, const wh_nccl_comm *comm, wherry_error *error) {
    wh_nccl_request request = {
        .id = comm->id,
        .library = (uint32_t)wh_nccl_find(NULL)->version,
        .message_mib = WH_NCCL_MESSAGE_MIB,
        .unique = comm->unique,
    };
    wherry_status status = wh_nccl_process(request.process, error);
    wh_nccl_append_request(text, &request);
    return text->failed ? wh_fail_memory(error, "a request") : status;
}

/** Creates this side's half of the communicator. The source has begun to create the other half. */
static wherry_status meet(const wh_lane_site *site, wh_nccl_comm *comm, wherry_error *error) {
    wh_deadline soon = wh_deadline_in_ms((int64_t)wh_min(WH_NCCL_MEET_MS, site->no_progress_ms / 2));
    wherry_status status = wh_nccl_begin(comm, error);
    WH_THEN(status, wh_nccl_await(comm, site->stop, wh_deadline_earlier(site->deadline, soon),
                                  "connecting to the source", error));
    if (status == WHERRY_CANCELLED || (status != WHERRY_OK && wh_deadline_passed(site->deadline))) {
        wh_nccl_abort(comm);
        wh_nccl_give(comm);
    } else if (status != WHERRY_OK) {
        wh_nccl_give_failed(comm, error);
    }
    return status;
}

/**
 * Returns a cached communicator that both sides have; NULL if there is none. Destroys those that
 * the source does not have.
 */
static wh_nccl_comm *find_kept(const wh_nccl_pair *pair, const wh_nccl_offer *offer) {
    wh_nccl_comm *comm = NULL;
    wh_nccl_drop(pair, offer->ids, offer->count);
    for (size_t i = 0; i < offer->count && !comm; i++) {
        comm = wh_nccl_take(pair, offer->ids[i], BIT(WH_NCCL_IDLE));
    }
    return comm;
}

static wherry_status nccl_probe(const wh_lane_site *site, const void *bytes, size_t size, wh_string *request,
                                bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    wh_nccl_offer offer;
    *assist_p = false;
    WH_TRY(wh_nccl_parse_offer(bytes, size, &offer, error));
    WH_TRY(check_host(site, &offer, error));
    if (!wh_nccl_find(error)) {
        return WHERRY_UNSUPPORTED;
    }
    wh_nccl_pair pair = pair_of(site, false, offer.process);
    if (wh_nccl_failed_recently(&pair, error)) {
        return WHERRY_UNSUPPORTED;
    }
    wherry_status status = WHERRY_OK;
    wh_nccl_comm asked;
    wh_nccl_comm *comm = wh_nccl_take_asked(&pair, site->tag);
    if (comm) {
        status = meet(site, comm, error);
    } else if (!(comm = find_kept(&pair, &offer))) {
        status = wh_nccl_ask(&pair, site->tag, &asked, error);
        WH_THEN(status, append_request(request, &asked, error));
        *assist_p = status == WHERRY_OK;
        return status == WHERRY_OK
                   ? wh_fail(error, WHERRY_REFUSED, "there is no NCCL communicator with rank %d yet", (int)site->peer)
                   : status;
    }
    if (status == WHERRY_OK && (status = append_request(request, comm, error)) != WHERRY_OK) {
        wh_nccl_give(comm);
    }
    return status == WHERRY_OK ? new_end(site, comm, WH_NCCL_MESSAGE_MIB, end_p, error) : status;
}

static void nccl_close(wh_lane_end *base) {
    if (base) {
        wh_nccl_end *end = wh_nccl_end_of(base);
        wh_nccl_give(end->comm);
        wh_free(end);
    }
}

const wh_lane_ops wh_lane_nccl = {
    .name = "nccl",
    .traits = WH_LANE_DEVICE,
    .offer = nccl_offer,
    .probe = nccl_probe,
    .assist = nccl_assist,
    .accept = nccl_accept,
    .pull = wh_nccl_pull,
    .push = wh_nccl_push,
    .forget = wh_nccl_forget,
    .close = nccl_close,
};
