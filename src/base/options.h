/** @file options.h  Reading option structs, which start with their own size. */
#ifndef WH_BASE_OPTIONS_H
#define WH_BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/**
 * Copies a caller's options over the defaults. A caller that was built against an older header has
 * a shorter struct: the fields that it lacks keep their defaults.
 * @param chosen   initially the defaults; `size` bytes.
 * @param options  a struct that starts with uint32_t struct_size. If NULL, the defaults stay.
 * @return false if struct_size is not set, or is larger than the struct of this version.
 */
static inline bool wh_options_take(void *chosen, uint32_t size, const void *options) {
    if (!options) {
        return true;
    }
    uint32_t given;
    memcpy(&given, options, sizeof(given));
    if (given < sizeof(given) || given > size) {
        return false;
    }
    memcpy(chosen, options, given);
    return true;
}

#endif
