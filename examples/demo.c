/*
 * A model-shaped state goes to a second process as a manifest: what a worker that has just come back learns before it asks for the first
 * byte. The first process builds the state and sends its manifest through a pipe; the second decodes it, prints the tree, and plans what to
 * ask for, into new memory and into memory that it has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

enum { LAYERS = 2, WIDTH = 1024, VOCABULARY = 8192 };

static wherry_error error;

static void check(wherry_status status) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
        exit(EXIT_FAILURE);
    }
}

static wherry_value *tensor_over(wherry_storage *storage, wherry_dtype dtype, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns};
    wherry_tensor tensor = {
        .storage = storage, .dtype = dtype, .ndim = 2, .shape = shape, .flags = WHERRY_TENSOR_REQUIRES_GRAD};
    wherry_value *value;
    check(wherry_tensor_create(&tensor, &value, &error));
    return value;
}

static wherry_value *new_tensor(wherry_dtype dtype, int64_t rows, int64_t columns) {
    wherry_storage *storage;
    uint64_t nbytes = (uint64_t)rows * (uint64_t)columns * wherry_dtype_describe(dtype)->bytes;
    check(wherry_storage_allocate(nbytes, wherry_device_cpu(), &storage, &error));
    wherry_value *value = tensor_over(storage, dtype, rows, columns);
    wherry_storage_unref(storage);
    return value;
}

static wherry_value *new_dict(void) {
    wherry_value *dict;
    check(wherry_dict_create(&dict, &error));
    return dict;
}

static void put(wherry_value *dict, const char *name, wherry_value *item) {
    check(wherry_dict_put(dict, name, item, &error));
}

/** This rank's half of a weight that is cut by rows over two ranks. */
static wherry_value *sharded_weight(wherry_mesh *mesh) {
    int64_t shape[] = {2 * WIDTH, WIDTH};
    int64_t strides[] = {WIDTH, 1};
    wherry_placement placement = {.kind = WHERRY_SHARD, .dim = 0};
    wherry_dtensor dtensor = {.local = new_tensor(WHERRY_BF16, WIDTH, WIDTH),
                              .mesh = mesh,
                              .placements = &placement,
                              .dtype = WHERRY_BF16,
                              .ndim = 2,
                              .shape = shape,
                              .strides = strides};
    wherry_value *value;
    check(wherry_dtensor_create(&dtensor, &value, &error));
    return value;
}

/** An embedding table of which this rank holds the first of two shards. */
static wherry_value *embedding_bag(void) {
    int64_t shape[] = {VOCABULARY, 64};
    int64_t offsets[2][2] = {{0, 0}, {VOCABULARY / 2, 0}};
    int64_t sizes[] = {VOCABULARY / 2, 64};
    wherry_shard_info infos[2];
    for (int i = 0; i < 2; i++) {
        infos[i] = (wherry_shard_info){offsets[i], sizes, {i, wherry_device_cpu()}};
    }
    wherry_shard shard = {new_tensor(WHERRY_F32, VOCABULARY / 2, 64), infos[0]};
    wherry_sharded sharded = {.dtype = WHERRY_F32,
                              .ndim = 2,
                              .shape = shape,
                              .shard_count = 1,
                              .shards = &shard,
                              .global_count = 2,
                              .global = infos,
                              .sharding = {.kind = WHERRY_SHARDING_ENUMERABLE, .count = 2, .boxes = infos}};
    wherry_value *value;
    check(wherry_sharded_create(&sharded, &value, &error));
    return value;
}

static wherry_value *build_state(void) {
    int64_t mesh_shape[] = {2};
    int64_t ranks[] = {0, 1};
    wherry_mesh_info info = {.device = WHERRY_DEVICE_CPU, .ndim = 1, .shape = mesh_shape, .ranks = ranks};
    wherry_mesh *mesh;
    check(wherry_mesh_create(&info, &mesh, &error));

    wherry_value *layers;
    check(wherry_list_create(&layers, &error));
    for (int i = 0; i < LAYERS; i++) {
        wherry_value *layer = new_dict();
        put(layer, "attn.qkv", sharded_weight(mesh));
        put(layer, "norm", new_tensor(WHERRY_F32, 1, WIDTH));
        check(wherry_sequence_append(layers, layer, &error));
    }
    wherry_mesh_unref(mesh);

    wherry_value *model = new_dict();
    wherry_value *embedding = new_tensor(WHERRY_BF16, VOCABULARY, WIDTH);
    wherry_storage *tied = wherry_tensor_get(embedding)->storage;
    put(model, "embedding", embedding);
    put(model, "layers", layers);
    put(model, "head", tensor_over(tied, WHERRY_BF16, VOCABULARY, WIDTH));
    put(model, "bag", embedding_bag());

    wherry_value *step;
    wherry_value *rate;
    wherry_value *name;
    check(wherry_int_create(1200, &step, &error));
    check(wherry_float_create(3e-4, &rate, &error));
    check(wherry_string_create("demo", 4, &name, &error));
    wherry_value *state = new_dict();
    put(state, "model", model);
    put(state, "step", step);
    put(state, "lr", rate);
    put(state, "name", name);
    return state;
}

static void print_plan(const char *title, const wherry_plan *plan) {
    wherry_plan_summary summary;
    size_t count;
    wherry_plan_summarize(plan, &summary);
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    printf("%s: %llu tensors, %llu bytes by %llu copies; asks for %llu chunks (%llu straight into place), %llu bytes\n",
           title, (unsigned long long)summary.tensors, (unsigned long long)summary.bytes,
           (unsigned long long)summary.copies, (unsigned long long)summary.chunks, (unsigned long long)summary.direct,
           (unsigned long long)summary.chunk_bytes);
    for (size_t i = 0; i < count; i++) {
        printf("  chunks %llu to %llu\n", (unsigned long long)intervals[i].first,
               (unsigned long long)(intervals[i].first + intervals[i].count - 1));
    }
}

/** The receiver: everything that it knows comes from these bytes. */
static void receive(const void *bytes, size_t size, const wherry_value *target) {
    wherry_prepared *prepared;
    wherry_plan *plan;
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    check(wherry_manifest_decode(bytes, size, NULL, &prepared, &error));
    if (!target) {
        wherry_prepared_summary summary;
        wherry_prepared_summarize(prepared, &summary);
        printf("manifest: %zu bytes; %llu tensors over %llu storages; their views add up to %llu bytes, of which %llu "
               "travel\n\n",
               size, (unsigned long long)summary.tensors, (unsigned long long)summary.storages,
               (unsigned long long)summary.view_bytes, (unsigned long long)summary.bytes);
        check(wherry_value_dump(wherry_prepared_state(prepared), stdout, &error));
        printf("\n");
    }
    check(wherry_plan_create(prepared, target, &options, &plan, &error));
    print_plan(target ? "in place" : "into new memory", plan);
    wherry_plan_destroy(plan);
}

static int run_receiver(int input) {
    char *bytes = NULL;
    size_t size = 0;
    ssize_t got;
    do {
        bytes = realloc(bytes, size + 65536);
        got = bytes ? read(input, bytes + size, 65536) : -1;
        size += got > 0 ? (size_t)got : 0;
    } while (got > 0);
    if (got < 0) {
        fprintf(stderr, "the receiver could not read the manifest\n");
        return EXIT_FAILURE;
    }
    wherry_value *own = build_state();
    receive(bytes, size, NULL);
    receive(bytes, size, own);
    wherry_value_destroy(own);
    free(bytes);
    return EXIT_SUCCESS;
}

static void run_sender(int output) {
    wherry_value *state = build_state();
    wherry_prepared *prepared;
    void *bytes;
    size_t size;
    check(wherry_prepare(state, NULL, &prepared, &error));
    check(wherry_manifest_encode(prepared, &bytes, &size, &error));
    for (size_t sent = 0; sent < size;) {
        ssize_t wrote = write(output, (const char *)bytes + sent, size - sent);
        if (wrote < 0) {
            perror("the sender could not write the manifest");
            exit(EXIT_FAILURE);
        }
        sent += (size_t)wrote;
    }
    wherry_free(bytes);
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(state);
}

int main(void) {
    int ends[2];
    if (pipe(ends) != 0) {
        perror("pipe");
        return EXIT_FAILURE;
    }
    pid_t receiver = fork();
    if (receiver < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    if (receiver == 0) {
        close(ends[1]);
        return run_receiver(ends[0]);
    }
    close(ends[0]);
    run_sender(ends[1]);
    close(ends[1]);
    int status;
    waitpid(receiver, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}
