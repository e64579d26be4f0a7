/*
 * From bytes to a prepared state: the manifest as a whole, its storages with their extents, and its
 * meshes.
 *
 * 1. The bytes may come from an attacker. Before memory is allocated for a count, the count is
 *    compared with the limits and with the number of bytes left.
 * 2. Only the canonical form is accepted.
 * 3. Each error about the bytes contains the offset of the first bad item.
 */
#include "manifest/decode.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"
#include "manifest/manifest.h"
#include "state/sharded.h"
#include "state/tensor.h"

/**
 * VALUE_BYTES: estimated memory for values per byte of the manifest. STORAGE_BYTES: minimum size of
 * an encoded storage in bytes.
 */
enum { VALUE_BYTES = 5, STORAGE_BYTES = 5 };

void wherry_limits_init(wherry_limits *limits) {
    *limits = (wherry_limits){
        .struct_size = sizeof(*limits),
        .depth = 256,
        .manifest_bytes = UINT64_C(1) << 30,
        .values = UINT64_C(64) << 20,
        .string_bytes = UINT64_C(64) << 20,
        .total_bytes = UINT64_C(64) << 40,
    };
}

wherry_status wh_decode_created(const wh_decoder *decoder, wherry_status status) {
    wherry_error *error = decoder->in.error;
    if (status == WHERRY_OK || status == WHERRY_NO_MEMORY) {
        return status;
    }
    if (status == WHERRY_INVALID_ARGUMENT) {
        status = WHERRY_MALFORMED;
    } else if (status == WHERRY_DUPLICATE_KEY) {
        status = WHERRY_REPEATED_KEY;
    }
    if (error) {
        char what[sizeof(error->message)];
        memcpy(what, error->message, sizeof(what));
        wh_read_fault(&decoder->in, status, "%s", what);
    }
    return status;
}

static wherry_status read_device_kind(wh_decoder *decoder, wherry_device_kind *kind_p) {
    uint64_t kind = 0;
    WH_TRY(wh_read_uint(&decoder->in, WHERRY_DEVICE_PRIVATE, "the kind of a device", &kind));
    *kind_p = (wherry_device_kind)kind;
    return WHERRY_OK;
}

wherry_status wh_decode_device(wh_decoder *decoder, wherry_device *device_p) {
    wherry_device_kind kind = WHERRY_DEVICE_CPU;
    int64_t index = 0;
    WH_TRY(read_device_kind(decoder, &kind));
    WH_TRY(wh_read_int(&decoder->in, -1, "the index of a device", &index));
    if (index > INT32_MAX) {
        return wh_read_fault(&decoder->in, WHERRY_MALFORMED, "the index of a device is too large");
    }
    *device_p = (wherry_device){kind, (int32_t)index};
    return WHERRY_OK;
}

/**
 * Reads the levels of an extent and checks them, the innermost first. *span_p becomes the number of
 * bytes from the first byte of the extent to its end.
 */
static wherry_status read_levels(wh_decoder *d, wh_extent *extent, uint64_t *span_p) {
    int64_t numbers[2 * WHERRY_NDIM_MAX];
    uint32_t count = 0;
    WH_TRY(wh_read_uints(&d->in, 2 * WHERRY_NDIM_MAX, "the levels of an extent", numbers, &count));
    if (count == 0 || count % 2) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "the levels of an extent are not pairs of a count and a stride");
    }
    extent->level_count = count / 2;
    uint64_t span = extent->length;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        wherry_level level = {(uint64_t)numbers[2 * (size_t)i], (uint64_t)numbers[2 * (size_t)i + 1]};
        if (level.count < 2 || level.stride < span) {
            return wh_read_fault(&d->in, WHERRY_MALFORMED,
                                 "a level of an extent has a count below 2 or overlaps itself");
        }
        if (!wh_add_product(level.count - 1, level.stride, &span)) {
            return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS, "an extent reaches beyond 2^63 bytes");
        }
        extent->levels[i] = level;
    }
    *span_p = span;
    return WHERRY_OK;
}

static wherry_status read_extent(wh_decoder *d, uint64_t nbytes, wh_extent *extent) {
    uint64_t items = 0;
    WH_TRY(wh_read_array(&d->in, "an extent", &items));
    if (items != 2 && items != 3) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "an extent needs 2 or 3 items");
    }
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the offset of an extent", &extent->offset));
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the length of an extent", &extent->length));
    if (extent->length == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "an extent has no bytes");
    }
    extent->level_count = 0;
    uint64_t end = extent->length;
    if (items == 3) {
        WH_TRY(read_levels(d, extent, &end));
    }
    if (!wh_add(end, extent->offset, &end) || end > nbytes) {
        return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS,
                             "an extent ends at byte %llu, but its storage has %llu bytes", (unsigned long long)end,
                             (unsigned long long)nbytes);
    }
    return WHERRY_OK;
}

/** Adds an extent to the space. Fails if the sum of all extents is above the limit. */
static wherry_status add_extent(wh_decoder *d, const wherry_extent *extent) {
    wh_space *space = &d->prepared->space;
    wherry_extent kept;
    uint64_t bytes = extent->length;
    bool fits = true;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        fits = fits && wh_mul(bytes, extent->levels[i].count, &bytes);
    }
    if (!fits || !wh_add(bytes, space->bytes, &bytes) || bytes > d->limits.total_bytes) {
        return wh_read_fault(&d->in, WHERRY_LIMIT, "the extents add up to more than %llu bytes",
                             (unsigned long long)d->limits.total_bytes);
    }
    WH_TRY_ALLOC(wh_extent_copy(extent, &kept), d->in.error, "an extent");
    if (!wh_space_add_extent(space, &kept)) {
        wh_free((void *)kept.levels);
        return wh_fail_memory(d->in.error, "an extent");
    }
    return WHERRY_OK;
}

static wherry_status read_extents(wh_decoder *d, uint64_t nbytes) {
    wh_item item;
    WH_TRY(wh_read_item(&d->in, &item));
    if (item.type == WH_ITEM_NULL) {
        wherry_extent whole = {0, nbytes, NULL, 0};
        return nbytes ? add_extent(d, &whole)
                      : wh_read_fault(&d->in, WHERRY_NOT_CANONICAL,
                                      "the extents of an empty storage are null; expected an empty array");
    }
    if (item.type != WH_ITEM_ARRAY || item.number > wh_reader_left(&d->in)) {
        return wh_read_fault(
            &d->in, item.type == WH_ITEM_ARRAY ? WHERRY_TRUNCATED : WHERRY_MALFORMED,
            "the extents of a storage are neither null nor an array, or the manifest ends within them");
    }
    uint64_t before = 0;
    /*
     * The lowest offset at which the next contiguous extent may begin. If it began earlier, it
     * would touch the last contiguous extent, and the two should be one extent.
     */
    uint64_t least = 0;
    for (uint64_t i = 0; i < item.number; i++) {
        wh_extent extent;
        WH_TRY(read_extent(d, nbytes, &extent));
        if (extent.offset < before) {
            return wh_read_fault(&d->in, WHERRY_NOT_CANONICAL, "the extents are not in order");
        }
        wherry_extent borrowed = wh_extent_borrow(&extent);
        if (wh_extents_are_whole(&borrowed, item.number, nbytes)) {
            return wh_read_fault(&d->in, WHERRY_NOT_CANONICAL,
                                 "an extent covers the whole storage; expected null instead");
        }
        if (extent.level_count == 0 && extent.offset < least) {
            return wh_read_fault(&d->in, WHERRY_NOT_CANONICAL,
                                 "two extents are adjacent or overlap; expected one extent");
        }
        before = extent.offset;
        least = extent.level_count ? least : extent.offset + extent.length + 1;
        WH_TRY(add_extent(d, &borrowed));
    }
    return WHERRY_OK;
}

static wherry_status read_storage(wh_decoder *d) {
    uint64_t nbytes = 0;
    wherry_device device = {WHERRY_DEVICE_CPU, -1};
    WH_TRY(wh_read_array_of(&d->in, WH_STORAGE_ITEMS, "a storage"));
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the size of a storage", &nbytes));
    if (nbytes > d->limits.total_bytes - d->prepared->storage_bytes) {
        return wh_read_fault(&d->in, WHERRY_LIMIT, "the storages add up to more than %llu bytes",
                             (unsigned long long)d->limits.total_bytes);
    }
    WH_TRY(wh_decode_device(d, &device));
    wherry_storage *storage;
    WH_TRY(wh_storage_describe(&d->pool, nbytes, device, &storage, d->in.error));
    if (!wh_prepared_take_storage(d->prepared, storage)) {
        wherry_storage_unref(storage);
        return wh_fail_memory(d->in.error, "the storages of a manifest");
    }
    return wh_space_add_storage(&d->prepared->space) ? read_extents(d, nbytes)
                                                     : wh_fail_memory(d->in.error, "the storages of a manifest");
}

/**
 * Reads the ranks and dimension names of a mesh and creates the mesh. `ranks` and `names` are
 * buffers with enough room.
 */
static wherry_status make_mesh(wh_decoder *d, wherry_mesh_info *info, int64_t *ranks, uint64_t count, char **names,
                               wherry_mesh **mesh_p) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t rank = 0;
        WH_TRY(wh_read_uint(&d->in, INT64_MAX, "a rank of a mesh", &rank));
        ranks[i] = (int64_t)rank;
    }
    wh_item item = {0};
    WH_TRY(wh_read_item(&d->in, &item));
    if (item.type != WH_ITEM_NULL &&
        (item.type != WH_ITEM_ARRAY || item.number > wh_reader_left(&d->in) || item.number != info->ndim)) {
        bool cut = item.type == WH_ITEM_ARRAY && item.number > wh_reader_left(&d->in);
        return wh_read_fault(&d->in, cut ? WHERRY_TRUNCATED : WHERRY_MALFORMED,
                             "the dimension names of a mesh are neither null nor one per dimension");
    }
    for (uint32_t i = 0; i < info->ndim && item.type == WH_ITEM_ARRAY; i++) {
        WH_TRY(wh_read_name(&d->in, "the name of a mesh dimension", names + i));
    }
    info->ranks = ranks;
    info->dim_names = item.type == WH_ITEM_ARRAY ? (const char *const *)names : NULL;
    return wh_decode_created(d, wherry_mesh_create(info, mesh_p, d->in.error));
}

static wherry_status read_mesh(wh_decoder *d, wherry_mesh **mesh_p) {
    wherry_mesh_info info = {0};
    int64_t shape[WHERRY_NDIM_MAX];
    uint64_t count = 0;
    uint64_t ranks = 0;
    WH_TRY(wh_read_array_of(&d->in, WH_MESH_ITEMS, "a mesh"));
    WH_TRY(read_device_kind(d, &info.device));
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a mesh", shape, &info.ndim));
    if (info.ndim == 0 || !wh_mesh_count(info.ndim, shape, &count)) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a mesh has no sizes, a size below 1, or too many positions");
    }
    WH_TRY(wh_read_array(&d->in, "the ranks of a mesh", &ranks));
    if (ranks != count) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a mesh has %llu ranks for %llu positions",
                             (unsigned long long)ranks, (unsigned long long)count);
    }
    info.shape = shape;
    char *names[WHERRY_NDIM_MAX] = {NULL};
    int64_t *numbers = wh_alloc_array(ranks, sizeof(*numbers));
    wherry_status status =
        numbers ? make_mesh(d, &info, numbers, count, names, mesh_p) : wh_fail_memory(d->in.error, "a mesh");
    for (uint32_t i = 0; i < info.ndim; i++) {
        wh_free(names[i]);
    }
    wh_free(numbers);
    return status;
}

static wherry_status read_meshes(wh_decoder *d, uint64_t count) {
    wh_index seen = {0};
    wherry_status status = WHERRY_OK;
    for (uint64_t i = 0; i < count && status == WHERRY_OK; i++) {
        wherry_mesh *mesh = NULL;
        status = read_mesh(d, &mesh);
        if (status != WHERRY_OK) {
            break;
        }
        uint64_t hash = wh_mesh_hash(mesh);
        if (wh_index_find(&seen, hash, wh_prepared_has_mesh, d->prepared, mesh) != WH_INDEX_NONE) {
            status = wh_read_fault(&d->in, WHERRY_NOT_CANONICAL, "a mesh occurs twice");
        } else if (!wh_prepared_add_mesh(d->prepared, mesh) || !wh_index_add(&seen, hash, i)) {
            status = wh_fail_memory(d->in.error, "the meshes of a manifest");
        }
        wherry_mesh_unref(mesh);
    }
    wh_index_destroy(&seen);
    return status;
}

/**
 * Reads the magic text and the version. The version is checked before the number of items, because
 * other versions may have a different number of items.
 */
static wherry_status read_opening(wh_decoder *d) {
    wh_item head;
    wh_item item;
    WH_TRY(wh_read_typed(&d->in, WH_ITEM_ARRAY, "the manifest", &head));
    WH_TRY(wh_read_text(&d->in, "the text 'wherry'", &item));
    if (item.number != strlen(WH_MANIFEST_MAGIC) || memcmp(item.bytes, WH_MANIFEST_MAGIC, item.number) != 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "this is not a Wherry manifest");
    }
    WH_TRY(wh_read_item(&d->in, &item));
    if (item.type != WH_ITEM_UINT && item.type != WH_ITEM_NEGINT) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "expected the version, but the item has another type");
    }
    if (item.type == WH_ITEM_NEGINT || item.number != WHERRY_MANIFEST_VERSION) {
        return wh_read_fault(
            &d->in, WHERRY_BAD_VERSION, "the manifest has format version %s%llu; this library reads only version %d",
            item.type == WH_ITEM_NEGINT ? "-1 - " : "", (unsigned long long)item.number, WHERRY_MANIFEST_VERSION);
    }
    if (head.number != WH_MANIFEST_ITEMS) {
        bool cut = head.number > wh_reader_left(&d->in) + 2;
        return wh_read_fault(&d->in, cut ? WHERRY_TRUNCATED : WHERRY_MALFORMED,
                             "a manifest has %d items; this one has %llu", WH_MANIFEST_ITEMS,
                             (unsigned long long)head.number);
    }
    return WHERRY_OK;
}

static wherry_status read_tables(wh_decoder *d) {
    wherry_prepared *prepared = d->prepared;
    uint64_t chunk_bytes = 0;
    uint64_t count = 0;
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the size of a chunk", &chunk_bytes));
    if (!wh_chunk_bytes_valid(chunk_bytes)) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "the chunk size of %llu bytes is invalid",
                             (unsigned long long)chunk_bytes);
    }
    prepared->space.chunk_bytes = chunk_bytes;
    WH_TRY(wh_read_int(&d->in, -1, "the rank", &prepared->rank));
    WH_TRY(wh_read_array(&d->in, "the storages", &count));
    size_t likely = wh_min(count, wh_reader_left(&d->in) / STORAGE_BYTES);
    WH_TRY_ALLOC(wh_space_reserve(&prepared->space, likely) &&
                     WH_RESERVE(prepared->storages, prepared->storage_capacity, likely) &&
                     WH_RESERVE(prepared->tensor_storages, prepared->tensor_storage_capacity, likely),
                 d->in.error, "the storages of a manifest");
    for (uint64_t i = 0; i < count; i++) {
        WH_TRY(read_storage(d));
    }
    WH_TRY_ALLOC(wh_prepared_divide(prepared), d->in.error, "the storages of a manifest");
    WH_TRY(wh_read_array(&d->in, "the meshes", &count));
    return read_meshes(d, count);
}

static wherry_status read_manifest(wh_decoder *d) {
    WH_TRY(read_opening(d));
    WH_TRY(read_tables(d));
    wherry_value *state;
    WH_TRY(wh_decode_value(d, 0, &state));
    d->prepared->state = state;
    d->prepared->owns_state = true;
    d->in.item = d->in.at;
    if (d->next_storage < d->prepared->storage_count || d->next_mesh < d->prepared->mesh_count) {
        return wh_read_fault(&d->in, WHERRY_NOT_CANONICAL, "a storage or a mesh is not used by any tensor");
    }
    if (d->in.at < d->in.size) {
        return wh_read_fault(&d->in, WHERRY_TRAILING_BYTES, "%zu bytes follow the manifest", d->in.size - d->in.at);
    }
    return WHERRY_OK;
}

wherry_status wherry_manifest_decode(const void *bytes, size_t size, const wherry_limits *limits,
                                     wherry_prepared **prepared_p, wherry_error *error) {
    wh_decoder d = {.in = {.bytes = bytes, .size = size, .error = error}};
    wherry_limits_init(&d.limits);
    if (!wh_options_take(&d.limits, sizeof(d.limits), limits) || d.limits.depth > WHERRY_DEPTH_MAX ||
        d.limits.total_bytes > INT64_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "initialize the limits with wherry_limits_init; depth is at most %d, total_bytes at most 2^63-1",
                       WHERRY_DEPTH_MAX);
    }
    if (!bytes || !prepared_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "bytes and prepared_p must not be NULL");
    }
    if (size > d.limits.manifest_bytes) {
        return wh_fail(error, WHERRY_LIMIT, "the manifest has %zu bytes; the limit is %llu", size,
                       (unsigned long long)d.limits.manifest_bytes);
    }
    d.in.string_bytes = d.limits.string_bytes;
    d.prepared = wh_prepared_new(0, -1);
    WH_TRY_ALLOC(d.prepared, error, "a manifest");
    d.prepared->owns_storages = true;
    wherry_status status = wh_pool_reserve(&d.pool, size < SIZE_MAX / VALUE_BYTES ? size * VALUE_BYTES : size)
                               ? read_manifest(&d)
                               : wh_fail_memory(error, "the values of a manifest");
    wh_pool_close(&d.pool);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(d.prepared);
        return status;
    }
    *prepared_p = d.prepared;
    return WHERRY_OK;
}
