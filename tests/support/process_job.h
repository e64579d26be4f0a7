/**
 * @file process_job.h  Ranks that are real processes, for tests in which some of them die or stop.
 *
 * A job is a group of forked processes with its own address and some shared memory. Each rank runs
 * a function of the test. A rank that fails writes a message into the shared memory and exits,
 * because cmocka's assertions do not work in a child. A rank can get a signal at a named point
 * (base/point.h).
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

/**
 * Before gcc 14 and clang 17, the address sanitizer did not handle its allocator's locks at a fork:
 * if another thread held one, the child hangs.
 */
#if defined(__clang__)
#define JOB_ADDRESS_SANITIZER_FORKS (__clang_major__ >= 17)
#else
#define JOB_ADDRESS_SANITIZER_FORKS (__GNUC__ >= 14)
#endif

/** Factor for time limits under a sanitizer. */
enum { JOB_SLOW = JOB_ADDRESS_SANITIZER || JOB_THREAD_SANITIZER ? 4 : 1 };

enum { JOB_RANKS_MAX = 8, JOB_FLAGS = 16, JOB_FIGURES = 8, JOB_MS = 20000 * JOB_SLOW };

typedef struct job job;

/** A rank, in its own process. */
typedef struct job_rank {
    job *job;
    int32_t rank;
    wherry_group *group;
    wherry_transport *transport;
    const void *scene; /**< The argument of job_start. */
} job_rank;

typedef void (*job_body)(job_rank *self);

struct job {
    char folder[64];
    int port;         /**< Port of TCP; 0: a Unix socket in the folder. */
    const char *host; /**< The host of rank 0, over TCP; NULL: 127.0.0.1. */
    /** Two network namespaces: even ranks are in the first, odd ranks in the second; NULL: none. */
    const int *networks;
    int32_t size;
    uint32_t dead_after_ms;
    /** User that the ranks switch to before they join; 0: none. */
    uid_t user;
    const char *name; /**< Name of the case, for messages. */
    /** The rank's process, for the test; 0: not started, or reaped. */
    pid_t children[JOB_RANKS_MAX];
    bool expendable[JOB_RANKS_MAX];    /**< True if the rank may be killed by a signal. */
    _Atomic pid_t pids[JOB_RANKS_MAX]; /**< The rank's process, for the other ranks. */
    /** Flags set by job_announce; each test numbers its own. */
    _Atomic int flags[JOB_FLAGS];
    _Atomic uint64_t signalled_at;      /**< When the signal was sent (wh_clock_now); 0: not yet. */
    double figures[JOB_FIGURES];        /**< Figures for the test. Each is written by one rank. */
    char failures[JOB_RANKS_MAX][1024]; /**< The message of a rank that failed. */
};

/** A signal at a named point. */
typedef struct job_signal {
    const char *point;
    int count;      /**< The pass at which the signal is sent, counted from 1. */
    int32_t victim; /**< The rank that gets the signal: this one or another. */
    int signal;
} job_signal;

/** Creates a job. @param dead_after_ms  of the group's heartbeat; 0: the default. */
job *job_open(const char *name, int32_t size, bool tcp, uint32_t dead_after_ms);

/**
 * Starts a rank, which joins and creates a transport before `part` runs. @param plan  a signal, or
 * NULL.
 */
void job_start(job *all, int32_t rank, job_body part, const void *scene, const job_signal *plan);

/**
 * Waits for all ranks, kills those that take too long, and frees the job. @return true if all ranks
 * succeeded; else prints why.
 */
bool job_close(job *all);

/* ---- in a rank ---- */

/** Joins and creates a transport again; job_start has done it once. */
void job_join(job_rank *self);

/** Ends this rank with a message that the test prints. */
_Noreturn void job_fail(job_rank *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Fails the rank unless the condition is true; the other arguments are those of printf. */
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

/** Milliseconds since the signal was sent. */
double job_ms_since_signal(const job *all);

/** Arms the signal in a process without threads. One per process. */
void job_arm_signal(job *all, int32_t self, const job_signal *plan);

/** Default options with this lane and a timeout of JOB_MS. */
wherry_transfer_options job_options(const char *lane);

/* ---- a state ---- */

enum { JOB_TENSORS = 19 };

/** Large and small tensors in several chunks, filled from a seed. */
typedef struct job_state {
    wherry_value *value;
    uint8_t *memory; /**< All tensors, one after the other, on their own pages. */
    size_t bytes;
} job_state;

job_state job_state_create(uint64_t seed);
void job_state_destroy(job_state *state);

/** A tensor's name and its position. */
const char *job_tensor(size_t index, size_t *offset_p, size_t *bytes_p);

/** True if a received value equals this state. */
bool job_state_equals(const job_state *state, const wherry_value *received);

/**
 * Calls a function in a child and prints the error if it returns false. A CUDA driver that was used
 * before a fork does not work after it.
 */
bool job_probe(bool (*question)(wherry_error *error));

/** For options.target: returns the value options.target_context. */
wherry_status job_target(void *context, const wherry_value **target_p);

/**
 * After a failed receive into `target`: checks that the report and the error are true for each
 * tensor. @param before  what the target held. @param source  what was sent; NULL if it has changed
 * since.
 */
void job_check_report(job_rank *self, const wherry_report *report, const wherry_error *error, const job_state *target,
                      const job_state *before, const job_state *source);

/** True if a process with threads can be forked and continue; else prints why not. */
bool job_may_fork(void);

#endif
