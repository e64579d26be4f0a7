/** @file log.h  Log lines by level; see wherry/base.h. */
#ifndef WH_BASE_LOG_H
#define WH_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/base.h>

/** Logs a line if its level is enabled. Otherwise it returns without formatting the arguments. */
void wh_log(wherry_log_level level, const char *format, ...) WHERRY_PRINTF(2, 3);

/**
 * Logs, at level info, for whom a call waits: "waiting for WHO, which must call CALL". By default
 * this is the only line of its level that is logged, so that users do not think that the program
 * hangs.
 * @param call    "": not said.
 * @param format  the text of WHO.
 */
void wh_log_wait(const char *call, const char *format, ...) WHERRY_PRINTF(2, 3);

/** False if wh_log_wait logs nothing, so that its arguments need not be computed. */
bool wh_log_has_waits(void);

/** The times at which a wait is logged. Initialize it with {0} when the wait begins. */
typedef struct wh_wait_log {
    uint64_t next; /**< By wh_clock_now; 0 before the first question. */
} wh_wait_log;

/** Ask this again and again. @return true 3 s after the first question, then every 30 s. */
bool wh_wait_is_long(wh_wait_log *wait);

#endif
