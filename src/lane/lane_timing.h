/**
 * @file lane_timing.h  The timing constants of the lanes, each with its reason. Those of `ucx` are
 * in its own folder.
 */
#ifndef WH_LANE_TIMING_H
#define WH_LANE_TIMING_H

enum {
    /**
     * blocks: how long a worker waits for the group before it checks stop and deadline. The group
     * wakes it sooner.
     */
    WH_BLOCKS_WAIT_MS = 5,

    /**
     * blocks: if a silent peer is given up sooner than this, blocks are single chunks. A block is
     * silent until all of it has moved: at 10 MB/s, with two blocks of 64 MiB under way, the first
     * takes 6 to 13 s.
     */
    WH_BLOCKS_PATIENCE_MS = 10000,

    /**
     * blocks: a source's worker may still have to complete sends when the receiver has everything.
     */
    WH_BLOCKS_FINISH_MS = 5000,

    /**
     * ring: nothing wakes a sleeping worker when the stop is requested, which a worker must notice
     * within 100 ms.
     */
    WH_RING_NAP_MS = 50,

    /**
     * stream: how long a system call waits before the worker checks the stop. Short, because a stop
     * cannot end it.
     */
    WH_STREAM_SLICE_US = 20000,

    /**
     * nccl: how long the two sides may take to find each other. The source may have to load NCCL
     * first.
     */
    WH_NCCL_MEET_MS = 20000,

    /**
     * nccl: after this, another transfer may reuse the unique id of a request that nobody came back
     * to. A source that has to load NCCL first takes seconds to answer.
     */
    WH_NCCL_ASKED_S = 10,

    /**
     * nccl: a source's half of a communicator is destroyed if the receiver has not come by then.
     */
    WH_NCCL_MEETING_S = 60,

    /** nccl: how long a failure is remembered. Each try may cost WH_NCCL_MEET_MS. */
    WH_NCCL_FAILED_S = 300,

    /**
     * nccl: as WH_BLOCKS_FINISH_MS. A communicator that is aborted instead is lost for the next
     * transfer.
     */
    WH_NCCL_FINISH_MS = 5000,

    /** nccl: how often a wait for the device checks NCCL for errors. */
    WH_NCCL_LOOK_MS = 20,

    /**
     * nccl: NCCL only knows that the peer has given up. The conversation learns why within the
     * silence limit of its messages, and then requests the stop.
     */
    WH_NCCL_REASON_MS = 600,
};

#endif
