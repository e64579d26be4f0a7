/* Prints the manual pages and the shell completions from the table of commands. Only the build runs it. */
#include <ctype.h>
#include <string.h>

#include "command.h"

/** The command at or after *at_p that users see, and moves on. @return NULL after the last one. */
static const wh_command *next_command(size_t *at_p) {
    const wh_command *command;
    while ((command = wh_commands[(*at_p)++]) && !command->summary) {
    }
    return command;
}

/* ---- manual pages ---- */

/** Prints text for troff: a leading dot or quote, hyphens and backslashes are escaped. */
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

/** Prints an entry of a list of terms. */
static void roff_term(const char *term, const char *text) {
    fputs(".TP\n.B ", stdout);
    roff(term, strlen(term));
    putchar('\n');
    roff(text, strlen(text));
    putchar('\n');
}

static void roff_exit_codes(void) {
    puts(".SH EXIT STATUS");
    for (const wh_exit_code *one = wh_exit_codes; one->text; one++) {
        char code[16];
        snprintf(code, sizeof(code), "%d", one->code);
        roff_term(code, one->text);
    }
    roff_term("128+N", "ended by signal N");
}

static void roff_head(const char *name, const char *summary) {
    printf(".TH \"");
    for (const char *at = name; *at; at++) {
        putchar(toupper((unsigned char)*at));
    }
    printf("\" 1 \"\" \"Wherry %s\" \"Wherry\"\n.SH NAME\n", wherry_version());
    roff(name, strlen(name));
    fputs(" \\- ", stdout);
    roff(summary, strlen(summary));
    putchar('\n');
}

static void print_command_page(const wh_command *command) {
    char text[64];
    const wh_option *option;
    snprintf(text, sizeof(text), "wherry-%s", command->name);
    roff_head(text, command->summary);
    printf(".SH SYNOPSIS\n.B wherry %s\n[OPTION...] ", command->name);
    roff(command->operands, strlen(command->operands));
    puts("\n.SH DESCRIPTION");
    for (const char *at = command->text; *at;) {
        roff(at, strcspn(at, "\n"));
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
        puts(*at ? "\n.PP" : "");
    }
    puts(".SH OPTIONS");
    for (size_t i = 0; (option = wh_option_at(command, i)); i++) {
        wh_option_text(option, text, sizeof(text));
        roff_term(text, option->help);
    }
    puts(".SH EXAMPLES\n.nf");
    for (const char *at = command->examples; *at; at += strcspn(at, "\n"), at += *at != '\0') {
        roff(at, strcspn(at, "\n"));
        putchar('\n');
    }
    puts(".fi");
    roff_exit_codes();
    puts(".SH SEE ALSO\n.BR wherry (1)");
}

static void print_main_page(void) {
    const wh_command *command;
    roff_head("wherry", "move training checkpoints between processes and machines");
    puts(".SH SYNOPSIS\n.B wherry\nCOMMAND [OPTION...]\n.SH DESCRIPTION\n"
         "Serves, fetches and inspects checkpoint files, and shows how fast this machine moves checkpoints. "
         "Each command has its own manual page.\n.SH COMMANDS");
    for (size_t i = 0; (command = next_command(&i));) {
        printf(".TP\n.BR wherry\\-%s (1)\n", command->name);
        roff(command->summary, strlen(command->summary));
        putchar('\n');
    }
    puts(".SH ENVIRONMENT");
    roff_term("WHERRY_LOG", "how much the library logs: off, error, warn, info or debug");
    roff_term("WHERRY_LANES", "the lanes that may be used, such as cma,ring or ^cma");
    roff_term("WHERRY_INTERFACE", "the network interface that ranks use");
    roff_exit_codes();
}

/* ---- completions ---- */

/** Prints the choices of an option, separated by spaces. */
static void print_choices(const wh_option *option) {
    for (const char *at = option->choices; *at; at++) {
        putchar(*at == ',' ? ' ' : *at);
    }
}

/** Prints what bash completes after each option that takes a value. */
static void print_bash_values(const wh_command *command) {
    for (const wh_option *option = command->options; option->name; option++) {
        if (option->kind == WH_OPTION_FLAG) {
            continue;
        }
        printf("    %s:--%s", command->name, option->name);
        if (option->letter) {
            printf(" | %s:-%c", command->name, option->letter);
        }
        if (option->kind == WH_OPTION_CHOICE) {
            fputs(") choices=\"", stdout);
            print_choices(option);
            puts("\" ;;");
        } else {
            puts(option->kind == WH_OPTION_FILE ? ") files=yes ;;" : ") return ;;");
        }
    }
}

static void print_bash(void) {
    const wh_command *command;
    const wh_option *option;
    puts("# bash completion for wherry\n"
         "_wherry() {\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
         "    local choices='' files=''\n"
         "    COMPREPLY=()");
    fputs("    if ((COMP_CWORD == 1)); then\n        mapfile -t COMPREPLY < <(compgen -W '--help --version", stdout);
    for (size_t i = 0; (command = next_command(&i));) {
        printf(" %s", command->name);
    }
    puts("' -- \"$word\")\n        return\n    fi\n    case $command:$last in");
    for (size_t i = 0; (command = next_command(&i));) {
        print_bash_values(command);
    }
    puts("    esac\n    if [[ -z $choices$files && $word == -* ]]; then\n        case $command in");
    for (size_t i = 0; (command = next_command(&i));) {
        printf("        %s) choices='", command->name);
        for (size_t k = 0; (option = wh_option_at(command, k)); k++) {
            printf(" --%s", option->name);
        }
        puts("' ;;");
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

/** Prints text inside '...[...]' of zsh. */
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

/** Prints one spelling of an option: "--port" or "-p". */
static void print_zsh_spelling(const wh_option *option, const char *spelling) {
    printf("                '%s[", spelling);
    print_zsh_text(option->help);
    putchar(']');
    if (option->kind == WH_OPTION_CHOICE) {
        printf(":%s:(", option->argument);
        print_choices(option);
        putchar(')');
    } else if (option->kind != WH_OPTION_FLAG) {
        printf(":%s:%s", option->argument, option->kind == WH_OPTION_FILE ? "_files" : "");
    }
    puts("' \\");
}

static void print_zsh_command(const wh_command *command) {
    const wh_option *option;
    char spelling[64];
    printf("        %s)\n            _arguments \\\n", command->name);
    for (size_t i = 0; (option = wh_option_at(command, i)); i++) {
        snprintf(spelling, sizeof(spelling), "--%s", option->name);
        print_zsh_spelling(option, spelling);
        if (option->letter) {
            snprintf(spelling, sizeof(spelling), "-%c", option->letter);
            print_zsh_spelling(option, spelling);
        }
    }
    puts("                '*:file:_files'\n            ;;");
}

static void print_zsh(void) {
    const wh_command *command;
    puts("#compdef wherry\n"
         "_wherry() {\n"
         "    local -a commands\n"
         "    commands=(");
    for (size_t i = 0; (command = next_command(&i));) {
        printf("        '%s:", command->name);
        print_zsh_text(command->summary);
        puts("'");
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
    for (size_t i = 0; (command = next_command(&i));) {
        print_zsh_command(command);
    }
    puts("    esac\n}\n_wherry \"$@\"");
}

static int run(void *options, const wh_operands *operands) {
    const char *what = operands->items[0];
    const wh_command *command = operands->count > 1 ? wh_command_find(operands->items[1]) : NULL;
    (void)options;
    if (strcmp(what, "man") == 0 && command && command->summary) {
        print_command_page(command);
    } else if (strcmp(what, "man") == 0 && operands->count == 1) {
        print_main_page();
    } else if (strcmp(what, "bash") == 0) {
        print_bash();
    } else if (strcmp(what, "zsh") == 0) {
        print_zsh();
    } else {
        return wh_fail_command(&wh_command_manual, WH_EXIT_USAGE, "unexpected argument '%s'", what);
    }
    return WH_EXIT_OK;
}

const wh_command wh_command_manual = {.name = "manual",
                                      .operands = "man|bash|zsh [COMMAND]",
                                      .least = 1,
                                      .most = 2,
                                      .text = "",
                                      WH_DEFAULTS(wh_common, .quiet = false),
                                      .run = run};
