/** @file tls_internal.h  What tls.c and tls_context.c share. */
#ifndef WH_GROUP_TLS_INTERNAL_H
#define WH_GROUP_TLS_INTERNAL_H

#include <stdatomic.h>

#include <openssl/ssl.h>

#include "group/tls.h"

struct wh_tls_context {
    atomic_uint references;
    SSL_CTX *ssl;
    bool keyed; /**< Both sides prove a pre-shared key. */
    bool user_key;
    bool server; /**< The other side needs no certificate. */
    wh_group_key keys[WH_TLS_KEYS_MAX];
    size_t key_count;
    bool pinned;
    uint8_t pin[WH_TLS_PIN_BYTES];
    uint64_t rekey_records;
    char *name; /**< The name in the certificates of all others; NULL: the host that was dialled. */
};

#endif
