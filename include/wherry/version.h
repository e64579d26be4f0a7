/** @file wherry/version.h  Which version this is. */
#ifndef WHERRY_VERSION_H
#define WHERRY_VERSION_H

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WHERRY_VERSION_MAJOR 0
#define WHERRY_VERSION_MINOR 1
#define WHERRY_VERSION_PATCH 0
#define WHERRY_VERSION_STRING "0.1.0"

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
