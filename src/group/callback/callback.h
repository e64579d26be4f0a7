/**
 * @file callback.h  The group over a table of the program's own: wherry/group_ops.h.
 *
 * Nothing goes on in the background: whoever waits reads (wh_mailbox_set_pump), and whoever sends and cannot, reads
 * meanwhile. Messages are cut into frames: group/callback/callback_frame.h.
 */
#ifndef WH_GROUP_CALLBACK_CALLBACK_H
#define WH_GROUP_CALLBACK_CALLBACK_H

#include <wherry/group_ops.h>

#include "group/group.h"

/**
 * Makes a group of a table, and tells the other ranks where that is possible at once.
 * @param ops      copied.
 * @param group_p  the caller's: wh_group_destroy, which also destroys the context, or wh_callback_abandon.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY.
 */
wherry_status wh_callback_create(const wherry_group_ops *ops, void *context, wh_group **group_p, wherry_error *error);

/** Destroys such a group without destroying the context. */
void wh_callback_abandon(wh_group *group);

#endif
