/*
 * Members of a TCP group that share a host talk over Unix sockets, which are faster, and over which
 * the kernel vouches for the process at the other end. Each listens at a socket in the abstract
 * namespace as well, whose name is random so that nobody else has it already, and says so behind
 * its place. The name is no secret: whoever connects there proves the same as anywhere else.
 *
 *     10.0.0.7:4711;HOST;NAME
 *
 * both of 32 hexadecimal digits. HOST is the same for all processes that can reach the socket:
 * those of one network namespace of one machine.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>

#include <openssl/evp.h>

#include "base/log.h"
#include "base/process.h"
#include "group/sockets/internal.h"

enum { NUMBER = 16, DIGITS = WH_SHORTCUT_DIGITS, MARK = ';' };

static void write_digits(const uint8_t number[NUMBER], char text[DIGITS + 1]) {
    for (size_t i = 0; i < NUMBER; i++) {
        snprintf(text + 2 * i, 3, "%02x", number[i]);
    }
}

/** The place of one machine and network, as a number that tells nobody which. */
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
    if (describe_host(host, NULL) != WHERRY_OK || getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        wh_log(WHERRY_LOG_INFO, "rank %d: cannot tell which host this is, so that all ranks talk over TCP: mount /proc",
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
 * The name of a member's shortcut, where it is on this host; else NULL. The place is what a peer
 * said.
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

int wh_sockets_dial(const wh_sockets *sockets, const char *place) {
    char plain[WH_PLACE_MAX];
    const char *name = find_name(sockets, place);
    bool at_path = strncmp(place, "unix:", 5) == 0;
    if (name) {
        wh_socket_address to;
        name_address(name, &to);
        int fd = wh_dial(&to);
        if (fd >= 0 || errno == EAGAIN || errno == EMFILE || errno == ENFILE) {
            return fd;
        }
        wh_log(WHERRY_LOG_DEBUG, "rank %d: no way to %s over a Unix socket: %s", (int)sockets->base.rank, place,
               strerror(errno));
    }
    errno = EHOSTUNREACH; /* a member of a TCP group has no file of this host to dial */
    snprintf(plain, sizeof(plain), "%.*s", at_path ? (int)sizeof(plain) - 1 : (int)strcspn(place, ";"), place);
    return at_path == (sockets->address.kind == WH_ADDRESS_UNIX) ? wh_dial_place(plain) : -1;
}
