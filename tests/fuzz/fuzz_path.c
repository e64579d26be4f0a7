/*
 * Arbitrary text: parsing gives an error or a path. Formatting a path and parsing the result gives
 * the same path, and formatting that gives the same text.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#include "require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wherry_path *path;
    wherry_path *again;
    char *text;
    char *text_again;
    wherry_error error;
    error.message[0] = '\0';
    wherry_status status = wherry_path_parse((const char *)data, size, &path, &error);
    if (status != WHERRY_OK) {
        REQUIRE(status == WHERRY_BAD_PATH && error.offset <= size && error.message[0]);
        return 0;
    }
    REQUIRE(wherry_path_format(path, &text, NULL) == WHERRY_OK);
    REQUIRE(wherry_path_parse(text, strlen(text), &again, NULL) == WHERRY_OK);
    REQUIRE(wherry_path_equal(path, again));
    REQUIRE(wherry_path_format(again, &text_again, NULL) == WHERRY_OK);
    REQUIRE(strcmp(text, text_again) == 0);
    wherry_free(text);
    wherry_free(text_again);
    wherry_path_destroy(path);
    wherry_path_destroy(again);
    return 0;
}
