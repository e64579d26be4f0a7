/* A user's program that opens the file that it has just written. */
#include <stdio.h>
#include <stdlib.h>

#include <wherry/file.h>
#include <wherry/wherry.h>

int main(int argc, char **argv) {
    wherry_error error;
    wherry_value *state = NULL;
    wherry_file *file = NULL;
    const char *path = argc > 1 ? argv[1] : "consumer.safetensors";
    wherry_status status = wherry_dict_create(&state, &error);
    if (status == WHERRY_OK) {
        status = wherry_file_write(path, state, NULL, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_file_open(path, NULL, &file, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_value_compare(state, wherry_file_state(file), WHERRY_COMPARE_ALL, &error);
    }
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
    }
    wherry_file_close(file);
    wherry_value_destroy(state);
    return status == WHERRY_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
