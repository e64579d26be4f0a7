#include "support/callback_hub.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"

enum { CLUNG_MAX = 64 };

typedef struct member {
    callback_hub *hub;
    int32_t rank;
    atomic_int inside; /**< Number of calls in progress. */
    uint64_t *deaths;  /**< Per rank: number of deaths reported to this member. */
} member;

/** A put or get that was neither finished nor abandoned. */
typedef struct operation {
    struct operation *next;
    member *owner;
    int32_t from;
    int32_t to;
    uint32_t channel;
    bool is_put;
    void *bytes;
    const struct iovec *runs; /**< Used by put_runs instead of `bytes`. */
    size_t size;
    bool over;            /**< The block has moved, or never will. */
    wherry_status status; /**< The result, once `over`. */
} operation;

typedef struct place {
    member *present;
    int pair[2]; /**< Blocks are written to pair[1] and read from pair[0]. */
    bool dead;
    uint64_t deaths;
    wherry_status send;
    wherry_status receive;
    wherry_status put;
    wherry_status get;
    wherry_status finish;
    size_t hold; /**< Number of blocks that may still move to this rank. */
    size_t damage;
    size_t moved;
    size_t abandoned;
    bool clings;
    struct iovec clung[CLUNG_MAX]; /**< Memory of gets that were abandoned. */
    size_t clung_count;
    size_t last_size;
    unsigned char last[CALLBACK_HUB_BLOCK_MAX];
} place;

struct callback_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    operation *operations; /**< In the order in which they began. */
    callback_hub_options options;
    int32_t size;
    place places[];
};

static void die(const char *what) {
    fprintf(stderr, "callback_hub: %s: %s\n", what, strerror(errno));
    abort();
}

callback_hub *callback_hub_open(int32_t size, const callback_hub_options *options) {
    callback_hub *hub = calloc(1, sizeof(*hub) + (size_t)size * sizeof(place));
    pthread_mutex_init(&hub->lock, NULL);
    wh_condition_init(&hub->changed);
    hub->options = *options;
    hub->size = size;
    for (int32_t i = 0; i < size; i++) {
        hub->places[i].hold = SIZE_MAX;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, hub->places[i].pair) != 0) {
            die("socketpair");
        }
    }
    return hub;
}

void callback_hub_close(callback_hub *hub) {
    for (int32_t i = 0; i < hub->size; i++) {
        if (hub->places[i].present) {
            die("a member is still in the hub");
        }
        close(hub->places[i].pair[0]);
        close(hub->places[i].pair[1]);
    }
    if (hub->operations) {
        die("an operation was neither finished nor abandoned");
    }
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

static void enter(member *m) {
    int others = atomic_fetch_add(&m->inside, 1);
    if (others && !(m->hub->options.flags & WHERRY_GROUP_OPS_CONCURRENT)) {
        die("two calls overlap, but the table does not allow that");
    }
}

/** @return the status with which a call must fail at once; WHERRY_OK if it may do its work. */
static wherry_status look(member *m, bool sends) {
    pthread_mutex_lock(&m->hub->lock);
    const place *own = m->hub->places + m->rank;
    wherry_status status = own->present != m ? WHERRY_CLOSED : sends ? own->send : own->receive;
    pthread_mutex_unlock(&m->hub->lock);
    return status;
}

/** Writes a block after its sender's rank. @return false if there is no room in time. */
static bool post(const place *to, int32_t from, const void *bytes, size_t size, int timeout_ms) {
    struct iovec parts[2] = {{&from, sizeof(from)}, {(void *)bytes, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    for (int tries = 0; tries < 2; tries++) {
        if (sendmsg(to->pair[1], &message, MSG_NOSIGNAL) >= 0) {
            return true;
        }
        if (errno != EAGAIN) {
            die("sendmsg");
        }
        poll(&(struct pollfd){.fd = to->pair[1], .events = POLLOUT}, 1, tries ? 0 : timeout_ms);
    }
    return false;
}

static wherry_status send_block(member *m, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms) {
    callback_hub *hub = m->hub;
    wherry_status status = look(m, true);
    if (status != WHERRY_OK) {
        return status;
    }
    if (size > CALLBACK_HUB_BLOCK_MAX || rank == m->rank || rank < 0 || rank >= hub->size) {
        die("a block that is too long or for an impossible rank");
    }
    pthread_mutex_lock(&hub->lock);
    bool dead = hub->places[rank].dead && (hub->options.flags & WHERRY_GROUP_OPS_DEATH);
    pthread_mutex_unlock(&hub->lock);
    if (dead) {
        return WHERRY_PEER_LOST;
    }
    if (!post(hub->places + rank, m->rank, bytes, size, (int)timeout_ms)) {
        return WHERRY_TIMED_OUT;
    }
    pthread_mutex_lock(&hub->lock);
    memcpy(hub->places[m->rank].last, bytes, size);
    hub->places[m->rank].last_size = size;
    pthread_mutex_unlock(&hub->lock);
    return WHERRY_OK;
}

static wherry_status table_send(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                                wherry_error *error) {
    (void)error;
    member *m = context;
    enter(m);
    wherry_status status = send_block(m, rank, bytes, size, timeout_ms);
    atomic_fetch_sub(&m->inside, 1);
    return status;
}

/** @return a rank that has died since the last call, or -1. */
static int32_t find_death(member *m) {
    int32_t found = -1;
    pthread_mutex_lock(&m->hub->lock);
    for (int32_t i = 0; i < m->hub->size && found < 0; i++) {
        if (m->hub->places[i].deaths != m->deaths[i]) {
            found = i;
        }
    }
    pthread_mutex_unlock(&m->hub->lock);
    return found;
}

/** Delivers all waiting blocks. @return their number. */
static int drain(member *m, wherry_group_deliver_fn deliver, void *sink) {
    static _Thread_local unsigned char space[CALLBACK_HUB_BLOCK_MAX + sizeof(int32_t)];
    int blocks = 0;
    for (ssize_t got; (got = recv(m->hub->places[m->rank].pair[0], space, sizeof(space), 0)) > 0; blocks++) {
        int32_t from;
        memcpy(&from, space, sizeof(from));
        deliver(sink, from, space + sizeof(from), (size_t)got - sizeof(from));
    }
    return blocks;
}

static wherry_status receive_blocks(member *m, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                    wherry_error *error) {
    wherry_status status = look(m, false);
    if (status != WHERRY_OK) {
        return status;
    }
    /*
     * Look for deaths first. If the socket is empty after that, all messages of the dead ranks were
     * delivered.
     */
    int32_t dead = m->hub->options.flags & WHERRY_GROUP_OPS_DEATH ? find_death(m) : -1;
    if (drain(m, deliver, sink) > 0) {
        return WHERRY_OK;
    }
    if (dead >= 0) {
        pthread_mutex_lock(&m->hub->lock);
        m->deaths[dead] = m->hub->places[dead].deaths;
        pthread_mutex_unlock(&m->hub->lock);
        error->rank = dead;
        return WHERRY_PEER_LOST;
    }
    poll(&(struct pollfd){.fd = m->hub->places[m->rank].pair[0], .events = POLLIN}, 1, (int)timeout_ms);
    drain(m, deliver, sink);
    return WHERRY_OK;
}

static wherry_status table_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                   wherry_error *error) {
    member *m = context;
    enter(m);
    wherry_status status = receive_blocks(m, timeout_ms, deliver, sink, error);
    atomic_fetch_sub(&m->inside, 1);
    return status;
}

/* ---- blocks; callers hold the lock, except for the functions of the table ---- */

static bool meets(const operation *one, const operation *other) {
    return !one->over && !other->over && one->is_put != other->is_put && one->from == other->from &&
           one->to == other->to && one->channel == other->channel;
}

static void move_block(place *to, operation *put, operation *get) {
    const struct iovec whole = {put->bytes, put->size};
    const struct iovec *run = put->runs ? put->runs : &whole;
    size_t left = put->size < get->size ? put->size : get->size;
    put->over = get->over = true;
    get->status = put->size == get->size ? WHERRY_OK : WHERRY_MALFORMED;
    for (unsigned char *at = get->bytes; left; run++) {
        size_t length = run->iov_len < left ? run->iov_len : left;
        memcpy(at, run->iov_base, length);
        at += length;
        left -= length;
    }
    if (to->damage) {
        to->damage--;
        ((unsigned char *)get->bytes)[get->size / 2] ^= 1;
    }
    to->moved++;
}

/** Moves blocks: each put goes to the first get that matches it. */
static void move_blocks(callback_hub *hub) {
    for (operation *one = hub->operations; one; one = one->next) {
        place *to = hub->places + one->to;
        for (operation *other = one->next; other && !one->over && to->hold; other = other->next) {
            if (meets(one, other)) {
                move_block(to, one->is_put ? one : other, one->is_put ? other : one);
                to->hold -= to->hold != SIZE_MAX;
            }
        }
    }
    pthread_cond_broadcast(&hub->changed);
}

static wherry_status begin_block(member *m, const operation *what, void **operation_p) {
    callback_hub *hub = m->hub;
    int32_t peer = what->is_put ? what->to : what->from;
    if (peer == m->rank || peer < 0 || peer >= hub->size || what->channel > WHERRY_GROUP_CHANNEL_MAX || !what->size) {
        die("an empty put or get, or one with an impossible rank or channel");
    }
    enter(m);
    pthread_mutex_lock(&hub->lock);
    const place *own = hub->places + m->rank;
    wherry_status status = own->present != m ? WHERRY_CLOSED : what->is_put ? own->put : own->get;
    if (status == WHERRY_OK && hub->places[peer].dead && (hub->options.flags & WHERRY_GROUP_OPS_DEATH)) {
        status = WHERRY_PEER_LOST;
    }
    if (status == WHERRY_OK) {
        operation **last = &hub->operations;
        while (*last) {
            last = &(*last)->next;
        }
        *last = malloc(sizeof(**last));
        **last = *what;
        *operation_p = *last;
        move_blocks(hub);
    }
    pthread_mutex_unlock(&hub->lock);
    atomic_fetch_sub(&m->inside, 1);
    return status;
}

static wherry_status table_put(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                               void **operation_p, wherry_error *error) {
    member *m = context;
    (void)error;
    const operation put = {.owner = m,
                           .from = m->rank,
                           .to = rank,
                           .channel = channel,
                           .is_put = true,
                           .bytes = (void *)bytes,
                           .size = size};
    return begin_block(m, &put, operation_p);
}

static wherry_status table_put_runs(void *context, int32_t rank, uint32_t channel, const struct iovec *runs,
                                    size_t count, void **operation_p, wherry_error *error) {
    member *m = context;
    (void)error;
    operation put = {.owner = m, .from = m->rank, .to = rank, .channel = channel, .is_put = true, .runs = runs};
    for (size_t i = 0; i < count; i++) {
        if (!runs[i].iov_len) {
            die("an empty run");
        }
        put.size += runs[i].iov_len;
    }
    return begin_block(m, &put, operation_p);
}

static wherry_status table_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size,
                               void **operation_p, wherry_error *error) {
    member *m = context;
    (void)error;
    const operation get = {.owner = m, .from = rank, .to = m->rank, .channel = channel, .bytes = bytes, .size = size};
    return begin_block(m, &get, operation_p);
}

static void forget(callback_hub *hub, operation *gone) {
    operation **at = &hub->operations;
    while (*at && *at != gone) {
        at = &(*at)->next;
    }
    if (!*at) {
        die("an operation was finished or abandoned twice");
    }
    *at = gone->next;
    free(gone);
}

/** @return the present status of an operation. */
static wherry_status look_at(const member *m, const operation *what) {
    const place *own = m->hub->places + m->rank;
    const place *peer = m->hub->places + (what->is_put ? what->to : what->from);
    if (own->present != m) {
        return WHERRY_CLOSED;
    }
    if (own->finish != WHERRY_OK || what->over) {
        return own->finish != WHERRY_OK ? own->finish : what->status;
    }
    return peer->dead && (m->hub->options.flags & WHERRY_GROUP_OPS_DEATH) ? WHERRY_PEER_LOST : WHERRY_TIMED_OUT;
}

static wherry_status table_finish(void *context, void *which, uint32_t timeout_ms, wherry_error *error) {
    member *m = context;
    callback_hub *hub = m->hub;
    (void)error;
    enter(m);
    wh_deadline deadline = wh_deadline_in_ms(timeout_ms);
    pthread_mutex_lock(&hub->lock);
    wherry_status status = look_at(m, which);
    while (status == WHERRY_TIMED_OUT && wh_wait(&hub->changed, &hub->lock, deadline)) {
        status = look_at(m, which);
    }
    if (status != WHERRY_TIMED_OUT) {
        forget(hub, which);
    }
    pthread_mutex_unlock(&hub->lock);
    atomic_fetch_sub(&m->inside, 1);
    return status;
}

/** @return true if an abandoned operation keeps its memory. The table is then closed. */
static bool cling(place *at, const operation *gone) {
    if (!at->clings || gone->is_put) {
        return false;
    }
    if (at->clung_count == CLUNG_MAX) {
        die("too many gets");
    }
    at->clung[at->clung_count++] = (struct iovec){gone->bytes, gone->size};
    at->send = at->receive = at->put = at->get = WHERRY_CLOSED;
    return true;
}

void callback_hub_cling(callback_hub *hub, int32_t rank) {
    pthread_mutex_lock(&hub->lock);
    hub->places[rank].clings = true;
    pthread_mutex_unlock(&hub->lock);
}

size_t callback_hub_write_late(callback_hub *hub, int32_t rank) {
    size_t bytes = 0;
    pthread_mutex_lock(&hub->lock);
    for (size_t i = 0; i < hub->places[rank].clung_count; i++) {
        const struct iovec *one = hub->places[rank].clung + i;
        memset(one->iov_base, 0x99, one->iov_len);
        bytes += one->iov_len;
    }
    pthread_mutex_unlock(&hub->lock);
    return bytes;
}

static bool table_abandon(void *context, void *which) {
    member *m = context;
    enter(m);
    pthread_mutex_lock(&m->hub->lock);
    bool released = !cling(m->hub->places + m->rank, which);
    forget(m->hub, which);
    m->hub->places[m->rank].abandoned++;
    pthread_mutex_unlock(&m->hub->lock);
    atomic_fetch_sub(&m->inside, 1);
    return released;
}

/** Cuts off the present member of a rank and drops its memory. The caller holds the lock. */
static void mark_dead(callback_hub *hub, place *at) {
    for (operation *one = hub->operations; one; one = one->next) {
        one->over = one->over || one->owner == at->present;
    }
    at->present = NULL;
    at->dead = true;
    at->deaths++;
    pthread_cond_broadcast(&hub->changed);
}

static void table_destroy(void *context) {
    member *m = context;
    pthread_mutex_lock(&m->hub->lock);
    if (m->hub->places[m->rank].present == m) {
        mark_dead(m->hub, m->hub->places + m->rank);
    }
    pthread_mutex_unlock(&m->hub->lock);
    free(m->deaths);
    free(m);
}

void *callback_hub_member(callback_hub *hub, int32_t rank, wherry_group_ops *ops_p) {
    member *m = calloc(1, sizeof(*m));
    *m = (member){.hub = hub, .rank = rank, .deaths = calloc((size_t)hub->size, sizeof(*m->deaths))};
    pthread_mutex_lock(&hub->lock);
    for (int32_t i = 0; i < hub->size; i++) {
        m->deaths[i] = hub->places[i].deaths;
    }
    hub->places[rank].present = m;
    hub->places[rank].dead = false;
    pthread_mutex_unlock(&hub->lock);
    wherry_group_ops_init(ops_p);
    ops_p->flags = hub->options.flags;
    ops_p->name = "callback_hub";
    ops_p->rank = rank;
    ops_p->size = hub->size;
    ops_p->max_block = hub->options.max_block ? hub->options.max_block : CALLBACK_HUB_BLOCK_MAX;
    ops_p->send = table_send;
    ops_p->receive = table_receive;
    ops_p->destroy = table_destroy;
    if (hub->options.blocks) {
        ops_p->put = table_put;
        ops_p->get = table_get;
        ops_p->finish = table_finish;
        ops_p->abandon = table_abandon;
        ops_p->part_bytes = hub->options.part_bytes;
        ops_p->put_runs = hub->options.part_bytes ? table_put_runs : NULL;
    }
    return m;
}

void callback_hub_kill(callback_hub *hub, int32_t rank) {
    pthread_mutex_lock(&hub->lock);
    mark_dead(hub, hub->places + rank);
    pthread_mutex_unlock(&hub->lock);
}

void callback_hub_inject(callback_hub *hub, int32_t from, int32_t to, const void *bytes, size_t size) {
    if (!post(hub->places + to, from, bytes, size, 1000)) {
        die("nobody took a block in time");
    }
}

void callback_hub_break(callback_hub *hub, int32_t rank, wherry_status send, wherry_status receive) {
    pthread_mutex_lock(&hub->lock);
    hub->places[rank].send = send;
    hub->places[rank].receive = receive;
    pthread_mutex_unlock(&hub->lock);
}

void callback_hub_break_blocks(callback_hub *hub, int32_t rank, wherry_status put, wherry_status get,
                               wherry_status finish) {
    pthread_mutex_lock(&hub->lock);
    hub->places[rank].put = put;
    hub->places[rank].get = get;
    hub->places[rank].finish = finish;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}

void callback_hub_hold(callback_hub *hub, int32_t rank, size_t after) {
    pthread_mutex_lock(&hub->lock);
    hub->places[rank].hold = after;
    move_blocks(hub);
    pthread_mutex_unlock(&hub->lock);
}

void callback_hub_damage(callback_hub *hub, int32_t rank, size_t count) {
    pthread_mutex_lock(&hub->lock);
    hub->places[rank].damage = count;
    pthread_mutex_unlock(&hub->lock);
}

size_t callback_hub_moved(callback_hub *hub, int32_t rank) {
    pthread_mutex_lock(&hub->lock);
    size_t moved = hub->places[rank].moved;
    pthread_mutex_unlock(&hub->lock);
    return moved;
}

size_t callback_hub_under_way(callback_hub *hub, int32_t rank) {
    size_t count = 0;
    pthread_mutex_lock(&hub->lock);
    for (const operation *one = hub->operations; one; one = one->next) {
        count += one->owner->rank == rank && !one->over;
    }
    pthread_mutex_unlock(&hub->lock);
    return count;
}

size_t callback_hub_abandoned(callback_hub *hub, int32_t rank) {
    pthread_mutex_lock(&hub->lock);
    size_t abandoned = hub->places[rank].abandoned;
    pthread_mutex_unlock(&hub->lock);
    return abandoned;
}

size_t callback_hub_last(callback_hub *hub, int32_t rank, void *bytes, size_t size) {
    pthread_mutex_lock(&hub->lock);
    size_t had = hub->places[rank].last_size;
    memcpy(bytes, hub->places[rank].last, size < had ? size : had);
    pthread_mutex_unlock(&hub->lock);
    return had;
}
