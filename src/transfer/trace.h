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

typedef struct wh_trace {
    wherry_trace_fn tell; /**< NULL: no trace. */
    void *context;        /**< Passed to `tell`. */
    int32_t peer;         /**< In events of phases: the source; if there are several, the first. */
} wh_trace;

/** The present time, for the beginning of an event; 0 without a trace. trace may be NULL. */
static inline uint64_t wh_trace_now(const wh_trace *trace) {
    return trace && trace->tell ? wh_clock_now() : 0;
}

/** A chunk that was opened at `begin` has landed now, over `lane` from rank `peer`. */
static inline void wh_trace_range(const wh_trace *trace, uint64_t begin, uint64_t chunk, uint64_t bytes,
                                  const char *lane, int32_t peer) {
    if (trace && trace->tell) {
        wherry_trace_event event = {"chunk", lane,  begin, wh_clock_now(),
                                    chunk,   bytes, peer,  (uint32_t)syscall(SYS_gettid)};
        trace->tell(trace->context, &event);
    }
}

/** Reports a phase of the receive, unless it did not begin or did not end. */
static inline void wh_trace_phase(const wh_trace *trace, const char *name, uint64_t begin, uint64_t end) {
    if (trace->tell && begin && end >= begin) {
        wherry_trace_event event = {
            name, "", begin, end, WHERRY_TRACE_PHASE, 0, trace->peer, (uint32_t)syscall(SYS_gettid)};
        trace->tell(trace->context, &event);
    }
}

#endif
