#include "base/cancel.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"

struct wherry_cancel {
    atomic_bool requested;
    pthread_mutex_t lock; /**< Protects the list. */
    wh_cancel_listener *listeners;
};

wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error) {
    if (!cancel_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "cancel_p is NULL");
    }
    wherry_cancel *cancel = wh_alloc_zeroed(1, sizeof(*cancel));
    WH_TRY_ALLOC(cancel, error, "a cancel");
    pthread_mutex_init(&cancel->lock, NULL);
    *cancel_p = cancel;
    return WHERRY_OK;
}

void wherry_cancel_request(wherry_cancel *cancel) {
    atomic_store(&cancel->requested, true);
    pthread_mutex_lock(&cancel->lock);
    for (const wh_cancel_listener *one = cancel->listeners; one; one = one->next) {
        one->tell(one->context);
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

void wh_cancel_add(wherry_cancel *cancel, wh_cancel_listener *listener, void (*tell)(void *context), void *context) {
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    *listener = (wh_cancel_listener){cancel->listeners, tell, context};
    cancel->listeners = listener;
    if (atomic_load(&cancel->requested)) {
        tell(context);
    }
    pthread_mutex_unlock(&cancel->lock);
}

void wh_cancel_remove(wherry_cancel *cancel, wh_cancel_listener *listener) {
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    wh_cancel_listener **at = &cancel->listeners;
    while (*at && *at != listener) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = listener->next;
    }
    pthread_mutex_unlock(&cancel->lock);
}
