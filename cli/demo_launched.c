/*
 * The demo as one rank of a job that a launcher has started. All train in step; one rank after the other loses its state, and has it
 * again from the next one while the others wait at the barrier. Rank 0 holds the digests against each other, and prints.
 */
#include "demo_launched.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/base.h>
#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "command.h"
#include "demo_model.h"
#include "demo_show.h"

enum { TIMEOUT_MS = 60000, REPORTS = 1 };

/** What a rank tells rank 0 after each step. Ranks of one job run the same program on the same kind of machine. */
typedef struct report {
    int64_t step;
    wh_demo_digest digest;
    uint64_t bytes; /**< That healed it in this step; 0: it was not. */
    double seconds;
    uint32_t verified;
    char lane[WHERRY_LANE_NAME_MAX];
} report;

typedef struct launched {
    const wh_demo_options *options;
    wh_demo_screen screen;
    wh_demo_model *model;
    wherry_group *group;
    wherry_transport *transport;
    int losses;
    uint64_t bytes;
    double seconds;
    wherry_error error;
} launched;

/** Which rank loses its state before a step; -1: none. They are spread evenly over the run. */
static int loser_before(const wh_demo_options *options, int step) {
    for (int i = 0; i < options->kills; i++) {
        if (step == 1 + (int)((int64_t)(i + 1) * options->steps / (options->kills + 1))) {
            return i % options->ranks;
        }
    }
    return -1;
}

static void init_transfer(const launched *l, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TIMEOUT_MS;
    options->lanes = strcmp(l->options->lane, "auto") == 0 ? NULL : l->options->lane;
    options->verify = l->options->verify ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/** Overwrites this rank's state, as if its memory or its device had failed, and receives a peer's in its place. */
static wherry_status lose_and_heal(launched *l, int peer, report *own) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    wherry_value *target;
    wherry_value *state;
    wh_demo_model_spoil(l->model);
    wherry_status status = wh_demo_model_state(l->model, 0, &target, &l->error);
    if (status != WHERRY_OK) {
        return status;
    }
    init_transfer(l, &options);
    options.target = give_target;
    options.target_context = target;
    options.stats = &stats;
    status = wherry_checkpoint_recv(l->transport, peer, &options, &state, &l->error);
    if (status == WHERRY_OK) {
        wherry_value_destroy(state);
        own->bytes = stats.bytes_moved;
        own->seconds = stats.data_seconds;
        own->verified = stats.verified;
        memcpy(own->lane, stats.lane, sizeof(own->lane));
    }
    wherry_value_destroy(target);
    return status;
}

static wherry_status lend(launched *l, int step, int32_t to) {
    wherry_transfer_options options;
    wherry_value *state;
    wherry_status status = wh_demo_model_state(l->model, step, &state, &l->error);
    if (status != WHERRY_OK) {
        return status;
    }
    init_transfer(l, &options);
    status = wherry_checkpoint_send(l->transport, &to, 1, state, &options, NULL, &l->error);
    wherry_value_destroy(state);
    return status;
}

/* ---- rank 0 ---- */

static void show(launched *l, int rank, const report *one) {
    char size[WH_SIZE_TEXT_MAX];
    if (one->bytes) {
        l->losses++;
        l->bytes += one->bytes;
        l->seconds += one->seconds;
        wh_demo_say(&l->screen, WH_DEMO_BAD, "rank %d lost its state after step %" PRId64, rank, one->step - 1);
        wh_demo_say(&l->screen, WH_DEMO_GOOD, "rank %d healed in place from rank %d: %s in %.2f s over %s, verified %s",
                    rank, (rank + 1) % l->options->ranks, wh_size_text(one->bytes, size), one->seconds, one->lane,
                    one->verified ? "yes" : "no");
    }
}

/** Takes the reports of all ranks, whose digests must be equal. */
static wherry_status compare(launched *l, const report *own) {
    show(l, 0, own);
    for (int rank = 1; rank < l->options->ranks; rank++) {
        report *theirs;
        void *bytes;
        size_t size;
        wherry_status status =
            wherry_group_receive(l->group, rank, REPORTS, TIMEOUT_MS, &bytes, &size, NULL, &l->error);
        if (status != WHERRY_OK) {
            return status;
        }
        theirs = bytes;
        bool sound = size == sizeof(*theirs) && theirs->step == own->step;
        if (sound) {
            theirs->lane[sizeof(theirs->lane) - 1] = '\0';
            show(l, rank, theirs);
        }
        if (!sound || memcmp(&theirs->digest, &own->digest, sizeof(own->digest)) != 0) {
            snprintf(l->error.message, sizeof(l->error.message),
                     "after step %" PRId64 " the digest of rank %d is not that of rank 0", own->step, rank);
            status = WHERRY_MISMATCH;
        }
        wherry_free(bytes);
        if (status != WHERRY_OK) {
            return status;
        }
    }
    wh_demo_show_progress(&l->screen, (int)own->step, l->options->steps, "");
    return WHERRY_OK;
}

/* ---- all ---- */

static wherry_status train(launched *l, wh_demo_digest *last_p) {
    const wh_demo_options *options = l->options;
    for (int step = 1; step <= options->steps; step++) {
        report own = {.step = step};
        wherry_status status = WHERRY_OK;
        int loser = loser_before(options, step);
        int source = (loser + 1) % options->ranks;
        if (loser >= 0 && loser == options->rank) {
            status = lose_and_heal(l, source, &own);
        } else if (loser >= 0 && source == options->rank) {
            status = lend(l, step - 1, loser);
        }
        if (status != WHERRY_OK) {
            return status;
        }
        own.digest = wh_demo_model_train(l->model, step);
        *last_p = own.digest;
        status = options->rank == 0 ? compare(l, &own)
                                    : wherry_group_send(l->group, 0, REPORTS, &own, sizeof(own), TIMEOUT_MS, &l->error);
        if (status == WHERRY_OK) {
            status = wherry_group_barrier(l->group, (uint64_t)step, TIMEOUT_MS, &l->error);
        }
        if (status != WHERRY_OK) {
            return status;
        }
    }
    return WHERRY_OK;
}

static wherry_status enter(launched *l) {
    wherry_group_options options;
    wherry_status status = wh_demo_model_create(l->options->size, &l->model, &l->error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_group_options_init(&options);
    options.timeout_ms = TIMEOUT_MS;
    status = wherry_group_join("env://", &options, &l->group, &l->error);
    return status == WHERRY_OK ? wherry_transport_create(l->group, NULL, &l->transport, &l->error) : status;
}

static void tell_verdict(launched *l, const wh_demo_digest *last) {
    char size[WH_SIZE_TEXT_MAX];
    wh_demo_screen_clear(&l->screen);
    wh_demo_verdict(&l->screen, WH_DEMO_GOOD,
                    "OK: %d ranks at step %d with equal digests (%016" PRIx64
                    "), after %d lost state%s, each healed: %s at %.1f GB/s; in %.1f s",
                    l->options->ranks, l->options->steps, last->words[2], l->losses, l->losses == 1 ? "" : "s",
                    wh_size_text(l->bytes, size), l->seconds > 0 ? (double)l->bytes / l->seconds * 1e-9 : 0,
                    wh_clock() - l->screen.begin);
}

int wh_demo_launched(const wh_demo_options *options) {
    launched l = {.options = options};
    wh_demo_digest last = {{0}};
    char size[WH_SIZE_TEXT_MAX];
    wh_demo_options shown = *options;
    shown.quiet = options->quiet || options->rank != 0;
    if (!wh_demo_memory_suffices(options)) {
        return WH_EXIT_FAILED;
    }
    if (options->verbose) {
        wherry_log_set_level(WHERRY_LOG_INFO);
    }
    wh_demo_screen_init(&l.screen, &shown);
    l.screen.terminal = false; /* launchers lay the ranks' lines over each other: no bar */
    wh_demo_say(&l.screen, WH_DEMO_PLAIN, "%d ranks of a launcher, each with a state of %s", options->ranks,
                wh_size_text(options->size, size));
    wherry_status status = enter(&l);
    if (status == WHERRY_OK) {
        status = train(&l, &last);
    }
    if (status != WHERRY_OK) {
        wh_demo_screen_clear(&l.screen);
        fprintf(stderr, "wherry demo: rank %d: %s\n", options->rank, l.error.message);
    } else if (options->rank == 0) {
        tell_verdict(&l, &last);
    }
    wherry_transport_destroy(l.transport);
    wherry_group_leave(l.group);
    wh_demo_model_destroy(l.model);
    return status == WHERRY_OK ? EXIT_SUCCESS : WH_EXIT_FAILED;
}
