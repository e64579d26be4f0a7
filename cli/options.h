/** @file options.h  Reading the options of a command, from a table that also tells about them. */
#ifndef WH_CLI_OPTIONS_H
#define WH_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct wh_command;

/** What an option takes, and the type of the field that it fills. */
typedef enum wh_option_kind {
    WH_OPTION_FLAG,   /**< Nothing; bool. */
    WH_OPTION_NUMBER, /**< A whole number, least to most; int64_t. */
    WH_OPTION_SIZE,   /**< A number of bytes, such as 512M, least to most; uint64_t. */
    WH_OPTION_TEXT,   /**< const char *. */
    WH_OPTION_CHOICE, /**< One of some words; const char *. */
    WH_OPTION_FILE,   /**< The name of a file; const char *. */
} wh_option_kind;

/** One option. */
typedef struct wh_option {
    const char *name;     /**< "size", for --size. */
    char letter;          /**< 's', for -s; 0: none. */
    wh_option_kind kind;  /**< Of its value. */
    size_t offset;        /**< Of the field, in the command's struct of options. */
    const char *argument; /**< What its value is called: "SIZE". NULL for a flag. */
    const char *help;     /**< A phrase. */
    int64_t least;        /**< Numbers and sizes. */
    int64_t most;
    const char *choices; /**< CHOICE: the words, with commas between them. */
} wh_option;

/** What every command takes. The first member of each command's struct of options. */
typedef struct wh_common {
    bool quiet;
    bool verbose;
    bool json;
} wh_common;

/** What is left behind the options. */
typedef struct wh_operands {
    int count;
    char **items;
} wh_operands;

/** The options that every command takes, ended by one without a name; --json stands last but for --help. */
extern const wh_option wh_common_options[];

/** Whether a command takes one of wh_common_options. */
bool wh_option_applies(const struct wh_command *command, const wh_option *common);

/**
 * Reads the arguments of a command.
 * @param options   its struct of options, with the defaults.
 * @param operands  receives what is left; NULL for a command that takes none.
 * @return true to go on; else the command is over, by --help or a mistake that was told, with *code_p.
 */
bool wh_options_parse(const struct wh_command *command, int argc, char **argv, void *options, wh_operands *operands,
                      int *code_p);

/** Prints what --help does. */
void wh_options_help(const struct wh_command *command, FILE *out);

/** Writes an option as a user types it: "-o, --output PATH". */
void wh_option_text(const wh_option *option, char *text, size_t size);

#endif
