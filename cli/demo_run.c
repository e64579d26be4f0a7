/*
 * The conductor of the demo: starts the ranks, keeps their pace, kills one after the other, puts a new process in its place, and
 * holds their digests against each other. It takes no part in the healing.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "demo_control.h"
#include "demo_launch.h"
#include "demo_launched.h"
#include "demo_options.h"
#include "demo_run.h"
#include "demo_show.h"

#define RESTART_SECONDS 0.5 /**< From a rank's death to a new process: what a scheduler takes at best. */
#define SILENCE_SECONDS 60  /**< Nothing is heard from any rank for so long: it hangs. */
#define QUIT_SECONDS 10     /**< What a rank may take to end. */

enum {
    RUN_UP = 3,    /**< Steps from a rank's return to the next kill. */
    LEAD = 2,      /**< No rank is more steps ahead of the slowest that trains. */
    FRAME_MS = 100 /**< The bar is drawn so often. */
};

typedef enum seat_state { STARTING, HEALING, TRAINING, DOWN, ANSWERED } seat_state;

/** A rank, whichever process has it. */
typedef struct seat {
    seat_state state;
    pid_t pid; /**< 0: none. */
    int control;
    int step;
    int limit;         /**< Up to where it was told to train. */
    bool heals;        /**< The process took another's place. */
    bool behind;       /**< It was healed and has not caught up. */
    double restart_at; /**< Where it is down. */
    wh_demo_digest digest;
} seat;

/** The digest that the first rank had after a step. */
typedef struct mark {
    bool there;
    int rank;
    wh_demo_digest digest;
} mark;

typedef struct run {
    wh_demo_options options;
    wh_demo_screen screen;
    wh_demo_place place;
    seat seats[WH_DEMO_RANKS_MAX];
    mark *marks; /**< One a step. */
    int signals; /**< A descriptor. */
    int killed;
    int healed;
    int returned;   /**< The step of the foremost rank when one was healed last. */
    uint64_t bytes; /**< That healed. */
    double seconds;
    double heard; /**< When something came from a rank. */
    bool finishing;
    bool over;
    int code; /**< What the command returns. */
} run;

__attribute__((format(printf, 2, 3))) static void fail(run *r, const char *format, ...) {
    char text[1200];
    va_list arguments;
    if (!r->over) {
        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        wh_demo_screen_clear(&r->screen);
        fprintf(stderr, "wherry demo: %s\n", text);
        r->code = WH_EXIT_FAILED;
        r->over = true;
    }
}

static bool digests_equal(const wh_demo_digest *one, const wh_demo_digest *other) {
    return memcmp(one, other, sizeof(*one)) == 0;
}

/** The lowest or highest step of the ranks that train, `except` left out; -1 where there is none. */
static int extreme_step(const run *r, bool highest, int except) {
    int found = -1;
    for (int i = 0; i < r->options.ranks; i++) {
        int step = r->seats[i].step;
        if (i != except && r->seats[i].state == TRAINING && (found < 0 || (highest ? step > found : step < found))) {
            found = step;
        }
    }
    return found;
}

static int count_in(const run *r, seat_state state) {
    int count = 0;
    for (int i = 0; i < r->options.ranks; i++) {
        count += r->seats[i].state == state;
    }
    return count;
}

static bool somebody_is_behind(const run *r) {
    int rank = 0;
    while (rank < r->options.ranks && !r->seats[rank].behind) {
        rank++;
    }
    return rank < r->options.ranks;
}

/** Steps from a rank's return to the next kill, at least: as many as there is room for. */
static int run_up(const run *r) {
    int room = r->options.steps / (r->options.kills + 1);
    return room < RUN_UP ? room : RUN_UP;
}

/** After which step all must be for the next kill: they are spread evenly over the run, but for a rank that was long away. */
static int next_kill(const run *r) {
    int planned = (int)((int64_t)(r->killed + 1) * r->options.steps / (r->options.kills + 1));
    int earliest = r->returned + run_up(r) - 1;
    return planned > earliest ? planned : earliest;
}

static void start(run *r, int rank, bool heal) {
    seat *s = r->seats + rank;
    pid_t pid = wh_demo_start(&r->options, &r->place, rank, heal, &s->control);
    if (pid < 0) {
        r->code = WH_EXIT_FAILED;
        r->over = true;
        return;
    }
    s->pid = pid;
    s->state = STARTING;
    s->heals = heal;
    s->limit = 0;
}

/** Ends a rank's process, if need be by force, and takes its exit status. */
static int reap(seat *s) {
    int status = 0;
    kill(s->pid, SIGKILL);
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(s->control);
    s->pid = 0;
    return status;
}

static void kill_rank(run *r, int rank) {
    seat *s = r->seats + rank;
    reap(s);
    s->state = DOWN;
    s->restart_at = wh_clock() + RESTART_SECONDS;
    r->killed++;
    wh_demo_say(&r->screen, WH_DEMO_BAD, "rank %d killed after step %d", rank, s->step);
}

/** A process is gone that nobody killed. */
static void on_loss(run *r, int rank) {
    int status = reap(r->seats + rank);
    if (WIFSIGNALED(status)) {
        fail(r, "rank %d was ended by a signal: %s; where that is for want of memory, say a smaller --size", rank,
             strsignal(WTERMSIG(status)));
    } else {
        fail(r, "rank %d ended by itself, with exit code %d", rank, WEXITSTATUS(status));
    }
}

static double rate(uint64_t bytes, double seconds) {
    return seconds > 0 ? (double)bytes / seconds * 1e-9 : 0;
}

static void on_healed(run *r, int rank, const wh_demo_message *m) {
    seat *s = r->seats + rank;
    s->state = TRAINING;
    s->step = (int)m->step;
    s->behind = true;
    r->returned = extreme_step(r, true, -1);
    r->healed++;
    r->bytes += m->bytes;
    r->seconds += m->seconds;
    char size[WH_SIZE_TEXT_MAX];
    wh_demo_say(&r->screen, WH_DEMO_GOOD,
                "rank %d healed in place from rank %d: %s in %.2f s, %.1f GB/s over %s, verified %s, at step %d", rank,
                m->peer, wh_size_text(m->bytes, size), m->seconds, rate(m->bytes, m->seconds), m->text,
                m->verified ? "yes" : "no", s->step);
}

static void note_caught_up(run *r, int rank, int others) {
    seat *s = r->seats + rank;
    if (s->behind && s->step >= others) {
        s->behind = false;
        wh_demo_say(&r->screen, WH_DEMO_PLAIN, "rank %d has caught up with the others at step %d", rank, s->step);
    }
}

/** Every rank's digest after a step must be that of the first which did it. */
static void on_stepped(run *r, int rank, const wh_demo_message *m) {
    if (m->step < 1 || m->step > r->options.steps) {
        fail(r, "rank %d says that it is at step %" PRId64 ", which there is not", rank, m->step);
        return;
    }
    mark *known = r->marks + m->step;
    r->seats[rank].step = (int)m->step;
    if (!known->there) {
        *known = (mark){true, rank, m->digest};
    } else if (!digests_equal(&known->digest, &m->digest)) {
        fail(r, "the digests differ: after step %" PRId64 " rank %d has %016" PRIx64 " and rank %d has %016" PRIx64,
             m->step, rank, m->digest.words[2], known->rank, known->digest.words[2]);
    }
    note_caught_up(r, rank, extreme_step(r, false, rank));
}

static void on_joined(run *r, int rank) {
    seat *s = r->seats + rank;
    s->state = s->heals ? HEALING : TRAINING;
    if (s->heals) {
        wh_demo_say(&r->screen, WH_DEMO_PLAIN, "rank %d is back (pid %d)", rank, (int)s->pid);
    }
}

static void on_message(run *r, int rank, const wh_demo_message *m) {
    seat *s = r->seats + rank;
    switch (m->kind) {
    case WH_DEMO_JOINED:
        on_joined(r, rank);
        break;
    case WH_DEMO_HEALED:
        on_healed(r, rank, m);
        note_caught_up(r, rank, extreme_step(r, true, rank));
        break;
    case WH_DEMO_LENT:
        wh_demo_say(&r->screen, WH_DEMO_PLAIN, "rank %d steps on from step %" PRId64 ": it lent its state for %.2f s",
                    rank, m->step, m->seconds);
        break;
    case WH_DEMO_STEPPED:
        on_stepped(r, rank, m);
        break;
    case WH_DEMO_DIGEST:
        s->state = ANSWERED;
        s->digest = m->digest;
        break;
    case WH_DEMO_LOG:
        wh_demo_say(&r->screen, WH_DEMO_DIM, "rank %d: %s", rank, m->text);
        break;
    default:
        fail(r, "rank %d failed: %s", rank, m->text);
        break;
    }
}

/** Takes what a rank has told. */
static void listen_to(run *r, int rank) {
    wh_demo_message message;
    wh_demo_got got = WH_DEMO_GOT_ONE;
    while (!r->over && r->seats[rank].pid &&
           (got = wh_demo_control_receive(r->seats[rank].control, 0, &message)) == WH_DEMO_GOT_ONE) {
        r->heard = wh_clock();
        on_message(r, rank, &message);
    }
    if (got == WH_DEMO_GOT_END) {
        on_loss(r, rank);
    }
}

/** Lets the ranks go on: together, not past the next kill, and while one is away not so far that no steps are left for other kills. */
static void set_pace(run *r) {
    int limit = extreme_step(r, false, -1) + LEAD;
    int kills = r->options.kills - r->killed;
    int stop = r->options.steps;
    if (kills > 0) {
        stop = count_in(r, TRAINING) == r->options.ranks ? next_kill(r) + 1 : stop - kills * run_up(r);
    }
    limit = limit < stop ? limit : stop;
    for (int i = 0; i < r->options.ranks; i++) {
        seat *s = r->seats + i;
        if (s->state == TRAINING && s->limit != limit) {
            s->limit = limit;
            wh_demo_control_send(s->control, &(wh_demo_message){.kind = WH_DEMO_LIMIT, .step = limit});
        }
    }
}

static void tell_all(run *r, wh_demo_kind kind) {
    for (int i = 0; i < r->options.ranks; i++) {
        if (r->seats[i].pid) {
            wh_demo_control_send(r->seats[i].control, &(wh_demo_message){.kind = kind});
        }
    }
}

/** What is due: a new process, a kill, the end. */
static void act(run *r) {
    for (int i = 0; i < r->options.ranks; i++) {
        if (r->seats[i].state == DOWN && wh_clock() >= r->seats[i].restart_at) {
            start(r, i, true);
        }
    }
    if (r->finishing || count_in(r, TRAINING) < r->options.ranks || somebody_is_behind(r)) {
        return;
    }
    int lowest = extreme_step(r, false, -1);
    if (r->killed < r->options.kills && lowest >= next_kill(r)) {
        kill_rank(r, r->killed % r->options.ranks);
    } else if (lowest == r->options.steps) {
        r->finishing = true;
        tell_all(r, WH_DEMO_FINISH);
    }
}

static void show(run *r) {
    static const char *const notes[] = {"starts", "heals", "catches up", "is down", ""};
    char note[64] = "";
    int lowest = extreme_step(r, false, -1);
    for (int i = 0; i < r->options.ranks && !note[0]; i++) {
        const seat *s = r->seats + i;
        if (s->state != ANSWERED && (s->state != TRAINING || s->behind)) {
            snprintf(note, sizeof(note), "rank %d %s", i, notes[s->state]);
        }
    }
    wh_demo_show_progress(&r->screen, lowest < 0 ? (r->finishing ? r->options.steps : 0) : lowest, r->options.steps,
                          note);
}

static void on_signal(run *r) {
    struct signalfd_siginfo info;
    if (read(r->signals, &info, sizeof(info)) == (ssize_t)sizeof(info) && !r->over) {
        wh_demo_screen_clear(&r->screen);
        fprintf(stderr, "wherry demo: ended by a signal: %s\n", strsignal((int)info.ssi_signo));
        r->code = 128 + (int)info.ssi_signo;
        r->over = true;
    }
}

/** Waits for the next event, a frame's time at most, and takes what has come. */
static void wait_and_listen(run *r) {
    struct pollfd ready[1 + WH_DEMO_RANKS_MAX];
    int count = r->options.ranks;
    for (int i = 0; i < count; i++) {
        ready[i] = (struct pollfd){.fd = r->seats[i].pid ? r->seats[i].control : -1, .events = POLLIN};
    }
    ready[count] = (struct pollfd){.fd = r->signals, .events = POLLIN};
    if (poll(ready, (nfds_t)count + 1, FRAME_MS) <= 0) {
        return;
    }
    if (ready[count].revents) {
        on_signal(r);
    }
    for (int i = 0; i < count && !r->over; i++) {
        if (ready[i].revents) {
            listen_to(r, i);
        }
    }
}

static void conduct(run *r) {
    double drawn = 0;
    r->heard = wh_clock();
    while (!r->over) {
        wait_and_listen(r);
        act(r);
        set_pace(r);
        if (wh_clock() - drawn >= FRAME_MS * 1e-3) {
            drawn = wh_clock();
            show(r);
        }
        if (wh_clock() - r->heard > SILENCE_SECONDS) {
            fail(r, "nothing was heard from any rank for %d s, at step %d; --verbose tells more", SILENCE_SECONDS,
                 extreme_step(r, false, -1));
        }
        if (r->screen.broken) {
            fail(r, "nobody reads the output");
        }
        if (count_in(r, ANSWERED) == r->options.ranks) {
            break;
        }
    }
}

/** Ends all ranks: in good order where the run went well, else at once. */
static void end_ranks(run *r) {
    double until = wh_clock() + QUIT_SECONDS;
    if (!r->over) {
        tell_all(r, WH_DEMO_QUIT);
    }
    for (int i = 0; i < r->options.ranks; i++) {
        wh_demo_message message;
        int status;
        seat *s = r->seats + i;
        while (!r->over && wh_demo_control_receive(s->control, FRAME_MS, &message) != WH_DEMO_GOT_END) {
            if (wh_clock() > until) {
                fail(r, "rank %d does not end", i);
            }
        }
        if (s->pid && (status = reap(s)) != 0 && !r->over) {
            fail(r, "rank %d did not end well, status %#x", i, (unsigned)status);
        }
    }
}

static void judge(run *r) {
    const wh_demo_digest *first = &r->seats[0].digest;
    for (int i = 0; i < r->options.ranks && !r->over; i++) {
        const wh_demo_digest *digest = &r->seats[i].digest;
        if (!digests_equal(digest, first) || !digests_equal(digest, &r->marks[r->options.steps].digest)) {
            fail(r, "the digests differ at the end: rank %d has %016" PRIx64 " and rank 0 has %016" PRIx64, i,
                 digest->words[2], first->words[2]);
        }
    }
    if (r->over) {
        return;
    }
    char size[WH_SIZE_TEXT_MAX];
    wh_demo_verdict(&r->screen, WH_DEMO_GOOD,
                    "OK: %d ranks at step %d with equal digests (%016" PRIx64 "), after %d kill%s and %d heal%s: %s at "
                    "%.1f GB/s; in %.1f s",
                    r->options.ranks, r->options.steps, first->words[2], r->killed, r->killed == 1 ? "" : "s",
                    r->healed, r->healed == 1 ? "" : "s", wh_size_text(r->bytes, size), rate(r->bytes, r->seconds),
                    wh_clock() - r->screen.begin);
}

/** From here on the signals that end a command are read from a descriptor, so that the ranks and the folder never stay. */
static bool take_signals(run *r) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGTERM);
    signal(SIGPIPE, SIG_IGN);
    r->signals = sigprocmask(SIG_BLOCK, &set, NULL) == 0 ? signalfd(-1, &set, SFD_CLOEXEC) : -1;
    if (r->signals < 0) {
        fprintf(stderr, "wherry demo: cannot take signals: %s\n", strerror(errno));
    }
    return r->signals >= 0;
}

static void conduct_all(run *r) {
    char size[WH_SIZE_TEXT_MAX];
    wh_demo_say(&r->screen, WH_DEMO_PLAIN, "%d ranks start, each with a state of %s", r->options.ranks,
                wh_size_text(r->options.size, size));
    for (int i = 0; i < r->options.ranks && !r->over; i++) {
        start(r, i, false);
    }
    conduct(r);
    end_ranks(r);
    judge(r);
    wh_demo_screen_clear(&r->screen);
    wh_demo_place_remove(&r->place);
}

int wh_demo_command(int argc, char **argv) {
    run r = {.signals = -1};
    if (!wh_demo_options_parse(argc, argv, &r.options, &r.code)) {
        return r.code;
    }
    if (r.options.rank != WH_DEMO_NO_RANK) {
        return wh_demo_launched(&r.options);
    }
    r.code = WH_EXIT_FAILED;
    r.marks = calloc((size_t)r.options.steps + 1, sizeof(*r.marks));
    if (!r.marks) {
        fprintf(stderr, "wherry demo: no memory for %d steps\n", r.options.steps);
    } else if (wh_demo_memory_suffices(&r.options) && take_signals(&r) && wh_demo_place_create(&r.place)) {
        r.code = EXIT_SUCCESS;
        wh_demo_screen_init(&r.screen, &r.options);
        conduct_all(&r);
    }
    if (r.signals >= 0) {
        close(r.signals);
    }
    free(r.marks);
    return r.code;
}
