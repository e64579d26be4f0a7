/** @file ucx_facts.h  Values and layouts of UCX, as one of two sets of declarations has them. */
#ifndef WH_TEST_UCX_FACTS_H
#define WH_TEST_UCX_FACTS_H

typedef struct wh_ucx_fact {
    const char *name; /**< NULL at the end of the list. */
    long long value;
} wh_ucx_fact;

/** The facts according to the lane's own declarations. */
extern const wh_ucx_fact wh_ucx_facts_declared[];
extern const wh_ucx_fact wh_ucx_facts_headers[]; /**< From UCX's headers. */

#endif
