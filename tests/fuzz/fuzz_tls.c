/*
 * TLS against a hostile peer, and against a hostile network. The first byte chooses.
 *
 * Bit 1: the rest are pairs of a distance (one byte) and a value, by which bytes between two honest
 * ends are altered. Otherwise the rest is what the peer sends; bit 0: this side has dialled it. Bit
 * 2: the ends are a server and its reader, not two members. Bit 3: the reader wants another server.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "group/tls.h"
#include "group/token.h"
#include "require.h"

enum { BYTES = 3000, TURNS = 12 };

/** One end of TLS, and the socket at which its bytes come out. */
typedef struct end {
    wh_tls *tls;
    int fd;
    int wire;
} end;

enum { BY_DIALLING = 1, ALTERED = 2, SERVER = 4, OTHER_SERVER = 8 };

/** What the end of a server, or of its reader, is made from. */
static wh_tls_setup serve_or_read(uint8_t choice, bool dialled) {
    static wh_server_identity identity;
    static uint8_t other[WH_PIN_BYTES];
    static const uint8_t seed[WH_SEED_BYTES] = {1};
    if (!identity.key) {
        REQUIRE(wh_server_identity_make(wh_tls_library(), seed, &identity, NULL) == WHERRY_OK);
    }
    return dialled
               ? (wh_tls_setup){.pin = choice & OTHER_SERVER ? other : identity.token.pin}
               : (wh_tls_setup){.server = true, .server_key = identity.key, .server_certificate = identity.certificate};
}

static end open_end(uint8_t choice, bool dialled) {
    static const wh_group_key key = {.id = 7, .tls = "a key of thirty-two bytes, as is"};
    wh_tls_setup setup = {.keys = &key, .key_count = 1};
    wh_tls_context *context;
    wh_tls *tls;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    if (choice & SERVER) {
        setup = serve_or_read(choice, dialled);
    }
    REQUIRE(wh_tls_context_create(&setup, &context, NULL) == WHERRY_OK);
    REQUIRE(wh_tls_create(context, ends[0], dialled, dialled ? "host" : NULL, &tls, NULL) == WHERRY_OK);
    wh_tls_context_unref(context);
    return (end){tls, ends[0], ends[1]};
}

static void close_end(const end *e) {
    wh_tls_destroy(e->tls);
    close(e->fd);
    close(e->wire);
}

/** Nothing that a peer without the key sends is handed out. */
static void meet_stranger(uint8_t choice, const uint8_t *data, size_t size) {
    end e = open_end(choice, choice & BY_DIALLING);
    char bytes[256];
    for (size_t at = 0; at < size;) {
        ssize_t sent = send(e.wire, data + at, size - at, MSG_NOSIGNAL);
        if (sent <= 0) {
            break;
        }
        at += (size_t)sent;
        for (int i = 0; i < 4; i++) {
            REQUIRE(wh_tls_read(e.tls, &(struct iovec){bytes, sizeof(bytes)}, 1) <= 0);
        }
    }
    REQUIRE(!wh_tls_is_open(e.tls));
    close_end(&e);
}

/** Carries bytes from one wire to the other, and alters them. */
static void carry(int from, int to, const uint8_t **data, size_t *size, size_t *distance) {
    uint8_t bytes[8192];
    ssize_t got;
    while ((got = recv(from, bytes, sizeof(bytes), 0)) > 0) {
        size_t at = 0;
        while (*size >= 2 && *distance + (*data)[0] < (size_t)got - at) {
            at += *distance + (*data)[0];
            bytes[at] ^= (*data)[1];
            *distance = 0;
            *data += 2;
            *size -= 2;
        }
        *distance += (size_t)got - at;
        REQUIRE(send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got);
    }
}

/** Received bytes are always the beginning of the sent bytes, whatever happens on the way. */
static void meet_relay(uint8_t choice, const uint8_t *data, size_t size) {
    end ends[2] = {open_end(choice, true), open_end(choice, false)};
    uint8_t sent[BYTES];
    uint8_t taken[2][BYTES];
    size_t out[2] = {0};
    size_t in[2] = {0};
    size_t distance = 0;
    for (size_t i = 0; i < BYTES; i++) {
        sent[i] = (uint8_t)(i * 31 + i / 256);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < 2; i++) {
            ssize_t wrote = wh_tls_write(ends[i].tls, &(struct iovec){sent + out[i], (BYTES - out[i] + 1) / 2}, 1);
            out[i] += wrote > 0 ? (size_t)wrote : 0;
            wh_tls_flush(ends[i].tls);
            carry(ends[i].wire, ends[1 - i].wire, &data, &size, &distance);
            ssize_t got = wh_tls_read(ends[1 - i].tls, &(struct iovec){taken[i] + in[i], BYTES - in[i]}, 1);
            in[i] += got > 0 ? (size_t)got : 0;
            REQUIRE(memcmp(sent, taken[i], in[i]) == 0);
        }
    }
    /* The relay cuts the connection. Nobody takes that for a regular end. */
    for (int i = 0; i < 2; i++) {
        uint8_t rest;
        bool open = wh_tls_is_open(ends[i].tls);
        REQUIRE(!open || !(choice & SERVER) || !(choice & OTHER_SERVER) || i == 1);
        shutdown(ends[i].wire, SHUT_WR);
        ssize_t got;
        while ((got = wh_tls_read(ends[i].tls, &(struct iovec){&rest, 1}, 1)) > 0) {
        }
        REQUIRE(got < 0 || !open);
    }
    for (int i = 0; i < 2; i++) {
        close_end(&ends[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] & ALTERED) {
        meet_relay(data[0], data + 1, size - 1);
    } else {
        meet_stranger(data[0], data + 1, size - 1);
    }
    return 0;
}
