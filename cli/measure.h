/** @file measure.h  What `wherry bench` has measured, for whoever prints or draws it. */
#ifndef WH_CLI_MEASURE_H
#define WH_CLI_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "trial.h"

/** What a lane is measured against. */
typedef enum wh_limit_kind {
    WH_LIMIT_COPY, /**< Two threads copy within a process's memory. */
    WH_LIMIT_READ, /**< Two threads read another process's memory. */
    WH_LIMIT_TCP,  /**< Plain sockets over loopback, two connections. */
    WH_LIMITS,
} wh_limit_kind;

typedef struct wh_limit {
    double rate; /**< Bytes a second, the median; 0: it could not be had. */
} wh_limit;

/** A row of the table. */
typedef struct wh_measured {
    char name[32]; /**< Of the lane: "stream, TCP". */
    const wh_trial_lane *lane;
    const wh_limit *limit; /**< What it is held against; NULL: nothing. */
    bool used;             /**< It is the one that would be taken. */
} wh_measured;

typedef struct wh_measurement {
    uint64_t bytes;
    uint32_t repeats;
    bool in_group;
    wh_limit limits[WH_LIMITS];
    size_t count;
    wh_measured rows[WH_TRIAL_LANES_MAX + 1];
} wh_measurement;

extern const char *const wh_limit_names[WH_LIMITS];

/** Measures the limits of this machine. Blocks. */
void wh_limits_measure(uint64_t bytes, uint32_t repeats, wh_limit limits[WH_LIMITS]);

/** Bytes a second of a row; 0 where it did not work. */
double wh_measured_rate(const wh_measurement *measurement, const wh_measured *row);

#endif
