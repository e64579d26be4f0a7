/**
 * @file wherry/checkpoint.h  Sends a state to other ranks and receives one.
 *
 *     source:    wherry_checkpoint_send(transport, (int32_t[]){2}, 1, state, NULL, NULL, &error);
 *     receiver:  wherry_checkpoint_recv(transport, 0, NULL, &state, &error);
 *
 * Both calls block until they have succeeded or failed. They never take longer than their timeout,
 * plus a short time to tell the other side. Several threads may use a transport at the same time,
 * in both directions. Each receive is paired with the oldest waiting send to its rank.
 *
 * Available since version 0.1.
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

/** Options of a transport. Initialize them with wherry_transport_options_init. */
typedef struct wherry_transport_options {
    uint32_t struct_size; /**< sizeof(wherry_transport_options). */
    /** 0 to 65535. Transports of one group differ in it; all ranks use the same. Default 0. */
    uint32_t number;
} wherry_transport_options;

/** Fills in the defaults. */
WHERRY_API void wherry_transport_options_init(wherry_transport_options *options);

/**
 * Creates a transport. Does not block. Any thread may call this.
 * @param group        borrowed until the transport is destroyed.
 * @param options      NULL for the defaults.
 * @param transport_p  owned by the caller. Destroy it with wherry_transport_destroy before leaving
 *                     the group, when no thread is inside a call of the transport.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also if the group already has a transport with that
 * number; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_transport_create(wherry_group *group, const wherry_transport_options *options,
                                                 wherry_transport **transport_p, wherry_error *error);

/** Destroys a transport, or NULL. Does not block. No thread may be inside a call of it. */
WHERRY_API void wherry_transport_destroy(wherry_transport *transport);

/**
 * Lists the ranks that have asked for a checkpoint and wait for a send. Does not block. Any thread
 * may call this.
 * @param ranks  receives up to `capacity` ranks in ascending order.
 * @return the number of waiting ranks, which may be larger than `capacity`.
 */
WHERRY_API size_t wherry_transport_waiting(wherry_transport *transport, int32_t *ranks, size_t capacity);

/**
 * Lists the available lanes, the fastest first. The order may be different for a given state. Does
 * not block. Any thread may call this.
 * @return the name of lane number `index`, as wherry_transfer_options.lanes uses it; NULL if
 * `index` is too large. The text is valid forever.
 */
WHERRY_API const char *wherry_transport_lane(const wherry_transport *transport, size_t index);

/** @} */
/** @name Statistics and progress */
/** @{ */

/** Size of wherry_stats.lane in bytes, including the final zero. */
#define WHERRY_LANE_NAME_MAX 16

/** Size of wherry_stats.reasons in bytes, including the final zero. */
#define WHERRY_LANE_REASONS_MAX 512

/** Size of wherry_stats.detail in bytes, including the final zero. */
#define WHERRY_LANE_DETAIL_MAX 160

/** Size of wherry_skipped_lane.text in bytes, including the final zero. */
#define WHERRY_LANE_TEXT_MAX 320

/** wherry_stats.skipped has at most this many entries. */
#define WHERRY_SKIPPED_LANES_MAX 8

/** Why a lane was not used, as a code for programs. The values never change. */
typedef enum wherry_lane_reason {
    /** The lane does not work with this build, on this machine or for this state. */
    WHERRY_LANE_UNSUPPORTED = 0,
    /** The lane should have worked but failed. The cause is worth fixing. */
    WHERRY_LANE_FAILED = 1,
    /** wherry_transfer_options.lanes or WHERRY_LANES excludes the lane. */
    WHERRY_LANE_NOT_ALLOWED = 2,
    WHERRY_LANE_NOT_OFFERED = 3, /**< The source does not offer the lane. */
    /** The lane works only within one host, and the ranks are on two hosts. */
    WHERRY_LANE_OTHER_HOST = 4,
} wherry_lane_reason;

/** A lane that was not used. */
typedef struct wherry_skipped_lane {
    char lane[WHERRY_LANE_NAME_MAX]; /**< Name of the lane. */
    wherry_lane_reason reason;       /**< Why it was not used, as a code for programs. */
    /** Why it was not used and what to do, as text. Truncated if too long. */
    char text[WHERRY_LANE_TEXT_MAX];
} wherry_skipped_lane;

/** The most sources of one receive. */
#define WHERRY_SOURCES_MAX 32

/** Size of wherry_source_stats.reason in bytes, including the final zero. */
#define WHERRY_SOURCE_REASON_MAX 160

/** One source of a receive. */
typedef struct wherry_source_stats {
    int32_t rank; /**< The source. */
    /**
     * WHERRY_OK if the source was used to the end, or was not needed. Otherwise why the receive
     * went on without it, or failed.
     */
    wherry_status status;
    uint64_t bytes;  /**< Bytes that arrived from it. */
    uint64_t chunks; /**< Chunks of the received state that came from it. */
    /** Bytes per second while it had something to send; 0 if it sent nothing. */
    double rate;
    char lane[WHERRY_LANE_NAME_MAX];       /**< The lane that was used last; "" if none was. */
    char reason[WHERRY_SOURCE_REASON_MAX]; /**< The text for `status`; "" if it is WHERRY_OK. */
} wherry_source_stats;

/** Statistics of one transfer, measured on this side with its own clock. */
typedef struct wherry_stats {
    uint32_t struct_size;   /**< sizeof(wherry_stats), filled by the library. */
    uint32_t retries;       /**< Chunks that arrived damaged and were requested again. */
    double prepare_seconds; /**< Source: time to prepare the state and encode its manifest. */
    /**
     * Receiver: from sending the request to having the manifest. Source: from the start of the call
     * to the arrival of the request.
     */
    double offer_seconds;
    /**
     * Receiver: time to decode, check, plan and choose a lane. Source: from the arrival of the
     * request to the arrival of the plan.
     */
    double plan_seconds;
    double data_seconds; /**< Time to move the bytes, and to compute digests at the same time. */
    /** Receiver: time from the last byte to the last digest. Part of data_seconds. */
    double check_seconds;
    /** Receiver: time from the last digest until the source has confirmed the end. */
    double release_seconds;
    /** Time of the whole call. Source: time until this destination was done. */
    double total_seconds;
    uint64_t tensors;      /**< Number of tensors received. */
    uint64_t bytes_wanted; /**< Total size of the requested chunks. */
    uint64_t bytes_moved;  /**< Bytes that arrived. Bytes that arrived twice count twice. */
    uint64_t chunks;       /**< Number of chunks that arrived. */
    uint64_t messages;     /**< Number of control messages that this side sent. */
    uint32_t workers;      /**< Number of threads that moved bytes on this side. */
    uint32_t checked;      /**< 1 if the data was checked: by digests, or by encryption. */
    /** The lane that was used; "cma+cuda_ipc" if two were used; "" if no byte moved. */
    char lane[WHERRY_LANE_NAME_MAX];
    /** Why other lanes were not used: "cma: Operation not permitted; ring: ...". */
    char reasons[WHERRY_LANE_REASONS_MAX];
    /** Details about the lane, such as "UCX 1.22.0 over tcp/eth0"; "" if there are none. */
    char detail[WHERRY_LANE_DETAIL_MAX];
    /** Receiver: number of entries of `skipped` with WHERRY_LANE_FAILED. */
    uint32_t lanes_failed;
    /** Receiver, with WHERRY_RECV_COMPARE: bytes that the target already had. */
    uint64_t bytes_held;
    double compare_seconds; /**< Receiver: time to find those bytes. Part of plan_seconds. */
    uint32_t skipped_count; /**< Number of entries of `skipped`. */
    /** The lanes that `reasons` lists, one entry per lane. */
    wherry_skipped_lane skipped[WHERRY_SKIPPED_LANES_MAX];
    /** Receiver: 1 if all data was encrypted on its way. 0 for lanes that stay on one host. */
    uint32_t verified;
    uint32_t source_count; /**< Receiver: number of entries of `sources`. */
    /** Receiver: its sources, in the order in which the caller named them. */
    wherry_source_stats sources[WHERRY_SOURCES_MAX];
} wherry_stats;

/** The progress of a transfer. The strings are valid only while wherry_progress_fn runs. */
typedef struct wherry_progress {
    int32_t peer;     /**< The other rank. */
    uint64_t bytes;   /**< Bytes moved so far. */
    uint64_t total;   /**< Bytes to move. */
    double rate;      /**< Bytes per second since the first byte. */
    const char *path; /**< Receiver: path of a tensor that is arriving; "" if unknown. */
    /** The lane's name; "" while the receiver compares the target's data with the source's. */
    const char *lane;
} wherry_progress;

/**
 * Reports progress. The thread inside the send or receive runs this function at most ten times per
 * second, and once at the end. The function must not call the transport.
 */
typedef void (*wherry_progress_fn)(void *context, const wherry_progress *progress);

/** The state of a tensor after a failed receive. */
typedef enum wherry_tensor_state {
    /** All of its bytes arrived, but other tensors may be from another step. */
    WHERRY_TENSOR_COMPLETE = 0,
    WHERRY_TENSOR_PARTIAL = 1,   /**< Possibly half written: its bytes were in flight. */
    WHERRY_TENSOR_UNTOUCHED = 2, /**< Unchanged. */
} wherry_tensor_state;

/** What a failed receive has written, tensor by tensor. Opaque. Any thread may read it. */
typedef struct wherry_report wherry_report;

/** The number of tensors that are in this state; 0 if report is NULL. */
WHERRY_API size_t wherry_report_count(const wherry_report *report, wherry_tensor_state state);

/** The path of tensor `index` of those in this state, borrowed; NULL if `index` is too large. */
WHERRY_API const char *wherry_report_path(const wherry_report *report, wherry_tensor_state state, size_t index);

/** Destroys a report. report may be NULL. */
WHERRY_API void wherry_report_destroy(wherry_report *report);

/** Value of wherry_trace_event.chunk for an event that is a phase, not a range of bytes. */
#define WHERRY_TRACE_PHASE UINT64_MAX

/** One event of a receive: a phase, or a range that arrived. The strings are valid forever. */
typedef struct wherry_trace_event {
    /** Phase: "offer", "plan", "compare", "data" or "release". Range: "chunk". */
    const char *name;
    const char *lane;  /**< Range: the lane that carried it. Phase: "". */
    uint64_t begin_ns; /**< CLOCK_MONOTONIC. */
    uint64_t end_ns;   /**< CLOCK_MONOTONIC. */
    uint64_t chunk;    /**< Range: the chunk's number. Phase: WHERRY_TRACE_PHASE. */
    uint64_t bytes;    /**< Range: its length in bytes. */
    int32_t peer;      /**< The source's rank. */
    uint32_t thread;   /**< The kernel's id of the thread that reports the event. */
} wherry_trace_event;

/**
 * Receives one event: each range when it has arrived, and each phase when the receive ends. Several
 * threads may call the function at once. It must be quick, and must not call the library.
 * `wherry fetch --trace` draws these events.
 */
typedef void (*wherry_trace_fn)(void *context, const wherry_trace_event *event);

/** @} */
/** @name Options */
/** @{ */

/** Whether received data is checked against digests. */
typedef enum wherry_verify {
    WHERRY_VERIFY_DEFAULT = 0, /**< Checked if the bytes cross a network, but never over `nccl`. */
    WHERRY_VERIFY_ON = 1,      /**< Always checked. */
    WHERRY_VERIFY_OFF = 2,     /**< Never checked. */
    /**
     * Receiver: always checked, and with several sources also compared: the receive fails if the
     * bytes of two sources differ. Device memory is not compared.
     */
    WHERRY_VERIFY_ALL = 3,
} wherry_verify;

/** What a receive from several sources does if one of them is absent, late or lost. */
typedef enum wherry_require {
    WHERRY_REQUIRE_ANY = 0, /**< Go on with the others. */
    WHERRY_REQUIRE_ALL = 1, /**< Fail. */
} wherry_require;

/**
 * Provides the state to receive into. The thread inside the receive calls it once, without a lock.
 * It may block, but must not use the transport.
 * @param target_p  borrowed until the receive returns. NULL to receive into new memory.
 * @return WHERRY_OK, or a status that ends the receive and becomes its result.
 */
typedef wherry_status (*wherry_target_fn)(void *context, const wherry_value **target_p);

/**
 * Inspects an offered state before anything is planned or written, and may refuse it. The tensors
 * have no memory yet. Called like wherry_target_fn.
 * @param state  borrowed during the call.
 * @return WHERRY_OK, or a status that ends the receive and becomes its result.
 */
typedef wherry_status (*wherry_inspect_fn)(void *context, const wherry_value *state);

/** wherry_inspect_fn and wherry_target_fn in one, for a target that depends on the offer. */
typedef wherry_status (*wherry_accept_fn)(void *context, const wherry_value *state, const wherry_value **target_p);

/**
 * Says whether the state is unchanged, for memory that others can change, such as a mapped file.
 * The thread inside the send asks before it tells a receiver that what it has read is valid.
 * @return WHERRY_OK; any other status revokes the offer to this receiver and is its outcome.
 */
typedef wherry_status (*wherry_check_fn)(void *context, wherry_error *error);

/** Bits of wherry_transfer_options.flags. */
enum {
    WHERRY_RECV_PARTIAL = 1,    /**< Like WHERRY_PLAN_PARTIAL: receive what both sides have. */
    WHERRY_RECV_ANY_DEVICE = 2, /**< Like WHERRY_PLAN_ANY_DEVICE. */
    WHERRY_RECV_ANY_BOX = 4,    /**< Like WHERRY_PLAN_ANY_BOX. */
    WHERRY_RECV_TO_DEVICE = 8,  /**< Like WHERRY_PLAN_TO_DEVICE: new storages go to `device`. */
    /**
     * Source: never change which process may trace this one (PR_SET_PTRACER), even if the `cma`
     * lane needs it.
     */
    WHERRY_SEND_NO_PTRACER = 16,
    WHERRY_RECV_NEW = 32, /**< Like WHERRY_PLAN_NEW: new memory for what the target lacks. */

    /**
     * Receiver, in place: asks for digests first, and requests only the chunks that differ. Use
     * this to resume an interrupted receive, or to update a state that has changed little.
     */
    WHERRY_RECV_COMPARE = 64,

    /**
     * Source: promises that the device memory of this state stays allocated, so that receivers may
     * keep it open for the next transfer. The promise to a receiver ends when its process or this
     * one ends, or when a later send to it succeeds without this flag or without that memory.
     * Losing the connection to a receiver does not end it.
     */
    WHERRY_SEND_MEMORY_STAYS = 128,

    /** Source: a rank that is lost when the call begins is an error at once. */
    WHERRY_SEND_PRESENT = 256,

    WHERRY_TRANSFER_FLAGS = 511 /**< All flags. */
};

/** Value of wherry_transfer_options.step if the step is unknown. The step is then not checked. */
#define WHERRY_STEP_ANY (-1)

/** Options of a send or a receive. Initialize them with wherry_transfer_options_init. */
typedef struct wherry_transfer_options {
    uint32_t struct_size; /**< sizeof(wherry_transfer_options). */
    /** Any of WHERRY_RECV_* or WHERRY_SEND_*. Default 0. */
    uint32_t flags;
    /** Time limit for the whole call. Default 300,000. A negative value means no limit. */
    int64_t timeout_ms;
    /** Give up on a peer that makes no progress for this long. Default 30,000. */
    int64_t no_progress_ms;

    /** The training step. If both sides give one, they must be equal. Default WHERRY_STEP_ANY. */
    int64_t step;

    /**
     * The allowed lanes, in the order to try them: "cuda_ipc,nccl,cma,ring,ucx,blocks,stream"; or
     * all lanes except some: "^cma". Default NULL: the environment variable WHERRY_LANES decides;
     * without it, all lanes are allowed, fastest first. Within a host, `ring` comes first for many
     * small tensors and for memory on small pages, otherwise `cma`.
     */
    const char *lanes;

    /** Number of threads that move bytes. Default 0: one per CPU, at most 8. */
    uint32_t threads;
    /**
     * Whether to check the data. The receiver's value applies. If it is DEFAULT, the source's value
     * applies.
     */
    wherry_verify verify;

    /** Receiver: provides the state to receive into. Default NULL: receive into new memory. */
    wherry_target_fn target;
    void *target_context; /**< Passed to target. */
    /**
     * Receiver: provides memory for new storages. Default NULL: wherry_storage_allocate, on the
     * source's kind of device, or on `device` with WHERRY_RECV_TO_DEVICE.
     */
    wherry_allocate_fn allocate;
    void *allocate_context;      /**< Passed to allocate. */
    wherry_device device;        /**< Receiver: the device for WHERRY_RECV_TO_DEVICE. */
    wherry_progress_fn progress; /**< Reports progress. Default NULL. */
    void *progress_context;      /**< Passed to progress. */
    /**
     * Lets another thread end the call, by calling wherry_cancel_request with this object.
     * Borrowed. Default NULL: the call cannot be cancelled in this way.
     */
    wherry_cancel *cancel;

    /**
     * Receiver: receives the statistics, unless the call returns WHERRY_INVALID_ARGUMENT. A source
     * finds its statistics in wherry_outcome. Default NULL.
     */
    wherry_stats *stats;

    /**
     * Receiver: becomes a report, which the caller must destroy, if the call fails after the first
     * byte; otherwise NULL. Default NULL.
     */
    wherry_report **report_p;

    /** Receiver: limits for the manifest. Default NULL: those of wherry_limits_init. */
    const wherry_limits *limits;

    /**
     * The thread inside the call runs this function at most every 50 ms. If the function returns
     * true, the call ends as after a cancel. The function must not call the transport. Default
     * NULL.
     */
    wherry_interrupt_fn interrupt;
    void *interrupt_context; /**< Passed to interrupt. */

    /**
     * The rank of this process in device meshes and shard places, if it differs from its rank in
     * the group. It decides which box of a DTensor is local, and is stored as the rank in the
     * places of received shards. Default -1: the rank in the group.
     */
    int64_t rank;

    wherry_inspect_fn inspect; /**< Receiver: may refuse an offered state. Default NULL. */
    void *inspect_context;     /**< Passed to inspect. */

    /**
     * Receiver: provides the target for an offer. Cannot be combined with `target`. Default NULL.
     */
    wherry_accept_fn accept;
    void *accept_context; /**< Passed to accept. */

    /**
     * A CUstream (cudaStream_t) of the caller. If the call sends CUDA memory or receives into it,
     * the call first waits for all work that is queued on this stream. Work that the caller queues
     * after the call, on any stream, sees the received data. Default NULL: the legacy default
     * stream of each device that is involved.
     */
    void *stream;

    wherry_trace_fn trace; /**< Receiver: called for each event. Default NULL. */
    void *trace_context;   /**< Passed to trace. */
    /** Receiver, with several sources: which of them must take part. Default WHERRY_REQUIRE_ANY. */
    wherry_require require;
    wherry_check_fn check; /**< Source: says whether the state is unchanged. Default NULL. */
    void *check_context;   /**< Passed to check. */
} wherry_transfer_options;

/** Fills in the defaults. */
WHERRY_API void wherry_transfer_options_init(wherry_transfer_options *options);

/** @} */
/** @name Send and receive */
/** @{ */

/** The result of a send for one destination. */
typedef struct wherry_outcome {
    int32_t rank;         /**< The destination. */
    wherry_status status; /**< WHERRY_OK: the receiver has the complete state. */
    wherry_error error;   /**< Valid only if status is not WHERRY_OK. */
    wherry_stats stats;   /**< Statistics of the transfer to this destination. */
    /**
     * 1 if the receiver took nothing from this source, because other sources had sent it
     * everything. The status is WHERRY_OK then.
     */
    uint32_t not_needed;
} wherry_outcome;

/**
 * Sends a state to some ranks. Each rank receives the state when it calls wherry_checkpoint_recv.
 * The call returns when every destination has succeeded or failed. If a destination is slow or
 * dead, the transfers to the others still succeed and are not delayed.
 *
 * The state and the bytes of its tensors must not change until the call returns. A receiver that
 * has not finished by then fails with WHERRY_REVOKED and never accepts partial data.
 *
 * If a rank dies during the call, its outcome is an error at once. If it was already dead when the
 * call began, the call waits until it is back, except with WHERRY_SEND_PRESENT and in groups that
 * it cannot join again (MPI).
 *
 * @param ranks     different ranks of the group, also this one if another thread receives.
 * @param state     borrowed during the call.
 * @param options   NULL for the defaults.
 * @param outcomes  NULL, or an array of `count` outcomes. It is filled in the order of `ranks`,
 *                  unless the call returns WHERRY_INVALID_ARGUMENT.
 * @return WHERRY_OK if all destinations succeeded; otherwise the first failure in the order of
 * `ranks`. A destination can fail with:
 *   - WHERRY_TIMED_OUT: it did not ask, or made no progress, in time.
 *   - WHERRY_CANCELLED: options.cancel or options.interrupt ended the call.
 *   - WHERRY_PEER_LOST: it died or cannot be reached. WHERRY_MISMATCH: the steps differ.
 *   - WHERRY_ABORTED: it gave up. The message has its reason, for example a mismatch of its target.
 *   - WHERRY_MALFORMED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: it violates the protocol.
 *   - WHERRY_NO_MEMORY, WHERRY_SYSTEM: this process lacks a resource.
 *   - any status that options.check returned. The receiver fails with WHERRY_REVOKED.
 * The whole call can fail, before any destination is served, with:
 *   - WHERRY_UNSUPPORTED: the memory of a tensor cannot be read here.
 *   - WHERRY_LIMIT: the manifest, plus 8 bytes per storage, is larger than 254 MiB.
 *   - the errors of wherry_prepare and wherry_manifest_encode.
 *   - WHERRY_INVALID_ARGUMENT; WHERRY_CLOSED if this process has left the group, or if a newer
 *     process has joined as this rank.
 */
WHERRY_API wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                                const wherry_value *state, const wherry_transfer_options *options,
                                                wherry_outcome *outcomes, wherry_error *error);

/** Learns how the transfer to one receiver has ended. The thread inside the call runs it. */
typedef void (*wherry_served_fn)(void *context, const wherry_outcome *outcome);

/**
 * Sends a state to every rank that asks for one, as often as it does, until the state is withdrawn.
 * Prepares the state once. As for wherry_checkpoint_send, the state must not change until the call
 * returns, and no receiver delays another. options.timeout_ms limits each transfer, from the
 * receiver's question on; the call has no limit.
 *
 * @param state     borrowed during the call.
 * @param withdraw  a request to this handle ends the call: it takes no more receivers, and returns
 *                  when the running transfers have ended. options.cancel ends them too, with
 *                  WHERRY_REVOKED at their receivers. Borrowed. May be NULL.
 * @param served    told once per transfer. Must not use the transport. NULL: failures are logged.
 * @return WHERRY_OK after `withdraw`; WHERRY_CANCELLED; WHERRY_CLOSED, WHERRY_NO_MEMORY and the
 * errors of the whole call as for wherry_checkpoint_send. A failed transfer does not end the call.
 */
WHERRY_API wherry_status wherry_checkpoint_serve(wherry_transport *transport, const wherry_value *state,
                                                 wherry_cancel *withdraw, const wherry_transfer_options *options,
                                                 wherry_served_fn served, void *context, wherry_error *error);

/**
 * Receives a state from a rank that sends it. The bytes go into new memory, or in place if
 * options.target or options.accept provides a target. With WHERRY_RECV_NEW, tensors that the target
 * lacks go into new memory.
 *
 * If the source is dead when the call begins, the call fails at once. If it has not joined yet, the
 * call waits. The source is asked after options.target has returned, and is told if that fails.
 * While options.accept or options.allocate runs, it waits for at most its own no_progress_ms.
 *
 * All checks are done before the first byte is written: after a mismatch the target is unchanged,
 * and the source is told. If the call fails while bytes arrive, the error says how many tensors are
 * complete and how many are half written; options.report_p lists them. If MPI cannot stop a receive
 * that has begun (wherry/mpi.h), the error says so: the memory must not be used again.
 *
 * @param options  NULL for the defaults.
 * @param state_p  the state, owned by the caller. Destroy it with wherry_value_destroy. In place,
 * its tensors are views of the target's storages. A tensor that the target lacks becomes none with
 * WHERRY_RECV_PARTIAL. NULL: only the bytes of the target are wanted, not the source's plain
 * values. That is faster if both states are equal but for the bytes: nothing is decoded or matched,
 * and options.limits does not apply. Not allowed without a target, or with WHERRY_RECV_NEW.
 * @return WHERRY_OK; otherwise there is nothing to destroy:
 *   - WHERRY_TIMED_OUT, WHERRY_CANCELLED, WHERRY_PEER_LOST, WHERRY_CLOSED: same as for
 *     wherry_checkpoint_send.
 *   - WHERRY_REVOKED: the source timed out, was cancelled or has changed. No byte is valid.
 *   - WHERRY_ABORTED: the source gave up for another reason, which is in the message.
 *   - WHERRY_MISMATCH: the target or the step differs. The error has the path and both sides.
 *   - WHERRY_CORRUPT: chunks arrived damaged too often. The error has the path of one tensor.
 *   - WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: the source
 *     violates the protocol, or its memory is not at the addresses that it sent.
 *   - WHERRY_UNSUPPORTED: no lane reaches the source (the message has the reasons), or device
 *     memory cannot be used here.
 *   - the errors of wherry_manifest_decode and wherry_plan_create for a bad manifest or a bad
 *     target; any status that target, inspect, accept or allocate returned.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank,
                                                const wherry_transfer_options *options, wherry_value **state_p,
                                                wherry_error *error);

/**
 * Receives one state from several ranks at once. All of them must send the same state: the same
 * step, and the same tensors with the same layout. The bytes come from all of them, each as fast as
 * it can; sources on this host are used one at a time, because memory bandwidth does not feed more.
 * If a source is lost, stalls or revokes its offer, the others deliver its share. The receive fails
 * only when no source is left.
 *
 * wherry_checkpoint_recv is the same with one source. Its contract applies, and in addition:
 *
 * - options.step is required with more than one source.
 * - A source that sends another step or layout is an error, WHERRY_MISMATCH, that names the ranks
 *   and both sides. Nothing was written, unless that source came after the first byte.
 * - Plain values (numbers, strings) come from the lowest rank that is used. If others differ, a
 *   warning names the first path.
 * - Each chunk of a few MiB comes whole from one source. If sources of the same step have different
 *   bytes, the result is a mixture of such chunks; WHERRY_VERIFY_ALL detects that.
 * - A source whose digest is wrong, or that sends something that was not requested, is dropped.
 * - Sources that are not needed are told so: their sends succeed (wherry_outcome.not_needed).
 *
 * @param ranks  `count` different ranks of the group, at most WHERRY_SOURCES_MAX.
 * @return as wherry_checkpoint_recv. If all sources are gone, that of the first of `ranks`; the
 * message has all reasons.
 */
WHERRY_API wherry_status wherry_checkpoint_recv_from(wherry_transport *transport, const int32_t *ranks, size_t count,
                                                     const wherry_transfer_options *options, wherry_value **state_p,
                                                     wherry_error *error);

/** One source of wherry_checkpoint_recv_sources. All of it is borrowed. */
typedef struct wherry_source {
    wherry_transport *transport; /**< A transport of the source's group. */
    int32_t rank;                /**< The rank of the source in that group. */
    const char *name;            /**< For messages, for example its address. NULL: "rank N". */
} wherry_source;

/**
 * As wherry_checkpoint_recv_from, from sources in different groups, such as servers that do not
 * know each other. Ranks in errors and statistics are ranks in the source's own group.
 * @param sources  `count` different sources, at most WHERRY_SOURCES_MAX; borrowed.
 * @return as wherry_checkpoint_recv_from. WHERRY_CLOSED only if all groups are closed.
 */
WHERRY_API wherry_status wherry_checkpoint_recv_sources(const wherry_source *sources, size_t count,
                                                        const wherry_transfer_options *options, wherry_value **state_p,
                                                        wherry_error *error);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
