#include "group/sockets/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"

enum { BACKLOG = 128 };

/** A socket address of any family. */
typedef struct place_address {
    struct sockaddr_storage storage;
    socklen_t size;
} place_address;

static bool resolve(const char *host, uint16_t port, place_address *result) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0 || !found) {
        return false;
    }
    memcpy(&result->storage, found->ai_addr, found->ai_addrlen);
    result->size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

static bool unix_address(const char *path, place_address *result) {
    struct sockaddr_un *name = (struct sockaddr_un *)&result->storage;
    memset(result, 0, sizeof(*result));
    name->sun_family = AF_UNIX;
    result->size = sizeof(*name);
    return snprintf(name->sun_path, sizeof(name->sun_path), "%s", path) < (int)sizeof(name->sun_path);
}

static bool meeting_address(const wh_group_address *address, size_t number, place_address *result) {
    return address->kind == WH_ADDRESS_UNIX
               ? unix_address(address->path, result)
               : resolve(address->meeting[number].host, address->meeting[number].port, result);
}

static bool is_loopback(const place_address *at) {
    if (at->storage.ss_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)&at->storage)->sin_addr.s_addr) >> 24 == 127;
    }
    return at->storage.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&at->storage)->sin6_addr);
}

bool wh_meeting_is_private(const wh_group_address *address) {
    for (size_t i = 0; i < address->meeting_count; i++) {
        place_address at;
        if (!meeting_address(address, i, &at) || !is_loopback(&at)) {
            return false;
        }
    }
    return true;
}

const char *wh_meeting_text(const wh_group_address *address, size_t number, char text[WH_PLACE_MAX]) {
    if (address->kind == WH_ADDRESS_UNIX) {
        snprintf(text, WH_PLACE_MAX, "unix:%s", address->path);
    } else {
        const wh_endpoint *at = address->meeting + number;
        snprintf(text, WH_PLACE_MAX, strchr(at->host, ':') ? "[%s]:%u" : "%s:%u", at->host, at->port);
    }
    return text;
}

static int listen_at(const place_address *at) {
    int on = 1;
    int socket_fd = socket(at->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
        return -1;
    }
    if (at->storage.ss_family != AF_UNIX) {
        setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (bind(socket_fd, (const struct sockaddr *)&at->storage, at->size) != 0 || listen(socket_fd, BACKLOG) != 0) {
        int errnum = errno;
        close(socket_fd);
        errno = errnum;
        return -1;
    }
    return socket_fd;
}

/**
 * Of several processes that find a Unix socket abandoned, only one may remove it: the one that holds a lock beside it. The lock goes with its process.
 */
static int listen_at_path(const char *path, const place_address *at, int *lock_p) {
    char name[WH_PLACE_MAX];
    snprintf(name, sizeof(name), "%s.lock", path);
    int lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) {
        return -1;
    }
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        close(lock);
        return -1;
    }
    unlink(path);
    int socket_fd = listen_at(at);
    if (socket_fd < 0) {
        close(lock);
        return -1;
    }
    *lock_p = lock;
    return socket_fd;
}

int wh_meeting_listen(const wh_group_address *address, size_t number, int *lock_p) {
    place_address at;
    *lock_p = -1;
    if (!meeting_address(address, number, &at)) {
        return -1;
    }
    return address->kind == WH_ADDRESS_UNIX ? listen_at_path(address->path, &at, lock_p) : listen_at(&at);
}

/** The address of the interface that WHERRY_INTERFACE names, of the same family as `like`. */
static bool interface_address(const char *name, const place_address *like, place_address *result) {
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        if (one->ifa_addr && strcmp(one->ifa_name, name) == 0 && one->ifa_addr->sa_family == like->storage.ss_family) {
            memset(result, 0, sizeof(*result));
            memcpy(&result->storage, one->ifa_addr, like->size);
            result->size = like->size;
            found = true;
        }
    }
    freeifaddrs(all);
    return found;
}

/** The address of this host on the way to another: what the system would send from. */
static bool route_address(const place_address *to, place_address *result) {
    int probe = socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    result->size = sizeof(result->storage);
    bool known = probe >= 0 && connect(probe, (const struct sockaddr *)&to->storage, to->size) == 0 &&
                 getsockname(probe, (struct sockaddr *)&result->storage, &result->size) == 0;
    if (probe >= 0) {
        close(probe);
    }
    return known;
}

static void set_port(place_address *at, uint16_t port) {
    if (at->storage.ss_family == AF_INET) {
        ((struct sockaddr_in *)&at->storage)->sin_port = htons(port);
    } else {
        ((struct sockaddr_in6 *)&at->storage)->sin6_port = htons(port);
    }
}

static bool place_text(const place_address *at, char place[WH_PLACE_MAX]) {
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)&at->storage, at->size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return false;
    }
    const char *form = at->storage.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s";
    return snprintf(place, WH_PLACE_MAX, form, host, port) < WH_PLACE_MAX;
}

static wherry_status listen_tcp(const wh_group_address *address, int *socket_p, char place[WH_PLACE_MAX],
                                wherry_error *error) {
    const char *interface = getenv("WHERRY_INTERFACE");
    char meeting[WH_PLACE_MAX];
    place_address to;
    place_address at;
    wh_meeting_text(address, 0, meeting);
    if (!meeting_address(address, 0, &to)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the host of the meeting point %s is not known here", meeting);
    }
    bool known = interface && *interface ? interface_address(interface, &to, &at) : route_address(&to, &at);
    if (!known) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "no address of this host leads to %s; set WHERRY_INTERFACE to an interface that does", meeting);
    }
    set_port(&at, 0);
    int socket_fd = listen_at(&at);
    if (socket_fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot listen");
    }
    at.size = sizeof(at.storage);
    if (getsockname(socket_fd, (struct sockaddr *)&at.storage, &at.size) != 0 || !place_text(&at, place)) {
        close(socket_fd);
        return wh_fail(error, WHERRY_SYSTEM, "cannot tell where this process listens");
    }
    *socket_p = socket_fd;
    return WHERRY_OK;
}

/** Names of sockets that earlier incarnations of this rank left behind; they were killed, and nobody listens there. */
static void remove_leftovers(const char *prefix) {
    char pattern[WH_PLACE_MAX + 1];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s*", prefix);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

static wherry_status listen_unix(const wh_group_address *address, uint64_t incarnation, int *socket_p,
                                 char place[WH_PLACE_MAX], wherry_error *error) {
    char prefix[WH_PLACE_MAX];
    char path[WH_PLACE_MAX - sizeof("unix:") + 1];
    place_address at;
    snprintf(prefix, sizeof(prefix), "%s.%d.", address->path, (int)address->rank);
    int length = snprintf(path, sizeof(path), "%s%llx", prefix, (unsigned long long)incarnation);
    if (length >= (int)sizeof(path) || !unix_address(path, &at)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the path %s is too long for a socket; choose a shorter one",
                       address->path);
    }
    remove_leftovers(prefix);
    int socket_fd = listen_at(&at);
    if (socket_fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot listen at %s", path);
    }
    snprintf(place, WH_PLACE_MAX, "unix:%s", path);
    *socket_p = socket_fd;
    return WHERRY_OK;
}

wherry_status wh_member_listen(const wh_group_address *address, uint64_t incarnation, int *socket_p,
                               char place[WH_PLACE_MAX], wherry_error *error) {
    wherry_status status = address->kind == WH_ADDRESS_UNIX ? listen_unix(address, incarnation, socket_p, place, error)
                                                            : listen_tcp(address, socket_p, place, error);
    if (status == WHERRY_OK) {
        wh_log(WHERRY_LOG_INFO, "rank %d listens at %s", (int)address->rank, place);
    }
    return status;
}

static void prepare_stream(int socket_fd) {
    int on = 1;
    setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int dial(const place_address *to) {
    int socket_fd = socket(to->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
        return -1;
    }
    if (connect(socket_fd, (const struct sockaddr *)&to->storage, to->size) != 0 && errno != EINPROGRESS &&
        errno != EAGAIN) {
        int errnum = errno;
        close(socket_fd);
        errno = errnum;
        return -1;
    }
    prepare_stream(socket_fd);
    return socket_fd;
}

int wh_dial_meeting(const wh_group_address *address, size_t number) {
    place_address to;
    errno = EHOSTUNREACH;
    return meeting_address(address, number, &to) ? dial(&to) : -1;
}

int wh_dial_place(const char *place) {
    place_address to;
    char host[WH_PLACE_MAX];
    errno = EHOSTUNREACH;
    if (strncmp(place, "unix:", 5) == 0) {
        return unix_address(place + 5, &to) ? dial(&to) : -1;
    }
    const char *colon = strrchr(place, ':');
    if (!colon || strlen(place) >= sizeof(host)) {
        return -1;
    }
    bool brackets = *place == '[' && colon > place && colon[-1] == ']';
    size_t size = (size_t)(colon - place) - (brackets ? 2 : 0);
    memcpy(host, place + (brackets ? 1 : 0), size);
    host[size] = '\0';
    unsigned long port = strtoul(colon + 1, NULL, 10);
    return port > 0 && port <= UINT16_MAX && resolve(host, (uint16_t)port, &to) ? dial(&to) : -1;
}

int wh_accept(int listener) {
    int socket_fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket_fd >= 0) {
        prepare_stream(socket_fd);
    }
    return socket_fd;
}

void wh_place_remove(const char *place) {
    if (strncmp(place, "unix:", 5) == 0) {
        unlink(place + 5);
    }
}
