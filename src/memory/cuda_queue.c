#include "memory/cuda_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_copy_ptx.h> /* generated: src/meson.build */

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "memory/cuda_driver.h"

enum {
    EVENTS = 64,            /**< Maximum number of tickets that have not passed. */
    TABLES = 4,             /**< Number of tables of runs. Each launch uses one. */
    TABLE_RUNS = 8192,      /**< Maximum number of runs per table. */
    TILE_BYTES = 128 << 10, /**< Maximum size that one block of threads copies. */
    BLOCK_THREADS = 256,
    LAUNCH_FROM = 4,           /**< With fewer runs, cuMemcpyAsync is as fast as the kernel. */
    PINNED_RUN_MAX = 64 << 10, /**< For longer host runs, cuMemcpyAsync is faster. */
    DEVICE_RUN_MAX = 8 << 20,  /**< For longer runs on devices, cuMemcpyAsync is faster. */
    IDLE_MAX = 16,             /**< Maximum number of cached queues per device. */
};

/** A run for the kernel. Has the same layout as in cuda_copy.cl. */
typedef struct tile {
    uint64_t from;
    uint64_t to;
    uint64_t length;
} tile;

typedef struct table {
    tile *tiles;     /**< In pinned memory. */
    uint64_t ticket; /**< Passes when the last launch that used this table is done. */
} table;

struct wh_cuda_queue {
    int32_t device;
    wh_cu_stream stream;
    wh_cu_function kernel; /**< NULL: copy runs one by one. */
    pthread_mutex_t lock;  /**< Guards the members below. */
    wh_cu_event events[EVENTS];
    uint64_t issued; /**< The last ticket that was issued. */
    uint64_t passed; /**< All tickets up to this one have passed. */
    table tables[TABLES];
    uint32_t turn; /**< The next table is number turn % TABLES. */
    bool failed;   /**< An operation failed, so the queue must not be cached. */
    wh_cuda_queue *next;
};

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_cuda_queue *idle[WH_CUDA_DEVICES_MAX];
static uint32_t idle_count[WH_CUDA_DEVICES_MAX];
static wh_cu_function kernels[WH_CUDA_DEVICES_MAX];
static bool kernel_tried[WH_CUDA_DEVICES_MAX];

/* ---- creating ---- */

/**
 * Loads the kernel for the device whose context is current.
 * @return NULL if there is no kernel; then use cuMemcpyAsync.
 */
static wh_cu_function find_kernel(const wh_cuda_driver *driver, int32_t device) {
    const char *wanted = getenv("WHERRY_CUDA_KERNEL");
    pthread_mutex_lock(&shared_lock);
    if (!kernel_tried[device] && !(wanted && strcmp(wanted, "0") == 0)) {
        wh_cu_module module;
        int result = driver->module_load(&module, WH_CUDA_COPY_PTX);
        WH_CU_THEN(result, driver->module_function(kernels + device, module, "wherry_copy"));
        if (result != WH_CU_OK) {
            wherry_error error;
            kernels[device] = NULL;
            wh_cuda_fail(&error, result, "cannot load the GPU kernel for copying small tensors");
            wh_log(WHERRY_LOG_WARN, "cuda:%d: %s; each tensor is copied separately, which is slower", (int)device,
                   error.message);
        }
        kernel_tried[device] = true;
    }
    wh_cu_function kernel = kernels[device];
    pthread_mutex_unlock(&shared_lock);
    return kernel;
}

static void destroy(wh_cuda_queue *queue) {
    const wh_cuda_driver *driver;
    if (wh_cuda_enter(queue->device, &driver, NULL) == WHERRY_OK) {
        for (size_t i = 0; i < EVENTS && queue->events[i]; i++) {
            driver->event_destroy(queue->events[i]);
        }
        for (size_t i = 0; i < TABLES && queue->tables[i].tiles; i++) {
            driver->host_free(queue->tables[i].tiles);
        }
        if (queue->stream) {
            driver->stream_destroy(queue->stream);
        }
        wh_cuda_leave(driver);
    }
    pthread_mutex_destroy(&queue->lock);
    wh_free(queue);
}

static int fill(wh_cuda_queue *queue, const wh_cuda_driver *driver) {
    int result = driver->stream_create(&queue->stream, WH_CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < EVENTS && result == WH_CU_OK; i++) {
        result = driver->event_create(queue->events + i, WH_CU_EVENT_NO_TIMING);
    }
    queue->kernel = result == WH_CU_OK ? find_kernel(driver, queue->device) : NULL;
    for (size_t i = 0; i < TABLES && queue->kernel && result == WH_CU_OK; i++) {
        void *tiles = NULL;
        result = driver->host_alloc(&tiles, TABLE_RUNS * sizeof(tile), WH_CU_HOST_PORTABLE);
        queue->tables[i].tiles = result == WH_CU_OK ? tiles : NULL;
    }
    return result;
}

static wh_cuda_queue *take_idle(int32_t device) {
    pthread_mutex_lock(&shared_lock);
    wh_cuda_queue *queue = idle[device];
    if (queue) {
        idle[device] = queue->next;
        idle_count[device]--;
    }
    pthread_mutex_unlock(&shared_lock);
    return queue;
}

wherry_status wh_cuda_queue_create(int32_t device, wh_cuda_queue **queue_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    WH_TRY(wh_cuda_enter(device, &driver, error));
    wh_cuda_queue *queue = take_idle(device);
    if (!queue && (queue = wh_alloc_zeroed(1, sizeof(*queue)))) {
        queue->device = device;
        pthread_mutex_init(&queue->lock, NULL);
        int result = fill(queue, driver);
        if (result != WH_CU_OK) {
            destroy(queue);
            wh_cuda_leave(driver);
            return wh_cuda_fail(error, result, "cannot create a copy queue on a CUDA device");
        }
    }
    wh_cuda_leave(driver);
    WH_TRY_ALLOC(queue, error, "a queue for copies");
    *queue_p = queue;
    return WHERRY_OK;
}

void wh_cuda_queue_destroy(wh_cuda_queue *queue) {
    const wh_cuda_driver *driver;
    if (!queue) {
        return;
    }
    if (wh_cuda_enter(queue->device, &driver, NULL) == WHERRY_OK) {
        queue->failed = driver->stream_synchronize(queue->stream) != WH_CU_OK || queue->failed;
        wh_cuda_leave(driver);
    }
    queue->passed = queue->issued;
    pthread_mutex_lock(&shared_lock);
    bool keep = !queue->failed && idle_count[queue->device] < IDLE_MAX;
    if (keep) {
        queue->next = idle[queue->device];
        idle[queue->device] = queue;
        idle_count[queue->device]++;
    }
    pthread_mutex_unlock(&shared_lock);
    if (!keep) {
        destroy(queue);
    }
}

/* ---- tickets: the caller holds the lock, and the device's context is current ---- */

static wherry_status fail_copy(wh_cuda_queue *queue, int result, wherry_error *error) {
    queue->failed = true;
    return wh_cuda_fail(error, result, "a copy from, to or on a CUDA device failed");
}

static wherry_status poll_ticket(wh_cuda_queue *queue, const wh_cuda_driver *driver, uint64_t ticket, bool *passed_p,
                                 wherry_error *error) {
    if (ticket > queue->passed) {
        int result = driver->event_query(queue->events[ticket % EVENTS]);
        if (result != WH_CU_OK && result != WH_CU_NOT_READY) {
            return fail_copy(queue, result, error);
        }
        queue->passed = result == WH_CU_OK ? ticket : queue->passed;
    }
    *passed_p = ticket <= queue->passed;
    return WHERRY_OK;
}

/** Waits for an old ticket. The device stays busy during the wait, because newer work is queued. */
static wherry_status await_old(wh_cuda_queue *queue, const wh_cuda_driver *driver, uint64_t ticket,
                               wherry_error *error) {
    wh_cuda_backoff backoff = {0};
    bool passed = false;
    wherry_status status = poll_ticket(queue, driver, ticket, &passed, error);
    while (status == WHERRY_OK && !passed) {
        status = wh_cuda_back_off(&backoff, NULL, wh_deadline_never(), "copying", error);
        WH_THEN(status, poll_ticket(queue, driver, ticket, &passed, error));
    }
    return status;
}

static wherry_status mark(wh_cuda_queue *queue, const wh_cuda_driver *driver, uint64_t *ticket_p, wherry_error *error) {
    uint64_t ticket = queue->issued + 1;
    wherry_status status =
        /* Ticket number `ticket - EVENTS` used the same event. */
        ticket > EVENTS ? await_old(queue, driver, ticket - EVENTS, error) : WHERRY_OK;
    if (status != WHERRY_OK) {
        return status;
    }
    int result = driver->event_record(queue->events[ticket % EVENTS], queue->stream);
    if (result != WH_CU_OK) {
        return fail_copy(queue, result, error);
    }
    queue->issued = *ticket_p = ticket;
    return WHERRY_OK;
}

/* ---- copying: the caller holds the lock, and the device's context is current ---- */

/** The runs of one kernel launch. */
typedef struct batch {
    table *table;
    unsigned count;
} batch;

static wherry_status launch(wh_cuda_queue *queue, const wh_cuda_driver *driver, batch *b, wherry_error *error) {
    uint64_t address = (uint64_t)(uintptr_t)b->table->tiles;
    void *arguments[] = {&address, &b->count};
    int result = driver->launch(queue->kernel, b->count, 1, 1, BLOCK_THREADS, 1, 1, 0, queue->stream, arguments, NULL);
    if (result != WH_CU_OK) {
        return fail_copy(queue, result, error);
    }
    return mark(queue, driver, &b->table->ticket, error);
}

/** Starts to fill the next table. Waits until the previous launch with this table is done. */
static wherry_status begin_batch(wh_cuda_queue *queue, const wh_cuda_driver *driver, batch *b, wherry_error *error) {
    *b = (batch){queue->tables + queue->turn++ % TABLES, 0};
    return await_old(queue, driver, b->table->ticket, error);
}

static wherry_status add_run(wh_cuda_queue *queue, const wh_cuda_driver *driver, batch *b, const wh_cuda_run *run,
                             wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t done = 0, part; done < run->length && status == WHERRY_OK; done += part) {
        part = wh_min(run->length - done, TILE_BYTES);
        if (b->table && b->count == TABLE_RUNS) {
            status = launch(queue, driver, b, error);
            b->table = NULL;
        }
        if (status == WHERRY_OK && !b->table) {
            status = begin_batch(queue, driver, b, error);
        }
        if (status == WHERRY_OK) {
            b->table->tiles[b->count++] =
                (tile){(uint64_t)(uintptr_t)run->from + done, (uint64_t)(uintptr_t)run->to + done, part};
        }
    }
    return status;
}

/**
 * Returns how many of the `length` bytes at `address` are in the same allocation; `length` if that
 * is unknown.
 */
static size_t count_within(const wh_cuda_driver *driver, uint64_t address, size_t length) {
    uint64_t base = 0;
    size_t size = 0;
    bool known = driver->address_range(&base, &size, address) == WH_CU_OK && address >= base && address - base < size;
    return known ? wh_min(length, size - (size_t)(address - base)) : length;
}

/** Copies a run that crosses allocations. One cuMemcpyAsync cannot cross their borders. */
static int copy_in_parts(wh_cuda_queue *queue, const wh_cuda_driver *driver, const wh_cuda_run *run) {
    int result = WH_CU_OK;
    for (size_t done = 0, part; done < run->length && result == WH_CU_OK; done += part) {
        uint64_t to = (uint64_t)(uintptr_t)run->to + done;
        uint64_t from = (uint64_t)(uintptr_t)run->from + done;
        part = wh_min(count_within(driver, to, run->length - done), count_within(driver, from, run->length - done));
        result = driver->copy_async(to, from, part, queue->stream);
    }
    return result;
}

static wherry_status copy_one(wh_cuda_queue *queue, const wh_cuda_driver *driver, const wh_cuda_run *run,
                              wherry_error *error) {
    int result =
        driver->copy_async((uint64_t)(uintptr_t)run->to, (uint64_t)(uintptr_t)run->from, run->length, queue->stream);
    if (result == WH_CU_INVALID_VALUE) {
        result = copy_in_parts(queue, driver, run);
    }
    return result == WH_CU_OK ? WHERRY_OK : fail_copy(queue, result, error);
}

static wherry_status copy_all(wh_cuda_queue *queue, const wh_cuda_driver *driver, wh_cuda_run_kind kind,
                              const wh_cuda_run *runs, size_t count, wherry_error *error) {
    bool launches = queue->kernel && kind != WH_CUDA_WITH_PAGEABLE && count >= LAUNCH_FROM;
    size_t longest = kind == WH_CUDA_ON_DEVICES ? DEVICE_RUN_MAX : PINNED_RUN_MAX;
    batch b = {0};
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        if (runs[i].length == 0) {
            continue;
        }
        status = launches && runs[i].length <= longest ? add_run(queue, driver, &b, runs + i, error)
                                                       : copy_one(queue, driver, runs + i, error);
    }
    return status == WHERRY_OK && b.table && b.count ? launch(queue, driver, &b, error) : status;
}

/* ---- the interface ---- */

static wherry_status enter(wh_cuda_queue *queue, const wh_cuda_driver **driver_p, wherry_error *error) {
    WH_TRY(wh_cuda_enter(queue->device, driver_p, error));
    pthread_mutex_lock(&queue->lock);
    return WHERRY_OK;
}

static void leave(wh_cuda_queue *queue, const wh_cuda_driver *driver) {
    pthread_mutex_unlock(&queue->lock);
    wh_cuda_leave(driver);
}

wherry_status wh_cuda_queue_copy(wh_cuda_queue *queue, wh_cuda_run_kind kind, const wh_cuda_run *runs, size_t count,
                                 wherry_error *error) {
    const wh_cuda_driver *driver;
    wherry_status status = enter(queue, &driver, error);
    if (status == WHERRY_OK) {
        status = copy_all(queue, driver, kind, runs, count, error);
        leave(queue, driver);
    }
    return status;
}

wherry_status wh_cuda_queue_clear(wh_cuda_queue *queue, void *data, size_t size, wherry_error *error) {
    const wh_cuda_driver *driver;
    wherry_status status = enter(queue, &driver, error);
    if (status == WHERRY_OK) {
        int result = driver->set_async((uint64_t)(uintptr_t)data, 0, size, queue->stream);
        status = result == WH_CU_OK ? WHERRY_OK : fail_copy(queue, result, error);
        leave(queue, driver);
    }
    return status;
}

wherry_status wh_cuda_queue_mark(wh_cuda_queue *queue, uint64_t *ticket_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    wherry_status status = enter(queue, &driver, error);
    if (status == WHERRY_OK) {
        status = mark(queue, driver, ticket_p, error);
        leave(queue, driver);
    }
    return status;
}

wherry_status wh_cuda_queue_with_stream(wh_cuda_queue *queue, wh_cuda_work work, void *context, int *result_p,
                                        wherry_error *error) {
    const wh_cuda_driver *driver;
    WH_TRY(enter(queue, &driver, error));
    *result_p = work(context, queue->stream);
    leave(queue, driver);
    return WHERRY_OK;
}

wherry_status wh_cuda_queue_passed(wh_cuda_queue *queue, uint64_t ticket, bool *passed_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    wherry_status status = enter(queue, &driver, error);
    if (status == WHERRY_OK) {
        status = poll_ticket(queue, driver, ticket, passed_p, error);
        leave(queue, driver);
    }
    return status;
}

static wherry_status await(wh_cuda_queue *queue, uint64_t ticket, bool busy, const wh_stop *stop, wh_deadline deadline,
                           wherry_error *error) {
    wh_cuda_backoff backoff = {.busy = busy};
    bool passed = false;
    wherry_status status = wh_cuda_queue_passed(queue, ticket, &passed, error);
    while (status == WHERRY_OK && !passed) {
        status = wh_cuda_back_off(&backoff, stop, deadline, "copying from or to a CUDA device", error);
        WH_THEN(status, wh_cuda_queue_passed(queue, ticket, &passed, error));
    }
    return status;
}

wherry_status wh_cuda_queue_wait(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                 wherry_error *error) {
    return await(queue, ticket, false, stop, deadline, error);
}

wherry_status wh_cuda_queue_wait_busy(wh_cuda_queue *queue, uint64_t ticket, const wh_stop *stop, wh_deadline deadline,
                                      wherry_error *error) {
    return await(queue, ticket, true, stop, deadline, error);
}
