#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"
#include "lane/ring/ring_internal.h"

/* Messages are bytes in a fixed order, numbers most significant byte first. All begin with the magic. */

/* What tells the receiver whether the source is near. */
typedef struct offer_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t boot[WH_BOOT_BYTES];
    uint8_t workers[4];
    uint8_t network[WH_NETWORK_BYTES];
} offer_message;

typedef struct request_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t name[WH_RING_SECRET_BYTES]; /* of the receiver's socket */
    uint8_t pass[WH_RING_SECRET_BYTES];
    uint8_t answer[WH_RING_SECRET_BYTES];
    uint8_t workers[4];
} request_message;

/* Goes with the memory. */
typedef struct handover_message {
    uint8_t magic[WH_RING_MAGIC_BYTES];
    uint8_t pass[WH_RING_SECRET_BYTES];
} handover_message;

/* What this process would offer: the same message from elsewhere tells how near it is. */
static wherry_status describe(const wh_lane_site *site, offer_message *here, wherry_error *error) {
    memcpy(here->magic, WH_RING_MAGIC, sizeof(here->magic));
    wh_store_be32(here->workers, (uint32_t)wh_min(site->threads, WH_RING_WORKERS_MAX));
    wherry_status status = wh_network_read(here->network, error);
    return status == WHERRY_OK ? wh_boot_read(here->boot, error) : status;
}

wherry_status wh_ring_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    offer_message message;
    wherry_status status = describe(site, &message, error);
    if (status == WHERRY_OK) {
        wh_string_append(offer, (const char *)&message, sizeof(message));
        status = offer->failed ? wh_fail_memory(error, "the offer of the ring lane") : WHERRY_OK;
    }
    return status;
}

/* Whether a source can be near enough, and how many workers there shall be. */
static wherry_status check_offer(const wh_lane_site *site, const void *bytes, size_t size, uint32_t *workers_p,
                                 wherry_error *error) {
    offer_message there;
    offer_message here = {0};
    if (size < sizeof(there.magic) || memcmp(bytes, WH_RING_MAGIC, sizeof(there.magic)) != 0) {
        return wh_fail(error, WHERRY_BAD_VERSION, "rank %d has another version of the ring lane", (int)site->peer);
    }
    if (size != sizeof(there)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d offered the ring lane with %zu bytes, not %zu",
                       (int)site->peer, size, sizeof(there));
    }
    memcpy(&there, bytes, sizeof(there));
    wherry_status status = describe(site, &here, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (memcmp(there.boot, here.boot, sizeof(here.boot)) != 0) {
        return wh_site_other_host(site, error);
    }
    if (memcmp(there.network, here.network, sizeof(here.network)) != 0) {
        return wh_fail(
            error, WHERRY_UNSUPPORTED,
            "rank %d is on this host in another network namespace, where shared memory cannot be handed over: "
            "run both in one network namespace to use the ring lane",
            (int)site->peer);
    }
    uint32_t workers = (uint32_t)wh_min(wh_load_be32(there.workers), wh_load_be32(here.workers));
    if (workers == 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d offered the ring lane without workers", (int)site->peer);
    }
    *workers_p = workers;
    return WHERRY_OK;
}

/* In the abstract namespace, where a socket's name ends with the socket. */
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
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot make a Unix socket for the ring lane");
    }
    *socket_p = fd;
    return WHERRY_OK;
}

/* Fills the request, and opens the socket that it names. */
static wherry_status expect(wh_ring_end *end, request_message *request, wherry_error *error) {
    uint8_t random[3][WH_RING_SECRET_BYTES];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot have random bytes for the ring lane");
    }
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

wherry_status wh_ring_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                            bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    uint32_t workers = 0;
    request_message message;
    *assist_p = false;
    wherry_status status = check_offer(site, offer, size, &workers, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_ring_end *end = wh_ring_end_create(site, workers, false);
    if (!end) {
        return wh_fail_memory(error, "an end of the ring lane");
    }
    status = expect(end, &message, error);
    if (status == WHERRY_OK) {
        wh_string_append(request, (const char *)&message, sizeof(message));
        status = request->failed ? wh_fail_memory(error, "the request of the ring lane") : WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        wh_lane_ring.close(&end->base);
        return status;
    }
    *end_p = &end->base;
    return WHERRY_OK;
}

/* Sends the memory to the receiver's socket, where it waits until somebody reads it. */
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
    wherry_status status = open_socket(&socket, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        status = wh_fail_errno(error, WHERRY_REFUSED, errno,
                               "cannot hand shared memory to rank %d: its Unix socket does not take it",
                               (int)end->site->peer);
    }
    close(socket);
    return status;
}

wherry_status wh_ring_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                             wh_lane_end **end_p, wherry_error *error) {
    request_message message;
    if (size != sizeof(message) || memcmp(request, WH_RING_MAGIC, sizeof(message.magic)) != 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a request for the ring lane that is none",
                       (int)site->peer);
    }
    memcpy(&message, request, sizeof(message));
    uint32_t workers = wh_load_be32(message.workers);
    if (workers < 1 || workers > wh_min(site->threads, WH_RING_WORKERS_MAX)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asked for %u workers of the ring lane, which were not offered",
                       (int)site->peer, (unsigned)workers);
    }
    wh_ring_end *end = wh_ring_end_create(site, workers, true);
    if (!end) {
        return wh_fail_memory(error, "an end of the ring lane");
    }
    memcpy(end->answer, message.answer, sizeof(end->answer));
    wherry_status status = wh_ring_memory_create(end, error);
    if (status == WHERRY_OK) {
        status = hand_over(end, &message, error);
    }
    if (status != WHERRY_OK) {
        wh_lane_ring.close(&end->base);
        return status;
    }
    *ready_p = true;
    *end_p = &end->base;
    return WHERRY_OK;
}

/* Reads one datagram. *memory_p becomes what the source has handed over, or -1 where the datagram is of somebody else. */
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
                   : wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot read the ring lane's Unix socket");
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
                       "the shared memory of rank %d did not arrive: this process may have too many descriptors open",
                       (int)end->site->peer);
    }
    if (!ours && memory >= 0) {
        close(memory);
        memory = -1;
    }
    *memory_p = memory;
    return WHERRY_OK;
}

/* Waits for the source's datagram among those that anybody may send. */
static wherry_status wait_memory(wh_ring_end *end, int *memory_p, wherry_error *error) {
    const wh_lane_site *site = end->site;
    wh_deadline deadline = wh_deadline_earlier(site->deadline, wh_deadline_in_ms(site->no_progress_ms));
    int memory = -1;
    while (memory < 0) {
        bool ready = wh_stop_wait_fd(site->stop, end->socket, POLLIN, deadline);
        if (wh_stop_requested(site->stop)) {
            return wh_site_cancelled(error);
        }
        if (!ready || wh_deadline_passed(deadline)) {
            return wh_fail(
                error, WHERRY_TIMED_OUT,
                "timed out: rank %d has not handed over the shared memory of the ring lane; it may be stopped "
                "or overloaded: try again with more time, or ask another rank",
                (int)site->peer);
        }
        wherry_status status = take_datagram(end, &memory, error);
        if (status != WHERRY_OK) {
            return status;
        }
    }
    *memory_p = memory;
    return WHERRY_OK;
}

static wherry_status meet(wh_ring_end *end, wherry_error *error) {
    int memory = -1;
    wherry_status status = wait_memory(end, &memory, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wh_ring_memory_open(end, memory, error);
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
    wherry_status status = wh_ring_wait(end, &end->shared->answered, &end->shared->admit_waits, 0, &answered, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t answer[2] = {atomic_load_explicit(&end->shared->answer[0], memory_order_relaxed),
                          atomic_load_explicit(&end->shared->answer[1], memory_order_relaxed)};
    if (CRYPTO_memcmp(answer, end->answer, sizeof(end->answer)) != 0) {
        return wh_fail(error, WHERRY_REFUSED,
                       "somebody else than rank %d has taken the shared memory of the ring lane: nothing was sent",
                       (int)end->site->peer);
    }
    return WHERRY_OK;
}
