/**
 * @file point.h  Named points in the code at which a test can kill, stop or delay a process. Only
 * tests set the hook. Without a hook, a point costs one load.
 */
#ifndef WH_BASE_POINT_H
#define WH_BASE_POINT_H

#include <stddef.h>

/**
 * Called at every point with the name of the point, by the thread that reaches it. NULL if there is
 * no hook. Set it before any thread starts.
 */
extern void (*wh_point_hook)(const char *name);

static inline void wh_point(const char *name) {
    if (wh_point_hook) {
        wh_point_hook(name);
    }
}

#endif
