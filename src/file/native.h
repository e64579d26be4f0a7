/**
 * @file native.h  Wherry's own format, docs/file-format.md: a header, the manifest, optional
 * digests, and the storages.
 *
 * Where a storage lies follows from the manifest alone, so there are no offsets in the file that
 * could be wrong.
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
    /** The checksum covers these bytes of the header, and the manifest. It follows them. */
    WH_NATIVE_SUMMED = 48,
    WH_NATIVE_PAGE = 4096, /**< Alignment of the first storage, and of large ones. */
    WH_NATIVE_LINE = 64,   /**< Alignment of storages smaller than WH_NATIVE_PAGE. */
};

/** Bits of the header's flags. */
enum { WH_NATIVE_DIGESTS = 1, WH_NATIVE_FLAGS = 1 };

/** The numbers of a header. */
typedef struct wh_native_header {
    uint32_t version;
    uint32_t flags;
    uint64_t manifest_bytes;
    uint64_t data_offset; /**< Of the first storage. */
    uint64_t file_bytes;
    uint64_t chunks; /**< Number of digests after the manifest: one per chunk, or 0. */
} wh_native_header;

/**
 * Adds a range per storage to a layout, and computes data_offset and file_bytes.
 * @param header  flags, manifest_bytes and chunks are set.
 * @return false if the sizes exceed 63 bits (*overflow_p), or if out of memory.
 */
bool wh_native_place(const wherry_prepared *prepared, wh_native_header *header, wh_layout *layout, bool *overflow_p);

/** Encodes a header, with the checksum over itself and the manifest. */
void wh_native_store(const wh_native_header *header, const void *manifest, uint8_t bytes[WH_NATIVE_HEADER]);

/** Decodes the numbers of a header. */
wh_native_header wh_native_load(const uint8_t bytes[WH_NATIVE_HEADER]);

/** The digest of a chunk of a mapped file. */
wh_digest wh_native_digest(const wherry_prepared *prepared, const wh_layout *layout, const uint8_t *base,
                           uint64_t chunk, wh_digester *digester);

/** wh_format.open. */
wherry_status wh_native_open(wherry_file *file, wherry_error *error);

#endif
