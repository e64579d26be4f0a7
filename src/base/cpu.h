/** @file cpu.h  How many processors there are. */
#ifndef WH_BASE_CPU_H
#define WH_BASE_CPU_H

#include <stddef.h>

/** The number of processors that the calling thread may run on; 1 if that is unknown. */
size_t wh_cpu_count(void);

#endif
