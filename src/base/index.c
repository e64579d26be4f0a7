#include "base/index.h"

#include <stdatomic.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"

void wh_index_destroy(wh_index *index) {
    wh_free(index->slots);
    *index = (wh_index){0};
}

static uint64_t salt(void) {
    static _Atomic uint64_t chosen;
    uint64_t now = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (now == 0) {
        uint64_t fresh = 0;
        if (getrandom(&fresh, sizeof(fresh), GRND_NONBLOCK) != sizeof(fresh)) {
            fresh = wh_clock_now();
        }
        fresh |= 1;
        now = atomic_compare_exchange_strong(&chosen, &now, fresh) ? fresh : now;
    }
    return now;
}

uint64_t wh_hash(const void *bytes, size_t size, uint64_t tag) {
    return XXH3_64bits_withSeed(bytes, size, salt() + tag);
}

static void insert(wh_index_slot *slots, size_t capacity, wh_index_slot slot) {
    size_t at = slot.hash & (capacity - 1);
    while (slots[at].position) {
        at = (at + 1) & (capacity - 1);
    }
    slots[at] = slot;
}

bool wh_index_reserve(wh_index *index, size_t count) {
    if (count >= UINT32_MAX / 2) {
        return false;
    }
    if (count <= index->capacity / 4 * 3) {
        return true;
    }
    size_t capacity = index->capacity ? 2 * index->capacity : 16;
    while (capacity / 4 * 3 < count) {
        capacity *= 2;
    }
    wh_index_slot *slots = wh_alloc_zeroed(capacity, sizeof(*slots));
    if (!slots) {
        return false;
    }
    for (size_t i = 0; i < index->capacity; i++) {
        if (index->slots[i].position) {
            insert(slots, capacity, index->slots[i]);
        }
    }
    wh_free(index->slots);
    index->slots = slots;
    index->capacity = capacity;
    return true;
}

size_t wh_index_find(const wh_index *index, uint64_t hash, wh_index_equal equal, const void *owner, const void *key) {
    if (index->count == 0) {
        return WH_INDEX_NONE;
    }
    size_t mask = index->capacity - 1;
    for (size_t at = (uint32_t)hash & mask; index->slots[at].position; at = (at + 1) & mask) {
        size_t element = index->slots[at].position - 1;
        if (index->slots[at].hash == (uint32_t)hash && equal(owner, element, key)) {
            return element;
        }
    }
    return WH_INDEX_NONE;
}

bool wh_index_add(wh_index *index, uint64_t hash, size_t element) {
    bool full = index->count >= index->capacity / 4 * 3;
    if (full && !wh_index_reserve(index, 2 * index->count + 1)) {
        return false;
    }
    insert(index->slots, index->capacity, (wh_index_slot){(uint32_t)hash, (uint32_t)element + 1});
    index->count++;
    return true;
}
