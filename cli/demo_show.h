/** @file demo_show.h  What the demo prints: a timeline, and below it, on a terminal, a bar. */
#ifndef WH_CLI_DEMO_SHOW_H
#define WH_CLI_DEMO_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include "demo_options.h"
#include "show.h"

/** How a line of the timeline looks where there are colors. */
typedef enum wh_demo_tone {
    WH_DEMO_PLAIN,
    WH_DEMO_DIM,
    WH_DEMO_BAD,
    WH_DEMO_GOOD,
} wh_demo_tone;

typedef struct wh_demo_screen {
    double begin;  /**< The clock's seconds when the demo began. */
    bool terminal; /**< Whether there is a bar. */
    bool color;
    bool quiet;
    bool bar_is_there; /**< On the last line. */
    bool broken;       /**< Nobody reads the output any more. */
    int tenths;        /**< Without a terminal: how much of the run was told. */
} wh_demo_screen;

void wh_demo_screen_init(wh_demo_screen *screen, const wh_demo_options *options);

/** A line of the timeline, with the seconds since the beginning; nothing where it is quiet. */
__attribute__((format(printf, 3, 4))) void wh_demo_say(wh_demo_screen *screen, wh_demo_tone tone, const char *format,
                                                       ...);

/** How far it is: a bar with a note; without a terminal, a line now and then. */
void wh_demo_show_progress(wh_demo_screen *screen, int step, int steps, const char *note);

/** Takes the bar away. */
void wh_demo_screen_clear(wh_demo_screen *screen);

/** The last line, which is printed in any case. */
__attribute__((format(printf, 3, 4))) void wh_demo_verdict(wh_demo_screen *screen, wh_demo_tone tone,
                                                           const char *format, ...);

#endif
