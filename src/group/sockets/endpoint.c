#include "group/sockets/endpoint.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/stop.h"
#include "group/sockets/internal.h"

/** Many ranks dial a meeting point at once. The system lowers this to its own limit. */
enum { BACKLOG = 4096 };

/** A process begins to listen at its new socket well within this time. */
enum { FRESH_S = 60 };

static bool unix_address(const char *path, wh_socket_address *result) {
    struct sockaddr_un *name = (struct sockaddr_un *)&result->storage;
    memset(result, 0, sizeof(*result));
    name->sun_family = AF_UNIX;
    result->size = sizeof(*name);
    return snprintf(name->sun_path, sizeof(name->sun_path), "%s", path) < (int)sizeof(name->sun_path);
}

const wh_endpoint *wh_meeting_endpoint(const wh_group_address *address, size_t number) {
    return address->bind.host ? &address->bind : address->meeting + number;
}

bool wh_meeting_address(const wh_group_address *address, size_t number, wh_socket_address *result) {
    return address->kind == WH_ADDRESS_UNIX ? unix_address(address->path, result)
                                            : wh_resolve_numbers(wh_meeting_endpoint(address, number)->host,
                                                                 wh_meeting_endpoint(address, number)->port, result);
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

int wh_listen(const wh_socket_address *at) {
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

/** True if a path is a file of this type that belongs to this user, and not a link. */
static bool is_own(const char *path, mode_t type, struct stat *file) {
    return lstat(path, file) == 0 && (file->st_mode & S_IFMT) == type && file->st_uid == geteuid();
}

/** True if nobody listens at a socket any more. */
static bool is_dead(const char *path) {
    wh_socket_address at;
    errno = 0;
    int probe = unix_address(path, &at) ? wh_dial(&at) : -1;
    bool dead = probe < 0 && errno == ECONNREFUSED;
    wh_close(probe);
    return dead;
}

/** Removes a socket of this user. Leaves anything else alone. */
static void remove_socket(const char *path) {
    struct stat file;
    if (is_own(path, S_IFSOCK, &file)) {
        unlink(path);
    }
}

/**
 * Locks PATH.lock. Its holder may remove the file, so the lock counts only if the file is still the
 * one at that path. @return the descriptor, or -1 if another process holds it or the file is not
 * this user's.
 */
static int lock_path(const char *path) {
    char name[WH_PLACE_MAX + sizeof(".lock")];
    struct stat here;
    struct stat there;
    snprintf(name, sizeof(name), "%s.lock", path);
    int lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, S_IRUSR | S_IWUSR);
    bool locked = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0 && fstat(lock, &here) == 0 &&
                  is_own(name, S_IFREG, &there) && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
    if (lock >= 0 && !locked) {
        close(lock);
    }
    return locked ? lock : -1;
}

static void unlock_path(const char *path, int lock) {
    char name[WH_PLACE_MAX + sizeof(".lock")];
    snprintf(name, sizeof(name), "%s.lock", path);
    unlink(name);
    close(lock);
}

/** Splits a path into the folder, which is copied, and the name in it. @return the name. */
static const char *split_path(const char *path, char folder[WH_PLACE_MAX]) {
    const char *slash = strrchr(path, '/');
    snprintf(folder, WH_PLACE_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return slash + 1;
}

static const char hex_digits[] = "0123456789abcdef";

/** The length of the name that env:// gives a socket of this user, if `name` begins with one. */
static size_t generated_name(const char *name) {
    char before[32];
    static const char after[] = ".sock";
    enum { DIGITS = 16 };
    int size = snprintf(before, sizeof(before), "wherry-%u-", (unsigned)getuid());
    bool found = strncmp(name, before, (size_t)size) == 0 && strspn(name + size, hex_digits) == DIGITS &&
                 strncmp(name + size + DIGITS, after, sizeof(after) - 1) == 0;
    return found ? (size_t)size + DIGITS + sizeof(after) - 1 : 0;
}

/** Removes the socket and the lock of a meeting point, if nobody holds the lock. */
static bool clean_meeting(const char *path, bool remove) {
    struct stat file;
    bool dead = is_own(path, S_IFSOCK, &file) && is_dead(path);
    int lock = remove ? lock_path(path) : -1;
    if (lock >= 0) {
        if (is_dead(path)) {
            remove_socket(path);
        }
        unlock_path(path, lock);
    }
    return dead && (lock >= 0 || !remove);
}

/** True for the suffix .RANK.INCARNATION of a member's socket. @param rank  -1: of any rank. */
static bool is_member(const char *suffix, int32_t rank) {
    enum { DIGITS_MAX = 16 };
    if (suffix[0] != '.' || strspn(suffix + 1, "0123456789") == 0) {
        return false;
    }
    char *end;
    long found = strtol(suffix + 1, &end, 10);
    size_t digits = *end == '.' ? strspn(end + 1, hex_digits) : 0;
    return digits && digits <= DIGITS_MAX && !end[1 + digits] && (rank < 0 || rank == found);
}

/**
 * Removes the sockets that killed processes of this user have left in a folder.
 * @param name    the meeting point; NULL: every meeting point that env:// has named.
 * @param rank    -1: all ranks. Very new sockets are kept: their processes may be about to listen.
 * @param remove  false: only counts the sockets.
 */
static size_t clean_folder(const char *folder, const char *name, int32_t rank, bool remove) {
    size_t count = 0;
    DIR *all = opendir(folder);
    struct dirent *one;
    while (all && (one = readdir(all))) {
        char path[WH_PLACE_MAX + NAME_MAX];
        struct stat file;
        size_t given = name ? strlen(name) : 0;
        size_t size = !name ? generated_name(one->d_name) : strncmp(one->d_name, name, given) == 0 ? given : 0;
        const char *suffix = one->d_name + size;
        bool member = size && is_member(suffix, rank);
        bool fits = snprintf(path, sizeof(path), "%s/%s", folder, one->d_name) < (int)sizeof(path);
        size = fits ? size : 0;
        if (member && fits && is_own(path, S_IFSOCK, &file) && (rank >= 0 || time(NULL) - file.st_mtime > FRESH_S) &&
            is_dead(path)) {
            count++;
            if (remove) {
                remove_socket(path);
            }
        } else if (size && !name && (!*suffix || strcmp(suffix, ".lock") == 0)) {
            path[strlen(path) - strlen(suffix)] = '\0';
            count += (remove || !*suffix) && clean_meeting(path, remove);
        }
    }
    if (all) {
        closedir(all);
    }
    return count;
}

size_t wh_leftovers_clean(const char *folder, bool remove) {
    return clean_folder(folder, NULL, -1, remove);
}

int wh_meeting_listen(const wh_group_address *address, const wh_socket_address *at, int *lock_p) {
    *lock_p = -1;
    if (address->kind != WH_ADDRESS_UNIX) {
        return wh_listen(at);
    }
    int lock = lock_path(address->path);
    if (lock < 0) {
        return -1;
    }
    if (is_dead(address->path)) {
        remove_socket(address->path); /* A killed process has left this socket. */
    }
    int socket_fd = wh_listen(at);
    if (socket_fd < 0) {
        unlock_path(address->path, lock);
        return -1;
    }
    *lock_p = lock;
    char folder[WH_PLACE_MAX];
    const char *name = split_path(address->path, folder);
    clean_folder(folder, generated_name(name) ? NULL : name, -1, true);
    return socket_fd;
}

void wh_meeting_unlisten(const wh_group_address *address, int listener, int lock) {
    if (lock >= 0) {
        remove_socket(address->path);
        unlock_path(address->path, lock);
    }
    close(listener);
}

wherry_status wh_meeting_check(const wh_group_address *address, wherry_error *error) {
    struct stat file;
    if (address->kind == WH_ADDRESS_UNIX && lstat(address->path, &file) == 0 && !S_ISSOCK(file.st_mode)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "%s is there already and is not a socket; remove it, or meet at another path", address->path);
    }
    return WHERRY_OK;
}

bool wh_is_here(const wh_socket_address *at) {
    wh_socket_address own = *at;
    if (at->storage.ss_family == AF_UNIX) {
        return true;
    }
    wh_set_port(&own, 0);
    int probe = socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = probe >= 0 && bind(probe, (const struct sockaddr *)&own.storage, own.size) == 0;
    wh_close(probe);
    return here;
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

/** The address of this host that the system would use to reach another address. */
static bool route_address(const wh_socket_address *to, wh_socket_address *result) {
    int probe = socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    result->size = sizeof(result->storage);
    bool known = probe >= 0 && connect(probe, (const struct sockaddr *)&to->storage, to->size) == 0 &&
                 getsockname(probe, (struct sockaddr *)&result->storage, &result->size) == 0;
    wh_close(probe);
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

bool wh_place_text(const wh_socket_address *at, char place[WH_PLACE_MAX]) {
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
 * The address of this host on its default route. The destinations are addresses that are reserved
 * for documentation, so no host has them.
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

static wherry_status listen_tcp(const wh_group_address *address, const wh_socket_address *to, bool stays_here,
                                int *socket_p, char place[WH_PLACE_MAX], wherry_error *error) {
    const char *interface = getenv("WHERRY_INTERFACE");
    char meeting[WH_PLACE_MAX];
    wh_socket_address at;
    wh_meeting_text(address, 0, meeting);
    bool named = interface && *interface;
    bool known = named ? interface_address(interface, to, &at) : route_address(to, &at);
    if (stays_here && named && !(known && wh_is_private(&at))) {
        wh_log(WHERRY_LOG_INFO,
               "rank %d does not use WHERRY_INTERFACE=%s: without a secret or certificates, a group that meets on "
               "loopback stays there",
               (int)address->rank, interface);
        known = route_address(to, &at);
    }
    if (!known) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "no address of this host leads to %s; set WHERRY_INTERFACE to an interface that does", meeting);
    }
    wh_set_port(&at, 0);
    int socket_fd = wh_listen(&at);
    if (socket_fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot listen");
    }
    at.size = sizeof(at.storage);
    if (getsockname(socket_fd, (struct sockaddr *)&at.storage, &at.size) != 0 || !wh_place_text(&at, place)) {
        close(socket_fd);
        return wh_fail(error, WHERRY_SYSTEM, "cannot tell where this process listens");
    }
    *socket_p = socket_fd;
    return WHERRY_OK;
}

static wherry_status listen_unix(const wh_group_address *address, uint64_t incarnation, int *socket_p,
                                 char place[WH_PLACE_MAX], wherry_error *error) {
    char folder[WH_PLACE_MAX];
    char path[WH_PLACE_MAX - sizeof("unix:") + 1];
    wh_socket_address at;
    int length =
        snprintf(path, sizeof(path), "%s.%d.%llx", address->path, (int)address->rank, (unsigned long long)incarnation);
    if (length >= (int)sizeof(path) || !unix_address(path, &at)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the path %s is too long for a socket; choose a shorter one",
                       address->path);
    }
    const char *name = split_path(address->path, folder);
    clean_folder(folder, name, address->rank, true);
    int socket_fd = wh_listen(&at);
    if (socket_fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot listen at %s", path);
    }
    snprintf(place, WH_PLACE_MAX, "unix:%s", path);
    *socket_p = socket_fd;
    return WHERRY_OK;
}

wherry_status wh_member_listen(const wh_group_address *address, const wh_socket_address *to, bool stays_here,
                               uint64_t incarnation, int *socket_p, char place[WH_PLACE_MAX], wherry_error *error) {
    wherry_status status = address->kind == WH_ADDRESS_UNIX
                               ? listen_unix(address, incarnation, socket_p, place, error)
                               : listen_tcp(address, to, stays_here, socket_p, place, error);
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

const char *wh_place_host(const char *place, char host[WH_PLACE_MAX]) {
    size_t whole = strcspn(place, ";");
    const char *colon = memrchr(place, ':', whole);
    size_t size = wh_min(colon ? (size_t)(colon - place) : whole, WH_PLACE_MAX - 1);
    bool brackets = size > 1 && *place == '[' && place[size - 1] == ']';
    size -= brackets ? 2 : 0;
    memcpy(host, place + brackets, size);
    host[size] = '\0';
    return host;
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
    unsigned long port = strtoul(colon + 1, NULL, 10);
    return port > 0 && port <= UINT16_MAX && wh_resolve_numbers(wh_place_host(place, host), (uint16_t)port, &to)
               ? wh_dial(&to)
               : -1;
}

/**
 * True if this process sees all users of the machine, because it is in no user namespace of its
 * own.
 */
static bool sees_all_users(void) {
    char line[128] = "";
    char *at = line;
    unsigned long count = 0;
    FILE *map = fopen("/proc/self/uid_map", "re");
    if (!map) {
        return true;
    }
    if (fgets(line, sizeof(line), map)) {
        for (int i = 0; i < 3; i++) { /* first user inside, first user outside, number of users */
            count = strtoul(at, &at, 10);
        }
    }
    fclose(map);
    return count == UINT32_MAX;
}

bool wh_is_same_user(int fd) {
    enum { OVERFLOW_UID = 65534 };
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    return known && (peer.uid == geteuid() || (peer.uid == OVERFLOW_UID && !sees_all_users()));
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
        remove_socket(place + 5);
    }
}

struct wh_question {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int users; /**< References: one of the thread, and one of the caller until it gives up. */
    bool answered;
    wh_socket_address answer;
    uint16_t port;
    char host[];
};

bool wh_is_private(const wh_socket_address *at) {
    if (at->storage.ss_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)&at->storage)->sin_addr.s_addr) >> 24 == 127;
    }
    return at->storage.ss_family == AF_UNIX ||
           (at->storage.ss_family == AF_INET6 &&
            IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&at->storage)->sin6_addr));
}

/**
 * Takes the first of several addresses. Prefers an address that other hosts can reach to loopback.
 */
static bool look_up(const char *host, uint16_t port, int flags, wh_socket_address *result) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", port);
    *result = (wh_socket_address){.size = 0};
    if (getaddrinfo(host, service, &hints, &found) != 0 || !found) {
        return false;
    }
    for (const struct addrinfo *one = found; one; one = one->ai_next) {
        wh_socket_address at = {.size = one->ai_addrlen};
        memcpy(&at.storage, one->ai_addr, one->ai_addrlen);
        if (!result->size || (wh_is_private(result) && !wh_is_private(&at))) {
            *result = at;
        }
    }
    freeaddrinfo(found);
    return true;
}

bool wh_resolve_numbers(const char *host, uint16_t port, wh_socket_address *result) {
    return look_up(host, port, AI_NUMERICHOST, result);
}

/** Gives up one use of the query, and the lock, which the caller holds. */
static void drop(wh_question *question) {
    bool last = --question->users == 0;
    pthread_mutex_unlock(&question->lock);
    if (last) {
        pthread_cond_destroy(&question->changed);
        pthread_mutex_destroy(&question->lock);
        wh_free(question);
    }
}

static void *answer(void *context) {
    wh_question *question = context;
    wh_socket_address found;
    look_up(question->host, question->port, AI_ADDRCONFIG, &found);
    pthread_mutex_lock(&question->lock);
    question->answer = found;
    question->answered = true;
    pthread_cond_broadcast(&question->changed);
    drop(question);
    return NULL;
}

static bool start(wh_question *question) {
    pthread_t thread;
    bool started = wh_thread_start(&thread, answer, question) == 0;
    if (started) {
        pthread_detach(thread);
    }
    return started;
}

wh_question *wh_resolve_begin(const char *host, uint16_t port) {
    size_t size = strlen(host) + 1;
    wh_question *question = wh_alloc_zeroed(1, sizeof(*question) + size);
    if (!question) {
        return NULL;
    }
    pthread_mutex_init(&question->lock, NULL);
    wh_condition_init(&question->changed);
    memcpy(question->host, host, size);
    question->port = port;
    question->users = 2;
    if (!start(question)) {
        question->users = 1;
        wh_resolve_end(question);
        return NULL;
    }
    return question;
}

bool wh_resolve_wait(wh_question *question, wh_deadline deadline, wh_socket_address *result) {
    bool in_time = true;
    pthread_mutex_lock(&question->lock);
    while (!question->answered && in_time) {
        in_time = wh_wait(&question->changed, &question->lock, deadline);
    }
    bool answered = question->answered;
    if (answered) {
        *result = question->answer;
    }
    pthread_mutex_unlock(&question->lock);
    return answered;
}

void wh_resolve_end(wh_question *question) {
    if (question) {
        pthread_mutex_lock(&question->lock);
        drop(question);
    }
}

/*
 * Members of a TCP group on one host use Unix sockets: these are faster, and the kernel identifies
 * the process at the other end. Each member also listens at a socket in the abstract namespace. The
 * name is random, so that nobody else has it. Its place says so:
 *
 *     10.0.0.7:4711;HOST;NAME      both of 32 hexadecimal digits
 *
 * HOST is the same for all processes that can reach the socket: those of one network namespace of
 * one machine. The name is no secret: a process that connects there must prove the same as anywhere
 * else.
 */

enum { NUMBER = 16, DIGITS = WH_SHORTCUT_DIGITS, MARK = ';' };

static void write_digits(const uint8_t number[NUMBER], char text[DIGITS + 1]) {
    for (size_t i = 0; i < NUMBER; i++) {
        snprintf(text + 2 * i, 3, "%02x", number[i]);
    }
}

/** Identifies this machine and network namespace by a number that does not reveal them. */
static wherry_status describe_host(char host[DIGITS + 1], wherry_error *error) {
    struct {
        char boot[WH_BOOT_BYTES];
        uint8_t network[WH_NETWORK_BYTES];
    } here;
    uint8_t digest[EVP_MAX_MD_SIZE];
    wherry_status status = wh_boot_read(here.boot, error);
    if (status == WHERRY_OK) {
        status = wh_network_read(here.network, error);
    }
    if (status == WHERRY_OK && EVP_Digest(&here, sizeof(here), digest, NULL, EVP_sha256(), NULL) != 1) {
        status = WHERRY_INTERNAL;
    }
    if (status == WHERRY_OK) {
        write_digits(digest, host);
    }
    return status;
}

static void name_address(const char *name, wh_socket_address *at) {
    struct sockaddr_un *un = (struct sockaddr_un *)&at->storage;
    memset(at, 0, sizeof(*at));
    un->sun_family = AF_UNIX;
    int length = snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "wherry-group-%.*s", DIGITS, name);
    at->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

void wh_shortcut_open(wh_sockets *sockets) {
    char host[DIGITS + 1];
    char name[DIGITS + 1];
    uint8_t random[NUMBER];
    wh_socket_address at;
    size_t size = strlen(sockets->place);
    size_t suffix = 2 * (1 + DIGITS);
    if (sockets->address.kind != WH_ADDRESS_TCP || !sockets->address.shortcut ||
        size + suffix >= sizeof(sockets->place)) {
        return;
    }
    if (describe_host(host, NULL) != WHERRY_OK || wh_random_fill(random, sizeof(random), NULL) != WHERRY_OK) {
        wh_log(WHERRY_LOG_INFO, "rank %d: cannot tell which host this is, so all ranks talk over TCP: mount /proc",
               (int)sockets->base.rank);
        return;
    }
    write_digits(random, name);
    name_address(name, &at);
    sockets->shortcut = wh_listen(&at);
    if (sockets->shortcut < 0) {
        wh_log(WHERRY_LOG_INFO, "rank %d: ranks of this host talk to it over TCP: no Unix socket can be had: %s",
               (int)sockets->base.rank, strerror(errno));
        return;
    }
    snprintf(sockets->host, sizeof(sockets->host), "%s", host);
    snprintf(sockets->place + size, sizeof(sockets->place) - size, "%c%s%c%s", MARK, host, MARK, name);
}

/**
 * The name of a member's shortcut if it is on this host; otherwise NULL. `place` comes from a peer.
 */
static const char *find_name(const wh_sockets *sockets, const char *place) {
    const char *at = *sockets->host ? strchr(place, MARK) : NULL;
    bool formed = at && strlen(at) == 2 * (1 + DIGITS) && at[1 + DIGITS] == MARK;
    const char *name = formed ? at + 2 + DIGITS : NULL;
    return formed && memcmp(at + 1, sockets->host, DIGITS) == 0 && strspn(name, "0123456789abcdef") == DIGITS ? name
                                                                                                              : NULL;
}

bool wh_shortcut_leads_to(const wh_sockets *sockets, const char *place) {
    return find_name(sockets, place) != NULL;
}

/**
 * True if the process that listens at a Unix socket may be the server of a reader. There, the
 * readers' secret proves only that the process has the token, which other readers have too. Over
 * TCP, the server proves itself by its key. So only this user and root are trusted here.
 */
static bool may_be_server(int fd) {
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

int wh_sockets_dial(const wh_sockets *sockets, const char *place) {
    char plain[WH_PLACE_MAX];
    const char *name = find_name(sockets, place);
    bool at_path = strncmp(place, "unix:", 5) == 0;
    if (name) {
        wh_socket_address to;
        name_address(name, &to);
        int fd = wh_dial(&to);
        bool other_user = fd >= 0 && sockets->security.user_key && !wh_is_same_user(fd);
        bool other_server = fd >= 0 && sockets->security.reads && !may_be_server(fd);
        if (other_user || other_server) {
            close(fd); /* This side has another key. Over TCP, it may prove itself by TLS. */
            fd = -1;
            errno = EPERM;
        }
        if (fd >= 0 || errno == EAGAIN || errno == EMFILE || errno == ENFILE) {
            return fd;
        }
        wh_log(WHERRY_LOG_DEBUG, "rank %d: no way to %s over a Unix socket: %s", (int)sockets->base.rank, place,
               strerror(errno));
    }
    errno = EHOSTUNREACH; /* The place is a path, but members of a TCP group have no paths. */
    snprintf(plain, sizeof(plain), "%.*s", at_path ? (int)sizeof(plain) - 1 : (int)strcspn(place, ";"), place);
    return at_path == (sockets->address.kind == WH_ADDRESS_UNIX) ? wh_dial_place(plain) : -1;
}
