/* The messages of the ucx lane: headers, pieces and requests, valid and invalid. */
#include "base/alloc.h"
#include "lane/ucx/ucx_wire.h"
#include "support/build.h"

static const uint8_t token[WH_UCX_TOKEN_BYTES] = "a token of sixte";

static void test_headers_are_written_and_read(void **state) {
    (void)state;
    uint8_t bytes[WH_UCX_HEADER_BYTES];
    wh_ucx_header sent = {.kind = WH_UCX_PIECE,
                          .flags = WH_UCX_DIGEST,
                          .chunk = UINT64_C(0x0102030405060708),
                          .bytes = 99,
                          .offset = UINT64_MAX,
                          .digest = {"a digest, sixtee"}};
    wh_ucx_header got;
    wh_ucx_header_write(bytes, token, &sent);
    assert_null(wh_ucx_header_read(bytes, sizeof(bytes), token, &got));
    assert_int_equal(got.kind, sent.kind);
    assert_int_equal(got.flags, sent.flags);
    assert_true(got.chunk == sent.chunk && got.bytes == sent.bytes && got.offset == sent.offset);
    assert_true(wh_digest_equal(&got.digest, &sent.digest));
    assert_int_equal(bytes[24], 1);
    assert_int_equal(bytes[31], 8);
}

/** Messages of another transfer are ignored. Invalid messages of this one are errors. */
static void test_refuses_hostile_headers(void **state) {
    (void)state;
    uint8_t bytes[WH_UCX_HEADER_BYTES + 1] = {0};
    wh_ucx_header got;
    wh_ucx_header_write(bytes, token, &(wh_ucx_header){.kind = WH_UCX_END});
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        const char *wrong = wh_ucx_header_read(bytes, size, token, &got);
        assert_true(size == WH_UCX_HEADER_BYTES ? !wrong : wrong && !*wrong);
    }
    assert_string_equal(wh_ucx_header_read(NULL, 0, token, &got), "");
    for (int bit = 0; bit < WH_UCX_HEADER_BYTES * 8; bit++) {
        uint8_t kind = bytes[0] ^ (bit < 8 ? (uint8_t)(1 << bit) : 0);
        bool bad_kind = kind < WH_UCX_HELLO || kind > WH_UCX_ENDED;
        bool reserved = (bit >= 8 && bit < 64 && bit != 8) || bad_kind;
        bool foreign = bit >= 64 && bit < 192;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        const char *wrong = wh_ucx_header_read(bytes, WH_UCX_HEADER_BYTES, token, &got);
        if (foreign) {
            assert_string_equal(wrong, "");
        } else {
            assert_true(reserved ? wrong && *wrong : !wrong);
        }
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static const char *check(uint64_t offset, uint64_t length, uint64_t come, uint64_t bytes, uint8_t flags, bool verify) {
    wh_ucx_header header = {.kind = WH_UCX_PIECE, .bytes = 1000, .offset = offset, .flags = flags};
    return wh_ucx_piece_check(&header, length, come, bytes, verify);
}

static void test_refuses_pieces_out_of_order(void **state) {
    (void)state;
    assert_null(check(0, 1000, 0, 1000, 0, false));
    assert_null(check(0, 1, 0, 1000, 0, true));
    assert_null(check(999, 1, 999, 1000, WH_UCX_DIGEST, true));
    assert_non_null(check(0, 1000, 0, 1000, 0, true)); /* The last piece has no digest. */
    assert_non_null(check(0, 1000, 0, 999, 0, false)); /* The length of the chunk is wrong. */
    assert_non_null(check(1, 1, 0, 1000, 0, false));   /* a gap */
    assert_non_null(check(0, 1, 1, 1000, 0, false));   /* a repetition */
    /* The piece is after the end of the chunk. */
    assert_non_null(check(1000, 1, 1000, 1000, 0, false));
    assert_non_null(check(0, 0, 0, 1000, 0, false)); /* empty */
    /* The piece goes beyond the end of the chunk. */
    assert_non_null(check(0, 1001, 0, 1000, 0, false));
    /* The piece goes beyond the end of the chunk. */
    assert_non_null(check(500, 501, 500, 1000, 0, false));
    assert_non_null(check(UINT64_MAX, 1, 0, 1000, 0, false));
    assert_non_null(check(0, UINT64_MAX, 0, 1000, 0, false));
    wh_ucx_header huge = {.kind = WH_UCX_PIECE, .bytes = 8 * WH_UCX_PIECE_MAX};
    assert_null(wh_ucx_piece_check(&huge, WH_UCX_PIECE_MAX, 0, huge.bytes, false));
    assert_non_null(wh_ucx_piece_check(&huge, WH_UCX_PIECE_MAX + 1, 0, huge.bytes, false));
}

static void test_offers_are_written_and_read(void **state) {
    (void)state;
    wh_ucx_offer sent = {.workers = 3, .long_segments = true};
    wh_ucx_offer got;
    wh_string bytes = {0};
    wherry_error error;
    wh_ucx_offer_write(&sent, &bytes);
    must(wh_ucx_offer_read(bytes.bytes, bytes.size, 1, &got, &error));
    assert_int_equal(got.workers, 3);
    assert_true(got.long_segments);
    for (size_t size = 0; size < bytes.size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_ucx_offer_read(bytes.bytes, size, 1, &got, &error));
    }
    static const struct {
        size_t at;
        char value;
        wherry_status status;
    } lies[] = {
        {0, 1, WHERRY_BAD_VERSION}, {1, 0, WHERRY_MALFORMED}, {1, 5, WHERRY_MALFORMED}, {2, 2, WHERRY_MALFORMED}};
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        char before = bytes.bytes[lies[i].at];
        bytes.bytes[lies[i].at] = lies[i].value;
        must_fail(lies[i].status, error, wh_ucx_offer_read(bytes.bytes, bytes.size, 1, &got, &error));
        bytes.bytes[lies[i].at] = before;
    }
    wh_free(bytes.bytes);
}

static wh_ucx_request request_of(uint32_t workers, size_t size) {
    static const uint8_t ids[WH_UCX_WORKERS_MAX][WH_UCX_ID_BYTES] = {"one", "two", "three", "four"};
    static const char address[WH_LANE_OFFER_MAX] = "where it is";
    wh_ucx_request request = {.workers = workers};
    memcpy(request.token, token, sizeof(token));
    for (uint32_t i = 0; i < workers; i++) {
        request.addresses[i] = (wh_ucx_address){ids[i], address, size};
    }
    return request;
}

static void test_requests_are_written_and_read(void **state) {
    (void)state;
    wherry_error error;
    for (uint32_t workers = 1; workers <= WH_UCX_WORKERS_MAX; workers++) {
        wh_ucx_request sent = request_of(workers, 215);
        sent.long_segments = workers % 2;
        wh_ucx_request got;
        wh_string bytes = {0};
        wh_string_append(&bytes, "before", 6); /* Encoding appends to the text. */
        assert_int_equal(wh_ucx_request_write(&sent, &bytes), workers);
        must(wh_ucx_request_read(bytes.bytes + 6, bytes.size - 6, 1, &got, &error));
        assert_int_equal(got.workers, workers);
        assert_int_equal(got.long_segments, workers % 2);
        assert_memory_equal(got.token, token, sizeof(token));
        for (uint32_t i = 0; i < workers; i++) {
            assert_int_equal(got.addresses[i].size, 215);
            assert_memory_equal(got.addresses[i].bytes, sent.addresses[i].bytes, 215);
            assert_memory_equal(got.addresses[i].id, sent.addresses[i].id, WH_UCX_ID_BYTES);
        }
        wh_free(bytes.bytes);
    }
}

/** Machines with many devices have long addresses. Then there are fewer workers, or none. */
static void test_long_addresses_reduce_the_workers(void **state) {
    (void)state;
    static const struct {
        size_t size;
        uint32_t fit;
    } cases[] = {{900, 4}, {1300, 3}, {2000, 2}, {3000, 1}, {WH_LANE_OFFER_MAX - 40, 0}};
    for (size_t i = 0; i < 5; i++) {
        wh_ucx_request request = request_of(4, cases[i].size);
        wh_string bytes = {0};
        assert_int_equal(wh_ucx_request_write(&request, &bytes), cases[i].fit);
        assert_true(bytes.size <= WH_LANE_OFFER_MAX);
        wh_free(bytes.bytes);
    }
}

static void test_refuses_damaged_requests(void **state) {
    (void)state;
    wh_ucx_request sent = request_of(2, 40);
    wh_ucx_request got;
    wh_string bytes = {0};
    wherry_error error;
    assert_int_equal(wh_ucx_request_write(&sent, &bytes), 2);
    for (size_t size = 0; size < bytes.size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_ucx_request_read(bytes.bytes, size, 1, &got, &error));
    }
    for (size_t bit = 8; bit < bytes.size * 8; bit++) {
        bytes.bytes[bit / 8] ^= (char)(1 << bit % 8);
        must_fail(WHERRY_MALFORMED, error, wh_ucx_request_read(bytes.bytes, bytes.size, 1, &got, &error));
        bytes.bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    bytes.bytes[0]++;
    must_fail(WHERRY_BAD_VERSION, error, wh_ucx_request_read(bytes.bytes, bytes.size, 1, &got, &error));
    wh_free(bytes.bytes);
}

/** Requests with a valid digest and wrong numbers. */
static void test_refuses_requests_with_wrong_numbers(void **state) {
    (void)state;
    static const struct {
        size_t at;
        char value;
    } lies[] = {{17, 0}, {17, 1}, {17, 3}, {17, 5}, {18, 4}, {35, 9}, {36, 0}, {36, 39}, {36, 41}};
    wh_digester *digester = wh_digester_create();
    assert_non_null(digester);
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        wh_ucx_request sent = request_of(2, 40);
        wh_ucx_request got;
        wh_string bytes = {0};
        wherry_error error;
        assert_int_equal(wh_ucx_request_write(&sent, &bytes), 2);
        bytes.bytes[lies[i].at] = lies[i].value;
        wherry_digest digest =
            wh_digest_of(digester, &(struct iovec){bytes.bytes, bytes.size - WHERRY_DIGEST_BYTES}, 1);
        memcpy(bytes.bytes + bytes.size - WHERRY_DIGEST_BYTES, digest.bytes, WHERRY_DIGEST_BYTES);
        must_fail(WHERRY_MALFORMED, error, wh_ucx_request_read(bytes.bytes, bytes.size, 1, &got, &error));
        wh_free(bytes.bytes);
    }
    wh_digester_destroy(digester);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers_are_written_and_read),
        cmocka_unit_test(test_refuses_hostile_headers),
        cmocka_unit_test(test_refuses_pieces_out_of_order),
        cmocka_unit_test(test_offers_are_written_and_read),
        cmocka_unit_test(test_requests_are_written_and_read),
        cmocka_unit_test(test_long_addresses_reduce_the_workers),
        cmocka_unit_test(test_refuses_damaged_requests),
        cmocka_unit_test(test_refuses_requests_with_wrong_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
