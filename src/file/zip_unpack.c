/* Entries of zip files that are deflated, by zlib. */
#include <string.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fail.h"
#include "file/file_fail.h"
#include "file/zip.h"

enum { BLOCK = 64 << 10, OUTPUT_MAX = 1 << 30 };

static void *take(void *context, unsigned count, unsigned size) {
    (void)context;
    return wh_alloc_array(count, size);
}

static void give_back(void *context, void *memory) {
    (void)context;
    wh_free(memory);
}

typedef struct unpacking {
    const wh_mapping *mapping;
    const wh_zip_entry *entry;
    uint8_t *bytes;
    z_stream stream;
    uint64_t taken; /**< Bytes read from the file, */
    uint64_t made;  /**< and unpacked. */
    uint8_t block[BLOCK];
} unpacking;

/** One step. A byte more than the entry is to have is seen, too. @param result_p  zlib's. */
static wherry_status step(unpacking *u, int *result_p, wherry_error *error) {
    z_stream *stream = &u->stream;
    uint64_t left = u->entry->size - u->made;
    uint8_t beyond;
    if (stream->avail_in == 0 && u->taken < u->entry->packed) {
        size_t more = (size_t)wh_min(u->entry->packed - u->taken, BLOCK);
        wherry_status status = wh_mapping_read(u->mapping, u->entry->offset + u->taken, u->block, more, error);
        if (status != WHERRY_OK) {
            return status;
        }
        u->taken += more;
        stream->next_in = u->block;
        stream->avail_in = (unsigned)more;
    }
    stream->next_out = left > 0 ? u->bytes + u->made : &beyond;
    stream->avail_out = left > 0 ? (unsigned)wh_min(left, OUTPUT_MAX) : 1;
    unsigned room = stream->avail_out;
    *result_p = inflate(stream, Z_NO_FLUSH);
    u->made += room - stream->avail_out;
    return WHERRY_OK;
}

static wherry_status unpack(unpacking *u, wherry_error *error) {
    const wh_zip_entry *entry = u->entry;
    wh_spot spot = {u->mapping->path, entry->name, strlen(entry->name), entry->offset};
    wherry_status status = WHERRY_OK;
    int result = Z_OK;
    while (result == Z_OK && status == WHERRY_OK && u->made <= entry->size) {
        status = step(u, &result, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (result == Z_MEM_ERROR) {
        return wh_fail_memory(error, "a compressed array");
    }
    bool whole = result == Z_STREAM_END && u->made == entry->size && u->taken == entry->packed && !u->stream.avail_in;
    if (!whole || crc32_z(0, u->bytes, entry->size) != entry->crc) {
        return wh_file_fail(error, WHERRY_CORRUPT, spot,
                            whole
                                ? "it is unpacked to other bytes than were packed; get the file anew"
                                : "its %llu compressed bytes are damaged, or are not %llu unpacked; get the file anew",
                            (unsigned long long)entry->packed, (unsigned long long)entry->size);
    }
    return WHERRY_OK;
}

wherry_status wh_zip_unpack(const wh_mapping *mapping, const wh_zip_entry *entry, uint8_t *bytes, wherry_error *error) {
    unpacking *u = wh_alloc_zeroed(1, sizeof(*u));
    if (!u) {
        return wh_fail_memory(error, "a compressed array");
    }
    u->mapping = mapping;
    u->entry = entry;
    u->bytes = bytes;
    u->stream.zalloc = take;
    u->stream.zfree = give_back;
    bool ready = inflateInit2(&u->stream, -MAX_WBITS) == Z_OK; /* without the header that zlib's own files have */
    wherry_status status = ready ? unpack(u, error) : wh_fail_memory(error, "a compressed array");
    if (ready) {
        inflateEnd(&u->stream);
    }
    wh_free(u);
    return status;
}
