/*
 * mpirun -n 2 bench_mpi PAGES REPEATS: transfers states between two ranks of MPI, alternating with
 * plain MPI_Send and MPI_Recv of one buffer. PAGES is the kind of memory: "small" pages, as malloc
 * provides them, or "huge" pages. Rank 1, the receiver, prints a line of JSON with the seconds of
 * each repeat. The first round is a warm-up. Its data is checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <wherry/mpi.h>
#include <wherry/wherry.h>

#include "bench_start.h"

#define GIB ((size_t)1 << 30)
#define HUGE_PAGE ((size_t)2 << 20)

enum { REPEATS_MAX = 99, LARGE = 16, SMALL = 20000, SMALL_BYTES = 4096 };

static int rank;
static bool huge;
static wherry_error error;
static char *plain; /* a buffer of 1 GiB */

static void check(wherry_status status) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, wherry_status_name(status), error.message);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
}

/** Allocates memory on the chosen kind of pages and writes every byte. */
static char *new_memory(size_t bytes) {
    char *memory = bytes >= HUGE_PAGE ? aligned_alloc(HUGE_PAGE, bytes) : malloc(bytes);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        exit(EXIT_FAILURE);
    }
    if (bytes >= HUGE_PAGE) {
        madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    memset(memory, rank == 0 ? 'w' : 0, bytes);
    return memory;
}

/** Creates a state of tensors in memory of the program. */
static wherry_value *new_state(int tensors, size_t bytes) {
    wherry_value *state;
    check(wherry_dict_create(&state, &error));
    for (int i = 0; i < tensors; i++) {
        char name[64];
        wherry_storage *storage;
        wherry_value *tensor;
        int64_t shape[] = {(int64_t)(bytes / sizeof(float))};
        snprintf(name, sizeof(name), "model.layers.%d.block.weight%d", i / 10, i % 10);
        check(wherry_storage_wrap(new_memory(bytes), bytes, wherry_device_cpu(), NULL, NULL, &storage, &error));
        wherry_tensor one = {.storage = storage, .dtype = WHERRY_F32, .ndim = 1, .shape = shape};
        check(wherry_tensor_create(&one, &tensor, &error));
        wherry_storage_unref(storage);
        check(wherry_dict_put(state, name, tensor, &error));
    }
    return state;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/** Clears a state, so that a comparison afterwards sees only received data. */
static void clear(const wherry_value *state) {
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_storage *storage = wherry_tensor_get(wherry_dict_at(state, i))->storage;
        memset(wherry_storage_data(storage), 0, wherry_storage_nbytes(storage));
    }
}

static void compare(const wherry_value *state) {
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_storage *storage = wherry_tensor_get(wherry_dict_at(state, i))->storage;
        const char *bytes = wherry_storage_data(storage);
        if (bytes[0] != 'w' || bytes[wherry_storage_nbytes(storage) - 1] != 'w') {
            fprintf(stderr, "tensor %zu did not arrive\n", i);
            MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        }
    }
}

/** One measurement. */
typedef struct step {
    const char *name;
    bool small;        /**< True for 20,000 tensors of 4 KiB; false for 16 tensors of 64 MiB. */
    const char *lanes; /**< NULL for plain MPI. */
    wherry_verify verify;
} step;

static const step steps[] = {
    {"plain", false, NULL, WHERRY_VERIFY_OFF},
    {"blocks", false, "blocks", WHERRY_VERIFY_OFF},
    {"blocks, verify", false, "blocks", WHERRY_VERIFY_ON},
    {"default", false, "", WHERRY_VERIFY_DEFAULT},
    {"blocks, small", true, "blocks", WHERRY_VERIFY_OFF},
    {"default, small", true, "", WHERRY_VERIFY_DEFAULT},
};

enum { STEPS = sizeof(steps) / sizeof(*steps) };

static double seconds[STEPS][REPEATS_MAX + 1]; /* time per call */
static double data[STEPS][REPEATS_MAX + 1];    /* time per data phase */
static wherry_stats stats[STEPS];

static void ferry(wherry_transport *transport, const step *one, wherry_value *state, wherry_stats *receiver) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.lanes = one->lanes[0] ? one->lanes : NULL;
    options.verify = one->verify;
    if (rank == 0) {
        check(wherry_checkpoint_send(transport, (int32_t[]){1}, 1, state, &options, NULL, &error));
    } else {
        options.target = give_target;
        options.target_context = state;
        options.stats = receiver;
        check(wherry_checkpoint_recv(transport, 0, &options, NULL, &error));
    }
}

static void send_plainly(void) {
    if (rank == 0) {
        MPI_Send(plain, (int)GIB, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Recv(plain, (int)GIB, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/** Starts both ranks at the same time of their common clock. */
static void begin_together(void) {
    struct timespec moment = bench_moment();
    MPI_Bcast(&moment, sizeof(moment), MPI_BYTE, 0, MPI_COMM_WORLD);
    bench_begin_at(moment, rank);
}

/**
 * Measures one step. @return the seconds of the receiver's call, which starts together with the
 * source's call.
 */
static double measure(wherry_transport *transport, const step *one, wherry_value *state, wherry_stats *receiver) {
    MPI_Barrier(MPI_COMM_WORLD);
    begin_together();
    double begin = MPI_Wtime();
    if (one->lanes) {
        ferry(transport, one, state, receiver);
    } else {
        send_plainly();
    }
    return MPI_Wtime() - begin;
}

static void print_list(const char *name, const double *values, int repeats) {
    printf("\"%s\": [", name);
    for (int k = 1; k <= repeats; k++) {
        printf("%s%.6f", k > 1 ? ", " : "", values[k]);
    }
    printf("]");
}

static void print_results(int repeats) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    for (char *at = version; *at; at++) {
        *at = *at < ' ' || *at == '"' ? ' ' : *at;
    }
    printf("{\"library\": \"%s\", \"pages\": \"%s\", \"steps\": [", version, huge ? "huge" : "small");
    for (int i = 0; i < STEPS; i++) {
        printf("%s{\"name\": \"%s\", \"bytes\": %zu, \"lane\": \"%s\", ", i ? ", " : "", steps[i].name,
               steps[i].small ? (size_t)SMALL * SMALL_BYTES : GIB, steps[i].lanes ? stats[i].lane : "");
        print_list("seconds", seconds[i], repeats);
        printf(", ");
        print_list("data", data[i], repeats);
        printf("}");
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    int level;
    int size;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int repeats = argc == 3 ? (int)strtol(argv[2], NULL, 10) : 0;
    MPI_Comm near; /* Ranks on one host have the same clock. */
    int neighbours;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    MPI_Comm_size(near, &neighbours);
    MPI_Comm_free(&near);
    if (size != 2 || neighbours != 2 || repeats < 1 || repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: mpirun -n 2 %s small|huge REPEATS, on one host\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    huge = strcmp(argv[1], "huge") == 0;
    wherry_group *group;
    wherry_transport *transport;
    check(wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &error));
    check(wherry_transport_create(group, NULL, &transport, &error));
    plain = new_memory(GIB);
    wherry_value *states[] = {new_state(LARGE, GIB / LARGE), new_state(SMALL, SMALL_BYTES)};
    for (int k = 0; k <= repeats; k++) {
        for (int i = 0; i < STEPS; i++) {
            wherry_value *state = states[steps[i].small];
            bool checked = k == 0 && rank == 1 && steps[i].lanes;
            if (checked) {
                clear(state);
            }
            seconds[i][k] = measure(transport, steps + i, state, stats + i);
            data[i][k] = stats[i].data_seconds;
            if (checked) {
                compare(state);
            }
        }
    }
    if (rank == 1) { /* The receiver has the results. */
        print_results(repeats);
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
