#include "file/json.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/** Skips white space. @return the next character, which stays unread; 0 at the end. */
static char peek(wh_json *json) {
    while (json->at < json->size && json->text[json->at] && strchr(" \t\n\r", json->text[json->at])) {
        json->at++;
    }
    return json->at < json->size ? json->text[json->at] : '\0';
}

static unsigned long long byte_of_file(const wh_json *json) {
    return json->begin + json->at;
}

static wherry_status expect(wh_json *json, char wanted, wherry_error *error) {
    if (peek(json) != wanted) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "bad JSON at byte %llu: expected '%c'",
                            byte_of_file(json), wanted);
    }
    json->at++;
    return WHERRY_OK;
}

/**
 * True if an allocation of a few KiB succeeds. Jansson may report a lack of memory as bad syntax.
 * This function tells which of the two it was.
 */
static bool has_memory(const wh_json *json) {
    enum { PROBED = 4096 };
    size_t left = json->size - json->at;
    json_t *probe = json_stringn_nocheck(json->text + json->at, left < PROBED ? left : PROBED);
    json_decref(probe);
    return probe != NULL;
}

/**
 * Reports a failure of Jansson. @param clipped true if Jansson got only the next `most` bytes of
 * the text.
 */
static wherry_status fail_parse(wh_json *json, const json_error_t *why, bool clipped, size_t most,
                                wherry_error *error) {
    enum json_error_code code = json_error_code(why);
    if (code == json_error_unknown || code == json_error_out_of_memory || !has_memory(json)) {
        return wh_fail_memory(error, "a JSON value");
    }
    if (code == json_error_premature_end_of_input && clipped) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_json_spot(json), "a JSON value takes more than %zu bytes", most);
    }
    wherry_status status = code == json_error_duplicate_key    ? WHERRY_REPEATED_KEY
                           : code == json_error_stack_overflow ? WHERRY_LIMIT
                                                               : WHERRY_MALFORMED;
    json->at += why->position > 0 ? (size_t)why->position : 0;
    return wh_file_fail(error, status, wh_json_spot(json), "bad JSON at byte %llu: %s", byte_of_file(json), why->text);
}

wherry_status wh_json_value(wh_json *json, size_t most, json_t **value_p, wherry_error *error) {
    json_error_t why;
    peek(json);
    size_t left = json->size - json->at;
    size_t size = left < most ? left : most;
    json_t *value = json_loadb(json->text + json->at, size,
                               JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &why);
    if (!value) {
        return fail_parse(json, &why, size < left, most, error);
    }
    json->at += (size_t)why.position;
    *value_p = value;
    return WHERRY_OK;
}

/**
 * Reads the name of the next member and the colon.
 * @param name_p  the name, which the caller releases with json_decref; NULL at the end of the
 * object.
 */
static wherry_status next_name(wh_json *json, bool first, json_t **name_p, wherry_error *error) {
    if (peek(json) == '}') {
        json->at++;
        *name_p = NULL;
        return WHERRY_OK;
    }
    WH_TRY(first ? WHERRY_OK : expect(json, ',', error));
    if (peek(json) != '"') {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "bad JSON at byte %llu: expected a name",
                            byte_of_file(json));
    }
    json_t *name = NULL;
    wherry_status status = wh_json_value(json, json->size, &name, error);
    WH_THEN(status, expect(json, ':', error));
    if (status != WHERRY_OK) {
        json_decref(name);
        return status;
    }
    *name_p = name;
    return WHERRY_OK;
}

wherry_status wh_json_members(wh_json *json, wh_json_member_fn read, void *context, wherry_error *error) {
    wherry_status status = expect(json, '{', error);
    json_t *name = NULL;
    for (bool first = true; status == WHERRY_OK; first = false) {
        status = next_name(json, first, &name, error);
        if (status != WHERRY_OK || !name) {
            break;
        }
        status = read(context, json, name, error);
        json_decref(name);
    }
    return status;
}

bool wh_json_take_null(wh_json *json) {
    json_t *value = NULL;
    size_t before = json->at;
    bool found = peek(json) == 'n' && wh_json_value(json, json->size, &value, NULL) == WHERRY_OK && json_is_null(value);
    json->at = found ? json->at : before;
    json_decref(value);
    return found;
}

wherry_status wh_json_end(wh_json *json, wherry_error *error) {
    peek(json);
    return json->at == json->size ? WHERRY_OK
                                  : wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json),
                                                 "unexpected bytes after the JSON, at byte %llu", byte_of_file(json));
}

void wh_json_append(wh_string *out, const char *text, size_t size) {
    char small[512];
    json_t *string = json_stringn(text, size);
    size_t needs = string ? json_dumpb(string, small, sizeof(small), JSON_ENCODE_ANY) : 0;
    char *large = needs > sizeof(small) ? wh_alloc(needs) : NULL;
    if (large) {
        needs = json_dumpb(string, large, needs, JSON_ENCODE_ANY);
    }
    if (needs == 0 || (needs > sizeof(small) && !large)) {
        out->failed = true;
    } else {
        wh_string_append(out, large ? large : small, needs);
    }
    wh_free(large);
    json_decref(string);
}
