#include "group/group.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "group/mailbox.h"

/** Messages up to this length are taken to be part of a conversation: the answer comes at once. */
enum { SHORT_BYTES = 64 << 10 };

void wh_message_clear(wh_message *message) {
    wh_free(message->bytes);
    if (message->kind == WH_MESSAGE_CHANNEL && message->channel >= 0) {
        close(message->channel);
    }
    message->bytes = NULL;
    message->size = 0;
    message->channel = -1;
}

uint64_t wh_random_tag(void) {
    uint64_t tag;
    return getrandom(&tag, sizeof(tag), 0) == (ssize_t)sizeof(tag) ? tag | WH_TAG_CONVERSATION : 0;
}

wherry_status wh_group_check_rank(const wh_group *group, int32_t rank, wherry_error *error) {
    if (rank >= 0 && rank < group->size) {
        return WHERRY_OK;
    }
    return wh_fail_rank(error, rank,
                        wh_fail(error, WHERRY_INVALID_ARGUMENT, "the group has no rank %d, only %d ranks", (int)rank,
                                (int)group->size));
}

wherry_status wh_group_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                            wh_deadline deadline, wherry_error *error) {
    return wh_group_send_until(group, rank, tag, bytes, size, deadline, NULL, error);
}

wherry_status wh_group_send_until(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    WH_TRY(wh_group_check_rank(group, rank, error));
    if (size > WH_MESSAGE_MAX || (size && !bytes)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a message of %zu bytes is longer than %llu, or its address is NULL", size,
                       (unsigned long long)WH_MESSAGE_MAX);
    }
    wherry_status status = group->ops->send(group, rank, tag, bytes, size, deadline, stop, error);
    if (status == WHERRY_OK && size <= SHORT_BYTES) {
        wh_mailbox_stay_awake(group->mailbox);
    }
    return status;
}

wherry_status wh_group_receive(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                               wherry_error *error) {
    wherry_status status = rank == WH_ANY_RANK ? WHERRY_OK : wh_group_check_rank(group, rank, error);
    return status == WHERRY_OK ? wh_mailbox_take(group->mailbox, rank, tag, deadline, message_p, error) : status;
}

void wh_group_watch(wh_group *group, int32_t rank) {
    if (group->ops->watch) {
        group->ops->watch(group, rank);
    }
}

wherry_status wh_group_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                               int *channel_p, wherry_error *error) {
    WH_TRY(wh_group_check_rank(group, rank, error));
    if (!group->ops->connect) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "a group over %s has no channels", group->ops->name);
    }
    return group->ops->connect(group, rank, tag, deadline, stop, channel_p, error);
}

int32_t wh_group_process(wh_group *group, int32_t rank) {
    return group->ops->process ? group->ops->process(group, rank) : 0;
}

wherry_status wh_group_meeting(wh_group *group, char *text, size_t size, wherry_error *error) {
    return group->ops->meeting ? group->ops->meeting(group, text, size, error)
                               : wh_fail(error, WHERRY_UNSUPPORTED,
                                         "a group over %s has no rendezvous that others could join", group->ops->name);
}

wherry_status wh_group_check_blocks(const wh_group *group, int32_t rank, wherry_error *error) {
    if (!group->ops->put) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "a group over %s moves no blocks", group->ops->name);
    }
    if (rank == group->rank) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "rank %d is this process; blocks move only between two processes",
                       (int)rank);
    }
    return wh_group_check_rank(group, rank, error);
}

wherry_status wh_group_permit(wh_group *group, wherry_error *error) {
    return group->ops->permit ? group->ops->permit(group, error) : WHERRY_OK;
}

void wh_group_destroy(wh_group *group) {
    if (group) {
        group->ops->destroy(group);
    }
}
