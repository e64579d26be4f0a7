/** @file options.h  Reading option structs that begin with their size. */
#ifndef WH_BASE_OPTIONS_H
#define WH_BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/**
 * Lays a caller's options over the defaults. A caller built against an older header has a shorter struct: what it lacks stays
 * as it is.
 * @param chosen   the defaults, `size` bytes.
 * @param options  begins with a uint32_t struct_size; NULL changes nothing.
 * @return false where struct_size was not filled, or is that of a newer version.
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
