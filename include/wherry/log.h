/**
 * @file wherry/log.h  What the library says while it works.
 *
 * By default lines of level WARN and above go to standard error; the environment variable WHERRY_LOG (off, error, warn,
 * info, debug), read once, changes the level. A program may take the lines itself.
 */
#ifndef WHERRY_LOG_H
#define WHERRY_LOG_H

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How much a line matters. Since 0.1. */
typedef enum wherry_log_level {
    WHERRY_LOG_OFF = 0,   /**< As a threshold: nothing. No line has this level. */
    WHERRY_LOG_ERROR = 1, /**< Something failed. */
    WHERRY_LOG_WARN = 2,  /**< It works, but not as well as it should. */
    WHERRY_LOG_INFO = 3,  /**< What was chosen and what was done, a few lines a transfer. */
    WHERRY_LOG_DEBUG = 4, /**< Everything of use to an author of Wherry. */
} wherry_log_level;

/**
 * Receives one line, without a newline, valid only during the call. Called from whichever thread logs, several at once;
 * it must not call back into the library.
 */
typedef void (*wherry_log_fn)(void *context, wherry_log_level level, const char *line);

/**
 * Sends the library's lines to a function, for the whole process.
 * @param fn       the function, or NULL for standard error again.
 * @param context  passed to fn; must stay valid until another call replaces it and no thread is inside the library.
 * Does not block. Any thread; call it before other threads use the library. Since 0.1.
 */
WHERRY_API void wherry_log_to(wherry_log_fn fn, void *context);

/** Sets the least important level that is still said, over WHERRY_LOG's. Any thread, at any time. Since 0.1. */
WHERRY_API void wherry_log_set_level(wherry_log_level level);

/** The level in force. Any thread. Since 0.1. */
WHERRY_API wherry_log_level wherry_log_get_level(void);

#ifdef __cplusplus
}
#endif
#endif
