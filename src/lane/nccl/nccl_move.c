/*
 * Moves bytes. Chunks are packed into messages. Packing, sending and unpacking use one CUDA
 * stream, so they run in order, and this side seldom has to wait between them.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/nccl/nccl.h"
#include "memory/cuda.h"
#include "memory/memory.h"

/** Maximum number of messages in flight. */
enum { UNDER_WAY = 3 };

typedef struct message {
    uint64_t *chunks; /**< Receiver only. */
    size_t count;
    size_t capacity;
    uint64_t bytes;
    uint64_t ticket;
} message;

typedef struct runs {
    wh_cuda_run *items;
    size_t count;
    size_t capacity;
} runs;

/** The state of one side during a round. */
typedef struct moving {
    wh_nccl_end *end;
    wh_nccl_comm *comm;
    const wh_sink *sink; /**< Receiver only; NULL at the source. */
    const wh_feed *feed; /**< Source only; NULL at the receiver. */
    /** A buffer on the device for messages that are not contiguous. All messages use it in turn. */
    void *packing;
    uint64_t packing_bytes;
    wh_segments chunk; /**< Source only: the runs of the chunk being added. */
    wh_segments whole; /**< Source only: the runs of the message. */
    wh_routes routes;  /**< Receiver only: the routes of the message. */
    runs same;         /**< Copies within the communicator's device. */
    runs other;        /**< Copies from or to another device. */
    runs host;         /**< Copies to the host. */
    message messages[UNDER_WAY];
    size_t oldest;
    size_t under_way;
} moving;

/* ---- waiting ---- */

/** Waits for a ticket. Gives up if the peer makes no progress or NCCL reports an error. */
static wherry_status await_ticket(moving *m, uint64_t ticket, wherry_error *error) {
    const wh_lane_site *site = m->end->site;
    wh_deadline patience = wh_site_patience(site);
    for (;;) {
        wh_deadline look = wh_deadline_earlier(patience, wh_deadline_in_ms(WH_NCCL_LOOK_MS));
        wherry_status status = wh_cuda_queue_wait(m->comm->queue, ticket, site->stop, look, error);
        if (status != WHERRY_TIMED_OUT) {
            return wh_site_blame(site, status, error);
        }
        if (wh_deadline_passed(patience)) {
            return wh_site_timed_out(site, error);
        }
        status = wh_nccl_check(m->comm, error);
        if (status != WHERRY_OK) {
            return wh_site_blame(site, status, error);
        }
    }
}

/** Like wh_nccl_await, with the time limits of the site. */
static wherry_status await_ready(moving *m, wherry_error *error) {
    const wh_lane_site *site = m->end->site;
    wherry_status status =
        wh_nccl_await(m->comm, site->stop, wh_site_patience(site), "moving CUDA memory with NCCL", error);
    return status == WHERRY_TIMED_OUT ? wh_site_timed_out(site, error) : wh_site_blame(site, status, error);
}

/** Waits for the oldest message, and reports its bytes and chunks. */
static wherry_status end_oldest(moving *m, wherry_error *error) {
    message *one = m->messages + m->oldest;
    WH_TRY(await_ticket(m, one->ticket, error));
    m->oldest = (m->oldest + 1) % UNDER_WAY;
    m->under_way--;
    if (m->sink) {
        m->sink->moved(m->sink->context, one->bytes);
    } else {
        m->feed->moved(m->feed->context, one->bytes);
    }
    for (size_t i = 0; m->sink && i < one->count; i++) {
        WH_TRY(m->sink->arrived(m->sink->context, one->chunks[i], error));
    }
    return WHERRY_OK;
}

static wherry_status end_all(moving *m, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && m->under_way) {
        status = end_oldest(m, error);
    }
    return status;
}

/* ---- copies ---- */

static wherry_status add_run(runs *list, const void *from, void *to, uint64_t length, wherry_error *error) {
    WH_TRY_ALLOC(WH_GROW(list->items, list->capacity, list->count), error, "a list of memory to copy");
    list->items[list->count++] = (wh_cuda_run){from, to, length};
    return WHERRY_OK;
}

static wherry_status copy(moving *m, runs *list, wh_cuda_run_kind kind, wherry_error *error) {
    size_t count = list->count;
    list->count = 0;
    return count ? wh_cuda_queue_copy(m->comm->queue, kind, list->items, count, error) : WHERRY_OK;
}

static bool is_heavy(const moving *m) {
    return m->same.count + m->other.count > WH_CUDA_QUEUE_LIGHT;
}

/**
 * Queues the copies within and between devices. Copies to or from another device do not use a
 * kernel, because this device may not be able to access that memory.
 */
static wherry_status copy_on_devices(moving *m, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (is_heavy(m)) {
        /* Otherwise the queue might wait for the peer without a time limit. */
        status = end_all(m, error);
    }
    WH_THEN(status, copy(m, &m->same, WH_CUDA_ON_DEVICES, error));
    return status == WHERRY_OK ? copy(m, &m->other, WH_CUDA_WITH_PAGEABLE, error) : status;
}

static void release_packing(moving *m) {
    if (m->packing) {
        wh_memory_cuda.release(m->packing, m->packing_bytes);
    }
    m->packing = NULL;
    m->packing_bytes = 0;
}

/**
 * Makes the buffer large enough for a message. It rarely has to grow, because most messages have
 * about the same size.
 */
static wherry_status reserve_packing(moving *m, uint64_t bytes, wherry_error *error) {
    if (bytes <= m->packing_bytes) {
        return WHERRY_OK;
    }
    WH_TRY(end_all(m, error));
    release_packing(m);
    wherry_device device = {WHERRY_DEVICE_CUDA, m->comm->pair.device};
    wherry_status status = wh_memory_cuda.allocate(bytes, device, &m->packing, error);
    m->packing_bytes = status == WHERRY_OK ? bytes : 0;
    m->packing = status == WHERRY_OK ? m->packing : NULL;
    return status;
}

/* ---- messages ---- */

typedef struct operation {
    moving *m;
    void *data;
    uint64_t bytes;
} operation;

static int queue_send(void *context, void *stream) {
    const operation *o = context;
    return wh_nccl_find(NULL)->send(o->data, o->bytes, WH_NCCL_INT8, 0, o->m->comm->handle, stream);
}

static int queue_receive(void *context, void *stream) {
    const operation *o = context;
    return wh_nccl_find(NULL)->receive(o->data, o->bytes, WH_NCCL_INT8, 1, o->m->comm->handle, stream);
}

/**
 * Queues a message, and waits until NCCL has put it on the stream, so that later operations run
 * after it.
 */
static wherry_status queue_message(moving *m, void *data, uint64_t bytes, wherry_error *error) {
    operation o = {m, data, bytes};
    int answer = WH_NCCL_OK;
    wherry_status status =
        wh_cuda_queue_with_stream(m->comm->queue, m->sink ? queue_receive : queue_send, &o, &answer, error);
    if (status == WHERRY_OK && answer != WH_NCCL_OK && answer != WH_NCCL_IN_PROGRESS) {
        status = wh_nccl_fail(error, answer, m->comm->handle, m->sink ? "cannot receive" : "cannot send");
        return wh_site_blame(m->end->site, status, error);
    }
    return status == WHERRY_OK && answer == WH_NCCL_IN_PROGRESS ? await_ready(m, error) : status;
}

/** Takes a ticket for a message. The message is done when the ticket has passed. */
static wherry_status mark(moving *m, message *one, wherry_error *error) {
    wherry_status status = wh_cuda_queue_mark(m->comm->queue, &one->ticket, error);
    m->under_way += status == WHERRY_OK;
    return status;
}

/* ---- the source ---- */

/**
 * True if memory is on the communicator's device. Asks the driver only if the state uses several
 * devices.
 */
static bool is_same_device(const moving *m, const void *data) {
    int32_t device;
    return m->end->site->devices == UINT64_C(1) << m->comm->pair.device ||
           (wh_cuda_device_of(data, &device, NULL) == WHERRY_OK && device == m->comm->pair.device);
}

static wherry_status collect_from_feed(moving *m, message *one, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t chunk;
    wh_segments_clear(&m->whole);
    while (status == WHERRY_OK && m->whole.bytes < m->end->message_bytes && m->feed->next(m->feed->context, &chunk)) {
        status = m->feed->gather(m->feed->context, chunk, &m->chunk, error);
        for (size_t i = 0; i < m->chunk.count && status == WHERRY_OK; i++) {
            const struct iovec *run = m->chunk.items + i;
            if (!wh_segments_add(&m->whole, run->iov_base, run->iov_len)) {
                status = wh_fail_memory(error, "a message");
            }
        }
    }
    one->bytes = m->whole.bytes;
    return status;
}

static wherry_status pack(moving *m, const message *one, wherry_error *error) {
    WH_TRY(reserve_packing(m, one->bytes, error));
    char *to = m->packing;
    for (size_t i = 0; i < m->whole.count; i++) {
        const struct iovec *run = m->whole.items + i;
        WH_TRY(
            add_run(is_same_device(m, run->iov_base) ? &m->same : &m->other, run->iov_base, to, run->iov_len, error));
        to += run->iov_len;
    }
    return copy_on_devices(m, error);
}

static wherry_status send_message(moving *m, message *one, wherry_error *error) {
    bool whole = m->whole.count == 1 && is_same_device(m, m->whole.items[0].iov_base);
    WH_TRY(whole ? WHERRY_OK : pack(m, one, error));
    WH_TRY(queue_message(m, whole ? m->whole.items[0].iov_base : m->packing, one->bytes, error));
    return mark(m, one, error);
}

/* ---- the receiver ---- */

static wherry_status collect_from_sink(moving *m, message *one, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t chunk;
    one->count = 0;
    wh_routes_clear(&m->routes);
    while (status == WHERRY_OK && m->routes.span < m->end->message_bytes && m->sink->next(m->sink->context, &chunk)) {
        WH_TRY_ALLOC(WH_GROW(one->chunks, one->capacity, one->count), error, "a message");
        one->chunks[one->count++] = chunk;
        status = m->sink->route(m->sink->context, chunk, &m->routes, error);
    }
    one->bytes = m->routes.span;
    return status;
}

/**
 * Copies a message to its destinations. Copies to the host start only after the message has
 * arrived, because they block and cannot be stopped.
 */
static wherry_status unpack(moving *m, message *one, wherry_error *error) {
    for (size_t i = 0; i < m->routes.count; i++) {
        const wh_route *route = m->routes.items + i;
        runs *list = route->device < 0 ? &m->host : route->device == m->comm->pair.device ? &m->same : &m->other;
        WH_TRY(add_run(list, (char *)m->packing + route->from, route->to, route->length, error));
    }
    if (m->host.count || is_heavy(m)) {
        WH_TRY(wh_cuda_queue_mark(m->comm->queue, &one->ticket, error));
        WH_TRY(await_ticket(m, one->ticket, error));
    }
    WH_TRY(copy_on_devices(m, error));
    return copy(m, &m->host, WH_CUDA_WITH_PAGEABLE, error);
}

static wherry_status receive_message(moving *m, message *one, wherry_error *error) {
    const wh_route *first = m->routes.items;
    bool whole = m->routes.count == 1 && first->length == one->bytes && first->device == m->comm->pair.device;
    WH_TRY(whole ? WHERRY_OK : reserve_packing(m, one->bytes, error));
    WH_TRY(queue_message(m, whole ? first->to : m->packing, one->bytes, error));
    if (!whole) {
        WH_TRY(unpack(m, one, error));
    }
    return mark(m, one, error);
}

/* ---- a round ---- */

static wherry_status move_round(moving *m, wherry_error *error) {
    wherry_status status = await_ready(m, error);
    bool more = true;
    while (status == WHERRY_OK && more) {
        message *one = m->messages + (m->oldest + m->under_way) % UNDER_WAY;
        status = m->sink ? collect_from_sink(m, one, error) : collect_from_feed(m, one, error);
        bool some = one->bytes > 0;
        if (status == WHERRY_OK && wh_stop_requested(m->end->site->stop)) {
            /* After a stop request, the message or the round may be shorter than the peer's. */
            status = wh_site_cancelled(error);
        }
        if (status == WHERRY_OK && some) {
            status = m->sink ? receive_message(m, one, error) : send_message(m, one, error);
        } else if (status == WHERRY_OK) {
            status = end_all(m, error);
            more = status == WHERRY_OK && (m->sink ? wh_sink_more(m->sink) : wh_feed_more(m->feed));
        }
        if (status == WHERRY_OK && m->under_way == UNDER_WAY) {
            status = end_oldest(m, error);
        }
    }
    return status;
}

/**
 * Waits up to WH_NCCL_REASON_MS for a stop request. NCCL reports only that the peer has failed. The
 * conversation learns the reason from the peer, and then requests a stop.
 */
static void await_reason(const wh_lane_site *site) {
    wh_cuda_backoff backoff = {0};
    wh_deadline soon = wh_deadline_earlier(site->deadline, wh_deadline_in_ms(WH_NCCL_REASON_MS));
    while (wh_cuda_back_off(&backoff, site->stop, soon, "waiting", NULL) == WHERRY_OK) {
    }
}

static wherry_status move(wh_nccl_end *end, const wh_sink *sink, const wh_feed *feed, wherry_error *error) {
    moving m = {.end = end, .comm = end->comm, .sink = sink, .feed = feed};
    wherry_status status =
        m.comm->handle ? move_round(&m, error) : wh_fail(error, WHERRY_SYSTEM, "the NCCL communicator was aborted");
    if (status != WHERRY_OK) {
        wh_nccl_abort(m.comm); /* Otherwise both sides might wait for each other forever. */
    }
    release_packing(&m);
    if (status == WHERRY_PEER_LOST) {
        await_reason(end->site);
    }
    wh_segments_destroy(&m.chunk);
    wh_segments_destroy(&m.whole);
    wh_routes_destroy(&m.routes);
    wh_free(m.same.items);
    wh_free(m.other.items);
    wh_free(m.host.items);
    for (size_t i = 0; i < UNDER_WAY; i++) {
        wh_free(m.messages[i].chunks);
    }
    return status;
}

wherry_status wh_nccl_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    (void)worker;
    return move(wh_nccl_end_of(end), sink, NULL, error);
}

wherry_status wh_nccl_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    (void)worker;
    return move(wh_nccl_end_of(end), NULL, feed, error);
}
