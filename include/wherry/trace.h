/**
 * @file wherry/trace.h  What a receive does when: its phases, and each range of bytes, by the thread that saw it land. For pictures of a transfer;
 * `wherry fetch --trace` writes one for chrome://tracing and Perfetto. All since 0.1.
 */
#ifndef WHERRY_TRACE_H
#define WHERRY_TRACE_H

#include <stdint.h>

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/** In wherry_trace_event.chunk: it is a phase, not a range. */
#define WHERRY_TRACE_PHASE UINT64_MAX

/** Something that was done. Texts live for ever. */
typedef struct wherry_trace_event {
    const char *name;  /**< Of a phase: "offer", "plan", "compare", "data", "release"; of a range: "chunk". */
    const char *lane;  /**< Of a range: the lane that it came over; "" for a phase. */
    uint64_t begin_ns; /**< By CLOCK_MONOTONIC. */
    uint64_t end_ns;   /**< Likewise. */
    uint64_t chunk;    /**< Of a range: its number. WHERRY_TRACE_PHASE: it is a phase. */
    uint64_t bytes;    /**< Of a range: in it. */
    int32_t peer;      /**< The source's rank. */
    uint32_t thread;   /**< The system's number of the thread that tells it. */
} wherry_trace_event;

/**
 * Told of each range when it has landed where it belongs, and of each phase when the receive ends. Ranges are told by the threads that move them, several at
 * once; one that goes to a device is told by the first of them that finds it there. It must be quick, and must not call the library.
 */
typedef void (*wherry_trace_fn)(void *context, const wherry_trace_event *event);

#ifdef __cplusplus
}
#endif
#endif
