/**
 * @file point.h  Named points of the conversation, where a test can make a process die, stop or wait. A program never sets the hook; then a point costs a
 * load.
 */
#ifndef WH_BASE_POINT_H
#define WH_BASE_POINT_H

#include <stddef.h>

/** Called at every point with its name, by whichever thread gets there; NULL: nobody is. Set before any thread is started. */
extern void (*wh_point_hook)(const char *name);

static inline void wh_point(const char *name) {
    if (wh_point_hook) {
        wh_point_hook(name);
    }
}

#endif
