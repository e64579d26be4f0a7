/*
 * Ranks 0, 1 and 2 send one state, and rank 3 receives it from all of them. At every named point, a
 * source takes its offer back, or loses all its connections, or is cut off from the network: the
 * receive succeeds with the others, and every byte is right. Then all sources are lost in the same
 * ways, or are stopped: the receive fails in time, and says what is missing. test_sources.c kills
 * and stops one of several sources.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/point.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/source_points.h"
#include "support/two_hosts.h"

enum { SOURCES = 3, RECEIVER = 3, RANKS = 4, STEP = 7 };

/** The victim that may pass points itself. */
enum { FIRST = 0 };

/**
 * Flags of the job. Flags LOST + r and SENDING + r are about the source of rank r. ENDED: the send
 * of rank FIRST has ended.
 */
enum { RECEIVED, AT_POINT, ENDED, LOST, SENDING = LOST + SOURCES };

/** Number of cases that run concurrently. They wait most of the time. */
enum { AT_ONCE = 8 };

/**
 * A source that is silent is not lost before DEAD_AFTER_MS: the receive must do without it earlier.
 * It may take LOSS_MS; with sources that are cut off CUT_MS, which is before its deadline but may
 * be after NO_PROGRESS_MS. If all sources are silent, it waits for STALE_MS.
 */
enum {
    DEAD_AFTER_MS = 60000,
    NO_PROGRESS_MS = 15000 * JOB_SLOW,
    DEADLINE_MS = 2 * JOB_MS,
    LOSS_MS = 8000 * JOB_SLOW,
    CUT_MS = 3 * DEADLINE_MS / 4,
    STALE_MS = 2000 * JOB_SLOW,
    LIMIT_MS = 8000 * JOB_SLOW,
};

/** How a source is lost. */
typedef enum loss {
    REVOKED, /**< It cancels its send, and then overwrites its state. */
    RESET,   /**< All its connections end. */
    CUT,     /**< The link between its host and the receiver's loses all packets. */
    STOPPED, /**< Its process is stopped. */
} loss;

static const char *const loss_names[] = {"revoked", "reset", "cut off", "stopped"};

/** One case. */
typedef struct scene {
    char name[120];
    source_point where;
    loss how;
    const char *lane;
    bool tcp;
    wherry_verify verify;
    int sources;              /**< Number of sources that are named. */
    bool victims[SOURCES];    /**< Those that are lost. */
    const two_hosts *network; /**< For CUT. */
} scene;

static job_state sent;
static job_state target;
static job_state before;

/** Rank 1 is on the receiver's host if there are two. */
static const int32_t near_and_far[SOURCES] = {0, 1, 2};
static const int32_t far[] = {0, 2};

enum { FAR = sizeof(far) / sizeof(*far) };

/** The rank of this process, for hooks and signal handlers. */
static job_rank *own;
static wherry_cancel *cancel;
static atomic_int passes;

/* ---- how sources are lost ---- */

static bool is_connection(int fd) {
    int type = 0;
    int listens = 1;
    socklen_t size = sizeof(int);
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens;
}

/** In a source: takes its offer back, or ends all its connections, as a reset of them would. */
static void lose_self(int signal) {
    enum { DESCRIPTORS = 64 };
    int errnum = errno; /* NOLINT(bugprone-signal-handler,cert-sig30-c): errno is allowed */
    (void)signal;
    for (int fd = STDERR_FILENO + 1; fd < DESCRIPTORS; fd++) {
        if (is_connection(fd)) {
            (void)shutdown(fd, SHUT_RDWR);
        }
    }
    atomic_store(own->job->flags + LOST + own->rank, 1);
    errno = errnum;
}

/** In the receiver: makes a source lose itself, and waits until it has. */
static void lose(const scene *s, int32_t rank) {
    if (s->how == RESET) {
        job_send_signal(own, rank, SIGUSR1);
        job_await(own, LOST + rank);
    } else if (s->how == STOPPED) {
        job_send_signal(own, rank, SIGSTOP);
        wh_await_halted(atomic_load(own->job->pids + rank));
    } else if (s->how == REVOKED) {
        job_await(own, LOST + rank); /* It has noticed AT_POINT. */
    }
}

/** The hook. All sources are lost that shall be. */
static void lose_there(const char *name) {
    const scene *s = own->scene;
    if (strcmp(name, s->where.name) != 0 || atomic_fetch_add(&passes, 1) + 1 != s->where.count) {
        return;
    }
    if (s->how == CUT) {
        job_check(own, two_hosts_link(s->network, false), "the link cannot be cut");
    }
    atomic_store(&own->job->signalled_at, wh_clock_now());
    job_announce(own, AT_POINT);
    for (int32_t rank = 0; rank < SOURCES && own->rank == RECEIVER; rank++) {
        if (s->victims[rank]) {
            lose(s, rank);
        }
    }
    if (own->rank != RECEIVER && s->how == REVOKED) {
        wherry_cancel_request(cancel);
    } else if (own->rank != RECEIVER && s->how == RESET) {
        lose_self(0);
    }
}

static bool is_at_point(void *context) {
    job_rank *self = context;
    return atomic_load(self->job->flags + AT_POINT);
}

/** True if the send of rank FIRST has ended. If it was not needed, it does not pass all points. */
static bool is_ended(job_rank *self) {
    return atomic_load(self->job->flags + ENDED);
}

/* ---- one source is lost ---- */

static wherry_transfer_options options_of(const scene *s) {
    wherry_transfer_options options = job_options(s->lane);
    options.timeout_ms = DEADLINE_MS;
    options.no_progress_ms = NO_PROGRESS_MS;
    options.verify = s->verify;
    options.threads = 2;
    options.step = STEP;
    return options;
}

static void set_up_loss(job_rank *self) {
    wherry_error error;
    own = self;
    signal(SIGUSR1, lose_self);
    job_must(self, wherry_cancel_create(&cancel, &error), error);
}

/** Stays in the group until the receiver is done. */
static void await_receiver(job_rank *self) {
    wh_deadline limit = wh_deadline_in_ms(2 * DEADLINE_MS);
    while (!atomic_load(self->job->flags + RECEIVED)) {
        job_check(self, !wh_deadline_passed(limit), "the receiver is not done");
        usleep(500);
    }
}

static void be_source(job_rank *self) {
    const scene *s = self->scene;
    bool victim = s->victims[self->rank];
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    set_up_loss(self);
    if (self->rank == FIRST && s->where.at_source) {
        wh_point_hook = lose_there;
    }
    if (victim && s->how == REVOKED) {
        options.cancel = cancel;
        options.interrupt = is_at_point;
        options.interrupt_context = self;
    }
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    if (victim && s->how == REVOKED) {
        memset(sent.memory, 0xEE, sent.bytes); /* It may do so now. */
        job_announce(self, LOST + self->rank);
        job_check(self, status == WHERRY_CANCELLED || status == WHERRY_OK, "%s: %s", wherry_status_name(status),
                  error.message);
    }
    if (self->rank == FIRST) {
        job_announce(self, ENDED);
    }
    /* Any other loss may give the victim any result, but its call must end. */
    job_check(self, victim || status == WHERRY_OK, "the send of another source failed: %s: %s",
              wherry_status_name(status), error.message);
    await_receiver(self);
}

static void await_sources(job_rank *self) {
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        job_await(self, SENDING + rank);
        job_await_asleep(self, rank);
    }
}

static wherry_status receive(job_rank *self, wherry_transfer_options *options, wherry_stats *stats,
                             wherry_report **report_p, wherry_error *error) {
    const scene *s = self->scene;
    options->target = job_target;
    options->target_context = target.value;
    options->stats = stats;
    options->report_p = report_p;
    const int32_t *ranks = s->sources == SOURCES ? near_and_far : far;
    return wherry_checkpoint_recv_from(self->transport, ranks, (size_t)s->sources, options, NULL, error);
}

static void show(const scene *s, double ms, const wherry_stats *stats) {
    if (getenv("WHERRY_TEST_TIMES")) {
        fprintf(stderr, "# %5.0f ms: %s:", ms, s->name);
        for (int i = 0; i < s->sources; i++) {
            const wherry_source_stats *one = stats->sources + i;
            fprintf(stderr, " %d: %llu %s %s;", (int)one->rank, (unsigned long long)one->chunks,
                    wherry_status_name(one->status), one->reason);
        }
        fprintf(stderr, "\n");
    }
}

static void be_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    set_up_loss(self);
    await_sources(self);
    if (!s->where.at_source) {
        wh_point_hook = lose_there;
    }
    wherry_status status = receive(self, &options, &stats, &report, &error);
    bool lost = is_at_point(self);
    double ms = lost ? job_ms_since_signal(self->job) : 0;
    show(s, ms, &stats);
    job_check(self, status == WHERRY_OK, "%s after %.0f ms: %s", wherry_status_name(status), ms, error.message);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    /* A host that is cut off does not even refuse connections. */
    job_check(self, ms < (s->how == CUT ? CUT_MS : LOSS_MS), "the receive ended %.0f ms after the loss", ms);
    while (!lost && !is_ended(self)) {
        job_check(self, s->where.at_source, "the receiver has not passed the point");
        usleep(500);
        lost = is_at_point(self);
    }
    lost = is_at_point(self);
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        const wherry_source_stats *one = stats.sources + rank;
        job_check(self, s->victims[rank] || one->status == WHERRY_OK, "rank %d was lost: %s", (int)rank, one->reason);
        job_check(self, (one->status == WHERRY_OK) == !*one->reason, "rank %d has %s and the reason \"%s\"", (int)rank,
                  wherry_status_name(one->status), one->reason);
        /* A source that was reset may be back. One that is cut off may not have been needed. */
        job_check(self, !lost || !s->victims[rank] || s->how != REVOKED || s->where.late || one->status != WHERRY_OK,
                  "rank %d took its offer back, and the statistics do not say so", (int)rank);
    }
    if (s->how == CUT) {
        job_check(self, two_hosts_link(s->network, true), "the link cannot be restored");
    }
    job_announce(self, RECEIVED);
}

static job *start(scene *s, job_body source, job_body receiver) {
    snprintf(s->name, sizeof(s->name), "%s at \"%s\" %d, %s%s%s", loss_names[s->how], s->where.name, s->where.count,
             s->lane, s->tcp ? " over tcp" : "", s->verify == WHERRY_VERIFY_ON ? ", checked" : "");
    job *all = job_open(s->name, RANKS, s->tcp, DEAD_AFTER_MS);
    if (s->network) {
        assert_true(two_hosts_link(s->network, true)); /* A failed case may have left it cut. */
        all->host = TWO_HOSTS_ADDRESS;
        all->networks = s->network->namespaces;
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, rank == RECEIVER ? receiver : source, s, NULL);
    }
    return all;
}

static void run(scene *scenes, size_t count, job_body source, job_body receiver) {
    size_t failed = 0;
    for (size_t first = 0; first < count; first += AT_ONCE) {
        job *at_work[AT_ONCE];
        size_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
        for (size_t i = 0; i < some; i++) {
            at_work[i] = start(scenes + first + i, source, receiver);
        }
        for (size_t i = 0; i < some; i++) {
            failed += !job_close(at_work[i]);
        }
    }
    assert_int_equal(failed, 0);
}

/** All points for the source that is used. */
static void everywhere(loss how, const char *lane, bool tcp, wherry_verify verify) {
    scene scenes[SOURCE_POINTS];
    size_t count = 0;
    for (size_t i = 0; i < SOURCE_POINTS; i++) {
        const source_point *at = source_points + i;
        bool passed = (!at->no_cma || strcmp(lane, "cma") != 0) && !(tcp && at->planned && at->count > 1);
        if (passed) {
            scenes[count++] = (scene){.where = *at,
                                      .how = how,
                                      .lane = lane,
                                      .tcp = tcp,
                                      .verify = verify,
                                      .sources = SOURCES,
                                      .victims = {true, false, false}};
        }
    }
    run(scenes, count, be_source, be_receiver);
}

static void test_a_source_takes_its_offer_back(void **state) {
    (void)state;
    everywhere(REVOKED, "cma", false, WHERRY_VERIFY_DEFAULT);
    everywhere(REVOKED, "ring", false, WHERRY_VERIFY_DEFAULT);
    everywhere(REVOKED, "stream", false, WHERRY_VERIFY_DEFAULT);
    everywhere(REVOKED, "stream", true, WHERRY_VERIFY_ON);
}

static void test_a_source_is_reset(void **state) {
    (void)state;
    everywhere(RESET, "cma", false, WHERRY_VERIFY_ON);
    everywhere(RESET, "ring", false, WHERRY_VERIFY_DEFAULT);
    everywhere(RESET, "stream", false, WHERRY_VERIFY_DEFAULT);
    everywhere(RESET, "stream", true, WHERRY_VERIFY_DEFAULT);
}

/* ---- two of three sources are cut off ---- */

static two_hosts networks[AT_ONCE];

/** Each case that runs at the same time has its own link. @return NULL, or why there is none. */
static const char *open_networks(void) {
    const char *missing = NULL;
    for (int i = 0; i < AT_ONCE && !missing; i++) {
        missing = two_hosts_open(networks + i);
    }
    return missing;
}

static void close_networks(void) {
    for (int i = 0; i < AT_ONCE; i++) {
        two_hosts_close(networks + i);
    }
}

/** The sources on the other host are cut off, and the one on the receiver's host is not. */
static void test_sources_are_cut_off(void **state) {
    (void)state;
    scene scenes[SOURCE_POINTS];
    size_t count = 0;
    for (size_t i = 0; i < SOURCE_POINTS; i++) {
        if (!source_points[i].planned || source_points[i].count == 1) {
            scenes[count] = (scene){.where = source_points[i],
                                    .how = CUT,
                                    .lane = "stream",
                                    .tcp = true,
                                    .sources = SOURCES,
                                    .victims = {true, false, true},
                                    .network = networks + count % AT_ONCE};
            count++;
        }
    }
    run(scenes, count, be_source, be_receiver);
}

/* ---- all sources are lost ---- */

static void be_doomed_source(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    set_up_loss(self);
    job_announce(self, SENDING + self->rank);
    if (!s->victims[self->rank]) {
        await_receiver(self);
        return;
    }
    options.timeout_ms = LIMIT_MS;
    options.interrupt = s->how == REVOKED ? is_at_point : NULL;
    options.interrupt_context = self;
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    job_check(self, status != WHERRY_OK, "the receive cannot have succeeded");
    job_announce(self, LOST + self->rank);
    await_receiver(self);
}

/** It fails before its deadline, unless the sources may come back: then at its deadline. */
static void be_lonely_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    set_up_loss(self);
    options.threads = 1;
    options.no_progress_ms = STALE_MS;
    options.timeout_ms = s->how == RESET ? STALE_MS : DEADLINE_MS;
    await_sources(self);
    wh_point_hook = lose_there;
    uint64_t begin = wh_clock_now();
    wherry_status status = receive(self, &options, &stats, &report, &error);
    double ms = (double)(wh_clock_now() - begin) * 1e-6;
    show(s, ms, &stats);
    job_check(self, status != WHERRY_OK, "the receive has succeeded without a source");
    job_check(self, ms < (s->how == RESET ? LIMIT_MS : DEADLINE_MS), "the receive ended after %.0f ms: %s", ms,
              error.message);
    bool waits = s->how == RESET && status == WHERRY_TIMED_OUT;
    job_check(self, waits || strstr(error.message, "no source is left"), "%s: %s", wherry_status_name(status),
              error.message);
    for (int i = 0; i < s->sources; i++) {
        char name[16];
        snprintf(name, sizeof(name), "rank %d", (int)stats.sources[i].rank);
        job_check(self, waits || stats.sources[i].status != WHERRY_OK, "%s is not named in the statistics", name);
        job_check(self, waits || strstr(error.message, name), "the error does not name %s: %s", name, error.message);
    }
    /* A source that took its offer back has changed its state. */
    job_check_report(self, report, &error, &target, &before, s->how == REVOKED ? NULL : &sent);
    wherry_report_destroy(report);
    if (s->how == CUT) {
        job_check(self, two_hosts_link(s->network, true), "the link cannot be restored");
    }
    for (int32_t rank = 0; rank < SOURCES && s->how == STOPPED; rank++) {
        job_send_signal(self, rank, SIGCONT);
    }
    job_announce(self, RECEIVED);
}

/** Before the first byte, in the middle, and after the last byte. */
static void everyone(loss how, const char *lane, bool tcp) {
    static const source_point at[] = {
        {.name = "receiver has the offer", .count = 1},
        {.name = "receiver opened a chunk", .count = 1},
        {.name = "receiver closed a chunk", .count = 2},
        {.name = "receiver asks to confirm", .count = 1},
    };
    enum { COUNT = sizeof(at) / sizeof(*at) };
    scene scenes[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        scenes[i] = (scene){.where = at[i],
                            .how = how,
                            .lane = lane,
                            .tcp = tcp,
                            .sources = how == CUT ? FAR : SOURCES,
                            .victims = {true, how != CUT, true},
                            .network = how == CUT ? networks + i : NULL};
    }
    run(scenes, COUNT, be_doomed_source, be_lonely_receiver);
}

static void test_all_sources_take_their_offers_back(void **state) {
    (void)state;
    everyone(REVOKED, "cma", false);
    everyone(REVOKED, "stream", true);
}

static void test_all_sources_are_stopped(void **state) {
    (void)state;
    everyone(STOPPED, "cma", false);
    everyone(STOPPED, "ring", false);
    everyone(STOPPED, "stream", true);
}

static void test_all_sources_are_reset(void **state) {
    (void)state;
    everyone(RESET, "cma", false);
    everyone(RESET, "stream", true);
}

static void test_all_sources_are_cut_off(void **state) {
    (void)state;
    everyone(CUT, "stream", true);
}

static int set_up(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    sent = job_state_create(1);
    target = job_state_create(2);
    before = job_state_create(2);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    job_state_destroy(&sent);
    job_state_destroy(&target);
    job_state_destroy(&before);
    return 0;
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_takes_its_offer_back),
        cmocka_unit_test(test_a_source_is_reset),
        cmocka_unit_test(test_all_sources_take_their_offers_back),
        cmocka_unit_test(test_all_sources_are_stopped),
        cmocka_unit_test(test_all_sources_are_reset),
    };
    const struct CMUnitTest cut_tests[] = {
        cmocka_unit_test(test_sources_are_cut_off),
        cmocka_unit_test(test_all_sources_are_cut_off),
    };
    cmocka_set_test_filter(getenv("WHERRY_TEST_ONLY"));
    if (count == 1) {
        return cmocka_run_group_tests(tests, set_up, tear_down);
    }
    if (strcmp(arguments[1], "cut") != 0) {
        fprintf(stderr, "usage: test_sources_points [cut]\n");
        return 2;
    }
    const char *missing = open_networks();
    if (missing) {
        close_networks();
        printf("1..0 # SKIP %s\n", missing);
        return 0;
    }
    int failed = cmocka_run_group_tests(cut_tests, set_up, tear_down);
    close_networks();
    return failed;
}
