/*
 * Hostile files of Wherry's own format. An input is a header, a manifest and digests. The checksum
 * is corrected, and zeros are appended up to the size in the header; otherwise nearly every input
 * would fail at the first check.
 */
#include <string.h>
#include <zlib.h>

#include "base/bytes.h"
#include "file/native.h"
#include "file_harness.h"

enum { FILE_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t given) {
    uint64_t claimed = given >= WH_NATIVE_HEADER ? wh_load_be64(data + 32) : 0;
    size_t size = claimed > given && claimed <= FILE_MAX ? (size_t)claimed : given;
    uint8_t *copy = calloc(size ? size : 1, 1);
    REQUIRE(copy);
    if (given > 0) {
        memcpy(copy, data, given);
    }
    if (size >= WH_NATIVE_HEADER) {
        uint64_t manifest = wh_load_be64(copy + 16);
        manifest = manifest <= size - WH_NATIVE_HEADER ? manifest : 0;
        memcpy(copy, WH_NATIVE_MAGIC, WH_NATIVE_MAGIC_BYTES);
        wh_store_be64(copy + 32, size);
        memset(copy + WH_NATIVE_SUMMED, 0, WH_NATIVE_HEADER - WH_NATIVE_SUMMED);
        uint32_t sum = (uint32_t)crc32_z(crc32_z(0, copy, WH_NATIVE_SUMMED), copy + WH_NATIVE_HEADER, manifest);
        wh_store_be32(copy + WH_NATIVE_SUMMED, sum);
    }
    fuzz_bytes(copy, size, WHERRY_FILE_WHERRY);
    free(copy);
    return 0;
}
