/*
 * The messages of the conversation: encoding and decoding of each type, truncated and extended
 * messages, and texts that are too long or not printable.
 */
#include "support/build.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "transfer/message.h"

static wherry_error error;

static wh_bytes of(const char *text) {
    return (wh_bytes){text, strlen(text)};
}

static bool same(wh_bytes one, wh_bytes other) {
    return one.size == other.size && (one.size == 0 || memcmp(one.bytes, other.bytes, one.size) == 0);
}

/** A note with all fields set. Each type encodes only its own. */
static wh_note full_note(wh_message_type type) {
    static const uint8_t lanes[] = "\2\3cma\0\0\0\4here\4ring\0\0\0\0";
    static uint8_t digests[2 * WHERRY_DIGEST_BYTES] = {9, 8, 7};
    wh_note note = {
        .type = type,
        .nonce = UINT64_C(0x8123456789ABCDEF),
        .id = UINT64_C(0xFEDCBA9876543210),
        .epoch = 3,
        .step = -1,
        .verify = 2,
        .small_pages = 1,
        .bytes = UINT64_MAX,
        .strong = 1,
        .first = UINT64_C(1) << 40,
        .status = WHERRY_TIMED_OUT,
        .path = of("layers[3].weight"),
        .text = of("it took too long \xE2\x82\xAC"),
        .lane = of("stream"),
        .request = of("please"),
        .known = of("0123456789abcdef"),
        .manifest = of("manifest"),
        .addresses = of("12345678"),
        .intervals = of("0123456789abcdef"),
        .digests = {digests, sizeof(digests)},
        .lanes = {lanes, sizeof(lanes) - 1},
    };
    return note;
}

static wh_string encode(const wh_note *note) {
    wh_string text = {0};
    wh_note_encode(note, &text);
    assert_false(text.failed);
    return text;
}

/** Encoding a decoded message gives the same bytes. */
static void test_every_type_is_encoded_and_decoded(void **state) {
    (void)state;
    for (int type = WH_WANT; type <= WH_ABORT; type++) {
        wh_note note = full_note((wh_message_type)type);
        wh_note read;
        wh_string text = encode(&note);
        must(wh_note_decode(text.bytes, text.size, &read, &error));
        assert_int_equal(read.type, type);
        wh_string again = encode(&read);
        assert_int_equal(again.size, text.size);
        assert_memory_equal(again.bytes, text.bytes, text.size);
        wh_free(again.bytes);
        wh_free(text.bytes);
    }
}

static void test_all_fields_of_large_messages_are_kept(void **state) {
    (void)state;
    wh_note note = full_note(WH_OFFER);
    wh_note read;
    wh_string text = encode(&note);
    must(wh_note_decode(text.bytes, text.size, &read, &error));
    assert_true(read.id == note.id && read.epoch == 3 && read.step == -1 && read.verify == 2);
    wh_bytes offer;
    assert_true(wh_lanes_find(read.lanes, "cma", &offer) && same(offer, of("here")));
    assert_true(wh_lanes_find(read.lanes, "ring", &offer) && offer.size == 0);
    assert_false(wh_lanes_find(read.lanes, "rin", &offer));
    wh_string lanes = {0};
    wh_lanes_add(&lanes, "cma", "here", 4);
    wh_lanes_add(&lanes, "ring", "", 0);
    assert_true(same(read.lanes, (wh_bytes){lanes.bytes, lanes.size}));
    wh_free(lanes.bytes);
    assert_true(same(read.manifest, note.manifest) && same(read.addresses, note.addresses));
    wh_free(text.bytes);
    note = full_note(WH_PLAN);
    text = encode(&note);
    must(wh_note_decode(text.bytes, text.size, &read, &error));
    assert_true(same(read.lane, note.lane) && same(read.request, note.request) && read.bytes == UINT64_MAX);
    assert_true(same(read.intervals, note.intervals) && read.verify == 2);
    wh_free(text.bytes);
    note = full_note(WH_REVOKED);
    text = encode(&note);
    must(wh_note_decode(text.bytes, text.size, &read, &error));
    assert_true(read.epoch == 3 && read.status == WHERRY_TIMED_OUT);
    assert_true(same(read.path, note.path) && same(read.text, note.text));
    wh_free(text.bytes);
}

/** The exact bytes, because other programs must be able to write them. */
static void test_want_has_the_documented_bytes(void **state) {
    (void)state;
    wh_note note = {.type = WH_WANT, .nonce = UINT64_C(0x8000000000000001), .step = 5, .verify = 1};
    static const uint8_t expected[] = {1, 0, 3, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 1, 0};
    wh_string text = encode(&note);
    assert_int_equal(text.size, sizeof(expected));
    assert_memory_equal(text.bytes, expected, sizeof(expected));
    wh_free(text.bytes);
}

/** A fingerprint is complete or absent. */
static void test_fingerprint_is_complete_or_absent(void **state) {
    (void)state;
    static const char bytes[] = "0123456789abcdefg";
    for (size_t size = 0; size <= WHERRY_DIGEST_BYTES + 1; size++) {
        wh_note note = {.type = WH_WANT, .nonce = 1, .known = {bytes, size}};
        wh_note read;
        wh_string text = encode(&note);
        if (size == 0 || size == WHERRY_DIGEST_BYTES) {
            must(wh_note_decode(text.bytes, text.size, &read, &error));
            assert_true(same(read.known, note.known));
        } else {
            must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
        }
        wh_free(text.bytes);
    }
}

static void test_refuses_truncated_and_extended_messages(void **state) {
    (void)state;
    for (int type = WH_WANT; type <= WH_ABORT; type++) {
        wh_note note = full_note((wh_message_type)type);
        wh_note read = {.type = WH_ABORT, .bytes = 77};
        wh_string text = encode(&note);
        for (size_t size = 0; size < text.size; size++) {
            /* The copy has exactly this size, so that a sanitizer detects a read past the end. */
            char *exact = wh_alloc(size);
            memcpy(exact, text.bytes, size);
            must_fail(WHERRY_MALFORMED, error, wh_note_decode(exact, size, &read, &error));
            wh_free(exact);
        }
        wh_string_append(&text, "x", 1);
        must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
        assert_int_equal(read.bytes, 77); /* The result is written only on success. */
        wh_free(text.bytes);
    }
}

static void test_refuses_unknown_types(void **state) {
    (void)state;
    for (int type = 0; type < 256; type++) {
        uint8_t bytes[64] = {(uint8_t)type};
        wh_note read;
        if (type == 0 || type > WH_ABORT) {
            must_fail(WHERRY_MALFORMED, error, wh_note_decode(bytes, sizeof(bytes), &read, &error));
        }
    }
}

/**
 * In a message of another version, only the address for an answer can be read. The error names both
 * versions.
 */
static void test_other_versions_can_be_answered(void **state) {
    (void)state;
    static const uint16_t versions[] = {2, 0x1234}; /* Version 2 is the version of Wherry 0.1. */
    for (int i = 0; i < 4; i++) {
        uint16_t version = versions[i / 2];
        wh_message_type type = i % 2 ? WH_OFFER : WH_WANT;
        uint8_t bytes[40] = {(uint8_t)type, (uint8_t)(version >> 8), (uint8_t)version};
        wh_note read = {.nonce = 0};
        char words[40];
        wh_store_be64(bytes + 3, 99);
        must_fail(WHERRY_BAD_VERSION, error, wh_note_decode(bytes, sizeof(bytes), &read, &error));
        assert_int_equal(read.version, version);
        assert_int_equal(type == WH_WANT ? read.nonce : read.id, 99);
        snprintf(words, sizeof(words), "speaks version %u ", version);
        assert_non_null(strstr(error.message, words));
        snprintf(words, sizeof(words), "this one %d;", WH_CONVERSATION_VERSION);
        assert_non_null(strstr(error.message, words));
        must_fail(WHERRY_BAD_VERSION, error, wh_note_decode(bytes, 11, &read, &error));
        must_fail(WHERRY_MALFORMED, error, wh_note_decode(bytes, 10, &read, &error));
    }
}

static void decode_reason(const char *path, const char *text, size_t size, wh_note *read_p, wh_string *bytes) {
    wh_note note = {.type = WH_ABORT, .path = of(path), .text = {text, size}};
    wh_note_encode(&note, bytes);
    must(wh_note_decode(bytes->bytes, bytes->size, read_p, &error));
}

/** Long texts are truncated between two characters. */
static void test_long_texts_are_truncated(void **state) {
    (void)state;
    static const char euro[] = {'\xE2', '\x82', '\xAC'};
    char text[WH_REASON_MAX + 20];
    for (size_t lead = 0; lead < 3; lead++) {
        wh_note read;
        wh_string bytes = {0};
        memset(text, 'x', lead);
        for (size_t i = lead; i + 3 <= sizeof(text); i += 3) {
            memcpy(text + i, euro, sizeof(euro));
        }
        decode_reason("p", text, sizeof(text) - (sizeof(text) - lead) % 3, &read, &bytes);
        assert_true(read.text.size <= WH_REASON_MAX && read.text.size > WH_REASON_MAX - 3);
        assert_int_equal((read.text.size - lead) % 3, 0);
        assert_memory_equal(read.text.bytes, text, read.text.size);
        wh_free(bytes.bytes);
    }
}

/** A text with control characters could falsify a log, so it is replaced. */
static void test_unprintable_texts_are_replaced(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
    } cases[] = {{"\x1B[31m", 5}, {"a\nb", 3}, {"\xFF\xFE", 2}, {"zero\0here", 9}, {"\x7F", 1}, {"\xC0\x80", 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wh_note read;
        wh_string bytes = {0};
        decode_reason("w", cases[i].text, cases[i].size, &read, &bytes);
        assert_true(same(read.path, of("w")));
        assert_non_null(memmem(read.text.bytes, read.text.size, "cannot be printed", 17));
        wh_free(bytes.bytes);
    }
    wh_note read;
    wh_string bytes = {0};
    decode_reason("", "", 0, &read, &bytes);
    assert_true(read.path.size == 0 && read.text.size == 0);
    wh_free(bytes.bytes);
}

/** Limits on requests, digests and the list of lanes. */
static void test_refuses_fields_above_their_limits(void **state) {
    (void)state;
    char request[WH_LANE_OFFER_MAX + 1] = {0};
    wh_note read;
    wh_note note = full_note(WH_PLAN);
    note.request = (wh_bytes){request, WH_LANE_OFFER_MAX};
    wh_string text = encode(&note);
    must(wh_note_decode(text.bytes, text.size, &read, &error));
    wh_free(text.bytes);
    note.request.size++;
    text = encode(&note);
    must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
    wh_free(text.bytes);
    note = full_note(WH_DIGESTS);
    text = encode(&note);
    must(wh_note_decode(text.bytes, text.size, &read, &error));
    assert_int_equal(read.strong, 1);
    text.bytes[1] = 2; /* strong: 0 or 1 */
    must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
    wh_free(text.bytes);
    note.digests.size--;
    text = encode(&note);
    must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
    wh_free(text.bytes);
    note = full_note(WH_OFFER);
    text = encode(&note);
    text.bytes[29] = WH_OFFERED_LANES_MAX + 1; /* This byte of an OFFER is the number of lanes. */
    must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
    text.bytes[29] = 2;
    text.bytes[28] = 2; /* This byte says whether pages are small: 0 or 1. */
    must_fail(WHERRY_MALFORMED, error, wh_note_decode(text.bytes, text.size, &read, &error));
    wh_free(text.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_is_encoded_and_decoded),
        cmocka_unit_test(test_all_fields_of_large_messages_are_kept),
        cmocka_unit_test(test_want_has_the_documented_bytes),
        cmocka_unit_test(test_fingerprint_is_complete_or_absent),
        cmocka_unit_test(test_refuses_truncated_and_extended_messages),
        cmocka_unit_test(test_refuses_unknown_types),
        cmocka_unit_test(test_other_versions_can_be_answered),
        cmocka_unit_test(test_long_texts_are_truncated),
        cmocka_unit_test(test_unprintable_texts_are_replaced),
        cmocka_unit_test(test_refuses_fields_above_their_limits),
    };
    return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
