/**
 * @file tls.h  TLS 1.3 over a connected socket.
 *
 * A context says how this process proves itself and what proof it wants from others. It has one of
 * three forms:
 *
 *   keys          both sides know a pre-shared key. The exchange has forward secrecy (psk_dhe_ke).
 *   certificates  both sides have a certificate that a common CA has signed.
 *   server        the server has a certificate; its readers have none. They know the SHA-256 of the
 *                 server's public key (the pin), or trust a CA. They prove themselves in the
 *                 greeting (hello.h).
 *
 * Invariants:
 * 1. Only tls.c and tls_context.c call libssl. Contexts use a library context of their own. What
 *    an openssl.cnf sets has no effect.
 * 2. TLS 1.3 with AEAD ciphers only. No renegotiation, compression, early data or session tickets.
 * 3. No byte is handed out before the other side has proven itself, as the context wants it.
 * 4. Nothing here blocks, except that the calls on a blocking socket wait as long as its timeouts
 *    say.
 * 5. After a fault, every call fails, and wh_tls_fault says why.
 *
 *     greeting -> open    the handshake is over
 *     any      -> failed  a fault; an alert is sent if possible
 *
 * One thread at a time may use a connection. Contexts may be shared.
 */
#ifndef WH_GROUP_TLS_H
#define WH_GROUP_TLS_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "group/key.h"

/** Longest text of wh_tls_facts. */
enum { WH_TLS_TEXT_MAX = 256, WH_TLS_KEYS_MAX = 2, WH_TLS_PIN_BYTES = 32 };

/** The first byte of every connection that begins with TLS: a handshake record. */
enum { WH_TLS_FIRST_BYTE = 0x16 };

typedef struct wh_tls_context wh_tls_context;
typedef struct wh_tls wh_tls;

/** How to make a context. Everything is borrowed. Unused members are zero. */
typedef struct wh_tls_setup {
    /** Keys: up to WH_TLS_KEYS_MAX are accepted. The first one is used to dial. */
    const wh_group_key *keys;
    size_t key_count;
    bool user_key; /**< True if the keys are derived from the key of a user. For errors. */

    /** Certificates, as PEM files. `ca` without `certificate`: a reader that trusts the CA. */
    const char *certificate;
    const char *private_key; /**< NULL: in the same file as the certificate. */
    const char *ca;
    /** The name or address in the certificates of all others; NULL: the host that was dialled. */
    const char *name;

    EVP_PKEY *server_key; /**< For a server: its key and certificate, instead of files. */
    X509 *server_certificate;
    /** True for a server: readers need no certificate. */
    bool server;
    /** For a reader: a pin of WH_TLS_PIN_BYTES, unless the reader has a `ca`. */
    const uint8_t *pin;
    /** For tests: use a new key after this many records; 0: after as many as are safe. */
    uint64_t rekey_records;
} wh_tls_setup;

/**
 * Makes a context with one reference.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if a file cannot be used, with its name;
 * WHERRY_NO_MEMORY; WHERRY_INTERNAL.
 */
wherry_status wh_tls_context_create(const wh_tls_setup *setup, wh_tls_context **context_p, wherry_error *error);

/** Counts references. A connection holds one. `context` may be NULL. */
wh_tls_context *wh_tls_context_ref(wh_tls_context *context);
void wh_tls_context_unref(wh_tls_context *context);

/**
 * Returns the library context of this process, for other uses of libcrypto. NULL if out of memory.
 */
OSSL_LIB_CTX *wh_tls_library(void);

/** Returns the notAfter of the certificate in a PEM file, as seconds since 1970; 0 if unknown. */
int64_t wh_tls_expiry(const char *path);

/* ---- a connection ---- */

/**
 * Begins TLS over a socket, which stays the caller's. The first bytes are ready to be sent.
 * @param host  the name or address that was dialled, for the check of a certificate; NULL if this
 *              side has accepted the connection.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INTERNAL.
 */
wherry_status wh_tls_create(wh_tls_context *context, int fd, bool dialled, const char *host, wh_tls **tls_p,
                            wherry_error *error);

/**
 * Prepares a connection for many bytes: it then uses more memory and fewer system calls. The side
 * that reads must call this before the handshake.
 */
void wh_tls_set_bulk(wh_tls *tls);

/** Frees a connection. `tls` may be NULL. */
void wh_tls_destroy(wh_tls *tls);

/**
 * Call this in a forked child. The connection belongs to the parent, so nothing is sent over it any
 * more.
 */
void wh_tls_abandon(wh_tls *tls);

/** Tells the other side that nothing more follows, as far as the socket takes it at once. */
void wh_tls_end(wh_tls *tls);

/**
 * Reads as recvmsg does: at least one byte; 0 at the end of the stream; -1 and errno. EAGAIN: the
 * handshake is not over, or nothing has come. EPROTO: see wh_tls_fault. An end that the other side
 * has not announced is a fault, unless the handshake was not over.
 */
ssize_t wh_tls_read(wh_tls *tls, const struct iovec *pieces, size_t count);

/**
 * Writes as sendmsg does. The bytes that it takes are encrypted, and sent as far as the socket
 * takes them at once. wh_tls_flush sends the rest.
 */
ssize_t wh_tls_write(wh_tls *tls, const struct iovec *pieces, size_t count);

/** Sends waiting encrypted bytes. @return 0 if none is left; -1 and errno, as wh_tls_write. */
int wh_tls_flush(wh_tls *tls);

/** True if a call on a socket that failed with this errno can simply be repeated later. */
bool wh_is_for_later(int errnum);

/** True if encrypted bytes wait to be sent. */
bool wh_tls_unsent(const wh_tls *tls);

/**
 * True if bytes were already read from the socket, so that poll() does not report them. They may be
 * too few for a record: read until EAGAIN.
 */
bool wh_tls_unread(const wh_tls *tls);

/** True if the handshake is over. */
bool wh_tls_is_open(const wh_tls *tls);

/**
 * Writes why the connection failed. @return false, and no change, if there was no fault. The status
 * is WHERRY_BAD_SECRET if a key or a certificate was not accepted by one side; WHERRY_BAD_VERSION
 * if the other side does not speak TLS 1.3; WHERRY_REFUSED if it ended TLS for another reason;
 * WHERRY_CORRUPT if bytes were altered on their way; WHERRY_PEER_LOST
 * if the stream was cut off; WHERRY_LIMIT; WHERRY_NO_MEMORY; WHERRY_INTERNAL.
 */
bool wh_tls_fault(const wh_tls *tls, wherry_error *error);

/**
 * A value that only the two ends of this connection know, for a proof that belongs to it (RFC 8446,
 * 7.5). @return false before the handshake is over.
 */
bool wh_tls_export(wh_tls *tls, uint8_t value[WH_KEY_BYTES]);

/** Facts about a connection that a user may want to know. */
typedef struct wh_tls_facts {
    char cipher[64]; /**< "TLSv1.3, TLS_AES_128_GCM_SHA256". */
    /** The subject of the other side's certificate; "": it has none. */
    char subject[WH_TLS_TEXT_MAX];
    uint8_t pin[WH_TLS_PIN_BYTES]; /**< SHA-256 of the public key in it. */
    int64_t expires;               /**< Its notAfter, in seconds since 1970. */
} wh_tls_facts;

/** Describes an open connection. */
void wh_tls_describe(wh_tls *tls, wh_tls_facts *facts_p);

#endif
