/**
 * @file step_state.h  States whose bytes depend on the step, so that bytes of another step are
 * found.
 */
#ifndef WH_TESTS_STEP_STATE_H
#define WH_TESTS_STEP_STATE_H

#include "support/process_job.h"

static inline uint64_t step_word(size_t index, int step) {
    return ((uint64_t)step * 2 + 1) * UINT64_C(0x9E3779B97F4A7C15) + index * UINT64_C(0x0101010101010101) * 37;
}

static inline void step_fill(job_state *state, int step) {
    uint64_t *words = (void *)state->memory; /* The memory is on its own pages, so it is aligned. */
    for (size_t i = 0; i < state->bytes / sizeof(*words); i++) {
        words[i] = step_word(i, step);
    }
}

/** @return the index of the first word with a wrong value for the step; SIZE_MAX: none. */
static inline size_t step_find_torn(const job_state *state, int step) {
    const uint64_t *words = (const void *)state->memory;
    for (size_t i = 0; i < state->bytes / sizeof(*words); i++) {
        if (words[i] != step_word(i, step)) {
            return i;
        }
    }
    return SIZE_MAX;
}

#endif
