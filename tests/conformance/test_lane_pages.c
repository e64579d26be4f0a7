/*
 * Memory on small pages goes over ring, if the kernel reports the size of pages. Other memory goes
 * over cma.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
#include "memory/memory.h"

enum { BYTES = 16 << 20 };

/*
 * A tensor in memory that has this madvise() advice. *pages_p receives the kind of its pages, if
 * that is known.
 */
static wherry_value *tensor_on(int advice, wh_pages *pages_p) {
    const int64_t bytes = BYTES;
    char *room = mmap(NULL, BYTES + WH_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(room && room != MAP_FAILED); /* The memory is freed when the process ends. */
    char *data = room + (-(uintptr_t)room & (WH_HUGE_PAGE - 1));
    madvise(data, BYTES, advice);
    memset(data, advice, BYTES);
    int look = wh_pages_open();
    *pages_p = wh_pages_of(look, data, BYTES);
    close(look);
    wherry_storage *storage;
    must(wherry_storage_wrap(data, BYTES, wherry_device_cpu(), NULL, NULL, &storage, NULL));
    return build_dict("w", build_tensor(storage, WHERRY_U8, 0, 1, &bytes, NULL), NULL);
}

/* Transfers a state, in place or to new memory, and checks which lane was used. */
static void check_lane(const wherry_value *state, wherry_value *target, const char *lane) {
    ferry_world world = ferry_open();
    ferry_call calls[] = {ferry_send(&world, 0, 1, state), ferry_receive(&world, 1, 0)};
    calls[0].options.lanes = calls[1].options.lanes = NULL;
    if (target) {
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
    }
    ferry_run(calls, 2);
    ferry_expect_ok(&calls[0]);
    ferry_expect_ok(&calls[1]);
    assert_string_equal(calls[1].stats.lane, lane);
    wherry_value_destroy(calls[1].received);
    ferry_close(&world);
}

static void test_lane_follows_the_pages_of_both_sides(void **state) {
    (void)state;
    wh_pages of_small;
    wh_pages of_huge;
    wherry_value *on_small = tensor_on(MADV_NOHUGEPAGE, &of_small);
    wherry_value *on_huge = tensor_on(MADV_HUGEPAGE, &of_huge);
    wherry_value *small_target = tensor_on(MADV_NOHUGEPAGE, &of_small);
    wherry_value *huge_target = tensor_on(MADV_HUGEPAGE, &of_huge);
    /* Kernels before 6.7 do not report the kind of pages. */
    const char *small_lane = of_small == WH_PAGES_SMALL ? "ring" : "cma";
    /* Some kernels have no huge pages. */
    const char *huge_lane = of_huge == WH_PAGES_SMALL ? "ring" : "cma";
    check_lane(on_small, NULL, small_lane);
    check_lane(on_small, small_target, small_lane);
    check_lane(on_small, huge_target, small_lane);
    check_lane(on_huge, small_target, small_lane);
    check_lane(on_huge, huge_target, huge_lane);
    check_lane(on_huge, NULL, huge_lane);
    wherry_value_destroy(on_small);
    wherry_value_destroy(on_huge);
    wherry_value_destroy(small_target);
    wherry_value_destroy(huge_target);
}

int main(void) {
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lane_follows_the_pages_of_both_sides)};
    ferry_kind = &local;
    ferry_lane = "";
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
