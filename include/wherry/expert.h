/**
 * @file wherry/expert.h  The steps inside a transfer: prepare, manifest, plan, digest.
 *
 * Unstable: these functions may change between minor versions. wherry/checkpoint.h uses them and is
 * enough for most programs. All since 0.1.
 *
 * No function here blocks, unless it says so. Prepared states and plans do not change while they
 * are read, so any number of threads may read them at the same time.
 */
#ifndef WHERRY_EXPERT_H
#define WHERRY_EXPERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * @name Prepare: from a state to numbered chunks of bytes
 *
 * Preparing a state finds its unique storages and their extents: the bytes that at least one tensor
 * covers. All extents end to end are the space, and the space is cut into chunks. Transfers name
 * bytes only by chunk number. The chunks follow from the manifest alone, so the rank that decodes
 * it has the same chunks as the rank that encoded it.
 */
/** @{ */

/** A state with its storages, extents and chunks. Opaque. */
typedef struct wherry_prepared wherry_prepared;

/** How to prepare. Initialize with wherry_prepare_options_init, then change what you need. */
typedef struct wherry_prepare_options {
    uint32_t struct_size; /**< sizeof(wherry_prepare_options). */
    /** The size of a chunk: a power of two, 4 KiB to 1 GiB. Default 4 MiB. */
    uint32_t chunk_bytes;
    /**
     * Gaps between covered bytes up to this size are sent too, which gives fewer and longer
     * extents. A receiver never writes them. With 0 no gap is sent, except in views whose
     * dimensions interleave in more than 65,536 runs. Default 4095.
     */
    uint32_t max_gap;
    uint32_t reserved; /**< 0. */
    /**
     * This rank, as meshes and places name it. It decides which box of a DTensor is local. Default
     * -1: unspecified.
     */
    int64_t rank;
} wherry_prepare_options;

/** Fills in the defaults. */
WHERRY_API void wherry_prepare_options_init(wherry_prepare_options *options);

/**
 * Prepares a state. It does not read the bytes of the tensors.
 * @param state       borrowed until the result is destroyed; must not change before.
 * @param options     NULL for the defaults.
 * @param prepared_p  belongs to the caller: wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for a bad option, or if the sizes do
 * not fit 63 bits.
 */
WHERRY_API wherry_status wherry_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                        wherry_prepared **prepared_p, wherry_error *error);

/** Destroys a prepared state. prepared may be NULL. */
WHERRY_API void wherry_prepared_destroy(wherry_prepared *prepared);

/** The state, borrowed. NULL after wherry_plan_take_state. */
WHERRY_API const wherry_value *wherry_prepared_state(const wherry_prepared *prepared);

/** The rank that prepared the state; -1 if unspecified. */
WHERRY_API int64_t wherry_prepared_rank(const wherry_prepared *prepared);

/** The figures of a prepared state. */
typedef struct wherry_prepared_summary {
    /** Tensors, including the local ones of DTensors and ShardedTensors. */
    uint64_t tensors;
    uint64_t storages;      /**< Unique storages. */
    uint64_t extents;       /**< Extents; a strided one counts once. */
    uint64_t storage_bytes; /**< Bytes of the unique storages. */
    uint64_t view_bytes;    /**< Bytes of all tensors; each tensor counts in full. */
    uint64_t bytes;         /**< Bytes of the space: what a receiver of the whole state asks for. */
    uint64_t chunks;        /**< Chunks of the space. */
    /** The size of a chunk. All chunks but the last are within 15 bytes of it. */
    uint64_t chunk_bytes;
} wherry_prepared_summary;

/** Reads the figures. */
WHERRY_API void wherry_prepared_summarize(const wherry_prepared *prepared, wherry_prepared_summary *summary_p);

/**
 * A unique storage, borrowed, in the order in which the state first uses them; NULL if index is out
 * of range.
 */
WHERRY_API wherry_storage *wherry_prepared_storage(const wherry_prepared *prepared, size_t index);

/** One level of a strided extent: `count` repetitions, `stride` bytes apart. */
typedef struct wherry_level {
    uint64_t count;  /**< At least 2. */
    uint64_t stride; /**< In bytes. */
} wherry_level;

/**
 * Bytes of a storage: a run of `length` bytes at `offset`, repeated by each level, largest stride
 * first.
 */
typedef struct wherry_extent {
    uint64_t offset;            /**< Of the first run, in bytes. */
    uint64_t length;            /**< Bytes per run. */
    const wherry_level *levels; /**< NULL if there are none: one contiguous run. */
    uint32_t level_count;       /**< Number of levels. */
} wherry_extent;

/** The extents of a storage, borrowed, in the order of their bytes in the space. */
WHERRY_API const wherry_extent *wherry_prepared_extents(const wherry_prepared *prepared, size_t storage,
                                                        size_t *count_p);

/** The position of a chunk in the space, and its length. Both are 0 if there is no such chunk. */
WHERRY_API void wherry_prepared_chunk(const wherry_prepared *prepared, uint64_t chunk, uint64_t *begin_p,
                                      uint64_t *length_p);

/**
 * A piece of a chunk at its source: `count` runs of `length` bytes, `stride` bytes apart, in a
 * storage.
 */
typedef struct wherry_piece {
    wherry_storage *storage; /**< Borrowed. */
    uint64_t offset;         /**< Of the first run, in bytes. */
    uint64_t length;         /**< Bytes per run. */
    uint64_t count;          /**< Number of runs, at least 1. */
    uint64_t stride;         /**< Bytes from the start of one run to the start of the next. */
} wherry_piece;

/** Receives a piece, which is valid only during the call. A result other than 0 stops the visit. */
typedef int (*wherry_piece_fn)(void *context, const wherry_piece *piece);

/**
 * Visits the pieces of a chunk in order. End to end they are the bytes of the chunk.
 * @return 0, or the result of `visit` that stopped it.
 */
WHERRY_API int wherry_prepared_visit_chunk(const wherry_prepared *prepared, uint64_t chunk, wherry_piece_fn visit,
                                           void *context);

/** @} */
/**
 * @name Manifest: a prepared state as bytes, and back
 *
 * The manifest has everything except the bytes of the tensors. It is canonical CBOR: the same state
 * always gives the same bytes. docs/wire-format.md specifies it. Decoding treats every byte as
 * hostile and executes nothing. Any thread.
 */
/** @{ */

/** The version of the format that this library writes, and the only one that it reads. */
#define WHERRY_MANIFEST_VERSION 1

/**
 * Encodes the manifest of a prepared state.
 * @param bytes_p  the manifest; belongs to the caller: wherry_free.
 * @param size_p   its size.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if the state was taken out by
 * wherry_plan_take_state, or if a plan to receive in place was made from it.
 */
WHERRY_API wherry_status wherry_manifest_encode(const wherry_prepared *prepared, void **bytes_p, size_t *size_p,
                                                wherry_error *error);

/**
 * Decodes a manifest. The memory that this takes is always proportional to `size`.
 * @param bytes       borrowed during the call.
 * @param limits      NULL for the defaults.
 * @param prepared_p  the state, with storages without memory; belongs to the caller:
 *                    wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for bad limits; and for bad bytes
 * WHERRY_TRUNCATED, WHERRY_MALFORMED, WHERRY_NOT_CANONICAL, WHERRY_BAD_VERSION, WHERRY_LIMIT,
 * WHERRY_OUT_OF_BOUNDS, WHERRY_REPEATED_KEY or WHERRY_TRAILING_BYTES, with the offset of the first
 * bad item in the error.
 */
WHERRY_API wherry_status wherry_manifest_decode(const void *bytes, size_t size, const wherry_limits *limits,
                                                wherry_prepared **prepared_p, wherry_error *error);

/** @} */
/**
 * @name Plan: which chunks a receiver asks for, and where their bytes go
 *
 * A plan is made from a decoded manifest and, to receive in place, the receiver's own state. All
 * checks are made before the plan exists. With a plan, any number of threads can place chunks in
 * any order without a further check, and only elements of received tensors are written.
 */
/** @{ */

/** A plan. Opaque. */
typedef struct wherry_plan wherry_plan;

/** Bits of wherry_plan_options.flags. */
enum {
    /** Receive what both sides have, and report the rest instead of failing. */
    WHERRY_PLAN_PARTIAL = 1,
    WHERRY_PLAN_ANY_DEVICE = 2, /**< A target may be on another kind of device than its source. */
    /** A local tensor may be another box of its global tensor if it has the same shape. */
    WHERRY_PLAN_ANY_BOX = 4,
    /** New storages go to `device` instead of the source's kind of device. */
    WHERRY_PLAN_TO_DEVICE = 8,
    /** In place: receive what the target lacks into new storages. See below. */
    WHERRY_PLAN_NEW = 16,
    WHERRY_PLAN_FLAGS = 31 /**< All of them. */
};

/** How to plan. Initialize with wherry_plan_options_init, then change what you need. */
typedef struct wherry_plan_options {
    uint32_t struct_size; /**< sizeof(wherry_plan_options). */
    uint32_t flags;       /**< WHERRY_PLAN_*. Default 0: strict. */
    wherry_device device; /**< For WHERRY_PLAN_TO_DEVICE. Default cpu. */
    /** Memory for new storages. Default NULL: wherry_storage_allocate. */
    wherry_allocate_fn allocate;
    void *context; /**< Passed to allocate. */
    /** The receiving rank, as meshes and places name it. Default -1: unspecified. */
    int64_t rank;
} wherry_plan_options;

/** Fills in the defaults. */
WHERRY_API void wherry_plan_options_init(wherry_plan_options *options);

/**
 * Creates a plan. Blocks only if options->allocate does.
 *
 * Without a target, everything is received into new storages. Tensors that share a storage at the
 * source share one again.
 *
 * With a target, each tensor of the target receives the bytes of the source's tensor at the same
 * path. Their strides may differ. With WHERRY_PLAN_NEW the target may lack leaves of the source:
 * their tensors are received as if there were no target, into new storages as large as the
 * source's. Such tensors share a new storage if they share one at the source. If one of them shares
 * a storage with a tensor that has a target, the bytes of both are received once and written twice.
 * An empty container in the target counts as lacking everything that the source's container has. A
 * none in the target counts as lacking whatever the source has there. Any other difference in kind
 * is a mismatch, and so is a leaf of the target that the source lacks.
 *
 * Whether targets overlap is decided conservatively: elements of one target whose strides
 * interleave count as overlapping.
 *
 * @param prepared  from wherry_manifest_decode; taken over on success.
 * @param target    the state to receive into, or NULL; borrowed until the plan is destroyed. Only
 *                  the memory of its tensors is written, and only by wherry_plan_place.
 * @param options   NULL for the defaults.
 * @param plan_p    belongs to the caller: wherry_plan_destroy.
 * @return WHERRY_OK; or, with nothing written and prepared still the caller's:
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY.
 *   - WHERRY_MISMATCH: the two sides differ in a path, kind, dtype, shape, flag, device or box; or
 *     targets overlap but their sources do not overlap in the same way. The error has the path and
 *     both sides.
 *   - WHERRY_UNSUPPORTED: memory of that device cannot be allocated or written here; or too many
 *     targets overlap to check them all.
 *   - WHERRY_OUT_OF_BOUNDS: a tensor of the manifest is outside the extents of its storage.
 *   - WHERRY_LIMIT: the views of the manifest overlap in such a way that the plan would take more
 *     time or memory than is allowed for its size.
 *   - any status that `allocate` returned.
 */
WHERRY_API wherry_status wherry_plan_create(wherry_prepared *prepared, const wherry_value *target,
                                            const wherry_plan_options *options, wherry_plan **plan_p,
                                            wherry_error *error);

/** Destroys a plan, and also its state unless that was taken out. plan may be NULL. */
WHERRY_API void wherry_plan_destroy(wherry_plan *plan);

/**
 * The prepared state of the plan, borrowed. Its tensors point to the memory that is received into.
 */
WHERRY_API const wherry_prepared *wherry_plan_prepared(const wherry_plan *plan);

/**
 * Takes the received state out of the plan. Call it once, after all chunks are placed. The other
 * functions of the plan still work.
 * @param state_p  belongs to the caller. Scalars and containers are the source's. In place, tensors
 *                 are views of the target's storages. A tensor without a target is over a new
 *                 storage with WHERRY_PLAN_NEW, and none with WHERRY_PLAN_PARTIAL. The places of
 *                 shards name the receiving rank and device.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT at the second call.
 */
WHERRY_API wherry_status wherry_plan_take_state(wherry_plan *plan, wherry_value **state_p, wherry_error *error);

/** Chunks `first` to `first + count - 1`. */
typedef struct wherry_interval {
    uint64_t first; /**< The number of the first chunk. */
    uint64_t count; /**< Number of chunks, at least 1. */
} wherry_interval;

/** The chunks to ask for, borrowed: ascending, never adjacent. */
WHERRY_API const wherry_interval *wherry_plan_intervals(const wherry_plan *plan, size_t *count_p);

/** The figures of a plan. */
typedef struct wherry_plan_summary {
    uint64_t tensors;     /**< Tensors that are received. */
    uint64_t chunks;      /**< Chunks to ask for. */
    uint64_t chunk_bytes; /**< Bytes in those chunks. */
    uint64_t bytes;       /**< Bytes that are written when all of them are placed. */
    uint64_t copies;      /**< Copies in the plan; a strided one counts once. */
    uint64_t direct;      /**< Direct chunks: see wherry_plan_visit_chunk. */
    uint64_t missing;     /**< Leaves of the target that the source lacks. */
    uint64_t extra;       /**< Leaves of the source that the target lacks. */
} wherry_plan_summary;

/** Reads the figures. */
WHERRY_API void wherry_plan_summarize(const wherry_plan *plan, wherry_plan_summary *summary_p);

/**
 * The path of a leaf of the target that the source lacks, borrowed; NULL if index is out of range.
 */
WHERRY_API const char *wherry_plan_missing(const wherry_plan *plan, size_t index);

/**
 * The path of a leaf of the source that the target lacks, borrowed; NULL if index is out of range.
 */
WHERRY_API const char *wherry_plan_extra(const wherry_plan *plan, size_t index);

/** Part of a chunk and its destination: `count` runs of `length` bytes. */
typedef struct wherry_copy {
    wherry_storage *storage; /**< The destination. */
    uint64_t chunk_offset;   /**< Of the first run, from the first byte of the chunk. */
    uint64_t storage_offset; /**< Of the first run, from the first byte of the storage. */
    uint64_t length;         /**< Bytes per run. */
    uint64_t count;          /**< Number of runs. */
    uint64_t chunk_stride;   /**< From run to run in the chunk. May be 0. */
    uint64_t storage_stride; /**< From run to run in the storage. */
    /**
     * The address of the first run in the storage, on its device. NULL: the storage has no memory.
     */
    void *memory;
} wherry_copy;

/** Receives a copy, which is valid only during the call. A result other than 0 stops the visit. */
typedef int (*wherry_copy_fn)(void *context, const wherry_copy *copy);

/**
 * Visits the copies of a chunk; none if the plan does not ask for the chunk.
 *
 * A chunk is direct if each of its bytes goes to at most one place, in contiguous runs, so that a
 * lane can read it straight into its destination. The copies of a direct chunk come in the order of
 * chunk_offset, have a count of 1 and do not overlap. Bytes between them have no destination.
 * @return 0, or the result of `visit` that stopped it.
 */
WHERRY_API int wherry_plan_visit_chunk(const wherry_plan *plan, uint64_t chunk, wherry_copy_fn visit, void *context);

/**
 * True if a chunk is direct: see wherry_plan_visit_chunk. False if the plan does not ask for the
 * chunk.
 */
WHERRY_API bool wherry_plan_chunk_is_direct(const wherry_plan *plan, uint64_t chunk);

/**
 * Copies the bytes of a chunk to their destinations. Several threads may place different chunks at
 * the same time. If tensors share bytes, two threads may write the same values to the same place.
 * Blocks until bytes for a device are there.
 * @param bytes  the whole chunk.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the plan does not ask for that chunk or size is not
 * its length; WHERRY_UNSUPPORTED if a destination cannot be written here; WHERRY_SYSTEM if a device
 * fails.
 */
WHERRY_API wherry_status wherry_plan_place(const wherry_plan *plan, uint64_t chunk, const void *bytes, size_t size,
                                           wherry_error *error);

/** @} */
/**
 * @name Digest of a tensor
 *
 * XXH3, 128 bits. It detects different or damaged bytes. It does not protect against forged ones.
 */
/** @{ */

/** Bytes of a digest. */
#define WHERRY_DIGEST_BYTES 16

/** A digest, most significant byte first. */
typedef struct wherry_digest {
    uint8_t bytes[WHERRY_DIGEST_BYTES]; /**< XXH3's canonical form. */
} wherry_digest;

/**
 * Digests the elements of a tensor in index order, last dimension fastest. Tensors with the same
 * elements have the same digest, whatever their strides. Blocks while it reads the elements. Any
 * thread.
 * @param tensor    a tensor in host memory; borrowed during the call.
 * @param digest_p  the result.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the value is not a tensor; WHERRY_UNSUPPORTED if it
 * is not in host memory; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_tensor_digest(const wherry_value *tensor, wherry_digest *digest_p, wherry_error *error);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
