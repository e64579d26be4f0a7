#include "transfer/call.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"
#include "base/process.h"
#include "memory/cuda.h"
#include "transfer/session.h"
#include "transfer/transfer_timing.h"

enum { THREADS_MAX = 8 };

/* ---- options ---- */

void wherry_transfer_options_init(wherry_transfer_options *options) {
    *options = (wherry_transfer_options){
        .struct_size = sizeof(*options),
        .timeout_ms = WH_CALL_TIMEOUT_MS,
        .no_progress_ms = WH_CALL_NO_PROGRESS_MS,
        .step = WHERRY_STEP_ANY,
        .device = wherry_device_cpu(),
        .rank = -1,
    };
}

static wherry_status check_options(const wherry_transfer_options *options, wherry_error *error) {
    const struct {
        bool bad;
        int64_t value;
        const char *what; /**< A format for the value. */
    } rules[] = {
        {options->flags & ~(uint32_t)WHERRY_TRANSFER_FLAGS, options->flags,
         "flags 0x%llx has bits that this version does not know"},
        {options->no_progress_ms <= 0 || options->no_progress_ms > UINT32_MAX, options->no_progress_ms,
         "no_progress_ms is %lld and must be 1 to 2^32-1"},
        {options->verify < WHERRY_VERIFY_DEFAULT || options->verify > WHERRY_VERIFY_ALL, options->verify,
         "verify is %lld, which this version does not know"},
        {options->require < WHERRY_REQUIRE_ANY || options->require > WHERRY_REQUIRE_ALL, options->require,
         "require is %lld, which this version does not know"},
        {options->threads > WH_WORKERS_MAX, options->threads, "threads is %lld and may be %d at most"},
        {options->step < WHERRY_STEP_ANY, options->step, "step is %lld, but must be at least 0, or WHERRY_STEP_ANY"},
        {options->rank < -1, options->rank, "rank is %lld, but must be at least 0, or -1 for the rank in the group"},
        {options->target && options->accept, 0, "options has both target and accept; set only one of them"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
        if (rules[i].bad) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, rules[i].what, (long long)rules[i].value, WH_WORKERS_MAX);
        }
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
    WH_TRY(wh_lane_list_parse(transport->lanes, transport->lane_count, call->options.lanes, &call->lanes, error));
    if (!call->options.threads) {
        call->options.threads = (uint32_t)wh_min(wh_cpu_count(), THREADS_MAX);
    }
    call->deadline = wh_deadline_in_ms(call->options.timeout_ms);
    return WHERRY_OK;
}

int64_t wh_call_rank(const wh_call *call) {
    return call->options.rank >= 0 ? call->options.rank : call->transport->group->rank;
}

wh_lane_site wh_call_site(const wh_call *call, wh_group *group, int32_t peer, uint64_t tag, uint64_t devices) {
    static const wh_stop never = {.event = -1};
    return (wh_lane_site){
        .group = group,
        .peer = peer,
        .tag = tag,
        .threads = call->options.threads,
        .keep_ptracer = call->options.flags & WHERRY_SEND_NO_PTRACER,
        .stop = &never,
        .deadline = call->deadline,
        .no_progress_ms = (uint32_t)call->options.no_progress_ms,
        .devices = devices,
        .ordered = call->lanes.ordered,
    };
}

/* ---- why a call ends ---- */

static void request_stop(void *stop) {
    wh_stop_request(stop);
}

void wh_call_attach(wh_call *call, wh_inbox *inbox) {
    wh_cancel_add(call->options.cancel, &call->wakes, wh_wake_inbox, inbox);
}

void wh_call_set_stop(wh_call *call, wh_stop *stop) {
    wh_cancel_remove(call->options.cancel, &call->stops);
    if (stop) {
        wh_cancel_add(call->options.cancel, &call->stops, request_stop, stop);
    }
}

void wh_call_detach(wh_call *call) {
    wh_cancel_remove(call->options.cancel, &call->wakes);
    wh_cancel_remove(call->options.cancel, &call->stops);
}

/**
 * Calls options.interrupt if it is time to do so. Once it has returned true, it is not called
 * again.
 */
static bool is_interrupted(wh_call *call) {
    const wherry_transfer_options *options = &call->options;
    if (!options->interrupt || call->interrupted ||
        wh_clock_now() - call->asked < WH_STOP_LOOK_MS * UINT64_C(1000000)) {
        return call->interrupted;
    }
    call->interrupted = options->interrupt(options->interrupt_context);
    /* Count from the end of the callback. Otherwise a slow callback would use up all the time. */
    call->asked = wh_clock_now();
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
    return wh_deadline_earlier(call->deadline,
                               wh_deadline_in_ms(call->options.interrupt ? WH_STOP_LOOK_MS : WH_CALL_TICK_MS));
}

wherry_status wh_call_await_stream(wh_call *call, uint64_t devices, wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_call_is_cancelled, .context = call};
    return devices ? wh_cuda_await_stream(call->options.stream, devices, &stop, call->deadline, error) : WHERRY_OK;
}
