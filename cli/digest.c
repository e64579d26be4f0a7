/* `wherry digest`: digests of the tensors of checkpoint files, and of all of them together. */
#include <stdlib.h>
#include <string.h>

#include <wherry/digest.h>
#include <wherry/file.h>
#include <wherry/tensor.h>

#include "command.h"
#include "json_out.h"
#include "leaves.h"

enum { HEX_MAX = 2 * WHERRY_DIGEST_BYTES + 1 };

typedef struct digest_options {
    wh_common common;
} digest_options;

static const wh_option options_taken[] = {{.name = NULL}};

static int run(int argc, char **argv);

const wh_command wh_command_digest = {
    .name = "digest",
    .summary = "print the digests of the tensors of checkpoint files",
    .operands = "FILE...",
    .least = 1,
    .most = -1,
    .text = "Prints a digest of the elements of each tensor, XXH3 of 128 bits, and last one of the file's tensors and "
            "values "
            "together: of their names, kinds and digests, in the order of the names. Files of the same content have "
            "the same "
            "digest, whatever their format, strides and order. -q prints that one alone.\n\n"
            "It tells whether bytes are the same; it does not keep anybody from forging them.",
    .options = options_taken,
    .json = true,
    .examples = "wherry digest model.safetensors\n"
                "wherry digest -q a.safetensors b.npz\n",
    .run = run,
};

static void hex(const wherry_digest *digest, char text[HEX_MAX]) {
    for (int i = 0; i < WHERRY_DIGEST_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest->bytes[i]);
    }
}

/** The digest of a text: that of a tensor made of it. */
static wherry_status digest_text(const char *text, size_t size, wherry_digest *digest_p, wherry_error *error) {
    wherry_storage *storage;
    wherry_value *tensor = NULL;
    int64_t shape[] = {(int64_t)size};
    wherry_status status = wherry_storage_wrap((void *)text, size, wherry_device_cpu(), NULL, NULL, &storage, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_tensor_create(&(wherry_tensor){.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = shape},
                                  &tensor, error);
    wherry_storage_unref(storage);
    if (status == WHERRY_OK) {
        status = wherry_tensor_digest(tensor, digest_p, error);
    }
    wherry_value_destroy(tensor);
    return status;
}

static int by_name(const void *one, const void *other) {
    return strcmp(((const wh_leaf *)one)->name, ((const wh_leaf *)other)->name);
}

/** Digests each leaf; tells of it, and notes it for the digest of all. */
static wherry_status digest_leaf(const wh_leaf *leaf, const digest_options *options, wh_json *json, FILE *all,
                                 wherry_error *error) {
    char kind[512];
    char digits[HEX_MAX] = "";
    wherry_digest digest;
    wh_leaf_text(leaf, kind, sizeof(kind));
    if (leaf->tensor) {
        wherry_status status = wherry_tensor_digest(leaf->value, &digest, error);
        if (status != WHERRY_OK) {
            return status;
        }
        hex(&digest, digits);
        if (json) {
            wh_json_text(json, leaf->name, digits);
        } else if (!options->common.quiet) {
            printf("%s  %s\n", digits, leaf->name);
        }
    }
    fprintf(all, "%s %s %s\n", leaf->name, kind, digits);
    return WHERRY_OK;
}

static wherry_status digest_leaves(const char *path, wh_leaves *leaves, const digest_options *options, wh_json *json,
                                   wherry_error *error) {
    char *text = NULL;
    size_t size = 0;
    char digits[HEX_MAX];
    wherry_digest digest;
    FILE *all = open_memstream(&text, &size);
    if (!all) {
        return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a digest");
    }
    qsort(leaves->items, leaves->count, sizeof(*leaves->items), by_name);
    if (json) {
        wh_json_open(json, path, '{');
        wh_json_open(json, "tensors", '{');
    }
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < leaves->count && status == WHERRY_OK; i++) {
        status = digest_leaf(leaves->items + i, options, json, all, error);
    }
    if (fclose(all) != 0 && status == WHERRY_OK) {
        status = wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a digest");
    }
    if (status == WHERRY_OK) {
        status = digest_text(text, size, &digest, error);
    }
    if (status == WHERRY_OK) {
        hex(&digest, digits);
    }
    if (json) {
        wh_json_close(json, '}');
        wh_json_text(json, "all", status == WHERRY_OK ? digits : "");
        wh_json_close(json, '}');
    } else if (status == WHERRY_OK) {
        printf("%s  %s\n", digits, path);
    }
    free(text);
    return status;
}

static int run(int argc, char **argv) {
    digest_options options = {{0}};
    wh_operands operands;
    wherry_error error;
    int code;
    if (!wh_options_parse(&wh_command_digest, argc, argv, &options, &operands, &code)) {
        return code;
    }
    wh_json json = {.out = stdout};
    wherry_status status = WHERRY_OK;
    if (options.common.json) {
        wh_json_open(&json, NULL, '{');
    }
    for (int i = 0; i < operands.count && status == WHERRY_OK; i++) {
        wherry_file *file = NULL;
        wh_leaves leaves = {0};
        status = wherry_file_open(operands.items[i], NULL, &file, &error);
        if (status == WHERRY_OK) {
            status = wh_leaves_list(&leaves, wherry_file_state(file), &error);
        }
        if (status == WHERRY_OK) {
            status = digest_leaves(operands.items[i], &leaves, &options, options.common.json ? &json : NULL, &error);
        }
        wh_leaves_free(&leaves);
        wherry_file_close(file);
    }
    if (options.common.json) {
        wh_json_close(&json, '}');
    }
    return status == WHERRY_OK ? WH_EXIT_OK : wh_fail_status(&wh_command_digest, NULL, &error);
}
