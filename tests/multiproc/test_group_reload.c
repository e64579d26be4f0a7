/*
 * Changing the secret of a group that stays: the file may have two secrets. It is read again by a
 * call, and before a new connection if its modification time has changed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <wherry/group.h>

#include "support/build.h"
#include "support/meeting.h"

enum { SOON_MS = 10000 };

#define OLD "the old secret of the job"
#define NEW "the new secret of the job"

static wherry_error error;
static char path[64];

/** Replaces the file as a whole. Its modification time differs from all earlier ones. */
static void write_secrets(const char *text) {
    static long second = 1000000000;
    char part[80];
    snprintf(part, sizeof(part), "%s.part", path);
    FILE *file = fopen(part, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    second++;
    struct timespec times[2] = {{.tv_sec = second}, {.tv_sec = second}};
    assert_int_equal(utimensat(AT_FDCWD, part, times, 0) || chmod(part, 0600) || rename(part, path), 0);
}

/** Changes the file, but not its modification time. */
static void write_secretly(const char *text) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    write_secrets(text);
    struct timespec times[2] = {before.st_mtim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/**
 * Joins with a secret, or with the file's if it is NULL. Leaves at once if group_p is NULL.
 */
static wherry_status join(const wh_test_meeting *meeting, int rank, const char *secret, wherry_group **group_p) {
    char address[128];
    wherry_group *group = NULL;
    wherry_group_options options;
    wherry_group_options_init(&options);
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=%d&size=2&shortcut=0", meeting->port, rank);
    options.timeout_ms = SOON_MS;
    options.secret = secret;
    options.secret_size = secret ? strlen(secret) : 0;
    options.wait_for = group_p ? 1 : 2;
    options.flags = group_p ? 0 : WHERRY_JOIN_CLIENT;
    wherry_status status = wherry_group_join(address, &options, &group, &error);
    if (group_p) {
        *group_p = group;
    } else {
        wherry_group_leave(group);
    }
    return status;
}

static int set_up(void **state) {
    int result = wh_test_open_tcp(state);
    snprintf(path, sizeof(path), "/tmp/wherry-test-XXXXXX");
    close(mkstemp(path));
    unsetenv("WHERRY_SECRET");
    setenv("WHERRY_SECRET_FILE", path, 1);
    return result;
}

static int tear_down(void **state) {
    unsetenv("WHERRY_SECRET_FILE");
    unlink(path);
    return wh_test_close(state);
}

/** The call reads the file, and both of its secrets are accepted. */
static void test_two_secrets_are_accepted(void **state) {
    wherry_group *group;
    write_secrets(OLD "\n");
    must(join(*state, 0, NULL, &group));
    must(join(*state, 1, OLD, NULL));
    must_fail(WHERRY_BAD_SECRET, error, join(*state, 1, NEW, NULL));
    write_secretly(OLD "\n" NEW "\n");
    must_fail(WHERRY_BAD_SECRET, error, join(*state, 1, NEW, NULL));
    must(wherry_group_reload(group, &error));
    must(join(*state, 1, NEW, NULL));
    must(join(*state, 1, OLD, NULL));
    write_secretly(NEW "\n");
    must(wherry_group_reload(group, &error));
    must_fail(WHERRY_BAD_SECRET, error, join(*state, 1, OLD, NULL));
    must(join(*state, 1, NEW, NULL));
    wherry_group_leave(group);
}

/** A process dials with the first secret, whatever the other side accepts. */
static void test_the_first_is_preferred(void **state) {
    wherry_group *group;
    must(join(*state, 0, NEW, &group));
    write_secrets(NEW "\n" OLD "\n");
    must(join(*state, 1, NULL, NULL));
    write_secrets(OLD "\n" NEW "\n");
    must_fail(WHERRY_BAD_SECRET, error, join(*state, 1, NULL, NULL));
    wherry_group_leave(group);
}

/** Without a call, a new modification time is enough. */
static void test_a_changed_file_is_read_again(void **state) {
    wherry_group *group;
    write_secrets(OLD "\n");
    must(join(*state, 0, NULL, &group));
    write_secrets(NEW "\n");
    must_fail(WHERRY_BAD_SECRET, error, join(*state, 1, OLD, NULL));
    must(join(*state, 1, NEW, NULL));
    write_secrets(OLD "\n" NEW "\n");
    must(join(*state, 1, NEW, NULL));
    must(join(*state, 1, OLD, NULL));
    wherry_group_leave(group);
}

/** A file that cannot be used changes nothing. The call says what is wrong with it. */
static void test_a_bad_file_changes_nothing(void **state) {
    wherry_group *group;
    write_secrets(NEW "\n");
    must(join(*state, 0, NULL, &group));
    write_secrets("too short\n");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_reload(group, &error));
    assert_non_null(strstr(error.message, "openssl rand -hex 32"));
    must(join(*state, 1, NEW, NULL));
    unlink(path);
    must_fail(WHERRY_SYSTEM, error, wherry_group_reload(group, &error));
    must(join(*state, 1, NEW, NULL));
    write_secrets(OLD "\n");
    must(join(*state, 1, OLD, NULL));
    wherry_group_leave(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_secrets_are_accepted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_first_is_preferred, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_changed_file_is_read_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_bad_file_changes_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("group_reload", tests, NULL, NULL);
}
