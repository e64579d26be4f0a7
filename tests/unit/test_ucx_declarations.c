/*
 * The lane's own declarations of UCX have the values and layouts of UCX's headers. Its functions
 * were compared by the compiler.
 */
#include "support/build.h"
#include "support/ucx_facts.h"

static void test_declarations_equal_the_headers(void **state) {
    (void)state;
    size_t i = 0;
    for (; wh_ucx_facts_headers[i].name; i++) {
        assert_string_equal(wh_ucx_facts_declared[i].name, wh_ucx_facts_headers[i].name);
        if (wh_ucx_facts_declared[i].value != wh_ucx_facts_headers[i].value) {
            fail_msg("%s is %lld in UCX's headers, but declared as %lld", wh_ucx_facts_headers[i].name,
                     wh_ucx_facts_headers[i].value, wh_ucx_facts_declared[i].value);
        }
    }
    assert_true(i > 60);
    assert_null(wh_ucx_facts_declared[i].name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_declarations_equal_the_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
