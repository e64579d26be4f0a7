/**
 * @file wherry/checkpoint.h  Sending a state to other ranks, and receiving one: the library's main
 * job.
 *
 *     source:    wherry_checkpoint_send(transport, (int32_t[]){2}, 1, state, NULL, NULL, &error);
 *     receiver:  wherry_checkpoint_recv(transport, 0, NULL, &state, &error);
 *
 * Both calls block until they have succeeded or failed. They never take longer than their timeout,
 * plus a moment to tell the other side. Several threads may use a transport at once, in both
 * directions. Each receive is paired with the oldest waiting send to its rank.
 *
 * Sections: transports, statistics and progress, options, send and receive. All since 0.1.
 */
#ifndef WHERRY_CHECKPOINT_H
#define WHERRY_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/group.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name Transports */
/** @{ */

/** Sends and receives checkpoints over a group. Opaque. */
typedef struct wherry_transport wherry_transport;

/**
 * How to create a transport. Fill it with wherry_transport_options_init, then change what you need.
 */
typedef struct wherry_transport_options {
    uint32_t struct_size; /**< sizeof(wherry_transport_options). */
    /** 0 to 65535, the same on all ranks, unique within the group. Default 0. */
    uint32_t number;
} wherry_transport_options;

/** Fills the defaults. */
WHERRY_API void wherry_transport_options_init(wherry_transport_options *options);

/**
 * Creates a transport. Does not block. Any thread.
 * @param group        borrowed until the transport is destroyed.
 * @param options      NULL for the defaults.
 * @param transport_p  the caller's. Call wherry_transport_destroy before leaving the group, when no
 *                     thread is inside a call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also if the group already has a transport with that
 * number; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_transport_create(wherry_group *group, const wherry_transport_options *options,
                                                 wherry_transport **transport_p, wherry_error *error);

/** Destroys a transport. transport may be NULL. */
WHERRY_API void wherry_transport_destroy(wherry_transport *transport);

/**
 * Lists the ranks that have asked for a checkpoint and wait for a send. Does not block. Any thread.
 * @param ranks  receives up to `capacity` ranks, ascending.
 * @return the number of waiting ranks.
 */
WHERRY_API size_t wherry_transport_waiting(wherry_transport *transport, int32_t *ranks, size_t capacity);

/**
 * Lists the available lanes. The fastest comes first, as far as that is known without a state.
 * Does not block. Any thread.
 * @return the name of lane `index`, as used in wherry_transfer_options.lanes; valid forever. NULL
 * if `index` is too large.
 */
WHERRY_API const char *wherry_transport_lane(const wherry_transport *transport, size_t index);

/** @} */
/** @name Statistics and progress */
/** @{ */

/** Bytes of wherry_stats.lane, including the final zero. */
#define WHERRY_LANE_NAME_MAX 16

/** Bytes of wherry_stats.reasons, including the final zero. */
#define WHERRY_LANE_REASONS_MAX 512

/** Bytes of wherry_stats.detail, including the final zero. */
#define WHERRY_LANE_DETAIL_MAX 160

/**
 * Bytes of wherry_skipped_lane.text, including the final zero: room for a cause and what to do
 * about it.
 */
#define WHERRY_LANE_TEXT_MAX 320

/** wherry_stats.skipped has at most this many entries. */
#define WHERRY_SKIPPED_LANES_MAX 8

/** Why a lane was not used, for programs. The values never change. */
typedef enum wherry_lane_reason {
    WHERRY_LANE_UNSUPPORTED = 0, /**< This build, this machine or this state cannot use it. */
    WHERRY_LANE_FAILED = 1,      /**< It should have worked, but did not. Worth fixing. */
    WHERRY_LANE_NOT_ALLOWED = 2, /**< wherry_transfer_options.lanes or WHERRY_LANES excludes it. */
    WHERRY_LANE_NOT_OFFERED = 3, /**< The source does not offer it. */
    WHERRY_LANE_OTHER_HOST = 4,  /**< It works within one host, and the ranks are on two. */
} wherry_lane_reason;

/** A lane that was not used. */
typedef struct wherry_skipped_lane {
    char lane[WHERRY_LANE_NAME_MAX]; /**< Its name. */
    wherry_lane_reason reason;       /**< Why, for programs. */
    char text[WHERRY_LANE_TEXT_MAX]; /**< Why, and what to do, for people. Cut if too long. */
} wherry_skipped_lane;

/** The figures of one transfer between two ranks, as seen by this side and its clock. */
typedef struct wherry_stats {
    uint32_t struct_size;   /**< sizeof(wherry_stats), filled by the library. */
    uint32_t retries;       /**< Chunks that arrived damaged and were requested again. */
    double prepare_seconds; /**< Source: preparing the state and encoding its manifest. */
    /** Receiver: from the request to the manifest. Source: until the request. */
    double offer_seconds;
    /** Receiver: decode, check, plan, choose a lane. Source: until the plan came. */
    double plan_seconds;
    /** Moving the bytes, including digests computed on the way. */
    double data_seconds;
    /** Receiver: from the last byte to the last digest. Part of data_seconds. */
    double verify_seconds;
    double release_seconds; /**< Receiver: from then until the source confirmed. */
    /** The whole call. Source: until this destination was done. */
    double total_seconds;
    uint64_t tensors;      /**< Tensors received. */
    uint64_t bytes_wanted; /**< Bytes of the requested chunks. */
    uint64_t bytes_moved;  /**< Bytes that arrived, including repeated ones. */
    uint64_t chunks;       /**< Chunks that arrived. */
    uint64_t messages;     /**< Control messages that this side sent. */
    uint32_t workers;      /**< Threads that moved bytes on this side. */
    uint32_t verified;     /**< 1 if the data was checked by digests. */
    /** The lane used; "cma+cuda_ipc" if two; "" if no byte moved. */
    char lane[WHERRY_LANE_NAME_MAX];
    /** Why others were not: "cma: Operation not permitted; ring: ...". */
    char reasons[WHERRY_LANE_REASONS_MAX];
    /** More about the lane, if any: "UCX 1.22.0 over tcp/eth0". */
    char detail[WHERRY_LANE_DETAIL_MAX];
    /** Receiver: entries of `skipped` with WHERRY_LANE_FAILED. */
    uint32_t lanes_refused;
    /** Receiver, with WHERRY_RECV_COMPARE: bytes that the target already had. */
    uint64_t bytes_held;
    double compare_seconds; /**< Receiver: finding those bytes. Part of plan_seconds. */
    uint32_t skipped_count; /**< Entries of `skipped`. */
    /** The lanes of `reasons`, one by one. */
    wherry_skipped_lane skipped[WHERRY_SKIPPED_LANES_MAX];
} wherry_stats;

/** How far a transfer is. The strings are valid only during the call. */
typedef struct wherry_progress {
    int32_t peer;     /**< The other rank. */
    uint64_t bytes;   /**< Bytes moved so far. */
    uint64_t total;   /**< Bytes to move. */
    double rate;      /**< Bytes per second since the first byte. */
    const char *path; /**< Receiver: a tensor that is arriving; "" if unknown. */
    const char *lane; /**< The lane's name; "" while the target's contents are compared. */
} wherry_progress;

/**
 * Called at most ten times per second by the thread inside the call, and once at the end. It must
 * not call back into the transport.
 */
typedef void (*wherry_progress_fn)(void *context, const wherry_progress *progress);

/** The state of a tensor after a failed receive. */
typedef enum wherry_tensor_state {
    /** All bytes arrived, but perhaps not from the same step as the others. */
    WHERRY_TENSOR_COMPLETE = 0,
    WHERRY_TENSOR_PARTIAL = 1,   /**< Half written, or possibly so: its bytes were in flight. */
    WHERRY_TENSOR_UNTOUCHED = 2, /**< Unchanged. */
} wherry_tensor_state;

/**
 * What a failed receive left behind, tensor by tensor. Opaque and immutable: any thread may read
 * it.
 */
typedef struct wherry_report wherry_report;

/** The number of tensors in a state; 0 if report is NULL. */
WHERRY_API size_t wherry_report_count(const wherry_report *report, wherry_tensor_state state);

/** The path of tensor `index` among those in a state; borrowed. NULL if `index` is too large. */
WHERRY_API const char *wherry_report_path(const wherry_report *report, wherry_tensor_state state, size_t index);

/** Destroys a report. report may be NULL. */
WHERRY_API void wherry_report_destroy(wherry_report *report);

/** In wherry_trace_event.chunk: the event is a phase, not a range of bytes. */
#define WHERRY_TRACE_PHASE UINT64_MAX

/**
 * One event of a receive: a phase, or a range of bytes that landed. The strings are valid forever.
 */
typedef struct wherry_trace_event {
    /** Phase: "offer", "plan", "compare", "data" or "release". Range: "chunk". */
    const char *name;
    const char *lane;  /**< Range: the lane that carried it. Phase: "". */
    uint64_t begin_ns; /**< CLOCK_MONOTONIC. */
    uint64_t end_ns;   /**< CLOCK_MONOTONIC. */
    uint64_t chunk;    /**< Range: the chunk's number. Phase: WHERRY_TRACE_PHASE. */
    uint64_t bytes;    /**< Range: its bytes. */
    int32_t peer;      /**< The source's rank. */
    uint32_t thread;   /**< The kernel's id of the thread that reports the event. */
} wherry_trace_event;

/**
 * Called for each range when it has landed, and for each phase when the receive ends. Worker
 * threads call it, several at once. A range that goes to a device is reported by the first worker
 * that sees it there. It must be quick and must not call the library. `wherry fetch --trace` draws
 * a picture from these events.
 */
typedef void (*wherry_trace_fn)(void *context, const wherry_trace_event *event);

/** @} */
/** @name Options */
/** @{ */

/** Whether received data is checked by digests. */
typedef enum wherry_verify {
    WHERRY_VERIFY_DEFAULT = 0, /**< If the bytes cross a network; never over `nccl`. */
    WHERRY_VERIFY_ON = 1,
    WHERRY_VERIFY_OFF = 2,
} wherry_verify;

/**
 * Provides the state to receive into.
 * @param target_p  borrowed until the receive returns. NULL: receive into new memory.
 * @return WHERRY_OK, or a status that ends the receive and becomes its result.
 */
typedef wherry_status (*wherry_target_fn)(void *context, const wherry_value **target_p);

/**
 * Inspects an offered state before anything is planned or written, and may refuse it. For bindings
 * that do not accept every object. The tensors have no memory yet.
 * @param state  borrowed during the call.
 * @return WHERRY_OK, or a status that ends the receive and becomes its result.
 */
typedef wherry_status (*wherry_inspect_fn)(void *context, const wherry_value *state);

/**
 * Inspects an offered state like wherry_inspect_fn, and provides the state to receive into. For
 * receivers that derive the target from the offer, such as one that lays out a file.
 * @param state     borrowed during the call.
 * @param target_p  borrowed until the receive returns. NULL: receive into new memory.
 * @return WHERRY_OK, or a status that ends the receive and becomes its result.
 */
typedef wherry_status (*wherry_accept_fn)(void *context, const wherry_value *state, const wherry_value **target_p);

/** Bits of wherry_transfer_options.flags. */
enum {
    WHERRY_RECV_PARTIAL = 1,    /**< As WHERRY_PLAN_PARTIAL: receive what both sides have. */
    WHERRY_RECV_ANY_DEVICE = 2, /**< As WHERRY_PLAN_ANY_DEVICE. */
    WHERRY_RECV_ANY_BOX = 4,    /**< As WHERRY_PLAN_ANY_BOX. */
    WHERRY_RECV_TO_DEVICE = 8,  /**< As WHERRY_PLAN_TO_DEVICE: new storages go to `device`. */
    /** Source: never set this process's ptracer, even if `cma` needs it. */
    WHERRY_KEEP_PTRACER = 16,
    WHERRY_RECV_NEW = 32, /**< As WHERRY_PLAN_NEW: new memory for what the target lacks. */

    /**
     * In place: the target may already hold some of the data. The receiver first asks for digests
     * and requests only the chunks that differ. Use it to resume an interrupted receive, or to
     * update a state of which little has changed.
     */
    WHERRY_RECV_COMPARE = 64,

    /**
     * Source: the device memory of this state stays allocated, so receivers may keep it open for
     * the next transfer. The promise holds per receiver, until this process ends or until a later
     * send to that receiver, of a state without that memory or without this flag, returns WHERRY_OK
     * for it. For a lost receiver it holds until its process has ended.
     */
    WHERRY_KEEPS_MEMORY = 128,

    WHERRY_TRANSFER_FLAGS = 255 /**< All flags. */
};

/** In wherry_transfer_options.step: unknown, and not checked. */
#define WHERRY_STEP_ANY (-1)

/** How to send or receive. Fill it with wherry_transfer_options_init, then change what you need. */
typedef struct wherry_transfer_options {
    uint32_t struct_size; /**< sizeof(wherry_transfer_options). */
    /** WHERRY_RECV_*, WHERRY_KEEP_PTRACER, WHERRY_KEEPS_MEMORY. Default 0. */
    uint32_t flags;
    int64_t timeout_ms; /**< For the whole call. Default 300,000. Negative: no limit. */
    /** Give up on a peer that makes no progress for this long. Default 30,000. */
    int64_t no_progress_ms;

    /**
     * The step of the state. If both sides give one and they differ, both fail. Default
     * WHERRY_STEP_ANY.
     */
    int64_t step;

    /**
     * The allowed lanes, in the order to try them: "cuda_ipc,nccl,cma,ring,ucx,blocks,stream"; or
     * all lanes except some: "^cma". Default NULL: the environment variable WHERRY_LANES, else all,
     * fastest first. The fastest is `ring` for many small tensors and for memory on small pages,
     * otherwise `cma`.
     */
    const char *lanes;

    uint32_t threads;     /**< Threads that move bytes. Default 0: one per processor, at most 8. */
    wherry_verify verify; /**< If the receiver says DEFAULT, the source's ON or OFF counts. */

    /** Receiver: the state to receive into. Default NULL: new memory. */
    wherry_target_fn target;
    void *target_context; /**< Passed to target. */
    /** Receiver: memory for new storages. Default NULL: host memory, huge pages. */
    wherry_allocate_fn allocate;
    void *allocate_context;      /**< Passed to allocate. */
    wherry_device device;        /**< Receiver, with WHERRY_RECV_TO_DEVICE. */
    wherry_progress_fn progress; /**< Default NULL. */
    void *progress_context;      /**< Passed to progress. */
    wherry_cancel *cancel;       /**< Ends the call when requested; borrowed. Default NULL. */

    /**
     * Receiver: filled unless the call returns WHERRY_INVALID_ARGUMENT. A source finds its
     * statistics in wherry_outcome. Default NULL.
     */
    wherry_stats *stats;

    /**
     * Receiver: if the call fails after the first byte, receives a report that the caller must
     * destroy; otherwise NULL. Default NULL.
     */
    wherry_report **report_p;

    /** Receiver: what a manifest may claim. Default NULL: wherry_limits_init's. */
    const wherry_limits *limits;

    /**
     * Polled by the thread inside the call, at most every 50 ms. Returning true ends the call as a
     * cancel does. It must not call back into the transport. Default NULL.
     */
    wherry_interrupt_fn interrupt;
    void *interrupt_context; /**< Passed to interrupt. */

    /**
     * This process's rank in device meshes and shard placements, if it differs from its rank in the
     * group. It decides which box of a DTensor is local, and where received shards are placed.
     * Default -1: the rank in the group.
     */
    int64_t rank;

    wherry_inspect_fn inspect; /**< Receiver: may refuse an offered state. Default NULL. */
    void *inspect_context;     /**< Passed to inspect. */

    /** Receiver: provides the target for an offer. Excludes `target`. Default NULL. */
    wherry_accept_fn accept;
    void *accept_context; /**< Passed to accept. */

    /**
     * A CUstream (cudaStream_t) of the caller. If CUDA memory is sent or received into, the call
     * first waits for everything queued on it. Work that is queued after the call, on any stream,
     * sees the received data. Default NULL: the legacy default stream of each device involved.
     */
    void *stream;

    wherry_trace_fn trace; /**< Receiver: called for each event. Default NULL. */
    void *trace_context;   /**< Passed to trace. */
} wherry_transfer_options;

/** Fills the defaults. */
WHERRY_API void wherry_transfer_options_init(wherry_transfer_options *options);

/** @} */
/** @name Send and receive */
/** @{ */

/** The result of a send for one destination. */
typedef struct wherry_outcome {
    int32_t rank;         /**< The destination. */
    wherry_status status; /**< WHERRY_OK: the receiver has the complete state. */
    wherry_error error;   /**< Filled if status is not WHERRY_OK. */
    wherry_stats stats;   /**< Of the transfer to this destination. */
} wherry_outcome;

/**
 * Sends a state to some ranks. It serves each rank that calls wherry_checkpoint_recv, until every
 * destination has succeeded or failed. A slow or dead destination neither fails nor delays the
 * others.
 *
 * While the call runs, the state and the bytes of its tensors must not change. After it has
 * returned, with any result, they may: a receiver that had not finished fails with WHERRY_REVOKED
 * and never accepts partial data.
 *
 * If a rank dies during the call, its outcome is an error at once. If a rank was already dead when
 * the call began, the call waits for it to come back, except in groups to which nobody can return,
 * such as MPI.
 *
 * @param ranks     distinct ranks of the group. The own rank is allowed if another thread receives.
 * @param state     borrowed during the call.
 * @param options   NULL for the defaults.
 * @param outcomes  NULL, or an array of `count`, filled in the order of `ranks` unless the call
 *                  returns WHERRY_INVALID_ARGUMENT.
 * @return WHERRY_OK if all destinations succeeded; otherwise the first failure in the order of
 * `ranks`. For a destination:
 *   - WHERRY_TIMED_OUT: it did not ask, or made no progress, in time. The message says "timed out".
 *   - WHERRY_CANCELLED: by options.cancel or options.interrupt.
 *   - WHERRY_PEER_LOST: it died or cannot be reached.
 *   - WHERRY_ABORTED: it gave up. The message has its reason, for example a mismatch of its target.
 *   - WHERRY_MISMATCH: the steps differ.
 *   - WHERRY_MALFORMED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: it violates the protocol.
 *   - WHERRY_NO_MEMORY, WHERRY_SYSTEM: this process lacks a resource.
 * For all destinations, before any is served:
 *   - WHERRY_UNSUPPORTED: the memory of a tensor cannot be read here.
 *   - WHERRY_LIMIT: the manifest is larger than 256 MiB.
 *   - what wherry_prepare and wherry_manifest_encode return.
 *   - WHERRY_INVALID_ARGUMENT; WHERRY_CLOSED if the group was left, or another incarnation of this
 *     rank has joined.
 */
WHERRY_API wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                                const wherry_value *state, const wherry_transfer_options *options,
                                                wherry_outcome *outcomes, wherry_error *error);

/**
 * Receives a state from a rank that sends it: into new memory, or in place if options.target or
 * options.accept provides a target. With WHERRY_RECV_NEW, tensors that the target lacks go into new
 * memory.
 *
 * If the source is dead when the call begins, the call fails at once. If the source has not joined
 * yet, the call waits. The source is asked after options.target has returned, and is told if that
 * failed. While options.accept or options.allocate runs, the source waits, for at most its own
 * no_progress_ms.
 *
 * Every check comes before the first byte is written: on a mismatch nothing is touched, and the
 * source is told. After a failure in the middle, the error says how many tensors are complete and
 * how many are half written; options.report_p lists them. A group that cannot take back a receive
 * that has begun (wherry/mpi.h) may still write to the memory later. The error then says so, and
 * the memory is never freed and must not be reused.
 *
 * @param options  NULL for the defaults.
 * @param state_p  the state; the caller's: wherry_value_destroy. In place, its tensors are views of
 * the target's storages. A tensor that the target lacks becomes none with WHERRY_RECV_PARTIAL.
 * NULL: the caller wants only the target's bytes, not the source's plain values. If both states
 * then have the same tensors, layout and plain values, the manifest is not read and nothing is
 * matched, which is faster with many tensors; options.limits does not apply. NULL without a target,
 * or with WHERRY_RECV_NEW, is WHERRY_INVALID_ARGUMENT.
 * @return WHERRY_OK; otherwise there is nothing to destroy:
 *   - WHERRY_TIMED_OUT, WHERRY_CANCELLED, WHERRY_PEER_LOST, WHERRY_CLOSED: as
 *     wherry_checkpoint_send.
 *   - WHERRY_REVOKED: the source withdrew its offer because it timed out or was cancelled. What was
 *     written is not valid.
 *   - WHERRY_ABORTED: the source gave up for another reason, which is in the message.
 *   - WHERRY_MISMATCH: target and state differ, or the steps do. The error has the path and both
 *     sides.
 *   - WHERRY_CORRUPT: a chunk arrived damaged three times. The path is that of a tensor in it.
 *   - WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: the source
 *     violates the protocol, or its memory is not where it said.
 *   - WHERRY_UNSUPPORTED: no lane reaches the source (the message has the reasons), or device
 *     memory is not available.
 *   - what wherry_manifest_decode and wherry_plan_create return for a bad manifest or a bad target;
 *     what target, inspect, accept or allocate returned.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank,
                                                const wherry_transfer_options *options, wherry_value **state_p,
                                                wherry_error *error);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
