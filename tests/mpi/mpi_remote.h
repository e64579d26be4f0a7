/**
 * @file mpi_remote.h  The suites of groups and transfers over real ranks of MPI, though their ranks are threads of one process.
 *
 * Rank 0 of MPI is the conductor: it runs a suite. The others are its hands: each holds the table of one rank of the group, over a
 * communicator of their own, and does what the conductor asks over Unix sockets. So every message and every block of a suite goes by
 * MPI from process to process, while the suite has all ranks at hand. A block lies in the hands' own memory from its begin to its end.
 */
#ifndef WH_TESTS_MPI_REMOTE_H
#define WH_TESTS_MPI_REMOTE_H

#include "conformance/group_suite.h"
#include "mpi_context.h"

/** How many ranks of MPI that takes: the suites have three. */
enum { REMOTE_WORLD = 4 };

/**
 * Hands: serves the conductor until it is done. With MPI_THREAD_MULTIPLE each of its threads is served by a thread, else all of them by this one. Collective,
 * with remote_begin.
 */
void remote_serve(void);

/** The conductor: meets the hands; ends them. */
void remote_begin(void);
void remote_end(void);

/** The conductor: the functions of a wh_group_kind. Nobody comes back: a rank is joined once. */
void *remote_open(int32_t size);
void *remote_open_background(int32_t size);
wh_group *remote_join(void *place, int32_t rank);
void remote_close(void *place);

#endif
