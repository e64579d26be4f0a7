/* Receiving into new storages: each as large as the source's, each element where it was. */
#include "base/alloc.h"
#include "base/fail.h"
#include "memory/memory.h"
#include "plan/plan.h"
#include "range/region.h"
#include "state/path.h"
#include "state/storage.h"

static wherry_status allocate(const wherry_plan *plan, const wherry_storage *from, wherry_storage **storage_p,
                              wherry_error *error) {
    const wherry_plan_options *options = &plan->options;
    uint64_t nbytes = wherry_storage_nbytes(from);
    wherry_device device = options->flags & WHERRY_PLAN_TO_DEVICE ? options->device : wherry_storage_device(from);
    if (!options->allocate || nbytes == 0) {
        return nbytes ? wherry_storage_allocate(nbytes, device, storage_p, error)
                      : wherry_storage_describe(0, device, storage_p, error);
    }
    wherry_storage *storage = NULL;
    wherry_status status = options->allocate(options->context, nbytes, device, &storage);
    if (status != WHERRY_OK) {
        return wh_fail(error, status, "the allocate function refused %llu bytes: %s", (unsigned long long)nbytes,
                       wherry_status_text(status));
    }
    if (!storage || wh_storage_is_bare(storage) || wherry_storage_nbytes(storage) < nbytes) {
        wherry_storage_unref(storage);
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the allocate function gave less than the %llu bytes asked for",
                       (unsigned long long)nbytes);
    }
    *storage_p = storage;
    return WHERRY_OK;
}

typedef struct listing {
    wherry_value **tensors;
    size_t count;
} listing;

static bool list_leaf(void *context, wherry_value *leaf) {
    listing *list = context;
    size_t count = wh_value_tensor_count(leaf);
    for (size_t i = 0; i < count; i++) {
        list->tensors[list->count++] = wh_value_tensor_at(leaf, i);
    }
    return true;
}

/** The moves that fill one storage: what its views cover, to the byte. */
static wherry_status fill(wherry_plan *plan, size_t storage, wherry_storage *to, wh_region *region,
                          const wherry_value *about, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (!wh_region_merge(region, 0)) {
        return wh_fail_memory(error, "a plan");
    }
    for (size_t i = 0; i < region->count && status == WHERRY_OK; i++) {
        wh_copy_work copy;
        wh_copy_of_extent(region->extents + i, &copy);
        wh_copy borrowed = wh_copy_borrow(&copy);
        status = wh_plan_add_copy(plan, storage, &borrowed, to, about, error);
    }
    return status;
}

/**
 * A view that interleaves is copied as it is: writing it out as extents could take memory out of all proportion to the manifest. Its elements may
 * overlap, but not without end.
 */
static wherry_status fill_interleaved(wherry_plan *plan, size_t storage, wherry_storage *to, const wh_view *view,
                                      const wherry_value *about, wherry_error *error) {
    wh_copy_work copy;
    wh_copy_between_views(view, view, &copy);
    wh_copy borrowed = wh_copy_borrow(&copy);
    if (wh_copy_bytes(&borrowed) / WH_PLAN_OVERLAP > wh_copy_from_span(&borrowed)) {
        wherry_status status = wh_fail(error, WHERRY_LIMIT, "the elements of this tensor overlap each other too often");
        wh_fail_value(error, about);
        return status;
    }
    return wh_plan_add_copy(plan, storage, &borrowed, to, about, error);
}

static wherry_status fill_all(wherry_plan *plan, wherry_storage *const *storages, const wh_grouping *groups,
                              wherry_value *const *tensors, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t s = 0; s < plan->prepared->storage_count && status == WHERRY_OK; s++) {
        wh_region region = {0};
        bool ok = true;
        for (size_t i = groups->starts[s]; i < groups->starts[s + 1] && ok && status == WHERRY_OK; i++) {
            const wherry_value *tensor = tensors[groups->order[i]];
            wh_view view = wh_tensor_view(wherry_tensor_get(tensor));
            if (wh_view_interleaves(&view)) {
                status = fill_interleaved(plan, s, storages[s], &view, tensor, error);
            } else {
                ok = wh_region_add_view(&region, &view, 0);
            }
        }
        if (status == WHERRY_OK) {
            status = ok ? fill(plan, s, storages[s], &region, tensors[groups->order[groups->starts[s]]], error)
                        : wh_fail_memory(error, "a plan");
        }
        wh_region_destroy(&region);
    }
    return status;
}

wherry_status wh_plan_fresh(wherry_plan *plan, wherry_storage **storages, wherry_error *error) {
    const wherry_prepared *prepared = plan->prepared;
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < prepared->storage_count && status == WHERRY_OK; i++) {
        status = allocate(plan, prepared->storages[i], storages + i, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_grouping groups = {0};
    listing list = {wh_alloc_array(prepared->tensor_count, sizeof(*list.tensors)), 0};
    if (!list.tensors || !wh_grouping_init(&groups, prepared)) {
        status = wh_fail_memory(error, "a plan");
    } else {
        wh_visit_tensor_leaves(prepared->state, list_leaf, &list);
        status = fill_all(plan, storages, &groups, list.tensors, error);
    }
    wh_grouping_destroy(&groups);
    wh_free(list.tensors);
    plan->tensor_count = prepared->tensor_count;
    return status;
}
