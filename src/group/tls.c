/* A connection with TLS: libssl between the caller and a socket that may not be ready. */
#include "group/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "group/hello.h"
#include "group/tls_internal.h"
#include "group/token.h"

/*
 * libssl writes records into a buffer of ours, which is sent in large pieces. So one system call
 * carries many records, and a socket that is not ready never leaves libssl in the middle of a
 * record. Reading needs no such buffer: for many bytes, libssl reads ahead. Otherwise it reads one
 * record at a time, so that poll() tells whenever there is another one.
 */
enum {
    /** Maximum number of bytes of the caller in a record: 16 KiB. */
    RECORD = SSL3_RT_MAX_PLAIN_LENGTH,
    /** While more encrypted bytes than this wait, the connection accepts no others. */
    UNSENT_MAX = 256 << 10,
    READ_AHEAD = 128 << 10, /**< Maximum number of bytes per system call that reads. */
    /** Enough bytes to recognize a HELLO in clear text and its version. */
    FIRST_BYTES = 13,
    /** Maximum number of records without data that one call takes. */
    EMPTY_RECORDS = 16,
};

/**
 * Encrypt with a new key after this many records, long before AES-GCM needs it (RFC 8446, 5.5: 2 to
 * the power of 24.5 full records). If they are full, that is 64 GiB.
 */
#define REKEY_RECORDS (UINT64_C(1) << 22)

#define EXPORT_LABEL "EXPORTER-wherry-greeting"

struct wh_tls {
    wh_tls_context *context;
    SSL *ssl;
    int fd;
    bool dialled;
    bool begun;  /**< True if it may read. Before that, the socket may still be connecting. */
    bool opened; /**< True if the handshake has succeeded. libssl forgets that after a fault. */
    bool ended;  /**< True if the socket has reached the end of its stream. */
    bool dry;    /**< True if the socket had no bytes at the last read. */
    int errnum;  /**< errno of the last failed call on the socket. */
    uint8_t *unsent;
    size_t unsent_from; /**< Offset at which the waiting bytes begin. */
    size_t unsent_to;
    size_t unsent_capacity;
    uint8_t first[FIRST_BYTES]; /**< The first bytes that arrived. */
    size_t first_size;
    uint64_t key_records; /**< Number of records that were encrypted with the present key. */
    wherry_status fault;
    char text[WH_TLS_TEXT_MAX];
};

bool wh_is_for_later(int errnum) {
    return errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR || errnum == ENOTCONN;
}

static void set_fault(wh_tls *tls, wherry_status status, const char *text) {
    if (tls->fault == WHERRY_OK) {
        tls->fault = status;
        snprintf(tls->text, sizeof(tls->text), "%s", text);
    }
}

/* ---- what libssl calls ---- */

static int bio_write(BIO *bio, const char *bytes, size_t size, size_t *written_p) {
    wh_tls *tls = BIO_get_data(bio);
    /* A peer could make libssl answer without end, and never read the answers. */
    if (tls->unsent_to - tls->unsent_from > UNSENT_MAX + 4 * RECORD) {
        set_fault(tls, WHERRY_LIMIT, "the peer does not read what it asks for");
        return 0;
    }
    if (!WH_RESERVE(tls->unsent, tls->unsent_capacity, tls->unsent_to + size)) {
        tls->fault = WHERRY_NO_MEMORY;
        return 0;
    }
    memcpy(tls->unsent + tls->unsent_to, bytes, size);
    tls->unsent_to += size;
    *written_p = size;
    return 1;
}

static int bio_read(BIO *bio, char *bytes, size_t size, size_t *read_p) {
    wh_tls *tls = BIO_get_data(bio);
    errno = EAGAIN;
    ssize_t got = tls->begun ? recv(tls->fd, bytes, size, 0) : -1;
    BIO_clear_retry_flags(bio);
    if (got <= 0) {
        tls->ended = got == 0;
        tls->errnum = got < 0 ? errno : 0;
        tls->dry = true;
        if (got < 0 && wh_is_for_later(errno)) {
            BIO_set_retry_read(bio);
        }
        return 0;
    }
    size_t more = wh_min((size_t)got, FIRST_BYTES - tls->first_size);
    memcpy(tls->first + tls->first_size, bytes, more);
    tls->first_size += more;
    *read_p = (size_t)got;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)number, (void)pointer;
    const wh_tls *tls = BIO_get_data(bio);
    return command == BIO_CTRL_FLUSH ? 1 : command == BIO_CTRL_EOF ? tls->ended : 0;
}

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static void make_method(void) {
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "wherry");
    if (method && (BIO_meth_set_write_ex(method, bio_write) != 1 || BIO_meth_set_read_ex(method, bio_read) != 1 ||
                   BIO_meth_set_ctrl(method, bio_control) != 1)) {
        BIO_meth_free(method);
        method = NULL;
    }
}

/* ---- creating ---- */

/** Demands that the other side's certificate is for a name or an address. */
static bool set_name(const wh_tls *tls, const char *host) {
    X509_VERIFY_PARAM *rules = SSL_get0_param(tls->ssl);
    char plain[256];
    /* Use the address without the zone, which is eth0 in fe80::1%eth0. */
    snprintf(plain, sizeof(plain), "%.*s", (int)strcspn(host, "%"), host);
    if (X509_VERIFY_PARAM_set1_ip_asc(rules, plain) == 1) {
        return true;
    }
    ERR_clear_error();
    X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return SSL_set_tlsext_host_name(tls->ssl, host) == 1 && X509_VERIFY_PARAM_set1_host(rules, host, 0) == 1;
}

static bool begin(wh_tls *tls, const char *host) {
    const wh_tls_context *context = tls->context;
    BIO *bio = BIO_new_ex(wh_tls_library(), method);
    if (!bio) {
        return false;
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    const char *name = context->name ? context->name : tls->dialled ? host : NULL;
    bool by_name = !context->keyed && !context->pinned && !context->server && name;
    if (by_name && !set_name(tls, name)) {
        return false;
    }
    if (tls->dialled) {
        SSL_set_connect_state(tls->ssl);
        /* This makes the first bytes to send. Reading makes the rest. */
        SSL_do_handshake(tls->ssl);
    } else {
        SSL_set_accept_state(tls->ssl);
    }
    ERR_clear_error();
    tls->begun = true;
    return tls->fault == WHERRY_OK && tls->dialled == (tls->unsent_to > 0);
}

wherry_status wh_tls_create(wh_tls_context *context, int fd, bool dialled, const char *host, wh_tls **tls_p,
                            wherry_error *error) {
    pthread_once(&method_once, make_method);
    ERR_clear_error();
    wh_tls *tls = wh_alloc_zeroed(1, sizeof(*tls));
    SSL *ssl = tls && method ? SSL_new(context->ssl) : NULL;
    if (!ssl) {
        wh_free(tls);
        return wh_fail_memory(error, "TLS");
    }
    tls->context = wh_tls_context_ref(context);
    tls->ssl = ssl;
    tls->fd = fd;
    tls->dialled = dialled;
    if (!begin(tls, host)) {
        wherry_status status =
            wh_fail(error, WHERRY_INTERNAL, "libssl cannot begin a connection; check its installation");
        wh_tls_destroy(tls);
        return status;
    }
    *tls_p = tls;
    return WHERRY_OK;
}

void wh_tls_set_bulk(wh_tls *tls) {
    SSL_clear_mode(tls->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_set_read_ahead(tls->ssl, 1);
    SSL_set_default_read_buffer_len(tls->ssl, READ_AHEAD);
}

void wh_tls_destroy(wh_tls *tls) {
    if (tls) {
        SSL_free(tls->ssl);
        wh_tls_context_unref(tls->context);
        wh_free(tls->unsent);
        wh_free(tls);
    }
}

/* ---- faults ---- */

/** The two sides do not know the same key. */
static void explain_key(wh_tls *tls) {
    set_fault(tls, WHERRY_BAD_SECRET,
              tls->context->user_key
                  ? "the peer has the key of another user, or its own in another container; set the same WHERRY_SECRET "
                    "on all ranks"
                  : "the peer has a different secret; set the same WHERRY_SECRET on all ranks");
}

/**
 * libssl reads five bytes and finds that they are not TLS. So this reads the bytes that came with
 * them.
 */
static void read_first(wh_tls *tls) {
    ssize_t got = recv(tls->fd, tls->first + tls->first_size, FIRST_BYTES - tls->first_size, MSG_DONTWAIT);
    tls->first_size += got > 0 ? (size_t)got : 0;
}

/** Fails if the first bytes are not TLS. They may be the HELLO of a greeting in clear text. */
static void explain_clear_text(wh_tls *tls) {
    static const char magic[] = {'W', 'H', 'R', 'Y'};
    const uint8_t *body = tls->first + 5;
    read_first(tls);
    bool wherry = tls->first_size >= FIRST_BYTES - 2 && memcmp(body, magic, sizeof(magic)) == 0;
    unsigned version = wherry ? (unsigned)body[4] << 8 | body[5] : 0;
    if (wherry && version < WH_HELLO_VERSION_LOWEST) {
        char text[WH_TLS_TEXT_MAX];
        snprintf(text, sizeof(text),
                 "the peer supports versions up to %u of the protocol, this side %d to %d; use the same version of "
                 "Wherry on both sides",
                 version, WH_HELLO_VERSION_LOWEST, WH_HELLO_VERSION);
        set_fault(tls, WHERRY_BAD_VERSION, text);
    } else if (wherry) {
        set_fault(tls, WHERRY_BAD_SECRET,
                  "this side has a secret and the peer has none, so it does not use TLS; set the same WHERRY_SECRET on "
                  "all ranks, or on none");
    } else {
        set_fault(tls, WHERRY_BAD_VERSION, "the peer does not speak TLS; check the address and the port");
    }
}

/** Translates an alert of the other side (RFC 8446, 6). */
static void explain_alert(wh_tls *tls, int alert) {
    switch (alert) {
    case 40:  /* handshake_failure */
    case 49:  /* access_denied */
    case 51:  /* decrypt_error */
    case 115: /* unknown_psk_identity */
        if (tls->context->keyed) {
            explain_key(tls);
        } else {
            set_fault(tls, WHERRY_BAD_SECRET,
                      "the peer wants another proof than this side has; give both a secret, or certificates of one CA");
        }
        return;
    case 42: /* bad_certificate */
    case 43: /* unsupported_certificate */
    case 44: /* certificate_revoked */
    case 46: /* certificate_unknown */
    case 48: /* unknown_ca */
        if (tls->context->server) {
            set_fault(tls, WHERRY_BAD_SECRET, "the client has the token of another server, or trusts another CA");
            return;
        }
        set_fault(
            tls, WHERRY_BAD_SECRET,
            "the peer does not trust this side's certificate; both need certificates of a CA that both trust, for "
            "the names they are dialled by");
        return;
    case 45: /* certificate_expired */
        set_fault(tls, WHERRY_BAD_SECRET, "this side's certificate has expired, as the peer says; renew it");
        return;
    case 116: /* certificate_required */
        set_fault(tls, WHERRY_BAD_SECRET, "the peer demands a certificate; set WHERRY_TLS_CERT and WHERRY_TLS_KEY");
        return;
    case 70: /* protocol_version */
        set_fault(tls, WHERRY_BAD_VERSION,
                  "the peer does not speak TLS 1.3; use the same version of Wherry on both sides");
        return;
    case 20: /* bad_record_mac */
        set_fault(tls, WHERRY_CORRUPT, "bytes of this connection were altered on their way, as the peer says");
        return;
    default:
        break;
    }
    char text[WH_TLS_TEXT_MAX];
    snprintf(text, sizeof(text), "the peer ended TLS with alert %d (%s)", alert, SSL_alert_desc_string_long(alert));
    set_fault(tls, WHERRY_REFUSED, text);
}

/** Explains why this side does not accept the other side's certificate. */
static void explain_certificate(wh_tls *tls) {
    long result = SSL_get_verify_result(tls->ssl);
    char text[WH_TLS_TEXT_MAX];
    if (tls->context->keyed) {
        set_fault(tls, WHERRY_BAD_SECRET,
                  "the peer offers a certificate instead of the secret; set the same secret on "
                  "both sides");
        return;
    }
    if (tls->context->pinned) {
        set_fault(
            tls, WHERRY_BAD_SECRET,
            "the server is not the one that the token is for; use the token that it prints, and check the address");
        return;
    }
    snprintf(text, sizeof(text), "the peer's certificate is not accepted: %s; see docs/security.md",
             X509_verify_cert_error_string(result));
    set_fault(tls, WHERRY_BAD_SECRET, text);
}

/** Stores what libssl has found, if the connection cannot continue. */
static void explain(wh_tls *tls) {
    unsigned long code = ERR_peek_last_error();
    int reason = ERR_GET_REASON(code);
    bool open = tls->opened;
    bool ssl = ERR_GET_LIB(code) == ERR_LIB_SSL;
    char text[WH_TLS_TEXT_MAX];
    if (!open && tls->first_size && tls->first[0] != WH_TLS_FIRST_BYTE && tls->first[0] != 0x15 &&
        tls->first[0] != 0x14) {
        explain_clear_text(tls);
    } else if (ssl && reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
        explain_alert(tls, reason - SSL_AD_REASON_OFFSET);
    } else if (ssl && reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        explain_certificate(tls);
    } else if (ssl && reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        set_fault(tls, WHERRY_BAD_SECRET, "the peer has no certificate; set WHERRY_TLS_CERT and WHERRY_TLS_KEY there");
    } else if (ssl && (reason == SSL_R_UNSUPPORTED_PROTOCOL || reason == SSL_R_WRONG_VERSION_NUMBER) && !open) {
        set_fault(tls, WHERRY_BAD_VERSION, "the peer does not speak TLS 1.3");
    } else if (!open && !tls->dialled && tls->context->keyed) {
        explain_key(tls);
    } else if (open) {
        set_fault(tls, WHERRY_CORRUPT, "bytes of this connection were altered on their way");
    } else {
        snprintf(text, sizeof(text), "TLS failed: %s",
                 ERR_reason_error_string(code) ? ERR_reason_error_string(code) : "?");
        set_fault(tls, WHERRY_REFUSED, text);
    }
}

bool wh_tls_fault(const wh_tls *tls, wherry_error *error) {
    if (tls->fault == WHERRY_NO_MEMORY) {
        wh_fail_memory(error, "TLS");
    } else if (tls->fault != WHERRY_OK) {
        wh_fail(error, tls->fault, "%s", tls->text);
    }
    return tls->fault != WHERRY_OK;
}

/* ---- moving bytes ---- */

int wh_tls_flush(wh_tls *tls) {
    while (tls->unsent_from < tls->unsent_to) {
        ssize_t sent = send(tls->fd, tls->unsent + tls->unsent_from, tls->unsent_to - tls->unsent_from, MSG_NOSIGNAL);
        int errnum = errno;
        if (sent < 0) {
            memmove(tls->unsent, tls->unsent + tls->unsent_from, tls->unsent_to - tls->unsent_from);
            tls->unsent_to -= tls->unsent_from;
            tls->unsent_from = 0;
            errno = wh_is_for_later(errnum) ? EAGAIN : errnum;
            return -1;
        }
        tls->unsent_from += (size_t)sent;
    }
    tls->unsent_from = tls->unsent_to = 0;
    return 0;
}

/**
 * Handles a call of libssl that moved nothing. @return 0 at the end of the stream; -1 and errno.
 */
static int take_result(wh_tls *tls, int result) {
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        break;
    }
    if (tls->ended && tls->fault == WHERRY_OK && !tls->opened) {
        return 0;
    }
    if (tls->ended) {
        /*
         * The other side announces the end of its stream. Without that, somebody else may have
         * ended the stream.
         */
        set_fault(tls, WHERRY_PEER_LOST, "the connection was cut off, or the process ended without a goodbye");
        errno = EPROTO;
        return -1;
    }
    if (tls->errnum && tls->fault == WHERRY_OK && !wh_is_for_later(tls->errnum)) {
        errno = tls->errnum;
        return -1;
    }
    explain(tls);
    wh_tls_flush(tls); /* This sends the alert. */
    errno = EPROTO;
    return -1;
}

/** Continues the handshake. @return 1 if it is over; otherwise as take_result. */
static int shake_hands(wh_tls *tls) {
    if (SSL_is_init_finished(tls->ssl)) {
        return 1;
    }
    int result = SSL_do_handshake(tls->ssl);
    tls->opened |= result == 1;
    if (result == 1 && tls->context->keyed && !SSL_session_reused(tls->ssl)) {
        set_fault(tls, WHERRY_BAD_SECRET, "the peer did not use the secret; set the same secret on both sides");
    }
    result = result == 1 ? 1 : take_result(tls, result);
    bool going_on = result > 0 || (result < 0 && errno == EAGAIN);
    if (tls->fault != WHERRY_OK || (going_on && wh_tls_flush(tls) < 0 && errno != EAGAIN)) {
        errno = tls->fault == WHERRY_OK ? errno : EPROTO;
        return -1;
    }
    errno = result < 0 && going_on ? EAGAIN : errno;
    return result;
}

/** Begins a call. @return as shake_hands. */
static int enter(wh_tls *tls) {
    ERR_clear_error();
    tls->errnum = 0;
    if (tls->fault != WHERRY_OK) {
        errno = EPROTO;
        return -1;
    }
    return shake_hands(tls);
}

/*
 * Stops when libssl has no more bytes of its own, because a blocking socket would wait for more. An
 * error that ends the loop is stored at once, and a later call reports it.
 */
ssize_t wh_tls_read(wh_tls *tls, const struct iovec *pieces, size_t count) {
    size_t done = 0;
    size_t at = 0;
    int empty = 0;
    int result = enter(tls);
    while (count && result > 0 && (!done || SSL_has_pending(tls->ssl))) {
        size_t got = 0;
        tls->dry = false;
        result = SSL_read_ex(tls->ssl, (char *)pieces->iov_base + at, pieces->iov_len - at, &got);
        result = result == 1 ? 1 : take_result(tls, result);
        if (result < 0 && errno == EAGAIN && !tls->dry && ++empty < EMPTY_RECORDS) {
            result = 1; /* The record had no data. It may have been a new key. */
        }
        at += got;
        done += got;
        for (; count && at == pieces->iov_len; at = 0) {
            pieces++;
            count--;
        }
    }
    return done ? (ssize_t)done : result > 0 ? 0 : result;
}

/**
 * Changes the key if many records were encrypted with it. Until libssl has told the other side, the
 * connection counts as in a handshake. So the change is made at once.
 */
static void renew_key(wh_tls *tls) {
    uint64_t limit = tls->context->rekey_records ? tls->context->rekey_records : REKEY_RECORDS;
    if (++tls->key_records < limit) {
        return;
    }
    tls->key_records = 0;
    if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(tls->ssl) != 1) {
        set_fault(tls, WHERRY_INTERNAL, "libssl cannot change the key of a connection");
    }
}

/**
 * Finds the next bytes for a record: a part of one piece, or several small pieces copied together.
 * @param record room for small pieces.
 * @param at      offset in the first piece.
 */
static struct iovec next_record(uint8_t record[RECORD], const struct iovec *pieces, size_t count, size_t at) {
    size_t size = 0;
    if (pieces->iov_len - at >= RECORD || count == 1) {
        return (struct iovec){(char *)pieces->iov_base + at, wh_min(pieces->iov_len - at, RECORD)};
    }
    for (; count && size < RECORD; pieces++, count--, at = 0) {
        size_t part = wh_min(pieces->iov_len - at, RECORD - size);
        if (part) {
            memcpy(record + size, (const char *)pieces->iov_base + at, part);
        }
        size += part;
    }
    return (struct iovec){record, size};
}

ssize_t wh_tls_write(wh_tls *tls, const struct iovec *pieces, size_t count) {
    uint8_t together[RECORD];
    size_t done = 0;
    size_t at = 0;
    int result = enter(tls);
    if (result <= 0) {
        errno = result == 0 ? EPIPE : errno;
        return -1;
    }
    for (;;) {
        while (count && at >= pieces->iov_len) {
            at -= pieces->iov_len;
            pieces++;
            count--;
        }
        if ((!count || tls->unsent_to - tls->unsent_from >= UNSENT_MAX) && wh_tls_flush(tls) < 0) {
            return done ? (ssize_t)done : -1;
        }
        if (!count) {
            return (ssize_t)done;
        }
        struct iovec record = next_record(together, pieces, count, at);
        size_t written = 0;
        result = SSL_write_ex(tls->ssl, record.iov_base, record.iov_len, &written);
        if (result != 1) {
            result = take_result(tls, result);
            errno = result == 0 ? EPIPE : errno;
            return done ? (ssize_t)done : -1;
        }
        at += written;
        done += written;
        renew_key(tls);
        if (tls->fault != WHERRY_OK) {
            return (ssize_t)done; /* The next call fails. */
        }
    }
}

void wh_tls_abandon(wh_tls *tls) {
    set_fault(tls, WHERRY_CLOSED, "this process is a forked child of the one that connected");
    tls->fd = -1;
}

void wh_tls_end(wh_tls *tls) {
    ERR_clear_error();
    if (tls->fault == WHERRY_OK && SSL_is_init_finished(tls->ssl)) {
        SSL_shutdown(tls->ssl);
    }
    if (tls->fd >= 0) {
        wh_tls_flush(tls);
    }
    ERR_clear_error();
}

bool wh_tls_unsent(const wh_tls *tls) {
    return tls->unsent_from < tls->unsent_to;
}

bool wh_tls_unread(const wh_tls *tls) {
    return SSL_has_pending(tls->ssl) == 1;
}

bool wh_tls_is_open(const wh_tls *tls) {
    return SSL_is_init_finished(tls->ssl) && tls->fault == WHERRY_OK;
}

bool wh_tls_export(wh_tls *tls, uint8_t value[WH_KEY_BYTES]) {
    return wh_tls_is_open(tls) && SSL_export_keying_material(tls->ssl, value, WH_KEY_BYTES, EXPORT_LABEL,
                                                             sizeof(EXPORT_LABEL) - 1, NULL, 0, 0) == 1;
}

void wh_tls_describe(wh_tls *tls, wh_tls_facts *facts_p) {
    *facts_p = (wh_tls_facts){.cipher = ""};
    snprintf(facts_p->cipher, sizeof(facts_p->cipher), "%s, %s", SSL_get_version(tls->ssl),
             SSL_get_cipher_name(tls->ssl));
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    if (certificate) {
        struct tm when = {0};
        X509_NAME_oneline(X509_get_subject_name(certificate), facts_p->subject, sizeof(facts_p->subject));
        wh_pin_of(X509_get0_pubkey(certificate), facts_p->pin, NULL);
        facts_p->expires = ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &when) == 1 ? timegm(&when) : 0;
    }
    ERR_clear_error();
}
