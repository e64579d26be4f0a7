/**
 * @file callback.h  The group over a table of functions that the program supplies
 * (wherry/group_ops.h).
 *
 * Without WHERRY_GROUP_OPS_BACKGROUND, nothing runs in the background. Only threads that are inside
 * a library call read incoming messages: those that wait for a message (wh_mailbox_set_pump), and
 * those that wait until they can send.
 */
#ifndef WH_GROUP_CALLBACK_CALLBACK_H
#define WH_GROUP_CALLBACK_CALLBACK_H

#include <wherry/group_ops.h>

#include "group/group.h"

/**
 * Creates a group from a table. Sends a HELLO to the other ranks if that is possible without
 * waiting.
 * @param ops      copied.
 * @param group_p  destroy it with wh_group_destroy, which also destroys the context, or with
 *                 wh_callback_abandon, which does not.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_SYSTEM if the background
 * reader cannot be started; the error of the table's permit. On failure, the context is not
 * destroyed.
 */
wherry_status wh_callback_create(const wherry_group_ops *ops, void *context, wh_group **group_p, wherry_error *error);

/** Destroys a callback group, but not its context. */
void wh_callback_abandon(wh_group *group);

#endif
