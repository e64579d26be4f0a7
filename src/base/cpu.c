#include "base/cpu.h"

#include <sched.h>

size_t wh_cpu_count(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0 ? (size_t)CPU_COUNT(&set) : 1;
}
