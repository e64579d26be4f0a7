#include "json_out.h"

#include <inttypes.h>
#include <math.h>

#include "show.h"

/** A text in JSON, which is UTF-8: other bytes, as file names may have them, become U+FFFD. */
static void quote(FILE *out, const char *text) {
    fputc('"', out);
    for (size_t bytes; *text; text += bytes ? bytes : 1) {
        unsigned char letter = (unsigned char)*text;
        bytes = wh_character_bytes(text);
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

/** What stands before a value. */
static void begin(wh_json *json, const char *key) {
    if (json->depth) {
        fprintf(json->out, "%s\n%*s", json->filled[json->depth] ? "," : "", 2 * json->depth, "");
        json->filled[json->depth] = true;
    }
    if (key) {
        quote(json->out, key);
        fputs(": ", json->out);
    }
}

static void end(wh_json *json) {
    if (!json->depth) {
        fputc('\n', json->out);
    }
}

void wh_json_open(wh_json *json, const char *key, char bracket) {
    begin(json, key);
    fputc(bracket, json->out);
    json->depth += json->depth + 1 < WH_JSON_DEPTH_MAX;
    json->filled[json->depth] = false;
}

void wh_json_close(wh_json *json, char bracket) {
    bool filled = json->filled[json->depth];
    json->depth--;
    if (filled) {
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    }
    fputc(bracket, json->out);
    end(json);
}

void wh_json_text(wh_json *json, const char *key, const char *text) {
    begin(json, key);
    quote(json->out, text);
    end(json);
}

void wh_json_number(wh_json *json, const char *key, int64_t number) {
    begin(json, key);
    fprintf(json->out, "%" PRId64, number);
    end(json);
}

void wh_json_count(wh_json *json, const char *key, uint64_t number) {
    begin(json, key);
    fprintf(json->out, "%" PRIu64, number);
    end(json);
}

void wh_json_real(wh_json *json, const char *key, double number) {
    if (!isfinite(number)) {
        wh_json_null(json, key);
        return;
    }
    begin(json, key);
    fprintf(json->out, "%.17g", number);
    end(json);
}

void wh_json_flag(wh_json *json, const char *key, bool flag) {
    begin(json, key);
    fputs(flag ? "true" : "false", json->out);
    end(json);
}

void wh_json_null(wh_json *json, const char *key) {
    begin(json, key);
    fputs("null", json->out);
    end(json);
}
