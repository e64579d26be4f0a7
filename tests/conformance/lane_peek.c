/*
 * An example lane: the receiver reads the source's memory through /proc/PID/mem. See
 * docs/writing-a-lane.md.
 */
#include "conformance/lane_peek.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "lane/lane_common.h"

enum { NONCE = 32 };

/* ---- the source: only makes an offer ---- */

static char nonce[NONCE]; /* only this process has it at this address */
static bool has_nonce;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_nonce(void) {
    has_nonce = getrandom(nonce, sizeof(nonce), 0) == (ssize_t)sizeof(nonce);
}

static wherry_status offer(const wh_lane_site *site, wh_string *text, wherry_error *error) {
    (void)site;
    pthread_once(&once, make_nonce);
    if (!has_nonce) {
        return wh_fail(error, WHERRY_SYSTEM, "cannot get a random number");
    }
    wh_append_number(text, (uint64_t)getpid(), 8);
    wh_append_number(text, (uintptr_t)nonce, 8);
    wh_string_append(text, nonce, sizeof(nonce));
    return WHERRY_OK;
}

/* ---- the receiver: does it work? ---- */

typedef struct peek_end {
    wh_lane_end base;
    const wh_lane_site *site;
    int memory;  /* stays the memory of that process, even if its pid is reused */
    int process; /* a pidfd: readable once the process has ended */
} peek_end;

static wherry_status check_alive(const peek_end *end, wherry_error *error) {
    struct pollfd ended = {.fd = end->process, .events = POLLIN};
    return poll(&ended, 1, 0) == 0
               ? WHERRY_OK
               : wh_fail(error, WHERRY_PEER_LOST, "the process of rank %d has ended", (int)end->site->peer);
}

/** Reads bytes of the source. Fails if they are not mapped there, or the process has ended. */
static wherry_status peek(const peek_end *end, void *to, size_t size, uint64_t address, wherry_error *error) {
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(end->memory, (char *)to + done, size - done, (off_t)(address + done));
        if (got == 0) {
            return wh_fail(error, WHERRY_PEER_LOST, "the process of rank %d has ended", (int)end->site->peer);
        }
        if (got < 0 && errno != EINTR) {
            return wh_fail(error, WHERRY_OUT_OF_BOUNDS, "cannot read the memory of rank %d: %s", (int)end->site->peer,
                           strerror(errno));
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return WHERRY_OK;
}

static wherry_status probe(const wh_lane_site *site, const void *bytes, size_t size, wh_string *request, bool *assist_p,
                           wh_lane_end **end_p, wherry_error *error) {
    (void)request;
    (void)assist_p;
    char path[64];
    uint8_t found[NONCE];
    wh_cursor cursor = wh_cursor_over(bytes, size); /* hostile, like everything from a peer */
    uint64_t process = wh_cursor_number(&cursor, 8);
    uint64_t address = wh_cursor_number(&cursor, 8);
    const void *told = wh_cursor_bytes(&cursor, NONCE);
    if (!wh_cursor_ended(&cursor) || process > INT32_MAX || address > INT64_MAX) {
        return wh_fail(error, WHERRY_MALFORMED, "malformed offer of %zu bytes", size);
    }
    peek_end *end = wh_alloc_zeroed(1, sizeof(*end));
    if (!end) {
        return wh_fail_memory(error, "an end of a lane");
    }
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)process);
    *end = (peek_end){.base.workers = site->threads, .site = site, .memory = -1};
    end->process = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    end->memory = end->process < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    wherry_status status = WHERRY_OK;
    if (end->memory < 0 && (errno == ENOENT || errno == ESRCH || errno == EINVAL)) {
        status = wh_fail(error, WHERRY_UNSUPPORTED, "process %d does not exist on this host", (int)process);
    } else if (end->memory < 0) {
        status =
            wh_fail(error, WHERRY_REFUSED, "cannot open %s: %s; run both ranks as one user", path, strerror(errno));
    } else if (peek(end, found, NONCE, address, error) != WHERRY_OK || memcmp(found, told, NONCE) != 0) {
        status = wh_fail(error, WHERRY_UNSUPPORTED, "process %d is not the process of rank %d", (int)process,
                         (int)site->peer);
    }
    if (status != WHERRY_OK) {
        wh_lane_peek.close(&end->base);
        return status;
    }
    *end_p = &end->base;
    return WHERRY_OK;
}

/* ---- the receiver: chunk after chunk ---- */

/**
 * Reads runs of the source into local runs. Both have the same number of bytes, but may be split
 * differently.
 */
static wherry_status copy_runs(const peek_end *end, const wh_segments *from, const wh_segments *to,
                               wherry_error *error) {
    wherry_status status = WHERRY_OK;
    size_t source = 0;
    size_t there = 0; /* bytes of that run that were already read */
    for (size_t i = 0; i < to->count && status == WHERRY_OK; i++) {
        for (size_t here = 0; here < to->items[i].iov_len && status == WHERRY_OK;) {
            size_t size = wh_min(to->items[i].iov_len - here, from->items[source].iov_len - there);
            char *to_run = to->items[i].iov_base;
            if (to_run && size) { /* NULL: the bytes are not wanted */
                status = peek(end, to_run + here, size, (uintptr_t)from->items[source].iov_base + there, error);
            }
            here += size;
            there += size;
            if (there == from->items[source].iov_len) {
                source++;
                there = 0;
            }
        }
    }
    return status;
}

/** One worker. Several run at once, and each chunk goes to one of them. */
static wherry_status pull(wh_lane_end *base, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    (void)worker;
    const peek_end *end = (const void *)base;
    wh_segments origin = {0}; /* reused from chunk to chunk */
    wh_landing landing = {0};
    wh_digester *digester = sink->verify ? wh_digester_create() : NULL;
    wherry_status status = sink->verify && !digester ? wh_fail_memory(error, "a digest") : WHERRY_OK;
    uint64_t chunk;
    while (status == WHERRY_OK && !wh_stop_requested(end->site->stop) &&
           (sink->next(sink->context, &chunk) || (wh_sink_more(sink) && sink->next(sink->context, &chunk)))) {
        wherry_digest digest;
        status = sink->origin(sink->context, chunk, &origin, error);
        WH_THEN(status, sink->open(sink->context, chunk, &landing, error));
        WH_THEN(status, copy_runs(end, &origin, &landing.segments, error));
        WH_THEN(status, check_alive(end, error));
        if (status == WHERRY_OK) {
            if (digester) { /* the digest of what landed; the source sends its own by message */
                digest = wh_digest_of(digester, landing.segments.items, landing.segments.count);
            }
            sink->moved(sink->context, landing.segments.bytes);
            status = sink->close(sink->context, &landing, digester ? &digest : NULL, NULL, error);
        }
    }
    if (status == WHERRY_OK && wh_stop_requested(end->site->stop)) {
        status = wh_site_cancelled(error);
    }
    wh_digester_destroy(digester);
    wh_segments_destroy(&origin);
    wh_landing_destroy(&landing);
    return status;
}

static void close_end(wh_lane_end *base) {
    peek_end *end = (void *)base;
    if (end && end->memory >= 0) {
        close(end->memory);
    }
    if (end && end->process >= 0) {
        close(end->process);
    }
    wh_free(end);
}

const wh_lane_ops wh_lane_peek = {
    .name = "peek",
    .traits = WH_LANE_ONE_SIDED, /* no accept and no push, because the source does nothing */
    .offer = offer,
    .probe = probe,
    .pull = pull,
    .close = close_end,
};
