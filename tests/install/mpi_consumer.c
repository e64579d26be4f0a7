/*
 * A user's program over MPI. It links with the flags of pkg-config for its MPI, and calls a
 * barrier.
 */
#include <stdio.h>
#include <stdlib.h>

#include <wherry/mpi.h>

int main(int argc, char **argv) {
    int level;
    wherry_error error;
    wherry_group *group;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    wherry_status status = wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &error);
    if (status == WHERRY_OK) {
        status = wherry_group_barrier(group, 1, 10000, &error);
        wherry_group_leave(group);
    }
    if (status != WHERRY_OK) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
    }
    MPI_Finalize();
    return status == WHERRY_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
