/*
 * A user's program. It includes all headers, links with the flags of pkg-config, and encodes and
 * decodes a manifest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

int main(void) {
    if (strcmp(wherry_version(), WHERRY_VERSION_STRING) != 0) {
        fprintf(stderr, "headers %s, library %s\n", WHERRY_VERSION_STRING, wherry_version());
        return EXIT_FAILURE;
    }
    wherry_error error;
    wherry_value *state = NULL;
    wherry_prepared *sent = NULL;
    wherry_prepared *received = NULL;
    void *bytes = NULL;
    size_t size = 0;
    wherry_status status = wherry_dict_create(&state, &error);
    if (status == WHERRY_OK) {
        status = wherry_prepare(state, NULL, &sent, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_manifest_encode(sent, &bytes, &size, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_manifest_decode(bytes, size, NULL, &received, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_value_compare(state, wherry_prepared_state(received), WHERRY_COMPARE_ALL, &error);
    }
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
    }
    wherry_prepared_destroy(received);
    wherry_prepared_destroy(sent);
    wherry_free(bytes);
    wherry_value_destroy(state);
    return status == WHERRY_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
