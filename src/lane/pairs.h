/**
 * @file pairs.h  Keeping workers of two processes in pairs, each pair on one processor, or two of them apart.
 *
 * Where a host has fewer processors than both sides together have workers, a worker of the source and its counterpart are moved from one processor to another, and
 * what one wrote has to come out of the other's cache. Kept on one processor they take turns, and what goes from one to the other stays in its caches. The
 * receiver chooses, and says so in its request; the source does the same where it may.
 *
 * Where either side has one worker, and they work at the same time, they are better off apart.
 */
#ifndef WH_LANE_PAIRS_H
#define WH_LANE_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

enum { WH_PAIRS_MAX = 8 };

/** A worker that is kept nowhere. */
#define WH_ANYWHERE UINT32_MAX

/** Where each worker is kept: all of them, or none. */
typedef struct wh_pairs {
    uint32_t processors[WH_PAIRS_MAX]; /**< Or WH_ANYWHERE. */
} wh_pairs;

/** Workers are kept nowhere. */
void wh_pairs_forget(wh_pairs *pairs);

/** RECEIVER. Chooses for so many workers, at most WH_PAIRS_MAX, where keeping them is worth while; else none. */
void wh_pairs_choose(wh_pairs *pairs, uint32_t workers);

/** SOURCE. Whether this side's workers can be kept where the receiver says; else none is. */
bool wh_pairs_take(wh_pairs *pairs, uint32_t workers);

static inline bool wh_pairs_exist(const wh_pairs *pairs) {
    return pairs->processors[0] != WH_ANYWHERE;
}

/**
 * RECEIVER. Chooses for the only worker of either side, where there are fewer processors than these two and the threads that await them; else WH_ANYWHERE.
 * @param number  another for each receiver of the host, so that not all of them choose the same.
 */
void wh_choose_apart(uint32_t number, uint32_t *receiver_p, uint32_t *source_p);

#endif
