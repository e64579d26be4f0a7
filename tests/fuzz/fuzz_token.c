/*
 * A token from a user, or from the person who gave it to them. Each token has only one valid form.
 */
#include <string.h>

#include "group/token.h"
#include "require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[256];
    char again[WH_TOKEN_CHARS + 1];
    wh_token token;
    if (size >= sizeof(text) || memchr(data, 0, size)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (wh_token_decode(text, &token, NULL) == WHERRY_OK) {
        wh_token_encode(&token, again);
        REQUIRE(strcmp(text, again) == 0);
    }
    return 0;
}
