/*
 * The barrier: every rank tells every other how far it has come, and waits until all have come as
 * far.
 */
#include "api/group_handle.h"
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "group/mailbox.h"

/** How long nothing may come before it is looked whether somebody was lost. */
enum { QUIET_MS = 20 };

/** One call. */
typedef struct barrier {
    wherry_group *group;
    wh_group *inner;
    uint64_t number;
    wh_deadline deadline;
    /** Which incarnation of each rank was told that this one has come; 0: it was not known. */
    uint64_t *told;
} barrier;

/** Whether a rank has come: its present incarnation, or one that came and was lost afterwards. */
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
                                "timed out at barrier %llu: rank %d has not come; see what keeps it, and call again",
                                (unsigned long long)b->number, (int)rank));
}

/**
 * Which incarnation is there is asked before the message goes out, so that a later one is told
 * again, rather than never.
 */
static wherry_status tell(const barrier *b, int32_t rank, wherry_error *error) {
    uint8_t bytes[8];
    wh_store_be64(bytes, b->number);
    b->told[rank] = wh_mailbox_incarnation(b->inner->mailbox, rank);
    wh_deadline deadline = b->told[rank] ? b->deadline : wh_deadline_in_ms(0);
    wherry_status status = wh_group_send(b->inner, rank, WH_TAG_BARRIER, bytes, sizeof(bytes), deadline, error);
    /* it is told when it comes */
    return status == WHERRY_TIMED_OUT && !b->told[rank] ? WHERRY_OK : status;
}

/**
 * Tells all that have not been told. Nobody is waited for who is not there: a rank that is must not
 * die unnoticed meanwhile. One that is lost is no error yet: it may have come before.
 * @return the first other error, when all were tried.
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
 * Notes how far a rank says that it has come; one that has started anew knows nothing of this one
 * yet.
 */
static void note(const barrier *b, wh_message *message) {
    if (message->size != 8) {
        wh_log(WHERRY_LOG_WARN, "rank %d sent %zu bytes to a barrier, which takes 8; they are dropped",
               (int)message->rank, message->size);
    } else {
        wh_barrier_mark *mark = b->group->marks + message->rank;
        uint64_t number = wh_load_be64(message->bytes);
        if (mark->incarnation != message->incarnation || mark->number < number) {
            *mark = (wh_barrier_mark){message->incarnation, number};
        }
        wherry_error error;
        if (message->incarnation > b->told[message->rank] && tell(b, message->rank, &error) != WHERRY_OK) {
            wh_log(WHERRY_LOG_INFO, "rank %d could not be told of a barrier: %s", (int)message->rank, error.message);
        }
    }
    wh_message_clear(message);
}

/** Looks whether one of the ranks that have not come was lost. */
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
    while (status == WHERRY_OK && first_absent(b) < b->inner->size) {
        wh_message message;
        wherry_error latest;
        bool late = wh_deadline_passed(b->deadline);
        wh_deadline quiet = wh_deadline_earlier(b->deadline, wh_deadline_in_ms(QUIET_MS));
        status = wh_group_receive(b->inner, WH_ANY_RANK, WH_TAG_BARRIER, quiet, &message, &latest);
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
    wherry_status status = wh_group_permit(group->inner, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (atomic_flag_test_and_set(&group->in_barrier)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "another thread of this process is in a barrier of the group; let one thread do that");
    }
    wh_group *inner = group->inner;
    barrier b = {group, inner, number, wh_deadline_in_ms(timeout_ms), NULL};
    b.told = wh_alloc_zeroed((size_t)inner->size, sizeof(*b.told));
    if (!b.told) {
        status = wh_fail_memory(error, "a barrier");
    } else {
        status = tell_all(&b, error);
        status = status == WHERRY_OK ? wait_for_all(&b, error) : status;
    }
    wh_free(b.told);
    atomic_flag_clear(&group->in_barrier);
    return status;
}
