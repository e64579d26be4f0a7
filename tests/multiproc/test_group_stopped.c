/*
 * The member at the meeting point is stopped, not dead. Nobody takes its place. The others
 * continue. A process that wants to join waits until the member continues, or fails at its deadline
 * with an error that names the member's pid.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group/mailbox.h"
#include "group/sockets/sockets.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/meeting.h"

enum {
    RANKS = 4,
    HOST = 0,
    VICTIM = 1,
    OWN = 2,
    OTHER = 3,
    JOIN_MS = 20000,
    SOON_MS = 10000,
    SHORT_MS = 1500,
    ASK = 1,
    ANSWER = 2
};

static wherry_error error;

/** Answers all requests until it is killed. */
static int serve(const wh_test_meeting *meeting, int32_t rank) {
    wh_group *group;
    if (wh_test_join(meeting, rank, RANKS, JOIN_MS, &group, &error) != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s\n", (int)rank, error.message);
        return 1;
    }
    for (;;) {
        wh_message message;
        if (wh_group_receive(group, WHERRY_ANY_RANK, ASK, wh_deadline_in_ms(60000), &message, &error) != WHERRY_OK) {
            return 2;
        }
        wh_group_send(group, message.rank, ANSWER, message.bytes, message.size, wh_deadline_in_ms(SOON_MS), NULL);
        wh_message_clear(&message);
    }
}

static pid_t start(const wh_test_meeting *meeting, int32_t rank) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(serve(meeting, rank));
    }
    return child;
}

/** Waits until a process is inside its call. It may take long to get there on a busy machine. */
static void await_asleep(pid_t process) {
    wh_deadline end = wh_deadline_in_ms(SOON_MS);
    do {
        assert_false(wh_deadline_passed(end));
        wh_await_asleep(process);
    } while (!wh_threads_are(process, WH_STATES_ASLEEP, NULL));
}

static bool ask(wh_group *group, int32_t rank) {
    static uint64_t question;
    wh_message message;
    question++;
    if (wh_group_send(group, rank, ASK, &question, sizeof(question), wh_deadline_in_ms(500), NULL) != WHERRY_OK ||
        wh_group_receive(group, rank, ANSWER, wh_deadline_in_ms(500), &message, NULL) != WHERRY_OK) {
        return false;
    }
    bool same = message.size == sizeof(question) && memcmp(message.bytes, &question, sizeof(question)) == 0;
    wh_message_clear(&message);
    return same;
}

static void ask_until(wh_group *group, int32_t rank, int64_t ms) {
    wh_deadline end = wh_deadline_in_ms(ms);
    while (!ask(group, rank)) {
        assert_false(wh_deadline_passed(end));
        usleep(20000);
    }
}

static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_the_host_is_stopped(void **state) {
    const wh_test_meeting *meeting = *state;
    wh_group *group;
    wh_group *late = NULL;
    char named[64];
    pid_t host = start(meeting, HOST);
    await_asleep(host); /* The member has the meeting point and waits for the others. */
    pid_t victim = start(meeting, VICTIM);
    pid_t other = start(meeting, OTHER);
    must(wh_test_join(meeting, OWN, RANKS, JOIN_MS, &group, &error));
    ask_until(group, HOST, SOON_MS);
    ask_until(group, VICTIM, SOON_MS);
    ask_until(group, OTHER, SOON_MS);
    kill(host, SIGSTOP);
    end(victim);
    wh_deadline stopped = wh_deadline_in_ms(SHORT_MS);
    must_fail(WHERRY_TIMED_OUT, error, wh_test_join(meeting, VICTIM, RANKS, SHORT_MS, &late, &error));
    snprintf(named, sizeof(named), "process %d, which listens there, is stopped", (int)host);
    assert_non_null(strstr(error.message, named));
    assert_true(wh_deadline_passed(stopped));
    ask_until(group, OTHER, SOON_MS);
    pid_t successor = start(meeting, VICTIM);
    await_asleep(successor);
    assert_false(ask(group, VICTIM));
    ask_until(group, OTHER, SOON_MS);
    kill(host, SIGCONT);
    ask_until(group, VICTIM, SOON_MS);
    ask_until(group, HOST, SOON_MS);
    ask_until(group, OTHER, SOON_MS);
    end(host);
    end(successor);
    /* Another member has the meeting point now. */
    successor = start(meeting, VICTIM);
    ask_until(group, VICTIM, SOON_MS);
    end(successor);
    end(other);
    wh_group_destroy(group);
}

/** A group of two with a short heartbeat. */
static wherry_status join_wary(const wh_test_meeting *meeting, int32_t rank, wh_group **group_p) {
    char address[128];
    wh_sockets_options options = {.heartbeat_ms = 50, .dead_after_ms = 2000};
    snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=2&job=test", meeting->folder, (int)rank);
    return wh_sockets_join(address, &options, wh_deadline_in_ms(JOIN_MS), group_p, &error);
}

/**
 * A message of a conversation with a lost rank fails at once; any other message waits for the rank.
 */
static void test_a_conversation_ends_with_its_rank(void **state) {
    const wh_test_meeting *meeting = *state;
    wh_group *group;
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(join_wary(meeting, 0, &group) == WHERRY_OK ? pause() : 1);
    }
    must(join_wary(meeting, 1, &group));
    must(wh_group_send(group, 0, WH_TAG_CONVERSATION | ASK, NULL, 0, wh_deadline_in_ms(SOON_MS), &error));
    kill(other, SIGSTOP);
    wh_deadline end = wh_deadline_in_ms(SOON_MS);
    while (wh_mailbox_incarnation(group->mailbox, 0)) {
        assert_false(wh_deadline_passed(end));
        usleep(5000);
    }
    assert_int_equal(WHERRY_PEER_LOST,
                     wh_group_send(group, 0, WH_TAG_CONVERSATION | ASK, NULL, 0, wh_deadline_in_ms(0), &error));
    assert_int_equal(0, error.rank);
    assert_non_null(strstr(error.message, "nothing was heard from it for too long"));
    assert_int_equal(WHERRY_TIMED_OUT, wh_group_send(group, 0, ASK, NULL, 0, wh_deadline_in_ms(0), &error));
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    wh_group_destroy(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_conversation_ends_with_its_rank, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_the_host_is_stopped, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_the_host_is_stopped, wh_test_open_tcp, wh_test_close),
        cmocka_unit_test_setup_teardown(test_the_host_is_stopped, wh_test_open_near, wh_test_close),
    };
    return cmocka_run_group_tests_name("group_stopped", tests, NULL, NULL);
}
