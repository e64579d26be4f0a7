#include "lane/nccl/nccl_comm.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "memory/cuda.h"

#define SECOND UINT64_C(1000000000)
#define BIT(state) (1U << (state))

/**
 * Maximum number of NCCL's thread blocks on the device. 8 are enough for a network, and more would
 * need more memory.
 */
enum { BLOCKS = 8 };

/* ---- the library ---- */

static wh_nccl_library library;
static bool loaded;
static wherry_error load_failure;

static bool find_calls(void *file, const char *name) {
#define WH_X(member, symbol, result, arguments)                                                                        \
    *(void **)&library.member = dlsym(file, #symbol);                                                                  \
    if (!library.member) {                                                                                             \
        wh_fail(&load_failure, WHERRY_UNSUPPORTED, "%s is too old: it has no " #symbol "; install NCCL 2.18 or newer", \
                name);                                                                                                 \
        return false;                                                                                                  \
    }
    WH_NCCL_CALLS(WH_X)
#undef WH_X
    return true;
}

static void load(void) {
    const char *name = getenv("WHERRY_NCCL_LIBRARY");
    name = name && *name ? name : "libnccl.so.2";
    /*
     * If the process has already loaded NCCL, for example with torch, use that copy. A second copy
     * would waste device memory.
     */
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    file = file ? file : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
        const char *why = dlerror();
        wh_fail(&load_failure, WHERRY_UNSUPPORTED,
                "cannot load NCCL: %s; install NCCL 2.18 or newer, or set WHERRY_NCCL_LIBRARY to its libnccl.so.2",
                why ? why : name);
        return;
    }
    if (!find_calls(file, name)) {
        return;
    }
    int result = library.get_version(&library.version);
    if (result != WH_NCCL_OK) {
        wh_nccl_fail(&load_failure, result, NULL, "cannot get the version of NCCL");
        load_failure.status = WHERRY_UNSUPPORTED;
        return;
    }
    if (library.version < WH_NCCL_OLDEST) {
        wh_fail(&load_failure, WHERRY_UNSUPPORTED, "%s is version %d; version %d or newer is needed", name,
                library.version, WH_NCCL_OLDEST);
        return;
    }
    loaded = true;
}

const wh_nccl_library *wh_nccl_find(wherry_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!loaded && error) {
        *error = load_failure;
    }
    return loaded ? &library : NULL;
}

wherry_status wh_nccl_fail(wherry_error *error, int result, wh_nccl_handle handle, const char *doing) {
    const char *text = library.error_text(result);
    const char *more = handle ? library.last_error(handle) : NULL;
    more = more ? more : "";
    return wh_fail(error, result == WH_NCCL_REMOTE_ERROR ? WHERRY_PEER_LOST : WHERRY_SYSTEM, "%s: NCCL: %s (%d)%s%.*s",
                   doing, text ? text : "unknown error", result, *more ? ": " : "", (int)strcspn(more, "\n"), more);
}

/* ---- creating, polling and aborting one communicator ---- */

static int init_on_stream(void *context, void *stream) {
    wh_nccl_comm *comm = context;
    wh_nccl_config config = {
        .size = sizeof(config),
        .magic = (unsigned)WH_NCCL_MAGIC,
        .version = WH_NCCL_CONFIG_VERSION,
        .blocking = 0,
        .cluster_size = INT_MIN,
        .min_blocks = INT_MIN,
        .max_blocks = BLOCKS,
        .split_share = INT_MIN,
        .traffic_class = INT_MIN,
    };
    (void)stream;
    return wh_nccl_find(NULL)->init(&comm->handle, 2, comm->unique, comm->pair.is_source, &config);
}

wherry_status wh_nccl_begin(wh_nccl_comm *comm, wherry_error *error) {
    int answer = WH_NCCL_OK;
    wherry_status status = wh_cuda_queue_create(comm->pair.device, &comm->queue, error);
    WH_THEN(status, wh_cuda_queue_with_stream(comm->queue, init_on_stream, comm, &answer, error));
    if (status == WHERRY_OK && answer != WH_NCCL_OK && answer != WH_NCCL_IN_PROGRESS) {
        status = wh_nccl_fail(error, answer, NULL, "cannot create an NCCL communicator");
    }
    if (status != WHERRY_OK) {
        wh_nccl_abort(comm);
    }
    return status;
}

/** Returns NCCL's state of the communicator: WH_NCCL_OK, WH_NCCL_IN_PROGRESS or an error. */
static int poll_state(const wh_nccl_comm *comm) {
    int result = WH_NCCL_OK;
    int answer = wh_nccl_find(NULL)->async_error(comm->handle, &result);
    return answer == WH_NCCL_OK ? result : answer;
}

wherry_status wh_nccl_await(const wh_nccl_comm *comm, const wh_stop *stop, wh_deadline deadline, const char *what,
                            wherry_error *error) {
    wh_cuda_backoff backoff = {0};
    for (;;) {
        int result = poll_state(comm);
        if (result != WH_NCCL_IN_PROGRESS) {
            return result == WH_NCCL_OK ? WHERRY_OK : wh_nccl_fail(error, result, comm->handle, what);
        }
        WH_TRY(wh_cuda_back_off(&backoff, stop, deadline, what, error));
    }
}

wherry_status wh_nccl_check(const wh_nccl_comm *comm, wherry_error *error) {
    int result = poll_state(comm);
    return result == WH_NCCL_OK || result == WH_NCCL_IN_PROGRESS
               ? WHERRY_OK
               : wh_nccl_fail(error, result, comm->handle, "the NCCL communicator has failed");
}

static int abort_on_stream(void *context, void *stream) {
    (void)stream;
    return wh_nccl_find(NULL)->abort(context);
}

void wh_nccl_abort(wh_nccl_comm *comm) {
    int answer;
    if (comm->handle &&
        wh_cuda_queue_with_stream(comm->queue, abort_on_stream, comm->handle, &answer, NULL) != WHERRY_OK) {
        /* The device has failed, but NCCL must still end its threads. */
        abort_on_stream(comm->handle, NULL);
    }
    comm->handle = NULL;
    wh_cuda_queue_destroy(comm->queue); /* Waits until the device is done. */
    comm->queue = NULL;
}

/* ---- the communicators of this process ---- */

static wh_nccl_comm *comms; /**< A list of all communicators, newest first. */

/** A child of fork() can neither use nor destroy the communicators of its parent. */
static void forget_parent(void) {
    comms = NULL;
}

static wh_fork_lock lock = WH_FORK_LOCK(.in_child = forget_parent);

wherry_status wh_nccl_process(uint8_t process[WH_NCCL_PROCESS_BYTES], wherry_error *error) {
    const uint8_t *nonce;
    WH_TRY(wh_process_nonce(&nonce, error));
    memcpy(process, nonce, WH_NCCL_PROCESS_BYTES);
    return WHERRY_OK;
}

/**
 * True if the communicator connects the same two ranks in the same direction. The other process and
 * the local device may differ.
 */
static bool is_between(const wh_nccl_comm *comm, const wh_nccl_pair *pair) {
    return comm->pair.is_source == pair->is_source && comm->pair.own == pair->own && comm->pair.rank == pair->rank;
}

static bool is_of(const wh_nccl_comm *comm, const wh_nccl_pair *pair) {
    return is_between(comm, pair) && comm->pair.device == pair->device &&
           memcmp(comm->pair.process, pair->process, sizeof(pair->process)) == 0;
}

static bool is_in(const wh_nccl_comm *comm, unsigned states) {
    return states >> comm->state & 1;
}

/* ---- the list of communicators: the caller holds the lock ---- */

static void add(wh_nccl_comm *comm, wh_nccl_state state) {
    comm->state = state;
    comm->since = wh_clock_now();
    comm->next = comms;
    comms = comm;
}

static void unlink_comm(wh_nccl_comm *comm) {
    wh_nccl_comm **at = &comms;
    while (*at && *at != comm) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = comm->next;
    }
    comm->next = NULL;
}

/**
 * Removes the communicators that `unwanted` selects. The caller passes them to destroy_all after it
 * has released the lock, because aborting takes time.
 */
static wh_nccl_comm *take_out(bool (*unwanted)(const wh_nccl_comm *comm, const void *context), const void *context) {
    wh_nccl_comm *out = NULL;
    for (wh_nccl_comm **at = &comms; *at;) {
        wh_nccl_comm *comm = *at;
        if (unwanted(comm, context)) {
            *at = comm->next;
            comm->next = out;
            out = comm;
        } else {
            at = &comm->next;
        }
    }
    return out;
}

static void destroy_all(wh_nccl_comm *list) {
    for (wh_nccl_comm *comm = list, *next; comm; comm = next) {
        next = comm->next;
        wh_nccl_abort(comm);
        wh_free(comm);
    }
}

/**
 * True if the receiver did not use the communicator in time, if its failure is old, or if NCCL
 * reports an error.
 */
static bool is_stale(const wh_nccl_comm *comm, const void *context) {
    const uint64_t *now = context;
    uint64_t age = *now - comm->since;
    switch (comm->state) {
    case WH_NCCL_MEETING:
        return age > WH_NCCL_MEETING_S * SECOND || wh_nccl_check(comm, NULL) != WHERRY_OK;
    case WH_NCCL_IDLE:
        return wh_nccl_check(comm, NULL) != WHERRY_OK;
    case WH_NCCL_FAILED:
        return age > WH_NCCL_FAILED_S * SECOND;
    default:
        return false;
    }
}

static wh_nccl_comm *take_stale(void) {
    uint64_t now = wh_clock_now();
    return take_out(is_stale, &now);
}

/* ---- finding ---- */

/**
 * Finds the newest communicator of a pair in one of these states (a bit mask). If `id` is NULL, any
 * id matches. If `tag` is NULL, any tag matches. The caller holds the lock.
 */
static wh_nccl_comm *find(const wh_nccl_pair *pair, unsigned states, const uint64_t *id, const uint64_t *tag) {
    wh_nccl_comm *comm = comms;
    while (comm &&
           !(is_of(comm, pair) && is_in(comm, states) && (!id || comm->id == *id) && (!tag || comm->tag == *tag))) {
        comm = comm->next;
    }
    return comm;
}

/** Like find, but takes the lock and makes the communicator BUSY. */
static wh_nccl_comm *take(const wh_nccl_pair *pair, unsigned states, const uint64_t *id, const uint64_t *tag) {
    wh_fork_lock_take(&lock);
    wh_nccl_comm *comm = find(pair, states, id, tag);
    if (comm) {
        comm->state = WH_NCCL_BUSY;
    }
    wh_fork_lock_give(&lock);
    return comm;
}

wh_nccl_comm *wh_nccl_take(const wh_nccl_pair *pair, uint64_t id, unsigned states) {
    return take(pair, states, &id, NULL);
}

wh_nccl_comm *wh_nccl_take_asked(const wh_nccl_pair *pair, uint64_t tag) {
    return take(pair, BIT(WH_NCCL_ASKED), NULL, &tag);
}

bool wh_nccl_failed_recently(const wh_nccl_pair *pair, wherry_error *error) {
    wh_fork_lock_take(&lock);
    wh_nccl_comm *stale = take_stale();
    const wh_nccl_comm *comm = find(pair, BIT(WH_NCCL_FAILED), NULL, NULL);
    if (comm) {
        wh_fail(error, WHERRY_UNSUPPORTED,
                "the nccl lane failed %llu s ago and is tried again only %d s after a failure: %s",
                (unsigned long long)((wh_clock_now() - comm->since) / SECOND), WH_NCCL_FAILED_S, comm->reason.message);
    }
    wh_fork_lock_give(&lock);
    destroy_all(stale);
    return comm != NULL;
}

size_t wh_nccl_kept(const wh_nccl_pair *pair, uint64_t *ids, size_t most) {
    size_t count = 0;
    wh_fork_lock_take(&lock);
    wh_nccl_comm *stale = take_stale();
    for (const wh_nccl_comm *comm = comms; comm && count < most; comm = comm->next) {
        if (comm->state == WH_NCCL_IDLE && is_between(comm, pair) && comm->pair.device == pair->device) {
            ids[count++] = comm->id;
        }
    }
    wh_fork_lock_give(&lock);
    destroy_all(stale);
    return count;
}

/* ---- creating communicators ---- */

/** Allocates an entry that is not in the list. @return NULL if out of memory. */
static wh_nccl_comm *new_comm(const wh_nccl_pair *pair) {
    wh_nccl_comm *comm = wh_alloc_zeroed(1, sizeof(*comm));
    if (comm) {
        comm->pair = *pair;
    }
    return comm;
}

/**
 * Creates an entry with a new unique id of NCCL and a random id. @return NULL, with the reason in
 * `error`, if it fails.
 */
static wh_nccl_comm *new_asked(const wh_nccl_pair *pair, wherry_error *error) {
    wh_nccl_comm *comm = new_comm(pair);
    if (!comm) {
        wh_fail_memory(error, "a communicator");
        return NULL;
    }
    int result = wh_nccl_find(NULL)->get_unique(&comm->unique);
    if (result != WH_NCCL_OK) {
        wh_nccl_fail(error, result, NULL, "cannot get a unique id from NCCL");
    } else if (wh_random_fill(&comm->id, sizeof(comm->id), error) == WHERRY_OK) {
        return comm;
    }
    wh_free(comm);
    return NULL;
}

/**
 * Returns a communicator that a transfer can request from the source. It is a new one, or one that
 * an earlier transfer has requested without getting an answer. The caller holds the lock.
 * @return NULL, with the reason in `error`, if there is no such communicator.
 */
static wh_nccl_comm *take_unanswered(const wh_nccl_pair *pair, wherry_error *error) {
    /* The transfer of a communicator in the state ASKED still waits, or has failed. */
    wh_nccl_comm *comm = find(pair, BIT(WH_NCCL_ASKED), NULL, NULL);
    if (!comm) {
        return new_asked(pair, error);
    }
    if (wh_clock_now() - comm->since < WH_NCCL_ASKED_S * SECOND) {
        wh_fail(error, WHERRY_UNSUPPORTED, "another transfer is waiting for an NCCL communicator with rank %d",
                (int)pair->rank);
        return NULL;
    }
    unlink_comm(comm);
    return comm;
}

wherry_status wh_nccl_ask(const wh_nccl_pair *pair, uint64_t tag, wh_nccl_comm *comm_p, wherry_error *error) {
    wh_fork_lock_take(&lock);
    wh_nccl_comm *comm = take_unanswered(pair, error);
    if (comm) {
        comm->tag = tag;
        comm->pair = *pair;
        add(comm, WH_NCCL_ASKED);
        *comm_p = *comm;
    }
    wh_fork_lock_give(&lock);
    return comm ? WHERRY_OK : error->status;
}

/** Checks that a receiver may ask for another communicator. The caller holds the lock. */
static wherry_status check_meeting(uint64_t id, int32_t rank, wherry_error *error) {
    size_t meeting = 0;
    for (const wh_nccl_comm *comm = comms; comm; comm = comm->next) {
        meeting += comm->state == WH_NCCL_MEETING;
        if (comm->pair.is_source && comm->id == id) {
            return wh_fail(error, WHERRY_MALFORMED, "rank %d asked twice for the same NCCL communicator", (int)rank);
        }
    }
    return meeting < WH_NCCL_MEETING_MAX
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT, "%d NCCL communicators are being created, which is the maximum",
                         WH_NCCL_MEETING_MAX);
}

wherry_status wh_nccl_meet(const wh_nccl_pair *pair, uint64_t id, const wh_nccl_unique *unique, wherry_error *error) {
    wh_nccl_comm *comm = NULL;
    wh_fork_lock_take(&lock);
    wh_nccl_comm *stale = take_stale();
    wherry_status status = check_meeting(id, pair->rank, error);
    if (status == WHERRY_OK && (comm = new_comm(pair))) {
        comm->id = id;
        comm->unique = *unique;
        add(comm, WH_NCCL_BUSY);
    }
    wh_fork_lock_give(&lock);
    destroy_all(stale);
    if (!comm) {
        return status == WHERRY_OK ? wh_fail_memory(error, "a communicator") : status;
    }
    status = wh_nccl_begin(comm, error);
    wh_fork_lock_take(&lock);
    if (status == WHERRY_OK) {
        comm->state = WH_NCCL_MEETING;
    } else {
        unlink_comm(comm);
        wh_free(comm);
    }
    wh_fork_lock_give(&lock);
    return status;
}

/* ---- giving back and destroying communicators ---- */

typedef struct dropping {
    const wh_nccl_pair *pair;
    const uint64_t *ids;
    size_t count;
} dropping;

static bool is_dropped(const wh_nccl_comm *comm, const void *context) {
    const dropping *d = context;
    bool earlier =
        is_between(comm, d->pair) && memcmp(comm->pair.process, d->pair->process, sizeof(comm->pair.process)) != 0;
    bool named = false;
    for (size_t i = 0; i < d->count; i++) {
        named = named || d->ids[i] == comm->id;
    }
    return comm->state == WH_NCCL_IDLE && (earlier || (is_of(comm, d->pair) && !named));
}

void wh_nccl_drop(const wh_nccl_pair *pair, const uint64_t *ids, size_t count) {
    dropping d = {pair, ids, count};
    wh_fork_lock_take(&lock);
    wh_nccl_comm *dropped = take_out(is_dropped, &d);
    wh_fork_lock_give(&lock);
    destroy_all(dropped);
}

/**
 * Also matches ranks with the same number in other groups. They lose only cached communicators:
 * their next transfer creates a new one.
 */
static bool is_lost(const wh_nccl_comm *comm, const void *context) {
    const int32_t *rank = context;
    return comm->pair.rank == *rank && is_in(comm, BIT(WH_NCCL_IDLE) | BIT(WH_NCCL_MEETING));
}

void wh_nccl_forget(const wh_group *group, int32_t rank, bool lost) {
    (void)group;
    if (!lost) {
        return;
    }
    wh_fork_lock_take(&lock);
    wh_nccl_comm *out = take_out(is_lost, &rank);
    wh_fork_lock_give(&lock);
    destroy_all(out);
}

/** True if WH_NCCL_KEPT_MAX newer communicators are cached. The caller holds the lock. */
static bool is_beyond(const wh_nccl_comm *comm, const void *context) {
    size_t before = 0;
    (void)context;
    for (const wh_nccl_comm *one = comms; one != comm; one = one->next) {
        before += one->state == WH_NCCL_IDLE;
    }
    return comm->state == WH_NCCL_IDLE && before >= WH_NCCL_KEPT_MAX;
}

void wh_nccl_give(wh_nccl_comm *comm) {
    wh_nccl_comm *beyond = NULL;
    wh_fork_lock_take(&lock);
    unlink_comm(comm);
    if (comm->handle) {
        add(comm, WH_NCCL_IDLE);
        beyond = take_out(is_beyond, NULL);
    } else {
        wh_free(comm);
    }
    wh_fork_lock_give(&lock);
    destroy_all(beyond);
}

void wh_nccl_give_failed(wh_nccl_comm *comm, const wherry_error *reason) {
    wh_nccl_abort(comm);
    wh_fork_lock_take(&lock);
    unlink_comm(comm);
    comm->reason = *reason;
    add(comm, WH_NCCL_FAILED);
    wh_fork_lock_give(&lock);
}

size_t wh_nccl_count(unsigned states) {
    size_t count = 0;
    wh_fork_lock_take(&lock);
    for (const wh_nccl_comm *comm = comms; comm; comm = comm->next) {
        count += is_in(comm, states);
    }
    wh_fork_lock_give(&lock);
    return count;
}

static bool is_not_busy(const wh_nccl_comm *comm, const void *context) {
    (void)context;
    return comm->state != WH_NCCL_BUSY;
}

void wh_nccl_end_all(void) {
    wh_fork_lock_take(&lock);
    wh_nccl_comm *all = take_out(is_not_busy, NULL);
    wh_fork_lock_give(&lock);
    destroy_all(all);
}
