/**
 * @file address.h  The address of a group: which rank this process is, and where the ranks meet.
 * Text only, no sockets.
 */
#ifndef WH_GROUP_ADDRESS_H
#define WH_GROUP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/** The longest job id in bytes: that of PMIx. */
#define WH_JOB_MAX 255

typedef enum wh_address_kind { WH_ADDRESS_TCP, WH_ADDRESS_UNIX } wh_address_kind;

/** A meeting point. */
typedef struct wh_endpoint {
    /**
     * A name, an IPv4 address, or an IPv6 address without brackets, with its zone: fe80::1%eth0.
     */
    char *host;
    /** 0: this process hosts the only meeting point, at a port that the system chooses. */
    uint16_t port;
} wh_endpoint;

/** Freed by wh_group_address_clear. */
typedef struct wh_group_address {
    wh_address_kind kind;
    int32_t rank;         /**< 0 <= rank < size. */
    int32_t size;         /**< At least 1. */
    char *job;            /**< Job id: UTF-8 without control characters; "": none. Never NULL. */
    char *path;           /**< UNIX: the meeting socket; fits sockaddr_un. TCP: NULL. */
    wh_endpoint *meeting; /**< TCP: the meeting points, in the given order. UNIX: NULL. */
    size_t meeting_count; /**< TCP: at least 1. UNIX: 0. */
    bool shortcut;        /**< TCP: ranks of one host may use Unix sockets. */
    const char *source;   /**< Where the rank comes from, for logs: "tcp://", "Slurm". Static. */
} wh_group_address;

/** @return the value of a variable, valid until the parsing ends; NULL if it is not set. */
typedef const char *(*wh_environment)(void *context, const char *name);

/**
 * Parses the address of a group, in one of three forms:
 *
 *     tcp://HOST:PORT[,HOST:PORT...]?rank=R&size=N[&job=ID][&shortcut=0]
 *     unix:///ABSOLUTE/PATH?rank=R&size=N[&job=ID]
 *     env://[?job=ID][&shortcut=0]
 *
 * An IPv6 host is in brackets. The path and the values may have percent escapes, and must escape
 * '?' (in the path), '&' and '#'. A single meeting point of tcp:// may have port 0. shortcut is 0
 * or 1, the default; it has no effect if the ranks meet at a Unix socket.
 *
 * env:// reads the environment. An empty variable counts as not set.
 *
 * - Rank and size, from the first pair of which either is set: WHERRY_RANK and WHERRY_SIZE, RANK
 *   and WORLD_SIZE, OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, PMI_RANK and PMI_SIZE,
 *   SLURM_PROCID and SLURM_NTASKS. PMI comes before Slurm because ranks of mpiexec inherit Slurm's
 *   variables from the batch script.
 * - The job id: ?job, WHERRY_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID.SLURM_STEP_ID,
 *   OMPI_MCA_ess_base_jobid, PMIX_NAMESPACE; under MPICH's launcher, if all ranks are on one host,
 *   the pid at the other end of PMI_FD. Under Open MPI's mpirun, the two of MPI come before
 *   Slurm's. The step is left out if mpiexec has started another number of ranks than the step has.
 *   torchrun's "none" is joined with MASTER_ADDR and MASTER_PORT.
 * - The meeting point: WHERRY_RENDEZVOUS (HOST:PORT[,HOST:PORT...]); MASTER_ADDR with WHERRY_PORT,
 *   otherwise with MASTER_PORT + 1; if all ranks are known to be on one host, a Unix socket named
 *   after the job and the user.
 *
 * @param text         NULL is an error.
 * @param environment  NULL: that of the process.
 * @param context      for environment.
 * @param address_p    the caller's: wh_group_address_clear.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT with what is wrong and a correct example;
 * WHERRY_NO_MEMORY.
 */
wherry_status wh_group_address_parse(const char *text, wh_environment environment, void *context,
                                     wh_group_address *address_p, wherry_error *error);

/** Frees what the address holds, and zeroes it. address may be NULL or zeroed. */
void wh_group_address_clear(wh_group_address *address);

#endif
