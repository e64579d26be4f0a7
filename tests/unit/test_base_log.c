/* The log. Tests of WHERRY_LOG run in a child process, because it is read once per process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"

typedef struct lines {
    int count;
    wherry_log_level level;
    char last[2048];
} lines;

static void keep(void *context, wherry_log_level level, const char *line) {
    lines *kept = context;
    kept->count++;
    kept->level = level;
    snprintf(kept->last, sizeof(kept->last), "%s", line);
}

static void say_all(void) {
    wh_log(WHERRY_LOG_ERROR, "e%d", 1);
    wh_log(WHERRY_LOG_WARN, "w%d", 2);
    wh_log(WHERRY_LOG_INFO, "i%d", 3);
    wh_log(WHERRY_LOG_DEBUG, "d%d", 4);
}

/**
 * Runs body in a child whose WHERRY_LOG is value (NULL: not set).
 * @param text  its standard error.
 */
static int in_child(const char *value, int (*body)(void), char *text, size_t size) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (value) {
            setenv("WHERRY_LOG", value, 1);
        } else {
            unsetenv("WHERRY_LOG");
        }
        int result = body();
        fflush(stderr);
        _exit(result);
    }
    close(ends[1]);
    size_t got = 0;
    ssize_t more;
    while ((more = read(ends[0], text + got, size - 1 - got)) > 0) {
        got += (size_t)more;
    }
    text[got] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int say_all_and_tell_level(void) {
    say_all();
    return (int)wherry_log_get_level();
}

static void test_environment_sets_the_level(void **state) {
    (void)state;
    static const struct {
        const char *value;
        int level;
        const char *text;
    } rows[] = {
        {NULL, WHERRY_LOG_WARN, "wherry: error: e1\nwherry: warn: w2\n"},
        {"", WHERRY_LOG_WARN, "wherry: error: e1\nwherry: warn: w2\n"},
        {"off", WHERRY_LOG_OFF, ""},
        {"error", WHERRY_LOG_ERROR, "wherry: error: e1\n"},
        {"warn", WHERRY_LOG_WARN, "wherry: error: e1\nwherry: warn: w2\n"},
        {"info", WHERRY_LOG_INFO, "wherry: error: e1\nwherry: warn: w2\nwherry: info: i3\n"},
        {"debug", WHERRY_LOG_DEBUG, "wherry: error: e1\nwherry: warn: w2\nwherry: info: i3\nwherry: debug: d4\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char text[4096];
        assert_int_equal(in_child(rows[i].value, say_all_and_tell_level, text, sizeof(text)), rows[i].level);
        assert_string_equal(text, rows[i].text);
    }
}

static void test_bad_environment_is_reported(void **state) {
    (void)state;
    static const char *const bad[] = {"loud", "WARN", "warn ", "2", "debugging"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        char text[4096];
        assert_int_equal(in_child(bad[i], say_all_and_tell_level, text, sizeof(text)), WHERRY_LOG_WARN);
        assert_non_null(strstr(text, "WHERRY_LOG"));
        assert_non_null(strstr(text, bad[i]));
        const char *rest = strchr(text, '\n');
        assert_non_null(rest);
        assert_string_equal(rest + 1, "wherry: error: e1\nwherry: warn: w2\n");
    }
}

static int set_then_say(void) {
    wherry_log_set_level(WHERRY_LOG_ERROR);
    return say_all_and_tell_level();
}

static void test_setting_overrides_the_environment(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(in_child("debug", set_then_say, text, sizeof(text)), WHERRY_LOG_ERROR);
    assert_string_equal(text, "wherry: error: e1\n");
    assert_int_equal(in_child("nonsense", set_then_say, text, sizeof(text)), WHERRY_LOG_ERROR);
    assert_string_equal(text, "wherry: error: e1\n");
}

static int change_environment(void) {
    int before = (int)wherry_log_get_level();
    setenv("WHERRY_LOG", "debug", 1);
    return before == WHERRY_LOG_ERROR ? (int)wherry_log_get_level() : 99;
}

static void test_environment_is_read_once(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(in_child("error", change_environment, text, sizeof(text)), WHERRY_LOG_ERROR);
    assert_string_equal(text, "");
}

static int to_callback_and_back(void) {
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wh_log(WHERRY_LOG_ERROR, "kept");
    wherry_log_to(NULL, NULL);
    wh_log(WHERRY_LOG_ERROR, "said");
    return kept.count;
}

static void test_without_callback_logs_to_standard_error(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(in_child(NULL, to_callback_and_back, text, sizeof(text)), 1);
    assert_string_equal(text, "wherry: error: said\n");
}

static int say_wait(void) {
    wh_log_wait("", "rank %d", 7);
    return 0;
}

static int say_wait_at_a_level(void) {
    wherry_log_set_level(WHERRY_LOG_WARN);
    return say_wait();
}

static void keep_wait(void *context, const char *who, const char *call) {
    lines *kept = context;
    kept->count += strcmp(who, "rank 7") == 0 && strcmp(call, "f") == 0;
}

/** Whatever the level of the log, the wait is reported to the function, not as a log line. */
static int wait_for_a_function(void) {
    lines kept = {0};
    wherry_log_waits_to(keep_wait, &kept);
    wh_log_wait("f", "rank %d", 7);
    wherry_log_waits_to(NULL, NULL);
    wh_log_wait("f", "rank %d", 7);
    return kept.count;
}

static void test_waits_are_sent_to_a_function(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(in_child("off", wait_for_a_function, text, sizeof(text)), 1);
    assert_string_equal(text, "");
    assert_int_equal(in_child("debug", wait_for_a_function, text, sizeof(text)), 1);
    assert_string_equal(text, "wherry: info: waiting for rank 7, which must call f\n");
}

/** Waits are logged by default, though the default level is lower than theirs. */
static void test_waits_are_logged_unless_a_level_was_chosen(void **state) {
    (void)state;
    static const char line[] = "wherry: info: waiting for rank 7\n";
    const char *const chosen[] = {"off", "error", "warn"};
    char text[4096];
    assert_int_equal(in_child(NULL, say_wait, text, sizeof(text)), 0);
    assert_string_equal(text, line);
    assert_int_equal(in_child("info", say_wait, text, sizeof(text)), 0);
    assert_string_equal(text, line);
    for (size_t i = 0; i < sizeof(chosen) / sizeof(chosen[0]); i++) {
        assert_int_equal(in_child(chosen[i], say_wait, text, sizeof(text)), 0);
        assert_string_equal(text, "");
    }
    assert_int_equal(in_child(NULL, say_wait_at_a_level, text, sizeof(text)), 0);
    assert_string_equal(text, "");
}

static void test_a_wait_is_long_after_3_s_and_then_every_30_s(void **state) {
    (void)state;
    const uint64_t second = UINT64_C(1000000000);
    wh_wait_log wait = {0};
    uint64_t begin = wh_clock_now();
    assert_false(wh_wait_is_long(&wait));
    assert_true(wait.next >= begin + 3 * second && wait.next <= wh_clock_now() + 3 * second);
    assert_false(wh_wait_is_long(&wait));
    begin = wait.next = wh_clock_now(); /* Pretend that 3 s have passed. */
    assert_true(wh_wait_is_long(&wait));
    assert_true(wait.next >= begin + 30 * second && wait.next <= wh_clock_now() + 30 * second);
    assert_false(wh_wait_is_long(&wait));
}

static void test_callback_gets_lines(void **state) {
    (void)state;
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wherry_log_set_level(WHERRY_LOG_DEBUG);
    wh_log(WHERRY_LOG_INFO, "%s and %d", "one", 2);
    assert_int_equal(kept.count, 1);
    assert_int_equal(kept.level, WHERRY_LOG_INFO);
    assert_string_equal(kept.last, "one and 2");
    wherry_log_to(NULL, NULL);
}

/**
 * A peer cannot fill the log: each place in the code logs the same line rarely, and few other
 * lines.
 */
static void test_repeated_lines_are_left_out(void **state) {
    (void)state;
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wherry_log_set_level(WHERRY_LOG_DEBUG);
    for (int i = 0; i < 1000; i++) {
        wh_log(WHERRY_LOG_WARN, "the same %d", 1);
    }
    assert_int_equal(kept.count, 1);
    for (int i = 0; i < 1000; i++) {
        wh_log(WHERRY_LOG_ERROR, "another %d", i);
    }
    assert_true(kept.count > 2 && kept.count < 100);
    kept.count = 0;
    for (int i = 0; i < 10; i++) {
        wh_log(WHERRY_LOG_INFO, "all of %d", 1);
    }
    assert_int_equal(kept.count, 10);
    wherry_log_to(NULL, NULL);
}

/** Two places in the code do not share one limit, whatever the addresses of their formats. */
static void test_every_format_has_its_limit(void **state) {
    (void)state;
    /* The search for each of these addresses begins at the same place. */
    enum { FORMATS = 4, APART = 2048 };
    static char formats[FORMATS][APART];
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wherry_log_set_level(WHERRY_LOG_WARN);
    for (int i = 0; i < FORMATS; i++) {
        snprintf(formats[i], APART, "format %d: %%d", i);
    }
    for (int i = 0; i < 1000; i++) {
        wh_log(WHERRY_LOG_WARN, formats[i % FORMATS], i);
    }
    assert_true(kept.count >= FORMATS && kept.count < 100);
    wherry_log_to(NULL, NULL);
}

/**
 * If there are more formats than the log can tell apart, they are logged too, and suppress no line
 * of another format.
 */
static void test_very_many_formats(void **state) {
    (void)state;
    enum { FORMATS = 1000, SIZE = 32 };
    static char formats[FORMATS][SIZE];
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wherry_log_set_level(WHERRY_LOG_WARN);
    for (int i = 0; i < FORMATS; i++) {
        snprintf(formats[i], SIZE, "one of many formats: %%d");
        wh_log(WHERRY_LOG_WARN, formats[i], i);
    }
    assert_int_equal(kept.count, FORMATS);
    assert_string_equal(kept.last, "one of many formats: 999");
    wherry_log_to(NULL, NULL);
}

static void test_levels_filter_lines(void **state) {
    (void)state;
    lines kept = {0};
    wherry_log_to(keep, &kept);
    for (int level = WHERRY_LOG_OFF; level <= WHERRY_LOG_DEBUG; level++) {
        wherry_log_set_level((wherry_log_level)level);
        wherry_log_to(keep, &kept);
        assert_int_equal(wherry_log_get_level(), level);
        kept = (lines){0};
        say_all();
        assert_int_equal(kept.count, level);
        assert_int_equal(kept.level, level);
    }
    wherry_log_to(NULL, NULL);
}

static void test_long_lines_are_cut(void **state) {
    (void)state;
    lines kept = {0};
    wherry_log_to(keep, &kept);
    wherry_log_set_level(WHERRY_LOG_WARN);
    char text[2000];
    memset(text, 'l', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    wh_log(WHERRY_LOG_WARN, "%s", text);
    assert_int_equal(kept.count, 1);
    size_t length = strlen(kept.last);
    assert_true(length >= 1000 && length < sizeof(text) - 1);
    assert_memory_equal(kept.last, text, length);
    wherry_log_to(NULL, NULL);
}

int main(void) {
    /* Tests with a child come first: later ones set the level, which a child would inherit. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment_sets_the_level),
        cmocka_unit_test(test_bad_environment_is_reported),
        cmocka_unit_test(test_setting_overrides_the_environment),
        cmocka_unit_test(test_environment_is_read_once),
        cmocka_unit_test(test_without_callback_logs_to_standard_error),
        cmocka_unit_test(test_waits_are_logged_unless_a_level_was_chosen),
        cmocka_unit_test(test_waits_are_sent_to_a_function),
        cmocka_unit_test(test_a_wait_is_long_after_3_s_and_then_every_30_s),
        cmocka_unit_test(test_callback_gets_lines),
        cmocka_unit_test(test_repeated_lines_are_left_out),
        cmocka_unit_test(test_every_format_has_its_limit),
        cmocka_unit_test(test_very_many_formats),
        cmocka_unit_test(test_levels_filter_lines),
        cmocka_unit_test(test_long_lines_are_cut),
    };
    return cmocka_run_group_tests_name("base_log", tests, NULL, NULL);
}
