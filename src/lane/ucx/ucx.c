/* The lane `ucx`: what both sides agree on before pieces travel, and what they have in common. */
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "lane/lanes.h"
#include "lane/site.h"
#include "lane/ucx/ucx_internal.h"

/* ---- ends ---- */

static void ucx_close(wh_lane_end *base) {
    wh_ucx_end *end = (void *)base;
    if (!end) {
        return;
    }
    for (uint32_t i = 0; i < WH_UCX_WORKERS_MAX; i++) {
        wh_ucx_worker *worker = end->workers + i;
        wh_ucx_station_give(worker->station);
        wh_digester_destroy(worker->digester);
        if (end->pushes) {
            wh_ucx_pusher_destroy(worker->push);
        } else {
            wh_ucx_puller_destroy(worker->pull);
        }
    }
    wh_free(end);
}

static bool new_side(wh_ucx_worker *worker, bool pushes) {
    if (pushes) {
        worker->push = wh_alloc_zeroed(1, sizeof(*worker->push));
        return worker->push;
    }
    worker->pull = wh_alloc_zeroed(1, sizeof(*worker->pull));
    return worker->pull;
}

/** @param request  SOURCE: the receiver's, which says whom each worker is to talk to. RECEIVER: it has no addresses. */
static wherry_status new_end(const wh_lane_site *site, const wh_ucx_request *request, wh_ucx_end **end_p,
                             wherry_error *error) {
    bool pushes = request->addresses[0].id;
    wh_ucx_end *end = wh_alloc_zeroed(1, sizeof(*end));
    wherry_status status = WHERRY_OK;
    if (!end) {
        wh_fail_memory(error, "a lane");
        return WHERRY_NO_MEMORY;
    }
    end->base.workers = request->workers;
    end->site = site;
    end->pushes = pushes;
    for (uint32_t i = 0; i < request->workers && status == WHERRY_OK; i++) {
        wh_ucx_worker *worker = end->workers + i;
        worker->end = end;
        status = new_side(worker, pushes)
                     ? wh_ucx_station_take(request->addresses[i].id, request->long_segments, &worker->station, error)
                     : wh_fail_memory(error, "a lane");
        if (status == WHERRY_OK) {
            worker->station->message = pushes ? wh_ucx_push_message : wh_ucx_pull_message;
            worker->station->message_context = worker;
        }
    }
    if (status != WHERRY_OK) {
        ucx_close(&end->base);
        return status;
    }
    *end_p = end;
    return WHERRY_OK;
}

static wh_ucx_offer offer_here(const wh_lane_site *site) {
    return (wh_ucx_offer){.workers = (uint32_t)wh_min(site->threads, WH_UCX_WORKERS_MAX),
                          .long_segments = wh_ucx_may_use_long_segments()};
}

/** What a receiver wants of an offer. */
static wh_ucx_request wanted_of(const wh_lane_site *site, const wh_ucx_offer *there) {
    wh_ucx_offer here = offer_here(site);
    wh_ucx_request wanted = {.workers = (uint32_t)wh_min(here.workers, there->workers),
                             .long_segments = here.long_segments && there->long_segments};
    return wanted;
}

/** UCX is loaded when a receiver asks for it, not before: most never do. */
static wherry_status ucx_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    wh_ucx_offer here = offer_here(site);
    wh_ucx_offer_write(&here, offer);
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : WHERRY_OK;
}

/** Whether the source is there is found out when it calls, which it does at once: it then refuses the lane where nobody answers. */
static wherry_status write_request(wh_ucx_end *end, wh_string *request, wherry_error *error) {
    wh_ucx_request message = {.workers = end->base.workers, .long_segments = end->workers[0].station->long_segments};
    memcpy(message.token, end->token, sizeof(message.token));
    for (uint32_t i = 0; i < end->base.workers; i++) {
        const wh_ucx_station *station = end->workers[i].station;
        message.addresses[i] = (wh_ucx_address){station->id, station->address, station->address_size};
    }
    uint32_t workers = wh_ucx_request_write(&message, request);
    if (request->failed) {
        return wh_fail_memory(error, "the request of a lane");
    }
    if (!workers) {
        return wh_fail(
            error, WHERRY_UNSUPPORTED,
            "an address of UCX takes %zu bytes here, which is too much: name fewer devices in UCX_NET_DEVICES",
            message.addresses[0].size);
    }
    end->base.workers = workers;
    return WHERRY_OK;
}

static wherry_status ucx_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                               bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    wh_ucx_offer there;
    wh_ucx_end *end;
    *assist_p = false;
    wherry_status status = wh_ucx_offer_read(offer, size, site->peer, &there, error);
    if (status == WHERRY_OK) {
        wh_ucx_request wanted = wanted_of(site, &there);
        status = new_end(site, &wanted, &end, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (getrandom(end->token, sizeof(end->token), 0) != sizeof(end->token)) {
        status = wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    if (status == WHERRY_OK) {
        status = write_request(end, request, error);
    }
    if (status != WHERRY_OK) {
        ucx_close(&end->base);
        return status;
    }
    *end_p = &end->base;
    return WHERRY_OK;
}

static wherry_status ucx_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                wh_lane_end **end_p, wherry_error *error) {
    wh_ucx_request message;
    wh_ucx_end *end;
    wherry_status status = wh_ucx_request_read(request, size, site->peer, &message, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_ucx_offer here = offer_here(site);
    if (message.workers > here.workers || (message.long_segments && !here.long_segments)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asked for %u workers of the lane ucx%s, and %u%s were offered",
                       (int)site->peer, (unsigned)message.workers, message.long_segments ? " with long segments" : "",
                       (unsigned)here.workers, here.long_segments ? " with long segments" : "");
    }
    status = new_end(site, &message, &end, error);
    if (status != WHERRY_OK) {
        return status;
    }
    memcpy(end->token, message.token, sizeof(end->token));
    wh_ucx_enter();
    for (uint32_t i = 0; i < message.workers && status == WHERRY_OK; i++) {
        status = wh_ucx_station_connect(end->workers[i].station, message.addresses[i].id, message.addresses[i].bytes,
                                        site->peer, error);
    }
    wh_ucx_leave();
    if (status != WHERRY_OK) {
        ucx_close(&end->base);
        return status;
    }
    *ready_p = true;
    *end_p = &end->base;
    return WHERRY_OK;
}

static void ucx_describe(const wh_lane_end *base, wh_string *text) {
    const wh_ucx_end *end = (const void *)base;
    wh_string_format(text, "%s", end->chosen);
}

/* ---- rounds ---- */

/** On huge pages, where there are some: what reads memory through the kernel is quicker then. */
enum { HUGE_PAGE = 2 << 20 };

static uint8_t *first_part(const wh_ucx_station *station) {
    return station->scratch + (size_t)(-(uintptr_t)station->scratch & (HUGE_PAGE - 1));
}

uint8_t *wh_ucx_scratch_take(wh_ucx_worker *worker) {
    wh_ucx_station *station = worker->station;
    if (!WH_RESERVE(station->scratch, station->scratch_bytes, (size_t)WH_UCX_SLOTS * WH_UCX_PART + HUGE_PAGE)) {
        return NULL;
    }
    unsigned part = (unsigned)__builtin_ctz(~station->scratch_used); /* there are as many as slots */
    station->scratch_used |= 1U << part;
    return first_part(station) + (size_t)part * WH_UCX_PART;
}

void wh_ucx_scratch_give(wh_ucx_worker *worker, const uint8_t *part) {
    wh_ucx_station *station = worker->station;
    station->scratch_used &= ~(1U << (size_t)(part - first_part(station)) / WH_UCX_PART);
}

void wh_ucx_got_on(wh_ucx_worker *worker) {
    worker->patience = wh_site_patience(worker->end->site);
    worker->overdue = false;
}

/** A limit may have passed while this process did not run: what the peer has sent by then is looked at first. */
static bool is_given_up(wh_ucx_worker *worker) {
    if (!wh_deadline_passed(worker->patience)) {
        return false;
    }
    bool last = worker->overdue;
    worker->overdue = true;
    worker->patience = wh_deadline_earlier(worker->end->site->deadline, wh_deadline_in_ms(WH_UCX_LAST_MS));
    return last || wh_deadline_passed(worker->patience);
}

wherry_status wh_ucx_begin_round(wh_ucx_worker *worker, bool verify, wherry_error *error) {
    wh_ucx_got_on(worker);
    worker->station->scratch_used = 0;
    if (verify && !worker->digester) {
        worker->digester = wh_digester_create();
    }
    return verify && !worker->digester ? wh_fail_memory(error, "a digest") : WHERRY_OK;
}

wherry_status wh_ucx_fail_lost(const wh_ucx_worker *worker, ucs_status_t why, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    return wh_site_blame(site,
                         wh_fail(error, WHERRY_PEER_LOST, "UCX has lost rank %d: %s", (int)site->peer,
                                 worker->station->ucx->ucs_status_string(why)),
                         error);
}

wherry_status wh_ucx_must_end(wh_ucx_worker *worker, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    if (worker->station->lost != UCS_OK) {
        return wh_ucx_fail_lost(worker, worker->station->lost, error);
    }
    return is_given_up(worker) ? wh_site_timed_out(site, error) : WHERRY_OK;
}

void wh_ucx_note_chosen(wh_ucx_worker *worker) {
    wh_ucx_end *end = worker->end;
    if (worker == end->workers && !end->chosen[0]) {
        const char *ways = wh_ucx_station_ways(worker->station);
        snprintf(end->chosen, sizeof(end->chosen), "UCX %s over %s", worker->station->ucx->ucp_get_version_string(),
                 ways[0] ? ways : "what it does not tell");
        wh_log(WHERRY_LOG_INFO, "ucx: %s rank %d: %s, workers: %u", end->pushes ? "to" : "from", (int)end->site->peer,
               end->chosen, (unsigned)end->base.workers);
    }
}

const wh_lane_ops wh_lane_ucx = {
    .name = "ucx",
    .traits = WH_LANE_NETWORK | WH_LANE_DIGESTS | WH_LANE_STAGES,
    .finish_ms = 200,
    .offer = ucx_offer,
    .probe = ucx_probe,
    .accept = ucx_accept,
    .pull = wh_ucx_pull,
    .push = wh_ucx_push,
    .describe = ucx_describe,
    .close = ucx_close,
};
