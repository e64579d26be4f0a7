#include "group/key.h"

#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include "base/bytes.h"
#include "base/error.h"

/** Labels of HKDF. A change of one changes the protocol between the members of a group. */
#define LABEL_ID "wherry key id 1"
#define LABEL_PROOF "wherry proof 1"
#define LABEL_TLS "wherry tls psk 1"

wherry_status wh_derive(OSSL_LIB_CTX *library, const void *secret, size_t secret_size, const char *label, void *result,
                        size_t size, wherry_error *error) {
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret, secret_size),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *hkdf = EVP_KDF_fetch(library, "HKDF", NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(hkdf);
    bool good = context && EVP_KDF_derive(context, result, size, parameters) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(hkdf);
    return good ? WHERRY_OK : wh_fail(error, WHERRY_INTERNAL, "libcrypto cannot derive a key; check its installation");
}

wherry_status wh_group_key_derive(const void *secret, size_t size, wh_group_key *key_p, wherry_error *error) {
    uint8_t id[8];
    wh_group_key key;
    wherry_status status = wh_derive(NULL, secret, size, LABEL_ID, id, sizeof(id), error);
    WH_THEN(status, wh_derive(NULL, secret, size, LABEL_PROOF, key.proof, sizeof(key.proof), error));
    WH_THEN(status, wh_derive(NULL, secret, size, LABEL_TLS, key.tls, sizeof(key.tls), error));
    if (status == WHERRY_OK) {
        key.id = wh_load_be64(id) | 1;
        *key_p = key;
    }
    OPENSSL_cleanse(&key, sizeof(key));
    return status;
}
