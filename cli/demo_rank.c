/*
 * A rank of the demo. It trains; between two steps, and only there, it sends its state to a peer
 * that asks for it. A rank that has lost its state receives a peer's in place.
 */
#include <errno.h>
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
    TIMEOUT_MS = 60000, /**< For each thing that a rank waits for. */
    IDLE_MS = 2,        /**< How often a waiting rank looks for peers that ask for its state. */
    QUIT_SECONDS = 10,  /**< To leave the group. */
    TAG_REPORT = 1,
};

typedef struct demo_rank {
    const wh_demo_options *options;
    int rank;
    int control; /**< Socket to the conductor. */
    int64_t step;
    int64_t limit; /**< Train up to this step. */
    wh_demo_model *model;
    wherry_group *group;
    wherry_transport *transport;
    wherry_error error;
} demo_rank;

/* ---- both shows ---- */

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

/** Receives a peer's state, with its step, in place. @param message_p  gets a WH_DEMO_HEALED. */
static wherry_status heal(demo_rank *r, int32_t peer, wh_demo_message *message_p) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    wherry_value *target = NULL;
    wherry_value *state;
    wherry_status status = wh_demo_model_state(r->model, 0, &target, &r->error);
    init_transfer(r, &options);
    options.target = give_target;
    options.target_context = target;
    options.stats = &stats;
    WH_THEN(status, wherry_checkpoint_recv(r->transport, peer, &options, &state, &r->error));
    if (status == WHERRY_OK) {
        r->step = wherry_int_get(wherry_dict_get(state, "step"));
        wherry_value_destroy(state);
        *message_p = (wh_demo_message){.kind = WH_DEMO_HEALED,
                                       .peer = peer,
                                       .step = r->step,
                                       .bytes = stats.bytes_moved,
                                       .seconds = stats.data_seconds,
                                       .checked = stats.verified,
                                       .digest = wh_demo_model_digest(r->model)};
        snprintf(message_p->text, sizeof(message_p->text), "%s", stats.lane);
    }
    wherry_value_destroy(target);
    return status;
}

/* ---- a rank of the conductor's ---- */

/** Sends a message to the conductor, and exits if the conductor is gone. */
static void tell(const demo_rank *r, const wh_demo_message *message) {
    ssize_t sent;
    do {
        sent = send(r->control, message, sizeof(*message), MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof(*message)) {
        _exit(WH_EXIT_FAILED);
    }
}

/** Asks the living ranks for their state, the next one first, so that the load is spread. */
static wherry_status heal_from_any(demo_rank *r) {
    wh_demo_message message;
    int ranks = (int)r->options->ranks;
    wherry_status status = wh_fail_error(&r->error, WHERRY_PEER_LOST, "no other rank is alive");
    for (int i = 1; i < ranks && status != WHERRY_OK; i++) {
        int32_t peer = (r->rank + i) % ranks;
        status = wherry_group_alive(r->group, peer) ? heal(r, peer, &message) : status;
    }
    if (status == WHERRY_OK) {
        tell(r, &message);
    }
    return status;
}

/** Sends the state to a peer that asks for it. If that fails, the peer reports it. */
static wherry_status serve(demo_rank *r) {
    int32_t peer;
    double begin = wh_clock();
    if (wherry_transport_waiting(r->transport, &peer, 1) == 0) {
        return WHERRY_OK;
    }
    wherry_status status = lend(r, peer);
    if (status == WHERRY_OK) {
        tell(r, &(wh_demo_message){.kind = WH_DEMO_LENT, .step = r->step, .seconds = wh_clock() - begin});
    }
    return status == WHERRY_CLOSED ? status : WHERRY_OK;
}

/** Trains until the conductor closes the socket. */
static wherry_status train(demo_rank *r) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK) {
        wh_demo_message message;
        struct pollfd ready = {.fd = r->control, .events = POLLIN};
        if (poll(&ready, 1, r->step < r->limit ? 0 : IDLE_MS) > 0) {
            if (recv(r->control, &message, sizeof(message), 0) != (ssize_t)sizeof(message)) {
                break;
            }
            r->limit = message.step;
            continue;
        }
        status = serve(r);
        if (status == WHERRY_OK && r->step < r->limit) {
            wh_demo_digest digest = wh_demo_model_train(r->model, ++r->step);
            tell(r, &(wh_demo_message){.kind = WH_DEMO_STEPPED, .step = r->step, .digest = digest});
        }
    }
    return status;
}

int wh_demo_run_rank(const wh_demo_options *options, int rank, bool rejoin, const char *address, int control) {
    demo_rank r = {.options = options, .rank = rank, .control = control};
    char full[WH_DEMO_ADDRESS_MAX + 64];
    snprintf(full, sizeof(full), "%s?rank=%d&size=%d", address, rank, (int)options->ranks);
    wh_set_log(&options->common, WHERRY_LOG_WARN);
    wherry_status status = join(&r, full);
    if (status == WHERRY_OK && rejoin) {
        status = heal_from_any(&r);
    } else if (status == WHERRY_OK) {
        tell(&r, &(wh_demo_message){.kind = WH_DEMO_STEPPED, .digest = wh_demo_model_digest(r.model)});
    }
    WH_THEN(status, train(&r));
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

/** @return the rank that loses its state before a step; -1: none. The losses are spread evenly. */
static int loser_before(const wh_demo_options *options, int64_t step) {
    for (int64_t i = 0; i < options->kills; i++) {
        if (step == 1 + (i + 1) * options->steps / (options->kills + 1)) {
            return (int)(i % options->ranks);
        }
    }
    return -1;
}

static void show_report(wh_timeline *timeline, int rank, const wh_demo_message *report) {
    if (report->bytes) {
        wh_timeline_say(timeline, WH_DEMO_BAD, "rank %d lost its state after step %" PRId64, rank, report->step);
        wh_timeline_healed(timeline, rank, report);
    }
}

/** Rank 0: receives the other ranks' reports of a step. Their digests must equal its own. */
static wherry_status compare_reports(demo_rank *r, const wh_demo_message *own, wh_timeline *timeline) {
    show_report(timeline, 0, own);
    wherry_status status = WHERRY_OK;
    for (int rank = 1; rank < r->options->ranks && status == WHERRY_OK; rank++) {
        void *bytes = NULL;
        size_t size;
        status = wherry_group_receive(r->group, rank, TAG_REPORT, TIMEOUT_MS, &bytes, &size, NULL, &r->error);
        if (status != WHERRY_OK) {
            return status;
        }
        wh_demo_message *report = bytes;
        if (size != sizeof(*report) || memcmp(&report->digest, &own->digest, sizeof(own->digest)) != 0) {
            status = wh_fail_error(&r->error, WHERRY_MISMATCH, "after step %" PRId64 ", ranks %d and 0 differ", r->step,
                                   rank);
        } else {
            report->text[sizeof(report->text) - 1] = '\0';
            show_report(timeline, rank, report);
        }
        wherry_free(bytes);
    }
    wh_timeline_progress(timeline, r->step, "");
    return status;
}

/** Trains in step with the others. Rank after rank loses its state; the next one heals it. */
static wherry_status train_in_step(demo_rank *r, wh_demo_digest *digest_p, wh_timeline *timeline) {
    const wh_demo_options *options = r->options;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && r->step < options->steps) {
        wh_demo_message report = {.kind = WH_DEMO_HEALED};
        int32_t loser = loser_before(options, r->step + 1);
        int32_t source = (loser + 1) % (int32_t)options->ranks;
        if (loser == options->rank) {
            wh_demo_model_spoil(r->model);
            status = heal(r, source, &report);
        } else if (loser >= 0 && source == options->rank) {
            status = lend(r, loser);
        }
        if (status != WHERRY_OK) {
            return status;
        }
        report.digest = *digest_p = wh_demo_model_train(r->model, ++r->step);
        status = options->rank == 0
                     ? compare_reports(r, &report, timeline)
                     : wherry_group_send(r->group, 0, TAG_REPORT, &report, sizeof(report), TIMEOUT_MS, &r->error);
        WH_THEN(status, wherry_group_barrier(r->group, (uint64_t)r->step, TIMEOUT_MS, &r->error));
    }
    return status;
}

int wh_demo_run_launched(const wh_demo_options *options) {
    demo_rank r = {.options = options, .rank = options->rank};
    wh_timeline timeline;
    wh_demo_digest digest = {{0}};
    char text[64];
    wh_set_log(&options->common, WHERRY_LOG_WARN);
    wh_timeline_begin(&timeline, options);
    timeline.quiet = timeline.quiet || options->rank != 0;
    timeline.bar.terminal = false; /* launchers mix the lines of the ranks */
    wh_timeline_say(&timeline, WH_DEMO_PLAIN, "%d ranks of a launcher, each with a state of %s", (int)options->ranks,
                    wh_size_text(options->size, text));
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
