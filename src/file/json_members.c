#include "file/json_members.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static void skip_space(wh_json *json) {
    while (json->at < json->size && json->text[json->at] && strchr(" \t\n\r", json->text[json->at])) {
        json->at++;
    }
}

/** The byte of the file that it stands at. */
static unsigned long long where(const wh_json *json) {
    return json->begin + json->at;
}

/** The next character that is no white space, not taken; 0 at the end. */
static char peek(wh_json *json) {
    skip_space(json);
    return json->at < json->size ? json->text[json->at] : '\0';
}

static wherry_status expect(wh_json *json, char wanted, wherry_error *error) {
    if (peek(json) != wanted) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "the JSON has no '%c' at byte %llu", wanted,
                            where(json));
    }
    json->at++;
    return WHERRY_OK;
}

/** Whether Jansson gets memory: it takes a text that it has no memory for as bad syntax. */
static bool has_memory(const wh_json *json) {
    enum { PROBED = 4096 };
    size_t left = json->size - json->at;
    json_t *probe = json_stringn_nocheck(json->text + json->at, left < PROBED ? left : PROBED);
    json_decref(probe);
    return probe != NULL;
}

static wherry_status fail_parse(wh_json *json, const json_error_t *why, bool clipped, size_t most,
                                wherry_error *error) {
    enum json_error_code code = json_error_code(why);
    if (code == json_error_unknown || code == json_error_out_of_memory || !has_memory(json)) {
        return wh_fail_memory(error, "a value of JSON");
    }
    if (code == json_error_premature_end_of_input && clipped) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_json_spot(json), "a value of its JSON takes more than %zu bytes",
                            most);
    }
    wherry_status status = code == json_error_duplicate_key    ? WHERRY_REPEATED_KEY
                           : code == json_error_stack_overflow ? WHERRY_LIMIT
                                                               : WHERRY_MALFORMED;
    json->at += why->position > 0 ? (size_t)why->position : 0;
    return wh_file_fail(error, status, wh_json_spot(json), "bad JSON at byte %llu: %s", where(json), why->text);
}

wherry_status wh_json_value(wh_json *json, size_t most, json_t **value_p, wherry_error *error) {
    json_error_t why;
    skip_space(json);
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

/** The name of the next member. @param name_p  to json_decref; NULL behind the last, and the object is left. */
static wherry_status next_name(wh_json *json, bool first, json_t **name_p, wherry_error *error) {
    if (peek(json) == '}') {
        json->at++;
        *name_p = NULL;
        return WHERRY_OK;
    }
    wherry_status status = first ? WHERRY_OK : expect(json, ',', error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (peek(json) != '"') {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "the JSON has no name at byte %llu",
                            where(json));
    }
    json_t *name = NULL;
    status = wh_json_value(json, json->size, &name, error);
    if (status == WHERRY_OK) {
        status = expect(json, ':', error);
    }
    if (status != WHERRY_OK) {
        json_decref(name);
        return status;
    }
    *name_p = name;
    return WHERRY_OK;
}

wherry_status wh_json_members(wh_json *json, wh_json_member_fn take, void *context, wherry_error *error) {
    wherry_status status = expect(json, '{', error);
    json_t *name = NULL;
    for (bool first = true; status == WHERRY_OK; first = false) {
        status = next_name(json, first, &name, error);
        if (status != WHERRY_OK || !name) {
            break;
        }
        status = take(context, json, name, error);
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
    skip_space(json);
    return json->at == json->size ? WHERRY_OK
                                  : wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json),
                                                 "there is something behind the JSON, at byte %llu", where(json));
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
