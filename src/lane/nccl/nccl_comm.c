/* One communicator: making it, waiting for it, ending it. */
#include "lane/nccl/nccl_comm.h"

#include <limits.h>

#include "base/error.h"
#include "memory/cuda.h"

/** Blocks of threads that NCCL may have on the device: enough for a network, and its buffers, which it makes for each, stay few. */
enum { BLOCKS = 8 };

static int make(void *context, void *stream) {
    wh_nccl_comm *comm = context;
    wh_nccl_config config = {
        .size = sizeof(config),
        .magic = (unsigned)WH_NCCL_MAGIC,
        .version = WH_NCCL_CONFIG_VERSION,
        .blocking = 0,
        .cluster_size = INT_MIN,
        .min_blocks = INT_MIN,
        .max_blocks = BLOCKS,
        .split_share = INT_MIN,
        .traffic_class = INT_MIN,
    };
    (void)stream;
    return wh_nccl_find(NULL)->init(&comm->handle, 2, comm->unique, comm->pair.is_source, &config);
}

wherry_status wh_nccl_begin(wh_nccl_comm *comm, wherry_error *error) {
    int answer = WH_NCCL_OK;
    wherry_status status = wh_cuda_queue_create(comm->pair.device, &comm->queue, error);
    if (status == WHERRY_OK) {
        status = wh_cuda_queue_with_stream(comm->queue, make, comm, &answer, error);
    }
    if (status == WHERRY_OK && answer != WH_NCCL_OK && answer != WH_NCCL_IN_PROGRESS) {
        status = wh_nccl_fail(error, answer, NULL, "cannot make a communicator");
    }
    if (status != WHERRY_OK) {
        wh_nccl_abort(comm);
    }
    return status;
}

/** What NCCL says of it now. */
static int ask(const wh_nccl_comm *comm) {
    int result = WH_NCCL_OK;
    int answer = wh_nccl_find(NULL)->async_error(comm->handle, &result);
    return answer == WH_NCCL_OK ? result : answer;
}

wherry_status wh_nccl_await(const wh_nccl_comm *comm, const wh_stop *stop, wh_deadline deadline, const char *what,
                            wherry_error *error) {
    wh_cuda_backoff backoff = {0};
    for (;;) {
        int result = ask(comm);
        if (result != WH_NCCL_IN_PROGRESS) {
            return result == WH_NCCL_OK ? WHERRY_OK : wh_nccl_fail(error, result, comm->handle, what);
        }
        wherry_status status = wh_cuda_back_off(&backoff, stop, deadline, what, error);
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

wherry_status wh_nccl_check(const wh_nccl_comm *comm, wherry_error *error) {
    int result = ask(comm);
    return result == WH_NCCL_OK || result == WH_NCCL_IN_PROGRESS
               ? WHERRY_OK
               : wh_nccl_fail(error, result, comm->handle, "the communicator is broken");
}

static int end(void *context, void *stream) {
    (void)stream;
    return wh_nccl_find(NULL)->abort(context);
}

void wh_nccl_abort(wh_nccl_comm *comm) {
    int answer;
    if (comm->handle && wh_cuda_queue_with_stream(comm->queue, end, comm->handle, &answer, NULL) != WHERRY_OK) {
        end(comm->handle, NULL); /* the device is of no more use, but NCCL has threads to end */
    }
    comm->handle = NULL;
    wh_cuda_queue_destroy(comm->queue); /* which waits: nothing is read or written from here on */
    comm->queue = NULL;
}
