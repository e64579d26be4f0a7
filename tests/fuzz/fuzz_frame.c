/*
 * Arbitrary blocks are parsed as frames and assembled into messages. The input is a sequence of
 * blocks, each preceded by its size (two bytes, big-endian). A complete message has as many bytes
 * as its header says. The assembly never uses more memory than twice the bytes received.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/callback/callback_internal.h"
#include "group/group.h"
#include "require.h"

/** Writing a decoded header gives the same bytes. */
static void check_header(const wh_callback_frame *frame, const uint8_t *block) {
    uint8_t header[WH_CALLBACK_HEADER_BYTES];
    wh_callback_frame_write(frame, header);
    REQUIRE(memcmp(header, block, sizeof(header)) == 0);
    /* The other kinds of frames are about blocks. */
    uint64_t most = frame->kind == WH_CALLBACK_DATA ? WH_MESSAGE_MAX : INT32_MAX;
    REQUIRE(frame->from > 0 && frame->total <= most && frame->offset + frame->size <= frame->total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wh_assembly assembly = {0};
    size_t at = 0;
    size_t seen = 0;
    while (size - at >= 2) {
        size_t length = (size_t)data[at] << 8 | data[at + 1];
        at += 2;
        length = length < size - at ? length : size - at;
        wh_callback_frame frame;
        if (wh_callback_frame_read(data + at, length, &frame)) {
            check_header(&frame, data + at);
            seen += frame.size;
            if (frame.kind == WH_CALLBACK_DATA && wh_assembly_add(&assembly, &frame) == WH_ASSEMBLY_WHOLE) {
                REQUIRE(assembly.got == frame.total);
                wh_assembly_clear(&assembly);
            }
            REQUIRE(assembly.got <= seen && assembly.capacity <= 2 * seen + 1);
        }
        at += length;
    }
    wh_assembly_clear(&assembly);
    return 0;
}
