/* Hostile arrays of NumPy. */
#include "file_harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes(data, size, WHERRY_FILE_NPY);
    return 0;
}
