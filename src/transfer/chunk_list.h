/** @file chunk_list.h  Chunks by number, as intervals; and handing them out, one at a time, to several threads. */
#ifndef WH_TRANSFER_CHUNK_LIST_H
#define WH_TRANSFER_CHUNK_LIST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/expert.h>

/** Starts as {0}. */
typedef struct wh_chunk_list {
    wherry_interval *intervals; /**< Ascending, apart. */
    uint64_t *starts;           /**< How many chunks come before each interval. */
    size_t count;
    uint64_t total; /**< Chunks in all. */
    _Atomic uint64_t given;
} wh_chunk_list;

/** Copies intervals into a list that is empty. @return false where there is no memory. */
bool wh_chunk_list_init(wh_chunk_list *list, const wherry_interval *intervals, size_t count);

void wh_chunk_list_destroy(wh_chunk_list *list);

/** The chunk at a place below total. */
uint64_t wh_chunk_list_at(const wh_chunk_list *list, uint64_t index);

/** The place of a chunk; UINT64_MAX where it is not in the list. */
uint64_t wh_chunk_list_find(const wh_chunk_list *list, uint64_t chunk);

/** Gives out the next chunk; false where all were given. */
bool wh_chunk_list_next(wh_chunk_list *list, uint64_t *chunk_p);

#endif
