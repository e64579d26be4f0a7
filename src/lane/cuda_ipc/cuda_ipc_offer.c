#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "lane/cuda_ipc/cuda_ipc.h"

enum { ALLOCATION_BYTES = 18 + WH_CUDA_HANDLE_BYTES };

static void append_allocation(wh_string *string, const wh_cuda_allocation *one) {
    uint8_t handle[WH_CUDA_HANDLE_BYTES] = {0};
    bool mapped = one->fd >= 0;
    wh_append_number(string, one->base, 8);
    wh_append_number(string, one->size, 8);
    wh_append_number(string, (uint64_t)one->device, 1);
    wh_append_number(string, mapped ? WH_IPC_MAPPED : WH_IPC_PLAIN, 1);
    if (mapped) {
        wh_append_number(string, (uint32_t)one->fd, 4);
        wh_string_append(string, (const char *)handle, sizeof(handle) - 4);
    } else {
        wh_string_append(string, (const char *)one->handle, sizeof(one->handle));
    }
}

void wh_ipc_append_request(wh_string *string, const wh_identity *receiver) {
    wh_append_number(string, WH_IPC_VERSION, 1);
    wh_identity_append(string, receiver);
}

void wh_ipc_append_offer(wh_string *string, const wh_ipc_offer *offer) {
    wh_append_number(string, WH_IPC_VERSION, 1);
    wh_append_number(string, offer->keeps ? WH_IPC_KEEPS : 0, 1);
    wh_identity_append(string, &offer->identity);
    wh_string_append(string, (const char *)offer->nonce, sizeof(offer->nonce));
    wh_append_number(string, offer->nonce_address, 8);
    wh_append_number(string, offer->device_count, 1);
    for (size_t i = 0; i < offer->device_count; i++) {
        wh_append_number(string, (uint64_t)offer->devices[i], 1);
        wh_string_append(string, (const char *)offer->uuids[i], WH_CUDA_UUID_BYTES);
    }
    wh_append_number(string, offer->allocation_count, 4);
    for (size_t i = 0; i < offer->allocation_count; i++) {
        append_allocation(string, offer->allocations + i);
    }
}

static void take_allocation(wh_cursor *cursor, wh_cuda_allocation *one) {
    *one = (wh_cuda_allocation){.base = wh_cursor_number(cursor, 8), .fd = -1};
    one->size = wh_cursor_number(cursor, 8);
    one->device = (int32_t)wh_cursor_number(cursor, 1);
    uint64_t kind = wh_cursor_number(cursor, 1);
    wh_cursor_copy(cursor, one->handle, sizeof(one->handle));
    if (kind == WH_IPC_MAPPED && !cursor->failed) {
        wh_cursor handle = wh_cursor_over(one->handle, sizeof(one->handle));
        uint64_t number = wh_cursor_number(&handle, 4);
        uint64_t rest = 0;
        while (handle.left) {
            rest |= wh_cursor_number(&handle, 1);
        }
        one->fd = (int)(number & INT32_MAX);
        cursor->failed = number > INT32_MAX || rest;
    }
    cursor->failed = cursor->failed || kind > WH_IPC_MAPPED || one->size == 0 || one->base > UINT64_MAX - one->size;
}

wherry_status wh_ipc_parse_request(const void *bytes, size_t size, wh_identity *receiver_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_identity receiver = {.process = 0};
    uint64_t version = wh_cursor_number(&cursor, 1);
    wh_identity_take(&cursor, &receiver);
    if (!wh_cursor_ended(&cursor) || version != WH_IPC_VERSION) {
        return wh_fail(error, WHERRY_MALFORMED, "a request of %zu bytes is none of the lane cuda_ipc", size);
    }
    *receiver_p = receiver;
    return WHERRY_OK;
}

static void take_head(wh_cursor *cursor, wh_ipc_offer *offer) {
    uint64_t flags = wh_cursor_number(cursor, 1);
    offer->keeps = flags & WH_IPC_KEEPS;
    wh_identity_take(cursor, &offer->identity);
    wh_cursor_copy(cursor, offer->nonce, sizeof(offer->nonce));
    offer->nonce_address = wh_cursor_number(cursor, 8);
    offer->device_count = (size_t)wh_cursor_number(cursor, 1);
    cursor->failed = cursor->failed || flags > WH_IPC_KEEPS || offer->device_count > WH_CUDA_DEVICES_MAX;
    for (size_t i = 0; i < offer->device_count && !cursor->failed; i++) {
        offer->devices[i] = (int32_t)wh_cursor_number(cursor, 1);
        wh_cursor_copy(cursor, offer->uuids[i], WH_CUDA_UUID_BYTES);
    }
    offer->allocation_count = (size_t)wh_cursor_number(cursor, 4);
}

wherry_status wh_ipc_parse_offer(const void *bytes, size_t size, wh_ipc_offer *offer_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_ipc_offer offer = {.keeps = false};
    uint64_t version = wh_cursor_number(&cursor, 1);
    if (!cursor.failed && version != WH_IPC_VERSION) {
        return wh_fail(error, WHERRY_BAD_VERSION, "the source has version %u of the lane cuda_ipc, and this is %d",
                       (unsigned)version, WH_IPC_VERSION);
    }
    take_head(&cursor, &offer);
    if (cursor.failed || offer.allocation_count == 0 || offer.allocation_count != cursor.left / ALLOCATION_BYTES) {
        return wh_fail(error, WHERRY_MALFORMED, "an offer of %zu bytes is none of the lane cuda_ipc", size);
    }
    offer.allocations = wh_alloc_array(offer.allocation_count, sizeof(*offer.allocations));
    if (!offer.allocations) {
        return wh_fail_memory(error, "an offer");
    }
    for (size_t i = 0; i < offer.allocation_count; i++) {
        take_allocation(&cursor, offer.allocations + i);
    }
    const wh_cuda_allocation *first = offer.allocations;
    bool inside = offer.nonce_address >= first->base && first->size >= WH_IPC_NONCE &&
                  offer.nonce_address - first->base <= first->size - WH_IPC_NONCE;
    if (!wh_cursor_ended(&cursor) || !inside) {
        wh_free(offer.allocations);
        return wh_fail(error, WHERRY_MALFORMED, "an offer of %zu bytes is none of the lane cuda_ipc", size);
    }
    *offer_p = offer;
    return WHERRY_OK;
}
