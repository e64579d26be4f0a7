#include "transfer/transfer.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"
#include "base/process.h"
#include "memory/cuda.h"
#include "transfer/crew.h"

enum { TIMEOUT_MS = 300000, NO_PROGRESS_MS = 30000, THREADS_MAX = 8, TICK_MS = 100, LAST_WORDS_MS = 200 };

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
    if (options->rank < -1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank is %lld; it is not negative, or -1: that in the group",
                       (long long)options->rank);
    }
    if (options->target && options->accept) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "options has both target and accept; set only one of them");
    }
    return WHERRY_OK;
}

wherry_status wh_transfer_begin(wh_transfer *transfer, wherry_transport *transport,
                                const wherry_transfer_options *options, wherry_error *error) {
    *transfer = (wh_transfer){.transport = transport, .begin = wh_clock_now()};
    transfer->asked = transfer->begin;
    wh_transport_forget(transport, NULL, -1, false, NULL);
    wherry_transfer_options_init(&transfer->options);
    if (!wh_options_take(&transfer->options, sizeof(transfer->options), options)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "struct_size of the options is not one that this version knows; call wherry_transfer_options_init");
    }
    wherry_status status = check(&transfer->options, error);
    if (status == WHERRY_OK) {
        status = wh_group_permit(transport->group, error);
    }
    if (status == WHERRY_OK) {
        status = wh_lane_choice_make(transport, transfer->options.lanes, &transfer->lanes, error);
    }
    if (!transfer->options.threads) {
        transfer->options.threads = (uint32_t)wh_min(wh_cpu_count(), THREADS_MAX);
    }
    transfer->deadline = wh_deadline_in_ms(transfer->options.timeout_ms);
    return status;
}

int64_t wh_transfer_rank(const wh_transfer *transfer) {
    return transfer->options.rank >= 0 ? transfer->options.rank : transfer->transport->group->rank;
}

/** Asks where it is time to. What was said once holds. */
static bool is_interrupted(wh_transfer *transfer) {
    const wherry_transfer_options *options = &transfer->options;
    if (!options->interrupt || transfer->interrupted ||
        wh_clock_now() - transfer->asked < WH_STOP_LOOK_MS * UINT64_C(1000000)) {
        return transfer->interrupted;
    }
    transfer->interrupted = options->interrupt(options->interrupt_context);
    transfer->asked = wh_clock_now(); /* one that takes long is not asked the more for it */
    return transfer->interrupted;
}

bool wh_transfer_cancelled(void *context) {
    wh_transfer *transfer = context;
    return wherry_cancel_requested(transfer->options.cancel) || is_interrupted(transfer);
}

wherry_status wh_transfer_must_end(wh_transfer *transfer, const char *doing, wherry_error *error) {
    if (wh_transfer_cancelled(transfer)) {
        return wh_fail(error, WHERRY_CANCELLED, "%s while %s", transfer->interrupted ? "interrupted" : "cancelled",
                       doing);
    }
    if (wh_deadline_passed(transfer->deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out after %.3f s while %s",
                       wh_seconds(transfer->begin, wh_clock_now()), doing);
    }
    return WHERRY_OK;
}

wh_deadline wh_transfer_tick(const wh_transfer *transfer) {
    return wh_deadline_earlier(transfer->deadline,
                               wh_deadline_in_ms(transfer->options.interrupt ? WH_STOP_LOOK_MS : TICK_MS));
}

wherry_status wh_transfer_tell(wh_transfer *transfer, int32_t rank, uint64_t tag, const wh_note *note,
                               wh_deadline deadline, wherry_error *error) {
    wh_string message = {0};
    wh_stop stop = {.event = -1, .ask = wh_transfer_cancelled, .context = transfer};
    wh_note_encode(note, &message);
    wherry_status status = message.failed ? wh_fail_memory(error, "a message")
                                          : wh_group_send_until(transfer->transport->group, rank, tag, message.bytes,
                                                                message.size, deadline, &stop, error);
    wh_free(message.bytes);
    if (status == WHERRY_CANCELLED && wh_transfer_cancelled(transfer)) {
        status = wh_fail_rank(error, rank, wh_transfer_must_end(transfer, "sending a message", error));
    }
    return status;
}

wh_deadline wh_transfer_last_words(void) {
    return wh_deadline_in_ms(LAST_WORDS_MS);
}

void wh_stats_add_lane(wherry_stats *stats, const char *name) {
    size_t used = strlen(stats->lane);
    size_t length = strlen(name);
    bool last = used >= length && strcmp(stats->lane + used - length, name) == 0;
    if (!last) {
        snprintf(stats->lane + used, sizeof(stats->lane) - used, "%s%s", used ? "+" : "", name);
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
    stats->lanes_refused += skipped->reason == WHERRY_LANE_FAILED;
    snprintf(skipped->lane, sizeof(skipped->lane), "%s", name);
    snprintf(skipped->text, sizeof(skipped->text), "%.*s", WHERRY_LANE_TEXT_MAX - 1, error->message);
}

wherry_status wh_transfer_await_stream(wh_transfer *transfer, uint64_t devices, wherry_error *error) {
    wh_stop stop = {.event = -1, .ask = wh_transfer_cancelled, .context = transfer};
    return devices ? wh_cuda_await_stream(transfer->options.stream, devices, &stop, transfer->deadline, error)
                   : WHERRY_OK;
}

double wh_seconds(uint64_t from, uint64_t to) {
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}

void wh_transfer_describe(const wh_lane_ops *lane, const wh_lane_end *end, wherry_stats *stats) {
    wh_string text = {0};
    if (!lane || !lane->describe || !end) {
        return;
    }
    lane->describe(end, &text);
    snprintf(stats->detail, sizeof(stats->detail), "%s", text.bytes && !text.failed ? text.bytes : "");
    wh_free(text.bytes);
}
