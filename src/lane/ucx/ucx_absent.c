/* The lane `ucx` where there were no headers of UCX when the library was built. */
#include "base/error.h"
#include "lane/lanes.h"

static wherry_status say_absent(wherry_error *error) {
    return wh_fail(
        error, WHERRY_UNSUPPORTED,
        "this libwherry was built without UCX: install its headers (libucx-dev, ucx-devel) and build it again");
}

static wherry_status absent_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    (void)site, (void)offer;
    return say_absent(error);
}

static wherry_status absent_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                  bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    (void)site, (void)offer, (void)size, (void)request, (void)end_p;
    *assist_p = false;
    return say_absent(error);
}

static wherry_status absent_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                   wh_lane_end **end_p, wherry_error *error) {
    (void)site, (void)request, (void)size, (void)ready_p, (void)end_p;
    return say_absent(error);
}

static void absent_close(wh_lane_end *end) {
    (void)end; /* there never is one */
}

const wh_lane_ops wh_lane_ucx_absent = {
    .name = "ucx",
    .traits = WH_LANE_NETWORK | WH_LANE_DIGESTS | WH_LANE_STAGES,
    .offer = absent_offer,
    .probe = absent_probe,
    .accept = absent_accept,
    .close = absent_close,
};
