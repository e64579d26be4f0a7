/**
 * @file process_job.h  Ranks that are real processes, for tests in which some of them die or stop.
 *
 * A job is a group of forked processes with a meeting place of their own and some memory that all of them share. Each runs a part of the test; what it finds
 * wrong it writes down there and exits, since a failed assertion of cmocka cannot leave a child. A rank may be struck by a signal at a named point of the
 * conversation (base/point.h).
 */
#ifndef WH_TESTS_PROCESS_JOB_H
#define WH_TESTS_PROCESS_JOB_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <wherry/wherry.h>

#if defined(__SANITIZE_ADDRESS__)
#define JOB_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define JOB_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define JOB_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define JOB_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define JOB_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define JOB_THREAD_SANITIZER 0
#endif

/** Before gcc 14 and clang 17 the address sanitizer forgot its allocator's locks at a fork: what another thread held then, the child waits for without end. */
#if defined(__clang__)
#define JOB_ADDRESS_SANITIZER_FORKS (__clang_major__ >= 17)
#else
#define JOB_ADDRESS_SANITIZER_FORKS (__GNUC__ >= 14)
#endif

/** How much slower everything is under a sanitizer. */
enum { JOB_SLOW = JOB_ADDRESS_SANITIZER || JOB_THREAD_SANITIZER ? 4 : 1 };

enum { JOB_RANKS_MAX = 8, JOB_FLAGS = 16, JOB_FIGURES = 8, JOB_MS = 20000 * JOB_SLOW };

typedef struct job job;

/** One of its processes, as it sees itself. */
typedef struct job_rank {
    job *job;
    int32_t rank;
    wherry_group *group;
    wherry_transport *transport;
    const void *scene; /**< As job_start was given it. */
} job_rank;

typedef void (*job_body)(job_rank *self);

struct job {
    char folder[64];
    int port; /**< TCP; 0: a Unix socket in the folder. */
    int32_t size;
    uint32_t dead_after_ms;
    uid_t user;                         /**< Who the ranks become before they join; 0: they stay what they are. */
    const char *name;                   /**< Of the case, for messages. */
    pid_t children[JOB_RANKS_MAX];      /**< The test's own account; 0: not started, or reaped. */
    bool expendable[JOB_RANKS_MAX];     /**< May be killed by a signal. */
    _Atomic pid_t pids[JOB_RANKS_MAX];  /**< For the ranks themselves. */
    _Atomic int flags[JOB_FLAGS];       /**< What ranks say to each other, as each test numbers it. */
    _Atomic uint64_t signalled_at;      /**< When the signal was sent, by wh_clock_now; 0: it was not. */
    double figures[JOB_FIGURES];        /**< What ranks tell the test; each is written by one rank. */
    char failures[JOB_RANKS_MAX][1024]; /**< What a rank found wrong. */
};

/** A signal at a named point. */
typedef struct job_signal {
    const char *point;
    int count;      /**< At which passage, from 1 on. */
    int32_t victim; /**< Who gets it: the rank itself, or another. */
    int signal;
} job_signal;

/** @param dead_after_ms  of the group's heartbeat; 0: the default. */
job *job_open(const char *name, int32_t size, bool tcp, uint32_t dead_after_ms);

/** Starts a rank, which joins and makes a transport before its part. @param plan  NULL: none. */
void job_start(job *all, int32_t rank, job_body part, const void *scene, const job_signal *plan);

/** Waits until all have ended, kills those that have not in time, and removes the job. @return whether all went well; else it is printed. */
bool job_close(job *all);

/* ---- in a rank ---- */

/** Joins, and makes a transport; job_start has done so already. */
void job_join(job_rank *self);

/** Ends this process with a failure that the test prints. */
_Noreturn void job_fail(job_rank *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** What must hold in a rank; the rest is printf's. */
#define job_check(self, condition, ...)                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            job_fail((self), __VA_ARGS__);                                                                             \
        }                                                                                                              \
    } while (0)

/** The call, which fills `error`, must succeed. */
#define job_must(self, call, error)                                                                                    \
    do {                                                                                                               \
        wherry_status job_status = (call);                                                                             \
        job_check((self), job_status == WHERRY_OK, "%s:%d: %s: %s", __FILE__, __LINE__,                                \
                  wherry_status_name(job_status), (error).message);                                                    \
    } while (0)

void job_announce(job_rank *self, int flag);
void job_await(job_rank *self, int flag);
void job_send_signal(job_rank *self, int32_t rank, int signal);

/** Waits until all threads of a rank sleep or are stopped: asleep.h. */
void job_await_asleep(job_rank *self, int32_t rank);

/** Waits until the signal was sent. */
void job_await_signal(job_rank *self);

/** Milliseconds since the plan. */
double job_ms_since_signal(const job *all);

/** From now on, in a process that has no threads yet. Each process has one. */
void job_arm_signal(job *all, int32_t self, const job_signal *plan);

/** The defaults, with this lane and a timeout of JOB_MS. */
wherry_transfer_options job_options(const char *lane);

/* ---- a state in memory of its own ---- */

enum { JOB_TENSORS = 19 };

/** Some large tensors and some small ones, of several chunks; contents follow from a seed. */
typedef struct job_state {
    wherry_value *value;
    uint8_t *memory; /**< All tensors end to end, in pages of its own. */
    size_t bytes;
} job_state;

job_state job_state_create(uint64_t seed);
void job_state_destroy(job_state *state);

/** A tensor's name, and where it lies. */
const char *job_tensor(size_t index, size_t *offset_p, size_t *bytes_p);

/** Whether a state that was received anew is this one. */
bool job_state_equals(const job_state *state, const wherry_value *received);

/** Asks something in a process of its own, and says why where the answer is no: a driver that was used before a fork is of no use behind it. */
bool job_probe(bool (*question)(wherry_error *error));

/** In options.target_context: the target that is handed out. */
wherry_status job_target(void *context, const wherry_value **target_p);

/**
 * After a failed receive into `target`: what the report and the error say of each tensor is so.
 * @param before  what the target held.
 * @param source  what was sent; NULL: it has changed since.
 */
void job_check_report(job_rank *self, const wherry_report *report, const wherry_error *error, const job_state *target,
                      const job_state *before, const job_state *source);

/** Whether a process with threads may be forked into one that goes on; says why not where it must not. */
bool job_may_fork(void);

#endif
