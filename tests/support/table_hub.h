/**
 * @file table_hub.h  Tables for groups of one's own (wherry/group_ops.h), for tests: ranks are threads of one process, and each has
 * a socket that keeps blocks apart. What is in the socket of a rank stays there for its next incarnation, as in a queue that outlives it.
 */
#ifndef WH_TEST_TABLE_HUB_H
#define WH_TEST_TABLE_HUB_H

#include <wherry/group_ops.h>

typedef struct table_hub table_hub;

/** What the members of a hub are like. */
typedef struct table_hub_options {
    uint32_t flags;     /**< WHERRY_GROUP_OPS_*. Without CONCURRENT, two calls that overlap end the test. */
    uint64_t max_block; /**< 0: the hub's own. Tables take at most TABLE_HUB_BLOCK_MAX. */
} table_hub_options;

enum { TABLE_HUB_BLOCK_MAX = 64 << 10 };

table_hub *table_hub_open(int32_t size, const table_hub_options *options);

/** All members have left. */
void table_hub_close(table_hub *hub);

/** A table and its context for a rank. One that is there already is cut off: its calls answer WHERRY_CLOSED. */
void *table_hub_member(table_hub *hub, int32_t rank, wherry_group_ops *ops_p);

/** A rank dies without a word. */
void table_hub_kill(table_hub *hub, int32_t rank);

/** Sends a block to a rank as if another had. */
void table_hub_inject(table_hub *hub, int32_t from, int32_t to, const void *bytes, size_t size);

/** What the next calls of a rank's send and receive answer, instead of doing anything; WHERRY_OK: they work again. */
void table_hub_break(table_hub *hub, int32_t rank, wherry_status send, wherry_status receive);

/** The newest block that a rank has sent, at most `size` bytes of it. @return how many bytes it had. */
size_t table_hub_last(table_hub *hub, int32_t rank, void *bytes, size_t size);

#endif
