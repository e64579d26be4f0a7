#include "lane/lane_common.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include <wherry/checkpoint.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/search.h"

/* ---- segments, routes, landings ---- */

bool wh_segments_add(wh_segments *segments, void *base, size_t length) {
    struct iovec *last = segments->count ? segments->items + segments->count - 1 : NULL;
    segments->bytes += length;
    if (last && (base ? last->iov_base && (char *)last->iov_base + last->iov_len == base : !last->iov_base)) {
        last->iov_len += length;
        return true;
    }
    if (!WH_GROW(segments->items, segments->capacity, segments->count)) {
        return false;
    }
    segments->items[segments->count++] = (struct iovec){base, length};
    return true;
}

void wh_segments_clear(wh_segments *segments) {
    segments->count = 0;
    segments->bytes = 0;
}

void wh_segments_destroy(wh_segments *segments) {
    wh_free(segments->items);
    *segments = (wh_segments){0};
}

void wh_routes_clear(wh_routes *routes) {
    routes->count = 0;
    routes->bytes = 0;
    routes->span = 0;
}

bool wh_routes_add(wh_routes *routes, uint64_t from, void *to, uint64_t length, int32_t device) {
    wh_route *last = routes->count ? routes->items + routes->count - 1 : NULL;
    routes->bytes += length;
    if (last && last->device == device && last->from + last->length == from && (char *)last->to + last->length == to) {
        last->length += length;
        return true;
    }
    if (!WH_GROW(routes->items, routes->capacity, routes->count)) {
        return false;
    }
    routes->items[routes->count++] = (wh_route){from, to, length, device};
    return true;
}

bool wh_routes_locate(wh_routes *routes) {
    if (!WH_RESERVE(routes->begins, routes->begin_capacity, routes->origin.count)) {
        return false;
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < routes->origin.count; i++) {
        routes->begins[i] = begin;
        begin += routes->origin.items[i].iov_len;
    }
    return true;
}

bool wh_routes_add_run(wh_routes *routes, uint64_t position, char *to, uint64_t length, int32_t device) {
    const struct iovec *runs = routes->origin.items;
    size_t at = WH_PARTITION_POINT(routes->origin.count, i, routes->begins[i] <= position) - 1;
    for (uint64_t done = 0; done < length; at++) {
        uint64_t into = position + done - routes->begins[at];
        uint64_t part = wh_min(length - done, runs[at].iov_len - into);
        if (!wh_routes_add(routes, (uint64_t)(uintptr_t)runs[at].iov_base + into, to + done, part, device)) {
            return false;
        }
        done += part;
    }
    return true;
}

void wh_routes_destroy(wh_routes *routes) {
    wh_segments_destroy(&routes->origin);
    wh_free(routes->begins);
    wh_free(routes->items);
    *routes = (wh_routes){0};
}

void wh_landing_destroy(wh_landing *landing) {
    wh_segments_destroy(&landing->segments);
    wh_free(landing->scratch);
    *landing = (wh_landing){0};
}

/* ---- a cursor over iovecs ---- */

wh_run_cursor wh_run_cursor_at(const wh_segments *segments) {
    wh_run_cursor cursor = {segments->items, segments->items + segments->count, 0};
    wh_run_cursor_advance(&cursor, 0); /* This skips empty runs. */
    return cursor;
}

size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p) {
    size_t count = 0;
    size_t bytes = 0;
    size_t skip = cursor->skip;
    for (const struct iovec *at = cursor->at; at < cursor->end && count < room && bytes < most; at++) {
        size_t left = at->iov_len - skip;
        size_t length = wh_min(left, most - bytes);
        void *base = at->iov_base ? (char *)at->iov_base + skip : landing->scratch;
        if (!at->iov_base) {
            length = wh_min(length, landing->scratch_bytes);
        }
        skip = 0;
        if (length) {
            window[count++] = (struct iovec){base, length};
            bytes += length;
        }
        if (length < left) {
            break;
        }
    }
    *bytes_p = bytes;
    return count;
}

void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes) {
    while (cursor->at < cursor->end && bytes >= cursor->at->iov_len - cursor->skip) {
        bytes -= cursor->at->iov_len - cursor->skip;
        cursor->at++;
        cursor->skip = 0;
    }
    cursor->skip += bytes;
}

size_t wh_run_cursor_left(const wh_run_cursor *cursor) {
    return cursor->at < cursor->end ? cursor->at->iov_len - cursor->skip : 0;
}

void wh_run_cursor_pack(wh_run_cursor *cursor, void *to, size_t bytes, wh_digester *digester) {
    uint8_t *at = to;
    while (bytes) {
        size_t part = wh_min(wh_run_cursor_left(cursor), bytes);
        const void *here = wh_run_cursor_here(cursor);
        wh_memcpy_into_cache(at, here, part);
        if (digester) {
            wh_digester_add(digester, here, part);
        }
        wh_run_cursor_advance(cursor, part);
        at += part;
        bytes -= part;
    }
}

void wh_run_cursor_unpack(wh_run_cursor *cursor, const void *from, size_t bytes, wh_digester *digester) {
    const uint8_t *at = from;
    while (bytes) {
        size_t part = wh_min(wh_run_cursor_left(cursor), bytes);
        const struct iovec *next = cursor->at + 1;
        void *here = wh_run_cursor_here(cursor);
        if (here && digester) {
            memcpy(here, at, part);
            wh_digester_add(digester, here, part);
        } else if (here) {
            if (next < cursor->end && next->iov_base) {
                wh_memcpy_prefetch(next->iov_base, next->iov_len);
            }
            wh_memcpy_nontemporal(here, at, part);
        }
        wh_run_cursor_advance(cursor, part);
        at += part;
        bytes -= part;
    }
    if (!digester) {
        wh_memcpy_fence();
    }
}

void wh_run_cursor_digest(wh_run_cursor cursor, wh_digester *digester, size_t bytes) {
    while (bytes) {
        size_t part = wh_min(wh_run_cursor_left(&cursor), bytes);
        wh_digester_add(digester, wh_run_cursor_here(&cursor), part);
        wh_run_cursor_advance(&cursor, part);
        bytes -= part;
    }
}

/* ---- ends and digests ---- */

wherry_status wh_lane_deliver(const wh_lane_ops *lane, wh_lane_end *end, wherry_status status, wh_lane_end **end_p) {
    if (status == WHERRY_OK) {
        *end_p = end;
    } else {
        lane->close(end);
    }
    return status;
}

wherry_status wh_digester_need(bool verify, wh_digester **digester_p, wherry_error *error) {
    if (verify && !*digester_p) {
        *digester_p = wh_digester_create();
    }
    return verify ? wh_check_memory(*digester_p, error, "a digest") : WHERRY_OK;
}

wherry_status wh_sink_close(const wh_sink *sink, wh_landing *landing, const wh_digester *digester,
                            const wherry_digest *claimed, wherry_error *error) {
    wherry_digest made = {0};
    if (sink->verify) {
        made = wh_digester_end(digester);
    }
    return sink->close(sink->context, landing, sink->verify ? &made : NULL, claimed, error);
}

/* ---- the site ---- */

int32_t wh_site_device(const wh_lane_site *site) {
    return site->devices ? __builtin_ctzll(site->devices) : -1;
}

wh_deadline wh_site_patience(const wh_lane_site *site) {
    return wh_deadline_earlier(site->deadline, wh_deadline_in_ms(site->no_progress_ms));
}

wherry_status wh_site_blame(const wh_lane_site *site, wherry_status status, wherry_error *error) {
    return status == WHERRY_OK || status == WHERRY_CANCELLED ? status : wh_fail_rank(error, site->peer, status);
}

wherry_status wh_site_timed_out(const wh_lane_site *site, wherry_error *error) {
    wherry_status status =
        wh_deadline_passed(site->deadline)
            ? wh_fail(error, WHERRY_TIMED_OUT, "timed out before all bytes had moved between this rank and rank %d",
                      (int)site->peer)
            : wh_fail(error, WHERRY_TIMED_OUT,
                      "timed out: rank %d has not moved a byte for %u ms; that rank or the network may be down",
                      (int)site->peer, (unsigned)site->no_progress_ms);
    return wh_site_blame(site, status, error);
}

wherry_status wh_site_other_host(const wh_lane_site *site, wherry_error *error) {
    wh_fail(error, WHERRY_UNSUPPORTED, "rank %d is on another host", (int)site->peer);
    if (error) {
        error->reason = WHERRY_LANE_OTHER_HOST;
    }
    return WHERRY_UNSUPPORTED;
}

wherry_status wh_site_cancelled(wherry_error *error) {
    return wh_fail(error, WHERRY_CANCELLED, "the transfer was stopped");
}

/* ---- processors ---- */

bool wh_worker_pin(uint32_t number, uint32_t threads) {
    cpu_set_t allowed;
    cpu_set_t one;
    int found = -1;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return false;
    }
    uint32_t count = (uint32_t)CPU_COUNT(&allowed);
    if (count < 2 || count >= threads) {
        return false;
    }
    for (uint32_t skip = number % count + 1; skip > 0 && found < CPU_SETSIZE - 1;) {
        skip -= CPU_ISSET(++found, &allowed) != 0;
    }
    CPU_ZERO(&one);
    CPU_SET(found, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0;
}

/* ---- the identity of a process, and the permission to read it ---- */

void wh_identity_append(wh_string *string, const wh_identity *identity) {
    wh_string_append(string, identity->boot, sizeof(identity->boot));
    wh_append_number(string, identity->process, 8);
    wh_append_number(string, identity->namespace_device, 8);
    wh_append_number(string, identity->namespace_inode, 8);
}

void wh_identity_take(wh_cursor *cursor, wh_identity *identity_p) {
    wh_cursor_copy(cursor, identity_p->boot, sizeof(identity_p->boot));
    identity_p->process = wh_cursor_number(cursor, 8);
    identity_p->namespace_device = wh_cursor_number(cursor, 8);
    identity_p->namespace_inode = wh_cursor_number(cursor, 8);
    cursor->failed = cursor->failed || identity_p->process == 0 || identity_p->process > INT32_MAX;
}

uint64_t wh_ptracer_choose(_Atomic uint64_t *slot, uint64_t process) {
    uint64_t named = atomic_load(slot);
    uint64_t wanted;
    do {
        /* A receiver that no longer exists does not need the permission. */
        bool gone = named != WH_PTRACER_ANYONE && named != 0 && kill((pid_t)named, 0) != 0 && errno == ESRCH;
        wanted = named == 0 || gone || named == process ? process : WH_PTRACER_ANYONE;
    } while (!atomic_compare_exchange_weak(slot, &named, wanted));
    return wanted;
}

wherry_status wh_ptracer_name(const wh_lane_site *site, const wh_identity *receiver, wherry_error *error) {
    static _Atomic uint64_t slot;
    wh_identity own;
    WH_TRY(wh_identity_read(&own, error));
    if (site->keep_ptracer) {
        return wh_fail(
            error, WHERRY_REFUSED,
            "the source may not set its ptracer, because WHERRY_SEND_NO_PTRACER is set: remove that flag, or "
            "set /proc/sys/kernel/yama/ptrace_scope to 0");
    }
    if (memcmp(own.boot, receiver->boot, sizeof(own.boot)) != 0) {
        return wh_fail(error, WHERRY_REFUSED,
                       "rank %d is on another host and cannot read this process; its request for that is refused",
                       (int)site->peer);
    }
    uint64_t process = (uint64_t)wh_group_process(site->group, site->peer);
    if (process == 0) {
        process = wh_identity_shares_pids(&own, receiver) ? receiver->process : WH_PTRACER_ANYONE;
    }
    uint64_t named = wh_ptracer_choose(&slot, process);
    wh_log(WHERRY_LOG_INFO, "rank %d is not allowed to read this process; setting the ptracer of this process to %s",
           site->peer, named == WH_PTRACER_ANYONE ? "any process" : "the process of that rank");
    if (prctl(PR_SET_PTRACER, named == WH_PTRACER_ANYONE ? PR_SET_PTRACER_ANY : (unsigned long)named, 0, 0, 0) != 0) {
        return wh_fail_errno(error, WHERRY_UNSUPPORTED, errno,
                             "PR_SET_PTRACER failed: the kernel has no Yama, or the receiver's process has ended");
    }
    return WHERRY_OK;
}
