/**
 * @file hello.h  The first frames on a connection between two members of a group. With them, both
 * sides identify themselves and prove that they know the secret.
 *
 * This is a pure state machine. It takes bytes and returns bytes, without sockets, threads or a
 * clock. Its owner moves the bytes and enforces a deadline.
 *
 * Invariants:
 * 1. Each side sends HELLO immediately, PROOF after the other's HELLO, and ACCEPT or REFUSE after
 *    the other's PROOF.
 * 2. REFUSE may be sent at any time before ACCEPT, never after it.
 * 3. wh_hello_peer is NULL until the other side has sent a correct PROOF.
 * 4. The machine takes no byte after the other side's ACCEPT. Later bytes belong to the next layer.
 * 5. No PROOF goes to a rank that this side does not want, or to a process of another user. Without
 *    TLS, an attacker that relays a greeting could use the PROOF, because nothing protects ACCEPT
 *    and later bytes.
 *
 *     RUNNING -> DONE     wh_hello_input: both sides have sent ACCEPT
 *     RUNNING -> FAILED   wh_hello_input, wh_hello_end
 *
 * Every frame has the size of its body (uint32), its type (uint8), and the body. Numbers are
 * big-endian. A frame has at most WH_HELLO_FRAME_MAX bytes in total. The format of frames, the
 * first three fields of HELLO, and REFUSE are the same in every version. So any two versions can
 * tell each other why they are not compatible.
 *
 *   1 HELLO    "WHRY", version (uint16), lowest version understood (uint16), flags (uint16),
 *              method (uint8), purpose (uint8), rank (uint32), size (uint32),
 *              incarnation (uint64), nonce (32 bytes), job (uint16 and as many bytes),
 *              address (likewise), table (uint64), key (uint64). A later version may append
 *              fields.
 *   2 PROOF    HMAC-SHA-256(key, role, own HELLO frame, the other's HELLO frame, binding). The role
 *              is 0 for the side that opened the connection, 1 for the other side. The nonces
 *              prevent replay attacks. The role and the order of the frames prevent reflection
 *              attacks. The binding is a value that only the two ends of a TLS connection know, and
 *              prevents relay attacks; without TLS, it is empty. The body is empty if the method
 *              needs no proof.
 *   3 ACCEPT   a key of tickets (32 bytes), with which the other side may open data connections; or
 *              nothing
 *   4 REFUSE   reason (uint8, a wh_refusal), then a text of at most WH_HELLO_TEXT_MAX bytes. For
 *              STALE, the text may end with the newer incarnation in decimal digits.
 *
 * Texts are UTF-8 without control characters, so that they can be printed.
 *
 * The proof is made with the key that the side that opened the connection names in its HELLO. If
 * TLS has proven both sides already, there is no other proof. PROOF does not protect later bytes
 * from an attacker on the network; TLS does.
 *
 * Ticket number n is HMAC-SHA-256(key of tickets, n as uint64), and the field `key` of a HELLO with
 * the method TICKET is n. Each ticket opens one connection, so a number must not be used again. As
 * both sides compute tickets, they cost no messages.
 */
#ifndef WH_GROUP_HELLO_H
#define WH_GROUP_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "group/key.h"

enum {
    WH_HELLO_VERSION = 2,        /**< The version of the protocol that this side uses. */
    WH_HELLO_VERSION_LOWEST = 2, /**< The oldest version that this side understands. */
    WH_HELLO_FRAME_MAX = 4096,
    WH_HELLO_NONCE = 32,
    WH_HELLO_TEXT_MAX = 256,
    WH_HELLO_KEYS_MAX = 2,
};

/**
 * How the two sides prove themselves. Both must use the same method. The numbers are on the wire.
 */
typedef enum wh_hello_method {
    WH_HELLO_METHOD_NONE = 0,
    WH_HELLO_METHOD_SECRET = 1,   /**< With a secret that both know. */
    WH_HELLO_METHOD_USER_KEY = 2, /**< With the key of the user. */
    /** TLS has proven both sides already, so there is no further proof. */
    WH_HELLO_METHOD_TLS = 3,
    /** A data connection in clear text, with a ticket whose key came over TLS. */
    WH_HELLO_METHOD_TICKET = 4,
    WH_HELLO_METHOD_READER = 5, /**< With the secret of a server's readers. */
} wh_hello_method;

/**
 * The purpose of the connection. The side that opened the connection chooses it. The other side
 * always sends CONTROL. The numbers are on the wire.
 */
typedef enum wh_hello_purpose { WH_HELLO_CONTROL = 0, WH_HELLO_DATA = 1 } wh_hello_purpose;

/** Why a side refuses the other, as X(NAME, VALUE, TEXT). The values are on the wire. */
#define WH_REFUSAL_LIST(X)                                                                                             \
    X(NONE, 0, "not refused")                                                                                          \
    X(VERSION, 1, "the two sides have no version of the protocol in common")                                           \
    X(JOB, 2, "the two sides belong to different jobs")                                                                \
    X(SECRET, 3, "the secrets differ, or one side has none; set the same WHERRY_SECRET on all ranks")                  \
    X(SIZE, 4, "the two sides were told different sizes of the group")                                                 \
    X(OWN_RANK, 5, "both sides are the same incarnation of the same rank")                                             \
    X(STALE, 6, "a newer incarnation of that rank has taken its place")                                                \
    X(MALFORMED, 7, "the bytes that arrived do not follow the protocol")                                               \
    X(OTHER, 8, "the connection is not wanted")                                                                        \
    X(AHEAD, 9, "that incarnation lies more than a day in the future; set the clocks of all hosts")                    \
    X(USER, 10, "the two processes belong to different users; let them meet over TCP, with a secret")                  \
    X(USED, 11, "the ticket of this data connection was used before, or is too old")

typedef enum wh_refusal {
#define WH_X(name, value, text) WH_REFUSAL_##name = (value),
    WH_REFUSAL_LIST(WH_X)
#undef WH_X
} wh_refusal;

/** The contents of a HELLO. */
typedef struct wh_hello_fields {
    uint16_t version; /**< In the peer's fields: the version that both sides use. */
    uint16_t flags;   /**< Capabilities. Unknown bits are ignored. */
    uint8_t method;   /**< A wh_hello_method. */
    uint8_t purpose;  /**< A wh_hello_purpose. */
    uint32_t rank;    /**< Below size. */
    uint32_t size;    /**< 1 to INT32_MAX. */
    uint64_t incarnation;
    uint8_t nonce[WH_HELLO_NONCE];
    char job[WH_HELLO_TEXT_MAX + 1];
    /** The address at which the side listens; "": it does not listen. */
    char address[WH_HELLO_TEXT_MAX + 1];
    uint64_t table; /**< Hash of the table of members that the side knows. */
    uint64_t key;   /**< The id of its key, or the number of its ticket; 0: none. */
} wh_hello_fields;

/**
 * Asks the owner whether it accepts the other side, which has sent a correct PROOF.
 * @param newer_p  with WH_REFUSAL_STALE, receives the newer incarnation. It is 0 before the call,
 *                 which means unknown.
 * @return WH_REFUSAL_NONE to accept; WH_REFUSAL_STALE, WH_REFUSAL_AHEAD, WH_REFUSAL_OTHER or
 *         WH_REFUSAL_USED to refuse.
 */
typedef wh_refusal (*wh_hello_admit)(void *context, const wh_hello_fields *peer, uint64_t *newer_p);

/**
 * Writes this side's key of tickets for a peer: the same one each time for the same rank and
 * incarnation.
 * @return false if the peer gets none.
 */
typedef bool (*wh_hello_ticket_key)(void *context, const wh_hello_fields *peer, uint8_t ticket_key[WH_KEY_BYTES]);

/** The data of this side. wh_hello_create copies it. */
typedef struct wh_hello_config {
    uint16_t flags;
    wh_hello_method method;
    wh_hello_purpose purpose; /**< Ignored unless this side opened the connection. */
    uint32_t rank;
    uint32_t size;
    uint64_t incarnation;
    uint64_t table;
    const char *job;     /**< At most WH_HELLO_TEXT_MAX bytes; NULL is "". */
    const char *address; /**< At most WH_HELLO_TEXT_MAX bytes; NULL is "". */
    /**
     * SECRET, USER_KEY, READER: the keys that this side accepts; it proves the first one if it
     * opened the connection. TICKET: if this side opened the connection, the key of tickets, and
     * as its id the number of a ticket that was never used; otherwise `ticket_key` finds the key.
     * Other methods: none.
     */
    const wh_group_key *keys;
    size_t key_count;       /**< At most WH_HELLO_KEYS_MAX. */
    const uint8_t *binding; /**< WH_KEY_BYTES; NULL: none. */
    /** If this side opened the connection: it talks to `wanted` only. */
    bool wants_one;
    uint32_t wanted;
    uint64_t wanted_incarnation; /**< 0: any. */
    /** True if the other side belongs to another user, and must be refused. */
    bool other_user;
    wh_hello_admit admit;           /**< NULL: accept every peer that matches. */
    wh_hello_ticket_key ticket_key; /**< NULL: no peer gets one. */
    /** Passed to the functions. Must stay valid until the machine is destroyed. */
    void *context;
} wh_hello_config;

typedef enum wh_hello_state {
    WH_HELLO_RUNNING,
    /** Both sides accepted. Send the rest of wh_hello_output before any other bytes. */
    WH_HELLO_DONE,
    /** wh_hello_output may have a REFUSE. Send what is possible without waiting, and close. */
    WH_HELLO_FAILED,
} wh_hello_state;

typedef struct wh_hello wh_hello;

/**
 * Creates a machine for one connection, with a new nonce and HELLO ready to be sent.
 * @param dialled   true if this side opened the connection; the other side must pass false.
 * @param hello_p   the caller frees it with wh_hello_destroy.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_SYSTEM if the system has no
 * random numbers.
 */
wherry_status wh_hello_create(const wh_hello_config *config, bool dialled, wh_hello **hello_p, wherry_error *error);

/** Overwrites the keys and frees the machine. `hello` may be NULL. */
void wh_hello_destroy(wh_hello *hello);

/**
 * Returns the bytes to send now, which may be none. They are valid until the next call that changes
 * the machine.
 */
void wh_hello_output(const wh_hello *hello, const uint8_t **bytes_p, size_t *size_p);

/** Call this when the first `size` bytes of wh_hello_output were sent. */
void wh_hello_sent(wh_hello *hello, size_t size);

/**
 * Takes bytes from the other side, in parts of any size.
 * @param consumed_p  the number of bytes taken: all, unless the machine is done. The rest belongs
 * to the next layer.
 * @return WHERRY_OK if the machine needs more bytes or is done (wh_hello_state_of tells which). Any
 * other status means that it has failed:
 *   - WHERRY_REFUSED: the other side refused this one; wh_hello_refusal has its reason.
 *   - WHERRY_BAD_SECRET: the secrets differ, or only one side has one.
 *   - WHERRY_BAD_VERSION: no version in common.
 *   - WHERRY_MISMATCH: the jobs or the sizes differ, the peer has the same nonce as this side, it
 *     has the same rank and incarnation, or `admit` refused it. wh_hello_refusal tells which.
 *   - WHERRY_MALFORMED, WHERRY_TRUNCATED, WHERRY_TRAILING_BYTES, WHERRY_LIMIT: a violation of the
 *     protocol.
 *   - WHERRY_INTERNAL: libcrypto failed. WHERRY_INVALID_ARGUMENT: the machine had failed before.
 */
wherry_status wh_hello_input(wh_hello *hello, const void *bytes, size_t size, size_t *consumed_p, wherry_error *error);

/**
 * Returns the number of bytes that the machine needs next. Its owner must not read more at a time,
 * because later bytes belong to the next layer. At least 1 while the machine runs, and at most
 * one frame.
 */
size_t wh_hello_missing(const wh_hello *hello);

/**
 * Call this when the other side has closed the connection.
 * @return WHERRY_OK if the machine was done; otherwise WHERRY_TRUNCATED, and it has failed.
 */
wherry_status wh_hello_end(wh_hello *hello, wherry_error *error);

wh_hello_state wh_hello_state_of(const wh_hello *hello);

/**
 * Returns the other side's HELLO, valid until the machine is destroyed; NULL until its PROOF was
 * checked. It stays available after a later failure. Trust WH_REFUSAL_STALE only if this is not
 * NULL.
 */
const wh_hello_fields *wh_hello_peer(const wh_hello *hello);

/** Returns the newer incarnation that came with WH_REFUSAL_STALE; 0 if there was none. */
uint64_t wh_hello_newer(const wh_hello *hello);

/**
 * Returns the key of tickets (WH_KEY_BYTES) that the other side gave; NULL if it gave none, or has
 * not accepted this side. It is valid until the machine is destroyed.
 */
const uint8_t *wh_hello_ticket_key_of(const wh_hello *hello);

/**
 * Returns why one side refused the other; WH_REFUSAL_NONE if neither did; WH_REFUSAL_OTHER for a
 * reason that this version does not know.
 */
wh_refusal wh_hello_refusal(const wh_hello *hello);

#endif
