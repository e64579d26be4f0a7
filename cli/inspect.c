/* `wherry inspect`: what a file, or what somebody serves, holds. */
#include <string.h>

#include <wherry/expert.h>
#include <wherry/file.h>

#include "cargo.h"
#include "command.h"
#include "interrupt.h"
#include "json_out.h"
#include "leaves.h"
#include "show.h"
#include "visit.h"

typedef struct inspect_options {
    wh_common common;
    const char *token_file;
    int64_t timeout;
} inspect_options;

static const wh_option options_taken[] = {
    {"token-file", 't', WH_OPTION_FILE, offsetof(inspect_options, token_file), "FILE",
     "of an address: read the token from this file (default: the environment variable WHERRY_TOKEN, else it is asked "
     "for)",
     0, 0, NULL},
    {"timeout", 0, WH_OPTION_NUMBER, offsetof(inspect_options, timeout), "SECONDS",
     "of an address: how long to wait for an answer (default 30)", 1, 1000000, NULL},
    {.name = NULL},
};

static int run(int argc, char **argv);

const wh_command wh_command_inspect = {
    .name = "inspect",
    .summary = "tell what a checkpoint file, or what somebody serves, holds",
    .operands = "FILE|ADDRESS",
    .least = 1,
    .most = 1,
    .text =
        "Prints the tree of a checkpoint: containers, tensors with their dtype, shape and storage, plain values; and "
        "the "
        "totals. Tensors with the same storage number share their bytes. The bytes of tensors are not read, so that a "
        "file "
        "of any size is told of at once.\n\n"
        "Reads safetensors, also sharded ones (by their .safetensors.index.json) and Wherry's own files. An "
        "ADDRESS is one that `wherry serve` has printed.",
    .options = options_taken,
    .json = true,
    .examples = "wherry inspect model.safetensors\n"
                "wherry inspect --json model.safetensors.index.json | jq .bytes\n"
                "wherry inspect tcp://127.0.0.1:41234 --token-file token\n",
    .run = run,
};

/* ---- as JSON ---- */

static void print_tensor(wh_json *json, const wh_leaf *leaf) {
    const wherry_tensor *tensor = leaf->tensor;
    wh_json_text(json, "kind", "tensor");
    wh_json_text(json, "dtype", wherry_dtype_describe(tensor->dtype)->name);
    wh_json_open(json, "shape", '[');
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        wh_json_number(json, NULL, tensor->shape[i]);
    }
    wh_json_close(json, ']');
    wh_json_count(json, "bytes", wh_tensor_bytes(tensor));
    wh_json_count(json, "storage", leaf->storage);
}

static void print_leaf(wh_json *json, const wh_leaf *leaf) {
    char text[512];
    wh_json_open(json, NULL, '{');
    wh_json_text(json, "name", leaf->name);
    if (leaf->tensor) {
        print_tensor(json, leaf);
    } else {
        wh_leaf_text(leaf, text, sizeof(text));
        wh_json_text(json, "kind", wherry_kind_name(wherry_value_kind(leaf->value)));
        wh_json_text(json, "value", text);
    }
    wh_json_close(json, '}');
}

/* ---- one state ---- */

/** What is told of a state besides its leaves. */
typedef struct about {
    const char *name;
    const wherry_file_summary *summary; /**< NULL where it is served. */
} about;

static wherry_status describe(const about *a, const wherry_value *state, wh_json *json, wherry_error *error) {
    wh_leaves leaves = {0};
    wherry_prepared *prepared = NULL;
    wherry_prepared_summary sums = {0};
    wherry_status status = wh_leaves_list(&leaves, state, error);
    if (status == WHERRY_OK) {
        status = wherry_prepare(state, NULL, &prepared, error);
    }
    if (status == WHERRY_OK) {
        wherry_prepared_summarize(prepared, &sums);
    }
    if (status == WHERRY_OK && json) {
        wh_json_open(json, NULL, '{');
        wh_json_text(json, "name", a->name);
        if (a->summary) {
            wh_json_text(json, "format", wherry_file_format_name(a->summary->format));
            wh_json_count(json, "files", a->summary->files);
            wh_json_count(json, "file_bytes", a->summary->file_bytes);
        }
        wh_json_count(json, "tensors", sums.tensors);
        wh_json_count(json, "storages", sums.storages);
        wh_json_count(json, "bytes", sums.bytes);
        wh_json_open(json, "leaves", '[');
        for (size_t i = 0; i < leaves.count; i++) {
            print_leaf(json, leaves.items + i);
        }
        wh_json_close(json, ']');
        wh_json_close(json, '}');
    } else if (status == WHERRY_OK) {
        char sizes[2][WH_SIZE_TEXT_MAX];
        status = wherry_value_dump(state, stdout, error);
        printf("\n");
        wh_print_plain(stdout, a->name);
        printf(": %llu tensors in %llu storages, %s", (unsigned long long)sums.tensors,
               (unsigned long long)sums.storages, wh_size_text(sums.bytes, sizes[0]));
        if (a->summary) {
            printf("; %s, %u file%s, %s", wherry_file_format_name(a->summary->format), a->summary->files,
                   a->summary->files == 1 ? "" : "s", wh_size_text(a->summary->file_bytes, sizes[1]));
        }
        if (sums.view_bytes > sums.bytes) {
            printf("; %s are shared", wh_size_text(sums.view_bytes - sums.bytes, sizes[1]));
        }
        printf("\n");
    }
    wherry_prepared_destroy(prepared);
    wh_leaves_free(&leaves);
    return status;
}

static wherry_status inspect_file(const char *path, wh_json *json, wherry_error *error) {
    wherry_file *file;
    wherry_file_summary summary;
    wherry_status status = wherry_file_open(path, NULL, &file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_file_summarize(file, &summary);
    status = describe(&(about){path, &summary}, wherry_file_state(file), json, error);
    wherry_file_close(file);
    return status;
}

static wherry_status inspect_cargo(const wherry_value *state, wh_json *json, wherry_error *error) {
    const wherry_value *states = wh_cargo_part(state, "states");
    if (!states) {
        return wh_fail_error(error, WHERRY_MALFORMED, "what is served there are no files");
    }
    wherry_status status = WHERRY_OK;
    if (json) {
        wh_json_open(json, NULL, '[');
    }
    for (size_t i = 0; i < wherry_dict_count(states) && status == WHERRY_OK; i++) {
        const char *name = wh_cargo_name(states, i);
        status = describe(&(about){name ? name : "?", NULL}, wherry_dict_at(states, i), json, error);
    }
    if (json) {
        wh_json_close(json, ']');
    }
    return status;
}

static int run(int argc, char **argv) {
    inspect_options options = {.timeout = 30};
    wh_operands operands;
    wherry_error error;
    int code;
    if (!wh_options_parse(&wh_command_inspect, argc, argv, &options, &operands, &code)) {
        return code;
    }
    wh_json json = {.out = stdout};
    wh_json *out = options.common.json ? &json : NULL;
    const char *what = operands.items[0];
    wherry_status status;
    if (wh_is_address(what) && !wh_is_server(what)) {
        return wh_fail_address(&wh_command_inspect, what);
    }
    if (wh_is_address(what)) {
        wherry_value *state = NULL;
        wh_interrupt_catch();
        status = wh_visit_look(what, options.token_file, options.timeout, &options.common, &state, &error);
        if (status == WHERRY_OK) {
            status = inspect_cargo(state, out, &error);
        }
        wherry_value_destroy(state);
    } else {
        status = inspect_file(what, out, &error);
    }
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    return status == WHERRY_OK ? WH_EXIT_OK : wh_fail_status(&wh_command_inspect, NULL, &error);
}
