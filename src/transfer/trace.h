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

/**
 * Passes an event to the callback, unless it did not begin or did not end. The thread is this one.
 */
static inline void wh_trace(const wherry_transfer_options *options, wherry_trace_event event) {
    if (options && options->trace && event.begin_ns && event.end_ns >= event.begin_ns) {
        event.thread = (uint32_t)syscall(SYS_gettid);
        options->trace(options->trace_context, &event);
    }
}

/** A phase of the receive. @param peer  the source; if there are several, the first. */
static inline void wh_trace_phase(const wherry_transfer_options *options, const char *name, uint64_t begin,
                                  uint64_t end, int32_t peer) {
    wh_trace(options, (wherry_trace_event){name, "", begin, end, WHERRY_TRACE_PHASE, 0, peer, 0});
}

#endif
