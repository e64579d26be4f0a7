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

enum { NAME_COLUMNS = 48 };

typedef struct inspect_options {
    wh_common common;
    bool digest;
    const char *token_file;
    const char *ca;
    int64_t timeout;
} inspect_options;

static const wh_option options_taken[] = {
    WH_OPTION(inspect_options, digest, FLAG, "digest", 'd', NULL,
              "print the digest of each tensor and of the whole file (with -q: of the file only)"),
    WH_OPTION(inspect_options, token_file, FILE, "token-file", 't', "FILE",
              "for an ADDRESS: read the token from FILE (default: the environment variable WHERRY_TOKEN, or a prompt)"),
    WH_OPTION(inspect_options, ca, FILE, "ca", 0, "FILE",
              "for an ADDRESS: the server has a certificate of the CA in this PEM file"),
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
        "Prints the tensors and values of a checkpoint, under the names that `wherry fetch --only` matches, with dtype "
        "and shape. Tensors with the same storage number share memory. The last line has the totals. Only the header "
        "is read, so a large file takes no longer than a small one.\n\n"
        "FILE is a safetensors file, the index of a sharded checkpoint (.safetensors.index.json), or a .wherry file. "
        "ADDRESS is the address that `wherry serve` prints. The first line then says how the server has proven itself: "
        "by the key that the token names, or by a certificate.\n\n"
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

/* ---- the list ---- */

/**
 * Numbers the storages by their order. @return one number per leaf; 0 for a leaf that is not a
 * tensor.
 */
static size_t *number_storages(const wherry_prepared *prepared, const wh_leaves *leaves, size_t **uses_p) {
    wherry_prepared_summary sums;
    wherry_prepared_summarize(prepared, &sums);
    size_t *numbers = wh_need(calloc(leaves->count + 1, sizeof(*numbers)));
    size_t *uses = wh_need(calloc((size_t)sums.storages + 1, sizeof(*uses)));
    size_t next = 0;
    for (size_t i = 0; i < leaves->count; i++) {
        const wherry_tensor *tensor = leaves->items[i].tensor;
        if (tensor) {
            size_t number = wherry_prepared_storage(prepared, next) == tensor->storage ? next : 0;
            while (number < sums.storages && wherry_prepared_storage(prepared, number) != tensor->storage) {
                number++; /* An earlier tensor shares the storage, so search from 0. */
            }
            next = number < next ? next : number + 1;
            numbers[i] = number;
            uses[number]++;
        }
    }
    *uses_p = uses;
    return numbers;
}

static void print_leaf_json(wh_json *json, const wh_leaf *leaf, size_t storage) {
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
        wh_json_count(json, "storage", storage);
    } else {
        wh_leaf_text(leaf, text, sizeof(text));
        wh_json_text(json, "kind", wherry_kind_name(wherry_value_kind(leaf->value)));
        wh_json_text(json, "value", text);
    }
    wh_json_close(json, '}');
}

/** Prints a line per value. @param uses  number of tensors per storage. */
static void print_list(const wh_leaves *leaves, const size_t *storages, const size_t *uses) {
    int width = 0;
    for (size_t i = 0; i < leaves->count; i++) {
        int length = (int)strnlen(leaves->items[i].name, NAME_COLUMNS);
        width = length > width ? length : width;
    }
    for (size_t i = 0; i < leaves->count; i++) {
        const wh_leaf *leaf = leaves->items + i;
        char text[2048];
        wh_leaf_text(leaf, text, sizeof(text) - 32);
        if (leaf->tensor && uses[storages[i]] > 1) {
            sprintf(text + strlen(text), ", storage #%zu", storages[i]);
        }
        wh_print_escaped(stdout, leaf->name);
        printf("%*s  ", width - (int)strnlen(leaf->name, (size_t)width), "");
        wh_print_wrapped(stdout, text, width + 2, WH_WIDTH_ANY);
    }
}

/** Adds the members of a JSON object. @param file  NULL if the state is from a server. */
static void print_json(const char *name, const wherry_file_summary *file, const wherry_prepared *prepared,
                       const wh_leaves *leaves, const size_t *storages, wh_json *json) {
    wherry_prepared_summary sums;
    wherry_prepared_summarize(prepared, &sums);
    wh_json_text(json, "name", name);
    if (file) {
        wh_json_text(json, "format", wherry_file_format_name(file->format));
        wh_json_count(json, "files", file->files);
        wh_json_count(json, "file_bytes", file->file_bytes);
    }
    wh_json_count(json, "tensors", sums.tensors);
    wh_json_count(json, "storages", sums.storages);
    wh_json_count(json, "bytes", sums.bytes);
    wh_json_open(json, "values", '[');
    for (size_t i = 0; i < leaves->count; i++) {
        print_leaf_json(json, leaves->items + i, storages[i]);
    }
    wh_json_close(json, ']');
}

/** Prints the last line of the text output. */
static void print_totals(const char *name, const wherry_file_summary *file, const wherry_prepared *prepared) {
    wherry_prepared_summary sums;
    char size[WH_SIZE_TEXT_MAX];
    wherry_prepared_summarize(prepared, &sums);
    bool one = sums.tensors == 1;
    char *text = NULL;
    size_t length = 0;
    FILE *out = wh_need(open_memstream(&text, &length));
    printf("\n");
    fprintf(out, "%s: %llu tensor%s, %s", name, (unsigned long long)sums.tensors, one ? "" : "s",
            wh_size_text(sums.bytes, size));
    if (sums.storages != sums.tensors) {
        fprintf(out, " in %llu storages", (unsigned long long)sums.storages);
    }
    if (file) {
        fprintf(out, "; %s, %u file%s, %s", wherry_file_format_name(file->format), file->files,
                file->files == 1 ? "" : "s", wh_size_text(file->file_bytes, size));
    }
    if (sums.view_bytes > sums.bytes) {
        fprintf(out, "; %s shared", wh_size_text(sums.view_bytes - sums.bytes, size));
    }
    fclose(out);
    wh_print_wrapped(stdout, wh_need(text), 0, WH_WIDTH_ANY);
    free(text);
}

static wherry_status print_state(const char *name, const wherry_file_summary *file, const wherry_value *state,
                                 wh_json *json, wherry_error *error) {
    wh_leaves leaves = {0};
    wherry_prepared *prepared = NULL;
    wherry_status status = wherry_prepare(state, NULL, &prepared, error);
    WH_THEN(status, wh_leaves_list(&leaves, state, error));
    if (status == WHERRY_OK) {
        size_t *uses;
        size_t *storages = number_storages(prepared, &leaves, &uses);
        if (json) {
            print_json(name, file, prepared, &leaves, storages, json);
        } else {
            print_list(&leaves, storages, uses);
            print_totals(name, file, prepared);
        }
        free(storages);
        free(uses);
    }
    wherry_prepared_destroy(prepared);
    wh_leaves_free(&leaves);
    return status;
}

/* ---- digests ---- */

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
    char hex[WH_HEX_MAX];
    if (leaf->tensor) {
        wh_leaf_text(leaf, text, size);
        return WHERRY_OK;
    }
    wherry_status status = wherry_prepare(leaf->value, NULL, &prepared, error);
    WH_THEN(status, wherry_manifest_encode(prepared, &manifest, &length, error));
    WH_THEN(status, wh_digest_bytes(manifest, length, hex, error));
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
    char kind[2048] = ""; /* There is room for 64 dimensions with 19 digits each. */
    bool sharded = wherry_sharded_get(leaf->value);
    wherry_status status = describe(leaf, kind, sizeof(kind), error);
    fprintf(all, "%s %s", leaf->name, kind);
    for (uint32_t i = 0; status == WHERRY_OK && local_tensor(leaf->value, i); i++) {
        char hex[WH_HEX_MAX];
        char *name = NULL;
        wherry_digest digest;
        status = wherry_tensor_digest(local_tensor(leaf->value, i), &digest, error);
        if (status != WHERRY_OK) {
            break;
        }
        wh_need(asprintf(&name, sharded ? "%s[%u]" : "%s", leaf->name, i) < 0 ? NULL : name);
        wh_digest_hex(&digest, hex);
        fprintf(all, " %s", hex);
        if (json) {
            wh_json_text(json, name, hex);
        } else if (!quiet) {
            wh_print_text(stdout, "%s  %s", hex, name);
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
    char hex[WH_HEX_MAX] = "";
    FILE *all = wh_need(open_memstream(&text, &size));
    wherry_status status = wh_leaves_list(&leaves, state, error);
    wh_json_text(json, "name", path);
    wh_json_open(json, "tensors", '{');
    wh_leaves_sort(&leaves);
    for (size_t i = 0; i < leaves.count; i++) {
        WH_THEN(status, digest_leaf(leaves.items + i, quiet, json, all, error));
    }
    fclose(all);
    WH_THEN(status, wh_digest_bytes(wh_need(text), size, hex, error));
    wh_json_close(json, '}');
    wh_json_text(json, "digest", hex);
    if (!json && status == WHERRY_OK) {
        wh_print_text(stdout, "%s  %s", hex, path);
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
    wh_json_begin(json);
    status = options->digest ? print_digests(path, wherry_file_state(file), options->common.quiet, json, error)
                             : print_state(path, &summary, wherry_file_state(file), json, error);
    wh_json_close(json, '}');
    wherry_file_close(file);
    return status;
}

/** Prints how the server is connected, and who it is. */
static void print_server(const wherry_group_link *link, const inspect_options *options, wh_json *json) {
    char key[2 * sizeof(link->key_digest) + 1] = "";
    for (size_t i = 0; i < sizeof(link->key_digest); i++) {
        snprintf(key + 2 * i, 3, "%02x", link->key_digest[i]);
    }
    bool known = *link->subject;
    if (json) {
        wh_json_open(json, "server", '{');
        wh_json_text(json, "cipher", link->cipher);
        wh_json_flag(json, "this_machine", link->local);
        wh_json_text(json, "subject", link->subject);
        wh_json_text(json, "key_sha256", known ? key : "");
        wh_json_close(json, '}');
    } else if (!options->common.quiet && known) {
        wh_print_text(stdout, "server  %s, key SHA-256 %s, over %s", link->subject, key, link->cipher);
    } else if (!options->common.quiet) {
        printf("server  on this machine, over a Unix socket\n");
    }
}

static wherry_status inspect_server(const char *address, const inspect_options *options, wh_json *json,
                                    wherry_error *error) {
    wherry_value *state = NULL;
    wherry_group_link link = {.local = false};
    const wh_patience patience = {.timeout_s = options->timeout, .ca = options->ca};
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_OFF);
    wherry_status status = wh_client_list(address, options->token_file, &patience, &state, &link, error);
    const wherry_value *states = status == WHERRY_OK ? wh_file_set_part(state, "states") : NULL;
    if (status == WHERRY_OK && !states) {
        status = wh_fail_error(error, WHERRY_MALFORMED, "%s does not serve checkpoint files", address);
    }
    if (status == WHERRY_OK) {
        wh_json_begin(json);
        print_server(&link, options, json);
        wh_json_open(json, "files", '[');
        for (size_t i = 0; status == WHERRY_OK && i < wherry_dict_count(states); i++) {
            const char *name = wh_file_set_name(states, i);
            wh_json_open(json, NULL, '{');
            status = print_state(name ? name : "?", NULL, wherry_dict_at(states, i), json, error);
            wh_json_close(json, '}');
        }
        wh_json_close(json, ']');
        wh_json_close(json, '}');
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
