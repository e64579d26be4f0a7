/**
 * @file point.h  Named points in the code at which a test can kill, stop or delay a process. A
 * program never sets the hook; without it, a point costs one load.
 */
#ifndef WH_BASE_POINT_H
#define WH_BASE_POINT_H

#include <stddef.h>

/**
 * Called at every point, with its name, by the thread that reaches it. NULL: off. Set before any
 * thread starts.
 */
extern void (*wh_point_hook)(const char *name);

static inline void wh_point(const char *name) {
    if (wh_point_hook) {
        wh_point_hook(name);
    }
}

#endif
