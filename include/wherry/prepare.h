/**
 * @file wherry/prepare.h  From a state to numbered chunks of bytes.
 *
 * Preparing finds the unique storages of a state, the bytes of them that some view covers (their extents) and lays those
 * end to end: that is the space, cut into chunks. Everything that moves is named by chunk numbers, and they follow from
 * the manifest alone: whoever decodes it has the same chunks as the rank that encoded it.
 *
 * No function here blocks. A prepared state is never changed by reading it: any number of threads. All since 0.1.
 */
#ifndef WHERRY_PREPARE_H
#define WHERRY_PREPARE_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>
#include <wherry/storage.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
