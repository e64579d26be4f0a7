/**
 * @file ferry_processes.h  Ranks that are real processes, for tests in which some of them die or stop.
 *
 * A crowd is a group of forked processes with a meeting place of their own and some memory that all of them share. Each runs a part of the test; what it finds
 * wrong it writes down there and exits, since a failed assertion of cmocka cannot leave a child. A rank may be struck by a signal at a named point of the
 * conversation (base/point.h).
 */
#ifndef WH_TESTS_FERRY_PROCESSES_H
#define WH_TESTS_FERRY_PROCESSES_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <wherry/wherry.h>

#if defined(__SANITIZE_ADDRESS__)
#define CROWD_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define CROWD_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define CROWD_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define CROWD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define CROWD_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define CROWD_THREAD_SANITIZER 0
#endif

/** Before gcc 14 and clang 17 the address sanitizer forgot its allocator's locks at a fork: what another thread held then, the child waits for without end. */
#if defined(__clang__)
#define CROWD_ADDRESS_SANITIZER_FORKS (__clang_major__ >= 17)
#else
#define CROWD_ADDRESS_SANITIZER_FORKS (__GNUC__ >= 14)
#endif

/** How much slower everything is under a sanitizer. */
enum { CROWD_SLOW = CROWD_ADDRESS_SANITIZER || CROWD_THREAD_SANITIZER ? 4 : 1 };

enum { CROWD_RANKS_MAX = 8, CROWD_FLAGS = 16, CROWD_FIGURES = 8, CROWD_MS = 20000 * CROWD_SLOW };

typedef struct crowd crowd;

/** One of its processes, as it sees itself. */
typedef struct crowd_rank {
    crowd *crowd;
    int32_t rank;
    wherry_group *group;
    wherry_transport *transport;
    const void *scene; /**< As crowd_start was given it. */
} crowd_rank;

typedef void (*crowd_part)(crowd_rank *self);

struct crowd {
    char folder[64];
    int port; /**< TCP; 0: a Unix socket in the folder. */
    int32_t size;
    uint32_t dead_after_ms;
    uid_t user;                           /**< Who the ranks become before they join; 0: they stay what they are. */
    const char *name;                     /**< Of the case, for messages. */
    pid_t children[CROWD_RANKS_MAX];      /**< The test's own account; 0: not started, or reaped. */
    bool expendable[CROWD_RANKS_MAX];     /**< May be killed by a signal. */
    _Atomic pid_t pids[CROWD_RANKS_MAX];  /**< For the ranks themselves. */
    _Atomic int flags[CROWD_FLAGS];       /**< What ranks say to each other, as each test numbers it. */
    _Atomic uint64_t struck_at;           /**< When the signal was sent, by wh_clock_now; 0: it was not. */
    double figures[CROWD_FIGURES];        /**< What ranks tell the test; each is written by one rank. */
    char failures[CROWD_RANKS_MAX][1024]; /**< What a rank found wrong. */
};

/** A signal at a named point. */
typedef struct crowd_strike {
    const char *point;
    int count;      /**< At which passage, from 1 on. */
    int32_t victim; /**< Who gets it: the rank itself, or another. */
    int signal;
} crowd_strike;

/** @param dead_after_ms  of the group's heartbeat; 0: the default. */
crowd *crowd_open(const char *name, int32_t size, bool tcp, uint32_t dead_after_ms);

/** Starts a rank, which joins and makes a transport before its part. @param strike  NULL: none. */
void crowd_start(crowd *all, int32_t rank, crowd_part part, const void *scene, const crowd_strike *strike);

/** Waits until all have ended, kills those that have not in time, and removes the crowd. @return whether all went well; else it is printed. */
bool crowd_close(crowd *all);

/* ---- in a rank ---- */

/** Joins, and makes a transport; crowd_start has done so already. */
void crowd_join(crowd_rank *self);

/** Ends this process with a failure that the test prints. */
_Noreturn void crowd_fail(crowd_rank *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** What must hold in a rank; the rest is printf's. */
#define crowd_check(self, condition, ...)                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            crowd_fail((self), __VA_ARGS__);                                                                           \
        }                                                                                                              \
    } while (0)

/** The call, which fills `error`, must succeed. */
#define crowd_must(self, call, error)                                                                                  \
    do {                                                                                                               \
        wherry_status crowd_status = (call);                                                                           \
        crowd_check((self), crowd_status == WHERRY_OK, "%s:%d: %s: %s", __FILE__, __LINE__,                            \
                    wherry_status_name(crowd_status), (error).message);                                                \
    } while (0)

void crowd_say(crowd_rank *self, int flag);
void crowd_await(crowd_rank *self, int flag);
void crowd_signal(crowd_rank *self, int32_t rank, int signal);

/** Waits until all threads of a rank sleep or are stopped: asleep.h. */
void crowd_await_asleep(crowd_rank *self, int32_t rank);

/** Waits until the signal was sent. */
void crowd_await_strike(crowd_rank *self);

/** Milliseconds since the strike. */
double crowd_since_strike(const crowd *all);

/** From now on, in a process that has no threads yet. Each process has one. */
void crowd_strike_at(crowd *all, int32_t self, const crowd_strike *strike);

/** The defaults, with this lane and a timeout of CROWD_MS. */
wherry_transfer_options crowd_options(const char *lane);

/* ---- a state in memory of its own ---- */

enum { CROWD_TENSORS = 19 };

/** Some large tensors and some small ones, of several chunks; contents follow from a seed. */
typedef struct crowd_state {
    wherry_value *value;
    uint8_t *memory; /**< All tensors end to end, in pages of its own. */
    size_t bytes;
} crowd_state;

crowd_state crowd_state_make(uint64_t seed);
void crowd_state_destroy(crowd_state *state);

/** A tensor's name, and where it lies. */
const char *crowd_tensor(size_t index, size_t *offset_p, size_t *bytes_p);

/** Whether a state that was received anew is this one. */
bool crowd_state_is(const crowd_state *state, const wherry_value *received);

/** Asks something in a process of its own, and says why where the answer is no: a driver that was used before a fork is of no use behind it. */
bool crowd_ask(bool (*question)(wherry_error *error));

/** In options.target_context: the target that is handed out. */
wherry_status crowd_target(void *context, const wherry_value **target_p);

/**
 * After a failed receive into `target`: what the report and the error say of each tensor is so.
 * @param before  what the target held.
 * @param source  what was sent; NULL: it has changed since.
 */
void crowd_check_report(crowd_rank *self, const wherry_report *report, const wherry_error *error,
                        const crowd_state *target, const crowd_state *before, const crowd_state *source);

/** Whether a process with threads may be forked into one that goes on; says why not where it must not. */
bool crowd_may_fork(void);

#endif
