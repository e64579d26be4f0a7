#include "support/process_job.h"

#include <errno.h>
#include <glob.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/point.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/meeting.h"

/** A rank that takes longer than this hangs. */
enum { PATIENCE_S = 180 * JOB_SLOW, HEARTBEAT_MS = 200, SECRET_BYTES = 17 };

/* ---- in the test ---- */

job *job_open(const char *name, int32_t size, bool tcp, uint32_t dead_after_ms) {
    job *all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    all->name = name;
    all->size = size;
    all->dead_after_ms = dead_after_ms;
    all->port = tcp ? wh_test_free_port() : 0;
    assert_true(all->port || !tcp);
    snprintf(all->folder, sizeof(all->folder), "/tmp/wherry-test-XXXXXX");
    assert_non_null(mkdtemp(all->folder));
    return all;
}

/** Switches to another user, who may still read the memory of its own processes. */
static void become(job_rank *self, uid_t user) {
    if (user && (chmod(self->job->folder, 0777) || setgroups(0, NULL) || setresgid(user, user, user) ||
                 setresuid(user, user, user) || prctl(PR_SET_DUMPABLE, 1))) {
        job_fail(self, "cannot become user %u: %s", (unsigned)user, strerror(errno));
    }
}

void job_start(job *all, int32_t rank, job_body part, const void *scene, const job_signal *plan) {
    if (plan && plan->signal == SIGKILL) {
        all->expendable[plan->victim] = true;
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        all->children[rank] = child;
        return;
    }
    alarm(PATIENCE_S);
    wherry_log_set_level(getenv("WHERRY_LOG") ? WHERRY_LOG_DEBUG : WHERRY_LOG_OFF);
    job_rank self = {.job = all, .rank = rank, .scene = scene};
    if (all->networks && setns(all->networks[rank % 2], CLONE_NEWNET) != 0) {
        job_fail(&self, "cannot enter a network namespace: %s", strerror(errno));
    }
    become(&self, all->user);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (plan) {
        job_arm_signal(all, rank, plan);
    }
    atomic_store(all->pids + rank, getpid());
    job_join(&self);
    part(&self);
    wherry_transport_destroy(self.transport);
    wherry_group_leave(self.group);
    _exit(0);
}

/**
 * Prints what went wrong, if the rank found it itself: one failure may cause others, and it is not
 * known which came first. @param tell  print it also if the rank was killed. @return true if the
 * rank ended as expected.
 */
static bool judge(const job *all, int32_t rank, int result, bool tell) {
    if ((WIFEXITED(result) && WEXITSTATUS(result) == 0) ||
        (WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL && all->expendable[rank])) {
        return true;
    }
    if (tell || WIFEXITED(result)) {
        print_error("%s: rank %d %s %d: %s\n", all->name, (int)rank,
                    WIFSIGNALED(result) ? "died of signal" : "exited with",
                    WIFSIGNALED(result) ? WTERMSIG(result) : WEXITSTATUS(result), all->failures[rank]);
    }
    return false;
}

/** After a failure, the others would wait forever. */
static void kill_rest(job *all) {
    for (int32_t rank = 0; rank < all->size; rank++) {
        if (all->children[rank]) {
            kill(all->children[rank], SIGKILL);
            all->expendable[rank] = false;
        }
    }
}

static void remove_folder(const char *folder) {
    char pattern[80];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/*", folder);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            /* Killed processes leave the names of their sockets behind. */
            unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
    rmdir(folder);
}

bool job_close(job *all) {
    bool good = true;
    uint64_t limit = wh_clock_now() + (PATIENCE_S + 5) * UINT64_C(1000000000);
    for (int32_t left = all->size; left > 0;) {
        left = 0;
        for (int32_t rank = 0; rank < all->size; rank++) {
            int result = 0;
            pid_t child = all->children[rank];
            if (child && waitpid(child, &result, WNOHANG) == child) {
                all->children[rank] = 0;
                good = judge(all, rank, result, good) && good;
            }
            left += all->children[rank] != 0;
        }
        if (left && (!good || wh_clock_now() > limit)) {
            kill_rest(all);
        }
        usleep(left ? 2000 : 0);
    }
    remove_folder(all->folder);
    munmap(all, sizeof(*all));
    return good;
}

/* ---- in a rank ---- */

void job_fail(job_rank *self, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(self->job->failures[self->rank], sizeof(self->job->failures[self->rank]), format, list);
    va_end(list);
    _exit(1);
}

void job_join(job_rank *self) {
    char address[256];
    wherry_group_options options;
    wherry_error error;
    const job *all = self->job;
    if (all->port) {
        snprintf(address, sizeof(address), "tcp://%s:%d?rank=%d&size=%d&job=job&shortcut=0",
                 all->host ? all->host : "127.0.0.1", all->port, (int)self->rank, (int)all->size);
    } else {
        snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=%d&job=job", all->folder, (int)self->rank,
                 (int)all->size);
    }
    wherry_group_options_init(&options);
    options.timeout_ms = JOB_MS;
    options.secret = "a secret for jobs";
    options.secret_size = SECRET_BYTES;
    if (all->dead_after_ms) {
        options.heartbeat_ms = HEARTBEAT_MS;
        options.dead_after_ms = all->dead_after_ms;
    }
    job_must(self, wherry_group_join(address, &options, &self->group, &error), error);
    job_must(self, wherry_transport_create(self->group, NULL, &self->transport, &error), error);
}

void job_announce(job_rank *self, int flag) {
    atomic_store(self->job->flags + flag, 1);
}

void job_await(job_rank *self, int flag) {
    uint64_t limit = wh_clock_now() + JOB_MS * UINT64_C(1000000);
    while (!atomic_load(self->job->flags + flag)) {
        job_check(self, wh_clock_now() < limit, "timed out waiting for flag %d", flag);
        usleep(500);
    }
}

void job_await_signal(job_rank *self) {
    uint64_t limit = wh_clock_now() + JOB_MS * UINT64_C(1000000);
    while (!atomic_load(&self->job->signalled_at)) {
        job_check(self, wh_clock_now() < limit, "timed out waiting for the signal: no rank passed the point");
        usleep(500);
    }
}

void job_await_asleep(job_rank *self, int32_t rank) {
    wh_await_asleep(atomic_load(self->job->pids + rank));
}

void job_send_signal(job_rank *self, int32_t rank, int signal) {
    kill(atomic_load(self->job->pids + rank), signal);
}

double job_ms_since_signal(const job *all) {
    return (double)(wh_clock_now() - atomic_load(&all->signalled_at)) * 1e-6;
}

static job *armed_job;
static job_signal plan;
static int32_t armed_self;
static atomic_int passages;

/**
 * raise() signals the calling thread, so that this process does not continue before the signal
 * arrives.
 */
static void pass(const char *name) {
    if (strcmp(name, plan.point) != 0 || atomic_fetch_add(&passages, 1) + 1 != plan.count) {
        return;
    }
    atomic_store(&armed_job->signalled_at, wh_clock_now());
    if (plan.victim == armed_self) {
        raise(plan.signal);
    } else {
        kill(atomic_load(armed_job->pids + plan.victim), plan.signal);
        wh_await_halted(atomic_load(armed_job->pids + plan.victim));
    }
}

void job_arm_signal(job *all, int32_t self, const job_signal *at) {
    armed_job = all;
    plan = *at;
    armed_self = self;
    atomic_store(&passages, 0);
    wh_point_hook = pass;
}

wherry_transfer_options job_options(const char *lane) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.timeout_ms = JOB_MS;
    options.lanes = lane;
    return options;
}

/* ---- a state ---- */

enum { LARGE = 3, SMALL_BYTES = 1000 };

static const char *const names[JOB_TENSORS] = {"embed", "body", "head", "b0",  "b1",  "b2",  "b3",  "b4",  "b5", "b6",
                                               "b7",    "b8",   "b9",   "b10", "b11", "b12", "b13", "b14", "b15"};
static const size_t large_bytes[LARGE] = {(5 << 20) + 24, 9 << 20, 3 << 20};

const char *job_tensor(size_t index, size_t *offset_p, size_t *bytes_p) {
    *offset_p = 0;
    for (size_t i = 0; i < index; i++) {
        *offset_p += i < LARGE ? large_bytes[i] : SMALL_BYTES;
    }
    *bytes_p = index < LARGE ? large_bytes[index] : SMALL_BYTES;
    return names[index];
}

job_state job_state_create(uint64_t seed) {
    job_state state = {.bytes = 0};
    size_t offset;
    size_t bytes;
    wherry_error error;
    job_tensor(JOB_TENSORS - 1, &offset, &bytes);
    state.bytes = offset + bytes;
    state.memory = mmap(NULL, state.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(state.memory != MAP_FAILED);
    uint64_t *words = (void *)state.memory; /* The memory is on its own pages, so it is aligned. */
    for (size_t i = 0; i < state.bytes / sizeof(*words); i++) {
        words[i] = (seed << 56) + i * UINT64_C(0x9E3779B97F4A7C15);
    }
    state.value = build_dict(NULL);
    for (size_t i = 0; i < JOB_TENSORS; i++) {
        wherry_storage *storage;
        const char *name = job_tensor(i, &offset, &bytes);
        int64_t shape = (int64_t)bytes;
        must(wherry_storage_wrap(state.memory + offset, bytes, wherry_device_cpu(), NULL, NULL, &storage, &error));
        must(wherry_dict_put(state.value, name, build_tensor(storage, WHERRY_U8, 0, 1, &shape, NULL), &error));
    }
    return state;
}

void job_state_destroy(job_state *state) {
    wherry_value_destroy(state->value);
    munmap(state->memory, state->bytes);
}

bool job_state_equals(const job_state *state, const wherry_value *received) {
    return wherry_value_compare(state->value, received, WHERRY_COMPARE_ALL, NULL) == WHERRY_OK;
}

bool job_probe(bool (*question)(wherry_error *error)) {
    int end = 0;
    pid_t child = fork();
    if (child == 0) {
        wherry_error error;
        bool yes = question(&error);
        if (!yes) {
            fprintf(stderr, "%s\n", error.message);
        }
        _exit(!yes);
    }
    return child > 0 && waitpid(child, &end, 0) == child && WIFEXITED(end) && WEXITSTATUS(end) == 0;
}

wherry_status job_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

/* ---- reports ---- */

/** @return the state of a tensor; -1 if the report does not name it exactly once. */
static int state_of(const wherry_report *report, const char *name) {
    int found = -1;
    int times = 0;
    for (int state = 0; state <= WHERRY_TENSOR_UNTOUCHED; state++) {
        for (size_t i = 0; i < wherry_report_count(report, (wherry_tensor_state)state); i++) {
            if (strcmp(wherry_report_path(report, (wherry_tensor_state)state, i), name) == 0) {
                found = state;
                times++;
            }
        }
    }
    return times == 1 ? found : -1;
}

void job_check_report(job_rank *self, const wherry_report *report, const wherry_error *error, const job_state *target,
                      const job_state *before, const job_state *source) {
    char figures[100];
    for (size_t i = 0; i < JOB_TENSORS; i++) {
        size_t offset;
        size_t bytes;
        const char *name = job_tensor(i, &offset, &bytes);
        int state = report ? state_of(report, name) : WHERRY_TENSOR_UNTOUCHED;
        job_check(self, state >= 0, "the report does not list %s exactly once", name);
        bool same = memcmp(target->memory + offset, before->memory + offset, bytes) == 0;
        job_check(self, same || state != WHERRY_TENSOR_UNTOUCHED, "%s was written to, but %s: %s", name,
                  report ? "the report says it was not" : "there is no report", error->message);
        bool right = !source || memcmp(target->memory + offset, source->memory + offset, bytes) == 0;
        job_check(self, right || state != WHERRY_TENSOR_COMPLETE,
                  "the report says that %s is complete, but it is not: %s", name, error->message);
    }
    if (report) {
        size_t complete = wherry_report_count(report, WHERRY_TENSOR_COMPLETE);
        snprintf(figures, sizeof(figures), "%zu tensor%s complete, %zu half written", complete,
                 complete == 1 ? "" : "s", wherry_report_count(report, WHERRY_TENSOR_PARTIAL));
        job_check(self, strstr(error->message, figures), "the error does not say \"%s\": %s", figures, error->message);
    }
}

bool job_may_fork(void) {
    if (JOB_THREAD_SANITIZER) {
        fprintf(stderr, "# forks are not tested: under TSan, the child of a process with threads cannot start any\n");
        return false;
    }
    if (JOB_ADDRESS_SANITIZER && !JOB_ADDRESS_SANITIZER_FORKS) {
        fprintf(stderr, "# forks are not tested: with this compiler, ASan's locks may hang the child\n");
        return false;
    }
    return true;
}
