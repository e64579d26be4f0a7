/**
 * @file command.h  The table of sub-commands, their options, exit codes, errors and signals.
 *
 * --help is printed from it; manual.py makes manual pages and completions from the output.
 */
#ifndef WH_CLI_COMMAND_H
#define WH_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/base.h>

/* ---- options ---- */

/** What an option takes, and the type of the field that it sets. */
typedef enum wh_option_kind {
    WH_OPTION_FLAG,   /**< No value; bool. */
    WH_OPTION_NUMBER, /**< An integer from least to most; int64_t. */
    WH_OPTION_SIZE,   /**< A number of bytes such as 512M, from least to most; uint64_t. */
    WH_OPTION_TEXT,   /**< const char *. */
    WH_OPTION_CHOICE, /**< One of the words of `argument`, such as "auto|cma|ring"; const char *. */
    WH_OPTION_FILE,   /**< A path; const char *. */
} wh_option_kind;

typedef struct wh_option {
    const char *name; /**< "size" for --size. NULL ends a table. */
    char letter;      /**< 's' for -s; 0: none. */
    wh_option_kind kind;
    size_t offset;        /**< Of the field in the command's struct of options. */
    const char *argument; /**< Name of the value in help texts, such as "SIZE". NULL for a flag. */
    const char *help;     /**< Lower case, no full stop. */
    int64_t least;        /**< NUMBER and SIZE. */
    int64_t most;
} wh_option;

/** A row of an option table. More members may follow the help, such as `.least = 1`. */
#define WH_OPTION(type, field, kind_, name_, letter_, argument_, help_, ...)                                           \
    {                                                                                                                  \
        .name = (name_), .letter = (letter_), .kind = WH_OPTION_##kind_, .offset = offsetof(type, field),              \
        .argument = (argument_), .help = (help_), __VA_ARGS__                                                          \
    }

/** Options that every command takes. The first member of each command's struct of options. */
typedef struct wh_common {
    bool quiet;
    bool verbose;
    bool json;
} wh_common;

/** The arguments after the options. */
typedef struct wh_operands {
    int count;
    char **items;
} wh_operands;

/* ---- commands ---- */

/** X(NAME, CODE, TEXT): the exit codes. From ARGUMENT on they are the groups of docs/errors.md. */
#define WH_EXIT_LIST(X)                                                                                                \
    X(OK, 0, "success")                                                                                                \
    X(FAILED, 1, "the answer is no (the files differ, the doctor found a problem), or the command failed")             \
    X(USAGE, 2, "wrong options or arguments")                                                                          \
    X(ARGUMENT, 3, "not found or not suitable: a path, a tensor, a file format")                                       \
    X(RESOURCE, 4, "this machine lacks something: memory, disk space, a permission, a readable file")                  \
    X(BYTES, 5, "a file or data from the other side is damaged or malformed")                                          \
    X(PEER, 6, "the other side refused, has a different token, gave up or died")                                       \
    X(DEADLINE, 7, "no answer in time")                                                                                \
    X(GROUP, 8, "the group cannot be used any more")                                                                   \
    X(BUG, 9, "a bug in Wherry: please report it with the message")

enum {
#define WH_X(name, code, text) WH_EXIT_##name = (code),
    WH_EXIT_LIST(WH_X)
#undef WH_X
};

typedef struct wh_command {
    const char *name;
    const char *summary;      /**< One line, no full stop. */
    const char *operands;     /**< What follows the options, such as "FILE..."; "" for nothing. */
    int least;                /**< Number of operands, */
    int most;                 /**< at most; -1: no limit. */
    const char *text;         /**< Paragraphs of one line each, separated by an empty line. */
    const wh_option *options; /**< Its own options; ends with a row without a name. */
    bool json;                /**< Takes --json. */
    const char *examples;     /**< One command per line; comment lines start with "# ". */
    const void *defaults;     /**< Its struct of options. */
    size_t options_size;
    int (*run)(void *options, const wh_operands *operands); /**< @return the exit code. */
} wh_command;

/** Members of wh_command for a struct of options and its default values. */
#define WH_DEFAULTS(type, ...) .defaults = &(const type){__VA_ARGS__}, .options_size = sizeof(type)

extern const wh_command wh_command_bench;
extern const wh_command wh_command_demo;
extern const wh_command wh_command_diff;
extern const wh_command wh_command_doctor;
extern const wh_command wh_command_fetch;
extern const wh_command wh_command_inspect;
extern const wh_command wh_command_serve;

/** Parses the arguments of a command and runs it. @return its exit code. */
int wh_command_run(const wh_command *command, int argc, char **argv);

/* ---- errors, signals, log ---- */

/** Runs a call unless an earlier one has failed. */
#define WH_THEN(status, call) ((void)((status) == WHERRY_OK ? ((status) = (call)) : WHERRY_OK))

/** Prints an error, with the command's name first if command is not NULL. @return code. */
__attribute__((format(printf, 3, 4))) int wh_fail_command(const wh_command *command, int code, const char *format, ...);

/** Prints an error of the library, after `what` if it is not NULL. @return its exit code. */
int wh_fail_status(const wh_command *command, const char *what, const wherry_error *error);

/** @return the exit code for a status: after a failure, that of a signal, or prints the error. */
int wh_end_command(const wh_command *command, wherry_status status, const wherry_error *error);

/** Fills an error; WHERRY_SYSTEM adds the text of errno. @return status. */
__attribute__((format(printf, 3, 4))) wherry_status wh_fail_error(wherry_error *error, wherry_status status,
                                                                  const char *format, ...);

/** @return memory. Exits with WH_EXIT_RESOURCE if it is NULL: what an allocation returned. */
void *wh_need(void *memory);

/** From here on SIGINT, SIGTERM and SIGHUP are only noted. A second one ends the process. */
void wh_interrupt_catch(void);

/** True after such a signal. Fits the `interrupt` of the library's options; context is unused. */
bool wh_interrupted(void *context);

/** 128 + the number of the signal; 0: none. */
int wh_interrupt_code(void);

/** Reads the rest of the first line that starts with name. @return false if there is none. */
bool wh_read_field(const char *path, const char *name, char *text, size_t size);

/** Sets the library's log level from -v and WHERRY_LOG. @param normal  the level without either. */
void wh_set_log(const wh_common *common, wherry_log_level normal);

#endif
