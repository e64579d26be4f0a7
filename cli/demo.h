/**
 * @file demo.h  `wherry demo`: ranks that train the same state, lose it, and are healed by a peer.
 *
 * Two shows. By default the conductor starts the ranks, kills them with SIGKILL and replaces them.
 * Under a launcher each process is a rank; a rank loses its state instead of its process.
 */
#ifndef WH_CLI_DEMO_H
#define WH_CLI_DEMO_H

#include <wherry/value.h>

#include "command.h"
#include "output.h"

enum { WH_DEMO_RANKS_MAX = 64, WH_DEMO_ADDRESS_MAX = 2048, WH_DEMO_TEXT_MAX = 900 };

typedef struct wh_demo_options {
    wh_common common;
    int64_t ranks;
    uint64_t size;    /**< Bytes of each rank's state. */
    const char *lane; /**< A name, or "auto". */
    int64_t kills;
    int64_t steps;
    bool alone;  /**< Start the ranks here, also under a launcher. */
    bool verify; /**< Check digests even if the data does not cross a network. */
    bool no_color;
    int rank;    /**< Of this process under a launcher; -1: the conductor starts the ranks. */
    int on_host; /**< How many of the ranks are on this host. */
} wh_demo_options;

/* ---- the model: demo_model.c ---- */

typedef struct wh_demo_model wh_demo_model;

/** Depends on every byte and its position. */
typedef struct wh_demo_digest {
    uint64_t words[4];
} wh_demo_digest;

/** Creates a model with optimizer state, `size` bytes or slightly less, the same on every rank. */
wherry_status wh_demo_model_create(uint64_t size, wh_demo_model **model_p, wherry_error *error);

/** model may be NULL. */
void wh_demo_model_destroy(wh_demo_model *model);

/** Creates a state dict: views of the model's memory, and the step. The caller destroys it. */
wherry_status wh_demo_model_state(const wh_demo_model *model, int64_t step, wherry_value **state_p,
                                  wherry_error *error);

/** A training step: changes every byte, depending on its value and the step. @return the digest. */
wh_demo_digest wh_demo_model_train(wh_demo_model *model, int64_t step);

/** The digest of what is in memory; after a step, the same that wh_demo_model_train returned. */
wh_demo_digest wh_demo_model_digest(const wh_demo_model *model);

/** Overwrites all of it. */
void wh_demo_model_spoil(wh_demo_model *model);

/* ---- messages ---- */

typedef enum wh_demo_kind {
    /* From the conductor, which closes the socket to end a rank: */
    WH_DEMO_LIMIT, /**< Train up to `step`, then wait. */
    /* From a rank: */
    WH_DEMO_HEALED,  /**< It received the state of `step` from `peer`; the lane is in `text`. */
    WH_DEMO_LENT,    /**< It sent its state, and was held up for `seconds`. */
    WH_DEMO_STEPPED, /**< It finished `step`, with `digest`; step 0: it is in the group. */
    WH_DEMO_FAILED,  /**< It cannot continue: `text`. */
} wh_demo_kind;

/** Goes over a socket pair per rank; under a launcher, over the group to rank 0. */
typedef struct wh_demo_message {
    wh_demo_kind kind;
    int32_t peer;
    int64_t step;
    uint64_t bytes;
    double seconds;
    uint32_t checked;
    wh_demo_digest digest;
    char text[WH_DEMO_TEXT_MAX];
} wh_demo_message;

/* ---- the timeline: demo.c ---- */

typedef enum wh_demo_tone { WH_DEMO_PLAIN, WH_DEMO_BAD, WH_DEMO_GOOD } wh_demo_tone;

/** What the demo prints: lines with a time, and a bar below them on a terminal. */
typedef struct wh_timeline {
    const wh_demo_options *options;
    wh_bar bar;
    double begin;
    bool quiet;
    bool color;
    int heals;
    uint64_t bytes; /**< Of all heals. */
    double seconds;
} wh_timeline;

void wh_timeline_begin(wh_timeline *timeline, const wh_demo_options *options);

__attribute__((format(printf, 3, 4))) void wh_timeline_say(wh_timeline *timeline, wh_demo_tone tone, const char *format,
                                                           ...);

/** Says that a rank was healed, and adds it to the totals. */
void wh_timeline_healed(wh_timeline *timeline, int rank, const wh_demo_message *message);

/** @param note  what happens now; "" for nothing special. */
void wh_timeline_progress(wh_timeline *timeline, int64_t step, const char *note);

/** Prints the last line, also with --quiet. @param losses  such as "3 kills and 3 heals". */
void wh_timeline_success(wh_timeline *timeline, const wh_demo_digest *digest, const char *losses);

/* ---- the ranks: demo_rank.c ---- */

/** Runs a rank of the conductor. @param rejoin  it replaces a killed one. @return exit code. */
int wh_demo_run_rank(const wh_demo_options *options, int rank, bool rejoin, const char *address, int control);

/** Runs a rank of a launcher. Rank 0 prints. @return the exit code. */
int wh_demo_run_launched(const wh_demo_options *options);

/* ---- the conductor: demo_conductor.c ---- */

/** Starts, kills and replaces ranks. @return the exit code. */
int wh_demo_conduct(const wh_demo_options *options);

#endif
