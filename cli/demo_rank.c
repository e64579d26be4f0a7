/*
 * One rank of the demo. It trains up to the limit that it is given; between two steps, and only there, it sends its state to
 * whoever asks for it. One that takes the place of a rank that was killed asks a peer first.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <wherry/base.h>
#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "command.h"
#include "demo_control.h"
#include "demo_launch.h"
#include "demo_model.h"
#include "demo_options.h"
#include "demo_run.h"
#include "show.h"

enum {
    TIMEOUT_MS = 60000, /**< For each thing that a rank waits for. */
    LOOK_MS = 2,        /**< How often a rank that may not go on looks whether somebody asks for its state. */
};

typedef struct demo_rank {
    wh_demo_seat seat;
    int64_t step;
    int64_t limit;
    bool quit;
    wh_demo_model *model;
    wherry_group *group;
    wherry_transport *transport;
} demo_rank;

/** Without somebody to tell there is no demo: then the rank ends too. */
static void tell(const demo_rank *r, const wh_demo_message *message) {
    if (!wh_demo_control_send(r->seat.control, message)) {
        _exit(WH_EXIT_FAILED);
    }
}

static void tell_failure(const demo_rank *r, const char *what, const wherry_error *error) {
    wh_demo_message message = {.kind = WH_DEMO_FAILED};
    snprintf(message.text, sizeof(message.text), "%s: %s", what, error->message);
    tell(r, &message);
}

static void tell_log(void *context, wherry_log_level level, const char *line) {
    wh_demo_message message = {.kind = WH_DEMO_LOG};
    (void)level;
    snprintf(message.text, sizeof(message.text), "%s", line);
    tell(context, &message);
}

static void init_transfer(const demo_rank *r, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TIMEOUT_MS;
    options->lanes = strcmp(r->seat.lane, "auto") == 0 ? NULL : r->seat.lane;
    options->verify = r->seat.verify ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
}

/** Serves those who ask. That one of them fails is its own affair: it says so, and this rank trains on. */
static wherry_status lend(demo_rank *r, const int32_t *ranks, size_t count, wherry_error *error) {
    wherry_transfer_options options;
    wherry_outcome outcomes[WH_DEMO_RANKS_MAX];
    wherry_value *state;
    init_transfer(r, &options);
    options.step = r->step;
    double begin = wh_clock();
    wherry_status status = wh_demo_model_state(r->model, r->step, &state, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_checkpoint_send(r->transport, ranks, count, state, &options, outcomes, error);
    wherry_value_destroy(state);
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i].status == WHERRY_OK) {
            tell(r, &(wh_demo_message){
                        .kind = WH_DEMO_LENT, .peer = ranks[i], .step = r->step, .seconds = wh_clock() - begin});
        } else if (outcomes[i].status == WHERRY_CLOSED) {
            *error = outcomes[i].error;
            return WHERRY_CLOSED;
        }
    }
    return WHERRY_OK;
}

static wherry_status serve(demo_rank *r, wherry_error *error) {
    int32_t ranks[WH_DEMO_RANKS_MAX];
    size_t count = wherry_transport_waiting(r->transport, ranks, WH_DEMO_RANKS_MAX);
    return count ? lend(r, ranks, count, error) : WHERRY_OK;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/** Receives a peer's state into this model's memory; the step comes with it. */
static wherry_status heal_from(demo_rank *r, int32_t peer, wherry_error *error) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    wherry_value *target;
    wherry_value *state;
    wherry_status status = wh_demo_model_state(r->model, 0, &target, error);
    if (status != WHERRY_OK) {
        return status;
    }
    init_transfer(r, &options);
    options.target = give_target;
    options.target_context = target;
    options.stats = &stats;
    status = wherry_checkpoint_recv(r->transport, peer, &options, &state, error);
    if (status == WHERRY_OK) {
        r->step = wherry_int_get(wherry_dict_get(state, "step"));
        wherry_value_destroy(state);
        wh_demo_message message = {.kind = WH_DEMO_HEALED,
                                   .peer = peer,
                                   .step = r->step,
                                   .bytes = stats.bytes_moved,
                                   .seconds = stats.data_seconds,
                                   .verified = stats.verified};
        snprintf(message.text, sizeof(message.text), "%s", stats.lane);
        tell(r, &message);
    }
    wherry_value_destroy(target);
    return status;
}

/** Asks the living ranks, the next one first, so that not always the same one is held up. */
static wherry_status heal(demo_rank *r, wherry_error *error) {
    wherry_status status = WHERRY_PEER_LOST;
    snprintf(error->message, sizeof(error->message), "no other rank is alive");
    for (int i = 1; i < r->seat.ranks && status != WHERRY_OK; i++) {
        int32_t peer = (r->seat.rank + i) % r->seat.ranks;
        if (wherry_group_alive(r->group, peer)) {
            status = heal_from(r, peer, error);
        }
    }
    return status;
}

static wherry_status enter(demo_rank *r, wherry_error *error) {
    char address[WH_DEMO_ADDRESS_MAX + 64];
    wherry_group_options options;
    wherry_status status = wh_demo_model_create(r->seat.size, &r->model, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_group_options_init(&options);
    options.timeout_ms = TIMEOUT_MS;
    snprintf(address, sizeof(address), "%s?rank=%d&size=%d", r->seat.address, r->seat.rank, r->seat.ranks);
    status = wherry_group_join(address, &options, &r->group, error);
    if (status == WHERRY_OK) {
        status = wherry_transport_create(r->group, NULL, &r->transport, error);
    }
    if (status == WHERRY_OK) {
        tell(r, &(wh_demo_message){.kind = WH_DEMO_JOINED});
        status = r->seat.heal ? heal(r, error) : WHERRY_OK;
    }
    return status;
}

static void obey(demo_rank *r, const wh_demo_message *message) {
    switch (message->kind) {
    case WH_DEMO_LIMIT:
        r->limit = message->step;
        break;
    case WH_DEMO_FINISH:
        tell(r, &(wh_demo_message){.kind = WH_DEMO_DIGEST, .step = r->step, .digest = wh_demo_model_digest(r->model)});
        break;
    default:
        r->quit = true;
        break;
    }
}

static wherry_status train(demo_rank *r, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !r->quit) {
        wh_demo_message message;
        wh_demo_got got = wh_demo_control_receive(r->seat.control, r->step < r->limit ? 0 : LOOK_MS, &message);
        if (got == WH_DEMO_GOT_END) {
            break; /* the demo is over */
        }
        if (got == WH_DEMO_GOT_ONE) {
            obey(r, &message);
            continue;
        }
        status = serve(r, error);
        if (status == WHERRY_OK && r->step < r->limit) {
            wh_demo_digest digest = wh_demo_model_train(r->model, ++r->step);
            tell(r, &(wh_demo_message){.kind = WH_DEMO_STEPPED, .step = r->step, .digest = digest});
        }
    }
    return status;
}

int wh_demo_rank_command(int argc, char **argv) {
    demo_rank r = {0};
    wherry_error error;
    if (!wh_demo_seat_parse(argc, argv, &r.seat)) {
        fprintf(stderr, "wherry demo-rank: only `wherry demo` starts this\n");
        return WH_EXIT_USAGE;
    }
    /* Nobody is left behind, even where the conductor is killed; the second line is for one that was before the first. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != r.seat.parent) {
        return WH_EXIT_FAILED;
    }
    wherry_log_to(tell_log, &r);
    if (r.seat.verbose) {
        wherry_log_set_level(WHERRY_LOG_INFO);
    }
    const char *what = "it could not take its place";
    wherry_status status = enter(&r, &error);
    if (status == WHERRY_OK) {
        what = "it could not train on";
        status = train(&r, &error);
    }
    if (status != WHERRY_OK) {
        tell_failure(&r, what, &error);
    }
    wherry_transport_destroy(r.transport);
    wherry_group_leave(r.group);
    wh_demo_model_destroy(r.model);
    return status == WHERRY_OK ? EXIT_SUCCESS : WH_EXIT_FAILED;
}

const wh_command wh_command_demo_rank = {.name = "demo-rank", .operands = "", .text = "", .run = wh_demo_rank_command};
