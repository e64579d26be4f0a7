/** @file group_handle.h  What stands behind a wherry_group, for the other entry points. */
#ifndef WH_API_GROUP_HANDLE_H
#define WH_API_GROUP_HANDLE_H

#include <stdatomic.h>

#include <wherry/group.h>

#include "group/group.h"

/**
 * Who uses which tags of a group. Below WH_TAG_PROGRAM they are the library's own; those with
 * WH_TAG_CONVERSATION are conversations'.
 */
#define WH_TAG_PROGRAM (UINT64_C(1) << 32) /**< Plus the tag of a message of wherry_group_send. */
/** Messages of wherry_group_barrier: the number, 8 bytes. */
#define WH_TAG_BARRIER (UINT64_C(2) << 32)

/** How far a rank has come, as it said itself. */
typedef struct wh_barrier_mark {
    uint64_t incarnation; /**< Which said it; 0: nobody has. */
    uint64_t number;
} wh_barrier_mark;

struct wherry_group {
    wh_group *inner;
    atomic_flag in_barrier; /**< A thread uses `marks`. */
    wh_barrier_mark marks[];
};

/** The group behind the handle, which lives as long as the handle does. */
static inline wh_group *wh_group_of(const wherry_group *group) {
    return group->inner;
}

/**
 * Makes a handle of a group.
 * @param inner  taken over on success: wherry_group_leave destroys it.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
wherry_status wh_group_wrap(wh_group *inner, wherry_group **group_p, wherry_error *error);

#endif
