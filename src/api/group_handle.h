/** @file group_handle.h  The struct behind a wherry_group. */
#ifndef WH_API_GROUP_HANDLE_H
#define WH_API_GROUP_HANDLE_H

#include <stdatomic.h>

#include <wherry/group.h>

#include "group/group.h"

/**
 * The tags of messages in a group. Tags below WH_TAG_PROGRAM belong to the library. Tags with the
 * bit WH_TAG_CONVERSATION belong to transfers.
 */
/** Messages of wherry_group_send. The tag that the program chose is added to this number. */
#define WH_TAG_PROGRAM (UINT64_C(1) << 32)
/** Messages of wherry_group_barrier. Each contains the number of the barrier, as 8 bytes. */
#define WH_TAG_BARRIER (UINT64_C(2) << 32)

/** The last barrier that a rank has reported as reached. */
typedef struct wh_barrier_mark {
    uint64_t incarnation; /**< The incarnation that reported it; 0 if none did. */
    uint64_t number;
} wh_barrier_mark;

struct wherry_group {
    wh_group *inner;
    atomic_flag in_barrier; /**< Set while a thread uses `marks`. */
    wh_barrier_mark marks[];
};

/** Returns the group behind the handle. The group exists as long as the handle. */
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
