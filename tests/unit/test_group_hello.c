/*
 * Two state machines of the first exchange: how they agree, how they refuse each other, failing
 * allocations, and the secret.
 */
#include <stdio.h>

#include "../support/counting_allocator.h"
#include "../support/hello_sides.h"

static void test_two_sides_agree(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    a.purpose = WH_HELLO_DATA;
    b.purpose = WH_HELLO_DATA;
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    assert_null(wh_hello_peer(left.machine));
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    assert_knows(&left, &b, WH_HELLO_CONTROL);
    assert_knows(&right, &a, WH_HELLO_DATA);
    assert_int_equal(wh_hello_refusal(left.machine), WH_REFUSAL_NONE);
    assert_memory_not_equal(left.heard + AT_NONCE, right.heard + AT_NONCE, WH_HELLO_NONCE);
    must(wh_hello_end(left.machine, NULL));
    finish(&left, &right);
}

static void test_pieces_of_any_size_work(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    size_t total = 1;
    for (int pieces = 0; pieces < 2; pieces++) {
        for (size_t cut = 1; cut <= total; cut++) {
            side left;
            side right;
            begin_both(&left, &a, &right, &b);
            talk(&left, &right, pieces ? cut : UNCUT, pieces ? 0 : cut);
            assert_true(done(&left) && done(&right));
            assert_knows(&left, &b, WH_HELLO_CONTROL);
            assert_knows(&right, &a, WH_HELLO_CONTROL);
            total = left.heard_size > right.heard_size ? left.heard_size : right.heard_size;
            finish(&left, &right);
        }
    }
    assert_true(total > AT_JOB + MAC);
}

static void test_two_sides_agree_without_secrets(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    a.method = b.method = WH_HELLO_METHOD_NONE;
    a.key_count = b.key_count = 0;
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    assert_knows(&left, &b, WH_HELLO_CONTROL);
    static const uint8_t end[] = {0, 0, 0, 0, PROOF, 0, 0, 0, 0, ACCEPT};
    assert_memory_equal(left.heard + left.heard_size - sizeof(end), end, sizeof(end));
    finish(&left, &right);
}

static void test_longest_and_shortest_texts_work(void **state) {
    (void)state;
    char job[WH_HELLO_TEXT_MAX + 1] = {0};
    memset(job, 'j', WH_HELLO_TEXT_MAX);
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    a.job = b.job = job;
    a.address = job;
    b.address = NULL;
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    assert_string_equal(wh_hello_peer(left.machine)->address, "");
    assert_string_equal(wh_hello_peer(right.machine)->address, job);
    finish(&left, &right);
}

/* Bytes after ACCEPT are not consumed, even if they arrive in the same piece. */
static void test_bytes_after_accept_are_not_consumed(void **state) {
    (void)state;
    script peer = hand_hello();
    side left;
    assert_int_equal(give(&left, &peer), WHERRY_OK);
    const uint8_t *own;
    size_t own_size;
    wh_hello_output(left.machine, &own, &own_size);
    own_size -= HEADER + MAC;
    uint8_t proof[MAC];
    hand_proof(1, &peer, own, own_size, proof);
    script rest = {0};
    add_frame(&rest, PROOF, proof, MAC);
    add_frame(&rest, ACCEPT, "", 0);
    size_t wanted = rest.size;
    add_bytes(&rest, "what the next layer says", 24);
    size_t consumed;
    must(wh_hello_input(left.machine, rest.bytes, rest.size, &consumed, NULL));
    assert_int_equal(consumed, wanted);
    assert_true(done(&left));
    must(wh_hello_input(left.machine, rest.bytes, rest.size, &consumed, NULL));
    assert_int_equal(consumed, 0);
    wh_hello_destroy(left.machine);
}

/* A caller that gives a machine only the bytes it asks for stops right after ACCEPT. */
static void test_machine_says_how_many_bytes_it_needs(void **state) {
    (void)state;
    script peer = hand_hello();
    wh_hello_config own = config_of(0);
    side left;
    begin(&left, &own, true);
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(left.machine, &bytes, &size);
    uint8_t proof[MAC];
    hand_proof(1, &peer, bytes, size, proof);
    add_frame(&peer, PROOF, proof, MAC);
    add_frame(&peer, ACCEPT, "", 0);
    size_t given = 0;
    for (int pieces = 0; !done(&left); pieces++) {
        size_t consumed;
        size_t missing = wh_hello_missing(left.machine);
        assert_true(missing > 0 && missing < WH_HELLO_FRAME_MAX && missing <= peer.size - given && pieces < 5);
        must(wh_hello_input(left.machine, peer.bytes + given, missing, &consumed, NULL));
        assert_int_equal(consumed, missing);
        given += consumed;
    }
    assert_int_equal(given, peer.size);
    wh_hello_destroy(left.machine);
}

/* ---- sides that do not match ---- */

static void assert_parted(const wh_hello_config *a, const wh_hello_config *b, wherry_status status,
                          wh_refusal refusal) {
    side left;
    side right;
    begin_both(&left, a, &right, b);
    talk(&left, &right, UNCUT, 0);
    assert_int_equal(left.status, status);
    assert_int_equal(right.status, status);
    assert_int_equal(wh_hello_refusal(left.machine), refusal);
    assert_int_equal(wh_hello_refusal(right.machine), refusal);
    assert_null(wh_hello_peer(left.machine));
    assert_null(wh_hello_peer(right.machine));
    assert_int_equal(left.error.rank, b->rank);
    assert_null(strstr(left.error.message, "the tide turns"));
    size_t consumed;
    must_fail(WHERRY_INVALID_ARGUMENT, left.error, wh_hello_input(left.machine, "x", 1, &consumed, &left.error));
    finish(&left, &right);
}

static void test_refuses_sides_that_do_not_match(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    wh_group_key same_id = other_key;
    same_id.id = test_key.id;
    b.keys = &same_id;
    assert_parted(&a, &b, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
    b.method = WH_HELLO_METHOD_NONE;
    b.key_count = 0;
    assert_parted(&a, &b, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
    assert_parted(&b, &a, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
    b = config_of(1);
    b.job = "job-70";
    assert_parted(&a, &b, WHERRY_MISMATCH, WH_REFUSAL_JOB);
    b = config_of(1);
    b.size = 5;
    assert_parted(&a, &b, WHERRY_MISMATCH, WH_REFUSAL_SIZE);
    assert_parted(&a, &a, WHERRY_MISMATCH, WH_REFUSAL_OWN_RANK);
}

/*
 * A side that does not know the other one's key refuses it; while a secret is being changed, a side
 * knows two keys.
 */
static void test_a_side_may_know_two_keys(void **state) {
    (void)state;
    const wh_group_key both[] = {other_key, test_key};
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    side left;
    side right;
    b.keys = both;
    b.key_count = 2;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    finish(&left, &right);
    b.key_count = 1;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_int_equal(right.status, WHERRY_BAD_SECRET);
    assert_int_equal(left.status, WHERRY_REFUSED);
    assert_int_equal(wh_hello_refusal(left.machine), WH_REFUSAL_SECRET);
    finish(&left, &right);
}

/* A proof is good for one TLS connection only, so that nobody can relay it over another one. */
static void test_a_proof_belongs_to_its_connection(void **state) {
    (void)state;
    const uint8_t one[WH_KEY_BYTES] = {1};
    const uint8_t other[WH_KEY_BYTES] = {2};
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    side left;
    side right;
    a.method = b.method = WH_HELLO_METHOD_READER;
    a.binding = b.binding = one;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    finish(&left, &right);
    b.binding = other;
    assert_parted(&a, &b, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
    b.binding = NULL;
    assert_parted(&a, &b, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
}

static bool key_of_rank(void *context, const wh_hello_fields *peer, uint8_t ticket_key[WH_KEY_BYTES]) {
    (void)context;
    memset(ticket_key, (int)peer->rank + 1, WH_KEY_BYTES);
    return peer->rank < 3;
}

/*
 * Over TLS, each side gives the other one a key of tickets. They open data connections, and nothing
 * else.
 */
static void test_a_ticket_opens_data_connections(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    side left;
    side right;
    wh_group_key ticket = {.id = 5};
    a.method = b.method = WH_HELLO_METHOD_TLS;
    a.key_count = b.key_count = 0;
    a.ticket_key = b.ticket_key = key_of_rank;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    assert_int_equal(*wh_hello_ticket_key_of(left.machine), 1);
    assert_int_equal(*wh_hello_ticket_key_of(right.machine), 2);
    memcpy(ticket.proof, wh_hello_ticket_key_of(left.machine), WH_KEY_BYTES);
    finish(&left, &right);
    a.method = b.method = WH_HELLO_METHOD_TICKET;
    a.keys = &ticket;
    a.key_count = 1;
    a.purpose = WH_HELLO_DATA;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    assert_null(wh_hello_ticket_key_of(left.machine));
    assert_true(wh_hello_peer(right.machine)->key == 5);
    finish(&left, &right);
    a.rank = 2; /* This is a ticket of another rank. */
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_int_equal(right.status, WHERRY_BAD_SECRET);
    finish(&left, &right);
    a.rank = 0;
    a.purpose = WH_HELLO_CONTROL;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_int_equal(right.status, WHERRY_BAD_SECRET);
    finish(&left, &right);
}

/* A restarted rank may talk to its former incarnation. The exchange does not decide which stays. */
static void test_talks_to_its_former_incarnation(void **state) {
    (void)state;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(0);
    b.incarnation++;
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    finish(&left, &right);
}

static wh_refusal admit(void *context, const wh_hello_fields *peer, uint64_t *newer_p) {
    int *calls = context;
    ++*calls;
    assert_int_equal(peer->rank, 1);
    *newer_p = UINT64_MAX;
    return WH_REFUSAL_STALE;
}

static void test_admit_can_refuse(void **state) {
    (void)state;
    int calls = 0;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    a.admit = admit;
    a.context = &calls;
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    talk(&left, &right, UNCUT, 0);
    assert_int_equal(calls, 1);
    assert_int_equal(left.status, WHERRY_MISMATCH);
    assert_int_equal(right.status, WHERRY_REFUSED);
    assert_int_equal(wh_hello_refusal(left.machine), WH_REFUSAL_STALE);
    assert_int_equal(wh_hello_refusal(right.machine), WH_REFUSAL_STALE);
    assert_non_null(wh_hello_peer(right.machine));
    assert_non_null(strstr(right.error.message, "newer incarnation"));
    assert_true(wh_hello_newer(right.machine) == UINT64_MAX);
    finish(&left, &right);
    wh_group_key same_id = other_key;
    same_id.id = test_key.id;
    b.keys = &same_id;
    assert_parted(&a, &b, WHERRY_BAD_SECRET, WH_REFUSAL_SECRET);
    assert_int_equal(calls, 1);
}

static void test_supports_newer_versions_that_support_this_one(void **state) {
    (void)state;
    script peer = hand_hello();
    /*
     * Version 1 is too old, and version 3 is too new. Each error names the versions of both sides.
     */
    for (uint8_t other = 1; other <= 3; other += 2) {
        char versions[64];
        side left;
        peer.bytes[AT_VERSION + 1] = other;
        peer.bytes[AT_LOWEST + 1] = other;
        assert_rejected(&peer, WHERRY_BAD_VERSION, WH_REFUSAL_VERSION);
        assert_int_equal(give(&left, &peer), WHERRY_BAD_VERSION);
        snprintf(versions, sizeof(versions), "versions %u to %u of the protocol, this side 2 to 2", other, other);
        assert_non_null(strstr(left.error.message, versions));
        wh_hello_destroy(left.machine);
    }
    /* For another version, only the version fields must be readable. */
    peer.size = AT_FLAGS;
    set_size(&peer);
    assert_rejected(&peer, WHERRY_BAD_VERSION, WH_REFUSAL_VERSION);
    peer.bytes[AT_LOWEST + 1] = 4;
    assert_rejected(&peer, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED);
    peer.bytes[AT_LOWEST + 1] = 0;
    assert_rejected(&peer, WHERRY_MALFORMED, WH_REFUSAL_MALFORMED);
    /* A newer version that also supports this one may append fields, up to the longest frame. */
    peer = hand_hello();
    peer.bytes[AT_VERSION] = 7;
    peer.size = WH_HELLO_FRAME_MAX;
    set_size(&peer);
    side left;
    assert_int_equal(give(&left, &peer), WHERRY_OK);
    wh_hello_destroy(left.machine);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    side left;
    side right;
    begin_both(&left, &a, &right, &b);
    uint64_t calls = count.calls;
    talk(&left, &right, 7, 0);
    assert_true(done(&left) && done(&right));
    assert_int_equal(count.calls, calls); /* Bytes from a peer make this side allocate nothing. */
    finish(&left, &right);
    for (uint64_t fail = 1; fail <= calls / 2; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_hello *none = NULL;
        wherry_error error;
        must_fail(WHERRY_NO_MEMORY, error, wh_hello_create(&a, true, &none, &error));
        assert_null(none);
        assert_int_equal(count.held, 0);
    }
    wherry_allocator_set(NULL);
    assert_true(calls >= 2);
    wh_hello_destroy(NULL);
}

/* True if a block still contained the secret when it was released. */
static bool leaked;

static void release(void *context, void *memory) {
    counting *count = context;
    leaked = leaked || memmem(memory, count->last, test_key.proof, WH_KEY_BYTES) != NULL;
    counting_release(context, memory);
}

static void test_secret_is_copied_and_wiped(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    wherry_allocator_set(&(wherry_allocator){counting_allocate, counting_reallocate, release, &count});
    wh_group_key given = test_key;
    wh_hello_config a = config_of(0);
    wh_hello_config b = config_of(1);
    a.keys = &given;
    side left;
    side right;
    begin(&left, &a, true);
    memset(&given, 0, sizeof(given));
    begin(&right, &b, false);
    talk(&left, &right, UNCUT, 0);
    assert_true(done(&left) && done(&right));
    leaked = false;
    assert_non_null(memmem(right.machine, count.last, test_key.proof, WH_KEY_BYTES));
    finish(&left, &right);
    assert_false(leaked);
    /* The same if creating the machine fails. */
    a.keys = &test_key;
    a.address = "\n";
    wh_hello *none;
    assert_int_equal(wh_hello_create(&a, true, &none, NULL), WHERRY_INVALID_ARGUMENT);
    assert_false(leaked);
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
}

static void assert_bad_config(const wh_hello_config *config) {
    wh_hello *none = NULL;
    wherry_error error;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_hello_create(config, true, &none, &error));
    assert_null(none);
}

static void test_refuses_invalid_arguments(void **state) {
    (void)state;
    char longer[WH_HELLO_TEXT_MAX + 2] = {0};
    memset(longer, 'x', WH_HELLO_TEXT_MAX + 1);
    wh_hello_config config = config_of(0);
    config.rank = 4;
    assert_bad_config(&config);
    config.size = UINT32_MAX;
    assert_bad_config(&config);
    config = config_of(0);
    config.size = 0;
    assert_bad_config(&config);
    config = config_of(0);
    config.job = longer;
    assert_bad_config(&config);
    config.job = "\xFF";
    assert_bad_config(&config);
    config = config_of(0);
    config.address = longer;
    assert_bad_config(&config);
    config = config_of(0);
    config.key_count = WH_HELLO_KEYS_MAX + 1;
    assert_bad_config(&config);
    config = config_of(0);
    config.purpose = (wh_hello_purpose)2;
    assert_bad_config(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_sides_agree),
        cmocka_unit_test(test_pieces_of_any_size_work),
        cmocka_unit_test(test_two_sides_agree_without_secrets),
        cmocka_unit_test(test_longest_and_shortest_texts_work),
        cmocka_unit_test(test_bytes_after_accept_are_not_consumed),
        cmocka_unit_test(test_machine_says_how_many_bytes_it_needs),
        cmocka_unit_test(test_refuses_sides_that_do_not_match),
        cmocka_unit_test(test_a_side_may_know_two_keys),
        cmocka_unit_test(test_a_proof_belongs_to_its_connection),
        cmocka_unit_test(test_a_ticket_opens_data_connections),
        cmocka_unit_test(test_talks_to_its_former_incarnation),
        cmocka_unit_test(test_admit_can_refuse),
        cmocka_unit_test(test_supports_newer_versions_that_support_this_one),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_secret_is_copied_and_wiped),
        cmocka_unit_test(test_refuses_invalid_arguments),
    };
    return cmocka_run_group_tests_name("group_hello", tests, NULL, NULL);
}
