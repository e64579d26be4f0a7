/*
 * Chaos: four ranks send the states of one step after the other, and two ranks receive them again
 * and again. Ranks die, come back and stop at random, connections end and links lose all packets,
 * but never all sources at once. No receive ends with bytes of another step, and each ends in time.
 * One source and one receiver are never killed. In the end they hold no more memory, threads and
 * descriptors than after a tenth of the transfers.
 *
 *     test_chaos near     on one host, over Unix sockets
 *     test_chaos tcp      on one host, over TCP
 *     test_chaos hosts    on two hosts made of network namespaces (needs root)
 *     test_chaos ucx      on one host, over the lane ucx
 *
 * WHERRY_CHAOS_TRANSFERS sets how many receives must succeed. Without it, this runs for some
 * seconds, or for WHERRY_CHAOS_SECONDS. WHERRY_CHAOS_SEED repeats the random choices, and
 * WHERRY_TEST_TIMES prints every receive. `make soak` runs all of it for long.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/holdings.h"
#include "support/process_job.h"
#include "support/step_state.h"
#include "support/two_hosts.h"

static job_state sent;
static job_state target;

enum {
    CHAOS_SOURCES = 4,
    CHAOS_RECEIVERS = 2,
    CHAOS_RANKS = CHAOS_SOURCES + CHAOS_RECEIVERS,
    CHAOS_S = 4,
    STEADY_SOURCE = 0,
    STEADY_RECEIVER = CHAOS_SOURCES,
    CHAOS_TIMEOUT_MS = 8000 * JOB_SLOW,
    CHAOS_LATE_MS = 8000 * JOB_SLOW, /**< A receiver may be stopped for 3 s. */
    CHAOS_DEAD_MS = 2000 * JOB_SLOW,
    /** Idle connections are closed after twice CHAOS_DEAD_MS. */
    SETTLE_MS = 2 * CHAOS_DEAD_MS + 2000 * JOB_SLOW,
    SETTLED_MS = 4 * SETTLE_MS,
    LANES_MAX = 3,
};

/** Where the ranks are, and how the bytes move. */
typedef struct scene {
    const char *name;
    bool tcp;
    bool hosts;
    const char *lanes[LANES_MAX];
    int lane_count;
    int step_ms; /**< How long a step takes. */
    bool keeps;  /**< The lane keeps connections for later transfers. */
    /** KiB of memory that a process may gain by the end. UCX frees its memory late. */
    long growth;
    int slow; /**< Factor for time limits. UCX polls, so that ranks starve each other. */
} scene;

static const scene scenes[] = {
    {"near", false, false, {"cma", "ring", "stream"}, 3, 1500, false, 4096, 1},
    {"tcp", true, false, {"cma", "ring", "stream"}, 3, 1500, false, 4096, 1},
    {"hosts", true, true, {"stream"}, 1, 1500, false, 4096, 1},
    {"ucx", true, false, {"ucx"}, 1, 6000, true, 32768, 3},
};

/** The state that all processes share. */
typedef struct chaos {
    const scene *at;
    unsigned seed;
    atomic_int step;     /**< The step that the sources send now. */
    atomic_int rests;    /**< Number of the pause in which ranks take stock, counted from 1. */
    atomic_int resumes;  /**< Number of pauses that have ended. */
    atomic_int surveyed; /**< Number of ranks that have taken stock, in all pauses. */
    atomic_int over;
    atomic_int received; /**< Receives that succeeded. */
    atomic_int failed;
    atomic_int over_lane[LANES_MAX]; /**< Receives that succeeded, per lane. */
    atomic_int cuts;                 /**< Connections that were ended. */
    _Atomic uint64_t longest_ms;
    atomic_bool joined[CHAOS_RANKS];
    holdings stock[CHAOS_RANKS][2]; /**< What the steady ranks hold, in both pauses. */
} chaos;

static chaos *storm;

/** A process that hangs must not be taken for a slow one. */
static void set_alarm(void) {
    alarm(60 * JOB_SLOW);
}

static bool is_pause(void) {
    return atomic_load(&storm->over) || atomic_load(&storm->rests) != atomic_load(&storm->resumes);
}

/** Ends a send when the step is over, because the other ranks wait for the next step. */
static bool is_step_over(void *context) {
    return is_pause() || atomic_load(&storm->step) != *(int *)context;
}

static bool is_over(void *context) {
    (void)context;
    return is_pause();
}

static bool is_within(const holdings *last, const holdings *first) {
    if (storm->at->keeps && JOB_SLOW > 1) {
        return true; /* Kept connections cannot be dropped: see job_may_fork. */
    }
    return last->threads <= first->threads && last->descriptors <= first->descriptors &&
           last->blocks <= first->blocks + 2 && (JOB_SLOW > 1 || last->resident < first->resident + storm->at->growth);
}

/** Ends the connections that the lane ucx keeps for later transfers, as a fork does. */
static void drop_kept(void) {
    pid_t child = job_may_fork() ? fork() : -1;
    if (child == 0) {
        _exit(0);
    }
    if (child > 0) {
        waitpid(child, NULL, 0);
    }
}

/**
 * Counts what this process holds, after idle connections were closed. In the second pause, waits up
 * to SETTLED_MS until it holds no more than in the first.
 */
static void survey(const job_rank *self, int pause) {
    holdings *stock = storm->stock[self->rank];
    wh_deadline limit = wh_deadline_in_ms(SETTLED_MS);
    usleep(SETTLE_MS * 1000); /* Idle connections are closed after a time; nothing tells when. */
    if (storm->at->keeps) {
        drop_kept();
    }
    stock[pause] = take_stock();
    while (pause && !is_within(stock + 1, stock) && !wh_deadline_passed(limit)) {
        usleep(50000);
        stock[1] = take_stock();
    }
    atomic_fetch_add(&storm->surveyed, 1);
}

/** In a pause, the steady ranks take stock, and all ranks wait. @return false if all is over. */
static bool go_on(const job_rank *self) {
    set_alarm();
    int rests = atomic_load(&storm->rests);
    if (rests != atomic_load(&storm->resumes) && (self->rank == STEADY_SOURCE || self->rank == STEADY_RECEIVER)) {
        survey(self, rests - 1);
    }
    while (!atomic_load(&storm->over) && rests != atomic_load(&storm->resumes)) {
        usleep(1000);
    }
    return !atomic_load(&storm->over);
}

static bool is_connection(int fd) {
    int type = 0;
    int listens = 1;
    socklen_t size = sizeof(int);
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens;
}

/** Ends a connection of this process, chosen at random, as a reset of it would. */
static void cut_connection(int signal) {
    enum { DESCRIPTORS = 64 };
    static unsigned number;
    int errnum = errno; /* NOLINT(bugprone-signal-handler,cert-sig30-c): errno is allowed */
    (void)signal;
    number = number * 1103515245 + (unsigned)getpid();
    for (unsigned i = 0; i < DESCRIPTORS; i++) {
        int fd = (int)(((number >> 16) + i) % DESCRIPTORS);
        if (fd > STDERR_FILENO && is_connection(fd) && shutdown(fd, SHUT_RDWR) == 0) {
            atomic_fetch_add(&storm->cuts, 1);
            break;
        }
    }
    errno = errnum;
}

static void be_chaotic_source(job_rank *self) {
    const int32_t receivers[CHAOS_RECEIVERS] = {CHAOS_SOURCES, CHAOS_SOURCES + 1};
    atomic_store(storm->joined + self->rank, true);
    while (go_on(self)) {
        int step = atomic_load(&storm->step);
        wherry_transfer_options options = job_options(NULL);
        wherry_error error;
        options.step = step;
        options.timeout_ms = CHAOS_TIMEOUT_MS;
        options.interrupt = is_step_over;
        options.interrupt_context = &step;
        step_fill(&sent, step);
        wherry_status status =
            wherry_checkpoint_send(self->transport, receivers, CHAOS_RECEIVERS, sent.value, &options, NULL, &error);
        /* The source overwrites its state, because nobody may read it now. */
        memset(sent.memory, 0xEE, sent.bytes);
        job_check(self, status != WHERRY_INVALID_ARGUMENT && status != WHERRY_MALFORMED, "the send: %s: %s",
                  wherry_status_name(status), error.message);
        if (status == WHERRY_CLOSED) {
            _exit(0); /* This rank was stopped for so long that the group has dropped it. */
        }
    }
}

/** A receive ends in time, with the whole state or with an error that a lost source explains. */
static void receive_once(job_rank *self, unsigned *seed) {
    const int32_t ranks[CHAOS_SOURCES] = {0, 1, 2, 3};
    int step = atomic_load(&storm->step);
    int lane = rand_r(seed) % storm->at->lane_count;
    wherry_transfer_options options = job_options(storm->at->lanes[lane]);
    wherry_error error;
    wherry_stats stats;
    options.step = step;
    options.timeout_ms = CHAOS_TIMEOUT_MS;
    options.verify = rand_r(seed) % 3 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
    options.target = job_target;
    options.target_context = target.value;
    options.stats = &stats;
    options.interrupt = is_over;
    uint64_t begin = wh_clock_now();
    wherry_status status = wherry_checkpoint_recv_from(self->transport, ranks, CHAOS_SOURCES, &options, NULL, &error);
    uint64_t ms = (wh_clock_now() - begin) / 1000000;
    job_check(self, ms < (uint64_t)(CHAOS_TIMEOUT_MS + CHAOS_LATE_MS * storm->at->slow), "a receive took %llu ms: %s",
              (unsigned long long)ms, status == WHERRY_OK ? "" : error.message);
    if (ms > atomic_load(&storm->longest_ms)) {
        atomic_store(&storm->longest_ms, ms);
    }
    if (getenv("WHERRY_TEST_TIMES")) {
        fprintf(stderr, "# rank %d, step %d, %s%s, %llu ms: %s %s\n", (int)self->rank, step, options.lanes,
                options.verify == WHERRY_VERIFY_ON ? ", checked" : "", (unsigned long long)ms,
                wherry_status_name(status), status == WHERRY_OK ? "" : error.message);
    }
    if (status == WHERRY_OK) {
        size_t torn = step_find_torn(&target, step);
        job_check(self, torn == SIZE_MAX, "the state of step %d is torn at byte %zu", step, torn * 8);
        atomic_fetch_add(&storm->received, 1);
        atomic_fetch_add(storm->over_lane + lane, 1);
        return;
    }
    if (status == WHERRY_CANCELLED && is_pause()) {
        return;
    }
    /*
     * The connection of the only lane was cut: UNSUPPORTED before the first byte, TRUNCATED after
     * it.
     */
    bool clear = status == WHERRY_TIMED_OUT || status == WHERRY_UNSUPPORTED || status == WHERRY_TRUNCATED ||
                 status == WHERRY_PEER_LOST || status == WHERRY_REVOKED || status == WHERRY_ABORTED ||
                 status == WHERRY_MISMATCH;
    job_check(self, clear && *error.message, "%s: %s", wherry_status_name(status), error.message);
    atomic_fetch_add(&storm->failed, 1);
}

static void be_chaotic_receiver(job_rank *self) {
    unsigned seed = storm->seed + (unsigned)self->rank + (unsigned)atomic_load(&storm->received);
    atomic_store(storm->joined + self->rank, true);
    while (go_on(self)) {
        receive_once(self, &seed);
        usleep(5000);
    }
}

static void start_rank(job *all, int32_t rank) {
    all->expendable[rank] = rank != STEADY_SOURCE && rank != STEADY_RECEIVER;
    atomic_store(storm->joined + rank, false);
    job_start(all, rank, rank < CHAOS_SOURCES ? be_chaotic_source : be_chaotic_receiver, NULL, NULL);
}

/**
 * The first rank listens at the meeting point, and has a connection to every rank. It must be a
 * steady one: otherwise a steady rank would take the meeting point over later, and hold more.
 */
static void await_listener(const job *all) {
    uint64_t limit = wh_clock_now() + JOB_MS * UINT64_C(1000000);
    while (!atomic_load(all->pids + STEADY_SOURCE) && wh_clock_now() < limit) {
        usleep(1000);
    }
    wh_await_asleep(atomic_load(all->pids + STEADY_SOURCE));
}

/** A rank that was started again must not find that the others have left. */
static void await_joined(void) {
    uint64_t limit = wh_clock_now() + JOB_MS * UINT64_C(1000000);
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        while (!atomic_load(storm->joined + rank) && wh_clock_now() < limit) {
            usleep(1000);
        }
    }
}

/** Ranks that have died or left are started again. @return false if one has failed. */
static bool revive(job *all) {
    bool lived = true;
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        int result = 0;
        if (all->children[rank] && waitpid(all->children[rank], &result, WNOHANG) == all->children[rank]) {
            all->children[rank] = 0;
            bool good = (WIFEXITED(result) && WEXITSTATUS(result) == 0) ||
                        (WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL && all->expendable[rank]);
            if (!good) {
                print_error("%s: rank %d ended with %d: %s\n", all->name, (int)rank, result, all->failures[rank]);
            }
            lived = lived && good;
        }
        if (!all->children[rank] && lived) {
            start_rank(all, rank);
        }
    }
    return lived;
}

/**
 * Kills, stops or cuts off ranks, but at most three of the sources. Ends that a while later. Cuts
 * the link between two hosts.
 */
static void disturb(const job *all, const two_hosts *hosts, unsigned *seed) {
    static const int signals[] = {SIGKILL, SIGSTOP, SIGUSR1};
    enum { KINDS = 3, NONE = 7 };
    int32_t spared = rand_r(seed) % CHAOS_SOURCES;
    bool link = storm->at->hosts && rand_r(seed) % 4 == 0;
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        int what = rand_r(seed) % (KINDS + NONE);
        if (rank == spared || !all->children[rank] || what >= KINDS ||
            (signals[what] == SIGKILL && !all->expendable[rank])) {
            continue;
        }
        kill(all->children[rank], signals[what]);
    }
    if (link) {
        assert_true(two_hosts_link(hosts, false));
    }
    /* The fault lasts for a random time. */
    usleep((useconds_t)(20000 + rand_r(seed) % (rand_r(seed) % 8 ? 300000 : 3000000)));
    if (link) {
        assert_true(two_hosts_link(hosts, true));
        atomic_fetch_add(&storm->cuts, 1);
    }
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        if (all->children[rank]) {
            kill(all->children[rank], SIGCONT);
        }
    }
}

/** Goes on until this many receives have succeeded; 0: for some seconds, and until one has. */
static bool rage(job *all, const two_hosts *hosts, unsigned *seed, int receives, int seconds) {
    uint64_t phase = wh_clock_now();
    uint64_t end = phase + (receives ? 0 : (uint64_t)seconds * 1000000000);
    int wanted = receives ? receives : atomic_load(&storm->received) + 1;
    bool good = true;
    while (good && (atomic_load(&storm->received) < wanted || wh_clock_now() < end)) {
        usleep((useconds_t)(rand_r(seed) % 200000));
        disturb(all, hosts, seed);
        good = revive(all);
        if (wh_clock_now() - phase > (uint64_t)storm->at->step_ms * 1000000) {
            atomic_fetch_add(&storm->step, 1);
            phase = wh_clock_now();
        }
    }
    return good;
}

/** Lets all ranks pause, and the steady ones take stock. */
static bool survey_all(job *all) {
    wh_deadline limit = wh_deadline_in_ms(2 * SETTLED_MS + JOB_MS);
    await_joined();
    int wanted = 2 * (atomic_fetch_add(&storm->rests, 1) + 1);
    bool good = true;
    while (good && atomic_load(&storm->surveyed) < wanted && !wh_deadline_passed(limit)) {
        usleep(10000);
        good = revive(all);
    }
    good = good && atomic_load(&storm->surveyed) == wanted;
    await_joined();
    atomic_store(&storm->resumes, atomic_load(&storm->rests));
    return good;
}

static bool has_grown(int32_t rank) {
    const holdings *stock = storm->stock[rank];
    print_message("# rank %d: %ld, then %ld KiB; %d, then %d threads; %d, then %d descriptors; %lld, then %lld "
                  "allocations\n",
                  (int)rank, stock->resident, stock[1].resident, stock->threads, stock[1].threads, stock->descriptors,
                  stock[1].descriptors, (long long)stock->blocks, (long long)stock[1].blocks);
    return !is_within(stock + 1, stock);
}

static void run_chaos(const scene *at, const two_hosts *hosts) {
    storm = mmap(NULL, sizeof(*storm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(storm != MAP_FAILED);
    const char *text = getenv("WHERRY_CHAOS_SEED");
    const char *transfers = getenv("WHERRY_CHAOS_TRANSFERS");
    const char *time = getenv("WHERRY_CHAOS_SECONDS");
    int receives = transfers ? (int)strtol(transfers, NULL, 10) : 0;
    int seconds = time ? (int)strtol(time, NULL, 10) : CHAOS_S;
    int warm_up = seconds < 10 ? 1 : seconds / 10;
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)wh_clock_now();
    *storm = (chaos){.at = at, .seed = seed, .step = 1};
    job *all = job_open(at->name, CHAOS_RANKS, at->tcp, CHAOS_DEAD_MS);
    if (at->hosts) {
        all->host = TWO_HOSTS_ADDRESS;
        all->networks = hosts->namespaces;
    }
    for (int32_t rank = 0; rank < CHAOS_RANKS; rank++) {
        start_rank(all, rank);
        if (rank == STEADY_SOURCE) {
            await_listener(all);
        }
    }
    bool good = rage(all, hosts, &seed, receives / 10, warm_up) && survey_all(all) &&
                rage(all, hosts, &seed, receives, seconds - warm_up) && survey_all(all);
    await_joined();
    atomic_store(&storm->over, 1);
    good = job_close(all) && good;
    print_message("# %s, seed %u: %d receives succeeded, %d failed, the longest took %llu ms; %d connections or links "
                  "were cut\n",
                  at->name, storm->seed, atomic_load(&storm->received), atomic_load(&storm->failed),
                  (unsigned long long)atomic_load(&storm->longest_ms), atomic_load(&storm->cuts));
    for (int i = 0; i < at->lane_count; i++) {
        print_message("# %d over %s\n", atomic_load(storm->over_lane + i), at->lanes[i]);
    }
    int grown = good ? has_grown(STEADY_SOURCE) + has_grown(STEADY_RECEIVER) : 0;
    assert_true(good);
    assert_int_equal(grown, 0);
    assert_true(atomic_load(&storm->received) > 0);
    munmap(storm, sizeof(*storm));
}

static const scene *chosen;

static void test_no_state_is_torn_while_ranks_come_and_go(void **state) {
    (void)state;
    two_hosts hosts = {.namespaces = {-1, -1}};
    const char *missing = chosen->hosts ? two_hosts_open(&hosts) : NULL;
    if (missing) {
        print_message("%s\n", missing);
        two_hosts_close(&hosts);
        skip();
    }
    run_chaos(chosen, &hosts);
    two_hosts_close(&hosts);
}

static int set_up(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    signal(SIGUSR1, cut_connection);
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

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_state_is_torn_while_ranks_come_and_go)};
    holdings_begin();
    for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
        chosen = count > 1 && strcmp(arguments[1], scenes[i].name) == 0 ? scenes + i : chosen;
    }
    if (!chosen) {
        fprintf(stderr, "usage: test_chaos near|tcp|hosts|ucx\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
