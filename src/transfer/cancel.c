#include "transfer/cancel.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"

struct wherry_cancel {
    atomic_bool requested;
    pthread_mutex_t lock;
    wh_cancellable *calls;
};

wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error) {
    if (!cancel_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "cancel_p is NULL");
    }
    wherry_cancel *cancel = wh_alloc_zeroed(1, sizeof(*cancel));
    if (!cancel) {
        return wh_fail_memory(error, "a cancel");
    }
    pthread_mutex_init(&cancel->lock, NULL);
    *cancel_p = cancel;
    return WHERRY_OK;
}

void wherry_cancel_request(wherry_cancel *cancel) {
    atomic_store(&cancel->requested, true);
    pthread_mutex_lock(&cancel->lock);
    for (wh_cancellable *call = cancel->calls; call; call = call->next) {
        wh_inbox_wake(call->inbox);
        if (call->stop) {
            wh_stop_request(call->stop);
        }
    }
    pthread_mutex_unlock(&cancel->lock);
}

bool wherry_cancel_requested(const wherry_cancel *cancel) {
    return cancel && atomic_load(&((wherry_cancel *)cancel)->requested);
}

void wherry_cancel_destroy(wherry_cancel *cancel) {
    if (cancel) {
        pthread_mutex_destroy(&cancel->lock);
        wh_free(cancel);
    }
}

void wh_cancel_attach(wherry_cancel *cancel, wh_cancellable *call, wh_inbox *inbox) {
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    *call = (wh_cancellable){cancel->calls, inbox, NULL};
    cancel->calls = call;
    pthread_mutex_unlock(&cancel->lock);
}

void wh_cancel_aim(wherry_cancel *cancel, wh_cancellable *call, wh_stop *stop) {
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    call->stop = stop;
    if (stop && atomic_load(&cancel->requested)) {
        wh_stop_request(stop);
    }
    pthread_mutex_unlock(&cancel->lock);
}

void wh_cancel_detach(wherry_cancel *cancel, wh_cancellable *call) {
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    wh_cancellable **at = &cancel->calls;
    while (*at && *at != call) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = call->next;
    }
    pthread_mutex_unlock(&cancel->lock);
}
