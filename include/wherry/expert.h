/** @file wherry/expert.h  The steps inside a transfer: prepare, manifest, plan, digest. Unstable: these may change between minor versions. */
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

/*
 * From a state to numbered chunks of bytes.
 *
 * Preparing finds the unique storages of a state, the bytes of them that some view covers (their extents) and lays those
 * end to end: that is the space, cut into chunks. Everything that moves is named by chunk numbers, and they follow from
 * the manifest alone: whoever decodes it has the same chunks as the rank that encoded it.
 *
 * No function here blocks. A prepared state is never changed by reading it: any number of threads. All since 0.1.
 */

/** A state with its storages, extents and chunks. Opaque. */
typedef struct wherry_prepared wherry_prepared;

/** How to prepare. Fill it by wherry_prepare_options_init, then change what you need. */
typedef struct wherry_prepare_options {
    uint32_t struct_size; /**< sizeof(wherry_prepare_options). */
    uint32_t chunk_bytes; /**< The size of a chunk: a power of two, 4 KiB to 1 GiB. Default 4 MiB. */
    uint32_t max_gap;     /**< Gaps between covered bytes up to this size travel along, so that there are fewer, longer
                               extents; they are never written at a destination. 0 forbids it, but for views whose
                               dimensions interleave in over 65,536 runs. Default 4095. */
    uint32_t reserved;    /**< 0. */
    int64_t rank; /**< This rank, as meshes and places name it: says which box of a DTensor is local. Default -1:
                               not said. */
} wherry_prepare_options;

/** Fills the defaults. */
WHERRY_API void wherry_prepare_options_init(wherry_prepare_options *options);

/**
 * Prepares a state.
 * @param state       borrowed until the result is destroyed, and not to be changed before; its bytes are not read.
 * @param options     NULL for the defaults.
 * @param prepared_p  belongs to the caller: wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for a bad option, or where the sizes do not fit 63 bits.
 */
WHERRY_API wherry_status wherry_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                        wherry_prepared **prepared_p, wherry_error *error);

/** Destroys it. prepared may be NULL. */
WHERRY_API void wherry_prepared_destroy(wherry_prepared *prepared);

/** The state, borrowed. NULL once a plan has given it away. */
WHERRY_API const wherry_value *wherry_prepared_state(const wherry_prepared *prepared);

/** The rank that prepared it; -1 where it was not said. */
WHERRY_API int64_t wherry_prepared_rank(const wherry_prepared *prepared);

/** The figures of a prepared state. */
typedef struct wherry_prepared_summary {
    uint64_t tensors;       /**< Tensors, local parts of DTensors and ShardedTensors included. */
    uint64_t storages;      /**< Unique storages. */
    uint64_t extents;       /**< Runs of covered bytes, a strided one counted once. */
    uint64_t storage_bytes; /**< Bytes of the unique storages. */
    uint64_t view_bytes;    /**< Bytes of all tensors added up, each view counted in full. */
    uint64_t bytes;         /**< Bytes of the space: what a receiver of everything wants. */
    uint64_t chunks;        /**< Chunks that the space is cut into. */
    uint64_t chunk_bytes;   /**< The size of a chunk; all but the last are within 15 bytes of it. */
} wherry_prepared_summary;

/** Reads the figures. */
WHERRY_API void wherry_prepared_summarize(const wherry_prepared *prepared, wherry_prepared_summary *summary_p);

/** A unique storage, borrowed, in the order in which the state first names them; NULL where there is none. */
WHERRY_API wherry_storage *wherry_prepared_storage(const wherry_prepared *prepared, size_t index);

/** One level of a strided extent: `count` repetitions, `stride` bytes apart. */
typedef struct wherry_level {
    uint64_t count;  /**< At least 2. */
    uint64_t stride; /**< In bytes. */
} wherry_level;

/** Bytes of a storage: `length` of them at `offset`, repeated by each level, the outermost (largest stride) first. */
typedef struct wherry_extent {
    uint64_t offset;            /**< Of the first run, in bytes. */
    uint64_t length;            /**< Bytes of each run. */
    const wherry_level *levels; /**< NULL where there are none: one contiguous run. */
    uint32_t level_count;       /**< How many levels there are. */
} wherry_extent;

/** The extents of a storage, borrowed, in the order in which their bytes lie in the space. */
WHERRY_API const wherry_extent *wherry_prepared_extents(const wherry_prepared *prepared, size_t storage,
                                                        size_t *count_p);

/** Where chunk number `chunk` begins in the space and how long it is; 0 and 0 where there is none. */
WHERRY_API void wherry_prepared_chunk(const wherry_prepared *prepared, uint64_t chunk, uint64_t *begin_p,
                                      uint64_t *length_p);

/** A piece of a chunk at its source: `count` runs of `length` bytes, `stride` apart, from `offset` of a storage on. */
typedef struct wherry_piece {
    wherry_storage *storage; /**< Borrowed. */
    uint64_t offset;         /**< Of the first run, in bytes. */
    uint64_t length;         /**< Bytes of each run. */
    uint64_t count;          /**< Runs, at least 1. */
    uint64_t stride;         /**< Bytes from the beginning of a run to that of the next. */
} wherry_piece;

/** Receives a piece, valid only during the call; a result other than 0 ends the visit. */
typedef int (*wherry_piece_fn)(void *context, const wherry_piece *piece);

/**
 * Visits the pieces that a chunk is made of, in order: end to end they are the chunk's bytes.
 * @return 0, or what `visit` returned other than 0.
 */
WHERRY_API int wherry_prepared_visit_chunk(const wherry_prepared *prepared, uint64_t chunk, wherry_piece_fn visit,
                                           void *context);

/*
 * A prepared state as bytes, and back.
 *
 * The manifest holds everything but the bytes of the tensors. It is CBOR, canonical (the same state always gives the same
 * bytes), and specified in docs/wire-format.md. Decoding treats every byte as hostile and executes nothing.
 *
 * No function here blocks. Any thread. All since 0.1.
 */

/** The version of the format that this library writes, and the only one that it reads. */
#define WHERRY_MANIFEST_VERSION 1

/**
 * Writes the manifest of a prepared state.
 * @param bytes_p  the manifest; release with wherry_free.
 * @param size_p   its length.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a plan has given its state away, or was made of it to
 * receive in place.
 */
WHERRY_API wherry_status wherry_manifest_encode(const wherry_prepared *prepared, void **bytes_p, size_t *size_p,
                                                wherry_error *error);

/**
 * Reads a manifest.
 * @param bytes       borrowed during the call only.
 * @param limits      NULL for the defaults.
 * @param prepared_p  the state, its storages without memory; belongs to the caller: wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for bad limits; and for bad bytes WHERRY_TRUNCATED,
 * WHERRY_MALFORMED, WHERRY_NOT_CANONICAL, WHERRY_BAD_VERSION, WHERRY_LIMIT, WHERRY_OUT_OF_BOUNDS, WHERRY_REPEATED_KEY or
 * WHERRY_TRAILING_BYTES, with the offset of the first bad item in the error. Memory is only ever taken in proportion to
 * `size`.
 */
WHERRY_API wherry_status wherry_manifest_decode(const void *bytes, size_t size, const wherry_limits *limits,
                                                wherry_prepared **prepared_p, wherry_error *error);

/*
 * Which chunks a receiver asks for, and where each of their bytes lands.
 *
 * A plan is made from a decoded manifest and, to receive in place, from the receiver's own state. Every check is made
 * before the plan exists: once there is one, each chunk can be placed without a further question, in any order, by any
 * number of threads, and nothing is written but the elements of the tensors that are received.
 *
 * No function here blocks, but the caller's `allocate` may. All since 0.1.
 */

/** A plan. Opaque. */
typedef struct wherry_plan wherry_plan;

/** Bits of wherry_plan_options.flags. */
enum {
    WHERRY_PLAN_PARTIAL = 1,    /**< Receive what both sides have; report the rest instead of refusing. */
    WHERRY_PLAN_ANY_DEVICE = 2, /**< A target may lie on another kind of device than its source. */
    WHERRY_PLAN_ANY_BOX = 4,    /**< A local part may be another box of its global tensor, if its shape is the same. */
    WHERRY_PLAN_TO_DEVICE = 8,  /**< New storages go to `device`, wherever the source has them. */
    WHERRY_PLAN_NEW = 16,       /**< In place: what the target lacks is received into new storages; see below. */
    WHERRY_PLAN_FLAGS = 31      /**< All of them. */
};

/** How to plan. Fill it by wherry_plan_options_init, then change what you need. */
typedef struct wherry_plan_options {
    uint32_t struct_size;        /**< sizeof(wherry_plan_options). */
    uint32_t flags;              /**< WHERRY_PLAN_*. Default 0: strict. */
    wherry_device device;        /**< With WHERRY_PLAN_TO_DEVICE. Default cpu. */
    wherry_allocate_fn allocate; /**< Memory for new storages. Default NULL: wherry_storage_allocate. */
    void *context;               /**< Passed to allocate. */
    int64_t rank;                /**< The receiving rank, as meshes and places name it. Default -1: not said. */
} wherry_plan_options;

/** Fills the defaults. */
WHERRY_API void wherry_plan_options_init(wherry_plan_options *options);

/**
 * Makes a plan.
 * @param prepared  from wherry_manifest_decode; taken over on success.
 * @param target    NULL: everything is received into new storages, and tensors that shared a storage share one again.
 *                  Else the state to receive into: each of its tensors takes the bytes of the tensor at the same path,
 *                  whatever the strides of the two. Borrowed until the plan is destroyed; only the memory of its tensors
 *                  is ever written, and only by placing.
 *                  With WHERRY_PLAN_NEW, leaves of the source that the target lacks are no mismatch: their tensors are received
 *                  as if there were no target, into new storages as large as the source's, shared by those of them that shared
 *                  one. A tensor that shares its storage with one that has a target gets another: bytes of both are asked for
 *                  once, and written twice. A container of the target that is empty lacks what a container of the source has
 *                  there, and none lacks whatever the source has; any other difference in kind is a mismatch, and so is a leaf of the target that the source lacks.
 * @param options   NULL for the defaults.
 * @param plan_p    belongs to the caller: wherry_plan_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT; WHERRY_MISMATCH where the two sides differ in a path, a
 * kind, a dtype, a shape, a flag, a device or a box, or where targets overlap and their sources do not in the same way
 * (the error has the path and both sides); WHERRY_UNSUPPORTED where memory of that device cannot be had or written here, or
 * where more targets lie across each other than can be checked; WHERRY_OUT_OF_BOUNDS where a tensor of the manifest lies
 * outside the extents that it offers; WHERRY_LIMIT where its views are so tangled that the plan would take more time or
 * memory than such a manifest may; what `allocate` returned. On failure nothing was written and prepared is still the caller's.
 *
 * Whether targets overlap is decided on the safe side: elements of one target whose strides interleave count as overlapping.
 */
WHERRY_API wherry_status wherry_plan_create(wherry_prepared *prepared, const wherry_value *target,
                                            const wherry_plan_options *options, wherry_plan **plan_p,
                                            wherry_error *error);

/** Destroys a plan, and the state with it where it was not taken. plan may be NULL. */
WHERRY_API void wherry_plan_destroy(wherry_plan *plan);

/** The prepared state that the plan was made of, borrowed. Its tensors are where they are received by now. */
WHERRY_API const wherry_prepared *wherry_plan_prepared(const wherry_plan *plan);

/**
 * Takes the received state out of the plan; call it once, when everything is placed.
 * @param state_p  belongs to the caller. Scalars and containers are the source's; in place, tensors are views of the
 *                 target's storages; a tensor without a target is of a new storage with WHERRY_PLAN_NEW, and else, in
 *                 partial mode, none; places of shards name the receiving rank and device.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT at the second call. The plan's other functions still work.
 */
WHERRY_API wherry_status wherry_plan_take_state(wherry_plan *plan, wherry_value **state_p, wherry_error *error);

/** Chunks `first` to `first + count - 1`. */
typedef struct wherry_interval {
    uint64_t first; /**< The number of the first chunk. */
    uint64_t count; /**< Chunks, at least 1. */
} wherry_interval;

/** The chunks to ask for, borrowed: ascending, never adjacent. */
WHERRY_API const wherry_interval *wherry_plan_intervals(const wherry_plan *plan, size_t *count_p);

/** The figures of a plan. */
typedef struct wherry_plan_summary {
    uint64_t tensors;     /**< Tensors that are received. */
    uint64_t chunks;      /**< Chunks to ask for. */
    uint64_t chunk_bytes; /**< Bytes in those chunks. */
    uint64_t bytes;       /**< Bytes that placing all of them writes. */
    uint64_t copies;      /**< Copies in the plan, a strided one counted once. */
    uint64_t direct;      /**< Chunks of which each byte goes to at most one place, in runs worth reading straight into
                                that place. */
    uint64_t missing;     /**< Leaves of the target that the source lacks. */
    uint64_t extra;       /**< Leaves of the source that the target lacks. */
} wherry_plan_summary;

/** Reads the figures. */
WHERRY_API void wherry_plan_summarize(const wherry_plan *plan, wherry_plan_summary *summary_p);

/** The path of a leaf that the target has and the source lacks, borrowed; NULL where there is none of that number. */
WHERRY_API const char *wherry_plan_missing(const wherry_plan *plan, size_t index);

/** The path of a leaf that the source has and the target lacks, borrowed; NULL where there is none of that number. */
WHERRY_API const char *wherry_plan_extra(const wherry_plan *plan, size_t index);

/** Part of a chunk and where it lands: `count` runs of `length` bytes. */
typedef struct wherry_copy {
    wherry_storage *storage; /**< The storage that it lands in. */
    uint64_t chunk_offset;   /**< The first run, from the chunk's first byte. */
    uint64_t storage_offset; /**< The first run, from the storage's first byte. */
    uint64_t length;         /**< Bytes of a run. */
    uint64_t count;          /**< Runs. */
    uint64_t chunk_stride;   /**< From run to run in the chunk. May be 0. */
    uint64_t storage_stride; /**< From run to run in the storage. */
    void *
        memory; /**< Where the first run lands: storage_offset bytes into the storage's memory, a device's address for that of a device. NULL: it has none. */
} wherry_copy;

/** Receives a copy, valid only during the call; a result other than 0 ends the visit. */
typedef int (*wherry_copy_fn)(void *context, const wherry_copy *copy);

/**
 * Visits the copies of a chunk. Those of a direct chunk come in the order of chunk_offset, with a count of 1, without
 * overlap; what lies between them has no place.
 * @return 0, or what `visit` returned other than 0. Nothing is visited for a chunk that the plan does not ask for.
 */
WHERRY_API int wherry_plan_visit_chunk(const wherry_plan *plan, uint64_t chunk, wherry_copy_fn visit, void *context);

/** Whether a chunk is direct: see wherry_plan_visit_chunk. false for one that the plan does not ask for. */
WHERRY_API bool wherry_plan_chunk_is_direct(const wherry_plan *plan, uint64_t chunk);

/**
 * Copies the bytes of a chunk to where they belong. Different chunks may be placed by different threads at once; where tensors
 * share bytes, two of them may write the same values to the same place.
 * @param bytes  as many as the chunk has.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where the plan does not ask for that chunk or size is not its length;
 * WHERRY_UNSUPPORTED where a destination is memory that cannot be written here; WHERRY_SYSTEM where a device fails. For one in the memory of a device it
 * waits until the bytes are there.
 */
WHERRY_API wherry_status wherry_plan_place(const wherry_plan *plan, uint64_t chunk, const void *bytes, size_t size,
                                           wherry_error *error);

/*
 * The digest of a tensor's elements: XXH3, 128 bits. It tells whether bytes are the same; it does not keep anybody from forging them.
 */

/** Bytes of a digest. */
#define WHERRY_DIGEST_BYTES 16

/** A digest, most significant byte first. Since 0.1. */
typedef struct wherry_digest {
    uint8_t bytes[WHERRY_DIGEST_BYTES]; /**< XXH3's canonical form. */
} wherry_digest;

/**
 * Digests the elements of a tensor in the order of their indices, the last dimension fastest: the same for two tensors of the same elements, whatever their strides.
 * @param tensor    a tensor in host memory; borrowed during the call.
 * @param digest_p  receives the digest.
 * Blocks as long as it takes to read the elements. Any thread.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where it is no tensor; WHERRY_UNSUPPORTED where it is not in host memory; WHERRY_NO_MEMORY. Since 0.1.
 */
WHERRY_API wherry_status wherry_tensor_digest(const wherry_value *tensor, wherry_digest *digest_p, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
