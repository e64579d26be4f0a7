/*
 * Encodes a prepared state as bytes. The functions are in the order of docs/wire-format.md.
 *
 * 1. The same prepared state always gives the same bytes.
 * 2. Tensors and DTensors are written in the order of the walk. So entry i of `tensor_storages`
 *    belongs to tensor number i, and entry i of `dtensor_meshes` to DTensor number i.
 */
#include "manifest/manifest.h"

#include <string.h>

#include <wherry/expert.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "manifest/cbor.h"
#include "state/path.h"
#include "state/prepare.h"

/**
 * Estimated size of a manifest, so that its buffer rarely has to grow: a fixed part, a part per
 * storage, and a part per tensor with its name.
 */
enum { BYTES = 4096, BYTES_PER_STORAGE = 12, BYTES_PER_TENSOR = 60 };

typedef struct encoder {
    wh_string out;
    const wherry_prepared *prepared;
    wh_preparing *preparing; /**< NULL if the state is already prepared. */
    size_t tensor;           /**< The number of the next tensor. */
    size_t dtensor;          /**< The number of the next DTensor. */
} encoder;

static void write_string(wh_string *out, const char *text) {
    wh_write_text(out, text, strlen(text));
}

static void write_extent(wh_string *out, const wherry_extent *extent) {
    wh_write_array(out, extent->level_count ? 3 : 2);
    wh_write_int(out, (int64_t)extent->offset);
    wh_write_int(out, (int64_t)extent->length);
    if (extent->level_count) {
        wh_write_array(out, 2 * (uint64_t)extent->level_count);
        for (uint32_t i = 0; i < extent->level_count; i++) {
            wh_write_int(out, (int64_t)extent->levels[i].count);
            wh_write_int(out, (int64_t)extent->levels[i].stride);
        }
    }
}

static unsigned char *put_device(unsigned char *at, wherry_device device) {
    at = wh_put_int(at, device.kind);
    return wh_put_int(at, device.index < 0 ? -1 : device.index);
}

static void write_device(wh_string *out, wherry_device device) {
    unsigned char *at = wh_room_for_items(out, 2 * WH_HEAD_MAX);
    wh_items_end(out, at ? put_device(at, device) : NULL);
}

static void write_storage(wh_string *out, const wherry_prepared *prepared, size_t number) {
    const wh_storage_fields *fields = prepared->storage_fields + number;
    size_t count;
    const wherry_extent *extents = wh_space_extents(&prepared->space, number, &count);
    bool whole = wh_extents_are_whole(extents, count, fields->nbytes);
    unsigned char *at = wh_room_for_items(out, 5 * WH_HEAD_MAX);
    if (at) {
        at = wh_put_array(at, 4);
        at = wh_put_int(at, (int64_t)fields->nbytes);
        at = put_device(at, fields->device);
        wh_items_end(out, whole ? wh_put_null(at) : wh_put_array(at, count));
    }
    for (size_t i = 0; i < count && !whole; i++) {
        write_extent(out, extents + i);
    }
}

static void write_mesh(wh_string *out, const wherry_mesh_info *mesh) {
    size_t ranks = 1;
    for (uint32_t i = 0; i < mesh->ndim; i++) {
        ranks *= (size_t)mesh->shape[i];
    }
    wh_write_array(out, 4);
    wh_write_int(out, mesh->device);
    wh_write_ints(out, mesh->shape, mesh->ndim);
    wh_write_ints(out, mesh->ranks, ranks);
    if (!mesh->dim_names) {
        wh_write_null(out);
        return;
    }
    wh_write_array(out, mesh->ndim);
    for (uint32_t i = 0; i < mesh->ndim; i++) {
        write_string(out, mesh->dim_names[i]);
    }
}

/** The maximum number of CBOR heads in a shape and its strides. */
static size_t heads_of_shape(uint32_t ndim) {
    return 2 * ((size_t)ndim + 1);
}

static unsigned char *put_shape(unsigned char *at, uint32_t ndim, const int64_t *shape, const int64_t *strides) {
    at = wh_put_ints(at, shape, ndim);
    return wh_strides_are_contiguous(ndim, shape, strides) ? wh_put_null(at) : wh_put_ints(at, strides, ndim);
}

static void write_shape(wh_string *out, uint32_t ndim, const int64_t *shape, const int64_t *strides) {
    unsigned char *at = wh_room_for_items(out, heads_of_shape(ndim) * WH_HEAD_MAX);
    wh_items_end(out, at ? put_shape(at, ndim, shape, strides) : NULL);
}

static void write_tensor(encoder *e, const wherry_tensor *tensor) {
    uint32_t place = e->prepared->tensor_storages[e->tensor++];
    unsigned char *at = wh_room_for_items(&e->out, (WH_TENSOR_ITEMS + heads_of_shape(tensor->ndim)) * WH_HEAD_MAX);
    if (at) {
        at = wh_put_array(at, WH_TENSOR_ITEMS);
        at = wh_put_int(at, WHERRY_KIND_TENSOR);
        at = wh_put_int(at, place);
        at = wh_put_int(at, tensor->dtype);
        at = wh_put_int(at, tensor->flags);
        at = wh_put_int(at, tensor->offset);
        wh_items_end(&e->out, put_shape(at, tensor->ndim, tensor->shape, tensor->strides));
    }
}

static void write_placement(wh_string *out, const wherry_placement *placement) {
    bool replicate = placement->kind == WHERRY_REPLICATE;
    bool strided = placement->kind == WHERRY_STRIDED_SHARD;
    wh_write_array(out, replicate ? 1 : strided ? 3 : 2);
    wh_write_int(out, placement->kind);
    if (placement->kind == WHERRY_PARTIAL) {
        write_string(out, placement->reduce_op);
    } else if (!replicate) {
        wh_write_int(out, placement->dim);
        if (strided) {
            wh_write_int(out, placement->split_factor);
        }
    }
}

static void write_dtensor(encoder *e, const wherry_dtensor *dtensor) {
    uint32_t placements = wherry_mesh_get(dtensor->mesh)->ndim;
    wh_write_array(&e->out, WH_DTENSOR_ITEMS);
    wh_write_int(&e->out, WHERRY_KIND_DTENSOR);
    wh_write_int(&e->out, e->prepared->dtensor_meshes[e->dtensor++]);
    wh_write_array(&e->out, placements);
    for (uint32_t i = 0; i < placements; i++) {
        write_placement(&e->out, dtensor->placements + i);
    }
    wh_write_int(&e->out, dtensor->dtype);
    wh_write_int(&e->out, dtensor->flags);
    write_shape(&e->out, dtensor->ndim, dtensor->shape, dtensor->strides);
    write_tensor(e, wherry_tensor_get(dtensor->local));
}

static void write_place(wh_string *out, const wherry_shard_place *place) {
    wh_write_int(out, place->rank);
    write_device(out, place->device);
}

/** Writes the info of a shard. It is also the first part of a local shard, before its tensor. */
static void write_info(wh_string *out, const wherry_shard_info *info, uint32_t ndim) {
    wh_write_ints(out, info->offsets, ndim);
    wh_write_ints(out, info->sizes, ndim);
    write_place(out, &info->place);
}

static void write_infos(wh_string *out, const wherry_shard_info *infos, uint32_t count, uint32_t ndim) {
    wh_write_array(out, count);
    for (uint32_t i = 0; i < count; i++) {
        wh_write_array(out, WH_INFO_ITEMS);
        write_info(out, infos + i, ndim);
    }
}

static void write_sharding(wh_string *out, const wherry_sharding *sharding, uint32_t ndim) {
    if (sharding->kind == WHERRY_SHARDING_NONE) {
        wh_write_null(out);
    } else if (sharding->kind == WHERRY_SHARDING_CHUNK) {
        wh_write_array(out, 3);
        wh_write_int(out, sharding->kind);
        wh_write_int(out, sharding->dim);
        wh_write_array(out, sharding->count);
        for (uint32_t i = 0; i < sharding->count; i++) {
            wh_write_array(out, 3);
            write_place(out, sharding->places + i);
        }
    } else {
        wh_write_array(out, 2);
        wh_write_int(out, sharding->kind);
        write_infos(out, sharding->boxes, sharding->count, ndim);
    }
}

static void write_sharded(encoder *e, const wherry_sharded *sharded) {
    wh_write_array(&e->out, WH_SHARDED_ITEMS);
    wh_write_int(&e->out, WHERRY_KIND_SHARDED);
    wh_write_int(&e->out, sharded->dtype);
    wh_write_int(&e->out, (sharded->requires_grad ? WH_SHARDED_REQUIRES_GRAD : 0) |
                              (sharded->pin_memory ? WH_SHARDED_PIN_MEMORY : 0));
    wh_write_int(&e->out, sharded->format);
    wh_write_ints(&e->out, sharded->shape, sharded->ndim);
    wh_write_array(&e->out, sharded->shard_count);
    for (uint32_t i = 0; i < sharded->shard_count; i++) {
        wh_write_array(&e->out, WH_INFO_ITEMS + 1);
        write_info(&e->out, &sharded->shards[i].info, sharded->ndim);
        write_tensor(e, wherry_tensor_get(sharded->shards[i].tensor));
    }
    write_infos(&e->out, sharded->global, sharded->global_count, sharded->ndim);
    write_sharding(&e->out, &sharded->sharding, sharded->ndim);
}

static void write_doubles(wh_string *out, wherry_kind kind, const double *numbers, size_t count) {
    uint8_t bytes[16];
    for (size_t i = 0; i < count; i++) {
        wh_store_be64(bytes + 8 * i, wh_double_bits(numbers[i]));
    }
    wh_write_array(out, 2);
    wh_write_int(out, kind);
    wh_write_bytes(out, bytes, 8 * count);
}

/**
 * Writes a big integer as a tag and the bytes of an unsigned number n. With tag 2 the value is n.
 * With tag 3 the value is -1-n, so n is the magnitude of the negative integer minus one.
 */
static void write_bigint(wh_string *out, const wh_content *text) {
    wh_write_head(out, WH_MAJOR_TAG, text->negative ? WH_TAG_NEGATIVE : WH_TAG_POSITIVE);
    if (!text->negative) {
        wh_write_bytes(out, text->bytes, text->size);
        return;
    }
    char *less = wh_text_copy(text->bytes, text->size);
    if (!less) {
        out->failed = true;
        return;
    }
    size_t at = text->size;
    while (less[--at] == 0) {
        less[at] = (char)0xFF;
    }
    less[at]--;
    size_t zero = less[0] == 0;
    wh_write_bytes(out, less + zero, text->size - zero);
    wh_free(less);
}

static void write_value(encoder *e, const wherry_value *value);

static void write_container(encoder *e, const wherry_value *value) {
    bool dict = value->kind == WHERRY_KIND_DICT;
    size_t count = wh_child_count(value);
    wh_write_array(&e->out, 1 + (dict ? 2 * (uint64_t)count : count));
    wh_write_int(&e->out, value->kind);
    for (size_t i = 0; i < count; i++) {
        wherry_step step;
        const wherry_value *child = wh_child_at(value, i, &step);
        if (dict) {
            write_value(e, step.key);
        }
        write_value(e, child);
    }
}

/**
 * Prepares a leaf, unless the state is already prepared. Call it before the leaf is written.
 * @return false if out of memory.
 */
static bool meet(encoder *e, const wherry_value *leaf) {
    e->out.failed = e->out.failed || (e->preparing && !wh_preparing_leaf(e->preparing, (wherry_value *)leaf));
    return !e->out.failed;
}

/** Writes a TENSOR, DTENSOR or SHARDED leaf. */
static void write_tensors(encoder *e, const wherry_value *leaf) {
    if (!meet(e, leaf)) {
        return;
    }
    if (leaf->kind == WHERRY_KIND_TENSOR) {
        write_tensor(e, leaf->as.tensor);
    } else if (leaf->kind == WHERRY_KIND_DTENSOR) {
        write_dtensor(e, leaf->as.dtensor);
    } else {
        write_sharded(e, leaf->as.sharded);
    }
}

static void write_value(encoder *e, const wherry_value *value) {
    const wh_content *text = &value->as.text;
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_NONE:
        wh_write_null(&e->out);
        break;
    case WHERRY_KIND_BOOL:
        wh_write_head(&e->out, WH_MAJOR_SIMPLE, value->as.boolean ? WH_SIMPLE_TRUE : WH_SIMPLE_FALSE);
        break;
    case WHERRY_KIND_INT:
        wh_write_int(&e->out, value->as.integer);
        break;
    case WHERRY_KIND_BIGINT:
        write_bigint(&e->out, text);
        break;
    case WHERRY_KIND_FLOAT:
        write_doubles(&e->out, WHERRY_KIND_FLOAT, value->as.numbers, 1);
        break;
    case WHERRY_KIND_COMPLEX:
        write_doubles(&e->out, WHERRY_KIND_COMPLEX, value->as.numbers, 2);
        break;
    case WHERRY_KIND_STRING:
        wh_write_text(&e->out, text->bytes, text->size);
        break;
    case WHERRY_KIND_BYTES:
        wh_write_bytes(&e->out, text->bytes, text->size);
        break;
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        write_container(e, value);
        break;
    case WHERRY_KIND_OBJECT:
        wh_write_array(&e->out, 3);
        wh_write_int(&e->out, WHERRY_KIND_OBJECT);
        write_string(&e->out, value->as.object.type);
        write_value(e, value->as.object.payload);
        break;
    case WHERRY_KIND_TENSOR:
    case WHERRY_KIND_DTENSOR:
    case WHERRY_KIND_SHARDED:
        write_tensors(e, value);
        break;
    }
}

/** Writes everything that comes before the tree. */
static void write_head(wh_string *out, const wherry_prepared *prepared) {
    wh_write_array(out, WH_MANIFEST_ITEMS);
    write_string(out, WH_MANIFEST_MAGIC);
    wh_write_int(out, WHERRY_MANIFEST_VERSION);
    wh_write_int(out, (int64_t)prepared->space.chunk_bytes);
    wh_write_int(out, prepared->rank);
    wh_write_array(out, prepared->storage_count);
    for (size_t i = 0; i < prepared->storage_count; i++) {
        write_storage(out, prepared, i);
    }
    wh_write_array(out, prepared->mesh_count);
    for (size_t i = 0; i < prepared->mesh_count; i++) {
        write_mesh(out, wherry_mesh_get(prepared->meshes[i]));
    }
}

static wherry_status hand_over(wh_string *out, void **bytes_p, size_t *size_p, wherry_error *error) {
    if (out->failed) {
        wh_free(out->bytes);
        return wh_fail_memory(error, "a manifest");
    }
    *bytes_p = out->bytes;
    *size_p = out->size;
    return WHERRY_OK;
}

wherry_status wherry_manifest_encode(const wherry_prepared *prepared, void **bytes_p, size_t *size_p,
                                     wherry_error *error) {
    if (!prepared || !prepared->state || prepared->adopted || !bytes_p || !size_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "cannot encode: an argument is NULL, the state was taken out of its plan, or the plan receives "
                       "in place; encode the prepared state before you create a plan");
    }
    encoder e = {.prepared = prepared};
    wh_string_room(&e.out,
                   BYTES + BYTES_PER_STORAGE * prepared->storage_count + BYTES_PER_TENSOR * prepared->tensor_count);
    write_head(&e.out, prepared);
    write_value(&e, prepared->state);
    return hand_over(&e.out, bytes_p, size_p, error);
}

/**
 * In the manifest, the storages come before the tree. But they are known only after the walk over
 * the tree. So the tree is first written to a buffer.
 */
wherry_status wh_manifest_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                  wherry_prepared **prepared_p, void **bytes_p, size_t *size_p, wherry_error *error) {
    wh_preparing preparing;
    wherry_prepared *prepared = NULL;
    WH_TRY(wh_preparing_begin(&preparing, state, options, error));
    encoder e = {.prepared = preparing.prepared, .preparing = &preparing};
    wh_string whole = {0};
    wh_string_room(&e.out, BYTES + BYTES_PER_TENSOR * preparing.expected);
    write_value(&e, state);
    wherry_status status = wh_preparing_end(&preparing, &prepared, error);
    if (status == WHERRY_OK) {
        wh_string_room(&whole, BYTES + BYTES_PER_STORAGE * prepared->storage_count + e.out.size);
        write_head(&whole, prepared);
        wh_string_append(&whole, e.out.bytes, e.out.size);
        whole.failed = whole.failed || e.out.failed;
        status = hand_over(&whole, bytes_p, size_p, error);
    }
    wh_free(e.out.bytes);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
        return status;
    }
    *prepared_p = prepared;
    return WHERRY_OK;
}

/**
 * Finds the item that holds the rank. It follows the head of the array, the magic text, the version
 * and the chunk size.
 */
static void find_rank(const void *manifest, size_t size, size_t *begin_p, size_t *end_p) {
    enum { BEFORE = 4 };
    wh_cbor_reader in = {.bytes = manifest, .size = size, .string_bytes = sizeof(WH_MANIFEST_MAGIC)};
    wh_item item;
    for (int i = 0; i < BEFORE; i++) {
        wh_read_item(&in, &item);
    }
    *begin_p = in.at;
    wh_read_item(&in, &item);
    *end_p = in.at;
}

bool wh_manifest_fingerprint(const wherry_prepared *prepared, const void *manifest, size_t size,
                             wherry_digest *fingerprint) {
    wh_digester *digester = wh_digester_create();
    if (!digester) {
        return false;
    }
    size_t begin = 0;
    size_t end = 0;
    if (prepared->dtensor_count == 0) {
        find_rank(manifest, size, &begin, &end);
    }
    wh_digester_begin(digester);
    wh_digester_add(digester, manifest, begin);
    wh_digester_add(digester, (const char *)manifest + end, size - end);
    *fingerprint = wh_digester_end(digester);
    wh_digester_destroy(digester);
    return true;
}

bool wh_manifests_are_equal(const void *one, size_t one_size, const void *other, size_t other_size) {
    size_t one_begin;
    size_t one_end;
    size_t other_begin;
    size_t other_end;
    find_rank(one, one_size, &one_begin, &one_end);
    find_rank(other, other_size, &other_begin, &other_end);
    return one_begin == other_begin && one_size - one_end == other_size - other_end &&
           (!one_begin || memcmp(one, other, one_begin) == 0) &&
           (one_size == one_end ||
            memcmp((const char *)one + one_end, (const char *)other + other_end, one_size - one_end) == 0);
}
