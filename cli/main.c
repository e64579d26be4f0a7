/* `wherry`: finds the sub-command and hands over to it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/version.h>

#include "command.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /**< NULL: not listed. */
} command;

static const command commands[] = {
    {"demo", wh_demo_command, "kill ranks of a training run, one after the other, and watch their peers heal them"},
    {"demo-rank", wh_demo_rank_command, NULL},
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(FILE *out) {
    fprintf(out, "Usage: wherry COMMAND [OPTION...]\n"
                 "\n"
                 "Ferries live training checkpoints from rank to rank.\n"
                 "\n"
                 "Commands:\n");
    for (int i = 0; i < COMMANDS; i++) {
        if (commands[i].summary) {
            fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
        }
    }
    fprintf(out,
            "\n"
            "Options:\n"
            "  -h, --help     print this and end\n"
            "  -V, --version  print the version and end\n"
            "\n"
            "`wherry COMMAND --help` explains a command. The environment variable WHERRY_LOG (off, error, warn, info,\n"
            "debug) says how much the library tells while it works.\n");
}

static bool is_one_of(const char *text, const char *brief, const char *full) {
    return strcmp(text, brief) == 0 || strcmp(text, full) == 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return WH_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "-h", "--help")) {
        print_help(stdout);
        return EXIT_SUCCESS;
    }
    if (is_one_of(argv[1], "-V", "--version")) {
        printf("wherry %s\n", wherry_version());
        return EXIT_SUCCESS;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "wherry: %s '%s' is not known; `wherry --help` lists what is\n",
            argv[1][0] == '-' ? "the option" : "the command", argv[1]);
    return WH_EXIT_USAGE;
}
