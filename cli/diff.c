/* `wherry diff`: compares two checkpoint files by tensor name. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/expert.h>
#include <wherry/file.h>

#include "command.h"
#include "output.h"
#include "tensors.h"

typedef struct diff_options {
    wh_common common;
    bool no_content;
} diff_options;

static const wh_option options_taken[] = {
    WH_OPTION(diff_options, no_content, FLAG, "no-content", 0, NULL,
              "compare names, dtypes and shapes, but not the elements of tensors"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_diff = {
    .name = "diff",
    .summary = "compare two checkpoint files by tensor name",
    .operands = "A B",
    .least = 2,
    .most = 2,
    .text = "Compares two checkpoint files, which may have different formats. Prints one line per difference: '-' for "
            "a tensor or value that only A has, '+' for one that only B has, '!' for one whose dtype, shape, flags or "
            "content differ.\n\n"
            "Exits with 0 if the files are equal and with 1 if they differ. -q prints nothing.",
    .options = options_taken,
    .json = true,
    .examples = "wherry diff yesterday.safetensors today.safetensors\n"
                "wherry diff -q a.safetensors b.wherry && echo equal\n",
    WH_DEFAULTS(diff_options, .no_content = false),
    .run = run,
};

typedef struct comparison {
    const diff_options *options;
    wh_json *json;
    size_t differences;
} comparison;

static void report(comparison *c, char mark, const char *name, const char *one, const char *other) {
    c->differences++;
    if (c->json) {
        wh_json_open(c->json, NULL, '{');
        wh_json_text(c->json, "name", name);
        wh_json_text(c->json, "change", mark == '-' ? "removed" : mark == '+' ? "added" : "changed");
        wh_json_text(c->json, "left", one);
        wh_json_text(c->json, "right", other);
        wh_json_close(c->json, '}');
    } else if (!c->options->common.quiet) {
        wh_print_text(stdout, "%c %s: %s%s%s", mark, name, one ? one : "", one && other ? " -> " : "",
                      other ? other : "");
    }
}

static bool same_shape(const wherry_tensor *one, const wherry_tensor *other) {
    return one->dtype == other->dtype && one->flags == other->flags && one->ndim == other->ndim &&
           (!one->ndim || memcmp(one->shape, other->shape, one->ndim * sizeof(*one->shape)) == 0);
}

/** True if the elements are contiguous in row-major order. */
static bool is_dense(const wherry_tensor *tensor) {
    int64_t elements = 1;
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != elements) {
            return false;
        }
        elements *= tensor->shape[i];
    }
    return true;
}

/** Counts the elements that differ between two dense tensors, and writes the result to text. */
static void count_elements(const wherry_tensor *one, const wherry_tensor *other, char *text, size_t size) {
    uint64_t bytes = wherry_dtype_describe(one->dtype)->bytes;
    uint64_t count = wherry_tensor_count(one);
    const char *a = (const char *)wherry_storage_data(one->storage) + (uint64_t)one->offset * bytes;
    const char *b = (const char *)wherry_storage_data(other->storage) + (uint64_t)other->offset * bytes;
    uint64_t first = count;
    uint64_t differing = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(a + i * bytes, b + i * bytes, bytes) != 0) {
            first = differing++ ? first : i;
        }
    }
    snprintf(text, size, "%" PRIu64 " of %" PRIu64 " elements differ, first at index %" PRIu64, differing, count,
             first);
}

static wherry_status compare_tensors(comparison *c, const wh_leaf *one, const wh_leaf *other, wherry_error *error) {
    char texts[2][256];
    if (!same_shape(one->tensor, other->tensor)) {
        wh_leaf_text(one, texts[0], sizeof(texts[0]));
        wh_leaf_text(other, texts[1], sizeof(texts[1]));
        report(c, '!', one->name, texts[0], texts[1]);
        return WHERRY_OK;
    }
    wherry_digest digests[2];
    if (c->options->no_content) {
        return WHERRY_OK;
    }
    wherry_status status = wherry_tensor_digest(one->value, digests, error);
    WH_THEN(status, wherry_tensor_digest(other->value, digests + 1, error));
    if (status == WHERRY_OK && memcmp(digests, digests + 1, sizeof(*digests)) != 0) {
        snprintf(texts[0], sizeof(texts[0]), "elements differ");
        if (is_dense(one->tensor) && is_dense(other->tensor)) {
            count_elements(one->tensor, other->tensor, texts[0], sizeof(texts[0]));
        }
        report(c, '!', one->name, texts[0], NULL);
    }
    return status;
}

static wherry_status compare_leaf(comparison *c, const wh_leaf *one, const wh_leaf *other, wherry_error *error) {
    char texts[2][256];
    if (one->tensor && other->tensor) {
        return compare_tensors(c, one, other, error);
    }
    unsigned flags = WHERRY_COMPARE_NO_SHARING | (c->options->no_content ? WHERRY_COMPARE_NO_CONTENT : 0);
    wherry_status status = wherry_value_compare(one->value, other->value, flags, error);
    if (status == WHERRY_MISMATCH) {
        wh_leaf_text(one, texts[0], sizeof(texts[0]));
        wh_leaf_text(other, texts[1], sizeof(texts[1]));
        /* Two different values can have the same description, because it may be shortened. */
        bool same = strcmp(texts[0], texts[1]) == 0;
        report(c, '!', one->name, same ? "content differs" : texts[0], same ? NULL : texts[1]);
        status = WHERRY_OK;
    }
    return status;
}

/** Sorts both lists by name, and compares them. */
static wherry_status compare_all(comparison *c, wh_leaves *one, wh_leaves *other, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    char text[256];
    size_t i = 0;
    size_t k = 0;
    wh_leaves_sort(one);
    wh_leaves_sort(other);
    while (status == WHERRY_OK && (i < one->count || k < other->count)) {
        int order = i == one->count ? 1 : k == other->count ? -1 : strcmp(one->items[i].name, other->items[k].name);
        if (order == 0) {
            status = compare_leaf(c, one->items + i++, other->items + k++, error);
        } else {
            const wh_leaf *only = order < 0 ? one->items + i++ : other->items + k++;
            wh_leaf_text(only, text, sizeof(text));
            report(c, order < 0 ? '-' : '+', only->name, order < 0 ? text : NULL, order < 0 ? NULL : text);
        }
    }
    return status;
}

static int run(void *context, const wh_operands *operands) {
    const diff_options *options = context;
    wherry_error error;
    wh_json json = {.out = stdout};
    comparison c = {.options = options, .json = options->common.json ? &json : NULL};
    wherry_file *files[2] = {NULL, NULL};
    wh_leaves leaves[2] = {{0}, {0}};
    wherry_status status = WHERRY_OK;
    for (int i = 0; i < 2 && status == WHERRY_OK; i++) {
        status = wherry_file_open(operands->items[i], NULL, files + i, &error);
        WH_THEN(status, wh_leaves_list(leaves + i, wherry_file_state(files[i]), &error));
    }
    if (status == WHERRY_OK) {
        wh_json_begin(c.json);
        wh_json_open(c.json, "differences", '[');
        status = compare_all(&c, leaves, leaves + 1, &error);
        wh_json_close(c.json, ']');
        wh_json_close(c.json, '}');
    }
    for (int i = 0; i < 2; i++) {
        wh_leaves_free(leaves + i);
        wherry_file_close(files[i]);
    }
    if (status != WHERRY_OK) {
        return wh_fail_status(&wh_command_diff, NULL, &error);
    }
    return c.differences ? WH_EXIT_FAILED : WH_EXIT_OK;
}
