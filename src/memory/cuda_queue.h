/**
 * @file cuda_queue.h  A queue of copies between host and device memory, or between devices. The
 * device carries them out in order while the caller continues.
 *
 * A ticket, taken with wh_cuda_queue_mark, passes when everything that was queued before it is
 * done. Many short runs are copied by one launch of a small kernel, others by the driver's own
 * copies. Several threads may use a queue at once; one destroys it.
 */
#ifndef WH_MEMORY_CUDA_QUEUE_H
#define WH_MEMORY_CUDA_QUEUE_H

#include <stddef.h>

#include "memory/cuda.h"

typedef struct wh_cuda_queue wh_cuda_queue;

/** A copy of `length` bytes. Host memory that is not pinned works, but is slow. */
typedef struct wh_cuda_run {
    const void *from;
    void *to;
    size_t length;
} wh_cuda_run;

/** What memory the runs of a call use, so that it need not be asked per address. */
typedef enum wh_cuda_run_kind {
    WH_CUDA_WITH_PAGEABLE, /**< Some is host memory that is not pinned. */
    WH_CUDA_WITH_PINNED,   /**< From or to pinned host memory. */
    WH_CUDA_ON_DEVICES,    /**< Device memory only. */
} wh_cuda_run_kind;

/**
 * This many runs, of 64 MiB in total, can be queued after each of three operations that may never
 * end, such as receiving from a peer. Queueing more may wait for these operations, without checking
 * a stop.
 */
enum { WH_CUDA_QUEUE_LIGHT = 256 };

/**
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for an unknown device; WHERRY_UNSUPPORTED,
 * WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_cuda_queue_create(int32_t device, wh_cuda_queue **queue_p, wherry_error *error);

/** Waits until everything is done, however long that takes. queue may be NULL. */
void wh_cuda_queue_destroy(wh_cuda_queue *queue);

/**
 * Queues copies. Their memory must stay valid until they are done; the list need not. Blocks only
 * if far more is queued than keeps the device busy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY, WHERRY_SYSTEM: some of the runs may have been queued.
 */
wherry_status wh_cuda_queue_copy(wh_cuda_queue *queue, wh_cuda_run_kind kind, const wh_cuda_run *runs, size_t count,
                                 wherry_error *error);

/** Queues filling with zeros. */
wherry_status wh_cuda_queue_clear(wh_cuda_queue *queue, void *data, size_t size, wherry_error *error);

/**
 * Takes a ticket for everything queued so far. Tickets ascend.
 * @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_cuda_queue_mark(wh_cuda_queue *queue, uint64_t *ticket_p, wherry_error *error);

/**
 * Queues work of another library on `stream`, a CUstream, in the device's context.
 * @return its own result.
 */
typedef int (*wh_cuda_work)(void *context, void *stream);

/**
 * Calls `work` with the queue's stream, so its work is in order with the rest.
 * @return as wh_cuda_queue_create.
 */
wherry_status wh_cuda_queue_with_stream(wh_cuda_queue *queue, wh_cuda_work work, void *context, int *result_p,
                                        wherry_error *error);

/**
 * Checks if a ticket has passed.
 * @return WHERRY_OK; WHERRY_SYSTEM if a copy failed. Does not block.
 */
wherry_status wh_cuda_queue_passed(wh_cuda_queue *queue, uint64_t ticket, bool *passed_p, wherry_error *error);

/**
 * Waits until a ticket has passed.
 * @param stop  may be NULL.
 * @return as wh_cuda_queue_passed; WHERRY_TIMED_OUT; WHERRY_CANCELLED after a stop.
 */
wherry_status wh_cuda_queue_wait(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                 wherry_error *error);

/**
 * The same with a busy wait, for what takes a few milliseconds at most: its end is noticed at once.
 */
wherry_status wh_cuda_queue_wait_busy(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                      wherry_error *error);

#endif
