/**
 * @file sockets.h  The group over sockets: TCP or Unix, a progress thread, death detection, and
 * ranks that come back.
 *
 * Every member listens, and holds the table of all members: rank, incarnation, place. Ranks meet at
 * the meeting points: whichever member is on that host and finds the place free listens there, so
 * that no rank is special; the others dial it and keep dialling it. Whoever learns of a new
 * incarnation tells all that it is connected to. Pairs connect when they first talk, over a Unix
 * socket where they share a host.
 */
#ifndef WH_GROUP_SOCKETS_SOCKETS_H
#define WH_GROUP_SOCKETS_SOCKETS_H

#include <stdbool.h>

#include <wherry/checkpoint.h>

#include "group/group.h"

/** How to join. Zero is the default of each. */
typedef struct wh_sockets_options {
    /** What all members know; borrowed during the call. NULL: that of the environment, if any. */
    const void *secret;
    size_t secret_size;
    /** Without a secret, other hosts may connect. Said in a warning. */
    bool allow_insecure;
    /** What to join as, at least; 0: the time, which is above every earlier one's. */
    uint64_t incarnation;
    /** A silent connection says that it is alive this often. Default 1000. */
    uint32_t heartbeat_ms;
    /** One that has said nothing for so long is lost. Default 5000. */
    uint32_t dead_after_ms;
    /** How many ranks must have come, this one included. Default: all. */
    uint32_t wait_for;
    bool dial_only;                /**< Never listens at a meeting point. */
    wherry_interrupt_fn interrupt; /**< Asked while join waits whether it shall end; may be NULL. */
    void *interrupt_context;
} wh_sockets_options;

/**
 * Joins the group at an address (group/address.h), as a new incarnation of its rank, and waits
 * until all ranks are known, or as many as it is told.
 * @param group_p  belongs to the caller: wh_group_destroy, which sends what is queued, for a second
 * at most.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_SYSTEM; WHERRY_TIMED_OUT
 * with the ranks that are missing; WHERRY_CANCELLED; WHERRY_BAD_SECRET, WHERRY_REFUSED,
 * WHERRY_BAD_VERSION, WHERRY_MISMATCH as the last that a meeting point answered, where the deadline
 * came.
 */
wherry_status wh_sockets_join(const char *address, const wh_sockets_options *options, wh_deadline deadline,
                              wh_group **group_p, wherry_error *error);

#endif
