/* `wherry demo`: its options and its output. */
#include "demo.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

enum { STEPS_PER_KILL = 12, DEFAULT_RANKS = 4, UNSET = -1, RANK_OVERHEAD_MIB = 48 };

static const wh_option options_taken[] = {
    WH_OPTION(wh_demo_options, ranks, NUMBER, "ranks", 0, "N",
              "number of ranks, 2 to 64 (default 4; under a launcher, as many as it started)", .least = 2,
              .most = WH_DEMO_RANKS_MAX),
    WH_OPTION(wh_demo_options, size, SIZE, "size", 0, "SIZE",
              "size of each rank's state, at least 1M (default 1G); all states must fit in memory", .least = MIB,
              .most = INT64_C(1) << 40),
    WH_OPTION(wh_demo_options, lane, CHOICE, "lane", 0, "auto|cma|ring|ucx|stream",
              "the lane to use: cma (reads the peer's memory), ring (shared memory), ucx (UCX, if installed), stream "
              "(sockets), or auto, the default (the fastest lane that works)"),
    WH_OPTION(wh_demo_options, kills, NUMBER, "kills", 0, "N",
              "number of kills, 0 to 1000; ranks are killed in turn, rank 0 first (default: each rank once); with 3 "
              "ranks or more, the last kill hits a rank while it heals the one that was killed before",
              .most = 1000),
    WH_OPTION(wh_demo_options, steps, NUMBER, "steps", 0, "N",
              "number of training steps, more than --kills (default: 12 per kill, plus 12)", .least = 1,
              .most = 100000),
    WH_OPTION(wh_demo_options, alone, FLAG, "alone", 0, NULL, "start the ranks here, even under a launcher"),
    WH_OPTION(wh_demo_options, verify, FLAG, "verify", 0, NULL,
              "check digests even if the data does not cross a network"),
    WH_OPTION(wh_demo_options, no_color, FLAG, "no-color", 0, NULL,
              "print without colors; the environment variable NO_COLOR does the same"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_demo = {
    .name = "demo",
    .summary = "kill the ranks of a training run and watch their peers heal them",
    .operands = "",
    .text = "Starts a few processes, the ranks, that train the same state: each step rewrites every byte in the same "
            "way on every rank. Then kills the ranks one by one with SIGKILL, rank 0 included. Each time, a new "
            "process takes the rank's place while the others keep training. Then all others stop at the same step and "
            "heal it: it receives their state in place. The last kill hits a rank that sends its state at that moment; "
            "the others take over. After each step, the digests of all ranks must be equal.\n\n"
            "Under a launcher (mpirun, srun, torchrun), each process is a rank: `mpirun -n 4 wherry demo`. Launchers "
            "end the job if a process dies. So there a rank loses only its state, and receives it from the others.\n\n"
            "Leaves no process and no file behind. But if the demo itself is killed with SIGKILL, the folder "
            "wherry-demo-* stays in TMPDIR.",
    .options = options_taken,
    .examples = "wherry demo\n"
                "wherry demo --size 256M --lane stream\n"
                "mpirun -n 4 wherry demo\n",
    WH_DEFAULTS(wh_demo_options, .ranks = UNSET, .size = GIB, .lane = "auto", .kills = UNSET, .steps = UNSET),
    .run = run,
};

/* ---- options ---- */

/** Reads a number from an environment variable. @return -1 if it is not set or not a number. */
static int number_of(const char *name) {
    const char *value = getenv(name);
    char *end = NULL;
    long number = value && *value ? strtol(value, &end, 10) : -1;
    return number >= 0 && number <= INT32_MAX && !*end ? (int)number : -1;
}

/**
 * Detects the launcher, in the same order as env:// does. Slurm also sets its variables for batch
 * scripts, which are not ranks, so SLURM_STEP_ID must be set too.
 */
static void find_launcher(wh_demo_options *options, int64_t *ranks_p) {
    static const struct {
        const char *rank, *ranks, *on_host, *needs;
    } launchers[] = {
        {"WHERRY_RANK", "WHERRY_SIZE", "", NULL},
        {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", NULL},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID"},
    };
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]) && options->rank < 0; i++) {
        int rank = number_of(launchers[i].rank);
        int ranks = number_of(launchers[i].ranks);
        if (rank >= 0 && ranks > 1 && (!launchers[i].needs || getenv(launchers[i].needs))) {
            int on_host = number_of(launchers[i].on_host);
            options->rank = rank;
            options->on_host = on_host > 0 ? on_host : 1;
            *ranks_p = ranks;
        }
    }
}

/** Computes options that depend on other options. @return false after printing an error. */
static bool complete(wh_demo_options *options) {
    int64_t ranks = options->ranks == UNSET ? DEFAULT_RANKS : options->ranks;
    options->rank = -1;
    options->on_host = (int)ranks;
    if (!options->alone) {
        find_launcher(options, &ranks);
    }
    if (options->ranks != UNSET && options->ranks != ranks) {
        wh_fail_command(&wh_command_demo, 0,
                        "the launcher started %d ranks, but --ranks is %d; omit --ranks, or use --alone to start them "
                        "here",
                        (int)ranks, (int)options->ranks);
        return false;
    }
    if (ranks > WH_DEMO_RANKS_MAX) {
        wh_fail_command(&wh_command_demo, 0, "the launcher started %d ranks; the demo takes at most %d", (int)ranks,
                        WH_DEMO_RANKS_MAX);
        return false;
    }
    options->ranks = ranks;
    options->kills = options->kills == UNSET ? ranks : options->kills;
    options->steps = options->steps == UNSET ? (options->kills + 1) * STEPS_PER_KILL : options->steps;
    if (options->kills >= options->steps) {
        int kills = (int)options->kills;
        wh_fail_command(&wh_command_demo, 0, "%d kills need at least %d steps; use --steps %d or --kills %d", kills,
                        kills + 1, kills + 1, (int)options->steps - 1);
        return false;
    }
    return true;
}

/** Checks that the states fit in memory. @return false after printing an error. */
static bool check_memory(const wh_demo_options *options) {
    char text[64];
    uint64_t available = wh_read_number("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t limit = wh_container_memory();
    uint64_t ranks = (uint64_t)options->on_host;
    uint64_t needed = ranks * (options->size + RANK_OVERHEAD_MIB * MIB);
    available = limit < available ? limit : available;
    if (available == 0 || needed <= available) {
        return true;
    }
    uint64_t fitting = available / ranks / MIB;
    snprintf(text, sizeof(text), "use --size %" PRIu64 "M or less", fitting - RANK_OVERHEAD_MIB);
    wh_fail_command(&wh_command_demo, 0,
                    "%d ranks with %.2f GiB each need %.2f GiB of memory, but only %.2f GiB are available; %s",
                    options->on_host, (double)options->size / GIB, (double)needed / GIB, (double)available / GIB,
                    fitting > RANK_OVERHEAD_MIB ? text : "use fewer --ranks");
    return false;
}

static int run(void *context, const wh_operands *operands) {
    wh_demo_options *options = context;
    (void)operands;
    if (!complete(options)) {
        return WH_EXIT_USAGE;
    }
    if (!check_memory(options)) {
        return WH_EXIT_FAILED;
    }
    return options->rank < 0 ? wh_demo_conduct(options) : wh_demo_run_launched(options);
}

/* ---- the timeline ---- */

void wh_timeline_begin(wh_timeline *timeline, const wh_demo_options *options) {
    bool color = wh_is_terminal(stdout) && !options->no_color && !getenv("NO_COLOR");
    *timeline = (wh_timeline){.options = options, .begin = wh_clock(), .quiet = options->common.quiet, .color = color};
    wh_bar_begin(&timeline->bar, stdout);
}

void wh_timeline_say(wh_timeline *timeline, wh_demo_tone tone, const char *format, ...) {
    static const char *const tones[] = {"", "\033[31m", "\033[32m"};
    bool color = timeline->color && tone != WH_DEMO_PLAIN;
    va_list arguments;
    if (timeline->quiet) {
        return;
    }
    wh_bar_end(&timeline->bar);
    char *text = NULL;
    va_start(arguments, format);
    wh_need(vasprintf(&text, format, arguments) < 0 ? NULL : text);
    va_end(arguments);
    int indent = printf("%6.1f s  ", wh_clock() - timeline->begin);
    printf("%s", color ? tones[tone] : "");
    wh_print_wrapped(stdout, text, indent, WH_WIDTH_ANY);
    printf("%s", color ? "\033[0m" : "");
    fflush(stdout);
    free(text);
}

static const char *rate_text(uint64_t bytes, double seconds, char text[WH_SIZE_TEXT_MAX]) {
    return wh_rate_text(seconds > 0 ? (double)bytes / seconds : 0, text);
}

/**
 * Lists the sources that sent something, "ranks 1 (96.0 MiB, lost), 2 (1.00 GiB)", or, if `idle` is
 * true, those that were not needed: "; rank 3 stood by", or "" if there are none.
 */
static void list_sources(const wh_demo_message *m, bool idle, char text[static WH_DEMO_TEXT_MAX]) {
    char size[WH_SIZE_TEXT_MAX];
    char list[WH_DEMO_TEXT_MAX - 32] = "";
    int count = 0;
    for (int i = 0, end = 0; i < WH_DEMO_RANKS_MAX && end < (int)sizeof(list); i++) {
        bool lost = m->lost >> i & 1;
        if (m->ranks >> i & 1 && (m->shares[i] == 0 && !lost) == idle) {
            end += snprintf(list + end, sizeof(list) - (size_t)end, idle ? "%s%d" : "%s%d (%s%s)", count++ ? ", " : "",
                            i, wh_size_text(m->shares[i], size), lost ? ", lost" : "");
        }
    }
    snprintf(text, WH_DEMO_TEXT_MAX, idle ? "; rank%s %s stood by" : "rank%s %s", count == 1 ? "" : "s", list);
    text[0] = count ? text[0] : '\0';
}

void wh_timeline_healed(wh_timeline *timeline, int rank, const wh_demo_message *message) {
    char used[WH_DEMO_TEXT_MAX];
    char idle[WH_DEMO_TEXT_MAX];
    char rate[WH_SIZE_TEXT_MAX];
    list_sources(message, false, used);
    list_sources(message, true, idle);
    timeline->heals++;
    timeline->bytes += message->bytes;
    timeline->seconds += message->seconds;
    wh_timeline_say(timeline, WH_DEMO_GOOD, "rank %d healed in place from %s in %.*f s, %s over %s%s, at step %d%s",
                    rank, used, message->seconds < 0.02 ? 4 : 2, message->seconds,
                    rate_text(message->bytes, message->seconds, rate), message->text,
                    message->checked ? ", checked" : "", (int)message->step, idle);
}

void wh_timeline_progress(wh_timeline *timeline, int64_t step, const char *note) {
    char label[32];
    char detail[128];
    if (!timeline->quiet) {
        int64_t steps = timeline->options->steps;
        snprintf(label, sizeof(label), "%6.1f s ", wh_clock() - timeline->begin);
        snprintf(detail, sizeof(detail), "step %d of %d%s", (int)step, (int)steps, note);
        wh_bar_show(&timeline->bar, (double)step / (double)steps, label, detail, "");
    }
}

void wh_timeline_success(wh_timeline *timeline, const wh_demo_digest *digest, const char *losses) {
    const wh_demo_options *options = timeline->options;
    char size[WH_SIZE_TEXT_MAX];
    char rate[WH_SIZE_TEXT_MAX];
    wh_bar_end(&timeline->bar);
    printf("%s", timeline->color ? "\033[32m" : "");
    wh_print_text(stdout, "OK: %d ranks at step %d with equal digests (%016" PRIx64 "), after %s: %s at %s; in %.1f s",
                  (int)options->ranks, (int)options->steps, digest->words[2], losses,
                  wh_size_text(timeline->bytes, size), rate_text(timeline->bytes, timeline->seconds, rate),
                  wh_clock() - timeline->begin);
    printf("%s", timeline->color ? "\033[0m" : "");
}
