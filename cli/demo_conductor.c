/*
 * The conductor of the demo: starts the ranks, sets their pace, kills them one by one, replaces
 * them, and compares their digests. It takes no part in the healing.
 *
 *  1. At most one rank is down, healing or behind at any time.
 *  2. No rank is more than LEAD steps ahead of the slowest one that trains. While one is away, the
 *     others stop halfway to the next kill.
 *  3. Ranks and the folder are gone when the command returns. If the conductor is killed, the
 *     kernel kills the ranks.
 *
 *     STARTING -> TRAINING: on_message, when the rank reports its first step, or that it was healed
 *     TRAINING -> DOWN: kill_rank
 *     DOWN -> STARTING: start, after RESTART_SECONDS
 */
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

#define RESTART_SECONDS 0.5 /* until a killed rank is replaced, as by a fast scheduler */
#define SILENCE_SECONDS 60  /* without a message from any rank: the demo hangs */

enum { LEAD = 2, FRAME_MS = 100, FOLDER_MAX = 512 };

typedef enum seat_state { STARTING, TRAINING, DOWN } seat_state;

/** A rank, whichever process has it. */
typedef struct seat {
    seat_state state;
    pid_t pid; /**< 0: none. */
    int control;
    int64_t step;
    int64_t limit;     /**< Up to which step it may train. */
    bool behind;       /**< It was healed and has not caught up yet. */
    double restart_at; /**< If it is down. */
} seat;

/** The first digest that was reported for a step. */
typedef struct step_digest {
    bool known;
    int rank;
    wh_demo_digest digest;
} step_digest;

typedef struct conductor {
    const wh_demo_options *options;
    wh_timeline timeline;
    char folder[FOLDER_MAX]; /**< Where the ranks meet; "" if there is none. */
    char address[WH_DEMO_ADDRESS_MAX];
    seat seats[WH_DEMO_RANKS_MAX];
    step_digest *digests; /**< One per step. */
    int killed;
    double heard; /**< When the last message came. */
    bool over;    /**< The demo failed or was interrupted. */
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
        fail(c, "cannot create a folder in %s: %s; set TMPDIR to another one", below,
             size >= (int)sizeof(c->folder) ? "the path is too long" : strerror(errno));
        c->folder[0] = '\0';
        return;
    }
    char *to = c->address + snprintf(c->address, sizeof(c->address), "unix://");
    for (const char *at = c->folder; *at; at++) { /* at most three bytes each */
        to += strchr(plain, *at) ? snprintf(to, 2, "%c", *at) : snprintf(to, 4, "%%%02X", (unsigned char)*at);
    }
    memcpy(to, "/meet", sizeof("/meet"));
}

static void remove_folder(conductor *c) {
    DIR *folder = c->folder[0] ? opendir(c->folder) : NULL;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unlinkat(dirfd(folder), entry->d_name, 0); /* fails for "." and ".." */
    }
    if (folder) {
        closedir(folder);
        rmdir(c->folder);
    }
}

/* ---- processes ---- */

/** The child: becomes a rank. */
static _Noreturn void become_rank(conductor *c, int rank, bool replaced, int control, pid_t parent) {
    char name[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { /* it died before the line above */
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
    c->seats[rank] = (seat){.state = STARTING, .pid = pid, .control = ends[0], .behind = replaced};
    if (replaced) {
        wh_timeline_say(&c->timeline, WH_DEMO_PLAIN, "rank %d is back (pid %d)", rank, (int)pid);
    }
}

/** Waits for a rank's process to end. @return its exit status. */
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
    wh_timeline_say(&c->timeline, WH_DEMO_BAD, "rank %d killed after step %" PRId64, rank, s->step);
}

/** Ends all ranks: they exit when their socket closes. After a failure they are killed. */
static void end_ranks(conductor *c) {
    for (int i = 0; i < c->options->ranks; i++) {
        seat *s = c->seats + i;
        if (s->pid && c->over) {
            kill(s->pid, SIGKILL);
        } else if (s->pid) {
            shutdown(s->control, SHUT_WR);
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

/** The lowest step of the ranks that train, without `except`; -1 if there is none. */
static int64_t lowest_step(const conductor *c, int except) {
    int64_t found = -1;
    for (int i = 0; i < c->options->ranks; i++) {
        const seat *s = c->seats + i;
        if (i != except && s->state == TRAINING && (found < 0 || s->step < found)) {
            found = s->step;
        }
    }
    return found;
}

/** @return a rank that does not train or is behind; -1 if there is none. */
static int find_away(const conductor *c) {
    for (int i = 0; i < c->options->ranks; i++) {
        if (c->seats[i].state != TRAINING || c->seats[i].behind) {
            return i;
        }
    }
    return -1;
}

/** The step of the next kill, or the last one. The kills are spread evenly over the run. */
static int64_t next_stop(const conductor *c) {
    return (c->killed + 1) * c->options->steps / (c->options->kills + 1);
}

/** Tells the ranks how far they may train. */
static void set_pace(conductor *c) {
    int64_t limit = lowest_step(c, -1) + LEAD;
    int64_t stop = next_stop(c);
    if (find_away(c) >= 0) { /* leave some steps that all do together */
        stop = (c->killed * c->options->steps / (c->options->kills + 1) + stop + 1) / 2;
    }
    limit = limit < stop ? limit : stop;
    for (int i = 0; i < c->options->ranks; i++) {
        seat *s = c->seats + i;
        if (s->state == TRAINING && s->limit != limit) {
            wh_demo_message message = {.kind = WH_DEMO_LIMIT, .step = limit};
            s->limit = limit;
            send(s->control, &message, sizeof(message), MSG_NOSIGNAL);
        }
    }
}

/* ---- messages ---- */

/** Notes the step of a rank. All ranks must have the same digest after it. */
static void on_step(conductor *c, int rank, const wh_demo_message *m) {
    seat *s = c->seats + rank;
    if (m->step < 0 || m->step > c->options->steps) {
        fail(c, "rank %d reports step %" PRId64 ", which does not exist", rank, m->step);
        return;
    }
    step_digest *first = c->digests + m->step;
    if (!first->known) {
        *first = (step_digest){true, rank, m->digest};
    } else if (memcmp(&first->digest, &m->digest, sizeof(m->digest)) != 0) {
        fail(c, "the digests differ: after step %" PRId64 " rank %d has %016" PRIx64 " and rank %d has %016" PRIx64,
             m->step, rank, m->digest.words[2], first->rank, first->digest.words[2]);
    }
    s->step = m->step;
    s->state = TRAINING;
    if (s->behind && s->step >= lowest_step(c, rank)) {
        s->behind = false;
        wh_timeline_say(&c->timeline, WH_DEMO_PLAIN, "rank %d has caught up at step %" PRId64, rank, s->step);
    }
}

static void on_message(conductor *c, int rank, const wh_demo_message *m) {
    switch (m->kind) {
    case WH_DEMO_HEALED:
        wh_timeline_healed(&c->timeline, rank, m);
        on_step(c, rank, m);
        break;
    case WH_DEMO_LENT:
        wh_timeline_say(&c->timeline, WH_DEMO_PLAIN, "rank %d continues at step %" PRId64 ", held up for %.2f s", rank,
                        m->step, m->seconds);
        break;
    case WH_DEMO_STEPPED:
        on_step(c, rank, m);
        break;
    default:
        fail(c, "rank %d failed: %.*s", rank, WH_DEMO_TEXT_MAX, m->text);
        break;
    }
}

/** Receives a message of a rank, or notices that it has died. */
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

/** Waits for messages, but not longer than a frame of the bar, and handles them. */
static void handle_messages(conductor *c) {
    struct pollfd ready[WH_DEMO_RANKS_MAX];
    int ranks = (int)c->options->ranks;
    for (int i = 0; i < ranks; i++) {
        ready[i] = (struct pollfd){.fd = c->seats[i].pid ? c->seats[i].control : -1, .events = POLLIN};
    }
    bool some = poll(ready, (nfds_t)ranks, FRAME_MS) > 0;
    for (int i = 0; i < ranks && some && !c->over; i++) {
        if (ready[i].revents) {
            listen_to(c, i);
        }
    }
}

/* ---- the show ---- */

/** Kills a rank or starts its replacement if it is time. @return false at the end of the show. */
static bool act(conductor *c) {
    int away = find_away(c);
    int64_t lowest = lowest_step(c, -1);
    if (away >= 0 && c->seats[away].state == DOWN && wh_clock() >= c->seats[away].restart_at) {
        start(c, away, true);
    } else if (away < 0 && lowest == c->options->steps) {
        return false;
    } else if (away < 0 && lowest >= next_stop(c)) {
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
    static const char *const notes[] = {"starts", "catches up", "is down"};
    char note[64] = "";
    int away = find_away(c);
    int64_t lowest = lowest_step(c, -1);
    if (away >= 0) {
        snprintf(note, sizeof(note), "rank %d %s", away, notes[c->seats[away].state]);
    }
    wh_timeline_progress(&c->timeline, lowest < 0 ? 0 : lowest, note);
}

int wh_demo_conduct(const wh_demo_options *options) {
    static conductor c;
    char text[64];
    c.options = options;
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
