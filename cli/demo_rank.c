/*
 * A rank of the demo. It trains. At a step that all ranks agree on, it sends its state to a peer
 * that has lost its own. That peer receives the state in place, from all ranks that send it.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "demo.h"

enum {
    TIMEOUT_MS = 60000, /**< Time limit for each wait of a rank. */
    QUIT_SECONDS = 10,  /**< Time limit for leaving the group. */
    TAG_REPORT = 1,
};

typedef struct demo_rank {
    const wh_demo_options *options;
    int control; /**< The socket to the conductor; -1 under a launcher. */
    int64_t step;
    int64_t limit;   /**< The last step that this rank may train. */
    int32_t lend_to; /**< The rank that needs the state of step `limit`; -1 if there is none. */
    wh_demo_model *model;
    wherry_group *group;
    wherry_transport *transport;
    wherry_error error;
} demo_rank;

/* ---- both modes ---- */

static wherry_status join(demo_rank *r, const char *address) {
    wherry_group_options options;
    wherry_group_options_init(&options);
    options.timeout_ms = TIMEOUT_MS;
    wherry_status status = wh_demo_model_create(r->options->size, &r->model, &r->error);
    WH_THEN(status, wherry_group_join(address, &options, &r->group, &r->error));
    WH_THEN(status, wherry_transport_create(r->group, NULL, &r->transport, &r->error));
    return status;
}

static void leave(demo_rank *r) {
    wherry_transport_destroy(r->transport);
    wherry_group_leave(r->group);
    wh_demo_model_destroy(r->model);
}

static void init_transfer(const demo_rank *r, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TIMEOUT_MS;
    options->lanes = strcmp(r->options->lane, "auto") == 0 ? NULL : r->options->lane;
    options->verify = r->options->verify ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
}

static wherry_status lend(demo_rank *r, int32_t peer) {
    wherry_transfer_options options;
    wherry_value *state = NULL;
    init_transfer(r, &options);
    options.step = r->step;
    wherry_status status = wh_demo_model_state(r->model, r->step, &state, &r->error);
    WH_THEN(status, wherry_checkpoint_send(r->transport, &peer, 1, state, &options, NULL, &r->error));
    wherry_value_destroy(state);
    return status;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/** Sends a message to the conductor. Exits if the conductor has ended. */
static void tell(const demo_rank *r, const wh_demo_message *message) {
    if (send(r->control, message, sizeof(*message), MSG_NOSIGNAL) != (ssize_t)sizeof(*message)) {
        _exit(WH_EXIT_FAILED);
    }
}

static void on_progress(void *context, const wherry_progress *progress) {
    if (*progress->lane) {
        tell(context, &(wh_demo_message){.kind = WH_DEMO_HEALING, .peer = progress->peer});
    }
}

uint64_t wh_demo_sources(uint64_t ranks) {
    while (__builtin_popcountll(ranks) > WHERRY_SOURCES_MAX) {
        ranks &= ranks - 1; /* This removes the lowest rank from the set. */
    }
    return ranks;
}

/** Receives the state of a step in place. Sets *message_p to a WH_DEMO_HEALED message. */
static wherry_status heal(demo_rank *r, uint64_t sources, int64_t step, wh_demo_message *message_p) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    int32_t ranks[WHERRY_SOURCES_MAX];
    size_t count = 0;
    wherry_value *target = NULL;
    wherry_value *state;
    for (uint64_t left = sources; left; left &= left - 1) {
        ranks[count++] = __builtin_ctzll(left);
    }
    wherry_status status = wh_demo_model_state(r->model, 0, &target, &r->error);
    init_transfer(r, &options);
    options.step = step;
    options.progress = r->control < 0 ? NULL : on_progress;
    options.progress_context = r;
    options.target = give_target;
    options.target_context = target;
    options.stats = &stats;
    WH_THEN(status, wherry_checkpoint_recv_from(r->transport, ranks, count, &options, &state, &r->error));
    if (status == WHERRY_OK) {
        r->step = wherry_int_get(wherry_dict_get(state, "step"));
        wherry_value_destroy(state);
        *message_p = (wh_demo_message){.kind = WH_DEMO_HEALED,
                                       .step = r->step,
                                       .bytes = stats.bytes_wanted,
                                       .seconds = stats.data_seconds,
                                       .delay = stats.total_seconds,
                                       .checked = stats.checked,
                                       .ranks = sources,
                                       .digest = wh_demo_model_train(r->model, 0)};
        snprintf(message_p->text, sizeof(message_p->text), "%s", stats.lane);
        for (uint32_t i = 0; i < stats.source_count; i++) {
            const wherry_source_stats *one = stats.sources + i;
            /* This source was not needed. */
            bool late = one->status == WHERRY_TIMED_OUT && one->bytes == 0;
            message_p->shares[one->rank] = one->bytes;
            message_p->lost |= (uint64_t)(one->status != WHERRY_OK && !late) << one->rank;
        }
    }
    wherry_value_destroy(target);
    return status;
}

/* ---- a rank of the conductor ---- */

static wherry_status obey(demo_rank *r, wh_demo_message *order) {
    r->limit = order->step;
    r->lend_to = order->kind == WH_DEMO_LEND ? order->peer : -1;
    wherry_status status = WHERRY_OK;
    if (order->kind == WH_DEMO_HEAL && (status = heal(r, order->ranks, order->step, order)) == WHERRY_OK) {
        tell(r, order);
    }
    return status;
}

/** Trains until the conductor closes the socket. */
static wherry_status train(demo_rank *r) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK) {
        wh_demo_message order;
        struct pollfd ready = {.fd = r->control, .events = POLLIN};
        bool idle = r->step >= r->limit && r->lend_to < 0;
        if (poll(&ready, 1, idle ? -1 : 0) > 0) {
            if (recv(r->control, &order, sizeof(order), 0) != (ssize_t)sizeof(order)) {
                break;
            }
            status = obey(r, &order);
        } else if (r->step < r->limit) {
            wh_demo_digest digest = wh_demo_model_train(r->model, ++r->step);
            tell(r, &(wh_demo_message){.kind = WH_DEMO_STEPPED, .step = r->step, .digest = digest});
        } else if (r->lend_to >= 0) {
            status = lend(r, r->lend_to);
            /* The peer reports other errors. */
            status = status == WHERRY_CLOSED ? status : WHERRY_OK;
            r->lend_to = -1;
        }
    }
    return status;
}

int wh_demo_run_rank(const wh_demo_options *options, int rank, bool rejoin, const char *address, int control) {
    demo_rank r = {.options = options, .control = control, .lend_to = -1};
    char full[WH_DEMO_ADDRESS_MAX + 64];
    snprintf(full, sizeof(full), "%s?rank=%d&size=%d", address, rank, (int)options->ranks);
    wh_set_log(&options->common, WHERRY_LOG_ERROR); /* Do not log this for each lost source. */
    wherry_status status = join(&r, full);
    if (status == WHERRY_OK) {
        wh_demo_kind kind = rejoin ? WH_DEMO_READY : WH_DEMO_STEPPED;
        tell(&r, &(wh_demo_message){.kind = kind, .digest = wh_demo_model_train(r.model, 0)});
        status = train(&r);
    }
    if (status != WHERRY_OK) {
        wh_demo_message message = {.kind = WH_DEMO_FAILED};
        snprintf(message.text, sizeof(message.text), "%s", r.error.message);
        tell(&r, &message);
    }
    alarm(QUIT_SECONDS);
    leave(&r);
    return status == WHERRY_OK ? WH_EXIT_OK : WH_EXIT_FAILED;
}

/* ---- a rank of a launcher ---- */

/** Returns the rank that loses its state before a step; -1 if none. Losses are evenly spaced. */
static int loser_before(const wh_demo_options *options, int64_t step) {
    for (int64_t i = 0; i < options->kills; i++) {
        if (step == 1 + (i + 1) * options->steps / (options->kills + 1)) {
            return (int)(i % options->ranks);
        }
    }
    return -1;
}

/** On rank 0: receives all ranks' reports for a step. All digests must be equal. */
static wherry_status compare_reports(demo_rank *r, const wh_demo_digest *digest, wh_timeline *timeline) {
    wherry_status status = WHERRY_OK;
    for (int rank = 0; rank < r->options->ranks && status == WHERRY_OK; rank++) {
        void *bytes = NULL;
        size_t size;
        status = wherry_group_receive(r->group, rank, TAG_REPORT, TIMEOUT_MS, &bytes, &size, NULL, &r->error);
        wh_demo_message *report = bytes;
        if (status == WHERRY_OK && (size != sizeof(*report) || memcmp(&report->digest, digest, sizeof(*digest)) != 0)) {
            status = wh_fail_error(&r->error, WHERRY_MISMATCH,
                                   "after step %" PRId64 ", ranks %d and 0 have different digests", r->step, rank);
        } else if (status == WHERRY_OK && report->bytes) {
            report->text[sizeof(report->text) - 1] = '\0';
            wh_timeline_say(timeline, WH_DEMO_BAD, "rank %d lost its state after step %" PRId64, rank, report->step);
            wh_timeline_healed(timeline, rank, report);
        }
        wherry_free(bytes);
    }
    wh_timeline_progress(timeline, r->step, "");
    return status;
}

/** Trains in lockstep. In turn, each rank loses its state and receives it from the others. */
static wherry_status train_in_step(demo_rank *r, wh_demo_digest *digest_p, wh_timeline *timeline) {
    const wh_demo_options *options = r->options;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && r->step < options->steps) {
        wh_demo_message report = {.kind = WH_DEMO_HEALED};
        int32_t loser = loser_before(options, r->step + 1);
        uint64_t others = loser < 0 ? 0 : UINT64_MAX >> (64 - options->ranks) & ~(UINT64_C(1) << loser);
        uint64_t sources = wh_demo_sources(others);
        if (loser == options->rank) {
            wh_demo_model_destroy(r->model);
            r->model = NULL;
            /* The model is the same as at step 0. */
            status = wh_demo_model_create(options->size, &r->model, &r->error);
            WH_THEN(status, heal(r, sources, r->step, &report));
        } else if (sources >> options->rank & 1) {
            status = lend(r, loser);
        }
        if (status != WHERRY_OK) {
            return status;
        }
        report.digest = *digest_p = wh_demo_model_train(r->model, ++r->step);
        status = wherry_group_send(r->group, 0, TAG_REPORT, &report, sizeof(report), TIMEOUT_MS, &r->error);
        if (status == WHERRY_OK && options->rank == 0) {
            status = compare_reports(r, digest_p, timeline);
        }
        WH_THEN(status, wherry_group_barrier(r->group, (uint64_t)r->step, TIMEOUT_MS, &r->error));
    }
    return status;
}

int wh_demo_run_launched(const wh_demo_options *options) {
    demo_rank r = {.options = options, .control = -1};
    wh_timeline timeline;
    wh_demo_digest digest = {{0}};
    char text[64];
    wh_set_log(&options->common, WHERRY_LOG_WARN);
    wh_timeline_begin(&timeline, options);
    timeline.quiet = timeline.quiet || options->rank != 0;
    /* There is no bar, because launchers mix the output of the ranks. */
    timeline.bar.terminal = false;
    wh_timeline_say(&timeline, WH_DEMO_PLAIN, "%d ranks, started by a launcher, each with a state of %s",
                    (int)options->ranks, wh_size_text(options->size, text));
    wherry_status status = join(&r, "env://");
    WH_THEN(status, train_in_step(&r, &digest, &timeline));
    if (status != WHERRY_OK) {
        wh_fail_command(&wh_command_demo, 0, "rank %d: %s", options->rank, r.error.message);
    } else if (options->rank == 0) {
        snprintf(text, sizeof(text), "%d lost state%s, each healed", timeline.heals, timeline.heals == 1 ? "" : "s");
        wh_timeline_success(&timeline, &digest, text);
    }
    leave(&r);
    return status == WHERRY_OK ? WH_EXIT_OK : WH_EXIT_FAILED;
}
