/** @file group_handle.h  What is behind a wherry_group. */
#ifndef WH_API_GROUP_HANDLE_H
#define WH_API_GROUP_HANDLE_H

#include <stdatomic.h>

#include <wherry/group.h>

#include "group/group.h"

/**
 * The tags of a group. Tags below WH_TAG_PROGRAM belong to the library. Tags with the bit
 * WH_TAG_CONVERSATION belong to transfers.
 */
/** Plus the tag of a message of wherry_group_send. */
#define WH_TAG_PROGRAM (UINT64_C(1) << 32)
/** Messages of wherry_group_barrier: the number, 8 bytes. */
#define WH_TAG_BARRIER (UINT64_C(2) << 32)

/** The last barrier that a rank has reached, as it said itself. */
typedef struct wh_barrier_mark {
    uint64_t incarnation; /**< The incarnation that said it; 0: none. */
    uint64_t number;
} wh_barrier_mark;

struct wherry_group {
    wh_group *inner;
    atomic_flag in_barrier; /**< Set while a thread uses `marks`. */
    wh_barrier_mark marks[];
};

/** The group behind the handle. It lives as long as the handle. */
static inline wh_group *wh_group_of(const wherry_group *group) {
    return group->inner;
}

/**
 * Creates a handle for a group.
 * @param inner  taken over on success; wherry_group_leave destroys it.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
wherry_status wh_group_wrap(wh_group *inner, wherry_group **group_p, wherry_error *error);

#endif
