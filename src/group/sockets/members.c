/*
 * The table of members: the place and the incarnation of each rank. Sends news of the table to the
 * others.
 *
 * Every change of the table has a number. The members are in a list, sorted by their last changes.
 * A connection remembers the number up to which the other side knows the table. So news is sent
 * once, and not back over the connection that it came from.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/text.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)
#define DAY_NS (UINT64_C(24) * 60 * 60 * 1000000000)

enum {
    /**
     * Maximum number of bytes of news per frame. A joiner that reads slowly must not fill the
     * sender's memory.
     */
    NEWS_BYTES = 16 << 10,
    /** After sending some news, collect more for this long before sending again. */
    NEWS_PAUSE_MS = 20,
    /**
     * This many connections make the pause a millisecond longer. If a thousand ranks join, each of
     * them would otherwise be woken a thousand times.
     */
    NEWS_CONNECTIONS = 4,
};

/** The forms of a place in a TABLE, as they are sent. */
enum { PLACE_TEXT = 0, PLACE_IPV4 = 1, PLACE_IPV6 = 2, PLACE_SHORTCUT = 0x80 };

/** Reads pairs of hexadecimal digits. @return false if there are other characters. */
static bool read_digits(const char *text, uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        int high = wh_hex_digit(text[2 * i]);
        int low = wh_hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static char *write_digits(char *text, const uint8_t *bytes, size_t size) {
    static const char digits[] = "0123456789abcdef";
    *text++ = ';';
    for (size_t i = 0; i < size; i++) {
        *text++ = digits[bytes[i] >> 4];
        *text++ = digits[bytes[i] & 15];
    }
    *text = '\0';
    return text;
}

enum { HALF = WH_SHORTCUT_DIGITS / 2 };

/** A place as it is sent in a TABLE. */
typedef struct packed {
    uint8_t form;
    uint8_t address[16];
    uint16_t port;
    uint8_t shortcut[WH_SHORTCUT_DIGITS]; /**< HOST and NAME. */
} packed;

/** Writes a packed place as text. */
static void unpack(const packed *place, char text[WH_PLACE_MAX]) {
    char host[INET6_ADDRSTRLEN] = "";
    bool four = (place->form & ~PLACE_SHORTCUT) == PLACE_IPV4;
    inet_ntop(four ? AF_INET : AF_INET6, place->address, host, sizeof(host));
    int size = snprintf(text, WH_PLACE_MAX, four ? "%s:%u" : "[%s]:%u", host, place->port);
    if (place->form & PLACE_SHORTCUT) {
        write_digits(write_digits(text + size, place->shortcut, HALF), place->shortcut + HALF, HALF);
    }
}

/** Packs a place. @return false if it is not in the form that members write. */
static bool pack(const char *text, packed *place) {
    char host[WH_PLACE_MAX];
    char again[WH_PLACE_MAX];
    const char *end = strchrnul(text, ';');
    const char *colon = memrchr(text, ':', (size_t)(end - text));
    bool six = *text == '[';
    *place = (packed){.form = six ? PLACE_IPV6 : PLACE_IPV4};
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    if (!colon || port > UINT16_MAX || colon - text < (six ? 2 : 1)) {
        return false;
    }
    place->port = (uint16_t)port;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - (six ? 2 : 0), text + (six ? 1 : 0));
    if (inet_pton(six ? AF_INET6 : AF_INET, host, place->address) != 1) {
        return false;
    }
    if (*end) {
        place->form |= PLACE_SHORTCUT;
        if (strlen(end) != 2 * (1 + WH_SHORTCUT_DIGITS) || !read_digits(end + 1, place->shortcut, HALF) ||
            !read_digits(end + 2 + WH_SHORTCUT_DIGITS, place->shortcut + HALF, HALF)) {
            return false;
        }
    }
    unpack(place, again);
    return strcmp(text, again) == 0;
}

void wh_place_encode(wh_string *to, const char *place) {
    packed form;
    if (!pack(place, &form)) {
        wh_append_number(to, PLACE_TEXT, 1);
        wh_append_sized(to, place, strlen(place), 2);
        return;
    }
    wh_append_number(to, form.form, 1);
    wh_string_append(to, (const char *)form.address, (form.form & ~PLACE_SHORTCUT) == PLACE_IPV4 ? 4 : 16);
    wh_append_number(to, form.port, 2);
    wh_string_append(to, (const char *)form.shortcut, form.form & PLACE_SHORTCUT ? sizeof(form.shortcut) : 0);
}

bool wh_place_decode(wh_cursor *from, char place[WH_PLACE_MAX]) {
    packed form = {.form = (uint8_t)wh_cursor_number(from, 1)};
    uint8_t kind = form.form & (uint8_t)~PLACE_SHORTCUT;
    if (form.form == PLACE_TEXT) {
        wh_bytes text = wh_cursor_sized(from, 2);
        if (!text.bytes || text.size >= WH_PLACE_MAX || !wh_utf8_printable(text.bytes, text.size)) {
            return false;
        }
        memcpy(place, text.bytes, text.size);
        place[text.size] = '\0';
        return true;
    }
    wh_cursor_copy(from, form.address, kind == PLACE_IPV4 ? 4 : 16);
    form.port = (uint16_t)wh_cursor_number(from, 2);
    wh_cursor_copy(from, form.shortcut, form.form & PLACE_SHORTCUT ? sizeof(form.shortcut) : 0);
    if (from->failed || (kind != PLACE_IPV4 && kind != PLACE_IPV6)) {
        return false;
    }
    unpack(&form, place);
    return true;
}

/** Appends an entry. Its place is packed only once, because a thousand others may get it. */
static void append_member(wh_string *to, int32_t rank, wh_member *member) {
    wh_append_number(to, (uint64_t)rank, 4);
    wh_append_number(to, member->incarnation, 8);
    if (member->packed_size) {
        wh_string_append(to, (const char *)member->packed, member->packed_size);
        return;
    }
    size_t before = to->size;
    wh_place_encode(to, member->place);
    if (!to->failed && to->size - before <= sizeof(member->packed)) {
        member->packed_size = (uint8_t)(to->size - before);
        memcpy(member->packed, to->bytes + before, member->packed_size);
    }
}

/** The share of a member in the hash of the table. */
static uint64_t hash_member(int32_t rank, uint64_t incarnation) {
    uint8_t bytes[12];
    wh_store_be32(bytes, (uint32_t)rank);
    wh_store_be64(bytes + 4, incarnation);
    return incarnation ? XXH64(bytes, sizeof(bytes), 0) : 0;
}

/** Puts a member at the end of the list of changes. */
static void note_change(wh_sockets *sockets, int32_t rank) {
    wh_member *member = sockets->members + rank;
    if (member->news) {
        *(member->before >= 0 ? &sockets->members[member->before].after : &sockets->oldest) = member->after;
        *(member->after >= 0 ? &sockets->members[member->after].before : &sockets->newest) = member->before;
    }
    member->news = ++sockets->news;
    member->changed_at = sockets->changed_at;
    member->before = sockets->newest;
    member->after = -1;
    *(sockets->newest >= 0 ? &sockets->members[sockets->newest].after : &sockets->oldest) = rank;
    sockets->newest = rank;
}

/** Sends one frame of news that the other side does not have yet. */
static void tell(wh_sockets *sockets, wh_connection *connection, uint64_t now, uint64_t pause) {
    wh_string part = {0};
    uint64_t told = connection->told;
    int32_t rank = sockets->newest;
    while (rank >= 0 && sockets->members[rank].before >= 0 &&
           sockets->members[sockets->members[rank].before].news > told) {
        rank = sockets->members[rank].before;
    }
    for (; rank >= 0 && part.size < NEWS_BYTES; rank = sockets->members[rank].after) {
        wh_member *member = sockets->members + rank;
        if (member->news > told && (connection->whole || member->source != connection->number)) {
            append_member(&part, rank, member);
        }
        told = member->news > told ? member->news : told;
    }
    bool queued =
        !part.failed && (!part.size || wh_connection_queue(connection, WH_FRAME_TABLE, part.bytes, part.size));
    connection->doomed |= !queued;
    connection->told = told;
    connection->whole = connection->whole && told < sockets->news;
    connection->told_at = now;
    connection->next_news = told < sockets->news ? now : now + pause;
    wh_free(part.bytes);
}

uint64_t wh_members_tell(wh_sockets *sockets, uint64_t now) {
    uint64_t next = UINT64_MAX;
    uint64_t pause = NEWS_PAUSE_MS * MS;
    if (wh_sockets_is_star(sockets)) {
        return next;
    }
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        pause += MS / NEWS_CONNECTIONS;
    }
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (!wh_connection_is_up(one) || one->doomed || one->parting || one->told >= sockets->news || one->out.first) {
            continue;
        }
        if (now >= one->next_news) {
            tell(sockets, one, now, pause);
        } else if (one->next_news < next) {
            next = one->next_news;
        }
    }
    return next;
}

void wh_members_begin(const wh_sockets *sockets, wh_connection *connection, uint64_t hash) {
    uint64_t recent = wh_clock_now() - sockets->options.dead_after_ms * MS;
    if (hash == sockets->hash) {
        return;
    }
    for (int32_t rank = sockets->newest; rank >= 0; rank = sockets->members[rank].before) {
        if (!connection->met && sockets->members[rank].changed_at < recent) {
            return;
        }
        connection->told = wh_min(connection->told, sockets->members[rank].news - 1);
    }
}

void wh_members_compare(wh_sockets *sockets, wh_connection *connection, uint64_t hash) {
    uint64_t now = wh_clock_now();
    uint64_t settled = sockets->options.dead_after_ms * MS;
    /* News that was not received yet must not be mistaken for lost news. */
    bool stays = hash != sockets->hash && hash == connection->hash && now > sockets->changed_at + settled &&
                 now > connection->told_at + settled && connection->told == sockets->news;
    connection->hash = hash;
    if (stays) {
        connection->told = 0;
        connection->whole = true;
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
        return; /* This process has taken a higher number since then. */
    }
    wh_log(WHERRY_LOG_WARN,
           "rank %d: its predecessor's clock was ahead of this one's; set the clocks of all hosts by one time",
           (int)sockets->base.rank);
    sockets->incarnation = newer + 1;
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->doomed = true; /* Those processes know this process by its former number. */
    }
    wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place, 0);
}

/** Ends the connections to a former incarnation, and tells it that its rank is taken. */
static void replace(wh_sockets *sockets, int64_t rank, uint64_t incarnation) {
    wh_string entry = {0};
    append_member(&entry, (int32_t)rank, sockets->members + rank);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->rank == rank && one->incarnation < incarnation) {
            if (!entry.failed && wh_connection_is_up(one) && !one->doomed) {
                wh_connection_queue(one, WH_FRAME_TABLE, entry.bytes, entry.size);
            }
            one->doomed = true;
        }
    }
    wh_free(entry.bytes);
}

bool wh_sockets_learn(wh_sockets *sockets, int64_t rank, uint64_t incarnation, const char *place, uint64_t source) {
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
    bool known = member->incarnation != 0;
    if (known) {
        /* The former incarnation may have left in order, and its last message may say so. */
        wh_sockets_hear_out(sockets, rank);
        if (incarnation <= member->incarnation) {
            return true; /* The last message was about a still newer incarnation. */
        }
    }
    sockets->known += !known;
    if (!wh_sockets_is_star(sockets)) {
        /*
         * From the hash of a server and one reader, others could find the incarnation of the
         * reader.
         */
        sockets->hash += hash_member((int32_t)rank, incarnation) - hash_member((int32_t)rank, member->incarnation);
    }
    sockets->changed_at = wh_clock_now();
    member->incarnation = incarnation;
    member->source = source;
    member->gone = false;
    member->packed_size = 0;
    snprintf(member->place, sizeof(member->place), "%s", place);
    note_change(sockets, (int32_t)rank);
    wh_mailbox_admit(sockets->base.mailbox, (int32_t)rank, incarnation);
    wh_log(WHERRY_LOG_INFO, "rank %d learned of rank %d at %.*s", (int)sockets->base.rank, (int)rank,
           (int)strcspn(place, ";"), place);
    if (known) {
        replace(sockets, rank, incarnation);
    }
    if (sockets->pump.inside) {
        wh_sockets_wake(sockets); /* The thread that has read this does not pass it on. */
    }
    if (known || sockets->joined || sockets->known >= (int32_t)sockets->options.wait_for) {
        pthread_cond_broadcast(&sockets->changed);
    }
    return true;
}

bool wh_sockets_take_table(wh_sockets *sockets, wh_connection *connection, const uint8_t *bytes, size_t size) {
    wh_cursor rest = wh_cursor_over(bytes, size);
    if (wh_sockets_is_star(sockets)) {
        return false; /* Nobody has news to tell on such a connection. */
    }
    while (rest.left) {
        char place[WH_PLACE_MAX];
        uint64_t rank = wh_cursor_number(&rest, 4);
        uint64_t incarnation = wh_cursor_number(&rest, 8);
        if (!wh_place_decode(&rest, place) || !incarnation ||
            !wh_sockets_learn(sockets, (int64_t)rank, incarnation, place, connection->number)) {
            return false;
        }
    }
    return true;
}
