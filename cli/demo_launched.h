/** @file demo_launched.h  The demo under a launcher: this process is one of its ranks. */
#ifndef WH_CLI_DEMO_LAUNCHED_H
#define WH_CLI_DEMO_LAUNCHED_H

#include "demo_options.h"

/** Runs the demo as rank options->rank. Rank 0 prints. @return the exit code. */
int wh_demo_launched(const wh_demo_options *options);

#endif
