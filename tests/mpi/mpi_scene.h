/** @file mpi_scene.h  Shared by the cases that run in ranks of MPI: every rank runs every case. */
#ifndef WH_TESTS_MPI_SCENE_H
#define WH_TESTS_MPI_SCENE_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <wherry/mpi.h>
#include <wherry/wherry.h>

enum { SCENE_RANKS = 4, SCENE_MS = 30000 };

/** The rank in MPI_COMM_WORLD, the thread level, and the number of failures. */
extern int scene_rank;
extern int scene_level;
extern int scene_failures;
extern wherry_error scene_error;

/** The stats of the last state that scene_ferry received. */
extern wherry_stats scene_stats;

#define CHECK(condition) scene_check(condition, #condition, __FILE__, __LINE__)
#define MUST(call) scene_must(call, #call, __FILE__, __LINE__)
#define MUST_FAIL(expected, call) CHECK((call) == (expected))

void scene_check(bool holds, const char *what, const char *file, int line);

/** Aborts the job with a message unless the call succeeded. */
void scene_must(wherry_status status, const char *what, const char *file, int line);

/** A group of all ranks, with a transport. */
typedef struct scene {
    wherry_group *group;
    wherry_transport *transport;
} scene;

scene scene_open(MPI_Comm communicator);
void scene_close(scene *at);

/** A large tensor and many small ones, filled from a seed. */
wherry_value *scene_state(int seed);
void scene_fill(const wherry_value *state, int seed);
bool scene_has(const wherry_value *state, int seed);

/** Default options with a timeout of SCENE_MS; into `target` unless it is NULL. */
wherry_transfer_options scene_options(const char *lanes, wherry_value *target);

/**
 * Transfers a state in place over some lanes and compares it. @return the lane, at the receiver.
 */
const char *scene_ferry(const scene *at, int from, int to, const char *lanes, int seed);

#endif
