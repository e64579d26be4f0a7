/**
 * @file trace.h  Telling a caller what is done when: wherry/checkpoint.h. Costs a test where nobody
 * asks.
 */
#ifndef WH_TRANSFER_TRACE_H
#define WH_TRANSFER_TRACE_H

#include <unistd.h>

#include <wherry/checkpoint.h>

#include "base/clock.h"

typedef struct wh_trace {
    wherry_trace_fn tell; /**< NULL: nobody is told. */
    void *context;
    int32_t peer;
    const char *lane; /**< That ranges come over now. */
} wh_trace;

/** The moment at which something begins; 0 where nobody is told. */
static inline uint64_t wh_trace_now(const wh_trace *trace) {
    return trace && trace->tell ? wh_clock_now() : 0;
}

/** A range has landed that was begun at a moment. */
static inline void wh_trace_range(const wh_trace *trace, uint64_t begin, uint64_t chunk, uint64_t bytes) {
    if (trace && trace->tell) {
        wherry_trace_event event = {
            "chunk",           trace->lane ? trace->lane : "", begin, wh_clock_now(), chunk, bytes, trace->peer,
            (uint32_t)gettid()};
        trace->tell(trace->context, &event);
    }
}

/** A phase; one that did not begin, or not end, is not told. */
static inline void wh_trace_phase(const wh_trace *trace, const char *name, uint64_t begin, uint64_t end) {
    if (trace->tell && begin && end >= begin) {
        wherry_trace_event event = {name, "", begin, end, WHERRY_TRACE_PHASE, 0, trace->peer, (uint32_t)gettid()};
        trace->tell(trace->context, &event);
    }
}

#endif
