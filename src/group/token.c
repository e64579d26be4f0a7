#include "group/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/x509.h>

#include "base/error.h"
#include "base/private_file.h"
#include "base/process.h"
#include "group/key.h"

/** Labels of HKDF. A change of one changes all tokens, and needs another version of the token. */
#define LABEL_KEY "wherry server key 1"
#define LABEL_READER "wherry reader secret 1"

/** Every version begins with FAMILY; this one with TOKEN. */
#define FAMILY "wherry"
#define TOKEN "wherry1-"
#define SEED "wherry-identity1-"

enum {
    CHECK = 3, /**< Bytes that distinguish a mistyped text from a correct one. */
    CHECK_SEED = 4,
    PAYLOAD_MAX = 64,
    PREFIX_MAX = 32,
    SEED_CHARS = 65, /**< Length of the text in a file. */
};

_Static_assert(sizeof(TOKEN) - 1 + (WH_PIN_BYTES + WH_READER_BYTES + CHECK) * 4 / 3 == WH_TOKEN_CHARS, "a token");
_Static_assert(sizeof(SEED) - 1 + (WH_SEED_BYTES + CHECK_SEED) * 4 / 3 == SEED_CHARS, "a seed");

/* ---- text ---- */

/** The form of a text: a prefix, then the bytes and a check of the bytes in base64url. */
typedef struct text_form {
    const char *prefix;
    size_t bytes; /**< Together with `check`, a multiple of 3. */
    size_t check;
} text_form;

static const text_form token_form = {TOKEN, sizeof(wh_token), CHECK};
static const text_form seed_form = {SEED, WH_SEED_BYTES, CHECK_SEED};

static size_t length_of(const text_form *form) {
    return strlen(form->prefix) + (form->bytes + form->check) / 3 * 4;
}

/** Computes the check of the bytes. */
static void check_of(const text_form *form, const uint8_t *bytes, uint8_t check[SHA256_DIGEST_LENGTH]) {
    uint8_t whole[PREFIX_MAX + PAYLOAD_MAX];
    size_t prefix = strlen(form->prefix);
    memcpy(whole, form->prefix, prefix);
    memcpy(whole + prefix, bytes, form->bytes);
    SHA256(whole, prefix + form->bytes, check);
    OPENSSL_cleanse(whole, sizeof(whole));
}

static void encode(const text_form *form, const void *bytes, char *text) {
    uint8_t payload[PAYLOAD_MAX];
    uint8_t check[SHA256_DIGEST_LENGTH];
    size_t prefix = strlen(form->prefix);
    memcpy(payload, bytes, form->bytes);
    check_of(form, payload, check);
    memcpy(payload + form->bytes, check, form->check);
    memcpy(text, form->prefix, prefix);
    EVP_EncodeBlock((uint8_t *)text + prefix, payload, (int)(form->bytes + form->check));
    for (char *at = text + prefix; *at; at++) {
        *at = (char)(*at == '+' ? '-' : *at == '/' ? '_' : *at);
    }
    OPENSSL_cleanse(payload, sizeof(payload));
}

/** The character of base64 for one of base64url; 0 if there is none. */
static char plain_base64(char c) {
    bool same = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    return (char)(same ? c : c == '-' ? '+' : c == '_' ? '/' : 0);
}

/**
 * Decodes a text that has the prefix. @param what the name of the text in errors, such as "the
 * token".
 */
static wherry_status decode(const text_form *form, const char *what, const char *text, void *bytes,
                            wherry_error *error) {
    char plain[PAYLOAD_MAX / 3 * 4 + 4];
    uint8_t payload[PAYLOAD_MAX];
    uint8_t check[SHA256_DIGEST_LENGTH];
    size_t length = strlen(text);
    size_t prefix = strlen(form->prefix);
    if (length != length_of(form)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%s has %zu characters instead of %zu; copy all of it", what,
                       length, length_of(form));
    }
    for (size_t i = prefix; i < length; i++) {
        plain[i - prefix] = plain_base64(text[i]);
        if (!plain[i - prefix]) {
            return wh_fail_at(error, WHERRY_INVALID_ARGUMENT, i,
                              "%s has a character, number %zu, that does not belong there; copy it again", what, i + 1);
        }
    }
    EVP_DecodeBlock(payload, (const uint8_t *)plain, (int)(length - prefix));
    check_of(form, payload, check);
    bool good = CRYPTO_memcmp(check, payload + form->bytes, form->check) == 0;
    memcpy(bytes, payload, good ? form->bytes : 0);
    OPENSSL_cleanse(plain, sizeof(plain));
    OPENSSL_cleanse(payload, sizeof(payload));
    return good ? WHERRY_OK
                : wh_fail(error, WHERRY_INVALID_ARGUMENT, "a character of %s is wrong; copy it again", what);
}

void wh_token_encode(const wh_token *token, char text[WH_TOKEN_CHARS + 1]) {
    encode(&token_form, token, text);
}

wherry_status wh_token_decode(const char *text, wh_token *token_p, wherry_error *error) {
    size_t family = strlen(FAMILY);
    bool known = strncmp(text, TOKEN, strlen(TOKEN)) == 0;
    size_t digits = strncmp(text, FAMILY, family) == 0 ? strspn(text + family, "0123456789") : 0;
    if (!known && digits && text[family + digits] == '-') {
        return wh_fail(error, WHERRY_BAD_VERSION,
                       "the token is of another version of Wherry; use the same version on both sides");
    }
    if (!known) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "this is not a token; use the one that `wherry serve` prints, which begins with " TOKEN);
    }
    return decode(&token_form, "the token", text, token_p, error);
}

/* ---- the identity ---- */

static wherry_status fail_crypto(const char *what, wherry_error *error) {
    return wh_fail(error, WHERRY_INTERNAL, "libcrypto cannot %s; check its installation", what);
}

wherry_status wh_pin_of(const EVP_PKEY *key, uint8_t pin[WH_PIN_BYTES], wherry_error *error) {
    uint8_t *der = NULL;
    int size = i2d_PUBKEY(key, &der);
    if (size <= 0) {
        return fail_crypto("encode a public key", error);
    }
    SHA256(der, (size_t)size, pin);
    OPENSSL_free(der);
    return WHERRY_OK;
}

/** The name is for people who look at the certificate. Readers compare the pin. */
static bool set_name(X509 *certificate, const uint8_t pin[WH_PIN_BYTES]) {
    char name[64];
    snprintf(name, sizeof(name), "wherry serve %02x%02x%02x%02x", pin[0], pin[1], pin[2], pin[3]);
    X509_NAME *subject = X509_get_subject_name(certificate);
    return X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const uint8_t *)name, -1, -1, 0) == 1 &&
           X509_set_issuer_name(certificate, subject) == 1;
}

/** 9999-12-31 means that a certificate does not expire (RFC 5280), so that clocks do not matter. */
static X509 *sign(OSSL_LIB_CTX *library, EVP_PKEY *key, const uint8_t pin[WH_PIN_BYTES]) {
    X509 *certificate = X509_new_ex(library, NULL);
    bool good = certificate && X509_set_version(certificate, X509_VERSION_3) == 1 &&
                ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1 &&
                ASN1_TIME_set_string(X509_getm_notBefore(certificate), "20200101000000Z") == 1 &&
                ASN1_TIME_set_string(X509_getm_notAfter(certificate), "99991231235959Z") == 1 &&
                set_name(certificate, pin) && X509_set_pubkey(certificate, key) == 1 &&
                X509_sign(certificate, key, NULL) > 0;
    if (!good) {
        X509_free(certificate);
        certificate = NULL;
    }
    return certificate;
}

wherry_status wh_server_identity_make(OSSL_LIB_CTX *library, const uint8_t seed[WH_SEED_BYTES],
                                      wh_server_identity *identity_p, wherry_error *error) {
    uint8_t private_key[32];
    wh_server_identity identity = {0};
    wherry_status status = wh_derive(library, seed, WH_SEED_BYTES, LABEL_KEY, private_key, sizeof(private_key), error);
    WH_THEN(status, wh_derive(library, seed, WH_SEED_BYTES, LABEL_READER, identity.token.reader,
                              sizeof(identity.token.reader), error));
    if (status == WHERRY_OK) {
        identity.key = EVP_PKEY_new_raw_private_key_ex(library, "ED25519", NULL, private_key, sizeof(private_key));
        status = identity.key ? WHERRY_OK : fail_crypto("make an Ed25519 key", error);
    }
    OPENSSL_cleanse(private_key, sizeof(private_key));
    WH_THEN(status, wh_pin_of(identity.key, identity.token.pin, error));
    if (status == WHERRY_OK) {
        identity.certificate = sign(library, identity.key, identity.token.pin);
        status = identity.certificate ? WHERRY_OK : fail_crypto("make a certificate", error);
    }
    if (status != WHERRY_OK) {
        wh_server_identity_clear(&identity);
        return status;
    }
    *identity_p = identity;
    return WHERRY_OK;
}

void wh_server_identity_clear(wh_server_identity *identity) {
    X509_free(identity->certificate);
    EVP_PKEY_free(identity->key);
    OPENSSL_cleanse(identity, sizeof(*identity));
}

/* ---- the file ---- */

static wherry_status make_seed(const char *path, wherry_error *error) {
    uint8_t seed[WH_SEED_BYTES];
    char text[SEED_CHARS + 2];
    WH_TRY(wh_random_fill(seed, sizeof(seed), error));
    encode(&seed_form, seed, text);
    text[SEED_CHARS] = '\n';
    int result = wh_private_file_make(AT_FDCWD, path, text, SEED_CHARS + 1);
    int errnum = errno;
    OPENSSL_cleanse(seed, sizeof(seed));
    OPENSSL_cleanse(text, sizeof(text));
    return result == 0 ? WHERRY_OK
                       : wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot make the identity file %s", path);
}

static wherry_status read_seed(const char *path, char text[SEED_CHARS + 2], wherry_error *error) {
    ssize_t size = wh_private_file_read(AT_FDCWD, path, 0, text, SEED_CHARS + 1);
    if (size < 0 && errno == ENOENT) {
        WH_TRY(make_seed(path, error));
        size = wh_private_file_read(AT_FDCWD, path, 0, text, SEED_CHARS + 1);
    }
    if (size < 0 && errno == EPERM) {
        return wh_fail(error, WHERRY_SYSTEM,
                       "%s is not a file of this user, or others have access to it: chmod 600 it, and make a new "
                       "identity if others may have read it",
                       path);
    }
    if (size < 0 && errno != EFBIG) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot read the identity file %s", path);
    }
    size -= size > 0 && text[size - 1] == '\n';
    text[size < 0 ? 0 : size] = '\0';
    return WHERRY_OK;
}

wherry_status wh_seed_load(const char *path, uint8_t seed[WH_SEED_BYTES], wherry_error *error) {
    char text[SEED_CHARS + 2];
    WH_TRY(read_seed(path, text, error));
    wherry_status status =
        strncmp(text, SEED, strlen(SEED)) == 0 && decode(&seed_form, "it", text, seed, NULL) == WHERRY_OK
            ? WHERRY_OK
            : wh_fail(error, WHERRY_MALFORMED,
                      "%s is not the identity of a server, or was changed; name a file that does not exist to make one",
                      path);
    OPENSSL_cleanse(text, sizeof(text));
    return status;
}
