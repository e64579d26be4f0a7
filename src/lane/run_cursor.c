#include "lane/run_cursor.h"

#include "base/cache_copy.h"
#include "base/checked.h"

wh_run_cursor wh_run_cursor_at(const wh_segments *segments) {
    wh_run_cursor cursor = {segments->items, segments->items + segments->count, 0};
    wh_run_cursor_advance(&cursor, 0); /* past runs that are empty */
    return cursor;
}

size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p) {
    size_t count = 0;
    size_t bytes = 0;
    size_t skip = cursor->skip;
    for (const struct iovec *at = cursor->at; at < cursor->end && count < room && bytes < most; at++) {
        size_t left = at->iov_len - skip;
        size_t length = wh_min(left, most - bytes);
        void *base = at->iov_base ? (char *)at->iov_base + skip : landing->scratch;
        if (!at->iov_base) {
            length = wh_min(length, landing->scratch_bytes);
        }
        skip = 0;
        if (length) {
            window[count++] = (struct iovec){base, length};
            bytes += length;
        }
        if (length < left) {
            break;
        }
    }
    *bytes_p = bytes;
    return count;
}

void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes) {
    while (cursor->at < cursor->end && bytes >= cursor->at->iov_len - cursor->skip) {
        bytes -= cursor->at->iov_len - cursor->skip;
        cursor->at++;
        cursor->skip = 0;
    }
    cursor->skip += bytes;
}

size_t wh_run_cursor_left(const wh_run_cursor *cursor) {
    return cursor->at < cursor->end ? cursor->at->iov_len - cursor->skip : 0;
}

void wh_run_cursor_pack(wh_run_cursor *cursor, void *to, size_t bytes) {
    uint8_t *at = to;
    while (bytes) {
        size_t part = wh_min(wh_run_cursor_left(cursor), bytes);
        wh_copy_into_cache(at, wh_run_cursor_here(cursor), part);
        wh_run_cursor_advance(cursor, part);
        at += part;
        bytes -= part;
    }
}

void wh_run_cursor_unpack(wh_run_cursor *cursor, const void *from, size_t bytes) {
    const uint8_t *at = from;
    while (bytes) {
        size_t part = wh_min(wh_run_cursor_left(cursor), bytes);
        const struct iovec *next = cursor->at + 1;
        if (next < cursor->end && next->iov_base) {
            wh_copy_prefetch(next->iov_base, next->iov_len);
        }
        void *here = wh_run_cursor_here(cursor);
        if (here) {
            wh_copy_nontemporal(here, at, part);
        }
        wh_run_cursor_advance(cursor, part);
        at += part;
        bytes -= part;
    }
    wh_copy_fence();
}
