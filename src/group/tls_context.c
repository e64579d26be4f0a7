/* Contexts of TLS: keys, certificates, and the proof that the other side must give. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "group/tls_internal.h"
#include "group/token.h"

/*
 * AES first: every processor that runs training has instructions for it. Both suites use SHA-256,
 * because a pre-shared key belongs to one hash.
 */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define GROUPS "X25519:P-256"
#define SIGNATURES "ed25519:ECDSA+SHA256:ECDSA+SHA384:RSA-PSS+SHA256:RSA-PSS+SHA384:RSA-PSS+SHA512"

/** An identity of a pre-shared key: "wherry-" and its id in 16 hexadecimal digits. */
enum { IDENTITY = 7 + 16 };

static OSSL_LIB_CTX *library;
static pthread_once_t library_once = PTHREAD_ONCE_INIT;

/**
 * The library context lives until the process ends, because connections of several groups share it.
 */
static void make_library(void) {
    library = OSSL_LIB_CTX_new();
}

OSSL_LIB_CTX *wh_tls_library(void) {
    pthread_once(&library_once, make_library);
    return library;
}

/* ---- pre-shared keys ---- */

static void write_identity(const wh_group_key *key, char identity[IDENTITY + 1]) {
    snprintf(identity, IDENTITY + 1, "wherry-%016llx", (unsigned long long)key->id);
}

/** libssl wants sessions to have the context of the connection that uses them. */
static const unsigned char session_context[] = {'w', 'h', 'e', 'r', 'r', 'y'};

/** Wraps a key as the session that it would belong to, which is the form that libssl takes. */
static SSL_SESSION *session_of(SSL *ssl, const wh_group_key *key) {
    static const unsigned char suite[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    bool good = session && cipher && SSL_SESSION_set1_master_key(session, key->tls, sizeof(key->tls)) == 1 &&
                SSL_SESSION_set_cipher(session, cipher) == 1 &&
                SSL_SESSION_set1_id_context(session, session_context, sizeof(session_context)) == 1 &&
                SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    if (!good) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    return session;
}

static const wh_tls_context *context_of(const SSL *ssl) {
    return SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
}

/** The side that dials: offers its first key. libssl copies the identity. */
static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **identity_p, size_t *size_p,
                     SSL_SESSION **session_p) {
    static _Thread_local char identity[IDENTITY + 1];
    const wh_group_key *key = context_of(ssl)->keys;
    if (digest && EVP_MD_get_type(digest) != NID_sha256) {
        *session_p = NULL;
        return 1;
    }
    write_identity(key, identity);
    *identity_p = (const unsigned char *)identity;
    *size_p = IDENTITY;
    *session_p = session_of(ssl, key);
    return *session_p != NULL;
}

/** The side that was dialled: finds the key that the other side names. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t size, SSL_SESSION **session_p) {
    const wh_tls_context *context = context_of(ssl);
    char known[IDENTITY + 1];
    *session_p = NULL;
    for (size_t i = 0; i < context->key_count; i++) {
        write_identity(context->keys + i, known);
        if (size == IDENTITY && memcmp(known, identity, IDENTITY) == 0) {
            *session_p = session_of(ssl, context->keys + i);
            return *session_p != NULL;
        }
    }
    /* This process has no such key. There is no certificate either, so the handshake fails. */
    return 1;
}

/* ---- certificates ---- */

/** Returns the cause that libcrypto has recorded, in its words. */
static const char *last_reason(void) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "unknown reason";
}

static wherry_status fail_file(const char *what, const char *path, wherry_error *error) {
    return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                   "cannot use %s in %s: %s; it must be a PEM file without a password that this user can read", what,
                   path, last_reason());
}

/** A key with a password cannot be used, because nobody is there to type it. */
static int refuse_password(char *text, int size, int writing, void *context) {
    (void)text, (void)size, (void)writing, (void)context;
    return 0;
}

/** A process that can read the key can act as this process, so others must not read it. */
static void warn_if_open(const char *path) {
    struct stat file;
    if (stat(path, &file) == 0 && (file.st_mode & (S_IRWXG | S_IRWXO))) {
        wh_log(WHERRY_LOG_WARN, "other users may read the private key in %s; run: chmod 600 %s", path, path);
    }
}

static wherry_status load_files(SSL_CTX *ssl, const wh_tls_setup *setup, wherry_error *error) {
    const char *private_key = setup->private_key ? setup->private_key : setup->certificate;
    SSL_CTX_set_default_passwd_cb(ssl, refuse_password);
    if (setup->certificate && SSL_CTX_use_certificate_chain_file(ssl, setup->certificate) != 1) {
        return fail_file("the certificate", setup->certificate, error);
    }
    if (setup->certificate && SSL_CTX_use_PrivateKey_file(ssl, private_key, SSL_FILETYPE_PEM) != 1) {
        return fail_file("the private key", private_key, error);
    }
    if (setup->certificate && SSL_CTX_check_private_key(ssl) != 1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the key in %s does not belong to the certificate in %s",
                       private_key, setup->certificate);
    }
    if (setup->certificate) {
        warn_if_open(private_key);
    }
    if (setup->ca && SSL_CTX_load_verify_file(ssl, setup->ca) != 1) {
        return fail_file("the CA", setup->ca, error);
    }
    return WHERRY_OK;
}

/** A reader with a pin: the server's key must have this SHA-256. Nothing else is checked. */
static int check_pin(X509_STORE_CTX *store, void *argument) {
    const wh_tls_context *context = argument;
    uint8_t pin[WH_TLS_PIN_BYTES];
    X509 *certificate = X509_STORE_CTX_get0_cert(store);
    EVP_PKEY *key = certificate ? X509_get0_pubkey(certificate) : NULL;
    bool same = key && wh_pin_of(key, pin, NULL) == WHERRY_OK && CRYPTO_memcmp(pin, context->pin, sizeof(pin)) == 0;
    X509_STORE_CTX_set_error(store, same ? X509_V_OK : X509_V_ERR_CERT_UNTRUSTED);
    return same;
}

static wherry_status set_proof(wh_tls_context *context, const wh_tls_setup *setup, wherry_error *error) {
    SSL_CTX *ssl = context->ssl;
    int verify = SSL_VERIFY_PEER;
    if (context->keyed) {
        SSL_CTX_set_psk_use_session_callback(ssl, offer_key);
        SSL_CTX_set_psk_find_session_callback(ssl, find_key);
    }
    if (setup->server_key && (SSL_CTX_use_certificate(ssl, setup->server_certificate) != 1 ||
                              SSL_CTX_use_PrivateKey(ssl, setup->server_key) != 1)) {
        return wh_fail(error, WHERRY_INTERNAL, "libssl does not take the server's key: %s", last_reason());
    }
    WH_TRY(load_files(ssl, setup, error));
    if (context->pinned) {
        SSL_CTX_set_cert_verify_callback(ssl, check_pin, context);
    }
    /* Without a CA, the store trusts nobody, so a certificate never replaces a key. */
    verify |= context->keyed || context->server ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(ssl, context->server ? SSL_VERIFY_NONE : verify, NULL);
    return WHERRY_OK;
}

/* ---- the context ---- */

/**
 * Sets everything that an openssl.cnf could change otherwise. libssl applies the section
 * system_default of the process's openssl.cnf to every SSL_CTX, whatever its library context is.
 */
static bool set_rules(SSL_CTX *ssl) {
    SSL_CTX_clear_options(ssl, SSL_CTX_get_options(ssl));
    SSL_CTX_set_options(ssl, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                 SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_security_level(ssl, 2);
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_clear_mode(ssl, SSL_MODE_AUTO_RETRY); /* tls.c counts the records without data. */
    return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_session_id_context(ssl, session_context, sizeof(session_context)) == 1 &&
           SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(ssl, 0) == 1 &&
           SSL_CTX_set_max_early_data(ssl, 0) == 1 && SSL_CTX_set_ciphersuites(ssl, SUITES) == 1 &&
           SSL_CTX_set1_groups_list(ssl, GROUPS) == 1 && SSL_CTX_set1_sigalgs_list(ssl, SIGNATURES) == 1 &&
           SSL_CTX_set1_client_sigalgs_list(ssl, SIGNATURES) == 1 && SSL_CTX_set_block_padding(ssl, 0) == 1;
}

wherry_status wh_tls_context_create(const wh_tls_setup *setup, wh_tls_context **context_p, wherry_error *error) {
    wh_tls_context *context = wh_alloc_zeroed(1, sizeof(*context));
    wherry_status status = wh_check_memory(context, error, "TLS");
    if (status != WHERRY_OK) {
        return status;
    }
    ERR_clear_error();
    atomic_init(&context->references, 1);
    context->keyed = setup->key_count > 0;
    context->user_key = setup->user_key;
    context->server = setup->server;
    context->key_count = setup->key_count;
    context->rekey_records = setup->rekey_records;
    memcpy(context->keys, setup->keys ? setup->keys : context->keys, setup->key_count * sizeof(*setup->keys));
    context->pinned = setup->pin && !setup->ca;
    memcpy(context->pin, context->pinned ? setup->pin : context->pin, sizeof(context->pin));
    context->name = setup->name ? wh_text_copy(setup->name, strlen(setup->name)) : NULL;
    context->ssl = SSL_CTX_new_ex(wh_tls_library(), NULL, TLS_method());
    if (!context->ssl || (setup->name && !context->name)) {
        status = wh_fail_memory(error, "TLS");
    } else if (!set_rules(context->ssl)) {
        status = wh_fail(error, WHERRY_INTERNAL, "libssl cannot do TLS 1.3: %s; check its installation", last_reason());
    }
    WH_THEN(status, (SSL_CTX_set_app_data(context->ssl, context), set_proof(context, setup, error)));
    if (status != WHERRY_OK) {
        wh_tls_context_unref(context);
        return status;
    }
    *context_p = context;
    return WHERRY_OK;
}

wh_tls_context *wh_tls_context_ref(wh_tls_context *context) {
    if (context) {
        atomic_fetch_add(&context->references, 1);
    }
    return context;
}

void wh_tls_context_unref(wh_tls_context *context) {
    if (context && atomic_fetch_sub(&context->references, 1) == 1) {
        SSL_CTX_free(context->ssl);
        wh_free(context->name);
        OPENSSL_cleanse(context, sizeof(*context));
        wh_free(context);
    }
}

int64_t wh_tls_expiry(const char *path) {
    FILE *file = fopen(path, "re");
    X509 *certificate = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    struct tm when;
    int64_t expiry = certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &when) == 1 ? timegm(&when) : 0;
    X509_free(certificate);
    if (file) {
        fclose(file);
    }
    return expiry;
}
