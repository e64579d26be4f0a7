/**
 * @file wherry/checkpoint.h  Sending a state to other ranks, and receiving one: the library's main job.
 *
 *     source:    wherry_checkpoint_send(transport, (int32_t[]){2}, 1, state, NULL, NULL, &error);
 *     receiver:  wherry_checkpoint_recv(transport, 0, NULL, &state, &error);
 *
 * Calls block until they are done or have failed, never longer than their timeout (and what it takes to say so). A transport may be used from
 * several threads at once, in both directions: each receive asks for a checkpoint of its own, and meets the oldest send to its rank that waits. All
 * since 0.1.
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

/*
 * What a transfer did: times, bytes, lanes, and on failure the state of each tensor. All since 0.1.
 */

/** Bytes of wherry_stats.lane, its final zero included. */
#define WHERRY_LANE_NAME_MAX 16

/** Bytes of wherry_stats.reasons, its final zero included. */
#define WHERRY_LANE_REASONS_MAX 512

/** Bytes of wherry_stats.detail, its final zero included. */
#define WHERRY_LANE_DETAIL_MAX 160

/** At most this many lanes are listed in wherry_stats.skipped. */
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
    char lane[WHERRY_LANE_NAME_MAX];   /**< Its name. */
    wherry_lane_reason reason;         /**< Why, for programs. */
    char text[WHERRY_LANE_DETAIL_MAX]; /**< Why, for people. Cut if it is longer. */
} wherry_skipped_lane;

/** The figures of one transfer between two ranks. Seconds are of this side's clock. */
typedef struct wherry_stats {
    uint32_t struct_size;   /**< sizeof(wherry_stats), filled by the library. */
    uint32_t retries;       /**< Chunks that came damaged and were asked for again. */
    double prepare_seconds; /**< Source: preparing the state and writing its manifest. */
    double offer_seconds;   /**< Receiver: from asking until the manifest was here. Source: until the receiver asked. */
    double plan_seconds;    /**< Receiver: decoding, checking, planning, choosing a lane. Source: until it was told. */
    double data_seconds;    /**< Moving the bytes, verifying them on the way included. */
    double verify_seconds; /**< Receiver, a part of data_seconds: from the last byte until all digests were compared. */
    double release_seconds;                /**< Receiver: from then until the source confirmed. */
    double total_seconds;                  /**< The whole call; for a source, until this destination was done. */
    uint64_t tensors;                      /**< Tensors that are received. */
    uint64_t bytes_wanted;                 /**< Bytes of the chunks that the receiver asked for. */
    uint64_t bytes_moved;                  /**< Bytes that came, those that came again included. */
    uint64_t chunks;                       /**< Chunks that came. */
    uint64_t messages;                     /**< Control messages of this side. */
    uint32_t workers;                      /**< Threads that moved bytes on this side. */
    uint32_t verified;                     /**< 1 where digests were checked. */
    char lane[WHERRY_LANE_NAME_MAX];       /**< That was taken; "cma+cuda_ipc": by two; "" where no byte had to move. */
    char reasons[WHERRY_LANE_REASONS_MAX]; /**< Why others were not: "cma: Operation not permitted ...; ring: ...". */
    char detail
        [WHERRY_LANE_DETAIL_MAX]; /**< How the lane took the bytes, where its name does not say all: "UCX 1.13.1 over tcp/eth0". */
    uint32_t lanes_refused; /**< Receiver: how many of these should have worked, and did not: worth mending. */
    uint64_t
        bytes_held; /**< Receiver, with WHERRY_RECV_COMPARE: bytes of chunks that the target held already, and that were not asked for. */
    double compare_seconds;                                /**< Receiver: finding that out; a part of plan_seconds. */
    uint32_t skipped_count;                                /**< Entries of `skipped`. */
    wherry_skipped_lane skipped[WHERRY_SKIPPED_LANES_MAX]; /**< The lanes of `reasons`, one by one. */
} wherry_stats;

/** Where a tensor stands after a receive that failed. */
typedef enum wherry_tensor_state {
    WHERRY_TENSOR_COMPLETE =
        0, /**< All its bytes had come. Without WHERRY_OK it is still not known to be of one step with the others. */
    WHERRY_TENSOR_PARTIAL = 1,   /**< Half written, or it may be: its bytes were on their way. */
    WHERRY_TENSOR_UNTOUCHED = 2, /**< As it was. */
} wherry_tensor_state;

/** What a failed receive left behind, tensor by tensor. Opaque. Never changes: any number of threads. */
typedef struct wherry_report wherry_report;

/** How many tensors are in a state. report may be NULL: 0. */
WHERRY_API size_t wherry_report_count(const wherry_report *report, wherry_tensor_state state);

/** The path of one of them, borrowed; NULL where there is none of that number. */
WHERRY_API const char *wherry_report_path(const wherry_report *report, wherry_tensor_state state, size_t index);

/** report may be NULL. */
WHERRY_API void wherry_report_destroy(wherry_report *report);

/*
 * What a receive does when: its phases, and each range of bytes, by the thread that saw it land. For pictures of a transfer;
 * `wherry fetch --trace` writes one for chrome://tracing and Perfetto. All since 0.1.
 */

/** In wherry_trace_event.chunk: it is a phase, not a range. */
#define WHERRY_TRACE_PHASE UINT64_MAX

/** Something that was done. Texts live for ever. */
typedef struct wherry_trace_event {
    const char *name;  /**< Of a phase: "offer", "plan", "compare", "data", "release"; of a range: "chunk". */
    const char *lane;  /**< Of a range: the lane that it came over; "" for a phase. */
    uint64_t begin_ns; /**< By CLOCK_MONOTONIC. */
    uint64_t end_ns;   /**< Likewise. */
    uint64_t chunk;    /**< Of a range: its number. WHERRY_TRACE_PHASE: it is a phase. */
    uint64_t bytes;    /**< Of a range: in it. */
    int32_t peer;      /**< The source's rank. */
    uint32_t thread;   /**< The system's number of the thread that tells it. */
} wherry_trace_event;

/**
 * Told of each range when it has landed where it belongs, and of each phase when the receive ends. Ranges are told by the threads that move them, several at
 * once; one that goes to a device is told by the first of them that finds it there. It must be quick, and must not call the library.
 */
typedef void (*wherry_trace_fn)(void *context, const wherry_trace_event *event);

/** Sends and receives checkpoints over a group. Opaque. */
typedef struct wherry_transport wherry_transport;

/** How a transport is made. Fill it by wherry_transport_options_init, then change what you need. */
typedef struct wherry_transport_options {
    uint32_t struct_size; /**< sizeof(wherry_transport_options). */
    uint32_t
        number; /**< Transports of one group have different numbers, the same on all ranks, 0 to 65535. Default 0. */
} wherry_transport_options;

/** Fills the defaults. */
WHERRY_API void wherry_transport_options_init(wherry_transport_options *options);

/**
 * @param group        borrowed until the transport is destroyed.
 * @param options      NULL for the defaults.
 * @param transport_p  belongs to the caller: wherry_transport_destroy, before the group is left, when no thread is inside a call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also where the group has a transport of that number; WHERRY_NO_MEMORY. Does not block. Any thread.
 */
WHERRY_API wherry_status wherry_transport_create(wherry_group *group, const wherry_transport_options *options,
                                                 wherry_transport **transport_p, wherry_error *error);

/** transport may be NULL. */
WHERRY_API void wherry_transport_destroy(wherry_transport *transport);

/**
 * The ranks that have asked for a checkpoint and wait for a send. Does not block. Any thread.
 * @param ranks  receives up to `capacity` of them, ascending.
 * @return how many there are.
 */
WHERRY_API size_t wherry_transport_waiting(wherry_transport *transport, int32_t *ranks, size_t capacity);

/**
 * The lanes that there are, the fastest first as far as that can be said without a state. Does not block. Any thread.
 * @return the name of lane number `index`, for wherry_transfer_options.lanes; lives for ever. NULL where there is none of that number.
 */
WHERRY_API const char *wherry_transport_lane(const wherry_transport *transport, size_t index);

/** Whether bytes are checked by their digests. */
typedef enum wherry_verify {
    WHERRY_VERIFY_DEFAULT =
        0, /**< Where they cross a network; not where they are copied in memory, or go over `nccl`. */
    WHERRY_VERIFY_ON = 1,
    WHERRY_VERIFY_OFF = 2,
} wherry_verify;

/** How far a transfer is. Texts are valid only during the call. */
typedef struct wherry_progress {
    int32_t peer;     /**< The other rank. */
    uint64_t bytes;   /**< Bytes that have moved, */
    uint64_t total;   /**< of so many. */
    double rate;      /**< Bytes a second since the first. */
    const char *path; /**< Receiver: a tensor that is being received; "" where that is not known. */
    const char *lane; /**< Its name; "" while what the target holds is compared. */
} wherry_progress;

/** Told at most ten times a second by the thread that is inside the call, and once more when all is done. It must not call back into the transport. */
typedef void (*wherry_progress_fn)(void *context, const wherry_progress *progress);

/**
 * Says which state to receive into.
 * @param target_p  borrowed until the receive returns; NULL: into new memory after all.
 * @return WHERRY_OK, or a status that ends the receive and is handed on.
 */
typedef wherry_status (*wherry_target_fn)(void *context, const wherry_value **target_p);

/**
 * Looks at a state that is about to be received, before anything is planned or written: for a binding that cannot take every object. Its tensors have no memory yet.
 * @param state  borrowed during the call.
 * @return WHERRY_OK, or a status that ends the receive and is handed on.
 */
typedef wherry_status (*wherry_inspect_fn)(void *context, const wherry_value *state);

/**
 * Looks at a state that is about to be received, as wherry_inspect_fn does, and says which state to receive it into: for a receiver that learns only from what is
 * offered where it has to go, such as one that lays out a file.
 * @param state     borrowed during the call.
 * @param target_p  borrowed until the receive returns; NULL: into new memory.
 * @return WHERRY_OK, or a status that ends the receive and is handed on.
 */
typedef wherry_status (*wherry_accept_fn)(void *context, const wherry_value *state, const wherry_value **target_p);

/** Bits of wherry_transfer_options.flags. */
enum {
    WHERRY_RECV_PARTIAL = 1,    /**< As WHERRY_PLAN_PARTIAL: receive what both sides have. */
    WHERRY_RECV_ANY_DEVICE = 2, /**< As WHERRY_PLAN_ANY_DEVICE. */
    WHERRY_RECV_ANY_BOX = 4,    /**< As WHERRY_PLAN_ANY_BOX. */
    WHERRY_RECV_TO_DEVICE = 8,  /**< As WHERRY_PLAN_TO_DEVICE: new storages go to `device`. */
    WHERRY_KEEP_PTRACER = 16,   /**< Source: never set this process's ptracer, even where same-host reading needs it. */
    WHERRY_RECV_NEW = 32,       /**< As WHERRY_PLAN_NEW: what the target lacks is received into new memory. */
    WHERRY_RECV_COMPARE =
        64, /**< In place: the target may hold some of it. The source is asked for its digests first, and then only for the chunks
                                     whose bytes differ: how a receive that broke off is resumed, and how little of a state that has changed moves. */
    WHERRY_KEEPS_MEMORY =
        128, /**< Source: memory of devices that this state has stays allocated, so that receivers may keep it open, and the next transfer need not open it
                                    again. For each receiver: until this process ends, or until a later send to that receiver, of a state without that memory or
                                    without this flag, has returned WHERRY_OK for it; for one that was lost, until its process has ended. */
    WHERRY_TRANSFER_FLAGS = 255 /**< All of them. */
};

/** In wherry_transfer_options.step: not said, and not checked. */
#define WHERRY_STEP_ANY (-1)

/** How to send or receive. Fill it by wherry_transfer_options_init, then change what you need. */
typedef struct wherry_transfer_options {
    uint32_t struct_size; /**< sizeof(wherry_transfer_options). */
    uint32_t flags;       /**< WHERRY_RECV_*, WHERRY_KEEP_PTRACER. Default 0. */
    int64_t timeout_ms;   /**< For the whole call. Default 300,000; negative: never. */
    int64_t
        no_progress_ms; /**< A peer that is at it and has not moved a byte for so long is given up. Default 30,000. */

    /** Which step the state is of; where both sides say one and they differ, both fail. Default WHERRY_STEP_ANY. */
    int64_t step;

    /**
     * Which lanes are allowed, in the order in which they are tried: "cuda_ipc,nccl,cma,ring,ucx,blocks,stream"; or all but some: "^cma".
     * Default NULL: WHERRY_LANES of the environment, else all, the fastest first: for many small tensors, and into memory on
     * small pages, that is "ring", else "cma".
     */
    const char *lanes;

    uint32_t threads;     /**< Threads that move bytes. Default 0: as many as there are processors, at most 8. */
    wherry_verify verify; /**< A source that says ON or OFF is heeded where the receiver says DEFAULT. */

    wherry_target_fn target;     /**< Receiver: the state to receive into. Default NULL: into new memory. */
    void *target_context;        /**< Passed to it. */
    wherry_allocate_fn allocate; /**< Receiver: memory for new storages. Default NULL: the library's own, huge pages. */
    void *allocate_context;      /**< Passed to it. */
    wherry_device device;        /**< Receiver, with WHERRY_RECV_TO_DEVICE. */
    wherry_progress_fn progress; /**< Default NULL. */
    void *progress_context;      /**< Passed to it. */
    wherry_cancel *cancel;       /**< Ends the call when it is requested; borrowed. Default NULL. */

    /** Receiver: filled in any case but WHERRY_INVALID_ARGUMENT. A source finds its own in wherry_outcome. Default NULL. */
    wherry_stats *stats;

    /** Receiver: where it failed after the first byte, what it left behind, the caller's; else NULL. Default NULL. */
    wherry_report **report_p;

    const wherry_limits *limits; /**< Receiver: what a manifest may claim. Default NULL: those of wherry_limits_init. */

    /**
     * Asked by the thread that is inside the call, at most every 50 ms, wherever it waits or works; true ends the call as a cancel does. It must not call
     * back into the transport. Default NULL.
     */
    wherry_interrupt_fn interrupt;
    void *interrupt_context; /**< Passed to it. */

    /**
     * This process as meshes and places name it, where that is another number than its rank in the group: says which box of a DTensor is local, and where
     * received shards live. Default -1: the rank in the group.
     */
    int64_t rank;

    wherry_inspect_fn inspect; /**< Receiver: may refuse what is offered. Default NULL. */
    void *inspect_context;     /**< Passed to it. */

    wherry_accept_fn
        accept; /**< Receiver: the state to receive into, once the offer is there. Not together with `target`. Default NULL. */
    void *accept_context; /**< Passed to it. */

    /**
     * A CUstream (cudaStream_t) of the caller's. Where memory of CUDA devices is sent or received into, all that was queued on it before the call is waited for,
     * and what is received is there for whatever is queued after the call, on this and any other stream. Default NULL: the legacy default stream of each
     * device that is concerned.
     */
    void *stream;

    wherry_trace_fn trace; /**< Receiver: told what is done when. Default NULL. */
    void *trace_context;   /**< Passed to it. */
} wherry_transfer_options;

/** Fills the defaults. */
WHERRY_API void wherry_transfer_options_init(wherry_transfer_options *options);

/** How it went for one destination. */
typedef struct wherry_outcome {
    int32_t rank;         /**< The destination. */
    wherry_status status; /**< WHERRY_OK where the receiver has everything and may rely on it. */
    wherry_error error;   /**< Filled where status is another. */
    wherry_stats stats;   /**< Of the transfer to it. */
} wherry_outcome;

/**
 * Sends a state to some ranks: serves each that asks by wherry_checkpoint_recv until every one is done or has failed. One that is slow or dead neither
 * fails nor delays the others.
 *
 * While the call runs, the state and the bytes of its tensors must not change. Once it has returned, in whatever way, they may: a receiver that was not
 * finished can only fail (WHERRY_REVOKED), never take what it has for good.
 *
 * A rank that dies during the call is reported at once; one that was known to be dead when the call began is waited for, since it may be on its way back
 * (not in a group to which nobody comes back, such as one over MPI).
 *
 * @param ranks     distinct, of the group; the own rank is allowed where another thread receives.
 * @param state     borrowed during the call.
 * @param options   NULL for the defaults.
 * @param outcomes  NULL, or an array of `count`, filled in the order of `ranks` in any case but WHERRY_INVALID_ARGUMENT.
 * @return WHERRY_OK where all are; else the first status in the order of ranks that is not, with its error. For one destination:
 *   - WHERRY_TIMED_OUT: it did not ask, or did not get on, in time; the text says "timed out".
 *   - WHERRY_CANCELLED: by options.cancel or options.interrupt.
 *   - WHERRY_PEER_LOST: it died, or cannot be reached.
 *   - WHERRY_ABORTED: it gave up; the message has its reason, such as a mismatch of its target.
 *   - WHERRY_MISMATCH: the steps differ.
 *   - WHERRY_MALFORMED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: it does not speak the protocol.
 *   - WHERRY_NO_MEMORY, WHERRY_SYSTEM: this process lacks something.
 *   and for all alike, before anybody is served: WHERRY_UNSUPPORTED for a tensor whose memory cannot be read here; WHERRY_LIMIT for a manifest over 256 MiB; what
 *   wherry_prepare and wherry_manifest_encode return;
 *   and for all: WHERRY_INVALID_ARGUMENT; WHERRY_CLOSED where the group was left, or another incarnation of this rank is there.
 */
WHERRY_API wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                                const wherry_value *state, const wherry_transfer_options *options,
                                                wherry_outcome *outcomes, wherry_error *error);

/**
 * Receives a state from a rank that sends it.
 *
 * A source that is dead when the call begins fails it at once; one that has not joined yet is waited for. It is asked when options.target has returned, and told
 * where that failed. One that waits for this call's accept or allocate gives it up at its own no_progress_ms.
 *
 * Into new memory, or with options.target in place, or with WHERRY_RECV_NEW in place as far as the target goes. Every check comes before the first byte is
 * written: on a mismatch nothing is touched, and the source is told and freed. After a failure in the middle the error says how many tensors are complete and
 * half written, and options.report_p lists them. Over a group that cannot take back what it has begun to receive (wherry/mpi.h) it may also say that the memory may
 * still be written to: then it is never freed, and must not be used again.
 *
 * @param options  NULL for the defaults.
 * @param state_p  the state; belongs to the caller: wherry_value_destroy. In place its tensors are views of the target's storages; what the target
 *                 lacks is none with WHERRY_RECV_PARTIAL, and of new storages with WHERRY_RECV_NEW. NULL means that the caller wants only the bytes of the
 *                 tensors in its target (options.target or accept), not the source's plain values. If the source's state then has the same tensors in the same
 *                 layout, and the same plain values, no manifest is read, nothing is matched, and `limits` do not matter: faster with many tensors. With NULL, a
 *                 target that is NULL or WHERRY_RECV_NEW is WHERRY_INVALID_ARGUMENT.
 * @return WHERRY_OK; or, with nothing to destroy:
 *   - WHERRY_TIMED_OUT, WHERRY_CANCELLED, WHERRY_PEER_LOST, WHERRY_CLOSED: as wherry_checkpoint_send.
 *   - WHERRY_REVOKED: the source took its offer back, by a timeout or a cancel of its own: what was written is not valid.
 *   - WHERRY_ABORTED: the source gave up for another reason, which the message has.
 *   - WHERRY_MISMATCH: target and state differ, or the steps do; the path and both sides are in the error.
 *   - WHERRY_CORRUPT: a chunk came damaged three times; the path is that of a tensor in it.
 *   - WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_OUT_OF_BOUNDS, WHERRY_BAD_VERSION: the source does not speak the protocol, or its memory is not where it said.
 *   - WHERRY_UNSUPPORTED: no lane reaches the source, with the reasons; or memory of that device cannot be had.
 *   - what wherry_manifest_decode and wherry_plan_create return for a bad manifest or a bad target; what target, inspect, accept or allocate returned.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank,
                                                const wherry_transfer_options *options, wherry_value **state_p,
                                                wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
