#include "group/callback/callback_frame.h"

#include <string.h>

#include <wherry/group_ops.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "group/group.h"

enum { VERSION = 1 };

static const uint8_t magic[4] = {'W', 'H', 'C', 'B'};

void wh_frame_write(const wh_frame *frame, uint8_t header[WH_FRAME_HEADER]) {
    memcpy(header, magic, sizeof(magic));
    header[4] = VERSION;
    header[5] = (uint8_t)frame->kind;
    header[6] = 0;
    header[7] = 0;
    wh_store_be64(header + 8, frame->from);
    wh_store_be64(header + 16, frame->to);
    wh_store_be64(header + 24, frame->tag);
    wh_store_be64(header + 32, frame->total);
    wh_store_be64(header + 40, frame->offset);
}

/** Whether the numbers of a frame fit together. */
static bool is_sound(const wh_frame *frame) {
    if (!frame->from) {
        return false;
    }
    if (frame->kind == WH_FRAME_HELLO || frame->kind == WH_FRAME_BYE) {
        return frame->size == 0 && !frame->tag && !frame->total && !frame->offset;
    }
    if (frame->kind == WH_FRAME_CREDIT) {
        return frame->size == 0 && frame->tag <= WHERRY_GROUP_CHANNEL_MAX && frame->total <= INT32_MAX &&
               !frame->offset;
    }
    if (frame->kind == WH_FRAME_PIECE) {
        return frame->size > 0 && frame->tag <= WHERRY_GROUP_CHANNEL_MAX && frame->total <= INT32_MAX &&
               frame->offset <= frame->total && frame->size <= frame->total - frame->offset;
    }
    if (frame->total > WH_MESSAGE_MAX || frame->offset > frame->total || frame->size > frame->total - frame->offset) {
        return false;
    }
    return frame->size > 0 || frame->total == 0;
}

bool wh_frame_read(const void *block, size_t size, wh_frame *frame_p) {
    const uint8_t *header = block;
    if (size < WH_FRAME_HEADER || memcmp(header, magic, sizeof(magic)) != 0 || header[4] != VERSION ||
        header[5] > WH_FRAME_CREDIT || header[6] || header[7]) {
        return false;
    }
    wh_frame frame = {.kind = (wh_frame_kind)header[5],
                      .from = wh_load_be64(header + 8),
                      .to = wh_load_be64(header + 16),
                      .tag = wh_load_be64(header + 24),
                      .total = wh_load_be64(header + 32),
                      .offset = wh_load_be64(header + 40),
                      .bytes = header + WH_FRAME_HEADER,
                      .size = size - WH_FRAME_HEADER};
    if (!is_sound(&frame)) {
        return false;
    }
    *frame_p = frame;
    return true;
}

void wh_assembly_clear(wh_assembly *assembly) {
    wh_free(assembly->bytes);
    *assembly = (wh_assembly){0};
}

wh_assembly_result wh_assembly_add(wh_assembly *assembly, const wh_frame *frame) {
    if (frame->offset == 0) {
        wh_assembly_clear(assembly);
        assembly->open = true;
        assembly->tag = frame->tag;
        assembly->total = frame->total;
    } else if (!assembly->open || assembly->tag != frame->tag || assembly->total != frame->total ||
               assembly->got != frame->offset) {
        wh_assembly_clear(assembly);
        return WH_ASSEMBLY_STRAY;
    }
    uint64_t needed = assembly->got + frame->size;
    if (needed > assembly->capacity || !assembly->bytes) {
        uint64_t room = wh_max(wh_min(assembly->total, 2 * (uint64_t)assembly->capacity), wh_max(needed, 1));
        if (!WH_RESERVE(assembly->bytes, assembly->capacity, (size_t)room)) {
            wh_assembly_clear(assembly);
            return WH_ASSEMBLY_NO_MEMORY;
        }
    }
    memcpy(assembly->bytes + assembly->got, frame->bytes, frame->size);
    assembly->got = needed;
    return assembly->got == assembly->total ? WH_ASSEMBLY_WHOLE : WH_ASSEMBLY_MORE;
}
