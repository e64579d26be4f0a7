/* Blocks that move without copies: the table does it, and this sees to it that it is called in turn and that its answers make sense. */
#include "base/alloc.h"
#include "base/fail.h"
#include "group/callback/callback_internal.h"

/** A block that is under way. */
typedef struct block {
    void *operation;      /**< The table's. */
    uint64_t incarnation; /**< Of the peer when it was begun: a loss that is found out later is this one's. */
} block;

/** What the table answered. Whoever waits on a rank that it says is lost is told. */
static wherry_status settle(wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                            uint64_t incarnation, wherry_error *latest, wherry_error *error) {
    if (status == WHERRY_OK) {
        return status;
    }
    status = wh_callback_settle(callback, status, function, rank, latest);
    if (status == WHERRY_PEER_LOST) {
        wh_mailbox_lose(callback->base.mailbox, rank, incarnation, latest->message);
    }
    if (error) {
        *error = *latest;
    }
    return status;
}

/** Begins a block by one of the table's two functions for that: from `bytes`, or into them. */
static wherry_status begin(wh_callback *callback, bool into, int32_t rank, uint32_t channel, void *bytes, size_t size,
                           void **operation_p, wherry_error *error) {
    wherry_error latest;
    wherry_status status = wh_callback_check_peer(callback, rank, 0, error);
    block *begun = status == WHERRY_OK ? wh_alloc(sizeof(*begun)) : NULL;
    if (!begun) {
        return status == WHERRY_OK ? wh_fail_memory(error, "a block") : status;
    }
    pthread_mutex_lock(&callback->lock);
    begun->incarnation = callback->peers[rank].incarnation;
    pthread_mutex_unlock(&callback->lock);
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    status = into ? callback->ops.get(callback->context, rank, channel, bytes, size, &begun->operation, &latest)
                  : callback->ops.put(callback->context, rank, channel, bytes, size, &begun->operation, &latest);
    wh_callback_leave(callback);
    status = settle(callback, status, into ? "get" : "put", rank, begun->incarnation, &latest, error);
    if (status == WHERRY_OK) {
        *operation_p = begun;
    } else {
        wh_free(begun);
    }
    return status;
}

wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, false, rank, channel, (void *)bytes, size, operation_p, error);
}

wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, true, rank, channel, bytes, size, operation_p, error);
}

wherry_status wh_callback_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    block *begun = operation;
    wherry_error latest;
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    wherry_status status = callback->ops.finish(callback->context, begun->operation, timeout_ms, &latest);
    wh_callback_leave(callback);
    bool gone = status != WHERRY_TIMED_OUT;
    status = settle(callback, status, "finish", rank, begun->incarnation, &latest, error);
    if (gone) {
        wh_free(begun);
    }
    return status;
}

void wh_callback_abandon_block(wh_group *group, void *operation) {
    wh_callback *callback = (wh_callback *)group;
    block *begun = operation;
    wh_callback_enter(callback);
    callback->ops.abandon(callback->context, begun->operation);
    wh_callback_leave(callback);
    wh_free(begun);
}
