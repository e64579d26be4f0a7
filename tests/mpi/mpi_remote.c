/* Rank 0: runs a suite and sends requests to the remote ranks. */
#include "mpi_remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "group/callback/callback.h"
#include "mpi_remote_wire.h"

enum { REMOTES = REMOTE_WORLD - 1 };

/** Addresses of the remote ranks. */
static remote_address addresses[REMOTES];

/** A rank of the group under test, as rank 0 knows it. */
typedef struct member {
    int32_t rank;
    uint64_t table; /**< The remote rank's handle. */
    uint32_t flags;
    /**
     * The remote rank was told to leave and has not answered yet, because it waits a while for the
     * others to leave too.
     */
    bool leaving;
} member;

/** A block that is being moved. */
typedef struct operation {
    uint64_t number; /**< The remote rank's handle. */
    void *bytes;     /**< Destination of a get. */
    size_t size;
} operation;

/* ---- calls: one connection per thread ---- */

static pthread_key_t connections_key;
static pthread_once_t connections_once = PTHREAD_ONCE_INIT;

static void close_connections(void *context) {
    int *connections = context;
    for (int i = 0; i < REMOTES; i++) {
        if (connections[i]) {
            close(connections[i]);
        }
    }
    free(connections);
}

static void make_key(void) {
    pthread_key_create(&connections_key, close_connections);
}

static int connection_to(int32_t rank) {
    pthread_once(&connections_once, make_key);
    int *connections = pthread_getspecific(connections_key);
    if (!connections) {
        connections = calloc(REMOTES, sizeof(*connections));
        pthread_setspecific(connections_key, connections);
    }
    if (!connections[rank]) {
        connections[rank] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const remote_address *to = addresses + rank;
        if (connect(connections[rank], (const struct sockaddr *)&to->name, to->length) != 0) {
            remote_die("cannot reach a remote rank");
        }
    }
    return connections[rank];
}

static void ask(int32_t rank, const remote_request *request, const void *bytes) {
    int connection = connection_to(rank);
    remote_write(connection, request, sizeof(*request));
    remote_write(connection, bytes, request->payload);
}

/** @param bytes_p  set to the payload, to be freed; NULL: no payload is expected. */
static remote_answer hear(int32_t rank, void **bytes_p) {
    remote_answer answer;
    int connection = connection_to(rank);
    if (!remote_read(connection, &answer, sizeof(answer))) {
        remote_die("a remote rank has ended");
    }
    if (answer.payload && !bytes_p) {
        remote_die("unexpected bytes");
    }
    if (answer.payload) {
        *bytes_p = malloc(answer.payload);
        remote_read(connection, *bytes_p, answer.payload);
    }
    return answer;
}

static wherry_status give_back(const remote_answer *answer, wherry_error *error) {
    if (answer->status != WHERRY_OK) {
        *error = answer->error;
    }
    return answer->status;
}

/* ---- the table ---- */

static wherry_status far_permit(void *context, wherry_error *error) {
    const member *own = context;
    remote_request request = {.kind = REMOTE_PERMIT, .table = own->table};
    ask(own->rank, &request, NULL);
    remote_answer answer = hear(own->rank, NULL);
    return give_back(&answer, error);
}

static wherry_status far_send(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                              wherry_error *error) {
    const member *own = context;
    remote_request request = {
        .kind = REMOTE_SEND, .table = own->table, .rank = rank, .timeout_ms = timeout_ms, .payload = size};
    ask(own->rank, &request, bytes);
    remote_answer answer = hear(own->rank, NULL);
    return give_back(&answer, error);
}

static wherry_status far_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                 wherry_error *error) {
    const member *own = context;
    remote_request request = {.kind = REMOTE_RECEIVE, .table = own->table, .timeout_ms = timeout_ms};
    ask(own->rank, &request, NULL);
    void *bytes = NULL;
    remote_answer answer = hear(own->rank, &bytes);
    for (const char *at = bytes, *end = at + answer.payload; at < end;) {
        remote_block block;
        memcpy(&block, at, sizeof(block));
        deliver(sink, block.rank, at + sizeof(block), block.size);
        at += sizeof(block) + block.size;
    }
    free(bytes);
    return give_back(&answer, error);
}

static wherry_status far_begin(const member *own, const remote_request *request, void *bytes, void **operation_p,
                               wherry_error *error) {
    ask(own->rank, request, bytes);
    remote_answer answer = hear(own->rank, NULL);
    if (answer.status == WHERRY_OK) {
        operation *one = malloc(sizeof(*one));
        *one = (operation){answer.number, bytes, request->size};
        *operation_p = one;
    }
    return give_back(&answer, error);
}

static wherry_status far_put(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                             void **operation_p, wherry_error *error) {
    const member *own = context;
    remote_request request = {
        .kind = REMOTE_PUT, .table = own->table, .rank = rank, .channel = channel, .size = size, .payload = size};
    return far_begin(own, &request, (void *)bytes, operation_p, error);
}

static wherry_status far_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size,
                             void **operation_p, wherry_error *error) {
    const member *own = context;
    remote_request request = {.kind = REMOTE_GET, .table = own->table, .rank = rank, .channel = channel, .size = size};
    return far_begin(own, &request, bytes, operation_p, error);
}

static wherry_status far_finish(void *context, void *begun, uint32_t timeout_ms, wherry_error *error) {
    const member *own = context;
    operation *one = begun;
    remote_request request = {
        .kind = REMOTE_FINISH, .table = own->table, .operation = one->number, .timeout_ms = timeout_ms};
    void *bytes = NULL;
    ask(own->rank, &request, NULL);
    remote_answer answer = hear(own->rank, &bytes);
    if (bytes) {
        memcpy(one->bytes, bytes, one->size);
    }
    free(bytes);
    if (answer.status != WHERRY_TIMED_OUT) {
        free(one);
    }
    return give_back(&answer, error);
}

static bool far_abandon(void *context, void *begun) {
    const member *own = context;
    operation *one = begun;
    remote_request request = {.kind = REMOTE_ABANDON, .table = own->table, .operation = one->number};
    ask(own->rank, &request, NULL);
    remote_answer answer = hear(own->rank, NULL);
    free(one);
    return answer.status == WHERRY_OK;
}

static void far_destroy(void *context) {
    member *own = context;
    remote_request request = {.kind = REMOTE_DESTROY, .table = own->table};
    ask(own->rank, &request, NULL);
    own->leaving = true;
}

/* ---- places ---- */

static void *open_place(int32_t size, uint32_t flags) {
    if (size != REMOTES) {
        remote_die("the suite has another number of ranks than were started");
    }
    member *members = calloc((size_t)size, sizeof(*members));
    remote_request request = {.kind = REMOTE_OPEN, .flags = flags};
    /* The request goes to all ranks first, because it is collective. */
    for (int32_t rank = 0; rank < size; rank++) {
        ask(rank, &request, NULL);
    }
    for (int32_t rank = 0; rank < size; rank++) {
        remote_answer answer = hear(rank, NULL);
        if (answer.status != WHERRY_OK) {
            remote_die(answer.error.message);
        }
        members[rank] = (member){rank, answer.number, answer.flags, false};
    }
    return members;
}

void *remote_open(int32_t size) {
    return open_place(size, 0);
}

void *remote_open_background(int32_t size) {
    return open_place(size, WHERRY_MPI_BACKGROUND);
}

wh_group *remote_join(void *place, int32_t rank) {
    member *own = (member *)place + rank;
    wh_group *group = NULL;
    wherry_group_ops ops;
    wherry_group_ops_init(&ops);
    ops.flags = own->flags;
    ops.name = "mpi";
    ops.rank = rank;
    ops.size = REMOTES;
    ops.permit = far_permit;
    ops.send = far_send;
    ops.receive = far_receive;
    ops.put = far_put;
    ops.get = far_get;
    ops.finish = far_finish;
    ops.abandon = far_abandon;
    ops.destroy = far_destroy;
    return wh_callback_create(&ops, own, &group, NULL) == WHERRY_OK ? group : NULL;
}

void remote_close(void *place) {
    const member *members = place;
    for (int32_t rank = 0; rank < REMOTES; rank++) {
        if (!members[rank].leaving) {
            remote_die("a rank has not left its group");
        }
        hear(rank, NULL);
    }
    free(place);
}

void remote_begin(void) {
    for (int i = 0; i < REMOTES; i++) {
        MPI_Recv(addresses + i, sizeof(*addresses), MPI_BYTE, i + 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Comm none;
    MPI_Comm_split(MPI_COMM_WORLD, MPI_UNDEFINED, 0, &none);
}

void remote_end(void) {
    remote_request request = {.kind = REMOTE_QUIT};
    for (int32_t rank = 0; rank < REMOTES; rank++) {
        ask(rank, &request, NULL);
        hear(rank, NULL);
    }
    close_connections(pthread_getspecific(connections_key));
    pthread_setspecific(connections_key, NULL);
}
