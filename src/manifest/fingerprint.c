#include "manifest/fingerprint.h"

#include "manifest/cbor_reader.h"

/** Where the rank stands: behind the head of the array, the magic, the version and the size of a chunk. */
static void find_rank(const void *manifest, size_t size, size_t *begin_p, size_t *end_p) {
    enum { BEFORE = 4 };
    wh_reader in = {.bytes = manifest, .size = size, .string_bytes = sizeof(WH_MANIFEST_MAGIC)};
    wh_item item;
    for (int i = 0; i < BEFORE; i++) {
        wh_read_item(&in, &item);
    }
    *begin_p = in.at;
    wh_read_item(&in, &item);
    *end_p = in.at;
}

bool wh_manifest_fingerprint(const wherry_prepared *prepared, const void *manifest, size_t size,
                             wh_digest *fingerprint) {
    wh_digester *digester = wh_digester_create();
    if (!digester) {
        return false;
    }
    size_t begin = 0;
    size_t end = 0;
    if (prepared->dtensor_count == 0) {
        find_rank(manifest, size, &begin, &end);
    }
    wh_digester_begin(digester);
    wh_digester_add(digester, manifest, begin);
    wh_digester_add(digester, (const char *)manifest + end, size - end);
    *fingerprint = wh_digester_end(digester);
    wh_digester_destroy(digester);
    return true;
}
