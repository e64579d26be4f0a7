#include "group/group.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "group/mailbox.h"

/** After a message of at most this size, an answer is expected soon. */
enum { SHORT_BYTES = 64 << 10 };

void wh_message_clear(wh_message *message) {
    wh_free(message->bytes);
    if (message->kind == WH_MESSAGE_CHANNEL) {
        wh_socket_close(&message->channel);
    }
    message->bytes = NULL;
    message->size = 0;
    message->channel = WH_NO_SOCKET;
}

uint64_t wh_random_tag(void) {
    uint64_t tag;
    return wh_random_fill(&tag, sizeof(tag), NULL) == WHERRY_OK ? tag | WH_TAG_CONVERSATION : 0;
}

wherry_status wh_group_check_rank(const wh_group *group, int32_t rank, wherry_error *error) {
    if (rank >= 0 && rank < group->size) {
        return WHERRY_OK;
    }
    return wh_fail_rank(error, rank,
                        wh_fail(error, WHERRY_INVALID_ARGUMENT, "the group has no rank %d; it has %d ranks", (int)rank,
                                (int)group->size));
}

wherry_status wh_group_check_ranks(const wh_group *group, const int32_t *ranks, size_t count, wherry_error *error) {
    for (size_t i = 0; i < count; i++) {
        WH_TRY(wh_group_check_rank(group, ranks[i], error));
        for (size_t k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %d is named twice", (int)ranks[i]);
            }
        }
    }
    return WHERRY_OK;
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
                       "the message of %zu bytes is longer than the limit of %llu bytes, or its address is NULL", size,
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
    wherry_status status = rank == WHERRY_ANY_RANK ? WHERRY_OK : wh_group_check_rank(group, rank, error);
    return status == WHERRY_OK ? wh_mailbox_take(group->mailbox, rank, tag, deadline, message_p, error) : status;
}

void wh_group_watch(wh_group *group, int32_t rank) {
    if (group->ops->watch) {
        group->ops->watch(group, rank);
    }
}

wherry_status wh_group_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                               wh_socket *channel_p, wherry_error *error) {
    WH_TRY(wh_group_check_rank(group, rank, error));
    if (!group->ops->connect) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "a %s group cannot open channels", group->ops->name);
    }
    return group->ops->connect(group, rank, tag, deadline, stop, channel_p, error);
}

int32_t wh_group_process(wh_group *group, int32_t rank) {
    return group->ops->process ? group->ops->process(group, rank) : 0;
}

bool wh_group_is_local(wh_group *group, int32_t rank) {
    wherry_group_link link;
    return group->ops->describe && group->ops->describe(group, rank, &link, NULL) == WHERRY_OK && link.local;
}

wherry_status wh_group_meeting(wh_group *group, char *text, size_t size, wherry_error *error) {
    return group->ops->meeting
               ? group->ops->meeting(group, text, size, error)
               : wh_fail(error, WHERRY_UNSUPPORTED, "a %s group has no meeting point where other processes could join",
                         group->ops->name);
}

wherry_status wh_group_check_blocks(const wh_group *group, int32_t rank, wherry_error *error) {
    if (!group->ops->put) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "a %s group cannot move blocks", group->ops->name);
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
