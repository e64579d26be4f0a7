/*
 * Creates transports. A transport is a group and a list of all lanes. Its other functions are in
 * transfer/serve.c.
 */
#include <wherry/checkpoint.h>

#include "api/group_handle.h"
#include "base/error.h"
#include "base/options.h"
#include "lane/lanes.h"
#include "transfer/message.h"
#include "transfer/serve.h"

enum { NUMBER_MAX = 65535 };

/** All lanes, the fastest first. */
static const wh_lane_ops *const lanes[] = {&wh_lane_cuda_ipc, &wh_lane_nccl,   &wh_lane_cma,   &wh_lane_ring,
                                           &wh_lane_ucx,      &wh_lane_blocks, &wh_lane_stream};
_Static_assert(sizeof(lanes) / sizeof(*lanes) <= WH_OFFERED_LANES_MAX, "an offer must have room for all lanes");

void wherry_transport_options_init(wherry_transport_options *options) {
    *options = (wherry_transport_options){.struct_size = sizeof(*options)};
}

wherry_status wherry_transport_create(wherry_group *group, const wherry_transport_options *options,
                                      wherry_transport **transport_p, wherry_error *error) {
    wherry_transport_options chosen;
    wherry_transport_options_init(&chosen);
    if (!group || !transport_p || !wh_options_take(&chosen, sizeof(chosen), options) || chosen.number > NUMBER_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "group or transport_p is NULL, or the options were not initialized with "
                       "wherry_transport_options_init, or options.number is above %d",
                       NUMBER_MAX);
    }
    return wh_transport_create(wh_group_of(group), chosen.number, lanes, sizeof(lanes) / sizeof(*lanes), transport_p,
                               error);
}
