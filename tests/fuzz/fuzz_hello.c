/*
 * Arbitrary bytes from the peer: the state machine must give the same result whether they arrive at
 * once or one by one. The first byte configures the machine. Bit 0: it is the side that connected.
 * Bit 1: it has a secret, so that it never reaches DONE. Bits 2 and 3: its method is another one:
 * TLS, a ticket, or that of a server and its readers. Only the first one reaches DONE. Bit 4: it
 * wants rank 1. Bit 5: the peer belongs to another user. Bit 6: its owner admits nobody.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/hello.h"
#include "require.h"

typedef struct outcome {
    wherry_status status;
    wh_hello_state state;
    wh_refusal refusal;
    size_t consumed;
    size_t output;
} outcome;

static const wh_group_key key = {.id = 7, .proof = "secret"};

static bool find_ticket_key(void *context, const wh_hello_fields *peer, uint8_t key_p[WH_KEY_BYTES]) {
    (void)context;
    memset(key_p, (int)peer->rank, WH_KEY_BYTES);
    return true;
}

static wh_refusal admit_nobody(void *context, const wh_hello_fields *peer, uint64_t *newer_p) {
    (void)context;
    *newer_p = peer->incarnation;
    return WH_REFUSAL_STALE;
}

static outcome run(uint8_t choice, const uint8_t *data, size_t size, size_t piece) {
    wh_hello_config config = {.rank = 0, .size = 4, .incarnation = 9, .job = "job", .address = "tcp://host:1"};
    static const uint8_t binding[WH_KEY_BYTES] = {1};
    static const wh_hello_method others[] = {WH_HELLO_METHOD_SECRET, WH_HELLO_METHOD_TLS, WH_HELLO_METHOD_TICKET,
                                             WH_HELLO_METHOD_READER};
    unsigned other = choice >> 2 & 3;
    if ((choice & 2) || other) {
        config.method = others[other];
        config.keys = &key;
        config.key_count = config.method == WH_HELLO_METHOD_TLS ? 0 : 1;
        config.ticket_key = find_ticket_key;
        config.purpose = config.method == WH_HELLO_METHOD_TICKET ? WH_HELLO_DATA : WH_HELLO_CONTROL;
        config.binding = config.method == WH_HELLO_METHOD_READER ? binding : NULL;
    }
    config.wants_one = choice & 16;
    config.wanted = 1;
    config.other_user = choice & 32;
    config.admit = choice & 64 ? admit_nobody : NULL;
    wh_hello *hello;
    REQUIRE(wh_hello_create(&config, choice & 1, &hello, NULL) == WHERRY_OK);
    outcome end = {WHERRY_OK, WH_HELLO_RUNNING, WH_REFUSAL_NONE, 0, 0};
    while (end.consumed < size && end.status == WHERRY_OK && wh_hello_state_of(hello) == WH_HELLO_RUNNING) {
        size_t given = size - end.consumed < piece ? size - end.consumed : piece;
        size_t consumed = 0;
        wherry_error error;
        error.message[0] = '\0';
        end.status = wh_hello_input(hello, data + end.consumed, given, &consumed, &error);
        REQUIRE(end.status == WHERRY_OK || (error.status == end.status && error.message[0]));
        REQUIRE(end.status != WHERRY_OK || consumed == given || wh_hello_state_of(hello) == WH_HELLO_DONE);
        end.consumed += consumed;
    }
    const uint8_t *bytes;
    wh_hello_output(hello, &bytes, &end.output);
    end.state = wh_hello_state_of(hello);
    end.refusal = wh_hello_refusal(hello);
    const wh_hello_fields *peer = wh_hello_peer(hello);
    REQUIRE((end.state == WH_HELLO_FAILED) == (end.status != WHERRY_OK));
    bool proves = config.method != WH_HELLO_METHOD_NONE && config.method != WH_HELLO_METHOD_TLS;
    REQUIRE(end.state != WH_HELLO_DONE || (peer && !proves && !config.other_user && !config.admit));
    REQUIRE(end.state != WH_HELLO_DONE || !(choice & 1) || !config.wants_one || peer->rank == 1);
    REQUIRE(!peer || (peer->rank < peer->size && strcmp(peer->job, "job") == 0 && strlen(peer->address) <= 256));
    REQUIRE((wh_hello_end(hello, NULL) == WHERRY_OK) == (end.state == WH_HELLO_DONE));
    wh_hello_destroy(hello);
    return end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    outcome whole = run(data[0], data + 1, size - 1, size);
    outcome bytes = run(data[0], data + 1, size - 1, 1);
    REQUIRE(whole.status == bytes.status && whole.state == bytes.state && whole.refusal == bytes.refusal);
    REQUIRE(whole.output == bytes.output);
    REQUIRE(whole.status != WHERRY_OK || whole.consumed == bytes.consumed);
    return 0;
}
