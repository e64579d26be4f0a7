/*
 * The ucx lane over time. A rank dies during a transfer, comes back as another process, and
 * transfers again with the same peer process. A receiver that does not answer over UCX gets its
 * bytes over the next lane. Connections are kept for later transfers, but not across a fork. Two
 * sides with different settings of UCX agree.
 */
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/point.h"
#include "lane/ucx/ucx.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/sent_state.h"

enum { SOURCE, RECEIVER, RANKS };

/** Flags of the job. */
enum { SENDING, GAVE_UP_UCX };

enum { TIMES = 3, MEET_MS = 300, LATE_MS = 30 };

static void check_figures(job_rank *self, const wherry_stats *stats, const char *lane) {
    job_check(self, strcmp(stats->lane, lane) == 0, "over %s: %s", stats->lane, stats->reasons);
}

static wherry_stats receive(job_rank *self, const char *lanes, const char *lane) {
    wherry_transfer_options options = job_options(lanes);
    wherry_error error;
    wherry_value *received;
    wherry_stats stats;
    options.stats = &stats;
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    job_check(self, job_state_equals(&sent, received), "the received state differs");
    wherry_value_destroy(received);
    check_figures(self, &stats, lane);
    return stats;
}

static wherry_status send_state(job_rank *self, const char *lanes, wherry_outcome *outcome, wherry_error *error) {
    wherry_transfer_options options = job_options(lanes);
    return wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, outcome, error);
}

/* ---- a rank comes back ---- */

static void be_steady_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    wherry_status status = send_state(self, "ucx", &outcome, &error);
    job_check(self, status == WHERRY_PEER_LOST, "the first send: %s", wherry_status_name(status));
    for (int i = 0; i < TIMES; i++) {
        job_must(self, send_state(self, "ucx", &outcome, &error), error);
        check_figures(self, &outcome.stats, "ucx");
    }
}

static void be_mortal_receiver(job_rank *self) {
    receive(self, "ucx", "ucx"); /* The victim is killed during this call. */
}

static void be_returned_receiver(job_rank *self) {
    for (int i = 0; i < TIMES; i++) {
        receive(self, "ucx", "ucx");
    }
}

static void be_steady_receiver(job_rank *self) {
    wherry_transfer_options options = job_options("ucx");
    wherry_error error;
    wherry_value *received;
    job_await(self, SENDING);
    receive(self, "ucx", "ucx");
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    job_check(self, status == WHERRY_PEER_LOST, "the second receive: %s", wherry_status_name(status));
    while ((status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error)) != WHERRY_OK) {
        job_check(self, status == WHERRY_PEER_LOST, "while the source was away: %s", wherry_status_name(status));
        usleep(20000);
    }
    job_check(self, job_state_equals(&sent, received), "the received state differs");
    wherry_value_destroy(received);
    for (int i = 1; i < TIMES; i++) {
        receive(self, "ucx", "ucx");
    }
}

static void be_mortal_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    job_announce(self, SENDING);
    for (;;) {
        send_state(self, "ucx", &outcome, &error);
    }
}

static void be_returned_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    for (int i = 0; i < TIMES; i++) {
        job_must(self, send_state(self, "ucx", &outcome, &error), error);
    }
}

/** The victim dies at a named point, and another process takes its place. */
static void come_back(const char *name, int32_t victim, const char *point, int number, job_body mortal,
                      job_body returned, job_body steady) {
    job *all = job_open(name, RANKS, true, 0);
    job_signal plan = {point, number, victim, SIGKILL};
    int result = 0;
    job_start(all, 1 - victim, steady, NULL, NULL);
    job_start(all, victim, mortal, NULL, &plan);
    assert_int_equal(waitpid(all->children[victim], &result, 0), all->children[victim]);
    assert_true(WIFSIGNALED(result));
    all->expendable[victim] = false;
    job_start(all, victim, returned, NULL, NULL);
    assert_true(job_close(all));
}

static void test_receiver_comes_back(void **state) {
    (void)state;
    come_back("receiver comes back", RECEIVER, "receiver closed a chunk", 3, be_mortal_receiver, be_returned_receiver,
              be_steady_source);
}

static void test_source_comes_back(void **state) {
    (void)state;
    come_back("source comes back", SOURCE, "source gathers a chunk", 9, be_mortal_source, be_returned_source,
              be_steady_receiver);
}

/* ---- a receiver does not answer ---- */

/** A log function. */
static void note_refusal(void *context, wherry_log_level level, const char *line) {
    (void)level;
    if (strstr(line, "the lane ucx to rank 1 does not work")) {
        job_announce(context, GAVE_UP_UCX);
    }
}

static void be_impatient_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    wh_ucx_meet_ms = MEET_MS;
    wherry_log_to(note_refusal, self);
    wherry_log_set_level(WHERRY_LOG_INFO);
    job_must(self, send_state(self, "ucx,stream", &outcome, &error), error);
    check_figures(self, &outcome.stats, "stream");
    job_check(self, strstr(outcome.stats.reasons, "did not answer over UCX"), "reasons: %s", outcome.stats.reasons);
}

/** It is stopped after it has asked for UCX, and continues when the source has given up UCX. */
static void be_late_receiver(job_rank *self) {
    receive(self, "ucx,stream", "stream");
}

static void test_no_answer(void **state) {
    (void)state;
    job *all = job_open("no answer", RANKS, false, 60000);
    job_signal plan = {"receiver sent the plan", 1, RECEIVER, SIGSTOP};
    int result = 0;
    job_start(all, SOURCE, be_impatient_source, NULL, NULL);
    job_start(all, RECEIVER, be_late_receiver, NULL, &plan);
    assert_int_equal(waitpid(all->children[RECEIVER], &result, WUNTRACED), all->children[RECEIVER]);
    assert_true(WIFSTOPPED(result));
    wh_deadline limit = wh_deadline_in_ms(JOB_MS);
    while (!atomic_load(all->flags + GAVE_UP_UCX) && !wh_deadline_passed(limit)) {
        usleep(1000);
    }
    kill(all->children[RECEIVER], SIGCONT);
    assert_true(job_close(all));
}

/* ---- connections are kept ---- */

static atomic_int made;

static void count_made(const char *point) {
    made += strcmp(point, "ucx creates a link") == 0;
}

/** The source's workers notice the end later than its conversation. */
static void be_late(const char *point) {
    if (strcmp(point, "ucx source sent END") == 0) {
        usleep(LATE_MS * 1000);
    }
    count_made(point);
}

static void be_late_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    wh_point_hook = be_late;
    job_must(self, send_state(self, "ucx", &outcome, &error), error);
    int first = made;
    for (int i = 0; i < TIMES; i++) {
        job_must(self, send_state(self, "ucx", &outcome, &error), error);
    }
    job_check(self, first > 0 && made == first, "%d links were created for the first, %d later", first, made - first);
    wh_point_hook = NULL;
}

static void be_plain_receiver(job_rank *self) {
    for (int i = 0; i <= TIMES; i++) {
        receive(self, "ucx", "ucx");
    }
}

/**
 * Connections are kept for the next transfer, also if the receiver has all bytes before a worker of
 * the source has noticed the end.
 */
static void test_connections_are_kept(void **state) {
    (void)state;
    job *all = job_open("connections are kept", RANKS, false, 60000);
    job_start(all, SOURCE, be_late_source, NULL, NULL);
    job_start(all, RECEIVER, be_plain_receiver, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- a receiver dies silently ---- */

enum { HEARD_MS = 5000, A_MOMENT_MS = 200 };

/** Makes progress on a link until it is lost or the time is over. */
static void make_progress(wh_ucx_link *link, const wh_stop *stop, int64_t milliseconds) {
    wh_deadline until = wh_deadline_in_ms(milliseconds);
    while (link->lost == UCS_OK && !wh_deadline_passed(until)) {
        wh_ucx_link_progress(link, stop);
    }
}

static void be_silent(const wh_stop *stop, int out) {
    wh_ucx_link *link;
    wherry_error error;
    if (wh_ucx_link_take(NULL, true, &link, &error) != WHERRY_OK ||
        write(out, link->hello, WH_UCX_ID_BYTES + link->address_size) <= 0) {
        _exit(1);
    }
    make_progress(link, stop, JOB_MS);
    _exit(1);
}

/**
 * UCX itself tells a source that its receiver has died, even if the group does not know. This also
 * works over shared memory, where no connection breaks.
 */
static void test_ucx_notices_a_death(void **state) {
    (void)state;
    static uint8_t header[WH_UCX_HEADER_BYTES];
    wherry_error error;
    wh_stop stop;
    int ends[2];
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        be_silent(&stop, ends[1]);
    }
    uint8_t there[PIPE_BUF]; /* A pipe delivers this many bytes in one piece. */
    assert_true(read(ends[0], there, sizeof(there)) > WH_UCX_ID_BYTES);
    wh_ucx_link *link;
    wh_ucx_operation operation;
    must(wh_ucx_link_take(there, true, &link, &error));
    must(wh_ucx_link_connect(link, there, there + WH_UCX_ID_BYTES, RECEIVER, &error));
    wh_ucx_send(link, &operation, header, NULL, 0, false);
    make_progress(link, &stop, A_MOMENT_MS);
    for (int i = 0; i < HEARD_MS / A_MOMENT_MS && !operation.done; i++) {
        make_progress(link, &stop, A_MOMENT_MS);
    }
    assert_true(operation.done && link->lost == UCS_OK);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    make_progress(link, &stop, HEARD_MS);
    assert_int_not_equal(link->lost, UCS_OK);
    wh_ucx_link_give(link);
    wh_stop_destroy(&stop);
    close(ends[0]);
    close(ends[1]);
}

/* ---- forks between transfers ---- */

/** @return the stats of this rank. */
static wherry_stats transfer_once(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    if (self->rank == RECEIVER) {
        return receive(self, "ucx", "ucx");
    }
    job_must(self, send_state(self, "ucx", &outcome, &error), error);
    return outcome.stats;
}

/** A child uses none of its parent's links, and UCX works in it. */
static int be_child(void) {
    wh_ucx_link *link;
    wherry_error error;
    made = 0;
    if (wh_ucx_link_take(NULL, true, &link, &error) != WHERRY_OK || made != 1) {
        return 1;
    }
    wh_ucx_link_give(link);
    return 0;
}

static void be_forking(job_rank *self) {
    wh_point_hook = count_made;
    transfer_once(self);
    int first = made;
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(be_child());
    }
    int result = -1;
    waitpid(child, &result, 0);
    job_check(self, result == 0, "the child ended with %d", result);
    transfer_once(self);
    job_check(self, first > 0 && made == 2 * first, "%d links were created for the first, %d later", first,
              made - first);
    wh_point_hook = NULL;
}

/** Both sides release their links before a fork. The next transfer creates new ones. */
static void test_forks_between_transfers(void **state) {
    (void)state;
    if (!job_may_fork()) {
        return;
    }
    job *all = job_open("forks between transfers", RANKS, false, 60000);
    job_start(all, SOURCE, be_forking, NULL, NULL);
    job_start(all, RECEIVER, be_forking, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- the length of segments ---- */

/** The setting of the user on each side. UCX's own default is 64k. */
static const struct {
    const char *of[RANKS];
    /** How many times links were created so far. Long segments need links of their own. */
    int made;
} users[] = {
    {{NULL, "64k"}, 1}, {{"64k", NULL}, 1}, {{NULL, NULL}, 2}, {{"64k", "64k"}, 2}, {{NULL, NULL}, 2},
};

static void be_user(job_rank *self) {
    int first = 0;
    wh_point_hook = count_made;
    for (size_t i = 0; i < sizeof(users) / sizeof(*users); i++) {
        const char *size = users[i].of[self->rank];
        if (size) {
            setenv("UCX_TCP_RX_SEG_SIZE", size, 1);
        } else {
            unsetenv("UCX_TCP_RX_SEG_SIZE");
        }
        transfer_once(self);
        first = first ? first : made;
        job_check(self, made == users[i].made * first, "case %zu created %d links, the first case %d", i, made, first);
    }
    wh_point_hook = NULL;
}

/**
 * A segment that is longer than the peer expects would overwrite its memory, so both sides have to
 * agree. A connection is used again only by transfers with the same agreement.
 */
static void test_different_settings(void **state) {
    (void)state;
    job *all = job_open("different settings", RANKS, false, 60000);
    job_start(all, SOURCE, be_user, NULL, NULL);
    job_start(all, RECEIVER, be_user, NULL, NULL);
    assert_true(job_close(all));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receiver_comes_back), cmocka_unit_test(test_source_comes_back),
        cmocka_unit_test(test_no_answer),           cmocka_unit_test(test_connections_are_kept),
        cmocka_unit_test(test_ucx_notices_a_death), cmocka_unit_test(test_forks_between_transfers),
        cmocka_unit_test(test_different_settings),
    };
    return cmocka_run_group_tests(tests, create_sent, destroy_sent);
}
