#include "lane/ptracer.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#include "base/error.h"
#include "base/log.h"

uint64_t wh_ptracer_choose(_Atomic uint64_t *slot, uint64_t process) {
    uint64_t named = atomic_load(slot);
    uint64_t wanted;
    do {
        /* A receiver that is gone, because it was started anew, needs its right no more. */
        bool gone = named != WH_PTRACER_ANYONE && named != 0 && kill((pid_t)named, 0) != 0 && errno == ESRCH;
        wanted = named == 0 || gone || named == process ? process : WH_PTRACER_ANYONE;
    } while (!atomic_compare_exchange_weak(slot, &named, wanted));
    return wanted;
}

wherry_status wh_ptracer_name(const wh_lane_site *site, const wh_identity *receiver, wherry_error *error) {
    static _Atomic uint64_t slot;
    wh_identity own;
    wherry_status status = wh_identity_read(&own, error);
    if (status == WHERRY_OK && site->keep_ptracer) {
        status = wh_fail(error, WHERRY_REFUSED,
                         "the ptracer of the source's process must not be set, as it was told: allow it, or set "
                         "/proc/sys/kernel/yama/ptrace_scope to 0");
    }
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t process = (uint64_t)wh_group_process(site->group, site->peer);
    if (process == 0) {
        process = wh_identity_shares_pids(&own, receiver) ? receiver->process : WH_PTRACER_ANYONE;
    }
    uint64_t named = wh_ptracer_choose(&slot, process);
    wh_log(WHERRY_LOG_INFO, "rank %d may not reach into this process: naming %s its ptracer", site->peer,
           named == WH_PTRACER_ANYONE ? "anyone" : "that process");
    if (prctl(PR_SET_PTRACER, named == WH_PTRACER_ANYONE ? PR_SET_PTRACER_ANY : (unsigned long)named, 0, 0, 0) != 0) {
        return wh_fail_errno(error, WHERRY_UNSUPPORTED, errno,
                             "PR_SET_PTRACER: the kernel has no Yama, or there is no such process");
    }
    return WHERRY_OK;
}
