/** @file run_cursor.h  Going along the runs of a chunk, a part at a time. */
#ifndef WH_LANE_RUN_CURSOR_H
#define WH_LANE_RUN_CURSOR_H

#include "lane/lane.h"

/** A place among the runs of a chunk. */
typedef struct wh_run_cursor {
    const struct iovec *at;
    const struct iovec *end;
    size_t skip; /**< Bytes of `at` that are behind it. */
} wh_run_cursor;

/** From the beginning of the segments. */
wh_run_cursor wh_run_cursor_at(const wh_segments *segments);

/**
 * Collects runs from the cursor on, without moving it.
 * @param landing  where runs without a place go to: its scratch; NULL where there are none.
 * @param room     of the window.
 * @param most     bytes that are wanted.
 * @param bytes_p  how many there are; 0 at the end only.
 * @return the number of runs.
 */
size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p);

/** Moves it on. */
void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes);

/** How many bytes are left of the run that the cursor is in; 0 at the end only. */
size_t wh_run_cursor_left(const wh_run_cursor *cursor);

/** Where the cursor is, which is not at the end; NULL where that has no place. */
static inline void *wh_run_cursor_here(const wh_run_cursor *cursor) {
    return cursor->at->iov_base ? (char *)cursor->at->iov_base + cursor->skip : NULL;
}

/** Copies the next bytes to one place, and moves the cursor on. All of their runs have addresses. */
void wh_run_cursor_pack(wh_run_cursor *cursor, void *to, size_t bytes);

/** Copies from one place to where the next bytes belong, and moves the cursor on. Bytes that have no place are dropped. */
void wh_run_cursor_unpack(wh_run_cursor *cursor, const void *from, size_t bytes);

#endif
