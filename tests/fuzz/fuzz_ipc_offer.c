/*
 * Arbitrary bytes as an offer of the cuda_ipc lane: it is refused, or encoding it again gives the
 * same bytes.
 */
#include <string.h>

#include "base/alloc.h"
#include "lane/cuda_ipc/cuda_ipc.h"
#include "require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wh_ipc_offer offer;
    wh_string again = {0};
    wherry_error error;
    if (wh_ipc_parse_offer(data, size, &offer, &error) == WHERRY_OK) {
        wh_ipc_append_offer(&again, &offer);
        REQUIRE(!again.failed && again.size == size && memcmp(again.bytes, data, size) == 0);
        wh_free(again.bytes);
        wh_free(offer.allocations);
    }
    return 0;
}
