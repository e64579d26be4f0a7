/*
 * The lane `cma`: how a receiver comes to read the source's memory, or learns why it may not.
 * cma_read.c reads.
 */
#include "lane/cma/cma.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lanes.h"

enum { REASON_MAX = 384 };

/* ---- the wire ---- */

/** Zeroed by the kernel in a child of fork(), where no reader may find it. */
static uint8_t *own_nonce;
static bool nonce_made;

static void forget_nonce(void) {
    nonce_made = false;
}

static wh_fork_lock nonce_lock = WH_FORK_LOCK(.in_child = forget_nonce);

wherry_status wh_cma_nonce(const uint8_t **nonce_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_fork_lock_take(&nonce_lock);
    own_nonce = own_nonce ? own_nonce : wh_fork_wiped_alloc(WH_CMA_NONCE);
    if (!own_nonce || (!nonce_made && getrandom(own_nonce, WH_CMA_NONCE, 0) != WH_CMA_NONCE)) {
        status = wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot create a nonce");
    } else {
        nonce_made = true;
        *nonce_p = own_nonce;
    }
    wh_fork_lock_give(&nonce_lock);
    return status;
}

void wh_cma_append_request(wh_string *string, const wh_identity *identity) {
    wh_append_number(string, WH_CMA_VERSION, 1);
    wh_identity_append(string, identity);
}

void wh_cma_append_offer(wh_string *string, const wh_cma_offer *offer) {
    wh_cma_append_request(string, &offer->identity);
    wh_append_number(string, offer->address, 8);
    wh_string_append(string, (const char *)offer->nonce, sizeof(offer->nonce));
}

/** Parses the version and the identity, which begin every message. `wanted` is its size. */
static wherry_status parse_identity(const uint8_t *bytes, size_t size, size_t wanted, wh_identity *identity_p,
                                    wherry_error *error) {
    if (size > 0 && bytes[0] != WH_CMA_VERSION) {
        return wh_fail(error, WHERRY_BAD_VERSION, "cma: the other side has version %u of this lane, this side has %d",
                       bytes[0], WH_CMA_VERSION);
    }
    if (size != wanted) {
        return wh_fail(error, WHERRY_MALFORMED, "cma: malformed message: %zu bytes, not %zu", size, wanted);
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
    memcpy(offer_p->nonce, rest + 8, WH_CMA_NONCE);
    return WHERRY_OK;
}

wherry_status wh_cma_parse_request(const void *bytes, size_t size, wh_identity *identity_p, wherry_error *error) {
    return parse_identity(bytes, size, WH_CMA_REQUEST_BYTES, identity_p, error);
}

/* ---- why memory may not be read ---- */

/** Reads the beginning of a small file as a string. @return false if it cannot be read. */
static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) {
        close(file);
    }
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/**
 * The effective user of a process: the second number after "Uid:" in /proc/PID/status. -1: unknown.
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
    /* The files of a process that is not dumpable belong to root. */
    refusal->dumpable = refusal->user <= 0 || stat(path, &at) != 0 || at.st_uid != 0;
}

/** True if nothing but Yama forbids it. */
static bool only_yama(const wh_cma_refusal *refusal) {
    return refusal->dumpable && (refusal->user < 0 || refusal->user == refusal->own_user);
}

static void explain(const wh_cma_refusal *refusal, char *reason, size_t size) {
    if (!refusal->dumpable) {
        snprintf(
            reason, size,
            "the source is not dumpable (PR_SET_DUMPABLE 0, or it changed its user): set PR_SET_DUMPABLE to 1 there "
            "if other processes of its user may read it");
    } else if (!only_yama(refusal)) {
        snprintf(reason, size,
                 "the source runs as user %" PRId64 " and this process as user %" PRId64
                 ": run both as one user, or give this process CAP_SYS_PTRACE",
                 refusal->user, refusal->own_user);
    } else if (refusal->scope == 1) {
        snprintf(reason, size,
                 "Yama's ptrace_scope is 1 and the source has not named this process its ptracer: call "
                 "PR_SET_PTRACER there, or set /proc/sys/kernel/yama/ptrace_scope to 0");
    } else if (refusal->scope == 2) {
        snprintf(reason, size,
                 "Yama's ptrace_scope is 2 and this process has no CAP_SYS_PTRACE: grant it, or set "
                 "/proc/sys/kernel/yama/ptrace_scope to 1 or 0");
    } else if (refusal->scope == 3) {
        snprintf(reason, size,
                 "Yama's ptrace_scope is 3, which forbids it for all processes until the machine restarts");
    } else {
        snprintf(reason, size,
                 "the source may have capabilities that this process lacks, or a container or a security module "
                 "forbids it: start both the same way, in one container, if needed with CAP_SYS_PTRACE");
    }
}

wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error) {
    char reason[REASON_MAX];
    char one[64];
    char other[64];
    explain(refusal, reason, sizeof(reason));
    if (refusal->scope == 1 && only_yama(refusal)) {
        *assist_p = true;
    }
    wh_fail(error, WHERRY_REFUSED, "process_vm_readv on process %d of rank %d: %s; /proc/%d/mem: %s; %s",
            refusal->process, refusal->rank, strerror_r(refusal->call_errnum, one, sizeof(one)), refusal->process,
            strerror_r(refusal->memory_errnum, other, sizeof(other)), reason);
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
    WH_TRY(wh_cma_nonce(&nonce, error));
    own.address = (uint64_t)(uintptr_t)nonce;
    memcpy(own.nonce, nonce, WH_CMA_NONCE);
    wh_cma_append_offer(offer, &own);
    return offer->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
}

/**
 * The source's pid in this process's namespace: from the kernel, or from the offer if both share
 * the namespace.
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
                           "rank %d is in another pid namespace: start both in one container, or let them share it "
                           "(docker run --pid, shareProcessNamespace)",
                           site->peer);
        }
        process = (int32_t)offer->identity.process;
    }
    *process_p = process;
    return WHERRY_OK;
}

/** Reads the nonce. Sets *errnum_p if the call is refused. */
static wherry_status read_nonce(const wh_cma_peer *peer, const wh_cma_offer *offer, int *errnum_p,
                                wherry_error *error) {
    uint8_t found[WH_CMA_NONCE];
    struct iovec remote = {(void *)(uintptr_t)offer->address, sizeof(found)};
    struct iovec local = {found, sizeof(found)};
    wh_cma_batch batch = {&remote, &local, 1, 1};
    wherry_status status = wh_cma_read(peer, &batch, errnum_p, error);
    if (status == WHERRY_OUT_OF_BOUNDS || (status == WHERRY_OK && memcmp(found, offer->nonce, WH_CMA_NONCE) != 0)) {
        status = wh_fail(error, WHERRY_REFUSED,
                         "process %d is not the process of rank %d: its memory does not hold the nonce", peer->process,
                         peer->rank);
    }
    return status;
}

/** The call is refused, perhaps by a system call filter that does not cover /proc/PID/mem. */
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
                       "cma: process_vm_readv is filtered (errno %d): reading %s instead, which is slower", errnum,
                       path);
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
    .traits = WH_LANE_ONE_SIDED,
    .run_bytes = 16 << 10, /* the kernel handles each page separately */
    .offer = cma_offer,
    .probe = cma_probe,
    .assist = cma_assist,
    .pull = wh_cma_pull,
    .close = cma_close,
};
