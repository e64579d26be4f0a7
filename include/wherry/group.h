/**
 * @file wherry/group.h  Groups. A group is the set of ranks of a job. The functions here join and
 * leave a group, send small messages, and wait at a barrier.
 *
 * A program joins once, gives the group to a transport, and leaves when it ends. If a rank dies, a
 * new process may join in its place. That process is another incarnation of the rank, and the
 * others continue with it. docs/groups.md explains how ranks find each other. wherry/group_ops.h
 * lets a program provide its own kind of group.
 *
 * Several threads may call these functions at the same time, unless a comment says otherwise. Every
 * wait ends at its timeout, or as soon as the rank that it waits for is known to be lost.
 * Available since version 0.1.
 */
#ifndef WHERRY_GROUP_H
#define WHERRY_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A process's membership in a group. Opaque. */
typedef struct wherry_group wherry_group;

/** For wherry_group_receive: take a message from any rank. */
#define WHERRY_ANY_RANK (-1)

/** The largest message of wherry_group_send: 16 MiB. Send anything larger as a state. */
#define WHERRY_GROUP_MESSAGE_MAX 16777216

/** The size of the buffer that wherry_group_meeting fills. */
#define WHERRY_GROUP_MEETING_MAX 512

/** The size of the buffer that wherry_group_token fills. */
#define WHERRY_GROUP_TOKEN_MAX 77

/** What is encrypted between hosts. */
typedef enum wherry_encrypt {
    /** What the environment variable WHERRY_ENCRYPT says (control, all); otherwise CONTROL. */
    WHERRY_ENCRYPT_DEFAULT = 0,
    /** Messages, membership and digests. Data may travel in clear text. */
    WHERRY_ENCRYPT_CONTROL = 1,
    /** Data as well. Lanes that cannot encrypt are not used. */
    WHERRY_ENCRYPT_ALL = 2,
} wherry_encrypt;

/** Flags of wherry_group_options. */
enum {
    WHERRY_JOIN_CLIENT = 1, /**< Only connect to the meeting points, never listen there. */
    WHERRY_JOIN_FLAGS = 1,  /**< All flags. */
};

/**
 * Options of wherry_group_join. Initialize them with wherry_group_options_init, then change what
 * you need.
 */
typedef struct wherry_group_options {
    uint32_t struct_size; /**< sizeof(wherry_group_options). */
    /** How long to wait for the other ranks. Default 300,000: five minutes, as in torch. */
    uint32_t timeout_ms;

    /**
     * A secret that all ranks share; borrowed during the call. Default NULL: use the environment
     * variable WHERRY_SECRET; if it is not set, the content of the file that WHERRY_SECRET_FILE
     * names; otherwise no secret, and a random key of this user protects the group.
     */
    const void *secret;
    size_t secret_size; /**< Size of the secret: 16 to 4096 bytes. Default 0. */

    /**
     * 1: other hosts and other users may connect even without a secret; a warning is logged if
     * other hosts can. Default 0: without a secret, the group stays on this host and this user.
     */
    uint32_t allow_insecure;
    /** How often an idle connection sends a heartbeat. Default 1000. */
    uint32_t heartbeat_ms;
    /**
     * A connection that is silent for this long counts as lost. Must be larger than heartbeat_ms.
     * Default 5000.
     */
    uint32_t dead_after_ms;
    uint32_t flags; /**< WHERRY_JOIN_*. Default 0. */

    /**
     * Return when this many ranks have joined, including this one. With 1, the call does not wait.
     * The other ranks may join later; a call that needs one of them then waits for it. A rank
     * counts as soon as this process knows that it has joined. It still counts if it dies
     * afterwards. Default 0: wait for all ranks.
     */
    uint32_t wait_for;
    uint32_t reserved; /**< Must be 0. */
    /** Called regularly while the call waits. If it returns true, the call ends. Default NULL. */
    wherry_interrupt_fn interrupt;
    void *interrupt_context; /**< Passed to interrupt. */

    /**
     * A wherry_encrypt. Encryption needs a secret, certificates, an identity or a token.
     * Connections over Unix sockets are not encrypted, as they do not leave the host. Default 0.
     */
    uint32_t encrypt;
    uint32_t reserved2; /**< Must be 0. */

    /**
     * Path of a PEM file for TLS with certificates, borrowed during the call: the certificate of
     * this process, with those between it and the CA. Default NULL: the environment variable
     * WHERRY_TLS_CERT; if it is not set, no certificates. With certificates, no secret is needed.
     */
    const char *tls_certificate;
    /** Likewise: the private key of this process. Default NULL: WHERRY_TLS_KEY. */
    const char *tls_key;
    /** Likewise: the CA that has signed the others' certificates. Default NULL: WHERRY_TLS_CA. */
    const char *tls_ca;
    /**
     * The name that all certificates have. Default NULL: the environment variable WHERRY_TLS_NAME;
     * if it is not set, a certificate must be for the host name or address that was connected to.
     */
    const char *tls_name;

    /**
     * This process is a server: others join only as its readers, with a token. They can exchange
     * messages with it, but not learn of each other, nor take its rank. The path of the file with
     * the server's identity, borrowed during the call. If there is no such file, it is made. "": a
     * new identity, which ends with the group. Default NULL: this process is no server.
     */
    const char *identity;
    /**
     * This process is a reader of a server: the token from wherry_group_token there, borrowed
     * during the call. The server must prove that it is the one that made the token; with `tls_ca`,
     * a certificate of that CA proves it instead. Default NULL: this process is no reader.
     */
    const char *token;
} wherry_group_options;

/** Fills in the defaults. */
WHERRY_API void wherry_group_options_init(wherry_group_options *options);

/**
 * Joins a group as a new incarnation of this process's rank. Blocks until all ranks, or wait_for
 * ranks, have joined, but at most for timeout_ms.
 *
 * If a meeting point on this host is free, this process listens there when the call returns, unless
 * WHERRY_JOIN_CLIENT is set.
 *
 * @param address  where the ranks meet, in one of these forms (docs/groups.md has the details):
 *  - "env://": rank, size and meeting point come from torchrun, Slurm or Open MPI.
 *  - "tcp://HOST:PORT[,...]?rank=R&size=N": at one of these addresses.
 *  - "tcp://HOST:0?rank=R&size=N": at a free port of this host. See wherry_group_meeting.
 *  - "tcp://HOST:PORT?rank=R&size=N&bind=HOST:PORT": this process listens at the second address,
 *    and the others connect to the first, for containers and NAT.
 *  - "unix:///PATH?rank=R&size=N": at a socket, for ranks on one host.
 * @param options  borrowed during the call. NULL for the defaults.
 * @param group_p  owned by the caller. Leave it with wherry_group_leave.
 * @return WHERRY_OK; otherwise:
 *   - WHERRY_INVALID_ARGUMENT: a bad address or option, or other hosts could connect without a
 *     secret.
 *   - WHERRY_NO_MEMORY; WHERRY_SYSTEM: a socket or thread cannot be created, the file of the secret
 *     or the key of the user cannot be read, or this process may open too few files to listen.
 *   - WHERRY_TIMED_OUT: not all ranks joined in time. The message names the missing ranks and says
 *     what happened last at the meeting point, for example which process listens there and is
 *     stopped. Start those ranks and join again.
 *   - WHERRY_BAD_SECRET (also a certificate that one side does not accept), WHERRY_BAD_VERSION,
 *     WHERRY_MISMATCH (another job or size) or WHERRY_REFUSED (the other side found the fault
 *     first): a process at the meeting point and this one do not belong together.
 *   - WHERRY_CANCELLED: `interrupt` returned true.
 *   - WHERRY_CLOSED: a newer incarnation of this rank has joined.
 */
WHERRY_API wherry_status wherry_group_join(const char *address, const wherry_group_options *options,
                                           wherry_group **group_p, wherry_error *error);

/**
 * Leaves a group. First sends queued messages, for at most a second. Ranks that wait for this one
 * are told that it has left.
 * @param group  destroyed by this call; may be NULL. No other thread may be inside a call on the
 * group, and its transports must already be destroyed.
 */
WHERRY_API void wherry_group_leave(wherry_group *group);

/**
 * Gets the address at which others can join the group: its first meeting point, "tcp://HOST:PORT"
 * or "unix:///PATH". Append "?rank=R&size=N", and the job's id if there is one, to make an address.
 * Never blocks.
 * @param text  receives the text and a final zero. HOST is the host in this process's address. If
 * that address had port 0, PORT is the port that the system chose, and this process listens there
 * until it leaves.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_UNSUPPORTED for a group without a meeting
 * point: one made from a table of functions (wherry/group_ops.h), or one with a single rank.
 */
WHERRY_API wherry_status wherry_group_meeting(const wherry_group *group, char text[WHERRY_GROUP_MEETING_MAX],
                                              wherry_error *error);

/**
 * Gets the token with which readers join the group of a server (wherry_group_options.identity). Who
 * has it can read what the server sends. Never blocks.
 * @param text  receives the token and a final zero.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_UNSUPPORTED if this process is no server.
 */
WHERRY_API wherry_status wherry_group_token(const wherry_group *group, char text[WHERRY_GROUP_TOKEN_MAX],
                                            wherry_error *error);

/**
 * Reads the file that WHERRY_SECRET_FILE names, and the certificates, again. New connections use
 * them; present ones continue. To change a secret without stopping the job, see docs/security.md.
 * The file of the secret is also read again if it has changed when a connection is made. Does not
 * wait for other ranks.
 * @return WHERRY_OK, also if there is nothing to read; WHERRY_SYSTEM or WHERRY_INVALID_ARGUMENT if
 * a file cannot be used: the former secrets and certificates stay in use; WHERRY_UNSUPPORTED for a
 * group from wherry/group_ops.h; WHERRY_NO_MEMORY; WHERRY_INTERNAL.
 */
WHERRY_API wherry_status wherry_group_reload(wherry_group *group, wherry_error *error);

/** How a rank is connected. Fixed size; new members take from `reserved`. */
typedef struct wherry_group_link {
    /** "TLSv1.3, TLS_AES_128_GCM_SHA256"; "": not encrypted. */
    char cipher[64];
    /** The subject of its certificate; "": it has none. */
    char subject[256];
    /** SHA-256 of its public key; zeros without a certificate. */
    uint8_t key_digest[32];
    /** When the certificate expires, in seconds since 1970; 0: no certificate. */
    int64_t expires;
    bool local;           /**< Over a Unix socket, which does not leave this host. */
    uint8_t reserved[63]; /**< Zeros. */
} wherry_group_link;

/**
 * Describes the connection over which messages to a rank go. For this rank itself: whether its
 * connections to other hosts are encrypted, and when its certificate expires. Reads the
 * certificate's file; otherwise never blocks.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_PEER_LOST if there is no connection now;
 * WHERRY_UNSUPPORTED for a group from wherry/group_ops.h.
 */
WHERRY_API wherry_status wherry_group_describe(wherry_group *group, int32_t rank, wherry_group_link *link_p,
                                               wherry_error *error);

/**
 * Removes what killed processes of this user have left in a folder where groups of "env://" meet:
 * sockets that nobody listens at, and their locks. A process that listens at a meeting point in the
 * folder does the same when it joins. Never waits for another process.
 * @param folder  NULL is no folder.
 * @param remove  false: only count.
 * @return the number of sockets; 0 also if the folder cannot be read.
 */
WHERRY_API uint64_t wherry_group_clean(const char *folder, bool remove);

/** The rank of this process: 0 to size - 1. Never blocks. */
WHERRY_API int32_t wherry_group_rank(const wherry_group *group);

/** The number of ranks in the group, alive or not. Never blocks. */
WHERRY_API int32_t wherry_group_size(const wherry_group *group);

/**
 * True if a rank is alive, as far as this process knows. A rank that has just died counts as alive
 * until its death is noticed. Without an open connection, its death is noticed at the next attempt
 * to reach it. Never blocks.
 * @return false also for a rank that has never joined, and for a number outside the group.
 */
WHERRY_API bool wherry_group_alive(const wherry_group *group, int32_t rank);

/**
 * Sends a small message of the program to a rank. It never mixes with the library's own messages.
 * Messages with the same tag from one rank to another arrive exactly once and in order, unless one
 * of the two ranks is lost.
 *
 * Blocks until the message is handed to the network. Success does not mean that it has arrived.
 *
 * @param rank        the receiver; may be this rank.
 * @param tag         any number. The receiver asks for messages by tag.
 * @param bytes       borrowed during the call; may be NULL if size is 0.
 * @param size        at most WHERRY_GROUP_MESSAGE_MAX. A message stays in the receiver's memory
 * until the receiver takes it.
 * @param timeout_ms  time limit for the whole call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_TIMED_OUT; WHERRY_PEER_LOST
 * with the rank in the error: wait until it has joined again, or continue without it; WHERRY_CLOSED
 * if a newer incarnation of this rank has joined: leave the group. A group from wherry/group_ops.h
 * may return other statuses too.
 */
WHERRY_API wherry_status wherry_group_send(wherry_group *group, int32_t rank, uint32_t tag, const void *bytes,
                                           size_t size, uint32_t timeout_ms, wherry_error *error);

/**
 * Takes the oldest message with this tag. Blocks until there is one, but at most for timeout_ms.
 * @param rank        the sender; or WHERRY_ANY_RANK for any sender. With WHERRY_ANY_RANK, the loss
 * of a rank is not an error.
 * @param timeout_ms  0 takes only a message that has already arrived.
 * @param bytes_p     the message, owned by the caller. Free it with wherry_free. May be NULL if the
 * message is empty.
 * @param size_p      its size in bytes.
 * @param rank_p      the sender; may be NULL.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_TIMED_OUT; WHERRY_PEER_LOST with the rank in
 * the error, if that rank died or restarted during the wait (messages that it sent before can still
 * be taken until its next incarnation joins); WHERRY_CLOSED if a newer incarnation of this rank has
 * joined, or if a group from wherry/group_ops.h can no longer receive: leave the group.
 */
WHERRY_API wherry_status wherry_group_receive(wherry_group *group, int32_t rank, uint32_t tag, uint32_t timeout_ms,
                                              void **bytes_p, size_t *size_p, int32_t *rank_p, wherry_error *error);

/**
 * Waits until every rank has called this with the same number or a higher one. Only one thread per
 * process may be inside this call at a time.
 *
 * In a group over sockets, each rank exchanges messages with about 2 * log2(size) others.
 *
 * Use ascending numbers, such as the training step. Then the call can be repeated with the same
 * number after a failure, and a restarted rank takes part from its current number on. Even if the
 * call times out or a rank is lost, all reachable ranks know that this one has arrived.
 *
 * @param number      the number of this barrier.
 * @param timeout_ms  time limit for the whole call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if another thread is in a barrier; WHERRY_TIMED_OUT:
 * error->rank is the lowest rank that has not arrived; WHERRY_PEER_LOST: error->rank is a lost rank
 * (call again when it is back); WHERRY_NO_MEMORY; WHERRY_CLOSED.
 */
WHERRY_API wherry_status wherry_group_barrier(wherry_group *group, uint64_t number, uint32_t timeout_ms,
                                              wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
