#include "state/path.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "state/value.h"

/* Paths as text */

/**
 * True if the byte at `at` is part of a control character: U+0000 to U+001F or U+007F to U+009F,
 * encoded as UTF-8. A terminal would interpret such characters.
 */
static bool is_control(const char *bytes, size_t size, size_t at) {
    unsigned char byte = (unsigned char)bytes[at];
    unsigned char next = at + 1 < size ? (unsigned char)bytes[at + 1] : 0;
    bool begins = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    bool ends = byte >= 0x80 && byte < 0xA0 && at > 0 && (unsigned char)bytes[at - 1] == 0xC2;
    return byte < 0x20 || byte == 0x7F || begins || ends;
}

void wh_quoted_append(wh_string *text, const char *bytes, size_t size, bool escape_all) {
    wh_string_append(text, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        const char *escape = byte == '"'    ? "\\\""
                             : byte == '\\' ? "\\\\"
                             : byte == '\n' ? "\\n"
                             : byte == '\r' ? "\\r"
                             : byte == '\t' ? "\\t"
                                            : NULL;
        if (escape) {
            wh_string_append(text, escape, 2);
        } else if (is_control(bytes, size, i) || (escape_all && byte >= 0x80)) {
            wh_string_format(text, "\\x%02x", byte);
        } else {
            wh_string_append(text, bytes + i, 1);
        }
    }
    wh_string_append(text, "\"", 1);
}

static void append_float(wh_string *text, double number) {
    if (isnan(number)) {
        wh_string_format(text, "nan:%016llx", (unsigned long long)wh_double_bits(number));
    } else if (isinf(number)) {
        wh_string_format(text, "%sinf", number < 0 ? "-" : "");
    } else {
        char plain[WH_DOUBLE_TEXT_MAX];
        wh_string_format(text, "%s", wh_double_format(number, plain));
    }
}

void wh_scalar_append(wh_string *text, const wherry_value *scalar) {
    switch (wherry_value_kind(scalar)) {
    case WHERRY_KIND_BOOL:
        wh_string_format(text, "%s", scalar->as.boolean ? "true" : "false");
        break;
    case WHERRY_KIND_INT:
        wh_string_format(text, "%lld", (long long)scalar->as.integer);
        break;
    case WHERRY_KIND_BIGINT:
        wh_string_format(text, "%s0x", scalar->as.text.negative ? "-" : "");
        for (size_t i = 0; i < scalar->as.text.size; i++) {
            wh_string_format(text, i ? "%02x" : "%x", (unsigned char)scalar->as.text.bytes[i]);
        }
        break;
    case WHERRY_KIND_FLOAT:
        append_float(text, scalar->as.numbers[0]);
        break;
    case WHERRY_KIND_COMPLEX:
        wh_string_append(text, "c(", 2);
        append_float(text, scalar->as.numbers[0]);
        wh_string_append(text, ",", 1);
        append_float(text, scalar->as.numbers[1]);
        wh_string_append(text, ")", 1);
        break;
    case WHERRY_KIND_STRING:
        wh_quoted_append(text, scalar->as.text.bytes, scalar->as.text.size, false);
        break;
    case WHERRY_KIND_BYTES:
        wh_string_append(text, "b", 1);
        wh_quoted_append(text, scalar->as.text.bytes, scalar->as.text.size, true);
        break;
    default:
        wh_string_append(text, "none", 4);
        break;
    }
}

/** The length of the C identifier at the beginning of a text. */
static size_t name_length(const char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        char c = text[at];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (at == 0 || c < '0' || c > '9')) {
            break;
        }
        at++;
    }
    return at;
}

static bool is_name(const wh_content *text) {
    return text->size > 0 && name_length(text->bytes, text->size) == text->size;
}

static void append_step(wh_string *text, const wherry_step *step, bool first) {
    if (!step->key) {
        wh_string_format(text, "[%llu]", (unsigned long long)step->index);
    } else if (step->key->kind != WHERRY_KIND_STRING) {
        wh_string_append(text, "{", 1);
        wh_scalar_append(text, step->key);
        wh_string_append(text, "}", 1);
    } else if (is_name(&step->key->as.text)) {
        wh_string_format(text, "%s%s", first ? "" : ".", step->key->as.text.bytes);
    } else {
        wh_string_append(text, "[", 1);
        wh_scalar_append(text, step->key);
        wh_string_append(text, "]", 1);
    }
}

void wh_path_append(wh_string *text, const wherry_step *steps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        append_step(text, steps + i, i == 0);
    }
}

/**
 * Finds the step from the parent of a value to the value. @return false if there is no step. This
 * is the case if the parent is an object, or if the value is a local tensor or a key.
 */
static bool step_to(const wherry_value *value, wherry_step *step_p) {
    size_t count = value->parent->kind == WHERRY_KIND_OBJECT ? 0 : wh_child_count(value->parent);
    for (size_t i = 0; i < count; i++) {
        if (wh_child_at(value->parent, i, step_p) == value) {
            return true;
        }
    }
    return false;
}

/** Appends the path from `root`, or from the root of the tree. @return true if it has no steps. */
static bool append_below(wh_string *text, const wherry_value *root, const wherry_value *value) {
    if (!value->parent || value == root) {
        return true;
    }
    bool first = append_below(text, root, value->parent);
    wherry_step step;
    if (step_to(value, &step)) {
        append_step(text, &step, first);
        first = false;
    }
    return first;
}

void wh_value_path_append(wh_string *text, const wherry_value *value) {
    append_below(text, NULL, value);
}

void wh_fail_value_below(wherry_error *error, const wherry_value *root, const wherry_value *value) {
    if (error) {
        wh_string text = {0};
        append_below(&text, root, value);
        if (text.bytes && !text.failed) {
            wh_fail_path(error, text.bytes);
        }
        wh_free(text.bytes);
    }
}

void wh_fail_value(wherry_error *error, const wherry_value *value) {
    wh_fail_value_below(error, NULL, value);
}

/* Path objects */

wherry_status wherry_path_create(const wherry_step *steps, size_t count, wherry_path **path_p, wherry_error *error) {
    if ((count && !steps) || !path_p || count > WHERRY_PATH_STEPS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "steps and path_p must not be NULL, and a path has at most %d steps", WHERRY_PATH_STEPS_MAX);
    }
    wherry_path *path = wh_alloc(sizeof(*path) + count * sizeof(*steps));
    WH_TRY_ALLOC(path, error, "a path");
    *path = (wherry_path){(wherry_step *)(path + 1), 0, true};
    for (; path->count < count; path->count++) {
        wherry_step *step = path->steps + path->count;
        *step = steps[path->count];
        wherry_status status = WHERRY_OK;
        if (step->key && !wh_value_is_scalar(step->key)) {
            status =
                wh_fail(error, WHERRY_INVALID_ARGUMENT, "the key of step %zu of the path is not a scalar", path->count);
        } else if (step->key) {
            status = wherry_value_copy(step->key, (wherry_value **)&step->key, error);
        }
        if (status != WHERRY_OK) {
            wherry_path_destroy(path);
            return status;
        }
    }
    *path_p = path;
    return WHERRY_OK;
}

void wherry_path_destroy(wherry_path *path) {
    for (size_t i = 0; path && path->owns_keys && i < path->count; i++) {
        wherry_value_destroy((wherry_value *)path->steps[i].key);
    }
    wh_free(path);
}

wherry_status wherry_path_format(const wherry_path *path, char **text_p, wherry_error *error) {
    wh_string text = {0};
    wh_path_append(&text, path->steps, path->count);
    char *taken = wh_string_take(&text);
    WH_TRY_ALLOC(taken, error, "the text of a path");
    *text_p = taken;
    return WHERRY_OK;
}

size_t wherry_path_count(const wherry_path *path) {
    return path->count;
}

const wherry_step *wherry_path_at(const wherry_path *path, size_t index) {
    return index < path->count ? path->steps + index : NULL;
}

bool wherry_path_equal(const wherry_path *one, const wherry_path *other) {
    if (one->count != other->count) {
        return false;
    }
    for (size_t i = 0; i < one->count; i++) {
        const wherry_step *a = one->steps + i;
        const wherry_step *b = other->steps + i;
        if (!a->key != !b->key || (a->key ? !wh_scalar_equal(a->key, b->key) : a->index != b->index)) {
            return false;
        }
    }
    return true;
}

wherry_value *wherry_value_at(const wherry_value *root, const wherry_path *path) {
    const wherry_value *at = root;
    for (size_t i = 0; i < path->count && at; i++) {
        const wherry_step *step = path->steps + i;
        at = wh_value_inside(at);
        at = step->key ? wherry_dict_find(at, step->key) : wherry_sequence_at(at, step->index);
    }
    return (wherry_value *)(at ? wh_value_inside(at) : NULL);
}

wherry_status wherry_value_find(const wherry_value *root, const char *text, wherry_value **value_p,
                                wherry_error *error) {
    wherry_path *path = NULL;
    WH_TRY(wherry_path_parse(text, strlen(text), &path, error));
    assert(path);
    wherry_value *value = wherry_value_at(root, path);
    wherry_path_destroy(path);
    if (!value) {
        wh_fail(error, WHERRY_NOT_FOUND, "there is nothing at '%.200s'; wherry_flatten lists the paths of a state",
                text);
        wh_fail_path(error, text);
        return WHERRY_NOT_FOUND;
    }
    *value_p = value;
    return WHERRY_OK;
}

/* The children of a value */

size_t wh_child_count(const wherry_value *value) {
    const wherry_value *inside = wh_value_inside(value);
    return inside->kind == WHERRY_KIND_DICT ? inside->as.dict->count : wherry_sequence_count(inside);
}

/**
 * How many children ahead to prefetch. The distance is large enough for the data to arrive in time,
 * and small enough for the data to stay in the cache until it is used. AHEAD is for the child
 * itself. HALFWAY is for the storage of a tensor, whose address is known only when the child has
 * arrived.
 */
enum { AHEAD = 16, HALFWAY = 8 };

static void prefetch(const wherry_value *value) {
    __builtin_prefetch(value);
    __builtin_prefetch((const char *)value + 64);
}

void wh_child_ahead(const wherry_value *value, size_t index) {
    if (value->kind == WHERRY_KIND_DICT) {
        const wh_dict *dict = value->as.dict;
        if (index + AHEAD < dict->count) {
            prefetch(dict->entries[index + AHEAD].item);
            prefetch(dict->entries[index + AHEAD].key);
            const wherry_value *halfway = dict->entries[index + HALFWAY].item;
            if (halfway->kind == WHERRY_KIND_TENSOR) {
                __builtin_prefetch(halfway->as.tensor->storage);
            }
        }
    } else if (index + AHEAD < wherry_sequence_count(value)) {
        prefetch(value->as.sequence.items[index + AHEAD]);
    }
}

wherry_value *wh_child_at(const wherry_value *value, size_t index, wherry_step *step_p) {
    wh_child_ahead(value, index);
    if (value->kind == WHERRY_KIND_DICT) {
        *step_p = (wherry_step){value->as.dict->entries[index].key, 0};
        return value->as.dict->entries[index].item;
    }
    *step_p = (wherry_step){NULL, index};
    return value->as.sequence.items[index];
}

/* Parsing the text of a path */

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
    return wh_fail_at(p->error, WHERRY_BAD_PATH, at, "invalid path, %s at byte %zu: '%.*s'", what, at,
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

/**
 * Reads an escape sequence; p->at is after the backslash. @return the byte that it stands for, or
 * -1 if it is invalid.
 */
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
            int high = wh_hex_digit(p->text[p->at]);
            int low = wh_hex_digit(p->text[p->at + 1]);
            p->at += 2;
            return high < 0 || low < 0 ? -1 : high * 16 + low;
        }
        return -1;
    default:
        return -1;
    }
}

/** Reads a quoted text; p->at is at the first quotation mark. */
static wherry_status take_quoted(parser *p, wh_string *content) {
    size_t begin = p->at;
    if (!take(p, '"')) {
        return refuse(p, begin, "missing quotation mark");
    }
    while (p->at < p->size && p->text[p->at] != '"') {
        char c = p->text[p->at++];
        if (c == '\\') {
            int byte = take_escape(p);
            if (byte < 0) {
                return refuse(p, begin, "invalid escape in the quoted text");
            }
            c = (char)byte;
        }
        wh_string_append(content, &c, 1);
    }
    if (!take(p, '"')) {
        return refuse(p, begin, "missing closing quotation mark");
    }
    wh_string_append(content, "", 0);
    return content->failed ? wh_fail_memory(p->error, "a path") : WHERRY_OK;
}

static wherry_status add_step(parser *p, wherry_value *key, uint64_t index) {
    wherry_status status = WHERRY_OK;
    if (p->count == WHERRY_PATH_STEPS_MAX) {
        status = refuse(p, p->at, "too many steps");
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
        return refuse(p, at, "string that is not UTF-8");
    }
    wherry_value *key = NULL;
    WH_TRY(wherry_string_create(bytes, size, &key, p->error));
    return add_step(p, key, 0);
}

static wherry_status parse_name(parser *p) {
    size_t begin = p->at;
    p->at += name_length(p->text + begin, p->size - begin);
    if (p->at == begin) {
        return refuse(p, begin, "missing name, or name that needs [\"...\"]");
    }
    return add_string(p, begin, p->text + begin, p->at - begin);
}

static wherry_status parse_bracket(parser *p) {
    size_t begin = p->at;
    if (next_is(p, '"')) {
        wh_string content = {0};
        wherry_status status = take_quoted(p, &content);
        WH_THEN(status, add_string(p, begin, content.bytes, content.size));
        wh_free(content.bytes);
        return status;
    }
    uint64_t index = 0;
    while (p->at < p->size && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (__builtin_mul_overflow(index, 10, &index) ||
            __builtin_add_overflow(index, (uint64_t)(p->text[p->at] - '0'), &index)) {
            return refuse(p, begin, "number too large");
        }
        p->at++;
    }
    return p->at == begin ? refuse(p, begin, "missing number or quoted text") : add_step(p, NULL, index);
}

/** Reads a float. @return false unless the whole word is a float. */
static bool read_float(const char *word, double *number_p) {
    if (strncmp(word, "nan:", 4) == 0) {
        char *end;
        uint64_t bits = strlen(word) == 20 && wh_hex_digit(word[4]) >= 0 ? strtoull(word + 4, &end, 16) : 0;
        *number_p = wh_bits_double(bits);
        return bits && !*end && *number_p != *number_p;
    }
    if (strcmp(word, "inf") == 0 || strcmp(word, "-inf") == 0) {
        *number_p = *word == '-' ? -INFINITY : INFINITY;
        return true;
    }
    return strpbrk(word, ".e") && wh_double_parse(word, number_p);
}

/** Reads an integer: decimal if it fits in int64_t, or hexadecimal of any size. */
static wherry_status read_integer(const parser *p, size_t at, const char *word, wherry_value **key_p) {
    bool negative = *word == '-';
    const char *digits = word + negative;
    size_t size = strlen(digits);
    if (strncmp(digits, "0x", 2) != 0) {
        char *end;
        errno = 0;
        long long number = strtoll(word, &end, 10);
        bool fine = *digits >= '0' && *digits <= '9' && !*end && !errno;
        return fine ? wherry_int_create(number, key_p, p->error) : refuse(p, at, "invalid key");
    }
    digits += 2;
    size -= 2;
    uint8_t *magnitude = wh_alloc_zeroed(size / 2 + 1, 1);
    WH_TRY_ALLOC(magnitude, p->error, "a path");
    bool fine = size > 0;
    for (size_t i = 0; i < size && fine; i++) {
        int digit = wh_hex_digit(digits[size - 1 - i]);
        fine = digit >= 0;
        magnitude[size / 2 - i / 2] |= (uint8_t)((unsigned)digit << (i % 2 * 4));
    }
    wherry_status status = fine ? wherry_bigint_create(negative, magnitude, size / 2 + 1, key_p, p->error)
                                : refuse(p, at, "missing or invalid hexadecimal digit");
    wh_free(magnitude);
    return status;
}

static wherry_status read_complex(const parser *p, size_t at, char *word, wherry_value **key_p) {
    size_t size = strlen(word);
    char *comma = strchr(word, ',');
    double real;
    double imaginary;
    if (size < 4 || word[size - 1] != ')' || !comma) {
        return refuse(p, at, "invalid key");
    }
    word[size - 1] = '\0';
    *comma = '\0';
    if (!read_float(word + 2, &real) || !read_float(comma + 1, &imaginary)) {
        return refuse(p, at, "invalid complex number");
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
        WH_THEN(status, wherry_bytes_create(content.bytes, content.size, &key, p->error));
        wh_free(content.bytes);
    } else {
        while (p->at < p->size && p->text[p->at] != '}') {
            p->at++;
        }
        char *word = wh_text_copy(p->text + begin, p->at - begin);
        WH_TRY_ALLOC(word, p->error, "a path");
        status = memchr(word, 0, p->at - begin) ? refuse(p, begin, "invalid key") : read_word(p, begin, word, &key);
        wh_free(word);
    }
    return status == WHERRY_OK ? add_step(p, key, 0) : status;
}

static wherry_status parse_step(parser *p) {
    if (take(p, '[')) {
        wherry_status status = parse_bracket(p);
        return status != WHERRY_OK || take(p, ']') ? status : refuse(p, p->at, "missing ]");
    }
    if (take(p, '{')) {
        wherry_status status = parse_brace(p);
        return status != WHERRY_OK || take(p, '}') ? status : refuse(p, p->at, "missing }");
    }
    if (p->count > 0 && !take(p, '.')) {
        return refuse(p, p->at, "step that does not begin with . or [ or {");
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
    WH_THEN(status, wherry_path_create(p.steps, p.count, path_p, error));
    for (size_t i = 0; i < p.count; i++) {
        wherry_value_destroy((wherry_value *)p.steps[i].key);
    }
    wh_free(p.steps);
    return status;
}

/* Flatten and unflatten */

/** A leaf. Its path has path.count steps, which start at steps[first] of the wherry_flat. */
typedef struct leaf {
    const wherry_value *value;
    wherry_path path;
    size_t first;
} leaf;

struct wherry_flat {
    const wherry_value *state;
    leaf *leaves;
    size_t count;
    size_t capacity;
    /** The steps of all leaves, one leaf after the other. The keys belong to the tree. */
    wherry_step *steps;
    size_t step_count;
    size_t step_capacity;
};

/** A step and the steps above it. The walk keeps them on its stack. */
typedef struct trail {
    const struct trail *above; /**< NULL at the first step. */
    wherry_step step;
} trail;

static bool add_leaf(wherry_flat *flat, const wherry_value *value, const trail *last) {
    if (!WH_GROW(flat->leaves, flat->capacity, flat->count)) {
        return false;
    }
    leaf *added = flat->leaves + flat->count;
    *added = (leaf){value, {NULL, 0, false}, flat->step_count};
    for (const trail *at = last; at; at = at->above) {
        added->path.count++;
    }
    if (!WH_GROW(flat->steps, flat->step_capacity, flat->step_count + added->path.count)) {
        return false;
    }
    flat->step_count += added->path.count;
    size_t end = flat->step_count;
    for (const trail *at = last; at; at = at->above) {
        flat->steps[--end] = at->step;
    }
    flat->count++;
    return true;
}

static bool walk(wherry_flat *flat, const wherry_value *value, const trail *above) {
    const wherry_value *inside = wh_value_inside(value);
    size_t count = wh_child_count(inside);
    if (count == 0) {
        return add_leaf(flat, inside, above);
    }
    for (size_t i = 0; i < count; i++) {
        trail here = {.above = above};
        const wherry_value *child = wh_child_at(inside, i, &here.step);
        if (!walk(flat, child, &here)) {
            return false;
        }
    }
    return true;
}

wherry_status wherry_flatten(const wherry_value *state, wherry_flat **flat_p, wherry_error *error) {
    if (!state || !flat_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "state and flat_p must not be NULL");
    }
    wherry_flat *flat = wh_alloc_zeroed(1, sizeof(*flat));
    WH_TRY_ALLOC(flat, error, "the leaves of a state");
    flat->state = state;
    if (!walk(flat, state, NULL)) {
        wherry_flat_destroy(flat);
        return wh_fail_memory(error, "the leaves of a state");
    }
    for (size_t i = 0; i < flat->count; i++) {
        flat->leaves[i].path.steps = flat->steps + flat->leaves[i].first;
    }
    *flat_p = flat;
    return WHERRY_OK;
}

void wherry_flat_destroy(wherry_flat *flat) {
    if (flat) {
        wh_free(flat->leaves);
        wh_free(flat->steps);
        wh_free(flat);
    }
}

size_t wherry_flat_count(const wherry_flat *flat) {
    return flat->count;
}

const wherry_path *wherry_flat_path(const wherry_flat *flat, size_t index) {
    return index < flat->count ? &flat->leaves[index].path : NULL;
}

const wherry_value *wherry_flat_leaf(const wherry_flat *flat, size_t index) {
    return index < flat->count ? flat->leaves[index].value : NULL;
}

/** Replaces each NONE leaf of a tree by the next of the given leaves. */
static void plant(wherry_value **slot, wherry_value *parent, wherry_value *const **next) {
    wherry_value *value = *slot;
    if (value->kind == WHERRY_KIND_OBJECT) {
        plant(&value->as.object.payload, value, next);
    } else if (wh_child_count(value) == 0) {
        wherry_value_destroy(value);
        *slot = *(*next)++;
        wh_value_adopt(parent, *slot);
    } else {
        bool dict = value->kind == WHERRY_KIND_DICT;
        for (size_t i = 0; i < wh_child_count(value); i++) {
            plant(dict ? &value->as.dict->entries[i].item : value->as.sequence.items + i, value, next);
        }
    }
}

static wherry_status none_for_leaf(void *context, const wherry_value *before, wherry_value **copy_p,
                                   wherry_error *error) {
    (void)context, (void)before;
    return wherry_none_create(copy_p, error);
}

/** The number of containers and objects that surround a leaf in the flat state. */
static uint32_t depth_of(const wherry_flat *flat, size_t index) {
    uint32_t depth = 0;
    for (const wherry_value *at = flat->leaves[index].value; at != flat->state; at = at->parent) {
        depth++;
    }
    return depth;
}

/**
 * True if the leaves are different values, none is NULL, none has an owner, and none makes the tree
 * too deep.
 */
static bool leaves_are_fit(const wherry_flat *flat, wherry_value *const *leaves) {
    size_t seen = 0;
    bool fit = true;
    while (seen < flat->count && fit) {
        fit = leaves[seen] && wh_value_claim(leaves[seen]);
        if (fit) {
            fit = depth_of(flat, seen) + leaves[seen]->height <= WHERRY_DEPTH_MAX;
            seen++;
        }
    }
    for (size_t i = 0; i < seen; i++) {
        leaves[i]->parent = NULL;
    }
    return fit;
}

wherry_status wherry_unflatten(const wherry_flat *flat, wherry_value *const *leaves, size_t count,
                               wherry_value **state_p, wherry_error *error) {
    if (!flat || !leaves || !state_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "flat, leaves and state_p must not be NULL");
    }
    if (count != flat->count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%zu leaves given, but the flat state has %zu", count,
                       flat->count);
    }
    if (!leaves_are_fit(flat, leaves)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "no leaf may be NULL, occur twice, belong to a container, or make the state deeper than %d levels",
            WHERRY_DEPTH_MAX);
    }
    wherry_value *state;
    WH_TRY(wh_value_rebuild(flat->state, none_for_leaf, NULL, &state, error));
    plant(&state, NULL, &leaves);
    *state_p = state;
    return WHERRY_OK;
}
