#include <errno.h>
#include <string.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "state/dump.h"
#include "state/path.h"
#include "state/tensor.h"

/** The maximum number of bytes to show of a string, a byte string or a big integer. */
enum { TEXT_SHOWN = 60 };

typedef struct dump {
    FILE *out;
    wh_string line;
    /** The storages in the order in which the walk has met them. */
    const wherry_storage **storages;
    size_t count;
    size_t capacity;
    wh_index index; /**< Finds the number of a storage. */
} dump;

/**
 * Appends a name from a state. A name may come from an untrusted file, so it is quoted if it is not
 * printable.
 */
static void append_name(wh_string *text, const char *name) {
    size_t size = strlen(name);
    if (wh_utf8_printable(name, size)) {
        wh_string_append(text, name, size);
    } else {
        wh_quoted_append(text, name, size, false);
    }
}

static void append_numbers(wh_string *text, const int64_t *numbers, uint32_t count) {
    wh_string_append(text, "[", 1);
    for (uint32_t i = 0; i < count; i++) {
        wh_string_format(text, "%s%lld", i ? ", " : "", (long long)numbers[i]);
    }
    wh_string_append(text, "]", 1);
}

/** Describes a tensor, for example "float32[2, 3] strides [1, 2] offset 4 cpu requires_grad". */
static void describe_tensor(wh_string *text, const wherry_tensor *tensor) {
    char device[WHERRY_DEVICE_TEXT_MAX];
    wh_string_format(text, "%s", wherry_dtype_describe(tensor->dtype)->name);
    append_numbers(text, tensor->shape, tensor->ndim);
    if (!wh_strides_are_contiguous(tensor->ndim, tensor->shape, tensor->strides)) {
        wh_string_append(text, " strides ", 9);
        append_numbers(text, tensor->strides, tensor->ndim);
    }
    if (tensor->offset) {
        wh_string_format(text, " offset %lld", (long long)tensor->offset);
    }
    wh_string_format(text, " %s", wherry_device_text(wherry_storage_device(tensor->storage), device));
    wh_string_format(text, "%s%s%s", tensor->flags & WHERRY_TENSOR_REQUIRES_GRAD ? " requires_grad" : "",
                     tensor->flags & WHERRY_TENSOR_CONJ ? " conj" : "",
                     tensor->flags & WHERRY_TENSOR_NEG ? " neg" : "");
}

void wh_describe_placements(wh_string *text, const wherry_dtensor *dtensor) {
    const wherry_mesh_info *mesh = wherry_mesh_get(dtensor->mesh);
    wh_string_append(text, "(", 1);
    for (uint32_t i = 0; i < mesh->ndim; i++) {
        const wherry_placement *placement = dtensor->placements + i;
        wh_string_format(text, "%s", i ? ", " : "");
        switch (placement->kind) {
        case WHERRY_REPLICATE:
            wh_string_append(text, "replicate", 9);
            break;
        case WHERRY_SHARD:
            wh_string_format(text, "shard %u", placement->dim);
            break;
        case WHERRY_STRIDED_SHARD:
            wh_string_format(text, "strided shard %u by %lld", placement->dim, (long long)placement->split_factor);
            break;
        case WHERRY_PARTIAL:
            wh_string_append(text, "partial ", 8);
            append_name(text, placement->reduce_op);
            break;
        }
    }
    wh_string_append(text, ")", 1);
}

static void describe_dtensor(wh_string *text, const wherry_dtensor *dtensor) {
    const wherry_mesh_info *mesh = wherry_mesh_get(dtensor->mesh);
    wh_string_format(text, "DTensor %s", wherry_dtype_describe(dtensor->dtype)->name);
    append_numbers(text, dtensor->shape, dtensor->ndim);
    wh_string_append(text, " ", 1);
    wh_describe_placements(text, dtensor);
    wh_string_format(text, " over a mesh %s", wherry_device_kind_text(mesh->device));
    append_numbers(text, mesh->shape, mesh->ndim);
    wh_string_append(text, ", local ", 8);
    describe_tensor(text, wherry_tensor_get(dtensor->local));
}

static void describe_sharded(wh_string *text, const wherry_sharded *sharded) {
    wh_string_format(text, "ShardedTensor %s", wherry_dtype_describe(sharded->dtype)->name);
    append_numbers(text, sharded->shape, sharded->ndim);
    wh_string_format(text, ", %u of %u shards here", sharded->shard_count, sharded->global_count);
    for (uint32_t i = 0; i < sharded->shard_count; i++) {
        wh_string_append(text, i ? ", at " : ": at ", 5);
        append_numbers(text, sharded->shards[i].info.offsets, sharded->ndim);
        wh_string_append(text, " ", 1);
        describe_tensor(text, wherry_tensor_get(sharded->shards[i].tensor));
    }
}

static void describe_text(wh_string *text, const wherry_value *value) {
    wherry_value cut = *value;
    if (cut.as.text.size > TEXT_SHOWN) {
        cut.as.text.size = TEXT_SHOWN;
        while (value->kind == WHERRY_KIND_STRING && cut.as.text.size > 0 &&
               wh_utf8_continues(cut.as.text.bytes[cut.as.text.size])) {
            cut.as.text.size--;
        }
    }
    wh_scalar_append(text, &cut);
    if (cut.as.text.size < value->as.text.size) {
        wh_string_format(text, "... (%zu bytes)", value->as.text.size);
    }
}

void wh_describe_leaf(wh_string *text, const wherry_value *leaf) {
    switch (wherry_value_kind(leaf)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        wh_string_format(text, "%s of %zu", wherry_kind_name(leaf->kind), wh_child_count(leaf));
        break;
    case WHERRY_KIND_TENSOR:
        describe_tensor(text, leaf->as.tensor);
        break;
    case WHERRY_KIND_DTENSOR:
        describe_dtensor(text, leaf->as.dtensor);
        break;
    case WHERRY_KIND_SHARDED:
        describe_sharded(text, leaf->as.sharded);
        break;
    case WHERRY_KIND_BIGINT:
    case WHERRY_KIND_STRING:
    case WHERRY_KIND_BYTES:
        describe_text(text, leaf);
        break;
    case WHERRY_KIND_OBJECT:
        wh_string_append(text, "object ", 7);
        append_name(text, leaf->as.object.type);
        break;
    default:
        wh_scalar_append(text, leaf);
        break;
    }
}

static bool is_storage(const void *owner, size_t element, const void *key) {
    return ((const dump *)owner)->storages[element] == key;
}

/** Appends the storage numbers of a leaf. Tensors that share a storage show the same number. */
static void append_storages(dump *d, const wherry_value *leaf) {
    size_t count = leaf->kind >= WHERRY_KIND_TENSOR ? wh_value_tensor_count(leaf) : 0;
    for (size_t i = 0; i < count; i++) {
        const wherry_storage *storage = wh_value_tensor_at(leaf, i)->as.tensor->storage;
        uint64_t hash = wh_hash_pointer(storage);
        size_t at = wh_index_find(&d->index, hash, is_storage, d, storage);
        if (at == WH_INDEX_NONE) {
            at = d->count;
            if (!WH_GROW(d->storages, d->capacity, d->count) || !wh_index_add(&d->index, hash, at)) {
                d->line.failed = true;
                return;
            }
            d->storages[d->count++] = storage;
        }
        wh_string_format(&d->line, "%s#%zu", i ? ", " : ", storage ", at);
    }
}

static bool dump_value(dump *d, const wherry_value *value, unsigned depth, const wherry_step *step) {
    d->line.size = 0;
    wh_string_format(&d->line, "%*s", 2 * (int)depth, "");
    if (step) {
        wh_path_append(&d->line, step, 1);
        wh_string_append(&d->line, ": ", 2);
    }
    const wherry_value *inside = value;
    for (; inside->kind == WHERRY_KIND_OBJECT; inside = inside->as.object.payload) {
        wh_string_append(&d->line, "<", 1);
        append_name(&d->line, inside->as.object.type);
        wh_string_append(&d->line, "> ", 2);
    }
    wh_describe_leaf(&d->line, inside);
    append_storages(d, inside);
    wh_string_append(&d->line, "\n", 1);
    if (d->line.failed || fwrite(d->line.bytes, 1, d->line.size, d->out) != d->line.size) {
        return false;
    }
    for (size_t i = 0; i < wh_child_count(inside); i++) {
        wherry_step next;
        const wherry_value *child = wh_child_at(inside, i, &next);
        if (!dump_value(d, child, depth + 1, &next)) {
            return false;
        }
    }
    return true;
}

wherry_status wherry_value_dump(const wherry_value *value, FILE *out, wherry_error *error) {
    if (!value || !out) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "value and out must not be NULL");
    }
    dump d = {.out = out};
    errno = 0;
    bool done = dump_value(&d, value, 0, NULL) && fflush(out) == 0;
    int errnum = errno;
    bool memory = d.line.failed;
    wh_free(d.line.bytes);
    wh_free(d.storages);
    wh_index_destroy(&d.index);
    if (!done) {
        return memory ? wh_fail_memory(error, "a line of text")
                      : wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot write the tree");
    }
    return WHERRY_OK;
}
