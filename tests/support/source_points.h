/**
 * @file source_points.h  The named points of a receive from several sources, for tests in which a
 * source is lost at each of them.
 */
#ifndef WH_TESTS_SOURCE_POINTS_H
#define WH_TESTS_SOURCE_POINTS_H

#include <stdbool.h>

typedef struct source_point {
    const char *name;
    bool at_source; /**< True if the victim passes the point, false if the receiver passes it. */
    int count;      /**< The pass at which it happens, counted from 1. */
    /** The cma lane does not pass the point, because the receiver reads the memory. */
    bool no_cma;
    bool planned; /**< Only a source that is used passes the point. */
    bool late;    /**< The receive may have succeeded before the point. */
} source_point;

static const source_point source_points[] = {
    {.name = "receiver asked", .count = 1},
    {.name = "receiver asked", .count = 3},
    {.name = "source was asked", .at_source = true, .count = 1},
    {.name = "source offered", .at_source = true, .count = 1},
    {.name = "receiver has the offer", .count = 1},
    {.name = "receiver planned", .count = 1},
    {.name = "receiver probed", .count = 1},
    {.name = "receiver sent the plan", .count = 1},
    {.name = "source has the plan", .at_source = true, .count = 1, .planned = true},
    {.name = "source gathers a chunk", .at_source = true, .count = 1, .no_cma = true, .planned = true},
    {.name = "source gathers a chunk", .at_source = true, .count = 3, .no_cma = true, .planned = true},
    {.name = "receiver opened a chunk", .count = 1},
    {.name = "receiver opened a chunk", .count = 3},
    {.name = "receiver closed a chunk", .count = 1},
    {.name = "receiver closed a chunk", .count = 3},
    {.name = "receiver asks to confirm", .count = 1},
    {.name = "receiver has all bytes", .count = 1, .late = true},
    {.name = "source was told done", .at_source = true, .count = 1, .late = true},
    {.name = "source released", .at_source = true, .count = 1, .late = true},
};

enum { SOURCE_POINTS = sizeof(source_points) / sizeof(*source_points) };

/** Points that are passed only if the sources are compared with each other (WHERRY_VERIFY_ALL). */
static const source_point comparing_points[] = {
    {.name = "source compares", .at_source = true, .count = 1, .planned = true},
    {.name = "receiver compared a chunk", .count = 1},
    {.name = "receiver compared a chunk", .count = 3},
};

enum { COMPARING_POINTS = sizeof(comparing_points) / sizeof(*comparing_points) };

#endif
