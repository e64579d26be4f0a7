#include "base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *libc_allocate(void *context, size_t size) {
    (void)context;
    return malloc(size);
}

static void *libc_reallocate(void *context, void *memory, size_t size) {
    (void)context;
    return realloc(memory, size);
}

static void libc_release(void *context, void *memory) {
    (void)context;
    free(memory);
}

static const wherry_allocator libc = {libc_allocate, libc_reallocate, libc_release, NULL};
static wherry_allocator current = {libc_allocate, libc_reallocate, libc_release, NULL};

void wherry_allocator_set(const wherry_allocator *allocator) {
    current = allocator ? *allocator : libc;
}

void wherry_free(void *memory) {
    wh_free(memory);
}

void *wh_alloc(size_t size) {
    return current.allocate(current.context, size ? size : 1);
}

void *wh_alloc_array(size_t count, size_t size) {
    size_t total;
    return __builtin_mul_overflow(count, size, &total) ? NULL : wh_alloc(total);
}

void *wh_alloc_zeroed(size_t count, size_t size) {
    void *memory = wh_alloc_array(count, size);
    if (memory) {
        memset(memory, 0, count * size);
    }
    return memory;
}

void wh_free(void *memory) {
    if (memory) {
        current.release(current.context, memory);
    }
}

char *wh_copy_text(const char *text, size_t size) {
    char *copy = size < SIZE_MAX ? wh_alloc(size + 1) : NULL;
    if (copy) {
        if (size) {
            memcpy(copy, text, size);
        }
        copy[size] = '\0';
    }
    return copy;
}

bool wh_grow(void **array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) {
        return true;
    }
    size_t wanted = *capacity < 4 ? 4 : *capacity;
    size_t total;
    while (wanted <= count) {
        if (__builtin_mul_overflow(wanted, 2, &wanted)) {
            return false;
        }
    }
    if (__builtin_mul_overflow(wanted, size, &total)) {
        return false;
    }
    void *grown = current.reallocate(current.context, *array, total);
    if (!grown) {
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}
