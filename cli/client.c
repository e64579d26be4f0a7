#include "client.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "output.h"
#include "probe.h"

enum {
    WORDS_MAX = 8192, /**< Maximum size of all tokens. */
    OTHERS_S = 5,     /**< How long to wait for further servers when one has answered. */
    BUSY_S = 10,      /**< How long a server that digests its files may be silent. */
    SEND_MS = 5000,   /**< Time limit for sending a request. */
    POLL_MS = 200,    /**< How often to check for a signal. */
    SAY_FIRST_S = 3,  /**< After this long, say that a server has not answered. */
    SAY_NEXT_S = 30,  /**< After that, say it again each time this long has passed. */
};

/* ---- addresses and tokens ---- */

bool wh_is_address(const char *text) {
    return strncmp(text, "tcp://", 6) == 0 || strncmp(text, "unix://", 7) == 0;
}

bool wh_check_address(const wh_command *command, const char *text) {
    size_t length = strlen(text);
    size_t digits = 0;
    while (digits < length && text[length - 1 - digits] >= '0' && text[length - 1 - digits] <= '9') {
        digits++;
    }
    unsigned long number = strtoul(text + length - digits, NULL, 10);
    bool port = number > 0 && number <= UINT16_MAX && digits < length && text[length - 1 - digits] == ':';
    if (wh_is_address(text) && !strchr(text, '?') && (port || strncmp(text, "tcp://", 6) != 0)) {
        return true;
    }
    wh_fail_command(command, 0, "'%s' is not an address; use the one that `wherry serve` prints: tcp://HOST:PORT",
                    text);
    return false;
}

/** Reads the words of a text: a line of input, or a file. */
static wherry_status read_words(FILE *file, const char *from, bool line, char words[WORDS_MAX], wherry_error *error) {
    size_t length = 0;
    int next;
    while (length < WORDS_MAX && (next = fgetc(file)) != EOF && !(line && next == '\n')) {
        words[length++] = (char)next;
    }
    if (length == WORDS_MAX) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the text in %s is too long for a token", from);
    }
    words[length] = '\0';
    return WHERRY_OK;
}

static wherry_status prompt(char words[WORDS_MAX], wherry_error *error) {
    struct termios before;
    FILE *terminal = fopen("/dev/tty", "r+e");
    if (!terminal) {
        return wh_fail_error(
            error, WHERRY_INVALID_ARGUMENT,
            "no token; pass the token that `wherry serve` prints, with --token-file or in WHERRY_TOKEN");
    }
    bool hidden = tcgetattr(fileno(terminal), &before) == 0;
    if (hidden) {
        struct termios silent = before;
        silent.c_lflag &= ~(tcflag_t)ECHO;
        /* Turn echo off before the prompt is printed, because TCSAFLUSH discards pending input. */
        tcsetattr(fileno(terminal), TCSAFLUSH, &silent);
    }
    fputs("Token: ", terminal);
    fflush(terminal);
    wherry_status status = read_words(terminal, "the input", true, words, error);
    if (hidden) {
        tcsetattr(fileno(terminal), TCSAFLUSH, &before);
        fputs("\n", terminal);
    }
    fclose(terminal);
    return status;
}

/** Gives each client its token. */
static wherry_status read_tokens(wh_client *clients, size_t count, const char *path, wherry_error *error) {
    static const char separators[] = " \t\r\n,";
    const char *set = getenv("WHERRY_TOKEN");
    const char *from = path ? path : set && *set ? "WHERRY_TOKEN" : "the input";
    char words[WORDS_MAX];
    wherry_status status = WHERRY_OK;
    if (path) {
        FILE *file = fopen(path, "re");
        if (!file) {
            return wh_fail_error(error, WHERRY_SYSTEM, "cannot read the token file %s", path);
        }
        status = read_words(file, path, false, words, error);
        fclose(file);
    } else if (!set || !*set) {
        status = prompt(words, error);
    } else if (snprintf(words, WORDS_MAX, "%s", set) >= WORDS_MAX) {
        status = wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "WHERRY_TOKEN is too long for a token");
    }
    const char *word = words;
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        const char *next = word + strspn(word, separators);
        word = *next ? next : word; /* The last token is for all further servers. */
        size_t length = strcspn(word, separators);
        if (!length) {
            status = wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "there is no token in %s", from);
        } else if (length >= WH_TOKEN_MAX) {
            status = wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "a word in %s is too long for a token", from);
        } else {
            memcpy(clients[i].token, word, length);
            clients[i].token[length] = '\0';
        }
        word += i + 1 < count && word[length + strspn(word + length, separators)] ? length : 0;
    }
    return status;
}

/* ---- joining ---- */

/** Servers that are being connected to. */
typedef struct connecting {
    const wh_patience *patience;
    /** When to stop waiting for the others, in seconds of wh_clock; 0 before a server answers. */
    _Atomic double until;
} connecting;

static bool must_stop(void *context) {
    double until = atomic_load(&((const connecting *)context)->until);
    return wh_interrupted(NULL) || (until > 0 && wh_clock() > until);
}

/** Fails if no process listens at the address, because joining would wait for one. */
static wherry_status knock(const wh_client *client, const wh_patience *patience, wherry_error *error) {
    double seconds;
    bool refused =
        strncmp(client->address, "tcp://", 6) == 0 && !wh_connect(client->address, &seconds) && errno == ECONNREFUSED;
    return refused ? wh_fail_error(error, WHERRY_PEER_LOST,
                                   "no server at %s: connection refused; start `wherry serve` there%s", client->address,
                                   patience->can_wait ? ", or use --wait to wait for it" : "")
                   : WHERRY_OK;
}

static wherry_status join(wh_client *client, connecting *all, unsigned rank, wherry_error *error) {
    wherry_group_options options;
    char full[1024];
    int length =
        snprintf(full, sizeof(full), "%s?rank=%u&size=%d&job=" WH_SERVE_JOB, client->address, rank, WH_SERVE_RANKS);
    if (length < 0 || (size_t)length >= sizeof(full)) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the address is too long");
    }
    wherry_group_options_init(&options);
    options.timeout_ms = (uint32_t)(all->patience->timeout_s * 1000);
    options.token = client->token;
    options.tls_ca = all->patience->ca;
    options.encrypt = WHERRY_ENCRYPT_ALL;
    options.flags = WHERRY_JOIN_CLIENT;
    options.wait_for = 2;
    options.interrupt = must_stop;
    options.interrupt_context = all;
    wherry_status status = wherry_group_join(full, &options, &client->group, error);
    if (status == WHERRY_BAD_SECRET) {
        char said[sizeof(error->message)];
        memcpy(said, error->message, sizeof(said));
        wh_fail_error(error, status, "%s is not the server of this token, or refuses it: %.500s", client->address,
                      said);
    } else if (status == WHERRY_CANCELLED) {
        wh_fail_error(error, status, "%s did not answer within %d s after another server", client->address, OTHERS_S);
    } else if (status == WHERRY_TIMED_OUT) {
        char said[sizeof(error->message)];
        memcpy(said, error->message, sizeof(said));
        wh_fail_error(error, status, "no server at %s: %.500s", client->address, said);
    }
    return status;
}

/* ---- requests ---- */

static wherry_status send_request(const wh_client *client, char request, bool digest, wherry_error *error) {
    const char bytes[] = {request, (char)digest};
    return wherry_group_send(client->group, 0, WH_TAG_REQUEST, bytes, sizeof(bytes), SEND_MS, error);
}

/** Takes an answer of one server. @return WHERRY_TIMED_OUT also if the server is still busy. */
static wherry_status take_answer(const wh_client *client, char **text_p, bool *busy_p, wherry_error *error) {
    void *bytes = NULL;
    size_t size = 0;
    wherry_status status = wherry_group_receive(client->group, 0, WH_TAG_ANSWER, POLL_MS, &bytes, &size, NULL, error);
    if (status != WHERRY_OK) {
        return status;
    }
    char kind = size ? *(char *)bytes : '\0';
    char *text = wh_need(calloc(1, size + 2)); /* Two zeros end the list of files. */
    memcpy(text, (char *)bytes + (size > 0), size - (size > 0));
    wherry_free(bytes);
    if (kind == WH_ANSWER_ACCEPTED) {
        *text_p = text;
        return WHERRY_OK;
    }
    *busy_p = kind == WH_ANSWER_WAIT;
    bool refused = kind == WH_ANSWER_REFUSED;
    status = *busy_p ? WHERRY_TIMED_OUT : refused ? WHERRY_REFUSED : WHERRY_MALFORMED;
    wh_fail_error(error, status, "the server %s %s%.600s", client->address,
                  refused ? "refused: " : "sent an answer of an unknown kind", refused ? text : "");
    free(text);
    return status;
}

/** Waits for the answer. @param text_p  its text with two final zeros, owned by the caller. */
static wherry_status await_answer(const wh_client *client, const wh_patience *patience, char **text_p,
                                  wherry_error *error) {
    double until = wh_clock() + (double)patience->timeout_s;
    double say = wh_clock() + SAY_FIRST_S;
    wherry_status status;
    do {
        bool busy = false;
        status = take_answer(client, text_p, &busy, error);
        if (status == WHERRY_TIMED_OUT && wh_clock() > say) {
            wh_print_wait(client->address);
            say += SAY_NEXT_S;
        }
        until = busy && until < wh_clock() + BUSY_S ? wh_clock() + BUSY_S : until;
    } while (status == WHERRY_TIMED_OUT && wh_clock() < until && !wh_interrupted(NULL));
    return status == WHERRY_TIMED_OUT ? wh_fail_error(error, status, "%s did not answer within %lld s", client->address,
                                                      (long long)patience->timeout_s)
                                      : status;
}

/** Joins as a random rank of the lobby and asks for a place. */
static wherry_status get_place(wh_client *client, connecting *all, unsigned *place_p, wherry_error *error) {
    double until = wh_clock() + (double)all->patience->timeout_s;
    wherry_status status;
    do {
        uint32_t number = 0;
        if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
            return wh_fail_error(error, WHERRY_SYSTEM, "cannot get random numbers");
        }
        status = join(client, all, 1 + number % WH_LOBBY_RANKS, error);
        WH_THEN(status, send_request(client, WH_REQUEST_PLACE, false, error));
        WH_THEN(status, await_answer(client, all->patience, &client->welcome, error));
        wherry_group_leave(client->group);
        client->group = NULL;
        /* CLOSED: another client is in the lobby as this rank. */
    } while (status == WHERRY_CLOSED && wh_clock() < until && !must_stop(all));
    if (status != WHERRY_OK) {
        return status;
    }
    *place_p = (unsigned)strtoul(client->welcome, NULL, 10);
    /* The names follow after the number. */
    client->files = client->welcome + strlen(client->welcome) + 1;
    return *place_p > WH_LOBBY_RANKS && *place_p < WH_SERVE_RANKS
               ? WHERRY_OK
               : wh_fail_error(error, WHERRY_MALFORMED, "%s assigned place %u, which does not exist", client->address,
                               *place_p);
}

/* ---- servers ---- */

typedef struct connection {
    connecting *all;
    wh_client *client;
    pthread_t thread;
    bool started;
} connection;

static void *connect_one(void *context) {
    const connection *c = context;
    wh_client *client = c->client;
    wherry_error *error = &client->error;
    unsigned place = 0;
    wherry_status status = c->all->patience->wait ? WHERRY_OK : knock(client, c->all->patience, error);
    WH_THEN(status, get_place(client, c->all, &place, error));
    WH_THEN(status, join(client, c->all, place, error));
    WH_THEN(status, wherry_transport_create(client->group, NULL, &client->transport, error));
    if (status == WHERRY_OK) {
        atomic_store(&c->all->until, wh_clock() + OTHERS_S);
        client->error.status = WHERRY_OK;
    } else {
        wh_client_close(client);
    }
    return NULL;
}

/** @return WHERRY_OK if a server is connected; otherwise the error of the first. */
static wherry_status any_connected(const wh_client *clients, size_t count, wherry_error *error) {
    for (size_t i = 0; i < count; i++) {
        if (clients[i].group) {
            return WHERRY_OK;
        }
    }
    *error = clients->error;
    return error->status;
}

wherry_status wh_clients_connect(wh_client *clients, size_t count, const char *token_file, const wh_patience *patience,
                                 wherry_error *error) {
    connecting all = {.patience = patience};
    wherry_status status = read_tokens(clients, count, token_file, error);
    if (status != WHERRY_OK) {
        return status;
    }
    connection *connections = wh_need(calloc(count, sizeof(*connections)));
    for (size_t i = 0; i < count; i++) {
        connection *one = connections + i;
        *one = (connection){.all = &all, .client = clients + i};
        one->started = count > 1 && pthread_create(&one->thread, NULL, connect_one, one) == 0;
        if (!one->started) {
            connect_one(one);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (connections[i].started) {
            pthread_join(connections[i].thread, NULL);
        }
    }
    free(connections);
    return any_connected(clients, count, error);
}

wherry_status wh_clients_request(wh_client *clients, size_t count, char request, bool digest,
                                 const wh_patience *patience, wherry_error *error) {
    /* Send all requests first, so that all servers digest at the same time. */
    for (size_t i = 0; i < count; i++) {
        if (clients[i].group) {
            clients[i].error.status = send_request(clients + i, request, digest, &clients[i].error);
        }
    }
    for (size_t i = 0; i < count; i++) {
        wh_client *client = clients + i;
        if (client->group) {
            WH_THEN(client->error.status, await_answer(client, patience, &client->digest, &client->error));
            if (client->error.status != WHERRY_OK) {
                wh_client_close(client);
            }
        }
    }
    return any_connected(clients, count, error);
}

void wh_client_close(wh_client *client) {
    wherry_transport_destroy(client->transport);
    wherry_group_leave(client->group);
    free(client->welcome);
    free(client->digest);
    *client = (wh_client){.address = client->address, .error = client->error};
}

/* ---- the list of tensors ---- */

typedef struct offer {
    wherry_value *state;
    wherry_status status;
    wherry_error error;
} offer;

/** Copies the offered state, then cancels the transfer. */
static wherry_status copy_offer(void *context, const wherry_value *state) {
    offer *o = context;
    o->status = wherry_value_copy(state, &o->state, &o->error);
    return WHERRY_CANCELLED;
}

wherry_status wh_client_list(const char *address, const char *token_file, const wh_patience *patience,
                             wherry_value **state_p, wherry_group_link *link_p, wherry_error *error) {
    wh_client client = {.address = address};
    offer o = {.state = NULL};
    wherry_transfer_options options;
    wherry_value *received;
    wherry_transfer_options_init(&options);
    options.timeout_ms = patience->timeout_s * 1000;
    options.inspect = copy_offer;
    options.inspect_context = &o;
    options.interrupt = wh_interrupted;
    wherry_status status = wh_clients_connect(&client, 1, token_file, patience, error);
    WH_THEN(status, wh_clients_request(&client, 1, WH_REQUEST_LIST, false, patience, error));
    WH_THEN(status, wherry_group_describe(client.group, 0, link_p, error));
    WH_THEN(status, wherry_checkpoint_recv(client.transport, 0, &options, &received, error));
    if (status == WHERRY_CANCELLED && o.state) {
        *state_p = o.state;
        status = WHERRY_OK;
    } else if (o.status != WHERRY_OK) {
        *error = o.error;
        status = o.status;
    }
    wh_client_close(&client);
    return status;
}
