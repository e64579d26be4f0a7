/* `wherry serve`: files for whoever has the token, until it is ended. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <wherry/base.h>

#include "cargo.h"
#include "command.h"
#include "interrupt.h"
#include "json_out.h"
#include "leaves.h"
#include "show.h"
#include "visit.h"

enum { LISTEN_MS = 200, ANSWER_MS = 10000, GUESTS_MAX = 256, HOST_MAX = 256 };

typedef struct serve_options {
    wh_common common;
    const char *listen;
    int64_t port;
    const char *token_file;
    int64_t count;
} serve_options;

static const wh_option options_taken[] = {
    {"listen", 'l', WH_OPTION_TEXT, offsetof(serve_options, listen), "HOST",
     "let other machines fetch: the name or the address of this one that they dial (default 127.0.0.1: this machine "
     "alone)",
     0, 0, NULL},
    {"port", 'p', WH_OPTION_NUMBER, offsetof(serve_options, port), "N",
     "the TCP port (default 0: one of the system's choice, which is printed)", 0, 65535, NULL},
    {"token-file", 't', WH_OPTION_FILE, offsetof(serve_options, token_file), "FILE",
     "also write the token to this file, which only its owner can read, for `wherry fetch --token-file`; it is removed "
     "at the end",
     0, 0, NULL},
    {"count", 'n', WH_OPTION_NUMBER, offsetof(serve_options, count), "N",
     "end after so many fetches that succeeded (default 0: serve until a signal comes)", 0, 1000000, NULL},
    {.name = NULL},
};

static int run(int argc, char **argv);

const wh_command wh_command_serve = {
    .name = "serve",
    .summary = "offer checkpoint files to `wherry fetch`",
    .operands = "FILE...",
    .least = 1,
    .most = -1,
    .text = "Prints an address and a token, and serves the files to whoever has both, one fetch after the other and at "
            "once, until "
            "Ctrl-C. The token is random, and valid as long as this command runs. Both sides prove that they know it; "
            "without it "
            "nobody gets anything, not even the names of tensors.\n\n"
            "Only this machine can reach it, unless --listen says otherwise. What goes over the network is verified, "
            "and not "
            "encrypted: use a network that you trust, or a tunnel.\n\n"
            "FILEs are safetensors (also a .safetensors.index.json, with its shards) or Wherry's own. They "
            "must not "
            "change meanwhile; replacing them by renaming is fine.",
    .options = options_taken,
    .json = true,
    .examples = "wherry serve model.safetensors\n"
                "wherry serve --listen trainer7 --port 29700 model.safetensors.index.json\n"
                "# for a script: the address and the token in files\n"
                "wherry serve --json --token-file token model.safetensors > address.json\n",
    .run = run,
};

typedef struct server {
    const serve_options *options;
    wh_cargo cargo;
    wherry_group *group;
    wherry_transport *transport;
    char token[WH_TOKEN_MAX];
    bool wrote_token;
    atomic_uint guests;   /**< That are being served. */
    atomic_uint fetched;  /**< Fetches that succeeded. */
    pthread_mutex_t lock; /**< For what is printed. */
} server;

/* ---- one guest ---- */

typedef struct guest {
    server *server;
    int32_t rank;
    char wish;
} guest;

static bool must_end(void *context) {
    (void)context;
    return wh_interrupted(NULL);
}

static void tell_guest(server *s, const guest *g, wherry_status status, const wherry_outcome *outcome,
                       const wherry_error *error) {
    char size[WH_SIZE_TEXT_MAX];
    if (g->wish == WH_VISIT_LOOK || s->options->common.quiet) {
        return;
    }
    pthread_mutex_lock(&s->lock);
    const wherry_stats *stats = &outcome->stats;
    if (status == WHERRY_OK) {
        fprintf(stderr, "guest %d has fetched %s (%llu bytes) in %.1f s over %s\n", (int)g->rank,
                wh_size_text(stats->bytes_moved, size), (unsigned long long)stats->bytes_moved, stats->data_seconds,
                *stats->lane ? stats->lane : "nothing");
    } else {
        fprintf(stderr, "guest %d has not got it all, but %s (%llu bytes): ", (int)g->rank,
                wh_size_text(stats->bytes_moved, size), (unsigned long long)stats->bytes_moved);
        wh_print_plain(stderr, error->message);
        fputc('\n', stderr);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *serve_guest(void *context) {
    guest *g = context;
    server *s = g->server;
    wherry_transfer_options options;
    wherry_outcome outcome = {.stats = {.lane = ""}};
    wherry_error error;
    wherry_transfer_options_init(&options);
    options.timeout_ms = -1;
    options.interrupt = must_end;
    wherry_status status = wh_cargo_check(&s->cargo, &error);
    const char *answer = status == WHERRY_OK ? "" : error.message;
    wherry_group_send(s->group, g->rank, WH_ANSWER_TAG, answer, strlen(answer), ANSWER_MS, NULL);
    if (status == WHERRY_OK) {
        const wherry_value *state = g->wish == WH_VISIT_BYTES ? s->cargo.bytes_only : s->cargo.states_only;
        status = wherry_checkpoint_send(s->transport, &g->rank, 1, state, &options, &outcome, &error);
    }
    tell_guest(s, g, status, &outcome, &error);
    if (status == WHERRY_OK && g->wish != WH_VISIT_LOOK) {
        atomic_fetch_add(&s->fetched, 1);
    }
    free(g);
    atomic_fetch_sub(&s->guests, 1);
    return NULL;
}

/** Serves a guest by a thread of its own. A guest for whom there is none waits in vain, and is lost when it gives up. */
static void admit(server *s, int32_t rank, char wish) {
    pthread_attr_t attributes;
    pthread_t thread;
    guest *g = malloc(sizeof(*g));
    if (!g) {
        return;
    }
    *g = (guest){s, rank, wish};
    atomic_fetch_add(&s->guests, 1);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, serve_guest, g) != 0) {
        atomic_fetch_sub(&s->guests, 1);
        free(g);
    }
    pthread_attr_destroy(&attributes);
}

/* ---- the server ---- */

/** Who can reach a host that is listened at. */
typedef enum reach {
    REACH_HERE,   /**< This machine alone. */
    REACH_OTHERS, /**< Others, by that name or address. */
    REACH_ANY,    /**< It is all addresses of this machine, and none that one could dial. */
} reach;

static reach reach_of(const char *host) {
    static const char *const local_names[] = {"localhost", "ip6-localhost", "ip6-loopback"};
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    reach result = REACH_OTHERS;
    for (size_t i = 0; i < sizeof(local_names) / sizeof(local_names[0]); i++) {
        result = strcasecmp(host, local_names[i]) == 0 ? REACH_HERE : result;
    }
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return result; /* a name */
    }
    if (found->ai_family == AF_INET) {
        uint32_t number = ntohl(((const struct sockaddr_in *)(void *)found->ai_addr)->sin_addr.s_addr);
        result = number == INADDR_ANY ? REACH_ANY : number >> 24 == 127 ? REACH_HERE : REACH_OTHERS;
    } else if (found->ai_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(void *)found->ai_addr)->sin6_addr;
        result = IN6_IS_ADDR_UNSPECIFIED(six) ? REACH_ANY : IN6_IS_ADDR_LOOPBACK(six) ? REACH_HERE : REACH_OTHERS;
    }
    freeaddrinfo(found);
    return result;
}

/** Takes the brackets off an address of IPv6, where it has some. */
static void take_brackets(const char **host, char bare[HOST_MAX]) {
    size_t length = strlen(*host);
    if (length > 2 && length < HOST_MAX && **host == '[' && (*host)[length - 1] == ']') {
        snprintf(bare, HOST_MAX, "%.*s", (int)length - 2, *host + 1);
        *host = bare;
    }
}

static wherry_status write_token(server *s, wherry_error *error) {
    const char *path = s->options->token_file;
    if (!path) {
        return WHERRY_OK;
    }
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
        return wh_fail_error(error, WHERRY_SYSTEM, "the token cannot be written to %s", path);
    }
    s->wrote_token = true;
    bool good = dprintf(file, "%s\n", s->token) > 0;
    good = close(file) == 0 && good;
    return good ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "the token cannot be written to %s", path);
}

static wherry_status open_meeting(server *s, wherry_error *error) {
    wherry_group_options options;
    char address[512];
    bool six = strchr(s->options->listen, ':');
    snprintf(address, sizeof(address), "tcp://%s%s%s:%d?rank=0&size=%d&job=" WH_VISIT_JOB, six ? "[" : "",
             s->options->listen, six ? "]" : "", (int)s->options->port, WH_VISIT_PLACES);
    wherry_group_options_init(&options);
    options.secret = s->token;
    options.secret_size = strlen(s->token);
    options.wait_for = 1;
    options.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(address, &options, &s->group, error);
    return status == WHERRY_OK ? wherry_transport_create(s->group, NULL, &s->transport, error) : status;
}

static wherry_status tell_address(const server *s, wherry_error *error) {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    char size[WH_SIZE_TEXT_MAX];
    wherry_status status = wherry_group_meeting(s->group, meeting, error);
    if (status != WHERRY_OK) {
        return status;
    }
    bool local = reach_of(s->options->listen) == REACH_HERE;
    if (s->options->common.json) {
        wh_json json = {.out = stdout};
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "address", meeting);
        wh_json_text(&json, "token", s->token);
        wh_json_flag(&json, "this_machine_alone", local);
        wh_json_count(&json, "files", s->cargo.names);
        wh_json_count(&json, "bytes", s->cargo.bytes);
        wh_json_close(&json, '}');
    } else {
        printf("address  %s\ntoken    %s\n", meeting, s->token);
    }
    if (!s->options->common.quiet) {
        fprintf(stderr, "serving %zu file%s, %s, %llu tensors; %s\n", s->cargo.names, s->cargo.names == 1 ? "" : "s",
                wh_size_text(s->cargo.bytes, size), (unsigned long long)s->cargo.tensors,
                local ? "only this machine can reach it: --listen opens it to others"
                      : "other machines can reach it, and what they fetch is not encrypted");
    }
    return fflush(stdout) == 0 ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "the output cannot be written");
}

/** Takes in guests until it is ended. */
static wherry_status receive_guests(server *s, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t count = (uint64_t)s->options->count;
    while (status == WHERRY_OK && !wh_interrupted(NULL) && (!count || atomic_load(&s->fetched) < count)) {
        void *bytes;
        size_t size;
        int32_t rank;
        wherry_error none;
        if (atomic_load(&s->guests) >= GUESTS_MAX) {
            usleep(LISTEN_MS * 1000);
            continue;
        }
        status = wherry_group_receive(s->group, WHERRY_ANY_RANK, WH_VISIT_TAG, LISTEN_MS, &bytes, &size, &rank, &none);
        if (status == WHERRY_OK) {
            char wish = size == 1 ? *(char *)bytes : '\0';
            wherry_free(bytes);
            if (wish == WH_VISIT_BYTES || wish == WH_VISIT_STATES || wish == WH_VISIT_LOOK) {
                admit(s, rank, wish);
            }
        } else if (status == WHERRY_TIMED_OUT) {
            status = WHERRY_OK;
        } else {
            *error = none;
        }
    }
    return status;
}

static wherry_status serve(server *s, const wh_operands *operands, wherry_error *error) {
    wherry_status status = wh_cargo_open(&s->cargo, operands->items, (size_t)operands->count, error);
    if (status == WHERRY_OK && !wh_token_make(s->token)) {
        status = wh_fail_error(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    if (status == WHERRY_OK) {
        status = open_meeting(s, error);
    }
    if (status == WHERRY_OK) {
        status = write_token(s, error);
    }
    if (status == WHERRY_OK) {
        status = tell_address(s, error);
    }
    return status == WHERRY_OK ? receive_guests(s, error) : status;
}

static int run(int argc, char **argv) {
    serve_options options = {.listen = "127.0.0.1"};
    wh_operands operands;
    wherry_error error;
    char bare[HOST_MAX];
    int code;
    if (!wh_options_parse(&wh_command_serve, argc, argv, &options, &operands, &code)) {
        return code;
    }
    take_brackets(&options.listen, bare);
    if (reach_of(options.listen) == REACH_ANY) {
        return wh_fail_command(
            &wh_command_serve, WH_EXIT_USAGE,
            "--listen takes the name, or one address, of this machine, at which others dial it; '%s' "
            "is no such address",
            options.listen);
    }
    server s = {.options = &options};
    pthread_mutex_init(&s.lock, NULL);
    wh_interrupt_catch();
    wh_set_log(&options.common);
    wherry_status status = serve(&s, &operands, &error);
    while (atomic_load(&s.guests)) { /* they end by the same signal, or when they are done */
        usleep(10000);
    }
    wherry_transport_destroy(s.transport);
    wherry_group_leave(s.group);
    if (s.wrote_token) {
        unlink(options.token_file);
    }
    wh_cargo_close(&s.cargo);
    pthread_mutex_destroy(&s.lock);
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    return status == WHERRY_OK ? WH_EXIT_OK : wh_fail_status(&wh_command_serve, NULL, &error);
}
