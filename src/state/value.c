/*
 * Values: scalars, containers, objects and copies of trees.
 *
 * 1. A value has exactly one owner. `parent` is NULL if the caller owns it.
 * 2. A tree has no cycles and is at most WHERRY_DEPTH_MAX deep. `height` is kept up to date on
 *    every adoption.
 * 3. A dict with more than INDEX_FROM entries has an index of all its keys. A smaller one is
 *    searched linearly.
 */
#include "state/value.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "state/path.h"
#include "state/sharded.h"

static const char *const kind_names[] = {
    [WHERRY_KIND_NONE] = "none",     [WHERRY_KIND_BOOL] = "bool",       [WHERRY_KIND_INT] = "int",
    [WHERRY_KIND_BIGINT] = "bigint", [WHERRY_KIND_FLOAT] = "float",     [WHERRY_KIND_COMPLEX] = "complex",
    [WHERRY_KIND_STRING] = "string", [WHERRY_KIND_BYTES] = "bytes",     [WHERRY_KIND_LIST] = "list",
    [WHERRY_KIND_TUPLE] = "tuple",   [WHERRY_KIND_DICT] = "dict",       [WHERRY_KIND_OBJECT] = "object",
    [WHERRY_KIND_TENSOR] = "tensor", [WHERRY_KIND_DTENSOR] = "dtensor", [WHERRY_KIND_SHARDED] = "sharded tensor",
};

const char *wherry_kind_name(wherry_kind kind) {
    return (size_t)kind < sizeof(kind_names) / sizeof(*kind_names) ? kind_names[kind] : "?";
}

wherry_kind wherry_value_kind(const wherry_value *value) {
    return (wherry_kind)value->kind;
}

wherry_value *wh_value_new(wh_pool *pool, wherry_kind kind, size_t extra) {
    uint32_t offset;
    wherry_value *value =
        extra <= SIZE_MAX - sizeof(*value) ? wh_pool_alloc(pool, sizeof(*value) + extra, &offset) : NULL;
    if (value) {
        memset(value, 0, sizeof(*value));
        value->kind = (uint8_t)kind;
        value->pool_offset = offset;
    }
    return value;
}

static void clear_dict(wh_dict *dict) {
    for (size_t i = 0; i < dict->count; i++) {
        wherry_value_destroy(dict->entries[i].key);
        wherry_value_destroy(dict->entries[i].item);
    }
    wh_free(dict->entries);
    wh_index_destroy(&dict->index);
}

void wherry_value_destroy(wherry_value *value) {
    if (!value) {
        return;
    }
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
        for (size_t i = 0; i < value->as.sequence.count; i++) {
            wherry_value_destroy(value->as.sequence.items[i]);
        }
        wh_free(value->as.sequence.items);
        break;
    case WHERRY_KIND_DICT:
        clear_dict(value->as.dict);
        break;
    case WHERRY_KIND_OBJECT:
        wherry_value_destroy(value->as.object.payload);
        break;
    case WHERRY_KIND_TENSOR:
        wherry_storage_unref(value->as.tensor->storage);
        break;
    case WHERRY_KIND_DTENSOR:
        wh_dtensor_clear(value->as.dtensor);
        break;
    case WHERRY_KIND_SHARDED:
        wh_sharded_clear(value->as.sharded);
        break;
    default:
        break;
    }
    wh_pool_free(value, value->pool_offset);
}

static wherry_status deliver(wherry_value *value, wherry_value **value_p, wherry_error *error) {
    WH_TRY_ALLOC(value, error, "a value");
    *value_p = value;
    return WHERRY_OK;
}

/* Scalars */

/** Creates a value with the kind, height and content of the value `content`. */
static wherry_status create(wherry_value content, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, (wherry_kind)content.kind, 0);
    if (value) {
        value->height = content.height;
        value->as = content.as;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_none_create(wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_NONE}, value_p, error);
}

wherry_status wherry_bool_create(bool content, wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_BOOL, .as.boolean = content}, value_p, error);
}

wherry_status wherry_int_create(int64_t content, wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_INT, .as.integer = content}, value_p, error);
}

wherry_status wherry_float_create(double content, wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_FLOAT, .as.numbers = {content, 0}}, value_p, error);
}

wherry_status wherry_complex_create(double real, double imaginary, wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_COMPLEX, .as.numbers = {real, imaginary}}, value_p, error);
}

/** Creates a value with a copy of the bytes, followed by a final zero. */
static wherry_value *new_text(wh_pool *pool, wherry_kind kind, const void *bytes, size_t size) {
    wherry_value *value = size < SIZE_MAX ? wh_value_new(pool, kind, size + 1) : NULL;
    if (value) {
        value->as.text.bytes = (char *)(value + 1);
        value->as.text.size = size;
        if (size) {
            memcpy(value->as.text.bytes, bytes, size);
        }
        value->as.text.bytes[size] = '\0';
    }
    return value;
}

wherry_status wherry_bigint_create(bool negative, const void *magnitude, size_t size, wherry_value **value_p,
                                   wherry_error *error) {
    const uint8_t *bytes = magnitude;
    if (!bytes && size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "magnitude must not be NULL");
    }
    while (size > 0 && *bytes == 0) {
        bytes++;
        size--;
    }
    if (size <= 8) {
        uint8_t padded[8] = {0};
        if (size) {
            memcpy(padded + 8 - size, bytes, size);
        }
        uint64_t number = wh_load_be64(padded);
        if (number <= (uint64_t)INT64_MAX + negative) {
            return wherry_int_create(negative ? (int64_t)(0 - number) : (int64_t)number, value_p, error);
        }
    }
    wherry_value *value = new_text(NULL, WHERRY_KIND_BIGINT, bytes, size);
    if (value) {
        value->as.text.negative = negative;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_string_create(const char *text, size_t size, wherry_value **value_p, wherry_error *error) {
    return wh_string_build(NULL, text, size, value_p, error);
}

wherry_status wh_string_build(wh_pool *pool, const char *text, size_t size, wherry_value **value_p,
                              wherry_error *error) {
    if ((!text && size) || !wh_utf8_valid(text, size)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the string is not UTF-8; use wherry_bytes_create for other bytes");
    }
    return deliver(new_text(pool, WHERRY_KIND_STRING, text, size), value_p, error);
}

wherry_status wherry_bytes_create(const void *bytes, size_t size, wherry_value **value_p, wherry_error *error) {
    if (!bytes && size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "bytes must not be NULL");
    }
    return deliver(new_text(NULL, WHERRY_KIND_BYTES, bytes, size), value_p, error);
}

bool wherry_bool_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_BOOL && value->as.boolean;
}

int64_t wherry_int_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_INT ? value->as.integer : 0;
}

double wherry_float_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_FLOAT ? value->as.numbers[0] : 0;
}

void wherry_complex_get(const wherry_value *value, double *real_p, double *imaginary_p) {
    bool is_complex = value->kind == WHERRY_KIND_COMPLEX;
    *real_p = is_complex ? value->as.numbers[0] : 0;
    *imaginary_p = is_complex ? value->as.numbers[1] : 0;
}

static const char *text_of(const wherry_value *value, wherry_kind kind, size_t *size_p) {
    bool is = value->kind == kind;
    if (size_p) {
        *size_p = is ? value->as.text.size : 0;
    }
    return is ? value->as.text.bytes : NULL;
}

const uint8_t *wherry_bigint_get(const wherry_value *value, bool *negative_p, size_t *size_p) {
    *negative_p = value->kind == WHERRY_KIND_BIGINT && value->as.text.negative;
    return (const uint8_t *)text_of(value, WHERRY_KIND_BIGINT, size_p);
}

const char *wherry_string_get(const wherry_value *value, size_t *size_p) {
    return text_of(value, WHERRY_KIND_STRING, size_p);
}

const void *wherry_bytes_get(const wherry_value *value, size_t *size_p) {
    return text_of(value, WHERRY_KIND_BYTES, size_p);
}

/* Ownership */

/**
 * Checks that a container may adopt an item: the item has no owner, is not an ancestor of the
 * container, and does not make the tree too deep.
 */
static wherry_status check_adopt(const wherry_value *container, const wherry_value *item, wherry_error *error) {
    if (!item) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the item must not be NULL");
    }
    if (item->parent) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the item already belongs to a container; add a copy instead");
    }
    uint32_t depth = item->height;
    for (const wherry_value *above = container; above; above = above->parent) {
        if (above == item) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a container cannot contain itself");
        }
        depth++;
    }
    if (depth > WHERRY_DEPTH_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the containers would nest %u deep; the maximum is %d", depth,
                       WHERRY_DEPTH_MAX);
    }
    return WHERRY_OK;
}

bool wh_value_claim(wherry_value *value) {
    if (value->parent) {
        return false;
    }
    value->parent = value;
    return true;
}

void wh_value_adopt(wherry_value *container, wherry_value *item) {
    item->parent = container;
    uint16_t height = (uint16_t)(item->height + 1);
    for (wherry_value *above = container; above && above->height < height; above = above->parent) {
        above->height = height++;
    }
}

/* Objects */

wherry_status wherry_object_create(const char *type_name, wherry_value *payload, wherry_value **value_p,
                                   wherry_error *error) {
    size_t size = type_name ? strlen(type_name) : 0;
    if (size == 0 || !wh_utf8_valid(type_name, size) || !payload) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "an object needs a non-empty type name in UTF-8 and a payload");
    }
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_OBJECT, size + 1);
    WH_TRY_ALLOC(value, error, "an object");
    wherry_status status = check_adopt(value, payload, error);
    if (status != WHERRY_OK) {
        wh_pool_free(value, value->pool_offset);
        return status;
    }
    value->as.object.type = memcpy(value + 1, type_name, size + 1);
    value->as.object.payload = payload;
    wh_value_adopt(value, payload);
    *value_p = value;
    return WHERRY_OK;
}

const char *wherry_object_type(const wherry_value *value) {
    return value->kind == WHERRY_KIND_OBJECT ? value->as.object.type : NULL;
}

wherry_value *wherry_object_payload(const wherry_value *value) {
    return value->kind == WHERRY_KIND_OBJECT ? value->as.object.payload : NULL;
}

const wherry_value *wh_value_inside(const wherry_value *value) {
    while (value->kind == WHERRY_KIND_OBJECT) {
        value = value->as.object.payload;
    }
    return value;
}

/* Lists and tuples */

wherry_status wherry_list_create(wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_LIST, .height = 1, .as.sequence = {0}}, value_p, error);
}

wherry_status wherry_tuple_create(wherry_value **value_p, wherry_error *error) {
    return create((wherry_value){.kind = WHERRY_KIND_TUPLE, .height = 1, .as.sequence = {0}}, value_p, error);
}

static const wh_sequence *sequence_of(const wherry_value *value) {
    bool is = value && (value->kind == WHERRY_KIND_LIST || value->kind == WHERRY_KIND_TUPLE);
    return is ? &value->as.sequence : NULL;
}

wherry_status wherry_sequence_append(wherry_value *sequence, wherry_value *item, wherry_error *error) {
    if (!sequence_of(sequence)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the value is neither a list nor a tuple");
    }
    WH_TRY(check_adopt(sequence, item, error));
    wh_sequence *to = &sequence->as.sequence;
    WH_TRY_ALLOC(WH_GROW(to->items, to->capacity, to->count), error, "a longer sequence");
    to->items[to->count++] = item;
    wh_value_adopt(sequence, item);
    return WHERRY_OK;
}

size_t wherry_sequence_count(const wherry_value *sequence) {
    const wh_sequence *of = sequence_of(sequence);
    return of ? of->count : 0;
}

wherry_value *wherry_sequence_at(const wherry_value *sequence, size_t index) {
    return index < wherry_sequence_count(sequence) ? sequence->as.sequence.items[index] : NULL;
}

/* Keys */

bool wh_value_is_scalar(const wherry_value *value) {
    return value->kind <= WHERRY_KIND_BYTES;
}

bool wh_scalar_equal(const wherry_value *one, const wherry_value *other) {
    if (one->kind != other->kind) {
        return false;
    }
    switch (wherry_value_kind(one)) {
    case WHERRY_KIND_NONE:
        return true;
    case WHERRY_KIND_BOOL:
        return one->as.boolean == other->as.boolean;
    case WHERRY_KIND_INT:
        return one->as.integer == other->as.integer;
    case WHERRY_KIND_FLOAT:
    case WHERRY_KIND_COMPLEX:
        return wh_double_bits(one->as.numbers[0]) == wh_double_bits(other->as.numbers[0]) &&
               wh_double_bits(one->as.numbers[1]) == wh_double_bits(other->as.numbers[1]);
    case WHERRY_KIND_BIGINT:
    case WHERRY_KIND_STRING:
    case WHERRY_KIND_BYTES:
        return one->as.text.size == other->as.text.size && one->as.text.negative == other->as.text.negative &&
               memcmp(one->as.text.bytes, other->as.text.bytes, one->as.text.size) == 0;
    default:
        return false;
    }
}

static uint64_t hash_scalar(const wherry_value *value) {
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_BOOL:
        return wh_hash(&value->as.boolean, sizeof(value->as.boolean), value->kind);
    case WHERRY_KIND_INT:
        return wh_hash(&value->as.integer, sizeof(value->as.integer), value->kind);
    case WHERRY_KIND_FLOAT:
    case WHERRY_KIND_COMPLEX:
        return wh_hash(value->as.numbers, sizeof(value->as.numbers), value->kind);
    case WHERRY_KIND_BIGINT:
    case WHERRY_KIND_STRING:
    case WHERRY_KIND_BYTES:
        return wh_hash(value->as.text.bytes, value->as.text.size, value->kind);
    default:
        return value->kind;
    }
}

/* Dicts */

/** Dicts up to this size are searched linearly. */
enum { INDEX_FROM = 8 };

wherry_status wherry_dict_create(wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_DICT, sizeof(wh_dict));
    WH_TRY_ALLOC(value, error, "a dict");
    value->as.dict = (wh_dict *)(value + 1);
    *value->as.dict = (wh_dict){0};
    value->height = 1;
    *value_p = value;
    return WHERRY_OK;
}

static bool entry_has_key(const void *owner, size_t element, const void *key) {
    const wh_dict *dict = owner;
    return wh_scalar_equal(dict->entries[element].key, key);
}

static size_t find(const wh_dict *dict, const wherry_value *key, uint64_t hash) {
    if (dict->index.count) {
        return wh_index_find(&dict->index, hash, entry_has_key, dict, key);
    }
    for (size_t i = 0; i < dict->count; i++) {
        if (wh_scalar_equal(dict->entries[i].key, key)) {
            return i;
        }
    }
    return WH_INDEX_NONE;
}

/** Adds all keys to the index. Called when the dict is too large for a linear search. */
static bool build_index(wh_dict *dict) {
    if (!wh_index_reserve(&dict->index, 2 * dict->count)) {
        return false;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if (!wh_index_add(&dict->index, hash_scalar(dict->entries[i].key), i)) {
            wh_index_destroy(&dict->index);
            return false;
        }
    }
    return true;
}

bool wh_dict_reserve(wh_dict *dict, size_t count) {
    return WH_RESERVE(dict->entries, dict->capacity, count) &&
           (count <= INDEX_FROM || wh_index_reserve(&dict->index, count));
}

bool wh_dict_has(const wherry_value *dict, const wherry_value *key, uint64_t *hash_p) {
    *hash_p = dict->as.dict->index.count ? hash_scalar(key) : 0;
    return find(dict->as.dict, key, *hash_p) != WH_INDEX_NONE;
}

wherry_status wh_dict_add(wherry_value *value, wherry_value *key, uint64_t hash, wherry_value *item,
                          wherry_error *error) {
    wh_dict *dict = value->as.dict;
    bool indexed = dict->index.count > 0;
    bool ok = WH_GROW(dict->entries, dict->capacity, dict->count);
    if (ok && indexed) {
        ok = wh_index_add(&dict->index, hash, dict->count);
    }
    WH_TRY_ALLOC(ok, error, "a larger dict");
    dict->entries[dict->count++] = (wh_entry){key, item};
    if (!indexed && dict->count > INDEX_FROM && !build_index(dict)) {
        dict->count--;
        return wh_fail_memory(error, "a larger dict");
    }
    wh_value_adopt(value, item);
    key->parent = value;
    return WHERRY_OK;
}

wherry_status wherry_dict_set(wherry_value *dict, wherry_value *key, wherry_value *item, wherry_error *error) {
    if (!dict || dict->kind != WHERRY_KIND_DICT) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the value is not a dict");
    }
    if (!key || !wh_value_is_scalar(key) || key == item) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the key must be a scalar, and must not be the same value as the item");
    }
    WH_TRY(check_adopt(dict, key, error));
    WH_TRY(check_adopt(dict, item, error));
    uint64_t hash;
    if (wh_dict_has(dict, key, &hash)) {
        return wh_fail(error, WHERRY_DUPLICATE_KEY, "the dict already has that key");
    }
    return wh_dict_add(dict, key, hash, item, error);
}

wherry_status wherry_dict_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error) {
    wherry_value *key = NULL;
    WH_TRY(wherry_string_create(name, name ? strlen(name) : 0, &key, error));
    wherry_status status = wherry_dict_set(dict, key, item, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(key);
    }
    return status;
}

size_t wherry_dict_count(const wherry_value *dict) {
    return dict->kind == WHERRY_KIND_DICT ? dict->as.dict->count : 0;
}

const wherry_value *wherry_dict_key_at(const wherry_value *dict, size_t index) {
    return index < wherry_dict_count(dict) ? dict->as.dict->entries[index].key : NULL;
}

wherry_value *wherry_dict_at(const wherry_value *dict, size_t index) {
    return index < wherry_dict_count(dict) ? dict->as.dict->entries[index].item : NULL;
}

wherry_value *wherry_dict_find(const wherry_value *dict, const wherry_value *key) {
    if (dict->kind != WHERRY_KIND_DICT) {
        return NULL;
    }
    uint64_t hash = dict->as.dict->index.count ? hash_scalar(key) : 0;
    size_t at = find(dict->as.dict, key, hash);
    return at == WH_INDEX_NONE ? NULL : dict->as.dict->entries[at].item;
}

wherry_value *wherry_dict_get(const wherry_value *dict, const char *name) {
    size_t size = strlen(name);
    wherry_value key = {.kind = WHERRY_KIND_STRING, .as.text = {(char *)name, size, false}};
    return wherry_dict_find(dict, &key);
}

/* Copies */

static wherry_status rebuild_object(const wherry_value *value, wh_leaf_fn leaf, void *context, wherry_value **copy_p,
                                    wherry_error *error) {
    wherry_value *payload;
    WH_TRY(wh_value_rebuild(value->as.object.payload, leaf, context, &payload, error));
    wherry_status status = wherry_object_create(value->as.object.type, payload, copy_p, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(payload);
    }
    return status;
}

/** Rebuilds the child of `value` at an index and adds it to `copy`. */
static wherry_status rebuild_child(const wherry_value *value, size_t index, wh_leaf_fn leaf, void *context,
                                   wherry_value *copy, wherry_error *error) {
    wherry_step step;
    wherry_value *key = NULL;
    wherry_value *item = NULL;
    wherry_status status = wh_value_rebuild(wh_child_at(value, index, &step), leaf, context, &item, error);
    if (status == WHERRY_OK && step.key) {
        status = wherry_value_copy(step.key, &key, error);
    }
    WH_THEN(status, step.key ? wherry_dict_set(copy, key, item, error) : wherry_sequence_append(copy, item, error));
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

wherry_status wh_value_rebuild(const wherry_value *value, wh_leaf_fn leaf, void *context, wherry_value **copy_p,
                               wherry_error *error) {
    if (value->kind == WHERRY_KIND_OBJECT) {
        return rebuild_object(value, leaf, context, copy_p, error);
    }
    size_t count = wh_child_count(value);
    if (count == 0) {
        return leaf(context, value, copy_p, error);
    }
    wherry_value *copy = NULL;
    WH_TRY(new_container(wherry_value_kind(value), &copy, error));
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = rebuild_child(value, i, leaf, context, copy, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(copy);
        return status;
    }
    *copy_p = copy;
    return WHERRY_OK;
}

/** How copy_leaf creates the tensors of a copy. */
typedef struct copying {
    wh_leaf_fn tensor;
    void *context;
} copying;

static wherry_status copy_dtensor(const copying *c, const wherry_dtensor *from, wherry_value **copy_p,
                                  wherry_error *error) {
    wherry_dtensor dtensor = *from;
    WH_TRY(c->tensor(c->context, from->local, &dtensor.local, error));
    wherry_status status = wherry_dtensor_create(&dtensor, copy_p, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(dtensor.local);
    }
    return status;
}

static wherry_status copy_sharded(const copying *c, const wherry_sharded *from, wherry_value **copy_p,
                                  wherry_error *error) {
    wherry_shard *shards = wh_alloc_array(from->shard_count, sizeof(*shards));
    WH_TRY_ALLOC(shards, error, "the shards of a sharded tensor");
    wherry_status status = WHERRY_OK;
    uint32_t done = 0;
    while (done < from->shard_count && status == WHERRY_OK) {
        shards[done] = from->shards[done];
        status = c->tensor(c->context, from->shards[done].tensor, &shards[done].tensor, error);
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

static wherry_status copy_leaf(void *context, const wherry_value *leaf, wherry_value **copy_p, wherry_error *error) {
    const copying *c = context;
    const wh_content *text = &leaf->as.text;
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
        return c->tensor(c->context, leaf, copy_p, error);
    case WHERRY_KIND_DTENSOR:
        return copy_dtensor(c, leaf->as.dtensor, copy_p, error);
    case WHERRY_KIND_SHARDED:
        return copy_sharded(c, leaf->as.sharded, copy_p, error);
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        return new_container(wherry_value_kind(leaf), copy_p, error);
    default:
        return wherry_none_create(copy_p, error);
    }
}

wherry_status wh_value_copy_with(const wherry_value *value, wh_leaf_fn tensor, void *context, wherry_value **copy_p,
                                 wherry_error *error) {
    return wh_value_rebuild(value, copy_leaf, &(copying){tensor, context}, copy_p, error);
}

static wherry_status copy_tensor(void *context, const wherry_value *tensor, wherry_value **copy_p,
                                 wherry_error *error) {
    (void)context;
    return wherry_tensor_create(tensor->as.tensor, copy_p, error);
}

wherry_status wherry_value_copy(const wherry_value *value, wherry_value **copy_p, wherry_error *error) {
    if (!value || !copy_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "value and copy_p must not be NULL");
    }
    return wh_value_copy_with(value, copy_tensor, NULL, copy_p, error);
}
