/** @file address.h  The address of a group: who this process is in it, and where the ranks meet. Text only, no sockets. */
#ifndef WH_GROUP_ADDRESS_H
#define WH_GROUP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/** Bytes that the id of a job has at most: those of the longest id that PMIx gives. */
#define WH_JOB_MAX 255

typedef enum wh_address_kind { WH_ADDRESS_TCP, WH_ADDRESS_UNIX } wh_address_kind;

/** A place to meet. */
typedef struct wh_endpoint {
    char *
        host; /**< A name, an IPv4 address, or an IPv6 address without brackets, perhaps with its zone: fe80::1%eth0. */
    uint16_t port; /**< 0: this process hosts the only meeting point, at a port of the system's choice. */
} wh_endpoint;

/** All of it is released by wh_group_address_clear. */
typedef struct wh_group_address {
    wh_address_kind kind;
    int32_t rank;         /**< 0 <= rank < size. */
    int32_t size;         /**< At least 1. */
    char *job;            /**< Id of the job: UTF-8 without control characters; "" where none is said, never NULL. */
    char *path;           /**< UNIX: path of the meeting socket, which fits sockaddr_un. TCP: NULL. */
    wh_endpoint *meeting; /**< TCP: the meeting points, in the order in which they were said. UNIX: NULL. */
    size_t meeting_count; /**< TCP: at least 1. UNIX: 0. */
    bool shortcut;        /**< TCP: ranks of one host may talk over Unix sockets. */
    const char *source; /**< Who said the rank, in words for the log: "tcp://", "torchrun", "Slurm". Never released. */
} wh_group_address;

/** Looks a variable up. @return its value, to stay until the parsing ends; NULL where it is not set. */
typedef const char *(*wh_environment)(void *context, const char *name);

/**
 * Reads the address of a group, in one of three forms:
 *
 *     tcp://HOST:PORT[,HOST:PORT...]?rank=R&size=N[&job=ID][&shortcut=0]
 *     unix:///ABSOLUTE/PATH?rank=R&size=N[&job=ID]
 *     env://[?job=ID][&shortcut=0]
 *
 * An IPv6 host stands in brackets. The path and the values of the query may have percent escapes, and must where they
 * contain '?' (in the path), '&' or '#'. A single meeting point of tcp:// may have port 0. shortcut is 0 or 1, its default,
 * and says nothing where the ranks meet at a Unix socket.
 *
 * env:// asks the environment, where a variable that is empty counts as not set:
 *
 * - Rank and size, from the first pair of which either is set: WHERRY_RANK and WHERRY_SIZE, RANK and WORLD_SIZE,
 *   OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, PMI_RANK and PMI_SIZE, SLURM_PROCID and SLURM_NTASKS. PMI's go before
 *   Slurm's because mpiexec's processes inherit those of the batch script.
 * - The job's id: ?job, WHERRY_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID.SLURM_STEP_ID, OMPI_MCA_ess_base_jobid,
 *   PMIX_NAMESPACE; where MPICH's launcher says that all ranks are on one host, the process at the other end of PMI_FD. A process that Open MPI's mpirun started asks for the last two before Slurm's. The step is left out where
 *   mpiexec has started another number of ranks than the step has. torchrun's "none" is joined with MASTER_ADDR and MASTER_PORT.
 * - The meeting point: WHERRY_RENDEZVOUS (HOST:PORT[,HOST:PORT...]); MASTER_ADDR with WHERRY_PORT, else with MASTER_PORT + 1;
 *   where all ranks are known to be on one host, a Unix socket named after the job and the user.
 *
 * @param text         may be NULL, which is refused.
 * @param environment  NULL: that of the process.
 * @param context      for environment.
 * @param address_p    receives the address, which the caller clears.
 * @return WHERRY_INVALID_ARGUMENT with what is wrong and an example of what is right; WHERRY_NO_MEMORY.
 */
wherry_status wh_group_address_parse(const char *text, wh_environment environment, void *context,
                                     wh_group_address *address_p, wherry_error *error);

/** Releases what the address holds, and leaves it zeroed; one that is zeroed already is fine, and so is NULL. */
void wh_group_address_clear(wh_group_address *address);

#endif
