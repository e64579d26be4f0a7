/**
 * @file wherry/expert.h  The steps inside a transfer: prepare, manifest, plan, digest.
 *
 * Unstable: these functions may change between minor versions. wherry/checkpoint.h uses them and is
 * enough for most programs. Available since version 0.1.
 *
 * No function here blocks unless its comment says so. Prepared states and plans do not change while
 * they are read, so any number of threads may read them at the same time.
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
 * covers, and small gaps between them. The space is all extents, one after the other. It is cut
 * into chunks. Transfers name bytes only by chunk number. The manifest alone determines the chunks,
 * so the rank that decodes it has the same chunks as the rank that encoded it.
 */
/** @{ */

/** A state with its storages, extents and chunks. Opaque. */
typedef struct wherry_prepared wherry_prepared;

/**
 * Options of wherry_prepare. Initialize them with wherry_prepare_options_init, then change what you
 * need.
 */
typedef struct wherry_prepare_options {
    uint32_t struct_size; /**< sizeof(wherry_prepare_options). */
    /** The size of a chunk: a power of two, 4 KiB to 1 GiB. Default 4 MiB. */
    uint32_t chunk_bytes;
    /**
     * Gaps of at most this many bytes between covered bytes are sent too, which gives fewer and
     * longer extents. A receiver never writes the bytes of gaps. With 0, gaps are sent only for
     * views whose dimensions interleave in more than 65,536 runs. Default 4095.
     */
    uint32_t max_gap;
    uint32_t reserved; /**< Must be 0. */
    /**
     * The number of this rank in meshes and shard places. It decides which box of a DTensor is
     * local. Default -1: unspecified.
     */
    int64_t rank;
} wherry_prepare_options;

/** Fills in the defaults. */
WHERRY_API void wherry_prepare_options_init(wherry_prepare_options *options);

/**
 * Prepares a state. It does not read the bytes of the tensors.
 * @param state       borrowed until the result is destroyed. It must not change before that.
 * @param options     NULL for the defaults.
 * @param prepared_p  owned by the caller. Destroy it with wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for a bad option, or if the sizes do
 * not fit in 63 bits.
 */
WHERRY_API wherry_status wherry_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                        wherry_prepared **prepared_p, wherry_error *error);

/** Destroys a prepared state. prepared may be NULL. */
WHERRY_API void wherry_prepared_destroy(wherry_prepared *prepared);

/** The state, borrowed. NULL after wherry_plan_take_state. */
WHERRY_API const wherry_value *wherry_prepared_state(const wherry_prepared *prepared);

/** Statistics of a prepared state. */
typedef struct wherry_prepared_summary {
    /** Number of tensors, including the local tensors of DTensors and ShardedTensors. */
    uint64_t tensors;
    uint64_t storages;      /**< Number of unique storages. */
    uint64_t extents;       /**< Number of extents. A strided extent counts once. */
    uint64_t storage_bytes; /**< Total size of the unique storages. */
    /** Total size of all tensors. Bytes that two tensors share count twice. */
    uint64_t view_bytes;
    /** Size of the space in bytes. A receiver of the whole state asks for all of it. */
    uint64_t bytes;
    uint64_t chunks; /**< Number of chunks of the space. */
    /**
     * The nominal size of a chunk. Every chunk differs from it by at most 15 bytes, except for the
     * last chunk of host memory and the last of device memory, which may be shorter.
     */
    uint64_t chunk_bytes;
} wherry_prepared_summary;

/** Fills in the statistics. */
WHERRY_API void wherry_prepared_summarize(const wherry_prepared *prepared, wherry_prepared_summary *summary_p);

/**
 * Unique storage number `index`, borrowed; NULL if index is out of range. Storages are numbered in
 * the order in which the state first uses them.
 */
WHERRY_API wherry_storage *wherry_prepared_storage(const wherry_prepared *prepared, size_t index);

/** One level of a strided extent: `count` repetitions, `stride` bytes apart. */
typedef struct wherry_level {
    uint64_t count;  /**< Number of repetitions, at least 2. */
    uint64_t stride; /**< Bytes from the start of one repetition to the start of the next. */
} wherry_level;

/**
 * Some bytes of a storage: a run of `length` bytes at `offset`. Each level repeats what the levels
 * after it describe. The level with the largest stride comes first.
 */
typedef struct wherry_extent {
    uint64_t offset; /**< Offset of the first run within the storage, in bytes. */
    uint64_t length; /**< Length of one run in bytes. */
    /** NULL if there are no levels: the extent is one contiguous run. */
    const wherry_level *levels;
    uint32_t level_count; /**< Number of levels. */
} wherry_extent;

/** The extents of a storage, borrowed, in the order of the space. */
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
    uint64_t offset;         /**< Offset of the first run within the storage, in bytes. */
    uint64_t length;         /**< Length of one run in bytes. */
    uint64_t count;          /**< Number of runs, at least 1. */
    uint64_t stride;         /**< Bytes from the start of one run to the start of the next. */
} wherry_piece;

/**
 * Callback for one piece. The piece is valid only during the call. A result other than 0 stops the
 * visit.
 */
typedef int (*wherry_piece_fn)(void *context, const wherry_piece *piece);

/**
 * Visits the pieces of a chunk in order. Together they contain all bytes of the chunk.
 * @return 0, or the result of `visit` that stopped the visit.
 */
WHERRY_API int wherry_prepared_visit_chunk(const wherry_prepared *prepared, uint64_t chunk, wherry_piece_fn visit,
                                           void *context);

/** @} */
/**
 * @name Manifest: a prepared state as bytes, and back
 *
 * The manifest has everything except the bytes of the tensors. It is canonical CBOR: the same state
 * always gives the same bytes. docs/wire-format.md specifies it. Decoding checks every byte,
 * because the bytes may come from an attacker, and executes nothing. Any thread may call these
 * functions.
 */
/** @{ */

/** The format version that this library writes. It reads no other version. */
#define WHERRY_MANIFEST_VERSION 1

/**
 * Encodes the manifest of a prepared state.
 * @param bytes_p  the manifest, owned by the caller. Free it with wherry_free.
 * @param size_p   its size in bytes.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if wherry_plan_take_state has taken
 * the state out, or if `prepared` belongs to a plan to receive in place.
 */
WHERRY_API wherry_status wherry_manifest_encode(const wherry_prepared *prepared, void **bytes_p, size_t *size_p,
                                                wherry_error *error);

/**
 * Decodes a manifest. The memory that the call needs is proportional to `size`.
 * @param bytes       borrowed during the call.
 * @param limits      NULL for the defaults.
 * @param prepared_p  the state, whose storages have no memory. Owned by the caller; destroy it with
 *                    wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for bad limits. For bad bytes:
 * WHERRY_TRUNCATED, WHERRY_MALFORMED, WHERRY_NOT_CANONICAL, WHERRY_BAD_VERSION, WHERRY_LIMIT,
 * WHERRY_OUT_OF_BOUNDS, WHERRY_REPEATED_KEY or WHERRY_TRAILING_BYTES; the error then has the offset
 * of the first bad item.
 */
WHERRY_API wherry_status wherry_manifest_decode(const void *bytes, size_t size, const wherry_limits *limits,
                                                wherry_prepared **prepared_p, wherry_error *error);

/** @} */
/**
 * @name Plan: which chunks a receiver asks for, and where their bytes go
 *
 * A plan is made from a decoded manifest and, to receive in place, the receiver's own state. Both
 * are checked when the plan is created. Afterwards, any number of threads can place chunks in any
 * order. Only elements of received tensors are written.
 */
/** @{ */

/** A plan. Opaque. */
typedef struct wherry_plan wherry_plan;

/** Bits of wherry_plan_options.flags. */
enum {
    /** Receive what both sides have, and report the rest instead of failing. */
    WHERRY_PLAN_PARTIAL = 1,
    WHERRY_PLAN_ANY_DEVICE = 2, /**< A target may be on another kind of device than its source. */
    /**
     * The local tensors of source and target may be different boxes of the global tensor, if they
     * have the same shape.
     */
    WHERRY_PLAN_ANY_BOX = 4,
    /** New storages go to `device` instead of the source's kind of device. */
    WHERRY_PLAN_TO_DEVICE = 8,
    /** In place: receive what the target lacks into new storages. See wherry_plan_create. */
    WHERRY_PLAN_NEW = 32,
    WHERRY_PLAN_FLAGS = 47 /**< All flags. */
};

/**
 * Options of wherry_plan_create. Initialize them with wherry_plan_options_init, then change what
 * you need.
 */
typedef struct wherry_plan_options {
    uint32_t struct_size; /**< sizeof(wherry_plan_options). */
    /** WHERRY_PLAN_*. Default 0: any difference between source and target is an error. */
    uint32_t flags;
    wherry_device device; /**< The device for WHERRY_PLAN_TO_DEVICE. Default cpu. */
    /** Provides memory for new storages. Default NULL: wherry_storage_allocate. */
    wherry_allocate_fn allocate;
    void *context; /**< Passed to allocate. */
    /** The number of the receiving rank in meshes and shard places. Default -1: unspecified. */
    int64_t rank;
} wherry_plan_options;

/** Fills in the defaults. */
WHERRY_API void wherry_plan_options_init(wherry_plan_options *options);

/**
 * Creates a plan. Blocks only if options->allocate does.
 *
 * Without a target, everything is received into new storages. Tensors that share a storage at the
 * source also share one here.
 *
 * With a target, each tensor of the target receives the bytes of the source's tensor at the same
 * path. Their strides may differ. Scalars always match each other, and lists match tuples. Any
 * other difference in kind is a mismatch. A leaf that only one side has is a mismatch too, unless
 * WHERRY_PLAN_PARTIAL is set.
 *
 * With WHERRY_PLAN_NEW, the target may lack leaves of the source, but the source must have all
 * leaves of the target. If a container of the target is empty, the target lacks everything in it.
 * If the target's value at a path is none, the target lacks whatever the source has there. The
 * tensors that the target lacks are received as if there were no target: into new storages as large
 * as the source's. They share a new storage if they share one at the source. If such a tensor
 * shares a storage with a tensor that has a target, the shared bytes are received once and written
 * twice.
 *
 * The check for overlapping targets is conservative: if the dimensions of a target interleave, its
 * elements count as overlapping.
 *
 * @param prepared  a result of wherry_manifest_decode. On success the plan owns it.
 * @param target    the state to receive into, borrowed until the plan is destroyed; or NULL.
 * Creating the plan does not write to it. Later only the memory of its tensors is written.
 * @param options   NULL for the defaults.
 * @param plan_p    owned by the caller. Destroy it with wherry_plan_destroy.
 * @return WHERRY_OK. On failure nothing was written, and the caller still owns `prepared`:
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY.
 *   - WHERRY_MISMATCH: the two sides differ in a path, kind, dtype, shape, flag, device or box; or
 *     targets overlap but their sources do not overlap in the same way. The error has the path and
 *     both sides.
 *   - WHERRY_UNSUPPORTED: memory of that device cannot be allocated or written here; or too many
 *     targets overlap to check them all.
 *   - WHERRY_OUT_OF_BOUNDS: a tensor of the manifest is outside the extents of its storage.
 *   - WHERRY_LIMIT: the plan would take more time or memory than is allowed for a manifest of this
 *     size. This happens if there are very many extents, or if tensors overlap too much.
 *   - any status that `allocate` returned.
 */
WHERRY_API wherry_status wherry_plan_create(wherry_prepared *prepared, const wherry_value *target,
                                            const wherry_plan_options *options, wherry_plan **plan_p,
                                            wherry_error *error);

/**
 * Destroys a plan, and also its state unless wherry_plan_take_state has taken it out. plan may be
 * NULL.
 */
WHERRY_API void wherry_plan_destroy(wherry_plan *plan);

/**
 * The prepared state of the plan, borrowed. Its tensors point to the memory that receives the
 * bytes.
 */
WHERRY_API const wherry_prepared *wherry_plan_prepared(const wherry_plan *plan);

/**
 * Takes the received state out of the plan. Call it once, after all chunks are placed. The other
 * functions of the plan still work.
 * @param state_p  owned by the caller. Scalars and containers are those of the source. If the plan
 *                 has no target, each tensor is a view of a new storage. In place, a tensor with a
 *                 target is a view of the target's storage. A tensor that the target lacks is a
 *                 view of a new storage with WHERRY_PLAN_NEW. With only WHERRY_PLAN_PARTIAL, none
 *                 replaces it.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the state was already taken out.
 */
WHERRY_API wherry_status wherry_plan_take_state(wherry_plan *plan, wherry_value **state_p, wherry_error *error);

/** A range of chunks: `first` to `first + count - 1`. */
typedef struct wherry_interval {
    uint64_t first; /**< The number of the first chunk. */
    uint64_t count; /**< Number of chunks, at least 1. */
} wherry_interval;

/**
 * The chunks to ask for, borrowed, as intervals in ascending order. There is a gap between any two.
 */
WHERRY_API const wherry_interval *wherry_plan_intervals(const wherry_plan *plan, size_t *count_p);

/** Statistics of a plan. */
typedef struct wherry_plan_summary {
    uint64_t tensors;     /**< Number of tensors that are received. */
    uint64_t chunks;      /**< Number of chunks to ask for. */
    uint64_t chunk_bytes; /**< Total size of those chunks. */
    uint64_t bytes;       /**< Bytes that are written when all these chunks are placed. */
    uint64_t copies;      /**< Number of copies in the plan. A strided copy counts once. */
    uint64_t direct;      /**< Number of direct chunks: see wherry_plan_visit_chunk. */
    uint64_t missing;     /**< Number of leaves of the target that the source lacks. */
    uint64_t extra;       /**< Number of leaves of the source that the target lacks. */
} wherry_plan_summary;

/** Fills in the statistics. */
WHERRY_API void wherry_plan_summarize(const wherry_plan *plan, wherry_plan_summary *summary_p);

/**
 * The path of leaf number `index` among those of the target that the source lacks, borrowed; NULL
 * if index is out of range.
 */
WHERRY_API const char *wherry_plan_missing(const wherry_plan *plan, size_t index);

/**
 * The path of leaf number `index` among those of the source that the target lacks, borrowed; NULL
 * if index is out of range.
 */
WHERRY_API const char *wherry_plan_extra(const wherry_plan *plan, size_t index);

/** Part of a chunk and its destination: `count` runs of `length` bytes. */
typedef struct wherry_copy {
    wherry_storage *storage; /**< The destination. */
    uint64_t chunk_offset;   /**< Offset of the first run within the chunk, in bytes. */
    uint64_t storage_offset; /**< Offset of the first run within the storage, in bytes. */
    uint64_t length;         /**< Length of one run in bytes. */
    uint64_t count;          /**< Number of runs. */
    uint64_t chunk_stride;   /**< Bytes from one run to the next in the chunk. May be 0. */
    uint64_t storage_stride; /**< Bytes from one run to the next in the storage. */
    /**
     * The address of the first run, in the memory of the storage's device. NULL if the storage has
     * no memory.
     */
    void *memory;
} wherry_copy;

/**
 * Callback for one copy. The copy is valid only during the call. A result other than 0 stops the
 * visit.
 */
typedef int (*wherry_copy_fn)(void *context, const wherry_copy *copy);

/**
 * Visits the copies of a chunk. There are none if the plan does not ask for the chunk.
 *
 * A chunk is direct if each of its bytes goes to at most one place, in contiguous runs. A lane can
 * then read it straight into its destination. The copies of a direct chunk are visited in the order
 * of chunk_offset, have a count of 1 and do not overlap. Bytes between them have no destination.
 * @return 0, or the result of `visit` that stopped the visit.
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
 * For a device, the call blocks until the bytes have arrived there.
 * @param bytes  the whole chunk.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the plan does not ask for that chunk, or if `size`
 * is not its length; WHERRY_UNSUPPORTED if this process cannot write to a destination;
 * WHERRY_SYSTEM if a device fails.
 */
WHERRY_API wherry_status wherry_plan_place(const wherry_plan *plan, uint64_t chunk, const void *bytes, size_t size,
                                           wherry_error *error);

/** @} */
/**
 * @name Digest of a tensor
 *
 * XXH3, 128 bits. It detects different or damaged bytes. It does not protect against forged bytes.
 */
/** @{ */

/** Size of a digest in bytes. */
#define WHERRY_DIGEST_BYTES 16

/** A digest, most significant byte first. */
typedef struct wherry_digest {
    uint8_t bytes[WHERRY_DIGEST_BYTES]; /**< XXH3's canonical form. */
} wherry_digest;

/**
 * Computes the digest of the elements of a tensor in index order, last dimension fastest. Tensors
 * with the same elements have the same digest, even if their strides differ. Blocks while it reads
 * the elements. Any thread may call this.
 * @param tensor    a tensor in host memory; borrowed during the call.
 * @param digest_p  the result.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the value is not a tensor; WHERRY_UNSUPPORTED if
 * the tensor is not in host memory; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_tensor_digest(const wherry_value *tensor, wherry_digest *digest_p, wherry_error *error);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
