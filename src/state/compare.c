#include <string.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"
#include "state/dump.h"
#include "state/path.h"
#include "state/sharded.h"
#include "state/tensor.h"
#include "state/value.h"

/** A storage of the first tree, and the storage that the same tensors have in the other tree. */
typedef struct pairing {
    const wherry_storage *one;
    const wherry_storage *other;
} pairing;

typedef struct comparison {
    const wherry_value *root; /**< The first tree. Paths begin here. */
    unsigned flags;
    bool layout; /**< Only layouts: see wh_layout_compare. */
    int64_t ranks[2];
    wherry_error *error;
    pairing *pairs;
    size_t count;
    size_t capacity;
    wh_index by_one;
    wh_index by_other;
} comparison;

static wherry_status differ(const comparison *c, const wherry_value *one, const wherry_value *other, const char *what) {
    wh_string text = {0};
    wh_describe_leaf(&text, one);
    wh_string_append(&text, " against ", 9);
    wh_describe_leaf(&text, other);
    wh_fail(c->error, WHERRY_MISMATCH, "%s: %s", what, text.failed ? "(out of memory for the details)" : text.bytes);
    wh_fail_value_below(c->error, c->root, one);
    wh_free(text.bytes);
    return WHERRY_MISMATCH;
}

static bool same_numbers(const int64_t *one, const int64_t *other, uint32_t count) {
    return count == 0 || memcmp(one, other, count * sizeof(*one)) == 0;
}

static bool has_one(const void *owner, size_t element, const void *key) {
    return ((const comparison *)owner)->pairs[element].one == key;
}

static bool has_other(const void *owner, size_t element, const void *key) {
    return ((const comparison *)owner)->pairs[element].other == key;
}

/**
 * Sets *same_p to true if the two storages have the same size and, in all tensors seen so far, each
 * was paired only with the other.
 */
static wherry_status pair(comparison *c, const wherry_storage *one, const wherry_storage *other, bool *same_p) {
    uint64_t one_hash = wh_hash_pointer(one);
    uint64_t other_hash = wh_hash_pointer(other);
    size_t at = wh_index_find(&c->by_one, one_hash, has_one, c, one);
    if (at != WH_INDEX_NONE || wh_index_find(&c->by_other, other_hash, has_other, c, other) != WH_INDEX_NONE) {
        *same_p = at != WH_INDEX_NONE && c->pairs[at].other == other;
        return WHERRY_OK;
    }
    *same_p = wherry_storage_nbytes(one) == wherry_storage_nbytes(other);
    WH_TRY_ALLOC(WH_GROW(c->pairs, c->capacity, c->count) && wh_index_add(&c->by_one, one_hash, c->count) &&
                     wh_index_add(&c->by_other, other_hash, c->count),
                 c->error, "comparing storages");
    c->pairs[c->count++] = (pairing){one, other};
    return WHERRY_OK;
}

typedef struct contents {
    const char *one;
    const char *other;
} contents;

static int compare_runs(void *context, const wh_copy_runs *runs) {
    const contents *at = context;
    for (uint64_t i = 0; i < runs->count; i++) {
        if (memcmp(at->one + runs->from + i * runs->from_step, at->other + runs->to + i * runs->to_step,
                   runs->length) != 0) {
            return 1;
        }
    }
    return 0;
}

static bool in_host(const wherry_storage *storage) {
    return wherry_storage_device(storage).kind == WHERRY_DEVICE_CPU && !wh_storage_is_bare(storage);
}

static wherry_status compare_content(const comparison *c, const wherry_value *one, const wherry_value *other) {
    const wherry_tensor *a = one->as.tensor;
    const wherry_tensor *b = other->as.tensor;
    wh_view from = wh_tensor_view(a);
    wh_view to = wh_tensor_view(b);
    wh_copy_work work;
    if (!wh_copy_between_views(&from, &to, &work)) {
        return WHERRY_OK;
    }
    if (!in_host(a->storage) || !in_host(b->storage)) {
        wherry_status status = wh_fail(c->error, WHERRY_UNSUPPORTED,
                                       "the bytes are not in host memory; compare with WHERRY_COMPARE_NO_CONTENT");
        wh_fail_value_below(c->error, c->root, one);
        return status;
    }
    contents at = {wherry_storage_data(a->storage), wherry_storage_data(b->storage)};
    wh_copy copy = wh_copy_borrow(&work);
    bool equal = wh_copy_visit(&copy, 0, UINT64_MAX, compare_runs, &at) == 0;
    return equal ? WHERRY_OK : differ(c, one, other, "the elements differ");
}

static wherry_status compare_tensors(comparison *c, const wherry_value *one, const wherry_value *other) {
    const wherry_tensor *a = one->as.tensor;
    const wherry_tensor *b = other->as.tensor;
    wherry_device a_device = wherry_storage_device(a->storage);
    wherry_device b_device = wherry_storage_device(b->storage);
    if (a->dtype != b->dtype || a->flags != b->flags || a->ndim != b->ndim || a->offset != b->offset ||
        !same_numbers(a->shape, b->shape, a->ndim) || !same_numbers(a->strides, b->strides, a->ndim) ||
        a_device.kind != b_device.kind || (!c->layout && a_device.index != b_device.index)) {
        return differ(c, one, other, "the tensors differ");
    }
    bool same = true;
    if (!(c->flags & WHERRY_COMPARE_NO_SHARING)) {
        WH_TRY(pair(c, a->storage, b->storage, &same));
    }
    if (!same) {
        return differ(c, one, other, "the storages have different sizes, or different tensors share them");
    }
    return c->flags & WHERRY_COMPARE_NO_CONTENT ? WHERRY_OK : compare_content(c, one, other);
}

bool wh_placements_equal(const wherry_dtensor *one, const wherry_dtensor *other) {
    uint32_t count = wherry_mesh_get(one->mesh)->ndim;
    if (count != wherry_mesh_get(other->mesh)->ndim) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const wherry_placement *a = one->placements + i;
        const wherry_placement *b = other->placements + i;
        if (a->kind != b->kind || a->dim != b->dim || a->split_factor != b->split_factor ||
            (a->reduce_op && strcmp(a->reduce_op, b->reduce_op) != 0)) {
            return false;
        }
    }
    return true;
}

static wherry_status compare_dtensors(comparison *c, const wherry_value *one, const wherry_value *other) {
    const wherry_dtensor *a = one->as.dtensor;
    const wherry_dtensor *b = other->as.dtensor;
    if (a->dtype != b->dtype || a->flags != b->flags || a->ndim != b->ndim ||
        !same_numbers(a->shape, b->shape, a->ndim) || !same_numbers(a->strides, b->strides, a->ndim) ||
        (!c->layout && !wh_mesh_equal(a->mesh, b->mesh)) || !wh_placements_equal(a, b)) {
        return differ(c, one, other, "the DTensors differ");
    }
    bool same = true;
    if (c->layout) {
        WH_TRY(wh_boxes_equal(one, c->ranks[0], other, c->ranks[1], &same, c->error));
    }
    if (!same) {
        return differ(c, one, other, "the local tensors are different boxes of the global tensor");
    }
    return compare_tensors(c, a->local, b->local);
}

static bool same_place(const wherry_shard_place *a, const wherry_shard_place *b) {
    return a->rank == b->rank && a->device.kind == b->device.kind && a->device.index == b->device.index;
}

static bool same_box(const wherry_shard_info *a, const wherry_shard_info *b, uint32_t ndim) {
    return same_numbers(a->offsets, b->offsets, ndim) && same_numbers(a->sizes, b->sizes, ndim);
}

static bool same_info(const wherry_shard_info *a, const wherry_shard_info *b, uint32_t ndim) {
    return same_place(&a->place, &b->place) && same_box(a, b, ndim);
}

static bool same_sharding(const wherry_sharding *a, const wherry_sharding *b, uint32_t ndim) {
    if (a->kind != b->kind || a->dim != b->dim || a->count != b->count) {
        return false;
    }
    for (uint32_t i = 0; i < a->count; i++) {
        if ((a->places && !same_place(a->places + i, b->places + i)) ||
            (a->boxes && !same_info(a->boxes + i, b->boxes + i, ndim))) {
            return false;
        }
    }
    return true;
}

static wherry_status compare_shardeds(comparison *c, const wherry_value *one, const wherry_value *other) {
    const wherry_sharded *a = one->as.sharded;
    const wherry_sharded *b = other->as.sharded;
    bool same = a->dtype == b->dtype && a->requires_grad == b->requires_grad && a->pin_memory == b->pin_memory &&
                a->format == b->format && a->ndim == b->ndim && same_numbers(a->shape, b->shape, a->ndim) &&
                a->shard_count == b->shard_count && a->global_count == b->global_count &&
                (c->layout || same_sharding(&a->sharding, &b->sharding, a->ndim));
    for (uint32_t i = 0; same && i < a->global_count; i++) {
        same = c->layout ? same_box(a->global + i, b->global + i, a->ndim)
                         : same_info(a->global + i, b->global + i, a->ndim);
    }
    for (uint32_t i = 0; same && i < a->shard_count; i++) {
        same = c->layout ? same_box(&a->shards[i].info, &b->shards[i].info, a->ndim)
                         : same_info(&a->shards[i].info, &b->shards[i].info, a->ndim);
    }
    if (!same) {
        return differ(c, one, other, "the ShardedTensors differ");
    }
    for (uint32_t i = 0; i < a->shard_count; i++) {
        WH_TRY(compare_tensors(c, a->shards[i].tensor, b->shards[i].tensor));
    }
    return WHERRY_OK;
}

static wherry_status compare(comparison *c, const wherry_value *one, const wherry_value *other);

static wherry_status compare_children(comparison *c, const wherry_value *one, const wherry_value *other) {
    size_t count = wh_child_count(one);
    if (count != wh_child_count(other)) {
        return differ(c, one, other, "the numbers of items differ");
    }
    for (size_t i = 0; i < count; i++) {
        wherry_step one_step;
        wherry_step other_step;
        const wherry_value *a = wh_child_at(one, i, &one_step);
        const wherry_value *b = wh_child_at(other, i, &other_step);
        if (one_step.key && !wh_scalar_equal(one_step.key, other_step.key)) {
            return differ(c, one_step.key, other_step.key, "the keys differ, or their order does");
        }
        WH_TRY(compare(c, a, b));
    }
    return WHERRY_OK;
}

static wherry_status compare(comparison *c, const wherry_value *one, const wherry_value *other) {
    if (c->layout && wh_value_is_scalar(one) && wh_value_is_scalar(other)) {
        return WHERRY_OK;
    }
    if (one->kind != other->kind) {
        return differ(c, one, other, "the kinds differ");
    }
    switch (wherry_value_kind(one)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        return compare_children(c, one, other);
    case WHERRY_KIND_OBJECT:
        if (strcmp(one->as.object.type, other->as.object.type) != 0) {
            return differ(c, one, other, "the types differ");
        }
        return compare(c, one->as.object.payload, other->as.object.payload);
    case WHERRY_KIND_TENSOR:
        return compare_tensors(c, one, other);
    case WHERRY_KIND_DTENSOR:
        return compare_dtensors(c, one, other);
    case WHERRY_KIND_SHARDED:
        return compare_shardeds(c, one, other);
    default:
        return wh_scalar_equal(one, other) ? WHERRY_OK : differ(c, one, other, "the values differ");
    }
}

static wherry_status run(comparison *c, const wherry_value *one, const wherry_value *other) {
    c->root = one;
    wherry_status status = compare(c, one, other);
    wh_free(c->pairs);
    wh_index_destroy(&c->by_one);
    wh_index_destroy(&c->by_other);
    return status;
}

wherry_status wherry_value_compare(const wherry_value *one, const wherry_value *other, unsigned flags,
                                   wherry_error *error) {
    if (!one || !other || flags & ~(WHERRY_COMPARE_NO_CONTENT | WHERRY_COMPARE_NO_SHARING)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a comparison needs two values and known flags");
    }
    comparison c = {.flags = flags, .error = error};
    return run(&c, one, other);
}

wherry_status wh_layout_compare(const wherry_value *one, int64_t one_rank, const wherry_value *other,
                                int64_t other_rank, wherry_error *error) {
    comparison c = {
        .flags = WHERRY_COMPARE_NO_CONTENT, .layout = true, .ranks = {one_rank, other_rank}, .error = error};
    return run(&c, one, other);
}
