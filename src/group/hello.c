#include "group/hello.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "group/hello_codec.h"

enum { HEADER = WH_HELLO_HEADER, MAC = 32, OUTPUT_MAX = 1024 };

struct wh_hello {
    bool dialled;
    bool proven; /* the other side's PROOF was right */
    wh_hello_state state;
    wh_refusal refusal;
    uint64_t newer;          /* incarnation, that a refusal as stale is about */
    wh_hello_frame expected; /* unless it is a REFUSE */
    wh_hello_admit admit;
    void *context;
    wh_hello_fields own;
    wh_hello_fields peer;
    uint8_t proof[MAC];         /* what the other side's PROOF has to be */
    uint8_t output[OUTPUT_MAX]; /* all that was ever to be sent; own HELLO stays at its beginning, for the proofs */
    size_t output_size;
    size_t sent;
    size_t hello_size;
    uint8_t input[WH_HELLO_FRAME_MAX]; /* the frame that is arriving */
    size_t input_size;
    size_t secret_size; /* 0: no secret */
    uint8_t secret[];
};

static void put_frame(wh_hello *hello, wh_hello_frame type, const void *body, size_t size) {
    uint8_t *at = hello->output + hello->output_size;
    assert(HEADER + size <= sizeof(hello->output) - hello->output_size);
    wh_hello_header(at, type, size);
    if (size > 0) {
        memcpy(at + HEADER, body, size);
    }
    hello->output_size += HEADER + size;
}

static const char *refusal_text(wh_refusal refusal) {
    switch (refusal) {
#define WH_X(name, value, text)                                                                                        \
    case WH_REFUSAL_##name:                                                                                            \
        return text;
        WH_REFUSAL_LIST(WH_X)
#undef WH_X
    }
    return "for a reason that this version does not know";
}

/**
 * Tells the other side that this one refuses it, and why. Behind an ACCEPT it would be the next layer that hears it, so
 * that closing the connection has to do. @return status.
 */
static wherry_status refuse(wh_hello *hello, wh_refusal refusal, wherry_status status) {
    char body[1 + WH_HELLO_TEXT_MAX + 1];
    int size = snprintf(body, sizeof(body), "%c%s", (int)refusal, refusal_text(refusal));
    if (hello->newer) {
        size += snprintf(body + size, sizeof(body) - (size_t)size, ": incarnation %" PRIu64, hello->newer);
    }
    hello->refusal = refusal;
    if (hello->expected != WH_HELLO_FRAME_ACCEPT) {
        put_frame(hello, WH_HELLO_FRAME_REFUSE, body, (size_t)size);
    }
    return status;
}

static wherry_status compare_methods(wh_hello *hello, wherry_error *error) {
    uint8_t own = hello->own.method;
    uint8_t peer = hello->peer.method;
    if (own == peer) {
        return WHERRY_OK;
    }
    if (peer == WH_HELLO_METHOD_NONE) {
        wh_fail(error, WHERRY_BAD_SECRET, "this side has a secret and the other has none; give both the same");
    } else if (own == WH_HELLO_METHOD_NONE) {
        wh_fail(error, WHERRY_BAD_SECRET, "the other side has a secret and this one has none; give both the same");
    } else {
        wh_fail(error, WHERRY_BAD_SECRET,
                "the other side proves its secret by method %u, which this version does not know; use the same version "
                "of Wherry on both sides",
                peer);
    }
    return refuse(hello, WH_REFUSAL_SECRET, WHERRY_BAD_SECRET);
}

/** Whether the two HELLOs fit together. */
static wherry_status compare(wh_hello *hello, wherry_error *error) {
    const wh_hello_fields *own = &hello->own;
    const wh_hello_fields *peer = &hello->peer;
    bool same_process = own->rank == peer->rank && own->incarnation == peer->incarnation;
    if (strcmp(own->job, peer->job) != 0) {
        wh_fail(
            error, WHERRY_MISMATCH,
            "the other side belongs to job \"%s\" and this one to \"%s\"; look at the address, or give both one job",
            peer->job, own->job);
        return refuse(hello, WH_REFUSAL_JOB, WHERRY_MISMATCH);
    }
    if (own->size != peer->size) {
        wh_fail(error, WHERRY_MISMATCH,
                "the other side is in a group of %" PRIu32 " ranks and this one in one of %" PRIu32
                "; start all ranks with the same size",
                peer->size, own->size);
        return refuse(hello, WH_REFUSAL_SIZE, WHERRY_MISMATCH);
    }
    /* A nonce that comes back is this side's own HELLO, whatever was changed in the rest. */
    if (same_process || memcmp(own->nonce, peer->nonce, WH_HELLO_NONCE) == 0) {
        wh_fail(error, WHERRY_MISMATCH,
                "the other side says that it is this very process, rank %" PRIu32 " incarnation %" PRIu64
                "; either it is, or two were started as one rank",
                own->rank, own->incarnation);
        return refuse(hello, WH_REFUSAL_OWN_RANK, WHERRY_MISMATCH);
    }
    if (hello->dialled && peer->purpose != WH_HELLO_CONTROL) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side was dialled, and says what the connection is for");
    }
    return compare_methods(hello, error);
}

/** The PROOF of one of the sides, while the other's HELLO is in `input`. @return false where libcrypto fails. */
static bool prove(const wh_hello *hello, bool of_peer, uint8_t proof[MAC]) {
    uint8_t text[1 + WH_HELLO_OWN_MAX + WH_HELLO_FRAME_MAX];
    const uint8_t *first = of_peer ? hello->input : hello->output;
    const uint8_t *second = of_peer ? hello->output : hello->input;
    size_t first_size = of_peer ? hello->input_size : hello->hello_size;
    size_t second_size = of_peer ? hello->hello_size : hello->input_size;
    text[0] = hello->dialled == of_peer; /* 0 where the side dialled whose proof it is */
    memcpy(text + 1, first, first_size);
    memcpy(text + 1 + first_size, second, second_size);
    return HMAC(EVP_sha256(), hello->secret, (int)hello->secret_size, text, 1 + first_size + second_size, proof, NULL);
}

static size_t proof_size(const wh_hello *hello) {
    return hello->own.method == WH_HELLO_METHOD_NONE ? 0 : MAC;
}

static wherry_status on_hello(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    wherry_status status = wh_hello_decode(body, size, &hello->peer, error);
    if (status == WHERRY_BAD_VERSION) {
        return refuse(hello, WH_REFUSAL_VERSION, status);
    }
    if (status == WHERRY_OK) {
        status = compare(hello, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    uint8_t own[MAC] = {0};
    if (proof_size(hello) > 0 && (!prove(hello, false, own) || !prove(hello, true, hello->proof))) {
        return wh_fail(error, WHERRY_INTERNAL, "libcrypto cannot compute HMAC-SHA-256; look at its configuration");
    }
    put_frame(hello, WH_HELLO_FRAME_PROOF, own, proof_size(hello));
    hello->expected = WH_HELLO_FRAME_PROOF;
    return WHERRY_OK;
}

static wherry_status on_proof(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    if (size != proof_size(hello)) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side's PROOF has %zu bytes in place of %zu", size,
                       proof_size(hello));
    }
    if (CRYPTO_memcmp(body, hello->proof, size) != 0) {
        wh_fail(error, WHERRY_BAD_SECRET, "the other side has another secret than this one; give both the same");
        return refuse(hello, WH_REFUSAL_SECRET, WHERRY_BAD_SECRET);
    }
    hello->proven = true;
    wh_refusal refusal = hello->admit ? hello->admit(hello->context, &hello->peer, &hello->newer) : WH_REFUSAL_NONE;
    if (refusal != WH_REFUSAL_NONE) {
        wh_fail(error, WHERRY_MISMATCH, "this side refused rank %" PRIu32 " incarnation %" PRIu64 ": %s",
                hello->peer.rank, hello->peer.incarnation, refusal_text(refusal));
        return refuse(hello, refusal, WHERRY_MISMATCH);
    }
    put_frame(hello, WH_HELLO_FRAME_ACCEPT, "", 0);
    hello->expected = WH_HELLO_FRAME_ACCEPT;
    return WHERRY_OK;
}

static wherry_status on_accept(wh_hello *hello, size_t size, wherry_error *error) {
    if (size > 0) {
        return wh_fail(error, WHERRY_TRAILING_BYTES, "the other side's ACCEPT has %zu bytes too many", size);
    }
    hello->state = WH_HELLO_DONE;
    return WHERRY_OK;
}

/** The number that a text ends with; 0 where it does not, or it is too large. */
static uint64_t number_at_end(const char *text, size_t size) {
    size_t begin = size;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') {
        begin--;
    }
    uint64_t number = 0;
    for (size_t i = begin; i < size; i++) {
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(text[i] - '0'), &number)) {
            return 0;
        }
    }
    return number;
}

static wherry_status on_refuse(wh_hello *hello, const uint8_t *body, size_t size, wherry_error *error) {
    uint8_t reason = size > 0 ? body[0] : WH_REFUSAL_NONE;
    const char *text = (const char *)body + 1;
    if (reason == WH_REFUSAL_NONE || size - 1 > WH_HELLO_TEXT_MAX || !wh_utf8_printable(text, size - 1)) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side refused this one in a way that cannot be read");
    }
    hello->refusal = reason <= WH_REFUSAL_OTHER ? (wh_refusal)reason : WH_REFUSAL_OTHER;
    hello->newer = hello->refusal == WH_REFUSAL_STALE ? number_at_end(text, size - 1) : 0;
    return wh_fail(error, WHERRY_REFUSED, "the other side refused this one, and says: %.*s (reason %u)", (int)size - 1,
                   text, reason);
}

/** What can be told from the first bytes of a frame. */
static wherry_status check_header(const wh_hello *hello, wherry_error *error) {
    uint32_t size = wh_hello_body_size(hello->input);
    uint8_t type = hello->input[4];
    if (size > WH_HELLO_FRAME_MAX - HEADER) {
        return wh_fail(error, WHERRY_LIMIT,
                       "the other side begins a frame of %" PRIu32
                       " bytes, more than %d; is it Wherry? Look at the address and the port",
                       size, WH_HELLO_FRAME_MAX - HEADER);
    }
    if (type != (uint8_t)hello->expected && type != WH_HELLO_FRAME_REFUSE) {
        return wh_fail(error, WHERRY_MALFORMED, "the other side sent a frame of type %u where %d was due", type,
                       (int)hello->expected);
    }
    return WHERRY_OK;
}

static wherry_status on_frame(wh_hello *hello, wherry_error *error) {
    const uint8_t *body = hello->input + HEADER;
    size_t size = hello->input_size - HEADER;
    switch ((wh_hello_frame)hello->input[4]) {
    case WH_HELLO_FRAME_HELLO:
        return on_hello(hello, body, size, error);
    case WH_HELLO_FRAME_PROOF:
        return on_proof(hello, body, size, error);
    case WH_HELLO_FRAME_ACCEPT:
        return on_accept(hello, size, error);
    case WH_HELLO_FRAME_REFUSE:
        return on_refuse(hello, body, size, error);
    }
    return wh_fail(error, WHERRY_INTERNAL, "a frame of an unknown type passed the check");
}

size_t wh_hello_missing(const wh_hello *hello) {
    size_t whole = hello->input_size < HEADER ? HEADER : HEADER + wh_hello_body_size(hello->input);
    return whole - hello->input_size;
}

/** Takes what is missing of a header or a body, and acts on what is whole. @return how many bytes in *taken. */
static wherry_status step(wh_hello *hello, const uint8_t *bytes, size_t size, size_t *taken, wherry_error *error) {
    size_t missing = wh_hello_missing(hello);
    size_t whole = hello->input_size + missing;
    *taken = size < missing ? size : missing;
    memcpy(hello->input + hello->input_size, bytes, *taken);
    hello->input_size += *taken;
    if (hello->input_size < whole) {
        return WHERRY_OK;
    }
    wherry_status status = whole == HEADER ? check_header(hello, error) : WHERRY_OK;
    if (status == WHERRY_OK && hello->input_size == HEADER + wh_hello_body_size(hello->input)) {
        status = on_frame(hello, error);
        hello->input_size = 0;
    }
    return status;
}

wherry_status wh_hello_input(wh_hello *hello, const void *bytes, size_t size, size_t *consumed_p, wherry_error *error) {
    const uint8_t *at = bytes;
    size_t consumed = 0;
    if (hello->state == WH_HELLO_FAILED) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the two sides have parted already; close the connection");
    }
    while (consumed < size && hello->state == WH_HELLO_RUNNING) {
        size_t taken;
        wherry_status status = step(hello, at + consumed, size - consumed, &taken, error);
        if (status != WHERRY_OK) {
            hello->state = WH_HELLO_FAILED;
            if (hello->refusal == WH_REFUSAL_NONE) {
                refuse(hello, status == WHERRY_INTERNAL ? WH_REFUSAL_OTHER : WH_REFUSAL_MALFORMED, status);
            }
            if (error && hello->peer.size > 0) {
                error->rank = (int32_t)hello->peer.rank;
            }
            return status;
        }
        consumed += taken;
    }
    *consumed_p = consumed;
    return WHERRY_OK;
}

wherry_status wh_hello_end(wh_hello *hello, wherry_error *error) {
    if (hello->state == WH_HELLO_DONE) {
        return WHERRY_OK;
    }
    hello->state = WH_HELLO_FAILED;
    return wh_fail(error, WHERRY_TRUNCATED,
                   "the other side closed the connection before both had accepted each other; look at its messages");
}

/** Copies an own text; NULL is "". `text` starts as zeros. */
static wherry_status own_text(const char *from, const char *what, char text[WH_HELLO_TEXT_MAX + 1],
                              wherry_error *error) {
    size_t size = from ? strnlen(from, WH_HELLO_TEXT_MAX + 1) : 0;
    if (size > WH_HELLO_TEXT_MAX || (size > 0 && !wh_utf8_printable(from, size))) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the %s must be printable UTF-8 of at most %d bytes", what,
                       WH_HELLO_TEXT_MAX);
    }
    if (size > 0) {
        memcpy(text, from, size);
    }
    return WHERRY_OK;
}

static wherry_status check_config(const wh_hello_config *config, wherry_error *error) {
    if (config->size > INT32_MAX || config->rank >= config->size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "rank %" PRIu32 " of %" PRIu32 " cannot be; ranks are 0 to size - 1", config->rank,
                       config->size);
    }
    if (config->purpose != WH_HELLO_CONTROL && config->purpose != WH_HELLO_DATA) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "purpose %d is not one of those in hello.h",
                       (int)config->purpose);
    }
    if (config->secret && (config->secret_size == 0 || config->secret_size > WH_HELLO_SECRET_MAX)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a secret has 1 to %d bytes, and this one %zu",
                       WH_HELLO_SECRET_MAX, config->secret_size);
    }
    return WHERRY_OK;
}

/** The own fields of a machine that is all zeros, and its HELLO. */
static wherry_status set_up(wh_hello *hello, const wh_hello_config *config, wherry_error *error) {
    wh_hello_fields *own = &hello->own;
    own->version = WH_HELLO_VERSION;
    own->flags = config->flags;
    own->method = config->secret ? WH_HELLO_METHOD_HMAC_SHA256 : WH_HELLO_METHOD_NONE;
    own->purpose = (uint8_t)(hello->dialled ? config->purpose : WH_HELLO_CONTROL);
    own->rank = config->rank;
    own->size = config->size;
    own->incarnation = config->incarnation;
    wherry_status status = own_text(config->job, "job id", own->job, error);
    if (status == WHERRY_OK) {
        status = own_text(config->address, "address", own->address, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (RAND_bytes(own->nonce, sizeof(own->nonce)) != 1) {
        return wh_fail(error, WHERRY_SYSTEM, "libcrypto has no random numbers; look at its configuration");
    }
    hello->hello_size = wh_hello_encode(own, hello->output);
    hello->output_size = hello->hello_size;
    return WHERRY_OK;
}

wherry_status wh_hello_create(const wh_hello_config *config, bool dialled, wh_hello **hello_p, wherry_error *error) {
    wherry_status status = check_config(config, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t secret_size = config->secret ? config->secret_size : 0;
    wh_hello *hello = wh_alloc_zeroed(1, sizeof(*hello) + secret_size);
    if (!hello) {
        return wh_fail_memory(error, "a connection's first frames");
    }
    hello->dialled = dialled;
    hello->expected = WH_HELLO_FRAME_HELLO;
    hello->admit = config->admit;
    hello->context = config->context;
    hello->secret_size = secret_size;
    if (secret_size > 0) {
        memcpy(hello->secret, config->secret, secret_size);
    }
    status = set_up(hello, config, error);
    if (status != WHERRY_OK) {
        wh_hello_destroy(hello);
        return status;
    }
    *hello_p = hello;
    return WHERRY_OK;
}

void wh_hello_destroy(wh_hello *hello) {
    if (hello) {
        OPENSSL_cleanse(hello, sizeof(*hello) + hello->secret_size);
        wh_free(hello);
    }
}

void wh_hello_output(const wh_hello *hello, const uint8_t **bytes_p, size_t *size_p) {
    *bytes_p = hello->output + hello->sent;
    *size_p = hello->output_size - hello->sent;
}

void wh_hello_sent(wh_hello *hello, size_t size) {
    assert(size <= hello->output_size - hello->sent);
    hello->sent += size;
}

wh_hello_state wh_hello_state_of(const wh_hello *hello) {
    return hello->state;
}

const wh_hello_fields *wh_hello_peer(const wh_hello *hello) {
    return hello->proven ? &hello->peer : NULL;
}

uint64_t wh_hello_newer(const wh_hello *hello) {
    return hello->newer;
}

wh_refusal wh_hello_refusal(const wh_hello *hello) {
    return hello->refusal;
}
