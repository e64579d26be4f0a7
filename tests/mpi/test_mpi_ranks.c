/*
 * Ranks of MPI in ordinary programs, with a level of thread support: mpirun -n 4 test_mpi_ranks
 * LEVEL. Rank 0 prints the TAP output.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "mpi_scene.h"

/* ---- states move ---- */

static void test_every_lane(void) {
    static const char *const lanes[] = {
        "cma",
        "ring",
        "blocks",
    };
    scene at = scene_open(MPI_COMM_WORLD);
    const char *chosen = scene_ferry(&at, 0, 1, NULL, 5);
    /* Ranks on one host never use messages. */
    CHECK(scene_rank != 1 || strcmp(chosen, "cma") == 0 || strcmp(chosen, "ring") == 0);
    for (size_t i = 0; i < sizeof(lanes) / sizeof(*lanes); i++) {
        const char *lane = scene_ferry(&at, 3, 0, lanes[i], (int)i);
        CHECK(scene_rank != 0 || strcmp(lane, lanes[i]) == 0);
    }
    scene_close(&at);
}

#ifdef SCENE_UCX
/**
 * The ucx lane uses the UCX that MPI has loaded. If that is too old, the blocks lane is used, and
 * the stats say why.
 */
static void test_ucx_of_mpi(void) {
    void (*ask)(unsigned *, unsigned *, unsigned *) = NULL;
    unsigned version[3] = {UINT_MAX};
    char reason[64];
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (library) {
        *(void **)&ask = dlsym(library, "ucp_get_version");
        ask(version, version + 1, version + 2);
        dlclose(library);
    }
    bool old = library && version[0] == 1 && version[1] < 15;
    snprintf(reason, sizeof(reason), "UCX %u.%u.%u is too old; 1.15 or newer is needed", version[0], version[1],
             version[2]);
    scene at = scene_open(MPI_COMM_WORLD);
    const char *lane = scene_ferry(&at, 2, 1, "ucx,blocks", 6);
    CHECK(scene_rank != 1 || strcmp(lane, old ? "blocks" : "ucx") == 0);
    CHECK(scene_rank != 1 || !old || strstr(scene_stats.reasons, reason));
    scene_close(&at);
}
#endif

/**
 * Each rank in turn loses its state and gets it back from the next rank. Then one rank sends to all
 * others at once.
 */
static void test_states_lost_and_recovered(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    wherry_value *own = scene_state(7);
    int32_t others[] = {1, 2, 3};
    for (int loser = 0; loser < SCENE_RANKS; loser++) {
        int source = (loser + 1) % SCENE_RANKS;
        if (scene_rank == loser) {
            wherry_value *received;
            wherry_transfer_options options = scene_options(NULL, own);
            scene_fill(own, 99);
            MUST(wherry_checkpoint_recv(at.transport, source, &options, &received, &scene_error));
            wherry_value_destroy(received);
        } else if (scene_rank == source) {
            wherry_transfer_options options = scene_options(NULL, NULL);
            int32_t to = loser;
            MUST(wherry_checkpoint_send(at.transport, &to, 1, own, &options, NULL, &scene_error));
        }
        MUST(wherry_group_barrier(at.group, (uint64_t)loser + 1, SCENE_MS, &scene_error));
        CHECK(scene_has(own, 7));
    }
    wherry_transfer_options options = scene_options("blocks", scene_rank ? own : NULL);
    if (scene_rank == 0) {
        scene_fill(own, 8);
        MUST(wherry_checkpoint_send(at.transport, others, 3, own, &options, NULL, &scene_error));
    } else {
        wherry_value *received;
        MUST(wherry_checkpoint_recv(at.transport, 0, &options, &received, &scene_error));
        wherry_value_destroy(received);
        CHECK(scene_has(own, 8));
    }
    wherry_value_destroy(own);
    scene_close(&at);
}

/* ---- communicators ---- */

/** The program's receives with any source and any tag never get messages of the group. */
static void test_messages_of_the_program(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    MPI_Request request = MPI_REQUEST_NULL;
    int number = 0;
    if (scene_rank == 1) {
        MPI_Irecv(&number, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    }
    scene_ferry(&at, 0, 1, "blocks", 3);
    scene_ferry(&at, 2, 1, "ring", 4);
    if (scene_rank == 0) {
        int sent = 4711;
        MPI_Send(&sent, 1, MPI_INT, 1, 5, MPI_COMM_WORLD);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(scene_rank != 1 || number == 4711);
    scene_close(&at);
}

/** The group has the ranks of the communicator, and several groups can exist at once. */
static void test_several_groups(void) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, scene_rank % 2, -scene_rank, &half);
    scene all = scene_open(MPI_COMM_WORLD);
    scene own = scene_open(half);
    MPI_Comm_free(&half); /* The group has its own copy of the communicator. */
    CHECK(wherry_group_size(own.group) == SCENE_RANKS / 2);
    CHECK(wherry_group_rank(own.group) == (scene_rank < 2 ? 1 : 0));
    scene_ferry(&own, 0, 1, "blocks", scene_rank % 2);
    scene_ferry(&all, 3, 0, "blocks", 6);
    scene_close(&all);
    scene_ferry(&own, 1, 0, "blocks", scene_rank % 2);
    scene_close(&own);
}

static void test_arguments(void) {
    wherry_group *group = NULL;
    wherry_mpi_options options;
    wherry_mpi_options_init(&options);
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_NULL, NULL, &group, &scene_error));
    CHECK(strstr(scene_error.message, "MPI_COMM_NULL"));
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_WORLD, NULL, NULL, &scene_error));
    options.flags = 1u << 31;
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_WORLD, &options, &group, &scene_error));
    options = (wherry_mpi_options){.struct_size = 0};
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_WORLD, &options, &group, NULL));
    MPI_Comm half;
    MPI_Comm both;
    MPI_Comm_split(MPI_COMM_WORLD, scene_rank / 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, scene_rank < 2 ? 2 : 0, 1, &both);
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(both, NULL, &group, &scene_error));
    CHECK(strstr(scene_error.message, "MPI_Intercomm_merge"));
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
    CHECK(group == NULL);
}

/* ---- threads ---- */

typedef struct elsewhere {
    scene *at;
    wherry_status status[6];
    wherry_error error;
} elsewhere;

static void *call_from_elsewhere(void *context) {
    elsewhere *e = context;
    wherry_group *group;
    wherry_value *value;
    void *bytes;
    size_t size;
    wherry_transfer_options options = scene_options(NULL, NULL);
    options.timeout_ms = 50;
    MUST(wherry_dict_create(&value, &scene_error));
    int32_t other = (wherry_group_rank(e->at->group) + 1) % SCENE_RANKS;
    e->status[0] = wherry_group_send(e->at->group, other, 1, "x", 1, 50, &e->error);
    e->status[1] = wherry_group_receive(e->at->group, other, 99, 10, &bytes, &size, NULL, &e->error);
    e->status[2] = wherry_checkpoint_send(e->at->transport, &other, 1, value, &options, NULL, &e->error);
    wherry_value_destroy(value);
    e->status[3] = wherry_checkpoint_recv(e->at->transport, other, &options, &value, &e->error);
    if (scene_level < MPI_THREAD_SERIALIZED) {
        e->status[4] = wherry_group_barrier(e->at->group, 1, 10, &e->error);
        e->status[5] = wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &e->error);
    }
    return NULL;
}

/**
 * Below MPI_THREAD_SERIALIZED, calls of another thread fail with the reason. The main thread can
 * continue.
 */
static void test_another_thread(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    elsewhere e = {.at = &at};
    pthread_t thread;
    pthread_create(&thread, NULL, call_from_elsewhere, &e);
    pthread_join(thread, NULL);
    if (scene_level < MPI_THREAD_SERIALIZED) {
        for (int i = 0; i < 6; i++) {
            CHECK(e.status[i] == WHERRY_UNSUPPORTED);
        }
        CHECK(strstr(e.error.message, "main thread") && strstr(e.error.message, "MPI_THREAD_MULTIPLE"));
    } else {
        CHECK(e.status[0] == WHERRY_OK && e.status[1] == WHERRY_TIMED_OUT);
        CHECK(e.status[2] != WHERRY_UNSUPPORTED && e.status[3] != WHERRY_UNSUPPORTED);
    }
    MUST(wherry_group_barrier(at.group, 2, SCENE_MS, &scene_error));
    scene_ferry(&at, 2, 3, "blocks", 1);
    scene_close(&at);
}

/**
 * Reading in the background needs MPI_THREAD_MULTIPLE. If only one rank asks for it, the errors of
 * the others name this rank.
 */
static void test_background(void) {
    wherry_mpi_options options;
    wherry_group *group = NULL;
    wherry_mpi_options_init(&options);
    options.flags = scene_rank == 2 ? WHERRY_MPI_BACKGROUND : 0;
    wherry_status status = wherry_group_from_mpi(MPI_COMM_WORLD, &options, &group, &scene_error);
    if (scene_level < MPI_THREAD_MULTIPLE) {
        CHECK(status == (scene_rank == 2 ? WHERRY_UNSUPPORTED : WHERRY_ABORTED));
        CHECK(scene_rank == 2 ? strstr(scene_error.message, "WHERRY_MPI_BACKGROUND") != NULL : scene_error.rank == 2);
        CHECK(group == NULL);
        return;
    }
    MUST(status);
    wherry_transport *transport;
    MUST(wherry_transport_create(group, NULL, &transport, &scene_error));
    if (scene_rank == 2) {
        int32_t rank = -1;
        for (int i = 0; i < 2000 && wherry_transport_waiting(transport, &rank, 1) == 0; i++) {
            usleep(5000); /* The message is read although no thread is in a call. */
        }
        CHECK(rank == 0);
        wherry_value *state = scene_state(1);
        wherry_transfer_options transfer = scene_options("blocks", NULL);
        MUST(wherry_checkpoint_send(transport, &rank, 1, state, &transfer, NULL, &scene_error));
        wherry_value_destroy(state);
    } else if (scene_rank == 0) {
        wherry_value *received;
        wherry_transfer_options transfer = scene_options("blocks", NULL);
        MUST(wherry_checkpoint_recv(transport, 2, &transfer, &received, &scene_error));
        CHECK(scene_has(received, 1));
        wherry_value_destroy(received);
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
}

/* ---- faults ---- */

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void cancel_now(void *context, const wherry_progress *progress) {
    (void)progress;
    wherry_cancel_request(context);
}

/**
 * One side gives up during a transfer. Nothing writes to the receiver's memory afterwards, and the
 * group still works.
 */
static void test_given_up_in_the_middle(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    for (int round = 0; round < 2; round++) {
        int giver = round % 2; /* the rank that gives up: 0, the source, or 1, the receiver */
        wherry_cancel *cancel;
        MUST(wherry_cancel_create(&cancel, &scene_error));
        wherry_value *state = scene_state(scene_rank == 0 ? 1 : 2);
        wherry_transfer_options options = scene_options("blocks", scene_rank == 1 ? state : NULL);
        wherry_status status = WHERRY_OK;
        if (scene_rank == giver) {
            options.cancel = cancel;
            options.progress = cancel_now;
            options.progress_context = cancel;
        }
        if (scene_rank == 0) {
            int32_t to = 1;
            status = wherry_checkpoint_send(at.transport, &to, 1, state, &options, NULL, &scene_error);
        } else if (scene_rank == 1) {
            wherry_value *received = NULL;
            status = wherry_checkpoint_recv(at.transport, 0, &options, &received, &scene_error);
            wherry_value_destroy(status == WHERRY_OK ? received : NULL);
            scene_fill(state, 50); /* From now on nothing may change it. */
        }
        if (scene_rank < 2) {
            CHECK(status == WHERRY_OK || status == WHERRY_CANCELLED || status == WHERRY_ABORTED ||
                  status == WHERRY_REVOKED);
        }
        scene_ferry(&at, 0, 1, "blocks", 20 + round);
        scene_ferry(&at, 1, 0, "blocks", 30 + round);
        CHECK(scene_rank != 1 || scene_has(state, 50));
        wherry_value_destroy(state);
        wherry_cancel_destroy(cancel);
    }
    scene_close(&at);
}

/** Stops the source when its offer has arrived. */
static wherry_status stop_source(void *context, const wherry_value *offered) {
    (void)offered;
    kill(*(const int *)context, SIGSTOP);
    return WHERRY_OK;
}

/**
 * A receiver gives up a stopped source in time. What the source sends when it continues reaches
 * neither the receiver's memory nor the next transfer. The source learns that it was given up.
 */
static void test_source_is_stopped(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    int source = (int)getpid();
    wherry_value *state = scene_state(scene_rank == 0 ? 1 : 2);
    wherry_transfer_options options = scene_options("blocks", NULL);
    MPI_Bcast(&source, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (scene_rank == 0) {
        int32_t to = 1;
        wherry_status status = wherry_checkpoint_send(at.transport, &to, 1, state, &options, NULL, &scene_error);
        CHECK(status == WHERRY_ABORTED && scene_error.rank == 1);
    } else if (scene_rank == 1) {
        wherry_value *received;
        double begin = seconds();
        options = scene_options("blocks", state);
        options.inspect = stop_source;
        options.inspect_context = &source;
        options.no_progress_ms = 1000;
        MUST_FAIL(WHERRY_TIMED_OUT, wherry_checkpoint_recv(at.transport, 0, &options, &received, &scene_error));
        CHECK(seconds() - begin < 10 && scene_error.rank == 0);
        scene_fill(state, 50);
        kill(source, SIGCONT);
    }
    for (int i = 0; i < 3; i++) {
        scene_ferry(&at, 0, 1, "blocks", 60 + i);
    }
    CHECK(scene_rank != 1 || scene_has(state, 50));
    wherry_value_destroy(state);
    scene_close(&at);
}

/** A rank leaves early. The others notice, continue, and leave without waiting for it. */
static void test_leaving_early(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    MUST(wherry_group_barrier(at.group, 1, SCENE_MS, &scene_error));
    if (scene_rank == 3) {
        double begin = seconds();
        scene_close(&at);
        CHECK(seconds() - begin < 5);
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    int32_t three = 3;
    wherry_value *state = scene_state(1);
    wherry_transfer_options options = scene_options(NULL, NULL);
    for (int i = 0; i < 2; i++) {
        MUST_FAIL(WHERRY_PEER_LOST,
                  wherry_checkpoint_send(at.transport, &three, 1, state, &options, NULL, &scene_error));
        CHECK(scene_error.rank == 3);
        wherry_value *received;
        MUST_FAIL(WHERRY_PEER_LOST, wherry_checkpoint_recv(at.transport, 3, &options, &received, &scene_error));
    }
    wherry_value_destroy(state);
    scene_ferry(&at, 0, 2, "blocks", 1);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = seconds();
    scene_close(&at);
    CHECK(seconds() - begin < 5);
}

/* ---- before and after ---- */

static char said[512];

static void take_line(void *context, wherry_log_level level, const char *line) {
    (void)context;
    if (level == WHERRY_LOG_ERROR) {
        snprintf(said, sizeof(said), "%s", line);
    }
}

static void test_after_finalize(const scene *late) {
    wherry_group *group;
    void *bytes;
    size_t size;
    MUST_FAIL(WHERRY_CLOSED, wherry_group_send(late->group, 0, 1, "x", 1, 10, &scene_error));
    CHECK(strstr(scene_error.message, "MPI_Finalize"));
    MUST_FAIL(WHERRY_CLOSED, wherry_group_receive(late->group, 0, 1, 10, &bytes, &size, NULL, &scene_error));
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &scene_error));
    wherry_log_to(take_line, NULL);
    wherry_transport_destroy(late->transport);
    wherry_group_leave(late->group);
    CHECK(strstr(said, "MPI_Finalize"));
}

/** A rank dies: MPI ends the job, and no rank keeps waiting. Never returns. */
static void die_in_the_middle(void) {
    scene at = scene_open(MPI_COMM_WORLD);
    for (int i = 0;; i++) {
        if (i == 3 && scene_rank == 2) {
            raise(SIGKILL);
        }
        scene_ferry(&at, 2, 0, "blocks", i);
    }
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"another thread", test_another_thread},
        {"background", test_background},
        {"states lost and recovered", test_states_lost_and_recovered},
        {"every lane", test_every_lane},
#ifdef SCENE_UCX
        {"UCX of MPI", test_ucx_of_mpi},
#endif
        {"messages of the program", test_messages_of_the_program},
        {"several groups", test_several_groups},
        {"arguments", test_arguments},
        {"given up in the middle", test_given_up_in_the_middle},
        {"a stopped source", test_source_is_stopped},
        {"leaving early", test_leaving_early},
    };
    static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
    static const int values[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    int wanted = 3;
    while (wanted && (count < 2 || strcmp(arguments[1], levels[wanted]) != 0)) {
        wanted--;
    }
    wherry_group *group;
    MUST_FAIL(WHERRY_INVALID_ARGUMENT, wherry_group_from_mpi(MPI_COMM_WORLD, NULL, &group, &scene_error));
    CHECK(strstr(scene_error.message, "not initialized"));
    MPI_Init_thread(&count, &arguments, values[wanted], &scene_level);
    MPI_Comm_rank(MPI_COMM_WORLD, &scene_rank);
    wherry_log_set_level(WHERRY_LOG_ERROR);
    CHECK(scene_level == values[wanted]);
    if (count == 3 && strcmp(arguments[2], "dies") == 0) {
        die_in_the_middle();
    }
    /*
     * SINGLE is like FUNNELED. SERIALIZED differs from FUNNELED only in which threads may call. So
     * these two run only the cases about threads.
     */
    bool threads_only = scene_level == MPI_THREAD_SINGLE || scene_level == MPI_THREAD_SERIALIZED;
    size_t number = threads_only ? 3 : sizeof(cases) / sizeof(*cases);
    int bad = 0;
    for (size_t i = 0; i < number; i++) {
        int all = 0;
        cases[i].run();
        MPI_Allreduce(&scene_failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        scene_failures = 0;
        bad += all != 0;
        if (scene_rank == 0) {
            printf("%s %zu - %s\n", all ? "not ok" : "ok", i + 1, cases[i].name);
            fflush(stdout);
        }
    }
    scene late = scene_open(MPI_COMM_WORLD);
    MPI_Finalize();
    test_after_finalize(&late);
    if (scene_rank == 0) {
        printf("%s %zu - after MPI_Finalize\n1..%zu\n", scene_failures ? "not ok" : "ok", number + 1, number + 1);
    }
    return bad || scene_failures;
}
