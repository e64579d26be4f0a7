/*
 * Arbitrary bytes as a message of the conversation: it is decoded, or refused with a reason.
 * Encoding a decoded message gives the same bytes, unless a text was not printable. All pointers
 * are within the input, and lists of chunks are within their bounds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "range/chunkset.h"
#include "require.h"
#include "transfer/message.h"

enum { CHUNKS = 1000 };

static void check_within(wh_bytes part, const uint8_t *data, size_t size) {
    const uint8_t *begin = part.bytes;
    REQUIRE(part.size == 0 || (begin >= data && begin + part.size <= data + size));
}

/**
 * Checks that a text is printable. @return true if it is part of the message; false if it replaces
 * a text that was not printable.
 */
static bool check_text(wh_bytes text, const uint8_t *data, size_t size) {
    const uint8_t *begin = text.bytes;
    for (size_t i = 0; i < text.size; i++) {
        REQUIRE(begin[i] >= 0x20 && begin[i] != 0x7F);
    }
    return text.size == 0 || (begin >= data && begin < data + size);
}

static void check_intervals(wh_bytes bytes) {
    wherry_interval *intervals;
    size_t count;
    wherry_error error;
    wherry_status status = wh_intervals_decode(bytes, CHUNKS, &intervals, &count, &error);
    REQUIRE(status == WHERRY_OK || status == WHERRY_MALFORMED || status == WHERRY_OUT_OF_BOUNDS);
    if (status != WHERRY_OK) {
        return;
    }
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(intervals[i].count > 0 && intervals[i].first < CHUNKS &&
                intervals[i].count <= CHUNKS - intervals[i].first);
        REQUIRE(i == 0 || intervals[i].first > end);
        end = intervals[i].first + intervals[i].count;
    }
    wh_string again = {0};
    wh_intervals_encode(intervals, count, &again);
    REQUIRE(again.size == bytes.size && (again.size == 0 || memcmp(again.bytes, bytes.bytes, again.size) == 0));
    wh_free(again.bytes);
    wh_free(intervals);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wh_note note = {.type = WH_ABORT};
    wherry_error error = {.status = WHERRY_OK};
    wherry_status status = wh_note_decode(data, size, &note, &error);
    if (status != WHERRY_OK) {
        REQUIRE(status == WHERRY_MALFORMED || status == WHERRY_BAD_VERSION);
        REQUIRE(error.status == status && error.message[0]);
        REQUIRE(status != WHERRY_BAD_VERSION || note.type == WH_WANT || note.type == WH_OFFER);
        return 0;
    }
    REQUIRE(note.type >= WH_WANT && note.type <= WH_CONFIRMED);
    const wh_bytes parts[] = {note.lane,      note.request, note.manifest, note.addresses,
                              note.intervals, note.digests, note.lanes};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        check_within(parts[i], data, size);
    }
    wh_bytes offer = {0};
    if (wh_lanes_find(note.lanes, "cma", &offer)) {
        check_within(offer, data, size);
    }
    bool printable = check_text(note.path, data, size);
    printable = check_text(note.text, data, size) && printable;
    check_intervals(note.intervals);
    wh_string again = {0};
    wh_note_encode(&note, &again);
    REQUIRE(!again.failed);
    REQUIRE(!printable || (again.size == size && memcmp(again.bytes, data, size) == 0));
    wh_free(again.bytes);
    return 0;
}
