/**
 * @file trace.h  Calls the trace callback of a receive (wherry/checkpoint.h). Without a callback,
 * each function costs one comparison. Any thread may call them.
 */
#ifndef WH_TRANSFER_TRACE_H
#define WH_TRANSFER_TRACE_H

#include <sys/syscall.h>
#include <unistd.h>

#include <wherry/checkpoint.h>

#include "base/clock.h"

/** The present time, for the beginning of an event; 0 without a trace. options may be NULL. */
static inline uint64_t wh_trace_now(const wherry_transfer_options *options) {
    return options && options->trace ? wh_clock_now() : 0;
}

/** A chunk that was opened at `begin` has landed now, over `lane` from rank `peer`. */
static inline void wh_trace_range(const wherry_transfer_options *options, uint64_t begin, uint64_t chunk,
                                  uint64_t bytes, const char *lane, int32_t peer) {
    if (options && options->trace) {
        wherry_trace_event event = {"chunk", lane,  begin, wh_clock_now(),
                                    chunk,   bytes, peer,  (uint32_t)syscall(SYS_gettid)};
        options->trace(options->trace_context, &event);
    }
}

/**
 * Reports a phase of the receive, unless it did not begin or did not end.
 * @param peer  the source; if there are several, the first.
 */
static inline void wh_trace_phase(const wherry_transfer_options *options, const char *name, uint64_t begin,
                                  uint64_t end, int32_t peer) {
    if (options->trace && begin && end >= begin) {
        wherry_trace_event event = {name, "", begin, end, WHERRY_TRACE_PHASE, 0, peer, (uint32_t)syscall(SYS_gettid)};
        options->trace(options->trace_context, &event);
    }
}

#endif
