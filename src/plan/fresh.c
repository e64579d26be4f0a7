/*
 * Receiving into new storages. Each new storage is at least as large as the source's storage, and
 * each element keeps its offset.
 */
#include "plan/plan.h"

#include "base/alloc.h"
#include "base/error.h"
#include "memory/memory.h"
#include "range/region.h"
#include "state/path.h"
#include "state/tensor.h"

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
        return wh_fail(error, status, "the allocate function failed for %llu bytes: %s", (unsigned long long)nbytes,
                       wherry_status_text(status));
    }
    if (!storage || wh_storage_is_bare(storage) || wherry_storage_nbytes(storage) < nbytes) {
        wherry_storage_unref(storage);
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the allocate function returned no memory, or less than the requested %llu bytes",
                       (unsigned long long)nbytes);
    }
    if (!wh_memory_of(wherry_storage_device(storage).kind)) {
        char text[WHERRY_DEVICE_TEXT_MAX];
        wherry_device_text(wherry_storage_device(storage), text);
        wherry_storage_unref(storage);
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "the allocate function returned memory on %s, which this process cannot write", text);
    }
    *storage_p = storage;
    return WHERRY_OK;
}

/** Adds the moves that write exactly the bytes of `region` in one storage. */
static wherry_status fill(wherry_plan *plan, size_t storage, wherry_storage *to, wh_region *region,
                          const wherry_value *about, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    WH_TRY_ALLOC(wh_region_merge(region, 0), error, "a plan");
    for (size_t i = 0; i < region->count && status == WHERRY_OK; i++) {
        wh_copy_work copy;
        wh_copy_of_extent(region->extents + i, &copy);
        wh_copy borrowed = wh_copy_borrow(&copy);
        status = wh_plan_add_copy(plan, storage, &borrowed, to, about, error);
    }
    return status;
}

/**
 * Adds the moves of a view whose dimensions interleave. A move follows the dimensions of the view,
 * not its extents, because the extents could take far more memory than the manifest. Elements that
 * overlap are copied several times, so their number is limited.
 */
static wherry_status fill_interleaved(wherry_plan *plan, size_t storage, wherry_storage *to, const wh_view *view,
                                      const wherry_value *about, wherry_error *error) {
    wh_copy_work copy;
    wh_copy_between_views(view, view, &copy);
    wh_copy borrowed = wh_copy_borrow(&copy);
    if (wh_copy_bytes(&borrowed) / WH_PLAN_OVERLAP > wh_copy_from_span(&borrowed)) {
        wherry_status status =
            wh_fail(error, WHERRY_LIMIT, "the elements of this tensor overlap too much; send a contiguous copy of it");
        wh_fail_value(error, about);
        return status;
    }
    return wh_plan_add_copy(plan, storage, &borrowed, to, about, error);
}

/**
 * Finds the next tensor of a storage that is received into new memory, starting at position *at of
 * the grouping. @return NULL if there is none.
 */
static const wherry_value *next_tensor(const wh_fresh *fresh, const wh_grouping *groups, size_t storage, size_t *at) {
    while (*at < groups->starts[storage + 1]) {
        const wherry_value *tensor = fresh->tensors[groups->order[(*at)++]];
        if (tensor) {
            return tensor;
        }
    }
    return NULL;
}

static wherry_status fill_storage(wherry_plan *plan, const wh_fresh *fresh, const wh_grouping *groups, size_t storage,
                                  wherry_error *error) {
    wherry_storage *to = fresh->storages[storage];
    wherry_status status = WHERRY_OK;
    wh_region region = {0};
    bool ok = true;
    size_t at = groups->starts[storage];
    const wherry_value *first = next_tensor(fresh, groups, storage, &at);
    for (const wherry_value *tensor = first; tensor && ok && status == WHERRY_OK;
         tensor = next_tensor(fresh, groups, storage, &at)) {
        wh_view view = wh_tensor_view(wherry_tensor_get(tensor));
        if (wh_view_interleaves(&view)) {
            status = fill_interleaved(plan, storage, to, &view, tensor, error);
        } else {
            ok = wh_region_add_view(&region, &view, 0);
        }
    }
    WH_THEN(status, ok ? fill(plan, storage, to, &region, first, error) : wh_fail_memory(error, "a plan"));
    wh_region_destroy(&region);
    return status;
}

/** Allocates a new storage for each storage of the source that has a tensor in `fresh`. */
static wherry_status allocate_all(wherry_plan *plan, wh_fresh *fresh, const wh_grouping *groups, wherry_error *error) {
    for (size_t s = 0; s < plan->prepared->storage_count; s++) {
        size_t at = groups->starts[s];
        if (!next_tensor(fresh, groups, s, &at)) {
            continue;
        }
        WH_TRY(allocate(plan, plan->prepared->storages[s], fresh->storages + s, error));
        WH_TRY_ALLOC(wh_plan_keep(plan, fresh->storages[s]), error, "a plan");
    }
    return WHERRY_OK;
}

wherry_status wh_plan_fresh(wherry_plan *plan, wh_fresh *fresh, wherry_error *error) {
    wh_grouping groups = {0};
    wherry_status status = wh_grouping_init(&groups, plan->prepared) ? allocate_all(plan, fresh, &groups, error)
                                                                     : wh_fail_memory(error, "a plan");
    for (size_t s = 0; s < plan->prepared->storage_count && status == WHERRY_OK; s++) {
        if (fresh->storages[s]) {
            status = fill_storage(plan, fresh, &groups, s, error);
        }
    }
    wh_grouping_destroy(&groups);
    return status;
}

bool wh_fresh_init(wh_fresh *fresh, const wherry_prepared *prepared) {
    fresh->tensors = wh_alloc_zeroed(prepared->tensor_count, sizeof(*fresh->tensors));
    fresh->storages = wh_alloc_zeroed(prepared->storage_count, sizeof(*fresh->storages));
    return fresh->tensors && fresh->storages;
}

void wh_fresh_destroy(wh_fresh *fresh, const wherry_prepared *prepared) {
    for (size_t i = 0; fresh->storages && i < prepared->storage_count; i++) {
        wherry_storage_unref(fresh->storages[i]);
    }
    wh_free(fresh->storages);
    wh_free(fresh->tensors);
}

void wh_fresh_add(wh_fresh *fresh, wherry_value *leaf, size_t first) {
    size_t count = wh_value_tensor_count(leaf);
    for (size_t i = 0; i < count; i++) {
        fresh->tensors[first + i] = wh_value_tensor_at(leaf, i);
    }
    fresh->count += count;
}

void wh_fresh_adopt(const wh_fresh *fresh, const wherry_prepared *prepared) {
    for (size_t i = 0; fresh->count && i < prepared->tensor_count; i++) {
        if (fresh->tensors[i]) {
            wh_plan_bind(fresh->tensors[i]->as.tensor, fresh->storages[prepared->tensor_storages[i]]);
        }
    }
}
