#include "transfer/transfer.h"

#include <sched.h>
#include <stddef.h>

#include "base/checked.h"
#include "base/fail.h"
#include "base/options.h"
#include "transfer/crew.h"

enum { TIMEOUT_MS = 300000, NO_PROGRESS_MS = 30000, THREADS_MAX = 8, TICK_MS = 100, LAST_WORDS_MS = 200 };

void wherry_transfer_options_init(wherry_transfer_options *options) {
    *options = (wherry_transfer_options){
        .struct_size = sizeof(*options),
        .timeout_ms = TIMEOUT_MS,
        .no_progress_ms = NO_PROGRESS_MS,
        .step = WHERRY_STEP_ANY,
        .device = wherry_device_cpu(),
    };
}

/** The processors that this process may run on. */
static uint32_t count_processors(void) {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 0 ? (uint32_t)count : 1;
}

static wherry_status check(const wherry_transfer_options *options, wherry_error *error) {
    if (options->flags & ~(uint32_t)WHERRY_TRANSFER_FLAGS) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "flags 0x%x has bits that this version does not know",
                       (unsigned)options->flags);
    }
    if (options->no_progress_ms <= 0 || options->no_progress_ms > UINT32_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "no_progress_ms is %lld and must be 1 to 2^32-1",
                       (long long)options->no_progress_ms);
    }
    if (options->verify < WHERRY_VERIFY_DEFAULT || options->verify > WHERRY_VERIFY_OFF) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "verify is %d, which this version does not know",
                       (int)options->verify);
    }
    if (options->threads > WH_CREW_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "threads is %u and may be %d at most",
                       (unsigned)options->threads, WH_CREW_MAX);
    }
    if (options->step < WHERRY_STEP_ANY) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "step is %lld; it is not negative, or WHERRY_STEP_ANY",
                       (long long)options->step);
    }
    return WHERRY_OK;
}

wherry_status wh_transfer_begin(wh_transfer *transfer, wherry_transport *transport,
                                const wherry_transfer_options *options, wherry_error *error) {
    *transfer = (wh_transfer){.transport = transport, .begin = wh_clock_now()};
    wherry_transfer_options_init(&transfer->options);
    if (!wh_options_take(&transfer->options, sizeof(transfer->options), options)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "struct_size of the options is not one that this version knows; call wherry_transfer_options_init");
    }
    wherry_status status = check(&transfer->options, error);
    if (status == WHERRY_OK) {
        status = wh_lane_choice_make(transport, transfer->options.lanes, &transfer->lanes, error);
    }
    if (!transfer->options.threads) {
        transfer->options.threads = (uint32_t)wh_min(count_processors(), THREADS_MAX);
    }
    transfer->deadline = wh_deadline_in_ms(transfer->options.timeout_ms);
    return status;
}

wherry_status wh_transfer_must_end(const wh_transfer *transfer, const char *doing, wherry_error *error) {
    if (wherry_cancel_requested(transfer->options.cancel)) {
        return wh_fail(error, WHERRY_CANCELLED, "cancelled while %s", doing);
    }
    if (wh_deadline_passed(transfer->deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out after %.3f s while %s",
                       wh_seconds(transfer->begin, wh_clock_now()), doing);
    }
    return WHERRY_OK;
}

wh_deadline wh_transfer_tick(const wh_transfer *transfer) {
    return wh_deadline_earlier(transfer->deadline, wh_deadline_in_ms(TICK_MS));
}

wh_deadline wh_transfer_last_words(void) {
    return wh_deadline_in_ms(LAST_WORDS_MS);
}

double wh_seconds(uint64_t from, uint64_t to) {
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}
