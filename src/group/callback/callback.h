/**
 * @file callback.h  The group over a table of functions that the program supplies:
 * wherry/group_ops.h.
 *
 * Unless the table asks for it, nothing runs in the background: a thread that waits for a message
 * reads (wh_mailbox_set_pump), and a thread that cannot send reads meanwhile.
 */
#ifndef WH_GROUP_CALLBACK_CALLBACK_H
#define WH_GROUP_CALLBACK_CALLBACK_H

#include <wherry/group_ops.h>

#include "group/group.h"

/**
 * Creates a group from a table, and tells those ranks that can be told without waiting.
 * @param ops      copied.
 * @param group_p  destroy it by wh_group_destroy, which also destroys the context, or by
 *                 wh_callback_abandon.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY.
 */
wherry_status wh_callback_create(const wherry_group_ops *ops, void *context, wh_group **group_p, wherry_error *error);

/** Destroys such a group without destroying the context. */
void wh_callback_abandon(wh_group *group);

#endif
