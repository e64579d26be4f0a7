/** @file mpi_hands_wire.h  What the conductor and its hands say to each other. */
#ifndef WH_TESTS_MPI_HANDS_WIRE_H
#define WH_TESTS_MPI_HANDS_WIRE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <wherry/wherry.h>

typedef enum hands_kind {
    HANDS_OPEN = 1, /**< Collective: makes a table. */
    HANDS_PERMIT,
    HANDS_SEND,
    HANDS_RECEIVE,
    HANDS_PUT,
    HANDS_GET,
    HANDS_FINISH,
    HANDS_ABANDON,
    HANDS_DESTROY,
    HANDS_QUIT,
} hands_kind;

typedef struct hands_request {
    hands_kind kind;
    int32_t rank;
    uint32_t channel;
    uint32_t timeout_ms;
    uint32_t flags; /**< OPEN: WHERRY_MPI_*. */
    uint64_t table;
    uint64_t operation;
    uint64_t size;    /**< Of a block. */
    uint64_t payload; /**< Bytes behind this. */
} hands_request;

typedef struct hands_answer {
    wherry_status status;
    uint32_t flags;  /**< OPEN: WHERRY_GROUP_OPS_*. */
    uint64_t number; /**< OPEN: the table. PUT, GET: the operation. */
    uint64_t payload;
    wherry_error error;
} hands_answer;

/** RECEIVE: what each block in the payload begins with. */
typedef struct hands_block {
    int32_t rank;
    uint64_t size;
} hands_block;

typedef struct hands_address {
    struct sockaddr_un name;
    socklen_t length;
} hands_address;

/** What no test can go on after. */
_Noreturn static inline void hands_die(const char *what) {
    fprintf(stderr, "mpi_hands: %s (errno %d)\n", what, errno);
    abort();
}

static inline void hands_write(int connection, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        ssize_t sent = send(connection, at, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            hands_die("cannot write");
        }
        at += sent;
        size -= (size_t)sent;
    }
}

/** @return false at the end of the connection. */
static inline bool hands_read(int connection, void *bytes, size_t size) {
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
