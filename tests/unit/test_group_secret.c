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

/** The keys must be the keys of these texts. */
static void expect_keys(const wh_secrets *secrets, size_t count, const char *const texts[]) {
    assert_int_equal(secrets->count, count);
    for (size_t i = 0; i < count; i++) {
        wh_group_key key;
        must(wh_group_key_derive(texts[i], strlen(texts[i]), &key, &error));
        assert_memory_equal(secrets->keys + i, &key, sizeof(key));
    }
}

/** The secret that is found must be this text; NULL: there is no secret. */
static void expect(const char *given, const char *text) {
    wh_secrets secrets;
    const char *file;
    must(wh_secrets_find(given, given ? strlen(given) : 0, &secrets, &file, &error));
    expect_keys(&secrets, text != NULL, &text);
    assert_true(!file || strcmp(file, path) == 0);
}

static void refuse(wherry_status status, const char *words) {
    wh_secrets secrets;
    const char *file;
    must_fail(status, error, wh_secrets_find(NULL, 0, &secrets, &file, &error));
    assert_non_null(strstr(error.message, words));
}

static void test_reads_the_variable(void **state) {
    (void)state;
    expect(NULL, NULL);
    setenv("WHERRY_SECRET", "", 1);
    expect(NULL, NULL);
    setenv("WHERRY_SECRET", "a b, and then some\n", 1);
    expect(NULL, "a b, and then some\n");
    expect("given by the call", "given by the call");
    setenv("WHERRY_SECRET", "fifteen letters", 1);
    refuse(WHERRY_INVALID_ARGUMENT, "openssl rand -hex 32");
    setenv("WHERRY_SECRET_FILE", path, 1);
    refuse(WHERRY_INVALID_ARGUMENT, "both set");
}

static void test_reads_the_file(void **state) {
    (void)state;
    setenv("WHERRY_SECRET_FILE", path, 1);
    refuse(WHERRY_INVALID_ARGUMENT, "is empty");
    write_file("\n\r\n", 3);
    refuse(WHERRY_INVALID_ARGUMENT, "is empty");
    write_file("a line with its end\r\n", 21);
    expect(NULL, "a line with its end");
    write_file("a line without its end", 22);
    expect(NULL, "a line without its end");
    assert_int_equal(warnings, 0);
    chmod(path, 0640);
    expect(NULL, "a line without its end");
    assert_int_equal(warnings, 1);
    setenv("WHERRY_SECRET_FILE", "/nonexistent/secret", 1);
    refuse(WHERRY_SYSTEM, "/nonexistent/secret");
    setenv("WHERRY_SECRET_FILE", "/tmp", 1);
    refuse(WHERRY_SYSTEM, "/tmp");
}

/** A file may have two secrets, so that they can be changed while a job runs. */
static void test_reads_two_secrets(void **state) {
    (void)state;
    static const char *const two[] = {"the new secret of all", "the old secret of all"};
    static const char three[] = "the new secret of all\nthe old secret of all\nan even older secret\n";
    wh_secrets secrets;
    write_file(three, 2 * 22);
    must(wh_secrets_read(path, &secrets, &error));
    expect_keys(&secrets, 2, two);
    assert_true(secrets.keys[0].id != secrets.keys[1].id);
    write_file(three, sizeof(three) - 1);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_secrets_read(path, &secrets, &error));
    assert_non_null(strstr(error.message, "remove the oldest"));
    assert_int_equal(secrets.count, 2);
    write_file("the new secret of all\ntoo short\n", 32);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_secrets_read(path, &secrets, &error));
}

static void test_refuses_bad_lengths(void **state) {
    (void)state;
    static char bytes[WH_SECRET_MAX + 2];
    memset(bytes, 'x', WH_SECRET_MAX + 1);
    setenv("WHERRY_SECRET_FILE", path, 1);
    write_file(bytes, WH_SECRET_MAX + 1);
    refuse(WHERRY_INVALID_ARGUMENT, "bytes; a secret has 16 to");
    bytes[WH_SECRET_MAX] = '\0';
    write_file(bytes, WH_SECRET_MAX);
    expect(NULL, bytes);
}

/** The key of the user: made once, and refused if others may have access to it. */
static void test_key_of_the_user(void **state) {
    (void)state;
    char folder[] = "/tmp/wherry-test-XXXXXX";
    char inner[64];
    char file[80];
    char other[64];
    uint8_t keys[2][WH_KEY_BYTES];
    struct stat found;
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof(inner), "%s/.wherry", folder);
    snprintf(file, sizeof(file), "%s/key", inner);
    snprintf(other, sizeof(other), "%s/link", folder);
    mode_t mask = umask(0);
    must(wh_key_read(inner, keys[0], &error));
    must(wh_key_read(inner, keys[1], &error));
    umask(mask);
    assert_memory_equal(keys[0], keys[1], WH_KEY_BYTES);
    assert_int_equal(stat(inner, &found), 0);
    assert_int_equal(found.st_mode & 07777, 0700);
    assert_int_equal(stat(file, &found), 0);
    assert_int_equal(found.st_mode & 07777, 0600);
    assert_int_equal(chmod(file, 0640), 0);
    must_fail(WHERRY_SYSTEM, error, wh_key_read(inner, keys[1], &error));
    assert_int_equal(truncate(file, 31) + chmod(file, 0600), 0);
    must_fail(WHERRY_SYSTEM, error, wh_key_read(inner, keys[1], &error));
    assert_int_equal(unlink(file) + chmod(inner, 0750), 0);
    must_fail(WHERRY_SYSTEM, error, wh_key_read(inner, keys[1], &error));
    assert_non_null(strstr(error.message, inner));
    assert_int_equal(chmod(inner, 0700) + symlink(inner, other), 0);
    must_fail(WHERRY_SYSTEM, error, wh_key_read(other, keys[1], &error));
    if (geteuid() == 0) {
        assert_int_equal(chown(inner, 65534, 65534), 0);
        must_fail(WHERRY_SYSTEM, error, wh_key_read(inner, keys[1], &error));
        assert_int_equal(chown(inner, 0, 0), 0);
    }
    must(wh_key_read(inner, keys[1], &error));
    assert_memory_not_equal(keys[0], keys[1], WH_KEY_BYTES);
    assert_int_equal(unlink(file) + rmdir(inner) + unlink(other) + rmdir(folder), 0);
}

/** All processes of a user find the same key, whatever their environment says. */
static void test_key_does_not_depend_on_the_environment(void **state) {
    (void)state;
    uint8_t keys[2][WH_KEY_BYTES];
    must(wh_key_find(keys[0], &error));
    char *home = getenv("HOME");
    char before[256];
    snprintf(before, sizeof(before), "%s", home ? home : "");
    setenv("HOME", "/nonexistent", 1);
    setenv("TMPDIR", "/nonexistent", 1);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    must(wh_key_find(keys[1], &error));
    setenv("HOME", before, 1);
    unsetenv("TMPDIR");
    unsetenv("XDG_RUNTIME_DIR");
    assert_memory_equal(keys[0], keys[1], WH_KEY_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_the_variable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reads_the_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reads_two_secrets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_bad_lengths, set_up, tear_down),
        cmocka_unit_test(test_key_of_the_user),
        cmocka_unit_test(test_key_does_not_depend_on_the_environment),
    };
    return cmocka_run_group_tests_name("group_secret", tests, NULL, NULL);
}
