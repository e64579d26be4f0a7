#include "lane/stream/stream_frame.h"

#include "base/checked.h"
#include "base/fail.h"

wh_run_cursor wh_run_cursor_at(const wh_segments *segments) {
    return (wh_run_cursor){segments->items, segments->items + segments->count, 0};
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

wherry_status wh_stream_ready_digester(wh_stream_worker *worker, wherry_error *error) {
    if (!worker->digester) {
        worker->digester = wh_digester_create();
    }
    return worker->digester ? WHERRY_OK : wh_fail_memory(error, "a digest");
}

void wh_stream_worker_destroy(wh_stream_worker *worker) {
    if (worker->pipe) {
        worker->pipe->ops->close(worker->pipe);
    }
    wh_digester_destroy(worker->digester);
    wh_segments_destroy(&worker->segments);
    wh_landing_destroy(&worker->landing);
}
