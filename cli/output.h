/** @file output.h  Output of commands: sizes, untrusted text, JSON, and a progress bar. */
#ifndef WH_CLI_OUTPUT_H
#define WH_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { WH_SIZE_TEXT_MAX = 32, WH_SPEED_TEXT_MAX = 80, WH_TRANSFER_TEXT_MAX = 640, WH_JSON_DEPTH_MAX = 16 };

/* ---- text ---- */

/** The time of a monotonic clock in seconds. */
double wh_clock(void);

/** Formats a size with a unit, such as "1.00 GiB", "32.0 MiB" or "17 B". @return text. */
const char *wh_size_text(uint64_t bytes, char text[WH_SIZE_TEXT_MAX]);

/** Formats bytes per second, such as "5.42 GB/s", "310 MB/s" or "3.2 MB/s". @return text. */
const char *wh_rate_text(double rate, char text[WH_SIZE_TEXT_MAX]);

/**
 * Formats the time and the rate of a transfer, which belong together: " in 0.870 s at 310 MB/s"; ""
 * if there are so few bytes that the rate says nothing. @return text.
 */
const char *wh_speed_text(uint64_t bytes, double seconds, char text[WH_SPEED_TEXT_MAX]);

/**
 * Prints untrusted text, such as a name from a file or a message from a peer, so that it cannot
 * control the terminal. Control characters and bytes that are not UTF-8 become \\xNN.
 */
void wh_print_escaped(FILE *out, const char *text);

/** No limit of wh_print_wrapped. */
enum { WH_WIDTH_ANY = 1 << 20 };

/**
 * Prints text and a newline, escaped, and wrapped between the columns `indent` and `width`, or the
 * width of the terminal if that is less. The cursor must already be at column `indent`.
 */
void wh_print_wrapped(FILE *out, const char *text, int indent, int width);

/** Prints a line, escaped, and wrapped on a terminal. A newline must not be in the format. */
__attribute__((format(printf, 2, 3))) void wh_print_text(FILE *out, const char *format, ...);

/* ---- JSON ---- */

/**
 * A JSON writer. Initialize with {.out = ...}. In arrays and at the top level, `key` is NULL. If
 * `json` is NULL, the functions do nothing.
 */
typedef struct wh_json {
    FILE *out;
    int depth;
    /** Per nesting depth: true if the container already has a member. */
    bool filled[WH_JSON_DEPTH_MAX];
} wh_json;

/** Opens the object that is the whole output, with the version of the keys: docs/command.md. */
void wh_json_begin(wh_json *json);
void wh_json_open(wh_json *json, const char *key, char bracket);
void wh_json_close(wh_json *json, char bracket);
/** Writes a string; nothing if text is NULL. */
void wh_json_text(wh_json *json, const char *key, const char *text);
void wh_json_number(wh_json *json, const char *key, int64_t number);
void wh_json_count(wh_json *json, const char *key, uint64_t number);
/** Writes a number; writes null if it is not finite. */
void wh_json_real(wh_json *json, const char *key, double number);
void wh_json_flag(wh_json *json, const char *key, bool flag);
void wh_json_null(wh_json *json, const char *key);

/* ---- progress ---- */

/** True if a stream is a terminal that can move its cursor. */
bool wh_is_terminal(FILE *stream);

/** Shows the progress of a task: as a bar on a terminal, otherwise as a line per ten percent. */
typedef struct wh_bar {
    FILE *out;
    bool terminal;
    bool drawn;   /**< True if the bar is on the last line of the terminal. */
    double shown; /**< Time when the bar was last drawn. */
    int tenths;   /**< Without a terminal: progress at the last printed line, in tenths. */
} wh_bar;

void wh_bar_begin(wh_bar *bar, FILE *out);

/**
 * Shows the current progress. On a terminal, draws the bar at most ten times per second, and always
 * at the end.
 * @param label   text before the bar.
 * @param detail  text after the bar, such as the rate. Further lines are shorter forms of it; the
 * first that fits is shown.
 * @param names   text after that; "" if there is none.
 */
void wh_bar_show(wh_bar *bar, double fraction, const char *label, const char *detail, const char *names);

/** Removes the bar from the terminal. */
void wh_bar_end(wh_bar *bar);

/**
 * Formats progress, such as "45%  6.10 GiB of 13.48 GiB  1.12 GB/s  0:06 left  3 servers", in lines
 * that get shorter: the last has only "45% 1.12 GB/s 0:06 3 servers".
 * @param servers  not shown if there is only one.
 */
void wh_transfer_text(uint64_t done, uint64_t total, double rate, size_t servers, char text[WH_TRANSFER_TEXT_MAX]);

#endif
