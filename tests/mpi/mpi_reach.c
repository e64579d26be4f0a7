/*
 * Ranks of MPI on several hosts, for tests/hosts. LANES may be "default".
 *
 * mpi_reach LANES: every rank sends to every other. The receivers print their lane: "lane FROM TO
 * NAME".
 *
 * mpi_reach LANES cut: rank 0 sends to rank 2, which prints "moving" when it is ready for the
 * bytes. The test then cuts the link. Both ranks print how the transfer ended, "ended RANK STATUS
 * MILLISECONDS", and rank 2 prints the status of its group, "group STATUS". Then rank 0 sends to
 * rank 1. The job waits until it is killed.
 *
 * A rank prints "well RANK" before MPI_Finalize if everything was as expected.
 */
#include "mpi_scene.h"

#include <time.h>
#include <unistd.h>

enum { CUT_MS = 4000 };

static void say_lane(int from, int to, const char *lane) {
    if (scene_rank == to) {
        printf("lane %d %d %s\n", from, to, lane);
    }
}

static void everybody(const scene *at, const char *lanes) {
    int size = wherry_group_size(at->group);
    for (int pair = 0; pair < size * size; pair++) {
        int from = pair / size;
        int to = pair % size;
        if (from != to) {
            say_lane(from, to, scene_ferry(at, from, to, lanes, pair));
        }
    }
}

static void say_moving(void *said, const wherry_progress *progress) {
    (void)progress;
    if (!*(bool *)said) {
        *(bool *)said = true;
        printf("moving\n");
    }
}

static void across_a_cut(const scene *at, const char *lanes) {
    bool said = false;
    struct timespec from;
    struct timespec to;
    wherry_status status = WHERRY_OK;
    wherry_value *state = scene_state(1);
    wherry_transfer_options options = scene_options(lanes, scene_rank == 2 ? state : NULL);
    options.timeout_ms = CUT_MS;
    options.progress = say_moving;
    options.progress_context = &said;
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (scene_rank == 0) {
        said = true; /* The receiver prints "moving", not this rank. */
        status = wherry_checkpoint_send(at->transport, &(int32_t){2}, 1, state, &options, NULL, &scene_error);
    } else if (scene_rank == 2) {
        status = wherry_checkpoint_recv(at->transport, 0, &options, NULL, &scene_error);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (scene_rank % 2 == 0) {
        printf("ended %d %s %ld\n", scene_rank, wherry_status_name(status),
               (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
        fprintf(stderr, "rank %d: %s\n", scene_rank, scene_error.message);
    }
    if (scene_rank == 2) {
        status = wherry_group_send(at->group, 3, 1, "x", 1, CUT_MS, &scene_error);
        printf("group %s\n", wherry_status_name(status));
    }
    say_lane(0, 1, scene_ferry(at, 0, 1, NULL, 2));
    wherry_value_destroy(state);
}

int main(int count, char **arguments) {
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &scene_level);
    MPI_Comm_rank(MPI_COMM_WORLD, &scene_rank);
    static char line[256];
    setvbuf(stdout, line, _IOLBF, sizeof(line)); /* This makes each line appear at once. */
    const char *lanes = count > 1 && strcmp(arguments[1], "default") != 0 ? arguments[1] : NULL;
    bool cut = count > 2 && strcmp(arguments[2], "cut") == 0;
    scene at = scene_open(MPI_COMM_WORLD);
    (cut ? across_a_cut : everybody)(&at, lanes);
    if (!scene_failures) {
        printf("well %d\n", scene_rank);
    }
    if (cut) {
        pause();
    }
    scene_close(&at);
    MPI_Finalize();
    return scene_failures != 0;
}
