#include "trace_out.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_out.h"

bool wh_trace_begin(wh_trace_log *log, const char *path) {
    *log = (wh_trace_log){.out = path ? fopen(path, "we") : NULL};
    pthread_mutex_init(&log->lock, NULL);
    return log->out || !path;
}

void wh_trace_note(void *context, const wherry_trace_event *event) {
    wh_trace_log *log = context;
    pthread_mutex_lock(&log->lock);
    if (log->count == log->capacity) {
        size_t more = log->capacity ? 2 * log->capacity : 1024;
        wherry_trace_event *grown = realloc(log->events, more * sizeof(*grown));
        log->lost = log->lost || !grown;
        log->events = grown ? grown : log->events;
        log->capacity = grown ? more : log->capacity;
    }
    if (log->count < log->capacity) {
        log->events[log->count++] = *event;
    }
    pthread_mutex_unlock(&log->lock);
}

/** A complete event, "X"; times are in microseconds. Phases have a row of their own, above those of the threads. */
static void write_event(wh_json *json, const wherry_trace_event *event) {
    bool phase = event->chunk == WHERRY_TRACE_PHASE;
    wh_json_open(json, NULL, '{');
    wh_json_text(json, "name", event->name);
    wh_json_text(json, "cat", phase ? "phase" : event->lane);
    wh_json_text(json, "ph", "X");
    wh_json_real(json, "ts", (double)event->begin_ns / 1000);
    wh_json_real(json, "dur", (double)(event->end_ns - event->begin_ns) / 1000);
    wh_json_number(json, "pid", getpid());
    wh_json_count(json, "tid", phase ? 0 : event->thread);
    wh_json_open(json, "args", '{');
    wh_json_number(json, "source", event->peer);
    if (!phase) {
        wh_json_text(json, "lane", event->lane);
        wh_json_count(json, "chunk", event->chunk);
        wh_json_count(json, "bytes", event->bytes);
    }
    wh_json_close(json, '}');
    wh_json_close(json, '}');
}

static bool write_all(const wh_trace_log *log) {
    wh_json json = {.out = log->out};
    wh_json_open(&json, NULL, '{');
    wh_json_text(&json, "displayTimeUnit", "ms");
    wh_json_flag(&json, "incomplete", log->lost);
    wh_json_open(&json, "traceEvents", '[');
    for (size_t i = 0; i < log->count; i++) {
        write_event(&json, log->events + i);
    }
    wh_json_close(&json, ']');
    wh_json_close(&json, '}');
    bool good = !ferror(log->out);
    return fclose(log->out) == 0 && good;
}

bool wh_trace_end(wh_trace_log *log) {
    bool good = !log->out || write_all(log);
    free(log->events);
    pthread_mutex_destroy(&log->lock);
    return good;
}
