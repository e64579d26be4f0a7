/*
 * `wherry serve`: offers files to every client that has the token, one thread per client.
 *
 *  1. Only clients with the token get an answer. The handshake of the group ensures this.
 *  2. The files are checked at each request, and again before the client may rely on what it has
 *     received. If a file has changed or got shorter, the client gets an error.
 *  3. A signal cancels all transfers. The command returns when all have ended.
 */
#include <errno.h>
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
    HOST_MAX = 256,
};

typedef struct serve_options {
    wh_common common;
    const char *listen;
    const char *bind;
    const char *advertise;
    int64_t port;
    const char *token_file;
    const char *identity;
    const char *certificate;
    const char *key;
    int64_t count;
} serve_options;

static const wh_option options_taken[] = {
    WH_OPTION(serve_options, listen, TEXT, "listen", 'l', "HOST",
              "name or address of this machine that other machines connect to (default 127.0.0.1: only this machine "
              "can connect)"),
    WH_OPTION(serve_options, bind, TEXT, "bind", 0, "HOST",
              "listen at this name or address instead; 0.0.0.0 is all of this machine's"),
    WH_OPTION(serve_options, advertise, TEXT, "advertise", 0, "HOST[:PORT]",
              "tell clients to connect to this address instead, which leads here: for containers and NAT (without "
              "--bind, listens at 0.0.0.0)"),
    WH_OPTION(serve_options, port, NUMBER, "port", 'p', "N", "TCP port (default 0: any free port)", .most = 65535),
    WH_OPTION(serve_options, token_file, FILE, "token-file", 't', "FILE",
              "write the token to a new FILE that only you can read, for `wherry fetch --token-file`, instead of "
              "printing it; FILE is removed at exit"),
    WH_OPTION(serve_options, identity, FILE, "identity", 'i', "FILE",
              "keep the identity of this server in FILE, which is made if it does not exist: the token then stays the "
              "same; servers of the same files can share it"),
    WH_OPTION(serve_options, certificate, FILE, "cert", 0, "FILE",
              "prove this server with the certificate in this PEM file, for clients with `--ca`"),
    WH_OPTION(serve_options, key, FILE, "key", 0, "FILE", "the private key of --cert (default: in the same file)"),
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
    .text = "Prints an address and a token, then serves the files to every client that has both, until Ctrl-C. All "
            "connections to other machines are encrypted (TLS 1.3). The token tells clients which server they want, "
            "and proves to the server that they may read. A client without it learns nothing, not even the names of "
            "tensors. Nobody can become the server with it.\n\n"
            "The token is valid while this command runs, unless --identity keeps it. Without --listen, only this "
            "machine can connect.\n\n"
            "A FILE is a safetensors file, the index of a sharded checkpoint (.safetensors.index.json; its shards are "
            "served too), or a .wherry file. Do not write to the files while they are served: fetches then fail. "
            "Replacing a file by renaming another one over it is safe.",
    .options = options_taken,
    .json = true,
    .examples = "wherry serve model.safetensors\n"
                "wherry serve --listen trainer7 --port 29700 model.safetensors.index.json\n"
                "# two servers of the same files, with one token\n"
                "wherry serve --identity id --listen trainer7 --port 29700 model.safetensors\n"
                "# in a container whose port 29700 is port 8000 of trainer7\n"
                "wherry serve --port 29700 --advertise trainer7:8000 model.safetensors\n"
                "# for a script: the token in a file, the address as JSON\n"
                "wherry serve --json --token-file token model.safetensors > address.json\n",
    WH_DEFAULTS(serve_options, .listen = NULL),
    .run = run,
};

typedef struct server {
    const serve_options *options;
    char bind[HOST_MAX];      /**< Where to listen. An IPv6 address has no brackets. */
    char advertise[HOST_MAX]; /**< What clients connect to, */
    int64_t advertised_port;  /**< and the port there; 0: the one that this process listens at. */
    wh_file_set files;
    wherry_group *group;
    wherry_transport *transport;
    char token[WH_TOKEN_MAX];
    bool wrote_token;
    unsigned places;     /**< Number of places that were assigned. */
    atomic_uint clients; /**< Number of clients that are being served, each by a thread. */
    atomic_uint fetched; /**< Number of successful fetches. */
} server;

/* ---- one client ---- */

typedef struct request {
    server *server;
    int32_t rank;
    char kind;
    bool digest; /**< True if the answer must have the digest of the files. */
} request;

static void answer(server *s, int32_t rank, char kind, const char *text, size_t size) {
    char *bytes = wh_need(malloc(size + 1));
    *bytes = kind;
    memcpy(bytes + 1, text, size);
    wherry_group_send(s->group, rank, WH_TAG_ANSWER, bytes, size + 1, ANSWER_MS, NULL);
    free(bytes);
}

static void answer_wait(void *context) {
    const request *r = context;
    answer(r->server, r->rank, WH_ANSWER_WAIT, "", 0);
}

static void log_request(const request *r, wherry_status status, const wherry_outcome *outcome,
                        const wherry_error *error) {
    const wherry_stats *stats = &outcome->stats;
    char size[WH_SIZE_TEXT_MAX];
    char speed[WH_SPEED_TEXT_MAX];
    char exact[40] = "";
    int number = (int)r->rank - WH_LOBBY_RANKS;
    unsigned long long moved = (unsigned long long)stats->bytes_moved;
    if (moved >= 1024) { /* Otherwise the size is exact. */
        snprintf(exact, sizeof(exact), " (%llu bytes)", moved);
    }
    if (r->kind == WH_REQUEST_LIST || r->server->options->common.quiet) {
        return;
    }
    /* A client that takes nothing has its own reasons, which are no failure here. */
    uint32_t given_up = status == WHERRY_ABORTED ? error->reason : 0;
    bool refusal = given_up && !moved && given_up != -WHERRY_CANCELLED && given_up != -WHERRY_TIMED_OUT;
    /* The library's message names a rank, which the user of this command does not know. */
    const char *why = status == WHERRY_CANCELLED   ? "this server was stopped"
                      : status == WHERRY_PEER_LOST ? "it ended, or the connection to it broke"
                      : status == WHERRY_ABORTED   ? "it gave up; its own output says why"
                                                   : error->message;
    if (status == WHERRY_OK && outcome->not_needed) {
        wh_print_text(stderr, "client %d got everything from other servers", number);
    } else if (status == WHERRY_OK && !moved) {
        wh_print_text(stderr, "client %d had everything already", number);
    } else if (status == WHERRY_OK) {
        wh_print_text(stderr, "client %d fetched %s%s%s%s%s", number, wh_size_text(moved, size), exact,
                      wh_speed_text(moved, stats->data_seconds, speed), *stats->lane ? " over " : "", stats->lane);
    } else if (refusal) {
        wh_print_text(stderr, "client %d did not take the files; its own output says why", number);
    } else {
        wh_print_text(stderr, "client %d failed after %s%s: %s", number, wh_size_text(moved, size), exact, why);
    }
}

static wherry_status check_files(void *context, wherry_error *error) {
    return wh_file_set_check(context, error);
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
    /* UCX opens ports of its own, which a container or NAT does not let in. */
    options.lanes = strcmp(s->bind, s->advertise) == 0 ? NULL : "^ucx";
    /* A client that has died since it asked does not come back. */
    options.flags = WHERRY_SEND_PRESENT;
    options.check = check_files;
    options.check_context = &s->files;
    wherry_status status = wh_file_set_check(&s->files, &error);
    if (r->digest) {
        WH_THEN(status, wh_file_set_digest(&s->files, answer_wait, r, &error));
        options.step = status == WHERRY_OK ? wh_file_set_step(s->files.digest) : WHERRY_STEP_ANY;
    }
    const char *text = status != WHERRY_OK ? error.message : r->digest ? s->files.digest : "";
    answer(s, r->rank, status == WHERRY_OK ? WH_ANSWER_ACCEPTED : WH_ANSWER_REFUSED, text, strlen(text));
    const wherry_value *state = r->kind == WH_REQUEST_BYTES ? s->files.bytes : s->files.states;
    WH_THEN(status, wherry_checkpoint_send(s->transport, &r->rank, 1, state, &options, &outcome, &error));
    log_request(r, status, &outcome, &error);
    if (status == WHERRY_OK && r->kind != WH_REQUEST_LIST) {
        atomic_fetch_add(&s->fetched, 1);
    }
    free(r);
    atomic_fetch_sub(&s->clients, 1);
    return NULL;
}

/** Starts a thread for a client. If that fails, the client gets no answer and times out. */
static void start_client(server *s, int32_t rank, char kind, bool digest) {
    pthread_attr_t attributes;
    pthread_t thread;
    request *r = malloc(sizeof(*r));
    if (!r) {
        return;
    }
    *r = (request){s, rank, kind, digest};
    atomic_fetch_add(&s->clients, 1);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, serve_client, r) != 0) {
        atomic_fetch_sub(&s->clients, 1);
        free(r);
    }
    pthread_attr_destroy(&attributes);
}

/**
 * Assigns the next place. All places are used before one is used again, so a client that is slow
 * to take its place still finds it free.
 */
static void assign_place(server *s, int32_t rank) {
    enum { PLACES = WH_SERVE_RANKS - WH_LOBBY_RANKS - 1 };
    const wherry_value *bytes = wh_file_set_part(s->files.bytes, "bytes");
    char *text = NULL;
    size_t size = 0;
    int32_t place = 0;
    for (int i = 0; i < PLACES && (!place || wherry_group_alive(s->group, place)); i++) {
        place = WH_LOBBY_RANKS + 1 + (int32_t)(s->places++ % PLACES);
    }
    FILE *out = wh_need(open_memstream(&text, &size));
    fprintf(out, "%d%c", (int)place, '\0');
    for (size_t i = 0; i < wherry_dict_count(bytes); i++) {
        fprintf(out, "%s%c", wh_file_set_name(bytes, i), '\0');
    }
    fclose(out);
    answer(s, rank, WH_ANSWER_ACCEPTED, wh_need(text), size);
    free(text);
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
            char kind = size == 2 ? *(char *)bytes : '\0';
            bool digest = size == 2 && ((char *)bytes)[1];
            wherry_free(bytes);
            if (kind == WH_REQUEST_PLACE) {
                assign_place(s, rank);
            } else if (rank > WH_LOBBY_RANKS &&
                       (kind == WH_REQUEST_BYTES || kind == WH_REQUEST_STATES || kind == WH_REQUEST_LIST)) {
                start_client(s, rank, kind, digest);
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
        return result; /* The host is a name, not a numeric address. */
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

static wherry_status write_token(server *s, wherry_error *error) {
    const char *path = s->options->token_file;
    if (!path) {
        return WHERRY_OK;
    }
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    s->wrote_token = file >= 0;
    bool good = file >= 0 && dprintf(file, "%s\n", s->token) > 0;
    good = file >= 0 && close(file) == 0 && good;
    if (file < 0 && errno == EEXIST) {
        wh_fail_error(error, WHERRY_SYSTEM, "%s", path);
        snprintf(error->message, sizeof(error->message),
                 "the token file %.600s exists; remove it, unless another `wherry serve` is running with it", path);
        return WHERRY_SYSTEM;
    }
    return good ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "cannot write the token to %s", path);
}

/** Splits HOST or HOST:PORT, with or without brackets. @return false if that is not its form. */
static bool split_host(const char *text, char host[HOST_MAX], int64_t *port_p) {
    bool brackets = *text == '[';
    const char *end = brackets ? strchr(text, ']') : strchr(text, ':');
    if (!brackets && end && strchr(end + 1, ':')) {
        end = NULL; /* This is an IPv6 address without brackets, and so without a port. */
    }
    size_t size = end ? (size_t)(end - text) - brackets : strlen(text);
    const char *rest = end ? end + brackets : "";
    char *after = NULL;
    *port_p = *rest == ':' ? strtol(rest + 1, &after, 10) : 0;
    bool good = after ? !*after && *port_p > 0 && *port_p <= UINT16_MAX : !*rest;
    return snprintf(host, HOST_MAX, "%.*s", (int)size, text + brackets) < HOST_MAX && size > 0 && good &&
           !(brackets && !end);
}

/** Decides where to listen and what clients connect to. @return false after printing an error. */
static bool find_hosts(server *s, const serve_options *options) {
    const char *listen = options->listen ? options->listen : options->advertise ? "0.0.0.0" : "127.0.0.1";
    const char *bind = options->bind ? options->bind : listen;
    const char *given[] = {bind, options->advertise ? options->advertise : options->listen ? listen : bind};
    char *hosts[] = {s->bind, s->advertise};
    for (int i = 0; i < 2; i++) {
        bool with_port = i == 1 && options->advertise;
        if (!split_host(given[i], hosts[i], &s->advertised_port) || (s->advertised_port && !with_port)) {
            wh_fail_command(&wh_command_serve, 0, "'%s' is not a name or address of a machine%s", given[i],
                            with_port ? ", with or without a port" : "");
            return false;
        }
    }
    if (reach_of(s->advertise) == REACH_ANY) {
        wh_fail_command(&wh_command_serve, 0,
                        "clients cannot connect to %s; use --listen or --advertise with a name or address of this "
                        "machine",
                        s->advertise);
        return false;
    }
    return true;
}

static wherry_status open_group(server *s, wherry_error *error) {
    wherry_group_options options;
    char address[4 * HOST_MAX];
    bool six = strchr(s->bind, ':');
    bool outer_six = strchr(s->advertise, ':');
    /* In fe80::1%eth0, the '%' must be escaped in a value of the address. */
    int zone = (int)strcspn(s->bind, "%");
    snprintf(address, sizeof(address), "tcp://%s%s%s:%d?rank=0&size=%d&job=" WH_SERVE_JOB "&bind=%s%.*s%s%s%s:%d",
             outer_six ? "[" : "", s->advertise, outer_six ? "]" : "",
             (int)(s->advertised_port ? s->advertised_port : s->options->port), WH_SERVE_RANKS, six ? "[" : "", zone,
             s->bind, s->bind[zone] ? "%25" : "", s->bind[zone] ? s->bind + zone + 1 : "", six ? "]" : "",
             (int)s->options->port);
    wherry_group_options_init(&options);
    options.identity = s->options->identity ? s->options->identity : "";
    options.tls_certificate = s->options->certificate;
    options.tls_key = s->options->key;
    options.encrypt = WHERRY_ENCRYPT_ALL;
    options.wait_for = 1;
    options.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(address, &options, &s->group, error);
    WH_THEN(status, wherry_group_token(s->group, s->token, error));
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
    bool local = reach_of(s->bind) == REACH_LOCAL;
    if (s->options->common.json) {
        wh_json json = {.out = stdout};
        wh_json_begin(&json);
        wh_json_text(&json, "address", address);
        wh_json_text(&json, "token", s->wrote_token ? NULL : s->token);
        wh_json_flag(&json, "only_this_machine", local);
        wh_json_count(&json, "files", s->files.files);
        wh_json_count(&json, "bytes", s->files.file_bytes);
        wh_json_close(&json, '}');
    } else {
        printf("address  %s\ntoken    %s%s\n", address, s->wrote_token ? "in " : "",
               s->wrote_token ? s->options->token_file : s->token);
    }
    if (!s->options->common.quiet) {
        wh_print_text(stderr, "serving %zu file%s, %s, %llu tensor%s; %s", s->files.files,
                      s->files.files == 1 ? "" : "s", wh_size_text(s->files.file_bytes, size),
                      (unsigned long long)s->files.tensors, s->files.tensors == 1 ? "" : "s",
                      local ? "only this machine can connect (use --listen for other machines)"
                            : "other machines can connect; everything is encrypted");
    }
    return fflush(stdout) == 0 ? WHERRY_OK : wh_fail_error(error, WHERRY_SYSTEM, "cannot write the output");
}

static int run(void *context, const wh_operands *operands) {
    const serve_options *options = context;
    wherry_error error;
    server s = {.options = options, .files = {.digesting = PTHREAD_MUTEX_INITIALIZER}};
    if (!find_hosts(&s, options)) {
        return WH_EXIT_USAGE;
    }
    wh_interrupt_catch();
    wh_set_log(&options->common, options->common.quiet ? WHERRY_LOG_ERROR : WHERRY_LOG_WARN);
    wherry_status status = wh_file_set_open(&s.files, operands->items, (size_t)operands->count, &error);
    if (status == WHERRY_OK) {
        wh_file_set_guard(&s.files);
    }
    WH_THEN(status, open_group(&s, &error));
    WH_THEN(status, write_token(&s, &error));
    WH_THEN(status, print_address(&s, &error));
    WH_THEN(status, accept_clients(&s, &error));
    while (atomic_load(&s.clients)) { /* This waits for all clients. A signal cancels transfers. */
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
