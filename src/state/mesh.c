#include <wherry/tensor.h>

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/index.h"
#include "base/text.h"
#include "state/mesh.h"

/** The arrays and names lie behind it, in the same block. */
struct wherry_mesh {
    atomic_size_t references;
    wherry_mesh_info info;
};

bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] < 1 || !wh_mul(count, (uint64_t)shape[d], &count)) {
            return false;
        }
    }
    *count_p = count;
    return true;
}

static wherry_status check(const wherry_mesh_info *info, uint64_t *count_p, size_t *names_p, wherry_error *error) {
    if (!info || info->ndim < 1 || info->ndim > WHERRY_NDIM_MAX || !info->shape || !info->ranks) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a mesh has 1 to %d dimensions, a shape and ranks",
                       WHERRY_NDIM_MAX);
    }
    if (!wh_mesh_count(info->ndim, info->shape, count_p) || *count_p > SIZE_MAX / sizeof(int64_t) / 2) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "each size of a mesh is at least 1, and their product is small");
    }
    for (uint64_t i = 0; i < *count_p; i++) {
        if (info->ranks[i] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %lld of the mesh is negative",
                           (long long)info->ranks[i]);
        }
    }
    *names_p = 0;
    for (uint32_t d = 0; d < info->ndim && info->dim_names; d++) {
        const char *name = info->dim_names[d];
        if (!name || !wh_utf8_valid(name, strlen(name))) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "name %u of the mesh's dimensions is not UTF-8", d);
        }
        *names_p += sizeof(char *) + strlen(name) + 1;
    }
    return WHERRY_OK;
}

wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error) {
    uint64_t count = 0;
    size_t names = 0;
    wherry_status status = check(info, &count, &names, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t numbers = info->ndim + count;
    wherry_mesh *mesh = wh_alloc(sizeof(*mesh) + numbers * sizeof(int64_t) + names);
    if (!mesh) {
        return wh_fail_memory(error, "a mesh");
    }
    int64_t *shape = (int64_t *)(mesh + 1);
    int64_t *ranks = shape + info->ndim;
    memcpy(shape, info->shape, info->ndim * sizeof(*shape));
    memcpy(ranks, info->ranks, count * sizeof(*ranks));
    *mesh = (wherry_mesh){.references = 1, .info = *info};
    mesh->info.shape = shape;
    mesh->info.ranks = ranks;
    if (info->dim_names) {
        const char **pointers = (const char **)(ranks + count);
        char *text = (char *)(pointers + info->ndim);
        for (uint32_t d = 0; d < info->ndim; d++) {
            size_t size = strlen(info->dim_names[d]) + 1;
            pointers[d] = memcpy(text, info->dim_names[d], size);
            text += size;
        }
        mesh->info.dim_names = pointers;
    }
    *mesh_p = mesh;
    return WHERRY_OK;
}

wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh) {
    atomic_fetch_add_explicit(&mesh->references, 1, memory_order_relaxed);
    return mesh;
}

void wherry_mesh_unref(wherry_mesh *mesh) {
    if (mesh && atomic_fetch_sub_explicit(&mesh->references, 1, memory_order_acq_rel) == 1) {
        wh_free(mesh);
    }
}

const wherry_mesh_info *wherry_mesh_get(const wherry_mesh *mesh) {
    return &mesh->info;
}

bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other) {
    const wherry_mesh_info *a = &one->info;
    const wherry_mesh_info *b = &other->info;
    if (one == other) {
        return true;
    }
    if (a->device != b->device || a->ndim != b->ndim || !a->dim_names != !b->dim_names ||
        memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) != 0) {
        return false;
    }
    for (uint32_t d = 0; d < a->ndim && a->dim_names; d++) {
        if (strcmp(a->dim_names[d], b->dim_names[d]) != 0) {
            return false;
        }
    }
    uint64_t count;
    return wh_mesh_count(a->ndim, a->shape, &count) && memcmp(a->ranks, b->ranks, count * sizeof(*a->ranks)) == 0;
}

uint64_t wh_mesh_hash(const wherry_mesh *mesh) {
    const wherry_mesh_info *info = &mesh->info;
    uint64_t count = 0;
    wh_mesh_count(info->ndim, info->shape, &count);
    uint64_t hash = wh_hash(info->shape, info->ndim * sizeof(*info->shape), (uint64_t)info->device);
    return wh_hash(info->ranks, count * sizeof(*info->ranks), hash);
}

bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]) {
    const wherry_mesh_info *info = &mesh->info;
    uint64_t count;
    if (!wh_mesh_count(info->ndim, info->shape, &count)) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (info->ranks[i] == rank) {
            uint64_t rest = i;
            for (uint32_t d = info->ndim; d-- > 0;) {
                coordinate[d] = (int64_t)(rest % (uint64_t)info->shape[d]);
                rest /= (uint64_t)info->shape[d];
            }
            return true;
        }
    }
    return false;
}
