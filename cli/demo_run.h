/** @file demo_run.h  Running the demo, and a rank of it. */
#ifndef WH_CLI_DEMO_RUN_H
#define WH_CLI_DEMO_RUN_H

/** `wherry demo`: ranks that are killed, come back and are healed by their peers. */
int wh_demo_command(int argc, char **argv);

/** One rank of it, in a process of its own: what `wherry demo` starts. Not for users. */
int wh_demo_rank_command(int argc, char **argv);

#endif
