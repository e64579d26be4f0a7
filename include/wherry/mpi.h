/**
 * @file wherry/mpi.h  A group of the ranks of an MPI communicator.
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
 *     wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &error);
 *
 * Not part of wherry/wherry.h, since it includes mpi.h; nor of libwherry, since the ABI of an MPI is its own. Link the library
 * that was built for the MPI of the program: libwherry-mpi-openmpi or libwherry-mpi-mpich (pkg-config: the same without
 * `lib`). docs/mpi.md tells what works and what MPI cannot do. All since 0.1.
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
    WHERRY_MPI_BACKGROUND =
        1,               /**< A thread reads messages while the program is in no call of the library, so that, say,
                                    wherry_transport_waiting knows who asks. Needs MPI_THREAD_MULTIPLE, and looks at MPI
                                    some thousand times a second. */
    WHERRY_MPI_FLAGS = 1 /**< All of them. */
};

/** How to make a group of a communicator. Fill it by wherry_mpi_options_init, then change what you need. */
typedef struct wherry_mpi_options {
    uint32_t struct_size; /**< sizeof(wherry_mpi_options). */
    uint32_t flags;       /**< WHERRY_MPI_*. Default 0. */
} wherry_mpi_options;

/** Fills the defaults. */
WHERRY_API void wherry_mpi_options_init(wherry_mpi_options *options);

/**
 * Makes a group of the ranks of a communicator. Collective: all of its ranks call it, with arguments that are right at all of
 * them, and by threads that may; where one then fails, the others answer WHERRY_ABORTED.
 *
 * Which threads may then use the group, the level of threads says that MPI was initialised with. MPI_THREAD_MULTIPLE: any, several
 * at once. MPI_THREAD_SERIALIZED: any; the library's calls take turns, and the program sees to it that no other thread is inside
 * MPI meanwhile. Below: the main thread alone, and other threads get WHERRY_UNSUPPORTED from every call that would use MPI.
 * Below MPI_THREAD_MULTIPLE MPI is only called by the thread that is inside a call of the library.
 *
 * @param communicator  borrowed during the call, and duplicated: the group's messages never meet the program's. An
 *                      intra-communicator.
 * @param options       borrowed during the call; NULL for the defaults.
 * @param group_p       belongs to the caller: wherry_group_leave, before MPI_Finalize, by a thread that may use the group. It
 *                      frees the duplicate, and waits a second at most for messages that are under way. After MPI_Finalize
 *                      the group answers WHERRY_CLOSED, and leaving it says so in the log.
 * Blocks until all ranks of the communicator have called it, without a limit: MPI has none.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also where MPI is not initialised, or finalized already; WHERRY_UNSUPPORTED for
 * WHERRY_MPI_BACKGROUND below MPI_THREAD_MULTIPLE, and for a thread that must not call MPI; WHERRY_BAD_VERSION with the rank
 * that has another version of the library; WHERRY_NO_MEMORY; WHERRY_SYSTEM with what MPI says; WHERRY_ABORTED with the rank
 * that failed, where this one did not.
 *
 * What calls on the group answer beyond their own lists: WHERRY_SYSTEM with what MPI says; WHERRY_PEER_LOST where MPI says that
 * a rank has failed, which most do not live to say; WHERRY_UNSUPPORTED as above; WHERRY_CLOSED from the moment on at which a
 * receive was given up whose bytes MPI had begun to take and could not stop within 2 s: the source stands still, or its host is
 * cut off. The receive itself answers why it was given up, and its message says that MPI may still write to what was received
 * into. The library never frees that memory, nor releases the storages of the target. Memory wrapped without a release function
 * must stay until MPI ends; and none of it is to be used, or received into, before that. Leave the group, and make another of
 * ranks that can be reached.
 */
WHERRY_API wherry_status wherry_group_from_mpi(MPI_Comm communicator, const wherry_mpi_options *options,
                                               wherry_group **group_p, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
