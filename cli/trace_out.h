/** @file trace_out.h  --trace: what a receive did when, in the form that chrome://tracing and Perfetto read. */
#ifndef WH_CLI_TRACE_OUT_H
#define WH_CLI_TRACE_OUT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <wherry/checkpoint.h>

/** Events as they come. Starts by wh_trace_begin. */
typedef struct wh_trace_log {
    FILE *out; /**< NULL: nobody wants it. */
    pthread_mutex_t lock;
    wherry_trace_event *events;
    size_t count;
    size_t capacity;
    bool lost; /**< There was no memory for some. */
} wh_trace_log;

/** Begins one. @param path  of the file that it will be written to; NULL: none. @return false where that cannot be; errno says why. End it in any case. */
bool wh_trace_begin(wh_trace_log *log, const char *path);

/** A wherry_trace_fn whose context is the log. */
void wh_trace_note(void *context, const wherry_trace_event *event);

/** Writes what was noted, and ends it. @return false where that failed; errno says why. */
bool wh_trace_end(wh_trace_log *log);

#endif
