/** @file dump.h  Short descriptions of values, for the dump and for error messages. */
#ifndef WH_STATE_DUMP_H
#define WH_STATE_DUMP_H

#include "base/text.h"
#include "state/value.h"

/** Describes the placements of a DTensor, for example "(replicate, shard 0)". */
void wh_describe_placements(wh_string *text, const wherry_dtensor *dtensor);

/** Describes any value. A container is described by its kind and size. */
void wh_describe_leaf(wh_string *text, const wherry_value *leaf);

#endif
