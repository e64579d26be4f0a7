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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

enum { BACKLOG = 128 };

static bool unix_address(const char *path, wh_socket_address *result) {
    struct sockaddr_un *name = (struct sockaddr_un *)&result->storage;
    memset(result, 0, sizeof(*result));
    name->sun_family = AF_UNIX;
    result->size = sizeof(*name);
    return snprintf(name->sun_path, sizeof(name->sun_path), "%s", path) < (int)sizeof(name->sun_path);
}

bool wh_meeting_address(const wh_group_address *address, size_t number, wh_socket_address *result) {
    return address->kind == WH_ADDRESS_UNIX
               ? unix_address(address->path, result)
               : wh_resolve_numbers(address->meeting[number].host, address->meeting[number].port, result);
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

/** @param option  one of SOL_SOCKET to set before; 0: none. */
static int listen_at(const wh_socket_address *at, int option) {
    int on = 1;
    int socket_fd = socket(at->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
        return -1;
    }
    if (at->storage.ss_family != AF_UNIX) {
        setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if ((option && setsockopt(socket_fd, SOL_SOCKET, option, &on, sizeof(on)) != 0) ||
        bind(socket_fd, (const struct sockaddr *)&at->storage, at->size) != 0 || listen(socket_fd, BACKLOG) != 0) {
        int errnum = errno;
        close(socket_fd);
        errno = errnum;
        return -1;
    }
    return socket_fd;
}

int wh_listen(const wh_socket_address *at) {
    return listen_at(at, 0);
}

/** Notes which file a name leads to. */
static bool read_name(const char *path, wh_name *name) {
    struct stat file;
    if (lstat(path, &file) != 0) {
        return false;
    }
    *name = (wh_name){file.st_dev, file.st_ino};
    return true;
}

/**
 * Where there is no room for a name aside, or none can be put into place: whoever calls before the
 * socket listens takes its name over.
 */
static int listen_at_once(const wh_group_address *address, const wh_socket_address *at, wh_name *name) {
    int socket_fd = listen_at(at, 0);
    if (socket_fd >= 0 && !read_name(address->path, name)) {
        close(socket_fd);
        socket_fd = -1;
    }
    return socket_fd;
}

/**
 * A socket gets the name when it listens already, and at once: nobody ever finds the place with
 * nobody there, and which file is this one's is known before another can replace it. Of several
 * that take a name over the last one has it; the others find out by wh_meeting_is_ours.
 */
static int listen_at_path(const wh_group_address *address, const wh_socket_address *at, bool take_over, wh_name *name) {
    wh_socket_address beside;
    wh_name taken;
    char aside[WH_PLACE_MAX];
    int length = snprintf(aside, sizeof(aside), "%s.%d.new", address->path, (int)address->rank);
    if (!take_over && read_name(address->path, &taken)) {
        return -1;
    }
    if (length >= (int)sizeof(aside) || !unix_address(aside, &beside)) {
        return take_over ? -1 : listen_at_once(address, at, name);
    }
    unlink(aside);
    int socket_fd = listen_at(&beside, 0);
    bool listens = socket_fd >= 0 && read_name(aside, name);
    bool placed = listens && (take_over ? rename(aside, address->path) : link(aside, address->path)) == 0;
    bool cannot = listens && !placed && !take_over && errno != EEXIST;
    unlink(aside);
    if (!placed && socket_fd >= 0) {
        close(socket_fd);
    }
    return placed ? socket_fd : cannot ? listen_at_once(address, at, name) : -1;
}

/**
 * The first to listen at a port is alone there; only then does it let others in beside it, for the
 * case that it stops.
 */
static int listen_at_port(const wh_socket_address *at, bool take_over) {
    int on = 1;
    int socket_fd = listen_at(at, 0);
    if (socket_fd >= 0) {
        setsockopt(socket_fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    } else if (take_over) {
        socket_fd = listen_at(at, SO_REUSEPORT);
    }
    return socket_fd;
}

int wh_meeting_listen(const wh_group_address *address, const wh_socket_address *at, bool take_over, wh_name *name) {
    return address->kind == WH_ADDRESS_UNIX ? listen_at_path(address, at, take_over, name)
                                            : listen_at_port(at, take_over);
}

bool wh_meeting_is_ours(const wh_group_address *address, const wh_name *name) {
    wh_name now;
    return address->kind != WH_ADDRESS_UNIX ||
           (read_name(address->path, &now) && now.device == name->device && now.file == name->file);
}

/** The address of the interface that WHERRY_INTERFACE names, of the same family as `like`. */
static bool interface_address(const char *name, const wh_socket_address *like, wh_socket_address *result) {
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
static bool route_address(const wh_socket_address *to, wh_socket_address *result) {
    int probe = socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    result->size = sizeof(result->storage);
    bool known = probe >= 0 && connect(probe, (const struct sockaddr *)&to->storage, to->size) == 0 &&
                 getsockname(probe, (struct sockaddr *)&result->storage, &result->size) == 0;
    if (probe >= 0) {
        close(probe);
    }
    return known;
}

void wh_set_port(wh_socket_address *at, uint16_t port) {
    if (at->storage.ss_family == AF_INET) {
        ((struct sockaddr_in *)&at->storage)->sin_port = htons(port);
    } else {
        ((struct sockaddr_in6 *)&at->storage)->sin6_port = htons(port);
    }
}

bool wh_listener_port(int listener, uint16_t *port_p) {
    wh_socket_address at = {.size = sizeof(at.storage)};
    if (getsockname(listener, (struct sockaddr *)&at.storage, &at.size) != 0) {
        return false;
    }
    *port_p = ntohs(at.storage.ss_family == AF_INET ? ((struct sockaddr_in *)&at.storage)->sin_port
                                                    : ((struct sockaddr_in6 *)&at.storage)->sin6_port);
    return true;
}

static bool place_text(const wh_socket_address *at, char place[WH_PLACE_MAX]) {
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)&at->storage, at->size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return false;
    }
    const char *form = at->storage.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s";
    return snprintf(place, WH_PLACE_MAX, form, host, port) < WH_PLACE_MAX;
}

bool wh_has_way(const wh_socket_address *to) {
    wh_socket_address from;
    return route_address(to, &from);
}

/**
 * The address of this host on the way out of its networks. The destinations are nobody's: addresses
 * for documents.
 */
static bool default_address(sa_family_t family, wh_socket_address *result) {
    wh_socket_address nobody;
    return wh_resolve_numbers(family == AF_INET6 ? "2001:db8::1" : "192.0.2.1", 9, &nobody) &&
           route_address(&nobody, result);
}

bool wh_turn_outward(wh_socket_address *at, uint16_t port) {
    const char *interface = getenv("WHERRY_INTERFACE");
    wh_socket_address own;
    bool known =
        interface && *interface ? interface_address(interface, at, &own) : default_address(at->storage.ss_family, &own);
    if (!known || wh_is_private(&own)) {
        return false;
    }
    wh_set_port(&own, port);
    *at = own;
    return true;
}

static wherry_status listen_tcp(const wh_group_address *address, const wh_socket_address *to, int *socket_p,
                                char place[WH_PLACE_MAX], wherry_error *error) {
    const char *interface = getenv("WHERRY_INTERFACE");
    char meeting[WH_PLACE_MAX];
    wh_socket_address at;
    wh_meeting_text(address, 0, meeting);
    bool known = interface && *interface ? interface_address(interface, to, &at) : route_address(to, &at);
    if (!known) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "no address of this host leads to %s; set WHERRY_INTERFACE to an interface that does", meeting);
    }
    wh_set_port(&at, 0);
    int socket_fd = listen_at(&at, 0);
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

/**
 * Names of sockets that earlier incarnations of this rank left behind; they were killed, and nobody
 * listens there.
 */
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
    wh_socket_address at;
    snprintf(prefix, sizeof(prefix), "%s.%d.", address->path, (int)address->rank);
    int length = snprintf(path, sizeof(path), "%s%llx", prefix, (unsigned long long)incarnation);
    if (length >= (int)sizeof(path) || !unix_address(path, &at)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the path %s is too long for a socket; choose a shorter one",
                       address->path);
    }
    remove_leftovers(prefix);
    int socket_fd = listen_at(&at, 0);
    if (socket_fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot listen at %s", path);
    }
    snprintf(place, WH_PLACE_MAX, "unix:%s", path);
    *socket_p = socket_fd;
    return WHERRY_OK;
}

wherry_status wh_member_listen(const wh_group_address *address, const wh_socket_address *to, uint64_t incarnation,
                               int *socket_p, char place[WH_PLACE_MAX], wherry_error *error) {
    wherry_status status = address->kind == WH_ADDRESS_UNIX ? listen_unix(address, incarnation, socket_p, place, error)
                                                            : listen_tcp(address, to, socket_p, place, error);
    if (status == WHERRY_OK) {
        wh_log(WHERRY_LOG_INFO, "rank %d listens at %s", (int)address->rank, place);
    }
    return status;
}

static void prepare_stream(int socket_fd) {
    int on = 1;
    setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int wh_dial(const wh_socket_address *to) {
    int socket_fd = socket(to->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
        return -1;
    }
    if (connect(socket_fd, (const struct sockaddr *)&to->storage, to->size) != 0 && errno != EINPROGRESS) {
        int errnum = errno;
        close(socket_fd);
        errno = errnum;
        return -1;
    }
    prepare_stream(socket_fd);
    return socket_fd;
}

int wh_dial_place(const char *place) {
    wh_socket_address to;
    char host[WH_PLACE_MAX];
    errno = EHOSTUNREACH;
    if (strncmp(place, "unix:", 5) == 0) {
        return unix_address(place + 5, &to) ? wh_dial(&to) : -1;
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
    return port > 0 && port <= UINT16_MAX && wh_resolve_numbers(host, (uint16_t)port, &to) ? wh_dial(&to) : -1;
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
