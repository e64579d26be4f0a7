/*
 * Moves a state from one process to another. Rank 0 sends it. Rank 1 has the same tensors, still
 * empty, and receives in place. The two meet at a Unix socket: start `wherry-ferry 0 /tmp/meet` and
 * `wherry-ferry 1 /tmp/meet`, in any order.
 */
#include <stdio.h>
#include <stdlib.h>

#include <wherry/wherry.h>

enum { ROWS = 4096, COLUMNS = 4096 };

static wherry_error error;

static void check(wherry_status status) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
        exit(EXIT_FAILURE);
    }
}

/** {"weight": a matrix, "tied": the same memory again, "step": a number} */
static wherry_value *build_state(int64_t step, float first) {
    wherry_storage *storage;
    wherry_value *state;
    wherry_value *weight;
    wherry_value *tied;
    wherry_value *number;
    check(wherry_storage_allocate(sizeof(float) * ROWS * COLUMNS, wherry_device_cpu(), &storage, &error));
    ((float *)wherry_storage_data(storage))[0] = first;

    wherry_tensor matrix = {.storage = storage, .dtype = WHERRY_F32, .ndim = 2, .shape = (int64_t[]){ROWS, COLUMNS}};
    check(wherry_tensor_create(&matrix, &weight, &error));
    check(wherry_tensor_create(&matrix, &tied, &error));
    wherry_storage_unref(storage);
    check(wherry_int_create(step, &number, &error));
    check(wherry_dict_create(&state, &error));
    check(wherry_dict_put(state, "weight", weight, &error));
    check(wherry_dict_put(state, "tied", tied, &error));
    check(wherry_dict_put(state, "step", number, &error));
    return state;
}

static void send_state(wherry_transport *transport) {
    wherry_value *state = build_state(1200, 0.5F);
    wherry_outcome outcome;
    check(wherry_checkpoint_send(transport, (int32_t[]){1}, 1, state, NULL, &outcome, &error));
    printf("rank 0 has sent its state, over %s\n", outcome.stats.lane);
    wherry_value_destroy(state); /* after the call, nobody reads it */
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

static void receive_state(wherry_transport *transport) {
    wherry_value *own = build_state(0, 0);
    wherry_value *received;
    wherry_stats stats;
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.target = give_target;
    options.target_context = own;
    options.stats = &stats;
    check(wherry_checkpoint_recv(transport, 0, &options, &received, &error));

    const float *weight = wherry_storage_data(wherry_tensor_get(wherry_dict_get(own, "weight"))->storage);
    printf("rank 1 is at step %lld, its first weight is %g: %llu bytes in %.3f s over %s\n",
           (long long)wherry_int_get(wherry_dict_get(received, "step")), (double)weight[0],
           (unsigned long long)stats.bytes_moved, stats.data_seconds, stats.lane);
    wherry_value_destroy(received);
    wherry_value_destroy(own);
}

int main(int argc, char **argv) {
    char address[256];
    wherry_group *group;
    wherry_transport *transport;
    if (argc != 3) {
        fprintf(stderr, "usage: %s RANK /PATH/OF/A/SOCKET (start it twice, with ranks 0 and 1)\n", argv[0]);
        return EXIT_FAILURE;
    }
    snprintf(address, sizeof(address), "unix://%s?rank=%s&size=2", argv[2], argv[1]);
    check(wherry_group_join(address, NULL, &group, &error));
    check(wherry_transport_create(group, NULL, &transport, &error));
    if (wherry_group_rank(group) == 0) {
        send_state(transport);
    } else {
        receive_state(transport);
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    return EXIT_SUCCESS;
}
