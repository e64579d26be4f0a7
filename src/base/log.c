#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX = 1024, LEVEL_UNSET = -1 };

static const char *const level_names[] = {"off", "error", "warn", "info", "debug"};

static atomic_int threshold = LEVEL_UNSET;
static wherry_log_fn sink;
static void *sink_context;

static int level_from_environment(void) {
    const char *name = getenv("WHERRY_LOG");
    if (name && *name) {
        for (int level = WHERRY_LOG_OFF; level <= WHERRY_LOG_DEBUG; level++) {
            if (strcmp(name, level_names[level]) == 0) {
                return level;
            }
        }
        fprintf(stderr, "wherry: WHERRY_LOG=%s is not one of off, error, warn, info, debug; using warn\n", name);
    }
    return WHERRY_LOG_WARN;
}

void wherry_log_to(wherry_log_fn fn, void *context) {
    sink_context = context;
    sink = fn;
}

void wherry_log_set_level(wherry_log_level level) {
    atomic_store(&threshold, (int)level);
}

wherry_log_level wherry_log_get_level(void) {
    int level = atomic_load(&threshold);
    if (level == LEVEL_UNSET) {
        int read = level_from_environment();
        level = atomic_compare_exchange_strong(&threshold, &level, read) ? read : level;
    }
    return (wherry_log_level)level;
}

void wh_log(wherry_log_level level, const char *format, ...) {
    if (level > wherry_log_get_level()) {
        return;
    }
    char line[LINE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (sink) {
        sink(sink_context, level, line);
    } else {
        fprintf(stderr, "wherry: %s: %s\n", level_names[level], line);
    }
}
