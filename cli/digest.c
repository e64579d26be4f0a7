/* `wherry digest`: digests of the tensors of checkpoint files, and of all of them together. */
#include <stdlib.h>
#include <string.h>

#include <wherry/base.h>
#include <wherry/expert.h>
#include <wherry/file.h>
#include <wherry/tensor.h>

#include "command.h"
#include "json_out.h"
#include "leaves.h"
#include "show.h"

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
                "wherry digest -q a.safetensors b.wherry\n",
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

/** One of the tensors that a leaf is made of: itself, or what is here of a DTensor or a ShardedTensor. NULL behind the last. */
static const wherry_value *tensor_of(const wherry_value *leaf, uint32_t number) {
    const wherry_dtensor *dtensor = wherry_dtensor_get(leaf);
    const wherry_sharded *sharded = wherry_sharded_get(leaf);
    if (sharded) {
        return number < sharded->shard_count ? sharded->shards[number].tensor : NULL;
    }
    return number > 0 ? NULL : dtensor ? dtensor->local : wherry_tensor_get(leaf) ? leaf : NULL;
}

/** What a leaf is, besides the elements of its tensors: dtype and shape of a tensor, anything else in full. */
static wherry_status describe(const wh_leaf *leaf, char *text, size_t size, wherry_error *error) {
    wherry_prepared *prepared = NULL;
    void *manifest = NULL;
    size_t length = 0;
    wherry_digest digest;
    char digits[HEX_MAX];
    if (leaf->tensor) {
        wh_leaf_text(leaf, text, size);
        return WHERRY_OK;
    }
    wherry_status status = wherry_prepare(leaf->value, NULL, &prepared, error);
    if (status == WHERRY_OK) {
        status = wherry_manifest_encode(prepared, &manifest, &length, error);
    }
    if (status == WHERRY_OK) {
        status = digest_text(manifest, length, &digest, error);
    }
    if (status == WHERRY_OK) {
        hex(&digest, digits);
        snprintf(text, size, "%s %s", wherry_kind_name(wherry_value_kind(leaf->value)), digits);
    }
    wherry_free(manifest);
    wherry_prepared_destroy(prepared);
    return status;
}

/** Digests a tensor, tells of it, and notes it for the digest of all. */
static wherry_status digest_tensor(const char *name, const wherry_value *tensor, const digest_options *options,
                                   wh_json *json, FILE *all, wherry_error *error) {
    char digits[HEX_MAX];
    wherry_digest digest;
    wherry_status status = wherry_tensor_digest(tensor, &digest, error);
    if (status != WHERRY_OK) {
        return status;
    }
    hex(&digest, digits);
    if (json) {
        wh_json_text(json, name, digits);
    } else if (!options->common.quiet) {
        printf("%s  ", digits);
        wh_print_plain(stdout, name);
        printf("\n");
    }
    fprintf(all, " %s", digits);
    return WHERRY_OK;
}

static wherry_status digest_leaf(const wh_leaf *leaf, const digest_options *options, wh_json *json, FILE *all,
                                 wherry_error *error) {
    char kind[2048]; /* 64 sizes of 19 digits have room */
    wherry_status status = describe(leaf, kind, sizeof(kind), error);
    if (status != WHERRY_OK) {
        return status;
    }
    fprintf(all, "%s %s", leaf->name, kind);
    for (uint32_t i = 0; status == WHERRY_OK && tensor_of(leaf->value, i); i++) {
        char *name = NULL;
        bool shard = wherry_sharded_get(leaf->value);
        if ((shard ? asprintf(&name, "%s[%u]", leaf->name, i) : asprintf(&name, "%s", leaf->name)) < 0) {
            return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a name");
        }
        status = digest_tensor(name, tensor_of(leaf->value, i), options, json, all, error);
        free(name);
    }
    fputc('\n', all);
    return status;
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
    wh_leaves_sort(leaves);
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
        printf("%s  ", digits);
        wh_print_plain(stdout, path);
        printf("\n");
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
