/**
 * @file client.h  The client side of `wherry serve`: address, token and request.
 *
 * The server is rank 0 of a group with room for WH_SERVE_RANKS ranks. The secret of the group is
 * the token. A client joins as a random rank, sends a request of one byte, and waits for an answer.
 * The answer is empty if the server accepts the request. Otherwise it is the reason for the
 * refusal. Without the token, nobody can join the group or learn anything about the files.
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
    WH_REQUEST_BYTES = 'B',  /**< Request the files, byte for byte. */
    WH_REQUEST_STATES = 'S', /**< Request the tensors of the files. */
    WH_REQUEST_LIST = 'L',   /**< Request the list of tensors. The client cancels the transfer. */
    WH_TOKEN_MAX = 256,      /**< Maximum size of a token in bytes, including the final zero. */
};

/** The job id of the group. Server and client append it to the address to join. */
#define WH_SERVE_JOB "wherry-serve"

/** A connection to a server. Initialize it with {0}. */
typedef struct wh_client {
    wherry_group *group;
    wherry_transport *transport;
} wh_client;

/** True if text starts with tcp:// or unix://. Otherwise it is a file name. */
bool wh_is_address(const char *text);

/** Checks the form of a server's address. @return false after printing an error. */
bool wh_check_address(const wh_command *command, const char *text);

/**
 * Connects and sends a request. Call wh_client_close even if this fails.
 * @param token_file  the file with the token. If NULL, the token is taken from the environment
 * variable WHERRY_TOKEN. If that is not set either, the user is asked.
 * @return the statuses of wherry_group_join; WHERRY_BAD_SECRET for a wrong token;
 * WHERRY_INVALID_ARGUMENT if there is no token; WHERRY_REFUSED if the server refuses, with its
 * reason in the error.
 */
wherry_status wh_client_connect(wh_client *client, const char *address, const char *token_file, int64_t timeout_s,
                                char request, wherry_error *error);

void wh_client_close(wh_client *client);

/** Gets a copy, owned by the caller, of the state that a server offers. Tensors have no memory. */
wherry_status wh_client_list(const char *address, const char *token_file, int64_t timeout_s, wherry_value **state_p,
                             wherry_error *error);

#endif
