/*
 * The blocks lane: the put and get operations of the group (wherry/group_ops.h) move blocks of
 * bytes. The invariants are in blocks_internal.h.
 */
#include "lane/blocks/blocks_internal.h"

#include <stdatomic.h>
#include <string.h>

#include <wherry/group_ops.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lanes.h"

/*
 * An offer has the version (u8), the maximum size of a block of several chunks (u8, in MiB), and
 * the size of a part (u8, in units of WH_BLOCKS_PART_UNIT). A request has the version (u8), both
 * sizes (u8 each) and the channel (u16). The sizes must not exceed the offered ones. Numbers are
 * big-endian.
 */
enum { VERSION = 4, OFFER_BYTES = 3, CHANNELS = WHERRY_GROUP_CHANNEL_MAX + 1 };

enum { PROGRESS_STEP = 4 << 20, PAGE = 4096 };

/* ---- agreeing on sizes and a channel ---- */

typedef struct terms {
    uint8_t longest_mib;
    uint8_t part; /**< Size of a part, in units of WH_BLOCKS_PART_UNIT. */
    uint32_t channel;
} terms;

wh_blocks_limits wh_blocks_limit = {.longest_mib = WH_BLOCKS_LONG_MIB, .patience_ms = WH_BLOCKS_PATIENCE_MS};

/** Returns this side's maximum size of a block of several chunks, in MiB; 0: no such blocks. */
static uint8_t longest_here(const wh_lane_site *site) {
    return site->no_progress_ms >= wh_blocks_limit.patience_ms ? wh_blocks_limit.longest_mib : 0;
}

/** Returns this side's size of a part, in units of WH_BLOCKS_PART_UNIT. */
static uint8_t part_here(const wh_lane_site *site) {
    return (uint8_t)(site->group->ops->part_bytes / WH_BLOCKS_PART_UNIT);
}

/**
 * Chooses the next channel of this receiver. All channels are used before one is used again. The
 * first is random, because a previous process of this rank may have left operations on the channels
 * that it used.
 */
static wherry_status next_channel(uint32_t *channel_p, wherry_error *error) {
    static atomic_uint next; /* 0 if the first channel is not chosen yet. */
    unsigned none = 0;
    uint16_t random;
    if (atomic_load(&next) == 0) {
        WH_TRY(wh_random_fill(&random, sizeof(random), error));
        atomic_compare_exchange_strong(&next, &none, CHANNELS + random % CHANNELS);
    }
    *channel_p = atomic_fetch_add(&next, 1) % CHANNELS;
    return WHERRY_OK;
}

static wherry_status new_end(const wh_lane_site *site, const terms *agreed, wh_lane_end **end_p, wherry_error *error) {
    wh_blocks_end *own = wh_alloc_zeroed(1, sizeof(*own));
    WH_TRY_ALLOC(own, error, "a lane");
    own->base.workers = 1;
    own->site = site;
    own->channel = agreed->channel;
    own->longest = (uint64_t)agreed->longest_mib << 20;
    own->part = (uint64_t)agreed->part * WH_BLOCKS_PART_UNIT;
    *end_p = &own->base;
    return WHERRY_OK;
}

static wherry_status blocks_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    char bytes[OFFER_BYTES] = {VERSION, (char)longest_here(site), (char)part_here(site)};
    wherry_status status = wh_group_check_blocks(site->group, site->peer, error);
    if (status == WHERRY_OK) {
        wh_string_append(offer, bytes, sizeof(bytes));
    }
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : status;
}

/**
 * Only checks the offer and agrees on sizes. A test transfer is not possible, because the source
 * would have to take part.
 */
static wherry_status blocks_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                  bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *offered = offer;
    *assist_p = false;
    if (size != OFFER_BYTES || offered[0] != VERSION || offered[1] > WH_BLOCKS_LONG_MIB) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed blocks offer", (int)site->peer);
    }
    terms agreed = {.longest_mib = (uint8_t)wh_min(offered[1], longest_here(site)),
                    .part = (uint8_t)wh_min(offered[2], part_here(site))};
    WH_TRY(wh_group_check_blocks(site->group, site->peer, error));
    WH_TRY(next_channel(&agreed.channel, error));
    wh_append_number(request, VERSION, 1);
    wh_append_number(request, agreed.longest_mib, 1);
    wh_append_number(request, agreed.part, 1);
    wh_append_number(request, agreed.channel, 2);
    return request->failed ? wh_fail_memory(error, "the request of a lane") : new_end(site, &agreed, end_p, error);
}

static wherry_status blocks_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                   wh_lane_end **end_p, wherry_error *error) {
    wh_cursor at = wh_cursor_over(request, size);
    uint64_t version = wh_cursor_number(&at, 1);
    terms wanted = {.longest_mib = (uint8_t)wh_cursor_number(&at, 1),
                    .part = (uint8_t)wh_cursor_number(&at, 1),
                    .channel = (uint32_t)wh_cursor_number(&at, 2)};
    WH_TRY(wh_group_check_blocks(site->group, site->peer, error));
    if (!wh_cursor_ended(&at) || version != VERSION || wanted.channel >= CHANNELS ||
        wanted.longest_mib > longest_here(site) || wanted.part > part_here(site)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed blocks request", (int)site->peer);
    }
    *ready_p = true;
    return new_end(site, &wanted, end_p, error);
}

/* ---- moving ---- */

/** The functions and limits that differ between source and receiver. */
typedef struct side {
    const void *what; /**< The feed or the sink. */

    size_t most;    /**< Maximum number of blocks in flight. */
    size_t few;     /**< More blocks begin when at most this many are in flight. */
    uint64_t bytes; /**< A third block does not begin while this many bytes are in flight. */

    /** These four members come from the feed or the sink. */
    void *context;
    bool (*next)(void *context, uint64_t *chunk_p);
    wh_more (*more)(void *context, uint32_t wait_ms);
    uint64_t (*continues)(void *context, uint64_t chunk);

    /** Adds a chunk to a new block. */
    wherry_status (*add)(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk, wherry_error *error);

    /** Prepares to split the only chunk of the block. Stores in `own` where the chunk begins. */
    void (*divide)(wh_blocks_end *own, wh_block *block);

    /** Begins to move a block, after all its chunks were added. */
    wherry_status (*begin)(wh_blocks_end *own, wh_block *block, wherry_error *error);

    /** Handles a block that has moved. */
    wherry_status (*end)(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error);
} side;

static void reset_patience(wh_blocks_end *own) {
    own->patience = wh_site_patience(own->site);
}

/* -- blocks in flight -- */

/**
 * Returns a free block. Fewer than WH_BLOCKS_AHEAD blocks must be in flight. @return NULL if out of
 * memory.
 */
static wh_block *next_block(wh_blocks_end *own) {
    wh_block **block_p = own->order + own->count;
    if (!*block_p) {
        *block_p = wh_alloc_zeroed(1, sizeof(**block_p));
    }
    return *block_p;
}

static void note_begun(wh_blocks_end *own, const wh_block *block) {
    own->count++;
    own->bytes += block->size;
    own->held += block->held;
}

/**
 * Removes the oldest block, which is done, from the blocks in flight. The next block reuses it, so
 * that only a few blocks allocate large scratch memory.
 */
static wh_block *note_gone(wh_blocks_end *own) {
    wh_block *block = own->order[0];
    own->count--;
    memmove(own->order, own->order + 1, own->count * sizeof(*own->order));
    own->order[own->count] = block;
    own->bytes -= block->size;
    own->held -= block->held;
    return block;
}

/**
 * True if another block may begin. If chunks are split into parts, both sides have the same low
 * limits, so that the memory stays in the CPU caches.
 */
static bool has_room(const wh_blocks_end *own, const side *s) {
    size_t most = own->part ? WH_BLOCKS_PARTS : s->most;
    uint64_t bytes = own->part ? WH_BLOCKS_BYTES : s->bytes;
    return own->count < most && own->held < WH_BLOCKS_BYTES && (own->count < 2 || own->bytes < bytes);
}

/**
 * Abandons all blocks, the newest first. If the oldest get were abandoned first, its late bytes
 * would go to the next get. That one may be shorter, and some MPI libraries then abort the process.
 */
static void abandon_all(wh_blocks_end *own) {
    while (own->count) {
        own->stuck |= !own->site->group->ops->abandon(own->site->group, own->order[--own->count]->operation);
    }
    own->bytes = own->held = 0;
}

/**
 * Makes the block use scratch memory. The memory starts at a page boundary, because aligned copies
 * are twice as fast. @return false if out of memory.
 */
static bool use_scratch(wh_block *block) {
    block->in_place = false;
    block->held += block->size;
    bool there = block->size < SIZE_MAX - PAGE && WH_RESERVE(block->scratch, block->scratch_bytes, block->size + PAGE);
    block->bytes = there ? block->scratch + (-(uintptr_t)block->scratch & (PAGE - 1)) : NULL;
    return there;
}

/* -- the source -- */

static wherry_status add_put(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk,
                             wherry_error *error) {
    const wh_feed *feed = what;
    const wh_segments *segments = &own->segments;
    WH_TRY(feed->gather(feed->context, chunk, &own->segments, error));
    bool one_run = segments->count == 1;
    if (block->chunks == 0) {
        block->first = chunk;
        block->in_place = one_run;
        block->bytes = segments->items[0].iov_base;
        block->cursor = wh_run_cursor_at(segments);
    } else if (!block->in_place || !one_run || segments->items[0].iov_base != block->bytes + block->size) {
        return wh_fail(error, WHERRY_INTERNAL, "chunk %llu does not continue the previous chunk",
                       (unsigned long long)chunk);
    }
    block->size += segments->bytes;
    block->chunks++;
    return WHERRY_OK;
}

/**
 * The cursor points into own->segments, which must not change until all parts of the chunk have
 * begun.
 */
static void divide_put(wh_blocks_end *own, wh_block *block) {
    own->cursor = block->cursor;
    own->cut = block->first;
}

/**
 * Passes the runs to the group without packing them. Empty runs are omitted, so the list needs at
 * most one entry per byte.
 */
static wherry_status put_runs(wh_blocks_end *own, wh_block *block, wherry_error *error) {
    wh_group *group = own->site->group;
    size_t bytes;
    WH_TRY_ALLOC(WH_RESERVE(block->runs, block->run_capacity,
                            wh_min((size_t)(block->cursor.end - block->cursor.at), block->size)),
                 error, "a block");
    size_t count = wh_run_cursor_window(&block->cursor, NULL, block->runs, block->run_capacity, block->size, &bytes);
    return wh_site_blame(
        own->site,
        group->ops->put_runs(group, own->site->peer, own->channel, block->runs, count, &block->operation, error),
        error);
}

static wherry_status begin_put(wh_blocks_end *own, wh_block *block, wherry_error *error) {
    wh_group *group = own->site->group;
    if (!block->in_place && group->ops->put_runs) {
        return put_runs(own, block, error);
    }
    if (!block->in_place) {
        WH_TRY_ALLOC(use_scratch(block), error, "a block");
        wh_run_cursor_pack(&block->cursor, block->bytes, block->size, NULL);
    }
    return wh_site_blame(
        own->site,
        group->ops->put(group, own->site->peer, own->channel, block->bytes, block->size, &block->operation, error),
        error);
}

static wherry_status end_put(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error) {
    const wh_feed *feed = what;
    (void)own, (void)error;
    for (uint64_t left = block->size, step; left; left -= step) {
        step = wh_min(left, PROGRESS_STEP);
        feed->moved(feed->context, step);
    }
    for (size_t i = 0; i < block->chunks; i++) {
        wh_feed_done(feed, block->first + i);
    }
    return WHERRY_OK;
}

/* -- the receiver -- */

static wherry_status add_get(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk,
                             wherry_error *error) {
    const wh_sink *sink = what;
    wh_landing *landing = block->landings + block->chunks;
    (void)own;
    WH_TRY(sink->open(sink->context, chunk, landing, error));
    const struct iovec *first = landing->segments.items;
    bool one_run = landing->segments.count == 1 && first->iov_base;
    if (block->chunks == 0) {
        block->in_place = one_run;
        block->bytes = first->iov_base;
    } else {
        block->in_place = block->in_place && one_run && first->iov_base == block->bytes + block->size;
    }
    /*
     * The sink may allocate scratch memory for the longest chunk. So count every staged chunk as a
     * large one, which limits the number of such blocks in flight.
     */
    if (landing->staged) {
        block->held += wh_max(landing->segments.bytes, WH_BLOCKS_BYTES / WH_BLOCKS_UNDER_WAY);
    }
    block->size += landing->segments.bytes;
    block->chunks++;
    return WHERRY_OK;
}

static void divide_get(wh_blocks_end *own, wh_block *block) {
    wh_landing former = own->landings[own->next_landing];
    own->landing = own->landings + own->next_landing;
    own->next_landing = (own->next_landing + 1) % WH_BLOCKS_PARTS;
    *own->landing = block->landings[0];
    block->landings[0] = former; /* The next chunk reuses the memory of `former`. */
    own->cursor = wh_run_cursor_at(&own->landing->segments);
}

static wherry_status begin_get(wh_blocks_end *own, wh_block *block, wherry_error *error) {
    wh_group *group = own->site->group;
    if (!block->in_place && !use_scratch(block)) {
        return wh_fail_memory(error, "a block");
    }
    return wh_site_blame(
        own->site,
        group->ops->get(group, own->site->peer, own->channel, block->bytes, block->size, &block->operation, error),
        error);
}

/** Handles a part that has arrived: hashes it while it is in the CPU cache, and unpacks it. */
static wherry_status end_part(wh_blocks_end *own, const wh_sink *sink, wh_block *block, wherry_error *error) {
    if (sink->verify) {
        if (!own->hashing) {
            wh_digester_begin(own->digester);
        }
        wh_digester_add(own->digester, block->bytes, block->size);
        own->hashing = block->chunks == 0;
    }
    if (!block->in_place) {
        wh_run_cursor_unpack(&block->cursor, block->bytes, block->size, NULL);
    }
    sink->moved(sink->context, block->size);
    return block->chunks ? wh_sink_close(sink, block->landing, own->digester, NULL, error) : WHERRY_OK;
}

static wherry_status end_get(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error) {
    const wh_sink *sink = what;
    wherry_status status = WHERRY_OK;
    uint8_t *from = block->bytes;
    if (block->is_part) {
        return end_part(own, sink, block, error);
    }
    for (size_t i = 0; i < block->chunks && status == WHERRY_OK; i++) {
        wh_landing *landing = block->landings + i;
        /*
         * Hash the chunk in the memory where it arrived. In this memory, the chunk is one run, and
         * it is in the CPU cache.
         */
        size_t size = landing->segments.bytes;
        if (!block->in_place) {
            wh_run_cursor cursor = wh_run_cursor_at(&landing->segments);
            wh_run_cursor_unpack(&cursor, from, size, NULL);
        }
        if (sink->verify) {
            wh_digester_begin(own->digester);
            wh_digester_add(own->digester, from, size);
        }
        from += size;
        sink->moved(sink->context, size);
        status = wh_sink_close(sink, landing, own->digester, NULL, error);
    }
    return status;
}

/* -- both -- */

/** True if a chunk can be added to a block that ends with the previous chunk. */
static bool joins(const wh_blocks_end *own, const side *s, const wh_block *block, uint64_t chunk) {
    uint64_t bytes = block->chunks < WH_BLOCKS_CHUNKS ? s->continues(s->context, chunk) : 0;
    return bytes && block->size <= own->longest && bytes <= own->longest - block->size;
}

/**
 * Forms a block from the next chunk and the chunks that continue it. A block has chunks of one
 * request, so that both sides form the same blocks. If there are no chunks now, the block stays
 * empty.
 */
static wherry_status form_block(wh_blocks_end *own, const side *s, wh_block *block, wherry_error *error) {
    bool more = own->has_ahead || s->next(s->context, &own->ahead);
    block->size = block->chunks = block->held = 0;
    block->is_part = false;
    while (more) {
        uint64_t chunk = own->ahead;
        own->has_ahead = false;
        wherry_status status = s->add(own, s->what, block, chunk, error);
        if (status != WHERRY_OK || !own->longest || !s->continues) {
            return status;
        }
        own->has_ahead = s->next(s->context, &own->ahead);
        more = own->has_ahead && own->ahead == chunk + 1 && joins(own, s, block, own->ahead);
    }
    /*
     * After a stop request, `next` returns no more chunks, so the block may be shorter than the
     * peer's.
     */
    return wh_stop_requested(own->site->stop) ? wh_site_cancelled(error) : WHERRY_OK;
}

/** Forms a block from the next part of the chunk that is being split. */
static void form_part(wh_blocks_end *own, wh_block *block) {
    block->size = (size_t)wh_min(own->left, own->part);
    own->left -= block->size;
    block->is_part = true;
    block->held = 0;
    block->chunks = own->left == 0;
    block->first = own->cut;
    block->landing = own->landing;
    block->cursor = own->cursor;
    block->in_place = own->cursor.at->iov_base && wh_run_cursor_left(&own->cursor) >= block->size;
    block->bytes = block->in_place ? (uint8_t *)own->cursor.at->iov_base + own->cursor.skip : NULL;
    wh_run_cursor_advance(&own->cursor, block->size);
}

/**
 * Forms the next block or part. If there are no chunks now, the block stays empty. If no request
 * follows, it also sets own->given.
 */
static wherry_status form_next(wh_blocks_end *own, const side *s, wh_block *block, wherry_error *error) {
    if (!own->left) {
        wh_more more = WH_MORE_NOW;
        wherry_status status = WHERRY_OK;
        while (status == WHERRY_OK && more == WH_MORE_NOW) {
            status = form_block(own, s, block, error);
            more = status != WHERRY_OK || block->chunks ? WH_MORE_LATER
                   : s->more                            ? s->more(s->context, 0)
                                                        : WH_MORE_NEVER;
        }
        own->given = status == WHERRY_OK && more == WH_MORE_NEVER;
        if (status != WHERRY_OK || block->chunks != 1 || !own->part || block->size <= own->part) {
            return status;
        }
        own->left = block->size;
        s->divide(own, block);
    }
    form_part(own, block);
    return WHERRY_OK;
}

/** Begins blocks while there is room, but only if at most s->few are in flight. */
static wherry_status begin_some(wh_blocks_end *own, const side *s, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (own->count > s->few) {
        return status;
    }
    while (status == WHERRY_OK && (own->left || !own->given) && has_room(own, s)) {
        wh_block *block = next_block(own);
        WH_TRY_ALLOC(block, error, "a block");
        status = form_next(own, s, block, error);
        if (status == WHERRY_OK && !block->chunks && !block->is_part) {
            break;
        }
        WH_THEN(status, s->begin(own, block, error));
        if (status == WHERRY_OK) {
            note_begun(own, block);
        }
    }
    return status;
}

/**
 * Ends blocks that have moved, in order, and begins new ones. Waits at most wait_ms for the oldest
 * block. Returns after a few blocks, so that the caller can do other work.
 */
static wherry_status end_some(wh_blocks_end *own, const side *s, uint32_t wait_ms, wherry_error *error) {
    wh_group *group = own->site->group;
    wherry_status status = WHERRY_OK;
    uint64_t bytes = 0;
    for (int ended = 0; status == WHERRY_OK && own->count && ended < WH_BLOCKS_UNDER_WAY && bytes < WH_BLOCKS_BYTES;
         ended++) {
        status = group->ops->finish(group, own->site->peer, own->order[0]->operation, ended ? 0 : wait_ms, error);
        if (status == WHERRY_TIMED_OUT) {
            return wh_deadline_passed(own->patience) ? wh_site_timed_out(own->site, error) : WHERRY_OK;
        }
        wh_block *block = note_gone(own);
        bytes += block->size;
        reset_patience(own);
        status = status == WHERRY_OK ? s->end(own, s->what, block, error) : wh_site_blame(own->site, status, error);
        WH_THEN(status, begin_some(own, s, error));
    }
    return status;
}

static wherry_status work_some(wh_blocks_end *own, const side *s, uint32_t wait_ms, bool *again_p,
                               wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (!own->begun) {
        own->begun = true;
        own->given = own->has_ahead = own->hashing = false;
        own->left = 0;
        reset_patience(own);
    }
    if (wh_stop_requested(own->site->stop)) {
        status = wh_site_cancelled(error);
    } else if (wh_deadline_passed(own->site->deadline)) {
        status = wh_site_timed_out(own->site, error);
    }
    WH_THEN(status, begin_some(own, s, error));
    if (status == WHERRY_OK && !own->count && !own->given) {
        s->more(s->context, wait_ms); /* This waits for the next request. */
        reset_patience(own);
    }
    WH_THEN(status, end_some(own, s, wait_ms, error));
    bool over = status == WHERRY_OK && own->given && own->count == 0;
    if (over && wh_stop_requested(own->site->stop)) {
        status = wh_site_cancelled(error); /* The stop request ended the round early. */
    }
    if (status != WHERRY_OK) {
        abandon_all(own);
    }
    own->begun = status == WHERRY_OK && !over;
    *again_p = own->begun;
    return status;
}

/**
 * Keeps the workers of the two sides on different processors, because they work at the same time.
 * Both count from the receiver's rank. Pins only threads of the library, and only if there are
 * fewer processors than the two workers and the two threads that wait for them. Otherwise both
 * workers often start on the same one of 2 cores, and 20,000 small tensors take up to half longer.
 */
static void keep_apart(const wh_blocks_end *own, bool pulls) {
    if (!own->begun && own->part && wh_group_can(own->site->group, WH_GROUP_CONCURRENT)) {
        wh_worker_pin((uint32_t)(pulls ? own->site->group->rank : own->site->peer + 1), 4);
    }
}

static wherry_status blocks_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    (void)worker;
    const side source = {.what = feed,
                         .most = WH_BLOCKS_UNDER_WAY,
                         .few = WH_BLOCKS_UNDER_WAY - 1,
                         .bytes = WH_BLOCKS_BYTES,
                         .context = feed->context,
                         .next = feed->next,
                         .more = feed->more,
                         .continues = feed->continues,
                         .add = add_put,
                         .divide = divide_put,
                         .begin = begin_put,
                         .end = end_put};
    keep_apart((void *)end, false);
    return work_some((void *)end, &source, feed->wait_ms, feed->again_p, error);
}

static wherry_status blocks_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    (void)worker;
    const side receiver = {.what = sink,
                           .most = WH_BLOCKS_AHEAD,
                           .few = WH_BLOCKS_AHEAD / 2,
                           .bytes = UINT64_MAX,
                           .context = sink->context,
                           .next = sink->next,
                           .more = sink->more,
                           .continues = sink->continues,
                           .add = add_get,
                           .divide = divide_get,
                           .begin = begin_get,
                           .end = end_get};
    wh_blocks_end *own = (void *)end;
    WH_TRY(wh_digester_need(sink->verify, &own->digester, error));
    keep_apart(own, true);
    return work_some(own, &receiver, sink->wait_ms, sink->again_p, error);
}

/* ---- the lane ---- */

static void blocks_close(wh_lane_end *end) {
    wh_blocks_end *own = (void *)end;
    if (!own) {
        return;
    }
    abandon_all(own);
    if (own->stuck) {
        if (own->site->held_p) {
            *own->site->held_p = true;
        }
        wh_leak(own);
        return;
    }
    for (size_t i = 0; i < WH_BLOCKS_AHEAD && own->order[i]; i++) {
        wh_free(own->order[i]->scratch);
        wh_free(own->order[i]->runs);
        for (size_t k = 0; k < WH_BLOCKS_CHUNKS; k++) {
            wh_landing_destroy(own->order[i]->landings + k);
        }
        wh_free(own->order[i]);
    }
    for (size_t i = 0; i < WH_BLOCKS_PARTS; i++) {
        wh_landing_destroy(own->landings + i);
    }
    wh_segments_destroy(&own->segments);
    wh_digester_destroy(own->digester);
    wh_free(own);
}

const wh_lane_ops wh_lane_blocks = {
    .name = "blocks",
    .traits = WH_LANE_NETWORK | WH_LANE_GROUP | WH_LANE_STAGES,
    .offer = blocks_offer,
    .probe = blocks_probe,
    .accept = blocks_accept,
    .pull = blocks_pull,
    .push = blocks_push,
    .close = blocks_close,
};
