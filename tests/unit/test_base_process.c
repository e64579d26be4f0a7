/*
 * Whenever a fork happens, the child finds fork locks free and the data that they guard consistent.
 * Memory that is wiped at a fork; the number of CPUs.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "support/build.h"

enum { FORKS = 200, THREADS = 2, CHILD_S = 20 };

/** Two numbers that are equal while nobody holds the lock. */
typedef struct guarded {
    wh_fork_lock *lock;
    volatile int one;
    volatile int other;
} guarded;

static int befores;
static int children;
static int afters;
static void before_fork(void);
static void in_child(void);
static void after_fork(void);

static wh_fork_lock first = WH_FORK_LOCK(.before = before_fork, .in_child = in_child, .after = after_fork);
static wh_fork_lock second = WH_FORK_LOCK();
static wh_fork_lock late = WH_FORK_LOCK();
static guarded all[THREADS] = {{&first, 0, 0}, {&second, 0, 0}};
static atomic_bool over;

/** Fork handlers. The lock is held during all three. */
static void before_fork(void) {
    befores += pthread_mutex_trylock(&first.mutex) == EBUSY;
}

static void in_child(void) {
    children += pthread_mutex_trylock(&first.mutex) == EBUSY;
}

static void after_fork(void) {
    afters += pthread_mutex_trylock(&first.mutex) == EBUSY && befores == afters + 1;
}

static void *count(void *context) {
    guarded *what = context;
    while (!atomic_load(&over)) {
        wh_fork_lock_take(what->lock);
        what->one++;
        what->other++;
        wh_fork_lock_give(what->lock);
    }
    return NULL;
}

/** @return 0 on success. The alarm ends a child that waits for a lock forever. */
static int be_child(void) {
    alarm(CHILD_S);
    for (int i = 0; i < THREADS; i++) {
        wh_fork_lock_take(all[i].lock);
        if (all[i].one != all[i].other) {
            return 1;
        }
        wh_fork_lock_give(all[i].lock);
    }
    wh_fork_lock_take(&late); /* never taken before */
    wh_fork_lock_give(&late);
    return children == 1 && befores >= 1 && afters == befores ? 0 : 2;
}

static void test_locks_are_free_after_a_fork(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        wh_fork_lock_take(all[i].lock); /* registers it with the fork handlers */
        wh_fork_lock_give(all[i].lock);
        assert_int_equal(pthread_create(threads + i, NULL, count, all + i), 0);
    }
    for (int i = 0; i < FORKS; i++) {
        int result = -1;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            _exit(be_child());
        }
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_int_equal(result, 0);
        assert_int_equal(befores, i + 1);
        assert_int_equal(afters, i + 1);
        assert_int_equal(children, 0); /* only children change it */
    }
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(all[i].one == all[i].other && all[i].one > 0);
    }
}

static void test_cpu_count_follows_the_affinity(void **state) {
    (void)state;
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(wh_cpu_count(), CPU_COUNT(&before));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(wh_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

/** The kernel zeroes the memory in a child, and leaves the parent's alone. */
static void test_fork_wipes_memory_in_the_child(void **state) {
    (void)state;
    enum { SIZE = 5000 };
    static const char zeros[SIZE];
    char *memory = wh_fork_wiped_alloc(SIZE);
    int result = -1;
    assert_non_null(memory);
    assert_memory_equal(memory, zeros, SIZE);
    memset(memory, 7, SIZE);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(memcmp(memory, zeros, SIZE) != 0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    assert_int_equal(memory[SIZE - 1], 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locks_are_free_after_a_fork),
        cmocka_unit_test(test_cpu_count_follows_the_affinity),
        cmocka_unit_test(test_fork_wipes_memory_in_the_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
