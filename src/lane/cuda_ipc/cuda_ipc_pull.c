/*
 * Copies chunks in batches. Each batch is a few kernel launches or copies. The device works on a
 * batch while the next one is collected. Batches alternate between two queues, so that the device
 * stays busy when a batch ends.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/search.h"
#include "lane/cuda_ipc/cuda_ipc.h"
#include "memory/cuda_queue.h"
#include "memory/pinned.h"

/**
 * The first batch is full at FIRST_BYTES, so that the device starts early. For each following
 * batch, the limit doubles, up to BATCH_BYTES.
 */
#define FIRST_BYTES (UINT64_C(16) << 20)
#define BATCH_BYTES (UINT64_C(256) << 20)

enum { UNDER_WAY = 4, QUEUES = 2, BATCH_CHUNKS = 1024, RUNS = 512 };

/**
 * Host destinations are not pinned. A copy by the driver to such memory takes some microseconds and
 * blocks the thread. So one kernel launch copies many runs of at most BOUNCE_RUN_MAX bytes into a
 * block of pinned memory, and the thread copies them to their destinations. If there are fewer than
 * BOUNCE_FROM runs, the driver copies them, because pinned memory would not be faster.
 */
enum { BOUNCE_RUN_MAX = 64 << 10, BOUNCE_FROM = 8 };

/** How a run is copied: by the device, by the driver, or through pinned memory. */
typedef enum copy_kind { BY_DEVICE, BY_DRIVER, BOUNCED, COPY_KINDS } copy_kind;

typedef struct batch {
    uint64_t chunks[BATCH_CHUNKS];
    size_t count;
    uint64_t bytes;
    wh_cuda_queue *queue;
    uint64_t ticket;
} batch;

/** The state of one worker during a round. */
typedef struct pulling {
    wh_ipc_end *end;
    const wh_sink *sink;
    wh_cuda_queue *queues[QUEUES];
    size_t turn; /**< The queue for the next batch. */
    wh_routes routes;
    size_t window;                      /**< The window in which the last route was found. */
    wh_cuda_run runs[COPY_KINDS][RUNS]; /**< The collected runs of each kind. */
    size_t run_count[COPY_KINDS];
    size_t bounced_bytes;
    char *block; /**< WH_PINNED_BLOCK bytes; NULL: not needed yet, or not available. */
    batch batches[UNDER_WAY];
    size_t oldest;
    size_t under_way;
} pulling;

/**
 * Returns the space that a run takes in the block: its length, rounded up so that the next run is
 * aligned for the widest loads and stores.
 */
static size_t room_of(uint64_t length) {
    return (size_t)(length + 15) / 16 * 16;
}

/** Copies the BOUNCED runs into the pinned block, waits, and copies them to their destinations. */
static wherry_status bounce(pulling *p, size_t count, wherry_error *error) {
    const wh_lane_site *site = p->end->site;
    wh_cuda_queue *queue = p->queues[p->turn];
    wh_cuda_run packed[RUNS];
    uint64_t ticket;
    char *at = p->block;
    for (size_t i = 0; i < count; i++) {
        packed[i] = (wh_cuda_run){p->runs[BOUNCED][i].from, at, p->runs[BOUNCED][i].length};
        at += room_of(packed[i].length);
    }
    wherry_status status = wh_cuda_queue_copy(queue, WH_CUDA_WITH_PINNED, packed, count, error);
    WH_THEN(status, wh_cuda_queue_mark(queue, &ticket, error));
    WH_THEN(status, wh_cuda_queue_wait_busy(queue, ticket, site->stop, wh_site_patience(site), error));
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        memcpy(p->runs[BOUNCED][i].to, packed[i].to, packed[i].length);
    }
    return wh_site_blame(site, status, error);
}

/**
 * Starts to copy the collected runs of one kind. BOUNCED runs may already be copied when the
 * function returns.
 */
static wherry_status flush(pulling *p, copy_kind how, wherry_error *error) {
    size_t count = p->run_count[how];
    p->run_count[how] = 0;
    if (how == BOUNCED) {
        p->bounced_bytes = 0;
        if (count >= BOUNCE_FROM) {
            return bounce(p, count, error);
        }
    }
    return count ? wh_cuda_queue_copy(p->queues[p->turn], how == BY_DEVICE ? WH_CUDA_ON_DEVICES : WH_CUDA_WITH_PAGEABLE,
                                      p->runs[how], count, error)
                 : WHERRY_OK;
}

/** True if there is a pinned block. Allocates it if needed. */
static bool has_block(pulling *p) {
    void *block;
    if (!p->block && wh_pinned_take(p->end->device, WH_PINNED_BLOCK, &block, NULL) == WHERRY_OK) {
        p->block = block;
    }
    return p->block != NULL;
}

static copy_kind choose_kind(pulling *p, const wh_ipc_window *window, const wh_route *route, uint64_t length) {
    if (window->direct && route->device == p->end->device) {
        return BY_DEVICE;
    }
    return window->direct && route->device < 0 && length <= BOUNCE_RUN_MAX && has_block(p) ? BOUNCED : BY_DRIVER;
}

/** Returns the window that contains an address of the source; NULL if there is none. */
static const wh_ipc_window *find_window(pulling *p, uint64_t address) {
    const wh_ipc_window *windows = p->end->windows;
    if (address >= windows[p->window].base && address - windows[p->window].base < windows[p->window].size) {
        return windows + p->window;
    }
    size_t after = WH_PARTITION_POINT(p->end->window_count, i, windows[i].base <= address);
    p->window = after ? after - 1 : 0;
    const wh_ipc_window *found = windows + p->window;
    return address >= found->base && address - found->base < found->size ? found : NULL;
}

static wherry_status add_route(pulling *p, const wh_route *route, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (uint64_t done = 0, part; done < route->length && status == WHERRY_OK; done += part) {
        uint64_t from = route->from + done;
        const wh_ipc_window *window = find_window(p, from);
        if (!window) {
            return wh_fail(error, WHERRY_OUT_OF_BOUNDS, "rank %d did not offer the memory at 0x%" PRIx64,
                           p->end->site->peer, from);
        }
        part = wh_min(route->length - done, window->size - (from - window->base));
        copy_kind how = choose_kind(p, window, route, part);
        if (p->run_count[how] == RUNS || (how == BOUNCED && p->bounced_bytes + room_of(part) > WH_PINNED_BLOCK)) {
            status = flush(p, how, error);
        }
        if (status == WHERRY_OK) {
            p->bounced_bytes += how == BOUNCED ? room_of(part) : 0;
            p->runs[how][p->run_count[how]++] =
                (wh_cuda_run){window->data + (from - window->base), (char *)route->to + done, part};
        }
    }
    return status;
}

/** Collects chunks for a batch. If there are no more chunks, the batch stays empty. */
static wherry_status collect(pulling *p, batch *b, uint64_t most, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t chunk;
    b->count = 0;
    b->bytes = 0;
    wh_routes_clear(&p->routes);
    while (status == WHERRY_OK && b->count < BATCH_CHUNKS && p->routes.bytes < most &&
           !wh_stop_requested(p->end->site->stop) && p->sink->next(p->sink->context, &chunk)) {
        status = p->sink->route(p->sink->context, chunk, &p->routes, error);
        b->chunks[b->count++] = chunk;
    }
    b->bytes = p->routes.bytes;
    return status;
}

static wherry_status begin(pulling *p, batch *b, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < p->routes.count && status == WHERRY_OK; i++) {
        status = add_route(p, p->routes.items + i, error);
    }
    for (copy_kind how = BY_DEVICE; how < COPY_KINDS && status == WHERRY_OK; how++) {
        status = flush(p, how, error);
    }
    if (status == WHERRY_OK) {
        b->queue = p->queues[p->turn];
        status = wh_cuda_queue_mark(b->queue, &b->ticket, error);
    }
    p->turn = (p->turn + 1) % QUEUES;
    p->under_way += status == WHERRY_OK;
    return status;
}

/** Waits for the oldest batch, and reports that its chunks have arrived. */
static wherry_status end_oldest(pulling *p, wherry_error *error) {
    batch *b = p->batches + p->oldest;
    const wh_lane_site *site = p->end->site;
    wherry_status status = wh_cuda_queue_wait_busy(b->queue, b->ticket, site->stop, wh_site_patience(site), error);
    if (status != WHERRY_OK) {
        return wh_site_blame(site, status, error);
    }
    p->oldest = (p->oldest + 1) % UNDER_WAY;
    p->under_way--;
    p->sink->moved(p->sink->context, b->bytes);
    for (size_t i = 0; i < b->count && status == WHERRY_OK; i++) {
        status = p->sink->arrived(p->sink->context, b->chunks[i], error);
    }
    return status;
}

static wherry_status pull_round(pulling *p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t most = FIRST_BYTES;
    bool more = true;
    while (status == WHERRY_OK && (more || p->under_way)) {
        batch *b = p->batches + (p->oldest + p->under_way) % UNDER_WAY;
        if (more && p->under_way < UNDER_WAY) {
            status = collect(p, b, most, error);
            if (status == WHERRY_OK && b->count) {
                status = begin(p, b, error);
            } else if (status == WHERRY_OK && p->under_way) {
                status = end_oldest(p, error);
            } else if (status == WHERRY_OK) {
                more = wh_sink_more(p->sink);
            }
            most = wh_min(2 * most, BATCH_BYTES);
        } else {
            status = end_oldest(p, error);
        }
    }
    return status == WHERRY_OK && wh_stop_requested(p->end->site->stop) ? wh_site_cancelled(error) : status;
}

wherry_status wh_ipc_pull(wh_lane_end *base, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    wh_ipc_end *end = wh_ipc_end_of(base);
    pulling *p = wh_alloc_zeroed(1, sizeof(*p));
    (void)worker;
    WH_TRY_ALLOC(p, error, "lists of memory to copy");
    p->end = end;
    p->sink = sink;
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < QUEUES && status == WHERRY_OK; i++) {
        status = wh_cuda_queue_create(end->device, p->queues + i, error);
    }
    WH_THEN(status, pull_round(p, error));
    for (size_t i = 0; i < QUEUES; i++) {
        /* Waits for pending copies, so that nothing is written after the return. */
        wh_cuda_queue_destroy(p->queues[i]);
    }
    wh_pinned_give(p->block, WH_PINNED_BLOCK);
    wh_routes_destroy(&p->routes);
    wh_free(p);
    return status;
}
