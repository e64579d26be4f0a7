/* Numbers by address: open addressing, at most half full. */
#include <stdlib.h>

#include "core.h"

enum { MAP_SIZE_MIN = 64 };

/** The place of a key, or the free one where it would go. */
static wpy_map_slot *find_slot(const wpy_map *map, uintptr_t address, uint64_t detail) {
    uint64_t hash = ((uint64_t)address ^ detail << 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = (size_t)(hash >> 20) & (map->size - 1);; i = (i + 1) & (map->size - 1)) {
        wpy_map_slot *slot = map->slots + i;
        if (!slot->number || (slot->address == address && slot->detail == detail)) {
            return slot;
        }
    }
}

bool wpy_map_reserve(wpy_map *map, size_t count) {
    wpy_map larger = {.size = map->size ? map->size : MAP_SIZE_MIN, .count = map->count};
    while (larger.size / 2 < count) {
        larger.size *= 2;
    }
    if (larger.size == map->size) {
        return true;
    }
    larger.slots = calloc(larger.size, sizeof(*larger.slots));
    if (!larger.slots) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < map->size; i++) {
        const wpy_map_slot *slot = map->slots + i;
        if (slot->number) {
            *find_slot(&larger, slot->address, slot->detail) = *slot;
        }
    }
    free(map->slots);
    *map = larger;
    return true;
}

bool wpy_map_add(wpy_map *map, uintptr_t address, uint64_t detail, size_t number) {
    if (!wpy_map_reserve(map, map->count + 1)) {
        return false;
    }
    *find_slot(map, address, detail) = (wpy_map_slot){address, detail, number + 1};
    map->count++;
    return true;
}

size_t wpy_map_find(const wpy_map *map, uintptr_t address, uint64_t detail) {
    const wpy_map_slot *slot = map->count ? find_slot(map, address, detail) : NULL;
    return slot && slot->number ? slot->number - 1 : WPY_MAP_NONE;
}

void wpy_map_clear(wpy_map *map) {
    free(map->slots);
    *map = (wpy_map){0};
}
