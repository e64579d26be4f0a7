/* Hostile archives of arrays. */
#include "file_harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes(data, size, WHERRY_FILE_NPZ);
    return 0;
}
