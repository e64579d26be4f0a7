#include "transfer/source.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "manifest/manifest.h"
#include "memory/cuda.h"
#include "memory/memory.h"
#include "state/path.h"
#include "state/prepare.h"
#include "state/tensor.h"
#include "state/value.h"

/** What else an OFFER has, generously. */
enum { OFFER_REST = 2 << 20 };

/** Whether this process reaches the memory of a storage's device. */
static bool can_be_read(const wherry_storage *storage) {
    wherry_device device = wherry_storage_device(storage);
    return wh_memory_of(device.kind) && (device.kind != WHERRY_DEVICE_CUDA || device.index >= 0);
}

/** Ends at the first tensor whose bytes cannot be sent. */
static bool can_be_sent(void *context, wherry_value *leaf) {
    wherry_error *error = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        const wherry_storage *storage = wh_value_tensor_at(leaf, i)->as.tensor->storage;
        char device[WHERRY_DEVICE_TEXT_MAX];
        if (!can_be_read(storage)) {
            wh_fail(error, WHERRY_UNSUPPORTED, "a tensor of the state is on %s, which cannot be read here",
                    wherry_device_text(wherry_storage_device(storage), device));
        } else if (wh_storage_is_bare(storage)) {
            wh_fail(error, WHERRY_INVALID_ARGUMENT, "a tensor of the state has no memory");
        } else {
            continue;
        }
        wh_fail_value(error, leaf);
        return false;
    }
    return true;
}

static wherry_status check_memory(wh_source *source, const wherry_value *state, wherry_error *error) {
    bool all = true;
    const wh_storage_traits *traits = &source->prepared->traits;
    for (size_t i = 0; i < source->summary.storages && all && (traits->devices || traits->bare); i++) {
        const wherry_storage *storage = source->prepared->storages[i];
        all = can_be_read(storage) && !wh_storage_is_bare(storage);
    }
    source->devices = traits->cuda;
    wherry_error found;
    if (all || wh_visit_tensor_leaves(state, can_be_sent, &found)) {
        return WHERRY_OK;
    }
    if (error) {
        *error = found;
    }
    return found.status;
}

wherry_status wh_source_init(wh_source *source, const wherry_value *state, int64_t rank, wherry_error *error) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.rank = rank;
    wherry_status status =
        wh_manifest_prepare(state, &options, &source->prepared, &source->manifest, &source->manifest_size, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_prepared_summarize(source->prepared, &source->summary);
    status = check_memory(source, state, error);
    if (status == WHERRY_OK &&
        !wh_manifest_fingerprint(source->prepared, source->manifest, source->manifest_size, &source->fingerprint)) {
        status = wh_fail_memory(error, "the fingerprint of a manifest");
    }
    return status;
}

wherry_status wh_source_locate(wh_source *source, wherry_error *error) {
    source->small_pages =
        wh_storages_on_small_pages(source->prepared->storages, source->summary.storages, &source->prepared->traits);
    for (size_t i = 0; i < source->summary.storages; i++) {
        wh_append_number(&source->addresses, (uintptr_t)source->prepared->storage_fields[i].memory, 8);
    }
    if (source->addresses.failed) {
        return wh_fail_memory(error, "a checkpoint's addresses");
    }
    return source->manifest_size + source->addresses.size <= WH_MESSAGE_MAX - OFFER_REST
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT,
                         "the manifest has %zu bytes for %llu tensors, more than an offer can carry; send the state in "
                         "parts",
                         source->manifest_size, (unsigned long long)source->summary.tensors);
}

void wh_source_forget_manifest(wh_source *source) {
    wherry_free(source->manifest);
    source->manifest = NULL;
    source->manifest_size = 0;
}

void wh_source_destroy(wh_source *source) {
    wh_source_unshare(source);
    wherry_prepared_destroy(source->prepared);
    wh_source_forget_manifest(source);
    wh_free(source->addresses.bytes);
    *source = (wh_source){0};
}

typedef struct gathering {
    const wherry_prepared *prepared;
    /** Addresses of the storages, side by side: those themselves lie all over memory. */
    const uint8_t *bases;
    wh_segments *segments;
} gathering;

static int gather_piece(void *context, const wh_piece *piece) {
    const gathering *g = context;
    char *base = (char *)(uintptr_t)wh_load_be64(g->bases + 8 * piece->storage);
    uint64_t offset = piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        if (!wh_segments_add(g->segments, (char *)((uintptr_t)base + offset), piece->length)) {
            return 1;
        }
        offset += piece->stride;
    }
    return 0;
}

static wherry_status gather(const gathering *g, uint64_t chunk, wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(g->prepared, chunk, &begin, &length);
    wh_segments_clear(g->segments);
    if (wh_space_visit(&g->prepared->space, begin, begin + length, gather_piece, (void *)g)) {
        return wh_fail_memory(error, "a chunk's segments");
    }
    return WHERRY_OK;
}

wherry_status wh_origin_gather(const wherry_prepared *prepared, const void *bases, uint64_t chunk,
                               wh_segments *segments, wherry_error *error) {
    gathering g = {prepared, bases, segments};
    return gather(&g, chunk, error);
}

wherry_status wh_source_gather(const wh_source *source, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    return wh_origin_gather(source->prepared, source->addresses.bytes, chunk, segments, error);
}
