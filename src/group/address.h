/**
 * @file address.h  Parses the address of a group: the rank of this process, and the meeting point
 * of the ranks. Does not open sockets.
 */
#ifndef WH_GROUP_ADDRESS_H
#define WH_GROUP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/** Maximum size of a job id in bytes, which is the limit of PMIx. */
#define WH_JOB_MAX 255

typedef enum wh_address_kind { WH_ADDRESS_TCP, WH_ADDRESS_UNIX } wh_address_kind;

/** A meeting point: the host and port where ranks connect to find each other. */
typedef struct wh_endpoint {
    /**
     * A name, an IPv4 address, or an IPv6 address. An IPv6 address has no brackets and may have a
     * zone, as in fe80::1%eth0.
     */
    char *host;
    /** 0: this process is the only meeting point, and the system chooses the port. */
    uint16_t port;
} wh_endpoint;

/** A parsed address. Free it with wh_group_address_clear. */
typedef struct wh_group_address {
    wh_address_kind kind;
    int32_t rank;         /**< 0 <= rank < size. */
    int32_t size;         /**< At least 1. */
    char *job;            /**< The job id, in printable UTF-8; "": none. Never NULL. */
    char *path;           /**< UNIX: the meeting socket, short enough for sockaddr_un. TCP: NULL. */
    wh_endpoint *meeting; /**< TCP: the meeting points, in the given order. UNIX: NULL. */
    size_t meeting_count; /**< TCP: at least 1. UNIX: 0. */
    /** TCP: the address at which this process listens for others; host NULL: not given. */
    wh_endpoint bind;
    bool shortcut;      /**< TCP: ranks on one host may use Unix sockets. */
    const char *source; /**< Where the rank was found, such as "tcp://" or "Slurm". For logs. */
} wh_group_address;

/**
 * Returns the value of a variable; NULL: not set. The value must stay valid while the address is
 * parsed.
 */
typedef const char *(*wh_environment)(void *context, const char *name);

/**
 * Parses the address of a group, in one of three forms:
 *
 *     tcp://HOST:PORT[,HOST:PORT...]?rank=R&size=N[&job=ID][&shortcut=0][&bind=HOST:PORT]
 *     unix:///ABSOLUTE/PATH?rank=R&size=N[&job=ID]
 *     env://[?job=ID][&shortcut=0]
 *
 * An IPv6 host is in brackets. The path and the values may have percent escapes. These characters
 * must be escaped: '#' in the path and in values, '?' in the path, and '&' in values. If tcp:// has
 * a single meeting point, its port may be 0. The key `shortcut` is 1 by default. If it is 0, ranks
 * on one host do not use Unix sockets between them. The key has no effect if the ranks meet at a
 * Unix socket. With `bind`, there is one meeting point, and this process listens for it at that
 * address, with port 0 at a port of the system's choice. The others connect to the meeting point.
 *
 * env:// reads the environment. An empty variable counts as not set.
 *
 * - Rank and size come from one of these pairs of variables: WHERRY_RANK and WHERRY_SIZE, RANK and
 *   WORLD_SIZE, OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, PMI_RANK and PMI_SIZE, SLURM_PROCID
 *   and SLURM_NTASKS. The first pair that has a variable set is used. It is an error if its other
 *   variable is not set. There is one exception: an incomplete pair of PMI is ignored if
 *   SLURM_PROCID is set. PMI comes before Slurm because ranks of mpiexec inherit Slurm's variables
 *   from the batch script.
 * - The job id is the first of these that is set: ?job, WHERRY_JOB, TORCHELASTIC_RUN_ID,
 *   SLURM_JOB_ID.SLURM_STEP_ID, OMPI_MCA_ess_base_jobid, PMIX_NAMESPACE. With Open MPI's mpirun,
 *   the last two come before the id of Slurm. The step id is omitted if mpiexec has not started as
 *   many ranks as the step has tasks. If torchrun's id is "none", MASTER_ADDR and MASTER_PORT are
 *   added to it. If none of these ids is set, the job id is empty, unless MPICH's launcher has
 *   started all ranks on one host. It is then made from the pid of the launcher, which is at the
 *   other end of PMI_FD.
 * - The meeting point is WHERRY_RENDEZVOUS (HOST:PORT[,HOST:PORT...]) if that is set. Otherwise, if
 *   MASTER_ADDR is set, it is that host with the port WHERRY_PORT; if WHERRY_PORT is not set, with
 *   the port MASTER_PORT + 1. Otherwise, if all ranks are known to be on one host, it is a Unix
 *   socket whose name depends on the job and the user.
 *
 * @param text         NULL is an error.
 * @param environment  NULL: use the environment of the process.
 * @param context      passed to `environment`.
 * @param address_p    the caller frees it with wh_group_address_clear.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, with the mistake and a correct example in `error`;
 * WHERRY_NO_MEMORY.
 */
wherry_status wh_group_address_parse(const char *text, wh_environment environment, void *context,
                                     wh_group_address *address_p, wherry_error *error);

/** Frees the members of an address and zeroes it. `address` may be NULL or zeroed. */
void wh_group_address_clear(wh_group_address *address);

#endif
