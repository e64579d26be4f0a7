/**
 * @file command.h  The sub-commands of `wherry`: what each is called, takes and says of itself, in one table.
 *
 * --help, the manual pages and the completions of shells are all written from it, so that they say the same.
 */
#ifndef WH_CLI_COMMAND_H
#define WH_CLI_COMMAND_H

#include <wherry/base.h>

#include "options.h"

/**
 * X(NAME, CODE, TEXT): the exit codes, beside 128 + the number of the signal that ended a command. From ARGUMENT on they are
 * the groups of docs/errors.md.
 */
#define WH_EXIT_LIST(X)                                                                                                \
    X(OK, 0, "it did what was asked")                                                                                  \
    X(FAILED, 1, "the answer is no: the files differ, something is to be mended; or it failed in a way of its own")    \
    X(USAGE, 2, "a mistake in the options")                                                                            \
    X(ARGUMENT, 3, "what was asked for is not there, or does not fit: a path, a tensor, a kind of file")               \
    X(RESOURCE, 4, "this machine lacks something: memory, room, a permission, a file that can be read")                \
    X(BYTES, 5, "a file, or bytes from the other side, are damaged or of another form")                                \
    X(PEER, 6, "the other side refused, has another token, gave up or died")                                           \
    X(DEADLINE, 7, "there was no answer in time")                                                                      \
    X(GROUP, 8, "the group is of no more use here")                                                                    \
    X(BUG, 9, "a bug in Wherry: report it, with the message")

enum {
#define WH_X(name, code, text) WH_EXIT_##name = (code),
    WH_EXIT_LIST(WH_X)
#undef WH_X
};

/** An exit code, and what it means. */
typedef struct wh_exit_code {
    int code;
    const char *text;
} wh_exit_code;

/** All of them, ended by one without a text. */
extern const wh_exit_code wh_exit_codes[];

/** One sub-command. */
typedef struct wh_command {
    const char *name;
    const char *summary;               /**< A line without a full stop; NULL: not for users, and not listed. */
    const char *operands;              /**< What stands behind the options: "FILE..."; "" for nothing. */
    int least;                         /**< How many operands it takes, */
    int most;                          /**< at most; -1: any number. */
    const char *text;                  /**< Paragraphs with an empty line between them, each one line of text. */
    const wh_option *options;          /**< Of its own, ended by one without a name. */
    bool json;                         /**< It takes --json. */
    const char *examples;              /**< Lines: a command, or text that begins with "# ". */
    int (*run)(int argc, char **argv); /**< Takes the arguments, the name first. @return the exit code. */
} wh_command;

/** All of them, ended by NULL. */
extern const wh_command *const wh_commands[];

extern const wh_command wh_command_bench;
extern const wh_command wh_command_demo;
extern const wh_command wh_command_demo_rank;
extern const wh_command wh_command_diff;
extern const wh_command wh_command_doctor;
extern const wh_command wh_command_fetch;
extern const wh_command wh_command_inspect;
extern const wh_command wh_command_serve;
extern const wh_command wh_command_reference;

/** The command of that name; NULL where there is none. */
const wh_command *wh_command_find(const char *name);

/** Says on standard error why a command failed, as printf does, its name first; command is NULL where there is none. @return code. */
__attribute__((format(printf, 3, 4))) int wh_fail_command(const wh_command *command, int code, const char *format, ...);

/** The same for an error of the library. @return the exit code of its group. */
int wh_fail_status(const wh_command *command, const char *what, const wherry_error *error);

/** Ends a command that signals interrupt. @param error  says why status is another than WHERRY_OK. @return its exit code. */
int wh_end_command(const wh_command *command, wherry_status status, const wherry_error *error);

#endif
