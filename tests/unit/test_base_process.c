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
    wh_fork_lock_take(&late); /* This lock was never taken before. */
    wh_fork_lock_give(&late);
    return children == 1 && befores >= 1 && afters == befores ? 0 : 2;
}

static void test_locks_are_free_after_a_fork(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        wh_fork_lock_take(all[i].lock); /* This registers the lock with the fork handlers. */
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
        assert_int_equal(children, 0); /* Only children change this number. */
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

/**
 * The nonce does not change. In a forked child, the kernel zeroes it, and the child gets another
 * one.
 */
static void test_forked_child_has_another_nonce(void **state) {
    (void)state;
    const uint8_t *one;
    const uint8_t *again;
    uint8_t before[WH_NONCE_BYTES];
    int status;
    assert_int_equal(wh_process_nonce(&one, NULL), WHERRY_OK);
    assert_int_equal(wh_process_nonce(&again, NULL), WHERRY_OK);
    assert_ptr_equal(one, again);
    memcpy(before, one, sizeof(before));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static const uint8_t zeros[WH_NONCE_BYTES];
        bool wiped = memcmp(one, zeros, sizeof(zeros)) == 0;
        bool made = wh_process_nonce(&again, NULL) == WHERRY_OK && memcmp(again, before, sizeof(before)) != 0;
        _exit(wiped && made ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_memory_equal(one, before, sizeof(before));
}

/** wh_cpu_features and the compiler's own check agree. */
static void test_cpu_features_are_those_of_the_compiler(void **state) {
    (void)state;
#ifdef __x86_64__
    for (int again = 0; again < 2; again++) {
        assert_int_equal(!!(wh_cpu_features() & WH_CPU_AVX2), !!__builtin_cpu_supports("avx2"));
        assert_int_equal(!!(wh_cpu_features() & WH_CPU_AVX512F), !!__builtin_cpu_supports("avx512f"));
    }
#else
    assert_int_equal(wh_cpu_features(), 0);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locks_are_free_after_a_fork),
        cmocka_unit_test(test_cpu_count_follows_the_affinity),
        cmocka_unit_test(test_cpu_features_are_those_of_the_compiler),
        cmocka_unit_test(test_forked_child_has_another_nonce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
