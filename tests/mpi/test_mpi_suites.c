/*
 * The suites that every group passes, over MPI: mpirun -n 4 test_mpi_suites LEVEL
 * group|group-background|LANE [smoke].
 */
#include <string.h>

#include "conformance/transfer_suite.h"
#include "mpi_remote.h"

static int level_of(const char *name) {
    return strcmp(name, "multiple") == 0     ? MPI_THREAD_MULTIPLE
           : strcmp(name, "serialized") == 0 ? MPI_THREAD_SERIALIZED
           : strcmp(name, "funneled") == 0   ? MPI_THREAD_FUNNELED
                                             : MPI_THREAD_SINGLE;
}

static int conduct(const char *what, bool smoke) {
    static const wh_group_kind kind = {"mpi", remote_open, remote_join, remote_close};
    static const wh_group_kind background = {"mpi", remote_open_background, remote_join, remote_close};
    if (strcmp(what, "group") == 0) {
        return wh_group_suite_run(&kind);
    }
    if (strcmp(what, "group-background") == 0) {
        return wh_group_suite_run(&background);
    }
    return (smoke ? wh_transfer_smoke_run : wh_transfer_suite_run)(&kind, what);
}

int main(int count, char **arguments) {
    int level;
    int rank;
    int size;
    int failed = 0;
    bool smoke = count == 4 && strcmp(arguments[3], "smoke") == 0;
    if (count != 3 && !smoke) {
        return 2;
    }
    MPI_Init_thread(&count, &arguments, level_of(arguments[1]), &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != REMOTE_WORLD || level != level_of(arguments[1])) {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0) {
        remote_begin();
        failed = conduct(arguments[2], smoke);
        remote_end();
    } else {
        remote_serve();
    }
    MPI_Finalize();
    return failed;
}
