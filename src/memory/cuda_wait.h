/** @file cuda_wait.h  Waiting for a device, or a library that works on it, which tells only when it is asked. */
#ifndef WH_MEMORY_CUDA_WAIT_H
#define WH_MEMORY_CUDA_WAIT_H

#include "base/stop.h"

/** How long it has been waited; starts as {0}. */
typedef struct wh_cuda_patience {
    bool
        awake; /**< It is about to be done: do not sleep for the first milliseconds, since a sleep takes longer than it says. */
    uint64_t begun;
    uint64_t nap;
} wh_cuda_patience;

/**
 * Passes a moment between two questions: none at first, since copies often take less than a sleep does.
 * @param stop  may be NULL.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT, with `what` in the text.
 */
wherry_status wh_cuda_nap(wh_cuda_patience *patience, const wh_stop *stop, wh_deadline deadline, const char *what,
                          wherry_error *error);

#endif
