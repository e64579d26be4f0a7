/* The wire format of the ucx lane. */
#include "lane/ucx/ucx_wire.h"

#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"

enum { TOKEN_AT = 8, CHUNK_AT = 24, BYTES_AT = 32, OFFSET_AT = 40, DIGEST_AT = 48 };
enum { REQUEST_HEAD = 1 + WH_UCX_TOKEN_BYTES + 2, WORKERS_AT = 1 + WH_UCX_TOKEN_BYTES };
enum { WORKER_HEAD = 4 + WH_UCX_ID_BYTES + 2 };

/* ---- headers ---- */

void wh_ucx_header_write(uint8_t bytes[WH_UCX_HEADER_BYTES], const uint8_t token[WH_UCX_TOKEN_BYTES],
                         const wh_ucx_header *header) {
    memset(bytes, 0, WH_UCX_HEADER_BYTES);
    bytes[0] = (uint8_t)header->kind;
    bytes[1] = header->flags;
    memcpy(bytes + TOKEN_AT, token, WH_UCX_TOKEN_BYTES);
    wh_store_be64(bytes + CHUNK_AT, header->chunk);
    wh_store_be64(bytes + BYTES_AT, header->bytes);
    wh_store_be64(bytes + OFFSET_AT, header->offset);
    memcpy(bytes + DIGEST_AT, header->digest.bytes, WHERRY_DIGEST_BYTES);
}

const char *wh_ucx_header_read(const void *bytes, size_t size, const uint8_t token[WH_UCX_TOKEN_BYTES],
                               wh_ucx_header *header_p) {
    static const uint8_t zeros[TOKEN_AT - 2];
    const uint8_t *at = bytes;
    if (size != WH_UCX_HEADER_BYTES || memcmp(at + TOKEN_AT, token, WH_UCX_TOKEN_BYTES) != 0) {
        return "";
    }
    if (at[0] < WH_UCX_HELLO || at[0] > WH_UCX_ENDED) {
        return "a message of an unknown kind";
    }
    if (at[1] & ~WH_UCX_DIGEST || memcmp(at + 2, zeros, sizeof(zeros)) != 0) {
        return "a header with unknown flags or nonzero padding";
    }
    *header_p = (wh_ucx_header){
        .kind = (wh_ucx_kind)at[0],
        .flags = at[1],
        .chunk = wh_load_be64(at + CHUNK_AT),
        .bytes = wh_load_be64(at + BYTES_AT),
        .offset = wh_load_be64(at + OFFSET_AT),
    };
    memcpy(header_p->digest.bytes, at + DIGEST_AT, WHERRY_DIGEST_BYTES);
    return NULL;
}

const char *wh_ucx_piece_check(const wh_ucx_header *header, uint64_t length, uint64_t come, uint64_t bytes,
                               bool verify) {
    if (header->bytes != bytes) {
        return "a piece with a wrong chunk length";
    }
    if (header->offset != come || come >= bytes) {
        return "a piece out of order";
    }
    if (length == 0 || length > WH_UCX_PIECE_MAX || length > bytes - come) {
        return "a piece that is empty or too long";
    }
    if (verify && length == bytes - come && !(header->flags & WH_UCX_DIGEST)) {
        return "a chunk without a digest";
    }
    return NULL;
}

/* ---- offers ---- */

void wh_ucx_offer_write(const wh_ucx_offer *offer, wh_string *bytes) {
    wh_append_number(bytes, WH_UCX_VERSION, 1);
    wh_append_number(bytes, offer->workers, 1);
    wh_append_number(bytes, offer->long_segments, 1);
}

static wherry_status fail_version(int32_t peer, wherry_error *error) {
    return wh_fail(error, WHERRY_BAD_VERSION, "rank %d has a different version of the ucx lane", (int)peer);
}

wherry_status wh_ucx_offer_read(const void *bytes, size_t size, int32_t peer, wh_ucx_offer *offer_p,
                                wherry_error *error) {
    const uint8_t *at = bytes;
    if (size >= 1 && at[0] != WH_UCX_VERSION) {
        return fail_version(peer, error);
    }
    if (size != WH_UCX_OFFER_BYTES || at[1] < 1 || at[1] > WH_UCX_WORKERS_MAX || at[2] > 1) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed ucx offer", (int)peer);
    }
    *offer_p = (wh_ucx_offer){.workers = at[1], .long_segments = at[2]};
    return WHERRY_OK;
}

/* ---- requests ---- */

/** Computes the digest of a request. @return false if out of memory. */
static bool compute_digest(const void *bytes, size_t size, wherry_digest *digest_p) {
    wh_digester *digester = wh_digester_create();
    if (digester) {
        *digest_p = wh_digest_of(digester, &(struct iovec){(void *)bytes, size}, 1);
        wh_digester_destroy(digester);
    }
    return digester != NULL;
}

uint32_t wh_ucx_request_write(const wh_ucx_request *request, wh_string *bytes) {
    size_t size = REQUEST_HEAD + WHERRY_DIGEST_BYTES;
    size_t begin = bytes->size;
    uint32_t workers = 0;
    while (workers < request->workers && size + WORKER_HEAD + request->addresses[workers].size <= WH_LANE_OFFER_MAX) {
        size += WORKER_HEAD + request->addresses[workers++].size;
    }
    wh_append_number(bytes, WH_UCX_VERSION, 1);
    wh_string_append(bytes, (const char *)request->token, WH_UCX_TOKEN_BYTES);
    wh_append_number(bytes, workers, 1);
    wh_append_number(bytes, request->long_segments, 1);
    for (uint32_t i = 0; i < workers; i++) {
        wh_string_append(bytes, (const char *)request->addresses[i].id, WH_UCX_ID_BYTES);
        wh_append_sized(bytes, request->addresses[i].bytes, request->addresses[i].size, 2);
    }
    wherry_digest digest = {0};
    bytes->failed = bytes->failed || !compute_digest(bytes->bytes + begin, bytes->size - begin, &digest);
    wh_string_append(bytes, (const char *)digest.bytes, WHERRY_DIGEST_BYTES);
    return bytes->failed ? 0 : workers;
}

/** Reads the fields between the token and the digest. */
static bool read_workers(wh_cursor *cursor, wh_ucx_request *request) {
    request->workers = (uint32_t)wh_cursor_number(cursor, 1);
    uint64_t long_segments = wh_cursor_number(cursor, 1);
    request->long_segments = long_segments;
    bool good = request->workers >= 1 && request->workers <= WH_UCX_WORKERS_MAX && long_segments <= 1;
    for (uint32_t i = 0; good && i < request->workers; i++) {
        wh_ucx_address *address = request->addresses + i;
        address->id = wh_cursor_bytes(cursor, WH_UCX_ID_BYTES);
        wh_bytes bytes = wh_cursor_sized(cursor, 2);
        address->bytes = bytes.bytes;
        address->size = bytes.size;
        good = address->bytes && address->size;
    }
    return good && wh_cursor_ended(cursor);
}

wherry_status wh_ucx_request_read(const void *bytes, size_t size, int32_t peer, wh_ucx_request *request_p,
                                  wherry_error *error) {
    const uint8_t *at = bytes;
    if (size > REQUEST_HEAD && at[0] != WH_UCX_VERSION) {
        return fail_version(peer, error);
    }
    if (size >= REQUEST_HEAD + WHERRY_DIGEST_BYTES && size <= WH_LANE_OFFER_MAX) {
        size_t summed = size - WHERRY_DIGEST_BYTES;
        wh_cursor cursor = wh_cursor_over(at + WORKERS_AT, summed - WORKERS_AT);
        wh_ucx_request request = {0};
        wherry_digest digest;
        WH_TRY_ALLOC(compute_digest(at, summed, &digest), error, "a digest");
        memcpy(request.token, at + 1, WH_UCX_TOKEN_BYTES);
        if (memcmp(digest.bytes, at + summed, WHERRY_DIGEST_BYTES) == 0 && read_workers(&cursor, &request)) {
            *request_p = request;
            return WHERRY_OK;
        }
    }
    return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed ucx request", (int)peer);
}
