/**
 * @file native.h  Wherry's own file format: a header, the manifest, optional digests, and the
 * storages. docs/file-format.md specifies it.
 *
 * The position of each storage is computed from the manifest and the number of digests. The file
 * contains only the offset of the first storage, which the reader compares with the computed one.
 */
#ifndef WH_FILE_NATIVE_H
#define WH_FILE_NATIVE_H

#include <wherry/expert.h>

#include "file/open.h"
#include "range/digest.h"

#define WH_NATIVE_MAGIC "\x89WHF\r\n\x1a\n"
#define WH_NATIVE_VERSION 1

enum {
    WH_NATIVE_MAGIC_BYTES = 8,
    WH_NATIVE_HEADER = 64,
    /**
     * The checksum covers this many bytes at the start of the header, and the manifest. In the
     * header, the checksum follows these bytes.
     */
    WH_NATIVE_SUMMED = 48,
    /** Alignment of the first storage, and of every storage of at least this many bytes. */
    WH_NATIVE_PAGE = 4096,
    WH_NATIVE_LINE = 64, /**< Alignment of all other storages. */
};

/** Bits of the header's flags. WH_NATIVE_FLAGS has all known bits. */
enum { WH_NATIVE_DIGESTS = 1, WH_NATIVE_FLAGS = 1 };

/** The numbers of a header. */
typedef struct wh_native_header {
    uint32_t version;
    uint32_t flags;
    uint64_t manifest_bytes;
    uint64_t data_offset; /**< Offset of the first storage. */
    uint64_t file_bytes;
    uint64_t chunks; /**< Number of digests after the manifest: the number of chunks, or 0. */
} wh_native_header;

/**
 * Adds a range per storage to a layout, and computes data_offset and file_bytes.
 * @param header  its fields flags, manifest_bytes and chunks must be set.
 * @return false if the sizes exceed 63 bits (*overflow_p becomes true), or if out of memory.
 */
bool wh_native_place(const wherry_prepared *prepared, wh_native_header *header, wh_layout *layout, bool *overflow_p);

/** Encodes a header, and adds the checksum over the header and the manifest. */
void wh_native_store(const wh_native_header *header, const void *manifest, uint8_t bytes[WH_NATIVE_HEADER]);

/** Decodes the numbers of a header. Does not check them. */
wh_native_header wh_native_load(const uint8_t bytes[WH_NATIVE_HEADER]);

/** Returns the digest of a chunk of a mapped file. */
wherry_digest wh_native_digest(const wherry_prepared *prepared, const wh_layout *layout, const uint8_t *base,
                               uint64_t chunk, wh_digester *digester);

/** Implements wh_format.open. */
wherry_status wh_native_open(wherry_file *file, wherry_error *error);

#endif
