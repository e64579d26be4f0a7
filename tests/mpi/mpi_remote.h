/**
 * @file mpi_remote.h  Runs the suites of groups and transfers, whose ranks are threads of one
 * process, over real ranks of MPI.
 *
 * Rank 0 of MPI runs a suite. Each other rank of MPI is remote: it has the callback table of one
 * rank of the group, over a communicator of the remote ranks, and executes requests of rank 0,
 * which come over Unix sockets. So every message and block of a suite travels through MPI between
 * processes, while the suite has all ranks in one process. During an operation, a block is in the
 * memory of the remote rank.
 */
#ifndef WH_TESTS_MPI_REMOTE_H
#define WH_TESTS_MPI_REMOTE_H

#include "conformance/group_suite.h"
#include "mpi_context.h"

/** Ranks of MPI: the three of the suites, and rank 0. */
enum { REMOTE_WORLD = 4 };

/**
 * In a remote rank: serves rank 0 until it ends. With MPI_THREAD_MULTIPLE, each thread of rank 0
 * has its own thread here, otherwise this thread serves all. Collective with remote_begin.
 */
void remote_serve(void);

/** In rank 0: connects to the remote ranks; ends them. */
void remote_begin(void);
void remote_end(void);

/** In rank 0: functions for a wh_group_kind. A rank joins only once. */
void *remote_open(int32_t size);
void *remote_open_background(int32_t size);
wh_group *remote_join(void *place, int32_t rank);
void remote_close(void *place);

#endif
