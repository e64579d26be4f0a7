#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <termios.h>

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
    bool port = digits > 0 && digits < length && text[length - 1 - digits] == ':';
    if (wh_is_address(text) && !strchr(text, '?') && (port || strncmp(text, "tcp://", 6) != 0)) {
        return true;
    }
    wh_fail_command(command, 0, "'%s' is not an address; use the one that `wherry serve` prints: tcp://HOST:PORT",
                    text);
    return false;
}

static wherry_status read_line(FILE *file, const char *from, char token[WH_TOKEN_MAX], wherry_error *error) {
    bool good = fgets(token, WH_TOKEN_MAX, file) != NULL;
    size_t length = good ? strcspn(token, "\r\n") : 0;
    if (length == WH_TOKEN_MAX - 1) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the line in %s is too long for a token", from);
    }
    token[length] = '\0';
    return *token ? WHERRY_OK : wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "there is no token in %s", from);
}

static wherry_status prompt(char token[WH_TOKEN_MAX], wherry_error *error) {
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
    wherry_status status = read_line(terminal, "the input", token, error);
    if (hidden) {
        tcsetattr(fileno(terminal), TCSAFLUSH, &before);
        fputs("\n", terminal);
    }
    fclose(terminal);
    return status;
}

static wherry_status read_token(const char *path, char token[WH_TOKEN_MAX], wherry_error *error) {
    const char *set = getenv("WHERRY_TOKEN");
    if (path) {
        FILE *file = fopen(path, "re");
        if (!file) {
            return wh_fail_error(error, WHERRY_SYSTEM, "cannot read the token file %s", path);
        }
        wherry_status status = read_line(file, path, token, error);
        fclose(file);
        return status;
    }
    if (set && *set) {
        return snprintf(token, WH_TOKEN_MAX, "%s", set) < WH_TOKEN_MAX
                   ? WHERRY_OK
                   : wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "WHERRY_TOKEN is too long for a token");
    }
    return prompt(token, error);
}

/* ---- the connection ---- */

static wherry_status join(wh_client *client, const char *address, const char *token, int64_t timeout_s,
                          wherry_error *error) {
    wherry_group_options options;
    char full[1024];
    uint32_t rank = 0;
    if (getrandom(&rank, sizeof(rank), 0) != (ssize_t)sizeof(rank)) {
        return wh_fail_error(error, WHERRY_SYSTEM, "cannot get random numbers");
    }
    int length = snprintf(full, sizeof(full), "%s?rank=%u&size=%d&job=" WH_SERVE_JOB, address,
                          1 + rank % (WH_SERVE_RANKS - 1), WH_SERVE_RANKS);
    if (length < 0 || (size_t)length >= sizeof(full)) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the address is too long");
    }
    wherry_group_options_init(&options);
    options.timeout_ms = (uint32_t)(timeout_s * 1000);
    options.secret = token;
    options.secret_size = strlen(token);
    options.flags = WHERRY_JOIN_CLIENT;
    options.wait_for = 2;
    options.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(full, &options, &client->group, error);
    if (status == WHERRY_BAD_SECRET) {
        wh_fail_error(error, status, "wrong token for %s; use the one that `wherry serve` prints", address);
    } else if (status == WHERRY_TIMED_OUT) {
        char said[sizeof(error->message)];
        memcpy(said, error->message, sizeof(said));
        wh_fail_error(error, status, "no server at %s: %.500s", address, said);
    }
    return status;
}

/** Sends the request and waits for the answer. */
static wherry_status ask(const wh_client *client, char request, int64_t timeout_s, wherry_error *error) {
    uint32_t timeout_ms = (uint32_t)(timeout_s * 1000);
    void *answer = NULL;
    size_t size = 0;
    wherry_status status = wherry_group_send(client->group, 0, WH_TAG_REQUEST, &request, 1, timeout_ms, error);
    WH_THEN(status, wherry_group_receive(client->group, 0, WH_TAG_ANSWER, timeout_ms, &answer, &size, NULL, error));
    if (status == WHERRY_OK && size) {
        status = wh_fail_error(error, WHERRY_REFUSED, "the server refused: %.*s", (int)(size < 600 ? size : 600),
                               (const char *)answer);
    }
    wherry_free(answer);
    return status;
}

wherry_status wh_client_connect(wh_client *client, const char *address, const char *token_file, int64_t timeout_s,
                                char request, wherry_error *error) {
    char token[WH_TOKEN_MAX];
    wherry_status status = read_token(token_file, token, error);
    WH_THEN(status, join(client, address, token, timeout_s, error));
    WH_THEN(status, wherry_transport_create(client->group, NULL, &client->transport, error));
    WH_THEN(status, ask(client, request, timeout_s, error));
    return status;
}

void wh_client_close(wh_client *client) {
    wherry_transport_destroy(client->transport);
    wherry_group_leave(client->group);
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

wherry_status wh_client_list(const char *address, const char *token_file, int64_t timeout_s, wherry_value **state_p,
                             wherry_error *error) {
    wh_client client = {0};
    offer o = {.state = NULL};
    wherry_transfer_options options;
    wherry_value *received;
    wherry_transfer_options_init(&options);
    options.timeout_ms = timeout_s * 1000;
    options.inspect = copy_offer;
    options.inspect_context = &o;
    options.interrupt = wh_interrupted;
    wherry_status status = wh_client_connect(&client, address, token_file, timeout_s, WH_REQUEST_LIST, error);
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
