/** @file demo_launch.h  The ranks' processes and the folder where they meet: starting, ending, and leaving nothing behind. */
#ifndef WH_CLI_DEMO_LAUNCH_H
#define WH_CLI_DEMO_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "demo_options.h"

enum { WH_DEMO_PATH_MAX = 512, WH_DEMO_ADDRESS_MAX = 3 * WH_DEMO_PATH_MAX + 64 };

/** What a rank's process is told when it is started. */
typedef struct wh_demo_seat {
    int rank;
    int ranks;
    int control; /**< Its end of the pair of sockets. */
    bool heal;   /**< Whether it takes another's place. */
    bool verify;
    bool verbose;
    pid_t parent;
    uint64_t size;
    const char *lane;
    const char *address; /**< Of the group, without rank and size. */
} wh_demo_seat;

/** The folder where the ranks meet. */
typedef struct wh_demo_place {
    char folder[WH_DEMO_PATH_MAX];     /**< "" where there is none. */
    char address[WH_DEMO_ADDRESS_MAX]; /**< A Unix socket in it, as a group's address. */
} wh_demo_place;

/** Makes a folder that nobody else can enter, below TMPDIR or /tmp. @return false where that failed, which was told. */
bool wh_demo_place_create(wh_demo_place *place);

/** Removes the folder and what is in it. */
void wh_demo_place_remove(wh_demo_place *place);

/**
 * Starts a rank: this program, anew.
 * @param heal       whether it takes another's place.
 * @param control_p  this side's end of its sockets; belongs to the caller.
 * @return its process; -1 where that failed, which was told.
 */
pid_t wh_demo_start(const wh_demo_options *options, const wh_demo_place *place, int rank, bool heal, int *control_p);

/** Reads what wh_demo_start handed over. The texts are those of argv. @return false where it is not that. */
bool wh_demo_seat_parse(int argc, char **argv, wh_demo_seat *seat);

#endif
