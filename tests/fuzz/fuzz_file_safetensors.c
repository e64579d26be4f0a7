/* Hostile safetensors files. */
#include "file_harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes(data, size, WHERRY_FILE_SAFETENSORS);
    return 0;
}
