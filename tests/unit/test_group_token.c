/* The identity of a server, its file, and the token. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "base/process.h"
#include "group/token.h"
#include "support/build.h"
#include "support/scratch_folder.h"

static wherry_error error;

/* Computed with Python and `openssl pkey` from the description in token.h. */
static const char golden_token[] = "wherry1-GC87EZq3zsyghHvq--TS12g3f-qS5X6bXDLu4uSUeEPxU_s6JyIoVs-40XfwmDYMH9yY";
static const char golden_file[] = "wherry-identity1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_5XWkS";

static wh_server_identity identity_of(uint8_t first) {
    uint8_t seed[WH_SEED_BYTES];
    wh_server_identity identity;
    for (size_t i = 0; i < sizeof(seed); i++) {
        seed[i] = (uint8_t)(first + i);
    }
    must(wh_server_identity_make(NULL, seed, &identity, &error));
    return identity;
}

static void test_a_seed_has_one_token(void **state) {
    (void)state;
    char text[WH_TOKEN_CHARS + 1];
    wh_server_identity identity = identity_of(0);
    wh_token_encode(&identity.token, text);
    assert_string_equal(text, golden_token);
    wh_server_identity_clear(&identity);
    assert_null(identity.key);
    wh_server_identity_clear(&identity);
}

static void test_seeds_differ_in_everything(void **state) {
    (void)state;
    wh_server_identity one = identity_of(0);
    wh_server_identity other = identity_of(1);
    assert_memory_not_equal(one.token.pin, other.token.pin, WH_PIN_BYTES);
    assert_memory_not_equal(one.token.reader, other.token.reader, WH_READER_BYTES);
    assert_int_not_equal(X509_cmp(one.certificate, other.certificate), 0);
    wh_server_identity_clear(&one);
    wh_server_identity_clear(&other);
}

/** The certificate is signed by its own key, is the same every time, and the pin is of that key. */
static void test_certificate_of_the_key(void **state) {
    (void)state;
    uint8_t pin[WH_PIN_BYTES];
    wh_server_identity one = identity_of(7);
    wh_server_identity again = identity_of(7);
    assert_int_equal(X509_cmp(one.certificate, again.certificate), 0);
    assert_int_equal(X509_verify(one.certificate, one.key), 1);
    assert_int_equal(X509_check_private_key(one.certificate, one.key), 1);
    assert_true(X509_cmp_current_time(X509_get0_notBefore(one.certificate)) < 0);
    assert_true(X509_cmp_current_time(X509_get0_notAfter(one.certificate)) > 0);
    must(wh_pin_of(X509_get0_pubkey(one.certificate), pin, &error));
    assert_memory_equal(pin, one.token.pin, WH_PIN_BYTES);
    wh_server_identity_clear(&one);
    wh_server_identity_clear(&again);
}

static void test_tokens_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < 1000; i++) {
        wh_token sent;
        wh_token got;
        char text[WH_TOKEN_CHARS + 1];
        must(wh_random_fill(&sent, sizeof(sent), &error));
        wh_token_encode(&sent, text);
        assert_int_equal(strlen(text), WH_TOKEN_CHARS);
        must(wh_token_decode(text, &got, &error));
        assert_memory_equal(&got, &sent, sizeof(sent));
    }
}

static void refuse(const char *text, wherry_status status, const char *words) {
    wh_token token;
    memset(&token, 0xAB, sizeof(token));
    must_fail(status, error, wh_token_decode(text, &token, &error));
    assert_non_null(strstr(error.message, words));
    assert_true(strlen(text) < 20 || !strstr(error.message, text + 10)); /* a secret */
    for (size_t i = 0; i < sizeof(token); i++) {
        assert_int_equal(((const uint8_t *)&token)[i], 0xAB);
    }
}

static void test_refuses_what_is_no_token(void **state) {
    (void)state;
    refuse("", WHERRY_INVALID_ARGUMENT, "is not a token");
    refuse("9f0c8d", WHERRY_INVALID_ARGUMENT, "wherry serve");
    refuse("wherry", WHERRY_INVALID_ARGUMENT, "is not a token");
    refuse("wherry1", WHERRY_INVALID_ARGUMENT, "is not a token");
    refuse("Wherry1-", WHERRY_INVALID_ARGUMENT, "is not a token");
    refuse(golden_file, WHERRY_INVALID_ARGUMENT, "is not a token");
    refuse("wherry2-GC87EZq3", WHERRY_BAD_VERSION, "another version");
    refuse("wherry12-GC87EZq3", WHERRY_BAD_VERSION, "another version");
    refuse("wherry1-", WHERRY_INVALID_ARGUMENT, "8 characters instead of 76");
}

static void test_refuses_a_token_that_was_changed(void **state) {
    (void)state;
    static const char others[] = "AZaz09-_+/= \n";
    char text[2 * WH_TOKEN_CHARS];
    for (size_t i = 0; i < WH_TOKEN_CHARS; i++) {
        snprintf(text, sizeof(text), "%.*s", (int)i, golden_token);
        if (i >= 8) {
            refuse(text, WHERRY_INVALID_ARGUMENT, "copy all of it");
        }
        for (const char *other = others; *other; other++) {
            wh_token token;
            snprintf(text, sizeof(text), "%s", golden_token);
            text[i] = *other;
            if (*other != golden_token[i]) {
                assert_int_not_equal(wh_token_decode(text, &token, NULL), WHERRY_OK);
            }
        }
    }
    snprintf(text, sizeof(text), "%sA", golden_token);
    refuse(text, WHERRY_INVALID_ARGUMENT, "77 characters");
    snprintf(text, sizeof(text), "%s", golden_token);
    text[20] = '+';
    refuse(text, WHERRY_INVALID_ARGUMENT, "number 21,");
    text[20] = text[20] == 'A' ? 'B' : 'A';
    refuse(text, WHERRY_INVALID_ARGUMENT, "is wrong; copy it again");
}

/* ---- the file ---- */

static void write_file(const char *path, const char *text, mode_t mode) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_makes_a_file_once(void **state) {
    (void)state;
    scratch folder = scratch_open();
    const char *path = scratch_file(&folder, "identity");
    const char *other = scratch_file(&folder, "other");
    uint8_t seeds[3][WH_SEED_BYTES];
    struct stat file;
    must(wh_seed_load(path, seeds[0], &error));
    must(wh_seed_load(path, seeds[1], &error));
    must(wh_seed_load(other, seeds[2], &error));
    assert_memory_equal(seeds[0], seeds[1], WH_SEED_BYTES);
    assert_memory_not_equal(seeds[0], seeds[2], WH_SEED_BYTES);
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    assert_int_equal(scratch_count(&folder), 2);
    scratch_close(&folder);
}

static void refuse_file(const char *path, wherry_status status, const char *words) {
    uint8_t seed[WH_SEED_BYTES];
    must_fail(status, error, wh_seed_load(path, seed, &error));
    assert_non_null(strstr(error.message, words));
    assert_non_null(strstr(error.message, path));
}

static void test_refuses_other_files(void **state) {
    (void)state;
    scratch folder = scratch_open();
    const char *path = scratch_file(&folder, "identity");
    uint8_t seed[WH_SEED_BYTES];
    char text[200];
    for (size_t i = 0; i < WH_SEED_BYTES; i++) {
        seed[i] = 0xEE;
    }
    write_file(path, golden_file, 0600);
    must(wh_seed_load(path, seed, &error));
    for (size_t i = 0; i < WH_SEED_BYTES; i++) {
        assert_int_equal(seed[i], i);
    }
    write_file(path, golden_file, 0640);
    refuse_file(path, WHERRY_SYSTEM, "chmod 600");
    write_file(path, golden_file, 0604);
    refuse_file(path, WHERRY_SYSTEM, "chmod 600");
    write_file(path, golden_token, 0600);
    refuse_file(path, WHERRY_MALFORMED, "not the identity of a server");
    write_file(path, "", 0600);
    refuse_file(path, WHERRY_MALFORMED, "not the identity of a server");
    snprintf(text, sizeof(text), "%s\n\n", golden_file);
    write_file(path, text, 0600);
    refuse_file(path, WHERRY_MALFORMED, "not the identity of a server");
    snprintf(text, sizeof(text), "%s", golden_file);
    text[30] = text[30] == 'A' ? 'B' : 'A';
    write_file(path, text, 0600);
    refuse_file(path, WHERRY_MALFORMED, "not the identity of a server");
    refuse_file(scratch_file(&folder, "none/identity"), WHERRY_SYSTEM, "cannot make the identity file");
    refuse_file(folder.path, WHERRY_SYSTEM, "chmod 600");
    scratch_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_has_one_token),     cmocka_unit_test(test_seeds_differ_in_everything),
        cmocka_unit_test(test_certificate_of_the_key),   cmocka_unit_test(test_tokens_round_trip),
        cmocka_unit_test(test_refuses_what_is_no_token), cmocka_unit_test(test_refuses_a_token_that_was_changed),
        cmocka_unit_test(test_makes_a_file_once),        cmocka_unit_test(test_refuses_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
