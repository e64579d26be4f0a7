/**
 * @file shared.h  Marks private functions that the project's other libraries use.
 *
 * libwherry exports them under a symbol version that is its exact own (wherry.map), so the loader
 * refuses a companion library that was built for another version. They are not public: no public
 * header declares them.
 */
#ifndef WH_BASE_SHARED_H
#define WH_BASE_SHARED_H

#define WH_SHARED __attribute__((visibility("default")))

#endif
