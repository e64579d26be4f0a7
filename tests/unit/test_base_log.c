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

static void test_levels_filter_lines(void **state) {
    (void)state;
    lines kept = {0};
    wherry_log_to(keep, &kept);
    for (int level = WHERRY_LOG_OFF; level <= WHERRY_LOG_DEBUG; level++) {
        wherry_log_set_level((wherry_log_level)level);
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
        cmocka_unit_test(test_callback_gets_lines),
        cmocka_unit_test(test_levels_filter_lines),
        cmocka_unit_test(test_long_lines_are_cut),
    };
    return cmocka_run_group_tests_name("base_log", tests, NULL, NULL);
}
