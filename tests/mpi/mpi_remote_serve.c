/* A remote rank: executes the requests of rank 0. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi_remote.h"
#include "mpi_remote_wire.h"

enum { CONNECTIONS_MAX = 64, LOOK_MS = 10 };

typedef struct table {
    wherry_group_ops ops;
    wh_mpi *context;
} table;

/** A block with its own memory. */
typedef struct block {
    void *operation;
    size_t size;
    bool is_get;
    char bytes[];
} block;

static MPI_Comm own_communicator; /* The communicator of the remote ranks only. */
static atomic_bool over;

/* ---- requests ---- */

static void open_table(const remote_request *request, remote_answer *answer) {
    wherry_mpi_options options;
    table *made = calloc(1, sizeof(*made));
    wherry_mpi_options_init(&options);
    options.flags = request->flags;
    answer->status = wh_mpi_open(own_communicator, &options, &made->ops, &made->context, &answer->error);
    if (answer->status == WHERRY_OK) {
        answer->number = (uint64_t)(uintptr_t)made;
        answer->flags = made->ops.flags;
    } else {
        free(made);
    }
}

/** Received blocks, one after the other. */
typedef struct pile {
    char *bytes;
    size_t size;
} pile;

static void add_to_pile(void *sink, int32_t rank, const void *bytes, size_t size) {
    pile *all = sink;
    remote_block head = {rank, size};
    all->bytes = realloc(all->bytes, all->size + sizeof(head) + size);
    memcpy(all->bytes + all->size, &head, sizeof(head));
    memcpy(all->bytes + all->size + sizeof(head), bytes, size);
    all->size += sizeof(head) + size;
}

static void begin_block(const table *at, const remote_request *request, void *payload, remote_answer *answer) {
    block *one = malloc(sizeof(*one) + request->size);
    *one = (block){.size = request->size, .is_get = request->kind == REMOTE_GET};
    if (one->is_get) {
        memset(one->bytes, 0xEE, one->size);
        answer->status = at->ops.get(at->context, request->rank, request->channel, one->bytes, one->size,
                                     &one->operation, &answer->error);
    } else {
        if (!payload || request->payload != one->size) {
            remote_die("a put without bytes");
        }
        memcpy(one->bytes, payload, one->size);
        answer->status = at->ops.put(at->context, request->rank, request->channel, one->bytes, one->size,
                                     &one->operation, &answer->error);
    }
    answer->number = (uint64_t)(uintptr_t)one;
    if (answer->status != WHERRY_OK) {
        free(one);
    }
}

/** @return memory to free after the answer was sent. */
static void *finish_block(const table *at, const remote_request *request, remote_answer *answer, void **payload_p) {
    block *one = (block *)(uintptr_t)request->operation;
    answer->status = at->ops.finish(at->context, one->operation, request->timeout_ms, &answer->error);
    if (answer->status == WHERRY_OK && one->is_get) {
        *payload_p = one->bytes;
        answer->payload = one->size;
    }
    return answer->status == WHERRY_TIMED_OUT ? NULL : one;
}

static wherry_status abandon_block(const table *at, const remote_request *request) {
    block *one = (block *)(uintptr_t)request->operation;
    if (!at->ops.abandon(at->context, one->operation)) {
        return WHERRY_CLOSED; /* The block keeps its memory. */
    }
    memset(one->bytes, 0xDD, one->size);
    free(one);
    return WHERRY_OK;
}

/** Executes a request and answers it. */
static void obey(int connection, const remote_request *request, void *payload) {
    remote_answer answer = {.status = WHERRY_OK};
    table *at = (table *)(uintptr_t)request->table;
    pile all = {NULL, 0};
    void *bytes = NULL;
    void *freed = NULL;
    switch (request->kind) {
    case REMOTE_OPEN:
        open_table(request, &answer);
        break;
    case REMOTE_PERMIT:
        answer.status = at->ops.permit(at->context, &answer.error);
        break;
    case REMOTE_SEND:
        answer.status =
            at->ops.send(at->context, request->rank, payload, request->payload, request->timeout_ms, &answer.error);
        break;
    case REMOTE_RECEIVE:
        answer.status = at->ops.receive(at->context, request->timeout_ms, add_to_pile, &all, &answer.error);
        answer.payload = all.size;
        bytes = freed = all.bytes;
        break;
    case REMOTE_PUT:
    case REMOTE_GET:
        begin_block(at, request, payload, &answer);
        break;
    case REMOTE_FINISH:
        freed = finish_block(at, request, &answer, &bytes);
        break;
    case REMOTE_ABANDON:
        answer.status = abandon_block(at, request);
        break;
    case REMOTE_DESTROY:
        at->ops.destroy(at->context);
        free(at);
        break;
    case REMOTE_QUIT:
        atomic_store(&over, true);
        break;
    }
    remote_write(connection, &answer, sizeof(answer));
    remote_write(connection, bytes, answer.payload);
    free(freed);
}

/** Serves the next request. @return false if the connection has ended. */
static bool serve_one(int connection) {
    remote_request request;
    if (!remote_read(connection, &request, sizeof(request))) {
        close(connection);
        return false;
    }
    void *payload = request.payload ? malloc(request.payload) : NULL;
    if (request.payload && !remote_read(connection, payload, request.payload)) {
        remote_die("half a request");
    }
    obey(connection, &request, payload);
    free(payload);
    return true;
}

/* ---- threads ---- */

static atomic_int threads;

static void *serve_connection(void *context) {
    int connection = (int)(intptr_t)context;
    while (serve_one(connection)) {
    }
    atomic_fetch_sub(&threads, 1);
    return NULL;
}

static void serve_by_threads(int listener) {
    while (!atomic_load(&over) || atomic_load(&threads)) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (poll(&ready, 1, LOOK_MS) == 1) {
            pthread_t thread;
            intptr_t connection = accept(listener, NULL, NULL);
            atomic_fetch_add(&threads, 1);
            if (pthread_create(&thread, NULL, serve_connection, (void *)connection) != 0) {
                remote_die("no thread");
            }
            pthread_detach(thread);
        }
    }
}

static void serve_alone(int listener) {
    struct pollfd ready[CONNECTIONS_MAX] = {{.fd = listener, .events = POLLIN}};
    nfds_t count = 1;
    while (!atomic_load(&over)) {
        poll(ready, count, -1);
        for (nfds_t i = count - 1; i > 0; i--) {
            if (ready[i].revents && !serve_one(ready[i].fd)) {
                ready[i] = ready[--count];
            }
        }
        if (ready[0].revents && count < CONNECTIONS_MAX) {
            ready[count++] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
        }
    }
    while (count > 1) {
        close(ready[--count].fd);
    }
}

void remote_serve(void) {
    int level;
    remote_address address = {.name.sun_family = AF_UNIX, .length = sizeof(address.name)};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* The kernel chooses an abstract name, which disappears with the socket. */
    if (bind(listener, (struct sockaddr *)&address.name, sizeof(sa_family_t)) != 0 ||
        listen(listener, SOMAXCONN) != 0 ||
        getsockname(listener, (struct sockaddr *)&address.name, &address.length) != 0) {
        remote_die("cannot listen");
    }
    MPI_Send(&address, sizeof(address), MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, 1, 0, &own_communicator);
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE) {
        serve_by_threads(listener);
    } else {
        serve_alone(listener);
    }
    close(listener);
    MPI_Comm_free(&own_communicator);
}
