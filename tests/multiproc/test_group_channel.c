/*
 * Channels between real processes: which process a rank is, and a peer that dies or is stopped
 * while a channel is open.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group/mailbox.h"
#include "group/sockets/sockets.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/meeting.h"

enum { JOIN_MS = 20000, SOON_MS = 10000, DEATH_MS = 4000, ASLEEP_MS = 1000, ASK = 1, ANSWER = 2 };

#define TALK (WH_TAG_CONVERSATION | 5)

static wherry_error error;

/**
 * A member that reports which process it takes for rank 0, and writes a byte into every channel,
 * until it is killed.
 */
static int serve(const wh_test_meeting *meeting, int32_t rank, int32_t size) {
    wh_group *group;
    wh_inbox *inbox;
    wh_message message;
    if (wh_test_join(meeting, rank, size, JOIN_MS, &group, &error) != WHERRY_OK ||
        wh_inbox_open(group, TALK, &inbox, &error) != WHERRY_OK) {
        return 1;
    }
    int32_t nobody = 0;
    if (wh_group_send(group, 0, ANSWER, &nobody, sizeof(nobody), wh_deadline_in_ms(SOON_MS), &error) != WHERRY_OK) {
        return 2;
    }
    for (;;) {
        if (wh_group_receive(group, 0, ASK, wh_deadline_in_ms(10), &message, NULL) == WHERRY_OK) {
            int32_t process = wh_group_process(group, 0);
            wh_group_send(group, 0, ANSWER, &process, sizeof(process), wh_deadline_in_ms(SOON_MS), NULL);
            wh_message_clear(&message);
        }
        if (wh_inbox_take(inbox, wh_deadline_in_ms(10), &message, NULL) == WHERRY_OK &&
            message.kind == WH_MESSAGE_CHANNEL) {
            if (wh_socket_write(&message.channel, &(struct iovec){(void *)(uintptr_t) "+", 1}, 1) != 1) {
                return 3;
            }
            message.channel = WH_NO_SOCKET; /* The channel stays open until this process dies. */
        }
    }
}

static pid_t start(const wh_test_meeting *meeting, int32_t rank, int32_t size) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        wherry_log_set_level(WHERRY_LOG_OFF);
        _exit(serve(meeting, rank, size));
    }
    return child;
}

static void finish(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int32_t wait_for_answer(wh_group *group) {
    wh_message message;
    int32_t process;
    must(wh_group_receive(group, 1, ANSWER, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_int_equal(message.size, sizeof(process));
    memcpy(&process, message.bytes, sizeof(process));
    wh_message_clear(&message);
    return process;
}

static void test_process(void **state) {
    const wh_test_meeting *meeting = *state;
    wh_group *group;
    pid_t child = start(meeting, 1, 2);
    must(wh_test_join(meeting, 0, 2, JOIN_MS, &group, &error));
    wait_for_answer(group);
    must(wh_group_send(group, 1, ASK, "", 0, wh_deadline_in_ms(SOON_MS), &error));
    bool vouched = !meeting->port || meeting->near;
    assert_int_equal(wait_for_answer(group), vouched ? getpid() : 0);
    assert_int_equal(wh_group_process(group, 1), vouched ? child : 0);
    assert_int_equal(wh_group_process(group, 0), getpid());
    finish(child);
    wh_group_destroy(group);
}

static void read_end(const wh_socket *channel, int64_t ms) {
    struct pollfd at = {channel->fd, POLLIN, 0};
    char byte;
    assert_int_equal(poll(&at, 1, (int)ms), 1);
    assert_true(wh_socket_read(channel, &(struct iovec){&byte, 1}, 1) <= 0);
}

static void test_peer_dies(void **state) {
    const wh_test_meeting *meeting = *state;
    wh_group *group;
    wh_socket channel;
    char byte;
    pid_t child = start(meeting, 1, 2);
    must(wh_test_join(meeting, 0, 2, JOIN_MS, &group, &error));
    wait_for_answer(group);
    must(wh_group_connect(group, 1, TALK, wh_deadline_in_ms(SOON_MS), NULL, &channel, &error));
    struct pollfd at = {channel.fd, POLLIN, 0};
    assert_int_equal(poll(&at, 1, SOON_MS), 1);
    assert_int_equal(wh_socket_read(&channel, &(struct iovec){&byte, 1}, 1), 1);
    finish(child);
    read_end(&channel, DEATH_MS);
    wh_socket_close(&channel);
    must_fail(WHERRY_PEER_LOST, error,
              wh_group_connect(group, 1, TALK, wh_deadline_in_ms(SOON_MS), NULL, &channel, &error));
    assert_int_equal(error.rank, 1);
    wh_group_destroy(group);
}

/**
 * A stopped process answers nothing: the call waits until its deadline, or ends at once if the
 * process dies.
 */
static void test_stopped_peer(void **state) {
    const wh_test_meeting *meeting = *state;
    wh_group *group;
    wh_socket channel;
    pid_t child = start(meeting, 1, 2);
    must(wh_test_join(meeting, 0, 2, JOIN_MS, &group, &error));
    wait_for_answer(group);
    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child); /* All of its threads are stopped. */
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_connect(group, 1, TALK, wh_deadline_in_ms(300), NULL, &channel, &error));
    assert_non_null(strstr(error.message, "timed out"));
    assert_true((wh_clock_now() - begin) / 1000000 < DEATH_MS);
    pid_t killer = fork();
    if (killer == 0) {
        wh_await_asleep(getppid()); /* The test waits in its call. */
        kill(child, SIGKILL);
        _exit(0);
    }
    begin = wh_clock_now();
    must_fail(WHERRY_PEER_LOST, error,
              wh_group_connect(group, 1, TALK, wh_deadline_in_ms(SOON_MS), NULL, &channel, &error));
    assert_true((wh_clock_now() - begin) / 1000000 < ASLEEP_MS + DEATH_MS);
    waitpid(killer, NULL, 0);
    waitpid(child, NULL, 0);
    wh_group_destroy(group);
}

/**
 * A process whose children outlive it: its death is noticed, and the group is closed for the
 * children.
 */
static void test_children_outlive_it(void **state) {
    const wh_test_meeting *meeting = *state;
    int report[2];
    wh_group *group;
    wh_message message;
    assert_int_equal(pipe(report), 0);
    pid_t child = fork();
    if (child == 0) {
        pid_t own = wh_test_join(meeting, 1, 2, JOIN_MS, &group, &error) == WHERRY_OK ? fork() : -1;
        if (own == 0) {
            bool closed =
                wh_group_receive(group, 0, ASK, wh_deadline_in_ms(SOON_MS), &message, NULL) == WHERRY_CLOSED &&
                wh_group_send(group, 0, ASK, "", 0, wh_deadline_in_ms(SOON_MS), NULL) == WHERRY_CLOSED;
            wh_group_destroy(group);
            own = closed ? getpid() : -1;
            _exit(write(report[1], &own, sizeof(own)) == sizeof(own) && sleep(60));
        }
        own = fork(); /* The other process does not use the group. */
        if (own == 0) {
            own = getpid();
            _exit(write(report[1], &own, sizeof(own)) == sizeof(own) && sleep(60));
        }
        wh_group_send(group, 0, ANSWER, "", 0, wh_deadline_in_ms(SOON_MS), NULL);
        _exit(pause());
    }
    pid_t grandchildren[2] = {-1, -1};
    must(wh_test_join(meeting, 0, 2, JOIN_MS, &group, &error));
    must(wh_group_receive(group, 1, ANSWER, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read(report[0], grandchildren + i, sizeof(*grandchildren)), sizeof(*grandchildren));
        assert_true(grandchildren[i] > 0);
    }
    finish(child);
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_PEER_LOST, error, wh_group_receive(group, 1, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
    must_fail(WHERRY_PEER_LOST, error, wh_group_send(group, 1, ASK, "", 0, wh_deadline_in_ms(SOON_MS), &error));
    assert_true((wh_clock_now() - begin) / 1000000 < DEATH_MS);
    kill(grandchildren[0], SIGKILL);
    kill(grandchildren[1], SIGKILL);
    close(report[0]);
    close(report[1]);
    wh_group_destroy(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_process, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_process, wh_test_open_tcp, wh_test_close),
        cmocka_unit_test_setup_teardown(test_process, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_peer_dies, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_peer_dies, wh_test_open_tcp, wh_test_close),
        cmocka_unit_test_setup_teardown(test_peer_dies, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_stopped_peer, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_stopped_peer, wh_test_open_tcp, wh_test_close),
        cmocka_unit_test_setup_teardown(test_stopped_peer, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_children_outlive_it, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_children_outlive_it, wh_test_open_tcp, wh_test_close),
        cmocka_unit_test_setup_teardown(test_children_outlive_it, wh_test_open_near, wh_test_close),
    };
    return cmocka_run_group_tests_name("group_channel", tests, NULL, NULL);
}
