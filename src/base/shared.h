/**
 * @file shared.h  What marks a private function that the project's other libraries use.
 *
 * libwherry exports these under a version that is its own exact one (wherry.map), so that a library beside it that was built for another is
 * refused when it is loaded. They are no part of the interface: no public header declares them.
 */
#ifndef WH_BASE_SHARED_H
#define WH_BASE_SHARED_H

#define WH_SHARED __attribute__((visibility("default")))

#endif
