/**
 * @file nccl.h  The messages and the end of the nccl lane.
 *
 * An offer has, with sizes in bytes: version (1), boot id (36), random number of the source's
 * process (16), number of cached communicators with the receiver (1), id of each of these
 * communicators (8).
 *
 * A request has: version (1), random number of the receiver's process (16), id of the communicator
 * (8), version of NCCL (4), length of a message in MiB (1), NCCL's unique id (128). A request for
 * assistance has the same fields. Only `assist` uses the unique id. Numbers are big-endian.
 *
 * The chunks of a round are packed into messages, in order. A message ends with the first chunk
 * that makes it reach the agreed length. So both sides know all lengths, and no headers are needed.
 */
#ifndef WH_LANE_NCCL_NCCL_H
#define WH_LANE_NCCL_NCCL_H

#include "base/process.h"
#include "lane/nccl/nccl_comm.h"

enum { WH_NCCL_VERSION = 1, WH_NCCL_MESSAGE_MIB = 32, WH_NCCL_MESSAGE_MIB_MAX = 64 };

typedef struct wh_nccl_offer {
    char boot[WH_BOOT_BYTES];
    uint8_t process[WH_NCCL_PROCESS_BYTES];
    size_t count;
    uint64_t ids[WH_NCCL_KEPT_MAX];
} wh_nccl_offer;

typedef struct wh_nccl_request {
    uint8_t process[WH_NCCL_PROCESS_BYTES];
    uint64_t id;
    uint32_t library; /**< The version of NCCL. */
    uint8_t message_mib;
    wh_nccl_unique unique;
} wh_nccl_request;

void wh_nccl_append_offer(wh_string *string, const wh_nccl_offer *offer);
void wh_nccl_append_request(wh_string *string, const wh_nccl_request *request);

/** These functions parse messages. @return WHERRY_OK; WHERRY_MALFORMED, WHERRY_BAD_VERSION. */
wherry_status wh_nccl_parse_offer(const void *bytes, size_t size, wh_nccl_offer *offer_p, wherry_error *error);
wherry_status wh_nccl_parse_request(const void *bytes, size_t size, wh_nccl_request *request_p, wherry_error *error);

typedef struct wh_nccl_end {
    wh_lane_end base;
    const wh_lane_site *site;
    wh_nccl_comm *comm;
    uint64_t message_bytes;
} wh_nccl_end;

static inline wh_nccl_end *wh_nccl_end_of(wh_lane_end *end) {
    return (wh_nccl_end *)(void *)end;
}

wherry_status wh_nccl_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);
wherry_status wh_nccl_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);

#endif
