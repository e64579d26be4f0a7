/*
 * Greeting: how this process begins a connection and identifies itself, and whom it lets in. The
 * frames are in group/hello.h, the keys in security.h.
 */
#include <openssl/crypto.h>

#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

bool wh_sockets_is_suspect(const wh_sockets *sockets, const wh_connection *old, const wh_connection *fresh) {
    uint64_t limit = sockets->options.dead_after_ms * MS / 2;
    return fresh->born > old->heard + limit && !wh_connection_has_unread(old);
}

bool wh_sockets_is_intruder(const wh_sockets *sockets, const wh_connection *fresh, const wh_hello_fields *peer) {
    if (!sockets->security.serves || (int32_t)peer->rank == sockets->base.rank) {
        return sockets->security.serves;
    }
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        if (one == fresh || one->doomed || !wh_connection_is_up(one) || one->rank != (int32_t)peer->rank) {
            continue;
        }
        bool second = peer->purpose == WH_HELLO_CONTROL && !wh_sockets_is_suspect(sockets, one, fresh) &&
                      !wh_connection_has_gone(one) && wh_is_unix(one->socket.fd) == wh_is_unix(fresh->socket.fd);
        if (second || one->incarnation != peer->incarnation) {
            return true;
        }
    }
    return false;
}

static wh_refusal admit(void *context, const wh_hello_fields *peer, uint64_t *newer_p) {
    const wh_connection *connection = context;
    wh_sockets *sockets = connection->owner;
    wh_member *member = sockets->members + peer->rank;
    uint64_t known = member->incarnation;
    if (!wh_sockets_believes(peer->incarnation)) {
        return WH_REFUSAL_AHEAD;
    }
    if (wh_sockets_is_intruder(sockets, connection, peer)) {
        return WH_REFUSAL_OTHER;
    }
    *newer_p = peer->incarnation < known ? known : 0;
    if (*newer_p) {
        return WH_REFUSAL_STALE;
    }
    bool by_ticket = peer->method == WH_HELLO_METHOD_TICKET;
    return !by_ticket || wh_tickets_use(&member->used, peer->incarnation, peer->key) ? WH_REFUSAL_NONE
                                                                                     : WH_REFUSAL_USED;
}

static bool find_ticket_key(void *context, const wh_hello_fields *peer, uint8_t key[WH_KEY_BYTES]) {
    const wh_connection *connection = context;
    const wh_sockets *sockets = connection->owner;
    return wh_security_ticket_key(&sockets->security, peer, key);
}

wh_hello_config wh_sockets_hello(const wh_sockets *sockets, wh_hello_purpose purpose, wh_hello_admit admitted,
                                 void *context) {
    return (wh_hello_config){
        .purpose = purpose,
        .rank = (uint32_t)sockets->base.rank,
        .size = (uint32_t)sockets->base.size,
        .incarnation = sockets->incarnation,
        .table = sockets->hash,
        .job = sockets->address.job,
        .address = sockets->place,
        .admit = admitted,
        .context = context,
    };
}

void wh_sockets_choose_peer(const wh_sockets *sockets, const wh_socket *socket, wh_hello_config *config, int32_t rank,
                            uint64_t incarnation) {
    const wh_security *security = &sockets->security;
    bool local = wh_is_unix(socket->fd);
    bool one_user = security->user_key || (security->secrets.count && sockets->address.kind == WH_ADDRESS_UNIX);
    config->other_user = local && one_user && !wh_is_same_user(socket->fd);
    config->wants_one = rank >= 0;
    config->wanted = (uint32_t)rank;
    config->wanted_incarnation = local ? incarnation : 0; /* No other process has this socket. */
}

/** Begins the greeting of a connection. TLS is open if the connection has it. */
static wherry_status greet(wh_sockets *sockets, wh_connection *connection, wherry_error *error) {
    uint8_t binding[WH_KEY_BYTES];
    int32_t wanted = connection->wanted;
    wh_hello_config config = wh_sockets_hello(sockets, WH_HELLO_CONTROL, admit, connection);
    config.ticket_key = find_ticket_key;
    wh_sockets_choose_peer(sockets, &connection->socket, &config, wanted,
                           wanted >= 0 ? sockets->members[wanted].incarnation : 0);
    wh_security_greet(&sockets->security, &connection->socket, binding, &config);
    wherry_status status = wh_connection_greet(connection, &config, error);
    OPENSSL_cleanse(binding, sizeof(binding));
    return status;
}

wherry_status wh_sockets_secure(wh_sockets *sockets, wh_connection *connection, const char *host, wherry_error *error) {
    wh_socket *socket = &connection->socket;
    if (!sockets->security.tls || wh_is_unix(socket->fd)) {
        return greet(sockets, connection, error);
    }
    connection->peeking = !connection->dialled;
    return connection->peeking ? WHERRY_OK
                               : wh_tls_create(sockets->security.tls, socket->fd, true, host, &socket->tls, error);
}

wherry_status wh_sockets_begin(void *context, wh_connection *connection, uint8_t first, wherry_error *error) {
    wh_sockets *sockets = context;
    wh_socket *socket = &connection->socket;
    if (connection->peeking && first == WH_TLS_FIRST_BYTE) {
        connection->peeking = false;
        return wh_tls_create(sockets->security.tls, socket->fd, false, NULL, &socket->tls, error);
    }
    return greet(sockets, connection, error);
}
