/*
 * Over UCX: a rank dies in the middle, comes back as another process, and is served again, from the
 * same process as before. And a receiver that does not answer over UCX gets its bytes over the next
 * lane. And connections are kept, but for a fork. And sides whose settings of UCX differ agree.
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

enum { SOURCE, RECEIVER, RANKS };

/** What ranks say to each other. */
enum { SENDING };

enum { TIMES = 3, MEET_MS = 300, LATE_MS = 30 };

static job_state sent;

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
    job_check(self, job_state_equals(&sent, received), "what came is not right");
    wherry_value_destroy(received);
    check_figures(self, &stats, lane);
    return stats;
}

static wherry_status send_state(job_rank *self, const char *lanes, wherry_outcome *outcome, wherry_error *error) {
    wherry_transfer_options options = job_options(lanes);
    return wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, outcome, error);
}

/* ---- who comes back ---- */

static void be_steady_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    wherry_status status = send_state(self, "ucx", &outcome, &error);
    job_check(self, status == WHERRY_PEER_LOST, "the first: %s", wherry_status_name(status));
    for (int i = 0; i < TIMES; i++) {
        job_must(self, send_state(self, "ucx", &outcome, &error), error);
        check_figures(self, &outcome.stats, "ucx");
    }
}

static void be_mortal_receiver(job_rank *self) {
    receive(self, "ucx", "ucx"); /* it does not get that far */
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
    job_check(self, status == WHERRY_PEER_LOST, "the second: %s", wherry_status_name(status));
    while ((status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error)) != WHERRY_OK) {
        job_check(self, status == WHERRY_PEER_LOST, "before it was back: %s", wherry_status_name(status));
        usleep(20000);
    }
    job_check(self, job_state_equals(&sent, received), "what came is not right");
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

/** The victim dies at the point, and another process takes its place. */
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

/* ---- who does not answer ---- */

static void be_impatient_source(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    wh_ucx_meet_ms = MEET_MS;
    job_must(self, send_state(self, "ucx,stream", &outcome, &error), error);
    check_figures(self, &outcome.stats, "stream");
    job_check(self, strstr(outcome.stats.reasons, "did not answer over UCX"), "reasons: %s", outcome.stats.reasons);
}

/** It is stopped when it has asked for UCX, and goes on when the source has given that up. */
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
    usleep(3 * MEET_MS * 1000);
    kill(all->children[RECEIVER], SIGCONT);
    assert_true(job_close(all));
}

/* ---- what is kept ---- */

static atomic_int made;

static void count_made(const char *point) {
    made += strcmp(point, "ucx creates a link") == 0;
}

/** Its workers hear of the end later than its conversation does. */
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
 * Connections are kept for the next transfer, also where the receiver has all before a worker of
 * the source has heard of the end.
 */
static void test_connections_are_kept(void **state) {
    (void)state;
    job *all = job_open("connections are kept", RANKS, false, 60000);
    job_start(all, SOURCE, be_late_source, NULL, NULL);
    job_start(all, RECEIVER, be_plain_receiver, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- who is silent ---- */

enum { HEARD_MS = 5000, A_MOMENT_MS = 200 };

static void take_turns(wh_ucx_link *link, const wh_stop *stop, int64_t milliseconds) {
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
    take_turns(link, stop, JOB_MS);
    _exit(1);
}

/**
 * A source whose receiver dies without a word hears of it from UCX, whatever its group knows: also
 * over shared memory, where no connection breaks.
 */
static void test_death_is_heard(void **state) {
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
    uint8_t there[PIPE_BUF]; /* comes in one piece */
    assert_true(read(ends[0], there, sizeof(there)) > WH_UCX_ID_BYTES);
    wh_ucx_link *link;
    wh_ucx_operation operation;
    must(wh_ucx_link_take(there, true, &link, &error));
    must(wh_ucx_link_connect(link, there, there + WH_UCX_ID_BYTES, RECEIVER, &error));
    wh_ucx_send(link, &operation, header, NULL, 0, false);
    take_turns(link, &stop, A_MOMENT_MS);
    assert_true(operation.done && link->lost == UCS_OK);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    take_turns(link, &stop, HEARD_MS);
    assert_int_not_equal(link->lost, UCS_OK);
    wh_ucx_link_give(link);
    wh_stop_destroy(&stop);
    close(ends[0]);
    close(ends[1]);
}

/* ---- forks between transfers ---- */

/** @return the receiver's figures, or the source's. */
static wherry_stats transfer_once(job_rank *self) {
    wherry_outcome outcome;
    wherry_error error;
    if (self->rank == RECEIVER) {
        return receive(self, "ucx", "ucx");
    }
    job_must(self, send_state(self, "ucx", &outcome, &error), error);
    return outcome.stats;
}

/** A child has nothing of what its parent has kept, and UCX works there. */
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

/** What was kept is released before a fork, at both sides: the next transfer makes it anew. */
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

/** What the user of each side sets. UCX's own default is 64k. */
static const struct {
    const char *of[RANKS];
    /** How often links have been made up to here: once for long segments, once for others. */
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
        job_check(self, made == users[i].made * first, "user %zu: %d links, of %d", i, made, first);
    }
    wh_point_hook = NULL;
}

/**
 * A segment that is longer than the peer expects would overwrite its memory, so both sides have to
 * agree. A connection is used again only by transfers with the same agreement.
 */
static void test_users_who_differ(void **state) {
    (void)state;
    job *all = job_open("users who differ", RANKS, false, 60000);
    job_start(all, SOURCE, be_user, NULL, NULL);
    job_start(all, RECEIVER, be_user, NULL, NULL);
    assert_true(job_close(all));
}

static int set_up(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    sent = job_state_create(1);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    job_state_destroy(&sent);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receiver_comes_back), cmocka_unit_test(test_source_comes_back),
        cmocka_unit_test(test_no_answer),           cmocka_unit_test(test_connections_are_kept),
        cmocka_unit_test(test_death_is_heard),      cmocka_unit_test(test_forks_between_transfers),
        cmocka_unit_test(test_users_who_differ),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
