/** @file hello_codec.h  The fields of a HELLO to bytes and back; hello.h has the form of the frames. */
#ifndef WH_GROUP_HELLO_CODEC_H
#define WH_GROUP_HELLO_CODEC_H

#include "group/hello.h"

typedef enum wh_hello_frame {
    WH_HELLO_FRAME_HELLO = 1,
    WH_HELLO_FRAME_PROOF = 2,
    WH_HELLO_FRAME_ACCEPT = 3,
    WH_HELLO_FRAME_REFUSE = 4,
} wh_hello_frame;

enum {
    WH_HELLO_HEADER = 5,
    /** The longest HELLO that this version writes: its header, its fixed fields, and two texts. */
    WH_HELLO_OWN_MAX = WH_HELLO_HEADER + 28 + WH_HELLO_NONCE + 2 * (2 + WH_HELLO_TEXT_MAX),
};

/** Writes the header of a frame whose body has so many bytes. */
void wh_hello_header(uint8_t header[WH_HELLO_HEADER], wh_hello_frame type, size_t size);

/** How many bytes the body of a frame has, as its header says. */
uint32_t wh_hello_body_size(const uint8_t header[WH_HELLO_HEADER]);

/** Writes a HELLO frame. @return its size. */
size_t wh_hello_encode(const wh_hello_fields *own, uint8_t frame[WH_HELLO_OWN_MAX]);

/**
 * Reads the body of a HELLO frame; each field is within what it may be, whether or not it fits this side.
 * @return WHERRY_BAD_VERSION, WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_TRAILING_BYTES, WHERRY_LIMIT.
 */
wherry_status wh_hello_decode(const uint8_t *body, size_t size, wh_hello_fields *peer_p, wherry_error *error);

#endif
