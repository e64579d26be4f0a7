/* Tickets that may be used once, and files of secrets that are read again. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "group/sockets/security.h"
#include "support/build.h"

static wherry_error error;

static void test_a_ticket_is_valid_once(void **state) {
    (void)state;
    enum { WHO = 7 };
    wh_tickets tickets = {0};
    assert_false(wh_tickets_use(&tickets, WHO, 0));
    for (uint64_t number = 1; number <= 3 * WH_TICKETS; number++) {
        assert_true(wh_tickets_use(&tickets, WHO, number));
        assert_false(wh_tickets_use(&tickets, WHO, number));
        assert_false(wh_tickets_use(&tickets, WHO, 1));
    }
    assert_false(wh_tickets_use(&tickets, WHO, 0));
}

/** Each order of some tickets: all are good once, unless they are too old. */
static void test_tickets_come_in_any_order(void **state) {
    (void)state;
    enum { WHO = 7, COUNT = 2000, SPREAD = 300 };
    bool used[COUNT + SPREAD] = {false};
    uint64_t highest = 0;
    wh_tickets tickets = {0};
    uint64_t seed = 1;
    for (uint64_t i = 1; i < COUNT; i++) {
        for (int times = 0; times < 4; times++) {
            uint64_t number = i + next_random(&seed) % SPREAD;
            bool good = !used[number] && number + WH_TICKETS > highest;
            assert_int_equal(wh_tickets_use(&tickets, WHO, number), good);
            used[number] = true;
            highest = number > highest ? number : highest;
        }
    }
}

static void test_tickets_jump_to_the_end(void **state) {
    (void)state;
    enum { WHO = 7 };
    wh_tickets tickets = {0};
    assert_true(wh_tickets_use(&tickets, WHO, 5));
    assert_true(wh_tickets_use(&tickets, WHO, UINT64_MAX));
    assert_false(wh_tickets_use(&tickets, WHO, UINT64_MAX));
    assert_false(wh_tickets_use(&tickets, WHO, UINT64_MAX - WH_TICKETS));
    for (uint64_t back = 1; back < WH_TICKETS; back++) {
        assert_true(wh_tickets_use(&tickets, WHO, UINT64_MAX - back));
    }
    assert_false(wh_tickets_use(&tickets, WHO, 6));
}

/** A newer process has tickets of its own, and the older one no more. */
static void test_tickets_belong_to_an_incarnation(void **state) {
    (void)state;
    wh_tickets tickets = {0};
    assert_true(wh_tickets_use(&tickets, 7, 1));
    assert_true(wh_tickets_use(&tickets, 8, 1));
    assert_false(wh_tickets_use(&tickets, 8, 1));
    assert_false(wh_tickets_use(&tickets, 7, 1));
    assert_false(wh_tickets_use(&tickets, 7, 2));
    assert_true(wh_tickets_use(&tickets, 8, 2));
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    chmod(path, S_IRUSR | S_IWUSR);
}

/** What was read is used only after the update. A file that is no good changes nothing. */
static void test_reads_the_file_again(void **state) {
    (void)state;
    char path[] = "/tmp/wherry-test-XXXXXX";
    wh_sockets_options options = {0};
    wh_security security;
    wh_security_files files;
    close(mkstemp(path));
    unsetenv("WHERRY_SECRET");
    setenv("WHERRY_SECRET_FILE", path, 1);
    write_file(path, "the old secret of the job\n");
    must(wh_security_init(&security, &options, &error));
    wh_group_key old = security.secrets.keys[0];
    const wh_tls_context *former = security.tls;
    write_file(path, "the new secret of the job\nthe old secret of the job\n");
    must(wh_security_read(&security, &files, &error));
    assert_int_equal(security.secrets.count, 1);
    assert_true(security.tls == former);
    wh_security_update(&security, &files);
    assert_int_equal(files.secrets.count, 0);
    assert_int_equal(security.secrets.count, 2);
    assert_true(security.tls != former);
    assert_memory_equal(security.secrets.keys + 1, &old, sizeof(old));
    assert_memory_not_equal(security.secrets.keys, &old, sizeof(old));
    write_file(path, "too short\n");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_security_read(&security, &files, &error));
    wh_security_drop(&files);
    unlink(path);
    must_fail(WHERRY_SYSTEM, error, wh_security_read(&security, &files, &error));
    wh_security_drop(&files);
    assert_int_equal(security.secrets.count, 2);
    wh_security_clear(&security);
    unsetenv("WHERRY_SECRET_FILE");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_ticket_is_valid_once),  cmocka_unit_test(test_tickets_come_in_any_order),
        cmocka_unit_test(test_tickets_jump_to_the_end), cmocka_unit_test(test_tickets_belong_to_an_incarnation),
        cmocka_unit_test(test_reads_the_file_again),
    };
    return cmocka_run_group_tests_name("group_security", tests, NULL, NULL);
}
