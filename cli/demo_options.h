/** @file demo_options.h  What `wherry demo` was asked for. */
#ifndef WH_CLI_DEMO_OPTIONS_H
#define WH_CLI_DEMO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/** The most ranks and steps that the demo takes. */
enum { WH_DEMO_RANKS_MAX = 64, WH_DEMO_STEPS_MAX = 100000, WH_DEMO_NO_RANK = -1 };

typedef struct wh_demo_options {
    int ranks; /**< 2 to WH_DEMO_RANKS_MAX. */
    int rank;  /**< Of this process, where a launcher has started it; WH_DEMO_NO_RANK: the demo starts the ranks. */
    int neighbours;   /**< How many of the ranks are on this host. */
    uint64_t size;    /**< Bytes of each rank's state. */
    const char *lane; /**< A name, or "auto". */
    int kills;        /**< 0 or more, less than steps. */
    int steps;        /**< 1 to WH_DEMO_STEPS_MAX. */
    bool verify;      /**< Digests are checked also where the bytes stay in memory. */
    bool quiet;       /**< Only the verdict is printed. */
    bool verbose;     /**< Also what the library tells. */
    bool color;       /**< Where the output is a terminal. */
} wh_demo_options;

/**
 * Reads the arguments, options->... are the defaults where nothing is said.
 * @return true to go on; else the command is over (it was --help, or a mistake that was told) with *code_p.
 */
bool wh_demo_options_parse(int argc, char **argv, wh_demo_options *options, int *code_p);

/**
 * Whether this machine has the memory; where not, says what to do.
 * @return false where it has not.
 */
bool wh_demo_memory_suffices(const wh_demo_options *options);

#endif
