/** @file output.h  What commands print: sizes, text from outside, JSON, and a progress bar. */
#ifndef WH_CLI_OUTPUT_H
#define WH_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { WH_SIZE_TEXT_MAX = 32, WH_JSON_DEPTH_MAX = 16 };

/* ---- text ---- */

/** Seconds of a monotonic clock. */
double wh_clock(void);

/** Writes a size for people: "1.00 GiB", "32.0 MiB", "17 B". @return text. */
const char *wh_size_text(uint64_t bytes, char text[WH_SIZE_TEXT_MAX]);

/** Writes a round size as options take it: "512M". @return text. */
const char *wh_size_short(int64_t bytes, char text[WH_SIZE_TEXT_MAX]);

/**
 * Prints text from outside, such as a name or a message, so that it cannot control the terminal:
 * control characters and bytes that are not UTF-8 become \\xNN.
 */
void wh_print_escaped(FILE *out, const char *text);

/** Prints a column (NULL: none), two spaces and escaped text on a line of standard output. */
void wh_print_line(const char *column, const char *text);

/** Prints text in lines from column indent to width. The cursor is already at the first one. */
void wh_print_wrapped(FILE *out, const char *text, int indent, int width);

/* ---- JSON ---- */

/** Writes JSON. Starts as {.out = ...}. Keys are NULL in an array and at the top. */
typedef struct wh_json {
    FILE *out;
    int depth;
    bool filled[WH_JSON_DEPTH_MAX]; /**< Per depth: it has a member already. */
} wh_json;

void wh_json_open(wh_json *json, const char *key, char bracket);
void wh_json_close(wh_json *json, char bracket);
void wh_json_text(wh_json *json, const char *key, const char *text);
void wh_json_number(wh_json *json, const char *key, int64_t number);
void wh_json_count(wh_json *json, const char *key, uint64_t number);
/** null if the number is not finite. */
void wh_json_real(wh_json *json, const char *key, double number);
void wh_json_flag(wh_json *json, const char *key, bool flag);
void wh_json_null(wh_json *json, const char *key);

/* ---- progress ---- */

/** True if a stream is a terminal that can move its cursor. */
bool wh_is_terminal(FILE *stream);

/** Progress of a task: a bar on a terminal, else a line per tenth. */
typedef struct wh_bar {
    FILE *out;
    bool terminal;
    bool drawn;   /**< On the last line of the terminal. */
    double shown; /**< When it was drawn last. */
    int tenths;   /**< Without a terminal: printed so far. */
} wh_bar;

void wh_bar_begin(wh_bar *bar, FILE *out);

/**
 * Draws it, at most ten times per second.
 * @param label   before the bar.
 * @param detail  after the bar, such as figures.
 */
void wh_bar_show(wh_bar *bar, double fraction, const char *label, const char *detail);

/** Removes it from the terminal. */
void wh_bar_end(wh_bar *bar);

/** Writes the figures of a transfer: "45%  6.10 GiB of 13.48 GiB  1.12 GB/s  0:06 left". */
void wh_transfer_text(uint64_t done, uint64_t total, double rate, char *text, size_t size);

#endif
