/** @file encode.h  Preparing a state and writing its manifest in one walk; see wherry/expert.h for one that was prepared before. */
#ifndef WH_MANIFEST_ENCODE_H
#define WH_MANIFEST_ENCODE_H

#include "state/prepare.h"

/**
 * As wherry_prepare and then wherry_manifest_encode, both of which walk the state: values lie all over memory, and whoever comes to them waits.
 * @param state       not NULL.
 * @param prepared_p  belongs to the caller: wherry_prepared_destroy.
 * @param bytes_p     belongs to the caller: wherry_free.
 * @return WHERRY_OK, or an error of either.
 */
wherry_status wh_manifest_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                  wherry_prepared **prepared_p, void **bytes_p, size_t *size_p, wherry_error *error);

#endif
