/**
 * @file file_harness.h  For the fuzzers of checkpoint files: opens bytes as a file and uses all of
 * its content.
 */
#ifndef WH_FUZZ_FILE_HARNESS_H
#define WH_FUZZ_FILE_HARNESS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/file.h>
#include <wherry/wherry.h>

#include "require.h"

/**
 * Opens a path. If that succeeds, its state must be printable, equal to itself, and comparable with
 * its digests.
 */
static inline void fuzz_open(const char *path, wherry_file_format format) {
    static FILE *nowhere;
    wherry_file_open_options options;
    wherry_error error;
    wherry_file *file;
    wherry_file_open_options_init(&options);
    options.format = format;
    error.message[0] = '\0';
    wherry_status status = wherry_file_open(path, &options, &file, &error);
    if (status != WHERRY_OK) {
        REQUIRE(error.status == status && error.message[0]);
        return;
    }
    const wherry_value *state = wherry_file_state(file);
    nowhere = nowhere ? nowhere : fopen("/dev/null", "w");
    REQUIRE(wherry_value_dump(state, nowhere, NULL) == WHERRY_OK);
    REQUIRE(wherry_value_compare(state, state, WHERRY_COMPARE_ALL, NULL) == WHERRY_OK);
    REQUIRE(wherry_file_check(file, NULL) == WHERRY_OK);
    status = wherry_file_verify(file, &error);
    REQUIRE(status == WHERRY_OK || status == WHERRY_UNSUPPORTED || status == WHERRY_CORRUPT);
    status = wherry_file_accepts(WHERRY_FILE_SAFETENSORS, state, &error);
    REQUIRE(status == WHERRY_OK || status == WHERRY_UNSUPPORTED);
    REQUIRE(wherry_file_accepts(WHERRY_FILE_SHARDED, state, &error) == status);
    REQUIRE(wherry_file_accepts(WHERRY_FILE_WHERRY, state, &error) == WHERRY_OK);
    wherry_file_close(file);
}

/** Opens bytes as a file in memory. */
static inline void fuzz_bytes(const uint8_t *data, size_t size, wherry_file_format format) {
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    fuzz_open(path, format);
    close(fd);
}

#endif
