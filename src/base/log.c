#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/** A peer must not be able to fill a log. Calls of wh_log are distinguished by their format. */
enum { LINE_MAX = 1024, LEVEL_UNSET = -1, SOURCES = 256, PERIOD_S = 10, LINES_PER_PERIOD = 20 };

/** A wait is logged after this time, and then at this interval. */
enum { FIRST_WAIT_S = 3, NEXT_WAIT_S = 30 };

/** One place in the code that logs. */
typedef struct source {
    const char *format;
    time_t begin; /**< When the current period began. */
    unsigned lines;
    unsigned left_out;
    uint32_t last; /**< Hash of the last line. */
} source;

static const char *const level_names[] = {"off", "error", "warn", "info", "debug"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `sources` */
static source sources[SOURCES];
static atomic_int threshold = LEVEL_UNSET;
static atomic_bool is_chosen; /* Set once the environment or the program has set the level. */
static wherry_log_fn sink;
static void *sink_context;
static wherry_wait_fn wait_sink;
static void *wait_context;

static int level_from_environment(void) {
    const char *name = getenv("WHERRY_LOG");
    if (name && *name) {
        for (int level = WHERRY_LOG_OFF; level <= WHERRY_LOG_DEBUG; level++) {
            if (strcmp(name, level_names[level]) == 0) {
                atomic_store(&is_chosen, true);
                return level;
            }
        }
        fprintf(stderr, "wherry: WHERRY_LOG=%s is not one of off, error, warn, info, debug; using warn\n", name);
    }
    return WHERRY_LOG_WARN;
}

void wherry_log_to(wherry_log_fn fn, void *context) {
    pthread_mutex_lock(&lock);
    memset(sources, 0, sizeof(sources)); /* The new destination has had no line yet. */
    pthread_mutex_unlock(&lock);
    sink_context = context;
    sink = fn;
}

void wherry_log_waits_to(wherry_wait_fn fn, void *context) {
    wait_context = context;
    wait_sink = fn;
}

void wherry_log_set_level(wherry_log_level level) {
    atomic_store(&is_chosen, true);
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

/**
 * Finds the source of a format; otherwise one that is free, or whose period is over, or any. The
 * lock is held.
 */
static source *find_source(const char *format, time_t now) {
    source *first = sources + ((uintptr_t)format / sizeof(void *)) % SOURCES;
    source *old = NULL;
    for (size_t i = 0; i < SOURCES; i++) {
        source *one = sources + ((size_t)(first - sources) + i) % SOURCES;
        if (one->format == format || !one->format) {
            return one;
        }
        old = !old && now - one->begin >= PERIOD_S ? one : old;
    }
    return old ? old : first;
}

/**
 * True if a line must be left out. Per period, each call of wh_log logs few lines, and the same
 * line only once. The next line that it logs says how many were left out.
 */
static bool leave_out(const char *format, char line[LINE_MAX]) {
    uint32_t hash = 5381;
    for (const char *at = line; *at; at++) {
        hash = hash * 33 + (unsigned char)*at;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    pthread_mutex_lock(&lock);
    source *from = find_source(format, now.tv_sec);
    if (from->format != format || now.tv_sec - from->begin >= PERIOD_S) {
        size_t size = strlen(line);
        if (from->format == format && from->left_out) {
            snprintf(line + size, LINE_MAX - size, " (%u such lines before were left out)", from->left_out);
        }
        *from = (source){.format = format, .begin = now.tv_sec};
    }
    bool same = from->lines && from->last == hash;
    bool out = same || from->lines >= LINES_PER_PERIOD;
    from->lines += !out;
    from->left_out += out;
    from->last = hash;
    pthread_mutex_unlock(&lock);
    return out;
}

static void write_line(wherry_log_level level, const char *line) {
    if (sink) {
        sink(sink_context, level, line);
    } else {
        fprintf(stderr, "wherry: %s: %s\n", level_names[level], line);
    }
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
    if (level > WHERRY_LOG_WARN || !leave_out(format, line)) {
        write_line(level, line);
    }
}

bool wh_log_has_waits(void) {
    return wait_sink || wherry_log_get_level() >= WHERRY_LOG_INFO || !atomic_load(&is_chosen);
}

void wh_log_wait(const char *call, const char *format, ...) {
    static const char waiting[] = "waiting for ";
    if (!wh_log_has_waits()) {
        return;
    }
    char line[LINE_MAX];
    char *who = stpcpy(line, waiting);
    size_t room = sizeof(line) - strlen(waiting);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(who, room, format, arguments);
    va_end(arguments);
    if (wait_sink) {
        wait_sink(wait_context, who, call);
        return;
    }
    size_t used = strlen(who);
    snprintf(who + used, room - used, "%s%s", *call ? ", which must call " : "", call);
    write_line(WHERRY_LOG_INFO, line);
}

bool wh_wait_is_long(wh_wait_log *wait) {
    uint64_t now = wh_clock_now();
    uint64_t next = wait->next;
    if (next && now < next) {
        return false;
    }
    wait->next = now + (next ? NEXT_WAIT_S : FIRST_WAIT_S) * UINT64_C(1000000000);
    return next != 0;
}
