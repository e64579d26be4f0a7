#include "output.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS_DEFAULT = 80, BAR_MIN = 4, BAR_MAX = 40, SPEED_BYTES = 1 << 20, JSON_SCHEMA = 1, UNIT_MAX = 5 };

/* ---- text ---- */

double wh_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *wh_size_text(uint64_t bytes, char text[WH_SIZE_TEXT_MAX]) {
    /* Print "1.00 GiB" instead of "1024.0 MiB" for sizes just below 1 GiB. */
    if (bytes + 1024 >= UINT64_C(1) << 30) {
        snprintf(text, WH_SIZE_TEXT_MAX, "%.2f GiB", (double)bytes / (1 << 30));
    } else if (bytes >= 1 << 20) {
        snprintf(text, WH_SIZE_TEXT_MAX, "%.1f MiB", (double)bytes / (1 << 20));
    } else if (bytes >= 1 << 10) {
        snprintf(text, WH_SIZE_TEXT_MAX, "%.1f KiB", (double)bytes / (1 << 10));
    } else {
        snprintf(text, WH_SIZE_TEXT_MAX, "%" PRIu64 " B", bytes);
    }
    return text;
}

const char *wh_rate_text(double rate, char text[WH_SIZE_TEXT_MAX]) {
    double mega = rate * 1e-6;
    snprintf(text, WH_SIZE_TEXT_MAX,
             mega >= 1000  ? "%.2f GB/s"
             : mega >= 100 ? "%.0f MB/s"
                           : "%.1f MB/s",
             mega >= 1000 ? mega / 1000 : mega);
    return text;
}

const char *wh_speed_text(uint64_t bytes, double seconds, char text[WH_SPEED_TEXT_MAX]) {
    char rate[WH_SIZE_TEXT_MAX];
    *text = '\0';
    if (bytes >= SPEED_BYTES && seconds > 0) {
        snprintf(text, WH_SPEED_TEXT_MAX, seconds < 1 ? " in %.3f s at %s" : " in %.1f s at %s", seconds,
                 wh_rate_text((double)bytes / seconds, rate));
    }
    return text;
}

/** Returns the length in bytes of the first UTF-8 character; 0 if it is not valid or text is "". */
static size_t character_bytes(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    size_t length = *at < 0x80 ? *at > 0 : *at < 0xC2 ? 0 : *at < 0xE0 ? 2 : *at < 0xF0 ? 3 : *at < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (*at == 0xE0 && at[1] < 0xA0) || (*at == 0xF0 && at[1] < 0x90);
    bool not_a_character = (*at == 0xED && at[1] >= 0xA0) || (*at == 0xF4 && at[1] >= 0x90);
    return overlong || not_a_character ? 0 : length;
}

/** True if the character must be escaped: a control character, not UTF-8, or the end of text. */
static bool is_control(const char *text, size_t bytes) {
    unsigned char first = (unsigned char)text[0];
    return bytes == 0 || first < 0x20 || first == 0x7F || (first == 0xC2 && (unsigned char)text[1] < 0xA0);
}

/** Prints text, unless out is NULL. @return the columns that it takes on a terminal. */
static int print_escaped(FILE *out, const char *text, size_t size) {
    int columns = 0;
    for (const char *end = text + size; text < end;) {
        size_t bytes = character_bytes(text);
        bool plain = !is_control(text, bytes);
        bytes = bytes ? bytes : 1;
        columns += plain ? 1 : 4 * (int)bytes;
        for (; bytes > 0; bytes--, text++) {
            if (out && plain) {
                fputc(*text, out);
            } else if (out) {
                fprintf(out, "\\x%02x", (unsigned char)*text);
            }
        }
    }
    return columns;
}

void wh_print_escaped(FILE *out, const char *text) {
    print_escaped(out, text, strlen(text));
}

bool wh_is_terminal(FILE *stream) {
    const char *kind = getenv("TERM");
    return isatty(fileno(stream)) && kind && strcmp(kind, "dumb") != 0;
}

/** The columns of a terminal; `otherwise` if the stream is not a terminal that knows its size. */
static int columns_of(FILE *stream, int otherwise) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col ? (int)size.ws_col : otherwise;
}

void wh_print_wrapped(FILE *out, const char *text, int indent, int width) {
    int terminal = columns_of(out, width);
    char *lines = NULL;
    size_t size = 0;
    /* One write for all, since other processes may print to the same terminal. */
    FILE *memory = open_memstream(&lines, &size);
    FILE *to = memory ? memory : out;
    width = terminal < width && terminal > indent ? terminal : width;
    for (int column = indent, first = 1; *text; first = 0) {
        size_t length = strcspn(text, " ");
        size_t unit = text[length] ? strcspn(text + length + 1, " ") : 0;
        if (unit && unit <= UNIT_MAX && length && isdigit((unsigned char)text[length - 1])) {
            length += 1 + unit; /* A number stays with its unit. */
        }
        int needed = print_escaped(NULL, text, length);
        bool next = !first && column + 1 + needed > width;
        if (next) {
            fprintf(to, "\n%*s", indent, "");
        } else if (!first) {
            fputc(' ', to);
        }
        column = (next ? indent : column + !first) + needed;
        print_escaped(to, text, length);
        text += length + (text[length] == ' ');
    }
    fputc('\n', to);
    if (memory && fclose(memory) == 0) {
        fwrite(lines, 1, size, out);
    }
    free(lines);
}

void wh_print_text(FILE *out, const char *format, ...) {
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    wh_print_wrapped(out, length < 0 ? "out of memory for a message" : text, 0, WH_WIDTH_ANY);
    free(length < 0 ? NULL : text);
}

/* ---- JSON ---- */

/** Writes a JSON string. Bytes that are not UTF-8, for example in file names, become U+FFFD. */
static void quote(FILE *out, const char *text) {
    fputc('"', out);
    for (size_t bytes; *text; text += bytes ? bytes : 1) {
        unsigned char letter = (unsigned char)*text;
        bytes = character_bytes(text);
        if (bytes == 0) {
            fputs("\\ufffd", out);
        } else if (letter == '"' || letter == '\\') {
            fprintf(out, "\\%c", letter);
        } else if (letter < 0x20 || letter == 0x7f) {
            fprintf(out, "\\u%04x", letter);
        } else {
            fwrite(text, 1, bytes, out);
        }
    }
    fputc('"', out);
}

/**
 * Writes a value with the separator and the key that come before it. `plain` needs no quotes; if it
 * is NULL, `text` is a string.
 */
static void write_value(wh_json *json, const char *key, const char *plain, const char *text) {
    if (!json) {
        return;
    }
    if (json->depth) {
        fprintf(json->out, "%s\n%*s", json->filled[json->depth] ? "," : "", 2 * json->depth, "");
        json->filled[json->depth] = true;
    }
    if (key) {
        quote(json->out, key);
        fputs(": ", json->out);
    }
    if (plain) {
        fputs(plain, json->out);
    } else {
        quote(json->out, text);
    }
}

void wh_json_open(wh_json *json, const char *key, char bracket) {
    write_value(json, key, bracket == '{' ? "{" : "[", NULL);
    if (json) {
        json->depth += json->depth + 1 < WH_JSON_DEPTH_MAX;
        json->filled[json->depth] = false;
    }
}

void wh_json_begin(wh_json *json) {
    wh_json_open(json, NULL, '{');
    wh_json_number(json, "schema", JSON_SCHEMA);
}

void wh_json_close(wh_json *json, char bracket) {
    if (json) {
        bool filled = json->filled[json->depth--];
        fprintf(json->out, filled ? "\n%*s%c" : "%*s%c", filled ? 2 * json->depth : 0, "", bracket);
        fputs(json->depth ? "" : "\n", json->out);
    }
}

void wh_json_text(wh_json *json, const char *key, const char *text) {
    if (text) {
        write_value(json, key, NULL, text);
    }
}

void wh_json_number(wh_json *json, const char *key, int64_t number) {
    char text[32];
    snprintf(text, sizeof(text), "%" PRId64, number);
    write_value(json, key, text, NULL);
}

void wh_json_count(wh_json *json, const char *key, uint64_t number) {
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, number);
    write_value(json, key, text, NULL);
}

void wh_json_real(wh_json *json, const char *key, double number) {
    char text[64];
    snprintf(text, sizeof(text), "%.17g", number);
    write_value(json, key, isfinite(number) ? text : "null", NULL);
}

void wh_json_flag(wh_json *json, const char *key, bool flag) {
    write_value(json, key, flag ? "true" : "false", NULL);
}

void wh_json_null(wh_json *json, const char *key) {
    write_value(json, key, "null", NULL);
}

/* ---- progress ---- */

void wh_bar_begin(wh_bar *bar, FILE *out) {
    *bar = (wh_bar){.out = out, .terminal = wh_is_terminal(out)};
}

/** Draws the line. If it is too long, leaves out the bar, the names, the label, then details. */
static void draw(wh_bar *bar, double fraction, const char *label, const char *detail, const char *names) {
    int columns = columns_of(bar->out, COLUMNS_DEFAULT);
    char marks[BAR_MAX + 4] = "";
    char line[512];
    int detail_size;
    int room;
    for (bool fits = false; !fits;) {
        detail_size = (int)strcspn(detail, "\n");
        room = columns - 1 - (int)(strlen(label) + (*label != 0) + strlen(names) + 2 * (*names != 0)) - detail_size;
        fits = room >= 0 || !(*names || *label || detail[detail_size]);
        detail += !fits && !*names && !*label ? detail_size + 1 : 0;
        label = fits || *names ? label : "";
        names = fits ? names : "";
    }
    int width = room - 3 > BAR_MAX ? BAR_MAX : room - 3;
    if (width >= BAR_MIN) {
        int full = (int)(width * fraction);
        snprintf(marks, sizeof(marks), "[%*s] ", width, "");
        memset(marks + 1, '#', (size_t)full);
        memset(marks + 1 + full, '-', (size_t)(width - full));
    }
    snprintf(line, sizeof(line), "%s%s%s%.*s%s%s", label, *label ? " " : "", marks, detail_size, detail,
             *names ? "  " : "", names);
    /*
     * Without automatic margins, a terminal that has just become narrower does not wrap the line.
     */
    fprintf(bar->out, "\r\033[?7l%.*s\033[K\033[?7h", columns - 1, line);
    fflush(bar->out);
    bar->drawn = true;
}

void wh_bar_show(wh_bar *bar, double fraction, const char *label, const char *detail, const char *names) {
    double now = wh_clock();
    fraction = fraction > 1 ? 1 : fraction;
    int tenths = (int)(fraction * 10);
    if (bar->terminal && (now - bar->shown >= 0.1 || fraction >= 1)) {
        draw(bar, fraction, label, detail, names);
        bar->shown = now;
    } else if (!bar->terminal && tenths > bar->tenths) {
        fprintf(bar->out, "%s %.*s%s%s\n", label, (int)strcspn(detail, "\n"), detail, *names ? "  " : "", names);
        fflush(bar->out);
        bar->tenths = tenths;
    }
}

void wh_bar_end(wh_bar *bar) {
    if (bar->drawn) {
        fputs("\r\033[K", bar->out);
        fflush(bar->out);
        bar->drawn = false;
    }
}

void wh_transfer_text(uint64_t done, uint64_t total, double rate, size_t servers, char text[WH_TRANSFER_TEXT_MAX]) {
    char sizes[2][WH_SIZE_TEXT_MAX];
    char speed[WH_SIZE_TEXT_MAX] = "";
    char left[24] = "";
    char from[32] = "";
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    double seconds = rate > 0 && total > done ? (double)(total - done) / rate : 0;
    if (rate > 0 && total >= SPEED_BYTES) { /* The rate of less says nothing. */
        wh_rate_text(rate, speed);
    }
    if (*speed && seconds < 360000) {
        unsigned whole = (unsigned)(seconds + 0.5);
        int used = whole >= 3600 ? snprintf(left, sizeof(left), "%u:", whole / 3600) : 0;
        snprintf(left + used, sizeof(left) - (size_t)used, used ? "%02u:%02u" : "%u:%02u", whole / 60 % 60, whole % 60);
    }
    if (servers > 1) {
        snprintf(from, sizeof(from), "%zu servers", servers);
    }
    wh_size_text(done, sizes[0]);
    wh_size_text(total, sizes[1]);
    for (int form = 0; form < 4; form++) {
        const char *gap = form < 3 ? "  " : " ";
        text += sprintf(text, "%s%3d%%", form ? "\n" : "", percent);
        text += form < 2 ? sprintf(text, "  %s%s%s", sizes[0], form ? "" : " of ", form ? "" : sizes[1]) : 0;
        text += sprintf(text, "%s%s", *speed ? gap : "", speed);
        text += sprintf(text, "%s%s%s", *left ? gap : "", left, *left && form < 3 ? " left" : "");
        text += sprintf(text, "%s%s", *from ? gap : "", from);
    }
}
