/*
 * UCX is missing on one side, is too old, or was in use when the process was forked. The lane says
 * so, and the next lane is used. Loading UCX does not change the signals and the environment of the
 * process. Each case has its own processes, because a library stays loaded.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lane/ucx/ucx.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/sent_state.h"

enum { SOURCE, RECEIVER, RANKS };

/** One case: the library of each side, and the expected result. */
typedef struct scene {
    const char *name;
    const char *library[RANKS]; /**< NULL: the system's. */
    const char *lanes;
    wherry_status expected;
    const char *lane;   /**< The lane that is used. */
    const char *reason; /**< A part of the reason why ucx was not used. */
} scene;

static wherry_transfer_options begin(job_rank *self) {
    const scene *s = self->scene;
    if (s->library[self->rank]) {
        setenv("WHERRY_UCX_LIBRARY", s->library[self->rank], 1);
    }
    return job_options(s->lanes);
}

static void be_source(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = begin(self);
    wherry_error error;
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    job_check(self, status == (s->expected == WHERRY_OK ? WHERRY_OK : WHERRY_ABORTED), "source: %s: %s",
              wherry_status_name(status), status == WHERRY_OK ? "" : error.message);
}

static void be_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = begin(self);
    wherry_error error = {.status = WHERRY_OK};
    wherry_value *received;
    wherry_stats stats;
    options.stats = &stats;
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    job_check(self, status == s->expected, "receiver: %s: %s", wherry_status_name(status), error.message);
    if (status == WHERRY_OK) {
        job_check(self, job_state_equals(&sent, received), "the received state differs");
        wherry_value_destroy(received);
        job_check(self, strcmp(stats.lane, s->lane) == 0, "over %s: %s", stats.lane, stats.reasons);
    }
    const char *why = status == WHERRY_OK ? stats.reasons : error.message;
    job_check(self, strstr(why, s->reason), "no \"%s\" in: %s", s->reason, why);
    bool is_ucx = strcmp(stats.lane, "ucx") == 0;
    job_check(self, is_ucx == (strstr(stats.detail, "UCX 1.") == stats.detail), "detail: %s", stats.detail);
}

static void run(const scene *s) {
    job *all = job_open(s->name, RANKS, false, 0);
    job_start(all, SOURCE, be_source, s, NULL);
    job_start(all, RECEIVER, be_receiver, s, NULL);
    assert_true(job_close(all));
}

static void test_missing_or_too_old(void **state) {
    (void)state;
    const char *old = getenv("WHERRY_TEST_OLD_UCP");
    assert_non_null(old);
    const scene scenes[] = {
        {"UCX is there", {NULL, NULL}, "ucx,stream", WHERRY_OK, "ucx", ""},
        {"missing at the receiver",
         {NULL, "/nowhere/libucp.so.0"},
         "ucx,stream",
         WHERRY_OK,
         "stream",
         "/nowhere/libucp.so.0"},
        {"missing at the source",
         {"/nowhere/libucp.so.0", NULL},
         "ucx,stream",
         WHERRY_OK,
         "stream",
         "/nowhere/libucp.so.0"},
        {"missing at the receiver, and no other lane",
         {NULL, "/nowhere/libucp.so.0"},
         "ucx",
         WHERRY_UNSUPPORTED,
         "",
         "WHERRY_UCX_LIBRARY"},
        {"too old at the receiver",
         {NULL, old},
         "ucx,stream",
         WHERRY_OK,
         "stream",
         "UCX 1.14.1 is too old; 1.15 or newer is needed"},
        {"too old at the source",
         {old, NULL},
         "ucx,stream",
         WHERRY_OK,
         "stream",
         "UCX 1.14.1 is too old; 1.15 or newer is needed"},
        {"another library", {NULL, "libm.so.6"}, "ucx,stream", WHERRY_OK, "stream", "not a usable libucp"},
    };
    for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
        run(scenes + i);
    }
}

/** The environment's settings apply. If they leave UCX no transport, the reason says so. */
static void test_settings(void **state) {
    (void)state;
    const scene nothing = {"no transport", {NULL, NULL}, "ucx,stream", WHERRY_OK, "stream", "UCX"};
    setenv("UCX_TLS", "nosuch", 1);
    run(&nothing);
    /* UCX uses posix for peers that may fail only if the user says so. */
    setenv("UCX_TLS", "posix", 1);
    setenv("UCX_MM_ERROR_HANDLING", "n", 1);
    run(&nothing);
    setenv("UCX_MM_ERROR_HANDLING", "y", 1);
    run(&(scene){"shared memory alone", {NULL, NULL}, "ucx,stream", WHERRY_OK, "ucx", ""});
    unsetenv("UCX_TLS");
}

/** Runs a part in a child. @return 0 if it succeeds. */
static void in_a_child(int (*part)(void)) {
    int result = 0;
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(30);
        _exit(part());
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

static void handle(int number) {
    (void)number;
}

/** UCX does not handle SIGHUP and the signals of a crash: they keep the program's handlers. */
static int load_and_compare(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP, SIGUSR1};
    struct sigaction before[6];
    struct sigaction after;
    wh_ucx_link *link;
    wherry_error error;
    char *const *environment = environ;
    size_t variables = 0;
    signal(SIGBUS, handle);
    for (int i = 0; i < 6; i++) {
        sigaction(numbers[i], NULL, before + i);
    }
    while (environ[variables]) {
        variables++;
    }
    if (wh_ucx_link_take(NULL, true, &link, &error) != WHERRY_OK) {
        return 1;
    }
    for (int i = 0; i < 6; i++) {
        sigaction(numbers[i], NULL, &after);
        if (after.sa_handler != before[i].sa_handler) {
            return 2 + i;
        }
    }
    if (environ != environment || environ[variables] || (variables && !environ[variables - 1])) {
        return 9;
    }
    wh_ucx_link_give(link);
    return 0;
}

static void test_loading_leaves_the_process_as_it_was(void **state) {
    (void)state;
    in_a_child(load_and_compare);
}

static int take_one(void) {
    wh_ucx_link *link;
    wherry_error error;
    wherry_status status = wh_ucx_link_take(NULL, true, &link, &error);
    if (status == WHERRY_OK) {
        wh_ucx_link_give(link);
    }
    return status == WHERRY_OK ? 0 : status == WHERRY_UNSUPPORTED && strstr(error.message, "forked") ? 10 : 1;
}

/** @return the status in a child of this process. */
static int take_in_a_child(void) {
    int result = 0;
    pid_t child = fork();
    if (child == 0) {
        _exit(take_one());
    }
    return child > 0 && waitpid(child, &result, 0) == child && WIFEXITED(result) ? WEXITSTATUS(result) : 99;
}

static int fork_while_idle(void) {
    return take_one() || take_in_a_child() || take_one() || take_in_a_child();
}

static int fork_while_in_use(void) {
    wh_ucx_link *link;
    wherry_error error;
    if (wh_ucx_link_take(NULL, true, &link, &error) != WHERRY_OK) {
        return 1;
    }
    int got = take_in_a_child();
    wh_ucx_link_give(link);
    return got == 10 ? take_one() : 2;
}

/** If the program itself has loaded UCX, the library does not know how it uses UCX. */
static int fork_with_others(void) {
    const char *library = getenv("WHERRY_UCX_LIBRARY");
    if (!dlopen(library ? library : "libucp.so.0", RTLD_NOW)) {
        return 1;
    }
    return take_one() || take_in_a_child() != 10 || take_one();
}

static void test_forks(void **state) {
    (void)state;
    in_a_child(fork_while_idle);
    in_a_child(fork_while_in_use);
    in_a_child(fork_with_others);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_or_too_old),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_loading_leaves_the_process_as_it_was),
        cmocka_unit_test(test_forks),
    };
    return cmocka_run_group_tests(tests, create_sent, destroy_sent);
}
