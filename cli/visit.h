/**
 * @file visit.h  Visiting a `wherry serve`: an address and a token, and a place in its group for as long as the visit lasts.
 *
 * A server holds an open meeting as rank 0 of a group of many places, with the token as its secret; a guest takes a place at random, and says what it wants
 * before it receives. Whoever has not the token does not get into the group, and so nothing of what is served.
 */
#ifndef WH_CLI_VISIT_H
#define WH_CLI_VISIT_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "command.h"

enum {
    WH_VISIT_PLACES = 32768, /**< The size of the group. */
    WH_VISIT_TAG = 1,        /**< Of what a guest says first: one letter. */
    WH_ANSWER_TAG = 2,       /**< Of what it is told: nothing, or why not. */
    WH_VISIT_BYTES = 'B',    /**< It wants files, byte for byte. */
    WH_VISIT_STATES = 'S',   /**< It wants tensors of what they hold. */
    WH_VISIT_LOOK = 'L',     /**< It only looks at what there is, and then gives up. */
    WH_TOKEN_MAX = 256,      /**< Bytes of a token, with a final zero. */
};

/** What stands behind an address, for all of them. */
#define WH_VISIT_JOB "wherry-serve"

/** Starts as {0}. */
typedef struct wh_visit {
    wherry_group *group;
    wherry_transport *transport;
} wh_visit;

/** Whether a text is an address rather than the name of a file. */
bool wh_is_address(const char *text);

/** Whether it is one like those that `wherry serve` prints, with a port and nothing behind it. */
bool wh_is_server(const char *text);

/** Says that a text is none. @return the exit code. */
int wh_fail_address(const wh_command *command, const char *text);

/** Makes a token of random letters. @return false where the system has no random numbers. */
bool wh_token_make(char token[WH_TOKEN_MAX]);

/**
 * Joins, and says what is wanted.
 * @param token_file  where the token stands; NULL: in WHERRY_TOKEN of the environment, else it is asked for on the terminal.
 * @param wish        WH_VISIT_BYTES, WH_VISIT_STATES or WH_VISIT_LOOK.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where there is no token; what wherry_group_join returns, WHERRY_BAD_SECRET for a wrong token; WHERRY_REFUSED with the
 * server's reason.
 */
wherry_status wh_visit_begin(wh_visit *visit, const char *address, const char *token_file, int64_t timeout_s, char wish,
                             wherry_error *error);

void wh_visit_end(wh_visit *visit);

/** Looks at what is served. @param state_p  the caller's; its tensors have no memory. */
wherry_status wh_visit_look(const char *address, const char *token_file, int64_t timeout_s, const wh_common *common,
                            wherry_value **state_p, wherry_error *error);

/** Sets how much the library tells, as -q and -v say. */
void wh_set_log(const wh_common *common);

#endif
