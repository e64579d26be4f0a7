/*
 * Processes of another user: they cannot join a group of this user, and this user's members do not
 * join theirs. Needs root.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group/mailbox.h"
#include "group/sockets/secret.h"
#include "group/sockets/sockets.h"
#include "support/build.h"
#include "support/meeting.h"

enum { JOIN_MS = 20000, SOON_MS = 10000 };

static wherry_error error;

/** Gives another user a copy of this user's key. */
static void give_key(uid_t user) {
    char path[64];
    uint8_t key[WH_KEY_BYTES];
    must(wh_key_find(key, &error));
    snprintf(path, sizeof(path), "/tmp/wherry-%u", (unsigned)user);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    assert_int_equal(chown(path, user, user), 0);
    snprintf(path, sizeof(path), "/tmp/wherry-%u/key", (unsigned)user);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(write(file, key, sizeof(key)), (ssize_t)sizeof(key));
    assert_int_equal(fchown(file, user, user), 0);
    close(file);
}

/** Removes the keys of the other users, also those that a killed test has left. */
static void forget_keys(void) {
    unlink("/tmp/wherry-65534/key");
    rmdir("/tmp/wherry-65534");
    unlink("/tmp/wherry-64321/key");
    rmdir("/tmp/wherry-64321");
}

/** Becomes another user, and joins at the address that a pipe brings. @return what to exit with. */
static int join_as(uid_t user, int where, const wh_sockets_options *options) {
    char address[300];
    wh_group *stranger;
    wh_sockets_options own = *options;
    own.wait_for = 0;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || read(where, address, sizeof(address)) != (ssize_t)sizeof(address) ||
        setgid(user) || setuid(user)) {
        return 99;
    }
    return -wh_sockets_join(address, &own, wh_deadline_in_ms(SOON_MS), &stranger, &error) & 0x7F;
}

/**
 * Without a secret, the key of the user keeps other users out, over TCP and over Unix sockets. If
 * the kernel tells the user, neither a copy of the key nor a common secret helps at a path: a
 * process that listens there first could relay the greeting.
 */
static void test_another_user(void **state) {
    const char *folder = ((wh_test_meeting *)*state)->folder;
    enum { KEY = 1, SECRET = 2 };
    static const struct {
        bool tcp;
        uid_t user; /* A user namespace shows 65534 here. */
        int knows;
    } rows[] = {{false, 65534, 0},   {true, 65534, 0},    {false, 64321, 0},      {true, 64321, 0},
                {false, 64321, KEY}, {false, 65534, KEY}, {false, 64321, SECRET}, {true, 64321, SECRET}};
    forget_keys();
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        bool tcp = rows[i].tcp;
        int knows = rows[i].knows;
        uid_t user = rows[i].user;
        wh_sockets_options options = {.wait_for = 1};
        if (knows == SECRET) {
            options.secret = "a secret of two users";
            options.secret_size = strlen(options.secret);
        }
        char address[300];
        char meeting[200];
        int status;
        wh_group *group;
        int where[2];
        assert_int_equal(pipe(where), 0);
        pid_t child = fork(); /* before the group has threads: the address sanitizer may hang */
        assert_true(child >= 0);
        if (child == 0) {
            _exit(join_as(user, where[0], &options));
        }
        snprintf(address, sizeof(address),
                 tcp ? "tcp://127.0.0.1:0?rank=0&size=2&job=recovery" : "unix://%s/meet?rank=0&size=2&job=recovery",
                 folder);
        mode_t mask = umask(0);
        must(wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error));
        umask(mask);
        assert_int_equal(chmod(folder, 0777), 0);
        must(wh_group_meeting(group, meeting, sizeof(meeting), &error));
        snprintf(address, sizeof(address), "%s?rank=1&size=2&job=recovery", meeting);
        if (knows == KEY) {
            give_key(user);
        }
        assert_int_equal(write(where[1], address, sizeof(address)), (ssize_t)sizeof(address));
        waitpid(child, &status, 0);
        close(where[0]);
        close(where[1]);
        assert_true(WIFEXITED(status));
        int said = WEXITSTATUS(status);
        /* The members meet over TLS, and then use Unix sockets, whose names are random. */
        if (tcp && knows == SECRET) {
            assert_int_equal(said, 0);
            wh_group_destroy(group);
            continue;
        }
        if (knows) { /* Either side may refuse first. */
            assert_true(said == (-WHERRY_MISMATCH & 0x7F) || said == (-WHERRY_REFUSED & 0x7F));
        } else { /* The error comes at once. It is not TIMED_OUT. */
            assert_int_equal(said, -WHERRY_BAD_SECRET & 0x7F);
        }
        assert_int_equal(wh_mailbox_incarnation(group->mailbox, 1), 0);
        wh_group_destroy(group);
    }
    forget_keys();
}

/** Becomes another user and listens at the address first, as rank 0 of 2, until it is killed. */
static void squat(const char *meeting, uid_t user) {
    char address[300];
    wh_sockets_options options = {.wait_for = 1};
    wh_group *group;
    umask(0);
    snprintf(address, sizeof(address), "%s?rank=0&size=2&job=recovery", meeting);
    bool listens = !setgid(user) && !setuid(user) && !prctl(PR_SET_PDEATHSIG, SIGKILL) &&
                   wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error) == WHERRY_OK;
    if (listens) {
        pause();
    }
    fprintf(stderr, "another user cannot listen: %s\n", error.message);
    _exit(1);
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

/** Another user that listens at the meeting point first gets no member and no message. */
static void test_another_user_listens_first(void **state) {
    const char *folder = ((wh_test_meeting *)*state)->folder;
    /* The first number is what a user namespace shows. */
    static const uid_t users[] = {65534, 64321};
    assert_int_equal(chmod(folder, 0777), 0);
    forget_keys();
    for (int i = 0; i < 4; i++) {
        bool tcp = i % 2 == 0;
        wh_sockets_options options = {0};
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)wh_test_free_port()),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof(at);
        struct sockaddr_un path = {.sun_family = AF_UNIX};
        char meeting[200];
        char address[300];
        wh_group *group;
        if (tcp) {
            snprintf(meeting, sizeof(meeting), "tcp://127.0.0.1:%d", ntohs(at.sin_port));
        } else {
            snprintf(meeting, sizeof(meeting), "unix://%s/meet%d", folder, i);
            snprintf(path.sun_path, sizeof(path.sun_path), "%s/meet%d", folder, i);
        }
        pid_t squatter = fork();
        assert_true(squatter >= 0);
        if (squatter == 0) {
            squat(meeting, users[i / 2]);
        }
        await_listener(tcp ? (struct sockaddr *)&at : (struct sockaddr *)&path, tcp ? size : sizeof(path));
        snprintf(address, sizeof(address), "%s?rank=1&size=2&job=recovery", meeting);
        wh_deadline soon = wh_deadline_in_ms(SOON_MS);
        must_fail(WHERRY_BAD_SECRET, error,
                  wh_sockets_join(address, &options, wh_deadline_in_ms(10 * SOON_MS), &group, &error));
        assert_false(wh_deadline_passed(soon));
        if (!strstr(error.message, "WHERRY_SECRET")) {
            fail_msg("%s", error.message);
        }
        kill(squatter, SIGKILL);
        waitpid(squatter, NULL, 0);
    }
    forget_keys();
}

int main(void) {
    if (geteuid() != 0) {
        printf("1..0 # SKIP only root can become another user: run this test as root\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_another_user, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_another_user_listens_first, wh_test_open_unix, wh_test_close),
    };
    return cmocka_run_group_tests_name("group_users", tests, NULL, NULL);
}
