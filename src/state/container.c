/* Owning values: lists, tuples and dicts. */
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "state/value.h"

/** Dicts up to this size are searched from end to end. */
enum { INDEX_FROM = 8 };

wherry_status wh_value_check_adopt(const wherry_value *container, const wherry_value *item, wherry_error *error) {
    if (!item) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the item must not be NULL");
    }
    if (item->parent) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the item belongs to a container already; put a copy in");
    }
    uint32_t depth = item->height;
    for (const wherry_value *above = container; above; above = above->parent) {
        if (above == item) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a container cannot contain itself");
        }
        depth++;
    }
    if (depth > WHERRY_DEPTH_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "containers would nest %u deep; at most %d", depth,
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

static wherry_status create_sequence(wherry_kind kind, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, kind, 0);
    if (!value) {
        return wh_fail_memory(error, "a sequence");
    }
    value->height = 1;
    *value_p = value;
    return WHERRY_OK;
}

wherry_status wherry_list_create(wherry_value **value_p, wherry_error *error) {
    return create_sequence(WHERRY_KIND_LIST, value_p, error);
}

wherry_status wherry_tuple_create(wherry_value **value_p, wherry_error *error) {
    return create_sequence(WHERRY_KIND_TUPLE, value_p, error);
}

static const wh_sequence *sequence_of(const wherry_value *value) {
    bool is = value && (value->kind == WHERRY_KIND_LIST || value->kind == WHERRY_KIND_TUPLE);
    return is ? &value->as.sequence : NULL;
}

wherry_status wherry_sequence_append(wherry_value *sequence, wherry_value *item, wherry_error *error) {
    if (!sequence_of(sequence)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "only a list or a tuple can be appended to");
    }
    wherry_status status = wh_value_check_adopt(sequence, item, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_sequence *to = &sequence->as.sequence;
    if (!WH_GROW(to->items, to->capacity, to->count)) {
        return wh_fail_memory(error, "a longer sequence");
    }
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

uint64_t wh_scalar_hash(const wherry_value *value) {
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

wherry_status wherry_dict_create(wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_DICT, sizeof(wh_dict));
    if (!value) {
        return wh_fail_memory(error, "a dict");
    }
    value->as.dict = (wh_dict *)(value + 1);
    *value->as.dict = (wh_dict){0};
    value->height = 1;
    *value_p = value;
    return WHERRY_OK;
}

void wh_dict_clear(wh_dict *dict) {
    for (size_t i = 0; i < dict->count; i++) {
        wherry_value_destroy(dict->entries[i].key);
        wherry_value_destroy(dict->entries[i].item);
    }
    wh_free(dict->entries);
    wh_index_destroy(&dict->index);
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

/** Enters all keys, where the dict has just become too large to search from end to end. */
static bool build_index(wh_dict *dict) {
    if (!wh_index_reserve(&dict->index, 2 * dict->count)) {
        return false;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if (!wh_index_add(&dict->index, wh_scalar_hash(dict->entries[i].key), i)) {
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
    *hash_p = dict->as.dict->index.count ? wh_scalar_hash(key) : 0;
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
    if (!ok) {
        return wh_fail_memory(error, "a larger dict");
    }
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
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "only a dict takes keys");
    }
    if (!key || !wh_value_is_scalar(key) || key == item) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a key must be a scalar of its own");
    }
    wherry_status status = wh_value_check_adopt(dict, key, error);
    if (status == WHERRY_OK) {
        status = wh_value_check_adopt(dict, item, error);
    }
    uint64_t hash;
    if (status == WHERRY_OK && wh_dict_has(dict, key, &hash)) {
        return wh_fail(error, WHERRY_DUPLICATE_KEY, "the dict already has that key");
    }
    return status == WHERRY_OK ? wh_dict_add(dict, key, hash, item, error) : status;
}

wherry_status wherry_dict_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error) {
    wherry_value *key;
    wherry_status status = wherry_string_create(name, name ? strlen(name) : 0, &key, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_dict_set(dict, key, item, error);
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
    uint64_t hash = dict->as.dict->index.count ? wh_scalar_hash(key) : 0;
    size_t at = find(dict->as.dict, key, hash);
    return at == WH_INDEX_NONE ? NULL : dict->as.dict->entries[at].item;
}

wherry_value *wherry_dict_get(const wherry_value *dict, const char *name) {
    size_t size = strlen(name);
    wherry_value key = {.kind = WHERRY_KIND_STRING, .as.text = {(char *)name, size, false}};
    return wherry_dict_find(dict, &key);
}
