#include "range/box.h"

#include <assert.h>
#include <string.h>

bool wh_box_equal(const wh_box *one, const wh_box *other) {
    size_t bytes = one->ndim * sizeof(*one->offsets);
    return one->ndim == other->ndim && memcmp(one->offsets, other->offsets, bytes) == 0 &&
           memcmp(one->sizes, other->sizes, bytes) == 0;
}

bool wh_box_within(const wh_box *box, const int64_t *shape) {
    for (uint32_t d = 0; d < box->ndim; d++) {
        if (box->offsets[d] < 0 || box->sizes[d] < 0 || box->sizes[d] > shape[d] ||
            box->offsets[d] > shape[d] - box->sizes[d]) {
            return false;
        }
    }
    return true;
}

bool wh_box_intersect(const wh_box *one, const wh_box *other, wh_box *common) {
    common->ndim = one->ndim;
    for (uint32_t d = 0; d < one->ndim; d++) {
        int64_t a_end = one->offsets[d] + one->sizes[d];
        int64_t b_end = other->offsets[d] + other->sizes[d];
        int64_t begin = one->offsets[d] > other->offsets[d] ? one->offsets[d] : other->offsets[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end) {
            return false;
        }
        common->offsets[d] = begin;
        common->sizes[d] = end - begin;
    }
    return true;
}

/** The part of a view that is `common`, the view being `box` of the same tensor. */
static wh_view narrow(const wh_view *view, const wh_box *box, const wh_box *common) {
    wh_view part = *view;
    part.shape = common->sizes;
    for (uint32_t d = 0; d < box->ndim; d++) {
        part.offset += (uint64_t)(common->offsets[d] - box->offsets[d]) * (uint64_t)view->strides[d] * view->item;
    }
    return part;
}

bool wh_copy_between_boxes(const wh_box *from, const wh_view *from_view, const wh_box *to, const wh_view *to_view,
                           wh_copy_work *copy) {
    assert(from->ndim == to->ndim);
    wh_box common;
    if (!wh_box_intersect(from, to, &common)) {
        return false;
    }
    wh_view source = narrow(from_view, from, &common);
    wh_view target = narrow(to_view, to, &common);
    return wh_copy_between_views(&source, &target, copy);
}
