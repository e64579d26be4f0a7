/* What the two sides of the nccl lane tell each other. */
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "lane/nccl/nccl_lane.h"

static wherry_status check_version(wh_cursor *cursor, wherry_error *error) {
    uint64_t version = wh_cursor_number(cursor, 1);
    return cursor->failed || version == WH_NCCL_VERSION
               ? WHERRY_OK
               : wh_fail(error, WHERRY_BAD_VERSION, "the other side has version %u of the lane nccl, and this is %d",
                         (unsigned)version, WH_NCCL_VERSION);
}

void wh_nccl_append_offer(wh_string *string, const wh_nccl_offer *offer) {
    wh_append_number(string, WH_NCCL_VERSION, 1);
    wh_string_append(string, offer->boot, sizeof(offer->boot));
    wh_string_append(string, (const char *)offer->process, sizeof(offer->process));
    wh_append_number(string, offer->count, 1);
    for (size_t i = 0; i < offer->count; i++) {
        wh_append_number(string, offer->ids[i], 8);
    }
}

wherry_status wh_nccl_parse_offer(const void *bytes, size_t size, wh_nccl_offer *offer_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_nccl_offer offer = {.count = 0};
    wherry_status status = check_version(&cursor, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_cursor_copy(&cursor, offer.boot, sizeof(offer.boot));
    wh_cursor_copy(&cursor, offer.process, sizeof(offer.process));
    offer.count = (size_t)wh_cursor_number(&cursor, 1);
    cursor.failed = cursor.failed || offer.count > WH_NCCL_KEPT_MAX;
    for (size_t i = 0; i < offer.count && !cursor.failed; i++) {
        offer.ids[i] = wh_cursor_number(&cursor, 8);
    }
    if (!wh_cursor_ended(&cursor)) {
        return wh_fail(error, WHERRY_MALFORMED, "an offer of %zu bytes is none of the lane nccl", size);
    }
    *offer_p = offer;
    return WHERRY_OK;
}

void wh_nccl_append_request(wh_string *string, const wh_nccl_request *request) {
    wh_append_number(string, WH_NCCL_VERSION, 1);
    wh_string_append(string, (const char *)request->process, sizeof(request->process));
    wh_append_number(string, request->id, 8);
    wh_append_number(string, request->library, 4);
    wh_append_number(string, request->message_mib, 1);
    wh_string_append(string, request->unique.bytes, sizeof(request->unique.bytes));
}

wherry_status wh_nccl_parse_request(const void *bytes, size_t size, wh_nccl_request *request_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_nccl_request request = {.id = 0};
    wherry_status status = check_version(&cursor, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_cursor_copy(&cursor, request.process, sizeof(request.process));
    request.id = wh_cursor_number(&cursor, 8);
    request.library = (uint32_t)wh_cursor_number(&cursor, 4);
    request.message_mib = (uint8_t)wh_cursor_number(&cursor, 1);
    wh_cursor_copy(&cursor, request.unique.bytes, sizeof(request.unique.bytes));
    bool sane = request.message_mib > 0 && request.message_mib <= WH_NCCL_MESSAGE_MIB_MAX;
    if (!wh_cursor_ended(&cursor) || !sane) {
        return wh_fail(error, WHERRY_MALFORMED, "a request of %zu bytes is none of the lane nccl", size);
    }
    *request_p = request;
    return WHERRY_OK;
}
