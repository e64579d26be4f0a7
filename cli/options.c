/* Parses the options of a command, prints its --help and runs it. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "output.h"

enum { OPTIONS_MAX = 40, OPTIONS_BYTES = 256, LONG_ONLY = 256, WIDTH = 100, HELP_COLUMN = 22 };

static const wh_option common_options[] = {
    WH_OPTION(wh_common, quiet, FLAG, "quiet", 'q', NULL, "print only the result and errors"),
    WH_OPTION(wh_common, verbose, FLAG, "verbose", 'v', NULL, "also print the library's log"),
    WH_OPTION(wh_common, json, FLAG, "json", 0, NULL, "print the result as JSON"),
    /* --help sets no field; `quiet` is only a placeholder. */
    WH_OPTION(wh_common, quiet, FLAG, "help", 'h', NULL, "print this help and exit"),
    {.name = NULL},
};

/** Returns option `number` of a command; NULL if there is none. Common options come last. */
static const wh_option *option_at(const wh_command *command, size_t number) {
    for (const wh_option *own = command->options; own && own->name; own++) {
        if (number-- == 0) {
            return own;
        }
    }
    for (const wh_option *common = common_options; common->name; common++) {
        bool taken = strcmp(common->name, "json") != 0 || command->json;
        if (taken && number-- == 0) {
            return common;
        }
    }
    return NULL;
}

/* ---- values ---- */

/** Returns the factor for a suffix such as "K", "m", "GB" or "TiB"; 1 for ""; 0 if unknown. */
static uint64_t suffix_factor(const char *suffix) {
    static const char letters[] = "KMGT";
    if (*suffix == '\0') {
        return 1;
    }
    const char *letter = strchr(letters, *suffix >= 'a' && *suffix <= 'z' ? *suffix - 'a' + 'A' : *suffix);
    const char *rest = suffix + 1;
    if (!letter || (*rest && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0)) {
        return 0;
    }
    return UINT64_C(1) << (10 * (letter - letters + 1));
}

/** Formats a round size in the form that options accept, such as "512M". */
static const char *short_size(int64_t bytes, char text[WH_SIZE_TEXT_MAX]) {
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    while (bytes && bytes % 1024 == 0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, WH_SIZE_TEXT_MAX, "%" PRId64 "%s", bytes, units[unit]);
    return text;
}

static bool set_size(const wh_command *command, const wh_option *option, const char *text, uint64_t *size_p) {
    char *end;
    char least[WH_SIZE_TEXT_MAX];
    char most[WH_SIZE_TEXT_MAX];
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    uint64_t factor = end == text || errno || text[0] == '-' ? 0 : suffix_factor(end);
    if (!factor || number > (uint64_t)option->most / factor || number * factor < (uint64_t)option->least) {
        wh_fail_command(command, 0, "--%s takes a size from %s to %s, such as 512M or 2G, not '%s'", option->name,
                        short_size(option->least, least), short_size(option->most, most), text);
        return false;
    }
    *size_p = number * factor;
    return true;
}

static bool set_number(const wh_command *command, const wh_option *option, const char *text, int64_t *number_p) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < option->least || number > option->most) {
        wh_fail_command(command, 0, "--%s takes a number from %lld to %lld, not '%s'", option->name,
                        (long long)option->least, (long long)option->most, text);
        return false;
    }
    *number_p = number;
    return true;
}

static bool set_choice(const wh_command *command, const wh_option *option, const char *text, const char **choice_p) {
    char words[256] = ""; /* For example "auto, cma or ring". */
    size_t used = 0;
    for (const char *at = option->argument; *at; at += *at == '|') {
        size_t length = strcspn(at, "|");
        if (length == strlen(text) && memcmp(at, text, length) == 0) {
            *choice_p = text;
            return true;
        }
        const char *before = used == 0 ? "" : at[length] ? ", " : " or ";
        used += (size_t)snprintf(words + used, sizeof(words) - used, "%s%.*s", before, (int)length, at);
        at += length;
    }
    wh_fail_command(command, 0, "--%s takes %s, not '%s'", option->name, words, text);
    return false;
}

static bool set_option(const wh_command *command, const wh_option *option, const char *text, void *options) {
    void *field = (char *)options + option->offset;
    switch (option->kind) {
    case WH_OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case WH_OPTION_NUMBER:
        return set_number(command, option, text, field);
    case WH_OPTION_SIZE:
        return set_size(command, option, text, field);
    case WH_OPTION_CHOICE:
        return set_choice(command, option, text, field);
    case WH_OPTION_TEXT:
    case WH_OPTION_FILE:
        break;
    }
    if (!*text) {
        wh_fail_command(command, 0, "--%s needs a value: %s", option->name, option->argument);
        return false;
    }
    *(const char **)field = text;
    return true;
}

/* ---- --help ---- */

/** Prints each line of text from column `indent` on, with `after` behind it. */
static void print_lines(const char *text, int indent, int width, const char *after) {
    for (size_t length; *text; text += strspn(text, "\n")) {
        length = strcspn(text, "\n");
        char *line = wh_need(strndup(text, length));
        printf("%*s", indent, "");
        wh_print_wrapped(stdout, line, 2 * indent, width); /* More shows where a line goes on. */
        printf("%s", after);
        free(line);
        text += length;
    }
}

void wh_print_exit_codes(FILE *out) {
    fprintf(out, "\nExit codes:\n");
#define WH_X(name, code, text) wh_print_wrapped(out, text, fprintf(out, "  %3d  ", code), WH_WIDTH_ANY);
    WH_EXIT_LIST(WH_X)
#undef WH_X
    fprintf(out, "  128 + N: ended by signal N\n");
}

static void print_help(const wh_command *command) {
    const wh_option *option;
    printf("Usage: wherry %s [OPTION...]%s%s\n\n", command->name, *command->operands ? " " : "", command->operands);
    print_lines(command->text, 0, WIDTH, "\n");
    printf("Options:\n");
    for (size_t i = 0; (option = option_at(command, i)); i++) {
        const char letter[] = {'-', option->letter, ',', ' ', '\0'};
        const char *argument = option->argument ? option->argument : "";
        int used = printf("  %s--%s%s%s", option->letter ? letter : "", option->name, *argument ? " " : "", argument);
        if (used < HELP_COLUMN - 1) {
            printf("%*s", HELP_COLUMN - used, "");
        } else {
            printf("\n%*s", HELP_COLUMN, "");
        }
        wh_print_wrapped(stdout, option->help, HELP_COLUMN, WIDTH);
    }
    if (command->examples) {
        printf("\nExamples:\n");
        print_lines(command->examples, 2, WH_WIDTH_ANY, "");
    }
    wh_print_exit_codes(stdout);
}

/* ---- parsing ---- */

/** Parses options. @return false after printing help or an error; *code_p is the exit code. */
static bool parse(const wh_command *command, int argc, char **argv, void *options, int *code_p) {
    struct option longs[OPTIONS_MAX + 1] = {{0}};
    char shorts[2 * OPTIONS_MAX + 1] = "";
    const wh_option *option;
    int found;
    for (size_t i = 0, used = 0; (option = option_at(command, i)); i++) {
        int takes = option->kind == WH_OPTION_FLAG ? no_argument : required_argument;
        if (i == OPTIONS_MAX) {
            abort(); /* OPTIONS_MAX is too small. */
        }
        longs[i] = (struct option){option->name, takes, NULL, option->letter ? option->letter : LONG_ONLY + (int)i};
        if (option->letter) {
            used += (size_t)snprintf(shorts + used, sizeof(shorts) - used, "%c%s", option->letter, takes ? ":" : "");
        }
    }
    *code_p = WH_EXIT_USAGE;
    while ((found = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (found == '?') { /* getopt_long has already printed the error. */
            fprintf(stderr, "See `wherry %s --help`.\n", command->name);
            return false;
        }
        if (found == 'h') {
            print_help(command);
            *code_p = WH_EXIT_OK;
            return false;
        }
        for (size_t i = 0; (option = option_at(command, i)) && longs[i].val != found; i++) {
        }
        if (!option || !set_option(command, option, optarg, options)) {
            return false;
        }
    }
    return true;
}

int wh_command_run(const wh_command *command, int argc, char **argv) {
    _Alignas(max_align_t) char options[OPTIONS_BYTES] = {0};
    const wh_common *common = (const void *)options;
    char name[64]; /* The name that getopt_long prints before errors. */
    int code;
    if (command->options_size > sizeof(options)) {
        abort(); /* OPTIONS_BYTES is too small. */
    }
    memcpy(options, command->defaults, command->options_size);
    snprintf(name, sizeof(name), "wherry %s", command->name);
    argv[0] = name;
    if (!parse(command, argc, argv, options, &code)) {
        return code;
    }
    wh_operands operands = {argc - optind, argv + optind};
    if (common->quiet && common->verbose) {
        return wh_fail_command(command, WH_EXIT_USAGE, "--quiet and --verbose cannot be combined");
    }
    if (operands.count > command->most && command->most >= 0) {
        return wh_fail_command(command, WH_EXIT_USAGE, "unexpected argument '%s'; see `wherry %s --help`",
                               operands.items[command->most], command->name);
    }
    if (operands.count < command->least) {
        return wh_fail_command(command, WH_EXIT_USAGE, "missing argument: %s; see `wherry %s --help`",
                               command->operands, command->name);
    }
    return command->run(options, &operands);
}
