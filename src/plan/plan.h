/**
 * @file plan.h  What a plan is made of; see wherry/expert.h.
 *
 * create.c builds it in three steps: find out what goes where (match.c in place, fresh.c for new
 * storages, both for a target that lacks something), turn that into moves (moves.c), and, when
 * nothing can fail any more, let the received state point to its memory.
 */
#ifndef WH_PLAN_PLAN_H
#define WH_PLAN_PLAN_H

#include <wherry/expert.h>

#include "range/chunkset.h"
#include "state/prepare.h"

/** A copy out of positions of the space into a storage. */
typedef struct wh_move {
    wh_copy copy; /**< Owns its levels. */
    uint64_t end; /**< Behind the last position that it reads. */
    wherry_storage *storage;
    /** The storage's; NULL: it has none. Here, since storages lie all over memory. */
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
    bool borrowed; /**< It is another's, and so are the storages that are kept. */
    wherry_plan_options options;
    wh_move *moves; /**< By ascending begin (copy.from). */
    size_t move_count;
    size_t move_capacity;
    uint64_t *reach;      /**< The largest end of all moves up to and including this one. */
    wh_chunk_set wanted;  /**< The chunks to ask for. */
    wh_chunk_set tangled; /**< Those of them that are not direct. */
    wh_paths missing;
    wh_paths extra;
    uint64_t tensor_count;
    uint64_t bytes;
    bool state_taken;
    uint64_t work; /**< How much finding positions may still take. */
    /** The storages that are written, each with a reference unless they are borrowed. */
    wherry_storage **kept;
    wh_census census; /**< Of them. */
    size_t kept_count;
    size_t kept_capacity;
};

/**
 * How much work finding positions may take, beyond a share for each tensor, before a manifest is
 * refused.
 */
#define WH_PLAN_WORK (UINT64_C(1) << 25)
#define WH_PLAN_WORK_PER_TENSOR UINT64_C(4096)

/** How many times over a byte may be copied into new memory because tensors cross each other. */
#define WH_PLAN_OVERLAP 64

/** Keeps a storage alive as long as the plan. @return false where there is no memory. */
bool wh_plan_keep(wherry_plan *plan, wherry_storage *storage);

/** Makes a tensor one of another storage. */
void wh_plan_bind(wherry_tensor *tensor, wherry_storage *storage);

/**
 * Adds what a copy out of storage number `from` of the prepared state into a storage moves.
 * @param about  the tensor that it is for, to name in an error.
 */
wherry_status wh_plan_add_copy(wherry_plan *plan, size_t from, const wh_copy *copy, wherry_storage *to,
                               const wherry_value *about, wherry_error *error);

/** Bytes that the moves so far write. */
uint64_t wh_plan_moved_bytes(const wherry_plan *plan);

/**
 * Sorts the moves and finds the chunks; nothing is added afterwards. @return false where there is
 * no memory.
 */
bool wh_plan_finish_moves(wherry_plan *plan);

/** A tensor of the source and the tensor of the target that takes its bytes. */
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
    size_t next_tensor; /**< The number of the next tensor of the source. */
} wh_matches;

/**
 * Walks both trees and pairs the tensors, every check but that for overlap made. Fills the plan's
 * missing and extra.
 */
wherry_status wh_plan_match(wherry_plan *plan, const wherry_value *target, wh_matches *matches, wherry_error *error);

/** Pairs the local tensors of two DTensors, or of two ShardedTensors. */
wherry_status wh_match_dtensor(wherry_plan *plan, wherry_value *source, const wherry_value *target, wh_matches *matches,
                               wherry_error *error);
wherry_status wh_match_sharded(wherry_plan *plan, wherry_value *source, const wherry_value *target, wh_matches *matches,
                               wherry_error *error);

/** Adds what a pair moves. */
wherry_status wh_plan_add_match(wherry_plan *plan, const wh_match *match, wherry_error *error);

/**
 * Pairs two tensors, and adds what they move while both are at hand; `first` is the number of the
 * source's.
 */
wherry_status wh_match_tensor(wherry_plan *plan, wherry_value *source, const wherry_value *target, size_t number,
                              wh_matches *matches, wherry_error *error);

/** WHERRY_MISMATCH about the value of the source at some path: both sides are described. */
wherry_status wh_mismatch(const wherry_value *source, const wherry_value *target, wherry_error *error,
                          const char *what);

/** Checks that no two targets overlap but where their sources do in the same way. */
wherry_status wh_plan_check_aliases(const wh_matches *matches, wherry_error *error);

/** Bytes of memory, by address. */
typedef struct wh_stretch {
    uint64_t begin;
    uint64_t end;
} wh_stretch;

/**
 * Whether no two have a byte in common. Changes their order. false also where there is no memory to
 * tell.
 */
bool wh_stretches_are_apart(wh_stretch *stretches, size_t count);

/**
 * Whether no two tensors of a target reach into each other, and none covers a byte twice: then
 * whatever the sources are, there is nothing to check. false also where that cannot be told. It
 * needs nothing of the source, so that a receiver looks while it waits for the manifest.
 */
bool wh_targets_are_apart(const wherry_value *target);

/** wherry_plan_create, with what wh_targets_are_apart said. */
wherry_status wh_plan_create(wherry_prepared *prepared, const wherry_value *target, bool apart,
                             const wherry_plan_options *options, wherry_plan **plan_p, wherry_error *error);

/**
 * A plan to receive a prepared state from a source whose state is the same: into itself.
 * @param prepared  by wherry_prepare, all of it in memory that can be written; borrowed, with its
 *                  state and its storages, until the plan is destroyed.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_MISMATCH where storages share memory;
 * WHERRY_UNSUPPORTED, WHERRY_LIMIT where too many tensors cross each other.
 */
wherry_status wh_plan_same(const wherry_prepared *prepared, wherry_plan **plan_p, wherry_error *error);

/**
 * Tensors of the source that are received into new storages: all of them, or those without a
 * target. Starts as {0}.
 */
typedef struct wh_fresh {
    wherry_value **tensors; /**< By number; NULL: not one of these. */
    size_t count;           /**< How many are. */
    /** New ones, by the number of the source's; NULL: none of these is over it. */
    wherry_storage **storages;
} wh_fresh;

/** @return false where there is no memory; wh_fresh_destroy in any case. */
bool wh_fresh_init(wh_fresh *fresh, const wherry_prepared *prepared);

void wh_fresh_destroy(wh_fresh *fresh, const wherry_prepared *prepared);

/** Adds the tensors of a leaf, which have numbers from `first` on. */
void wh_fresh_add(wh_fresh *fresh, wherry_value *leaf, size_t first);

/** Makes the storages, and adds the moves that fill them with what these tensors cover. */
wherry_status wh_plan_fresh(wherry_plan *plan, wh_fresh *fresh, wherry_error *error);

/** Points the tensors to their new storages. */
void wh_fresh_adopt(const wh_fresh *fresh, const wherry_prepared *prepared);

#endif
