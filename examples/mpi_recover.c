/*
 * Ranks of MPI that train the same weights. Each in turn loses its state, as after a fault of its
 * memory or its device, and has it again from the next rank: mpirun -n 4 wherry-mpi-recover. A rank
 * that loses its process takes the job with it: that is MPI.
 */
#include <stdio.h>
#include <string.h>
#include <wherry/mpi.h>
#include <wherry/wherry.h>

enum { WEIGHTS = 4 << 20 };
static wherry_error error;

static void check(wherry_status status) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static wherry_value *build_state(float **weights_p) {
    wherry_storage *storage;
    wherry_value *state, *weights;
    check(wherry_storage_allocate(sizeof(float) * WEIGHTS, wherry_device_cpu(), &storage, &error));
    *weights_p = wherry_storage_data(storage);
    wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_F32, .ndim = 1, .shape = (int64_t[]){WEIGHTS}};
    check(wherry_tensor_create(&tensor, &weights, &error));
    wherry_storage_unref(storage);
    check(wherry_dict_create(&state, &error));
    check(wherry_dict_put(state, "weights", weights, &error));
    return state;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

static void recover(wherry_transport *transport, int source, wherry_value *state) {
    wherry_value *received;
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.target = give_target;
    options.target_context = state;
    check(wherry_checkpoint_recv(transport, source, &options, &received, &error));
    wherry_value_destroy(received); /* views of the same memory */
}

int main(int argc, char **argv) {
    int level, rank, size;
    float *weights, highest[2];
    wherry_group *group;
    wherry_transport *transport;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level); /* less will do, too: docs/mpi.md */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &error));
    check(wherry_transport_create(group, NULL, &transport, &error));
    wherry_value *state = build_state(&weights);
    for (int step = 0; step < size; step++) {
        int loser = step, source = (step + 1) % size;
        for (int i = 0; i < WEIGHTS; i++) {
            weights[i] = weights[i] * 0.5F + (float)(step + i % 7);
        }
        if (rank == loser && size > 1) {
            memset(weights, 0, sizeof(float) * WEIGHTS);
            recover(transport, source, state);
            printf("rank %d has its state of step %d again, from rank %d\n", rank, step, source);
        } else if (rank == source) {
            check(wherry_checkpoint_send(transport, (int32_t[]){loser}, 1, state, NULL, NULL, &error));
        }
    }
    MPI_Allreduce((float[]){weights[0], -weights[0]}, highest, 2, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    printf("rank %d: %s\n", rank, highest[0] == -highest[1] ? "OK, all weights are equal" : "the weights differ");
    wherry_value_destroy(state);
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    MPI_Finalize();
    return highest[0] != -highest[1];
}
