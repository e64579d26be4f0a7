#include "trial.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/base.h>
#include <wherry/checkpoint.h>
#include <wherry/group.h>
#include <wherry/tensor.h>

#include "interrupt.h"
#include "show.h"

enum { TIMEOUT_MS = 120000, JOIN_MS = 60000, TENSORS = 16, RESULT_TAG = 1, PATTERN = 0x5a };

/** One side of a trial. */
typedef struct side {
    wh_trial *trial;
    wherry_group *group;
    wherry_transport *transport;
    wherry_value *state;
    int32_t rank;
} side;

static wherry_status fail(wherry_error *error, wherry_status status, const char *what) {
    *error = (wherry_error){.status = status, .errnum = errno, .rank = -1, .offset = UINT64_MAX};
    snprintf(error->message, sizeof(error->message), "%s: %s", what, strerror(errno));
    return status;
}

/* ---- the state ---- */

static wherry_status add_tensor(wherry_value *state, int number, uint64_t bytes, wherry_error *error) {
    wherry_storage *storage;
    wherry_value *tensor = NULL;
    char name[32];
    int64_t shape[] = {(int64_t)bytes};
    snprintf(name, sizeof(name), "tensor%d", number);
    wherry_status status = wherry_storage_allocate(bytes, wherry_device_cpu(), &storage, error);
    if (status != WHERRY_OK) {
        return status;
    }
    memset(wherry_storage_data(storage), PATTERN, bytes);
    status = wherry_tensor_create(&(wherry_tensor){.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = shape},
                                  &tensor, error);
    wherry_storage_unref(storage);
    if (status == WHERRY_OK) {
        status = wherry_dict_put(state, name, tensor, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(tensor);
    }
    return status;
}

static wherry_status make_state(uint64_t bytes, wherry_value **state_p, wherry_error *error) {
    wherry_value *state;
    wherry_status status = wherry_dict_create(&state, error);
    for (int i = 0; status == WHERRY_OK && i < TENSORS; i++) {
        status = add_tensor(state, i, bytes / TENSORS, error);
    }
    if (status == WHERRY_OK) {
        *state_p = state;
    }
    return status;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/* ---- a lane ---- */

static void init_options(const wh_trial_lane *lane, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TIMEOUT_MS;
    options->lanes = *lane->name ? lane->name : NULL;
    options->verify = WHERRY_VERIFY_OFF;
    options->interrupt = wh_interrupted;
}

/** @return the status that ends the lane's turn. What the source knows better than the receiver goes into reason. */
static wherry_status send_all(const side *s, const wh_trial_lane *lane, char *reason, size_t size) {
    wherry_transfer_options options;
    wherry_outcome outcome;
    wherry_error error;
    wherry_status status = WHERRY_OK;
    init_options(lane, &options);
    for (uint32_t i = 0; status == WHERRY_OK && i <= s->trial->repeats; i++) {
        status = wherry_checkpoint_send(s->transport, (int32_t[]){1}, 1, s->state, &options, &outcome, &error);
    }
    if (status != WHERRY_OK) {
        snprintf(reason, size, "%s", outcome.stats.reasons);
    }
    return status;
}

static void receive_all(const side *s, wh_trial_lane *lane) {
    wherry_transfer_options options;
    wherry_stats stats;
    wherry_error error;
    init_options(lane, &options);
    options.target = give_target;
    options.target_context = s->state;
    options.stats = &stats;
    for (uint32_t i = 0; i <= s->trial->repeats && lane->status == WHERRY_OK; i++) {
        wherry_value *received;
        double begin = wh_clock();
        lane->status = wherry_checkpoint_recv(s->transport, 0, &options, &received, &error);
        if (lane->status == WHERRY_OK) {
            wherry_value_destroy(received);
            if (i) {
                lane->seconds[lane->repeats++] = wh_clock() - begin;
            }
        }
    }
    snprintf(lane->taken, sizeof(lane->taken), "%s", stats.lane);
    snprintf(lane->reason, sizeof(lane->reason), "%s", lane->status == WHERRY_OK ? stats.reasons : error.message);
    lane->workers = stats.workers;
    lane->refused = lane->status != WHERRY_OK && (lane->status != WHERRY_UNSUPPORTED || stats.lanes_refused);
}

/** Keeps what a list of reasons says of a lane itself: "ring: not allowed here; cma: refused, ..." */
static void keep_reason(wh_trial_lane *lane, const char *reasons) {
    char mark[WHERRY_LANE_NAME_MAX + 4];
    char kept[sizeof(lane->reason)];
    size_t skip = (size_t)snprintf(mark, sizeof(mark), "%s: ", lane->name);
    const char *at = *lane->name ? strstr(reasons, mark) : NULL;
    snprintf(kept, sizeof(kept), "%s", at ? at + skip : reasons);
    memcpy(lane->reason, kept, sizeof(kept));
}

/** The source's turn at a lane: the result comes from the receiver. */
static wherry_status lead(const side *s, wh_trial_lane *lane, wherry_error *error) {
    char own[WHERRY_LANE_REASONS_MAX] = "";
    void *bytes;
    size_t size;
    send_all(s, lane, own, sizeof(own));
    wherry_status status = wherry_group_receive(s->group, 1, RESULT_TAG, wh_interrupted(NULL) ? 0 : TIMEOUT_MS, &bytes,
                                                &size, NULL, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (size == sizeof(*lane)) {
        memcpy(lane, bytes, size);
        lane->repeats = lane->repeats < WH_TRIAL_REPEATS_MAX ? lane->repeats : WH_TRIAL_REPEATS_MAX;
    }
    wherry_free(bytes);
    if (lane->status != WHERRY_OK) {
        keep_reason(lane, *own ? own : lane->reason); /* why a lane was not offered only the source knows */
    }
    return size == sizeof(*lane) ? WHERRY_OK : fail(error, WHERRY_BAD_VERSION, "rank 1 runs another version of wherry");
}

/* ---- all lanes ---- */

static void list_lanes(side *s) {
    wh_trial *trial = s->trial;
    if (trial->only) {
        snprintf(trial->lanes[0].name, sizeof(trial->lanes[0].name), "%s", trial->only);
        trial->count = 1;
        return;
    }
    const char *name;
    trial->count = 1; /* all of them allowed */
    for (size_t i = 0; (name = wherry_transport_lane(s->transport, i)) && trial->count < WH_TRIAL_LANES_MAX; i++) {
        snprintf(trial->lanes[trial->count].name, sizeof(trial->lanes[0].name), "%s", name);
        trial->count++;
    }
}

static wherry_status try_lanes(side *s, wherry_error *error) {
    wherry_status status = wherry_transport_create(s->group, NULL, &s->transport, error);
    if (status == WHERRY_OK && s->rank < 2) {
        status = make_state(s->trial->bytes, &s->state, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    list_lanes(s);
    for (size_t i = 0; status == WHERRY_OK && i < s->trial->count && s->rank < 2; i++) {
        wh_trial_lane *lane = s->trial->lanes + i;
        if (s->rank == 0) {
            status = lead(s, lane, error);
        } else {
            receive_all(s, lane);
            status = wherry_group_send(s->group, 0, RESULT_TAG, lane, sizeof(*lane), TIMEOUT_MS, error);
        }
    }
    if (status == WHERRY_OK && s->trial->group) {
        status = wherry_group_barrier(s->group, 1, TIMEOUT_MS, error); /* those who look on wait for the two */
    }
    return status;
}

static void end_side(side *s) {
    wherry_transport_destroy(s->transport);
    wherry_group_leave(s->group);
    wherry_value_destroy(s->state);
}

static wherry_status join(side *s, const char *address, uint32_t wait_for, uint32_t flags, wherry_error *error) {
    wherry_group_options options;
    wherry_group_options_init(&options);
    options.timeout_ms = JOIN_MS;
    options.wait_for = wait_for;
    options.flags = flags;
    options.interrupt = wh_interrupted;
    return wherry_group_join(address, &options, &s->group, error);
}

/* ---- two processes here ---- */

static _Noreturn void be_receiver(wh_trial *trial, int pipe_end, pid_t parent) {
    char address[2 * WHERRY_GROUP_MEETING_MAX];
    side s = {.trial = trial, .rank = 1};
    wherry_error error;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ssize_t size = getppid() == parent ? read(pipe_end, address, sizeof(address) - 1) : 0;
    address[size > 0 ? size : 0] = '\0';
    wherry_status status = size > 0 ? join(&s, address, 2, WHERRY_JOIN_CLIENT, &error) : WHERRY_CANCELLED;
    if (status == WHERRY_OK) {
        status = try_lanes(&s, &error);
    }
    end_side(&s);
    _exit(status == WHERRY_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

static wherry_status host(side *s, int pipe_end, wherry_error *error) {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    char address[2 * WHERRY_GROUP_MEETING_MAX];
    const char *more = s->trial->tcp ? "&shortcut=0" : "";
    snprintf(address, sizeof(address), "tcp://127.0.0.1:0?rank=0&size=2%s", more);
    wherry_status status = join(s, address, 1, 0, error);
    if (status == WHERRY_OK) {
        status = wherry_group_meeting(s->group, meeting, error);
    }
    if (status == WHERRY_OK) {
        snprintf(address, sizeof(address), "%s?rank=1&size=2%s", meeting, more);
        status = write(pipe_end, address, strlen(address)) > 0 ? WHERRY_OK : fail(error, WHERRY_SYSTEM, "a pipe");
    }
    return status == WHERRY_OK ? try_lanes(s, error) : status;
}

static wherry_status run_here(wh_trial *trial, wherry_error *error) {
    int ends[2];
    pid_t parent = getpid();
    side s = {.trial = trial, .rank = 0};
    if (pipe(ends) != 0) {
        return fail(error, WHERRY_SYSTEM, "a pipe");
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        be_receiver(trial, ends[0], parent);
    }
    close(ends[0]);
    wherry_status status = child > 0 ? host(&s, ends[1], error) : fail(error, WHERRY_SYSTEM, "a second process");
    close(ends[1]);
    end_side(&s);
    if (child > 0) {
        if (status != WHERRY_OK) {
            kill(child, SIGKILL);
        }
        waitpid(child, NULL, 0);
    }
    return status;
}

static wherry_status run_in_group(wh_trial *trial, wherry_error *error) {
    side s = {.trial = trial};
    wherry_status status = join(&s, trial->group, 0, 0, error);
    if (status == WHERRY_OK && wherry_group_size(s.group) < 2) {
        errno = 0;
        status = fail(error, WHERRY_INVALID_ARGUMENT, "a group of one rank has nobody to send to");
    }
    if (status == WHERRY_OK) {
        s.rank = trial->rank = wherry_group_rank(s.group);
        status = try_lanes(&s, error);
    }
    end_side(&s);
    return status;
}

wherry_status wh_trial_run(wh_trial *trial, wherry_error *error) {
    trial->count = 0;
    memset(trial->lanes, 0, sizeof(trial->lanes));
    return trial->group ? run_in_group(trial, error) : run_here(trial, error);
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one;
    double b = *(const double *)other;
    return (a > b) - (a < b);
}

double wh_trial_median(const wh_trial_lane *lane) {
    double sorted[WH_TRIAL_REPEATS_MAX];
    memcpy(sorted, lane->seconds, sizeof(sorted));
    qsort(sorted, lane->repeats, sizeof(*sorted), compare);
    return lane->repeats ? sorted[lane->repeats / 2] : 0;
}
