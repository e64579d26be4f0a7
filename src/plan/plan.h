/**
 * @file plan.h  The parts of a plan; see wherry/expert.h.
 *
 * A plan is created in three steps. First, find the destination of each tensor (match.c in place,
 * fresh.c for new storages). Second, add the moves that copy the tensors there. Third, when nothing
 * can fail any more, make the tensors of the received state views of their destinations.
 */
#ifndef WH_PLAN_PLAN_H
#define WH_PLAN_PLAN_H

#include <sys/uio.h>

#include <wherry/expert.h>

#include "range/chunkset.h"
#include "state/prepare.h"

/** A copy from positions of the space into a storage. */
typedef struct wh_move {
    wh_copy copy; /**< Owns its levels. */
    uint64_t end; /**< The end of the last run that it reads. */
    wherry_storage *storage;
    /**
     * The memory of the storage; NULL if it has none. It is copied here because access to the
     * storage is a cache miss.
     */
    char *memory;
} wh_move;

/** A list of paths as text. */
typedef struct wh_paths {
    char **items;
    size_t count;
    size_t capacity;
} wh_paths;

struct wherry_plan {
    wherry_prepared *prepared;
    bool borrowed; /**< True if the plan does not own `prepared` and `kept`. */
    wherry_plan_options options;
    wh_move *moves; /**< Sorted by copy.from. */
    size_t move_count;
    size_t move_capacity;
    uint64_t *reach;       /**< Per move: the largest end of all moves up to this one. */
    wh_chunk_set wanted;   /**< The chunks to ask for. */
    wh_chunk_set indirect; /**< The wanted chunks that are not direct. */
    wh_paths missing;
    wh_paths extra;
    uint64_t tensor_count;
    uint64_t bytes;
    bool state_taken;
    uint64_t work; /**< The remaining work budget, for wh_space_locate and for adding moves. */
    /** The storages that are written, each with a reference unless they are borrowed. */
    wherry_storage **kept;
    wh_storage_traits traits; /**< Common properties of the kept storages. */
    size_t kept_count;
    size_t kept_capacity;
};

/**
 * The work budget of a plan: a fixed part, and a part per tensor. A manifest that needs more is
 * refused.
 */
#define WH_PLAN_WORK (UINT64_C(1) << 25)
#define WH_PLAN_WORK_PER_TENSOR UINT64_C(4096)

/** How often a byte may be copied into new memory, on average, because tensors overlap. */
#define WH_PLAN_OVERLAP 64

/**
 * Keeps a storage alive as long as the plan, unless the plan only borrows its storages. @return
 * false if out of memory.
 */
bool wh_plan_keep(wherry_plan *plan, wherry_storage *storage);

/** Makes a tensor a view of another storage. */
void wh_plan_bind(wherry_tensor *tensor, wherry_storage *storage);

/**
 * Adds the moves for a copy out of storage number `from` of the prepared state.
 * @param about  the tensor that an error message names.
 */
wherry_status wh_plan_add_copy(wherry_plan *plan, size_t from, const wh_copy *copy, wherry_storage *to,
                               const wherry_value *about, wherry_error *error);

/** A tensor of the source and the tensor of the target that receives its bytes. */
typedef struct wh_match {
    wherry_value *source;
    const wherry_value *target;
    size_t storage; /**< The number of the source's storage. */
} wh_match;

/** A TENSOR, DTENSOR or SHARDED leaf of the source without a target. */
typedef struct wh_unmatched {
    wherry_value *leaf;
    size_t first; /**< The number of its first tensor. */
} wh_unmatched;

typedef struct wh_matches {
    wh_match *items;
    size_t count;
    size_t capacity;
    wh_unmatched *unmatched;
    size_t unmatched_count;
    size_t unmatched_capacity;
    size_t next_tensor; /**< The number of the source's next tensor. */
} wh_matches;

/**
 * Walks both trees, pairs the tensors and adds their moves. It checks that the trees and the pairs
 * match, but not whether targets overlap. It fills `missing` and `extra` of the plan.
 */
wherry_status wh_plan_match(wherry_plan *plan, const wherry_value *target, wh_matches *matches, wherry_error *error);

/** Adds the moves of a pair. */
wherry_status wh_plan_add_match(wherry_plan *plan, const wh_match *match, wherry_error *error);

/** Fails with WHERRY_MISMATCH. The message contains the path and describes both sides. */
wherry_status wh_mismatch(const wherry_value *source, const wherry_value *target, wherry_error *error,
                          const char *what);

/** Checks that targets overlap only if their sources overlap in the same way. */
wherry_status wh_plan_check_aliases(const wh_matches *matches, wherry_error *error);

/** A range of addresses. */
typedef struct wh_stretch {
    uint64_t begin;
    uint64_t end;
} wh_stretch;

/**
 * True if no two stretches overlap. It may change the order of the stretches. Also false if out of
 * memory.
 */
bool wh_stretches_are_disjoint(wh_stretch *stretches, size_t count);

/**
 * True if the address ranges of a target's tensors do not overlap and no tensor covers a byte
 * twice. In that case wh_plan_check_aliases is not needed. The result may be false even if no bytes
 * overlap. The function does not need the manifest, so a receiver calls it while it waits for the
 * manifest.
 */
bool wh_targets_are_disjoint(const wherry_value *target);

/**
 * Like wherry_plan_create. @param disjoint  the result of wh_targets_are_disjoint for the target.
 */
wherry_status wh_plan_create(wherry_prepared *prepared, const wherry_value *target, bool disjoint,
                             const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error);

/**
 * Creates a plan to receive into a prepared state from a source that has an equal state.
 * @param prepared  a result of wherry_prepare whose memory this process can write. It is borrowed,
 *                  with its state and its storages, until the plan is destroyed.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_MISMATCH if storages overlap; WHERRY_UNSUPPORTED or
 * WHERRY_LIMIT if too many tensors overlap.
 */
wherry_status wh_plan_same(const wherry_prepared *prepared, wherry_plan **plan_p, wherry_error *error);

/**
 * The tensors of the source that are received into new storages: all tensors, or those without a
 * target. Initialize it with {0}.
 */
typedef struct wh_fresh {
    /** Entries by tensor number; NULL if a tensor is not received into a new storage. */
    wherry_value **tensors;
    size_t count; /**< How many of these entries are not NULL. */
    /** The new storages, by the number of the source's storage; NULL if none is needed. */
    wherry_storage **storages;
} wh_fresh;

/** Initializes the list. @return false if out of memory. Call wh_fresh_destroy in either case. */
bool wh_fresh_init(wh_fresh *fresh, const wherry_prepared *prepared);

void wh_fresh_destroy(wh_fresh *fresh, const wherry_prepared *prepared);

/** Adds the tensors of a leaf, which are numbered from `first` on. */
void wh_fresh_add(wh_fresh *fresh, wherry_value *leaf, size_t first);

/** Allocates the storages and adds the moves into them. */
wherry_status wh_plan_fresh(wherry_plan *plan, wh_fresh *fresh, wherry_error *error);

/** Makes the tensors views of their new storages. */
void wh_fresh_adopt(const wh_fresh *fresh, const wherry_prepared *prepared);

/** A chunk that was read back. Starts as {0}. Each thread has one and reuses it. */
typedef struct wh_gathered {
    char *bytes;
    size_t room;
    char *covered; /**< Per byte: 1 if it was found. */
    size_t covered_room;
    uint64_t length;
    uint64_t found;
    /** A byte has two destinations, or is on a device. The chunk is then requested. */
    bool unsure;
} wh_gathered;

/**
 * Reads a chunk back from its destinations. The result is what would be sent if the target were the
 * source.
 * @param run_p  receives the bytes, which stay valid until the next call with `gathered`.
 * @return false if that is not possible: a byte has no destination, two, or one on a device; or out
 * of memory.
 */
bool wh_plan_gather(const wherry_plan *plan, uint64_t chunk, wh_gathered *gathered, struct iovec *run_p);

void wh_gathered_destroy(wh_gathered *gathered);

/**
 * The number of runs of memory that a plan writes. A small page counts as one, for lanes that
 * handle pages one by one. @param small_pages  the source's memory is on small pages.
 */
uint64_t wh_plan_runs(const wherry_plan *plan, bool small_pages);

#endif
