/**
 * @file cuda_queue.h  A queue of copies between host and device memory, or between devices. The
 * device carries them out in order while the caller continues.
 *
 * wh_cuda_queue_mark returns a ticket. The ticket passes when everything that was queued before it
 * is done. One launch of a small kernel copies many short runs. The driver copies all
 * other runs. Several threads may use a queue at the same time. Destroy the queue when no thread
 * uses it.
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

/**
 * The kinds of memory that the runs of a call use. The caller states them, so that the library need
 * not ask the driver about each address.
 */
typedef enum wh_cuda_run_kind {
    WH_CUDA_WITH_PAGEABLE, /**< Some runs use host memory that is not pinned. */
    WH_CUDA_WITH_PINNED,   /**< Runs use only pinned host memory and device memory. */
    WH_CUDA_ON_DEVICES,    /**< Runs use only device memory. */
} wh_cuda_run_kind;

/**
 * Some queued operations may never end, for example receiving from a peer. After each of up to
 * three such operations, this many runs of at most 64 MiB in total can be queued without blocking.
 * If more runs are queued, the call may wait for these operations. This wait cannot be stopped.
 */
enum { WH_CUDA_QUEUE_LIGHT = 256 };

/**
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for an unknown device; WHERRY_UNSUPPORTED,
 * WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_cuda_queue_create(int32_t device, wh_cuda_queue **queue_p, wherry_error *error);

/**
 * Destroys a queue. First waits, without a time limit, until everything in it is done. queue may be
 * NULL.
 */
void wh_cuda_queue_destroy(wh_cuda_queue *queue);

/**
 * Queues copies. Their memory must stay valid until they are done. The `runs` array may be freed
 * after the call. Blocks only if a run uses host memory that is not pinned, or if very many copies
 * are queued.
 * @return WHERRY_OK; WHERRY_NO_MEMORY or WHERRY_SYSTEM. After an error, some of the runs may have
 * been queued.
 */
wherry_status wh_cuda_queue_copy(wh_cuda_queue *queue, wh_cuda_run_kind kind, const wh_cuda_run *runs, size_t count,
                                 wherry_error *error);

/** Queues an operation that fills memory with zeros. */
wherry_status wh_cuda_queue_clear(wh_cuda_queue *queue, void *data, size_t size, wherry_error *error);

/**
 * Returns a ticket that passes when everything queued so far is done. Later tickets are larger.
 * Waits if too many earlier tickets have not passed.
 * @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_cuda_queue_mark(wh_cuda_queue *queue, uint64_t *ticket_p, wherry_error *error);

/**
 * Callback of wh_cuda_queue_with_stream: queues work of another library. The device's context is
 * current.
 * @param stream  a CUstream.
 * @return the result of the other library.
 */
typedef int (*wh_cuda_work)(void *context, void *stream);

/**
 * Calls `work` with the queue's stream, so that its work runs in order with the copies. *result_p
 * is the result of `work`.
 * @return the same statuses as wh_cuda_queue_create.
 */
wherry_status wh_cuda_queue_with_stream(wh_cuda_queue *queue, wh_cuda_work work, void *context, int *result_p,
                                        wherry_error *error);

/**
 * Checks if a ticket has passed, without waiting for it.
 * @return WHERRY_OK; WHERRY_SYSTEM if a copy failed.
 */
wherry_status wh_cuda_queue_passed(wh_cuda_queue *queue, uint64_t ticket, bool *passed_p, wherry_error *error);

/**
 * Waits until a ticket has passed.
 * @param stop  may be NULL.
 * @return the same statuses as wh_cuda_queue_passed; WHERRY_TIMED_OUT; WHERRY_CANCELLED after a
 * stop.
 */
wherry_status wh_cuda_queue_wait(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                 wherry_error *error);

/**
 * Like wh_cuda_queue_wait, but does not sleep during the first 4 ms, so it returns sooner after the
 * ticket has passed. Use it for waits of a few milliseconds.
 */
wherry_status wh_cuda_queue_wait_busy(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                      wherry_error *error);

#endif
