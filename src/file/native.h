/**
 * @file native.h  Wherry's own format, docs/file-format.md: a header, the manifest, digests where there are any, and the storages.
 *
 * Where a storage lies follows from the manifest alone. So there are no offsets in the file that could be wrong.
 */
#ifndef WH_FILE_NATIVE_H
#define WH_FILE_NATIVE_H

#include <wherry/expert.h>

#include "file/layout.h"
#include "file/opened.h"
#include "range/digest.h"

#define WH_NATIVE_MAGIC "\x89WHF\r\n\x1a\n"
#define WH_NATIVE_VERSION 1

enum {
    WH_NATIVE_MAGIC_BYTES = 8,
    WH_NATIVE_HEADER = 64,
    WH_NATIVE_SUMMED =
        48, /**< Bytes of the header that its checksum covers, with the manifest; the checksum follows, then zeros. */
    WH_NATIVE_PAGE = 4096, /**< Alignment of the first storage, and of each of at least so many bytes. */
    WH_NATIVE_LINE = 64,   /**< Alignment of smaller ones. */
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
    uint64_t chunks; /**< Digests that lie behind the manifest: one a chunk, or 0. */
} wh_native_header;

/**
 * Adds a place for each storage to a layout, and fills in what follows from the manifest: data_offset and file_bytes.
 * @param header  its flags, manifest_bytes and chunks are given.
 * @return false where the sizes do not fit 63 bits, or there is no memory: *overflow_p tells.
 */
bool wh_native_place(const wherry_prepared *prepared, wh_native_header *header, wh_layout *layout, bool *overflow_p);

/** Writes a header, its checksum over itself and the manifest included. */
void wh_native_store(const wh_native_header *header, const void *manifest, uint8_t bytes[WH_NATIVE_HEADER]);

/** Reads the numbers of a header. */
void wh_native_load(const uint8_t bytes[WH_NATIVE_HEADER], wh_native_header *header);

/** Whether a header and its manifest are what was written. */
bool wh_native_intact(const uint8_t bytes[WH_NATIVE_HEADER], const void *manifest, uint64_t size);

/** The digest of a chunk, over its bytes in the places of a mapped file. */
wh_digest wh_native_digest(const wherry_prepared *prepared, const wh_layout *layout, const uint8_t *base,
                           uint64_t chunk, wh_digester *digester);

/** wh_format.open. */
wherry_status wh_native_open(wherry_file *file, wherry_error *error);

#endif
