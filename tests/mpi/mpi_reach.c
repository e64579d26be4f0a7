/*
 * Every rank of MPI sends to every other: mpirun -n 4 mpi_reach [LANES]. Whoever receives says over which lane: "lane FROM TO NAME".
 * For ranks on several hosts; tests/hosts starts it.
 */
#include "mpi_scene.h"

int main(int count, char **arguments) {
    int size;
    int all;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &scene_level);
    MPI_Comm_rank(MPI_COMM_WORLD, &scene_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    scene at = scene_open(MPI_COMM_WORLD);
    for (int pair = 0; pair < size * size; pair++) {
        int from = pair / size;
        int to = pair % size;
        if (from != to) {
            const char *lane = scene_ferry(&at, from, to, count > 1 ? arguments[1] : NULL, pair);
            if (scene_rank == to) {
                printf("lane %d %d %s\n", from, to, lane);
                fflush(stdout);
            }
        }
    }
    MPI_Allreduce(&scene_failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    scene_close(&at);
    MPI_Finalize();
    return all != 0;
}
