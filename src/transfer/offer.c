#include "transfer/offer.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "manifest/manifest.h"
#include "state/prepare.h"
#include "state/tensor.h"

/** Room in an OFFER message for everything except manifest and addresses; more than it needs. */
enum { OFFER_REST_BYTES = 2 << 20 };

/* ---- preparing ---- */

/** Fills everything up to the manifest. */
static wherry_status prepare(wh_offer *offer, const wherry_value *state, int64_t rank, bool exact,
                             wherry_error *error) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.rank = rank;
    options.max_gap = exact ? 0 : options.max_gap;
    WH_TRY(wh_manifest_prepare(state, &options, &offer->prepared, &offer->manifest, &offer->manifest_size, error));
    wherry_prepared_summarize(offer->prepared, &offer->summary);
    offer->devices = offer->prepared->traits.cuda;
    WH_TRY(wh_prepared_check_readable(offer->prepared, error));
    return wh_manifest_fingerprint(offer->prepared, offer->manifest, offer->manifest_size, &offer->fingerprint)
               ? WHERRY_OK
               : wh_fail_memory(error, "the fingerprint of a manifest");
}

/** Fills addresses and small_pages, and checks that an OFFER message has room for the offer. */
static wherry_status locate(wh_offer *offer, wherry_error *error) {
    const wherry_prepared *prepared = offer->prepared;
    offer->small_pages = wh_storages_on_small_pages(prepared->storages, offer->summary.storages, &prepared->traits);
    for (size_t i = 0; i < offer->summary.storages; i++) {
        wh_append_number(&offer->addresses, (uintptr_t)prepared->storage_fields[i].memory, 8);
    }
    WH_TRY_ALLOC(!offer->addresses.failed, error, "a checkpoint's addresses");
    return offer->manifest_size + offer->addresses.size <= WH_MESSAGE_MAX - OFFER_REST_BYTES
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT,
                         "the manifest has %zu bytes for %llu tensors, more than an offer can carry; send the state in "
                         "parts",
                         offer->manifest_size, (unsigned long long)offer->summary.tensors);
}

/* ---- shared device memory ---- */

/** Fills offer->shared: the allocations, or the reason why there are none. */
static void share(wh_offer *offer, bool keeps) {
    wh_shared_memory *shared = &offer->shared;
    wherry_status status = WHERRY_OK;
    wherry_error error = {.status = WHERRY_OK};
    shared->keeps = keeps;
    for (size_t i = 0; i < offer->prepared->storage_count && status == WHERRY_OK; i++) {
        const wherry_storage *storage = offer->prepared->storages[i];
        if (wherry_storage_device(storage).kind == WHERRY_DEVICE_CUDA) {
            status = wh_shared_memory_add(shared, wherry_storage_data(storage), wherry_storage_nbytes(storage), &error);
        }
    }
    if (status != WHERRY_OK) {
        wh_shared_memory_destroy(shared);
        shared->reason = error;
    }
}

/* ---- creating and releasing ---- */

wherry_status wh_offer_create(const wherry_value *state, int64_t rank, bool exact, wh_sharing sharing,
                              wh_offer **offer_p, wherry_error *error) {
    wh_offer *offer = wh_alloc_zeroed(1, sizeof(*offer));
    WH_TRY_ALLOC(offer, error, "an offer");
    atomic_init(&offer->references, 1);
    wherry_status status = prepare(offer, state, rank, exact, error);
    if (sharing == WH_SHARE_NEVER) {
        wherry_free(offer->manifest);
        offer->manifest = NULL;
        offer->manifest_size = 0;
    } else {
        WH_THEN(status, locate(offer, error));
    }
    if (status != WHERRY_OK) {
        wh_offer_unref(offer);
        return status;
    }
    if (offer->devices && sharing >= WH_SHARE_DEVICES) {
        share(offer, sharing == WH_SHARE_KEPT_DEVICES);
    }
    *offer_p = offer;
    return WHERRY_OK;
}

wh_offer *wh_offer_ref(wh_offer *offer) {
    atomic_fetch_add_explicit(&offer->references, 1, memory_order_relaxed);
    return offer;
}

void wh_offer_unref(wh_offer *offer) {
    if (!offer || atomic_fetch_sub_explicit(&offer->references, 1, memory_order_acq_rel) > 1) {
        return;
    }
    wh_shared_memory_destroy(&offer->shared);
    wherry_prepared_destroy(offer->prepared);
    wherry_free(offer->manifest);
    wh_free(offer->addresses.bytes);
    wh_free(offer);
}

/* ---- offering ---- */

void wh_offer_lanes(const wh_offer *offer, const wh_lane_list *lanes, const wh_lane_site *site, wh_note *note,
                    wh_string *list, wherry_stats *stats) {
    for (size_t i = 0; i < lanes->count; i++) {
        const wh_lane_ops *lane = lanes->lanes[i];
        wh_string text = {0};
        wherry_error error;
        if (wh_lane_is_skipped(lanes, lane, offer->devices != 0)) {
            continue;
        }
        wherry_status status = wh_lane_check_encryption(lane, site->group, &error);
        WH_THEN(status, lane->offer(site, &text, &error));
        if (status == WHERRY_OK) {
            list->failed = list->failed || text.failed;
            wh_lanes_add(list, lane->name, text.bytes, text.size);
            if (lane->traits & WH_LANE_ONE_SIDED) {
                note->addresses = (wh_bytes){offer->addresses.bytes, offer->addresses.size};
            }
        } else {
            wh_log(WHERRY_LOG_INFO, "the lane %s is not offered to rank %d: %s", lane->name, (int)site->peer,
                   error.message);
            wh_stats_skip_lane(stats, lane->name, &error);
        }
        wh_free(text.bytes);
    }
    note->lanes = (wh_bytes){list->bytes, list->size};
}

/* ---- reading ---- */

typedef struct gathering {
    const uint8_t *addresses;
    wh_segments *segments;
} gathering;

static int gather_piece(void *context, const wh_piece *piece) {
    const gathering *g = context;
    uintptr_t at = (uintptr_t)wh_load_be64(g->addresses + 8 * piece->storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        if (!wh_segments_add(g->segments, (char *)at, piece->length)) {
            return 1;
        }
        at += piece->stride;
    }
    return 0;
}

wherry_status wh_origin_gather(const wherry_prepared *prepared, const void *addresses, uint64_t chunk,
                               wh_segments *segments, wherry_error *error) {
    gathering g = {addresses, segments};
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    wh_segments_clear(segments);
    return wh_space_visit(&prepared->space, begin, begin + length, gather_piece, &g)
               ? wh_fail_memory(error, "a chunk's segments")
               : WHERRY_OK;
}
