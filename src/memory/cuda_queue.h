/**
 * @file cuda_queue.h  A queue: copies between host and device memory, or devices, that a device carries out in their order while the caller goes on.
 *
 * What is queued is done when a ticket that was taken behind it has passed. Runs that are short and many go by one launch of a small kernel, others by the
 * driver's own copies. Several threads may use a queue at once, but for destroying it.
 */
#ifndef WH_MEMORY_CUDA_QUEUE_H
#define WH_MEMORY_CUDA_QUEUE_H

#include <stddef.h>

#include "memory/cuda.h"

typedef struct wh_cuda_queue wh_cuda_queue;

/** A copy of `length` bytes. Host memory that is not pinned is allowed, and slow. */
typedef struct wh_cuda_run {
    const void *from;
    void *to;
    size_t length;
} wh_cuda_run;

/** How the runs of a call lie, so that it need not be found out from their addresses. */
typedef enum wh_cuda_way {
    WH_CUDA_WITH_PAGEABLE, /**< Some of it is host memory that no device reaches. */
    WH_CUDA_WITH_PINNED,   /**< From or to pinned host memory. */
    WH_CUDA_ON_DEVICES,    /**< Devices alone. */
} wh_cuda_way;

/**
 * So many runs, of 64 MiB in all, can be queued behind each of three things that may never be done, such as a message of a peer. More may wait for these, and
 * do not look at a stop meanwhile.
 */
enum { WH_CUDA_QUEUE_LIGHT = 256 };

/** @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for a device that there is not; WHERRY_UNSUPPORTED, WHERRY_NO_MEMORY, WHERRY_SYSTEM. */
wherry_status wh_cuda_queue_create(int32_t device, wh_cuda_queue **queue_p, wherry_error *error);

/** Waits until nothing is under way any more, however long that takes. queue may be NULL. */
void wh_cuda_queue_destroy(wh_cuda_queue *queue);

/**
 * Queues copies. The memory must stay until they are done; the list itself is the caller's again. Waits only where far more is queued than the device can be
 * busy with.
 * @return WHERRY_OK; WHERRY_NO_MEMORY, WHERRY_SYSTEM: some of the runs may have been queued.
 */
wherry_status wh_cuda_queue_copy(wh_cuda_queue *queue, wh_cuda_way way, const wh_cuda_run *runs, size_t count,
                                 wherry_error *error);

/** Queues zeros. */
wherry_status wh_cuda_queue_clear(wh_cuda_queue *queue, void *data, size_t size, wherry_error *error);

/** A ticket for all that was queued so far; they ascend. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_cuda_queue_mark(wh_cuda_queue *queue, uint64_t *ticket_p, wherry_error *error);

/** What another library queues: `stream` is a CUstream, and the device's context is current. @return its own answer. */
typedef int (*wh_cuda_work)(void *context, void *stream);

/** Calls `work` with the queue's stream, so that what it queues there is in order with the rest. @return WHERRY_OK; as wh_cuda_queue_create. */
wherry_status wh_cuda_queue_lend(wh_cuda_queue *queue, wh_cuda_work work, void *context, int *answer_p,
                                 wherry_error *error);

/** Whether a ticket has passed. @return WHERRY_OK; WHERRY_SYSTEM where a copy failed. Never blocks. */
wherry_status wh_cuda_queue_passed(wh_cuda_queue *queue, uint64_t ticket, bool *passed_p, wherry_error *error);

/** Waits until a ticket has passed. @return as wh_cuda_queue_passed; WHERRY_TIMED_OUT; WHERRY_CANCELLED where the stop, which may be NULL, was requested. */
wherry_status wh_cuda_queue_wait(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                 wherry_error *error);

/** The same for what takes a few milliseconds at most: it is noticed at once, and the processor is busy meanwhile. */
wherry_status wh_cuda_queue_wait_awake(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                       wherry_error *error);

#endif
