#include "base/alloc.h"
#include "lane/lane.h"

bool wh_segments_add(wh_segments *segments, void *base, size_t length) {
    struct iovec *last = segments->count ? segments->items + segments->count - 1 : NULL;
    segments->bytes += length;
    if (last && (base ? last->iov_base && (char *)last->iov_base + last->iov_len == base : !last->iov_base)) {
        last->iov_len += length;
        return true;
    }
    if (!WH_GROW(segments->items, segments->capacity, segments->count)) {
        return false;
    }
    segments->items[segments->count++] = (struct iovec){base, length};
    return true;
}

void wh_segments_clear(wh_segments *segments) {
    segments->count = 0;
    segments->bytes = 0;
}

void wh_segments_destroy(wh_segments *segments) {
    wh_free(segments->items);
    *segments = (wh_segments){0};
}

void wh_routes_clear(wh_routes *routes) {
    routes->count = 0;
    routes->bytes = 0;
    routes->span = 0;
}

void wh_routes_destroy(wh_routes *routes) {
    wh_segments_destroy(&routes->origin);
    wh_free(routes->begins);
    wh_free(routes->items);
    *routes = (wh_routes){0};
}

void wh_landing_destroy(wh_landing *landing) {
    wh_segments_destroy(&landing->segments);
    wh_free(landing->scratch);
    *landing = (wh_landing){0};
}
