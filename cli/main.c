/* `wherry`: finds the command and runs it. Also prints errors and handles signals. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "output.h"

static const wh_command *const commands[] = {
#if WH_CLI_FILES
    &wh_command_serve,  &wh_command_fetch, &wh_command_inspect, &wh_command_diff,
#endif
    &wh_command_doctor, &wh_command_bench, &wh_command_demo,    NULL,
};

/* ---- errors ---- */

int wh_fail_command(const wh_command *command, int code, const char *format, ...) {
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    wh_print_text(stderr, "wherry%s%s: %s", command ? " " : "", command ? command->name : "",
                  length < 0 ? "out of memory for an error message" : text);
    free(length < 0 ? NULL : text);
    return code;
}

static int exit_code_of(wherry_status status) {
    static const int codes[] = {
        [WHERRY_STATUS_CLASS_NONE] = WH_EXIT_FAILED,       [WHERRY_STATUS_CLASS_ARGUMENT] = WH_EXIT_ARGUMENT,
        [WHERRY_STATUS_CLASS_RESOURCE] = WH_EXIT_RESOURCE, [WHERRY_STATUS_CLASS_BYTES] = WH_EXIT_BYTES,
        [WHERRY_STATUS_CLASS_PEER] = WH_EXIT_PEER,         [WHERRY_STATUS_CLASS_DEADLINE] = WH_EXIT_DEADLINE,
        [WHERRY_STATUS_CLASS_GROUP] = WH_EXIT_GROUP,       [WHERRY_STATUS_CLASS_BUG] = WH_EXIT_BUG,
    };
    unsigned group = (unsigned)wherry_status_class_of(status);
    return group < sizeof(codes) / sizeof(codes[0]) && codes[group] ? codes[group] : WH_EXIT_BUG;
}

int wh_fail_status(const wh_command *command, const char *what, const wherry_error *error) {
    bool named = !*error->path || strstr(error->message, error->path);
    return wh_fail_command(command, exit_code_of(error->status), "%s%s%s%s%s%s", what ? what : "", what ? ": " : "",
                           error->message, named ? "" : " (at ", named ? "" : error->path, named ? "" : ")");
}

int wh_end_command(const wh_command *command, wherry_status status, const wherry_error *error) {
    if (status == WHERRY_OK) {
        return WH_EXIT_OK;
    }
    return wh_interrupt_code() ? wh_interrupt_code() : wh_fail_status(command, NULL, error);
}

wherry_status wh_fail_error(wherry_error *error, wherry_status status, const char *format, ...) {
    va_list arguments;
    int number = errno;
    *error = (wherry_error){.status = status, .rank = -1, .offset = UINT64_MAX};
    va_start(arguments, format);
    vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    if (status == WHERRY_SYSTEM) {
        size_t used = strlen(error->message);
        error->errnum = number;
        snprintf(error->message + used, sizeof(error->message) - used, ": %s", strerror(number));
    }
    return status;
}

void *wh_need(void *memory) {
    if (!memory) {
        exit(wh_fail_command(NULL, WH_EXIT_RESOURCE, "out of memory"));
    }
    return memory;
}

/* ---- signals, log, /proc ---- */

static volatile sig_atomic_t caught;

static void note_signal(int number) {
    caught = number;
}

void wh_interrupt_catch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
}

bool wh_interrupted(void *context) {
    (void)context;
    return caught != 0;
}

int wh_interrupt_code(void) {
    return caught ? 128 + caught : 0;
}

static bool is_quiet;

void wh_print_wait(const char *who) {
    if (!is_quiet) {
        wh_print_text(stderr, "wherry: waiting for %s", who);
    }
}

/** Users of the command need not know what the other ranks must call. */
static void print_wait(void *context, const char *who, const char *call) {
    (void)context;
    (void)call;
    wh_print_wait(who);
}

void wh_set_log(const wh_common *common, wherry_log_level normal) {
    is_quiet = common->quiet;
    if (common->verbose) {
        wherry_log_set_level(WHERRY_LOG_INFO);
    } else if (!getenv("WHERRY_LOG") && normal == WHERRY_LOG_OFF && !common->quiet) {
        wherry_log_set_level(WHERRY_LOG_OFF);
        wherry_log_waits_to(print_wait, NULL);
    } else if (!getenv("WHERRY_LOG")) {
        wherry_log_set_level(normal);
    }
}

bool wh_read_field(const char *path, const char *name, char *text, size_t size) {
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        found = strncmp(line, name, strlen(name)) == 0;
    }
    if (file) {
        fclose(file);
    }
    const char *rest = found ? line + strlen(name) : "";
    rest += strspn(rest, " \t");
    snprintf(text, size, "%.*s", (int)strcspn(rest, "\n"), rest);
    return found;
}

uint64_t wh_read_number(const char *path, const char *name) {
    char text[64];
    return wh_read_field(path, name, text, sizeof(text)) && *text != '-' ? strtoull(text, NULL, 10) : 0;
}

uint64_t wh_container_memory(void) {
    uint64_t bytes = wh_read_number("/sys/fs/cgroup/memory.max", "");
    bytes = bytes ? bytes : wh_read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
    return bytes ? bytes : UINT64_MAX;
}

/* ---- main ---- */

static void print_help(FILE *out) {
    fprintf(out, "Usage: wherry COMMAND [OPTION...]\n\n"
                 "Move training checkpoints between processes and machines.\n\n"
                 "Commands:\n");
    for (size_t i = 0; commands[i]; i++) {
        int indent = fprintf(out, "  %-10s ", commands[i]->name);
        wh_print_wrapped(out, commands[i]->summary, indent, WH_WIDTH_ANY);
    }
    fprintf(out, "\nOptions:\n"
                 "  -h, --help     print this help and exit\n"
                 "  -V, --version  print the version and exit\n\n");
    wh_print_text(out, "`wherry COMMAND --help` explains a command, with examples.");
    wh_print_text(out, "WHERRY_LOG=off|error|warn|info|debug sets how much the library logs to standard error.");
    wh_print_exit_codes(out);
}

static bool is_one_of(const char *text, const char *brief, const char *full) {
    return strcmp(text, brief) == 0 || strcmp(text, full) == 0;
}

/**
 * Counts the letters to insert, remove, replace or swap with the next to turn a word into another.
 */
static size_t distance(const char *from, const char *to) {
    if (!*from || !*to) {
        return strlen(from) + strlen(to);
    }
    if (*from == *to) {
        return distance(from + 1, to + 1);
    }
    size_t least = distance(from + 1, to + 1); /* Words are short, so this needs no table. */
    size_t removed = distance(from + 1, to);
    size_t inserted = distance(from, to + 1);
    bool swaps = from[0] == to[1] && from[1] == to[0];
    size_t swapped = swaps ? distance(from + 2, to + 2) : least;
    least = removed < least ? removed : least;
    least = inserted < least ? inserted : least;
    return 1 + (swapped < least ? swapped : least);
}

/** Prints the error for an unknown command, with the command that the user may have meant. */
static int fail_unknown(const char *word) {
    const char *meant = NULL;
    size_t least = 3; /* In a word of 5 letters, 2 may be wrong. */
    for (size_t i = 0; commands[i] && strlen(word) < 10; i++) {
        size_t far = distance(word, commands[i]->name);
        meant = far < least ? commands[i]->name : meant;
        least = far < least ? far : least;
    }
    return wh_fail_command(NULL, WH_EXIT_USAGE, "unknown %s '%s'%s%s%s `wherry --help` lists the commands",
                           *word == '-' ? "option" : "command", word, meant ? ": did you mean `wherry " : ";",
                           meant ? meant : "", meant ? "`?" : "");
}

static int run(int argc, char **argv, const wh_command **command_p) {
    if (argc < 2) {
        print_help(stderr);
        return WH_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "-h", "--help")) {
        print_help(stdout);
        return WH_EXIT_OK;
    }
    if (is_one_of(argv[1], "-V", "--version")) {
        printf("wherry %s\n", wherry_version());
        return WH_EXIT_OK;
    }
    for (size_t i = 0; commands[i]; i++) {
        if (strcmp(argv[1], commands[i]->name) == 0) {
            *command_p = commands[i];
            return wh_command_run(commands[i], argc - 1, argv + 1);
        }
    }
    return fail_unknown(argv[1]);
}

int main(int argc, char **argv) {
    const wh_command *command = NULL;
    int code = run(argc, argv, &command);
    bool written = fflush(stdout) == 0;
    int why = errno;
    written = written && (code || !ferror(stdout));
    if (written || code > WH_EXIT_FAILED) {
        return code;
    }
    if (why == EPIPE && !code) { /* `wherry ... | head` is not an error. */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return wh_fail_command(command, WH_EXIT_RESOURCE, "cannot write the output");
}
