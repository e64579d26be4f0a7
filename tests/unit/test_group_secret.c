/* The sources of a group's secret: an argument, a variable or a file. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "group/hello.h"
#include "group/sockets/secret.h"
#include "support/build.h"

static wherry_error error;
static char path[64];
static int warnings;

static void count(void *context, wherry_log_level level, const char *text) {
    (void)context;
    if (level == WHERRY_LOG_WARN && strstr(text, "WHERRY_SECRET_FILE") && strstr(text, path)) {
        warnings++;
    }
}

static int set_up(void **state) {
    (void)state;
    unsetenv("WHERRY_SECRET");
    unsetenv("WHERRY_SECRET_FILE");
    warnings = 0;
    wherry_log_to(count, NULL);
    snprintf(path, sizeof(path), "/tmp/wherry-test-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state) {
    (void)state;
    unsetenv("WHERRY_SECRET");
    unsetenv("WHERRY_SECRET_FILE");
    wherry_log_to(NULL, NULL);
    return unlink(path);
}

static void write_file(const char *bytes, size_t size) {
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void expect(const void *given, size_t given_size, const char *bytes, size_t size) {
    void *secret;
    size_t found;
    must(wh_secret_find(given, given_size, &secret, &found, &error));
    assert_int_equal(found, size);
    assert_true((secret == NULL) == (size == 0));
    if (size) {
        assert_memory_equal(secret, bytes, size);
    }
    wh_free(secret);
}

static void refuse(wherry_status status, const char *words) {
    void *secret;
    size_t size;
    must_fail(status, error, wh_secret_find(NULL, 0, &secret, &size, &error));
    assert_non_null(strstr(error.message, words));
}

static void test_reads_the_variable(void **state) {
    (void)state;
    expect(NULL, 0, NULL, 0);
    setenv("WHERRY_SECRET", "", 1);
    expect(NULL, 0, NULL, 0);
    setenv("WHERRY_SECRET", "a b\n", 1);
    expect(NULL, 0, "a b\n", 4);
    expect("given", 5, "given", 5);
    setenv("WHERRY_SECRET_FILE", path, 1);
    refuse(WHERRY_INVALID_ARGUMENT, "both set");
}

static void test_reads_the_file(void **state) {
    (void)state;
    setenv("WHERRY_SECRET_FILE", path, 1);
    refuse(WHERRY_INVALID_ARGUMENT, "0 bytes");
    write_file("\n", 1);
    refuse(WHERRY_INVALID_ARGUMENT, "0 bytes");
    write_file("one\ntwo\n", 8);
    expect(NULL, 0, "one\ntwo", 7);
    write_file("one\r\n", 5);
    expect(NULL, 0, "one", 3);
    write_file("x\0y", 3);
    expect(NULL, 0, "x\0y", 3);
    assert_int_equal(warnings, 0);
    chmod(path, 0640);
    expect(NULL, 0, "x\0y", 3);
    assert_int_equal(warnings, 1);
    setenv("WHERRY_SECRET_FILE", "/nonexistent/secret", 1);
    refuse(WHERRY_SYSTEM, "/nonexistent/secret");
    setenv("WHERRY_SECRET_FILE", "/tmp", 1);
    refuse(WHERRY_SYSTEM, "/tmp");
}

static void test_refuses_bad_lengths(void **state) {
    (void)state;
    static char bytes[WH_HELLO_SECRET_MAX + 2];
    memset(bytes, 'x', sizeof(bytes));
    bytes[WH_HELLO_SECRET_MAX] = '\n';
    setenv("WHERRY_SECRET_FILE", path, 1);
    write_file(bytes, WH_HELLO_SECRET_MAX + 1);
    expect(NULL, 0, bytes, WH_HELLO_SECRET_MAX);
    bytes[WH_HELLO_SECRET_MAX] = 'x';
    write_file(bytes, WH_HELLO_SECRET_MAX + 1);
    refuse(WHERRY_INVALID_ARGUMENT, "bytes; a secret has 1 to");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_the_variable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reads_the_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_bad_lengths, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("group_secret", tests, NULL, NULL);
}
