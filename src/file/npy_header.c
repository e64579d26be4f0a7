/* The dict of an npy file: a Python literal with three known keys, of which only what NumPy writes is read. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "file/layout.h"
#include "file/little.h"
#include "file/npy.h"

typedef struct row {
    const char *code; /**< Behind the byte order. */
    wherry_dtype dtype;
} row;

static const row rows[] = {
    {"b1", WHERRY_BOOL}, {"u1", WHERRY_U8},  {"i1", WHERRY_I8},  {"u2", WHERRY_U16},   {"i2", WHERRY_I16},
    {"u4", WHERRY_U32},  {"i4", WHERRY_I32}, {"u8", WHERRY_U64}, {"i8", WHERRY_I64},   {"f2", WHERRY_F16},
    {"f4", WHERRY_F32},  {"f8", WHERRY_F64}, {"c8", WHERRY_C64}, {"c16", WHERRY_C128},
};

enum { ROWS = sizeof(rows) / sizeof(*rows), CODE_MAX = 15 };

static const row *row_of(wherry_dtype dtype) {
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].dtype == dtype) {
            return rows + i;
        }
    }
    return NULL;
}

static bool has_dtype(wherry_dtype dtype) {
    return row_of(dtype) != NULL;
}

const wh_naming wh_npy_naming = {"npy", NULL, true, has_dtype};
const wh_naming wh_npz_naming = {"npz", NULL, true, has_dtype};

typedef struct parsing {
    const char *text;
    size_t size;
    size_t at;
    wh_spot spot; /**< Of the first byte. */
    wherry_error *error;
} parsing;

static wherry_status fail(parsing *p, const char *what) {
    wh_spot spot = p->spot;
    spot.offset += p->at;
    return wh_file_fail(p->error, WHERRY_MALFORMED, spot, "its npy header has no %s at byte %llu", what,
                        (unsigned long long)spot.offset);
}

static char peek(parsing *p) {
    while (p->at < p->size && p->text[p->at] == ' ') {
        p->at++;
    }
    return p->at < p->size ? p->text[p->at] : '\0';
}

static bool take(parsing *p, char wanted) {
    if (peek(p) != wanted) {
        return false;
    }
    p->at++;
    return true;
}

/** A text between quotation marks of either kind, without escapes. @return false where there is none, or it is too long. */
static bool take_text(parsing *p, char text[CODE_MAX + 1]) {
    char mark = peek(p);
    if (mark != '\'' && mark != '"') {
        return false;
    }
    const char *begin = p->text + p->at + 1;
    const char *end = memchr(begin, mark, p->size - p->at - 1);
    if (!end || end - begin > CODE_MAX || memchr(begin, '\\', (size_t)(end - begin))) {
        return false;
    }
    memcpy(text, begin, (size_t)(end - begin));
    text[end - begin] = '\0';
    p->at += (size_t)(end - begin) + 2;
    return true;
}

static bool take_word(parsing *p, const char *word) {
    peek(p);
    size_t length = strlen(word);
    if (p->size - p->at < length || memcmp(p->text + p->at, word, length) != 0) {
        return false;
    }
    p->at += length;
    return true;
}

static bool take_number(parsing *p, int64_t *number_p) {
    uint64_t number = 0;
    size_t digits = 0;
    for (peek(p); p->at < p->size && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++, digits++) {
        if (number > (INT64_MAX - 9) / 10) {
            return false;
        }
        number = number * 10 + (uint64_t)(p->text[p->at] - '0');
    }
    *number_p = (int64_t)number;
    return digits > 0;
}

static wherry_status read_descr(parsing *p, wh_npy *npy) {
    char code[CODE_MAX + 1];
    wh_spot spot = p->spot;
    spot.offset += p->at;
    if (peek(p) == '[') {
        return wh_file_fail(p->error, WHERRY_UNSUPPORTED, spot,
                            "its elements are records, for which Wherry has no type");
    }
    if (!take_text(p, code) || !code[0]) {
        return fail(p, "dtype");
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (strchr("<>|=", code[0]) && strcmp(rows[i].code, code + 1) == 0) {
            npy->dtype = rows[i].dtype;
            if (code[0] == '>' && wherry_dtype_describe(npy->dtype)->bytes > 1) {
                return wh_file_fail(p->error, WHERRY_UNSUPPORTED, spot,
                                    "its elements are big endian; save it with little-endian ones: astype('<%s')",
                                    code + 1);
            }
            return WHERRY_OK;
        }
    }
    return wh_file_fail(p->error, WHERRY_UNSUPPORTED, spot, "Wherry has no element type '%s'%s", code,
                        strchr(code, 'O') ? "; pickled objects are never read" : "");
}

static wherry_status read_shape(parsing *p, wh_npy *npy) {
    if (!take(p, '(')) {
        return fail(p, "shape");
    }
    npy->ndim = 0;
    while (!take(p, ')')) {
        if (npy->ndim == WHERRY_NDIM_MAX || !take_number(p, npy->shape + npy->ndim)) {
            return fail(p, npy->ndim == WHERRY_NDIM_MAX ? "shape of at most 64 dimensions" : "number of a shape");
        }
        npy->ndim++;
        if (!take(p, ',') && (peek(p) != ')' || npy->ndim == 1)) {
            return fail(p, "comma in its shape");
        }
    }
    return WHERRY_OK;
}

static wherry_status read_order(parsing *p, wh_npy *npy) {
    npy->columns = take_word(p, "True");
    return npy->columns || take_word(p, "False") ? WHERRY_OK : fail(p, "fortran_order");
}

wherry_status wh_npy_parse(const char *text, size_t size, wh_spot spot, wh_npy *npy, wherry_error *error) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    wherry_status (*const readers[])(parsing *, wh_npy *) = {read_descr, read_order, read_shape};
    parsing p = {text, size, 0, spot, error};
    unsigned seen = 0;
    if (!take(&p, '{')) {
        return fail(&p, "dict");
    }
    while (!take(&p, '}')) {
        char key[CODE_MAX + 1];
        size_t which = 0;
        if (!take_text(&p, key) || !take(&p, ':')) {
            return fail(&p, "key");
        }
        while (which < 3 && strcmp(keys[which], key) != 0) {
            which++;
        }
        if (which == 3 || seen & 1U << which) {
            wh_spot at = spot;
            at.offset += p.at;
            return wh_file_fail(error, which == 3 ? WHERRY_MALFORMED : WHERRY_REPEATED_KEY, at,
                                "its npy header has '%s'%s", key,
                                which == 3 ? ", which is no part of the format" : " twice");
        }
        seen |= 1U << which;
        wherry_status status = readers[which](&p, npy);
        if (status != WHERRY_OK) {
            return status;
        }
        if (!take(&p, ',') && peek(&p) != '}') {
            return fail(&p, "comma");
        }
    }
    if (seen != 7) {
        return fail(&p, "dtype, order or shape");
    }
    take(&p, '\n');
    return peek(&p) == '\0' && p.at == p.size ? WHERRY_OK : fail(&p, "end");
}

void wh_npy_append(wh_string *out, const wherry_tensor *tensor) {
    enum { PREFIX = 10, ALIGNMENT = 64 };
    bool columns = !wh_tensor_is_dense(tensor, false);
    uint32_t bytes = wherry_dtype_describe(tensor->dtype)->bytes;
    wh_string text = {0};
    wh_string_format(&text, "{'descr': '%c%s', 'fortran_order': %s, 'shape': (", bytes == 1 ? '|' : '<',
                     row_of(tensor->dtype)->code, columns ? "True" : "False");
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        wh_string_format(&text, "%s%" PRId64 "%s", i ? ", " : "", tensor->shape[i], tensor->ndim == 1 ? "," : "");
    }
    wh_string_format(&text, "), }");
    while (!text.failed && (PREFIX + text.size + 1) % ALIGNMENT != 0) {
        wh_string_append(&text, " ", 1);
    }
    wh_string_append(&text, "\n", 1);
    wh_string_append(out, "\x93NUMPY\1\0", 8);
    wh_append_little(out, text.size, 2); /* 64 dimensions of 19 digits are far from its end */
    wh_string_append(out, text.failed ? "" : text.bytes, text.failed ? 0 : text.size);
    out->failed = out->failed || text.failed;
    wh_free(text.bytes);
}

wherry_tensor wh_npy_tensor(const wh_npy *npy) {
    return (wherry_tensor){.dtype = npy->dtype, .ndim = npy->ndim, .shape = npy->shape, .strides = npy->strides};
}
