/**
 * @file ptracer.h  Letting a receiver of the same host into this process where Yama keeps it out (ptrace_scope 1): for lanes by which it reads memory or fetches
 * descriptors here.
 */
#ifndef WH_LANE_PTRACER_H
#define WH_LANE_PTRACER_H

#include "base/process.h"
#include "lane/lane.h"

/**
 * SOURCE. Names a receiver that was refused this process's ptracer, unless the site says that this must not be.
 * @param receiver  as it says of itself; what the group knows of its process goes before.
 * @return WHERRY_OK; WHERRY_REFUSED where it must not be; WHERRY_UNSUPPORTED where the kernel has no Yama.
 */
wherry_status wh_ptracer_name(const wh_lane_site *site, const wh_identity *receiver, wherry_error *error);

/**
 * Which process a source names its ptracer: there is one slot, and where a second process asks for it, both get in only by WH_PTRACER_ANYONE.
 * @param slot  what was named last, 0: nobody; becomes the answer.
 */
#define WH_PTRACER_ANYONE UINT64_MAX
uint64_t wh_ptracer_choose(_Atomic uint64_t *slot, uint64_t process);

#endif
