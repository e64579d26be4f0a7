/**
 * @file command.h  Commands and their options; exit codes, errors and signals.
 *
 * The output of --help is generated from these tables. manual.py generates manual pages and shell
 * completions from that output.
 */
#ifndef WH_CLI_COMMAND_H
#define WH_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/base.h>

/* ---- options ---- */

/** The kind of an option's value. Each comment ends with the type of the option's field. */
typedef enum wh_option_kind {
    WH_OPTION_FLAG,   /**< No value; bool. */
    WH_OPTION_NUMBER, /**< An integer from least to most; int64_t. */
    WH_OPTION_SIZE,   /**< A number of bytes such as 512M, from least to most; uint64_t. */
    WH_OPTION_TEXT,   /**< Any text; const char *. */
    WH_OPTION_CHOICE, /**< One of the words of `argument`, such as "auto|cma|ring"; const char *. */
    WH_OPTION_FILE,   /**< A path; const char *. */
} wh_option_kind;

typedef struct wh_option {
    const char *name; /**< "size" for --size. NULL ends a table. */
    char letter;      /**< 's' for -s; 0 if there is no short form. */
    wh_option_kind kind;
    size_t offset;        /**< Offset of the field in the command's struct of options. */
    const char *argument; /**< Name of the value in help texts, such as "SIZE". NULL for a flag. */
    const char *help;     /**< The help text, in lower case and without a full stop. */
    int64_t least;        /**< The smallest value of a NUMBER or SIZE. */
    int64_t most;
} wh_option;

/** A row of an option table. Other members, such as `.least = 1`, may follow the help text. */
#define WH_OPTION(type, field, kind_, name_, letter_, argument_, help_, ...)                                           \
    {                                                                                                                  \
        .name = (name_), .letter = (letter_), .kind = WH_OPTION_##kind_, .offset = offsetof(type, field),              \
        .argument = (argument_), .help = (help_), __VA_ARGS__                                                          \
    }

/** Options of every command. Must be the first member of each command's struct of options. */
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

/** All exit codes: X(NAME, CODE, TEXT). ARGUMENT to BUG are the groups of docs/errors.md. */
#define WH_EXIT_LIST(X)                                                                                                \
    X(OK, 0, "success")                                                                                                \
    X(FAILED, 1, "the files differ, the doctor found a problem, or the command failed")                                \
    X(USAGE, 2, "wrong options or arguments")                                                                          \
    X(ARGUMENT, 3, "an address, token, lane or tensor was not found or cannot be used")                                \
    X(RESOURCE, 4, "no such file, a file in the way, no permission, memory or disk space, or a failed system call")    \
    X(BYTES, 5, "a file or data from the other side is damaged, or of an unknown format")                              \
    X(PEER, 6, "the other side refused, has a different token, gave up or died")                                       \
    X(DEADLINE, 7, "no answer in time")                                                                                \
    X(GROUP, 8, "the group can no longer be used")                                                                     \
    X(BUG, 9, "a bug in Wherry; please report it with the message")

enum {
#define WH_X(name, code, text) WH_EXIT_##name = (code),
    WH_EXIT_LIST(WH_X)
#undef WH_X
};

typedef struct wh_command {
    const char *name;
    const char *summary; /**< One line without a full stop. */
    /** The arguments after the options, such as "FILE..."; "" if there are none. */
    const char *operands;
    int least; /**< Minimum number of operands. */
    int most;  /**< Maximum number of operands; -1 if there is no limit. */
    /** Paragraphs for --help. Each is one line; empty lines separate them. */
    const char *text;
    /** The options of this command. A row without a name ends the table. */
    const wh_option *options;
    bool json;            /**< True if the command takes --json. */
    const char *examples; /**< One command per line; comment lines start with "# ". */
    const void *defaults; /**< The default values: a struct of the command's options. */
    size_t options_size;
    /** Runs the command. @return the exit code. */
    int (*run)(void *options, const wh_operands *operands);
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

/** Prints the section of --help about exit codes. */
void wh_print_exit_codes(FILE *out);

/** Parses the arguments of a command and runs it. @return its exit code. */
int wh_command_run(const wh_command *command, int argc, char **argv);

/* ---- errors, signals, log ---- */

/** Evaluates `call` and assigns its result to `status`, unless `status` is already an error. */
#define WH_THEN(status, call) ((void)((status) == WHERRY_OK ? ((status) = (call)) : WHERRY_OK))

/** Prints an error after the command's name, or after "wherry" if command is NULL. @return code. */
__attribute__((format(printf, 3, 4))) int wh_fail_command(const wh_command *command, int code, const char *format, ...);

/** Prints `what`, if it is not NULL, and then a library error. @return the error's exit code. */
int wh_fail_status(const wh_command *command, const char *what, const wherry_error *error);

/** Prints the error of a failed command, unless a signal was recorded. @return the exit code. */
int wh_end_command(const wh_command *command, wherry_status status, const wherry_error *error);

/** Fills an error record. Appends the text of errno if status is WHERRY_SYSTEM. @return status. */
__attribute__((format(printf, 3, 4))) wherry_status wh_fail_error(wherry_error *error, wherry_status status,
                                                                  const char *format, ...);

/** Returns `memory`, the result of an allocation. Exits with WH_EXIT_RESOURCE if it is NULL. */
void *wh_need(void *memory);

/**
 * From now on, a first SIGINT, SIGTERM or SIGHUP is only recorded, and a second one of the same
 * kind ends the process. SIGPIPE is ignored.
 */
void wh_interrupt_catch(void);

/** True if a signal was recorded. Can be the `interrupt` of library options. Ignores context. */
bool wh_interrupted(void *context);

/** 128 + the number of the signal that was recorded; 0 if there was none. */
int wh_interrupt_code(void);

/**
 * Finds the first line of a file that begins with `name`, and copies the rest of it to `text`.
 * @return false if there is no such line; `text` is then empty.
 */
bool wh_read_field(const char *path, const char *name, char *text, size_t size);

/** Reads the number after `name`, as wh_read_field does. @return 0 if there is none. */
uint64_t wh_read_number(const char *path, const char *name);

/** The memory limit of this container, by cgroup v2 or v1; UINT64_MAX if there is none. */
uint64_t wh_container_memory(void);

/**
 * Sets the library's log level from -v and WHERRY_LOG; to `normal` if neither is given. If that is
 * WHERRY_LOG_OFF, a command that is not quiet still says that it waits for another process.
 */
void wh_set_log(const wh_common *common, wherry_log_level normal);

/**
 * Prints to standard error that the command waits, unless it is quiet. @param who the process that
 * it waits for.
 */
void wh_print_wait(const char *who);

#endif
