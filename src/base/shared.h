/**
 * @file shared.h  Marks private functions that the project's other libraries use.
 *
 * libwherry exports them with a symbol version that contains its exact version number (wherry.map).
 * So the loader refuses a companion library, such as libwherry-file, that was built for another
 * version. The functions are not public: no public header declares them.
 */
#ifndef WH_BASE_SHARED_H
#define WH_BASE_SHARED_H

#define WH_SHARED __attribute__((visibility("default")))

#endif
