#include <stdlib.h>
#include <string.h>

#include <wherry/tensor.h>

#include "demo.h"

enum { LAYERS = 8, PARTS = 5, PARAMETERS = 1 + LAYERS * PARTS, KINDS = 3, PARAMETER_BYTES = 2 + 4 + 4 };

/** The tensors of each parameter: the weight and Adam's two moments. */
static const struct kind {
    const char *name;
    wherry_dtype dtype;
} kinds[KINDS] = {{"model", WHERRY_BF16}, {"exp_avg", WHERRY_F32}, {"exp_avg_sq", WHERRY_F32}};

static const char *const part_names[PARTS] = {"attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm"};

typedef struct parameter {
    char name[40];
    uint32_t ndim;
    int64_t shape[2];
    wherry_storage *storages[KINDS];
} parameter;

struct wh_demo_model {
    /** The embedding comes first, then PARTS parameters per layer. */
    parameter parameters[PARAMETERS];
};

/** Two words in a 128-bit register, which are processed together. */
typedef uint64_t word_pair __attribute__((vector_size(16)));

/**
 * Chooses the shapes of a transformer. The embedding gets the parameters that are left. The size of
 * every storage is a multiple of sizeof(word_pair).
 */
static void choose_shapes(wh_demo_model *model, uint64_t size) {
    int64_t left = (int64_t)(size / PARAMETER_BYTES);
    int64_t width = 16;
    while (104 * (width + 16) * (width + 16) <= left) {
        /* 8 layers with 12 * width^2 parameters each, and about 8 * width^2 for the embedding */
        width += 16;
    }
    const int64_t shapes[PARTS][2] = {
        {3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}, {width, 1}};
    for (int i = 1; i < PARAMETERS; i++) {
        parameter *p = model->parameters + i;
        int part = (i - 1) % PARTS;
        snprintf(p->name, sizeof(p->name), "layers.%d.%s", (i - 1) / PARTS, part_names[part]);
        p->ndim = part == PARTS - 1 ? 1 : 2;
        memcpy(p->shape, shapes[part], sizeof(p->shape));
        left -= p->shape[0] * p->shape[1];
    }
    model->parameters[0] = (parameter){.name = "embedding", .ndim = 2, .shape = {left / width, width}};
}

static uint64_t mix(uint64_t number) {
    number = (number ^ (number >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    return number ^ (number >> 29);
}

/** Fills a storage with numbers that look random. */
static void fill(wherry_storage *storage, uint64_t seed) {
    uint64_t *words = wherry_storage_data(storage);
    uint64_t count = wherry_storage_nbytes(storage) / sizeof(*words);
    for (uint64_t i = 0; i < count; i++) {
        words[i] = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    }
}

wherry_status wh_demo_model_create(uint64_t size, wh_demo_model **model_p, wherry_error *error) {
    wh_demo_model *model = wh_need(calloc(1, sizeof(*model)));
    choose_shapes(model, size);
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        parameter *p = model->parameters + i / KINDS;
        wherry_storage **storage = p->storages + i % KINDS;
        uint64_t nbytes = (uint64_t)(p->shape[0] * p->shape[1]) * wherry_dtype_describe(kinds[i % KINDS].dtype)->bytes;
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

/** Adds an item to a dict. Destroys the item on failure, or if an earlier call has failed. */
static void add(wherry_status *status, wherry_value *dict, const char *name, wherry_value *item, wherry_error *error) {
    WH_THEN(*status, wherry_dict_put(dict, name, item, error));
    if (*status != WHERRY_OK) {
        wherry_value_destroy(item);
    }
}

static void add_tensor(wherry_status *status, wherry_value *dict, const char *name, const parameter *p, int kind,
                       wherry_error *error) {
    wherry_tensor tensor = {.storage = p->storages[kind],
                            .dtype = kinds[kind].dtype,
                            .flags = kind == 0 ? WHERRY_TENSOR_REQUIRES_GRAD : 0,
                            .ndim = p->ndim,
                            .shape = p->shape};
    wherry_value *item = NULL;
    WH_THEN(*status, wherry_tensor_create(&tensor, &item, error));
    add(status, dict, name, item, error);
}

wherry_status wh_demo_model_state(const wh_demo_model *model, int64_t step, wherry_value **state_p,
                                  wherry_error *error) {
    wherry_value *state = NULL;
    wherry_value *number = NULL;
    wherry_status status = wherry_dict_create(&state, error);
    WH_THEN(status, wherry_int_create(step, &number, error));
    add(&status, state, "step", number, error);
    for (int kind = 0; kind < KINDS && status == WHERRY_OK; kind++) {
        wherry_value *dict = NULL;
        status = wherry_dict_create(&dict, error);
        add(&status, state, kinds[kind].name, dict, error);
        for (int i = 0; i < PARAMETERS && status == WHERRY_OK; i++) {
            add_tensor(&status, dict, model->parameters[i].name, model->parameters + i, kind, error);
        }
        if (kind == 0 && status == WHERRY_OK) {
            /* The head is tied to the embedding. */
            add_tensor(&status, dict, "head", model->parameters, 0, error);
        }
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(state);
        return status;
    }
    *state_p = state;
    return WHERRY_OK;
}

/**
 * Adds a storage to the digest. If `train` is true, first applies a training step to the storage.
 * The digest consists of the sum of all words and the sum of the running sums, so it changes if a
 * word changes or if two words are swapped. A training step is a bijection: two states that differ
 * before it differ after it.
 */
static void digest_storage(const wherry_storage *storage, bool train, uint64_t key, wh_demo_digest *digest) {
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

wh_demo_digest wh_demo_model_train(wh_demo_model *model, int64_t step) {
    wh_demo_digest digest = {{0}};
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        uint64_t key = mix((uint64_t)step * PARAMETERS * KINDS + (uint64_t)i);
        digest_storage(model->parameters[i / KINDS].storages[i % KINDS], step > 0, key, &digest);
    }
    return digest;
}
