/*
 * The barrier, by dissemination. Each rank keeps a table of the barrier that each rank is known to
 * have arrived at, and sends news of it to log2(N) others: rank + 1, + 2, + 4 and so on. It sends
 * to rank + 2^k when the 2^k ranks up to itself have arrived at the same barrier. So all ranks know
 * of all others after log2(N) steps, and each rank has sent log2(N) frames.
 *
 * Invariants:
 * 1. The table only grows. The progress thread passes news on, also while no thread is in the call.
 *    So the order in which ranks arrive, time out and call again does not matter.
 * 2. Changes since the last frame to a rank are sent when its turn comes, or when nothing has
 *    changed for QUIET_MS: then some rank is late, and the others learn which.
 * 3. A rank that was lost or restarted gets the whole table again. So does a rank that asks,
 *    because one of the ranks that send to it may have died.
 *
 * If a rank waits for a rank that is lost, its call fails, and it reports the loss to the ranks
 * that it sends to. Their calls fail too, and so on.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

enum {
    QUIET_MS = 200, /**< If nothing has changed for this long, send the table. */
    /** After this long, watch the ranks that send to this one, so that their deaths are noticed. */
    WATCH_MS = 2000,
    RETRY_MS = 500, /**< How often a lost rank is dialled. */
    /**
     * A lost rank may have arrived at the barrier before it left. Wait this long for others to say
     * so.
     */
    GRACE_MS = 500,
};

enum { RUN = 4 + 4 + 8, MISSING = 8 + 4 + 8, FRAME_RUNS = 1024 };

static bool has_arrived(const wh_sockets *sockets, int64_t rank, uint64_t number) {
    const wh_member *member = sockets->members + rank;
    return member->arrived && member->reached >= number;
}

/** The rank at a distance. The ranks form a ring. */
static int32_t at_distance(const wh_sockets *sockets, int64_t distance) {
    int64_t size = sockets->base.size;
    return (int32_t)(((sockets->base.rank + distance) % size + size) % size);
}

static void note_arrival(wh_sockets *sockets, int64_t rank, uint64_t number) {
    if (!has_arrived(sockets, rank, number)) {
        wh_member *member = sockets->members + rank;
        member->arrived = true;
        member->reached = number;
        member->reached_news = ++sockets->barrier.news;
        sockets->barrier.changed_at = wh_clock_now();
        /* Every rank needs this news. A process that leaves at once must send it first. */
        for (wh_edge *edge = sockets->barrier.edges; edge < sockets->barrier.edges + WH_EDGES_MAX; edge++) {
            edge->settled = false;
        }
    }
}

/** Reports the loss of a rank that has not arrived to the next ranks. */
static void pass_on_missing(const wh_sockets *sockets, int32_t rank) {
    wh_string body = {0};
    wh_append_number(&body, sockets->barrier.number, 8);
    wh_append_number(&body, (uint64_t)rank, 4);
    wh_append_number(&body, sockets->members[rank].incarnation, 8);
    for (int64_t distance = 1; !body.failed && distance < sockets->base.size; distance *= 2) {
        wh_connection *one = sockets->members[at_distance(sockets, distance)].connection;
        if (one && !one->doomed && !one->parting && !one->out.first) {
            one->doomed = !wh_connection_queue(one, WH_FRAME_MISSING, body.bytes, body.size);
        }
    }
    wh_free(body.bytes);
}

bool wh_barrier_take_missing(wh_sockets *sockets, const uint8_t *bytes, size_t size) {
    wh_cursor rest = wh_cursor_over(bytes, size);
    uint64_t number = wh_cursor_number(&rest, 8);
    uint64_t rank = wh_cursor_number(&rest, 4);
    uint64_t incarnation = wh_cursor_number(&rest, 8);
    if (!wh_cursor_ended(&rest) || rank >= (uint64_t)sockets->base.size) {
        return false;
    }
    wh_barrier *barrier = &sockets->barrier;
    if (barrier->waiting && barrier->missing < 0 && barrier->number == number &&
        !has_arrived(sockets, (int64_t)rank, number) && sockets->members[rank].incarnation == incarnation) {
        barrier->missing = (int32_t)rank;
        pass_on_missing(sockets, (int32_t)rank);
        pthread_cond_broadcast(&sockets->changed);
    }
    return true;
}

/** Sends the changes since the last frame to a rank, up to change `to`. */
static void send_changes(const wh_sockets *sockets, wh_connection *connection, uint64_t told) {
    wh_string runs = {0};
    uint32_t count = 0;
    for (int32_t rank = 0; rank <= sockets->base.size; rank++) {
        const wh_member *member = sockets->members + rank;
        bool due = rank < sockets->base.size && member->arrived && member->reached_news > told;
        if (count && (!due || member->reached != member[-1].reached)) {
            wh_append_number(&runs, (uint64_t)rank - count, 4);
            wh_append_number(&runs, count, 4);
            wh_append_number(&runs, member[-1].reached, 8);
            count = 0;
        }
        count += due;
        if (runs.size >= RUN * FRAME_RUNS || (rank == sockets->base.size && runs.size)) {
            connection->doomed |=
                runs.failed || !wh_connection_queue(connection, WH_FRAME_ARRIVED, runs.bytes, runs.size);
            runs.size = 0;
        }
    }
    connection->used = wh_clock_now();
    wh_free(runs.bytes);
}

bool wh_barrier_take_arrived(wh_sockets *sockets, wh_connection *connection, const uint8_t *bytes, size_t size) {
    wh_cursor rest = wh_cursor_over(bytes, size);
    connection->used = wh_clock_now();
    if (size == 0 && !connection->out.first) {
        send_changes(sockets, connection, 0);
    }
    uint64_t behind = 0; /* Runs ascend, so no frame takes long. */
    while (rest.left) {
        uint64_t first = wh_cursor_number(&rest, 4);
        uint64_t count = wh_cursor_number(&rest, 4);
        uint64_t number = wh_cursor_number(&rest, 8);
        if (rest.failed || !count || first < behind || first + count > (uint64_t)sockets->base.size) {
            return false;
        }
        behind = first + count;
        for (uint64_t rank = first; rank < first + count; rank++) {
            note_arrival(sockets, (int64_t)rank, number);
        }
    }
    if (sockets->barrier.waiting) {
        pthread_cond_broadcast(&sockets->changed);
    }
    if (sockets->pump.inside) {
        wh_sockets_wake(sockets); /* The thread that has read this does not pass it on. */
    }
    return true;
}

uint64_t wh_barrier_tell(wh_sockets *sockets, uint64_t now) {
    wh_barrier *barrier = &sockets->barrier;
    const wh_member *own = sockets->members + sockets->base.rank;
    uint64_t quiet_at = barrier->changed_at + QUIET_MS * MS;
    uint64_t next = UINT64_MAX;
    /* The number of consecutive ranks, up to this one, that have arrived at the barrier. */
    int32_t complete = 0;
    while (barrier->news && own->arrived && complete < sockets->base.size &&
           has_arrived(sockets, at_distance(sockets, -complete), own->reached)) {
        complete++;
    }
    wh_edge *edge = barrier->edges;
    for (int64_t distance = 1; distance < sockets->base.size && barrier->news; distance *= 2, edge++) {
        wh_member *member = sockets->members + at_distance(sockets, distance);
        if (edge->incarnation != member->incarnation || edge->failures != member->failures) {
            *edge =
                (wh_edge){.incarnation = member->incarnation, .failures = member->failures, .retry_at = edge->retry_at};
        }
        bool had_turn = edge->turn && edge->number >= own->reached;
        bool turn = complete >= distance && !had_turn;
        /* The other side learns the rest from other ranks. */
        edge->settled = complete == sockets->base.size && had_turn;
        if (edge->settled || edge->told >= barrier->news || !member->incarnation) {
            continue;
        }
        uint64_t due = member->gone ? edge->retry_at : turn ? 0 : quiet_at;
        if (now < due) {
            next = wh_min(next, due);
        } else if (member->connection && !member->connection->parting) {
            send_changes(sockets, member->connection, edge->told);
            edge->told = barrier->news;
            edge->turn |= turn;
            edge->number = turn ? own->reached : edge->number;
        } else {
            member->wanted = true;
            edge->retry_at = now + RETRY_MS * MS;
        }
    }
    return next;
}

bool wh_barrier_owes(const wh_sockets *sockets) {
    const wh_barrier *barrier = &sockets->barrier;
    int k = 0;
    for (int64_t distance = 1; distance < sockets->base.size && barrier->news; distance *= 2, k++) {
        const wh_member *member = sockets->members + at_distance(sockets, distance);
        const wh_edge *edge = barrier->edges + k;
        if (member->incarnation && !member->gone &&
            ((edge->told < barrier->news && !edge->settled) || edge->incarnation != member->incarnation)) {
            return true;
        }
    }
    return false;
}

bool wh_barrier_needs(const wh_sockets *sockets, int32_t rank) {
    return sockets->barrier.waiting && !has_arrived(sockets, rank, sockets->barrier.number);
}

/** A lost rank that has not arrived; -1: none. */
static int32_t find_lost(const wh_sockets *sockets) {
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        if (sockets->members[rank].gone && !has_arrived(sockets, rank, sockets->barrier.number)) {
            return rank;
        }
    }
    return -1;
}

static int32_t first_absent(const wh_sockets *sockets) {
    int32_t rank = 0;
    while (rank < sockets->base.size && has_arrived(sockets, rank, sockets->barrier.number)) {
        rank++;
    }
    return rank;
}

/** Watches the ranks that send to this one, and asks those that have arrived for their table. */
static void watch_absent(wh_sockets *sockets) {
    for (int64_t distance = 1; distance < sockets->base.size; distance *= 2) {
        int32_t rank = at_distance(sockets, -distance);
        wh_member *member = sockets->members + rank;
        if (!member->connection) {
            member->wanted |= member->incarnation && !member->gone;
        } else if (!member->connection->parting && !member->connection->out.first) {
            wh_connection_queue(member->connection, WH_FRAME_ARRIVED, NULL, 0);
        }
    }
}

static wherry_status await_all(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    uint64_t number = sockets->barrier.number;
    wh_deadline watch = wh_deadline_in_ms(WATCH_MS);
    wh_deadline grace = wh_deadline_never();
    wh_wait_log wait = {0};
    int32_t absent;
    while ((absent = first_absent(sockets)) < sockets->base.size) {
        int32_t lost = find_lost(sockets);
        if (sockets->fenced) {
            return wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d has taken this one's place",
                           (int)sockets->base.rank);
        }
        int32_t missing = sockets->barrier.missing;
        if (missing >= 0 && !has_arrived(sockets, missing, number)) {
            return wh_fail_rank(
                error, missing,
                wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost, as another rank has noticed", (int)missing));
        }
        if (lost < 0) {
            grace = wh_deadline_never();
        } else if (grace.at == wh_deadline_never().at) {
            grace = wh_deadline_in_ms(GRACE_MS);
            watch = wh_deadline_in_ms(0);
        } else if (wh_deadline_passed(grace)) {
            pass_on_missing(sockets, lost);
            wh_sockets_wake(sockets);
            return wh_fail_rank(
                error, lost,
                wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)lost, sockets->members[lost].reason));
        }
        if (wh_deadline_passed(deadline)) {
            return wh_fail_rank(
                error, absent,
                wh_fail(error, WHERRY_TIMED_OUT,
                        "timed out at barrier %llu: rank %d has not arrived; find out why, then call again",
                        (unsigned long long)number, (int)absent));
        }
        if (wh_deadline_passed(watch)) {
            watch_absent(sockets);
            wh_sockets_wake(sockets);
            watch = wh_deadline_in_ms(WATCH_MS);
        }
        if (wh_wait_is_long(&wait)) {
            wh_log_wait("", "rank %d at barrier %llu", (int)absent, (unsigned long long)number);
        }
        wh_wait(&sockets->changed, &sockets->lock, wh_deadline_earlier(grace, wh_deadline_earlier(deadline, watch)));
    }
    return WHERRY_OK;
}

wherry_status wh_sockets_barrier(wh_group *group, uint64_t number, wh_deadline deadline, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    pthread_mutex_lock(&sockets->lock);
    note_arrival(sockets, group->rank, number);
    sockets->barrier.number = number;
    sockets->barrier.waiting = true;
    sockets->barrier.missing = -1;
    for (int32_t rank = 0; rank < group->size; rank++) {
        wh_member *member = sockets->members + rank;
        /* Dial it once more, because it may be back. */
        member->wanted |= member->gone && !has_arrived(sockets, rank, number);
        member->gone = member->gone && has_arrived(sockets, rank, number);
    }
    wh_sockets_wake(sockets);
    wherry_status status = await_all(sockets, deadline, error);
    sockets->barrier.waiting = false;
    pthread_mutex_unlock(&sockets->lock);
    return status;
}
