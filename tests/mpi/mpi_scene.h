/** @file mpi_scene.h  What the cases share that run as ranks of MPI themselves: every rank calls every case. */
#ifndef WH_TESTS_MPI_SCENE_H
#define WH_TESTS_MPI_SCENE_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <wherry/mpi.h>
#include <wherry/wherry.h>

enum { SCENE_RANKS = 4, SCENE_MS = 30000 };

/** The rank of this process in MPI_COMM_WORLD, the level of threads, and what it found wrong. */
extern int scene_rank;
extern int scene_level;
extern int scene_failures;
extern wherry_error scene_error;

/** Of the state that scene_ferry has received last. */
extern wherry_stats scene_stats;

#define CHECK(condition) scene_check(condition, #condition, __FILE__, __LINE__)
#define MUST(call) scene_must(call, #call, __FILE__, __LINE__)
#define MUST_FAIL(expected, call) CHECK((call) == (expected))

void scene_check(bool holds, const char *what, const char *file, int line);

/** The call must have succeeded; else the rank says why and ends the job. */
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

/** Defaults with a timeout of SCENE_MS; into `target`, where that is not NULL. */
wherry_transfer_options scene_options(const char *lanes, wherry_value *target);

/** From one rank to another over some lanes, in place, and compared. @return the lane, at the receiver. */
const char *scene_ferry(const scene *at, int from, int to, const char *lanes, int seed);

#endif
