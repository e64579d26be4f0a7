/** @file counting_allocator.h  An allocator that counts what is held, and fails when it is told to. */
#ifndef TEST_COUNTING_ALLOCATOR_H
#define TEST_COUNTING_ALLOCATOR_H

#include <stdint.h>
#include <stdlib.h>

#include "base/alloc.h"

typedef struct counting {
    int64_t held;   /**< Blocks that were given and not released. */
    uint64_t calls; /**< Calls that wanted memory. */
    uint64_t fail;  /**< Number of the call that fails, from 1 on, and all behind it; 0: none. */
    uint64_t wrong; /**< Calls that the interface rules out: a size of 0, releasing NULL. */
    size_t last;    /**< The size that was wanted last. */
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

/** Takes over until wherry_allocator_set(NULL). */
static inline void counting_begin(counting *count) {
    *count = (counting){0};
    wherry_allocator_set(&(wherry_allocator){counting_allocate, counting_reallocate, counting_release, count});
}

#endif
