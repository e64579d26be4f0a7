/* Blocks that move without copies: the table does it, and this sees to it that it is called in turn and that its answers make sense. */
#include "base/alloc.h"
#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"
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

/** What a block is, and the table's function that begins it: get, put, or, where there are runs, put_runs. */
typedef struct beginning {
    const char *function; /**< Its name, for errors. */
    bool into;
    void *bytes;
    size_t size;
    const struct iovec *runs; /**< Of put_runs, */
    size_t count;             /**< and how many. */
} beginning;

static wherry_status call(wh_callback *callback, const beginning *what, int32_t rank, uint32_t channel,
                          void **operation_p, wherry_error *error) {
    const wherry_group_ops *ops = &callback->ops;
    if (what->runs) {
        return ops->put_runs(callback->context, rank, channel, what->runs, what->count, operation_p, error);
    }
    return what->into ? ops->get(callback->context, rank, channel, what->bytes, what->size, operation_p, error)
                      : ops->put(callback->context, rank, channel, what->bytes, what->size, operation_p, error);
}

static wherry_status begin(wh_callback *callback, const beginning *what, int32_t rank, uint32_t channel,
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
    status = call(callback, what, rank, channel, &begun->operation, &latest);
    wh_callback_leave(callback);
    status = settle(callback, status, what->function, rank, begun->incarnation, &latest, error);
    if (status == WHERRY_OK) {
        *operation_p = begun;
    } else {
        wh_free(begun);
    }
    return status;
}

wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "put", .bytes = (void *)bytes, .size = size}, rank,
                 channel, operation_p, error);
}

wherry_status wh_callback_put_runs(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs,
                                   size_t count, void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "put_runs", .runs = runs, .count = count}, rank,
                 channel, operation_p, error);
}

wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "get", .into = true, .bytes = bytes, .size = size},
                 rank, channel, operation_p, error);
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

bool wh_callback_abandon_block(wh_group *group, void *operation) {
    wh_callback *callback = (wh_callback *)group;
    block *begun = operation;
    wh_callback_enter(callback);
    bool released = callback->ops.abandon(callback->context, begun->operation);
    wh_callback_leave(callback);
    wh_free(begun);
    return released;
}

void wherry_group_copy_runs(void *to, const struct iovec *runs, size_t skip, size_t size) {
    uint8_t *at = to;
    for (; size; runs++, skip = 0) {
        size_t part = wh_min(runs->iov_len - skip, size);
        wh_copy_nontemporal(at, (const uint8_t *)runs->iov_base + skip, part);
        at += part;
        size -= part;
    }
    wh_copy_fence();
}
