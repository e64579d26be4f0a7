/**
 * @file token.h  The identity of a server, and the token with which others read from it.
 *
 * An identity is a seed of 32 random bytes. Three things are derived from it, each by HKDF-SHA-256
 * with a label of its own: the server's Ed25519 key, its self-signed certificate, and the secret of
 * its readers. The same seed always gives the same three.
 *
 * A token is text for the readers: "wherry1-" and base64url of
 *
 *     pin        32 bytes  SHA-256 of the server's public key, as SubjectPublicKeyInfo in DER
 *     reader     16 bytes  the readers' secret
 *     check       3 bytes  the first bytes of SHA-256 of "wherry1-", pin and reader
 *
 * Invariants:
 * 1. The pin proves the server to the readers. The readers' secret proves a reader to the server.
 * 2. A process with the token can read from the server, but cannot compute the server's key or
 *    seed.
 * 3. A token has one form only. Text that differs in any character is refused.
 *
 * This part does no I/O, except for the file of an identity.
 */
#ifndef WH_GROUP_TOKEN_H
#define WH_GROUP_TOKEN_H

#include <stddef.h>
#include <stdint.h>

#include <openssl/types.h>

#include <wherry/base.h>

enum {
    WH_SEED_BYTES = 32,
    WH_PIN_BYTES = 32,
    WH_READER_BYTES = 16,
    WH_TOKEN_CHARS = 76, /**< Length of every token. */
};

/** What a reader must know about a server. */
typedef struct wh_token {
    uint8_t pin[WH_PIN_BYTES];
    uint8_t reader[WH_READER_BYTES];
} wh_token;

/** The values that are derived from a seed. */
typedef struct wh_server_identity {
    EVP_PKEY *key;
    X509 *certificate; /**< Self-signed; valid at all times. */
    wh_token token;
} wh_server_identity;

/**
 * Computes the identity of a seed.
 * @param library     NULL: the default context of libcrypto.
 * @param identity_p  the caller frees it with wh_server_identity_clear.
 * @return WHERRY_OK; WHERRY_INTERNAL if libcrypto fails.
 */
wherry_status wh_server_identity_make(OSSL_LIB_CTX *library, const uint8_t seed[WH_SEED_BYTES],
                                      wh_server_identity *identity_p, wherry_error *error);

/** Frees and zeroes an identity. The identity may be zeroed already. */
void wh_server_identity_clear(wh_server_identity *identity);

/** Computes the pin of a key. @return WHERRY_OK; WHERRY_INTERNAL if libcrypto fails. */
wherry_status wh_pin_of(const EVP_PKEY *key, uint8_t pin[WH_PIN_BYTES], wherry_error *error);

/** Writes a token as text, with a final zero. */
void wh_token_encode(const wh_token *token, char text[WH_TOKEN_CHARS + 1]);

/**
 * Reads a token. No error message contains the token.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if it is not a token, or not all of one, or mistyped;
 * WHERRY_BAD_VERSION if it is of another version.
 */
wherry_status wh_token_decode(const char *text, wh_token *token_p, wherry_error *error);

/**
 * Reads the seed in a file, or makes a new one there if there is no file. Only the owner may have
 * access to it.
 * @return WHERRY_OK; WHERRY_SYSTEM if it cannot be read or made, or others have access to it;
 * WHERRY_MALFORMED if it has something else.
 */
wherry_status wh_seed_load(const char *path, uint8_t seed[WH_SEED_BYTES], wherry_error *error);

#endif
