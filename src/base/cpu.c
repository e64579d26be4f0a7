#include "base/cpu.h"

static bool allowed(cpu_set_t *set) {
    return sched_getaffinity(0, sizeof(*set), set) == 0 && CPU_COUNT(set) > 0;
}

size_t wh_cpu_list(uint32_t *numbers, size_t most) {
    cpu_set_t set;
    if (!allowed(&set)) {
        CPU_ZERO(&set);
        CPU_SET(0, &set);
    }
    size_t count = 0;
    for (uint32_t i = 0; i < CPU_SETSIZE && count < most; i++) {
        if (CPU_ISSET(i, &set)) {
            numbers[count++] = i;
        }
    }
    return (size_t)CPU_COUNT(&set);
}

bool wh_cpu_allows(uint32_t number) {
    cpu_set_t set;
    return number < CPU_SETSIZE && allowed(&set) && CPU_ISSET(number, &set);
}

void wh_cpu_hold_begin(wh_cpu_hold *hold, uint32_t number) {
    hold->held = number < CPU_SETSIZE && allowed(&hold->before) && CPU_ISSET(number, &hold->before);
    if (hold->held) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(number, &one);
        hold->held = sched_setaffinity(0, sizeof(one), &one) == 0;
    }
}

void wh_cpu_hold_end(const wh_cpu_hold *hold) {
    if (hold->held) {
        sched_setaffinity(0, sizeof(hold->before), &hold->before);
    }
}
