#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "demo_options.h"
#include "demo_run.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define SIZE_MIN MIB
#define SIZE_MAX_BYTES (UINT64_C(1) << 40)

/** Memory of a rank beside its state: the program, buffers and stacks. */
#define RANK_OVERHEAD (UINT64_C(48) * MIB)

enum { KILLS_MAX = 1000, STEPS_A_KILL = 12, DEFAULT_RANKS = 4, NOT_SAID = -1 };

/** As the table fills it. */
typedef struct said {
    wh_common common;
    int64_t ranks;
    uint64_t size;
    const char *lane;
    int64_t kills;
    int64_t steps;
    bool alone;
    bool verify;
    bool no_color;
} said;

static const wh_option options_taken[] = {
    {"ranks", 0, WH_OPTION_NUMBER, offsetof(said, ranks), "N",
     "processes, 2 to 64 (default 4; under a launcher, as many as it has started)", 2, WH_DEMO_RANKS_MAX, NULL},
    {"size", 0, WH_OPTION_SIZE, offsetof(said, size), "SIZE",
     "state of each rank, such as 512M or 2G, from 1M on (default 1G); all of it must fit in memory", SIZE_MIN,
     SIZE_MAX_BYTES, NULL},
    {"lane", 0, WH_OPTION_CHOICE, offsetof(said, lane), "LANE",
     "how the bytes move: cma (read from the peer's memory), ring (shared memory), ucx (UCX, where it is "
     "installed), stream (sockets), or auto, the fastest that works (default auto)",
     0, 0, "auto,cma,ring,ucx,stream"},
    {"kills", 0, WH_OPTION_NUMBER, offsetof(said, kills), "N",
     "how many ranks are killed, in turn from 0 on, 0 to 1000 (default: each rank once)", 0, KILLS_MAX, NULL},
    {"steps", 0, WH_OPTION_NUMBER, offsetof(said, steps), "N",
     "training steps, more than kills (default: 12 for each kill, and as many to begin with)", 1, WH_DEMO_STEPS_MAX,
     NULL},
    {"alone", 0, WH_OPTION_FLAG, offsetof(said, alone), NULL, "start the ranks here, also under a launcher", 0, 0,
     NULL},
    {"verify", 0, WH_OPTION_FLAG, offsetof(said, verify), NULL,
     "check the bytes by digests also where they do not cross a network", 0, 0, NULL},
    {"no-color", 0, WH_OPTION_FLAG, offsetof(said, no_color), NULL,
     "no colors; so does the environment variable NO_COLOR", 0, 0, NULL},
    {.name = NULL},
};

const wh_command wh_command_demo = {
    .name = "demo",
    .summary = "kill ranks of a training run, one after the other, and watch their peers heal them",
    .operands = "",
    .text =
        "Starts a few processes, the ranks, that hold the same model-shaped state and train it: each step changes "
        "every "
        "byte, in the same way on all of them. Then one rank after the other, 0 included, is killed by SIGKILL. Each "
        "time a new process takes its place, joins the group and is healed by a peer: it receives the peer's state in "
        "place, while the others train on, and catches up. After each step and at the end the digests of all ranks "
        "must be equal.\n\n"
        "Under a launcher (mpirun, srun, torchrun) each process is a rank instead: `mpirun -n 4 wherry demo`. A "
        "launcher ends "
        "the job with a process, so there a rank loses its state, not its process, and has it again from a peer.\n\n"
        "No process and no file is left behind; only SIGKILL leaves the folder wherry-demo-* in TMPDIR.",
    .options = options_taken,
    .examples = "wherry demo\n"
                "wherry demo --size 256M --lane stream\n"
                "mpirun -n 4 wherry demo\n",
    .run = wh_demo_command,
};

/** A variable's number; -1 where there is none. */
static int number_of(const char *name) {
    const char *value = getenv(name);
    char *end = NULL;
    long number = value && *value ? strtol(value, &end, 10) : -1;
    return number >= 0 && number <= INT32_MAX && !*end ? (int)number : -1;
}

/** What the first launcher that is there says, in the order of env://. Slurm says it to batch scripts too, which are no ranks. */
static void ask_launcher(wh_demo_options *options) {
    static const struct {
        const char *rank, *ranks, *neighbours, *needs;
    } launchers[] = {
        {"WHERRY_RANK", "WHERRY_SIZE", "", NULL},
        {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", NULL},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID"},
    };
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        int rank = number_of(launchers[i].rank);
        int ranks = number_of(launchers[i].ranks);
        if (rank >= 0 && ranks > 1 && (!launchers[i].needs || getenv(launchers[i].needs))) {
            int neighbours = number_of(launchers[i].neighbours);
            options->rank = rank;
            options->ranks = ranks;
            options->neighbours = neighbours > 0 ? neighbours : 1;
            return;
        }
    }
}

/** Who starts the ranks, and how many there are. @return false for a mistake, which was told. */
static bool find_ranks(wh_demo_options *options, int64_t said_ranks, bool alone) {
    options->rank = WH_DEMO_NO_RANK;
    options->ranks = options->neighbours = said_ranks == NOT_SAID ? DEFAULT_RANKS : (int)said_ranks;
    if (!alone) {
        ask_launcher(options);
    }
    if (said_ranks != NOT_SAID && said_ranks != options->ranks) {
        wh_fail_command(&wh_command_demo, 0,
                        "the launcher has started %d ranks, and --ranks says %d; leave it out, or say --alone to start "
                        "them here",
                        options->ranks, (int)said_ranks);
        return false;
    }
    if (options->ranks > WH_DEMO_RANKS_MAX) {
        wh_fail_command(&wh_command_demo, 0, "the launcher has started %d ranks, and the demo takes %d at most",
                        options->ranks, WH_DEMO_RANKS_MAX);
        return false;
    }
    return true;
}

/** What follows from other options, and what does not go together. */
static bool complete(wh_demo_options *options) {
    if (options->kills == NOT_SAID) {
        options->kills = options->ranks;
    }
    if (options->steps == NOT_SAID) {
        options->steps = (options->kills + 1) * STEPS_A_KILL;
    }
    if (options->kills >= options->steps) {
        wh_fail_command(&wh_command_demo, 0, "%d kills need at least %d steps; say --steps %d, or --kills %d",
                        options->kills, options->kills + 1, options->kills + 1, options->steps - 1);
        return false;
    }
    return true;
}

bool wh_demo_options_parse(int argc, char **argv, wh_demo_options *options, int *code_p) {
    said s = {.ranks = NOT_SAID, .size = GIB, .lane = "auto", .kills = NOT_SAID, .steps = NOT_SAID};
    if (!wh_options_parse(&wh_command_demo, argc, argv, &s, NULL, code_p)) {
        return false;
    }
    *options = (wh_demo_options){
        .size = s.size,
        .lane = s.lane,
        .kills = (int)s.kills,
        .steps = (int)s.steps,
        .verify = s.verify,
        .quiet = s.common.quiet,
        .verbose = s.common.verbose,
        .color = !s.no_color && !getenv("NO_COLOR"),
    };
    *code_p = WH_EXIT_USAGE;
    return find_ranks(options, s.ranks, s.alone) && complete(options);
}

/** The number behind a name in a file of lines "NAME NUMBER", or the file's first number where name is "". 0: none. */
static uint64_t read_number(const char *path, const char *name) {
    char line[256];
    unsigned long long number = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            number = strtoull(line + strlen(name), NULL, 10);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return number;
}

/** Bytes that this machine, or the container, can still give; 0 where that is not known. */
static uint64_t available_memory(void) {
    uint64_t available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", ""); /* "max" reads as 0: none */
    return limit && limit < available ? limit : available;
}

bool wh_demo_memory_suffices(const wh_demo_options *options) {
    uint64_t ranks = (uint64_t)options->neighbours;
    uint64_t needed = ranks * (options->size + RANK_OVERHEAD);
    uint64_t available = available_memory();
    if (available == 0 || needed <= available) {
        return true;
    }
    fprintf(stderr, "wherry demo: %d ranks with %.2f GiB each need %.2f GiB of memory, and %.2f GiB are available; ",
            options->neighbours, (double)options->size / GIB, (double)needed / GIB, (double)available / GIB);
    uint64_t fitting = SIZE_MIN;
    while (ranks * (2 * fitting + RANK_OVERHEAD) <= available) {
        fitting *= 2;
    }
    if (ranks * (fitting + RANK_OVERHEAD) <= available) {
        fprintf(stderr, "say --size %lluM\n", (unsigned long long)(fitting / MIB));
    } else {
        fprintf(stderr, "say fewer --ranks\n");
    }
    return false;
}
