/*
 * The ring lane: chunks go through ring buffers in memory that both processes map. In this file,
 * the two sides connect and share the memory. ring_move.c moves the bytes. The invariants are in
 * ring_internal.h.
 *
 *     source                                      receiver
 *     offer: boot id, network namespace  ------>  probe: same host and network? binds a socket
 *     accept: creates the memory  <-------------  request: the socket's name, pass, answer
 *     sends the memory and the pass  ---------->  enter: checks both, maps it, writes the answer
 *     admit: checks the answer
 *     push  ===================================>  pull
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "lane/lanes.h"
#include "lane/ring/ring_internal.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

enum { PAGE = 4096 };

/* The messages. All begin with the magic. Numbers are big-endian. */

typedef struct offer_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t boot[WH_BOOT_BYTES];
    uint8_t workers[4];
    uint8_t network[WH_NETWORK_BYTES];
} offer_message;

typedef struct request_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t name[WH_RING_SECRET_BYTES]; /* the name of the receiver's socket */
    uint8_t pass[WH_RING_SECRET_BYTES];
    uint8_t answer[WH_RING_SECRET_BYTES];
    uint8_t workers[4];
} request_message;

/* The datagram that carries the memory. */
typedef struct handover_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t pass[WH_RING_SECRET_BYTES];
} handover_message;

/* ---- the shared memory ---- */

static size_t control_bytes(uint32_t workers) {
    size_t bytes = sizeof(wh_ring_shared) + workers * sizeof(wh_ring);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t memory_bytes(uint32_t workers) {
    return control_bytes(workers) + (size_t)workers * WH_RING_BYTES;
}

uint8_t *wh_ring_slot(const wh_ring_end *end, uint32_t worker, uint32_t frame) {
    size_t at = (size_t)worker * WH_RING_BYTES + (size_t)(frame % WH_RING_SLOTS) * WH_RING_SLOT_BYTES;
    return (uint8_t *)end->shared + control_bytes(end->base.workers) + at;
}

static wh_ring_end *new_end(const wh_lane_site *site, uint32_t workers, bool pushes) {
    wh_ring_end *end = wh_alloc_zeroed(1, sizeof(*end));
    if (end) {
        end->base.workers = workers;
        end->site = site;
        end->pushes = pushes;
        end->socket = -1;
        end->memory = -1;
        pthread_mutex_init(&end->lock, NULL);
    }
    return end;
}

static wherry_status map(wh_ring_end *end, int fd, wherry_error *error) {
    void *memory = mmap(NULL, memory_bytes(end->base.workers), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot map %zu bytes of shared memory for the ring lane",
                             memory_bytes(end->base.workers));
    }
    /* A child of fork() does not need the memory, and would keep it allocated. */
    madvise(memory, memory_bytes(end->base.workers), MADV_DONTFORK);
    end->shared = memory;
    return WHERRY_OK;
}

static wherry_status create_memory(wh_ring_end *end, wherry_error *error) {
    off_t size = (off_t)memory_bytes(end->base.workers);
    int fd = memfd_create("wherry-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) { /* The kernel does not know MFD_NOEXEC_SEAL. */
        fd = memfd_create("wherry-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot create shared memory for the ring lane");
    }
    /*
     * Allocate all pages now, so that this call fails if there is not enough memory. Otherwise a
     * later access could raise SIGBUS.
     */
    if (ftruncate(fd, size) != 0 || fallocate(fd, 0, 0, size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot allocate %lld bytes of shared memory for the ring lane",
                      (long long)size);
        goto err_close;
    }
    if (map(end, fd, error) != WHERRY_OK) {
        goto err_close;
    }
    end->memory = fd;
    return WHERRY_OK;

err_close:
    close(fd);
    return WHERRY_NO_MEMORY;
}

/* Checks and maps memory from the source. The caller closes the descriptor. */
static wherry_status open_memory(wh_ring_end *end, int fd, wherry_error *error) {
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &about) != 0 ||
        about.st_size != (off_t)memory_bytes(end->base.workers)) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "rank %d sent a descriptor that is not the shared memory of the ring lane with %u workers",
                       (int)end->site->peer, (unsigned)end->base.workers);
    }
    return map(end, fd, error);
}

static void close_memory(wh_ring_end *end) {
    if (end->shared) {
        munmap(end->shared, memory_bytes(end->base.workers));
    }
    wh_close(end->memory);
    end->shared = NULL;
    end->memory = -1;
}

/* Marks this end as closed, and wakes the other side so that it notices. */
static void announce_close(wh_ring_end *end) {
    atomic_store(end->pushes ? &end->shared->push_closed : &end->shared->pull_closed, 1);
    wh_ring_wake(&end->shared->answered);
    for (uint32_t i = 0; i < end->base.workers; i++) {
        wh_ring_wake(end->pushes ? &end->shared->rings[i].head : &end->shared->rings[i].tail);
    }
}

static void ring_close(wh_lane_end *base) {
    wh_ring_end *end = wh_ring_end_of(base);
    if (!end) {
        return;
    }
    if (end->shared) {
        announce_close(end);
    }
    close_memory(end);
    wh_close(end->socket);
    pthread_mutex_destroy(&end->lock);
    wh_free(end);
}

/* ---- how the two sides connect ---- */

/* Fills the offer of this process. A receiver compares its own offer with the source's. */
static wherry_status describe(const wh_lane_site *site, offer_message *here, wherry_error *error) {
    memcpy(here->magic, WH_RING_MAGIC, sizeof(here->magic));
    wh_store_be32(here->workers, (uint32_t)wh_min(site->threads, WH_RING_WORKERS_MAX));
    wherry_status status = wh_network_read(here->network, error);
    return status == WHERRY_OK ? wh_boot_read(here->boot, error) : status;
}

static wherry_status ring_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    offer_message message;
    wherry_status status = describe(site, &message, error);
    if (status == WHERRY_OK) {
        wh_string_append(offer, (const char *)&message, sizeof(message));
        status = offer->failed ? wh_fail_memory(error, "a ring offer") : WHERRY_OK;
    }
    return status;
}

/*
 * Checks that the source is on this host and in this network namespace. Chooses the number of
 * workers.
 */
static wherry_status check_offer(const wh_lane_site *site, const void *bytes, size_t size, uint32_t *workers_p,
                                 wherry_error *error) {
    offer_message there;
    offer_message here = {0};
    if (size < sizeof(there.magic) || memcmp(bytes, WH_RING_MAGIC, sizeof(there.magic)) != 0) {
        return wh_fail(error, WHERRY_BAD_VERSION, "rank %d has a different version of the ring lane", (int)site->peer);
    }
    if (size != sizeof(there)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed ring offer: %zu bytes instead of %zu",
                       (int)site->peer, size, sizeof(there));
    }
    memcpy(&there, bytes, sizeof(there));
    WH_TRY(describe(site, &here, error));
    if (memcmp(there.boot, here.boot, sizeof(here.boot)) != 0) {
        return wh_site_other_host(site, error);
    }
    if (memcmp(there.network, here.network, sizeof(here.network)) != 0) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "rank %d is on this host, but in another network namespace: to use the ring lane, run both "
                       "ranks in one network namespace",
                       (int)site->peer);
    }
    uint32_t workers = (uint32_t)wh_min(wh_load_be32(there.workers), wh_load_be32(here.workers));
    if (workers == 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed ring offer: no workers", (int)site->peer);
    }
    *workers_p = workers;
    return WHERRY_OK;
}

/* Makes a name in the abstract namespace. Such a name disappears when its socket is closed. */
static socklen_t socket_name(const uint8_t name[WH_RING_SECRET_BYTES], struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "wherry-ring-");
    for (int i = 0; i < WH_RING_SECRET_BYTES; i++) {
        length += snprintf(address->sun_path + 1 + length, 3, "%02x", name[i]);
    }
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static wherry_status open_socket(int *socket_p, wherry_error *error) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot create a Unix socket for the ring lane");
    }
    *socket_p = fd;
    return WHERRY_OK;
}

/* Fills the request, and binds the socket that the request names. */
static wherry_status expect(wh_ring_end *end, request_message *request, wherry_error *error) {
    uint8_t random[3][WH_RING_SECRET_BYTES];
    WH_TRY(wh_random_fill(random, sizeof(random), error));
    memcpy(request->magic, WH_RING_MAGIC, sizeof(request->magic));
    memcpy(request->name, random[0], sizeof(request->name));
    memcpy(request->pass, random[1], sizeof(request->pass));
    memcpy(request->answer, random[2], sizeof(request->answer));
    wh_store_be32(request->workers, end->base.workers);
    memcpy(end->pass, request->pass, sizeof(end->pass));
    memcpy(end->answer, request->answer, sizeof(end->answer));

    struct sockaddr_un address;
    socklen_t length = socket_name(request->name, &address);
    wherry_status status = open_socket(&end->socket, error);
    if (status == WHERRY_OK && bind(end->socket, (struct sockaddr *)&address, length) != 0) {
        status = wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot bind a Unix socket for the ring lane");
    }
    return status;
}

static wherry_status ring_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    uint32_t workers = 0;
    request_message message;
    *assist_p = false;
    WH_TRY(check_offer(site, offer, size, &workers, error));
    wh_ring_end *end = new_end(site, workers, false);
    WH_TRY_ALLOC(end, error, "an end of the ring lane");
    wherry_status status = expect(end, &message, error);
    if (status == WHERRY_OK) {
        wh_string_append(request, (const char *)&message, sizeof(message));
        status = request->failed ? wh_fail_memory(error, "a ring request") : WHERRY_OK;
    }
    return wh_lane_deliver(&wh_lane_ring, &end->base, status, end_p);
}

/* Sends the memory to the receiver's socket. Does not wait until the receiver reads it. */
static wherry_status hand_over(const wh_ring_end *end, const request_message *request, wherry_error *error) {
    handover_message message;
    memcpy(message.magic, WH_RING_MAGIC, sizeof(message.magic));
    memcpy(message.pass, request->pass, sizeof(message.pass));
    struct sockaddr_un address;
    socklen_t length = socket_name(request->name, &address);
    struct iovec bytes = {&message, sizeof(message)};
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr header = {.msg_name = &address,
                            .msg_namelen = length,
                            .msg_iov = &bytes,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &end->memory, sizeof(end->memory));
    int socket = -1;
    WH_TRY(open_socket(&socket, error));
    wherry_status status = WHERRY_OK;
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        status = wh_fail_errno(error, WHERRY_REFUSED, errno, "cannot send shared memory to the Unix socket of rank %d",
                               (int)end->site->peer);
    }
    close(socket);
    return status;
}

static wherry_status ring_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                 wh_lane_end **end_p, wherry_error *error) {
    request_message message;
    if (size != sizeof(message) || memcmp(request, WH_RING_MAGIC, sizeof(message.magic)) != 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed ring request", (int)site->peer);
    }
    memcpy(&message, request, sizeof(message));
    uint32_t workers = wh_load_be32(message.workers);
    if (workers < 1 || workers > wh_min(site->threads, WH_RING_WORKERS_MAX)) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "rank %d sent a malformed ring request: %u workers, but 1 to %u were offered", (int)site->peer,
                       (unsigned)workers, (unsigned)wh_min(site->threads, WH_RING_WORKERS_MAX));
    }
    wh_ring_end *end = new_end(site, workers, true);
    WH_TRY_ALLOC(end, error, "an end of the ring lane");
    memcpy(end->answer, message.answer, sizeof(end->answer));
    wherry_status status = create_memory(end, error);
    WH_THEN(status, hand_over(end, &message, error));
    *ready_p = status == WHERRY_OK;
    return wh_lane_deliver(&wh_lane_ring, &end->base, status, end_p);
}

/*
 * Reads one datagram. *memory_p is the memory from the source, or -1 if there was no datagram or if
 * the datagram is from another process.
 */
static wherry_status take_datagram(wh_ring_end *end, int *memory_p, wherry_error *error) {
    handover_message message;
    struct iovec bytes = {&message, sizeof(message)};
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr header = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    int memory = -1;
    ssize_t size = recvmsg(end->socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    *memory_p = -1;
    if (size < 0) {
        return errno == EAGAIN || errno == EINTR
                   ? WHERRY_OK
                   : wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot read the Unix socket of the ring lane");
    }
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
            part->cmsg_len == CMSG_LEN(sizeof(memory))) {
            memcpy(&memory, CMSG_DATA(part), sizeof(memory));
        }
    }
    bool ours = size == sizeof(message) && memcmp(message.magic, WH_RING_MAGIC, sizeof(message.magic)) == 0 &&
                CRYPTO_memcmp(message.pass, end->pass, sizeof(end->pass)) == 0;
    if (ours && memory < 0) {
        return wh_fail(error, WHERRY_SYSTEM,
                       "the shared memory of rank %d did not arrive: this process may have no free file descriptor",
                       (int)end->site->peer);
    }
    if (!ours && memory >= 0) {
        close(memory);
        memory = -1;
    }
    *memory_p = memory;
    return WHERRY_OK;
}

/* Waits for the source's datagram. Ignores datagrams from other processes. */
static wherry_status wait_memory(wh_ring_end *end, int *memory_p, wherry_error *error) {
    const wh_lane_site *site = end->site;
    wh_deadline deadline = wh_site_patience(site);
    int memory = -1;
    while (memory < 0) {
        bool ready = wh_stop_wait_fd(site->stop, end->socket, POLLIN, deadline);
        if (wh_stop_requested(site->stop)) {
            return wh_site_cancelled(error);
        }
        if (!ready || wh_deadline_passed(deadline)) {
            return wh_fail(
                error, WHERRY_TIMED_OUT,
                "timed out: rank %d has not sent the shared memory for the ring lane; that rank may be stopped "
                "or overloaded: increase the timeout, or receive from another rank",
                (int)site->peer);
        }
        WH_TRY(take_datagram(end, &memory, error));
    }
    *memory_p = memory;
    return WHERRY_OK;
}

static wherry_status meet(wh_ring_end *end, wherry_error *error) {
    int memory = -1;
    WH_TRY(wait_memory(end, &memory, error));
    wherry_status status = open_memory(end, memory, error);
    close(memory);
    if (status != WHERRY_OK) {
        return status;
    }
    close(end->socket);
    end->socket = -1;
    uint64_t answer[2];
    memcpy(answer, end->answer, sizeof(answer));
    atomic_store_explicit(&end->shared->answer[0], answer[0], memory_order_relaxed);
    atomic_store_explicit(&end->shared->answer[1], answer[1], memory_order_relaxed);
    atomic_store(&end->shared->answered, 1);
    wh_ring_wake(&end->shared->answered);
    return WHERRY_OK;
}

wherry_status wh_ring_enter(wh_ring_end *end, wherry_error *error) {
    pthread_mutex_lock(&end->lock);
    if (!end->shared && end->failure.status == WHERRY_OK) {
        meet(end, &end->failure);
    }
    wherry_status status = end->failure.status;
    if (status != WHERRY_OK && error) {
        *error = end->failure;
    }
    pthread_mutex_unlock(&end->lock);
    return status;
}

wherry_status wh_ring_admit(wh_ring_end *end, wherry_error *error) {
    uint32_t answered;
    wherry_status status =
        wh_ring_wait(end, &end->shared->answered, &end->shared->admit_waits, 0, false, &answered, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t answer[2] = {atomic_load_explicit(&end->shared->answer[0], memory_order_relaxed),
                          atomic_load_explicit(&end->shared->answer[1], memory_order_relaxed)};
    if (CRYPTO_memcmp(answer, end->answer, sizeof(end->answer)) != 0) {
        return wh_fail(error, WHERRY_REFUSED,
                       "a process that is not rank %d received the shared memory of the ring lane; no data was sent",
                       (int)end->site->peer);
    }
    return WHERRY_OK;
}

const wh_lane_ops wh_lane_ring = {
    .name = "ring",
    .traits = WH_LANE_DIGESTS | WH_LANE_STAGES | WH_LANE_PRIVATE,
    .offer = ring_offer,
    .probe = ring_probe,
    .accept = ring_accept,
    .pull = wh_ring_pull,
    .push = wh_ring_push,
    .close = ring_close,
};
