/** @file counting_allocator.h  An allocator that counts blocks and fails on request. */
#ifndef TEST_COUNTING_ALLOCATOR_H
#define TEST_COUNTING_ALLOCATOR_H

#include <stdint.h>
#include <stdlib.h>

#include "base/alloc.h"

typedef struct counting {
    int64_t held;   /**< Blocks not yet released. */
    uint64_t calls; /**< Calls that asked for memory. */
    /** The first call that fails, counted from 1; all later ones fail too. 0: none. */
    uint64_t fail;
    uint64_t wrong; /**< Calls that break the interface: a size of 0, releasing NULL. */
    size_t last;    /**< The last requested size. */
} counting;

static inline void *counting_allocate(void *context, size_t size) {
    counting *count = context;
    count->wrong += size == 0;
    count->last = size;
    count->calls++;
    if (count->fail && count->calls >= count->fail) {
        return NULL;
    }
    void *memory = malloc(size);
    count->held += memory != NULL;
    return memory;
}

static inline void *counting_reallocate(void *context, void *memory, size_t size) {
    counting *count = context;
    count->wrong += size == 0;
    count->last = size;
    count->calls++;
    if (count->fail && count->calls >= count->fail) {
        return NULL;
    }
    void *moved = realloc(memory, size);
    count->held += !memory && moved;
    return moved;
}

static inline void counting_release(void *context, void *memory) {
    counting *count = context;
    count->wrong += memory == NULL;
    count->held--;
    free(memory);
}

/** Installs the allocator until wherry_allocator_set(NULL). */
static inline void counting_begin(counting *count) {
    *count = (counting){0};
    wherry_allocator_set(&(wherry_allocator){counting_allocate, counting_reallocate, counting_release, count});
}

#endif
