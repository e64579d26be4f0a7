/*
 * A process has no descriptor or no thread left when a transfer starts. Both sides fail, or succeed
 * more slowly. When the limit is raised again, transfers work. Also: a process that is forked from
 * one with a group and running transfers can join its own group.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/sent_state.h"

enum { SOURCE, RECEIVER, RANKS };

enum { NOBODY = 65534, DESCRIPTORS = 10, THREADS = 4, NO_PROGRESS_MS = 1000, ENOUGH_MS = 6000 * JOB_SLOW };

typedef struct scene {
    char name[100];
    const char *lane;
    int resource; /**< RLIMIT_* */
    int32_t poor; /**< The rank that has the limit. */
} scene;

/* ---- limits ---- */

/** Descriptors that fill the gaps between the numbers of the other descriptors. */
static int fillers[256];
static size_t filler_count;

/** The number of the highest descriptor. */
static int highest_descriptor(void) {
    DIR *open = opendir("/proc/self/fd");
    int highest = 0;
    for (struct dirent *entry = NULL; open && (entry = readdir(open));) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        highest = fd > highest && fd != dirfd(open) ? fd : highest;
    }
    if (open) {
        closedir(open);
    }
    return highest;
}

/**
 * RLIMIT_NOFILE limits the numbers of descriptors. So this fills the gaps below the highest one.
 * Then exactly `spare` more can be opened.
 */
static void limit_descriptors(job_rank *self, rlim_t spare) {
    int highest = highest_descriptor();
    int next = dup(0);
    for (filler_count = 0; next >= 0 && next < highest; next = dup(0)) {
        job_check(self, filler_count < sizeof(fillers) / sizeof(*fillers), "too many gaps");
        fillers[filler_count++] = next;
    }
    job_check(self, next >= 0, "no descriptor");
    close(next);
    struct rlimit limits;
    getrlimit(RLIMIT_NOFILE, &limits);
    limits.rlim_cur = (rlim_t)next + spare;
    job_check(self, setrlimit(RLIMIT_NOFILE, &limits) == 0, "no limit of descriptors");
}

/** RLIMIT_NPROC counts all threads of the user. */
static void limit_threads(job_rank *self, rlim_t spare) {
    struct rlimit limits;
    getrlimit(RLIMIT_NPROC, &limits);
    limits.rlim_cur = spare ? 3 + spare : 1;
    job_check(self, setrlimit(RLIMIT_NPROC, &limits) == 0, "no limit of threads");
}

static void impoverish(job_rank *self, rlim_t spare) {
    const scene *s = self->scene;
    if (s->poor == self->rank && s->resource == RLIMIT_NOFILE) {
        limit_descriptors(self, spare);
    } else if (s->poor == self->rank) {
        limit_threads(self, spare);
    }
}

static void enrich(job_rank *self, const struct rlimit *limits) {
    const scene *s = self->scene;
    while (filler_count) {
        close(fillers[--filler_count]);
    }
    job_check(self, setrlimit((__rlimit_resource_t)s->resource, limits) == 0, "no limit");
}

/* ---- transfers ---- */

static wherry_status transfer(job_rank *self, const wherry_transfer_options *options, wherry_error *error) {
    wherry_value *received;
    if (self->rank == SOURCE) {
        return wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, options, NULL, error);
    }
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, options, &received, error);
    if (status == WHERRY_OK) {
        job_check(self, job_state_equals(&sent, received), "the received state differs");
        wherry_value_destroy(received);
    }
    return status;
}

/** True for the statuses that a transfer may end with when a resource is exhausted. */
static bool is_fair(wherry_status status) {
    return status == WHERRY_OK || status == WHERRY_SYSTEM || status == WHERRY_NO_MEMORY || status == WHERRY_ABORTED ||
           status == WHERRY_UNSUPPORTED || status == WHERRY_TIMED_OUT || status == WHERRY_REVOKED;
}

static void be_poor(job_rank *self) {
    const scene *s = self->scene;
    struct rlimit limits;
    wherry_error error;
    wherry_transfer_options options = job_options(s->lane);
    rlim_t most = s->resource == RLIMIT_NOFILE ? DESCRIPTORS : THREADS;
    uint32_t number = 1;
    getrlimit((__rlimit_resource_t)s->resource, &limits);
    options.threads = 2;
    job_must(self, transfer(self, &options, &error), error);
    for (rlim_t spare = 0; spare <= most; spare++) {
        job_must(self, wherry_group_barrier(self->group, number++, JOB_MS, &error), error);
        options.timeout_ms = JOB_MS;
        options.no_progress_ms = NO_PROGRESS_MS * JOB_SLOW;
        impoverish(self, spare);
        uint64_t begin = wh_clock_now();
        wherry_status status = transfer(self, &options, &error);
        double ms = (double)(wh_clock_now() - begin) * 1e-6;
        enrich(self, &limits);
        job_check(self, is_fair(status), "%d to spare: %s: %s", (int)spare, wherry_status_name(status), error.message);
        job_check(self, ms < ENOUGH_MS, "%d to spare: %.0f ms: %s", (int)spare, ms,
                  status == WHERRY_OK ? "success" : error.message);
        job_must(self, wherry_group_barrier(self->group, number++, JOB_MS, &error), error);
        job_must(self, transfer(self, &options, &error), error);
    }
}

static void run_poor(scene *scenes, size_t count, uid_t user) {
    size_t failed = 0;
    for (size_t i = 0; i < count; i++) {
        scene *s = scenes + i;
        snprintf(s->name, sizeof(s->name), "no %s at the %s, %s",
                 s->resource == RLIMIT_NOFILE ? "descriptors" : "threads", s->poor == SOURCE ? "source" : "receiver",
                 s->lane ? s->lane : "any lane");
        job *all = job_open(s->name, RANKS, false, 0);
        all->user = user;
        for (int32_t rank = 0; rank < RANKS; rank++) {
            job_start(all, rank, be_poor, s, NULL);
        }
        failed += !job_close(all);
    }
    assert_int_equal(failed, 0);
}

static size_t fill(scene *scenes, int resource) {
    static const char *const lanes[] = {"cma", "ring", "stream", NULL};
    size_t count = 0;
    for (size_t i = 0; i < 4; i++) {
        for (int32_t poor = SOURCE; poor <= RECEIVER; poor++) {
            scenes[count++] = (scene){.lane = lanes[i], .resource = resource, .poor = poor};
        }
    }
    return count;
}

static void test_no_descriptors(void **state) {
    (void)state;
    scene scenes[8];
    run_poor(scenes, fill(scenes, RLIMIT_NOFILE), 0);
}

static void test_no_threads(void **state) {
    (void)state;
    scene scenes[8];
    if (geteuid() != 0) {
        fprintf(stderr, "# skipped the limit of threads: only root can switch to an idle user\n");
        return;
    }
    run_poor(scenes, fill(scenes, RLIMIT_NPROC), NOBODY);
}

/* ---- forks ---- */

enum { FORKS = 10, STOP = 0 };

/** A job per fork, in which the children of the two ranks meet. */
static job *families[FORKS];

static void *keep_busy(void *context) {
    job_rank *self = context;
    static const char *const lanes[] = {"cma", "ring", "stream"};
    for (int round = 0; !atomic_load(self->job->flags + STOP) || round % 3; round++) {
        wherry_transfer_options options = job_options(lanes[round % 3]);
        wherry_error error;
        wherry_status status = transfer(self, &options, &error);
        if (status != WHERRY_OK) {
            job_check(self, atomic_load(self->job->flags + STOP), "round %d: %s", round, error.message);
            break;
        }
    }
    return NULL;
}

/** In a child, its parent's group and transport are closed. It creates its own. */
static void be_child(const job_rank *parent, job *family) {
    job_rank self = {.job = family, .rank = parent->rank};
    wherry_error error;
    wherry_transfer_options options = job_options(NULL);
    wherry_status status = transfer((job_rank *)parent, &options, &error);
    job_check(&self, status == WHERRY_CLOSED, "the parent's transport: %s", wherry_status_name(status));
    job_join(&self);
    job_must(&self, transfer(&self, &options, &error), error);
    job_must(&self, wherry_group_barrier(self.group, 1, JOB_MS, &error), error);
    wherry_transport_destroy(self.transport);
    wherry_group_leave(self.group);
    _exit(0);
}

static void be_parent(job_rank *self) {
    pthread_t busy;
    job_check(self, pthread_create(&busy, NULL, keep_busy, self) == 0, "no thread");
    for (int i = 0; i < FORKS; i++) {
        usleep(10000 + 1777 * (unsigned)i); /* Wait, so that forks happen at different moments. */
        pid_t child = fork();
        if (child == 0) {
            alarm(60 * JOB_SLOW);
            be_child(self, families[i]);
        }
        int result = -1;
        waitpid(child, &result, 0);
        job_check(self, result == 0, "the child ended with %d: %s", result, families[i]->failures[self->rank]);
    }
    if (self->rank == SOURCE) {
        job_announce(self, STOP);
    }
    pthread_join(busy, NULL);
}

static void test_forks_join_groups_of_their_own(void **state) {
    (void)state;
    if (!job_may_fork()) {
        return;
    }
    for (int i = 0; i < FORKS; i++) {
        families[i] = job_open("a family", RANKS, false, 0);
    }
    job *all = job_open("forks", RANKS, false, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, be_parent, NULL, NULL);
    }
    bool good = job_close(all);
    for (int i = 0; i < FORKS; i++) {
        job_close(families[i]);
    }
    assert_true(good);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_no_threads),
        cmocka_unit_test(test_forks_join_groups_of_their_own),
    };
    return cmocka_run_group_tests(tests, create_sent, destroy_sent);
}
