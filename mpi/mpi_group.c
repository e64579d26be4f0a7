/* Making a group over MPI, leaving it, and checking which threads may call MPI. */
#include <wherry/mpi.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_context.h"

enum {
    /** How long leaving a group waits for the last messages of the other ranks. */
    LEAVE_MS = 1000,
    MAGIC = 0x57484d50,
};

/* ---- errors ---- */

static void fill(wherry_error *error, wherry_status status, int32_t rank, const char *format, va_list arguments) {
    *error = (wherry_error){.status = status, .rank = rank, .offset = UINT64_MAX};
    /* A false alarm. The analyzer raises it if the file is compiled more than once. */
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(error->message, sizeof(error->message), format, arguments);
}

wherry_status wh_mpi_fail(wherry_error *error, wherry_status status, int32_t rank, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, rank, format, arguments);
        va_end(arguments);
    }
    return status;
}

/** Maps MPI's error class to a status. */
static wherry_status status_of(int class) {
    switch (class) {
    case MPI_ERR_TRUNCATE:
        return WHERRY_MALFORMED;
    case MPI_ERR_NO_MEM:
        return WHERRY_NO_MEMORY;
#ifdef MPIX_ERR_PROC_FAILED
    case MPIX_ERR_PROC_FAILED:
        return WHERRY_PEER_LOST;
#endif
#ifdef MPIX_ERR_REVOKED
    case MPIX_ERR_REVOKED:
        return WHERRY_CLOSED;
#endif
    default:
        return WHERRY_SYSTEM;
    }
}

wherry_status wh_mpi_fail_code(wherry_error *error, int code, int32_t rank, const char *function) {
    char text[MPI_MAX_ERROR_STRING] = "";
    char where[32] = "";
    int length = 0;
    int class = MPI_ERR_OTHER;
    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &length);
    if (rank >= 0) {
        snprintf(where, sizeof(where), "rank %d: ", (int)rank);
    }
    return wh_mpi_fail(error, status_of(class), rank, "%s%s failed: %.400s", where, function, text);
}

/* ---- which threads may call MPI ---- */

static const char *level_name(int level) {
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

static bool is_main_only(int level) {
    return level == MPI_THREAD_SINGLE || level == MPI_THREAD_FUNNELED;
}

/** Checks that this thread may call MPI. MPI must be initialized. */
static wherry_status check_thread(int level, wherry_error *error) {
    int main_thread = 1;
    if (is_main_only(level)) {
        MPI_Is_thread_main(&main_thread);
    }
    return main_thread
               ? WHERRY_OK
               : wh_mpi_fail(
                     error, WHERRY_UNSUPPORTED, -1,
                     "this is not the main thread, and at the thread level %s only the main thread may call MPI: call "
                     "from the main thread, or initialize MPI with MPI_Init_thread and MPI_THREAD_MULTIPLE",
                     level_name(level));
}

wherry_status wh_mpi_permit(void *context, wherry_error *error) {
    wh_mpi *mpi = context;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) {
        return wh_mpi_fail(error, WHERRY_CLOSED, -1,
                           "MPI_Finalize has ended the group; leave all groups before you call MPI_Finalize");
    }
    wherry_status status = check_thread(mpi->level, error);
    if (status == WHERRY_OK) {
        pthread_mutex_lock(&mpi->lock);
        status = mpi->broken[0] ? wh_mpi_fail(error, WHERRY_CLOSED, -1, "%s", mpi->broken) : WHERRY_OK;
        pthread_mutex_unlock(&mpi->lock);
    }
    return status;
}

/* ---- making a group, and leaving it ---- */

void wherry_mpi_options_init(wherry_mpi_options *options) {
    *options = (wherry_mpi_options){.struct_size = sizeof(*options)};
}

/** Frees a group. MPI must not use the memory of the group any more. */
static void dispose(wh_mpi *mpi) {
    wh_mpi_free_messages(mpi);
    wh_mpi_free_blocks(mpi);
    pthread_mutex_destroy(&mpi->lock);
    wh_mpi_alarm_destroy(&mpi->alarm);
    free(mpi->waiting);
    free(mpi->left);
    free(mpi);
}

/*
 * Groups that were left, but whose ranks have not all sent their last message (invariant 5 of
 * mpi_context.h). They are checked whenever a group is made or left. Groups that are still in the
 * list when MPI ends are not freed.
 */
static pthread_mutex_t unsettled_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_mpi *unsettled;

/**
 * Frees the groups that are settled. Call it only on a thread that may call MPI. @return true if
 * all groups are settled, except those that can never be settled.
 */
static bool sweep(void) {
    bool all = true;
    pthread_mutex_lock(&unsettled_lock);
    for (wh_mpi **at = &unsettled; *at;) {
        wh_mpi *mpi = *at;
        if (!mpi->said_last) {
            mpi->said_last = true;
            wh_mpi_say_last(mpi);
        }
        if (wh_mpi_settle(mpi) && !mpi->broken[0]) {
            *at = mpi->next;
            MPI_Comm_free(&mpi->communicator);
            dispose(mpi);
        } else {
            all = all && mpi->broken[0];
            at = &mpi->next;
        }
    }
    pthread_mutex_unlock(&unsettled_lock);
    return all;
}

static void destroy(void *context) {
    wh_mpi *mpi = context;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) {
        dispose(mpi);
        return;
    }
    pthread_mutex_lock(&unsettled_lock);
    mpi->next = unsettled;
    unsettled = mpi;
    pthread_mutex_unlock(&unsettled_lock);
    if (check_thread(mpi->level, NULL) == WHERRY_OK) {
        wh_mpi_wait wait;
        wh_mpi_wait_begin(&wait, NULL, LEAVE_MS, 1000, 1000);
        while (!sweep() && wh_mpi_wait_on(&wait)) {
        }
    }
}

/** Checks that this thread can call MPI with the communicator. */
static wherry_status check_communicator(MPI_Comm communicator, int *level_p, wherry_error *error) {
    int flag = 0;
    MPI_Initialized(&flag);
    if (!flag) {
        return wh_mpi_fail(error, WHERRY_INVALID_ARGUMENT, -1, "MPI is not initialized; call MPI_Init_thread first");
    }
    MPI_Finalized(&flag);
    if (flag) {
        return wh_mpi_fail(error, WHERRY_INVALID_ARGUMENT, -1,
                           "MPI is already finalized; make groups before MPI_Finalize");
    }
    MPI_Query_thread(level_p);
    wherry_status status = check_thread(*level_p, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (communicator == MPI_COMM_NULL) {
        return wh_mpi_fail(error, WHERRY_INVALID_ARGUMENT, -1, "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(communicator, &flag);
    if (flag) {
        return wh_mpi_fail(error, WHERRY_INVALID_ARGUMENT, -1,
                           "the communicator is an inter-communicator; merge it with MPI_Intercomm_merge");
    }
    return WHERRY_OK;
}

static wherry_status check_options(const wherry_mpi_options *options, int level, wherry_error *error) {
    if ((options->flags & WHERRY_MPI_BACKGROUND) && level != MPI_THREAD_MULTIPLE) {
        return wh_mpi_fail(error, WHERRY_UNSUPPORTED, -1,
                           "WHERRY_MPI_BACKGROUND needs a thread of its own, which MPI does not allow at the thread "
                           "level %s; initialize MPI with MPI_Init_thread and MPI_THREAD_MULTIPLE, or omit the flag",
                           level_name(level));
    }
    return WHERRY_OK;
}

static wh_mpi *create(MPI_Comm communicator, int level) {
    wh_mpi *mpi = calloc(1, sizeof(*mpi));
    if (!mpi) {
        return NULL;
    }
    MPI_Comm_rank(communicator, &mpi->rank);
    MPI_Comm_size(communicator, &mpi->size);
    mpi->level = level;
    mpi->missing = mpi->size - 1;
    mpi->waiting = calloc((size_t)mpi->size, sizeof(*mpi->waiting));
    mpi->left = calloc((size_t)mpi->size, sizeof(*mpi->left));
    pthread_mutex_init(&mpi->lock, NULL);
    wh_mpi_alarm_init(&mpi->alarm);
    if (!mpi->waiting || !mpi->left) {
        dispose(mpi);
        return NULL;
    }
    return mpi;
}

/**
 * The message that each rank sends to all others before the communicator is duplicated. So either
 * all ranks continue or none does.
 */
typedef struct greeting {
    uint32_t magic;
    uint32_t version;
    uint64_t piece;
    int32_t status; /**< WHERRY_OK, or the error that the rank already has. */
} greeting;

static wherry_status meet(MPI_Comm communicator, wherry_status own, wherry_error *error) {
    int size = 0;
    MPI_Comm_size(communicator, &size);
    greeting mine = {MAGIC, WH_MPI_VERSION, WH_MPI_PIECE, own};
    greeting *all = calloc((size_t)size, sizeof(*all));
    if (!all) {
        own = wh_mpi_fail(error, WHERRY_NO_MEMORY, -1, "out of memory for a group of %d ranks", size);
        mine.status = own;
    }
    /*
     * First exchange the worst status. This needs no memory, so all ranks can take part. Then find
     * out which rank has that status.
     */
    int32_t worst = 0;
    int code = MPI_Allreduce(&mine.status, &worst, 1, MPI_INT32_T, MPI_MIN, communicator);
    if (code == MPI_SUCCESS && worst != WHERRY_NO_MEMORY) {
        code = MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE, communicator);
    }
    if (code != MPI_SUCCESS && own == WHERRY_OK) {
        own = wh_mpi_fail_code(error, code, -1, "the exchange between the ranks");
    }
    if (own == WHERRY_OK && worst == WHERRY_NO_MEMORY) {
        own = wh_mpi_fail(error, WHERRY_ABORTED, -1, "another rank is out of memory for the group");
    }
    for (int i = 0; own == WHERRY_OK && all && i < size; i++) {
        if (all[i].magic != MAGIC || all[i].version != WH_MPI_VERSION || all[i].piece != WH_MPI_PIECE) {
            own = wh_mpi_fail(error, WHERRY_BAD_VERSION, i,
                              "rank %d has version %u of libwherry-mpi, but this rank has version %d; use the same "
                              "version on all ranks",
                              i, (unsigned)all[i].version, WH_MPI_VERSION);
        } else if (all[i].status != WHERRY_OK) {
            own = wh_mpi_fail(error, WHERRY_ABORTED, i, "rank %d cannot make the group: %s; see the error of that rank",
                              i, wherry_status_text((wherry_status)all[i].status));
        }
    }
    free(all);
    return own;
}

static void fill_table(const wh_mpi *mpi, uint32_t flags, wherry_group_ops *ops) {
    wherry_group_ops_init(ops);
    ops->flags = WHERRY_GROUP_OPS_FIXED |
                 (mpi->level == MPI_THREAD_MULTIPLE ? (uint32_t)WHERRY_GROUP_OPS_CONCURRENT : 0) |
                 (flags & WHERRY_MPI_BACKGROUND ? (uint32_t)WHERRY_GROUP_OPS_BACKGROUND : 0);
    ops->name = "mpi";
    ops->rank = mpi->rank;
    ops->size = mpi->size;
    ops->send = wh_mpi_send;
    ops->receive = wh_mpi_receive;
    ops->destroy = destroy;
    ops->put = wh_mpi_put;
    ops->get = wh_mpi_get;
    ops->finish = wh_mpi_finish;
    ops->abandon = wh_mpi_abandon;
    ops->permit = wh_mpi_permit;
    ops->wake = wh_mpi_wake;
    ops->part_bytes = WH_MPI_PART;
    ops->put_runs = wh_mpi_put_runs;
}

wherry_status wh_mpi_open(MPI_Comm communicator, const wherry_mpi_options *options, wherry_group_ops *ops_p,
                          wh_mpi **context_p, wherry_error *error) {
    int level = MPI_THREAD_SINGLE;
    wherry_status status = check_communicator(communicator, &level, error);
    if (status != WHERRY_OK) {
        return status; /* This rank cannot tell the other ranks about the error. */
    }
    sweep();
    status = check_options(options, level, error);
    wh_mpi *mpi = status == WHERRY_OK ? create(communicator, level) : NULL;
    if (status == WHERRY_OK && !mpi) {
        status = wh_mpi_fail(error, WHERRY_NO_MEMORY, -1, "out of memory for a group over MPI");
    }
    status = meet(communicator, status, error);
    if (status == WHERRY_OK && mpi) {
        int code = MPI_Comm_dup(communicator, &mpi->communicator);
        status = code == MPI_SUCCESS ? WHERRY_OK : wh_mpi_fail_code(error, code, -1, "MPI_Comm_dup");
    }
    if (status != WHERRY_OK || !mpi) {
        if (mpi) {
            dispose(mpi);
        }
        return status;
    }
    MPI_Comm_set_errhandler(mpi->communicator, MPI_ERRORS_RETURN);
    fill_table(mpi, options->flags, ops_p);
    *context_p = mpi;
    return WHERRY_OK;
}

wherry_status wherry_group_from_mpi(MPI_Comm communicator, const wherry_mpi_options *options, wherry_group **group_p,
                                    wherry_error *error) {
    wherry_mpi_options chosen;
    wherry_mpi_options_init(&chosen);
    bool taken = !options || (options->struct_size >= sizeof(uint32_t) && options->struct_size <= sizeof(chosen));
    if (taken && options) {
        memcpy(&chosen, options, options->struct_size);
    }
    if (!group_p || !taken || (chosen.flags & ~(uint32_t)WHERRY_MPI_FLAGS)) {
        return wh_mpi_fail(
            error, WHERRY_INVALID_ARGUMENT, -1,
            "group_p is NULL, or the options were not filled by wherry_mpi_options_init, or have an unknown "
            "flag");
    }
    wherry_group_ops ops;
    wh_mpi *mpi = NULL;
    wherry_status status = wh_mpi_open(communicator, &chosen, &ops, &mpi, error);
    if (!mpi) {
        return status;
    }
    status = wherry_group_from_ops(&ops, mpi, group_p, error);
    if (status != WHERRY_OK) {
        destroy(mpi);
    }
    return status;
}
