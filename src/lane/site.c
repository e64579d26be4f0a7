#include "lane/site.h"

#include <wherry/checkpoint.h>

#include "base/error.h"

int32_t wh_site_device(const wh_lane_site *site) {
    return site->devices ? __builtin_ctzll(site->devices) : -1;
}

wh_deadline wh_site_patience(const wh_lane_site *site) {
    return wh_deadline_earlier(site->deadline, wh_deadline_in_ms(site->no_progress_ms));
}

wherry_status wh_site_blame(const wh_lane_site *site, wherry_status status, wherry_error *error) {
    return status == WHERRY_OK || status == WHERRY_CANCELLED ? status : wh_fail_rank(error, site->peer, status);
}

wherry_status wh_site_timed_out(const wh_lane_site *site, wherry_error *error) {
    wherry_status status =
        wh_deadline_passed(site->deadline)
            ? wh_fail(error, WHERRY_TIMED_OUT, "timed out before all bytes had moved between here and rank %d",
                      (int)site->peer)
            : wh_fail(error, WHERRY_TIMED_OUT,
                      "timed out: rank %d has not moved a byte for %u ms; it is stopped, or the network is",
                      (int)site->peer, (unsigned)site->no_progress_ms);
    return wh_site_blame(site, status, error);
}

wherry_status wh_site_other_host(const wh_lane_site *site, wherry_error *error) {
    wh_fail(error, WHERRY_UNSUPPORTED, "rank %d is on another host", (int)site->peer);
    if (error) {
        error->reason = WHERRY_LANE_OTHER_HOST;
    }
    return WHERRY_UNSUPPORTED;
}

wherry_status wh_site_cancelled(wherry_error *error) {
    return wh_fail(error, WHERRY_CANCELLED, "the transfer was stopped");
}
