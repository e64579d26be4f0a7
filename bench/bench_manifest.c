/*
 * bench_manifest TENSORS REPEATS: measures preparing and encoding a state, and decoding its
 * manifest into a state. Prints a line of JSON with the seconds of each repeat.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <wherry/wherry.h>

enum { PER_LAYER = 10, REPEATS_MAX = 100 };

static wherry_error error;

static void check(wherry_status status) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
        exit(EXIT_FAILURE);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/** A flat state dict as in PyTorch: {"model.layers.17.block.weight3": tensor, ...}. */
static wherry_value *build(size_t tensors) {
    wherry_value *state;
    check(wherry_dict_create(&state, &error));
    for (size_t i = 0; i < tensors; i++) {
        char name[64];
        int64_t shape[] = {32, 32};
        wherry_storage *storage;
        wherry_value *value;
        snprintf(name, sizeof(name), "model.layers.%zu.block.weight%zu", i / PER_LAYER, i % PER_LAYER);
        check(wherry_storage_allocate(4096, wherry_device_cpu(), &storage, &error));
        wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_F32, .ndim = 2, .shape = shape};
        check(wherry_tensor_create(&tensor, &value, &error));
        check(wherry_dict_put(state, name, value, &error));
        wherry_storage_unref(storage);
    }
    return state;
}

static void print_list(const char *name, const double *seconds, int count) {
    printf(", \"%s\": [", name);
    for (int i = 0; i < count; i++) {
        printf("%s%.9f", i ? ", " : "", seconds[i]);
    }
    printf("]");
}

int main(int argc, char **argv) {
    size_t tensors = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    int repeats = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9;
    double encode[REPEATS_MAX];
    double decode[REPEATS_MAX];
    size_t size = 0;
    if (tensors < 1 || repeats < 1 || repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: bench_manifest TENSORS REPEATS (at most %d)\n", REPEATS_MAX);
        return 2;
    }
    wherry_value *state = build(tensors);
    for (int i = -1; i < repeats; i++) {
        wherry_prepared *sent;
        wherry_prepared *received;
        void *bytes;
        double begin = now();
        check(wherry_prepare(state, NULL, &sent, &error));
        check(wherry_manifest_encode(sent, &bytes, &size, &error));
        double encoded = now();
        check(wherry_manifest_decode(bytes, size, NULL, &received, &error));
        double decoded = now();
        if (i >= 0) {
            encode[i] = encoded - begin;
            decode[i] = decoded - encoded;
        }
        wherry_prepared_destroy(sent);
        wherry_prepared_destroy(received);
        wherry_free(bytes);
    }
    wherry_value_destroy(state);
    printf("{\"tensors\": %zu, \"bytes\": %zu", tensors, size);
    print_list("encode", encode, repeats);
    print_list("decode", decode, repeats);
    printf("}\n");
    return EXIT_SUCCESS;
}
