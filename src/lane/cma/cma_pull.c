#include <limits.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/cma/cma.h"

enum {
    VERIFY_BATCH =
        512 << 10,      /**< With verify, what was read is digested while it is in the cache: batches are no longer. */
    THROUGH_MAX = 2048, /**< Bytes without a place, fewer than these, cost less than cutting a run in two. */
};

/** A place in a list of runs. */
typedef struct place {
    const struct iovec *items;
    size_t count;
    size_t offset; /**< In the first of them. */
} place;

/** One worker: what it reuses from chunk to chunk. */
typedef struct puller {
    const wh_cma_end *end;
    const wh_sink *sink;
    wh_digester *digester; /**< With verify. */
    wh_segments origin;
    wh_landing landing;
    place remote;
    place local;
    size_t remote_count;
    size_t local_count;
    struct iovec remote_list[IOV_MAX];
    struct iovec local_list[IOV_MAX];
} puller;

static struct iovec front(const place *at, size_t most) {
    char *base = at->items->iov_base;
    return (struct iovec){base ? base + at->offset : NULL, wh_min(at->items->iov_len - at->offset, most)};
}

static void advance(place *at, size_t bytes) {
    while (bytes > 0) {
        size_t left = at->items->iov_len - at->offset;
        size_t part = wh_min(left, bytes);
        at->offset += part;
        bytes -= part;
        if (part == left) {
            at->items++;
            at->count--;
            at->offset = 0;
        }
    }
}

/** Runs of no bytes are allowed in a list, and mean nothing. */
static void skip_empty(place *at) {
    while (at->count > 0 && at->items->iov_len == at->offset) {
        at->items++;
        at->count--;
        at->offset = 0;
    }
}

/** Puts the source's next bytes on the list: where they go on from the last run, they lengthen it. @return how many: fewer where the list is full. */
static size_t add_remote(puller *p, size_t bytes) {
    size_t added = 0;
    while (added < bytes) {
        skip_empty(&p->remote);
        struct iovec run = front(&p->remote, bytes - added);
        struct iovec *last = p->remote_count ? p->remote_list + p->remote_count - 1 : NULL;
        if (last && (char *)last->iov_base + last->iov_len == run.iov_base) {
            last->iov_len += run.iov_len;
        } else if (p->remote_count < IOV_MAX) {
            p->remote_list[p->remote_count++] = run;
        } else {
            break;
        }
        advance(&p->remote, run.iov_len);
        added += run.iov_len;
    }
    return added;
}

/** The source's bytes that have no place here are passed over. */
static void skip_remote(puller *p, size_t bytes) {
    while (bytes > 0) {
        skip_empty(&p->remote);
        size_t part = front(&p->remote, bytes).iov_len;
        advance(&p->remote, part);
        bytes -= part;
    }
}

/** Whether bytes without a place are to be read all the same, since passing over them would cut a run of the source in two. */
static bool reads_through(puller *p, size_t bytes) {
    skip_empty(&p->remote);
    return bytes < THROUGH_MAX && bytes <= p->landing.scratch_bytes && p->local_count > 0 &&
           p->remote.items->iov_len - p->remote.offset > bytes;
}

/** Fills both lists with the next bytes of the chunk, each with runs of its own: as much as one call takes. @return how many bytes. */
static size_t collect(puller *p, size_t most) {
    size_t bytes = 0;
    p->remote_count = 0;
    p->local_count = 0;
    while (bytes < most && p->local_count < IOV_MAX) {
        skip_empty(&p->local);
        if (p->local.count == 0) {
            break;
        }
        struct iovec run = front(&p->local, most - bytes);
        size_t added = run.iov_len;
        if (!run.iov_base && reads_through(p, added)) {
            run.iov_base = p->landing.scratch;
        }
        if (!run.iov_base) {
            skip_remote(p, added);
        } else if ((added = add_remote(p, run.iov_len)) > 0) {
            p->local_list[p->local_count++] = (struct iovec){run.iov_base, added};
            bytes += added;
        }
        advance(&p->local, added);
        if (added < run.iov_len) {
            break;
        }
    }
    return bytes;
}

/** Adds the bytes that have just landed, which begin there. */
static void digest(puller *p, place at, size_t bytes) {
    while (bytes > 0) {
        skip_empty(&at);
        struct iovec run = front(&at, bytes);
        wh_digester_add(p->digester, run.iov_base, run.iov_len);
        advance(&at, run.iov_len);
        bytes -= run.iov_len;
    }
}

/** Reads a chunk that is open. */
static wherry_status read_chunk(puller *p, wherry_error *error) {
    p->remote = (place){p->origin.items, p->origin.count, 0};
    p->local = (place){p->landing.segments.items, p->landing.segments.count, 0};
    wherry_status status = WHERRY_OK;
    size_t bytes;
    do {
        place begun = p->local;
        bytes = collect(p, p->sink->verify ? VERIFY_BATCH : SIZE_MAX);
        wh_cma_batch batch = {p->remote_list, p->local_list, p->remote_count, p->local_count};
        status = bytes > 0 ? wh_cma_read(&p->end->peer, &batch, NULL, error) : WHERRY_OK;
        if (status == WHERRY_OK && p->sink->verify) {
            digest(p, begun, bytes);
        }
    } while (status == WHERRY_OK && bytes > 0);
    return status;
}

static wherry_status pull_chunk(puller *p, uint64_t chunk, wherry_error *error) {
    const wh_sink *sink = p->sink;
    wh_digest made;
    wherry_status status = sink->origin(sink->context, chunk, &p->origin, error);
    if (status == WHERRY_OK) {
        status = sink->open(sink->context, chunk, &p->landing, error);
    }
    if (status == WHERRY_OK && p->origin.bytes != p->landing.segments.bytes) {
        status = wh_fail(error, WHERRY_INTERNAL, "a chunk has %llu bytes at the source, and %llu here",
                         (unsigned long long)p->origin.bytes, (unsigned long long)p->landing.segments.bytes);
    }
    if (status == WHERRY_OK) {
        if (sink->verify) {
            wh_digester_begin(p->digester);
        }
        status = read_chunk(p, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (sink->verify) {
        made = wh_digester_end(p->digester);
    }
    sink->moved(sink->context, p->origin.bytes);
    return sink->close(sink->context, &p->landing, sink->verify ? &made : NULL, NULL, error);
}

wherry_status wh_cma_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    (void)worker;
    const wh_cma_end *own = wh_cma_end_of(end);
    wherry_status status = WHERRY_OK;
    uint64_t chunk;
    puller *p = wh_alloc(sizeof(*p));
    if (!p) {
        return wh_fail_memory(error, "lists of memory to read");
    }
    p->end = own;
    p->sink = sink;
    p->origin = (wh_segments){0};
    p->landing = (wh_landing){0};
    p->digester = sink->verify ? wh_digester_create() : NULL;
    if (sink->verify && !p->digester) {
        status = wh_fail_memory(error, "a digest");
    }
    while (status == WHERRY_OK && !wh_stop_requested(own->stop) && sink->next(sink->context, &chunk)) {
        status = pull_chunk(p, chunk, error);
    }
    if (status == WHERRY_OK && wh_stop_requested(own->stop)) {
        status = wh_fail(error, WHERRY_CANCELLED, "reading from rank %d was stopped", own->peer.rank);
    }
    wh_digester_destroy(p->digester);
    wh_segments_destroy(&p->origin);
    wh_landing_destroy(&p->landing);
    wh_free(p);
    return status;
}
