/** @file mpi_remote_wire.h  The messages between rank 0 and the remote ranks. */
#ifndef WH_TESTS_MPI_REMOTE_WIRE_H
#define WH_TESTS_MPI_REMOTE_WIRE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <wherry/wherry.h>

typedef enum remote_kind {
    REMOTE_OPEN = 1, /**< Collective: creates a table. */
    REMOTE_PERMIT,
    REMOTE_SEND,
    REMOTE_RECEIVE,
    REMOTE_PUT,
    REMOTE_GET,
    REMOTE_FINISH,
    REMOTE_ABANDON,
    REMOTE_DESTROY,
    REMOTE_QUIT,
} remote_kind;

typedef struct remote_request {
    remote_kind kind;
    int32_t rank;
    uint32_t channel;
    uint32_t timeout_ms;
    uint32_t flags; /**< OPEN: WHERRY_MPI_*. */
    uint64_t table;
    uint64_t operation;
    uint64_t size;    /**< Length of a block. */
    uint64_t payload; /**< Number of bytes that follow. */
} remote_request;

typedef struct remote_answer {
    wherry_status status;
    uint32_t flags;  /**< OPEN: WHERRY_GROUP_OPS_*. */
    uint64_t number; /**< OPEN: the table. PUT, GET: the operation. */
    uint64_t payload;
    wherry_error error;
} remote_answer;

/** RECEIVE: the header of each block in the payload. */
typedef struct remote_block {
    int32_t rank;
    uint64_t size;
} remote_block;

typedef struct remote_address {
    struct sockaddr_un name;
    socklen_t length;
} remote_address;

/** Ends the test run. */
_Noreturn static inline void remote_die(const char *what) {
    fprintf(stderr, "mpi_remote: %s (errno %d)\n", what, errno);
    abort();
}

static inline void remote_write(int connection, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        ssize_t sent = send(connection, at, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            remote_die("cannot write");
        }
        at += sent;
        size -= (size_t)sent;
    }
}

/** @return false at the end of the connection. */
static inline bool remote_read(int connection, void *bytes, size_t size) {
    for (char *at = bytes; size;) {
        ssize_t got = recv(connection, at, size, 0);
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= (size_t)got;
    }
    return true;
}

#endif
