#include "group/callback/callback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "group/callback/callback_internal.h"

enum { BLOCK_MIN = 1 << 10, BLOCK_DEFAULT = 1 << 20, BLOCK_MAX = 1 << 30 };
enum { PART_MIN = 64 << 10, PART_MAX = 8 << 20 };

void wherry_group_ops_init(wherry_group_ops *ops) {
    *ops = (wherry_group_ops){.struct_size = sizeof(*ops), .name = "callback", .max_block = BLOCK_DEFAULT};
}

void wh_callback_enter(wh_callback *callback) {
    if (callback->ops.flags & WHERRY_GROUP_OPS_CONCURRENT) {
        return;
    }
    pthread_mutex_lock(&callback->lock);
    uint64_t ticket = callback->tickets++;
    while (callback->served != ticket) {
        wh_wait(&callback->changed, &callback->lock, wh_deadline_never());
    }
    pthread_mutex_unlock(&callback->lock);
}

void wh_callback_leave(wh_callback *callback) {
    if (callback->ops.flags & WHERRY_GROUP_OPS_CONCURRENT) {
        return;
    }
    pthread_mutex_lock(&callback->lock);
    callback->served++;
    pthread_cond_broadcast(&callback->changed);
    pthread_mutex_unlock(&callback->lock);
}

wherry_status wh_callback_settle(const wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                                 wherry_error *error) {
    error->message[sizeof(error->message) - 1] = '\0';
    error->path[sizeof(error->path) - 1] = '\0';
    if (wherry_status_class_of(status) == WHERRY_STATUS_CLASS_BUG && status != WHERRY_INTERNAL) {
        wh_fail(error, WHERRY_INTERNAL, "%s: the table's %s returned %d, which is not a status: fix the table",
                callback->name, function, (int)status);
        status = WHERRY_INTERNAL;
    } else if (!error->message[0]) {
        wh_fail(error, status, "%s: the table's %s returned: %s", callback->name, function, wherry_status_text(status));
    }
    error->status = status;
    error->rank = rank;
    return status;
}

wherry_status wh_callback_send_block(wh_callback *callback, int32_t rank, const void *block, size_t size,
                                     uint32_t timeout_ms, wherry_error *error) {
    wh_fail(error, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    wherry_status status = callback->ops.send(callback->context, rank, block, size, timeout_ms, error);
    wh_callback_leave(callback);
    return status == WHERRY_OK ? status : wh_callback_settle(callback, status, "send", rank, error);
}

wherry_status wh_callback_signal(wh_callback *callback, int32_t rank, wh_callback_kind kind, uint32_t timeout_ms,
                                 wherry_error *error) {
    uint8_t block[WH_CALLBACK_HEADER_BYTES];
    pthread_mutex_lock(&callback->lock);
    wh_callback_frame frame = {.kind = kind, .from = callback->incarnation, .to = callback->peers[rank].incarnation};
    pthread_mutex_unlock(&callback->lock);
    wh_callback_frame_write(&frame, block);
    return wh_callback_send_block(callback, rank, block, sizeof(block), timeout_ms, error);
}

void wh_callback_greet(wh_callback *callback) {
    pthread_mutex_lock(&callback->lock);
    bool any = callback->greetings;
    callback->greetings = false;
    pthread_mutex_unlock(&callback->lock);
    for (int32_t rank = 0; rank < callback->base.size && any; rank++) {
        pthread_mutex_lock(&callback->lock);
        bool due = callback->peers[rank].greet;
        callback->peers[rank].greet = false;
        pthread_mutex_unlock(&callback->lock);
        wherry_error error;
        if (due && wh_callback_signal(callback, rank, WH_CALLBACK_HELLO, 0, &error) == WHERRY_TIMED_OUT) {
            pthread_mutex_lock(&callback->lock);
            callback->peers[rank].greet = callback->greetings = true;
            pthread_mutex_unlock(&callback->lock);
        }
    }
}

static wherry_status fail_about(wherry_error *error, wherry_status status, int32_t rank, const char *reason) {
    return wh_fail_rank(error, rank, wh_fail(error, status, "rank %d: %s", (int)rank, reason));
}

/**
 * Waits until no other thread is sending a message to the rank. *to_p receives the incarnation of
 * the rank; 0: unknown.
 */
static wherry_status begin_message(wh_callback *callback, int32_t rank, wh_deadline deadline, const wh_stop *stop,
                                   uint64_t *to_p, wherry_error *error) {
    wh_callback_peer *peer = callback->peers + rank;
    wherry_status status = WHERRY_OK;
    bool goes_on = true;
    bool stopped = false;
    pthread_mutex_lock(&callback->lock);
    while (peer->sending && goes_on) {
        wh_deadline slice = stop ? wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_STOP_LOOK_MS)) : deadline;
        goes_on = wh_wait(&callback->changed, &callback->lock, slice) || !wh_deadline_passed(deadline);
        if (stop) {
            pthread_mutex_unlock(&callback->lock);
            stopped = wh_stop_requested(stop);
            pthread_mutex_lock(&callback->lock);
            goes_on = goes_on && !stopped;
        }
    }
    if (callback->fenced) {
        status = wh_fail(error, WHERRY_CLOSED, "a newer process has taken this process's rank %d: leave the group",
                         (int)callback->base.rank);
    } else if (peer->left) {
        status = fail_about(error, WHERRY_PEER_LOST, rank, "lost: it has left the group");
    } else if (peer->sending && stopped) {
        status = fail_about(error, WHERRY_CANCELLED, rank, "cancelled while sending a message to it");
    } else if (peer->sending) {
        status = fail_about(error, WHERRY_TIMED_OUT, rank, "timed out waiting for another message to be sent");
    } else {
        peer->sending = true;
        *to_p = peer->incarnation;
    }
    pthread_mutex_unlock(&callback->lock);
    return status;
}

static void end_message(wh_callback *callback, int32_t rank) {
    pthread_mutex_lock(&callback->lock);
    callback->peers[rank].sending = false;
    pthread_cond_broadcast(&callback->changed);
    pthread_mutex_unlock(&callback->lock);
}

wherry_status wh_callback_check_peer(wh_callback *callback, int32_t rank, uint64_t to, wherry_error *error) {
    pthread_mutex_lock(&callback->lock);
    bool anew = to && callback->peers[rank].incarnation != to;
    bool left = callback->peers[rank].left;
    bool fenced = callback->fenced;
    pthread_mutex_unlock(&callback->lock);
    if (fenced) {
        return wh_fail(error, WHERRY_CLOSED, "a newer process has taken this process's rank %d: leave the group",
                       (int)callback->base.rank);
    }
    return anew   ? fail_about(error, WHERRY_PEER_LOST, rank, "lost: it has restarted")
           : left ? fail_about(error, WHERRY_PEER_LOST, rank, "lost: it has left the group")
                  : WHERRY_OK;
}

/**
 * Sends a block of a message. While the table cannot send, this function reads, because the other
 * side may be sending too, and may not read before its own message is sent.
 */
static wherry_status push_block(wh_callback *callback, int32_t rank, uint64_t to, const uint8_t *block, size_t size,
                                wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    for (;;) {
        wherry_error latest;
        if (stop && wh_stop_requested(stop)) {
            return fail_about(error, WHERRY_CANCELLED, rank, "cancelled while sending a message to it");
        }
        wh_deadline step = wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_CALLBACK_STEP_MS));
        wherry_status status =
            wh_callback_send_block(callback, rank, block, size, (uint32_t)wh_deadline_poll_ms(step), &latest);
        if (status == WHERRY_TIMED_OUT && wh_deadline_passed(deadline)) {
            return fail_about(error, WHERRY_TIMED_OUT, rank, "timed out sending a message");
        }
        if (status == WHERRY_TIMED_OUT) {
            status = wh_callback_read(callback, wh_deadline_in_ms(0), false, &latest);
            wherry_status goes_on = status == WHERRY_OK ? wh_callback_check_peer(callback, rank, to, error) : WHERRY_OK;
            if (status == WHERRY_OK && goes_on == WHERRY_OK) {
                continue;
            }
            if (status == WHERRY_OK) {
                return goes_on;
            }
            wh_mailbox_close(callback->base.mailbox);
        }
        if (status == WHERRY_PEER_LOST) {
            wh_mailbox_lose(callback->base.mailbox, rank, to, latest.message);
        }
        if (status != WHERRY_OK && error) {
            *error = latest;
        }
        return status;
    }
}

static wherry_status callback_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                   wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    if (rank == group->rank) {
        return wh_mailbox_put_copy(group->mailbox, rank, callback->incarnation, tag, bytes, size, error);
    }
    size_t room = wh_min(size, callback->ops.max_block - WH_CALLBACK_HEADER_BYTES);
    uint8_t *block = wh_alloc(WH_CALLBACK_HEADER_BYTES + room);
    if (!block) {
        return wh_fail_memory(error, "a message");
    }
    wh_callback_frame frame = {.kind = WH_CALLBACK_DATA, .from = callback->incarnation, .tag = tag, .total = size};
    wherry_status status = begin_message(callback, rank, deadline, stop, &frame.to, error);
    bool begun = status == WHERRY_OK;
    while (status == WHERRY_OK) {
        size_t length = wh_min(room, size - frame.offset);
        wh_callback_frame_write(&frame, block);
        if (length) {
            memcpy(block + WH_CALLBACK_HEADER_BYTES, (const uint8_t *)bytes + frame.offset, length);
        }
        status = push_block(callback, rank, frame.to, block, WH_CALLBACK_HEADER_BYTES + length, deadline, stop, error);
        frame.offset += length;
        if (frame.offset == size) {
            break;
        }
    }
    if (begun) {
        end_message(callback, rank);
    }
    wh_free(block);
    return status;
}

static wherry_status callback_pump(wh_group *group, wh_deadline deadline, wherry_error *error) {
    return wh_callback_read((wh_callback *)group, deadline, true, error);
}

static void callback_nudge(wh_group *group) {
    const wh_callback *callback = (wh_callback *)group;
    callback->ops.wake(callback->context);
}

/**
 * Sends BYE to all ranks that this process has heard from; with WHERRY_GROUP_OPS_FIXED, to all
 * ranks. Ranks that have left get none. Sends nothing if a newer process has taken this rank.
 */
static void say_bye(wh_callback *callback) {
    wh_deadline deadline = wh_deadline_in_ms(WH_CALLBACK_LEAVE_MS);
    bool all = callback->ops.flags & WHERRY_GROUP_OPS_FIXED;
    for (int32_t rank = 0; rank < callback->base.size && !callback->fenced; rank++) {
        const wh_callback_peer *peer = callback->peers + rank;
        wherry_error error;
        if (rank != callback->base.rank && (peer->incarnation || all) && !peer->left) {
            wh_callback_signal(callback, rank, WH_CALLBACK_BYE, (uint32_t)wh_deadline_poll_ms(deadline), &error);
        }
    }
}

static void dispose(wh_callback *callback) {
    for (int32_t rank = 0; rank < callback->base.size; rank++) {
        wh_assembly_clear(&callback->peers[rank].assembly);
        wh_emulated_forget(callback->peers + rank);
    }
    for (size_t i = 0; i < callback->arrived_count; i++) {
        wh_message_clear(callback->arrived + i);
    }
    wh_mailbox_destroy(callback->base.mailbox);
    wh_free(callback->arrived);
    pthread_cond_destroy(&callback->changed);
    pthread_mutex_destroy(&callback->lock);
    wh_free(callback);
}

void wh_callback_abandon(wh_group *group) {
    wh_callback *callback = (wh_callback *)group;
    wherry_error error;
    wh_callback_stop_reader(callback);
    if (wh_group_permit(group, &error) == WHERRY_OK) {
        say_bye(callback);
    } else {
        wh_log(WHERRY_LOG_ERROR, "rank %d leaves the group %s without sending BYE: %s", (int)group->rank,
               callback->name, error.message);
    }
    dispose(callback);
}

static void callback_destroy(wh_group *group) {
    wh_callback *callback = (wh_callback *)group;
    void (*destroy)(void *) = callback->ops.destroy;
    void *context = callback->context;
    wh_callback_abandon(group);
    if (destroy) {
        destroy(context);
    }
}

static wherry_status callback_permit(wh_group *group, wherry_error *error) {
    const wh_callback *callback = (const wh_callback *)group;
    wherry_error latest;
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wherry_status status = callback->ops.permit(callback->context, &latest);
    if (status != WHERRY_OK) {
        status = wh_callback_settle(callback, status, "permit", group->rank, &latest);
        if (error) {
            *error = latest;
        }
    }
    return status;
}

static uint32_t capabilities_of(uint32_t flags) {
    return (flags & WHERRY_GROUP_OPS_DEATH ? WH_GROUP_DEATH : 0) |
           (flags & WHERRY_GROUP_OPS_CONCURRENT ? WH_GROUP_CONCURRENT : 0) |
           (flags & WHERRY_GROUP_OPS_FIXED ? 0 : WH_GROUP_REJOIN) |
           (flags & WHERRY_GROUP_OPS_BACKGROUND ? WH_GROUP_BACKGROUND : 0);
}

/** Returns the operations of a group with this table. */
static wh_group_backend make_ops(const wherry_group_ops *ops) {
    return (wh_group_backend){
        .name = "callback",
        .capabilities = capabilities_of(ops->flags),
        .send = callback_send,
        .pump = callback_pump,
        .nudge = ops->wake ? callback_nudge : NULL,
        .part_bytes = (uint32_t)ops->part_bytes,
        .put = ops->put ? wh_callback_put : wh_emulated_put,
        .put_runs = ops->put && ops->put_runs ? wh_callback_put_runs : NULL,
        .get = ops->put ? wh_callback_get : wh_emulated_get,
        .finish = ops->put ? wh_callback_finish : wh_emulated_finish,
        .abandon = ops->put ? wh_callback_abandon_block : wh_emulated_abandon,
        .permit = ops->permit ? callback_permit : NULL,
        .destroy = callback_destroy,
    };
}

static wherry_status check_ops(const wherry_group_ops *ops, wherry_error *error) {
    if (!ops->send || !ops->receive || !ops->name || (ops->flags & ~(uint32_t)WHERRY_GROUP_OPS_FLAGS)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the table of the group lacks send, receive or a name, or has an unknown flag");
    }
    if ((ops->flags & WHERRY_GROUP_OPS_BACKGROUND) && !(ops->flags & WHERRY_GROUP_OPS_CONCURRENT)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "the table of the group has WHERRY_GROUP_OPS_BACKGROUND, so the library calls it from its own thread: set "
            "WHERRY_GROUP_OPS_CONCURRENT too");
    }
    int blocks = (ops->put != NULL) + (ops->get != NULL) + (ops->finish != NULL) + (ops->abandon != NULL);
    if (blocks != 0 && blocks != 4) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the table of the group has only %d of put, get, finish and abandon: set all of them, or none",
                       blocks);
    }
    if (!blocks && (ops->put_runs || ops->part_bytes)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the table of the group has put_runs or part_bytes, but not put, get, finish and abandon");
    }
    if (ops->rank < 0 || ops->rank >= ops->size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "rank %d is not in a group of %d ranks: set rank and size of the table", (int)ops->rank,
                       (int)ops->size);
    }
    if (ops->max_block < BLOCK_MIN || ops->max_block > BLOCK_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "max_block is %llu, but must be %d to %d",
                       (unsigned long long)ops->max_block, BLOCK_MIN, BLOCK_MAX);
    }
    if (ops->part_bytes && (ops->part_bytes < PART_MIN || ops->part_bytes > PART_MAX)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "part_bytes is %llu, but must be 0 or %d to %d",
                       (unsigned long long)ops->part_bytes, PART_MIN, PART_MAX);
    }
    return WHERRY_OK;
}

wherry_status wh_callback_create(const wherry_group_ops *ops, void *context, wh_group **group_p, wherry_error *error) {
    wherry_group_ops chosen;
    wherry_group_ops_init(&chosen);
    if (!ops || !wh_options_take(&chosen, sizeof(chosen), ops)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the table is NULL, or its struct_size is not set; call wherry_group_ops_init");
    }
    WH_TRY(check_ops(&chosen, error));
    size_t peers = (size_t)chosen.size * sizeof(wh_callback_peer);
    wh_callback *callback = wh_alloc_zeroed(1, sizeof(*callback) + peers);
    wh_mailbox *mailbox = wh_mailbox_create(chosen.size, WH_CALLBACK_SHARE);
    if (!callback || !mailbox) {
        wh_free(callback);
        wh_mailbox_destroy(mailbox);
        return wh_fail_memory(error, "a group");
    }
    callback->table = make_ops(&chosen);
    callback->base = (wh_group){.ops = &callback->table, .rank = chosen.rank, .size = chosen.size, .mailbox = mailbox};
    /* A mistyped word must not leave data unprotected. */
    const char *encrypt = getenv("WHERRY_ENCRYPT");
    callback->base.encrypts_all = encrypt && *encrypt && strcmp(encrypt, "control") != 0;
    callback->ops = chosen;
    callback->context = context;
    callback->incarnation = wh_clock_wall();
    snprintf(callback->name, sizeof(callback->name), "%s", chosen.name);
    callback->ops.name = callback->name;
    pthread_mutex_init(&callback->lock, NULL);
    wh_condition_init(&callback->changed);
    wherry_status status = wh_group_permit(&callback->base, error);
    if (status != WHERRY_OK) {
        dispose(callback);
        return status;
    }
    wh_mailbox_set_pump(mailbox, &callback->base);
    wh_mailbox_admit(mailbox, chosen.rank, callback->incarnation);
    for (int32_t rank = 0; rank < chosen.size; rank++) {
        callback->peers[rank].greet = rank != chosen.rank;
    }
    callback->greetings = true;
    wh_callback_greet(callback);
    if (chosen.flags & WHERRY_GROUP_OPS_BACKGROUND) {
        status = wh_callback_start_reader(callback, error);
    }
    if (status != WHERRY_OK) {
        wh_callback_abandon(&callback->base);
        return status;
    }
    wh_log(WHERRY_LOG_INFO, "joined a %s group: rank %d of %d", callback->name, (int)chosen.rank, (int)chosen.size);
    *group_p = &callback->base;
    return WHERRY_OK;
}
