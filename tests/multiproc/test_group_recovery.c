/*
 * Real processes: each rank, 0 included, is killed in turn. Calls that wait for it return soon, the
 * others continue, and a new process takes the rank. A process that was stopped while another took
 * its rank is fenced when it continues.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "group/mailbox.h"
#include "group/sockets/sockets.h"
#include "support/asleep.h"
#include "support/build.h"

enum { RANKS = 3, JOIN_MS = 20000, SOON_MS = 10000, DEATH_MS = 4000, ASK = 1, ANSWER = 2, NEVER = 3 };

static wherry_error error;
static char folder[64];

static wherry_status join(int32_t rank, int32_t size, const wh_sockets_options *options, int64_t ms,
                          wh_group **group_p) {
    char address[256];
    snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=%d&job=recovery", folder, (int)rank, (int)size);
    return wh_sockets_join(address, options, wh_deadline_in_ms(ms), group_p, &error);
}

/** A member that answers requests until it is killed or fenced. Its exit status says which. */
static int serve(int32_t rank) {
    wh_sockets_options options = {0};
    wh_group *group;
    if (join(rank, RANKS, &options, JOIN_MS, &group) != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s\n", (int)rank, error.message);
        return 1;
    }
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK) {
        wh_message message;
        status = wh_group_receive(group, WHERRY_ANY_RANK, ASK, wh_deadline_in_ms(60000), &message, &error);
        if (status == WHERRY_OK) {
            wh_group_send(group, message.rank, ANSWER, message.bytes, message.size, wh_deadline_in_ms(SOON_MS), NULL);
            wh_message_clear(&message);
        }
    }
    wh_group_destroy(group);
    return status == WHERRY_CLOSED ? 42 : 2;
}

/** Waits until the test, which is rank 0, listens at the meeting point and waits for the others. */
static void await_meeting_point(void) {
    char path[128];
    snprintf(path, sizeof(path), "%s/meet", folder);
    for (wh_deadline end = wh_deadline_in_ms(JOIN_MS); access(path, F_OK) != 0 && !wh_deadline_passed(end);) {
        usleep(1000);
    }
    wh_await_asleep(getppid());
}

static bool start_later; /**< Children wait for the meeting point before they join. */

static pid_t start(int32_t rank) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (start_later) {
            await_meeting_point();
        }
        wherry_log_set_level(WHERRY_LOG_OFF);
        _exit(serve(rank));
    }
    return child;
}

/**
 * Sends a request and waits for the answer, also if the rank has died and its successor is
 * starting.
 */
static void ask_until_answered(wh_group *group, int32_t rank) {
    wherry_status status = WHERRY_PEER_LOST;
    for (int tries = 0; tries < 200 && status != WHERRY_OK; tries++) {
        wh_message message;
        uint64_t question = (uint64_t)tries;
        status = wh_group_send(group, rank, ASK, &question, sizeof(question), wh_deadline_in_ms(SOON_MS), &error);
        if (status == WHERRY_OK) {
            status = wh_group_receive(group, rank, ANSWER, wh_deadline_in_ms(SOON_MS), &message, &error);
        }
        if (status == WHERRY_OK) {
            assert_memory_equal(message.bytes, &question, sizeof(question));
            wh_message_clear(&message);
        } else {
            assert_int_equal(status, WHERRY_PEER_LOST);
            usleep(20000);
        }
    }
    assert_int_equal(status, WHERRY_OK);
}

static int open_folder(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    snprintf(folder, sizeof(folder), "/tmp/wherry-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/*", folder);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
    return rmdir(folder);
}

/** The test is one rank; the others are children, killed and restarted one after the other. */
static void test_every_rank_dies_and_returns(void **state) {
    (void)state;
    for (int32_t own = 0; own < RANKS; own++) {
        pid_t children[RANKS] = {0};
        wh_sockets_options options = {0};
        wh_group *group;
        for (int32_t rank = 0; rank < RANKS; rank++) {
            children[rank] = rank == own ? 0 : start(rank);
        }
        must(join(own, RANKS, &options, JOIN_MS, &group));
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (rank == own) {
                continue;
            }
            wh_message message;
            ask_until_answered(group, rank);
            uint64_t killed = wh_clock_now();
            kill(children[rank], SIGKILL);
            must_fail(WHERRY_PEER_LOST, error,
                      wh_group_receive(group, rank, NEVER, wh_deadline_in_ms(SOON_MS), &message, &error));
            assert_int_equal(error.rank, rank);
            assert_true((wh_clock_now() - killed) / 1000000 < DEATH_MS);
            waitpid(children[rank], NULL, 0);
            for (int32_t other = 0; other < RANKS; other++) {
                if (other != own && other != rank) {
                    ask_until_answered(group, other);
                }
            }
            children[rank] = start(rank);
            ask_until_answered(group, rank);
        }
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (rank != own) {
                kill(children[rank], SIGKILL);
                waitpid(children[rank], NULL, 0);
            }
        }
        wh_group_destroy(group);
    }
}

/**
 * A process that was stopped while another took its rank is fenced when it continues. It does not
 * listen at the meeting point.
 */
static void test_a_stopped_process_is_fenced(void **state) {
    (void)state;
    wh_sockets_options options = {0};
    wh_group *group;
    start_later = true;
    pid_t one = start(1);
    pid_t stopped = start(2);
    start_later = false;
    int status;
    must(join(0, RANKS, &options, JOIN_MS, &group));
    ask_until_answered(group, 2);
    kill(stopped, SIGSTOP);
    pid_t successor = start(2);
    uint64_t before = 0;
    for (int tries = 0; tries < 200 && before != 1; tries++) {
        wh_message message;
        wherry_status got = wh_group_receive(group, 2, NEVER, wh_deadline_in_ms(100), &message, &error);
        before = got == WHERRY_PEER_LOST;
    }
    assert_int_equal(before, 1);
    ask_until_answered(group, 2);
    kill(stopped, SIGCONT);
    waitpid(stopped, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    ask_until_answered(group, 2);
    kill(one, SIGKILL);
    kill(successor, SIGKILL);
    waitpid(one, NULL, 0);
    waitpid(successor, NULL, 0);
    wh_group_destroy(group);
}

/**
 * A predecessor's clock was an hour ahead, so that its incarnation number is higher than the first
 * one of its successor. Successors replace it nevertheless, repeatedly.
 */
static void test_a_clock_that_is_behind(void **state) {
    (void)state;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t hour = UINT64_C(3600) * 1000000000;
    wh_sockets_options options = {0};
    wh_sockets_options ahead = {.incarnation = (uint64_t)now.tv_sec * 1000000000 + hour};
    wh_group *group;
    pid_t children[RANKS] = {0, start(1), 0};
    pid_t predecessor = fork();
    if (predecessor == 0) {
        wh_group *own;
        _exit(join(2, RANKS, &ahead, JOIN_MS, &own) == WHERRY_OK ? pause() : 1);
    }
    must(join(0, RANKS, &options, JOIN_MS, &group));
    for (int i = 0; i < 3; i++) {
        pid_t leaving = i == 0 ? predecessor : children[i];
        int32_t rank = i == 0 ? 2 : i;
        wh_message message;
        kill(leaving, SIGKILL);
        waitpid(leaving, NULL, 0);
        children[rank] = start(rank);
        wherry_status lost = wh_group_receive(group, rank, NEVER, wh_deadline_in_ms(SOON_MS), &message, &error);
        assert_int_equal(lost, WHERRY_PEER_LOST);
        ask_until_answered(group, rank);
        ask_until_answered(group, 3 - rank);
    }
    for (int32_t rank = 1; rank < RANKS; rank++) {
        kill(children[rank], SIGKILL);
        waitpid(children[rank], NULL, 0);
    }
    wh_group_destroy(group);
}

static void test_missing_ranks_are_named(void **state) {
    (void)state;
    wh_sockets_options options = {0};
    wh_group *group;
    must_fail(WHERRY_TIMED_OUT, error, join(1, 4, &options, 100, &group));
    assert_non_null(strstr(error.message, "3 of 4 ranks have not come: 0, 2, 3"));
    assert_non_null(strstr(error.message, folder));
}

/** A wrong secret is rejected with a reason, and the group continues. */
static void test_a_wrong_secret(void **state) {
    (void)state;
    wh_sockets_options right = {.secret = "the right secret", .secret_size = 16};
    wh_sockets_options wrong = {.secret = "the wrong secret", .secret_size = 16};
    wh_group *groups[2];
    wh_group *stranger;
    wh_message message;
    pid_t child = fork();
    if (child == 0) {
        wh_group *group;
        wherry_log_set_level(WHERRY_LOG_OFF);
        bool ok = join(1, 2, &right, JOIN_MS, &group) == WHERRY_OK &&
                  wh_group_receive(group, 0, ASK, wh_deadline_in_ms(SOON_MS), &message, NULL) == WHERRY_OK;
        _exit(ok ? 0 : 1);
    }
    must(join(0, 2, &right, JOIN_MS, groups));
    /* The error comes at once, not at the deadline. */
    wh_deadline soon = wh_deadline_in_ms(SOON_MS);
    must_fail(WHERRY_BAD_SECRET, error, join(1, 2, &wrong, 10 * SOON_MS, &stranger));
    assert_false(wh_deadline_passed(soon));
    must(wh_group_send(groups[0], 1, ASK, "x", 1, wh_deadline_in_ms(SOON_MS), &error));
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    wh_group_destroy(groups[0]);
}

static int refusals;

static void count_refusals(void *context, wherry_log_level level, const char *line) {
    (void)context;
    refusals += level <= WHERRY_LOG_WARN && strstr(line, "turned a connection away") != NULL;
}

/** A member logs once that others have another secret, however often they try. */
static void test_a_wrong_secret_is_logged_once(void **state) {
    (void)state;
    wh_sockets_options right = {.secret = "the right secret", .secret_size = 16, .wait_for = 1};
    wh_sockets_options wrong = {.secret = "the wrong secret", .secret_size = 16};
    wh_group *group;
    wh_group *stranger;
    must(join(0, 2, &right, JOIN_MS, &group));
    refusals = 0;
    wherry_log_to(count_refusals, NULL);
    wherry_log_set_level(WHERRY_LOG_WARN);
    for (int i = 0; i < 20; i++) {
        must_fail(WHERRY_BAD_SECRET, error, join(1, 2, &wrong, SOON_MS, &stranger));
    }
    wherry_log_set_level(WHERRY_LOG_OFF);
    wherry_log_to(NULL, NULL);
    assert_int_equal(refusals, 1);
    wh_group_destroy(group);
}

/** Waits until somebody listens at an address. */
static void await_listener(const struct sockaddr *at, socklen_t size) {
    bool found = false;
    for (wh_deadline end = wh_deadline_in_ms(JOIN_MS); !found && !wh_deadline_passed(end);) {
        int probe = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        found = connect(probe, at, size) == 0;
        close(probe);
        usleep(1000);
    }
    assert_true(found);
}

static void make_file(const char *form, const char *name) {
    char path[200];
    snprintf(path, sizeof(path), form, folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static bool has_file(const char *name) {
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/** Joining removes no files of the user, whatever their names are. */
static void test_files_of_the_user_stay(void **state) {
    (void)state;
    static const char *const names[] = {
        "meet.0.weights.safetensors", "meet.0.", "meet.0.12", "a*b.0.1", "axb.0.1", "a"};
    wh_sockets_options options = {.wait_for = 1};
    wh_group *group;
    char address[256];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        make_file("%s/%s", names[i]);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(address, sizeof(address), "unix://%s/%s?rank=0&size=2", folder, i ? "a*b" : "meet");
        must(wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error));
        wh_group_destroy(group);
    }
    snprintf(address, sizeof(address), "unix://%s/a?rank=0&size=2", folder);
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error));
    assert_non_null(strstr(error.message, "not a socket"));
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        assert_true(has_file(names[i]));
    }
    assert_false(has_file("meet") || has_file("meet.lock") || has_file("a*b"));
}

/** Makes a socket at which nobody listens. */
static void make_socket(const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    close(fd);
}

/** A rank that joins removes the dead sockets of its own rank only. */
static void test_only_sockets_of_the_rank_are_removed(void **state) {
    (void)state;
    static const char *const others[] = {"meet.0.12.sock", "meet.0.12.", "meet.0.xyz", "meet.0.",
                                         "meet.00",        "meet.1.12",  "xmeet.0.12", "meet.0.1234567890abcdef0"};
    wh_sockets_options options = {.wait_for = 1};
    wh_group *group;
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        make_socket(others[i]);
    }
    make_socket("meet.0.12");
    must(join(0, 2, &options, SOON_MS, &group));
    assert_false(has_file("meet.0.12"));
    wh_group_destroy(group);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        assert_true(has_file(others[i]));
    }
}

/** A process that holds PATH.lock listens at PATH. No other process touches the socket there. */
static void test_the_meeting_point_has_a_lock(void **state) {
    (void)state;
    wh_sockets_options options = {.wait_for = 1};
    wh_group *group;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[128];
    make_socket("meet");
    snprintf(path, sizeof(path), "%s/meet.lock", folder);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    must(join(0, 2, &options, SOON_MS, &group));
    usleep(700000); /* The process tries every 500 ms. */
    assert_true(has_file("meet"));
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/meet", folder);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(connect(probe, (struct sockaddr *)&at, sizeof(at)) != 0 && errno == ECONNREFUSED);
    close(probe);
    close(lock);
    await_listener((struct sockaddr *)&at, sizeof(at));
    wh_group_destroy(group);
}

static void test_no_secret_beyond_loopback(void **state) {
    (void)state;
    wh_sockets_options options = {0};
    wh_group *group;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_sockets_join("tcp://192.0.2.1:4711?rank=0&size=2", &options, wh_deadline_in_ms(100), &group, &error));
    assert_non_null(strstr(error.message, "WHERRY_SECRET or WHERRY_SECRET_FILE"));
}

static size_t count_files(const char *form, const char *where) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof(pattern), form, where);
    size_t count = glob(pattern, GLOB_NOSORT, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return count;
}

/** A group of one has no thread and no socket, and can send to itself. */
static void test_alone(void **state) {
    (void)state;
    wh_sockets_options options = {0};
    wh_group *group;
    wh_message message;
    size_t threads = count_files("%s/*", "/proc/self/task");
    must(join(0, 1, &options, SOON_MS, &group));
    assert_int_equal(count_files("%s/*", folder), 0);
    assert_int_equal(count_files("%s/*", "/proc/self/task"), threads);
    must(wh_group_send(group, 0, ASK, "x", 1, wh_deadline_in_ms(SOON_MS), &error));
    must(wh_group_receive(group, 0, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(group, 0, ASK, wh_deadline_in_ms(20), &message, &error));
    assert_int_equal(wh_group_process(group, 0), getpid());
    wh_group_destroy(group);
}

/** Meeting points can be names. Unknown names do not delay the others. */
static void test_meeting_by_name(void **state) {
    (void)state;
    wh_sockets_options options = {.allow_insecure = true};
    char address[128];
    wh_group *group;
    wh_message message;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_sockets_join("tcp://nowhere.invalid:4711?rank=0&size=2", &options, wh_deadline_in_ms(SOON_MS), &group,
                              &error));
    assert_non_null(strstr(error.message, "no address of the host nowhere.invalid"));
    int port = 20000 + getpid() % 10000;
    pid_t child = fork();
    snprintf(address, sizeof(address), "tcp://nowhere.invalid:4711,localhost:%d?rank=%d&size=2", port, child == 0);
    wherry_status status = wh_sockets_join(address, &options, wh_deadline_in_ms(JOIN_MS), &group, &error);
    if (child == 0) {
        _exit(status == WHERRY_OK &&
                      wh_group_send(group, 0, ASK, "x", 1, wh_deadline_in_ms(SOON_MS), NULL) == WHERRY_OK &&
                      wh_group_receive(group, 0, ANSWER, wh_deadline_in_ms(SOON_MS), &message, NULL) == WHERRY_OK
                  ? 0
                  : 1);
    }
    must(status);
    must(wh_group_receive(group, WHERRY_ANY_RANK, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    must(wh_group_send(group, 1, ANSWER, "x", 1, wh_deadline_in_ms(SOON_MS), &error));
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    wh_group_destroy(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_rank_dies_and_returns, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_stopped_process_is_fenced, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_clock_that_is_behind, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_missing_ranks_are_named, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_wrong_secret, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_a_wrong_secret_is_logged_once, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_files_of_the_user_stay, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_only_sockets_of_the_rank_are_removed, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_the_meeting_point_has_a_lock, open_folder, close_folder),
        cmocka_unit_test(test_no_secret_beyond_loopback),
        cmocka_unit_test_setup_teardown(test_alone, open_folder, close_folder),
        cmocka_unit_test(test_meeting_by_name),
    };
    return cmocka_run_group_tests_name("group_recovery", tests, NULL, NULL);
}
