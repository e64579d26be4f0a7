#include "visit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <termios.h>
#include <unistd.h>

#include <wherry/base.h>

#include "interrupt.h"
#include "leaves.h"

enum { TOKEN_BYTES = 24 };

bool wh_is_address(const char *text) {
    return strncmp(text, "tcp://", 6) == 0 || strncmp(text, "unix://", 7) == 0;
}

bool wh_is_server(const char *text) {
    size_t length = strlen(text);
    size_t digits = 0;
    while (digits < length && text[length - 1 - digits] >= '0' && text[length - 1 - digits] <= '9') {
        digits++;
    }
    bool port = digits > 0 && digits < length && text[length - 1 - digits] == ':';
    return wh_is_address(text) && !strchr(text, '?') && (port || strncmp(text, "tcp://", 6) != 0);
}

int wh_fail_address(const wh_command *command, const char *text) {
    return wh_fail_command(command, WH_EXIT_USAGE,
                           "'%s' is no address; give the one that `wherry serve` has printed: tcp://HOST:PORT", text);
}

void wh_set_log(const wh_common *common) {
    if (common->verbose) {
        wherry_log_set_level(WHERRY_LOG_INFO);
    } else if (!getenv("WHERRY_LOG")) {
        wherry_log_set_level(WHERRY_LOG_ERROR); /* what matters the command itself tells */
    }
}

/* ---- the token ---- */

bool wh_token_make(char token[WH_TOKEN_MAX]) {
    unsigned char bytes[TOKEN_BYTES];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return false;
    }
    for (size_t i = 0; i < sizeof(bytes); i++) {
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    }
    return true;
}

/** Takes a line as a token, without its end. */
static wherry_status take_line(FILE *file, const char *from, char token[WH_TOKEN_MAX], wherry_error *error) {
    bool good = fgets(token, WH_TOKEN_MAX, file) != NULL;
    size_t length = good ? strcspn(token, "\r\n") : 0;
    if (length == WH_TOKEN_MAX - 1) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "%s has a line that is too long for a token", from);
    }
    token[length] = '\0';
    return *token ? WHERRY_OK : wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "there is no token in %s", from);
}

static wherry_status ask_token(char token[WH_TOKEN_MAX], wherry_error *error) {
    struct termios before;
    FILE *terminal = fopen("/dev/tty", "r+e");
    if (!terminal) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT,
                             "there is no token: give the one that `wherry serve` has printed by --token-file or in "
                             "WHERRY_TOKEN");
    }
    bool hidden = tcgetattr(fileno(terminal), &before) == 0;
    if (hidden) {
        struct termios silent = before;
        silent.c_lflag &= ~(tcflag_t)ECHO;
        tcsetattr(fileno(terminal), TCSAFLUSH, &silent); /* before the question, so that no answer to it is lost */
    }
    fputs("Token: ", terminal);
    fflush(terminal);
    wherry_status status = take_line(terminal, "what was typed", token, error);
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
            return wh_fail_error(error, WHERRY_SYSTEM, "the token's file %s cannot be read", path);
        }
        wherry_status status = take_line(file, path, token, error);
        fclose(file);
        return status;
    }
    if (set && *set) {
        return snprintf(token, WH_TOKEN_MAX, "%s", set) < WH_TOKEN_MAX
                   ? WHERRY_OK
                   : wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "WHERRY_TOKEN is too long for a token");
    }
    return ask_token(token, error);
}

/* ---- the visit ---- */

static wherry_status join(wh_visit *visit, const char *address, const char *token, int64_t timeout_s,
                          wherry_error *error) {
    wherry_group_options options;
    char whole[1024];
    uint32_t place = 0;
    if (getrandom(&place, sizeof(place), 0) != (ssize_t)sizeof(place)) {
        return wh_fail_error(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    int length = snprintf(whole, sizeof(whole), "%s?rank=%u&size=%d&job=" WH_VISIT_JOB, address,
                          1 + place % (WH_VISIT_PLACES - 1), WH_VISIT_PLACES);
    if (length < 0 || (size_t)length >= sizeof(whole)) {
        return wh_fail_error(error, WHERRY_INVALID_ARGUMENT, "the address is too long");
    }
    wherry_group_options_init(&options);
    options.timeout_ms = (uint32_t)(timeout_s * 1000);
    options.secret = token;
    options.secret_size = strlen(token);
    options.flags = WHERRY_JOIN_CLIENT;
    options.wait_for = 2;
    options.interrupt = wh_interrupted;
    wherry_status status = wherry_group_join(whole, &options, &visit->group, error);
    if (status == WHERRY_BAD_SECRET) {
        wh_fail_error(error, status, "%s has another token; give the one that `wherry serve` has printed there",
                      address);
    } else if (status == WHERRY_TIMED_OUT) {
        char said[sizeof(error->message)];
        memcpy(said, error->message, sizeof(said));
        wh_fail_error(error, status, "nobody serves at %s: %.500s", address, said);
    }
    return status;
}

/** Says what is wanted, and hears whether it can be had. */
static wherry_status ask(const wh_visit *visit, char wish, int64_t timeout_s, wherry_error *error) {
    uint32_t timeout_ms = (uint32_t)(timeout_s * 1000);
    void *answer = NULL;
    size_t size = 0;
    wherry_status status = wherry_group_send(visit->group, 0, WH_VISIT_TAG, &wish, 1, timeout_ms, error);
    if (status == WHERRY_OK) {
        status = wherry_group_receive(visit->group, 0, WH_ANSWER_TAG, timeout_ms, &answer, &size, NULL, error);
    }
    if (status == WHERRY_OK && size) {
        status = wh_fail_error(error, WHERRY_REFUSED, "the server refused: %.*s", (int)(size < 600 ? size : 600),
                               (const char *)answer);
    }
    wherry_free(answer);
    return status;
}

wherry_status wh_visit_begin(wh_visit *visit, const char *address, const char *token_file, int64_t timeout_s, char wish,
                             wherry_error *error) {
    char token[WH_TOKEN_MAX];
    wherry_status status = read_token(token_file, token, error);
    if (status == WHERRY_OK) {
        status = join(visit, address, token, timeout_s, error);
    }
    if (status == WHERRY_OK) {
        status = wherry_transport_create(visit->group, NULL, &visit->transport, error);
    }
    if (status == WHERRY_OK) {
        status = ask(visit, wish, timeout_s, error);
    }
    return status;
}

void wh_visit_end(wh_visit *visit) {
    wherry_transport_destroy(visit->transport);
    wherry_group_leave(visit->group);
}

/** What is offered, copied; WHERRY_CANCELLED ends the receive then. */
typedef struct look {
    wherry_value *state;
    wherry_error error;
    wherry_status status;
} look;

static wherry_status take_look(void *context, const wherry_value *state) {
    look *l = context;
    l->status = wherry_value_copy(state, &l->state, &l->error);
    return WHERRY_CANCELLED;
}

wherry_status wh_visit_look(const char *address, const char *token_file, int64_t timeout_s, const wh_common *common,
                            wherry_value **state_p, wherry_error *error) {
    wh_visit visit = {0};
    look l = {.state = NULL};
    wherry_transfer_options options;
    wherry_value *received;
    wh_set_log(common);
    wherry_transfer_options_init(&options);
    options.timeout_ms = timeout_s * 1000;
    options.inspect = take_look;
    options.inspect_context = &l;
    options.interrupt = wh_interrupted;
    wherry_status status = wh_visit_begin(&visit, address, token_file, timeout_s, WH_VISIT_LOOK, error);
    if (status == WHERRY_OK) {
        status = wherry_checkpoint_recv(visit.transport, 0, &options, &received, error);
    }
    if (status == WHERRY_CANCELLED && l.state) {
        *state_p = l.state;
        status = WHERRY_OK;
    } else if (l.status != WHERRY_OK) {
        *error = l.error;
        status = l.status;
    }
    wh_visit_end(&visit);
    return status;
}
