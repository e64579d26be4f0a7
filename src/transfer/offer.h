/**
 * @file offer.h  An offer: a prepared state that can be read, with everything that an OFFER message
 * says about it.
 *
 * 1. An offer does not change after it was created, so any thread may read it without a lock.
 * 2. It is reference-counted. The last wh_offer_unref frees it, in any thread.
 * 3. It keeps the storages of the state alive, but does not stop their owner from writing to them:
 *    the lease of a reader is a promise of the caller of the send.
 */
#ifndef WH_TRANSFER_OFFER_H
#define WH_TRANSFER_OFFER_H

#include <stdatomic.h>

#include <wherry/expert.h>
#include <wherry/value.h>

#include "base/text.h"
#include "lane/lane.h"
#include "range/digest.h"
#include "transfer/message.h"

typedef struct wh_offer {
    atomic_uint references;
    wherry_prepared *prepared;
    wherry_prepared_summary summary;
    wherry_digest fingerprint; /**< The fingerprint of the manifest. */
    uint64_t devices;          /**< One bit per CUDA device that has some of the storages. */
    /* Empty with WH_SHARE_NEVER: */
    void *manifest;
    size_t manifest_size;
    /** The addresses of the storages, 8 bytes each, as in an OFFER message. */
    wh_string addresses;
    bool small_pages;        /**< Most of the memory is on small pages. */
    wh_shared_memory shared; /**< The allocations of device memory; empty without sharing. */
} wh_offer;

/** Who may read an offer and its device memory. */
typedef enum wh_sharing {
    /**
     * Nobody will read the offer: only its fingerprint is compared. It has no manifest and no
     * addresses.
     */
    WH_SHARE_NEVER,
    WH_SHARE_NOTHING, /**< No lane of the call needs to share device memory. */
    WH_SHARE_DEVICES,
    WH_SHARE_KEPT_DEVICES, /**< The caller has promised to keep the memory allocated. */
} wh_sharing;

/**
 * Prepares a state to be read by others, or to be compared with that of a source.
 * @param state    borrowed for this call.
 * @param rank     of this process in meshes and placements: wh_call_rank.
 * @param exact    chunks have no bytes between tensors, so that all sources of the same state have
 *                 the same chunks. Otherwise short gaps are included, which is faster.
 * @param sharing  if device memory cannot be shared, offer->shared.reason says why.
 * @param offer_p  has one reference: wh_offer_unref.
 * @return WHERRY_OK; as wherry_prepare and wherry_manifest_encode; WHERRY_UNSUPPORTED for a tensor
 * that this process cannot read, and WHERRY_INVALID_ARGUMENT for one without memory, both with the
 * path; WHERRY_LIMIT if the manifest is too long for a message; WHERRY_NO_MEMORY.
 */
wherry_status wh_offer_create(const wherry_value *state, int64_t rank, bool exact, wh_sharing sharing,
                              wh_offer **offer_p, wherry_error *error);

/** Adds a reference. @return the offer. */
wh_offer *wh_offer_ref(wh_offer *offer);

/** Drops a reference. offer may be NULL. */
void wh_offer_unref(wh_offer *offer);

/**
 * Asks the lanes what to offer to a receiver, and fills the lanes of an OFFER. Fills the addresses
 * if a lane needs them.
 * @param list   {0}; the note borrows from it. `failed` if there is no memory.
 * @param stats  receives the reasons of lanes that cannot be offered.
 */
void wh_offer_lanes(const wh_offer *offer, const wh_lane_list *lanes, const wh_lane_site *site, wh_note *note,
                    wh_string *list, wherry_stats *stats);

/**
 * Finds the memory of a chunk in the process that offers it.
 * @param addresses  of the storages there, from its OFFER message: 8 bytes for each storage of
 *                   `prepared`.
 * @param segments   replaced; the addresses are those of that process.
 */
wherry_status wh_origin_gather(const wherry_prepared *prepared, const void *addresses, uint64_t chunk,
                               wh_segments *segments, wherry_error *error);

#endif
