/**
 * @file native.h  Wherry's own file format: a header, the manifest, optional digests, and the
 * storages. docs/file-format.md specifies it.
 *
 * The position of each storage is computed from the manifest and the number of digests. The file
 * contains only the offset of the first storage, which the reader compares with the computed one.
 */
#ifndef WH_FILE_NATIVE_H
#define WH_FILE_NATIVE_H

#include "file/open.h"

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

#endif
