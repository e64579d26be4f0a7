/*
 * Chunks as blocks of the group. Both sides know the chunks of a round, their order, their sizes and which of them continue the one before from the plan, so that
 * they form the same blocks, the n-th put is the n-th get, and nothing travels but bytes.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/blocks/blocks_internal.h"
#include "lane/lane_common.h"

/** Progress is told in steps of so many bytes. */
enum { STEP_BYTES = 4 << 20 };

enum { PAGE = 4096 };

/** A side's own part of the work; `what` is its feed or its sink. */
typedef struct side {
    const void *what;

    /** How many blocks may be under way; how many are so few that the next ones are begun; and with how many bytes no third one is. */
    size_t most;
    size_t few;
    uint64_t bytes;

    /** Those of the feed or the sink, and their context. */
    void *context;
    bool (*next)(void *context, uint64_t *chunk_p);
    uint64_t (*continues)(void *context, uint64_t chunk);

    /** Adds a chunk to a block that is being formed. */
    wherry_status (*add)(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk, wherry_error *error);

    /** The only chunk of the block goes in parts: keeps what it needs of it. */
    void (*divide)(wh_blocks_end *own, wh_block *block);

    /** Begins to move a block, whose chunks are all there. */
    wherry_status (*begin)(wh_blocks_end *own, wh_block *block, wherry_error *error);

    /** The bytes of a block have moved. */
    wherry_status (*end)(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error);
} side;

static void be_patient(wh_blocks_end *own) {
    own->patience = wh_site_patience(own->site);
}

/* ---- what is under way ---- */

/** Where the next block will be. There must be room. @return NULL where there is no memory. */
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

/** The oldest is gone. It is the next to be used again, so that large scratch memory is made for one of them and not for each in turn. */
static wh_block *note_gone(wh_blocks_end *own) {
    wh_block *block = own->order[0];
    own->count--;
    memmove(own->order, own->order + 1, own->count * sizeof(*own->order));
    own->order[own->count] = block;
    own->bytes -= block->size;
    own->held -= block->held;
    return block;
}

/** Whether another block may be begun. Where there are parts, a receiver is no further ahead than a source: what stays in the caches is moved faster. */
static bool has_room(const wh_blocks_end *own, const side *s) {
    size_t most = own->part ? WH_BLOCKS_PARTS : s->most;
    uint64_t bytes = own->part ? WH_BLOCKS_BYTES : s->bytes;
    return own->count < most && own->held < WH_BLOCKS_BYTES && (own->count < 2 || own->bytes < bytes);
}

/** The last one first: what still comes for one that is gone would be taken for the next, which may be shorter, and some MPIs end the process over that. */
void wh_blocks_abandon(wh_blocks_end *own) {
    while (own->count) {
        own->stuck |= !own->site->group->ops->abandon(own->site->group, own->order[--own->count]->operation);
    }
    own->bytes = own->held = 0;
}

/** The block goes by way of scratch, which begins with a page: the system copies there twice as fast as to where a line is split. @return false where there is no memory. */
static bool use_scratch(wh_block *block) {
    block->in_place = false;
    block->held += block->size;
    bool there = block->size < SIZE_MAX - PAGE && WH_RESERVE(block->scratch, block->scratch_bytes, block->size + PAGE);
    block->bytes = there ? block->scratch + (-(uintptr_t)block->scratch & (PAGE - 1)) : NULL;
    return there;
}

/* ---- the source ---- */

static wherry_status add_put(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk,
                             wherry_error *error) {
    const wh_feed *feed = what;
    const wh_segments *segments = &own->segments;
    wherry_status status = feed->gather(feed->context, chunk, &own->segments, error);
    if (status != WHERRY_OK) {
        return status;
    }
    bool one_run = segments->count == 1;
    if (block->chunks == 0) {
        block->first = chunk;
        block->in_place = one_run;
        block->bytes = segments->items[0].iov_base;
        block->cursor = wh_run_cursor_at(segments);
    } else if (!block->in_place || !one_run || segments->items[0].iov_base != block->bytes + block->size) {
        return wh_fail(error, WHERRY_INTERNAL, "chunk %llu does not lie where the one before it ends",
                       (unsigned long long)chunk);
    }
    block->size += segments->bytes;
    block->chunks++;
    return WHERRY_OK;
}

/** The segments stay as they are until all parts were begun. */
static void divide_put(wh_blocks_end *own, wh_block *block) {
    own->cursor = block->cursor;
    own->cut = block->first;
}

/** The bytes lie in several runs, and the group takes them so: no scratch is needed. Empty ones are left out, so that there are no more runs than bytes. */
static wherry_status put_runs(wh_blocks_end *own, wh_block *block, wherry_error *error) {
    wh_group *group = own->site->group;
    size_t bytes;
    if (!WH_RESERVE(block->runs, block->run_capacity,
                    wh_min((size_t)(block->cursor.end - block->cursor.at), block->size))) {
        return wh_fail_memory(error, "a block");
    }
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
        if (!use_scratch(block)) {
            return wh_fail_memory(error, "a block");
        }
        wh_run_cursor_pack(&block->cursor, block->bytes, block->size);
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
        step = wh_min(left, STEP_BYTES);
        feed->moved(feed->context, step);
    }
    for (size_t i = 0; i < block->chunks; i++) {
        wh_feed_done(feed, block->first + i);
    }
    return WHERRY_OK;
}

/* ---- the receiver ---- */

static wherry_status add_get(wh_blocks_end *own, const void *what, wh_block *block, uint64_t chunk,
                             wherry_error *error) {
    const wh_sink *sink = what;
    wh_landing *landing = block->landings + block->chunks;
    (void)own;
    wherry_status status = sink->open(sink->context, chunk, landing, error);
    if (status != WHERRY_OK) {
        return status;
    }
    const struct iovec *first = landing->segments.items;
    bool one_run = landing->segments.count == 1 && first->iov_base;
    if (block->chunks == 0) {
        block->in_place = one_run;
        block->bytes = first->iov_base;
    } else {
        block->in_place = block->in_place && one_run && first->iov_base == block->bytes + block->size;
    }
    if (landing->staged) { /* as many as a source has under way: each may take memory for the longest chunk */
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
    block->landings[0] = former; /* its memory is used again */
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

/** A part has come: hashed out of the cache, where it still is, and unpacked. */
static wherry_status end_part(wh_blocks_end *own, const wh_sink *sink, wh_block *block, wherry_error *error) {
    wh_digest digest;
    if (sink->verify) {
        if (!own->hashing) {
            wh_digester_begin(own->digester);
        }
        wh_digester_add(own->digester, block->bytes, block->size);
        own->hashing = block->chunks == 0;
    }
    if (!block->in_place) {
        wh_run_cursor_unpack(&block->cursor, block->bytes, block->size);
    }
    sink->moved(sink->context, block->size);
    if (!block->chunks) {
        return WHERRY_OK;
    }
    if (sink->verify) {
        digest = wh_digester_end(own->digester);
    }
    return sink->close(sink->context, block->landing, sink->verify ? &digest : NULL, NULL, error);
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
        struct iovec whole = {from, landing->segments.bytes}; /* in scratch it is in the cache, and one run */
        wh_digest digest;
        if (!block->in_place) {
            wh_run_cursor cursor = wh_run_cursor_at(&landing->segments);
            wh_run_cursor_unpack(&cursor, from, whole.iov_len);
        }
        if (sink->verify) {
            digest = wh_digest_of(own->digester, &whole, 1);
        }
        from += whole.iov_len;
        sink->moved(sink->context, whole.iov_len);
        status = sink->close(sink->context, landing, sink->verify ? &digest : NULL, NULL, error);
    }
    return status;
}

/* ---- both ---- */

/** Whether a chunk becomes part of a block whose last chunk is the one before. */
static bool joins(const wh_blocks_end *own, const side *s, const wh_block *block, uint64_t chunk) {
    uint64_t bytes = block->chunks < WH_BLOCKS_CHUNKS ? s->continues(s->context, chunk) : 0;
    return bytes && block->size <= own->longest && bytes <= own->longest - block->size;
}

/** Adds chunks to a block: the next one, and those that continue it. @return with no chunk in it where there are no more. */
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
    /* Where it is for the stop that there were no more, the block is shorter than the other side's. */
    return wh_stop_requested(own->site->stop) ? wh_site_cancelled(error) : WHERRY_OK;
}

/** Makes a block of the next part of the chunk that goes in parts. */
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

/** Finds what is to be begun next: a part, or the next block. @return as form_block. */
static wherry_status form_next(wh_blocks_end *own, const side *s, wh_block *block, wherry_error *error) {
    if (!own->left) {
        wherry_status status = form_block(own, s, block, error);
        own->given = status == WHERRY_OK && block->chunks == 0;
        if (status != WHERRY_OK || block->chunks != 1 || !own->part || block->size <= own->part) {
            return status;
        }
        own->left = block->size;
        s->divide(own, block);
    }
    form_part(own, block);
    return WHERRY_OK;
}

/** Begins blocks while there is room, once only few are left. */
static wherry_status begin_some(wh_blocks_end *own, const side *s, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (own->count > s->few) {
        return status;
    }
    while (status == WHERRY_OK && (own->left || !own->given) && has_room(own, s)) {
        wh_block *block = next_block(own);
        if (!block) {
            return wh_fail_memory(error, "a block");
        }
        status = form_next(own, s, block, error);
        if (status == WHERRY_OK && !own->given) {
            status = s->begin(own, block, error);
            if (status == WHERRY_OK) {
                note_begun(own, block);
            }
        }
    }
    return status;
}

/** Ends those that are done, in their order, so that no more than a few are before the caller looks around again. */
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
        be_patient(own);
        status = status == WHERRY_OK ? s->end(own, s->what, block, error) : wh_site_blame(own->site, status, error);
        if (status == WHERRY_OK) {
            status = begin_some(own, s, error);
        }
    }
    return status;
}

static wherry_status work_some(wh_blocks_end *own, const side *s, uint32_t wait_ms, bool *done_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (!own->begun) {
        own->begun = true;
        own->given = own->has_ahead = own->hashing = false;
        own->left = 0;
        be_patient(own);
    }
    if (wh_stop_requested(own->site->stop)) {
        status = wh_site_cancelled(error);
    } else if (wh_deadline_passed(own->site->deadline)) {
        status = wh_site_timed_out(own->site, error);
    }
    if (status == WHERRY_OK) {
        status = begin_some(own, s, error);
    }
    if (status == WHERRY_OK) {
        status = end_some(own, s, wait_ms, error);
    }
    bool over = status == WHERRY_OK && own->given && own->count == 0;
    if (over && wh_stop_requested(own->site->stop)) {
        status = wh_site_cancelled(error); /* then there were no more chunks for that reason */
    }
    if (status != WHERRY_OK) {
        wh_blocks_abandon(own);
    }
    own->begun = status == WHERRY_OK && !over;
    *done_p = status == WHERRY_OK && over;
    return status;
}

wherry_status wh_blocks_push_some(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error) {
    const side source = {.what = feed,
                         .most = WH_BLOCKS_UNDER_WAY,
                         .few = WH_BLOCKS_UNDER_WAY - 1,
                         .bytes = WH_BLOCKS_BYTES,
                         .context = feed->context,
                         .next = feed->next,
                         .continues = feed->continues,
                         .add = add_put,
                         .divide = divide_put,
                         .begin = begin_put,
                         .end = end_put};
    return work_some((void *)end, &source, wait_ms, done_p, error);
}

wherry_status wh_blocks_pull_some(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error) {
    const side receiver = {.what = sink,
                           .most = WH_BLOCKS_AHEAD,
                           .few = WH_BLOCKS_AHEAD / 2,
                           .bytes = UINT64_MAX,
                           .context = sink->context,
                           .next = sink->next,
                           .continues = sink->continues,
                           .add = add_get,
                           .divide = divide_get,
                           .begin = begin_get,
                           .end = end_get};
    wh_blocks_end *own = (void *)end;
    if (sink->verify && !own->digester) {
        own->digester = wh_digester_create();
        if (!own->digester) {
            return wh_fail_memory(error, "a digest");
        }
    }
    return work_some(own, &receiver, wait_ms, done_p, error);
}
