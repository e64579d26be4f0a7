/*
 * The meeting points: where they are, and who listens there. A process that finds the point of its
 * own host free listens there until it ends. Nobody takes the point from a living process, even if
 * it is stopped. The others dial it, and dial again.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

enum {
    /** The first pause between two tries is short: the listener may be about to start. */
    RETRY_FIRST_MS = 10,
    /** Pauses double up to this, because a thousand processes may be trying. */
    RETRY_JOINING_MS = 100,
    RETRY_MS = 500, /**< The pause after joining. */
    ASK_MS = 5000,  /**< How often a name is resolved again. */
    /** Number of descriptors that a listener needs in addition to one per rank. */
    SPARE_FILES = 32,
};

/** True if a name means this host only. */
static bool is_local_name(const char *host) {
    static const char suffix[] = ".localhost";
    size_t size = strlen(host);
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, "ip6-localhost") == 0 ||
           strcasecmp(host, "ip6-loopback") == 0 ||
           (size >= sizeof(suffix) && strcasecmp(host + size - (sizeof(suffix) - 1), suffix) == 0);
}

/**
 * Handles the result of a query. On many hosts, /etc/hosts maps their own name to loopback, while
 * all other hosts map it to a real address. If the group has a secret, other hosts are expected, so
 * the meeting point must be where they look for it.
 */
static void take_answer(const wh_sockets *sockets, const wh_endpoint *endpoint, wh_meeting *meeting,
                        const wh_socket_address *found) {
    wh_socket_address at = *found;
    bool strays = sockets->stays_here && at.size && !wh_is_private(&at);
    if (strays && !meeting->strayed) {
        wh_log(WHERRY_LOG_WARN,
               "rank %d: the name %s leads to another host now: it is not used, because a group without a secret stays "
               "on this host",
               (int)sockets->base.rank, endpoint->host);
    }
    meeting->strayed = strays;
    if (strays) {
        return;
    }
    bool open = !sockets->stays_here && (sockets->security.outward || sockets->options.allow_insecure);
    if (open && at.size && wh_is_private(&at) && !is_local_name(endpoint->host)) {
        bool turned = wh_turn_outward(&at, endpoint->port);
        bool known = meeting->at.size == at.size && memcmp(&meeting->at.storage, &at.storage, at.size) == 0;
        if (!known) { /* Log this once, because names are resolved again and again. */
            wh_log(turned ? WHERRY_LOG_INFO : WHERRY_LOG_WARN,
                   "rank %d: the name %s leads to loopback on this host: %s", (int)sockets->base.rank, endpoint->host,
                   turned ? "the address that other hosts use is taken instead"
                          : "other hosts cannot join; give an address in numbers, or set WHERRY_INTERFACE");
        }
    }
    meeting->at = at;
}

static wh_question *resolve(const wh_endpoint *endpoint) {
    return wh_resolve_begin(endpoint->host, endpoint->port);
}

/**
 * Waits for the result of a query until the deadline, or until the caller of join stops waiting.
 */
static wherry_status await_answer(const wh_sockets *sockets, const wh_endpoint *endpoint, wh_meeting *meeting,
                                  wh_deadline deadline, wherry_error *error) {
    wh_socket_address found;
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    while (meeting->question && in_time && status == WHERRY_OK) {
        in_time = !wh_deadline_passed(deadline);
        wh_deadline slice = wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_STOP_LOOK_MS));
        if (wh_resolve_wait(meeting->question, slice, &found)) {
            wh_resolve_end(meeting->question);
            meeting->question = NULL;
            take_answer(sockets, endpoint, meeting, &found);
        } else if (wh_sockets_interrupted(sockets)) {
            status = wh_fail(error, WHERRY_CANCELLED, "joining was interrupted while a host's name was asked for");
        }
    }
    return status;
}

wherry_status wh_meetings_find(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    const wh_group_address *address = &sockets->address;
    bool any = false;
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        meeting->pause = RETRY_FIRST_MS * MS;
        meeting->named = !wh_meeting_address(address, i, &meeting->at);
        if (meeting->named) {
            meeting->question = resolve(wh_meeting_endpoint(address, i));
        }
    }
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        wherry_status status = await_answer(sockets, wh_meeting_endpoint(address, i), meeting, deadline, error);
        if (status != WHERRY_OK) {
            return status;
        }
        meeting->asked = wh_clock_now();
        any = any || meeting->at.size;
    }
    return any ? WHERRY_OK
               : wh_fail(error, WHERRY_INVALID_ARGUMENT,
                         "this machine knows no address of the host %s; check the name, and the resolver",
                         wh_meeting_endpoint(address, 0)->host);
}

wherry_status wh_meetings_choose(wh_sockets *sockets, wherry_error *error) {
    wh_meeting *meeting = sockets->meetings;
    wh_endpoint *endpoint = sockets->address.meeting;
    const wh_endpoint *where = wh_meeting_endpoint(&sockets->address, 0);
    uint16_t port;
    if (sockets->address.kind != WH_ADDRESS_TCP || (endpoint->port && where == endpoint)) {
        return WHERRY_OK;
    }
    meeting->listener = wh_meeting_listen(&sockets->address, &meeting->at, &meeting->lock);
    if (meeting->listener < 0 || !wh_listener_port(meeting->listener, &port)) {
        bool elsewhere = errno == EADDRNOTAVAIL;
        char text[16];
        snprintf(text, sizeof(text), "%u", where->port);
        return wh_fail_errno(error, elsewhere ? WHERRY_INVALID_ARGUMENT : WHERRY_SYSTEM, errno,
                             "cannot listen at %s, port %s%s", where->host, where->port ? text : "0 (any free one)",
                             elsewhere ? ", which is no address of this host; name one that is" : "");
    }
    wh_set_port(&meeting->at, port);
    endpoint->port = endpoint->port ? endpoint->port : port;
    return WHERRY_OK;
}

wherry_status wh_meetings_announce(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    const wh_endpoint *endpoint = sockets->address.meeting;
    const char *bind = sockets->address.bind.host;
    wh_meeting outside = {.at = sockets->meetings->at};
    wherry_status status = WHERRY_OK;
    if (strcmp(endpoint->host, bind) != 0 && !wh_resolve_numbers(endpoint->host, endpoint->port, &outside.at)) {
        outside.question = resolve(endpoint);
        status = await_answer(sockets, endpoint, &outside, deadline, error);
        wh_resolve_end(outside.question);
    }
    if (status == WHERRY_OK && outside.at.size) {
        wh_set_port(&outside.at, endpoint->port);
    }
    if (status == WHERRY_OK && !(outside.at.size && wh_place_text(&outside.at, sockets->place))) {
        status = wh_fail(error, WHERRY_INVALID_ARGUMENT,
                         "the host %s, which others connect to, is not known here; give its address in numbers",
                         endpoint->host);
    }
    if (status == WHERRY_OK) {
        wh_log(WHERRY_LOG_INFO, "rank %d listens at %s, and others connect to %s", (int)sockets->base.rank, bind,
               sockets->place);
    }
    return status;
}

/** Writes a path as it appears in an address. @return false if it does not fit. */
static bool escape_path(const char *path, char *text, size_t size) {
    size_t length = strlen(text);
    for (; *path && length + sizeof("%00") <= size; path++) {
        bool plain = *path > ' ' && *path < 0x7F && !strchr("?#%&", *path);
        length += (size_t)snprintf(text + length, size - length, plain ? "%c" : "%%%02x", (unsigned char)*path);
    }
    return !*path;
}

wherry_status wh_sockets_meeting(wh_group *group, char *text, size_t size, wherry_error *error) {
    const wh_sockets *sockets = (wh_sockets *)group;
    const wh_group_address *address = &sockets->address;
    char where[WH_PLACE_MAX];
    if (group->size == 1) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "a group of one rank has no meeting point; give the number of all ranks as its size");
    }
    bool fits = snprintf(text, size, "%s://", address->kind == WH_ADDRESS_TCP ? "tcp" : "unix") < (int)size;
    if (fits && address->kind == WH_ADDRESS_UNIX) {
        fits = escape_path(address->path, text, size);
    } else if (fits) {
        fits = snprintf(text, size, "tcp://%s", wh_meeting_text(address, 0, where)) < (int)size;
    }
    return fits ? WHERRY_OK : wh_fail(error, WHERRY_LIMIT, "the meeting point has no room in %zu bytes", size);
}

bool wh_meetings_are_private(const wh_sockets *sockets) {
    bool private = true;
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        private = private && sockets->meetings[i].at.size && wh_is_private(&sockets->meetings[i].at);
    }
    return private;
}

/**
 * Resolves a name again, and takes the result once it is known. Until then, the old result stays.
 */
static void ask(wh_sockets *sockets, size_t number, uint64_t now) {
    const wh_endpoint *endpoint = wh_meeting_endpoint(&sockets->address, number);
    wh_meeting *meeting = sockets->meetings + number;
    wh_socket_address found;
    if (!meeting->question && now - meeting->asked > ASK_MS * MS) {
        meeting->question = resolve(endpoint);
        meeting->asked = now;
    }
    if (meeting->question && wh_resolve_wait(meeting->question, (wh_deadline){0}, &found)) {
        wh_resolve_end(meeting->question);
        meeting->question = NULL;
        if (found.size) {
            take_answer(sockets, endpoint, meeting, &found);
        }
    }
}

void wh_meeting_note_fault(wh_sockets *sockets, const char *fault) {
    snprintf(sockets->seen, sizeof(sockets->seen), "%.*s", (int)sizeof(sockets->seen) - 1, fault);
}

/** Returns the process that listens at the other end of a Unix socket; 0: unknown. */
static int32_t connected_process(int fd) {
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    int family = 0;
    socklen_t family_size = sizeof(family);
    bool known = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &family_size) == 0 && family == AF_UNIX &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    return known ? peer.pid : 0;
}

/** Returns the inode of the socket that listens at a port of this host; 0: unknown. */
static unsigned long listening_inode(const char *table, unsigned port) {
    char line[512];
    unsigned long inode = 0;
    FILE *file = fopen(table, "re");
    while (file && !inode && fgets(line, sizeof(line), file)) {
        /* number, own place, remote place, state, queues, timer, resent, user, timeout, inode */
        const char *columns[10] = {NULL};
        char *rest = NULL;
        size_t count = 0;
        for (char *one = strtok_r(line, " ", &rest); one && count < 10; one = strtok_r(NULL, " ", &rest)) {
            columns[count++] = one;
        }
        const char *colon = count == 10 ? strrchr(columns[1], ':') : NULL;
        if (colon && strtoul(colon + 1, NULL, 16) == port && strtoul(columns[3], NULL, 16) == TCP_LISTEN) {
            inode = strtoul(columns[9], NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return inode;
}

/** True if a process has a socket open. */
static bool has_socket(const char *pid, unsigned long inode) {
    char path[sizeof("/proc//fd/") + 2 * NAME_MAX];
    char target[64];
    char wanted[64];
    bool found = false;
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *all = opendir(path);
    struct dirent *one;
    while (all && !found && (one = readdir(all))) {
        snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, one->d_name);
        ssize_t size = readlink(path, target, sizeof(target) - 1);
        found = size > 0 && (target[size] = '\0', strcmp(target, wanted) == 0);
    }
    if (all) {
        closedir(all);
    }
    return found;
}

/**
 * Returns the process on this host that listens at a TCP port; 0: unknown, or this user may not see
 * it.
 */
static int32_t listening_process(uint16_t port) {
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    inode = inode ? inode : listening_inode("/proc/net/tcp6", port);
    int32_t pid = 0;
    DIR *all = inode ? opendir("/proc") : NULL;
    struct dirent *one;
    while (all && !pid && (one = readdir(all))) {
        if (*one->d_name >= '1' && *one->d_name <= '9' && has_socket(one->d_name, inode)) {
            pid = (int32_t)strtol(one->d_name, NULL, 10);
        }
    }
    if (all) {
        closedir(all);
    }
    return pid;
}

static bool is_stopped(int32_t pid) {
    char path[64];
    char state = ' ';
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) {
            state = ' ';
        }
        fclose(file);
    }
    return state == 'T' || state == 't';
}

void wh_meeting_note_silence(wh_sockets *sockets, const wh_connection *connection) {
    wh_meeting *meeting = sockets->meetings + connection->meeting;
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    meeting->silent = true;
    meeting->reached = getpeername(connection->socket.fd, (struct sockaddr *)&peer, &size) == 0;
    meeting->pid = connected_process(connection->socket.fd);
}

void wh_meeting_note_answer(wh_sockets *sockets, int32_t number) {
    sockets->meetings[number].silent = false;
}

/** Writes why no process has answered at a meeting point. @param port  0: a Unix socket. */
static void explain(const wh_meeting *meeting, uint16_t port, char *text, size_t size) {
    int32_t pid = port && wh_is_here(&meeting->at) ? listening_process(port) : meeting->pid;
    if (pid && is_stopped(pid)) {
        snprintf(text, size, "; process %d, which listens there, is stopped: continue it, or end it", (int)pid);
    } else if (pid) {
        snprintf(text, size, "; process %d, which listens there, does not answer", (int)pid);
    } else if (!meeting->reached) {
        snprintf(text, size, "; its host does not answer: look at the address, and at firewalls on the way");
    } else {
        snprintf(text, size, "; the process that listens there does not answer");
    }
}

void wh_meetings_explain(wh_sockets *sockets, char *text, size_t size) {
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->meeting >= 0 && one->rank < 0) {
            wh_meeting_note_silence(sockets, one);
        }
    }
    *text = '\0';
    for (size_t i = 0; i < sockets->meeting_count && !*text; i++) {
        wh_meeting meeting = sockets->meetings[i];
        uint16_t port = sockets->address.kind == WH_ADDRESS_TCP ? sockets->address.meeting[i].port : 0;
        if (meeting.silent) {
            pthread_mutex_unlock(&sockets->lock); /* Looking at all processes takes long. */
            explain(&meeting, port, text, size);
            pthread_mutex_lock(&sockets->lock);
        }
    }
    if (!*text && *sockets->seen) {
        snprintf(text, size, "; the last call there failed: %s", sockets->seen);
    }
}

static void stop_listening(const wh_sockets *sockets, wh_meeting *meeting) {
    if (meeting->listener >= 0) {
        wh_meeting_unlisten(&sockets->address, meeting->listener, meeting->lock);
        meeting->listener = meeting->lock = -1;
    }
}

/**
 * Raises the soft limit of descriptors if necessary: the listener has a connection to every rank.
 */
static bool allow_connections(int32_t ranks) {
    struct rlimit files;
    rlim_t needed = (rlim_t)ranks + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) {
        return true;
    }
    /* The program has files of its own. */
    files.rlim_cur = (rlim_t)wh_min(files.rlim_max, 2 * needed);
    return files.rlim_cur >= needed && setrlimit(RLIMIT_NOFILE, &files) == 0;
}

/** Listens at a meeting point if it is free and on this host. */
static bool try_to_listen(wh_sockets *sockets, wh_meeting *meeting) {
    if (sockets->options.dial_only) {
        return false;
    }
    meeting->listener = wh_meeting_listen(&sockets->address, &meeting->at, &meeting->lock);
    if (meeting->listener >= 0 && !allow_connections(sockets->base.size)) {
        stop_listening(sockets, meeting);
        sockets->too_few_files = true;
    }
    return meeting->listener >= 0;
}

static void dial(wh_sockets *sockets, wh_meeting *meeting, int32_t number) {
    int fd = wh_dial(&meeting->at);
    if (fd < 0) {
        wh_meeting_note_fault(sockets, strerror(errno));
    }
    const wh_endpoint *endpoint = sockets->address.kind == WH_ADDRESS_TCP ? sockets->address.meeting + number : NULL;
    wh_connection *connection = fd >= 0 ? wh_sockets_add(sockets, fd, endpoint ? endpoint->host : "", -1) : NULL;
    if (connection) {
        connection->meeting = number;
        connection->met = true;
    }
}

/** True if there is a connection to a meeting point, or one is being made. */
static bool is_dialled(const wh_sockets *sockets, size_t number) {
    const wh_connection *one = sockets->connections;
    while (one && one->meeting != (int32_t)number) {
        one = one->next;
    }
    return one != NULL;
}

void wh_meetings_serve(wh_sockets *sockets, uint64_t now) {
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        if (now < meeting->next_try) {
            continue;
        }
        meeting->next_try = now + (sockets->joined ? RETRY_MS * MS : meeting->pause);
        meeting->pause = wh_min(2 * meeting->pause, RETRY_JOINING_MS * MS);
        if (meeting->named) {
            ask(sockets, i, now);
        }
        if (meeting->at.size && meeting->listener < 0 && !is_dialled(sockets, i) && !try_to_listen(sockets, meeting)) {
            dial(sockets, meeting, (int32_t)i);
        }
    }
}

uint64_t wh_meetings_next(const wh_sockets *sockets) {
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        next = wh_min(next, sockets->meetings[i].listener < 0 ? sockets->meetings[i].next_try : next);
    }
    return next;
}

void wh_meetings_close(wh_sockets *sockets) {
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        stop_listening(sockets, sockets->meetings + i);
        wh_resolve_end(sockets->meetings[i].question);
        sockets->meetings[i].question = NULL;
    }
}
