#include "lane/ucx/ucx_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/point.h"
#include "base/process.h"

enum { KEPT_MAX = 8 };

static wh_ucx_station *kept; /**< The one that was used last is the first. */
static uint32_t kept_count;
static uint32_t used_count;
static bool foreign; /**< UCX was in the process before. */
static bool exits;   /**< What is kept is released when the process ends. */
static bool spoilt;  /**< This process was forked from one in which UCX was at work. */

static void release_kept(void) {
    while (kept) {
        wh_ucx_station *station = kept;
        kept = station->next;
        kept_count--;
        wh_ucx_station_destroy(station);
    }
}

/** While nobody uses UCX: before a fork, and when the process ends. */
static void release_idle(void) {
    if (!used_count && !spoilt) {
        release_kept();
    }
}

/** What is left of UCX here cannot be released, since its threads are not here to answer. */
static void after_fork_in_child(void) {
    spoilt = spoilt || used_count || foreign;
    used_count = 0;
}

static wh_fork_lock lock = WH_FORK_LOCK(.before = release_idle, .in_child = after_fork_in_child);

static void at_exit(void) {
    wh_fork_lock_take(&lock);
    release_idle();
    wh_fork_lock_give(&lock);
}

/** Takes out the first that fits; NULL where none does. */
static wh_ucx_station *take_kept(const uint8_t *peer_id, bool long_segments) {
    for (wh_ucx_station **link = &kept; *link; link = &(*link)->next) {
        wh_ucx_station *station = *link;
        bool fits =
            peer_id ? station->calls && memcmp(station->peer_id, peer_id, WH_UCX_ID_BYTES) == 0 : !station->calls;
        if (fits && station->long_segments == long_segments) {
            *link = station->next;
            kept_count--;
            return station;
        }
    }
    return NULL;
}

static wherry_status make(bool long_segments, wh_ucx_station **station_p, wherry_error *error) {
    const wh_ucx_library *ucx = wh_ucx_load(error);
    if (!ucx) {
        return WHERRY_UNSUPPORTED;
    }
    wh_fork_lock_take(&lock);
    foreign = ucx->foreign;
    bool first = !exits;
    exits = true;
    wh_fork_lock_give(&lock);
    if (first) {
        atexit(at_exit); /* from now on, so that it runs before UCX's own */
    }
    return wh_ucx_station_create(ucx, long_segments, station_p, error);
}

static void count_used(int by) {
    wh_fork_lock_take(&lock);
    used_count += (uint32_t)by;
    wh_fork_lock_give(&lock);
}

wherry_status wh_ucx_station_take(const uint8_t *peer_id, bool long_segments, wh_ucx_station **station_p,
                                  wherry_error *error) {
    wh_ucx_station *station;
    wh_fork_lock_take(&lock);
    if (spoilt) {
        wh_fork_lock_give(&lock);
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "this process was forked from one in which UCX was at work, and UCX does not survive that: "
                       "start it anew, by exec or the start method \"spawn\"");
    }
    used_count++;
    while ((station = take_kept(peer_id, long_segments))) {
        wh_fork_lock_give(&lock);
        if (wh_ucx_station_alive(station)) {
            break;
        }
        wh_ucx_station_destroy(station);
        wh_fork_lock_take(&lock);
    }
    wherry_status status = WHERRY_OK;
    if (!station) {
        wh_fork_lock_give(&lock);
        wh_point("ucx makes a station");
        status = make(long_segments, &station, error);
    }
    if (status != WHERRY_OK) {
        count_used(-1);
        return status;
    }
    station->calls = peer_id != NULL;
    station->clean = false;
    *station_p = station;
    return WHERRY_OK;
}

/** The one that was not used for the longest time, where there are too many. */
static wh_ucx_station *take_oldest(void) {
    wh_ucx_station **link = &kept;
    if (kept_count <= KEPT_MAX) {
        return NULL;
    }
    while ((*link)->next) {
        link = &(*link)->next;
    }
    wh_ucx_station *oldest = *link;
    *link = NULL;
    kept_count--;
    return oldest;
}

void wh_ucx_station_give(wh_ucx_station *station) {
    if (!station) {
        return;
    }
    station->message = NULL;
    if (station->clean && !station->pending && station->lost == UCS_OK && station->peer) {
        wh_fork_lock_take(&lock);
        station->next = kept;
        kept = station;
        kept_count++;
        station = take_oldest();
        wh_fork_lock_give(&lock);
    }
    if (station) {
        wh_ucx_station_destroy(station);
    }
    count_used(-1);
}
