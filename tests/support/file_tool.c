/*
 * Reads and writes checkpoint files, for tests in Python:
 *
 *   file_tool list FILE         path, dtype, shape, strides and bytes per tensor; then metadata
 *   file_tool convert FILE OUT  writes the state of FILE to OUT
 *   file_tool verify FILE       opens FILE and compares its digests
 *   file_tool open FILE         opens FILE and prints the peak memory of this process, in KiB
 *
 * On failure it prints "STATUS OFFSET PATH MESSAGE" to standard error and exits with status 1.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/file.h>
#include <wherry/wherry.h>

static int fail(const wherry_error *error) {
    fprintf(stderr, "%s\t%" PRId64 "\t%s\t%s\n", wherry_status_name(error->status), (int64_t)error->offset, error->path,
            error->message);
    return EXIT_FAILURE;
}

static void print_numbers(uint32_t count, const int64_t *numbers) {
    for (uint32_t i = 0; i < count; i++) {
        printf("%s%" PRId64, i ? "," : "", numbers[i]);
    }
    printf("\t");
}

/** The bytes of a dense tensor, in hexadecimal. */
static void print_bytes(const wherry_tensor *tensor) {
    uint32_t width = wherry_dtype_describe(tensor->dtype)->bytes;
    const unsigned char *bytes = wherry_storage_data(tensor->storage);
    for (uint64_t i = 0; i < wherry_tensor_count(tensor) * width; i++) {
        printf("%02x", bytes[(uint64_t)tensor->offset * width + i]);
    }
}

static int list(const wherry_value *state) {
    wherry_flat *flat;
    wherry_error error;
    if (wherry_flatten(state, &flat, &error) != WHERRY_OK) {
        return fail(&error);
    }
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        const wherry_value *leaf = wherry_flat_leaf(flat, i);
        const wherry_tensor *tensor = wherry_tensor_get(leaf);
        char *path;
        if (wherry_path_format(wherry_flat_path(flat, i), &path, &error) != WHERRY_OK) {
            return fail(&error);
        }
        printf("%s\t", path);
        if (tensor) {
            printf("%s\t", wherry_dtype_describe(tensor->dtype)->name);
            print_numbers(tensor->ndim, tensor->shape);
            print_numbers(tensor->ndim, tensor->strides);
            print_bytes(tensor);
        } else {
            printf("%s\t%s", wherry_kind_name(wherry_value_kind(leaf)),
                   wherry_string_get(leaf, NULL) ? wherry_string_get(leaf, NULL) : "");
        }
        printf("\n");
        wherry_free(path);
    }
    wherry_flat_destroy(flat);
    return EXIT_SUCCESS;
}

static int convert(const wherry_value *state, const char *path) {
    wherry_error error;
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = WHERRY_FILE_DIGESTS;
    const char *shard_bytes = getenv("SHARD_BYTES");
    options.shard_bytes = shard_bytes ? strtoull(shard_bytes, NULL, 10) : options.shard_bytes;
    return wherry_file_write(path, state, &options, &error) == WHERRY_OK ? EXIT_SUCCESS : fail(&error);
}

static int print_memory(void) {
    char line[256];
    FILE *in = fopen("/proc/self/status", "r");
    while (in && fgets(line, sizeof(line), in)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            printf("%llu\n", strtoull(line + 6, NULL, 10));
        }
    }
    return in && fclose(in) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    wherry_file *file;
    wherry_error error;
    wherry_file_open_options options;
    wherry_file_open_options_init(&options);
    if (argc < 3) {
        return 2;
    }
    if (wherry_file_open(argv[2], &options, &file, &error) != WHERRY_OK) {
        return fail(&error);
    }
    int result = EXIT_SUCCESS;
    if (strcmp(argv[1], "convert") == 0 && argc == 4) {
        result = convert(wherry_file_state(file), argv[3]);
    } else if (strcmp(argv[1], "verify") == 0) {
        result = wherry_file_verify(file, &error) == WHERRY_OK ? EXIT_SUCCESS : fail(&error);
    } else if (strcmp(argv[1], "open") == 0) {
        result = print_memory();
    } else if (strcmp(argv[1], "list") == 0) {
        result = list(wherry_file_state(file));
    }
    wherry_file_close(file);
    return result;
}
