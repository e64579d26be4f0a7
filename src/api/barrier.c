/*
 * The barrier. A kind of group may have its own (group/sockets/arrival.c); this one is for the
 * others, in which messages need no connections. Every rank tells every other rank the number of
 * the barrier that it has reached, and waits until all others have reached it too.
 */
#include "api/group_handle.h"
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "group/group_timing.h"
#include "group/mailbox.h"

/** One call of wherry_group_barrier. */
typedef struct barrier {
    wherry_group *group;
    wh_group *inner;
    uint64_t number;
    wh_deadline deadline;
    /**
     * Per other rank: the incarnation to which this process has reported its arrival; 0 if there is
     * none.
     */
    uint64_t *told;
} barrier;

/**
 * True if a rank has arrived: if its current incarnation has arrived, or if an incarnation arrived
 * and was lost afterwards.
 */
static bool has_come(const barrier *b, int32_t rank) {
    const wh_barrier_mark *mark = b->group->marks + rank;
    if (rank == b->inner->rank) {
        return true;
    }
    if (!mark->incarnation || mark->number < b->number) {
        return false;
    }
    uint64_t present = wh_mailbox_incarnation(b->inner->mailbox, rank);
    return present == 0 || present == mark->incarnation;
}

static int32_t first_absent(const barrier *b) {
    int32_t rank = 0;
    while (rank < b->inner->size && has_come(b, rank)) {
        rank++;
    }
    return rank;
}

static wherry_status fail_absent(const barrier *b, int32_t rank, wherry_error *error) {
    return wh_fail_rank(error, rank,
                        wh_fail(error, WHERRY_TIMED_OUT,
                                "timed out at barrier %llu: rank %d has not arrived; find out why, then call again",
                                (unsigned long long)b->number, (int)rank));
}

/**
 * Tells a rank that this one has arrived. The incarnation is read before the message is sent. So if
 * the rank restarts meanwhile, its new incarnation is told again.
 */
static wherry_status tell(const barrier *b, int32_t rank, wherry_error *error) {
    uint8_t bytes[8];
    wh_store_be64(bytes, b->number);
    b->told[rank] = wh_mailbox_incarnation(b->inner->mailbox, rank);
    wh_deadline deadline = b->told[rank] ? b->deadline : wh_deadline_in_ms(0);
    wherry_status status = wh_group_send(b->inner, rank, WH_TAG_BARRIER, bytes, sizeof(bytes), deadline, error);
    /* A rank that has not joined yet is told when it joins. */
    return status == WHERRY_TIMED_OUT && !b->told[rank] ? WHERRY_OK : status;
}

/**
 * Tells all ranks that were not told yet. Does not wait for a rank that has not joined, because
 * another rank could be lost in the meantime. A lost rank is not an error here, because it may have
 * arrived before it was lost.
 * @return WHERRY_OK, or the first error other than WHERRY_PEER_LOST, after trying all ranks.
 */
static wherry_status tell_all(const barrier *b, wherry_error *error) {
    wherry_status first = WHERRY_OK;
    for (int32_t rank = 0; rank < b->inner->size; rank++) {
        wherry_error latest;
        bool due = rank != b->inner->rank && !b->told[rank];
        wherry_status status = due ? tell(b, rank, &latest) : WHERRY_OK;
        if (status != WHERRY_OK && status != WHERRY_PEER_LOST && first == WHERRY_OK) {
            first = status;
            if (error) {
                *error = latest;
            }
        }
    }
    return first;
}

/**
 * Records the number that a rank sent. A rank that has restarted is told again that this one has
 * arrived.
 */
static void note(const barrier *b, wh_message *message) {
    if (message->size != 8) {
        wh_log(WHERRY_LOG_WARN, "rank %d sent a barrier message of %zu bytes instead of 8; it is ignored",
               (int)message->rank, message->size);
    } else {
        wh_barrier_mark *mark = b->group->marks + message->rank;
        uint64_t number = wh_load_be64(message->bytes);
        if (mark->incarnation != message->incarnation || mark->number < number) {
            *mark = (wh_barrier_mark){message->incarnation, number};
        }
        wherry_error error;
        if (message->incarnation > b->told[message->rank] && tell(b, message->rank, &error) != WHERRY_OK) {
            wh_log(WHERRY_LOG_INFO, "could not send a barrier message to rank %d: %s", (int)message->rank,
                   error.message);
        }
    }
    wh_message_clear(message);
}

/** Checks whether a rank that has not arrived was lost. */
static wherry_status look_for_losses(const barrier *b, wherry_error *error) {
    for (int32_t rank = 0; rank < b->inner->size; rank++) {
        wh_message message;
        wherry_status status = WHERRY_TIMED_OUT;
        wherry_error latest;
        if (!has_come(b, rank)) {
            status = wh_group_receive(b->inner, rank, WH_TAG_BARRIER, wh_deadline_in_ms(0), &message, &latest);
        }
        if (status == WHERRY_OK) {
            note(b, &message);
        } else if (status != WHERRY_TIMED_OUT) {
            if (error) {
                *error = latest;
            }
            return status;
        }
    }
    return WHERRY_OK;
}

static wherry_status wait_for_all(const barrier *b, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_wait_log wait = {0};
    while (status == WHERRY_OK && first_absent(b) < b->inner->size) {
        wh_message message;
        wherry_error latest;
        bool late = wh_deadline_passed(b->deadline);
        wh_deadline quiet = wh_deadline_earlier(b->deadline, wh_deadline_in_ms(WH_BARRIER_QUIET_MS));
        status = wh_group_receive(b->inner, WHERRY_ANY_RANK, WH_TAG_BARRIER, quiet, &message, &latest);
        if (status == WHERRY_OK) {
            note(b, &message);
        } else if (status == WHERRY_TIMED_OUT) {
            status = look_for_losses(b, error);
            if (status == WHERRY_OK) {
                status = tell_all(b, error);
            }
            int32_t absent = first_absent(b);
            if (status == WHERRY_OK && late && absent < b->inner->size) {
                status = fail_absent(b, absent, error);
            } else if (wh_wait_is_long(&wait) && absent < b->inner->size) {
                wh_log_wait("", "rank %d at barrier %llu", (int)absent, (unsigned long long)b->number);
            }
        } else if (error) {
            *error = latest;
        }
    }
    return status;
}

wherry_status wherry_group_barrier(wherry_group *group, uint64_t number, uint32_t timeout_ms, wherry_error *error) {
    if (!group) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group is NULL");
    }
    WH_TRY(wh_group_permit(group->inner, error));
    if (atomic_flag_test_and_set(&group->in_barrier)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "another thread is already in a barrier of this group; wait until it has finished");
    }
    wh_group *inner = group->inner;
    if (inner->ops->barrier) {
        wherry_status done = inner->ops->barrier(inner, number, wh_deadline_in_ms(timeout_ms), error);
        atomic_flag_clear(&group->in_barrier);
        return done;
    }
    barrier b = {group, inner, number, wh_deadline_in_ms(timeout_ms), NULL};
    b.told = wh_alloc_zeroed((size_t)inner->size, sizeof(*b.told));
    wherry_status status = b.told ? tell_all(&b, error) : wh_fail_memory(error, "a barrier");
    if (status == WHERRY_OK) {
        status = wait_for_all(&b, error);
    }
    wh_free(b.told);
    atomic_flag_clear(&group->in_barrier);
    return status;
}
