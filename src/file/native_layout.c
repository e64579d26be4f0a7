#include <zlib.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "file/native.h"
#include "range/space.h"
#include "state/prepare.h"

/** Rounds up. @return false where the result does not fit 63 bits. */
static bool align(uint64_t number, uint64_t alignment, uint64_t *result) {
    return wh_add(number, (alignment - number % alignment) % alignment, result);
}

bool wh_native_place(const wherry_prepared *prepared, wh_native_header *header, wh_layout *layout, bool *overflow_p) {
    uint64_t end = WH_NATIVE_HEADER;
    *overflow_p = true;
    if (!wh_add(end, header->manifest_bytes, &end) || !wh_add_product(header->chunks, WH_DIGEST_BYTES, &end) ||
        !align(end, WH_NATIVE_PAGE, &end)) {
        return false;
    }
    header->data_offset = end;
    for (size_t i = 0; i < prepared->storage_count; i++) {
        uint64_t nbytes = wherry_storage_nbytes(prepared->storages[i]);
        uint64_t begin;
        if (!align(end, nbytes >= WH_NATIVE_PAGE ? WH_NATIVE_PAGE : WH_NATIVE_LINE, &begin) ||
            !wh_add(begin, nbytes, &end)) {
            return false;
        }
        if (!wh_layout_add_place(layout, 0, begin, nbytes)) {
            *overflow_p = false;
            return false;
        }
    }
    header->file_bytes = end;
    *overflow_p = false;
    return true;
}

/** The checksum of a header and its manifest. */
static uint32_t sum(const uint8_t bytes[WH_NATIVE_HEADER], const void *manifest, uint64_t size) {
    return (uint32_t)crc32_z(crc32_z(0, bytes, WH_NATIVE_SUMMED), manifest, size);
}

void wh_native_store(const wh_native_header *header, const void *manifest, uint8_t bytes[WH_NATIVE_HEADER]) {
    memset(bytes, 0, WH_NATIVE_HEADER);
    memcpy(bytes, WH_NATIVE_MAGIC, WH_NATIVE_MAGIC_BYTES);
    wh_store_be32(bytes + 8, header->version);
    wh_store_be32(bytes + 12, header->flags);
    wh_store_be64(bytes + 16, header->manifest_bytes);
    wh_store_be64(bytes + 24, header->data_offset);
    wh_store_be64(bytes + 32, header->file_bytes);
    wh_store_be64(bytes + 40, header->chunks);
    wh_store_be32(bytes + WH_NATIVE_SUMMED, sum(bytes, manifest, header->manifest_bytes));
}

bool wh_native_intact(const uint8_t bytes[WH_NATIVE_HEADER], const void *manifest, uint64_t size) {
    bool same = wh_load_be32(bytes + WH_NATIVE_SUMMED) == sum(bytes, manifest, size);
    for (int i = WH_NATIVE_SUMMED + 4; i < WH_NATIVE_HEADER; i++) {
        same = same && bytes[i] == 0;
    }
    return same;
}

void wh_native_load(const uint8_t bytes[WH_NATIVE_HEADER], wh_native_header *header) {
    *header = (wh_native_header){
        .version = wh_load_be32(bytes + 8),
        .flags = wh_load_be32(bytes + 12),
        .manifest_bytes = wh_load_be64(bytes + 16),
        .data_offset = wh_load_be64(bytes + 24),
        .file_bytes = wh_load_be64(bytes + 32),
        .chunks = wh_load_be64(bytes + 40),
    };
}

typedef struct digesting {
    const wh_layout *layout;
    const uint8_t *base;
    wh_digester *digester;
} digesting;

static int add_piece(void *context, const wh_piece *piece) {
    const digesting *d = context;
    const uint8_t *at = d->base + d->layout->places[piece->storage].offset + piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        wh_digester_add(d->digester, at + i * piece->stride, piece->length);
    }
    return 0;
}

wh_digest wh_native_digest(const wherry_prepared *prepared, const wh_layout *layout, const uint8_t *base,
                           uint64_t chunk, wh_digester *digester) {
    digesting d = {layout, base, digester};
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    wh_digester_begin(digester);
    wh_space_visit(&prepared->space, begin, begin + length, add_piece, &d);
    return wh_digester_end(digester);
}
