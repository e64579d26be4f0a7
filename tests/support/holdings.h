/**
 * @file holdings.h  What a process holds: memory, threads, descriptors and allocations of the
 * library. For tests in which nothing may grow.
 */
#ifndef WH_TESTS_HOLDINGS_H
#define WH_TESTS_HOLDINGS_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/base.h>

typedef struct holdings {
    long resident; /**< KiB. */
    int threads;
    int descriptors;
    int64_t blocks; /**< Blocks that the library has allocated. */
} holdings;

static _Atomic int64_t held_blocks;

static void *holdings_allocate(void *context, size_t size) {
    (void)context;
    void *memory = malloc(size);
    atomic_fetch_add(&held_blocks, memory != NULL);
    return memory;
}

static void *holdings_reallocate(void *context, void *memory, size_t size) {
    (void)context;
    void *moved = realloc(memory, size);
    atomic_fetch_add(&held_blocks, !memory && moved);
    return moved;
}

static void holdings_release(void *context, void *memory) {
    (void)context;
    atomic_fetch_sub(&held_blocks, memory != NULL);
    free(memory);
}

/** Counts allocations of the library from now on. Call it before the first one. */
static inline void holdings_begin(void) {
    wherry_allocator_set(&(wherry_allocator){holdings_allocate, holdings_reallocate, holdings_release, NULL});
}

static inline int holdings_count(const char *folder) {
    DIR *open = opendir(folder);
    int count = 0;
    while (open && readdir(open)) {
        count++;
    }
    if (open) {
        closedir(open);
    }
    return count;
}

static inline long holdings_resident_kib(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    char line[128] = "";
    char *second = line;
    if (file) {
        second = fgets(line, sizeof(line), file) ? strchr(line, ' ') : line;
        fclose(file);
    }
    return (second ? strtol(second, NULL, 10) : 0) * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline holdings take_stock(void) {
    return (holdings){holdings_resident_kib(), holdings_count("/proc/self/task"), holdings_count("/proc/self/fd"),
                      atomic_load(&held_blocks)};
}

#endif
