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
 * Once the group exists, it is used under the group's lock, except by wh_security_read. Files are
 * read without the lock, because a network file system may take long.
 */
#ifndef WH_GROUP_SOCKETS_SECURITY_H
#define WH_GROUP_SOCKETS_SECURITY_H

#include <time.h>

#include "group/hello.h"
#include "group/socket.h"
#include "group/sockets/secret.h"
#include "group/sockets/sockets.h"
#include "group/token.h"

/**
 * The tickets that a peer has used. They may come out of order, since several threads may open
 * connections; one that is WH_TICKETS or more below the highest is too old.
 */
enum { WH_TICKETS = 256 };

typedef struct wh_tickets {
    uint64_t incarnation; /**< Of the peer. */
    uint64_t highest;     /**< Ticket numbers begin with 1. */
    /** Bit n % WH_TICKETS: whether ticket n was used, for the last WH_TICKETS up to `highest`. */
    uint64_t used[WH_TICKETS / 64];
} wh_tickets;

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
    uint64_t updates;            /**< How often wh_security_update was called. */
} wh_security;

/** What was read again. */
typedef struct wh_security_files {
    wh_secrets secrets;
    wh_tls_context *tls;
    struct timespec secret_time;
} wh_security_files;

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
 * Reads the file of the secret again, and the certificates. Uses only what never changes after the
 * group was created, so call it without the group's lock. @return as wh_security_init.
 */
wherry_status wh_security_read(const wh_security *security, wh_security_files *files_p, wherry_error *error);

/** The modification time of the file of the secret; zero if there is none. Without the lock. */
struct timespec wh_security_time(const wh_security *security);

/** Uses what was read, and wipes it. */
void wh_security_update(wh_security *security, wh_security_files *files);

void wh_security_drop(wh_security_files *files);

/** Writes the key of a peer's tickets (wh_hello_ticket_key). */
bool wh_security_ticket_key(const wh_security *security, const wh_hello_fields *peer, uint8_t key[WH_KEY_BYTES]);

/**
 * Uses up a ticket. @param incarnation  of the peer.
 * @return false if it was used before, is too old, or belongs to an older incarnation.
 */
bool wh_tickets_use(wh_tickets *tickets, uint64_t incarnation, uint64_t number);

/**
 * Fills in method, keys and binding of a greeting.
 * @param binding  room for the value that the config points to.
 */
void wh_security_greet(const wh_security *security, const wh_socket *socket, uint8_t binding[WH_KEY_BYTES],
                       wh_hello_config *config);

/** True for a Unix socket. */
bool wh_is_unix(int fd);

#endif
