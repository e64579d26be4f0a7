#include "state/rebuild.h"

#include "base/alloc.h"
#include "base/error.h"
#include "state/path.h"
#include "state/value.h"

static wherry_status rebuild_object(const wherry_value *value, wh_leaf_fn leaf, wherry_value **copy_p,
                                    wherry_error *error) {
    wherry_value *payload;
    wherry_status status = wh_value_rebuild(value->as.object.payload, leaf, &payload, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_object_create(value->as.object.type, payload, copy_p, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(payload);
    }
    return status;
}

/** Builds child number `index` of value and puts it into copy. */
static wherry_status rebuild_child(const wherry_value *value, size_t index, wh_leaf_fn leaf, wherry_value *copy,
                                   wherry_error *error) {
    wherry_step step;
    wherry_value *key = NULL;
    wherry_value *item = NULL;
    wherry_status status = wh_value_rebuild(wh_child_at(value, index, &step), leaf, &item, error);
    if (status == WHERRY_OK && step.key) {
        status = wherry_value_copy(step.key, &key, error);
    }
    if (status == WHERRY_OK) {
        status = step.key ? wherry_dict_set(copy, key, item, error) : wherry_sequence_append(copy, item, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(key);
        wherry_value_destroy(item);
    }
    return status;
}

static wherry_status new_container(wherry_kind kind, wherry_value **value_p, wherry_error *error) {
    return kind == WHERRY_KIND_DICT   ? wherry_dict_create(value_p, error)
           : kind == WHERRY_KIND_LIST ? wherry_list_create(value_p, error)
                                      : wherry_tuple_create(value_p, error);
}

wherry_status wh_value_rebuild(const wherry_value *value, wh_leaf_fn leaf, wherry_value **copy_p, wherry_error *error) {
    if (value->kind == WHERRY_KIND_OBJECT) {
        return rebuild_object(value, leaf, copy_p, error);
    }
    size_t count = wh_child_count(value);
    if (count == 0) {
        return leaf(value, copy_p, error);
    }
    wherry_value *copy;
    wherry_status status = new_container(wherry_value_kind(value), &copy, error);
    if (status != WHERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = rebuild_child(value, i, leaf, copy, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(copy);
        return status;
    }
    *copy_p = copy;
    return WHERRY_OK;
}

static wherry_status copy_dtensor(const wherry_dtensor *from, wherry_value **copy_p, wherry_error *error) {
    wherry_dtensor dtensor = *from;
    wherry_status status = wherry_value_copy(from->local, &dtensor.local, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_dtensor_create(&dtensor, copy_p, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(dtensor.local);
    }
    return status;
}

static wherry_status copy_sharded(const wherry_sharded *from, wherry_value **copy_p, wherry_error *error) {
    wherry_shard *shards = wh_alloc_array(from->shard_count, sizeof(*shards));
    if (!shards) {
        return wh_fail_memory(error, "the shards of a sharded tensor");
    }
    wherry_status status = WHERRY_OK;
    uint32_t done = 0;
    while (done < from->shard_count && status == WHERRY_OK) {
        shards[done] = from->shards[done];
        status = wherry_value_copy(from->shards[done].tensor, &shards[done].tensor, error);
        done += status == WHERRY_OK;
    }
    if (status == WHERRY_OK) {
        wherry_sharded sharded = *from;
        sharded.shards = shards;
        status = wherry_sharded_create(&sharded, copy_p, error);
    }
    for (uint32_t i = 0; i < done && status != WHERRY_OK; i++) {
        wherry_value_destroy(shards[i].tensor);
    }
    wh_free(shards);
    return status;
}

static wherry_status copy_leaf(const wherry_value *leaf, wherry_value **copy_p, wherry_error *error) {
    const wh_text *text = &leaf->as.text;
    switch (wherry_value_kind(leaf)) {
    case WHERRY_KIND_BOOL:
        return wherry_bool_create(leaf->as.boolean, copy_p, error);
    case WHERRY_KIND_INT:
        return wherry_int_create(leaf->as.integer, copy_p, error);
    case WHERRY_KIND_BIGINT:
        return wherry_bigint_create(text->negative, text->bytes, text->size, copy_p, error);
    case WHERRY_KIND_FLOAT:
        return wherry_float_create(leaf->as.numbers[0], copy_p, error);
    case WHERRY_KIND_COMPLEX:
        return wherry_complex_create(leaf->as.numbers[0], leaf->as.numbers[1], copy_p, error);
    case WHERRY_KIND_STRING:
        return wherry_string_create(text->bytes, text->size, copy_p, error);
    case WHERRY_KIND_BYTES:
        return wherry_bytes_create(text->bytes, text->size, copy_p, error);
    case WHERRY_KIND_TENSOR:
        return wherry_tensor_create(leaf->as.tensor, copy_p, error);
    case WHERRY_KIND_DTENSOR:
        return copy_dtensor(leaf->as.dtensor, copy_p, error);
    case WHERRY_KIND_SHARDED:
        return copy_sharded(leaf->as.sharded, copy_p, error);
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        return new_container(wherry_value_kind(leaf), copy_p, error);
    default:
        return wherry_none_create(copy_p, error);
    }
}

wherry_status wherry_value_copy(const wherry_value *value, wherry_value **copy_p, wherry_error *error) {
    if (!value || !copy_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "value and copy_p must not be NULL");
    }
    return wh_value_rebuild(value, copy_leaf, copy_p, error);
}
