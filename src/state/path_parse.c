#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "state/path.h"
#include "state/value.h"

typedef struct parser {
    const char *text;
    size_t size;
    size_t at;
    wherry_step *steps;
    size_t count;
    size_t capacity;
    wherry_error *error;
} parser;

static wherry_status refuse(const parser *p, size_t at, const char *what) {
    return wh_fail_at(p->error, WHERRY_BAD_PATH, at, "%s at byte %zu of the path '%.*s'", what, at,
                      (int)(p->size < 200 ? p->size : 200), p->text);
}

static bool next_is(const parser *p, char c) {
    return p->at < p->size && p->text[p->at] == c;
}

static bool take(parser *p, char c) {
    bool is = next_is(p, c);
    p->at += is;
    return is;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/** The byte that an escape stands for, or -1; p->at is behind the backslash and moves on. */
static int take_escape(parser *p) {
    char c = p->at < p->size ? p->text[p->at++] : '\0';
    switch (c) {
    case '"':
    case '\\':
        return c;
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'x':
        if (p->size - p->at >= 2) {
            int high = hex_digit(p->text[p->at]);
            int low = hex_digit(p->text[p->at + 1]);
            p->at += 2;
            return high < 0 || low < 0 ? -1 : high * 16 + low;
        }
        return -1;
    default:
        return -1;
    }
}

/** What stands between quotation marks, p->at being at the first. */
static wherry_status take_quoted(parser *p, wh_string *content) {
    size_t begin = p->at;
    if (!take(p, '"')) {
        return refuse(p, begin, "a quotation mark is missing");
    }
    while (p->at < p->size && p->text[p->at] != '"') {
        char c = p->text[p->at++];
        if (c == '\\') {
            int byte = take_escape(p);
            if (byte < 0) {
                return refuse(p, begin, "there is an unknown escape in the quotation");
            }
            c = (char)byte;
        }
        wh_string_append(content, &c, 1);
    }
    if (!take(p, '"')) {
        return refuse(p, begin, "the quotation does not end");
    }
    wh_string_append(content, "", 0);
    return content->failed ? wh_fail_memory(p->error, "a path") : WHERRY_OK;
}

static wherry_status add_step(parser *p, wherry_value *key, uint64_t index) {
    wherry_status status = WHERRY_OK;
    if (p->count == WHERRY_PATH_STEPS_MAX) {
        status = refuse(p, p->at, "there are too many steps");
    } else if (!WH_GROW(p->steps, p->capacity, p->count)) {
        status = wh_fail_memory(p->error, "a path");
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(key);
        return status;
    }
    p->steps[p->count++] = (wherry_step){key, index};
    return WHERRY_OK;
}

static wherry_status add_string(parser *p, size_t at, const char *bytes, size_t size) {
    if (!wh_utf8_valid(bytes, size)) {
        return refuse(p, at, "there is a string that is not UTF-8");
    }
    wherry_value *key = NULL;
    wherry_status status = wherry_string_create(bytes, size, &key, p->error);
    return status == WHERRY_OK ? add_step(p, key, 0) : status;
}

static wherry_status parse_name(parser *p) {
    size_t begin = p->at;
    while (p->at < p->size) {
        char c = p->text[p->at];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (p->at == begin || c < '0' || c > '9')) {
            break;
        }
        p->at++;
    }
    if (p->at == begin) {
        return refuse(p, begin, "a name is missing, or needs [\"...\"] around it");
    }
    return add_string(p, begin, p->text + begin, p->at - begin);
}

static wherry_status parse_bracket(parser *p) {
    size_t begin = p->at;
    if (next_is(p, '"')) {
        wh_string content = {0};
        wherry_status status = take_quoted(p, &content);
        if (status == WHERRY_OK) {
            status = add_string(p, begin, content.bytes, content.size);
        }
        wh_free(content.bytes);
        return status;
    }
    uint64_t index = 0;
    while (p->at < p->size && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (__builtin_mul_overflow(index, 10, &index) ||
            __builtin_add_overflow(index, (uint64_t)(p->text[p->at] - '0'), &index)) {
            return refuse(p, begin, "there is a number that is too large");
        }
        p->at++;
    }
    return p->at == begin ? refuse(p, begin, "a number or a quotation is missing") : add_step(p, NULL, index);
}

/** A float that takes up all of the word. */
static bool read_float(const char *word, double *number_p) {
    if (strncmp(word, "nan:", 4) == 0) {
        char *end;
        uint64_t bits = strlen(word) == 20 && hex_digit(word[4]) >= 0 ? strtoull(word + 4, &end, 16) : 0;
        *number_p = wh_bits_double(bits);
        return bits && !*end && *number_p != *number_p;
    }
    if (strcmp(word, "inf") == 0 || strcmp(word, "-inf") == 0) {
        *number_p = *word == '-' ? -INFINITY : INFINITY;
        return true;
    }
    return strpbrk(word, ".e") && wh_double_parse(word, number_p);
}

/** An integer in decimal, or in hexadecimal of any size. */
static wherry_status read_integer(const parser *p, size_t at, const char *word, wherry_value **key_p) {
    bool negative = *word == '-';
    const char *digits = word + negative;
    size_t size = strlen(digits);
    if (strncmp(digits, "0x", 2) != 0) {
        char *end;
        errno = 0;
        long long number = strtoll(word, &end, 10);
        bool fine = *digits >= '0' && *digits <= '9' && !*end && !errno;
        return fine ? wherry_int_create(number, key_p, p->error) : refuse(p, at, "there is an unknown key");
    }
    digits += 2;
    size -= 2;
    uint8_t *magnitude = wh_alloc_zeroed(size / 2 + 1, 1);
    if (!magnitude) {
        return wh_fail_memory(p->error, "a path");
    }
    bool fine = size > 0;
    for (size_t i = 0; i < size && fine; i++) {
        int digit = hex_digit(digits[size - 1 - i]);
        fine = digit >= 0;
        magnitude[size / 2 - i / 2] |= (uint8_t)((unsigned)digit << (i % 2 * 4));
    }
    wherry_status status = fine ? wherry_bigint_create(negative, magnitude, size / 2 + 1, key_p, p->error)
                                : refuse(p, at, "there is a wrong digit in the hexadecimal number");
    wh_free(magnitude);
    return status;
}

static wherry_status read_complex(const parser *p, size_t at, char *word, wherry_value **key_p) {
    size_t size = strlen(word);
    char *comma = strchr(word, ',');
    double real;
    double imaginary;
    if (size < 4 || word[size - 1] != ')' || !comma) {
        return refuse(p, at, "there is an unknown key");
    }
    word[size - 1] = '\0';
    *comma = '\0';
    if (!read_float(word + 2, &real) || !read_float(comma + 1, &imaginary)) {
        return refuse(p, at, "there is an unknown complex number");
    }
    return wherry_complex_create(real, imaginary, key_p, p->error);
}

static wherry_status read_word(const parser *p, size_t at, char *word, wherry_value **key_p) {
    double number;
    if (strcmp(word, "none") == 0) {
        return wherry_none_create(key_p, p->error);
    }
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) {
        return wherry_bool_create(*word == 't', key_p, p->error);
    }
    if (strncmp(word, "c(", 2) == 0) {
        return read_complex(p, at, word, key_p);
    }
    if (strncmp(word, "0x", 2) != 0 && strncmp(word, "-0x", 3) != 0 && read_float(word, &number)) {
        return wherry_float_create(number, key_p, p->error);
    }
    return read_integer(p, at, word, key_p);
}

static wherry_status parse_brace(parser *p) {
    size_t begin = p->at;
    wherry_value *key = NULL;
    wherry_status status;
    if (take(p, 'b')) {
        wh_string content = {0};
        status = take_quoted(p, &content);
        if (status == WHERRY_OK) {
            status = wherry_bytes_create(content.bytes, content.size, &key, p->error);
        }
        wh_free(content.bytes);
    } else {
        while (p->at < p->size && p->text[p->at] != '}') {
            p->at++;
        }
        char *word = wh_copy_text(p->text + begin, p->at - begin);
        if (!word) {
            return wh_fail_memory(p->error, "a path");
        }
        status = memchr(word, 0, p->at - begin) ? refuse(p, begin, "there is an unknown key")
                                                : read_word(p, begin, word, &key);
        wh_free(word);
    }
    return status == WHERRY_OK ? add_step(p, key, 0) : status;
}

static wherry_status parse_step(parser *p) {
    if (take(p, '[')) {
        wherry_status status = parse_bracket(p);
        return status != WHERRY_OK || take(p, ']') ? status : refuse(p, p->at, "a ] is missing");
    }
    if (take(p, '{')) {
        wherry_status status = parse_brace(p);
        return status != WHERRY_OK || take(p, '}') ? status : refuse(p, p->at, "a } is missing");
    }
    if (p->count > 0 && !take(p, '.')) {
        return refuse(p, p->at, "a step must begin with . or [ or {");
    }
    return parse_name(p);
}

wherry_status wherry_path_parse(const char *text, size_t size, wherry_path **path_p, wherry_error *error) {
    if ((!text && size) || !path_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "text and path_p must not be NULL");
    }
    parser p = {.text = text, .size = size, .error = error};
    wherry_status status = WHERRY_OK;
    while (p.at < size && status == WHERRY_OK) {
        status = parse_step(&p);
    }
    if (status == WHERRY_OK) {
        status = wherry_path_create(p.steps, p.count, path_p, error);
    }
    for (size_t i = 0; i < p.count; i++) {
        wherry_value_destroy((wherry_value *)p.steps[i].key);
    }
    wh_free(p.steps);
    return status;
}
