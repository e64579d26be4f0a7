#include "support/local_group.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "group/mailbox.h"

enum { SHARE = 64 << 20 };

typedef struct local_group {
    wh_group base;
    wh_local_hub *hub;
    uint64_t incarnation;
} local_group;

struct wh_local_hub {
    pthread_mutex_t lock;
    size_t users; /**< One reference per member, and one for the creator. */
    uint64_t incarnations;
    int32_t size;
    local_group *members[]; /**< The present member of each rank, or NULL. */
};

wh_local_hub *wh_local_hub_create(int32_t size) {
    wh_local_hub *hub = wh_alloc_zeroed(1, sizeof(*hub) + (size_t)size * sizeof(*hub->members));
    if (hub) {
        pthread_mutex_init(&hub->lock, NULL);
        hub->users = 1;
        hub->size = size;
    }
    return hub;
}

void wh_local_hub_release(wh_local_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    size_t left = --hub->users;
    pthread_mutex_unlock(&hub->lock);
    if (left == 0) {
        pthread_mutex_destroy(&hub->lock);
        wh_free(hub);
    }
}

static wherry_status local_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    (void)deadline;
    (void)stop;
    local_group *own = (local_group *)group;
    wherry_status status;
    pthread_mutex_lock(&own->hub->lock);
    local_group *to = own->hub->members[rank];
    if (own->hub->members[group->rank] != own) {
        status = wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d has taken its place", (int)group->rank);
    } else if (!to) {
        status = wh_fail(error, WHERRY_PEER_LOST, "rank %d has left the group", (int)rank);
    } else {
        status = wh_mailbox_put_copy(to->base.mailbox, group->rank, own->incarnation, tag, bytes, size, error);
    }
    pthread_mutex_unlock(&own->hub->lock);
    return status == WHERRY_OK ? status : wh_fail_rank(error, rank, status);
}

/** The channel is a socket pair, so lanes over channels can be tested within one process. */
static wherry_status local_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline,
                                   const wh_stop *stop, wh_socket *channel_p, wherry_error *error) {
    (void)deadline;
    local_group *own = (local_group *)group;
    wherry_status status = WHERRY_OK;
    int ends[2] = {-1, -1};
    if (stop && wh_stop_requested(stop)) {
        return wh_fail(error, WHERRY_CANCELLED, "opening a channel was stopped");
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open a channel");
    }
    wh_message message = {WH_MESSAGE_CHANNEL, group->rank, own->incarnation, tag, NULL, 0, {ends[1], NULL}};
    pthread_mutex_lock(&own->hub->lock);
    const local_group *to = own->hub->members[rank];
    if (!to) {
        status = wh_fail(error, WHERRY_PEER_LOST, "rank %d has left the group", (int)rank);
    } else if (!wh_mailbox_has_inbox(to->base.mailbox, tag)) {
        status = wh_fail(error, WHERRY_ABORTED, "rank %d has no inbox for a channel", (int)rank);
    } else {
        status = wh_mailbox_put(to->base.mailbox, &message, error);
    }
    pthread_mutex_unlock(&own->hub->lock);
    if (status == WHERRY_OK) {
        *channel_p = (wh_socket){.fd = ends[0]};
        return WHERRY_OK;
    }
    close(ends[0]);
    close(ends[1]);
    return wh_fail_rank(error, rank, status);
}

static void local_destroy(wh_group *group) {
    local_group *own = (local_group *)group;
    wh_local_hub *hub = own->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub->members[group->rank] == own) {
        hub->members[group->rank] = NULL;
        for (int32_t i = 0; i < hub->size; i++) {
            if (hub->members[i]) {
                wh_mailbox_lose(hub->members[i]->base.mailbox, group->rank, own->incarnation, "it has left the group");
            }
        }
    }
    pthread_mutex_unlock(&hub->lock);
    wh_mailbox_destroy(own->base.mailbox);
    wh_free(own);
    wh_local_hub_release(hub);
}

static const wh_group_backend local_ops = {
    .name = "local",
    .capabilities = WH_GROUP_BACKGROUND | WH_GROUP_DEATH | WH_GROUP_REJOIN | WH_GROUP_CONCURRENT,
    .send = local_send,
    .connect = local_connect,
    .destroy = local_destroy,
};

/** Tells a new member and the other members about each other. */
static void introduce(wh_local_hub *hub, local_group *own) {
    local_group *former = hub->members[own->base.rank];
    if (former) {
        wh_mailbox_close(former->base.mailbox);
    }
    hub->members[own->base.rank] = own;
    for (int32_t i = 0; i < hub->size; i++) {
        if (hub->members[i]) {
            wh_mailbox_admit(hub->members[i]->base.mailbox, own->base.rank, own->incarnation);
            wh_mailbox_admit(own->base.mailbox, i, hub->members[i]->incarnation);
        }
    }
}

wh_group *wh_local_join(wh_local_hub *hub, int32_t rank) {
    local_group *own = wh_alloc_zeroed(1, sizeof(*own));
    wh_mailbox *mailbox = wh_mailbox_create(hub->size, SHARE);
    if (!own || !mailbox) {
        wh_free(own);
        wh_mailbox_destroy(mailbox);
        return NULL;
    }
    *own = (local_group){.base = {.ops = &local_ops, .rank = rank, .size = hub->size, .mailbox = mailbox}, .hub = hub};
    pthread_mutex_lock(&hub->lock);
    own->incarnation = ++hub->incarnations;
    hub->users++;
    introduce(hub, own);
    pthread_mutex_unlock(&hub->lock);
    return &own->base;
}
