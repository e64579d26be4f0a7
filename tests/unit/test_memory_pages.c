/* Small and huge pages, as far as the kernel reports them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory/memory.h"

enum { HUGE_PAGE = 2 << 20, ROOM = 4 * HUGE_PAGE };

static bool kernel_says(void) {
    struct utsname name;
    char *rest;
    uname(&name);
    long major = strtol(name.release, &rest, 10);
    long minor = *rest == '.' ? strtol(rest + 1, NULL, 10) : 0;
    return major > 6 || (major == 6 && minor >= 7);
}

static void test_small_pages_are_found(void **state) {
    (void)state;
    char *data = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(data != MAP_FAILED);
    madvise(data, ROOM, MADV_NOHUGEPAGE);
    int look = wh_pages_open();
    /* The memory is not touched yet. */
    assert_int_equal(wh_pages_of(look, data, ROOM), WH_PAGES_UNKNOWN);
    memset(data, 1, ROOM);
    assert_int_equal(wh_pages_of(look, data, ROOM), kernel_says() && look >= 0 ? WH_PAGES_SMALL : WH_PAGES_UNKNOWN);
    assert_int_equal(wh_pages_of(look, data, 4096), WH_PAGES_UNKNOWN);
    assert_int_equal(wh_pages_of(look, NULL, 0), WH_PAGES_UNKNOWN);
    assert_int_equal(wh_pages_of(-1, data, ROOM), WH_PAGES_UNKNOWN);
    close(look);
    munmap(data, ROOM);
}

/** True if /proc/self/smaps reports huge pages for the mapping of an address. */
static bool has_huge_pages(const char *at) {
    char line[256];
    bool here = false;
    bool huge = false;
    FILE *map = fopen("/proc/self/smaps", "re");
    while (map && fgets(line, sizeof(line), map)) {
        char *rest;
        uintptr_t begin = strtoul(line, &rest, 16);
        if (rest != line && *rest == '-') {
            here = begin <= (uintptr_t)at && (uintptr_t)at < strtoul(rest + 1, NULL, 16);
        } else if (here && strncmp(line, "AnonHugePages:", 14) == 0) {
            huge = strtoul(line + 14, NULL, 10) >= ROOM / 2 / 1024;
        }
    }
    if (map) {
        fclose(map);
    }
    return huge;
}

/** The system may have no huge pages left; then pages are small. */
static void test_huge_pages_are_found(void **state) {
    (void)state;
    char *data = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(data != MAP_FAILED);
    madvise(data, ROOM, MADV_HUGEPAGE);
    memset(data, 1, ROOM);
    bool huge = has_huge_pages(data + ROOM / 2);
    int look = wh_pages_open();
    wh_pages found = wh_pages_of(look, data, ROOM);
    if (kernel_says() && huge) {
        assert_int_equal(found, WH_PAGES_HUGE);
    } else {
        assert_int_not_equal(found, WH_PAGES_HUGE);
    }
    close(look);
    munmap(data, ROOM);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_pages_are_found),
                                       cmocka_unit_test(test_huge_pages_are_found)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
