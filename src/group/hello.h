/**
 * @file hello.h  The first frames on a connection between two members of a group: who they are, and
 * whether both know the secret.
 *
 * A pure state machine: bytes in, bytes out. It has no sockets, threads or clock. Its owner moves
 * the bytes, and gives up at its own deadline.
 *
 * Invariants:
 * 1. Both sides send HELLO at once, PROOF after the other's HELLO, and ACCEPT or REFUSE after the
 *    other's PROOF.
 * 2. REFUSE may be sent at any time before ACCEPT, never after it.
 * 3. wh_hello_peer is NULL until the other side has proven that it knows the secret.
 * 4. The machine takes no byte beyond the other side's ACCEPT. What follows belongs to the next
 *    layer.
 *
 *     RUNNING -> DONE     wh_hello_input: both ACCEPTs
 *     RUNNING -> FAILED   wh_hello_input, wh_hello_end
 *
 * Every frame is the size of its body (uint32), its type (uint8), and the body. Numbers are big
 * endian. A frame has at most WH_HELLO_FRAME_MAX bytes in all. The form of frames, the first three
 * fields of HELLO, and REFUSE are the same in every version, so that any two versions can tell each
 * other why they do not fit.
 *
 *   1 HELLO    "WHRY", version (uint16), lowest version spoken (uint16), flags (uint16),
 *              method (uint8), purpose (uint8), rank (uint32), size (uint32),
 *              incarnation (uint64), nonce (32 bytes), job (uint16 and as many bytes),
 *              address (likewise). A later version may append fields.
 *   2 PROOF    HMAC-SHA-256(secret, role, own HELLO frame, the other's HELLO frame). The role is 0
 *              for the side that dialled, otherwise 1. The nonces prevent a replay, the role and
 *              the order prevent a reflection. Without secrets it is empty.
 *   3 ACCEPT   empty
 *   4 REFUSE   reason (uint8, a wh_refusal), then a text of at most WH_HELLO_TEXT_MAX bytes. For
 *              STALE, the text may end with the newer incarnation in decimal digits.
 *
 * Texts are UTF-8 without control characters, so that they can be printed. A proof shows who is at
 * the other end; it does not protect the bytes that follow from somebody on the wire.
 */
#ifndef WH_GROUP_HELLO_H
#define WH_GROUP_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

enum {
    WH_HELLO_VERSION = 1,        /**< The version spoken here. */
    WH_HELLO_VERSION_LOWEST = 1, /**< The oldest that is understood. */
    WH_HELLO_FRAME_MAX = 4096,
    WH_HELLO_NONCE = 32,
    WH_HELLO_TEXT_MAX = 256,
    WH_HELLO_SECRET_MAX = 4096,
};

/** How a side proves that it knows the secret. The numbers are on the wire. */
typedef enum wh_hello_method { WH_HELLO_METHOD_NONE = 0, WH_HELLO_METHOD_HMAC_SHA256 = 1 } wh_hello_method;

/**
 * What the connection is for. The side that dialled says it; the other side always says CONTROL.
 * The numbers are on the wire.
 */
typedef enum wh_hello_purpose { WH_HELLO_CONTROL = 0, WH_HELLO_DATA = 1 } wh_hello_purpose;

/** X(NAME, VALUE, TEXT): why a side refuses the other. The values are on the wire. */
#define WH_REFUSAL_LIST(X)                                                                                             \
    X(NONE, 0, "not refused")                                                                                          \
    X(VERSION, 1, "the two sides have no version of the protocol in common")                                           \
    X(JOB, 2, "the two sides belong to different jobs")                                                                \
    X(SECRET, 3, "the secrets differ, or one side has none")                                                           \
    X(SIZE, 4, "the two sides were told different sizes of the group")                                                 \
    X(OWN_RANK, 5, "both sides are the same incarnation of the same rank")                                             \
    X(STALE, 6, "a newer incarnation of that rank has taken its place")                                                \
    X(MALFORMED, 7, "the bytes that arrived do not follow the protocol")                                               \
    X(OTHER, 8, "the connection is not wanted")

typedef enum wh_refusal {
#define WH_X(name, value, text) WH_REFUSAL_##name = (value),
    WH_REFUSAL_LIST(WH_X)
#undef WH_X
} wh_refusal;

/** The contents of a HELLO. */
typedef struct wh_hello_fields {
    uint16_t version; /**< The peer's: the one that both sides speak. */
    uint16_t flags;   /**< Capabilities. Unknown bits are ignored. */
    uint8_t method;   /**< A wh_hello_method. */
    uint8_t purpose;  /**< A wh_hello_purpose. */
    uint32_t rank;    /**< Below size. */
    uint32_t size;    /**< 1 to INT32_MAX. */
    uint64_t incarnation;
    uint8_t nonce[WH_HELLO_NONCE];
    char job[WH_HELLO_TEXT_MAX + 1];
    char address[WH_HELLO_TEXT_MAX + 1]; /**< Where the side listens; "": nowhere. */
} wh_hello_fields;

/**
 * Asks the owner whether it wants the other side, which has proven the secret.
 * @param newer_p  for WH_REFUSAL_STALE: the newer incarnation; 0, as it is before the call:
 *                 unknown.
 * @return WH_REFUSAL_NONE: yes; WH_REFUSAL_STALE or WH_REFUSAL_OTHER: no.
 */
typedef wh_refusal (*wh_hello_admit)(void *context, const wh_hello_fields *peer, uint64_t *newer_p);

/** What this side says. wh_hello_create copies it. */
typedef struct wh_hello_config {
    uint16_t flags;
    wh_hello_purpose purpose; /**< Ignored unless this side dialled. */
    uint32_t rank;
    uint32_t size;
    uint64_t incarnation;
    const char *job;     /**< At most WH_HELLO_TEXT_MAX bytes; NULL is "". */
    const char *address; /**< Likewise. */
    /** 1 to WH_HELLO_SECRET_MAX bytes; HMAC may ignore zeros at the end. NULL: none. */
    const void *secret;
    size_t secret_size;
    wh_hello_admit admit; /**< NULL: everybody who matches is admitted. */
    void *context;        /**< For admit; borrowed until the machine is destroyed. */
} wh_hello_config;

typedef enum wh_hello_state {
    WH_HELLO_RUNNING,
    /** Both sides accepted. wh_hello_output may still have bytes, to be sent before any others. */
    WH_HELLO_DONE,
    /** wh_hello_output may have a REFUSE: send what can be sent at once, and close. */
    WH_HELLO_FAILED,
} wh_hello_state;

typedef struct wh_hello wh_hello;

/**
 * Creates a machine for one connection, with a new nonce and HELLO ready to be sent.
 * @param dialled   true if this side made the connection; the other side must pass false.
 * @param hello_p   the caller's, for wh_hello_destroy.
 * @return WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_SYSTEM if there are no random numbers.
 */
wherry_status wh_hello_create(const wh_hello_config *config, bool dialled, wh_hello **hello_p, wherry_error *error);

/** Wipes the secret; hello may be NULL. */
void wh_hello_destroy(wh_hello *hello);

/**
 * What is to be sent now, perhaps nothing. Borrowed until the next call that changes the machine.
 */
void wh_hello_output(const wh_hello *hello, const uint8_t **bytes_p, size_t *size_p);

/** Notes that the first `size` bytes of wh_hello_output were sent. */
void wh_hello_sent(wh_hello *hello, size_t size);

/**
 * Takes bytes from the other side, in parts of any size.
 * @param consumed_p  how many were taken: all, unless the machine is done. The rest belongs to the
 *                    next layer.
 * @return WHERRY_OK: more is to come, or wh_hello_state_of says that it is done. Any other status
 * means that it has failed:
 *   - WHERRY_REFUSED: the other side refused this one; wh_hello_refusal has its reason.
 *   - WHERRY_BAD_SECRET: the secrets differ, or only one side has one.
 *   - WHERRY_BAD_VERSION: no version in common.
 *   - WHERRY_MISMATCH: job or size differ, it is this process itself, or admit refused it;
 *     wh_hello_refusal tells which.
 *   - WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_TRAILING_BYTES, WHERRY_LIMIT: a violation of the
 *     protocol.
 *   - WHERRY_INTERNAL: libcrypto failed. WHERRY_INVALID_ARGUMENT: the machine had failed before.
 */
wherry_status wh_hello_input(wh_hello *hello, const void *bytes, size_t size, size_t *consumed_p, wherry_error *error);

/**
 * The number of bytes that the machine needs next. Its owner reads no more than that at a time, so
 * as not to read what belongs to the next layer. At least 1 while it runs, and less than a frame.
 */
size_t wh_hello_missing(const wh_hello *hello);

/**
 * Notes that the other side has closed the connection.
 * @return WHERRY_OK if the machine was done; otherwise WHERRY_TRUNCATED, and it has failed.
 */
wherry_status wh_hello_end(wh_hello *hello, wherry_error *error);

wh_hello_state wh_hello_state_of(const wh_hello *hello);

/**
 * The other side's HELLO, borrowed until the machine is destroyed; NULL until its PROOF was
 * checked. Stays after a later failure: a refusal as stale is to be believed only if this is not
 * NULL.
 */
const wh_hello_fields *wh_hello_peer(const wh_hello *hello);

/** The newer incarnation that a refusal as stale named; 0 if it named none. */
uint64_t wh_hello_newer(const wh_hello *hello);

/**
 * Why one side refused the other; WH_REFUSAL_NONE if neither did; WH_REFUSAL_OTHER for a reason
 * that this version does not know.
 */
wh_refusal wh_hello_refusal(const wh_hello *hello);

#endif
