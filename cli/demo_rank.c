/*
 * A rank of the demo. It trains. At a step that all ranks agree on, it sends its state to a peer
 * that has lost its own. That peer receives the state in place, from all ranks that send it.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <wherry/checkpoint.h>
#include <wherry/group.h>
#include <wherry/tensor.h>

#include "demo.h"

enum {
    TIMEOUT_MS = 60000, /**< Time limit for each wait of a rank. */
    QUIT_SECONDS = 10,  /**< Time limit for leaving the group. */
    TAG_REPORT = 1,
    LAYERS = 8,
    PARTS = 5,
    PARAMETERS = 1 + LAYERS * PARTS,
    KINDS = 3,
    PARAMETER_BYTES = 2 + 4 + 4,
};

/* ---- the model ---- */

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

typedef struct demo_model {
    /** The embedding comes first, then PARTS parameters per layer. */
    parameter parameters[PARAMETERS];
} demo_model;

/** Two words in a 128-bit register, which are processed together. */
typedef uint64_t word_pair __attribute__((vector_size(16)));

/**
 * Chooses the shapes of a transformer. The embedding gets the parameters that are left. The size of
 * every storage is a multiple of sizeof(word_pair).
 */
static void choose_shapes(demo_model *model, uint64_t size) {
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

static void model_destroy(demo_model *model) {
    for (int i = 0; model && i < PARAMETERS * KINDS; i++) {
        wherry_storage_unref(model->parameters[i / KINDS].storages[i % KINDS]);
    }
    free(model);
}

/** Creates a model with optimizer state: `size` bytes or slightly less, equal on every rank. */
static wherry_status model_create(uint64_t size, demo_model **model_p, wherry_error *error) {
    demo_model *model = wh_need(calloc(1, sizeof(*model)));
    choose_shapes(model, size);
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        parameter *p = model->parameters + i / KINDS;
        wherry_storage **storage = p->storages + i % KINDS;
        uint64_t nbytes = (uint64_t)(p->shape[0] * p->shape[1]) * wherry_dtype_describe(kinds[i % KINDS].dtype)->bytes;
        wherry_status status = wherry_storage_allocate(nbytes, wherry_device_cpu(), storage, error);
        if (status != WHERRY_OK) {
            model_destroy(model);
            return status;
        }
        fill(*storage, mix((uint64_t)i + 1));
    }
    *model_p = model;
    return WHERRY_OK;
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

/** Creates a state dict with the step and views of the model's memory. The caller destroys it. */
static wherry_status model_state(const demo_model *model, int64_t step, wherry_value **state_p, wherry_error *error) {
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

/** Trains a step from 1 on, which rewrites the whole model; nothing if 0. @return the digest. */
static wh_demo_digest model_train(demo_model *model, int64_t step) {
    wh_demo_digest digest = {{0}};
    for (int i = 0; i < PARAMETERS * KINDS; i++) {
        uint64_t key = mix((uint64_t)step * PARAMETERS * KINDS + (uint64_t)i);
        digest_storage(model->parameters[i / KINDS].storages[i % KINDS], step > 0, key, &digest);
    }
    return digest;
}

/* ---- both modes ---- */

typedef struct demo_rank {
    const wh_demo_options *options;
    int control; /**< The socket to the conductor; -1 under a launcher. */
    int64_t step;
    int64_t limit;   /**< The last step that this rank may train. */
    int32_t lend_to; /**< The rank that needs the state of step `limit`; -1 if there is none. */
    demo_model *model;
    wherry_group *group;
    wherry_transport *transport;
    wherry_error error;
} demo_rank;

static wherry_status join(demo_rank *r, const char *address) {
    wherry_group_options options;
    wherry_group_options_init(&options);
    options.timeout_ms = TIMEOUT_MS;
    wherry_status status = model_create(r->options->size, &r->model, &r->error);
    WH_THEN(status, wherry_group_join(address, &options, &r->group, &r->error));
    WH_THEN(status, wherry_transport_create(r->group, NULL, &r->transport, &r->error));
    return status;
}

static void leave(demo_rank *r) {
    wherry_transport_destroy(r->transport);
    wherry_group_leave(r->group);
    model_destroy(r->model);
}

static void init_transfer(const demo_rank *r, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TIMEOUT_MS;
    options->lanes = strcmp(r->options->lane, "auto") == 0 ? NULL : r->options->lane;
    options->verify = r->options->verify ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
}

static wherry_status lend(demo_rank *r, int32_t peer) {
    wherry_transfer_options options;
    wherry_value *state = NULL;
    init_transfer(r, &options);
    options.step = r->step;
    wherry_status status = model_state(r->model, r->step, &state, &r->error);
    WH_THEN(status, wherry_checkpoint_send(r->transport, &peer, 1, state, &options, NULL, &r->error));
    wherry_value_destroy(state);
    return status;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/** Sends a message to the conductor. Exits if the conductor has ended. */
static void tell(const demo_rank *r, const wh_demo_message *message) {
    if (send(r->control, message, sizeof(*message), MSG_NOSIGNAL) != (ssize_t)sizeof(*message)) {
        _exit(WH_EXIT_FAILED);
    }
}

static void on_progress(void *context, const wherry_progress *progress) {
    if (*progress->lane) {
        tell(context, &(wh_demo_message){.kind = WH_DEMO_HEALING, .peer = progress->peer});
    }
}

uint64_t wh_demo_sources(uint64_t ranks) {
    while (__builtin_popcountll(ranks) > WHERRY_SOURCES_MAX) {
        ranks &= ranks - 1; /* This removes the lowest rank from the set. */
    }
    return ranks;
}

/** Receives the state of a step in place. Sets *message_p to a WH_DEMO_HEALED message. */
static wherry_status heal(demo_rank *r, uint64_t sources, int64_t step, wh_demo_message *message_p) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    int32_t ranks[WHERRY_SOURCES_MAX];
    size_t count = 0;
    wherry_value *target = NULL;
    wherry_value *state;
    for (uint64_t left = sources; left; left &= left - 1) {
        ranks[count++] = __builtin_ctzll(left);
    }
    wherry_status status = model_state(r->model, 0, &target, &r->error);
    init_transfer(r, &options);
    options.step = step;
    options.progress = r->control < 0 ? NULL : on_progress;
    options.progress_context = r;
    options.target = give_target;
    options.target_context = target;
    options.stats = &stats;
    WH_THEN(status, wherry_checkpoint_recv_from(r->transport, ranks, count, &options, &state, &r->error));
    if (status == WHERRY_OK) {
        r->step = wherry_int_get(wherry_dict_get(state, "step"));
        wherry_value_destroy(state);
        *message_p = (wh_demo_message){.kind = WH_DEMO_HEALED,
                                       .step = r->step,
                                       .bytes = stats.bytes_wanted,
                                       .seconds = stats.data_seconds,
                                       .delay = stats.total_seconds,
                                       .checked = stats.checked,
                                       .ranks = sources,
                                       .digest = model_train(r->model, 0)};
        snprintf(message_p->text, sizeof(message_p->text), "%s", stats.lane);
        for (uint32_t i = 0; i < stats.source_count; i++) {
            const wherry_source_stats *one = stats.sources + i;
            /* This source was not needed. */
            bool late = one->status == WHERRY_TIMED_OUT && one->bytes == 0;
            message_p->shares[one->rank] = one->bytes;
            message_p->lost |= (uint64_t)(one->status != WHERRY_OK && !late) << one->rank;
        }
    }
    wherry_value_destroy(target);
    return status;
}

/* ---- a rank of the conductor ---- */

static wherry_status obey(demo_rank *r, wh_demo_message *order) {
    r->limit = order->step;
    r->lend_to = order->kind == WH_DEMO_LEND ? order->peer : -1;
    wherry_status status = WHERRY_OK;
    if (order->kind == WH_DEMO_HEAL && (status = heal(r, order->ranks, order->step, order)) == WHERRY_OK) {
        tell(r, order);
    }
    return status;
}

/** Trains until the conductor closes the socket. */
static wherry_status train(demo_rank *r) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK) {
        wh_demo_message order;
        struct pollfd ready = {.fd = r->control, .events = POLLIN};
        bool idle = r->step >= r->limit && r->lend_to < 0;
        if (poll(&ready, 1, idle ? -1 : 0) > 0) {
            if (recv(r->control, &order, sizeof(order), 0) != (ssize_t)sizeof(order)) {
                break;
            }
            status = obey(r, &order);
        } else if (r->step < r->limit) {
            wh_demo_digest digest = model_train(r->model, ++r->step);
            tell(r, &(wh_demo_message){.kind = WH_DEMO_STEPPED, .step = r->step, .digest = digest});
        } else if (r->lend_to >= 0) {
            status = lend(r, r->lend_to);
            /* The peer reports other errors. */
            status = status == WHERRY_CLOSED ? status : WHERRY_OK;
            r->lend_to = -1;
        }
    }
    return status;
}

int wh_demo_run_rank(const wh_demo_options *options, int rank, bool rejoin, const char *address, int control) {
    demo_rank r = {.options = options, .control = control, .lend_to = -1};
    char full[WH_DEMO_ADDRESS_MAX + 64];
    snprintf(full, sizeof(full), "%s?rank=%d&size=%d", address, rank, (int)options->ranks);
    wh_set_log(&options->common, WHERRY_LOG_ERROR); /* Do not log this for each lost source. */
    wherry_status status = join(&r, full);
    if (status == WHERRY_OK) {
        wh_demo_kind kind = rejoin ? WH_DEMO_READY : WH_DEMO_STEPPED;
        tell(&r, &(wh_demo_message){.kind = kind, .digest = model_train(r.model, 0)});
        status = train(&r);
    }
    if (status != WHERRY_OK) {
        wh_demo_message message = {.kind = WH_DEMO_FAILED};
        snprintf(message.text, sizeof(message.text), "%s", r.error.message);
        tell(&r, &message);
    }
    alarm(QUIT_SECONDS);
    leave(&r);
    return status == WHERRY_OK ? WH_EXIT_OK : WH_EXIT_FAILED;
}

/* ---- a rank of a launcher ---- */

/** Returns the rank that loses its state before a step; -1 if none. Losses are evenly spaced. */
static int loser_before(const wh_demo_options *options, int64_t step) {
    for (int64_t i = 0; i < options->kills; i++) {
        if (step == 1 + (i + 1) * options->steps / (options->kills + 1)) {
            return (int)(i % options->ranks);
        }
    }
    return -1;
}

/** On rank 0: receives all ranks' reports for a step. All digests must be equal. */
static wherry_status compare_reports(demo_rank *r, const wh_demo_digest *digest, wh_timeline *timeline) {
    wherry_status status = WHERRY_OK;
    for (int rank = 0; rank < r->options->ranks && status == WHERRY_OK; rank++) {
        void *bytes = NULL;
        size_t size;
        status = wherry_group_receive(r->group, rank, TAG_REPORT, TIMEOUT_MS, &bytes, &size, NULL, &r->error);
        wh_demo_message *report = bytes;
        if (status == WHERRY_OK && (size != sizeof(*report) || memcmp(&report->digest, digest, sizeof(*digest)) != 0)) {
            status = wh_fail_error(&r->error, WHERRY_MISMATCH,
                                   "after step %" PRId64 ", ranks %d and 0 have different digests", r->step, rank);
        } else if (status == WHERRY_OK && report->bytes) {
            report->text[sizeof(report->text) - 1] = '\0';
            wh_timeline_say(timeline, WH_DEMO_BAD, "rank %d lost its state after step %" PRId64, rank, report->step);
            wh_timeline_healed(timeline, rank, report);
        }
        wherry_free(bytes);
    }
    wh_timeline_progress(timeline, r->step, "");
    return status;
}

/** Trains in lockstep. In turn, each rank loses its state and receives it from the others. */
static wherry_status train_in_step(demo_rank *r, wh_demo_digest *digest_p, wh_timeline *timeline) {
    const wh_demo_options *options = r->options;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && r->step < options->steps) {
        wh_demo_message report = {.kind = WH_DEMO_HEALED};
        int32_t loser = loser_before(options, r->step + 1);
        uint64_t others = loser < 0 ? 0 : UINT64_MAX >> (64 - options->ranks) & ~(UINT64_C(1) << loser);
        uint64_t sources = wh_demo_sources(others);
        if (loser == options->rank) {
            model_destroy(r->model);
            r->model = NULL;
            /* The model is the same as at step 0. */
            status = model_create(options->size, &r->model, &r->error);
            WH_THEN(status, heal(r, sources, r->step, &report));
        } else if (sources >> options->rank & 1) {
            status = lend(r, loser);
        }
        if (status != WHERRY_OK) {
            return status;
        }
        report.digest = *digest_p = model_train(r->model, ++r->step);
        status = wherry_group_send(r->group, 0, TAG_REPORT, &report, sizeof(report), TIMEOUT_MS, &r->error);
        if (status == WHERRY_OK && options->rank == 0) {
            status = compare_reports(r, digest_p, timeline);
        }
        WH_THEN(status, wherry_group_barrier(r->group, (uint64_t)r->step, TIMEOUT_MS, &r->error));
    }
    return status;
}

int wh_demo_run_launched(const wh_demo_options *options) {
    demo_rank r = {.options = options, .control = -1};
    wh_timeline timeline;
    wh_demo_digest digest = {{0}};
    char text[64];
    wh_set_log(&options->common, WHERRY_LOG_WARN);
    wh_timeline_begin(&timeline, options);
    timeline.quiet = timeline.quiet || options->rank != 0;
    /* There is no bar, because launchers mix the output of the ranks. */
    timeline.bar.terminal = false;
    wh_timeline_say(&timeline, WH_DEMO_PLAIN, "%d ranks, started by a launcher, each with a state of %s",
                    (int)options->ranks, wh_size_text(options->size, text));
    wherry_status status = join(&r, "env://");
    WH_THEN(status, train_in_step(&r, &digest, &timeline));
    if (status != WHERRY_OK) {
        wh_fail_command(&wh_command_demo, 0, "rank %d: %s", options->rank, r.error.message);
    } else if (options->rank == 0) {
        snprintf(text, sizeof(text), "%d lost state%s, each healed", timeline.heals, timeline.heals == 1 ? "" : "s");
        wh_timeline_success(&timeline, &digest, text);
    }
    leave(&r);
    return status == WHERRY_OK ? WH_EXIT_OK : WH_EXIT_FAILED;
}
