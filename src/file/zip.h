/** @file zip.h  The parts of the zip format that npz files need: entries that are stored or deflated, 64-bit sizes. */
#ifndef WH_FILE_ZIP_H
#define WH_FILE_ZIP_H

#include "file/opened.h"

enum {
    WH_ZIP_LOCAL = 0x04034b50,
    WH_ZIP_CENTRAL = 0x02014b50,
    WH_ZIP_END = 0x06054b50,
    WH_ZIP_END64 = 0x06064b50,
    WH_ZIP_LOCATOR = 0x07064b50,
};

enum {
    WH_ZIP_LOCAL_BYTES = 30,
    WH_ZIP_CENTRAL_BYTES = 46,
    WH_ZIP_END_BYTES = 22,
    WH_ZIP_END64_BYTES = 56,
    WH_ZIP_LOCATOR_BYTES = 20,
    WH_ZIP_EXTRA64 = 1,        /**< The extra field with 64-bit sizes. */
    WH_ZIP_EXTRA_PAD = 0xD935, /**< One that only takes room. */
    WH_ZIP_NAME_MAX = 65535,
};

/** A file in a zip file. */
typedef struct wh_zip_entry {
    char *name; /**< Zero-terminated UTF-8. */
    uint32_t crc;
    uint64_t local;  /**< Where its local header begins. */
    uint64_t offset; /**< Where its bytes begin. */
    uint64_t packed; /**< How many they are there, */
    uint64_t size;   /**< and unpacked: the same number, unless it is deflated. */
    bool deflated;
} wh_zip_entry;

/** Starts as {0}. */
typedef struct wh_zip {
    wh_zip_entry *entries; /**< In the order of the directory. */
    size_t count;
    size_t capacity;
    uint64_t directory; /**< Where the directory begins. */
} wh_zip;

/** Reads the directory, and checks that every entry is stored or deflated, lies inside and apart from the others. Destroy it in any case. */
wherry_status wh_zip_read(const wherry_file *file, const wh_mapping *mapping, wh_zip *zip, wherry_error *error);

void wh_zip_destroy(wh_zip *zip);

/**
 * Unpacks a deflated entry, and compares its checksum.
 * @param bytes  has room for its size.
 * @return WHERRY_OK; WHERRY_CORRUPT where it is damaged, or of another size; WHERRY_TRUNCATED, WHERRY_SYSTEM; WHERRY_NO_MEMORY.
 */
wherry_status wh_zip_unpack(const wh_mapping *mapping, const wh_zip_entry *entry, uint8_t *bytes, wherry_error *error);

#endif
