/* The manual pages and the completions of shells, from the table of commands. The build runs it; it is not for users. */
#include <stdio.h>
#include <string.h>

#include <wherry/base.h>

#include "command.h"

/* ---- manual pages ---- */

/** A text in troff: a dot or a quote at its beginning, hyphens and backslashes mean themselves. */
static void roff(const char *text, size_t size) {
    if (size && (*text == '.' || *text == '\'')) {
        fputs("\\&", stdout);
    }
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '-') {
            fputs("\\-", stdout);
        } else if (text[i] == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(text[i]);
        }
    }
}

static void roff_text(const char *text) {
    roff(text, strlen(text));
}

static void roff_option(const wh_option *option) {
    char text[64];
    wh_option_text(option, text, sizeof(text));
    fputs(".TP\n.B ", stdout);
    roff_text(text);
    putchar('\n');
    roff_text(option->help);
    putchar('\n');
}

static void roff_codes(void) {
    puts(".SH EXIT STATUS");
    for (const wh_exit_code *one = wh_exit_codes; one->text; one++) {
        printf(".TP\n.B %d\n", one->code);
        roff_text(one->text);
        putchar('\n');
    }
    puts(".TP\n.B 128+N\nsignal number N ended it");
}

static void roff_head(const char *name, const char *summary) {
    printf(".TH \"");
    for (const char *at = name; *at; at++) {
        putchar(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    }
    printf("\" 1 \"\" \"Wherry %s\" \"Wherry\"\n.SH NAME\n", wherry_version());
    roff_text(name);
    fputs(" \\- ", stdout);
    roff_text(summary);
    putchar('\n');
}

static void roff_examples(const char *examples) {
    puts(".SH EXAMPLES\n.nf");
    for (const char *at = examples; *at; at += strcspn(at, "\n"), at += *at != '\0') {
        roff(at, strcspn(at, "\n"));
        putchar('\n');
    }
    puts(".fi");
}

static void print_command_page(const wh_command *command) {
    char name[64];
    snprintf(name, sizeof(name), "wherry-%s", command->name);
    roff_head(name, command->summary);
    printf(".SH SYNOPSIS\n.B wherry %s\n[OPTION...] ", command->name);
    roff_text(command->operands);
    puts("\n.SH DESCRIPTION");
    for (const char *at = command->text; *at;) {
        roff(at, strcspn(at, "\n"));
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
        puts(*at ? "\n.PP" : "");
    }
    puts(".SH OPTIONS");
    for (const wh_option *option = command->options; option && option->name; option++) {
        roff_option(option);
    }
    for (const wh_option *option = wh_common_options; option->name; option++) {
        if (wh_option_applies(command, option)) {
            roff_option(option);
        }
    }
    if (command->examples) {
        roff_examples(command->examples);
    }
    roff_codes();
    puts(".SH SEE ALSO\n.BR wherry (1)");
}

static void print_main_page(void) {
    roff_head("wherry", "ferry live training checkpoints from rank to rank");
    puts(".SH SYNOPSIS\n.B wherry\nCOMMAND [OPTION...]\n.SH DESCRIPTION\n"
         "Moves checkpoints between processes and machines, and shows what is going on. "
         "Each command has a manual page of its own.\n.SH COMMANDS");
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            printf(".TP\n.BR wherry\\-%s (1)\n", (*command)->name);
            roff_text((*command)->summary);
            putchar('\n');
        }
    }
    puts(".SH ENVIRONMENT\n.TP\n.B WHERRY_LOG\noff, error, warn, info or debug: how much the library tells while it "
         "works\n"
         ".TP\n.B WHERRY_LANES\nwhich lanes may be used, such as cma,ring or ^cma\n"
         ".TP\n.B WHERRY_INTERFACE\nthe network interface that ranks use");
    roff_codes();
}

/* ---- completions ---- */

static void print_option_words(const wh_command *command) {
    for (const wh_option *option = command->options; option && option->name; option++) {
        printf(" --%s", option->name);
    }
    for (const wh_option *option = wh_common_options; option->name; option++) {
        if (wh_option_applies(command, option)) {
            printf(" --%s", option->name);
        }
    }
}

static void print_bash_values(const wh_command *command) {
    for (const wh_option *option = command->options; option && option->name; option++) {
        if (option->kind == WH_OPTION_FLAG) {
            continue;
        }
        printf("    %s:--%s", command->name, option->name);
        if (option->letter) {
            printf(" | %s:-%c", command->name, option->letter);
        }
        if (option->kind == WH_OPTION_CHOICE) {
            fputs(") choices=\"", stdout);
            for (const char *at = option->choices; *at; at++) {
                putchar(*at == ',' ? ' ' : *at);
            }
            puts("\" ;;");
        } else {
            puts(option->kind == WH_OPTION_FILE ? ") files=yes ;;" : ") return ;;");
        }
    }
}

static void print_bash(void) {
    puts("# bash completion for wherry\n"
         "_wherry() {\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
         "    local choices='' files=''\n"
         "    COMPREPLY=()");
    fputs("    if ((COMP_CWORD == 1)); then\n        mapfile -t COMPREPLY < <(compgen -W '--help --version", stdout);
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            printf(" %s", (*command)->name);
        }
    }
    puts("' -- \"$word\")\n        return\n    fi\n    case $command:$last in");
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            print_bash_values(*command);
        }
    }
    puts("    esac\n    if [[ -z $choices$files && $word == -* ]]; then\n        case $command in");
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            printf("        %s) choices='", (*command)->name);
            print_option_words(*command);
            puts("' ;;");
        }
    }
    puts("        esac\n    fi\n"
         "    if [[ -n $choices ]]; then\n"
         "        mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\")\n"
         "    else\n"
         "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
         "    fi\n"
         "}\n"
         "complete -o filenames -F _wherry wherry");
}

/** A text within '...[...]' of zsh. */
static void print_zsh_text(const char *text) {
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else if (*text == '[' || *text == ']' || *text == ':') {
            printf("\\%c", *text);
        } else {
            putchar(*text);
        }
    }
}

/** One spelling of an option: "--port", or "-p". */
static void print_zsh_spelling(const wh_option *option, const char *spelling) {
    printf("                '%s[", spelling);
    print_zsh_text(option->help);
    putchar(']');
    if (option->kind == WH_OPTION_CHOICE) {
        printf(":%s:(", option->argument);
        for (const char *at = option->choices; *at; at++) {
            putchar(*at == ',' ? ' ' : *at);
        }
        putchar(')');
    } else if (option->kind != WH_OPTION_FLAG) {
        printf(":%s:%s", option->argument, option->kind == WH_OPTION_FILE ? "_files" : "");
    }
    puts("' \\");
}

static void print_zsh_option(const wh_option *option) {
    char spelling[64];
    snprintf(spelling, sizeof(spelling), "--%s", option->name);
    print_zsh_spelling(option, spelling);
    if (option->letter) {
        snprintf(spelling, sizeof(spelling), "-%c", option->letter);
        print_zsh_spelling(option, spelling);
    }
}

static void print_zsh_command(const wh_command *command) {
    printf("        %s)\n            _arguments \\\n", command->name);
    for (const wh_option *option = command->options; option && option->name; option++) {
        print_zsh_option(option);
    }
    for (const wh_option *option = wh_common_options; option->name; option++) {
        if (wh_option_applies(command, option)) {
            print_zsh_option(option);
        }
    }
    puts("                '*:file:_files'\n            ;;");
}

static void print_zsh(void) {
    puts("#compdef wherry\n"
         "_wherry() {\n"
         "    local -a commands\n"
         "    commands=(");
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            printf("        '%s:", (*command)->name);
            print_zsh_text((*command)->summary);
            puts("'");
        }
    }
    puts("    )\n"
         "    if ((CURRENT == 2)); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    local name=$words[2]\n"
         "    shift words\n"
         "    ((CURRENT--))\n"
         "    case $name in");
    for (const wh_command *const *command = wh_commands; *command; command++) {
        if ((*command)->summary) {
            print_zsh_command(*command);
        }
    }
    puts("    esac\n}\n_wherry \"$@\"");
}

static int run(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const wh_command *command = argc > 2 ? wh_command_find(argv[2]) : NULL;
    if (strcmp(what, "man") == 0 && command && command->summary) {
        print_command_page(command);
    } else if (strcmp(what, "man") == 0 && argc == 2) {
        print_main_page();
    } else if (strcmp(what, "bash") == 0) {
        print_bash();
    } else if (strcmp(what, "zsh") == 0) {
        print_zsh();
    } else {
        return wh_fail_command(&wh_command_reference, WH_EXIT_USAGE, "it takes man, man COMMAND, bash or zsh");
    }
    return WH_EXIT_OK;
}

const wh_command wh_command_reference = {.name = "reference", .operands = "", .text = "", .run = run};
