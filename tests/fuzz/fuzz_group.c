/*
 * Arbitrary bytes from a member that has greeted: frames, messages in parts, tables, places and the
 * barrier. They must give the same result whether they arrive at once or one by one. A place that
 * was decoded is encoded and decoded to the same text. Bit 0 of the first byte: the connection is
 * for data. Bit 1: the member greets first. Bit 2: messages take memory from a small pool.
 */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "group/sockets/internal.h"
#include "require.h"

enum { RANKS = 6, INPUT_MAX = 64 << 10, POOL = 100 << 10 };

typedef struct outcome {
    wh_sockets *sockets;
    wherry_status status;
    size_t messages;
    size_t message_bytes;
    size_t frames;
    bool attached;
    uint64_t hash;
    uint64_t arrivals;
} outcome;

static bool take_message(void *context, wh_message *message) {
    outcome *o = context;
    o->messages++;
    o->message_bytes += message->size;
    wh_message_clear(message);
    return true;
}

static bool greeted(void *context, wh_connection *connection, const wh_hello_fields *peer) {
    (void)context;
    return peer->rank == (uint32_t)connection->rank;
}

static bool make_no_room(void *context) {
    (void)context;
    return false;
}

static bool take_frame(void *context, wh_connection *connection, uint8_t type, const uint8_t *bytes, size_t size) {
    outcome *o = context;
    o->frames++;
    switch (type) {
    case WH_FRAME_TABLE:
        return wh_sockets_take_table(o->sockets, connection, bytes, size);
    case WH_FRAME_ARRIVED:
        return wh_barrier_take_arrived(o->sockets, connection, bytes, size);
    case WH_FRAME_MISSING:
        return wh_barrier_take_missing(o->sockets, bytes, size);
    default:
        return false;
    }
}

/** A group without a thread and without sockets. */
static wh_sockets *open_group(void) {
    wh_sockets *sockets = wh_alloc_zeroed(1, sizeof(*sockets) + RANKS * sizeof(*sockets->members));
    REQUIRE(sockets);
    pthread_mutex_init(&sockets->lock, NULL);
    wh_condition_init(&sockets->changed);
    sockets->base = (wh_group){.rank = 0, .size = RANKS, .mailbox = wh_mailbox_create(RANKS, 1 << 20)};
    REQUIRE(sockets->base.mailbox);
    sockets->oldest = sockets->newest = -1;
    sockets->wake = -1;
    sockets->incarnation = 1000;
    sockets->joined = true;
    sockets->barrier.waiting = true;
    sockets->barrier.number = 1;
    sockets->barrier.missing = -1;
    return sockets;
}

static void check_places(const wh_sockets *sockets) {
    for (int rank = 0; rank < RANKS; rank++) {
        const wh_member *member = sockets->members + rank;
        wh_string bytes = {0};
        char again[WH_PLACE_MAX];
        if (!member->incarnation) {
            continue;
        }
        wh_place_encode(&bytes, member->place);
        REQUIRE(!bytes.failed);
        wh_cursor rest = wh_cursor_over(bytes.bytes, bytes.size);
        REQUIRE(wh_place_decode(&rest, again) && wh_cursor_ended(&rest) && strcmp(again, member->place) == 0);
        wh_free(bytes.bytes);
    }
}

static outcome run(uint8_t choice, const uint8_t *bytes, size_t size, size_t piece) {
    outcome o = {.sockets = open_group(), .status = WHERRY_OK};
    const wh_connection_events events = {
        .greeted = greeted, .message = take_message, .frame = take_frame, .make_room = make_no_room, .context = &o};
    const wh_hello_config config = {.size = RANKS, .incarnation = 1000};
    wherry_error error;
    size_t pool = POOL;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    wh_connection *connection = wh_connection_create(ends[0], false);
    REQUIRE(connection);
    connection->number = 1;
    if (choice & 2) {
        REQUIRE(wh_connection_greet(connection, &config, &error) == WHERRY_OK);
    } else {
        connection->rank = 1;
        connection->incarnation = 1;
        connection->data = choice & 1;
    }
    if (choice & 4) {
        connection->pool = &pool;
        connection->message_max = 3 * POOL;
    }
    for (size_t at = 0; at < size && o.status == WHERRY_OK; at += piece) {
        size_t part = size - at < piece ? size - at : piece;
        REQUIRE(write(ends[1], bytes + at, part) == (ssize_t)part);
        for (int queued = 1; queued > 0 && o.status == WHERRY_OK;) {
            uint8_t next;
            queued = (int)recv(ends[0], &next, 1, MSG_PEEK);
            if (queued > 0) {
                o.status = wh_connection_read(connection, &events, &error);
                REQUIRE(o.status == error.status || o.status == WHERRY_OK);
                wh_connection_write(connection, NULL);
            }
        }
    }
    /* The end of the connection is noticed, and a failure stays one. */
    REQUIRE(shutdown(ends[1], SHUT_WR) == 0);
    wherry_status last = wh_connection_read(connection, &events, NULL);
    REQUIRE(last != WHERRY_OK && wh_connection_read(connection, &events, NULL) == last);
    REQUIRE(pool <= POOL);
    check_places(o.sockets);
    o.attached = connection->attached;
    o.hash = o.sockets->hash;
    for (int rank = 0; rank < RANKS; rank++) {
        o.arrivals += o.sockets->members[rank].reached + o.sockets->members[rank].arrived;
    }
    wh_connection_destroy(connection);
    close(ends[1]);
    wh_mailbox_destroy(o.sockets->base.mailbox);
    pthread_cond_destroy(&o.sockets->changed);
    pthread_mutex_destroy(&o.sockets->lock);
    wh_free(o.sockets);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > INPUT_MAX) {
        return 0;
    }
    wherry_log_set_level(WHERRY_LOG_OFF);
    outcome whole = run(data[0], data + 1, size - 1, size);
    outcome pieces = run(data[0], data + 1, size - 1, size < 4096 ? 1 : 97);
    REQUIRE((whole.status == WHERRY_OK) == (pieces.status == WHERRY_OK));
    REQUIRE(whole.messages == pieces.messages && whole.message_bytes == pieces.message_bytes);
    REQUIRE(whole.frames == pieces.frames && whole.hash == pieces.hash && whole.arrivals == pieces.arrivals);
    /* Bytes that follow an ATTACH too early are noticed at once, or when they arrive. */
    REQUIRE(whole.attached == pieces.attached);
    return 0;
}
