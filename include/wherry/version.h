/** @file wherry/version.h  Which version this is. */
#ifndef WHERRY_VERSION_H
#define WHERRY_VERSION_H

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WHERRY_VERSION_MAJOR 0        /**< Other numbers break the interface. */
#define WHERRY_VERSION_MINOR 1        /**< Higher numbers add to it; before 1.0 they may break it. */
#define WHERRY_VERSION_PATCH 0        /**< Higher numbers repair. */
#define WHERRY_VERSION_STRING "0.1.0" /**< The three, of these headers; wherry_version tells that of the library. */

/**
 * The version of the library that is loaded, "MAJOR.MINOR.PATCH"; compare with WHERRY_VERSION_STRING, the version of the
 * headers.
 * @return a string that lives for ever. Any thread. Since 0.1.
 */
WHERRY_API const char *wherry_version(void);

#ifdef __cplusplus
}
#endif
#endif
