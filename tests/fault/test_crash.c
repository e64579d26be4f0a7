/*
 * A source or a receiver is killed or stopped at every named point of the conversation, over every
 * lane. The other side notices soon, reports the state of its tensors, and then transfers with a
 * third rank. The call of a stopped process also ends when the process continues. "test_crash LANE"
 * uses only a lane that not every machine has.
 */
#include <stdio.h>
#include <unistd.h>

#include "support/build.h"
#include "support/process_job.h"

enum { SOURCE, RECEIVER, THIRD, RANKS };

/** Flags of the job. */
enum { SENDING, SURVIVED, WOKEN };

/**
 * DEAD_AFTER_MS: limit of the heartbeat, by which a stopped process is lost and a slow one is not.
 * The others limit the time until a survivor notices.
 */
enum { DEAD_AFTER_MS = JOB_SLOW > 1 ? 2500 * JOB_SLOW : 4000, DEATH_MS = 1000, MARGIN_MS = 5000 * JOB_SLOW };

/** Number of cases that run concurrently. They wait most of the time. */
enum { AT_ONCE = JOB_SLOW > 1 ? 4 : 8 };

typedef struct point {
    const char *name;
    int32_t at;  /**< The rank that passes this point. */
    int count;   /**< The pass at which it happens, counted from 1. */
    bool no_cma; /**< The cma lane does not pass it, because the receiver reads the memory. */
    /**
     * If one of these victims is lost at this point, the other side may succeed, because it needs
     * nothing more. Bits 1 << SOURCE and 1 << RECEIVER.
     */
    int late;
} point;

static const point points[] = {
    {"receiver asked", RECEIVER, 1, false, 0},
    {"source was asked", SOURCE, 1, false, 0},
    {"source offered", SOURCE, 1, false, 0},
    {"receiver has the offer", RECEIVER, 1, false, 0},
    {"receiver planned", RECEIVER, 1, false, 0},
    {"receiver probed", RECEIVER, 1, false, 0},
    {"receiver sent the plan", RECEIVER, 1, false, 0},
    {"source has the plan", SOURCE, 1, false, 0},
    {"source gathers a chunk", SOURCE, 1, true, 0},
    {"source gathers a chunk", SOURCE, 3, true, 0},
    {"receiver opened a chunk", RECEIVER, 1, false, 0},
    {"receiver opened a chunk", RECEIVER, 3, false, 0},
    {"receiver closed a chunk", RECEIVER, 1, false, 0},
    {"receiver closed a chunk", RECEIVER, 3, false, 0},
    {"receiver has all bytes", RECEIVER, 1, false, 0},
    {"receiver said done", RECEIVER, 1, false, 1 << SOURCE | 1 << RECEIVER},
    {"source was told done", SOURCE, 1, false, 1 << RECEIVER},
    {"source released", SOURCE, 1, false, 1 << SOURCE | 1 << RECEIVER},
};

enum { POINTS = sizeof(points) / sizeof(*points) };

/** One case. */
typedef struct scene {
    char name[120];
    const point *where;
    int32_t victim;
    int signal;
    const char *lane;
    bool tcp;
    uint32_t dead_after_ms;
    int64_t no_progress_ms;
    wherry_verify verify;
} scene;

static job_state sent;
static job_state target;
static job_state before;

static int32_t survivor_of(const scene *s) {
    return s->victim == SOURCE ? RECEIVER : SOURCE;
}

static wherry_transfer_options options_of(const scene *s) {
    wherry_transfer_options options = job_options(s->lane);
    options.no_progress_ms = s->no_progress_ms;
    options.verify = s->verify;
    options.threads = 2;
    return options;
}

/** Checks the survivor's result, and that it came in time. */
static void judge_survivor(job_rank *self, wherry_status status, const wherry_error *error) {
    const scene *s = self->scene;
    if (status == WHERRY_OK) {
        job_check(self, s->where->late & 1 << s->victim, "the survivor succeeded without the other side");
        job_await_signal(self);
        return;
    }
    job_check(self, atomic_load(&self->job->signalled_at), "the point was not passed: %s: %s",
              wherry_status_name(status), error->message);
    double ms = job_ms_since_signal(self->job);
    bool by_limit = s->no_progress_ms < s->dead_after_ms;
    wherry_status expected = s->signal == SIGSTOP && by_limit ? WHERRY_TIMED_OUT : WHERRY_PEER_LOST;
    job_check(self, status == expected, "%s instead of %s: %s", wherry_status_name(status),
              wherry_status_name(expected), error->message);
    job_check(self, error->status == status && error->rank == s->victim, "the error is about rank %d: %s",
              (int)error->rank, error->message);
    job_check(self, status != WHERRY_TIMED_OUT || strstr(error->message, "timed out"), "no \"timed out\" in: %s",
              error->message);
    double limit = s->signal == SIGKILL ? DEATH_MS : by_limit ? (double)s->no_progress_ms : s->dead_after_ms;
    job_check(self, ms < limit + MARGIN_MS, "it took %.0f ms to notice: %s", ms, error->message);
}

/**
 * Checks the result of a process that was stopped and continues. It must fail, unless the point was
 * so late that it needs nothing more. A source may also succeed if its receiver said that it had
 * everything, and gave up the source afterwards: the source cannot know that its answer comes too
 * late.
 */
static void judge_woken(job_rank *self, wherry_status status, const wherry_error *error) {
    const scene *s = self->scene;
    bool lost = status == WHERRY_PEER_LOST || status == WHERRY_REVOKED || status == WHERRY_TIMED_OUT ||
                status == WHERRY_ABORTED;
    bool done = status == WHERRY_OK && (s->where->late || self->rank == SOURCE);
    job_check(self, lost || done, "the stopped call: %s: %s", wherry_status_name(status),
              lost || done ? "" : error->message);
    job_announce(self, WOKEN);
}

/** The survivor transfers with the third rank. */
static void go_on(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = job_options(s->lane);
    wherry_error error;
    wherry_value *received = NULL;
    job_announce(self, SURVIVED);
    if (self->rank == SOURCE) {
        job_must(self,
                 wherry_checkpoint_send(self->transport, (int32_t[]){THIRD}, 1, sent.value, &options, NULL, &error),
                 error);
    } else {
        job_must(self, wherry_checkpoint_recv(self->transport, THIRD, &options, &received, &error), error);
        job_check(self, job_state_equals(&sent, received), "the state of the third rank differs");
        wherry_value_destroy(received);
    }
    if (s->signal == SIGSTOP) {
        job_send_signal(self, s->victim, SIGCONT);
        job_await(self, WOKEN);
    }
}

static void judge(job_rank *self, wherry_status status, const wherry_error *error) {
    const scene *s = self->scene;
    if (self->rank == s->victim) {
        judge_woken(self, status, error);
    } else {
        judge_survivor(self, status, error);
        go_on(self);
    }
}

static void be_source(job_rank *self) {
    wherry_transfer_options options = options_of(self->scene);
    wherry_error error;
    wherry_outcome outcome;
    job_announce(self, SENDING);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, &outcome, &error);
    job_check(self, outcome.rank == RECEIVER && outcome.status == status, "the outcome and the result differ");
    judge(self, status, &error);
}

static void be_receiver(job_rank *self) {
    wherry_transfer_options options = options_of(self->scene);
    wherry_error error;
    wherry_report *report;
    wherry_value *received;
    options.target = job_target;
    options.target_context = target.value;
    options.report_p = &report;
    job_await(self, SENDING);
    /* The victim is in its call by now. If it died earlier, the receiver would wait for it. */
    job_await_asleep(self, SOURCE);
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    if (status == WHERRY_OK) {
        job_check(self, memcmp(target.memory, sent.memory, sent.bytes) == 0, "the received state differs");
        wherry_value_destroy(received);
    } else {
        job_check_report(self, report, &error, &target, &before, &sent);
        wherry_report_destroy(report);
    }
    judge(self, status, &error);
}

static void be_third(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = job_options(s->lane);
    wherry_error error;
    wherry_value *received;
    int32_t other = survivor_of(s);
    job_await(self, SURVIVED);
    if (other == SOURCE) {
        job_must(self, wherry_checkpoint_recv(self->transport, other, &options, &received, &error), error);
        job_check(self, job_state_equals(&sent, received), "the state of the survivor differs");
        wherry_value_destroy(received);
    } else {
        job_must(self, wherry_checkpoint_send(self->transport, &other, 1, sent.value, &options, NULL, &error), error);
    }
}

static job *start(scene *s) {
    static const job_body parts[RANKS] = {be_source, be_receiver, be_third};
    job_signal plan = {s->where->name, s->where->count, s->victim, s->signal};
    snprintf(s->name, sizeof(s->name), "%s %s at \"%s\" %d, %s%s", s->victim == SOURCE ? "source" : "receiver",
             s->signal == SIGKILL ? "killed" : "stopped", s->where->name, s->where->count, s->lane,
             s->tcp ? " over tcp" : "");
    job *all = job_open(s->name, RANKS, s->tcp, s->dead_after_ms);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (s->signal == SIGKILL && rank == s->victim) {
            all->expendable[rank] = true;
        }
        job_start(all, rank, parts[rank], s, rank == s->where->at ? &plan : NULL);
    }
    return all;
}

/** The lane of the command line; NULL: none. */
static const char *named;

static void run(scene *scenes, size_t count) {
    size_t failed = 0;
    /* Workers of UCX poll. Under a sanitizer, they delay the heartbeats of other processes. */
    size_t at_once = named && JOB_SLOW > 1 ? 2 : AT_ONCE;
    for (size_t first = 0; first < count; first += at_once) {
        job *at_work[AT_ONCE];
        size_t some = count - first < at_once ? count - first : at_once;
        for (size_t i = 0; i < some; i++) {
            at_work[i] = start(scenes + first + i);
        }
        for (size_t i = 0; i < some; i++) {
            failed += !job_close(at_work[i]);
        }
    }
    assert_int_equal(failed, 0);
}

static scene basic(const point *where, int32_t victim, int signal, const char *lane) {
    return (scene){.where = where,
                   .victim = victim,
                   .signal = signal,
                   .lane = lane,
                   .dead_after_ms = DEAD_AFTER_MS,
                   .no_progress_ms = 10000 * JOB_SLOW};
}

/** All points, for both victims: the rank at the point, and the other rank at that moment. */
static void everywhere(const char *lane, int signal) {
    scene scenes[2 * POINTS];
    size_t count = 0;
    for (size_t i = 0; i < POINTS; i++) {
        for (int32_t victim = SOURCE; victim <= RECEIVER; victim++) {
            if (!points[i].no_cma || strcmp(lane, "cma") != 0) {
                scenes[count++] = basic(points + i, victim, signal, lane);
            }
        }
    }
    run(scenes, count);
}

static void test_kill_cma(void **state) {
    (void)state;
    everywhere("cma", SIGKILL);
}

static void test_kill_ring(void **state) {
    (void)state;
    everywhere("ring", SIGKILL);
}

static void test_kill_stream(void **state) {
    (void)state;
    everywhere("stream", SIGKILL);
}

static void test_stop_cma(void **state) {
    (void)state;
    everywhere("cma", SIGSTOP);
}

static void test_stop_ring(void **state) {
    (void)state;
    everywhere("ring", SIGSTOP);
}

static void test_stop_stream(void **state) {
    (void)state;
    everywhere("stream", SIGSTOP);
}

static const point *find(const char *name) {
    for (size_t i = 0; i < POINTS; i++) {
        if (strcmp(points[i].name, name) == 0) {
            return points + i;
        }
    }
    fail();
    return NULL;
}

static void test_some_over_tcp(void **state) {
    (void)state;
    static const char *const names[] = {"receiver asked", "source offered", "source gathers a chunk",
                                        "receiver closed a chunk", "receiver has all bytes"};
    scene scenes[20];
    size_t count = 0;
    for (size_t i = 0; i < 5; i++) {
        for (int32_t victim = SOURCE; victim <= RECEIVER; victim++) {
            for (int stop = 0; stop < 2; stop++) {
                scenes[count] = basic(find(names[i]), victim, stop ? SIGSTOP : SIGKILL, "stream");
                scenes[count++].tcp = true;
            }
        }
    }
    run(scenes, count);
}

/** If the receiver reads the source's memory, the source computes the digests and sends them. */
static void test_some_verified(void **state) {
    (void)state;
    static const char *const names[] = {"source has the plan", "receiver closed a chunk", "receiver has all bytes"};
    static const char *const lanes[] = {"cma", "ring"};
    scene scenes[12];
    size_t count = 0;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 2; k++) {
            for (int32_t victim = SOURCE; victim <= RECEIVER; victim++) {
                scenes[count] = basic(find(names[i]), victim, SIGKILL, lanes[k]);
                scenes[count++].verify = WHERRY_VERIFY_ON;
            }
        }
    }
    run(scenes, count);
}

/** The limit of the heartbeat is long, so that no_progress_ms ends the transfer. */
static void without_progress(const char *lane) {
    static const struct {
        const char *point;
        int32_t victim;
    } ways[] = {
        {"receiver has the offer", RECEIVER}, {"receiver opened a chunk", RECEIVER},
        {"receiver has all bytes", RECEIVER}, {"source has the plan", SOURCE},
        {"source was told done", SOURCE},
    };
    scene scenes[5];
    for (size_t i = 0; i < 5; i++) {
        scenes[i] = basic(find(ways[i].point), ways[i].victim, SIGSTOP, lane);
        scenes[i].dead_after_ms = 60000;
        /* UCX takes a second to start on a busy machine */
        scenes[i].no_progress_ms = 2500 * JOB_SLOW;
    }
    run(scenes, 5);
}

static void test_no_progress(void **state) {
    (void)state;
    without_progress("cma");
    without_progress("ring");
    without_progress("stream");
}

/* ---- the lane of the command line ---- */

static void test_kill_named(void **state) {
    (void)state;
    everywhere(named, SIGKILL);
}

static void test_stop_named(void **state) {
    (void)state;
    everywhere(named, SIGSTOP);
}

static void test_no_progress_named(void **state) {
    (void)state;
    without_progress(named);
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
        cmocka_unit_test(test_kill_named),
        cmocka_unit_test(test_stop_named),
        cmocka_unit_test(test_no_progress_named),
    };
    if (count > 1) {
        named = arguments[1];
        if (JOB_ADDRESS_SANITIZER) {
            /* test_stop_named waits for heartbeats, which are four times as long: three minutes. */
            const struct CMUnitTest some[] = {cmocka_unit_test(test_kill_named),
                                              cmocka_unit_test(test_no_progress_named)};
            return cmocka_run_group_tests(some, set_up, tear_down);
        }
        return cmocka_run_group_tests(named_tests, set_up, tear_down);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_cma),      cmocka_unit_test(test_kill_ring),     cmocka_unit_test(test_kill_stream),
        cmocka_unit_test(test_stop_cma),      cmocka_unit_test(test_stop_ring),     cmocka_unit_test(test_stop_stream),
        cmocka_unit_test(test_some_over_tcp), cmocka_unit_test(test_some_verified), cmocka_unit_test(test_no_progress),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
