/** @file log.h  Saying a line at a level; see wherry/base.h. */
#ifndef WH_BASE_LOG_H
#define WH_BASE_LOG_H

#include <wherry/base.h>

/** Says a line where the level in force lets it through; the arguments are not formatted otherwise. */
void wh_log(wherry_log_level level, const char *format, ...) WHERRY_PRINTF(2, 3);

#endif
