/**
 * @file wherry/stats.h  What a transfer did: times, bytes, lanes, and on failure the state of each tensor. All since 0.1.
 */
#ifndef WHERRY_STATS_H
#define WHERRY_STATS_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of wherry_stats.lane, its final zero included. */
#define WHERRY_LANE_NAME_MAX 16

/** Bytes of wherry_stats.reasons, its final zero included. */
#define WHERRY_LANE_REASONS_MAX 512

/** Bytes of wherry_stats.detail, its final zero included. */
#define WHERRY_LANE_DETAIL_MAX 160

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
    uint32_t ready;         /**< Receiver: 1 where the plan of options.ready was taken, and nothing was planned. */
    uint64_t
        bytes_held; /**< Receiver, with WHERRY_RECV_COMPARE: bytes of chunks that the target held already, and that were not asked for. */
    double compare_seconds; /**< Receiver: finding that out; a part of plan_seconds. */
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

#ifdef __cplusplus
}
#endif
#endif
