/* `wherry inspect`: shows the contents of a file or a server, or the digests of a file. */
#include <stdlib.h>
#include <string.h>

#include <wherry/expert.h>
#include <wherry/file.h>

#include "client.h"
#include "command.h"
#include "file_set.h"
#include "output.h"
#include "tensors.h"

enum { HEX_MAX = 2 * WHERRY_DIGEST_BYTES + 1 };

typedef struct inspect_options {
    wh_common common;
    bool digest;
    const char *token_file;
    int64_t timeout;
} inspect_options;

static const wh_option options_taken[] = {
    WH_OPTION(inspect_options, digest, FLAG, "digest", 'd', NULL,
              "print the digest of each tensor and of the whole file (with -q: of the file only)"),
    WH_OPTION(inspect_options, token_file, FILE, "token-file", 't', "FILE",
              "for an ADDRESS: read the token from FILE (default: the environment variable WHERRY_TOKEN, or a prompt)"),
    WH_OPTION(inspect_options, timeout, NUMBER, "timeout", 0, "SECONDS",
              "for an ADDRESS: how long to wait for an answer (default 30)", .least = 1, .most = 1000000),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_inspect = {
    .name = "inspect",
    .summary = "show the contents of a checkpoint file or of a server",
    .operands = "FILE|ADDRESS",
    .least = 1,
    .most = 1,
    .text =
        "Prints the tree of a checkpoint: containers, values, and tensors with dtype, shape and storage. Tensors with "
        "the same storage number share memory. The last line has the totals. Only the header is read, so a large file "
        "takes no longer than a small one.\n\n"
        "FILE is a safetensors file, the index of a sharded checkpoint (.safetensors.index.json), or a .wherry file. "
        "ADDRESS is the address that `wherry serve` prints.\n\n"
        "--digest reads the tensors and prints an XXH3-128 digest of the elements of each. The digest of the file "
        "covers the names, dtypes, shapes, digests and values in it. It does not depend on the file's format, the "
        "order of its tensors or their strides. It shows whether two files are equal, but it does not protect "
        "against forgery.",
    .options = options_taken,
    .json = true,
    .examples = "wherry inspect model.safetensors\n"
                "wherry inspect --json model.safetensors.index.json | jq .bytes\n"
                "wherry inspect --digest model.safetensors\n"
                "wherry inspect tcp://127.0.0.1:41234 --token-file token\n",
    WH_DEFAULTS(inspect_options, .timeout = 30),
    .run = run,
};

/* ---- the tree ---- */

/** Finds the number of a storage. *next_p is one more than the highest number so far. */
static size_t storage_number(const wherry_prepared *prepared, const wherry_storage *storage, size_t *next_p) {
    size_t number = wherry_prepared_storage(prepared, *next_p) == storage ? *next_p : 0;
    while (wherry_prepared_storage(prepared, number) != storage && wherry_prepared_storage(prepared, number)) {
        number++; /* an earlier tensor shares the storage, so search from 0 */
    }
    *next_p = number < *next_p ? *next_p : number + 1;
    return number;
}

static void print_leaf(wh_json *json, const wh_leaf *leaf, const wherry_prepared *prepared, size_t *next_p) {
    const wherry_tensor *tensor = leaf->tensor;
    char text[512];
    wh_json_open(json, NULL, '{');
    wh_json_text(json, "name", leaf->name);
    if (tensor) {
        const wherry_dtype_info *dtype = wherry_dtype_describe(tensor->dtype);
        wh_json_text(json, "kind", "tensor");
        wh_json_text(json, "dtype", dtype->name);
        wh_json_open(json, "shape", '[');
        for (uint32_t i = 0; i < tensor->ndim; i++) {
            wh_json_number(json, NULL, tensor->shape[i]);
        }
        wh_json_close(json, ']');
        wh_json_count(json, "bytes", wherry_tensor_count(tensor) * dtype->bytes);
        wh_json_count(json, "storage", storage_number(prepared, tensor->storage, next_p));
    } else {
        wh_leaf_text(leaf, text, sizeof(text));
        wh_json_text(json, "kind", wherry_kind_name(wherry_value_kind(leaf->value)));
        wh_json_text(json, "value", text);
    }
    wh_json_close(json, '}');
}

/** Prints the tree as JSON. @param file  NULL if the state is from a server. */
static void print_json(const char *name, const wherry_file_summary *file, const wherry_prepared *prepared,
                       const wh_leaves *leaves, wh_json *json) {
    wherry_prepared_summary sums;
    size_t next = 0;
    wherry_prepared_summarize(prepared, &sums);
    wh_json_open(json, NULL, '{');
    wh_json_text(json, "name", name);
    if (file) {
        wh_json_text(json, "format", wherry_file_format_name(file->format));
        wh_json_count(json, "files", file->files);
        wh_json_count(json, "file_bytes", file->file_bytes);
    }
    wh_json_count(json, "tensors", sums.tensors);
    wh_json_count(json, "storages", sums.storages);
    wh_json_count(json, "bytes", sums.bytes);
    wh_json_open(json, "leaves", '[');
    for (size_t i = 0; i < leaves->count; i++) {
        print_leaf(json, leaves->items + i, prepared, &next);
    }
    wh_json_close(json, ']');
    wh_json_close(json, '}');
}

/** Prints the last line of the text output. */
static void print_totals(const char *name, const wherry_file_summary *file, const wherry_prepared *prepared) {
    wherry_prepared_summary sums;
    char size[WH_SIZE_TEXT_MAX];
    wherry_prepared_summarize(prepared, &sums);
    printf("\n");
    wh_print_escaped(stdout, name);
    printf(": %llu tensors in %llu storages, %s", (unsigned long long)sums.tensors, (unsigned long long)sums.storages,
           wh_size_text(sums.bytes, size));
    if (file) {
        printf("; %s, %u file%s, %s", wherry_file_format_name(file->format), file->files, file->files == 1 ? "" : "s",
               wh_size_text(file->file_bytes, size));
    }
    if (sums.view_bytes > sums.bytes) {
        printf("; %s shared", wh_size_text(sums.view_bytes - sums.bytes, size));
    }
    printf("\n");
}

static wherry_status print_state(const char *name, const wherry_file_summary *file, const wherry_value *state,
                                 wh_json *json, wherry_error *error) {
    wh_leaves leaves = {0};
    wherry_prepared *prepared = NULL;
    wherry_status status = wherry_prepare(state, NULL, &prepared, error);
    if (json) {
        WH_THEN(status, wh_leaves_list(&leaves, state, error));
    } else {
        WH_THEN(status, wherry_value_dump(state, stdout, error));
    }
    if (status == WHERRY_OK && json) {
        print_json(name, file, prepared, &leaves, json);
    } else if (status == WHERRY_OK) {
        print_totals(name, file, prepared);
    }
    wherry_prepared_destroy(prepared);
    wh_leaves_free(&leaves);
    return status;
}

/* ---- digests ---- */

static void write_hex(const wherry_digest *digest, char text[HEX_MAX]) {
    for (int i = 0; i < WHERRY_DIGEST_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest->bytes[i]);
    }
}

/** Computes the digest of bytes as if they were the elements of a tensor. */
static wherry_status digest_bytes(const void *bytes, size_t size, char hex[HEX_MAX], wherry_error *error) {
    wherry_storage *storage;
    wherry_value *tensor = NULL;
    wherry_digest digest;
    int64_t shape[] = {(int64_t)size};
    wherry_status status = wherry_storage_wrap((void *)bytes, size, wherry_device_cpu(), NULL, NULL, &storage, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_tensor_create(&(wherry_tensor){.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = shape},
                                  &tensor, error);
    wherry_storage_unref(storage);
    WH_THEN(status, wherry_tensor_digest(tensor, &digest, error));
    if (status == WHERRY_OK) {
        write_hex(&digest, hex);
    }
    wherry_value_destroy(tensor);
    return status;
}

/**
 * Returns a local tensor of a leaf; NULL if the leaf has no tensor with this number. A tensor or a
 * DTensor has number 0 only. A ShardedTensor has one per local shard.
 */
static const wherry_value *local_tensor(const wherry_value *leaf, uint32_t number) {
    const wherry_dtensor *dtensor = wherry_dtensor_get(leaf);
    const wherry_sharded *sharded = wherry_sharded_get(leaf);
    if (sharded) {
        return number < sharded->shard_count ? sharded->shards[number].tensor : NULL;
    }
    return number > 0 ? NULL : dtensor ? dtensor->local : wherry_tensor_get(leaf) ? leaf : NULL;
}

/** Describes a tensor by dtype and shape, and other leaves by kind and digest of the manifest. */
static wherry_status describe(const wh_leaf *leaf, char *text, size_t size, wherry_error *error) {
    wherry_prepared *prepared = NULL;
    void *manifest = NULL;
    size_t length = 0;
    char hex[HEX_MAX];
    if (leaf->tensor) {
        wh_leaf_text(leaf, text, size);
        return WHERRY_OK;
    }
    wherry_status status = wherry_prepare(leaf->value, NULL, &prepared, error);
    WH_THEN(status, wherry_manifest_encode(prepared, &manifest, &length, error));
    WH_THEN(status, digest_bytes(manifest, length, hex, error));
    if (status == WHERRY_OK) {
        snprintf(text, size, "%s %s", wherry_kind_name(wherry_value_kind(leaf->value)), hex);
    }
    wherry_free(manifest);
    wherry_prepared_destroy(prepared);
    return status;
}

/**
 * Prints the digests of the tensors of a leaf, as JSON if `json` is not NULL. Without JSON, prints
 * nothing if `quiet` is true.
 * @param all  receives one line per leaf. The digest of the file is computed from all these lines.
 */
static wherry_status digest_leaf(const wh_leaf *leaf, bool quiet, wh_json *json, FILE *all, wherry_error *error) {
    char kind[2048] = ""; /* room for 64 dimensions with 19 digits each */
    bool sharded = wherry_sharded_get(leaf->value);
    wherry_status status = describe(leaf, kind, sizeof(kind), error);
    fprintf(all, "%s %s", leaf->name, kind);
    for (uint32_t i = 0; status == WHERRY_OK && local_tensor(leaf->value, i); i++) {
        char hex[HEX_MAX];
        char *name = NULL;
        wherry_digest digest;
        status = wherry_tensor_digest(local_tensor(leaf->value, i), &digest, error);
        if (status != WHERRY_OK) {
            break;
        }
        wh_need(asprintf(&name, sharded ? "%s[%u]" : "%s", leaf->name, i) < 0 ? NULL : name);
        write_hex(&digest, hex);
        fprintf(all, " %s", hex);
        if (json) {
            wh_json_text(json, name, hex);
        } else if (!quiet) {
            wh_print_line(hex, name);
        }
        free(name);
    }
    fputc('\n', all);
    return status;
}

/** Prints the digests of all tensors, sorted by name, and then the digest of the file. */
static wherry_status print_digests(const char *path, const wherry_value *state, bool quiet, wh_json *json,
                                   wherry_error *error) {
    wh_leaves leaves = {0};
    char *text = NULL;
    size_t size = 0;
    char hex[HEX_MAX] = "";
    FILE *all = wh_need(open_memstream(&text, &size));
    wherry_status status = wh_leaves_list(&leaves, state, error);
    if (json) {
        wh_json_open(json, NULL, '{');
        wh_json_text(json, "name", path);
        wh_json_open(json, "tensors", '{');
    }
    wh_leaves_sort(&leaves);
    for (size_t i = 0; i < leaves.count; i++) {
        WH_THEN(status, digest_leaf(leaves.items + i, quiet, json, all, error));
    }
    fclose(all);
    WH_THEN(status, digest_bytes(wh_need(text), size, hex, error));
    if (json) {
        wh_json_close(json, '}');
        wh_json_text(json, "all", hex);
        wh_json_close(json, '}');
    } else if (status == WHERRY_OK) {
        wh_print_line(hex, path);
    }
    free(text);
    wh_leaves_free(&leaves);
    return status;
}

/* ---- the command ---- */

static wherry_status inspect_file(const char *path, const inspect_options *options, wh_json *json,
                                  wherry_error *error) {
    wherry_file *file;
    wherry_file_summary summary;
    wherry_status status = wherry_file_open(path, NULL, &file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_file_summarize(file, &summary);
    status = options->digest ? print_digests(path, wherry_file_state(file), options->common.quiet, json, error)
                             : print_state(path, &summary, wherry_file_state(file), json, error);
    wherry_file_close(file);
    return status;
}

static wherry_status inspect_server(const char *address, const inspect_options *options, wh_json *json,
                                    wherry_error *error) {
    wherry_value *state = NULL;
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_ERROR);
    wherry_status status = wh_client_list(address, options->token_file, options->timeout, &state, error);
    const wherry_value *states = status == WHERRY_OK ? wh_file_set_part(state, "states") : NULL;
    if (status == WHERRY_OK && !states) {
        status = wh_fail_error(error, WHERRY_MALFORMED, "%s does not serve checkpoint files", address);
    }
    if (status == WHERRY_OK && json) {
        wh_json_open(json, NULL, '[');
    }
    for (size_t i = 0; status == WHERRY_OK && i < wherry_dict_count(states); i++) {
        const char *name = wh_file_set_name(states, i);
        status = print_state(name ? name : "?", NULL, wherry_dict_at(states, i), json, error);
    }
    if (states && json) {
        wh_json_close(json, ']');
    }
    wherry_value_destroy(state);
    return status;
}

static int run(void *context, const wh_operands *operands) {
    const inspect_options *options = context;
    wherry_error error;
    wh_json json = {.out = stdout};
    wh_json *out = options->common.json ? &json : NULL;
    const char *what = operands->items[0];
    bool address = wh_is_address(what);
    if (address && !wh_check_address(&wh_command_inspect, what)) {
        return WH_EXIT_USAGE;
    }
    if (address && options->digest) {
        return wh_fail_command(&wh_command_inspect, WH_EXIT_USAGE, "--digest needs a file, not an address");
    }
    wherry_status status =
        address ? inspect_server(what, options, out, &error) : inspect_file(what, options, out, &error);
    return wh_end_command(&wh_command_inspect, status, &error);
}
