/** @file show.h  What commands print: sizes, rates and times for people, tables, and how far a thing is. */
#ifndef WH_CLI_SHOW_H
#define WH_CLI_SHOW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "options.h"

enum { WH_SIZE_TEXT_MAX = 32 };

/** Seconds of a clock that only goes on. */
double wh_clock(void);

/** Writes a number of bytes for people: "1.00 GiB", "32.0 MiB", "17 B". @return text. */
const char *wh_size_text(uint64_t bytes, char text[WH_SIZE_TEXT_MAX]);

/** Writes a round number of bytes as options have it: "512M". @return text. */
const char *wh_size_short(int64_t bytes, char text[WH_SIZE_TEXT_MAX]);

/** Bytes of the character that a text of UTF-8 begins with; 0 where it begins with none. */
size_t wh_character_bytes(const char *text);

/**
 * Prints a text from outside, such as a name or a message, so that a terminal shows it and does nothing else: control characters, and bytes that are no
 * UTF-8, as \\xNN.
 */
void wh_print_plain(FILE *out, const char *text);

/** Prints a text in lines, the second and later ones indented by so many columns, where the first is already. */
void wh_print_wrapped(FILE *out, const char *text, int indent, int width);

/** Whether a stream is a terminal that can move its cursor. */
bool wh_is_terminal(FILE *stream);

/** The columns of a terminal; 80 where it does not say. */
int wh_terminal_columns(FILE *stream);

/** How far something is, on standard error: a bar on a terminal, else a line at each tenth. Starts by wh_bar_begin. */
typedef struct wh_bar {
    const char *doing; /**< "fetching" */
    bool quiet;
    bool terminal;
    bool drawn; /**< It is on the last line. */
    double begin;
    double shown;
    int tenths; /**< Told so far. */
} wh_bar;

/** Begins one. @param doing  a word that lives as long. */
void wh_bar_begin(wh_bar *bar, const wh_common *common, const char *doing);

/** Shows how far it is, at most ten times a second. @param rate  bytes a second; 0: not known. */
void wh_bar_show(wh_bar *bar, uint64_t done, uint64_t total, double rate, const char *note);

/** Takes it away. */
void wh_bar_end(wh_bar *bar);

#endif
