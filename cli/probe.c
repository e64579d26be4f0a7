#include "probe.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/group.h>

#include "bench.h"
#include "command.h"
#include "output.h"

enum {
    TRANSFER_MS = 120000, /**< Time limit per transfer, long enough for a slow network. */
    CONNECT_S = 1,        /**< Time limit per connection of wh_connect. */
    LOOK_MS = 20,         /**< How often to look whether the other process has joined. */
    JOIN_MS = 60000,      /**< Time limit for joining. Ranks may start at different times. */
    TENSORS = 16,
    TAG_RESULT = 1,
};

/** One process of the probe. Rank 0 sends, rank 1 receives, and other ranks wait. */
typedef struct side {
    wh_probe *probe;
    wherry_group *group;
    wherry_transport *transport;
    bench_state state;
    int32_t rank;
    double connect_seconds;
} side;

/* ---- one lane ---- */

static void init_options(const wh_probe_lane *lane, wherry_transfer_options *options) {
    wherry_transfer_options_init(options);
    options->timeout_ms = TRANSFER_MS;
    options->lanes = *lane->name ? lane->name : NULL;
    options->verify = WHERRY_VERIFY_OFF;
    options->interrupt = wh_interrupted;
}

/** Finds a lane among the skipped lanes of a transfer. @return NULL if it was not skipped. */
static const wherry_skipped_lane *find_skipped(const wherry_stats *stats, const char *lane) {
    for (uint32_t i = 0; i < stats->skipped_count; i++) {
        if (strcmp(stats->skipped[i].lane, lane) == 0) {
            return stats->skipped + i;
        }
    }
    return NULL;
}

static void receive_repeats(const side *s, wh_probe_lane *lane) {
    wherry_transfer_options options;
    wherry_stats stats = {0};
    wherry_error error = {.message = ""};
    init_options(lane, &options);
    options.target = bench_give_target;
    options.target_context = s->state.value;
    options.stats = &stats;
    for (uint32_t i = 0; i <= s->probe->repeats && lane->status == WHERRY_OK; i++) {
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
    snprintf(lane->used, sizeof(lane->used), "%s", stats.lane);
    if (lane->status != WHERRY_OK) {
        const wherry_skipped_lane *skipped = find_skipped(&stats, lane->name);
        snprintf(lane->reason, sizeof(lane->reason), "%s", skipped ? skipped->text : error.message);
        lane->refused = lane->status != WHERRY_UNSUPPORTED || stats.lanes_failed;
    }
}

/** Sends over a lane, then waits for the receiver's result. */
static wherry_status send_repeats(const side *s, wh_probe_lane *lane, wherry_error *error) {
    wherry_transfer_options options;
    wherry_outcome outcome = {.status = WHERRY_OK};
    void *bytes;
    size_t size;
    wherry_status sent = WHERRY_OK;
    init_options(lane, &options);
    for (uint32_t i = 0; i <= s->probe->repeats; i++) {
        WH_THEN(sent,
                wherry_checkpoint_send(s->transport, (int32_t[]){1}, 1, s->state.value, &options, &outcome, error));
    }
    const wherry_skipped_lane *skipped = find_skipped(&outcome.stats, lane->name);
    wherry_status status = wherry_group_receive(s->group, 1, TAG_RESULT, wh_interrupted(NULL) ? 0 : TRANSFER_MS, &bytes,
                                                &size, NULL, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (size == sizeof(*lane)) {
        memcpy(lane, bytes, size);
        lane->repeats = lane->repeats < WH_PROBE_REPEATS_MAX ? lane->repeats : WH_PROBE_REPEATS_MAX;
    } else {
        status = wh_fail_error(error, WHERRY_BAD_VERSION,
                               "rank 1 runs another version of wherry; install the same version on all hosts");
    }
    wherry_free(bytes);
    /* Only the source knows why it did not offer a lane. */
    if (sent != WHERRY_OK && lane->status != WHERRY_OK && skipped) {
        snprintf(lane->reason, sizeof(lane->reason), "%s", skipped->text);
    }
    return status;
}

/* ---- all lanes ---- */

static void list_lanes(side *s) {
    wh_probe *probe = s->probe;
    const char *name;
    probe->count = 1;
    if (probe->only) {
        snprintf(probe->lanes[0].name, sizeof(probe->lanes[0].name), "%s", probe->only);
        return;
    }
    for (size_t i = 0; (name = wherry_transport_lane(s->transport, i)) && probe->count < WH_PROBE_LANES_MAX; i++) {
        snprintf(probe->lanes[probe->count].name, sizeof(probe->lanes[0].name), "%s", name);
        probe->count++;
    }
}

static wherry_status try_lanes(side *s, wherry_error *error) {
    wherry_status status = wherry_transport_create(s->group, NULL, &s->transport, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (s->rank < 2) {
        s->state = bench_state_uniform(TENSORS, s->probe->bytes / TENSORS);
        bench_state_fill(&s->state, s->rank == 0);
    }
    list_lanes(s);
    for (size_t i = 0; status == WHERRY_OK && i < s->probe->count && s->rank < 2; i++) {
        wh_probe_lane *lane = s->probe->lanes + i;
        if (s->rank == 0) {
            status = send_repeats(s, lane, error);
        } else {
            receive_repeats(s, lane);
            lane->connect_seconds = s->connect_seconds;
            status = wherry_group_send(s->group, 0, TAG_RESULT, lane, sizeof(*lane), TRANSFER_MS, error);
        }
    }
    if (s->probe->group) { /* The other ranks wait here until ranks 0 and 1 are done. */
        WH_THEN(status, wherry_group_barrier(s->group, 1, TRANSFER_MS, error));
    }
    return status;
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

static void leave(side *s) {
    wherry_transport_destroy(s->transport);
    wherry_group_leave(s->group);
    if (s->state.value) {
        bench_state_destroy(&s->state);
    }
}

/* ---- two processes on this machine ---- */

/**
 * Runs in the child process. Reads the address of the group from the socket, and joins. If that
 * fails, writes why.
 */
static _Noreturn void run_receiver(wh_probe *probe, int wire, pid_t parent) {
    char address[2 * WHERRY_GROUP_MEETING_MAX];
    side s = {.probe = probe, .rank = 1};
    wherry_error error;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ssize_t size = getppid() == parent ? read(wire, address, sizeof(address) - 1) : 0;
    address[size > 0 ? size : 0] = '\0';
    wherry_status status = size > 0 ? join(&s, address, 2, WHERRY_JOIN_CLIENT, &error) : WHERRY_CANCELLED;
    if (status != WHERRY_OK && size > 0 && write(wire, error.message, strlen(error.message)) < 0) {
        _exit(EXIT_FAILURE);
    }
    WH_THEN(status, try_lanes(&s, &error));
    leave(&s);
    _exit(status == WHERRY_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}

/** Waits until the receiver has joined, or has written why it could not. */
static wherry_status await_receiver(const side *s, int wire, wherry_error *error) {
    char said[512];
    struct pollfd at = {wire, POLLIN, 0};
    while (!wherry_group_alive(s->group, 1)) {
        if (wh_interrupted(NULL)) {
            return wh_fail_error(error, WHERRY_CANCELLED, "interrupted");
        }
        if (poll(&at, 1, LOOK_MS) == 1) {
            ssize_t size = read(wire, said, sizeof(said));
            return wh_fail_error(error, WHERRY_PEER_LOST, "a second process could not join: %.*s",
                                 size > 0 ? (int)size : 0, said);
        }
    }
    return WHERRY_OK;
}

static wherry_status run_source(side *s, int wire, wherry_error *error) {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    char address[2 * WHERRY_GROUP_MEETING_MAX];
    const char *more = s->probe->tcp ? "&shortcut=0" : "";
    snprintf(address, sizeof(address), "tcp://127.0.0.1:0?rank=0&size=2%s", more);
    wherry_status status = join(s, address, 1, 0, error);
    WH_THEN(status, wherry_group_meeting(s->group, meeting, error));
    if (status == WHERRY_OK) {
        snprintf(address, sizeof(address), "%s?rank=1&size=2%s", meeting, more);
        if (write(wire, address, strlen(address)) < 0) {
            status = wh_fail_error(error, WHERRY_SYSTEM, "cannot write to a socket");
        }
    }
    WH_THEN(status, await_receiver(s, wire, error));
    WH_THEN(status, try_lanes(s, error));
    return status;
}

static wherry_status run_here(wh_probe *probe, wherry_error *error) {
    int ends[2];
    pid_t parent = getpid();
    side s = {.probe = probe};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot create a pair of sockets");
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        run_receiver(probe, ends[0], parent);
    }
    close(ends[0]);
    wherry_status status = child > 0 ? run_source(&s, ends[1], error)
                                     : wh_fail_error(error, WHERRY_SYSTEM, "cannot start a second process");
    close(ends[1]);
    leave(&s);
    if (child > 0) {
        if (status != WHERRY_OK) {
            kill(child, SIGKILL);
        }
        waitpid(child, NULL, 0);
    }
    return status;
}

static wherry_status run_in_group(wh_probe *probe, wherry_error *error) {
    side s = {.probe = probe};
    double begin = wh_clock();
    wherry_status status = join(&s, probe->group, 0, 0, error);
    probe->join_seconds = wh_clock() - begin;
    if (status == WHERRY_OK && wherry_group_size(s.group) < 2) {
        status = wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the group has only one rank; start at least two");
    }
    if (status == WHERRY_OK) {
        char meeting[WHERRY_GROUP_MEETING_MAX];
        s.rank = probe->rank = wherry_group_rank(s.group);
        if (s.rank == 1 && wherry_group_meeting(s.group, meeting, NULL) == WHERRY_OK &&
            !wh_connect(meeting, &s.connect_seconds)) {
            s.connect_seconds = 0;
        }
        /* Do this now, because rank 1 may leave first. */
        probe->linked = s.rank == 0 && wherry_group_describe(s.group, 1, &probe->link, NULL) == WHERRY_OK;
        status = try_lanes(&s, error);
    }
    leave(&s);
    return status;
}

/** Connects a new socket, and closes it. @return 0, or errno. */
static int connect_to(const struct sockaddr *address, socklen_t size) {
    const struct timeval limit = {.tv_sec = CONNECT_S};
    int end = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(end, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int why = connect(end, address, size) == 0 ? 0 : errno;
    close(end);
    return why == EINPROGRESS ? ETIMEDOUT : why;
}

bool wh_connect(const char *address, double *seconds_p) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];
    char port[8];
    double begin = wh_clock();
    int why = ECONNREFUSED;
    if (strncmp(address, "unix://", 7) == 0) {
        address += 7;
        snprintf(local.sun_path, sizeof(local.sun_path), "%.*s", (int)strcspn(address, "?"), address);
        why = connect_to((const struct sockaddr *)&local, sizeof(local));
    } else if (sscanf(address, "tcp://[%255[^]]]:%7[0-9]", host, port) != 2 &&
               sscanf(address, "tcp://%255[^:]:%7[0-9]", host, port) != 2) {
        why = EINVAL;
    } else if (getaddrinfo(host, port, &hints, &found) != 0) {
        why = EADDRNOTAVAIL;
    }
    for (const struct addrinfo *at = found; at && why; at = at->ai_next) {
        int now = connect_to(at->ai_addr, at->ai_addrlen);
        why = now == ECONNREFUSED ? why : now;
    }
    if (found) {
        freeaddrinfo(found);
    }
    *seconds_p = wh_clock() - begin;
    errno = why;
    return !why;
}

bool wh_probe_suits(const char *lane) {
    return strcmp(lane, "cuda_ipc") != 0 && strcmp(lane, "nccl") != 0 && strcmp(lane, "blocks") != 0;
}

wherry_status wh_probe_run(wh_probe *probe, wherry_error *error) {
    probe->count = 0;
    memset(probe->lanes, 0, sizeof(probe->lanes));
    return probe->group ? run_in_group(probe, error) : run_here(probe, error);
}
