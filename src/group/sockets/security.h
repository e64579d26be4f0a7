/**
 * @file security.h  How a process proves itself in a group over sockets, and what proof it demands
 * from others.
 *
 *   | connections                      | proof                                        |
 *   | -------------------------------- | -------------------------------------------- |
 *   | Unix sockets                     | the greeting, by the secret or the user's key |
 *   | TCP, with a secret or user's key | TLS with a pre-shared key                     |
 *   | TCP, with certificates           | TLS with certificates of both sides           |
 *   | TCP, a server and its readers    | TLS with the server's certificate; the        |
 *   |                                  | greeting, by the readers' secret              |
 *   | TCP, data in clear text          | the greeting, by a ticket that came over TLS  |
 *   | `allow_insecure` without these   | none                                          |
 *
 * Used under the group's lock once the group exists.
 */
#ifndef WH_GROUP_SOCKETS_SECURITY_H
#define WH_GROUP_SOCKETS_SECURITY_H

#include <time.h>

#include "group/hello.h"
#include "group/socket.h"
#include "group/sockets/secret.h"
#include "group/sockets/sockets.h"
#include "group/token.h"

typedef struct wh_security {
    wh_secrets secrets;
    bool user_key; /**< True if `secrets` is the key of the user. */
    /** True if other hosts may connect, because they can prove themselves. */
    bool outward;
    bool encrypt_all;    /**< True if data goes over TLS as well. */
    bool serves;         /**< True if this process is a server. */
    bool reads;          /**< True if this process is a reader of a server. */
    wh_tls_context *tls; /**< NULL: TCP connections are in clear text. */
    wh_tls_setup setup;  /**< The parameters of the context. Their texts belong to this struct. */
    uint8_t ticket_key[WH_KEY_BYTES];
    wh_server_identity identity; /**< The identity of a server. */
    uint8_t pin[WH_PIN_BYTES];   /**< A reader's. */
    /** Path of the file of the secret, which is read again if it changes; NULL: none. */
    char *secret_path;
    struct timespec secret_time; /**< Modification time of that file when it was read. */
} wh_security;

/**
 * Finds secrets, certificates, identity or token.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_SYSTEM; WHERRY_BAD_VERSION (a token);
 * WHERRY_NO_MEMORY; WHERRY_INTERNAL. On failure, the struct is cleared.
 */
wherry_status wh_security_init(wh_security *security, const wh_sockets_options *options, wherry_error *error);

/** Wipes everything. The struct may be zeroed. */
void wh_security_clear(wh_security *security);

/** Uses the key of the user, because there is no secret. @return as wh_key_find. */
wherry_status wh_security_use_user_key(wh_security *security, wherry_error *error);

/**
 * Reads the file of the secret again, and the certificates. On failure, the former ones stay.
 * @return as wh_security_init.
 */
wherry_status wh_security_reload(wh_security *security, wherry_error *error);

/** Like wh_security_reload, if the file of the secret has changed. Logs a failure. Cheap. */
void wh_security_look(wh_security *security);

/** Writes the ticket of a peer (wh_hello_ticket). */
bool wh_security_ticket(const wh_security *security, const wh_hello_fields *peer, uint8_t ticket[WH_KEY_BYTES]);

/**
 * Fills in method, keys and binding of a greeting.
 * @param binding  room for the value that the config points to.
 */
void wh_security_greet(const wh_security *security, const wh_socket *socket, uint8_t binding[WH_KEY_BYTES],
                       wh_hello_config *config);

/** True for a Unix socket. */
bool wh_is_unix(int fd);

#endif
