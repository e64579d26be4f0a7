/**
 * @file callback_hub.h  Callback tables (wherry/group_ops.h) whose ranks are threads of one
 * process. Each rank has a socket that preserves message boundaries. Data in a rank's socket stays
 * for its next incarnation, as in a queue that outlives it.
 */
#ifndef WH_TEST_CALLBACK_HUB_H
#define WH_TEST_CALLBACK_HUB_H

#include <stdbool.h>

#include <wherry/group_ops.h>

typedef struct callback_hub callback_hub;

/** Properties of the members. */
typedef struct callback_hub_options {
    /** WHERRY_GROUP_OPS_*. Without CONCURRENT, overlapping calls fail the test. */
    uint32_t flags;
    uint64_t max_block; /**< 0: the hub's limit, CALLBACK_HUB_BLOCK_MAX. */
    /**
     * The table has put, get, finish and abandon. A block moves once both sides have started it.
     */
    bool blocks;
    uint64_t part_bytes; /**< part_bytes of the tables; if set, they also have put_runs. */
} callback_hub_options;

enum { CALLBACK_HUB_BLOCK_MAX = 64 << 10 };

/** All flags. */
enum { CALLBACK_HUB_ALL = WHERRY_GROUP_OPS_CONCURRENT | WHERRY_GROUP_OPS_DEATH };

callback_hub *callback_hub_open(int32_t size, const callback_hub_options *options);

/** All members must have left. */
void callback_hub_close(callback_hub *hub);

/**
 * A table and its context for a rank. An earlier member with that rank is cut off: its calls return
 * WHERRY_CLOSED.
 */
void *callback_hub_member(callback_hub *hub, int32_t rank, wherry_group_ops *ops_p);

/** Makes a rank die. */
void callback_hub_kill(callback_hub *hub, int32_t rank);

/** Sends a block to a rank on behalf of another. */
void callback_hub_inject(callback_hub *hub, int32_t from, int32_t to, const void *bytes, size_t size);

/** Makes a rank's send and receive return these statuses; WHERRY_OK: they work again. */
void callback_hub_break(callback_hub *hub, int32_t rank, wherry_status send, wherry_status receive);

/**
 * Makes a rank's put, get and finish return these statuses; WHERRY_OK: they work again. Operations
 * in progress are lost.
 */
void callback_hub_break_blocks(callback_hub *hub, int32_t rank, wherry_status put, wherry_status get,
                               wherry_status finish);

/** Stops blocks to a rank after `after` more; SIZE_MAX: they move again. */
void callback_hub_hold(callback_hub *hub, int32_t rank, size_t after);

/** Changes one byte in each of the next `count` blocks to a rank. */
void callback_hub_damage(callback_hub *hub, int32_t rank, size_t count);

/**
 * Makes a rank unable to cancel gets: when they are abandoned, the hub keeps their memory and the
 * table is closed. callback_hub_write_late writes to all of this memory, as a late operation would.
 * @return the number of bytes.
 */
void callback_hub_cling(callback_hub *hub, int32_t rank);
size_t callback_hub_write_late(callback_hub *hub, int32_t rank);

/**
 * Per rank: number of blocks moved to it, of its operations in progress, and of its abandoned
 * operations.
 */
size_t callback_hub_moved(callback_hub *hub, int32_t rank);
size_t callback_hub_under_way(callback_hub *hub, int32_t rank);
size_t callback_hub_abandoned(callback_hub *hub, int32_t rank);

/** Copies up to `size` bytes of the last block that a rank sent. @return its length. */
size_t callback_hub_last(callback_hub *hub, int32_t rank, void *bytes, size_t size);

#endif
