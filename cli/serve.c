/*
 * `wherry serve`: offers files to every client that has the token, one thread per client.
 *
 *  1. Only clients with the token get an answer. The handshake of the group ensures this.
 *  2. The files are checked at each request. The client is refused if a file has changed.
 *  3. A signal cancels all transfers. The command returns when all have ended.
 */
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include "client.h"
#include "command.h"
#include "file_set.h"
#include "output.h"

enum {
    POLL_MS = 200,     /**< How often to check for a signal and for the limit of --count. */
    ANSWER_MS = 10000, /**< Time limit for sending an answer of a few bytes. */
    CLIENTS_MAX = 256, /**< Maximum number of clients that are served at the same time. */
    TOKEN_BYTES = 24,  /**< Random bytes in a token. The token has twice as many characters. */
    HOST_MAX = 256,
};

typedef struct serve_options {
    wh_common common;
    const char *listen;
    int64_t port;
    const char *token_file;
    int64_t count;
} serve_options;

static const wh_option options_taken[] = {
    WH_OPTION(serve_options, listen, TEXT, "listen", 'l', "HOST",
              "name or address of this machine that other machines connect to (default 127.0.0.1: only this machine "
              "can connect)"),
    WH_OPTION(serve_options, port, NUMBER, "port", 'p', "N", "TCP port (default 0: any free port)", .most = 65535),
    WH_OPTION(serve_options, token_file, FILE, "token-file", 't', "FILE",
              "also write the token to a new FILE that only you can read, for `wherry fetch --token-file`; FILE is "
              "removed at exit"),
    WH_OPTION(serve_options, count, NUMBER, "count", 'n', "N",
              "exit after N successful fetches (default 0: serve until a signal)", .most = 1000000),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_serve = {
    .name = "serve",
    .summary = "offer checkpoint files to `wherry fetch`",
    .operands = "FILE...",
    .least = 1,
    .most = -1,
    .text = "Prints an address and a token, then serves the files to every client that has both, until Ctrl-C. The "
            "token is random and valid while this command runs. Both sides prove that they know it. A client without "
            "it learns nothing, not even the names of tensors.\n\n"
            "Without --listen, only this machine can connect. Data on the network is checked for damage but not "
            "encrypted: use a network that you trust, or a tunnel.\n\n"
            "A FILE is a safetensors file, the index of a sharded checkpoint (.safetensors.index.json; its shards are "
            "served too), or a .wherry file. Do not write to the files while they are served. Replacing a file by "
            "renaming is safe.",
    .options = options_taken,
    .json = true,
    .examples = "wherry serve model.safetensors\n"
                "wherry serve --listen trainer7 --port 29700 model.safetensors.index.json\n"
                "# for a script: the token in a file, the address as JSON\n"
                "wherry serve --json --token-file token model.safetensors > address.json\n",
    WH_DEFAULTS(serve_options, .listen = "127.0.0.1"),
    .run = run,
};

typedef struct server {
    const serve_options *options;
    wh_file_set files;
    wherry_group *group;
    wherry_transport *transport;
    char token[WH_TOKEN_MAX];
    bool wrote_token;
    atomic_uint clients; /**< Number of clients that are being served, each by a thread. */
    atomic_uint fetched; /**< Number of successful fetches. */
} server;

/* ---- one client ---- */

typedef struct request {
    server *server;
    int32_t rank;
    char kind;
} request;

static void log_request(const request *r, wherry_status status, const wherry_stats *stats, const wherry_error *error) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char size[WH_SIZE_TEXT_MAX];
    unsigned long long moved = (unsigned long long)stats->bytes_moved;
    if (r->kind == WH_REQUEST_LIST || r->server->options->common.quiet) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (status == WHERRY_OK) {
        fprintf(stderr, "client %d fetched %s (%llu bytes) in %.1f s", (int)r->rank,
                wh_size_text(stats->bytes_moved, size), moved, stats->data_seconds);
        fprintf(stderr, "%s%s\n", *stats->lane ? " over " : "", stats->lane);
    } else {
        fprintf(stderr, "client %d failed after %s (%llu bytes): ", (int)r->rank,
                wh_size_text(stats->bytes_moved, size), moved);
        wh_print_escaped(stderr, error->message);
        fputc('\n', stderr);
    }
    pthread_mutex_unlock(&lock);
}

static void *serve_client(void *context) {
    request *r = context;
    server *s = r->server;
    wherry_transfer_options options;
    wherry_outcome outcome = {.stats = {.lane = ""}};
    wherry_error error;
    wherry_transfer_options_init(&options);
    options.timeout_ms = -1;
    options.interrupt = wh_interrupted;
    wherry_status status = wh_file_set_check(&s->files, &error);
    const char *answer = status == WHERRY_OK ? "" : error.message;
    wherry_group_send(s->group, r->rank, WH_TAG_ANSWER, answer, strlen(answer), ANSWER_MS, NULL);
    const wherry_value *state = r->kind == WH_REQUEST_BYTES ? s->files.bytes : s->files.states;
    WH_THEN(status, wherry_checkpoint_send(s->transport, &r->rank, 1, state, &options, &outcome, &error));
    log_request(r, status, &outcome.stats, &error);
    if (status == WHERRY_OK && r->kind != WH_REQUEST_LIST) {
        atomic_fetch_add(&s->fetched, 1);
    }
    free(r);
    atomic_fetch_sub(&s->clients, 1);
    return NULL;
}

/** Starts a thread for a client. If that fails, the client gets no answer and times out. */
static void start_client(server *s, int32_t rank, char kind) {
    pthread_attr_t attributes;
    pthread_t thread;
    request *r = malloc(sizeof(*r));
    if (!r) {
        return;
    }
    *r = (request){s, rank, kind};
    atomic_fetch_add(&s->clients, 1);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, serve_client, r) != 0) {
        atomic_fetch_sub(&s->clients, 1);
        free(r);
    }
    pthread_attr_destroy(&attributes);
}

static wherry_status accept_clients(server *s, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    uint64_t count = (uint64_t)s->options->count;
    while (status == WHERRY_OK && !wh_interrupted(NULL) && (!count || atomic_load(&s->fetched) < count)) {
        void *bytes;
        size_t size;
        int32_t rank;
        if (atomic_load(&s->clients) >= CLIENTS_MAX) {
            usleep(POLL_MS * 1000);
            continue;
        }
        status = wherry_group_receive(s->group, WHERRY_ANY_RANK, WH_TAG_REQUEST, POLL_MS, &bytes, &size, &rank, error);
        if (status == WHERRY_OK) {
            char kind = size == 1 ? *(char *)bytes : '\0';
            wherry_free(bytes);
            if (kind == WH_REQUEST_BYTES || kind == WH_REQUEST_STATES || kind == WH_REQUEST_LIST) {
                start_client(s, rank, kind);
            }
        } else if (status == WHERRY_TIMED_OUT) {
            status = WHERRY_OK;
        }
    }
    return status;
}

/* ---- the server ---- */

/** Which machines can connect to an address. */
typedef enum reach {
    REACH_LOCAL,  /**< Only this machine. */
    REACH_REMOTE, /**< Other machines as well. */
    REACH_ANY,    /**< The wildcard address, to which no client can connect. */
} reach;

static reach reach_of(const char *host) {
    static const char *const local_names[] = {"localhost", "ip6-localhost", "ip6-loopback"};
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    reach result = REACH_REMOTE;
    for (size_t i = 0; i < sizeof(local_names) / sizeof(local_names[0]); i++) {
        result = strcasecmp(host, local_names[i]) == 0 ? REACH_LOCAL : result;
    }
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return result; /* the host is a name, not a numeric address */
    }
    if (found->ai_family == AF_INET) {
        uint32_t number = ntohl(((const struct sockaddr_in *)(void *)found->ai_addr)->sin_addr.s_addr);
        result = number == INADDR_ANY ? REACH_ANY : number >> 24 == 127 ? REACH_LOCAL : REACH_REMOTE;
    } else if (found->ai_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(void *)found->ai_addr)->sin6_addr;
        result = IN6_IS_ADDR_UNSPECIFIED(six) ? REACH_ANY : IN6_IS_ADDR_LOOPBACK(six) ? REACH_LOCAL : REACH_REMOTE;
    }
    freeaddrinfo(found);
    return result;
}

static wherry_status create_token(server *s, wherry_error *error) {
    unsigned char bytes[TOKEN_BYTES];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot get random numbers");
    }
    for (size_t i = 0; i < sizeof(bytes); i++) {
        snprintf(s->token + 2 * i, 3, "%02x", bytes[i]);
    }
    return WHERRY_OK;
}

static wherry_status write_token(server *s, wherry_error *error) {
    const char *path = s->options->token_file;
    if (!path) {
        return WHERRY_OK;
    }
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    s->wrote_token = file >= 0;
    bool good = file >= 0 && dprintf(file, "%s\n", s->token) > 0;
    good = file >= 0 && close(file) == 0 && good;
    return good ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "cannot write the token to %s", path);
}

/** Fails if the port is in use. Joining would not fail, because any rank may host the group. */
static wherry_status check_port(const serve_options *options, wherry_error *error) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16];
    wherry_status status = WHERRY_OK;
    snprintf(port, sizeof(port), "%d", (int)options->port);
    if (options->port && getaddrinfo(options->listen, port, &hints, &found) == 0) {
        int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        if (bind(probe, found->ai_addr, found->ai_addrlen) != 0) {
            status = wh_fail_error(error, WHERRY_SYSTEM, "cannot listen at %s, port %s", options->listen, port);
        }
        close(probe);
        freeaddrinfo(found);
    }
    return status;
}

static wherry_status open_group(server *s, wherry_error *error) {
    wherry_group_options options;
    char address[512];
    bool six = strchr(s->options->listen, ':');
    snprintf(address, sizeof(address), "tcp://%s%s%s:%d?rank=0&size=%d&job=" WH_SERVE_JOB, six ? "[" : "",
             s->options->listen, six ? "]" : "", (int)s->options->port, WH_SERVE_RANKS);
    wherry_group_options_init(&options);
    options.secret = s->token;
    options.secret_size = strlen(s->token);
    options.wait_for = 1;
    options.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(address, &options, &s->group, error);
    WH_THEN(status, wherry_transport_create(s->group, NULL, &s->transport, error));
    return status;
}

static wherry_status print_address(const server *s, wherry_error *error) {
    char address[WHERRY_GROUP_MEETING_MAX];
    char size[WH_SIZE_TEXT_MAX];
    wherry_status status = wherry_group_meeting(s->group, address, error);
    if (status != WHERRY_OK) {
        return status;
    }
    bool local = reach_of(s->options->listen) == REACH_LOCAL;
    if (s->options->common.json) {
        wh_json json = {.out = stdout};
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "address", address);
        wh_json_text(&json, "token", s->token);
        wh_json_flag(&json, "this_machine_alone", local);
        wh_json_count(&json, "files", s->files.files);
        wh_json_count(&json, "bytes", s->files.file_bytes);
        wh_json_close(&json, '}');
    } else {
        printf("address  %s\ntoken    %s\n", address, s->token);
    }
    if (!s->options->common.quiet) {
        fprintf(stderr, "serving %zu file%s, %s, %llu tensor%s; %s\n", s->files.files, s->files.files == 1 ? "" : "s",
                wh_size_text(s->files.file_bytes, size), (unsigned long long)s->files.tensors,
                s->files.tensors == 1 ? "" : "s",
                local ? "only this machine can connect (use --listen for other machines)"
                      : "other machines can connect; data is not encrypted");
    }
    return fflush(stdout) == 0 ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "cannot write the output");
}

static int run(void *context, const wh_operands *operands) {
    serve_options *options = context;
    wherry_error error;
    char bare[HOST_MAX];
    size_t length = strlen(options->listen);
    if (length > 2 && length < HOST_MAX && *options->listen == '[' && options->listen[length - 1] == ']') {
        /* Remove the brackets of an address such as [::1]. */
        snprintf(bare, sizeof(bare), "%.*s", (int)length - 2, options->listen + 1);
        options->listen = bare;
    }
    if (reach_of(options->listen) == REACH_ANY) {
        return wh_fail_command(&wh_command_serve, WH_EXIT_USAGE,
                               "--listen takes a name or address of this machine that others can connect to, not '%s'",
                               options->listen);
    }
    server s = {.options = options};
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_ERROR);
    wherry_status status = wh_file_set_open(&s.files, operands->items, (size_t)operands->count, &error);
    WH_THEN(status, create_token(&s, &error));
    WH_THEN(status, check_port(options, &error));
    WH_THEN(status, open_group(&s, &error));
    WH_THEN(status, write_token(&s, &error));
    WH_THEN(status, print_address(&s, &error));
    WH_THEN(status, accept_clients(&s, &error));
    while (atomic_load(&s.clients)) { /* wait for all clients; a signal cancels transfers */
        usleep(10000);
    }
    wherry_transport_destroy(s.transport);
    wherry_group_leave(s.group);
    if (s.wrote_token) {
        unlink(options->token_file);
    }
    wh_file_set_close(&s.files);
    return wh_interrupt_code() ? wh_interrupt_code() : wh_end_command(&wh_command_serve, status, &error);
}
