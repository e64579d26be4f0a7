#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "demo_options.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define SIZE_MIN MIB
#define SIZE_MAX_BYTES (UINT64_C(1) << 40)

/** Memory of a rank beside its state: the program, buffers and stacks. */
#define RANK_OVERHEAD (UINT64_C(48) * MIB)

enum { KILLS_MAX = 1000, STEPS_A_KILL = 12, NOT_SAID = -1 };

static const char *const lanes[] = {"auto", "cma", "ring", "stream"};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, 'r'},
    {"size", required_argument, NULL, 's'},
    {"lane", required_argument, NULL, 'l'},
    {"kills", required_argument, NULL, 'k'},
    {"steps", required_argument, NULL, 'n'},
    {"verify", no_argument, NULL, 'c'},
    {"no-color", no_argument, NULL, 'C'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void print_help(void) {
    printf(
        "Usage: wherry demo [OPTION...]\n"
        "\n"
        "Starts a few processes, the ranks, that hold the same model-shaped state and train it: each step changes "
        "every\n"
        "byte, in the same way on all of them. Then one rank after the other, 0 included, is killed by SIGKILL. Each "
        "time a\n"
        "new process takes its place, joins the group and is healed by a peer: it receives the peer's state in place, "
        "while\n"
        "the others train on, and catches up. After each step and at the end the digests of all ranks must be equal.\n"
        "\n"
        "Options:\n"
        "  --ranks N      processes, 2 to %d (default 4)\n"
        "  --size SIZE    state of each rank, such as 512M or 2G, from 1M on (default 1G); all of it must fit in "
        "memory\n"
        "  --lane LANE    how the bytes move: cma (read from the peer's memory), ring (shared memory), stream "
        "(sockets), or\n"
        "                 auto, the fastest that works (default auto)\n"
        "  --kills N      how many ranks are killed, in turn from 0 on, 0 to %d (default: each rank once)\n"
        "  --steps N      training steps, more than kills (default: %d for each kill, and as many to begin with)\n"
        "  --verify       check the bytes by digests also where they do not cross a network\n"
        "  -q, --quiet    print the verdict alone\n"
        "  -v, --verbose  also print what the library tells while it works\n"
        "  --no-color     no colors; so does the environment variable NO_COLOR\n"
        "  -h, --help     print this and end\n"
        "\n"
        "Exit codes: 0 all digests were equal; 1 they were not, or something failed; 2 a mistake in the options; 128 "
        "and the\n"
        "signal's number where one ended the demo. No process and no file is left behind; only SIGKILL leaves the\n"
        "folder wherry-demo-* in TMPDIR.\n",
        WH_DEMO_RANKS_MAX, KILLS_MAX, STEPS_A_KILL);
}

static bool parse_number(const char *name, const char *text, long least, long most, int *number_p) {
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most) {
        fprintf(stderr, "wherry demo: --%s takes a number from %ld to %ld, not '%s'\n", name, least, most, text);
        return false;
    }
    *number_p = (int)number;
    return true;
}

/** The factor of a suffix: K, M, G, T, with or without "iB" or "B"; 0 where it is none of these. */
static uint64_t suffix_factor(const char *suffix) {
    static const char letters[] = "KMGT";
    if (*suffix == '\0') {
        return 1;
    }
    const char *letter = strchr(letters, *suffix >= 'a' && *suffix <= 'z' ? *suffix - 'a' + 'A' : *suffix);
    const char *rest = suffix + 1;
    if (!letter || (*rest && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0)) {
        return 0;
    }
    return UINT64_C(1) << (10 * (letter - letters + 1));
}

static bool parse_size(const char *text, uint64_t *size_p) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    uint64_t factor = end == text || errno || text[0] == '-' ? 0 : suffix_factor(end);
    if (!factor || number > SIZE_MAX_BYTES / factor || number * factor < SIZE_MIN) {
        fprintf(stderr, "wherry demo: --size takes a size from 1M to 1T, such as 512M or 2G, not '%s'\n", text);
        return false;
    }
    *size_p = number * factor;
    return true;
}

static bool parse_lane(const char *text, const char **lane_p) {
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        if (strcmp(text, lanes[i]) == 0) {
            *lane_p = lanes[i];
            return true;
        }
    }
    fprintf(stderr, "wherry demo: --lane takes auto, cma, ring or stream, not '%s'\n", text);
    return false;
}

/** Takes one option over. @return false for a mistake, which was told. */
static bool take(int letter, const char *value, wh_demo_options *options) {
    switch (letter) {
    case 'r':
        return parse_number("ranks", value, 2, WH_DEMO_RANKS_MAX, &options->ranks);
    case 's':
        return parse_size(value, &options->size);
    case 'l':
        return parse_lane(value, &options->lane);
    case 'k':
        return parse_number("kills", value, 0, KILLS_MAX, &options->kills);
    case 'n':
        return parse_number("steps", value, 1, WH_DEMO_STEPS_MAX, &options->steps);
    case 'c':
        options->verify = true;
        return true;
    case 'C':
        options->color = false;
        return true;
    case 'q':
        options->quiet = true;
        return true;
    case 'v':
        options->verbose = true;
        return true;
    default: /* getopt_long has told it */
        fprintf(stderr, "`wherry demo --help` explains the options\n");
        return false;
    }
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
        fprintf(stderr, "wherry demo: %d kills need at least %d steps; say --steps %d, or --kills %d\n", options->kills,
                options->kills + 1, options->kills + 1, options->steps - 1);
        return false;
    }
    if (options->quiet && options->verbose) {
        fprintf(stderr, "wherry demo: --quiet and --verbose do not go together\n");
        return false;
    }
    return true;
}

bool wh_demo_options_parse(int argc, char **argv, wh_demo_options *options, int *code_p) {
    static char name[] = "wherry demo"; /* as which getopt_long complains */
    *options = (wh_demo_options){
        .ranks = 4, .size = GIB, .lane = lanes[0], .kills = NOT_SAID, .steps = NOT_SAID, .color = !getenv("NO_COLOR")};
    argv[0] = name;
    *code_p = WH_EXIT_USAGE;
    int letter;
    while ((letter = getopt_long(argc, argv, "hqv", long_options, NULL)) != -1) {
        if (letter == 'h') {
            print_help();
            *code_p = EXIT_SUCCESS;
            return false;
        }
        if (!take(letter, optarg, options)) {
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "wherry demo: '%s' is not an option; `wherry demo --help` explains those that are\n",
                argv[optind]);
        return false;
    }
    return complete(options);
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
    uint64_t ranks = (uint64_t)options->ranks;
    uint64_t needed = ranks * (options->size + RANK_OVERHEAD);
    uint64_t available = available_memory();
    if (available == 0 || needed <= available) {
        return true;
    }
    fprintf(stderr, "wherry demo: %d ranks with %.2f GiB each need %.2f GiB of memory, and %.2f GiB are available; ",
            options->ranks, (double)options->size / GIB, (double)needed / GIB, (double)available / GIB);
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
