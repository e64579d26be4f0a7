/* The lane `nccl`: memory of CUDA devices between hosts, over a communicator of NCCL of its own. How the two sides come to have one. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"
#include "lane/nccl/nccl_lane.h"

#define BIT(state) (1U << (state))

/* ---- the source ---- */

static wherry_status check_device(const wh_lane_site *site, wherry_error *error) {
    return site->devices ? wh_cuda_check(error)
                         : wh_fail(error, WHERRY_UNSUPPORTED, "the state has no memory of a CUDA device");
}

/** Whose communicators a transfer takes. @param process  the other one; NULL: not known yet. */
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

/** NCCL itself is not looked for before a receiver asks: loading it takes long, and most of them do not. */
static wherry_status nccl_offer(const wh_lane_site *site, wh_string *text, wherry_error *error) {
    wh_nccl_offer offer = {.count = 0};
    wherry_status status = check_device(site, error);
    if (status == WHERRY_OK) {
        status = wh_boot_read(offer.boot, error);
    }
    if (status == WHERRY_OK) {
        status = wh_nccl_process(offer.process, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_nccl_pair pair = pair_of(site, true, NULL);
    offer.count = wh_nccl_kept(&pair, offer.ids, WH_NCCL_KEPT_MAX);
    wh_nccl_append_offer(text, &offer);
    return text->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
}

/** Both sides must be in it at once, so that the source has to begin before the receiver waits. */
static wherry_status nccl_assist(const wh_lane_site *site, const void *bytes, size_t size, wherry_error *error) {
    wh_nccl_request request;
    wherry_status status = wh_nccl_parse_request(bytes, size, &request, error);
    if (status == WHERRY_OK) {
        status = check_device(site, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    const wh_nccl_library *library = wh_nccl_find(error);
    if (!library) {
        return WHERRY_UNSUPPORTED;
    }
    if (request.library != (uint32_t)library->version) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "rank %d has NCCL %u and this one %d; both must have the same version", (int)site->peer,
                       (unsigned)request.library, library->version);
    }
    wh_nccl_pair pair = pair_of(site, true, request.process);
    wh_nccl_drop(&pair, NULL, 0); /* it would not ask if it had what was offered */
    return wh_nccl_meet(&pair, request.id, &request.unique, error);
}

static wherry_status new_end(const wh_lane_site *site, wh_nccl_comm *comm, uint8_t message_mib, wh_lane_end **end_p,
                             wherry_error *error) {
    wh_nccl_end *end = wh_alloc_zeroed(1, sizeof(*end));
    if (!end) {
        wh_nccl_give(comm);
        return wh_fail_memory(error, "the end of a lane");
    }
    *end = (wh_nccl_end){{1}, site, comm, (uint64_t)message_mib << 20};
    *end_p = &end->base;
    return WHERRY_OK;
}

static wherry_status nccl_accept(const wh_lane_site *site, const void *bytes, size_t size, bool *ready_p,
                                 wh_lane_end **end_p, wherry_error *error) {
    wh_nccl_request request;
    wherry_status status = wh_nccl_parse_request(bytes, size, &request, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_nccl_pair pair = pair_of(site, true, request.process);
    wh_nccl_comm *comm = wh_nccl_take(&pair, request.id, BIT(WH_NCCL_MEETING) | BIT(WH_NCCL_IDLE));
    if (!comm) {
        return wh_fail(error, WHERRY_REFUSED, "the communicator that rank %d names is not there any more",
                       (int)site->peer);
    }
    *ready_p = true;
    return new_end(site, comm, request.message_mib, end_p, error);
}

/* ---- the receiver ---- */

static wherry_status check_place(const wh_lane_site *site, const wh_nccl_offer *offer, wherry_error *error) {
    char boot[WH_BOOT_BYTES];
    wherry_status status = wh_boot_read(boot, error);
    if (status == WHERRY_OK && !site->ordered && memcmp(boot, offer->boot, sizeof(boot)) == 0) {
        status = wh_fail(error, WHERRY_UNSUPPORTED,
                         "rank %d is on this host, where other lanes are faster; it is taken where `lanes` names it",
                         (int)site->peer);
    }
    return status == WHERRY_OK ? wh_cuda_check(error) : status;
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

/** The source has begun: now this side does, and both find each other or do not. */
static wherry_status meet(const wh_lane_site *site, wh_nccl_comm *comm, wherry_error *error) {
    wh_deadline soon = wh_deadline_in_ms((int64_t)wh_min(WH_NCCL_MEET_MS, site->no_progress_ms / 2));
    wherry_status status = wh_nccl_begin(comm, error);
    if (status == WHERRY_OK) {
        status =
            wh_nccl_await(comm, site->stop, wh_deadline_earlier(site->deadline, soon), "meeting the source", error);
    }
    if (status == WHERRY_CANCELLED || (status != WHERRY_OK && wh_deadline_passed(site->deadline))) {
        wh_nccl_abort(comm);
        wh_nccl_give(comm);
    } else if (status != WHERRY_OK) {
        wh_nccl_give_failed(comm, error);
    }
    return status;
}

/** One that both have kept; NULL: there is none. What the source has no more is ended. */
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
    wherry_status status = wh_nccl_parse_offer(bytes, size, &offer, error);
    if (status == WHERRY_OK) {
        status = check_place(site, &offer, error);
    }
    if (status == WHERRY_OK && !wh_nccl_find(error)) {
        status = WHERRY_UNSUPPORTED;
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_nccl_pair pair = pair_of(site, false, offer.process);
    if (wh_nccl_was_refused(&pair, error)) {
        return WHERRY_UNSUPPORTED;
    }
    wh_nccl_comm asked;
    wh_nccl_comm *comm = wh_nccl_take_asked(&pair, site->tag);
    if (comm) {
        status = meet(site, comm, error);
    } else if (!(comm = find_kept(&pair, &offer))) {
        status = wh_nccl_ask(&pair, site->tag, &asked, error);
        if (status == WHERRY_OK) {
            status = append_request(request, &asked, error);
        }
        *assist_p = status == WHERRY_OK;
        return status == WHERRY_OK
                   ? wh_fail(error, WHERRY_REFUSED, "there is no communicator with rank %d yet", (int)site->peer)
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
    .finish_ms = 5000,
    .offer = nccl_offer,
    .probe = nccl_probe,
    .assist = nccl_assist,
    .accept = nccl_accept,
    .pull = wh_nccl_pull,
    .push = wh_nccl_push,
    .forget = wh_nccl_forget,
    .close = nccl_close,
};
