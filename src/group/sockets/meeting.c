/*
 * The meeting points: where they are, who listens there, and what to do about one who listens and does not answer, being stopped, or a child that has
 * inherited the socket of a process that died.
 */
#include <errno.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

/**
 * How often a meeting point is tried again: while joining, and afterwards. How long whoever listens there may take to answer at first: a way that is
 * slow is given more time. How often a name is asked for.
 */
enum { RETRY_JOINING_MS = 20, RETRY_MS = 500, ANSWER_MS = 1000, ASK_MS = 5000 };

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
        if (meeting->question && wh_resolve_wait(meeting->question, deadline, &meeting->at)) {
            wh_resolve_end(meeting->question);
            meeting->question = NULL;
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

bool wh_meetings_are_private(const wh_sockets *sockets) {
    bool private = true;
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        private = private && sockets->meetings[i].at.size && wh_is_private(&sockets->meetings[i].at);
    }
    return private;
}

/** Asks anew where a name leads, and takes the answer when it is there; what was known before holds until then. */
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
        meeting->at = found.size ? found : meeting->at;
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

/** Dials. A name that nobody listens at any more is to be taken over, and one where so many have knocked for long that nobody else can. */
static void dial(wh_sockets *sockets, wh_meeting *meeting, int32_t number, uint64_t now) {
    int fd = wh_dial(&meeting->at);
    if (fd < 0 && errno == EAGAIN && !meeting->stuck_since) {
        meeting->stuck_since = now;
    } else if (fd < 0 &&
               (errno == ECONNREFUSED || (errno == EAGAIN && now - meeting->stuck_since > meeting->patience))) {
        meeting->silent = true;
    }
    wh_connection *connection = fd >= 0 ? wh_sockets_add(sockets, fd, true) : NULL;
    if (connection) {
        connection->meeting = number;
        meeting->dialled = true;
        meeting->stuck_since = 0;
    }
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
            stop_listening(sockets, meeting); /* another has taken it over, and is the one to dial */
        }
        if (!meeting->at.size || meeting->dialled) {
            continue;
        }
        if (meeting->listener < 0) {
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
