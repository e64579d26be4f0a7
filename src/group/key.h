/**
 * @file key.h  The keys that are derived from a secret.
 *
 * A secret is never used itself. Three things are derived from it, each by HKDF-SHA-256 with a
 * label of its own: a number that says which secret it is, the key of the proofs in a greeting
 * (hello.h), and the pre-shared key of TLS (tls.h).
 */
#ifndef WH_GROUP_KEY_H
#define WH_GROUP_KEY_H

#include <stddef.h>
#include <stdint.h>

#include <openssl/types.h>

#include <wherry/base.h>

enum { WH_KEY_BYTES = 32 };

/** The keys that are derived from a secret. Wipe them with OPENSSL_cleanse. */
typedef struct wh_group_key {
    uint64_t id; /**< Identifies the secret without revealing it. Never 0. */
    uint8_t proof[WH_KEY_BYTES];
    uint8_t tls[WH_KEY_BYTES];
} wh_group_key;

/**
 * HKDF with SHA-256 (RFC 5869) without a salt.
 * @param label the purpose of the result.
 * @return WHERRY_OK; WHERRY_INTERNAL if libcrypto fails.
 */
wherry_status wh_derive(OSSL_LIB_CTX *library, const void *secret, size_t secret_size, const char *label, void *result,
                        size_t size, wherry_error *error);

/** Derives the keys of a secret. @return WHERRY_OK; WHERRY_INTERNAL if libcrypto fails. */
wherry_status wh_group_key_derive(const void *secret, size_t size, wh_group_key *key_p, wherry_error *error);

#endif
