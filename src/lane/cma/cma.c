/*
 * The cma lane: offer and probe. A probe finds out whether the receiver may read the source's
 * memory and, if not, why. cma_read.c does the reading.
 */
#include "lane/cma/cma.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lanes.h"

enum { REASON_MAX = 192 };

/* ---- the wire ---- */

void wh_cma_append_request(wh_string *string, const wh_identity *identity) {
    wh_append_number(string, WH_CMA_VERSION, 1);
    wh_identity_append(string, identity);
}

void wh_cma_append_offer(wh_string *string, const wh_cma_offer *offer) {
    wh_cma_append_request(string, &offer->identity);
    wh_append_number(string, offer->address, 8);
    wh_string_append(string, (const char *)offer->nonce, sizeof(offer->nonce));
}

/**
 * Parses the version and the identity, which begin every message. `wanted` is the expected size.
 */
static wherry_status parse_identity(const uint8_t *bytes, size_t size, size_t wanted, wh_identity *identity_p,
                                    wherry_error *error) {
    if (size > 0 && bytes[0] != WH_CMA_VERSION) {
        return wh_fail(error, WHERRY_BAD_VERSION,
                       "the other side has version %u of the cma lane, but this side has version %d", bytes[0],
                       WH_CMA_VERSION);
    }
    if (size != wanted) {
        return wh_fail(error, WHERRY_MALFORMED, "cma: malformed message: %zu bytes instead of %zu", size, wanted);
    }
    wh_cursor cursor = wh_cursor_over(bytes + 1, size - 1);
    wh_identity_take(&cursor, identity_p);
    return cursor.failed ? wh_fail(error, WHERRY_MALFORMED, "cma: malformed message: the pid is out of range")
                         : WHERRY_OK;
}

wherry_status wh_cma_parse_offer(const void *bytes, size_t size, wh_cma_offer *offer_p, wherry_error *error) {
    WH_TRY(parse_identity(bytes, size, WH_CMA_OFFER_BYTES, &offer_p->identity, error));
    const uint8_t *rest = (const uint8_t *)bytes + WH_CMA_REQUEST_BYTES;
    offer_p->address = wh_load_be64(rest);
    memcpy(offer_p->nonce, rest + 8, WH_NONCE_BYTES);
    return WHERRY_OK;
}

wherry_status wh_cma_parse_request(const void *bytes, size_t size, wh_identity *identity_p, wherry_error *error) {
    return parse_identity(bytes, size, WH_CMA_REQUEST_BYTES, identity_p, error);
}

/* ---- explaining a refusal ---- */

/** Reads the beginning of a small file as a string. @return false if it cannot be read. */
static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, size - 1);
    wh_close(file);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/**
 * Returns the effective user of a process, which is the second number after "Uid:" in
 * /proc/PID/status; -1 if it is unknown.
 */
static int64_t user_of(int32_t process) {
    char path[64];
    char text[2048];
    snprintf(path, sizeof(path), "/proc/%d/status", process);
    char *line = read_text(path, text, sizeof(text)) ? strstr(text, "\nUid:") : NULL;
    if (!line) {
        return -1;
    }
    char *end;
    strtoll(line + 5, &end, 10);
    return strtoll(end, NULL, 10);
}

void wh_cma_investigate(wh_cma_refusal *refusal) {
    char path[64];
    char text[32];
    struct stat at;
    bool yama = read_text("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text));
    refusal->scope = yama ? (int)strtol(text, NULL, 10) : -1;
    refusal->own_user = geteuid();
    refusal->user = user_of(refusal->process);
    snprintf(path, sizeof(path), "/proc/%d/status", refusal->process);
    /* If a process is not dumpable, its files in /proc belong to root. */
    refusal->dumpable = refusal->user <= 0 || stat(path, &at) != 0 || at.st_uid != 0;
}

/** True if nothing except Yama is known to forbid the read. */
static bool only_yama(const wh_cma_refusal *refusal) {
    return refusal->dumpable && (refusal->user < 0 || refusal->user == refusal->own_user);
}

/** Returns why the kernel refuses, and what to do. @param space  room for the text, if needed. */
static const char *explain(const wh_cma_refusal *refusal, char space[REASON_MAX]) {
    if (!refusal->dumpable) {
        return "the source is not dumpable (PR_SET_DUMPABLE is 0, or it changed its user): to let other processes of "
               "its user read it, set PR_SET_DUMPABLE to 1 in the source";
    }
    if (!only_yama(refusal)) {
        snprintf(space, REASON_MAX,
                 "the source runs as user %" PRId64 " and this process as user %" PRId64
                 ": run both as one user, or grant CAP_SYS_PTRACE to this process",
                 refusal->user, refusal->own_user);
        return space;
    }
    switch (refusal->scope) {
    case 1:
        return "Yama's ptrace_scope is 1 and this process is not the ptracer of the source: call PR_SET_PTRACER in "
               "the source, or set /proc/sys/kernel/yama/ptrace_scope to 0";
    case 2:
        return "Yama's ptrace_scope is 2 and this process has no CAP_SYS_PTRACE: grant CAP_SYS_PTRACE, or set "
               "/proc/sys/kernel/yama/ptrace_scope to 1 or 0";
    case 3:
        return "Yama's ptrace_scope is 3, which forbids reading other processes until the machine restarts";
    default:
        return "the source may have capabilities that this process lacks, or a container or a security module forbids "
               "the read: run both processes in one container with the same capabilities, or grant CAP_SYS_PTRACE to "
               "this process";
    }
}

wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error) {
    char reason[REASON_MAX];
    char one[64];
    char other[64];
    if (refusal->scope == 1 && only_yama(refusal)) {
        *assist_p = true;
    }
    wh_fail(error, WHERRY_REFUSED,
            "cannot read the memory of process %d (rank %d): process_vm_readv: %s; /proc/%d/mem: %s; %s",
            refusal->process, refusal->rank, strerror_r(refusal->call_errnum, one, sizeof(one)), refusal->process,
            strerror_r(refusal->memory_errnum, other, sizeof(other)), explain(refusal, reason));
    if (error) {
        error->errnum = refusal->call_errnum;
        error->rank = refusal->rank;
    }
    return WHERRY_REFUSED;
}

/* ---- the lane ---- */

static wherry_status cma_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    (void)site;
    wh_cma_offer own;
    const uint8_t *nonce;
    WH_TRY(wh_identity_read(&own.identity, error));
    WH_TRY(wh_process_nonce(&nonce, error));
    own.address = (uint64_t)(uintptr_t)nonce;
    memcpy(own.nonce, nonce, WH_NONCE_BYTES);
    wh_cma_append_offer(offer, &own);
    return offer->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
}

/**
 * Finds the source's pid in the pid namespace of this process. The pid comes from the group, or
 * from the offer if the group does not know it and both processes share the namespace.
 */
static wherry_status find_process(const wh_lane_site *site, const wh_identity *own, const wh_cma_offer *offer,
                                  int32_t *process_p, wherry_error *error) {
    int32_t process = wh_group_process(site->group, site->peer);
    if (process == 0) {
        if (memcmp(own->boot, offer->identity.boot, WH_BOOT_BYTES) != 0) {
            return wh_site_other_host(site, error);
        }
        if (!wh_identity_shares_pids(own, &offer->identity)) {
            return wh_fail(error, WHERRY_UNSUPPORTED,
                           "rank %d is in another pid namespace: start both ranks in one container, or let their "
                           "containers share one pid namespace (docker run --pid, shareProcessNamespace)",
                           site->peer);
        }
        process = (int32_t)offer->identity.process;
    }
    *process_p = process;
    return WHERRY_OK;
}

/** Checks that the source's memory contains the nonce. Sets *errnum_p if the system call fails. */
static wherry_status read_nonce(const wh_cma_peer *peer, const wh_cma_offer *offer, int *errnum_p,
                                wherry_error *error) {
    uint8_t found[WH_NONCE_BYTES];
    struct iovec remote = {(void *)(uintptr_t)offer->address, sizeof(found)};
    struct iovec local = {found, sizeof(found)};
    wh_cma_batch batch = {&remote, &local, 1, 1};
    wherry_status status = wh_cma_read(peer, &batch, errnum_p, error);
    if (status == WHERRY_OUT_OF_BOUNDS || (status == WHERRY_OK && memcmp(found, offer->nonce, WH_NONCE_BYTES) != 0)) {
        status = wh_fail(error, WHERRY_REFUSED,
                         "process %d is not the process of rank %d: its memory does not hold the nonce of the offer",
                         peer->process, peer->rank);
    }
    return status;
}

/**
 * Tries /proc/PID/mem after process_vm_readv has failed. This works if a system call filter has
 * blocked process_vm_readv.
 */
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
                       "cma: process_vm_readv is not allowed here (errno %d); using %s instead, which is slower",
                       errnum, path);
            }
            return status;
        }
    }
    wh_cma_investigate(&refusal);
    return wh_cma_refuse(&refusal, assist_p, error);
}

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
    WH_THEN(status, wh_identity_read(&own, error));
    WH_THEN(status, find_process(site, &own, &offer, &process, error));
    WH_THEN(status, wh_cma_peer_open(&peer, process, site->peer, error));
    WH_THEN(status, try_peer(&peer, &offer, &assist, error));
    wh_cma_end *end = status == WHERRY_OK ? wh_alloc_zeroed(1, sizeof(*end)) : NULL;
    if (!end) {
        wh_cma_peer_close(&peer);
        if (assist) {
            wh_cma_append_request(request, &own);
            *assist_p = !request->failed;
        }
        return status == WHERRY_OK ? wh_fail_memory(error, "an end of the cma lane") : status;
    }
    *end = (wh_cma_end){.base.workers = site->threads, .peer = peer, .stop = site->stop};
    *end_p = &end->base;
    return WHERRY_OK;
}

static wherry_status cma_assist(const wh_lane_site *site, const void *request, size_t size, wherry_error *error) {
    wh_identity receiver;
    WH_TRY(wh_cma_parse_request(request, size, &receiver, error));
    return wh_ptracer_name(site, &receiver, error);
}

static void cma_close(wh_lane_end *end) {
    if (end) {
        wh_cma_peer_close(&wh_cma_end_of(end)->peer);
        wh_free(end);
    }
}

const wh_lane_ops wh_lane_cma = {
    .name = "cma",
    .traits = WH_LANE_ONE_SIDED | WH_LANE_PRIVATE,
    /* Short runs are slow, because the kernel handles each page separately. */
    .run_bytes = 16 << 10,
    .offer = cma_offer,
    .probe = cma_probe,
    .assist = cma_assist,
    .pull = wh_cma_pull,
    .close = cma_close,
};
