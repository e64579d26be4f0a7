/**
 * @file source.h  A state as its source serves it: prepared, its manifest written, its chunks ready
 * to be gathered. Only read once it is made.
 */
#ifndef WH_TRANSFER_SOURCE_H
#define WH_TRANSFER_SOURCE_H

#include <wherry/expert.h>
#include <wherry/value.h>

#include "base/text.h"
#include "lane/lane.h"
#include "range/digest.h"

typedef struct wh_source {
    wherry_prepared *prepared;
    wherry_prepared_summary summary;
    void *manifest;
    size_t manifest_size;
    wh_digest fingerprint;   /**< Of the manifest. */
    wh_string addresses;     /**< Of the storages, as an OFFER has them: by wh_source_locate, */
    bool small_pages;        /**< as what they lie on, for the most part. */
    uint64_t devices;        /**< A bit for each CUDA device that has some of them. */
    wh_shared_memory shared; /**< Filled by wh_source_share. */
} wh_source;

/**
 * @param source  starts as {0}; wh_source_destroy in any case.
 * @param rank    the own one, as meshes and places name it.
 * @return as wherry_prepare and wherry_manifest_encode; WHERRY_UNSUPPORTED for a tensor whose
 * memory cannot be read here, with its path.
 */
wherry_status wh_source_init(wh_source *source, const wherry_value *state, int64_t rank, wherry_error *error);

/** Gives the manifest back, of one that will serve nobody. */
void wh_source_forget_manifest(wh_source *source);

/**
 * Finds where its memory is, before anybody is served. @return WHERRY_OK; WHERRY_NO_MEMORY;
 * WHERRY_LIMIT where no offer has room for it.
 */
wherry_status wh_source_locate(wh_source *source, wherry_error *error);

void wh_source_destroy(wh_source *source);

/**
 * Finds how other processes can reach the device memory of the state; why they cannot stands in
 * source->shared.reason.
 * @param keeps  as wh_shared_memory has it.
 */
void wh_source_share(wh_source *source, bool keeps);

/** Gives back what wh_source_share has taken. wh_source_destroy does. */
void wh_source_unshare(wh_source *source);

/** Where the bytes of a chunk lie. Replaces what the segments held. */
wherry_status wh_source_gather(const wh_source *source, uint64_t chunk, wh_segments *segments, wherry_error *error);

/**
 * Where the bytes of a chunk lie in the memory of a source: addresses there.
 * @param bases  of the storages, as an OFFER has them: 8 bytes each, as many as there are storages.
 */
wherry_status wh_origin_gather(const wherry_prepared *prepared, const void *bases, uint64_t chunk,
                               wh_segments *segments, wherry_error *error);

#endif
