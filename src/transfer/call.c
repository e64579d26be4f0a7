#include "transfer/call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"
#include "base/process.h"
#include "memory/cuda.h"
#include "transfer/session.h"

enum { TIMEOUT_MS = 300000, NO_PROGRESS_MS = 30000, THREADS_MAX = 8, TICK_MS = 100, GRACE_MS = 200 };

/** With fewer bytes, the time to set up a lane matters more than its speed. */
enum { SORT_FROM_BYTES = 4 << 20 };

/* ---- options ---- */

void wherry_transfer_options_init(wherry_transfer_options *options) {
    *options = (wherry_transfer_options){
        .struct_size = sizeof(*options),
        .timeout_ms = TIMEOUT_MS,
        .no_progress_ms = NO_PROGRESS_MS,
        .step = WHERRY_STEP_ANY,
        .device = wherry_device_cpu(),
        .rank = -1,
    };
}

static wherry_status check_options(const wherry_transfer_options *options, wherry_error *error) {
    if (options->flags & ~(uint32_t)WHERRY_TRANSFER_FLAGS) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "flags 0x%x has bits that this version does not know",
                       (unsigned)options->flags);
    }
    if (options->no_progress_ms <= 0 || options->no_progress_ms > UINT32_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "no_progress_ms is %lld and must be 1 to 2^32-1",
                       (long long)options->no_progress_ms);
    }
    if (options->verify < WHERRY_VERIFY_DEFAULT || options->verify > WHERRY_VERIFY_ALL) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "verify is %d, which this version does not know",
                       (int)options->verify);
    }
    if (options->require < WHERRY_REQUIRE_ANY || options->require > WHERRY_REQUIRE_ALL) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "require is %d, which this version does not know",
                       (int)options->require);
    }
    if (options->threads > WH_WORKERS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "threads is %u and may be %d at most",
                       (unsigned)options->threads, WH_WORKERS_MAX);
    }
    if (options->step < WHERRY_STEP_ANY) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "step is %lld; it is not negative, or WHERRY_STEP_ANY",
                       (long long)options->step);
    }
    if (options->rank < -1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank is %lld; it is not negative, or -1: that in the group",
                       (long long)options->rank);
    }
    if (options->target && options->accept) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "options has both target and accept; set only one of them");
    }
    return WHERRY_OK;
}

wherry_status wh_call_begin(wh_call *call, wherry_transport *transport, const wherry_transfer_options *options,
                            wherry_error *error) {
    *call = (wh_call){.transport = transport, .begin = wh_clock_now()};
    call->asked = call->begin;
    wh_transport_forget(transport, NULL, -1, false, NULL);
    wherry_transfer_options_init(&call->options);
    if (!wh_options_take(&call->options, sizeof(call->options), options)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "struct_size of the options is not one that this version knows; call wherry_transfer_options_init");
    }
    WH_TRY(check_options(&call->options, error));
    WH_TRY(wh_group_permit(transport->group, error));
    WH_TRY(wh_lane_list_parse(transport, call->options.lanes, &call->lanes, error));
    if (!call->options.threads) {
        call->options.threads = (uint32_t)wh_min(wh_cpu_count(), THREADS_MAX);
    }
    call->deadline = wh_deadline_in_ms(call->options.timeout_ms);
    return WHERRY_OK;
}

wherry_status wh_check_ranks(const wherry_transport *transport, const int32_t *ranks, size_t count,
                             wherry_error *error) {
    for (size_t i = 0; i < count; i++) {
        WH_TRY(wh_group_check_rank(transport->group, ranks[i], error));
        for (size_t k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %d is named twice", (int)ranks[i]);
            }
        }
    }
    return WHERRY_OK;
}

int64_t wh_call_rank(const wh_call *call) {
    return call->options.rank >= 0 ? call->options.rank : call->transport->group->rank;
}

/* ---- the cancel handle ---- */

struct wherry_cancel {
    atomic_bool requested;
    pthread_mutex_t lock;
    wh_call *calls; /**< The attached calls. */
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
    for (wh_call *call = cancel->calls; call; call = call->next_of_same) {
        wh_inbox_wake(call->cancel_inbox);
        if (call->cancel_stop) {
            wh_stop_request(call->cancel_stop);
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

void wh_call_attach(wh_call *call, wh_inbox *inbox) {
    wherry_cancel *cancel = call->options.cancel;
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    call->cancel_inbox = inbox;
    call->cancel_stop = NULL;
    call->next_of_same = cancel->calls;
    cancel->calls = call;
    pthread_mutex_unlock(&cancel->lock);
}

void wh_call_set_stop(wh_call *call, wh_stop *stop) {
    wherry_cancel *cancel = call->options.cancel;
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    call->cancel_stop = stop;
    if (stop && atomic_load(&cancel->requested)) {
        wh_stop_request(stop);
    }
    pthread_mutex_unlock(&cancel->lock);
}

void wh_call_detach(wh_call *call) {
    wherry_cancel *cancel = call->options.cancel;
    if (!cancel) {
        return;
    }
    pthread_mutex_lock(&cancel->lock);
    wh_call **at = &cancel->calls;
    while (*at && *at != call) {
        at = &(*at)->next_of_same;
    }
    if (*at) {
        *at = call->next_of_same;
    }
    pthread_mutex_unlock(&cancel->lock);
}

/* ---- why a call ends ---- */

/** Calls options.interrupt if that is due. Once it has returned true, it is not called again. */
static bool is_interrupted(wh_call *call) {
    const wherry_transfer_options *options = &call->options;
    if (!options->interrupt || call->interrupted ||
        wh_clock_now() - call->asked < WH_STOP_LOOK_MS * UINT64_C(1000000)) {
        return call->interrupted;
    }
    call->interrupted = options->interrupt(options->interrupt_context);
    call->asked = wh_clock_now(); /* after the callback: a slow one must not use up all the time */
    return call->interrupted;
}

bool wh_call_is_cancelled(void *context) {
    wh_call *call = context;
    return wherry_cancel_requested(call->options.cancel) || is_interrupted(call);
}

wherry_status wh_call_must_end(wh_call *call, const char *doing, wherry_error *error) {
    if (wh_call_is_cancelled(call)) {
        return wh_fail(error, WHERRY_CANCELLED, "%s while %s", call->interrupted ? "interrupted" : "cancelled", doing);
    }
    if (wh_deadline_passed(call->deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out after %.3f s while %s",
                       wh_seconds(call->begin, wh_clock_now()), doing);
    }
    return WHERRY_OK;
}

wh_deadline wh_call_tick(const wh_call *call) {
    return wh_deadline_earlier(call->deadline, wh_deadline_in_ms(call->options.interrupt ? WH_STOP_LOOK_MS : TICK_MS));
}

wh_deadline wh_call_grace(void) {
    return wh_deadline_in_ms(GRACE_MS);
}

bool wh_liveness_is_over(wh_liveness *heard, uint64_t bytes, int64_t limit_ms) {
    uint64_t now = wh_clock_now();
    if (bytes != heard->bytes) {
        heard->at = now;
        heard->bytes = bytes;
    }
    return now > heard->at && now - heard->at > (uint64_t)limit_ms * UINT64_C(1000000);
}

wherry_status wh_call_await_stream(wh_call *call, uint64_t devices, wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call};
    return devices ? wh_cuda_await_stream(call->options.stream, devices, &stop, call->deadline, error) : WHERRY_OK;
}

/* ---- lanes ---- */

const wh_lane_ops *wh_lane_list_find(const wh_lane_list *list, const void *name, size_t size) {
    for (size_t i = 0; i < list->count; i++) {
        if (strlen(list->lanes[i]->name) == size && memcmp(list->lanes[i]->name, name, size) == 0) {
            return list->lanes[i];
        }
    }
    return NULL;
}

bool wh_lane_list_has(const wh_lane_list *list, uint32_t trait) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->lanes[i]->traits & trait) {
            return true;
        }
    }
    return false;
}

bool wh_lane_is_skipped(const wh_lane_list *list, const wh_lane_ops *lane, bool devices) {
    return !devices && lane->traits & WH_LANE_DEVICE && !list->ordered;
}

static wherry_status fail_unknown(const wh_lane_list *all, const char *text, wherry_error *error) {
    wh_string names = {0};
    for (size_t i = 0; i < all->count; i++) {
        wh_string_format(&names, "%s%s", i ? ", " : "", all->lanes[i]->name);
    }
    wh_fail(error, WHERRY_INVALID_ARGUMENT,
            "\"%s\" is not a list of lanes; write names separated by commas, or put ^ in front of each name to exclude "
            "these lanes; the lanes are: %s",
            text, names.failed ? "" : names.bytes);
    wh_free(names.bytes);
    return WHERRY_INVALID_ARGUMENT;
}

static void remove_lane(wh_lane_list *list, const wh_lane_ops *lane) {
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (list->lanes[i] != lane) {
            list->lanes[kept++] = list->lanes[i];
        }
    }
    list->count = kept;
}

wherry_status wh_lane_list_parse(const wherry_transport *transport, const char *text, wh_lane_list *list_p,
                                 wherry_error *error) {
    wh_lane_list all = {.count = transport->lane_count};
    memcpy(all.lanes, transport->lanes, all.count * sizeof(*all.lanes));
    text = text ? text : getenv("WHERRY_LANES");
    if (!text || !*text) {
        *list_p = all;
        return WHERRY_OK;
    }
    bool excludes = *text == '^';
    wh_lane_list list = excludes ? all : (wh_lane_list){.count = 0};
    const char *at = text;
    for (;;) {
        size_t size = strcspn(at, ",");
        bool marked = size && *at == '^';
        const wh_lane_ops *lane = wh_lane_list_find(&all, at + marked, size - marked);
        if (!lane || marked != excludes) {
            return fail_unknown(&all, text, error);
        }
        remove_lane(&list, lane);
        if (!excludes) {
            list.lanes[list.count++] = lane;
        }
        if (!at[size]) {
            break;
        }
        at += size + 1;
    }
    if (!list.count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "\"%s\" excludes all lanes", text);
    }
    list.ordered = !excludes;
    *list_p = list;
    return WHERRY_OK;
}

void wh_lane_list_sort(wh_lane_list *list, uint64_t bytes, uint64_t runs) {
    if (list->ordered || bytes < SORT_FROM_BYTES) {
        return;
    }
    wh_lane_list sorted = {.count = 0};
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < list->count; i++) {
            const wh_lane_ops *lane = list->lanes[i];
            bool network = lane->traits & WH_LANE_NETWORK;
            bool slow = !network && runs && bytes / runs < lane->run_bytes;
            if (pass == (network ? 2 : slow)) {
                sorted.lanes[sorted.count++] = lane;
            }
        }
    }
    *list = sorted;
}

/* ---- statistics ---- */

void wh_stats_add_lane(wherry_stats *stats, const char *name) {
    size_t used = strlen(stats->lane);
    size_t length = strlen(name);
    bool last = used >= length && strcmp(stats->lane + used - length, name) == 0;
    if (!last) {
        snprintf(stats->lane + used, sizeof(stats->lane) - used, "%s%s", used ? "+" : "", name);
    }
}

void wh_stats_remove_lane(wherry_stats *stats, const char *name) {
    size_t used = strlen(stats->lane);
    size_t length = strlen(name);
    if (used >= length && strcmp(stats->lane + used - length, name) == 0) {
        stats->lane[used - length] = '\0';
        used -= length;
        if (used && stats->lane[used - 1] == '+') {
            stats->lane[used - 1] = '\0';
        }
    }
}

void wh_stats_skip_lane(wherry_stats *stats, const char *name, const wherry_error *error) {
    size_t used = strlen(stats->reasons);
    snprintf(stats->reasons + used, sizeof(stats->reasons) - used, "%s%s: %s", used ? "; " : "", name, error->message);
    if (stats->skipped_count == WHERRY_SKIPPED_LANES_MAX) {
        return;
    }
    wherry_skipped_lane *skipped = stats->skipped + stats->skipped_count++;
    bool failed = error->status != WHERRY_UNSUPPORTED;
    skipped->reason = error->reason ? (wherry_lane_reason)error->reason
                      : failed      ? WHERRY_LANE_FAILED
                                    : WHERRY_LANE_UNSUPPORTED;
    stats->lanes_failed += skipped->reason == WHERRY_LANE_FAILED;
    snprintf(skipped->lane, sizeof(skipped->lane), "%s", name);
    snprintf(skipped->text, sizeof(skipped->text), "%.*s", WHERRY_LANE_TEXT_MAX - 1, error->message);
}

void wh_stats_describe_lane(wherry_stats *stats, const wh_lane_ops *lane, const wh_lane_end *end) {
    if (!lane || !lane->describe || !end) {
        return;
    }
    wh_string text = {0};
    lane->describe(end, &text);
    snprintf(stats->detail, sizeof(stats->detail), "%s", text.bytes && !text.failed ? text.bytes : "");
    wh_free(text.bytes);
}

double wh_seconds(uint64_t from, uint64_t to) {
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}
