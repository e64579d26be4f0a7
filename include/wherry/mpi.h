/**
 * @file wherry/mpi.h  A group made of the ranks of an MPI communicator.
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
 *     wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &error);
 *
 * Not part of wherry/wherry.h, because it includes mpi.h, and not part of libwherry, because each
 * MPI implementation has its own ABI. Link the library that was built for the program's MPI:
 * libwherry-mpi-openmpi or libwherry-mpi-mpich (pkg-config: the same without `lib`). docs/mpi.md
 * says what works and what MPI cannot do. Available since version 0.1.
 */
#ifndef WHERRY_MPI_H
#define WHERRY_MPI_H

#include <stdint.h>

#include <mpi.h>

#include <wherry/base.h>
#include <wherry/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Flags of wherry_mpi_options. */
enum {
    /**
     * A thread of the library reads messages, even while the program is not inside a call of the
     * library. So wherry_transport_waiting, for example, is up to date. The thread needs
     * MPI_THREAD_MULTIPLE and polls MPI a few thousand times per second.
     */
    WHERRY_MPI_BACKGROUND = 1,
    WHERRY_MPI_FLAGS = 1 /**< All flags. */
};

/**
 * Options of wherry_group_from_mpi. Initialize them with wherry_mpi_options_init, then change what
 * you need.
 */
typedef struct wherry_mpi_options {
    uint32_t struct_size; /**< sizeof(wherry_mpi_options). */
    uint32_t flags;       /**< WHERRY_MPI_*. Default 0. */
} wherry_mpi_options;

/** Fills in the defaults. */
WHERRY_API void wherry_mpi_options_init(wherry_mpi_options *options);

/**
 * Makes a group from the ranks of a communicator. Collective: all of its ranks must call it, with
 * valid arguments, on threads that may call MPI. If one of them fails before all ranks have agreed
 * to make the group, the others return WHERRY_ABORTED.
 *
 * Which threads may use the group depends on the thread level that MPI was initialized with:
 *
 *   - MPI_THREAD_MULTIPLE: any threads, also several at the same time.
 *   - MPI_THREAD_SERIALIZED: any threads. The library serializes its own calls. The program must
 *     make sure that no other thread is inside MPI meanwhile.
 *   - MPI_THREAD_FUNNELED, MPI_THREAD_SINGLE: only the main thread. Other threads get
 *     WHERRY_UNSUPPORTED from every call that would use MPI.
 *
 * Below MPI_THREAD_MULTIPLE, only the thread inside a call of the library calls MPI.
 *
 * @param communicator  an intra-communicator, borrowed during the call. It is duplicated, so the
 *                      group's messages never mix with the program's.
 * @param options       borrowed during the call; NULL for the defaults.
 * @param group_p       owned by the caller. Leave it with wherry_group_leave before MPI_Finalize,
 *                      on a thread that may use the group. Leaving frees the duplicate, and waits
 *                      at most a second for messages in flight. After MPI_Finalize, calls on the
 *                      group return WHERRY_CLOSED, and wherry_group_leave logs a warning.
 *
 * Blocks until all ranks of the communicator have called it. There is no timeout, because MPI has
 * none.
 *
 * @return WHERRY_OK, or
 *   - WHERRY_INVALID_ARGUMENT: an argument is wrong, or MPI is not initialized or already
 *     finalized.
 *   - WHERRY_UNSUPPORTED: WHERRY_MPI_BACKGROUND is set without MPI_THREAD_MULTIPLE, or this thread
 *     must not call MPI.
 *   - WHERRY_BAD_VERSION: the rank in the error has another version of the library.
 *   - WHERRY_NO_MEMORY.
 *   - WHERRY_SYSTEM: MPI failed. The message has MPI's error text.
 *   - WHERRY_ABORTED: another rank failed. The error has its rank, if it is known.
 *
 * In addition to their own statuses, calls on the group return:
 *
 *   - WHERRY_SYSTEM: MPI failed; the message has its text.
 *   - WHERRY_PEER_LOST: MPI reports that a rank has failed. Most MPI implementations end the job
 *     instead.
 *   - WHERRY_UNSUPPORTED: this thread must not call MPI.
 *   - WHERRY_CLOSED: an earlier receive was given up while MPI was receiving its bytes, and MPI
 *     could not cancel it within 2 s. This happens if the source has stopped or its host is
 *     unreachable. Leave the group, and make another group from the ranks that can be reached.
 *
 * In the last case, the receive that was given up returns its own error, and its message says that
 * MPI may still write to the memory of the target. The library never frees that memory, and never
 * releases the target's storages. Memory that was wrapped without a release function must stay
 * allocated until MPI ends. Do not use any of it, or receive into it, before that.
 */
WHERRY_API wherry_status wherry_group_from_mpi(MPI_Comm communicator, const wherry_mpi_options *options,
                                               wherry_group **group_p, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
