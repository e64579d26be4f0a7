#include "lane/pairs.h"

#include <stddef.h>

#include "base/checked.h"
#include "base/cpu.h"

void wh_pairs_forget(wh_pairs *pairs) {
    for (size_t i = 0; i < WH_PAIRS_MAX; i++) {
        pairs->processors[i] = WH_ANYWHERE;
    }
}

void wh_pairs_choose(wh_pairs *pairs, uint32_t workers) {
    uint32_t found[WH_PAIRS_MAX];
    size_t count = wh_cpu_list(found, WH_PAIRS_MAX);
    bool few = count > 1 && count < 2 * (size_t)workers;
    for (size_t i = 0; i < WH_PAIRS_MAX; i++) {
        pairs->processors[i] = few && i < workers ? found[i % wh_min(count, WH_PAIRS_MAX)] : WH_ANYWHERE;
    }
}

void wh_choose_apart(uint32_t number, uint32_t *receiver_p, uint32_t *source_p) {
    enum { THREADS = 4 };
    uint32_t found[THREADS];
    size_t count = wh_cpu_list(found, THREADS);
    bool few = count > 1 && count < THREADS;
    *receiver_p = few ? found[number % count] : WH_ANYWHERE;
    *source_p = few ? found[(number + 1) % count] : WH_ANYWHERE;
}

bool wh_pairs_take(wh_pairs *pairs, uint32_t workers) {
    bool all = true;
    for (size_t i = 0; i < workers; i++) {
        all = all && wh_cpu_allows(pairs->processors[i]);
    }
    if (!all) {
        wh_pairs_forget(pairs);
    }
    return all;
}
