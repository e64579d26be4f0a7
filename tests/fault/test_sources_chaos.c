/*
 * Chaos: four ranks send the states of one step after the other, and two ranks receive them again
 * and again. Sources die, come back and stop at random, but never all at once. No receive ends with
 * bytes of another step, and each ends in time. WHERRY_CHAOS_SECONDS sets how long this goes on,
 * WHERRY_CHAOS_SEED repeats the random choices, and WHERRY_TEST_TIMES prints every receive.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/build.h"
#include "support/process_job.h"

static job_state sent;
static job_state target;

enum {
    CHAOS_SOURCES = 4,
    CHAOS_RECEIVERS = 2,
    CHAOS_RANKS = CHAOS_SOURCES + CHAOS_RECEIVERS,
    CHAOS_S = 6,
    CHAOS_TIMEOUT_MS = 8000 * JOB_SLOW,
    CHAOS_LATE_MS = 5000 * JOB_SLOW,
    CHAOS_DEAD_MS = 2000 * JOB_SLOW,
    PHASE_MS = 1500,
};

/** Shared by all processes. */
typedef struct chaos {
    bool tcp;
    unsigned seed;
    int seconds;
    atomic_int step; /**< What the sources send now. */
    atomic_int over;
    atomic_int received; /**< Receives that succeeded. */
    atomic_int failed;
    _Atomic uint64_t longest_ms;
    atomic_bool joined[CHAOS_SOURCES];
} chaos;

static chaos *storm;

/** Each byte depends on the step, so that bytes of another step are found. */
static uint64_t word_at(size_t index, int step) {
    return ((uint64_t)step * 2 + 1) * UINT64_C(0x9E3779B97F4A7C15) + index * UINT64_C(0x0101010101010101) * 37;
}

static void fill(job_state *state, int step) {
    uint64_t *words = (void *)state->memory; /* on its own pages */
    for (size_t i = 0; i < state->bytes / sizeof(*words); i++) {
        words[i] = word_at(i, step);
    }
}

/** @return the first word that is not that of the step; SIZE_MAX: none. */
static size_t find_torn(const job_state *state, int step) {
    const uint64_t *words = (const void *)state->memory;
    for (size_t i = 0; i < state->bytes / sizeof(*words); i++) {
        if (words[i] != word_at(i, step)) {
            return i;
        }
    }
    return SIZE_MAX;
}

/** A process that hangs must not be taken for a slow one. */
static void set_alarm(void) {
    alarm((unsigned)(storm->seconds + 60 * JOB_SLOW));
}

/** Ends a send when the step is over: the others wait for the next one. */
static bool is_step_over(void *context) {
    return atomic_load(&storm->over) || atomic_load(&storm->step) != *(int *)context;
}

static void be_chaotic_source(job_rank *self) {
    const int32_t receivers[CHAOS_RECEIVERS] = {CHAOS_SOURCES, CHAOS_SOURCES + 1};
    set_alarm();
    atomic_store(storm->joined + self->rank, true);
    while (!atomic_load(&storm->over)) {
        int step = atomic_load(&storm->step);
        wherry_transfer_options options = job_options(NULL);
        wherry_error error;
        options.step = step;
        options.timeout_ms = CHAOS_TIMEOUT_MS;
        options.interrupt = is_step_over;
        options.interrupt_context = &step;
        fill(&sent, step);
        wherry_status status =
            wherry_checkpoint_send(self->transport, receivers, CHAOS_RECEIVERS, sent.value, &options, NULL, &error);
        memset(sent.memory, 0xEE, sent.bytes); /* nobody may read it now */
        job_check(self, status != WHERRY_INVALID_ARGUMENT && status != WHERRY_MALFORMED, "the send: %s: %s",
                  wherry_status_name(status), error.message);
        if (status == WHERRY_CLOSED) {
            _exit(0); /* it was stopped for so long that it is out of the group */
        }
    }
}

/** A receive ends in time, with the whole state or with an error that a lost source explains. */
static void receive_once(job_rank *self, unsigned *seed) {
    static const char *const lanes[] = {"cma", "ring", "stream"};
    const int32_t ranks[CHAOS_SOURCES] = {0, 1, 2, 3};
    int step = atomic_load(&storm->step);
    wherry_transfer_options options = job_options(storm->tcp ? "stream" : lanes[rand_r(seed) % 3]);
    wherry_error error;
    wherry_stats stats;
    options.step = step;
    options.timeout_ms = CHAOS_TIMEOUT_MS;
    options.verify = rand_r(seed) % 3 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
    options.target = job_target;
    options.target_context = target.value;
    options.stats = &stats;
    uint64_t begin = wh_clock_now();
    wherry_status status = wherry_checkpoint_recv_from(self->transport, ranks, CHAOS_SOURCES, &options, NULL, &error);
    uint64_t ms = (wh_clock_now() - begin) / 1000000;
    job_check(self, ms < CHAOS_TIMEOUT_MS + CHAOS_LATE_MS, "a receive took %llu ms: %s", (unsigned long long)ms,
              status == WHERRY_OK ? "" : error.message);
    if (ms > atomic_load(&storm->longest_ms)) {
        atomic_store(&storm->longest_ms, ms);
    }
    if (getenv("WHERRY_TEST_TIMES")) {
        fprintf(stderr, "# rank %d, step %d, %s%s, %llu ms: %s %s\n", (int)self->rank, step, options.lanes,
                options.verify == WHERRY_VERIFY_ON ? ", checked" : "", (unsigned long long)ms,
                wherry_status_name(status), status == WHERRY_OK ? "" : error.message);
    }
    if (status == WHERRY_OK) {
        size_t torn = find_torn(&target, step);
        job_check(self, torn == SIZE_MAX, "the state of step %d is torn at byte %zu", step, torn * 8);
        atomic_fetch_add(&storm->received, 1);
        return;
    }
    bool clear = status == WHERRY_TIMED_OUT || status == WHERRY_PEER_LOST || status == WHERRY_REVOKED ||
                 status == WHERRY_ABORTED || status == WHERRY_MISMATCH;
    job_check(self, clear && *error.message, "%s: %s", wherry_status_name(status), error.message);
    atomic_fetch_add(&storm->failed, 1);
}

static void be_chaotic_receiver(job_rank *self) {
    unsigned seed = storm->seed + (unsigned)self->rank;
    set_alarm();
    while (!atomic_load(&storm->over)) {
        receive_once(self, &seed);
        usleep(5000);
    }
}

static void start_source(job *all, int32_t rank) {
    all->expendable[rank] = true;
    atomic_store(storm->joined + rank, false);
    job_start(all, rank, be_chaotic_source, NULL, NULL);
}

/** A source that was started again must not find that the others have left. */
static void await_joined(void) {
    uint64_t limit = wh_clock_now() + JOB_MS * UINT64_C(1000000);
    for (int32_t rank = 0; rank < CHAOS_SOURCES; rank++) {
        while (!atomic_load(storm->joined + rank) && wh_clock_now() < limit) {
            usleep(1000);
        }
    }
}

/** Sources that have died or left are started again. */
static void revive(job *all, bool *lived) {
    for (int32_t rank = 0; rank < CHAOS_SOURCES; rank++) {
        int result = 0;
        if (all->children[rank] && waitpid(all->children[rank], &result, WNOHANG) == all->children[rank]) {
            all->children[rank] = 0;
            bool good =
                (WIFEXITED(result) && WEXITSTATUS(result) == 0) || (WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
            if (!good) {
                print_error("%s: rank %d ended with %d: %s\n", all->name, (int)rank, result, all->failures[rank]);
            }
            *lived = *lived && good;
        }
        if (!all->children[rank] && *lived) {
            start_source(all, rank);
        }
    }
}

/** Kills or stops up to three sources, continues them a while later, and goes on. */
static void disturb(job *all, unsigned *seed) {
    int32_t spared = rand_r(seed) % CHAOS_SOURCES;
    for (int32_t rank = 0; rank < CHAOS_SOURCES; rank++) {
        int what = rand_r(seed) % 5;
        if (rank == spared || !all->children[rank] || what > 1) {
            continue;
        }
        kill(all->children[rank], what ? SIGSTOP : SIGKILL);
    }
    usleep((useconds_t)(20000 + rand_r(seed) % (rand_r(seed) % 4 ? 300000 : 3000000)));
    for (int32_t rank = 0; rank < CHAOS_SOURCES; rank++) {
        if (all->children[rank]) {
            kill(all->children[rank], SIGCONT);
        }
    }
}

static void run_chaos(bool tcp, int seconds) {
    storm = mmap(NULL, sizeof(*storm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(storm != MAP_FAILED);
    const char *text = getenv("WHERRY_CHAOS_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)wh_clock_now();
    *storm = (chaos){.tcp = tcp, .seed = seed, .seconds = seconds, .step = 1};
    job *all = job_open(tcp ? "chaos over tcp" : "chaos on one host", CHAOS_RANKS, tcp, CHAOS_DEAD_MS);
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        if (rank < CHAOS_SOURCES) {
            start_source(all, rank);
        } else {
            job_start(all, rank, be_chaotic_receiver, NULL, NULL);
        }
    }
    uint64_t end = wh_clock_now() + (uint64_t)seconds * 1000000000;
    uint64_t phase = 0;
    bool good = true;
    while (wh_clock_now() < end && good) {
        usleep((useconds_t)(rand_r(&seed) % 100000));
        disturb(all, &seed);
        revive(all, &good);
        if (wh_clock_now() - phase > PHASE_MS * UINT64_C(1000000)) {
            atomic_fetch_add(&storm->step, 1);
            phase = wh_clock_now();
        }
    }
    await_joined();
    atomic_store(&storm->over, 1);
    good = job_close(all) && good;
    print_message("# %s, seed %u: %d receives succeeded, %d failed, the longest took %llu ms\n",
                  tcp ? "tcp" : "one host", storm->seed, atomic_load(&storm->received), atomic_load(&storm->failed),
                  (unsigned long long)atomic_load(&storm->longest_ms));
    assert_true(good);
    assert_true(atomic_load(&storm->received) > 0);
    munmap(storm, sizeof(*storm));
}

static int chaos_seconds(void) {
    const char *text = getenv("WHERRY_CHAOS_SECONDS");
    return text ? (int)strtol(text, NULL, 10) : CHAOS_S;
}

static void test_no_state_is_torn_while_sources_come_and_go(void **state) {
    (void)state;
    run_chaos(false, (chaos_seconds() + 1) / 2);
}

static void test_no_state_is_torn_while_sources_come_and_go_over_tcp(void **state) {
    (void)state;
    run_chaos(true, (chaos_seconds() + 1) / 2);
}

static int set_up(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    sent = job_state_create(1);
    target = job_state_create(2);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    job_state_destroy(&sent);
    job_state_destroy(&target);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_state_is_torn_while_sources_come_and_go),
        cmocka_unit_test(test_no_state_is_torn_while_sources_come_and_go_over_tcp),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
