/*
 * TLS over a pair of sockets: keys, certificates and pins; faults; records in pieces of one byte.
 */
#include "support/build.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "group/tls.h"
#include "group/token.h"

static wherry_error error;

/** Both ends of a connection. */
typedef struct pair {
    wh_tls *ends[2]; /**< The first end is the one that dials. */
    int fds[2];
} pair;

static wh_group_key key_of(const char *secret) {
    wh_group_key key;
    must(wh_group_key_derive(secret, strlen(secret), &key, &error));
    return key;
}

static wh_tls_context *context_of(const wh_tls_setup *setup) {
    wh_tls_context *context;
    must(wh_tls_context_create(setup, &context, &error));
    return context;
}

/** Creates a context with up to two secrets. */
static wh_tls_context *keyed(const char *first, const char *second) {
    wh_group_key keys[2] = {key_of(first)};
    if (second) {
        keys[1] = key_of(second);
    }
    return context_of(&(wh_tls_setup){.keys = keys, .key_count = second ? 2 : 1});
}

/** Opens a pair. Takes over the contexts. */
static pair open_pair(wh_tls_context *dials, wh_tls_context *accepts, const char *host) {
    pair p;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p.fds), 0);
    must(wh_tls_create(dials, p.fds[0], true, host, &p.ends[0], &error));
    must(wh_tls_create(accepts, p.fds[1], false, NULL, &p.ends[1], &error));
    wh_tls_context_unref(dials);
    wh_tls_context_unref(accepts);
    return p;
}

static void close_pair(pair *p) {
    for (int i = 0; i < 2; i++) {
        wh_tls_destroy(p->ends[i]);
        close(p->fds[i]);
    }
}

/** Reads at most one byte. @return as wh_tls_read. */
static ssize_t read_byte(wh_tls *tls, char *byte) {
    return wh_tls_read(tls, &(struct iovec){byte, 1}, 1);
}

/** Lets both ends work for a while. @return true if both are open afterwards. */
static bool shake(pair *p) {
    char byte;
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 2; i++) {
            wh_tls_flush(p->ends[i]);
            assert_true(read_byte(p->ends[i], &byte) <= 0);
        }
    }
    return wh_tls_is_open(p->ends[0]) && wh_tls_is_open(p->ends[1]);
}

/** The handshake must fail. @param words  a part of each end's error; NULL: no error. */
static void expect_failure(wh_tls_context *dials, wh_tls_context *accepts, const char *const words[2]) {
    pair p = open_pair(dials, accepts, "host");
    assert_false(shake(&p));
    for (int i = 0; i < 2; i++) {
        bool failed = wh_tls_fault(p.ends[i], &error);
        assert_true(failed == (words[i] != NULL));
        if (failed) {
            assert_int_equal(error.status, WHERRY_BAD_SECRET);
            assert_non_null(strstr(error.message, words[i]));
        }
    }
    close_pair(&p);
}

/** The context of a server, or of a reader that expects the server's key to have this pin. */
static wh_tls_context *context_of_server(const wh_server_identity *identity) {
    return context_of(
        &(wh_tls_setup){.server = true, .server_key = identity->key, .server_certificate = identity->certificate});
}

static wh_tls_context *context_of_reader(const uint8_t *pin) {
    return context_of(&(wh_tls_setup){.pin = pin});
}

static void test_the_same_secret(void **state) {
    (void)state;
    uint8_t values[2][WH_KEY_BYTES];
    wh_tls_facts facts;
    pair p = open_pair(keyed("a secret of all ranks", NULL), keyed("a secret of all ranks", NULL), "host");
    assert_true(shake(&p));
    assert_true(wh_tls_export(p.ends[0], values[0]) && wh_tls_export(p.ends[1], values[1]));
    assert_memory_equal(values[0], values[1], WH_KEY_BYTES);
    wh_tls_describe(p.ends[0], &facts);
    assert_string_equal(facts.cipher, "TLSv1.3, TLS_AES_128_GCM_SHA256");
    assert_string_equal(facts.subject, "");
    close_pair(&p);
}

static void test_another_secret(void **state) {
    (void)state;
    static const char *const words[] = {"different secret", "different secret"};
    expect_failure(keyed("a secret of all ranks", NULL), keyed("another secret of ranks", NULL), words);
}

/**
 * While a secret is being changed, a side accepts two secrets, and uses the first when it dials.
 */
static void test_two_secrets(void **state) {
    (void)state;
    pair p = open_pair(keyed("the old secret of all", NULL), keyed("the new secret of all", "the old secret of all"),
                       "host");
    assert_true(shake(&p));
    close_pair(&p);
    static const char *const words[] = {"different secret", "different secret"};
    expect_failure(keyed("the new secret of all", "the old secret of all"), keyed("the old secret of all", NULL),
                   words);
}

static void test_a_server_and_its_readers(void **state) {
    (void)state;
    const uint8_t seeds[2][WH_SEED_BYTES] = {{1}, {2}};
    wh_server_identity one;
    wh_server_identity other;
    wh_tls_facts facts;
    must(wh_server_identity_make(wh_tls_library(), seeds[0], &one, &error));
    must(wh_server_identity_make(wh_tls_library(), seeds[1], &other, &error));
    pair p = open_pair(context_of_reader(one.token.pin), context_of_server(&one), "host");
    assert_true(shake(&p));
    wh_tls_describe(p.ends[0], &facts);
    assert_memory_equal(facts.pin, one.token.pin, sizeof(facts.pin));
    assert_non_null(strstr(facts.subject, "wherry serve"));
    assert_true(facts.expires > 0);
    close_pair(&p);
    static const char *const wrong[] = {"not the one that the token is for", "the token of another server"};
    expect_failure(context_of_reader(other.token.pin), context_of_server(&one), wrong);
    static const char *const keyless[] = {"certificate instead of the secret", "another CA"};
    expect_failure(keyed("a secret of all ranks", NULL), context_of_server(&one), keyless);
    wh_server_identity_clear(&one);
    wh_server_identity_clear(&other);
}

/** The error about a peer without TLS depends on what that peer sends. */
static void test_clear_text(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        wherry_status status;
        const char *words;
    } rows[] = {
        {"\0\0\0\x50\1WHRY\0\1\0\1", 13, WHERRY_BAD_VERSION, "versions up to 1"},
        {"\0\0\0\x50\1WHRY\0\2\0\2", 13, WHERRY_BAD_SECRET, "the peer has none"},
        {"HTTP/1.1 400 Bad Request\r\n", 26, WHERRY_BAD_VERSION, "does not speak TLS"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        pair p = open_pair(keyed("a secret of all ranks", NULL), keyed("a secret of all ranks", NULL), "host");
        char byte;
        assert_int_equal(write(p.fds[1], rows[i].bytes, rows[i].size), (ssize_t)rows[i].size);
        assert_int_equal(read_byte(p.ends[0], &byte), -1);
        assert_int_equal(errno, EPROTO);
        assert_true(wh_tls_fault(p.ends[0], &error));
        assert_int_equal(error.status, rows[i].status);
        assert_non_null(strstr(error.message, rows[i].words));
        assert_int_equal(read_byte(p.ends[0], &byte), -1); /* Every later call fails, too. */
        assert_int_equal(errno, EPROTO);
        close_pair(&p);
    }
}

/**
 * Carries bytes from one end to the other through this test, in pieces.
 * @param wires  the test's ends: what ends[i] sends comes out of wires[i].
 * @param flip   number of the byte of the first end to alter; SIZE_MAX: none.
 */
static void carry(const int wires[2], size_t piece, size_t *flip) {
    for (int i = 0; i < 2; i++) {
        uint8_t bytes[1 << 16];
        ssize_t got;
        struct pollfd other = {wires[1 - i], POLLOUT, 0};
        while (poll(&other, 1, 0) == 1 &&
               (got = recv(wires[i], bytes, piece < sizeof(bytes) ? piece : sizeof(bytes), MSG_DONTWAIT)) > 0) {
            if (i == 0 && *flip < (size_t)got) {
                bytes[*flip] ^= 1;
            }
            *flip -= i == 0 && *flip != SIZE_MAX ? (size_t)got : 0;
            *flip = *flip > SIZE_MAX / 2 ? SIZE_MAX : *flip;
            assert_int_equal(send(wires[1 - i], bytes, (size_t)got, MSG_NOSIGNAL), got);
        }
    }
}

/** A pair of ends whose bytes pass through this test. */
static pair open_relayed(int wires[2]) {
    pair p;
    for (int i = 0; i < 2; i++) {
        int ends[2];
        wh_tls_context *context = keyed("a secret of all ranks", NULL);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        p.fds[i] = ends[0];
        wires[i] = ends[1];
        must(wh_tls_create(context, p.fds[i], i == 0, i == 0 ? "host" : NULL, &p.ends[i], &error));
        wh_tls_context_unref(context);
    }
    return p;
}

enum { BYTES = 40000 };

/**
 * Moves BYTES bytes from the first end to the other.
 * @return how many have arrived; all of them are right.
 */
static size_t move(pair *p, const int wires[2], size_t piece, size_t flip) {
    static uint8_t sent[BYTES];
    static uint8_t taken[BYTES];
    size_t out = 0;
    size_t in = 0;
    for (size_t i = 0; i < BYTES; i++) {
        sent[i] = (uint8_t)(i * 7 + i / 256);
    }
    for (int idle = 0; idle < (piece < 1000 ? 4000 : 20) && in < BYTES; idle++) {
        struct iovec more[2] = {{sent + out, (BYTES - out) / 3}, {sent + out + (BYTES - out) / 3, 0}};
        more[1].iov_len = BYTES - out - more[0].iov_len;
        ssize_t wrote = out < BYTES ? wh_tls_write(p->ends[0], more, 2) : 0;
        out += wrote > 0 ? (size_t)wrote : 0;
        wh_tls_flush(p->ends[0]);
        carry(wires, piece, &flip);
        ssize_t got = wh_tls_read(p->ends[1], &(struct iovec){taken + in, BYTES - in}, 1);
        in += got > 0 ? (size_t)got : 0;
        idle = got > 0 || wrote > 0 ? 0 : idle;
        wh_tls_flush(p->ends[1]);
        char byte;
        (void)read_byte(p->ends[0], &byte);
    }
    assert_memory_equal(sent, taken, in);
    return in;
}

static void close_relayed(pair *p, const int wires[2]) {
    close_pair(p);
    close(wires[0]);
    close(wires[1]);
}

/** Records may arrive in pieces of any size. */
static void test_pieces(void **state) {
    (void)state;
    static const size_t pieces[] = {1, 5, 1000, 1 << 16};
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
        int wires[2];
        pair p = open_relayed(wires);
        assert_int_equal(move(&p, wires, pieces[i], SIZE_MAX), BYTES);
        close_relayed(&p, wires);
    }
}

/** A byte that was altered on its way ends the connection. Bytes that arrived earlier are right. */
static void test_altered_bytes(void **state) {
    (void)state;
    size_t good = 0;
    size_t faults = 0;
    for (size_t flip = 0; flip < BYTES; flip += flip < 700 ? 1 : 997) {
        int wires[2];
        pair p = open_relayed(wires);
        size_t in = move(&p, wires, 1 << 16, flip);
        /*
         * TLS ignores the version in the header of the first record. An altered length may announce
         * more bytes than come.
         */
        assert_true(in < BYTES || flip == 1 || flip == 2);
        faults += wh_tls_fault(p.ends[1], &error);
        good += in > 0;
        close_relayed(&p, wires);
    }
    assert_true(good > 0 && faults > 700);
}

/** A reader notices the end of a stream, and whether the other side has announced that end. */
static void test_the_end(void **state) {
    (void)state;
    for (int polite = 0; polite < 2; polite++) {
        pair p = open_pair(keyed("a secret of all ranks", NULL), keyed("a secret of all ranks", NULL), "host");
        char byte;
        assert_true(shake(&p));
        if (polite) {
            wh_tls_end(p.ends[0]);
        } else {
            byte = 1;
            assert_int_equal(wh_tls_write(p.ends[0], &(struct iovec){&byte, 1}, 1), 1);
            shutdown(p.fds[0], SHUT_WR);
            assert_int_equal(read_byte(p.ends[1], &byte), 1);
        }
        for (int again = 0; again < 2; again++) {
            assert_int_equal(read_byte(p.ends[1], &byte), polite ? 0 : -1);
            assert_true(polite || errno == EPROTO);
            assert_true(wh_tls_fault(p.ends[1], &error) == !polite);
        }
        if (!polite) {
            assert_int_equal(error.status, WHERRY_PEER_LOST);
            assert_non_null(strstr(error.message, "cut off"));
        }
        close_pair(&p);
    }
}

/**
 * Counts the records with one byte, and the KeyUpdate records, among the bytes that one end has
 * sent.
 */
static void count_records(const uint8_t *bytes, size_t size, size_t *ones_p, size_t *updates_p) {
    enum { HEADER = 5, KIND = 1, TAG = 16, KEY_UPDATE = 5 };
    *ones_p = *updates_p = 0;
    for (size_t at = 0; at + HEADER <= size;) {
        size_t body = (size_t)bytes[at + 3] << 8 | bytes[at + 4];
        *ones_p += body == 1 + KIND + TAG;
        *updates_p += body == KEY_UPDATE + KIND + TAG;
        at += HEADER + body;
    }
}

/** A key encrypts a limited number of records, however short they are. */
static void test_new_keys(void **state) {
    (void)state;
    enum { MESSAGES = 50, LIMIT = 7 };
    wh_group_key key = key_of("a secret of all ranks");
    wh_tls_setup setup = {.keys = &key, .key_count = 1, .rekey_records = LIMIT};
    pair p = open_pair(context_of(&setup), context_of(&setup), "host");
    assert_true(shake(&p));
    for (int from = 0; from < 2; from++) {
        static uint8_t wire[1 << 14];
        size_t ones;
        size_t updates;
        for (int i = 0; i < MESSAGES; i++) {
            char byte = (char)i;
            assert_int_equal(wh_tls_write(p.ends[from], &(struct iovec){&byte, 1}, 1), 1);
            assert_true(wh_tls_is_open(p.ends[from]));
        }
        ssize_t there = recv(p.fds[1 - from], wire, sizeof(wire), MSG_PEEK);
        assert_true(there > 0);
        count_records(wire, (size_t)there, &ones, &updates);
        assert_int_equal(ones, MESSAGES);
        assert_int_equal(updates, MESSAGES / LIMIT);
        for (int i = 0; i < MESSAGES; i++) {
            char byte = -1;
            while (read_byte(p.ends[1 - from], &byte) < 0) {
                assert_int_equal(errno, EAGAIN); /* The record was a new key, not data. */
            }
            assert_int_equal(byte, i);
            assert_true(wh_tls_is_open(p.ends[1 - from]));
        }
    }
    wh_tls_end(p.ends[0]);
    char byte;
    assert_int_equal(read_byte(p.ends[1], &byte), 0);
    close_pair(&p);
}

/**
 * Any process can finish the handshake with a server. A client that asks for new keys without end,
 * and reads nothing, costs the server a bounded time and memory.
 */
static void test_new_keys_without_end(void **state) {
    (void)state;
    const uint8_t seed[WH_SEED_BYTES] = {1};
    wh_server_identity identity;
    must(wh_server_identity_make(wh_tls_library(), seed, &identity, &error));
    wh_tls_context *context = context_of_server(&identity);
    int fds[2];
    char byte;
    wh_tls *server;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    must(wh_tls_create(context, fds[1], false, NULL, &server, &error));
    SSL_CTX *rules = SSL_CTX_new(TLS_client_method());
    SSL *client = SSL_new(rules);
    SSL_set_fd(client, fds[0]);
    for (int turn = 0; turn < 10 && SSL_connect(client) != 1; turn++) {
        assert_int_equal(read_byte(server, &byte), -1);
    }
    assert_int_equal(read_byte(server, &byte), -1);
    assert_true(wh_tls_is_open(server));
    bool failed = false;
    for (int round = 0; round < 1000000 && !failed; round++) {
        SSL_key_update(client, SSL_KEY_UPDATE_REQUESTED);
        SSL_do_handshake(client); /* This sends the request, unless the socket is full. */
        if (round % 64 == 0) {
            assert_int_equal(read_byte(server, &byte), -1);
            failed = wh_tls_fault(server, &error);
            assert_true(failed || errno == EAGAIN);
        }
    }
    assert_true(failed);
    assert_int_equal(error.status, WHERRY_LIMIT);
    SSL_free(client);
    SSL_CTX_free(rules);
    wh_tls_destroy(server);
    wh_tls_context_unref(context);
    wh_server_identity_clear(&identity);
    close(fds[0]);
    close(fds[1]);
}

/** Paths and keys that cannot be used are refused when the context is made. */
static void test_files(void **state) {
    (void)state;
    wh_tls_context *none = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_tls_context_create(&(wh_tls_setup){.certificate = "/nonexistent/cert.pem"}, &none, &error));
    assert_non_null(strstr(error.message, "/nonexistent/cert.pem"));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_tls_context_create(&(wh_tls_setup){.ca = "/dev/null"}, &none, &error));
    assert_non_null(strstr(error.message, "/dev/null"));
    assert_null(none);
    wh_tls_context_unref(NULL);
    assert_int_equal(wh_tls_expiry("/nonexistent/cert.pem"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_secret), cmocka_unit_test(test_another_secret),
        cmocka_unit_test(test_two_secrets),     cmocka_unit_test(test_a_server_and_its_readers),
        cmocka_unit_test(test_clear_text),      cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_altered_bytes),   cmocka_unit_test(test_the_end),
        cmocka_unit_test(test_new_keys),        cmocka_unit_test(test_new_keys_without_end),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests_name("group_tls", tests, NULL, NULL);
}
