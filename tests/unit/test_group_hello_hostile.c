/* Hostile peers: they replay, echo, flip bits, stop early or send garbage. */
#include "../support/hello_sides.h"

static void test_refuses_a_replay(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left));
    side again;
    begin(&again, &a, true);
    feed(&again, left.heard, left.heard_size);
    assert_int_equal(again.status, WHERRY_BAD_SECRET);
    assert_refuses(again.machine, WH_REFUSAL_SECRET);
    wh_hello_destroy(again.machine);
    finish(&left, &right);
}

/* A peer that echoes everything, and one that changes the rank in its echo. */
static void test_refuses_an_echo(void **state) {
    (void)state;
    for (int disguise = 0; disguise < 3; disguise++) {
        wh_hello_config a = config_of(0);
        side left;
        begin(&left, &a, true);
        for (int turn = 0; turn < 3 && left.status == WHERRY_OK; turn++) {
            uint8_t echo[ROOM];
            const uint8_t *bytes;
            size_t size;
            wh_hello_output(left.machine, &bytes, &size);
            memcpy(echo, bytes, size);
            if (turn == 0) {
                echo[AT_RANK + 3] ^= disguise > 0;
                echo[AT_NONCE] ^= disguise > 1;
            }
            wh_hello_sent(left.machine, size);
            feed(&left, echo, size);
        }
        assert_int_equal(left.status, disguise > 1 ? WHERRY_BAD_SECRET : WHERRY_MISMATCH);
        assert_refuses(left.machine, disguise > 1 ? WH_REFUSAL_SECRET : WH_REFUSAL_OWN_RANK);
        wh_hello_destroy(left.machine);
    }
}

/* The proof is as specified, and depends on each of its parts. */
static void test_proof_is_as_specified(void **state) {
    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        script peer = hand_hello();
        side left;
        assert_int_equal(give(&left, &peer), WHERRY_OK);
        script own = {0};
        const uint8_t *bytes;
        size_t size;
        wh_hello_output(left.machine, &bytes, &size);
        add_bytes(&own, bytes, size - HEADER - MAC);
        uint8_t proof[MAC];
        hand_proof(0, &own, peer.bytes, peer.size, proof);
        assert_memory_equal(bytes + own.size + HEADER, proof, MAC);
        if (wrong == 2) {
            hand_proof(1, &own, peer.bytes, peer.size, proof);
        } else {
            hand_proof(!wrong, &peer, own.bytes, own.size, proof);
        }
        script answer = {0};
        add_frame(&answer, PROOF, proof, MAC);
        feed(&left, answer.bytes, answer.size);
        assert_int_equal(left.status, wrong ? WHERRY_BAD_SECRET : WHERRY_OK);
        assert_int_equal(wh_hello_peer(left.machine) == NULL, wrong != 0);
        wh_hello_destroy(left.machine);
    }
}

/* If any bit is flipped on the way, no side completes with a HELLO that the other did not send. */
static void test_detects_every_flipped_bit(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    size_t total = 1;
    for (size_t bit = 0; bit < 8 * total; bit++) {
        side left;
        side right;
        begin_both(&left, &a, &right, &b);
        left.flip_at = bit;
        talk(&left, &right, UNCUT, 0);
        assert_false(done(&left));
        if (done(&right)) {
            assert_knows(&right, &a, WH_HELLO_CONTROL);
        }
        if (bit == 0) {
            total = hand_hello().size + HEADER + MAC + HEADER;
        }
        assert_true(left.heard_size > bit / 8 || left.status != WHERRY_OK);
        finish(&left, &right);
    }
}

/* ---- bytes that violate the protocol ---- */

static void test_early_end_is_not_a_success(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    size_t total = 1;
    for (size_t heard = 0; heard < total; heard++) {
        side left;
        side right;
        begin_both(&left, &a, &right, &b);
        while (left.heard_size < heard && carry(&left, &right, UNCUT, 0) + carry(&right, &left, UNCUT, heard) > 0) {
        }
        total = hand_hello().size + HEADER + MAC + HEADER;
        assert_int_equal(left.heard_size, heard);
        assert_int_equal(left.status, WHERRY_OK);
        assert_int_equal(wh_hello_state_of(left.machine), WH_HELLO_RUNNING);
        assert_int_equal(wh_hello_peer(left.machine) != NULL, heard >= total - HEADER);
        must_fail(WHERRY_TRUNCATED, left.error, wh_hello_end(left.machine, &left.error));
        assert_int_equal(wh_hello_state_of(left.machine), WH_HELLO_FAILED);
        finish(&left, &right);
    }
}

/* A HELLO whose frame is shorter or longer than the fields in it. */
static void test_refuses_a_hello_of_wrong_size(void **state) {
    (void)state;
    script whole = hand_hello();
    for (size_t size = HEADER; size < whole.size; size++) {
        script cut = whole;
        cut.size = size;
        set_size(&cut);
        assert_rejected(&cut, size < AT_FLAGS ? WHERRY_MALFORMED : WHERRY_TRUNCATED, WH_REFUSAL_MALFORMED);
    }
    add_number(&whole, 1, 0);
    set_size(&whole);
    assert_rejected(&whole, WHERRY_TRAILING_BYTES, WH_REFUSAL_MALFORMED);
}

/* The header alone is enough to refuse, before memory for the rest is needed. */
static void test_refuses_frames_that_are_too_long(void **state) {
    (void)state;
    static const uint32_t sizes[] = {WH_HELLO_FRAME_MAX - HEADER + 1, 0x47455420, UINT32_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        script s = {0};
        add_number(&s, 4, sizes[i]);
        add_number(&s, 1, HELLO);
        assert_rejected(&s, WHERRY_LIMIT, WH_REFUSAL_MALFORMED);
    }
    script s = {0};
    add_number(&s, 4, WH_HELLO_FRAME_MAX - HEADER);
    add_number(&s, 1, HELLO);
    side left;
    assert_int_equal(give(&left, &s), WHERRY_OK);
    wh_hello_destroy(left.machine);
}

static void test_refuses_bad_fields(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint8_t byte;
        wherry_status status;
        wh_refusal refusal;
    } rows[] = {
        {4, 0, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {4, PROOF, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {4, ACCEPT, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {4, 5, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_MAGIC + 3, 'y', WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_METHOD, 0, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET},
        {AT_METHOD, 2, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET},
        {AT_PURPOSE, 1, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_PURPOSE, 2, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_RANK + 3, 4, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_SIZE + 3, 0, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_SIZE, 0x80, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_SIZE, 0x7F, WHERRY_MISMATCH, WH_REFUSAL_SIZE},
        {AT_JOB, 1, WHERRY_LIMIT, WH_REFUSAL_MALFORMED},
        {AT_JOB + 1, 200, WHERRY_TRUNCATED, WH_REFUSAL_MALFORMED},
        {AT_JOB + 2, 0, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_JOB + 2, 0x1B, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_JOB + 2, 0x7F, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_JOB + 2, 0xFF, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {AT_JOB + 2, 'k', WHERRY_MISMATCH, WH_REFUSAL_JOB},
        {AT_JOB + 10, '\n', WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        script s = hand_hello();
        s.bytes[rows[i].at] = rows[i].byte;
        assert_rejected(&s, rows[i].status, rows[i].refusal);
    }
    script s = hand_hello();
    memcpy(s.bytes + AT_JOB + 2, "\xC2\x9B", 2);
    assert_rejected(&s, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED);
}

/* Only the side that connected names the purpose, and it must be a known one. */
static void test_only_the_connecting_side_names_the_purpose(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    for (uint8_t purpose = 0; purpose < 4; purpose++) {
        script s = hand_hello();
        s.bytes[AT_PURPOSE] = purpose;
        side left;
        begin(&left, &a, false);
        feed(&left, s.bytes, s.size);
        assert_int_equal(left.status, purpose <= WH_HELLO_DATA ? WHERRY_OK : WHERRY_MALFORMED);
        wh_hello_destroy(left.machine);
    }
}

/* Only some frames may follow HELLO. */
static void test_refuses_wrong_frames_after_hello(void **state) {
    (void)state;
    static const struct {
        size_t size;
        int type;
        wherry_status status;
    } rows[] = {
        {0, HELLO, WHERRY_MALFORMED},       {0, ACCEPT, WHERRY_MALFORMED},      {0, PROOF, WHERRY_MALFORMED},
        {MAC - 1, PROOF, WHERRY_MALFORMED}, {MAC + 1, PROOF, WHERRY_MALFORMED}, {MAC, PROOF, WHERRY_BAD_SECRET},
    };
    const uint8_t zeros[MAC + 1] = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        script s = hand_hello();
        add_frame(&s, rows[i].type, zeros, rows[i].size);
        assert_rejected(&s, rows[i].status,
                        rows[i].type == PROOF && rows[i].size == MAC ? WH_REFUSAL_SECRET : WH_REFUSAL_MALFORMED);
    }
    wh_hello_config a = config_of(0);
    a.method = WH_HELLO_METHOD_NONE;
    side left;
    begin(&left, &a, true);
    script s = hand_hello();
    s.bytes[AT_METHOD] = 0;
    add_frame(&s, PROOF, "", 0);
    add_frame(&s, ACCEPT, "x", 1);
    feed(&left, s.bytes, s.size);
    assert_int_equal(left.status, WHERRY_MALFORMED);
    /* This side has sent ACCEPT, so it sends no REFUSE. The next layer would read the REFUSE. */
    static const uint8_t end[] = {0, 0, 0, 0, PROOF, 0, 0, 0, 0, ACCEPT};
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(left.machine, &bytes, &size);
    assert_memory_equal(bytes + size - sizeof(end), end, sizeof(end));
    wh_hello_destroy(left.machine);
}

static void test_reports_a_refusal(void **state) {
    (void)state;
    char longest[2 + WH_HELLO_TEXT_MAX];
    memset(longest, 'x', sizeof(longest));
    longest[0] = WH_REFUSAL_JOB;
    const struct {
        const char *body;
        size_t size;
        wherry_status status;
        wh_refusal refusal;
    } rows[] = {
        {"\x06gone", 5, WHERRY_REFUSED, WH_REFUSAL_STALE},
        {"\x01", 1, WHERRY_REFUSED, WH_REFUSAL_VERSION},
        {"\xF0later", 6, WHERRY_REFUSED, WH_REFUSAL_OTHER},
        {longest, 1 + WH_HELLO_TEXT_MAX, WHERRY_REFUSED, WH_REFUSAL_JOB},
        {longest, 2 + WH_HELLO_TEXT_MAX, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {"", 0, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {"\0why", 4, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
        {"\x06\x1B[2J", 5, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        script s = {0};
        add_frame(&s, REFUSE, rows[i].body, rows[i].size);
        if (rows[i].status != WHERRY_REFUSED) {
            assert_rejected(&s, rows[i].status, rows[i].refusal);
            continue;
        }
        side left;
        assert_int_equal(give(&left, &s), WHERRY_REFUSED);
        assert_int_equal(wh_hello_refusal(left.machine), rows[i].refusal);
        const uint8_t *bytes;
        size_t size;
        wh_hello_output(left.machine, &bytes, &size);
        /* This applies to HELLO only: a side does not answer a REFUSE with a REFUSE. */
        assert_int_equal(size, HEADER + ((size_t)bytes[2] << 8) + bytes[3]);
        wh_hello_destroy(left.machine);
    }
}

static void test_random_bytes_are_refused(void **state) {
    (void)state;
    uint64_t seed = 6;
    for (int i = 0; i < 20000; i++) {
        script s = {0};
        if (i % 2) {
            s = hand_hello();
        }
        size_t kept = s.size;
        for (size_t more = next_random(&seed) % 200 + 6; more > 0; more--) {
            add_number(&s, 1, next_random(&seed));
        }
        /* The header is valid, so that only the body is random. */
        s.bytes[kept] = s.bytes[kept + 1] = s.bytes[kept + 2] = 0;
        s.bytes[kept + 4] = next_random(&seed) % 2 ? REFUSE : i % 2 ? PROOF : HELLO;
        side left;
        wherry_status status = give(&left, &s);
        assert_false(done(&left));
        assert_true(status != WHERRY_OK || s.size < kept + HEADER + s.bytes[kept + 3]);
        wh_hello_destroy(left.machine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_a_replay),
        cmocka_unit_test(test_refuses_an_echo),
        cmocka_unit_test(test_proof_is_as_specified),
        cmocka_unit_test(test_detects_every_flipped_bit),
        cmocka_unit_test(test_early_end_is_not_a_success),
        cmocka_unit_test(test_refuses_a_hello_of_wrong_size),
        cmocka_unit_test(test_refuses_frames_that_are_too_long),
        cmocka_unit_test(test_refuses_bad_fields),
        cmocka_unit_test(test_only_the_connecting_side_names_the_purpose),
        cmocka_unit_test(test_refuses_wrong_frames_after_hello),
        cmocka_unit_test(test_reports_a_refusal),
        cmocka_unit_test(test_random_bytes_are_refused),
    };
    return cmocka_run_group_tests_name("group_hello_hostile", tests, NULL, NULL);
}
