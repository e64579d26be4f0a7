#include "group/hello_codec.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"

static const char magic[4] = {'W', 'H', 'R', 'Y'};

/* ---- writing: each function returns where the next field goes ---- */

static uint8_t *put(uint8_t *at, size_t width, uint64_t number) {
    for (size_t i = width; i-- > 0;) {
        at[i] = (uint8_t)number;
        number >>= 8;
    }
    return at + width;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_text(uint8_t *at, const char *text) {
    size_t size = strlen(text);
    return put_bytes(put(at, 2, size), text, size);
}

void wh_hello_header(uint8_t header[WH_HELLO_HEADER], wh_hello_frame type, size_t size) {
    put(put(header, 4, size), 1, type);
}

size_t wh_hello_encode(const wh_hello_fields *own, uint8_t frame[WH_HELLO_OWN_MAX]) {
    uint8_t *at = put_bytes(frame + WH_HELLO_HEADER, magic, sizeof(magic));
    at = put(at, 2, WH_HELLO_VERSION);
    at = put(at, 2, WH_HELLO_VERSION_LOWEST);
    at = put(at, 2, own->flags);
    at = put(at, 1, own->method);
    at = put(at, 1, own->purpose);
    at = put(at, 4, own->rank);
    at = put(at, 4, own->size);
    at = put(at, 8, own->incarnation);
    at = put_bytes(at, own->nonce, sizeof(own->nonce));
    at = put_text(at, own->job);
    at = put_text(at, own->address);
    size_t size = (size_t)(at - frame);
    assert(size <= WH_HELLO_OWN_MAX);
    wh_hello_header(frame, WH_HELLO_FRAME_HELLO, size - WH_HELLO_HEADER);
    return size;
}

/* ---- reading ---- */

uint32_t wh_hello_body_size(const uint8_t header[WH_HELLO_HEADER]) {
    return wh_load_be32(header);
}

/** Copies a text and ends it by a zero byte. */
static wherry_status take_text(wh_cursor *body, const char *what, char text[WH_HELLO_TEXT_MAX + 1],
                               wherry_error *error) {
    size_t size = (size_t)wh_cursor_number(body, 2);
    if (size > WH_HELLO_TEXT_MAX) {
        return wh_fail(error, WHERRY_LIMIT, "the other side's HELLO has %s of %zu bytes, and %d is the most", what,
                       size, WH_HELLO_TEXT_MAX);
    }
    const uint8_t *bytes = wh_cursor_bytes(body, size);
    if (!bytes) {
        return wh_fail(error, WHERRY_TRUNCATED, "the other side's HELLO ends before the end of %s", what);
    }
    if (!wh_utf8_printable((const char *)bytes, size)) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side's HELLO has %s that is not printable UTF-8", what);
    }
    memcpy(text, bytes, size);
    text[size] = '\0';
    return WHERRY_OK;
}

/** Reads what is the same in every version, and settles which one is spoken. */
static wherry_status take_version(wh_cursor *body, wh_hello_fields *peer, bool *newer, wherry_error *error) {
    const uint8_t *first = wh_cursor_bytes(body, sizeof(magic));
    if (!first || memcmp(first, magic, sizeof(magic)) != 0) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the other side does not greet as Wherry does; look at the address and the port");
    }
    uint16_t version = (uint16_t)wh_cursor_number(body, 2);
    uint16_t lowest = (uint16_t)wh_cursor_number(body, 2);
    if (lowest == 0 || lowest > version) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side's HELLO has versions %u to %u, which cannot be", lowest,
                       version);
    }
    if (lowest > WH_HELLO_VERSION || version < WH_HELLO_VERSION_LOWEST) {
        return wh_fail(error, WHERRY_BAD_VERSION,
                       "the other side speaks versions %u to %u of the protocol, and this one %d to %d; use the same "
                       "version of Wherry on both sides",
                       lowest, version, WH_HELLO_VERSION_LOWEST, WH_HELLO_VERSION);
    }
    *newer = version > WH_HELLO_VERSION;
    peer->version = *newer ? WH_HELLO_VERSION : version;
    return WHERRY_OK;
}

/** Reads the fields between the version and the texts. */
static wherry_status take_numbers(wh_cursor *body, wh_hello_fields *peer, wherry_error *error) {
    peer->flags = (uint16_t)wh_cursor_number(body, 2);
    peer->method = (uint8_t)wh_cursor_number(body, 1);
    peer->purpose = (uint8_t)wh_cursor_number(body, 1);
    peer->rank = (uint32_t)wh_cursor_number(body, 4);
    peer->size = (uint32_t)wh_cursor_number(body, 4);
    peer->incarnation = wh_cursor_number(body, 8);
    const uint8_t *nonce = wh_cursor_bytes(body, sizeof(peer->nonce));
    if (!nonce) {
        return wh_fail(error, WHERRY_TRUNCATED, "the other side's HELLO ends before the end of its nonce");
    }
    memcpy(peer->nonce, nonce, sizeof(peer->nonce));
    if (peer->size > INT32_MAX || peer->rank >= peer->size) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the other side's HELLO says rank %" PRIu32 " of %" PRIu32 ", which cannot be", peer->rank,
                       peer->size);
    }
    if (peer->purpose > WH_HELLO_DATA) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the other side's HELLO has purpose %u, which this version does not know", peer->purpose);
    }
    return WHERRY_OK;
}

wherry_status wh_hello_decode(const uint8_t *body, size_t size, wh_hello_fields *peer_p, wherry_error *error) {
    wh_cursor rest = wh_cursor_over(body, size);
    wh_hello_fields peer = {0};
    bool newer = false;
    wherry_status status = take_version(&rest, &peer, &newer, error);
    if (status == WHERRY_OK) {
        status = take_numbers(&rest, &peer, error);
    }
    if (status == WHERRY_OK) {
        status = take_text(&rest, "a job id", peer.job, error);
    }
    if (status == WHERRY_OK) {
        status = take_text(&rest, "an address", peer.address, error);
    }
    if (status == WHERRY_OK && rest.left > 0 && !newer) {
        status = wh_fail(error, WHERRY_TRAILING_BYTES, "the other side's HELLO has %zu bytes too many", rest.left);
    }
    if (status == WHERRY_OK) {
        *peer_p = peer;
    }
    return status;
}
