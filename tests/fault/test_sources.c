/*
 * Ranks 0, 1 and 2 send one state, and rank 3 receives it from all of them. A source is killed or
 * stopped at every named point of the conversation, over every lane, or takes its offer back: the
 * receive succeeds with the others, and every byte is right. It fails only if all sources are gone.
 * "test_sources LANE" uses only a lane that not every machine has.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/point.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/source_points.h"

enum { SOURCES = 3, RECEIVER = 3, RANKS = 4, STEP = 7 };

/**
 * On one host, the receiver uses one source at a time. It uses USED as long as that source works.
 */
enum { USED = 0, SPARE = 1 };

/** Flags of the job. Flag SENDING + r: rank r is about to send. */
enum { RECEIVED, WOKEN, PAUSED, REVOKED, SENDING };

/** Number of cases that run concurrently. They wait most of the time. */
enum { AT_ONCE = 8 };

/**
 * LOSS_MS: how long a receive may take after a source was killed or stopped. A stopped one is not
 * lost before DEAD_AFTER_MS: the receive must do without it earlier.
 */
enum { DEAD_AFTER_MS = 60000, NO_PROGRESS_MS = 15000 * JOB_SLOW, LOSS_MS = 8000 * JOB_SLOW };

static job_state sent;
static job_state target;
static job_state before;

static const int32_t all_sources[SOURCES] = {0, 1, 2};

/* ---- one source is killed or stopped ---- */

/** One case. */
typedef struct scene {
    char name[120];
    const source_point *where;
    int32_t victim;
    int signal;
    const char *lane;
    bool tcp;         /**< Without shortcuts, so that all sources are used at once. */
    bool others_late; /**< The other sources send only after the signal. */
    uint32_t dead_after_ms;
    wherry_verify verify;
} scene;

static wherry_transfer_options options_of(const scene *s) {
    wherry_transfer_options options = job_options(s->lane);
    options.no_progress_ms = NO_PROGRESS_MS;
    options.verify = s->verify;
    options.threads = 2;
    options.step = STEP;
    return options;
}

/** Sends, and stays in the group until the receiver is done. */
static void be_source(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_outcome outcome;
    if (s->others_late && self->rank != s->victim) {
        job_await_signal(self);
    }
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, &outcome, &error);
    if (self->rank == s->victim) {
        job_announce(self, WOKEN); /* The victim may have any result, but its call must end. */
    } else {
        job_check(self, status == WHERRY_OK, "the send of another source failed: %s: %s", wherry_status_name(status),
                  error.message);
    }
    job_await(self, RECEIVED);
}

/** Waits until a source is inside its call. */
static void await_source(job_rank *self, int32_t rank) {
    job_await(self, SENDING + rank);
    job_await_asleep(self, rank);
}

static void await_sources(job_rank *self) {
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        await_source(self, rank);
    }
}

static wherry_status receive(job_rank *self, wherry_transfer_options *options, wherry_stats *stats,
                             wherry_report **report_p, wherry_error *error) {
    options->target = job_target;
    options->target_context = target.value;
    options->stats = stats;
    options->report_p = report_p;
    return wherry_checkpoint_recv_from(self->transport, all_sources, SOURCES, options, NULL, error);
}

/** A killed source that was used is named in the statistics. */
static void check_stats(job_rank *self, const wherry_stats *stats) {
    const scene *s = self->scene;
    const wherry_source_stats *lost = stats->sources + s->victim;
    job_check(self, stats->source_count == SOURCES && lost->rank == s->victim, "the statistics have other sources");
    uint64_t chunks = 0;
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        const wherry_source_stats *one = stats->sources + rank;
        chunks += one->chunks;
        job_check(self, (one->status == WHERRY_OK) == !*one->reason, "rank %d has %s and the reason \"%s\"", (int)rank,
                  wherry_status_name(one->status), one->reason);
        job_check(self, rank == s->victim || one->status == WHERRY_OK, "rank %d was lost: %s", (int)rank, one->reason);
    }
    job_check(self, chunks > 0, "no source has sent a chunk");
    bool used = s->tcp || s->victim == USED;
    if (s->signal == SIGKILL && used && !s->where->late) {
        job_check(self, lost->status != WHERRY_OK, "the statistics do not name the lost source");
    }
}

/** @return false if the victim's call ended before the signal. */
static bool await_signal_or_end(job_rank *self) {
    while (!atomic_load(&self->job->signalled_at) && !atomic_load(self->job->flags + WOKEN)) {
        usleep(500); /* The victim's call ends. */
    }
    return atomic_load(&self->job->signalled_at) != 0;
}

static void be_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    if (s->others_late) {
        await_source(self, s->victim);
    } else {
        await_sources(self);
    }
    wherry_status status = receive(self, &options, &stats, &report, &error);
    uint64_t signalled = atomic_load(&self->job->signalled_at);
    double ms = signalled ? job_ms_since_signal(self->job) : 0;
    job_check(self, status == WHERRY_OK, "%s after %.0f ms: %s", wherry_status_name(status), ms, error.message);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    if (getenv("WHERRY_TEST_TIMES")) {
        fprintf(stderr, "# %5.0f ms: %s:", ms, s->name);
        for (int32_t rank = 0; rank < SOURCES; rank++) {
            const wherry_source_stats *one = stats.sources + rank;
            fprintf(stderr, " %d: %llu %s %s;", (int)rank, (unsigned long long)one->chunks,
                    wherry_status_name(one->status), one->reason);
        }
        fprintf(stderr, "\n");
    }
    job_check(self, ms < LOSS_MS, "the receive ended %.0f ms after the signal", ms);
    if (s->where->at_source && !await_signal_or_end(self)) {
        /* The machine was busy: the victim's offer came too late for it to pass the point. */
        job_announce(self, RECEIVED);
        return;
    }
    job_await_signal(self);
    check_stats(self, &stats);
    if (s->signal == SIGSTOP) {
        wh_await_halted(atomic_load(self->job->pids + s->victim));
        job_send_signal(self, s->victim, SIGCONT);
        job_await(self, WOKEN);
    }
    job_announce(self, RECEIVED);
}

static job *start(scene *s) {
    job_signal plan = {s->where->name, s->where->count, s->victim, s->signal};
    snprintf(s->name, sizeof(s->name), "%s source %s at \"%s\" %d, %s%s%s", s->victim == USED ? "used" : "spare",
             s->signal == SIGKILL ? "killed" : "stopped", s->where->name, s->where->count, s->lane,
             s->tcp ? " over tcp" : "",
             s->verify == WHERRY_VERIFY_ALL  ? ", compared"
             : s->verify == WHERRY_VERIFY_ON ? ", checked"
                                             : "");
    job *all = job_open(s->name, RANKS, s->tcp, s->dead_after_ms);
    all->expendable[s->victim] = s->signal == SIGKILL;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        bool here = s->where->at_source ? rank == s->victim : rank == RECEIVER;
        job_start(all, rank, rank == RECEIVER ? be_receiver : be_source, s, here ? &plan : NULL);
    }
    return all;
}

static void run(scene *scenes, size_t count) {
    size_t failed = 0;
    for (size_t first = 0; first < count; first += AT_ONCE) {
        job *at_work[AT_ONCE];
        size_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
        for (size_t i = 0; i < some; i++) {
            at_work[i] = start(scenes + first + i);
        }
        for (size_t i = 0; i < some; i++) {
            failed += !job_close(at_work[i]);
        }
    }
    assert_int_equal(failed, 0);
}

static scene basic(const source_point *where, int32_t victim, int signal, const char *lane) {
    return (scene){.where = where, .victim = victim, .signal = signal, .lane = lane, .dead_after_ms = DEAD_AFTER_MS};
}

/** All points for the source that is used, and some for another one. */
static void everywhere(const char *lane, int signal, bool tcp, wherry_verify verify) {
    scene scenes[2 * SOURCE_POINTS];
    size_t count = 0;
    for (size_t i = 0; i < SOURCE_POINTS; i++) {
        const source_point *at = source_points + i;
        for (int32_t victim = USED; victim <= SPARE; victim++) {
            bool passed = (!at->no_cma || strcmp(lane, "cma") != 0) && !(tcp && at->planned && at->count > 1);
            bool wanted = victim == USED || (!at->planned && at->count == 1 && signal == SIGKILL && !verify);
            if (passed && wanted) {
                scenes[count] = basic(at, victim, signal, lane);
                scenes[count].verify = verify;
                scenes[count++].tcp = tcp;
            }
        }
    }
    run(scenes, count);
}

static void test_a_source_is_killed_over_cma(void **state) {
    (void)state;
    everywhere("cma", SIGKILL, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_killed_over_ring(void **state) {
    (void)state;
    everywhere("ring", SIGKILL, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_killed_over_stream(void **state) {
    (void)state;
    everywhere("stream", SIGKILL, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_killed_over_tcp(void **state) {
    (void)state;
    everywhere("stream", SIGKILL, true, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_stopped_over_cma(void **state) {
    (void)state;
    everywhere("cma", SIGSTOP, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_stopped_over_ring(void **state) {
    (void)state;
    everywhere("ring", SIGSTOP, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_stopped_over_stream(void **state) {
    (void)state;
    everywhere("stream", SIGSTOP, false, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_stopped_over_tcp(void **state) {
    (void)state;
    everywhere("stream", SIGSTOP, true, WHERRY_VERIFY_DEFAULT);
}

/** The first source to offer is stopped before its lane is open. The others offer after that. */
static void test_the_only_offer_is_of_a_stopped_source(void **state) {
    (void)state;
    static const char *const lanes[] = {"cma", "ring", "stream", "stream"};
    enum { LANES = sizeof(lanes) / sizeof(*lanes) };
    static const source_point where = {.name = "receiver has the offer", .count = 1};
    scene scenes[LANES];
    for (size_t i = 0; i < LANES; i++) {
        scenes[i] = basic(&where, USED, SIGSTOP, lanes[i]);
        scenes[i].others_late = true;
        scenes[i].tcp = i == LANES - 1;
    }
    run(scenes, LANES);
}

/** Chunks of a lost source are kept if another source has the same digests. */
static void test_a_source_is_lost_with_digests(void **state) {
    (void)state;
    everywhere("cma", SIGKILL, false, WHERRY_VERIFY_ON);
    everywhere("cma", SIGSTOP, false, WHERRY_VERIFY_ON);
    everywhere("stream", SIGKILL, true, WHERRY_VERIFY_ON);
}

/**
 * A source that sends no chunk, or only some, is lost while the chunks of the others are compared
 * with its own.
 */
static void test_a_source_is_lost_while_it_is_compared(void **state) {
    (void)state;
    enum { WAYS = 4 };
    scene scenes[WAYS * COMPARING_POINTS];
    for (size_t i = 0; i < WAYS * COMPARING_POINTS; i++) {
        bool tcp = i % 2;
        scenes[i] = basic(comparing_points + i / WAYS, SPARE, i % WAYS < 2 ? SIGKILL : SIGSTOP, tcp ? "stream" : "cma");
        scenes[i].tcp = tcp;
        scenes[i].verify = WHERRY_VERIFY_ALL;
    }
    run(scenes, WAYS * COMPARING_POINTS);
}

/* ---- all sources are killed ---- */

typedef struct massacre {
    const char *lane;
    bool tcp;
    const char *point;
    int passes[SOURCES]; /**< On which pass each source is killed. */
} massacre;

static const massacre massacres[] = {
    {"cma", false, "receiver has the offer", {1, 1, 1}},      {"cma", false, "receiver closed a chunk", {2, 2, 2}},
    {"cma", false, "receiver closed a chunk", {1, 3, 6}},     {"ring", false, "receiver closed a chunk", {1, 3, 5}},
    {"stream", true, "receiver closed a chunk", {1, 2, 3}},   {"stream", true, "receiver opened a chunk", {1, 1, 1}},
    {"stream", false, "receiver asks to confirm", {1, 2, 3}}, {"cma", false, "receiver asks to confirm", {1, 2, 3}},
};

enum { MASSACRES = sizeof(massacres) / sizeof(*massacres) };

static job_rank *killer;
static atomic_int kills;

/** The hook of the receiver. */
static void kill_sources(const char *name) {
    const massacre *m = killer->scene;
    if (strcmp(name, m->point) != 0) {
        return;
    }
    int pass = atomic_fetch_add(&kills, 1) + 1;
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        if (m->passes[rank] == pass) {
            job_send_signal(killer, rank, SIGKILL);
            wh_await_halted(atomic_load(killer->job->pids + rank));
            atomic_store(&killer->job->signalled_at, wh_clock_now());
        }
    }
}

static void be_doomed_source(job_rank *self) {
    const massacre *m = self->scene;
    wherry_transfer_options options = job_options(m->lane);
    wherry_error error;
    options.step = STEP;
    job_announce(self, SENDING + self->rank);
    wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    job_fail(self, "the receive ended before this source was killed");
}

static void be_lonely_receiver(job_rank *self) {
    const massacre *m = self->scene;
    wherry_transfer_options options = job_options(m->lane);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    options.step = STEP;
    options.threads = 1; /* Wait, so that the passes are far enough apart. */
    await_sources(self);
    killer = self;
    wh_point_hook = kill_sources;
    wherry_status status = receive(self, &options, &stats, &report, &error);
    double ms = job_ms_since_signal(self->job);
    job_check(self, status == WHERRY_PEER_LOST, "%s: %s", wherry_status_name(status), error.message);
    job_check(self, strstr(error.message, "no source is left"), "the error does not say so: %s", error.message);
    job_check(self, ms < LOSS_MS, "the receive ended %.0f ms after the last source", ms);
    for (int32_t rank = 0; rank < SOURCES; rank++) {
        job_check(self, stats.sources[rank].status != WHERRY_OK, "rank %d is not named", (int)rank);
    }
    job_check_report(self, report, &error, &target, &before, &sent);
    wherry_report_destroy(report);
}

static void test_a_receive_fails_if_all_sources_are_killed(void **state) {
    (void)state;
    job *jobs[MASSACRES];
    char names[MASSACRES][120];
    size_t failed = 0;
    for (size_t i = 0; i < MASSACRES; i++) {
        const massacre *m = massacres + i;
        snprintf(names[i], sizeof(names[i]), "all sources killed at \"%s\", %s%s", m->point, m->lane,
                 m->tcp ? " over tcp" : "");
        jobs[i] = job_open(names[i], RANKS, m->tcp, DEAD_AFTER_MS);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            jobs[i]->expendable[rank] = rank < SOURCES;
            job_start(jobs[i], rank, rank < SOURCES ? be_doomed_source : be_lonely_receiver, m, NULL);
        }
    }
    for (size_t i = 0; i < MASSACRES; i++) {
        failed += !job_close(jobs[i]);
    }
    assert_int_equal(failed, 0);
}

/* ---- one source is lost, and another one, which is asked for digests, is stopped ---- */

enum { STOPPED = 0, KILLED = 2 };

/**
 * The number of chunks after which the source is lost. It may have sent all of its chunks by then.
 */
static const int both_at[] = {2, 3, 4, 5};

enum { BOTH = sizeof(both_at) / sizeof(*both_at) };

static void stop_and_kill(const char *name) {
    if (strcmp(name, "receiver closed a chunk") == 0 && atomic_fetch_add(&kills, 1) + 1 == *(int *)killer->scene) {
        job_send_signal(killer, STOPPED, SIGSTOP);
        wh_await_halted(atomic_load(killer->job->pids + STOPPED));
        job_send_signal(killer, KILLED, SIGKILL);
        wh_await_halted(atomic_load(killer->job->pids + KILLED));
        atomic_store(&killer->job->signalled_at, wh_clock_now());
    }
}

static void be_digesting_source(job_rank *self) {
    wherry_transfer_options options = job_options("stream");
    wherry_error error;
    options.step = STEP;
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    job_check(self, self->rank == STOPPED || status == WHERRY_OK, "%s: %s", wherry_status_name(status), error.message);
    if (self->rank == STOPPED) {
        job_announce(self, WOKEN);
    }
    job_await(self, RECEIVED);
}

static void be_bereft_receiver(job_rank *self) {
    wherry_transfer_options options = job_options("stream");
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    options.step = STEP;
    options.verify = WHERRY_VERIFY_ON;
    options.threads = 1;
    await_sources(self);
    killer = self;
    wh_point_hook = stop_and_kill;
    job_must(self, receive(self, &options, &stats, &report, &error), error);
    double ms = job_ms_since_signal(self->job);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    job_check(self, stats.sources[KILLED].status == WHERRY_PEER_LOST, "the killed source: %s: %s",
              wherry_status_name(stats.sources[KILLED].status), stats.sources[KILLED].reason);
    job_check(self, ms < LOSS_MS, "the receive ended %.0f ms after the signals", ms);
    job_send_signal(self, STOPPED, SIGCONT);
    job_await(self, WOKEN);
    job_announce(self, RECEIVED);
}

static void test_a_source_stops_before_it_can_vouch_for_a_lost_one(void **state) {
    (void)state;
    job *jobs[BOTH];
    size_t failed = 0;
    for (size_t i = 0; i < BOTH; i++) {
        jobs[i] = job_open("a stopped source is asked for digests", RANKS, true, DEAD_AFTER_MS);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            jobs[i]->expendable[rank] = rank == KILLED;
            job_start(jobs[i], rank, rank < SOURCES ? be_digesting_source : be_bereft_receiver, both_at + i, NULL);
        }
    }
    for (size_t i = 0; i < BOTH; i++) {
        failed += !job_close(jobs[i]);
    }
    assert_int_equal(failed, 0);
}

/* ---- a source takes its offer back ---- */

typedef struct revocation {
    const char *lane;
    bool tcp;
    bool cancel; /**< The send is cancelled, else it times out. */
    const char *point;
    int pass;
    wherry_verify verify;
} revocation;

static const revocation revocations[] = {
    {"cma", false, false, "receiver closed a chunk", 2, WHERRY_VERIFY_DEFAULT},
    {"cma", false, true, "receiver closed a chunk", 2, WHERRY_VERIFY_DEFAULT},
    {"cma", false, true, "receiver closed a chunk", 2, WHERRY_VERIFY_ON},
    {"cma", false, true, "receiver has the offer", 1, WHERRY_VERIFY_DEFAULT},
    {"cma", false, true, "receiver probed", 1, WHERRY_VERIFY_DEFAULT},
    {"cma", false, true, "receiver asks to confirm", 1, WHERRY_VERIFY_DEFAULT},
    {"ring", false, false, "receiver closed a chunk", 1, WHERRY_VERIFY_DEFAULT},
    {"ring", false, true, "receiver opened a chunk", 2, WHERRY_VERIFY_DEFAULT},
    {"stream", true, false, "receiver closed a chunk", 1, WHERRY_VERIFY_DEFAULT},
    {"stream", true, true, "receiver closed a chunk", 1, WHERRY_VERIFY_ON},
    {"stream", true, true, "receiver asks to confirm", 1, WHERRY_VERIFY_DEFAULT},
    {"stream", false, true, "receiver sent the plan", 1, WHERRY_VERIFY_DEFAULT},
};

enum { REVOCATIONS = sizeof(revocations) / sizeof(*revocations), SHORT_MS = 700 * JOB_SLOW };

static job_rank *pausing;
static atomic_int pauses;

/** The hook of the receiver: waits at the point until the source has taken its offer back. */
static void pause_here(const char *name) {
    const revocation *r = pausing->scene;
    if (strcmp(name, r->point) == 0 && atomic_fetch_add(&pauses, 1) + 1 == r->pass) {
        job_announce(pausing, PAUSED);
        job_await(pausing, REVOKED);
    }
}

static bool is_paused(void *context) {
    job_rank *self = context;
    return atomic_load(self->job->flags + PAUSED);
}

/** Rank USED takes its offer back, and then changes its state, as it may. */
static void be_revoking_source(job_rank *self) {
    const revocation *r = self->scene;
    wherry_transfer_options options = job_options(r->lane);
    wherry_error error;
    options.step = STEP;
    if (self->rank == USED && r->cancel) {
        options.interrupt = is_paused;
        options.interrupt_context = self;
    } else if (self->rank == USED) {
        options.timeout_ms = SHORT_MS;
    }
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    if (self->rank == USED) {
        memset(sent.memory, 0xEE, sent.bytes);
        job_announce(self, REVOKED);
        wherry_status expected = r->cancel ? WHERRY_CANCELLED : WHERRY_TIMED_OUT;
        job_check(self, status == expected, "%s: %s", wherry_status_name(status), error.message);
    } else {
        job_check(self, status == WHERRY_OK, "the send of another source failed: %s: %s", wherry_status_name(status),
                  error.message);
    }
    job_await(self, RECEIVED);
}

static void be_pausing_receiver(job_rank *self) {
    const revocation *r = self->scene;
    wherry_transfer_options options = job_options(r->lane);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    options.step = STEP;
    options.verify = r->verify;
    options.threads = 2;
    await_sources(self);
    pausing = self;
    wh_point_hook = pause_here;
    wherry_status status = receive(self, &options, &stats, &report, &error);
    job_check(self, status == WHERRY_OK, "%s: %s", wherry_status_name(status), error.message);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    job_check(self, stats.sources[USED].status != WHERRY_OK, "the source that gave up is not named");
    job_check(self, stats.sources[USED].chunks == 0 || stats.retries == 0, "chunks came damaged");
    job_announce(self, RECEIVED);
}

static void test_a_source_takes_its_offer_back(void **state) {
    (void)state;
    size_t failed = 0;
    char names[REVOCATIONS][120];
    job *jobs[REVOCATIONS];
    for (size_t first = 0; first < REVOCATIONS; first += AT_ONCE) {
        size_t end = first + AT_ONCE < REVOCATIONS ? first + AT_ONCE : REVOCATIONS;
        for (size_t i = first; i < end; i++) {
            const revocation *r = revocations + i;
            snprintf(names[i], sizeof(names[i]), "a source %s at \"%s\" %d, %s%s%s",
                     r->cancel ? "cancels" : "times out", r->point, r->pass, r->lane, r->tcp ? " over tcp" : "",
                     r->verify == WHERRY_VERIFY_ON ? ", checked" : "");
            jobs[i] = job_open(names[i], RANKS, r->tcp, DEAD_AFTER_MS);
            for (int32_t rank = 0; rank < RANKS; rank++) {
                job_start(jobs[i], rank, rank < SOURCES ? be_revoking_source : be_pausing_receiver, r, NULL);
            }
        }
        for (size_t i = first; i < end; i++) {
            failed += !job_close(jobs[i]);
        }
    }
    assert_int_equal(failed, 0);
}

/* ---- a source sends damaged chunks ---- */

/** Changes the state during the send, which is forbidden: no digest fits. */
static void *change_state(void *context) {
    enum { APART = 512 << 10 };
    for (;;) {
        for (size_t at = 0; at < sent.bytes; at += APART) {
            ((volatile uint8_t *)sent.memory)[at]++;
        }
    }
    return context;
}

/**
 * Starts to change the state when it is offered. Until then this source sleeps in its call, which
 * the receiver waits for.
 */
static void change_state_when_offered(const char *name) {
    pthread_t changing;
    if (strcmp(name, "source offered") == 0) {
        if (pthread_create(&changing, NULL, change_state, NULL) != 0) {
            abort();
        }
        job_announce(killer, PAUSED);
    }
}

static void be_flawed_source(job_rank *self) {
    wherry_transfer_options options = job_options(self->scene);
    wherry_error error;
    options.step = STEP;
    killer = self;
    wh_point_hook = self->rank == USED ? change_state_when_offered : NULL;
    if (self->rank != USED) {
        job_await(self, PAUSED); /* The receiver uses the source that offers first. */
    }
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    job_check(self, self->rank == USED || status == WHERRY_OK, "%s: %s", wherry_status_name(status), error.message);
    job_check(self, self->rank != USED || (status == WHERRY_ABORTED && strstr(error.message, "damaged")), "%s: %s",
              wherry_status_name(status), error.message);
    job_await(self, RECEIVED);
    _exit(0);
}

static void be_checking_receiver(job_rank *self) {
    wherry_transfer_options options = job_options(self->scene);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    options.step = STEP;
    options.verify = WHERRY_VERIFY_ON;
    await_source(self, USED);
    job_must(self, receive(self, &options, &stats, &report, &error), error);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    job_check(self, stats.sources[USED].status == WHERRY_CORRUPT && stats.retries, "the bad source: %s: %s",
              wherry_status_name(stats.sources[USED].status), stats.sources[USED].reason);
    job_announce(self, RECEIVED);
}

static void test_a_source_that_sends_damaged_chunks_is_dropped(void **state) {
    (void)state;
    static const char cma[] = "cma";
    if (JOB_THREAD_SANITIZER) {
        return; /* The damage is a data race. Builds without the thread sanitizer run this case. */
    }
    job *all = job_open("a source with damage", RANKS, false, DEAD_AFTER_MS);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, rank < SOURCES ? be_flawed_source : be_checking_receiver, cma, NULL);
    }
    assert_true(job_close(all));
}

/* ---- a source waits ---- */

enum { WAIT_MS = 2000 * JOB_SLOW, CHUNK_MS = 1100 * JOB_SLOW };

static void take_time(const char *name) {
    if (strcmp(name, "receiver closed a chunk") == 0) {
        usleep(CHUNK_MS * 1000);
    }
}

static void be_patient_source(job_rank *self) {
    wherry_transfer_options options = job_options(self->scene);
    wherry_error error;
    wherry_outcome outcome;
    options.step = STEP;
    options.no_progress_ms = WAIT_MS;
    job_announce(self, SENDING + self->rank);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, &outcome, &error);
    job_check(self, status == WHERRY_OK, "%s: %s", wherry_status_name(status), error.message);
    job_await(self, RECEIVED);
}

static void be_slow_receiver(job_rank *self) {
    wherry_transfer_options options = job_options(self->scene);
    wherry_error error;
    wherry_stats stats;
    wherry_report *report;
    options.step = STEP;
    options.threads = 1;
    await_sources(self);
    wh_point_hook = take_time;
    job_must(self, receive(self, &options, &stats, &report, &error), error);
    job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
    job_check(self, stats.total_seconds > 2e-3 * WAIT_MS, "the receive was too fast for this test");
    job_announce(self, RECEIVED);
}

/** Sources that are not used hold their offers, however long the others take. */
static void test_a_spare_source_waits_longer_than_no_progress(void **state) {
    (void)state;
    static const char *const lanes[] = {"cma", "ring", "stream"};
    job *jobs[3];
    size_t failed = 0;
    for (size_t i = 0; i < 3; i++) {
        jobs[i] = job_open(lanes[i], RANKS, false, DEAD_AFTER_MS);
        for (int32_t rank = 0; rank < RANKS; rank++) {
            job_start(jobs[i], rank, rank < SOURCES ? be_patient_source : be_slow_receiver, lanes[i], NULL);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        failed += !job_close(jobs[i]);
    }
    assert_int_equal(failed, 0);
}

/* ---- the lane of the command line ---- */

static const char *named;

static void test_a_source_is_killed_over_the_named_lane(void **state) {
    (void)state;
    everywhere(named, SIGKILL, true, WHERRY_VERIFY_DEFAULT);
}

static void test_a_source_is_stopped_over_the_named_lane(void **state) {
    (void)state;
    everywhere(named, SIGSTOP, true, WHERRY_VERIFY_DEFAULT);
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
    const struct CMUnitTest named_tests[] = {
        cmocka_unit_test(test_a_source_is_killed_over_the_named_lane),
        cmocka_unit_test(test_a_source_is_stopped_over_the_named_lane),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_is_killed_over_cma),
        cmocka_unit_test(test_a_source_is_killed_over_ring),
        cmocka_unit_test(test_a_source_is_killed_over_stream),
        cmocka_unit_test(test_a_source_is_killed_over_tcp),
        cmocka_unit_test(test_a_source_is_stopped_over_cma),
        cmocka_unit_test(test_a_source_is_stopped_over_ring),
        cmocka_unit_test(test_a_source_is_stopped_over_stream),
        cmocka_unit_test(test_a_source_is_stopped_over_tcp),
        cmocka_unit_test(test_the_only_offer_is_of_a_stopped_source),
        cmocka_unit_test(test_a_source_is_lost_with_digests),
        cmocka_unit_test(test_a_source_is_lost_while_it_is_compared),
        cmocka_unit_test(test_a_receive_fails_if_all_sources_are_killed),
        cmocka_unit_test(test_a_source_stops_before_it_can_vouch_for_a_lost_one),
        cmocka_unit_test(test_a_source_takes_its_offer_back),
        cmocka_unit_test(test_a_source_that_sends_damaged_chunks_is_dropped),
        cmocka_unit_test(test_a_spare_source_waits_longer_than_no_progress),
    };
    cmocka_set_test_filter(getenv("WHERRY_TEST_ONLY"));
    if (count > 1) {
        named = arguments[1];
        return cmocka_run_group_tests(named_tests, set_up, tear_down);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
