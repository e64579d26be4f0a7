/**
 * @file sockets.h  The group over sockets: TCP or Unix, a progress thread, death detection, and
 * ranks that come back.
 *
 * Every member listens, and has a table of all members: rank, incarnation, place. Ranks meet at the
 * meeting points: a process on that host listens there, and the others dial it. A member that
 * learns something new sends it to all members that it is connected to. Two ranks connect when they
 * first send to each other, over a Unix socket if they are on one host.
 */
#ifndef WH_GROUP_SOCKETS_SOCKETS_H
#define WH_GROUP_SOCKETS_SOCKETS_H

#include <stdbool.h>

#include <wherry/checkpoint.h>

#include "group/group.h"

/** How to join. The default of every field is 0. */
typedef struct wh_sockets_options {
    /**
     * The secret of the group, borrowed during the call. NULL: the one in the environment, if any.
     */
    const void *secret;
    size_t secret_size;
    uint32_t encrypt; /**< A wherry_encrypt. */
    /** Paths of PEM files, and the name that all certificates have; NULL: from the environment. */
    const char *tls_certificate;
    const char *tls_key;
    const char *tls_ca;
    const char *tls_name;
    /** For a server: the file with its identity, or "" for a new one. */
    const char *identity;
    const char *token; /**< For a reader: the token that its server made. */
    /** Allow other hosts and users to connect although there is no secret. */
    bool allow_insecure;
    /** The lowest incarnation to join as. 0: the present time, which is above all earlier ones. */
    uint64_t incarnation;
    /** How often a silent connection sends a sign of life. Default 1000. */
    uint32_t heartbeat_ms;
    /** A connection that is silent for this long is lost. Default 5000. */
    uint32_t dead_after_ms;
    /** How many ranks must have joined, including this one. Default: all. */
    uint32_t wait_for;
    bool dial_only; /**< Never listen at a meeting point. */
    /** Called while join waits; returns true to stop. May be NULL. */
    wherry_interrupt_fn interrupt;
    void *interrupt_context;
} wh_sockets_options;

/**
 * Joins the group at an address (group/address.h) as a new incarnation of its rank. Waits until all
 * ranks have joined, or as many as the options say.
 * @param group_p  owned by the caller. Leave it with wh_group_destroy, which sends queued messages
 *                 for at most a second.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_SYSTEM; WHERRY_TIMED_OUT,
 * with the missing ranks; WHERRY_CANCELLED. At the deadline, if a meeting point has refused this
 * process: WHERRY_BAD_SECRET, WHERRY_REFUSED, WHERRY_BAD_VERSION or WHERRY_MISMATCH.
 */
wherry_status wh_sockets_join(const char *address, const wh_sockets_options *options, wh_deadline deadline,
                              wh_group **group_p, wherry_error *error);

#endif
