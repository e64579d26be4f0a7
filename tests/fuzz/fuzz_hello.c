/*
 * Arbitrary bytes from the peer: the state machine must give the same result whether they arrive at
 * once or one by one. The first byte configures the machine. Bit 0: it is the side that connected.
 * Bit 1: it has a secret, so that it never reaches DONE.
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

static outcome run(uint8_t choice, const uint8_t *data, size_t size, size_t piece) {
    wh_hello_config config = {.rank = 0, .size = 4, .incarnation = 9, .job = "job", .address = "tcp://host:1"};
    if (choice & 2) {
        config.secret = "secret";
        config.secret_size = 6;
    }
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
    REQUIRE(end.state != WH_HELLO_DONE || (peer && !(choice & 2)));
    REQUIRE(!peer || (peer->rank < peer->size && strcmp(peer->job, "job") == 0 && strlen(peer->address) <= 256));
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
