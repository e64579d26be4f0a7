#include "group/hello_codec.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "base/utf8.h"

static const char magic[4] = {'W', 'H', 'R', 'Y'};

bool wh_hello_is_text(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7F || (byte == 0xC2 && i + 1 < size && (unsigned char)text[i + 1] < 0xA0)) {
            return false;
        }
    }
    return wh_utf8_valid(text, size);
}

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

/** What is left of a body. */
typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

/** The next bytes; NULL, and none are left, where there are not so many. */
static const uint8_t *take_bytes(cursor *body, size_t size) {
    const uint8_t *bytes = body->at;
    if (size > body->left) {
        body->left = 0;
        return NULL;
    }
    body->at += size;
    body->left -= size;
    return bytes;
}

static uint64_t load(const uint8_t *bytes, size_t width) {
    uint64_t number = 0;
    for (size_t i = 0; i < width; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/** A number; 0, and nothing is left, where there are too few bytes: what is read next then says so. */
static uint64_t take(cursor *body, size_t width) {
    const uint8_t *bytes = take_bytes(body, width);
    return bytes ? load(bytes, width) : 0;
}

uint32_t wh_hello_body_size(const uint8_t header[WH_HELLO_HEADER]) {
    return (uint32_t)load(header, 4);
}

/** Copies a text and ends it by a zero byte. */
static wherry_status take_text(cursor *body, const char *what, char text[WH_HELLO_TEXT_MAX + 1], wherry_error *error) {
    const uint8_t *head = take_bytes(body, 2);
    size_t size = head ? (size_t)load(head, 2) : 0;
    if (size > WH_HELLO_TEXT_MAX) {
        return wh_fail(error, WHERRY_LIMIT, "the other side's HELLO has %s of %zu bytes, and %d is the most", what,
                       size, WH_HELLO_TEXT_MAX);
    }
    const uint8_t *bytes = take_bytes(body, size);
    if (!head || !bytes) {
        return wh_fail(error, WHERRY_TRUNCATED, "the other side's HELLO ends before the end of %s", what);
    }
    if (!wh_hello_is_text((const char *)bytes, size)) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side's HELLO has %s that is not printable UTF-8", what);
    }
    memcpy(text, bytes, size);
    text[size] = '\0';
    return WHERRY_OK;
}

/** Reads what is the same in every version, and settles which one is spoken. */
static wherry_status take_version(cursor *body, wh_hello_fields *peer, bool *newer, wherry_error *error) {
    const uint8_t *first = take_bytes(body, sizeof(magic));
    if (!first || memcmp(first, magic, sizeof(magic)) != 0) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "the other side does not greet as Wherry does; look at the address and the port");
    }
    uint16_t version = (uint16_t)take(body, 2);
    uint16_t lowest = (uint16_t)take(body, 2);
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
static wherry_status take_numbers(cursor *body, wh_hello_fields *peer, wherry_error *error) {
    peer->flags = (uint16_t)take(body, 2);
    peer->method = (uint8_t)take(body, 1);
    peer->purpose = (uint8_t)take(body, 1);
    peer->rank = (uint32_t)take(body, 4);
    peer->size = (uint32_t)take(body, 4);
    peer->incarnation = take(body, 8);
    const uint8_t *nonce = take_bytes(body, sizeof(peer->nonce));
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
    cursor rest = {body, size};
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
