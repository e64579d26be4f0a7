/** @file command.h  The sub-commands of `wherry`. Each takes its own arguments, its name first, and returns the exit code. */
#ifndef WH_CLI_COMMAND_H
#define WH_CLI_COMMAND_H

/** Exit codes, beside EXIT_SUCCESS and 128 + the number of the signal that ended a command. */
enum {
    WH_EXIT_FAILED = 1, /**< It did not work; the text says why. */
    WH_EXIT_USAGE = 2,  /**< It was called in a wrong way. */
};

/** `wherry demo`: ranks that are killed, come back and are healed by their peers. */
int wh_demo_command(int argc, char **argv);

/** One rank of it, in a process of its own: what `wherry demo` starts. Not for users. */
int wh_demo_rank_command(int argc, char **argv);

#endif
