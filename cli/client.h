/**
 * @file client.h  The client side of `wherry serve`: addresses, tokens and requests.
 *
 * The server is rank 0 of a group of which clients are readers (wherry_group_options.token).
 * Without the token, nobody can join the group or learn anything about the files. A client joins
 * twice:
 *
 *  1. As a random rank of the lobby, it asks for a place. The answer is a rank that no other client
 *     has, and the names of the files. If two clients choose the same rank in the lobby, one of
 *     them is removed and tries again.
 *  2. As that rank, it requests the files. While the server digests them, its answer is
 *     WH_ANSWER_WAIT, every second; then it accepts or refuses, and sends.
 *
 * A request has one byte WH_REQUEST_*, and a second byte that is 1 if the answer shall contain the
 * digest of the files. An answer is a byte WH_ANSWER_* and a text: the reason for a refusal; the
 * digest as 32 hexadecimal digits, or nothing; or a place as a decimal number and then the names of
 * the files, each with a final zero.
 */
#ifndef WH_CLI_CLIENT_H
#define WH_CLI_CLIENT_H

#include <wherry/checkpoint.h>
#include <wherry/group.h>

#include "command.h"

enum {
    WH_SERVE_RANKS = 32768,
    WH_LOBBY_RANKS = 16384, /**< Ranks from 1 to this are the lobby; the others are places. */
    WH_TAG_REQUEST = 1,
    WH_TAG_ANSWER = 2,
    WH_REQUEST_PLACE = 'P',  /**< In the lobby: request a place. */
    WH_REQUEST_BYTES = 'B',  /**< Request the files, byte for byte. */
    WH_REQUEST_STATES = 'S', /**< Request the tensors of the files. */
    /** Request the list of tensors. The client then cancels the transfer. */
    WH_REQUEST_LIST = 'L',
    WH_ANSWER_WAIT = 'W',
    WH_ANSWER_REFUSED = 'R',
    WH_ANSWER_ACCEPTED = 'A',
    WH_TOKEN_MAX = 256, /**< Maximum size of a token in bytes, including the final zero. */
};

/** The job id of the group. Server and client append it to the address to join. */
#define WH_SERVE_JOB "wherry-serve"

/** How long to wait for servers. */
typedef struct wh_patience {
    int64_t timeout_s; /**< Time limit for each answer. */
    bool wait;         /**< True to wait also for a server that has not been started. */
    bool can_wait;     /**< True if the command has the option --wait. */
    /** The CA of the servers' certificates; NULL: the token says which server. */
    const char *ca;
} wh_patience;

/** A connection to a server. Initialize it with {.address = ...}. */
typedef struct wh_client {
    const char *address; /**< Borrowed. */
    char token[WH_TOKEN_MAX];
    wherry_group *group; /**< NULL if the server is not connected. */
    wherry_transport *transport;
    char *welcome;     /**< The answer to the request for a place. */
    const char *files; /**< The names of the files, each with a final zero; "" ends them. */
    /** The digest of the files; "" if it was not requested. NULL before the answer. */
    char *digest;
    wherry_error error; /**< Why the server cannot be used. */
} wh_client;

/** True if text starts with tcp:// or unix://. Otherwise it is a file name. */
bool wh_is_address(const char *text);

/** Checks the form of a server's address. @return false after printing an error. */
bool wh_check_address(const wh_command *command, const char *text);

/**
 * Connects to servers, all at the same time. Servers that do not answer are left out if others
 * have answered. Call wh_client_close for each client even if this fails.
 * @param token_file  the file with the token. If NULL, the token is taken from the environment
 * variable WHERRY_TOKEN. If that is not set either, the user is asked. If there are several words,
 * they are the tokens of the servers in their order; the last is also that of all that follow.
 * @return WHERRY_OK if a server has answered; otherwise the error of the first: the statuses of
 * wherry_group_join; WHERRY_BAD_SECRET for a wrong token; WHERRY_INVALID_ARGUMENT if there is no
 * token; WHERRY_PEER_LOST if nobody listens at the address.
 */
wherry_status wh_clients_connect(wh_client *clients, size_t count, const char *token_file, const wh_patience *patience,
                                 wherry_error *error);

/**
 * Sends a request to the servers that are connected, and waits for their answers. Disconnects from
 * servers that do not accept it.
 * @param digest  request the digest of the files.
 * @return WHERRY_OK if a server accepts; otherwise the error of the first, WHERRY_REFUSED with the
 * server's reason if it refuses.
 */
wherry_status wh_clients_request(wh_client *clients, size_t count, char request, bool digest,
                                 const wh_patience *patience, wherry_error *error);

void wh_client_close(wh_client *client);

/**
 * Gets a copy, owned by the caller, of the state that a server offers. Tensors have no memory.
 * @param link_p  how the server is connected, and who it is.
 */
wherry_status wh_client_list(const char *address, const char *token_file, const wh_patience *patience,
                             wherry_value **state_p, wherry_group_link *link_p, wherry_error *error);

#endif
