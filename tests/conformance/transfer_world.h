/**
 * @file transfer_world.h  Ranks that are threads, each with a transport. Shared by the cases of the
 * transfer suite.
 */
#ifndef WH_TESTS_TRANSFER_WORLD_H
#define WH_TESTS_TRANSFER_WORLD_H

#include <pthread.h>

#include "api/group_handle.h"
#include "conformance/transfer_suite.h"
#include "lane/lanes.h"
#include "support/build.h"
#include "support/process_job.h"
#include "support/random_state.h"
#include "transfer/serve.h"

enum { FERRY_RANKS = 3, FERRY_MS = 20000 * JOB_SLOW };

typedef struct ferry_world {
    void *place;
    wh_group *groups[FERRY_RANKS];
    wherry_transport *transports[FERRY_RANKS];
} ferry_world;

/** The kind of group and the lane under test. */
extern const wh_group_kind *ferry_kind;
extern const char *ferry_lane;

ferry_world ferry_open(void);
void ferry_close(ferry_world *world);

/** Default options with a timeout of FERRY_MS and the lane of the suite. */
wherry_transfer_options ferry_options(void);

/** One call of a rank, run by its own thread. */
typedef struct ferry_call {
    wherry_transport *transport;
    int32_t ranks[FERRY_RANKS]; /**< Destinations or sources. */
    size_t count;               /**< Number of destinations; 0 for a receive. */
    /** For a receive: number of sources; 0 means one source and wherry_checkpoint_recv. */
    size_t source_count;
    /** For a receive: the transport of each source's group; NULL means `transport` for all. */
    wherry_transport *transports[FERRY_RANKS];
    const wherry_value *state; /**< For a send: the state. */
    /** For a receive: only into the target, without a returned state. */
    bool in_target;
    wherry_value *received;
    wherry_transfer_options options;
    wherry_status status;
    wherry_error error;
    wherry_outcome outcomes[FERRY_RANKS];
    wherry_stats stats;
    pthread_t thread;
} ferry_call;

ferry_call ferry_send(const ferry_world *world, int32_t from, int32_t to, const wherry_value *state);
ferry_call ferry_receive(const ferry_world *world, int32_t at, int32_t from);

/** Receives step 5 from ranks 0 and 1, at rank 2. */
ferry_call ferry_receive_from_two(const ferry_world *world);

/** Runs calls concurrently and waits for them. */
void ferry_run(ferry_call *calls, size_t count);

/** ferry_start starts one call; ferry_join waits for it. */
void ferry_start(ferry_call *call);
void ferry_join(ferry_call *call);

/**
 * Called by a thread that uses the stack of the case, when it begins and when it ends. ferry_start
 * does this by itself.
 */
void ferry_note_begin(void);
void ferry_note_end(void);

/** True once the case has ended. Threads that are held then continue. */
bool ferry_is_over(void);

/**
 * Runs cases. After a failed assertion no hook is left, held threads continue, `ferry_withdraw` is
 * requested, and the calls of the case end before the next case begins. @return the number of
 * cases that failed.
 */
int ferry_run_cases(const char *name, struct CMUnitTest *cases, size_t count);

/** What ends calls that have no time limit. Cases set it and reset it. */
extern wherry_cancel *ferry_withdraw;

/** For options.target: returns the value options.target_context. */
wherry_status ferry_target(void *context, const wherry_value **target_p);

/** Fails the test with the call's error unless it succeeded. */
void ferry_expect_ok(const ferry_call *call);

/** A dict with one tensor "w", filled from a seed. */
wherry_value *ferry_tensor(int64_t bytes, uint8_t seed);

/** `count` small tensors and one of `large` bytes, filled from a seed. */
wherry_value *ferry_state(int count, int64_t large, uint8_t seed);

/** Large enough for several chunks and workers, with many small tensors. */
wherry_value *ferry_large_state(uint8_t seed);

/**
 * Transfers a state from rank 0 to rank 1 and compares the result with what a plan predicts. @param
 * target  to receive into, or NULL. @param twin  a copy of target (NULL if that is), for the
 * prediction. @param flags  0 or WHERRY_RECV_NEW.
 */
void ferry_one(const ferry_world *world, const wherry_value *state, const wherry_value *target,
               const wherry_value *twin, uint32_t flags);

/**
 * The state that rank 1 must receive from rank 0, on the host, with shards placed as on rank 1. It
 * is stored in `target` unless that is NULL. @param flags  WHERRY_PLAN_*.
 */
wherry_value *ferry_expected(const wherry_value *source, const wherry_value *target, uint32_t flags);

/** A DTensor over ranks 10 and 11: half of it, filled from a seed. */
wherry_value *ferry_shard_of_eleven(uint8_t seed);

/**
 * More cases: options (transfer_suite_options.c), equal states (transfer_suite_same.c), several
 * sources (transfer_suite_several.c) and serving (transfer_suite_serve.c).
 */
extern const struct CMUnitTest ferry_option_cases[];
extern const size_t ferry_option_case_count;
extern const struct CMUnitTest ferry_same_cases[];
extern const size_t ferry_same_case_count;
extern const struct CMUnitTest ferry_several_cases[];
extern const size_t ferry_several_case_count;
extern const struct CMUnitTest ferry_serve_cases[];
extern const size_t ferry_serve_case_count;

#endif
