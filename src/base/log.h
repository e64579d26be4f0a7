/** @file log.h  Log lines by level; see wherry/base.h. */
#ifndef WH_BASE_LOG_H
#define WH_BASE_LOG_H

#include <wherry/base.h>

/** Logs a line if its level is enabled. Otherwise it returns without formatting the arguments. */
void wh_log(wherry_log_level level, const char *format, ...) WHERRY_PRINTF(2, 3);

#endif
