/**
 * @file demo.h  `wherry demo`: ranks train the same state. From time to time, a rank loses its
 * state and receives it from all its peers.
 *
 * There are two modes. By default, a conductor process starts the ranks, kills them with SIGKILL
 * and replaces them. Under a launcher, each process is a rank. A rank then loses only its state,
 * and its process survives.
 */
#ifndef WH_CLI_DEMO_H
#define WH_CLI_DEMO_H

#include <wherry/checkpoint.h>

#include "command.h"
#include "output.h"

enum { WH_DEMO_RANKS_MAX = 64, WH_DEMO_ADDRESS_MAX = 2048, WH_DEMO_TEXT_MAX = 900 };

typedef struct wh_demo_options {
    wh_common common;
    int64_t ranks;
    uint64_t size;    /**< Size of each rank's state in bytes. */
    const char *lane; /**< The name of a lane, or "auto". */
    int64_t kills;
    int64_t steps;
    bool alone;  /**< Start the ranks here, even under a launcher. */
    bool verify; /**< Check digests even if the data does not cross a network. */
    bool no_color;
    /** The rank of this process under a launcher; -1 if the conductor starts the ranks. */
    int rank;
    int on_host; /**< Number of ranks on this host. */
} wh_demo_options;

/** A digest of a model. It depends on every byte and its position. */
typedef struct wh_demo_digest {
    uint64_t words[4];
} wh_demo_digest;

/* ---- messages ---- */

typedef enum wh_demo_kind {
    /* Messages from the conductor. It ends a rank by closing the socket. */
    WH_DEMO_LIMIT, /**< Train up to `step`, then wait. */
    WH_DEMO_LEND,  /**< Train up to `step`, then send the state to `peer`. */
    WH_DEMO_HEAL,  /**< Receive the state of `step` from `ranks`. */
    /* Messages from a rank. */
    WH_DEMO_READY,   /**< A replacement has joined the group and waits to be healed. */
    WH_DEMO_HEALING, /**< The rank receives a state. At present, `peer` is the source in use. */
    WH_DEMO_HEALED,  /**< The rank received the state of `step` from `ranks`. `text` is the lane. */
    /** The rank finished `step`, with `digest`. Step 0 means that the rank has joined the group. */
    WH_DEMO_STEPPED,
    WH_DEMO_FAILED, /**< The rank cannot continue. `text` is the reason. */
} wh_demo_kind;

/** A message between the conductor and a rank. Under a launcher, a message to rank 0. */
typedef struct wh_demo_message {
    wh_demo_kind kind;
    int32_t peer;
    int64_t step;
    uint64_t ranks;                     /**< The sources of a heal, as a set: bit i is rank i. */
    uint64_t lost;                      /**< The sources that failed during the heal. */
    uint64_t shares[WH_DEMO_RANKS_MAX]; /**< Bytes that arrived from each rank. */
    uint64_t bytes;                     /**< Size of the state. */
    double seconds;                     /**< Time in which the bytes arrived. */
    double delay;                       /**< Time of the whole heal, in which the sources waited. */
    uint32_t checked;
    wh_demo_digest digest;
    char text[WH_DEMO_TEXT_MAX];
} wh_demo_message;

/* ---- the timeline: demo.c ---- */

typedef enum wh_demo_tone { WH_DEMO_PLAIN, WH_DEMO_BAD, WH_DEMO_GOOD } wh_demo_tone;

/** The output of the demo: lines with a time and, on a terminal, a progress bar below them. */
typedef struct wh_timeline {
    const wh_demo_options *options;
    wh_bar bar;
    double begin;
    bool quiet;
    bool color;
    int heals;
    uint64_t bytes; /**< Bytes received by all heals. */
    double seconds;
} wh_timeline;

void wh_timeline_begin(wh_timeline *timeline, const wh_demo_options *options);

__attribute__((format(printf, 3, 4))) void wh_timeline_say(wh_timeline *timeline, wh_demo_tone tone, const char *format,
                                                           ...);

/** Prints that a rank was healed, and adds the transfer to the totals. */
void wh_timeline_healed(wh_timeline *timeline, int rank, const wh_demo_message *message);

/** Updates the progress bar. @param note  text to add, or "". */
void wh_timeline_progress(wh_timeline *timeline, int64_t step, const char *note);

/** Prints the last line, even with --quiet. @param losses  such as "3 kills and 3 heals". */
void wh_timeline_success(wh_timeline *timeline, const wh_demo_digest *digest, const char *losses);

/* ---- the ranks: demo_rank.c ---- */

/** Chooses the sources of a heal from a set of ranks: at most WHERRY_SOURCES_MAX. */
uint64_t wh_demo_sources(uint64_t ranks);

/** Runs a rank of the conductor. `rejoin`: it replaces a killed rank. @return the exit code. */
int wh_demo_run_rank(const wh_demo_options *options, int rank, bool rejoin, const char *address, int control);

/** Runs a rank that a launcher has started. Rank 0 prints the output. @return the exit code. */
int wh_demo_run_launched(const wh_demo_options *options);

#endif
