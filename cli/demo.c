/*
 * `wherry demo`: its options, its output and the conductor, which starts the ranks, sets their
 * pace, kills them one by one, replaces them, and compares their digests. It says who heals whom
 * and at which step, but moves no state.
 *
 *  1. At any time, at most one rank is healing. A rank is killed while all ranks train. If there
 *     are at least two kills and three ranks, the last kill hits a rank that is healing another.
 *  2. No rank is more than LEAD steps ahead of the slowest training rank. While a rank is not
 *     training, the others go no further than halfway between the last kill and the next.
 *  3. All sources of a heal send the state of the same step, the limit of all ranks at that time.
 *     It does not change until the heal is over. So a healed rank has nothing to catch up.
 *  4. When the command returns, all ranks have ended and the folder is removed. If the conductor is
 *     killed, the kernel kills the ranks.
 *
 *     STARTING -> TRAINING: on_step, when the rank reports that it has joined the group
 *     TRAINING -> DOWN: kill_rank
 *     DOWN -> STARTING: start, after RESTART_SECONDS
 *     STARTING -> READY: on_message, when a replacement reports that it has joined the group
 *     READY -> HEALING: set_pace, when its sources have reached the step
 *     HEALING -> TRAINING: on_step, when it reports that it was healed
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "demo.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
/* Delay before a killed rank is replaced. A fast scheduler takes about this long. */
#define RESTART_SECONDS 0.5
#define SILENCE_SECONDS 60 /* If no rank sends a message for this long, the demo fails. */

enum {
    STEPS_PER_KILL = 12,
    DEFAULT_RANKS = 4,
    UNSET = -1,
    RANK_OVERHEAD_MIB = 48,
    LEAD = 2,
    FRAME_MS = 100,
    FOLDER_MAX = 512,
};

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

/* ---- the conductor ---- */

typedef enum seat_state { STARTING, TRAINING, DOWN, READY, HEALING } seat_state;

/** A rank, independent of the process that currently runs it. */
typedef struct seat {
    seat_state state;
    pid_t pid; /**< The process that runs this rank; 0 if there is none. */
    int control;
    int64_t step;
    int64_t limit;     /**< The last step that the rank may train. */
    double restart_at; /**< If the rank is down: when to start it again. */
} seat;

/** The first digest that was reported for a step. */
typedef struct step_digest {
    int reporter; /**< The rank that reported it, plus 1; 0 if there is none yet. */
    wh_demo_digest digest;
} step_digest;

typedef struct conductor {
    const wh_demo_options *options;
    wh_timeline timeline;
    char folder[FOLDER_MAX]; /**< The folder where the ranks meet; "" if it does not exist. */
    char address[WH_DEMO_ADDRESS_MAX];
    seat seats[WH_DEMO_RANKS_MAX];
    step_digest *digests; /**< One digest per step. */
    bool ends_in_heal;    /**< True if the last kill comes in the middle of a heal. */
    int killed;
    int64_t limit;   /**< The last step that the ranks may train. */
    int patient;     /**< The rank that is healed at step `limit`; -1 if there is none. */
    uint64_t victim; /**< The source that was killed during this heal, as a set of at most one. */
    double heard;    /**< Time of the last message from any rank. */
    bool over;       /**< True if the demo failed or was interrupted. */
    int code;
} conductor;

__attribute__((format(printf, 2, 3))) static void fail(conductor *c, const char *format, ...) {
    char text[1200];
    va_list arguments;
    if (!c->over) {
        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        wh_bar_end(&c->timeline.bar);
        c->code = wh_fail_command(&wh_command_demo, WH_EXIT_FAILED, "%s", text);
        c->over = true;
    }
}

/* ---- the folder where the ranks meet ---- */

static void create_folder(conductor *c) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
    const char *below = getenv("TMPDIR");
    below = below && below[0] == '/' ? below : "/tmp";
    int size = snprintf(c->folder, sizeof(c->folder), "%s/wherry-demo-XXXXXX", below);
    if (size >= (int)sizeof(c->folder) || !mkdtemp(c->folder)) {
        fail(c, "cannot create a folder in %s: %s; set TMPDIR to another folder", below,
             size >= (int)sizeof(c->folder) ? "the path is too long" : strerror(errno));
        c->folder[0] = '\0';
        return;
    }
    char *to = c->address + snprintf(c->address, sizeof(c->address), "unix://");
    /* Percent-encoding turns each byte into at most three. */
    for (const char *at = c->folder; *at; at++) {
        to += strchr(plain, *at) ? snprintf(to, 2, "%c", *at) : snprintf(to, 4, "%%%02X", (unsigned char)*at);
    }
    memcpy(to, "/meet", sizeof("/meet"));
}

static void remove_folder(conductor *c) {
    DIR *folder = c->folder[0] ? opendir(c->folder) : NULL;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unlinkat(dirfd(folder), entry->d_name, 0); /* This fails harmlessly for "." and "..". */
    }
    if (folder) {
        closedir(folder);
        rmdir(c->folder);
    }
}

/* ---- processes ---- */

/** Runs in the child process and turns it into a rank. */
static _Noreturn void become_rank(conductor *c, int rank, bool replaced, int control, pid_t parent) {
    char name[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { /* The parent died before the call of prctl. */
        _exit(WH_EXIT_FAILED);
    }
    snprintf(name, sizeof(name), "wherry-rank-%d", rank);
    prctl(PR_SET_NAME, name);
    signal(SIGINT, SIG_IGN); /* Ctrl-C goes to all processes; the conductor handles it */
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    for (int i = 0; i < c->options->ranks; i++) {
        if (c->seats[i].pid) {
            close(c->seats[i].control);
        }
    }
    _exit(wh_demo_run_rank(c->options, rank, replaced, c->address, control));
}

static void start(conductor *c, int rank, bool replaced) {
    int ends[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fail(c, "cannot create a pair of sockets: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        become_rank(c, rank, replaced, ends[1], parent);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        fail(c, "cannot start a process: %s", strerror(errno));
        return;
    }
    c->seats[rank] = (seat){.state = STARTING, .pid = pid, .control = ends[0]};
    if (replaced) {
        wh_timeline_say(&c->timeline, WH_DEMO_PLAIN, "rank %d is back (pid %d)", rank, (int)pid);
    }
}

/** Waits until the process of a rank has ended. @return the status from waitpid. */
static int reap(seat *s) {
    int status = 0;
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(s->control);
    s->pid = 0;
    return status;
}

static void kill_rank(conductor *c, int rank) {
    seat *s = c->seats + rank;
    kill(s->pid, SIGKILL);
    reap(s);
    s->state = DOWN;
    s->restart_at = wh_clock() + RESTART_SECONDS;
    c->killed++;
    c->victim = c->patient < 0 ? 0 : UINT64_C(1) << rank;
    wh_timeline_say(&c->timeline, WH_DEMO_BAD, "rank %d killed after step %" PRId64 "%s", rank, s->step,
                    c->victim ? ", in the middle of the heal" : "");
}

/** Ends all ranks. They exit when their socket closes. After a failure they are killed. */
static void end_ranks(conductor *c) {
    for (int i = 0; i < c->options->ranks; i++) {
        if (c->seats[i].pid) {
            c->over ? kill(c->seats[i].pid, SIGKILL) : shutdown(c->seats[i].control, SHUT_WR);
        }
    }
    for (int i = 0; i < c->options->ranks; i++) {
        int status = c->seats[i].pid ? reap(c->seats + i) : 0;
        if (status != 0) {
            fail(c, "rank %d exited with status %#x", i, (unsigned)status);
        }
    }
}

/* ---- pace ---- */

/** The lowest step of all training ranks; -1 if there are none. */
static int64_t lowest_step(const conductor *c) {
    int64_t found = -1;
    for (int i = 0; i < c->options->ranks; i++) {
        const seat *s = c->seats + i;
        if (s->state == TRAINING && (found < 0 || s->step < found)) {
            found = s->step;
        }
    }
    return found;
}

/** The ranks in a state, as a set. */
static uint64_t ranks_in(const conductor *c, seat_state state) {
    uint64_t found = 0;
    for (int i = 0; i < c->options->ranks; i++) {
        found |= (uint64_t)(c->seats[i].state == state) << i;
    }
    return found;
}

/** Finds a rank that is not training. @return -1 if there is none. */
static int find_away(const conductor *c) {
    uint64_t away = ~ranks_in(c, TRAINING) & UINT64_MAX >> (64 - c->options->ranks);
    return away ? __builtin_ctzll(away) : -1;
}

/**
 * The step of the next kill, or the last step if no kill is left. Kills are evenly spaced, except
 * one in the middle of a heal. @param half  true for the step halfway between the last kill and it.
 */
static int64_t next_stop(const conductor *c, bool half) {
    int64_t parts = c->options->kills + !c->ends_in_heal;
    int64_t part = c->killed < parts ? c->killed + 1 : parts;
    return (2 * part - half) * c->options->steps / (2 * parts);
}

/** Tells the ranks how far they may train. If a replacement is ready, the others heal it there. */
static void set_pace(conductor *c) {
    uint64_t ready = ranks_in(c, READY);
    uint64_t sources = wh_demo_sources(ranks_in(c, TRAINING));
    if (c->patient < 0) {
        int64_t stop = next_stop(c, find_away(c) >= 0); /* Leave steps for all ranks. */
        c->limit = lowest_step(c) + LEAD < stop ? lowest_step(c) + LEAD : stop;
        c->patient = ready ? __builtin_ctzll(ready) : -1;
        for (int i = 0; i < c->options->ranks; i++) {
            seat *s = c->seats + i;
            bool lends = ready && sources >> i & 1;
            if (s->state == TRAINING && (s->limit != c->limit || lends)) {
                wh_demo_message order = {lends ? WH_DEMO_LEND : WH_DEMO_LIMIT, .peer = c->patient, .step = c->limit};
                s->limit = c->limit;
                send(s->control, &order, sizeof(order), MSG_NOSIGNAL);
            }
        }
    }
    if (c->patient >= 0 && c->seats[c->patient].state == READY && lowest_step(c) == c->limit) {
        wh_demo_message order = {WH_DEMO_HEAL, .step = c->limit, .ranks = sources};
        c->seats[c->patient].state = HEALING;
        send(c->seats[c->patient].control, &order, sizeof(order), MSG_NOSIGNAL);
    }
}

/* ---- messages ---- */

/** Records that a rank has finished a step. All ranks must have the same digest after this step. */
static void on_step(conductor *c, int rank, const wh_demo_message *m) {
    assert(m->step >= 0 && m->step <= c->options->steps);
    step_digest *first = c->digests + m->step;
    if (!first->reporter) {
        *first = (step_digest){rank + 1, m->digest};
    } else if (memcmp(&first->digest, &m->digest, sizeof(m->digest)) != 0) {
        fail(c, "the digests differ: after step %" PRId64 " rank %d has %016" PRIx64 " and rank %d has %016" PRIx64,
             m->step, rank, m->digest.words[2], first->reporter - 1, first->digest.words[2]);
    }
    c->seats[rank].step = m->step;
    c->seats[rank].state = TRAINING;
}

static void on_message(conductor *c, int rank, const wh_demo_message *m) {
    switch (m->kind) {
    case WH_DEMO_READY:
        c->seats[rank].state = READY;
        break;
    case WH_DEMO_HEALING:
        if (c->ends_in_heal && c->killed == c->options->kills - 1 && c->seats[m->peer].state == TRAINING) {
            kill_rank(c, m->peer);
        }
        break;
    case WH_DEMO_HEALED:
        wh_timeline_healed(&c->timeline, rank, m);
        wh_timeline_say(&c->timeline, WH_DEMO_PLAIN, "training continues after step %" PRId64 ", delayed by %.2f s%s",
                        m->step, m->delay, c->victim & ~m->lost ? "; the heal had ended before the kill" : "");
        on_step(c, rank, m);
        c->patient = -1;
        c->victim = 0;
        break;
    case WH_DEMO_STEPPED:
        on_step(c, rank, m);
        break;
    default:
        fail(c, "rank %d failed: %.*s", rank, WH_DEMO_TEXT_MAX, m->text);
        break;
    }
}

/** Receives a message from a rank, or detects that the rank has died. */
static void listen_to(conductor *c, int rank) {
    wh_demo_message message;
    ssize_t got = recv(c->seats[rank].control, &message, sizeof(message), MSG_DONTWAIT);
    if (got == (ssize_t)sizeof(message)) {
        c->heard = wh_clock();
        on_message(c, rank, &message);
    } else if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
        kill(c->seats[rank].pid, SIGKILL);
        int status = reap(c->seats + rank);
        if (WIFSIGNALED(status)) {
            fail(c, "rank %d was killed by a signal: %s; if memory ran out, use a smaller --size", rank,
                 strsignal(WTERMSIG(status)));
        } else {
            fail(c, "rank %d exited with code %d", rank, WEXITSTATUS(status));
        }
    }
}

/** Waits for messages, at most FRAME_MS, and handles them. */
static void handle_messages(conductor *c) {
    struct pollfd ready[WH_DEMO_RANKS_MAX];
    for (int i = 0; i < c->options->ranks; i++) {
        ready[i] = (struct pollfd){.fd = c->seats[i].pid ? c->seats[i].control : -1, .events = POLLIN};
    }
    bool some = poll(ready, (nfds_t)c->options->ranks, FRAME_MS) > 0;
    for (int i = 0; i < c->options->ranks && some && !c->over; i++) {
        if (ready[i].revents && c->seats[i].pid) { /* The rank may just have been killed. */
            listen_to(c, i);
        }
    }
}

/* ---- the main loop ---- */

/** Kills or replaces a rank, if it is time to do so. @return false when all steps are done. */
static bool act(conductor *c) {
    bool all = find_away(c) < 0;
    int64_t lowest = lowest_step(c);
    for (int i = 0; i < c->options->ranks; i++) {
        if (c->seats[i].state == DOWN && wh_clock() >= c->seats[i].restart_at) {
            start(c, i, true);
        }
    }
    if (all && lowest == c->options->steps) {
        return false;
    }
    if (all && lowest >= next_stop(c, false)) {
        kill_rank(c, c->killed % (int)c->options->ranks);
    }
    if (wh_interrupt_code()) {
        fail(c, "interrupted by a signal: %s", strsignal(wh_interrupt_code() - 128));
        c->code = wh_interrupt_code();
    } else if (wh_clock() - c->heard > SILENCE_SECONDS) {
        fail(c, "no message from any rank for %d s; --verbose shows more", SILENCE_SECONDS);
    } else if (ferror(stdout)) {
        fail(c, "cannot write the output");
    }
    return true;
}

static void show_progress(conductor *c) {
    static const char *const notes[] = {"starts", "trains", "is down", "waits to be healed", "is being healed"};
    char note[64] = "";
    int away = find_away(c);
    if (away >= 0 && c->timeline.bar.terminal) {
        snprintf(note, sizeof(note), "  rank %d %s", away, notes[c->seats[away].state]);
    }
    wh_timeline_progress(&c->timeline, lowest_step(c) < 0 ? 0 : lowest_step(c), note);
}

/** Starts, kills and replaces ranks. @return the exit code. */
static int conduct(const wh_demo_options *options) {
    static conductor c;
    char text[64];
    c.options = options;
    c.ends_in_heal = options->kills > 1 && options->ranks > 2; /* Another source must be left. */
    c.digests = wh_need(calloc((size_t)options->steps + 1, sizeof(*c.digests)));
    wh_timeline_begin(&c.timeline, options);
    wh_interrupt_catch();
    create_folder(&c);
    if (!c.over) {
        wh_timeline_say(&c.timeline, WH_DEMO_PLAIN, "%d ranks start, each with a state of %s", (int)options->ranks,
                        wh_size_text(options->size, text));
    }
    for (int i = 0; i < options->ranks && !c.over; i++) {
        start(&c, i, false);
    }
    c.heard = wh_clock();
    c.patient = -1;
    while (!c.over && act(&c)) {
        set_pace(&c);
        show_progress(&c);
        handle_messages(&c);
    }
    end_ranks(&c);
    if (!c.over) {
        snprintf(text, sizeof(text), "%d kill%s and %d heal%s", c.killed, c.killed == 1 ? "" : "s", c.timeline.heals,
                 c.timeline.heals == 1 ? "" : "s");
        wh_timeline_success(&c.timeline, &c.digests[options->steps].digest, text);
    }
    remove_folder(&c);
    free(c.digests);
    return c.code;
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
    return options->rank < 0 ? conduct(options) : wh_demo_run_launched(options);
}
