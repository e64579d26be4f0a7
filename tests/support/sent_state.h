/**
 * @file sent_state.h  The state that the ranks of a test send: created before the ranks are forked,
 * so that all of them know it. For cmocka_run_group_tests. Include it in one file per program.
 */
#ifndef WH_TEST_SENT_STATE_H
#define WH_TEST_SENT_STATE_H

#include "support/process_job.h"

static job_state sent;

static int create_sent(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    sent = job_state_create(1);
    return 0;
}

static int destroy_sent(void **state) {
    (void)state;
    job_state_destroy(&sent);
    return 0;
}

#endif
