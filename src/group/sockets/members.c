/* The table of members: who is where, as which incarnation, and telling the others. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "group/sockets/internal.h"

enum { ENTRY_HEAD = 4 + 8 + 2, TABLE_PART = 64 << 10 };

#define DAY_NS (UINT64_C(24) * 60 * 60 * 1000000000)

static void append_number(wh_string *to, uint64_t number, int width) {
    for (int i = width - 1; i >= 0; i--) {
        char byte = (char)(number >> 8 * i);
        wh_string_append(to, &byte, 1);
    }
}

static void append_member(wh_string *to, int32_t rank, const wh_member *member) {
    size_t size = strlen(member->place);
    append_number(to, (uint64_t)rank, 4);
    append_number(to, member->incarnation, 8);
    append_number(to, size, 2);
    wh_string_append(to, member->place, size);
}

bool wh_sockets_send_table(wh_sockets *sockets, wh_connection *connection) {
    wh_string part = {0};
    bool ok = true;
    for (int32_t rank = 0; rank < sockets->base.size && ok; rank++) {
        if (sockets->members[rank].incarnation) {
            append_member(&part, rank, sockets->members + rank);
        }
        if (part.size > TABLE_PART || rank == sockets->base.size - 1) {
            ok = !part.failed && wh_connection_queue(connection, WH_FRAME_TABLE, part.bytes, part.size);
            part.size = 0;
        }
    }
    wh_free(part.bytes);
    return ok;
}

static void tell_everybody(wh_sockets *sockets) {
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (wh_connection_is_up(one) && !one->doomed) {
            one->doomed = !wh_sockets_send_table(sockets, one);
        }
    }
}

void wh_sockets_fence(wh_sockets *sockets) {
    if (!sockets->fenced) {
        wh_log(WHERRY_LOG_ERROR, "rank %d: a newer incarnation has taken this process's place",
               (int)sockets->base.rank);
        sockets->fenced = true;
        wh_mailbox_close(sockets->base.mailbox);
        pthread_cond_broadcast(&sockets->changed);
    }
}

bool wh_sockets_believes(uint64_t incarnation) {
    return incarnation <= wh_clock_wall() + DAY_NS;
}

void wh_sockets_outdo(wh_sockets *sockets, uint64_t newer) {
    if (!wh_sockets_believes(newer)) {
        return;
    }
    if (sockets->joined || newer <= wh_clock_wall()) {
        wh_sockets_fence(sockets);
        return;
    }
    if (newer < sockets->incarnation) {
        return; /* outdone already, since that was said */
    }
    wh_log(WHERRY_LOG_WARN,
           "rank %d: its predecessor's clock was ahead of this one's; set the clocks of all hosts by one time",
           (int)sockets->base.rank);
    sockets->incarnation = newer + 1;
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->doomed = true; /* they know this process by its former number */
    }
    wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place);
}

bool wh_sockets_learn(wh_sockets *sockets, int64_t rank, uint64_t incarnation, const char *place) {
    if (rank < 0 || rank >= sockets->base.size || !wh_sockets_believes(incarnation)) {
        return false;
    }
    wh_member *member = sockets->members + rank;
    if (incarnation <= member->incarnation) {
        return true;
    }
    if (rank == sockets->base.rank && sockets->incarnation < incarnation) {
        wh_sockets_outdo(sockets, incarnation);
        return true;
    }
    /* the former incarnation may have ended in order, and said so */
    wh_sockets_hear_out(sockets, rank);
    if (incarnation <= member->incarnation) {
        return true; /* its last words were of a still newer one */
    }
    member->incarnation = incarnation;
    snprintf(member->place, sizeof(member->place), "%s", place);
    wh_mailbox_admit(sockets->base.mailbox, (int32_t)rank, incarnation);
    wh_log(WHERRY_LOG_INFO, "rank %d learned of rank %d at %.*s", (int)sockets->base.rank, (int)rank,
           (int)strcspn(place, ";"), place);
    tell_everybody(sockets); /* the former incarnation too: it learns so that its place is taken */
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->doomed = one->doomed || (one->rank == rank && one->incarnation < incarnation);
    }
    pthread_cond_broadcast(&sockets->changed);
    return true;
}

bool wh_sockets_take_table(void *context, const uint8_t *bytes, size_t size) {
    wh_sockets *sockets = context;
    size_t at = 0;
    while (at < size) {
        if (size - at < ENTRY_HEAD) {
            return false;
        }
        uint8_t wide[8] = {0};
        memcpy(wide + 4, bytes + at, 4);
        uint64_t rank = wh_load_be64(wide);
        uint64_t incarnation = wh_load_be64(bytes + at + 4);
        size_t length = (size_t)bytes[at + 12] << 8 | bytes[at + 13];
        at += ENTRY_HEAD;
        char place[WH_PLACE_MAX];
        if (length > size - at || length >= sizeof(place) || !wh_utf8_printable((const char *)bytes + at, length)) {
            return false;
        }
        memcpy(place, bytes + at, length);
        place[length] = '\0';
        at += length;
        if (incarnation == 0 || strlen(place) != length ||
            !wh_sockets_learn(sockets, (int64_t)rank, incarnation, place)) {
            return false;
        }
    }
    return true;
}
