/*
 * The meeting points: where they are, who listens there, and what to do about one who listens and
 * does not answer, being stopped, or a child that has inherited the socket of a process that died.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

/**
 * How often a meeting point is tried again: while joining, and afterwards. How long whoever listens
 * there may take to answer at first: a way that is slow is given more time. When the next call is
 * made beside one that is not answered yet, where it may reach somebody else. How often a name is
 * asked for.
 */
enum { RETRY_JOINING_MS = 20, RETRY_MS = 500, ANSWER_MS = 1000, BESIDE_MS = 100, ASK_MS = 5000 };

/** Whether a name is meant for this host alone. */
static bool is_local_name(const char *host) {
    static const char suffix[] = ".localhost";
    size_t size = strlen(host);
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, "ip6-localhost") == 0 ||
           strcasecmp(host, "ip6-loopback") == 0 ||
           (size >= sizeof(suffix) && strcasecmp(host + size - (sizeof(suffix) - 1), suffix) == 0);
}

/**
 * Takes the answer about a name. On many hosts their own name leads to loopback, by /etc/hosts, and
 * on all others to their address. Whoever has given the group a secret expects others there, so
 * that the meeting point is to be where these look for it.
 */
static void take_answer(const wh_sockets *sockets, size_t number, const wh_socket_address *found) {
    const wh_endpoint *endpoint = sockets->address.meeting + number;
    wh_meeting *meeting = sockets->meetings + number;
    wh_socket_address at = *found;
    bool open = sockets->options.secret_size || sockets->options.allow_insecure;
    if (open && at.size && wh_is_private(&at) && !is_local_name(endpoint->host)) {
        bool turned = wh_turn_outward(&at, endpoint->port);
        bool known = meeting->at.size == at.size && memcmp(&meeting->at.storage, &at.storage, at.size) == 0;
        if (!known) { /* names are asked for again and again */
            wh_log(turned ? WHERRY_LOG_INFO : WHERRY_LOG_WARN,
                   "rank %d: the name %s leads to loopback on this host: %s", (int)sockets->base.rank, endpoint->host,
                   turned ? "it is taken for the address that the host has for others"
                          : "other hosts cannot join; give an address in numbers, or set WHERRY_INTERFACE");
        }
    }
    meeting->at = at;
}

/** Waits for the answer about a name as long as the caller of join likes to. */
static wherry_status await_answer(const wh_sockets *sockets, size_t number, wh_deadline deadline, wherry_error *error) {
    wh_meeting *meeting = sockets->meetings + number;
    wh_socket_address found;
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    while (meeting->question && in_time && status == WHERRY_OK) {
        in_time = !wh_deadline_passed(deadline);
        wh_deadline slice = wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_STOP_LOOK_MS));
        if (wh_resolve_wait(meeting->question, slice, &found)) {
            wh_resolve_end(meeting->question);
            meeting->question = NULL;
            take_answer(sockets, number, &found);
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
        meeting->patience = ANSWER_MS * MS;
        meeting->named = !wh_meeting_address(address, i, &meeting->at);
        if (meeting->named) {
            meeting->question = wh_resolve_begin(address->meeting[i].host, address->meeting[i].port);
        }
    }
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        wherry_status status = await_answer(sockets, i, deadline, error);
        if (status != WHERRY_OK) {
            return status;
        }
        meeting->asked = wh_clock_now();
        any = any || meeting->at.size;
    }
    char text[WH_PLACE_MAX];
    return any ? WHERRY_OK
               : wh_fail(error, WHERRY_INVALID_ARGUMENT,
                         "the host of the meeting point %s is not known here; look at the name, and at the resolver",
                         wh_meeting_text(address, 0, text));
}

wherry_status wh_meetings_choose(wh_sockets *sockets, wherry_error *error) {
    wh_meeting *meeting = sockets->meetings;
    wh_endpoint *endpoint = sockets->address.meeting;
    if (sockets->address.kind != WH_ADDRESS_TCP || endpoint->port) {
        return WHERRY_OK;
    }
    meeting->listener = wh_meeting_listen(&sockets->address, &meeting->at, false, &meeting->name);
    if (meeting->listener < 0 || !wh_listener_port(meeting->listener, &endpoint->port)) {
        bool elsewhere = errno == EADDRNOTAVAIL;
        return wh_fail_errno(error, elsewhere ? WHERRY_INVALID_ARGUMENT : WHERRY_SYSTEM, errno,
                             "cannot listen at %s, at a port of the system's choice%s", endpoint->host,
                             elsewhere ? ", since it is no address of this host: name one, or a port that others have"
                                       : "");
    }
    wh_set_port(&meeting->at, endpoint->port);
    return WHERRY_OK;
}

/** Writes a path as an address has it. @return false where there is no room. */
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
        return wh_fail(error, WHERRY_UNSUPPORTED, "a group of one rank meets nowhere; give it the size of the whole");
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
 * Asks anew where a name leads, and takes the answer when it is there; what was known before holds
 * until then.
 */
static void ask(wh_sockets *sockets, size_t number, uint64_t now) {
    const wh_endpoint *endpoint = sockets->address.meeting + number;
    wh_meeting *meeting = sockets->meetings + number;
    wh_socket_address found;
    if (!meeting->question && now - meeting->asked > ASK_MS * MS) {
        meeting->question = wh_resolve_begin(endpoint->host, endpoint->port);
        meeting->asked = now;
    }
    if (meeting->question && wh_resolve_wait(meeting->question, (wh_deadline){0}, &found)) {
        wh_resolve_end(meeting->question);
        meeting->question = NULL;
        if (found.size) {
            take_answer(sockets, number, &found);
        }
    }
}

void wh_meeting_note_silence(wh_sockets *sockets, int32_t number) {
    wh_meeting *meeting = sockets->meetings + number;
    char text[WH_PLACE_MAX];
    if (!meeting->silent) {
        wh_log(WHERRY_LOG_WARN, "rank %d: whoever listens at the meeting point %s does not answer",
               (int)sockets->base.rank, wh_meeting_text(&sockets->address, (size_t)number, text));
    }
    meeting->silent = true;
    /* Where the port is shared, the next call may reach somebody else. */
    if (!meeting->shared && meeting->patience < sockets->options.dead_after_ms * MS) {
        meeting->patience *= 2;
    }
}

void wh_meeting_note_fault(wh_sockets *sockets, const char *fault) {
    snprintf(sockets->seen, sizeof(sockets->seen), "%.*s", (int)sizeof(sockets->seen) - 1, fault);
}

void wh_meeting_note_answer(wh_sockets *sockets, int32_t number) {
    sockets->meetings[number].silent = false;
    sockets->meetings[number].patience = ANSWER_MS * MS;
}

static void stop_listening(wh_sockets *sockets, wh_meeting *meeting) {
    if (meeting->listener >= 0) {
        if (sockets->address.kind == WH_ADDRESS_UNIX && wh_meeting_is_ours(&sockets->address, &meeting->name)) {
            unlink(sockets->address.path);
        }
        close(meeting->listener);
        meeting->listener = -1;
    }
}

/**
 * Dials. A name that nobody listens at any more is to be taken over, and one where so many have
 * knocked for long that nobody else can.
 */
static void dial(wh_sockets *sockets, wh_meeting *meeting, int32_t number, uint64_t now) {
    int fd = wh_dial(&meeting->at);
    int fault = fd < 0 ? errno : 0;
    if (fault) {
        wh_meeting_note_fault(sockets, strerror(fault));
    }
    if (fault == EAGAIN && !meeting->stuck_since) {
        meeting->stuck_since = now;
    } else if (fault == ECONNREFUSED || (fault == EAGAIN && now - meeting->stuck_since > meeting->patience)) {
        meeting->silent = true;
    }
    wh_connection *connection = fd >= 0 ? wh_sockets_add(sockets, fd, true) : NULL;
    if (connection) {
        connection->meeting = number;
        meeting->stuck_since = 0;
    }
}

/**
 * Whether somebody was met there, or a call is under way. The system hands the calls to a shared
 * port out by chance, also to a process that is stopped: one that is not answered soon does not
 * hold up the next.
 */
static bool is_dialled(const wh_sockets *sockets, size_t number, uint64_t now) {
    bool shared = sockets->meetings[number].shared;
    const wh_connection *one = sockets->connections;
    while (one && (one->meeting != (int32_t)number ||
                   (shared && !wh_connection_is_up(one) && now > one->born && now - one->born > BESIDE_MS * MS))) {
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
        meeting->next_try = now + (sockets->joined ? RETRY_MS : RETRY_JOINING_MS) * MS;
        if (meeting->named) {
            ask(sockets, i, now);
        }
        if (meeting->listener >= 0 && !wh_meeting_is_ours(&sockets->address, &meeting->name)) {
            /* another has taken it over, and is the one to dial */
            stop_listening(sockets, meeting);
        }
        if (!meeting->at.size || is_dialled(sockets, i, now)) {
            continue;
        }
        if (meeting->listener < 0 && !sockets->options.dial_only) {
            meeting->listener = wh_meeting_listen(&sockets->address, &meeting->at, meeting->silent, &meeting->name);
            meeting->shared = meeting->listener >= 0 && meeting->silent && sockets->address.kind == WH_ADDRESS_TCP;
            meeting->silent = meeting->silent && meeting->listener < 0;
        }
        if (meeting->listener < 0 || meeting->shared) {
            dial(sockets, meeting, (int32_t)i, now);
        }
    }
}

void wh_meetings_close(wh_sockets *sockets) {
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        stop_listening(sockets, sockets->meetings + i);
        wh_resolve_end(sockets->meetings[i].question);
        sockets->meetings[i].question = NULL;
    }
}
