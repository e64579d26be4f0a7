/* Blocks that move without copies: the table does it, and this sees to it that it is called in turn and that its answers make sense. */
#include "base/fail.h"
#include "group/callback/callback_internal.h"

/** What the table answered. Whoever waits on a rank that it says is lost is told. */
static wherry_status settle(wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                            wherry_error *latest, wherry_error *error) {
    if (status == WHERRY_OK) {
        return status;
    }
    status = wh_callback_settle(callback, status, function, rank, latest);
    if (status == WHERRY_PEER_LOST) {
        wh_callback_lose(callback, rank, latest->message);
    }
    if (error) {
        *error = *latest;
    }
    return status;
}

wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    wherry_error latest;
    wherry_status status = wh_callback_check_peer(callback, rank, 0, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    status = callback->ops.put(callback->context, rank, channel, bytes, size, operation_p, &latest);
    wh_callback_leave(callback);
    return settle(callback, status, "put", rank, &latest, error);
}

wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    wherry_error latest;
    wherry_status status = wh_callback_check_peer(callback, rank, 0, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    status = callback->ops.get(callback->context, rank, channel, bytes, size, operation_p, &latest);
    wh_callback_leave(callback);
    return settle(callback, status, "get", rank, &latest, error);
}

wherry_status wh_callback_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    wherry_error latest;
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    wherry_status status = callback->ops.finish(callback->context, operation, timeout_ms, &latest);
    wh_callback_leave(callback);
    return settle(callback, status, "finish", rank, &latest, error);
}

void wh_callback_abandon_block(wh_group *group, void *operation) {
    wh_callback *callback = (wh_callback *)group;
    wh_callback_enter(callback);
    callback->ops.abandon(callback->context, operation);
    wh_callback_leave(callback);
}
