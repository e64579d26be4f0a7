/**
 * @file lane_timing.h  The timing constants of the lanes, each with its reason.
 */
#ifndef WH_LANE_TIMING_H
#define WH_LANE_TIMING_H

enum {
    /**
     * blocks: the longest wait for an operation of the group between two checks for a stop request
     * and the deadline. The wait ends earlier if the operation is done.
     */
    WH_BLOCKS_WAIT_MS = 5,

    /**
     * blocks: if no_progress_ms is shorter than this, each block is a single chunk. A large block
     * shows no progress until all of it has moved. At 10 MB/s, with two blocks of 64 MiB in flight,
     * the first one takes 7 to 13 s.
     */
    WH_BLOCKS_PATIENCE_MS = 10000,

    /**
     * ring: the longest sleep of a worker between two checks for a stop request. A stop request
     * does not wake a sleeping worker, but the worker must react within 100 ms.
     */
    WH_RING_NAP_MS = 50,

    /**
     * stream: how long a system call waits before the worker checks for a stop request. The time is
     * short, because a stop request cannot interrupt the call.
     */
    WH_STREAM_SLICE_US = 20000,

    /**
     * nccl: how long the two sides may take to create a communicator. The source may have to load
     * NCCL first.
     */
    WH_NCCL_MEET_MS = 20000,

    /**
     * nccl: if the source does not answer a request for a communicator within this time, another
     * transfer may reuse the unique id of the request. A source that must load NCCL first needs
     * seconds to answer.
     */
    WH_NCCL_ASKED_S = 10,

    /**
     * nccl: the source destroys its half of a new communicator if the receiver does not use it
     * within this time.
     */
    WH_NCCL_MEETING_S = 60,

    /** nccl: do not try again for this long after a failure. Each try can take WH_NCCL_MEET_MS. */
    WH_NCCL_FAILED_S = 300,

    /** nccl: a wait for the device checks NCCL for errors at this interval. */
    WH_NCCL_LOOK_MS = 20,

    /**
     * nccl: how long to wait for a stop request after NCCL reports that the peer has failed. NCCL
     * does not report why. The conversation learns the reason from a message of the peer, or
     * notices that the peer is silent. Then it requests the stop.
     */
    WH_NCCL_REASON_MS = 600,

    /**
     * ucx: the longest sleep of a worker. The time is short, because some events of UCX do not wake
     * a sleeping worker.
     */
    WH_UCX_WAIT_MS = 20,

    /**
     * ucx: how long to wait for pending operations before closing a connection. No copy takes
     * longer than this.
     */
    WH_UCX_DRAIN_MS = 50,

    /**
     * ucx: time limit for closing a connection. If the connection was lost or had pending
     * operations, UCX gets the same time once more to clean up.
     */
    WH_UCX_CLOSE_MS = 500,

    /**
     * ucx: extra time after a time limit has passed. If this process was stopped, messages from the
     * peer may be waiting.
     */
    WH_UCX_LAST_LOOK_MS = 50,
};

#endif
