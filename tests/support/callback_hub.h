/**
 * @file callback_hub.h  Tables for groups of one's own (wherry/group_ops.h), for tests: ranks are threads of one process, and each has
 * a socket that keeps blocks apart. What is in the socket of a rank stays there for its next incarnation, as in a queue that outlives it.
 */
#ifndef WH_TEST_CALLBACK_HUB_H
#define WH_TEST_CALLBACK_HUB_H

#include <stdbool.h>

#include <wherry/group_ops.h>

typedef struct callback_hub callback_hub;

/** What the members of a hub are like. */
typedef struct callback_hub_options {
    uint32_t flags;      /**< WHERRY_GROUP_OPS_*. Without CONCURRENT, two calls that overlap end the test. */
    uint64_t max_block;  /**< 0: the hub's own. Tables take at most CALLBACK_HUB_BLOCK_MAX. */
    bool blocks;         /**< Tables have put, get, finish and abandon. A block moves when both sides have begun it. */
    uint64_t part_bytes; /**< Of the tables; with it they have put_runs too. */
} callback_hub_options;

enum { CALLBACK_HUB_BLOCK_MAX = 64 << 10 };

/** All that a table can do by itself. */
enum { CALLBACK_HUB_ALL = WHERRY_GROUP_OPS_CONCURRENT | WHERRY_GROUP_OPS_DEATH };

callback_hub *callback_hub_open(int32_t size, const callback_hub_options *options);

/** All members have left. */
void callback_hub_close(callback_hub *hub);

/** A table and its context for a rank. One that is there already is cut off: its calls answer WHERRY_CLOSED. */
void *callback_hub_member(callback_hub *hub, int32_t rank, wherry_group_ops *ops_p);

/** A rank dies without a word. */
void callback_hub_kill(callback_hub *hub, int32_t rank);

/** Sends a block to a rank as if another had. */
void callback_hub_inject(callback_hub *hub, int32_t from, int32_t to, const void *bytes, size_t size);

/** What the next calls of a rank's send and receive answer, instead of doing anything; WHERRY_OK: they work again. */
void callback_hub_break(callback_hub *hub, int32_t rank, wherry_status send, wherry_status receive);

/** What the next calls of a rank's put, get and finish answer; WHERRY_OK: they work again. What was to be finished is gone. */
void callback_hub_break_blocks(callback_hub *hub, int32_t rank, wherry_status put, wherry_status get,
                               wherry_status finish);

/** Blocks to a rank do not move from now on, once so many more have; SIZE_MAX: they do. */
void callback_hub_hold(callback_hub *hub, int32_t rank, size_t after);

/** The next so many blocks to a rank have a byte changed on their way. */
void callback_hub_damage(callback_hub *hub, int32_t rank, size_t count);

/**
 * A rank cannot take gets back: their memory stays the hub's when they are abandoned, and its table is closed then.
 * callback_hub_write_late writes to all of it, as what could not be stopped would. @return how many bytes.
 */
void callback_hub_cling(callback_hub *hub, int32_t rank);
size_t callback_hub_write_late(callback_hub *hub, int32_t rank);

/** How many blocks have moved to a rank; how many operations of it have not met their other half; how many it has abandoned. */
size_t callback_hub_moved(callback_hub *hub, int32_t rank);
size_t callback_hub_under_way(callback_hub *hub, int32_t rank);
size_t callback_hub_abandoned(callback_hub *hub, int32_t rank);

/** The newest block that a rank has sent, at most `size` bytes of it. @return how many bytes it had. */
size_t callback_hub_last(callback_hub *hub, int32_t rank, void *bytes, size_t size);

#endif
