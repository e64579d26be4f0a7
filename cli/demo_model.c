#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/tensor.h>

#include "demo_model.h"

/** Bytes a parameter: the weight in bf16, two moments in f32. */
enum { LAYERS = 8, PARTS = 5, PARAMETERS = 1 + LAYERS * PARTS, KINDS = 3, BYTES_A_PARAMETER = 2 + 4 + 4 };

/** What is kept of each parameter. */
static const wherry_dtype dtypes[KINDS] = {WHERRY_BF16, WHERRY_F32, WHERRY_F32};

typedef struct parameter {
    uint32_t ndim;
    int64_t shape[2];
    wherry_storage *storages[KINDS]; /**< The weight, exp_avg, exp_avg_sq. */
} parameter;

struct wh_demo_model {
    parameter parameters[PARAMETERS]; /**< The embedding, then PARTS of each layer. */
};

static const char *const part_names[PARTS] = {"attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm"};

/** Two words that are worked on at once; the size of a register that every x86-64 and arm64 has. */
typedef uint64_t word_pair __attribute__((vector_size(16)));

/** A transformer's shapes; what is left of the size goes to the vocabulary. Widths of 16 keep all sizes multiples of 16 bytes. */
static void choose_shapes(wh_demo_model *model, uint64_t size) {
    int64_t total = (int64_t)(size / BYTES_A_PARAMETER);
    int64_t width = 16;
    while (104 * (width + 16) * (width + 16) <= total) { /* 12 squares a layer, and about 8 for the vocabulary */
        width += 16;
    }
    const int64_t shapes[PARTS][2] = {
        {3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}, {width, 0}};
    int64_t left = total;
    for (int i = 1; i < PARAMETERS; i++) {
        parameter *p = model->parameters + i;
        const int64_t *shape = shapes[(i - 1) % PARTS];
        p->ndim = shape[1] ? 2 : 1;
        memcpy(p->shape, shape, sizeof(p->shape));
        left -= shape[0] * (shape[1] ? shape[1] : 1);
    }
    model->parameters[0] = (parameter){.ndim = 2, .shape = {left / width, width}};
}

static uint64_t count_of(const parameter *p) {
    return (uint64_t)p->shape[0] * (p->ndim == 2 ? (uint64_t)p->shape[1] : 1);
}

static uint64_t mix(uint64_t number) {
    number = (number ^ (number >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    return number ^ (number >> 29);
}

/** Random-looking numbers, the same on every rank. */
static void fill(wherry_storage *storage, uint64_t seed) {
    uint64_t *words = wherry_storage_data(storage);
    uint64_t count = wherry_storage_nbytes(storage) / sizeof(*words);
    for (uint64_t i = 0; i < count; i++) {
        words[i] = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    }
}

wherry_status wh_demo_model_create(uint64_t size, wh_demo_model **model_p, wherry_error *error) {
    wh_demo_model *model = calloc(1, sizeof(*model));
    if (!model) {
        snprintf(error->message, sizeof(error->message), "no memory for the description of a model");
        return error->status = WHERRY_NO_MEMORY;
    }
    choose_shapes(model, size);
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        parameter *p = model->parameters + i / KINDS;
        wherry_storage **storage = p->storages + i % KINDS;
        uint64_t nbytes = count_of(p) * wherry_dtype_describe(dtypes[i % KINDS])->bytes;
        wherry_status status = wherry_storage_allocate(nbytes, wherry_device_cpu(), storage, error);
        if (status != WHERRY_OK) {
            wh_demo_model_destroy(model);
            return status;
        }
        fill(*storage, mix((uint64_t)i + 1));
    }
    *model_p = model;
    return WHERRY_OK;
}

void wh_demo_model_destroy(wh_demo_model *model) {
    for (int i = 0; model && i < PARAMETERS * KINDS; i++) {
        wherry_storage_unref(model->parameters[i / KINDS].storages[i % KINDS]);
    }
    free(model);
}

/** Puts a new value into a dict or appends it to a list; what cannot be put is destroyed. Does nothing after a failure. */
static void add(wherry_status *status, wherry_value *container, const char *name, wherry_value *item,
                wherry_error *error) {
    if (*status == WHERRY_OK) {
        *status = name ? wherry_dict_put(container, name, item, error) : wherry_sequence_append(container, item, error);
        if (*status != WHERRY_OK) {
            wherry_value_destroy(item);
        }
    }
}

static wherry_value *add_container(wherry_status *status, wherry_value *container, const char *name,
                                   wherry_status (*create)(wherry_value **, wherry_error *), wherry_error *error) {
    wherry_value *item = NULL;
    if (*status == WHERRY_OK) {
        *status = create(&item, error);
        add(status, container, name, item, error);
    }
    return item;
}

static void add_tensor(wherry_status *status, wherry_value *container, const char *name, const parameter *p, int kind,
                       wherry_error *error) {
    wherry_tensor tensor = {.storage = p->storages[kind],
                            .dtype = dtypes[kind],
                            .flags = kind == 0 ? WHERRY_TENSOR_REQUIRES_GRAD : 0,
                            .ndim = p->ndim,
                            .shape = p->shape};
    wherry_value *item = NULL;
    if (*status == WHERRY_OK) {
        *status = wherry_tensor_create(&tensor, &item, error);
        add(status, container, name, item, error);
    }
}

static void add_model(wherry_status *status, wherry_value *state, const wh_demo_model *model, wherry_error *error) {
    const parameter *embedding = model->parameters;
    wherry_value *dict = add_container(status, state, "model", wherry_dict_create, error);
    add_tensor(status, dict, "embedding", embedding, 0, error);
    wherry_value *layers = add_container(status, dict, "layers", wherry_list_create, error);
    for (int i = 0; i < LAYERS; i++) {
        wherry_value *layer = add_container(status, layers, NULL, wherry_dict_create, error);
        for (int part = 0; part < PARTS; part++) {
            add_tensor(status, layer, part_names[part], embedding + 1 + i * PARTS + part, 0, error);
        }
    }
    add_tensor(status, dict, "head", embedding, 0, error); /* tied: the same memory */
}

static void add_optimizer(wherry_status *status, wherry_value *state, const wh_demo_model *model, wherry_error *error) {
    wherry_value *dict = add_container(status, state, "optimizer", wherry_dict_create, error);
    wherry_value *moments = add_container(status, dict, "state", wherry_list_create, error);
    for (int i = 0; i < PARAMETERS; i++) {
        wherry_value *entry = add_container(status, moments, NULL, wherry_dict_create, error);
        add_tensor(status, entry, "exp_avg", model->parameters + i, 1, error);
        add_tensor(status, entry, "exp_avg_sq", model->parameters + i, 2, error);
    }
    wherry_value *rate = NULL;
    if (*status == WHERRY_OK) {
        *status = wherry_float_create(3e-4, &rate, error);
        add(status, dict, "lr", rate, error);
    }
}

wherry_status wh_demo_model_state(const wh_demo_model *model, int64_t step, wherry_value **state_p,
                                  wherry_error *error) {
    wherry_value *state;
    wherry_value *number = NULL;
    wherry_status status = wherry_dict_create(&state, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_int_create(step, &number, error);
    add(&status, state, "step", number, error);
    add_model(&status, state, model, error);
    add_optimizer(&status, state, model, error);
    if (status != WHERRY_OK) {
        wherry_value_destroy(state);
        return status;
    }
    *state_p = state;
    return WHERRY_OK;
}

/**
 * One storage's part of a digest, and of a step where `train` says so. Sums of the words and sums of those sums: one pass at the
 * memory's speed, and neither a changed word nor two that changed places go unnoticed. A step is one-to-one, so what once differs
 * differs for ever.
 */
static void pass_over(const wherry_storage *storage, bool train, uint64_t key, wh_demo_digest *digest) {
    char *bytes = wherry_storage_data(storage);
    uint64_t count = wherry_storage_nbytes(storage) / sizeof(word_pair);
    word_pair sum = {digest->words[0], digest->words[1]};
    word_pair sums = {digest->words[2], digest->words[3]};
    word_pair keys = {key, mix(key)};
    for (uint64_t i = 0; i < count; i++) {
        word_pair pair;
        memcpy(&pair, bytes + i * sizeof(pair), sizeof(pair));
        if (train) {
            pair += keys;
            pair ^= pair >> 27;
            memcpy(bytes + i * sizeof(pair), &pair, sizeof(pair));
        }
        sum += pair;
        sums += sum;
    }
    *digest = (wh_demo_digest){{sum[0], sum[1], sums[0], sums[1]}};
}

static wh_demo_digest pass_over_all(const wh_demo_model *model, bool train, int64_t step) {
    wh_demo_digest digest = {{0}};
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        uint64_t key = mix((uint64_t)step * PARAMETERS * KINDS + (uint64_t)i);
        pass_over(model->parameters[i / KINDS].storages[i % KINDS], train, key, &digest);
    }
    return digest;
}

wh_demo_digest wh_demo_model_train(wh_demo_model *model, int64_t step) {
    return pass_over_all(model, true, step);
}

wh_demo_digest wh_demo_model_digest(const wh_demo_model *model) {
    return pass_over_all(model, false, 0);
}

void wh_demo_model_spoil(wh_demo_model *model) {
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        const wherry_storage *storage = model->parameters[i / KINDS].storages[i % KINDS];
        memset(wherry_storage_data(storage), 0xFF, wherry_storage_nbytes(storage));
    }
}
