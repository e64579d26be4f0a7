/** @file rebuild.h  Copying the containers of a tree, with whatever leaves are wanted. */
#ifndef WH_STATE_REBUILD_H
#define WH_STATE_REBUILD_H

#include <wherry/value.h>

/** Gives the leaf that is to stand where `leaf` stands. */
typedef wherry_status (*wh_leaf_fn)(const wherry_value *leaf, wherry_value **copy_p, wherry_error *error);

/** Builds containers, keys and objects anew; an empty container is a leaf. */
wherry_status wh_value_rebuild(const wherry_value *value, wh_leaf_fn leaf, wherry_value **copy_p, wherry_error *error);

#endif
