#include "show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS_DEFAULT = 80, BAR_MIN = 8, BAR_MAX = 40, COLUMNS_BESIDE = 62 };

double wh_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *wh_size_text(uint64_t bytes, char text[WH_SIZE_TEXT_MAX]) {
    /* A size that was meant to be round may be a few bytes less. */
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

const char *wh_size_short(int64_t bytes, char text[WH_SIZE_TEXT_MAX]) {
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    while (bytes && bytes % 1024 == 0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, WH_SIZE_TEXT_MAX, "%" PRId64 "%s", bytes, units[unit]);
    return text;
}

size_t wh_character_bytes(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    size_t length = *at < 0x80 ? *at > 0 : *at < 0xC2 ? 0 : *at < 0xE0 ? 2 : *at < 0xF0 ? 3 : *at < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < length; i++) { /* the zero at the end is no such byte */
        if ((at[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool longer_than_needed = (*at == 0xE0 && at[1] < 0xA0) || (*at == 0xF0 && at[1] < 0x90);
    bool no_character = (*at == 0xED && at[1] >= 0xA0) || (*at == 0xF4 && at[1] >= 0x90);
    return longer_than_needed || no_character ? 0 : length;
}

/** Whether a terminal would do something at a character of so many bytes, rather than show it. */
static bool is_control(const char *text, size_t bytes) {
    unsigned char first = (unsigned char)text[0];
    return bytes == 0 || first < 0x20 || first == 0x7F || (first == 0xC2 && (unsigned char)text[1] < 0xA0);
}

void wh_print_plain(FILE *out, const char *text) {
    for (const char *shown = text; *shown; shown = text) {
        size_t bytes;
        while (!is_control(text, bytes = wh_character_bytes(text))) {
            text += bytes;
        }
        fwrite(shown, 1, (size_t)(text - shown), out);
        for (bytes = *text && !bytes ? 1 : bytes; bytes > 0; bytes--) {
            fprintf(out, "\\x%02x", (unsigned char)*text++);
        }
    }
}

void wh_print_wrapped(FILE *out, const char *text, int indent, int width) {
    int column = indent;
    bool first = true;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (!first && column + 1 + length > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", length, text);
        column += length;
        first = false;
        text += length;
        text += *text == ' ';
    }
    fputc('\n', out);
}

bool wh_is_terminal(FILE *stream) {
    const char *kind = getenv("TERM");
    return isatty(fileno(stream)) && kind && strcmp(kind, "dumb") != 0;
}

int wh_terminal_columns(FILE *stream) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : COLUMNS_DEFAULT;
}

void wh_bar_begin(wh_bar *bar, const wh_common *common, const char *doing) {
    *bar = (wh_bar){.doing = doing, .quiet = common->quiet, .terminal = wh_is_terminal(stderr), .begin = wh_clock()};
}

/** "0:07 left", where it is known. */
static void time_left(uint64_t done, uint64_t total, double rate, char *text, size_t size) {
    double seconds = rate > 0 && total > done ? (double)(total - done) / rate : 0;
    text[0] = '\0';
    if (rate > 0 && seconds < 360000) {
        unsigned whole = (unsigned)(seconds + 0.5);
        if (whole >= 3600) {
            snprintf(text, size, "%u:%02u:%02u left", whole / 3600, whole / 60 % 60, whole % 60);
        } else {
            snprintf(text, size, "%u:%02u left", whole / 60, whole % 60);
        }
    }
}

static void draw(wh_bar *bar, const char *figures, double part, const char *note) {
    int columns = wh_terminal_columns(stderr);
    int width = columns - COLUMNS_BESIDE;
    width = width < BAR_MIN ? BAR_MIN : width > BAR_MAX ? BAR_MAX : width;
    int full = (int)(width * part);
    char marks[BAR_MAX + 1];
    char line[512];
    memset(marks, '#', (size_t)full);
    memset(marks + full, '-', (size_t)(width - full));
    marks[width] = '\0';
    snprintf(line, sizeof(line), "%s [%s] %s%s%s", bar->doing, marks, figures, *note ? "  " : "", note);
    fprintf(stderr, "\r%.*s\033[K", columns - 1, line);
    fflush(stderr);
    bar->drawn = true;
}

void wh_bar_show(wh_bar *bar, uint64_t done, uint64_t total, double rate, const char *note) {
    double now = wh_clock();
    double part = total ? (double)done / (double)total : 1;
    part = part > 1 ? 1 : part;
    int tenths = (int)(part * 10);
    if (bar->quiet || (bar->terminal ? now - bar->shown < 0.1 && done < total : tenths <= bar->tenths)) {
        return;
    }
    char sizes[2][WH_SIZE_TEXT_MAX];
    char left[32];
    char figures[160];
    time_left(done, total, rate, left, sizeof(left));
    snprintf(figures, sizeof(figures), "%3d%%  %s of %s  %.2f GB/s  %s", (int)(part * 100),
             wh_size_text(done, sizes[0]), wh_size_text(total, sizes[1]), rate * 1e-9, left);
    bar->shown = now;
    bar->tenths = tenths;
    if (bar->terminal) {
        draw(bar, figures, part, note);
    } else {
        fprintf(stderr, "%s %s\n", bar->doing, figures);
    }
}

void wh_bar_end(wh_bar *bar) {
    if (bar->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar->drawn = false;
    }
}
