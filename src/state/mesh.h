/** @file mesh.h  Private side of meshes; see wherry/tensor.h. */
#ifndef WH_STATE_MESH_H
#define WH_STATE_MESH_H

#include <stdbool.h>

#include <wherry/tensor.h>

/** The number of ranks of a mesh of that shape. @return false where a size is below 1 or the product overflows. */
bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p);

/** Whether two meshes are made of the same. */
bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other);

/** A hash that equal meshes have in common. */
uint64_t wh_mesh_hash(const wherry_mesh *mesh);

/** Where a rank stands in a mesh. @return false where it does not. */
bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]);

#endif
