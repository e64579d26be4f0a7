/** @file dump.h  Short descriptions of values, for the dump and for error messages. */
#ifndef WH_STATE_DUMP_H
#define WH_STATE_DUMP_H

#include "base/text.h"
#include "state/value.h"

/** Describes a tensor, for example "float32[2, 3] strides [1, 2] offset 4 cpu requires_grad". */
void wh_describe_tensor(wh_string *text, const wherry_tensor *tensor);

/** Describes the placements of a DTensor, for example "(replicate, shard 0)". */
void wh_describe_placements(wh_string *text, const wherry_dtensor *dtensor);

/** Describes any value. A container is described by its kind and size. */
void wh_describe_leaf(wh_string *text, const wherry_value *leaf);

#endif
