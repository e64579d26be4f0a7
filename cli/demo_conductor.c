/*
 * The conductor of the demo: starts the ranks, sets their pace, kills them one by one, replaces
 * them, and compares their digests. It says who heals whom and at which step, but moves no state.
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

/* Delay before a killed rank is replaced. A fast scheduler takes about this long. */
#define RESTART_SECONDS 0.5
#define SILENCE_SECONDS 60 /* If no rank sends a message for this long, the demo fails. */

enum { LEAD = 2, FRAME_MS = 100, FOLDER_MAX = 512 };

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

int wh_demo_conduct(const wh_demo_options *options) {
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
