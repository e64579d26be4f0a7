#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "demo_show.h"

enum { BAR_MIN = 10, BAR_MAX = 40, COLUMNS_BESIDE = 50 };

static const char *const tones[] = {"", "\033[2m", "\033[31m", "\033[32m"};

void wh_demo_screen_init(wh_demo_screen *screen, const wh_demo_options *options) {
    bool terminal = wh_is_terminal(stdout);
    *screen = (wh_demo_screen){.begin = wh_clock(),
                               .terminal = terminal && !options->quiet,
                               .color = terminal && options->color,
                               .quiet = options->quiet};
}

static void flush(wh_demo_screen *screen) {
    if (fflush(stdout) != 0) {
        screen->broken = true;
    }
}

void wh_demo_screen_clear(wh_demo_screen *screen) {
    if (screen->bar_is_there) {
        printf("\r\033[K");
        screen->bar_is_there = false;
        flush(screen);
    }
}

static void print_toned(wh_demo_screen *screen, wh_demo_tone tone, const char *format, va_list arguments) {
    bool color = screen->color && tone != WH_DEMO_PLAIN;
    printf("%s", color ? tones[tone] : "");
    vprintf(format, arguments);
    printf("%s\n", color ? "\033[0m" : "");
    flush(screen);
}

void wh_demo_say(wh_demo_screen *screen, wh_demo_tone tone, const char *format, ...) {
    va_list arguments;
    if (screen->quiet) {
        return;
    }
    wh_demo_screen_clear(screen);
    printf("%6.1f s  ", wh_clock() - screen->begin);
    va_start(arguments, format);
    print_toned(screen, tone, format, arguments);
    va_end(arguments);
}

void wh_demo_verdict(wh_demo_screen *screen, wh_demo_tone tone, const char *format, ...) {
    va_list arguments;
    wh_demo_screen_clear(screen);
    va_start(arguments, format);
    print_toned(screen, tone, format, arguments);
    va_end(arguments);
}

static void draw_bar(wh_demo_screen *screen, int step, int steps, const char *note) {
    char line[256];
    int columns = wh_terminal_columns(stdout);
    int width = columns - COLUMNS_BESIDE;
    width = width < BAR_MIN ? BAR_MIN : width > BAR_MAX ? BAR_MAX : width;
    int full = width * step / steps;
    char bar[BAR_MAX + 1];
    memset(bar, '#', (size_t)full);
    memset(bar + full, '-', (size_t)(width - full));
    bar[width] = '\0';
    snprintf(line, sizeof(line), "%6.1f s  [%s] step %d of %d  %s", wh_clock() - screen->begin, bar, step, steps, note);
    printf("\r%.*s\033[K", columns - 1, line);
    screen->bar_is_there = true;
    flush(screen);
}

void wh_demo_show_progress(wh_demo_screen *screen, int step, int steps, const char *note) {
    int tenths = 10 * step / steps;
    if (screen->terminal) {
        draw_bar(screen, step, steps, note);
    } else if (tenths > screen->tenths) {
        screen->tenths = tenths;
        wh_demo_say(screen, WH_DEMO_PLAIN, "step %d of %d", step, steps);
    }
}
