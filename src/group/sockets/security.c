#include "group/sockets/security.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"

bool wh_is_unix(int fd) {
    int family = 0;
    socklen_t size = sizeof(family);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX;
}

/**
 * The given text; otherwise the variable if it is set and not empty; otherwise NULL. The variable
 * may be NULL.
 */
static const char *text_of(const char *given, const char *variable) {
    const char *set = given || !variable ? given : getenv(variable);
    return set && *set ? set : NULL;
}

/** Copies a text that may be NULL. @return false if out of memory. */
static bool keep_text(const char **to, const char *text) {
    *to = text ? wh_text_copy(text, strlen(text)) : NULL;
    return !text || *to;
}

static wherry_status choose_encryption(wh_security *security, uint32_t given, wherry_error *error) {
    const char *set = text_of(NULL, "WHERRY_ENCRYPT");
    bool all = given == WHERRY_ENCRYPT_ALL || (given == WHERRY_ENCRYPT_DEFAULT && set && strcmp(set, "all") == 0);
    if (given == WHERRY_ENCRYPT_DEFAULT && set && !all && strcmp(set, "control") != 0) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "WHERRY_ENCRYPT is '%s'; it must be control or all", set);
    }
    security->encrypt_all = all;
    return WHERRY_OK;
}

/**
 * Stores the paths of the certificates. The environment is for the members of a group, not for a
 * server and its readers.
 */
static wherry_status find_certificates(wh_security *security, const wh_sockets_options *options, wherry_error *error) {
    wh_tls_setup *setup = &security->setup;
    bool role = security->serves || security->reads;
    bool kept = keep_text(&setup->certificate, text_of(options->tls_certificate, role ? NULL : "WHERRY_TLS_CERT")) &&
                keep_text(&setup->private_key, text_of(options->tls_key, role ? NULL : "WHERRY_TLS_KEY")) &&
                keep_text(&setup->ca, text_of(options->tls_ca, role ? NULL : "WHERRY_TLS_CA")) &&
                keep_text(&setup->name, text_of(options->tls_name, role ? NULL : "WHERRY_TLS_NAME"));
    WH_TRY_ALLOC(kept, error, "the paths of certificates");
    bool needs_ca = setup->certificate && !security->serves;
    bool needs_certificate = (setup->ca || setup->private_key) && !security->reads;
    if ((needs_ca && !setup->ca) || (needs_certificate && !setup->certificate)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "certificates need WHERRY_TLS_CERT, WHERRY_TLS_KEY and WHERRY_TLS_CA together; %s is missing",
                       setup->certificate ? "WHERRY_TLS_CA" : "WHERRY_TLS_CERT");
    }
    return WHERRY_OK;
}

/** The readers' secret proves readers to the server, over TLS and over Unix sockets. */
static wherry_status take_token(wh_security *security, const wh_token *token, wherry_error *error) {
    memcpy(security->pin, token->pin, sizeof(security->pin));
    security->secrets.count = 1;
    return wh_group_key_derive(token->reader, sizeof(token->reader), security->secrets.keys, error);
}

static wherry_status become_server(wh_security *security, const char *identity, wherry_error *error) {
    uint8_t seed[WH_SEED_BYTES];
    wherry_status status = *identity ? wh_seed_load(identity, seed, error) : wh_random_fill(seed, sizeof(seed), error);
    WH_THEN(status, wh_server_identity_make(wh_tls_library(), seed, &security->identity, error));
    OPENSSL_cleanse(seed, sizeof(seed));
    return status == WHERRY_OK ? take_token(security, &security->identity.token, error) : status;
}

static wherry_status become_reader(wh_security *security, const char *text, wherry_error *error) {
    wh_token token;
    WH_TRY(wh_token_decode(text, &token, error));
    wherry_status status = take_token(security, &token, error);
    OPENSSL_cleanse(&token, sizeof(token));
    return status;
}

/** Makes the TLS context from secrets or certificates. */
static wherry_status make_context(const wh_security *security, const wh_secrets *secrets, wh_tls_context **context_p,
                                  wherry_error *error) {
    wh_tls_setup setup = security->setup;
    setup.server = security->serves;
    if (security->serves && !setup.certificate) {
        setup.server_key = security->identity.key;
        setup.server_certificate = security->identity.certificate;
    } else if (security->reads) {
        setup.pin = security->pin;
    } else if (!setup.certificate) {
        setup.keys = secrets->keys;
        setup.key_count = secrets->count;
        setup.user_key = security->user_key;
    }
    return wh_tls_context_create(&setup, context_p, error);
}

struct timespec wh_security_time(const wh_security *security) {
    struct stat file;
    bool known = security->secret_path && stat(security->secret_path, &file) == 0;
    return known ? file.st_mtim : (struct timespec){0};
}

static wherry_status init(wh_security *security, const wh_sockets_options *options, wherry_error *error) {
    const char *path = NULL;
    security->serves = options->identity;
    security->reads = options->token;
    WH_TRY(choose_encryption(security, options->encrypt, error));
    WH_TRY(wh_random_fill(security->ticket_key, sizeof(security->ticket_key), error));
    WH_TRY(find_certificates(security, options, error));
    if (security->serves) {
        WH_TRY(become_server(security, options->identity, error));
    } else if (security->reads) {
        WH_TRY(become_reader(security, options->token, error));
    } else {
        WH_TRY(wh_secrets_find(options->secret, options->secret_size, &security->secrets, &path, error));
    }
    if (path) {
        WH_TRY_ALLOC(keep_text((const char **)&security->secret_path, path), error, "a path");
        security->secret_time = wh_security_time(security);
    }
    security->outward = security->secrets.count || security->setup.certificate;
    if (security->outward) {
        WH_TRY(make_context(security, &security->secrets, &security->tls, error));
    }
    /* Certificates have no effect on a Unix socket. */
    return security->outward && !security->secrets.count ? wh_security_use_user_key(security, error) : WHERRY_OK;
}

wherry_status wh_security_init(wh_security *security, const wh_sockets_options *options, wherry_error *error) {
    *security = (wh_security){.tls = NULL};
    wherry_status status = init(security, options, error);
    if (status != WHERRY_OK) {
        wh_security_clear(security);
    }
    return status;
}

void wh_security_clear(wh_security *security) {
    wh_tls_context_unref(security->tls);
    wh_free((void *)security->setup.certificate);
    wh_free((void *)security->setup.private_key);
    wh_free((void *)security->setup.ca);
    wh_free((void *)security->setup.name);
    wh_free(security->secret_path);
    wh_server_identity_clear(&security->identity);
    OPENSSL_cleanse(security, sizeof(*security));
}

wherry_status wh_security_use_user_key(wh_security *security, wherry_error *error) {
    uint8_t key[WH_KEY_BYTES];
    WH_TRY(wh_key_find(key, error));
    wherry_status status = wh_group_key_derive(key, sizeof(key), security->secrets.keys, error);
    OPENSSL_cleanse(key, sizeof(key));
    WH_TRY(status);
    security->secrets.count = 1;
    security->user_key = true;
    return security->tls ? WHERRY_OK : make_context(security, &security->secrets, &security->tls, error);
}

wherry_status wh_security_read(const wh_security *security, wh_security_files *files_p, wherry_error *error) {
    /* If the file changes now, the time is older than what is read. So the file is read again. */
    wh_security_files files = {.secret_time = wh_security_time(security)};
    wherry_status status = WHERRY_OK;
    if (security->secret_path) {
        status = wh_secrets_read(security->secret_path, &files.secrets, error);
    } else {
        files.secrets = security->secrets; /* Without a file, these never change. */
    }
    if (security->outward || security->user_key) {
        WH_THEN(status, make_context(security, &files.secrets, &files.tls, error));
    }
    *files_p = files;
    OPENSSL_cleanse(&files, sizeof(files));
    return status;
}

void wh_security_update(wh_security *security, wh_security_files *files) {
    wh_tls_context *former = security->tls;
    /* Without a file they have not changed, and another thread may read them. */
    if (security->secret_path) {
        security->secrets = files->secrets;
    }
    security->tls = files->tls;
    security->secret_time = files->secret_time;
    security->updates++;
    files->tls = former;
    wh_security_drop(files);
}

void wh_security_drop(wh_security_files *files) {
    wh_tls_context_unref(files->tls);
    OPENSSL_cleanse(files, sizeof(*files));
}

bool wh_security_ticket_key(const wh_security *security, const wh_hello_fields *peer, uint8_t key[WH_KEY_BYTES]) {
    uint8_t text[4 + 8];
    wh_store_be32(text, peer->rank);
    wh_store_be64(text + 4, peer->incarnation);
    return security->tls && !security->encrypt_all && !security->serves && !security->reads &&
           HMAC(EVP_sha256(), security->ticket_key, WH_KEY_BYTES, text, sizeof(text), key, NULL);
}

bool wh_tickets_use(wh_tickets *tickets, uint64_t incarnation, uint64_t number) {
    if (incarnation > tickets->incarnation) {
        *tickets = (wh_tickets){.incarnation = incarnation};
    }
    bool old = tickets->highest >= WH_TICKETS && number <= tickets->highest - WH_TICKETS;
    if (!number || old || incarnation < tickets->incarnation) {
        return false;
    }
    if (number > tickets->highest && number - tickets->highest >= WH_TICKETS) {
        memset(tickets->used, 0, sizeof(tickets->used));
        tickets->highest = number;
    }
    while (tickets->highest < number) {
        size_t next = ++tickets->highest % WH_TICKETS;
        tickets->used[next / 64] &= ~(UINT64_C(1) << next % 64);
    }
    uint64_t bit = UINT64_C(1) << number % 64;
    uint64_t *word = tickets->used + number % WH_TICKETS / 64;
    bool fresh = !(*word & bit);
    *word |= bit;
    return fresh;
}

void wh_security_greet(const wh_security *security, const wh_socket *socket, uint8_t binding[WH_KEY_BYTES],
                       wh_hello_config *config) {
    bool role = security->serves || security->reads;
    bool local = wh_is_unix(socket->fd);
    if (!local && security->tls && !socket->tls) {
        config->method = WH_HELLO_METHOD_TICKET;
        return;
    }
    if (role) {
        config->method = WH_HELLO_METHOD_READER;
    } else if (socket->tls) {
        config->method = WH_HELLO_METHOD_TLS;
        return;
    } else {
        config->method = !security->secrets.count || !local ? WH_HELLO_METHOD_NONE
                         : security->user_key               ? WH_HELLO_METHOD_USER_KEY
                                                            : WH_HELLO_METHOD_SECRET;
    }
    if (config->method != WH_HELLO_METHOD_NONE) {
        config->keys = security->secrets.keys;
        config->key_count = security->secrets.count;
    }
    if (socket->tls) {
        config->binding = binding;
        config->key_count = wh_tls_export(socket->tls, binding) ? config->key_count : 0;
    }
}
