/** @file transfer_timing.h  The timing constants of transfers, each with its reason. */
#ifndef WH_TRANSFER_TRANSFER_TIMING_H
#define WH_TRANSFER_TRANSFER_TIMING_H

enum {
    /** The defaults of wherry_transfer_options. */
    WH_CALL_TIMEOUT_MS = 300000,
    WH_CALL_NO_PROGRESS_MS = 30000,

    /** call: how long one wait may take, if no `interrupt` needs to be asked more often. */
    WH_CALL_TICK_MS = 100,

    /** call: how long a call that has failed tries to tell its peers. */
    WH_CALL_GRACE_MS = 200,

    /**
     * call: how long one step of a lane may wait if the thread inside the call runs the lane and
     * has nothing else to do. Long, because the threads of the group need the processor more.
     */
    WH_CALL_STEP_MS = 20,

    /** Both sides: how often progress is shown to the user. */
    WH_SHOW_MS = 100,

    /** session: how long the thread inside the call waits for requests if it does the work. */
    WH_SESSION_PAUSE_NS = 1000000,

    /** serve: how long a step for one of several receivers may wait, while the others wait too. */
    WH_SERVE_STEP_MS = 2,

    /** serve: how long the loop waits if messages wait in a backlog. */
    WH_SERVE_FLUSH_MS = 5,

    /** serve: how often readers are checked, even if messages keep coming. */
    WH_SERVE_TICK_NS = 50000000,

    /**
     * reader: after a lane has failed, how long to wait for the receiver's own reason, which says
     * more.
     */
    WH_READER_EXPLAIN_MS = 500,

    /**
     * reader: how long workers may take to end after the receiver has everything. What they do
     * then is short, such as waiting for the last acknowledgement. Stopping them could break the
     * group or a connection that the lane keeps for the next transfer.
     */
    WH_READER_CLOSE_MS = 5000,

    /** recv: how long to wait for the offers of further sources after the first one. */
    WH_RECV_GATHER_MS = 100,

    /**
     * recv: the same for sources that have not joined. If they joined later, their sends would
     * wait for this receive.
     */
    WH_RECV_JOIN_MS = 500,

    /** recv: how long a source may take to confirm, if others can replace it. */
    WH_RECV_CONFIRM_MS = 1000,

    /** recv: how often the sources are told the progress of the receive. */
    WH_RECV_TELL_MS = 100,

    /**
     * recv_source: after a lane has failed, how long to wait for the source's own reason, which
     * says more.
     */
    WH_SOURCE_EXPLAIN_MS = 300,

    /**
     * recv_source: how long a source that compares digests may be silent, or may accept no
     * messages, if there are other sources.
     */
    WH_SOURCE_PATIENCE_MS = 2000,

    /** recv_source: how long a session may take to end when all its chunks have come. */
    WH_SOURCE_END_MS = 1000,
};

#endif
