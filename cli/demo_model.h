/**
 * @file demo_model.h  A state as a training run holds it, and a stand-in for training it.
 *
 * The memory is made once; trees over it are made when one is needed, with the step of that moment. One thread.
 */
#ifndef WH_CLI_DEMO_MODEL_H
#define WH_CLI_DEMO_MODEL_H

#include <stdint.h>

#include <wherry/base.h>
#include <wherry/value.h>

/** Opaque. */
typedef struct wh_demo_model wh_demo_model;

/** Depends on every byte and on its place, not on anything that a peer could not compute as well. */
typedef struct wh_demo_digest {
    uint64_t words[4];
} wh_demo_digest;

/**
 * Makes a model and its optimizer's moments, `size` bytes in all or a little less, as they are before the first step.
 * @param model_p  belongs to the caller: wh_demo_model_destroy.
 */
wherry_status wh_demo_model_create(uint64_t size, wh_demo_model **model_p, wherry_error *error);

/** model may be NULL. */
void wh_demo_model_destroy(wh_demo_model *model);

/**
 * The state dict: views of the model's memory, and a step.
 * @param state_p  belongs to the caller; the memory stays the model's.
 */
wherry_status wh_demo_model_state(const wh_demo_model *model, int64_t step, wherry_value **state_p,
                                  wherry_error *error);

/** Trains: changes every byte, depending on what it was and on the step. @return the digest of the result. */
wh_demo_digest wh_demo_model_train(wh_demo_model *model, int64_t step);

/** Overwrites all of it, as a fault would: what is there then is of no use. */
void wh_demo_model_spoil(wh_demo_model *model);

/** The digest of what is in memory now: as that of the last step. */
wh_demo_digest wh_demo_model_digest(const wh_demo_model *model);

#endif
