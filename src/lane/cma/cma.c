#include "lane/cma/cma.h"
#include "lane/lane_common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"

static wherry_status cma_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    (void)site;
    wh_cma_offer own;
    const uint8_t *nonce;
    wherry_status status = wh_identity_read(&own.identity, error);
    if (status == WHERRY_OK) {
        status = wh_cma_nonce(&nonce, error);
    }
    if (status == WHERRY_OK) {
        own.address = (uint64_t)(uintptr_t)nonce;
        memcpy(own.nonce, nonce, WH_CMA_NONCE);
        wh_cma_append_offer(offer, &own);
        status = offer->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
    }
    return status;
}

/** The source's process as this one knows it: by the kernel's word, else by the source's own where its numbers mean the same here. */
static wherry_status find_process(const wh_lane_site *site, const wh_identity *own, const wh_cma_offer *offer,
                                  int32_t *process_p, wherry_error *error) {
    int32_t process = wh_group_process(site->group, site->peer);
    if (process == 0) {
        if (memcmp(own->boot, offer->identity.boot, WH_BOOT_BYTES) != 0) {
            return wh_site_other_host(site, error);
        }
        if (!wh_identity_shares_pids(own, &offer->identity)) {
            return wh_fail(error, WHERRY_UNSUPPORTED,
                           "rank %d is in another pid namespace: start both in one container, or let them share it "
                           "(docker run --pid, shareProcessNamespace)",
                           site->peer);
        }
        process = (int32_t)offer->identity.process;
    }
    *process_p = process;
    return WHERRY_OK;
}

/** Reads the nonce. *errnum_p is set where the call is refused. */
static wherry_status read_nonce(const wh_cma_peer *peer, const wh_cma_offer *offer, int *errnum_p,
                                wherry_error *error) {
    uint8_t found[WH_CMA_NONCE];
    struct iovec remote = {(void *)(uintptr_t)offer->address, sizeof(found)};
    struct iovec local = {found, sizeof(found)};
    wh_cma_batch batch = {&remote, &local, 1, 1};
    wherry_status status = wh_cma_read(peer, &batch, errnum_p, error);
    if (status == WHERRY_OUT_OF_BOUNDS || (status == WHERRY_OK && memcmp(found, offer->nonce, WH_CMA_NONCE) != 0)) {
        status = wh_fail(error, WHERRY_REFUSED,
                         "process %d is not the one that rank %d says it is: its memory does not hold the nonce",
                         peer->process, peer->rank);
    }
    return status;
}

/** The call is refused, perhaps by a filter of system calls that knows nothing of /proc/PID/mem. */
static wherry_status try_memory(wh_cma_peer *peer, const wh_cma_offer *offer, int errnum, bool *assist_p,
                                wherry_error *error) {
    wh_cma_refusal refusal = {.process = peer->process, .rank = peer->rank, .call_errnum = errnum};
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/mem", peer->process);
    peer->memory = open(path, O_RDONLY | O_CLOEXEC);
    if (peer->memory < 0) {
        refusal.memory_errnum = errno;
    } else {
        wherry_status status = read_nonce(peer, offer, &refusal.memory_errnum, error);
        if (refusal.memory_errnum != EPERM && refusal.memory_errnum != EACCES) {
            if (status == WHERRY_OK) {
                wh_log(WHERRY_LOG_WARN,
                       "cma: process_vm_readv is filtered here (errno %d): reading %s, which is slower", errnum, path);
            }
            return status;
        }
    }
    wh_cma_investigate(&refusal);
    return wh_cma_refuse(&refusal, assist_p, error);
}

/** Tries to read the real peer. */
static wherry_status try_peer(wh_cma_peer *peer, const wh_cma_offer *offer, bool *assist_p, wherry_error *error) {
    int errnum = 0;
    wherry_status status = read_nonce(peer, offer, &errnum, error);
    if (errnum == EPERM || errnum == ENOSYS) {
        status = try_memory(peer, offer, errnum, assist_p, error);
    }
    return status;
}

static wherry_status cma_probe(const wh_lane_site *site, const void *bytes, size_t size, wh_string *request,
                               bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    wh_cma_offer offer;
    wh_identity own;
    wh_cma_peer peer = {.pidfd = -1, .memory = -1};
    int32_t process = 0;
    bool assist = false;
    wherry_status status = wh_cma_parse_offer(bytes, size, &offer, error);
    if (status == WHERRY_OK) {
        status = wh_identity_read(&own, error);
    }
    if (status == WHERRY_OK) {
        status = find_process(site, &own, &offer, &process, error);
    }
    if (status == WHERRY_OK) {
        status = wh_cma_peer_open(&peer, process, site->peer, error);
    }
    if (status == WHERRY_OK) {
        status = try_peer(&peer, &offer, &assist, error);
    }
    wh_cma_end *end = status == WHERRY_OK ? wh_alloc_zeroed(1, sizeof(*end)) : NULL;
    if (!end) {
        wh_cma_peer_close(&peer);
        if (assist) {
            wh_cma_append_request(request, &own);
            *assist_p = !request->failed;
        }
        return status == WHERRY_OK ? wh_fail_memory(error, "the end of a lane") : status;
    }
    *end = (wh_cma_end){.base.workers = site->threads, .peer = peer, .stop = site->stop};
    *end_p = &end->base;
    return WHERRY_OK;
}

static wherry_status cma_assist(const wh_lane_site *site, const void *request, size_t size, wherry_error *error) {
    wh_identity receiver;
    wherry_status status = wh_cma_parse_request(request, size, &receiver, error);
    return status == WHERRY_OK ? wh_ptracer_name(site, &receiver, error) : status;
}

static void cma_close(wh_lane_end *end) {
    if (end) {
        wh_cma_peer_close(&wh_cma_end_of(end)->peer);
        wh_free(end);
    }
}

const wh_lane_ops wh_lane_cma = {
    .name = "cma",
    .traits = WH_LANE_ONE_SIDED,
    .run_bytes = 16 << 10, /* the kernel takes each page by itself */
    .offer = cma_offer,
    .probe = cma_probe,
    .assist = cma_assist,
    .pull = wh_cma_pull,
    .close = cma_close,
};
