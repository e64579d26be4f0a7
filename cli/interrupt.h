/** @file interrupt.h  Ctrl-C: what is under way is ended in good order, and told to the other side. */
#ifndef WH_CLI_INTERRUPT_H
#define WH_CLI_INTERRUPT_H

#include <stdbool.h>

/** From here on SIGINT, SIGTERM and SIGHUP are noted instead of ending the process; a second one ends it all the same. */
void wh_interrupt_catch(void);

/** Whether one has come; context is not used. For the `interrupt` of the library's options. */
bool wh_interrupted(void *context);

/** 128 + the number of the signal that has come; 0: none has. */
int wh_interrupt_code(void);

#endif
