/**
 * @file client.h  A client of `wherry serve`: address, token, request.
 *
 * The server is rank 0 of an open group of WH_SERVE_RANKS ranks whose secret is the token. A client
 * joins as a random rank, sends one request byte, and waits for an answer: empty, or why the server
 * refuses. Without the token nobody can join, so nobody learns anything about the files.
 */
#ifndef WH_CLI_CLIENT_H
#define WH_CLI_CLIENT_H

#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "command.h"

enum {
    WH_SERVE_RANKS = 32768,
    WH_TAG_REQUEST = 1,
    WH_TAG_ANSWER = 2,
    WH_REQUEST_BYTES = 'B',  /**< Files, byte for byte. */
    WH_REQUEST_STATES = 'S', /**< Tensors of their states. */
    WH_REQUEST_LIST = 'L',   /**< Only the list of tensors; the client then cancels. */
    WH_TOKEN_MAX = 256,      /**< Bytes of a token with its final zero. */
};

/** Name of the group, in every address. */
#define WH_SERVE_JOB "wherry-serve"

/** A connection to a server. Starts as {0}. */
typedef struct wh_client {
    wherry_group *group;
    wherry_transport *transport;
} wh_client;

/** True for tcp://... and unix://..., as opposed to a file name. */
bool wh_is_address(const char *text);

/** Checks the form of a server's address. @return false after printing an error. */
bool wh_check_address(const wh_command *command, const char *text);

/**
 * Connects and sends a request.
 * @param token_file  file with the token; NULL: the variable WHERRY_TOKEN, else a prompt.
 * @return as wherry_group_join, WHERRY_BAD_SECRET for a wrong token; WHERRY_INVALID_ARGUMENT
 * without a token; WHERRY_REFUSED with the server's reason.
 */
wherry_status wh_client_connect(wh_client *client, const char *address, const char *token_file, int64_t timeout_s,
                                char request, wherry_error *error);

void wh_client_close(wh_client *client);

/** Gets the state that a server offers. Its tensors have no memory. The caller destroys it. */
wherry_status wh_client_list(const char *address, const char *token_file, int64_t timeout_s, wherry_value **state_p,
                             wherry_error *error);

#endif
