/**
 * @file group_timing.h  The timing constants of groups, each with its reason. Those of groups over
 * sockets are in the folder sockets/.
 */
#ifndef WH_GROUP_TIMING_H
#define WH_GROUP_TIMING_H

enum {
    /** The defaults of wherry_group_options. */
    WH_GROUP_JOIN_MS = 300000,
    WH_GROUP_HEARTBEAT_MS = 1000,
    WH_GROUP_DEAD_AFTER_MS = 5000,

    /** barrier: how long to wait for a message before checking whether a rank was lost. */
    WH_BARRIER_QUIET_MS = 20,

    /**
     * mailbox: how long a waiting thread pumps before it checks whether it was woken, if the group
     * has no `nudge`.
     */
    WH_MAILBOX_PUMP_MS = 5,

    /** mailbox: after a message was sent, waiting threads poll for its answer for this long. */
    WH_MAILBOX_AWAKE_NS = 200000,

    /** mailbox: if sched_yield takes this long, other threads need the processor; polling ends. */
    WH_MAILBOX_BUSY_NS = 50000,

    /**
     * callback: how long one call of a function in the table may wait. The time is short for two
     * reasons. First, without WHERRY_GROUP_OPS_CONCURRENT, all other threads wait for the call.
     * Second, if two ranks send to each other, they make progress only when one of them stops
     * sending and reads.
     */
    WH_CALLBACK_STEP_MS = 2,

    /**
     * callback: how long a rank that leaves tries to send BYE. Leaving should be fast, and the
     * others can do without BYE: their waits end at their deadlines, or earlier if the group
     * detects that a rank is lost.
     */
    WH_CALLBACK_LEAVE_MS = 100,
};

#endif
