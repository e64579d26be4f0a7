#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "show.h"

enum { OPTIONS_MAX = 40, LONG_ONLY = 256, WIDTH = 100, HELP_AT = 22 };

const wh_option wh_common_options[] = {
    {"quiet", 'q', WH_OPTION_FLAG, offsetof(wh_common, quiet), NULL, "print nothing but the result and errors", 0, 0,
     NULL},
    {"verbose", 'v', WH_OPTION_FLAG, offsetof(wh_common, verbose), NULL,
     "also print what the library tells while it works", 0, 0, NULL},
    {"json", 0, WH_OPTION_FLAG, offsetof(wh_common, json), NULL, "print the result as JSON", 0, 0, NULL},
    {"help", 'h', WH_OPTION_FLAG, 0, NULL, "print this and end", 0, 0, NULL},
    {.name = NULL},
};

bool wh_option_applies(const wh_command *command, const wh_option *common) {
    return strcmp(common->name, "json") != 0 || command->json;
}

/* ---- values ---- */

/** The factor of a suffix: K, M, G, T, with or without "iB" or "B"; 0 where it is none of these. */
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

static bool take_size(const wh_command *command, const wh_option *option, const char *text, uint64_t *size_p) {
    char *end;
    char least[WH_SIZE_TEXT_MAX];
    char most[WH_SIZE_TEXT_MAX];
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    uint64_t factor = end == text || errno || text[0] == '-' ? 0 : suffix_factor(end);
    if (!factor || number > (uint64_t)option->most / factor || number * factor < (uint64_t)option->least) {
        wh_fail_command(command, 0, "--%s takes a size from %s to %s, such as 512M or 2G, not '%s'", option->name,
                        wh_size_short(option->least, least), wh_size_short(option->most, most), text);
        return false;
    }
    *size_p = number * factor;
    return true;
}

static bool take_number(const wh_command *command, const wh_option *option, const char *text, int64_t *number_p) {
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

/** "auto,cma,ring" as "auto, cma or ring". */
static void list_choices(const char *choices, char *text, size_t size) {
    size_t used = 0;
    const char *last = strrchr(choices, ',');
    for (const char *at = choices; *at && used + 5 < size; at++) {
        used += (size_t)snprintf(text + used, size - used, "%.*s", *at == ',' ? 0 : 1, at);
        if (*at == ',') {
            used += (size_t)snprintf(text + used, size - used, "%s", at == last ? " or " : ", ");
        }
    }
}

static bool take_choice(const wh_command *command, const wh_option *option, const char *text, const char **choice_p) {
    size_t size = strlen(text);
    for (const char *at = option->choices; size; at++) {
        size_t length = strcspn(at, ",");
        if (length == size && memcmp(at, text, size) == 0) {
            *choice_p = text;
            return true;
        }
        at += length;
        if (!*at) {
            break;
        }
    }
    char words[256] = "";
    list_choices(option->choices, words, sizeof(words));
    wh_fail_command(command, 0, "--%s takes %s, not '%s'", option->name, words, text);
    return false;
}

static bool take_text(const wh_command *command, const wh_option *option, const char *text, const char **text_p) {
    if (!*text) {
        wh_fail_command(command, 0, "--%s takes %s, and there is nothing", option->name, option->argument);
        return false;
    }
    *text_p = text;
    return true;
}

static bool take(const wh_command *command, const wh_option *option, const char *text, void *options) {
    void *field = (char *)options + option->offset;
    switch (option->kind) {
    case WH_OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case WH_OPTION_NUMBER:
        return take_number(command, option, text, field);
    case WH_OPTION_SIZE:
        return take_size(command, option, text, field);
    case WH_OPTION_CHOICE:
        return take_choice(command, option, text, field);
    case WH_OPTION_TEXT:
    case WH_OPTION_FILE:
        break;
    }
    return take_text(command, option, text, field);
}

/* ---- reading ---- */

/** The tables as getopt_long wants them. */
typedef struct reader {
    const wh_option *options[OPTIONS_MAX];
    struct option longs[OPTIONS_MAX + 1];
    char shorts[2 * OPTIONS_MAX + 1];
    int count;
} reader;

static void add(reader *r, const wh_option *option) {
    bool value = option->kind != WH_OPTION_FLAG;
    if (r->count == OPTIONS_MAX) {
        abort(); /* a table that has outgrown this one */
    }
    r->options[r->count] = option;
    r->longs[r->count] =
        (struct option){option->name, value ? required_argument : no_argument, NULL, LONG_ONLY + r->count};
    if (option->letter) {
        size_t used = strlen(r->shorts);
        snprintf(r->shorts + used, sizeof(r->shorts) - used, "%c%s", option->letter, value ? ":" : "");
    }
    r->count++;
}

static const wh_option *find(const reader *r, int found) {
    for (int i = 0; i < r->count; i++) {
        if (found == LONG_ONLY + i || (found > 0 && found < LONG_ONLY && r->options[i]->letter == found)) {
            return r->options[i];
        }
    }
    return NULL;
}

static void read_tables(reader *r, const wh_command *command) {
    for (const wh_option *option = command->options; option && option->name; option++) {
        add(r, option);
    }
    for (const wh_option *option = wh_common_options; option->name; option++) {
        if (wh_option_applies(command, option)) {
            add(r, option);
        }
    }
}

static bool check_operands(const wh_command *command, const wh_operands *found) {
    if (found->count > command->most && command->most >= 0) {
        wh_fail_command(command, 0,
                        command->most ? "'%s' is one too many; `wherry %s --help` explains what it takes"
                                      : "'%s' is not an option; `wherry %s --help` explains those that are",
                        found->items[command->most], command->name);
        return false;
    }
    if (found->count < command->least) {
        wh_fail_command(command, 0, "%s %s missing; `wherry %s --help` explains what it takes", command->operands,
                        command->least > 1 ? "are" : "is", command->name);
        return false;
    }
    return true;
}

bool wh_options_parse(const wh_command *command, int argc, char **argv, void *options, wh_operands *operands,
                      int *code_p) {
    reader r = {.count = 0};
    char name[64]; /* as which getopt_long complains */
    read_tables(&r, command);
    snprintf(name, sizeof(name), "wherry %s", command->name);
    argv[0] = name;
    *code_p = WH_EXIT_USAGE;
    int letter;
    while ((letter = getopt_long(argc, argv, r.shorts, r.longs, NULL)) != -1) {
        const wh_option *option = find(&r, letter);
        if (!option) { /* getopt_long has told it */
            fprintf(stderr, "`wherry %s --help` explains the options\n", command->name);
            return false;
        }
        if (option->letter == 'h') {
            wh_options_help(command, stdout);
            *code_p = WH_EXIT_OK;
            return false;
        }
        if (!take(command, option, optarg, options)) {
            return false;
        }
    }
    wh_operands left = {argc - optind, argv + optind};
    const wh_common *common = options;
    if (common->quiet && common->verbose) {
        wh_fail_command(command, 0, "--quiet and --verbose do not go together");
        return false;
    }
    if (operands) {
        *operands = left;
    }
    return check_operands(command, &left);
}

/* ---- telling ---- */

void wh_option_text(const wh_option *option, char *text, size_t size) {
    char letter[8] = "";
    if (option->letter) {
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    }
    snprintf(text, size, "%s--%s%s%s", letter, option->name, option->argument ? " " : "",
             option->argument ? option->argument : "");
}

static void print_option(const wh_option *option, FILE *out) {
    char text[64];
    wh_option_text(option, text, sizeof(text));
    fprintf(out, "  %-*s", HELP_AT - 2, text);
    if (strlen(text) + 2 >= HELP_AT) {
        fprintf(out, "\n%*s", HELP_AT, "");
    }
    wh_print_wrapped(out, option->help, HELP_AT, WIDTH);
}

static void print_paragraphs(const char *text, FILE *out) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        char *paragraph = strndup(text, length);
        if (paragraph) {
            wh_print_wrapped(out, paragraph, 0, WIDTH);
        }
        free(paragraph);
        text += length;
        text += strspn(text, "\n");
        fputs("\n", out);
    }
}

static void print_codes(FILE *out) {
    fputs("\nExit codes:\n", out);
    for (const wh_exit_code *one = wh_exit_codes; one->text; one++) {
        fprintf(out, "  %3d  %s\n", one->code, one->text);
    }
    fputs("  128 and the signal's number, where one ended it\n", out);
}

void wh_options_help(const wh_command *command, FILE *out) {
    fprintf(out, "Usage: wherry %s [OPTION...]%s%s\n\n", command->name, *command->operands ? " " : "",
            command->operands);
    print_paragraphs(command->text, out);
    fputs("Options:\n", out);
    for (const wh_option *option = command->options; option && option->name; option++) {
        print_option(option, out);
    }
    for (const wh_option *option = wh_common_options; option->name; option++) {
        if (wh_option_applies(command, option)) {
            print_option(option, out);
        }
    }
    if (command->examples) {
        fputs("\nExamples:\n", out);
        for (const char *at = command->examples; *at; at += strcspn(at, "\n"), at += *at != '\0') {
            fprintf(out, "  %.*s\n", (int)strcspn(at, "\n"), at);
        }
    }
    print_codes(out);
}
