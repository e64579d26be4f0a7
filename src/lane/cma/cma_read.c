/*
 * Reads the source's memory in batches, usually with one system call each. A batch pairs runs of a
 * chunk in the source's memory with runs in the memory of this process.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/cma/cma.h"

enum {
    /**
     * Maximum size of a batch if digests are checked. A batch of this size is still in the CPU
     * cache when it is hashed.
     */
    HASHED_BATCH = 512 << 10,
    /**
     * A gap of unwanted bytes that is shorter than this is read too, because that costs less than
     * splitting the run.
     */
    READ_THROUGH = 2048,
};

/* ---- the process ---- */

wherry_status wh_cma_peer_open(wh_cma_peer *peer, int32_t process, int32_t rank, wherry_error *error) {
    *peer = (wh_cma_peer){.process = process, .rank = rank, .memory = -1};
    peer->pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    if (peer->pidfd >= 0) {
        return WHERRY_OK;
    }
    if (errno == ESRCH) {
        return wh_fail(error, WHERRY_PEER_LOST, "process %d (rank %d) does not exist any more", process, rank);
    }
    wherry_status status = errno == ENOSYS || errno == EPERM ? WHERRY_UNSUPPORTED : WHERRY_SYSTEM;
    return wh_fail_errno(error, status, errno,
                         "cannot open a pidfd for process %d, which is needed to detect that its pid is reused",
                         process);
}

void wh_cma_peer_close(wh_cma_peer *peer) {
    wh_close(peer->pidfd);
    wh_close(peer->memory);
    peer->pidfd = -1;
    peer->memory = -1;
}

static wherry_status fail_lost(const wh_cma_peer *peer, wherry_error *error) {
    return wh_fail_rank(error, peer->rank,
                        wh_fail(error, WHERRY_PEER_LOST, "process %d (rank %d) ended while its memory was being read",
                                peer->process, peer->rank));
}

static wherry_status check_alive(const wh_cma_peer *peer, wherry_error *error) {
    struct pollfd watched = {peer->pidfd, POLLIN, 0};
    int ready;
    do {
        ready = poll(&watched, 1, 0);
    } while (ready < 0 && errno == EINTR);
    return ready == 0 ? WHERRY_OK : fail_lost(peer, error);
}

/** Removes bytes from the front of a list. */
static void cut(struct iovec **items, size_t *count, size_t bytes) {
    while (bytes > 0) {
        size_t part = wh_min(bytes, (*items)->iov_len);
        (*items)->iov_base = (char *)(*items)->iov_base + part;
        (*items)->iov_len -= part;
        bytes -= part;
        if ((*items)->iov_len == 0) {
            (*items)++;
            (*count)--;
        }
    }
}

/**
 * Reads once from the front of the batch.
 * @return the number of bytes; 0 if the process has ended; -1 with errno if the read failed.
 */
static ssize_t read_front(const wh_cma_peer *peer, const wh_cma_batch *batch) {
    if (peer->memory >= 0) {
        size_t length = wh_min(batch->local->iov_len, batch->remote->iov_len);
        ssize_t got = pread(peer->memory, batch->local->iov_base, length, (off_t)(uintptr_t)batch->remote->iov_base);
        if (got < 0 && errno == EIO) {
            errno = EFAULT; /* the same errno as from process_vm_readv */
        }
        return got;
    }
    return process_vm_readv(peer->process, batch->local, batch->local_count, batch->remote, batch->remote_count, 0);
}

/**
 * Handles EFAULT, which means that the memory of one side does not exist. To find out which side,
 * reads one byte of the source into a local variable.
 */
static wherry_status fail_fault(const wh_cma_peer *peer, const wh_cma_batch *batch, wherry_error *error) {
    char byte;
    struct iovec remote = {batch->remote->iov_base, 1};
    struct iovec local = {&byte, 1};
    wh_cma_batch one = {&remote, &local, 1, 1};
    if (read_front(peer, &one) == 1) {
        return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                       "cannot write to the destination at %p: it must stay allocated until the transfer ends",
                       batch->local->iov_base);
    }
    return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                   "cannot read the memory of rank %d at %p: it must stay allocated until the transfer ends",
                   peer->rank, batch->remote->iov_base);
}

static wherry_status fail_read(const wh_cma_peer *peer, const wh_cma_batch *batch, int errnum, wherry_error *error) {
    switch (errnum) {
    case ESRCH:
        return fail_lost(peer, error);
    case EFAULT:
        return fail_fault(peer, batch, error);
    case ENOMEM:
        return wh_fail_memory(error, "reading another process's memory");
    case EPERM:
    case EACCES:
        return wh_fail_errno(error, WHERRY_REFUSED, errnum,
                             "reading the memory of process %d (rank %d) is not allowed; see docs/cma.md",
                             peer->process, peer->rank);
    case ENOSYS:
        return wh_fail_errno(error, WHERRY_UNSUPPORTED, errnum, "this system does not have process_vm_readv");
    default:
        return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot read the memory of process %d (rank %d)",
                             peer->process, peer->rank);
    }
}

wherry_status wh_cma_read(const wh_cma_peer *peer, wh_cma_batch *batch, int *errnum_p, wherry_error *error) {
    while (batch->local_count > 0) {
        ssize_t got = read_front(peer, batch);
        if (got < 0) {
            int errnum = errno;
            if (errnum_p) {
                *errnum_p = errnum;
            }
            return fail_read(peer, batch, errnum, error);
        }
        if (got == 0) {
            return fail_lost(peer, error);
        }
        cut(&batch->local, &batch->local_count, (size_t)got);
        cut(&batch->remote, &batch->remote_count, (size_t)got);
    }
    return check_alive(peer, error);
}

/* ---- chunks ---- */

/** The state of one worker, reused for each chunk. */
typedef struct puller {
    const wh_cma_end *end;
    const wh_sink *sink;
    wh_digester *digester; /**< NULL if sink->verify is not set. */
    wh_segments origin;
    wh_landing landing;
    wh_run_cursor remote;
    wh_run_cursor local;
    size_t remote_count;
    size_t local_count;
    struct iovec remote_list[IOV_MAX];
    struct iovec local_list[IOV_MAX];
} puller;

/** Returns the rest of the current run, limited to `most` bytes. */
static struct iovec front(const wh_run_cursor *cursor, size_t most) {
    return (struct iovec){wh_run_cursor_here(cursor), wh_min(wh_run_cursor_left(cursor), most)};
}

/**
 * Adds the source's next `bytes` bytes to the list, merging contiguous runs.
 * @return the number of bytes added; less than `bytes` if the list is full.
 */
static size_t add_remote(puller *p, size_t bytes) {
    size_t added = 0;
    while (added < bytes) {
        struct iovec run = front(&p->remote, bytes - added);
        struct iovec *last = p->remote_count ? p->remote_list + p->remote_count - 1 : NULL;
        if (last && (char *)last->iov_base + last->iov_len == run.iov_base) {
            last->iov_len += run.iov_len;
        } else if (p->remote_count < IOV_MAX) {
            p->remote_list[p->remote_count++] = run;
        } else {
            break;
        }
        wh_run_cursor_advance(&p->remote, run.iov_len);
        added += run.iov_len;
    }
    return added;
}

/**
 * True if bytes without a destination should be read into scratch, because skipping them would
 * split a run of the source.
 */
static bool reads_through(const puller *p, size_t bytes) {
    return bytes < READ_THROUGH && bytes <= p->landing.scratch_bytes && p->local_count > 0 &&
           wh_run_cursor_left(&p->remote) > bytes;
}

/**
 * Fills both lists with the next bytes of the chunk, as many as fit in one system call, but at most
 * `most`.
 * @return the number of bytes.
 */
static size_t collect(puller *p, size_t most) {
    size_t bytes = 0;
    p->remote_count = 0;
    p->local_count = 0;
    while (bytes < most && p->local_count < IOV_MAX && wh_run_cursor_left(&p->local)) {
        struct iovec run = front(&p->local, most - bytes);
        size_t added = run.iov_len;
        if (!run.iov_base && reads_through(p, added)) {
            run.iov_base = p->landing.scratch;
        }
        if (!run.iov_base) {
            wh_run_cursor_advance(&p->remote, added);
        } else if ((added = add_remote(p, run.iov_len)) > 0) {
            p->local_list[p->local_count++] = (struct iovec){run.iov_base, added};
            bytes += added;
        }
        wh_run_cursor_advance(&p->local, added);
        if (added < run.iov_len) {
            break;
        }
    }
    return bytes;
}

/** Reads the chunk that the sink has opened in p->landing. */
static wherry_status read_chunk(puller *p, wherry_error *error) {
    p->remote = wh_run_cursor_at(&p->origin);
    p->local = wh_run_cursor_at(&p->landing.segments);
    wherry_status status = WHERRY_OK;
    size_t bytes;
    do {
        wh_run_cursor begun = p->local;
        bytes = collect(p, p->sink->verify ? HASHED_BATCH : SIZE_MAX);
        wh_cma_batch batch = {p->remote_list, p->local_list, p->remote_count, p->local_count};
        status = bytes > 0 ? wh_cma_read(&p->end->peer, &batch, NULL, error) : WHERRY_OK;
        if (status == WHERRY_OK && p->sink->verify) {
            /* The bytes are in the CPU cache now. */
            wh_run_cursor_digest(begun, p->digester, bytes);
        }
    } while (status == WHERRY_OK && bytes > 0);
    return status;
}

static wherry_status pull_chunk(puller *p, uint64_t chunk, wherry_error *error) {
    const wh_sink *sink = p->sink;
    WH_TRY(sink->origin(sink->context, chunk, &p->origin, error));
    WH_TRY(sink->open(sink->context, chunk, &p->landing, error));
    if (p->origin.bytes != p->landing.segments.bytes) {
        return wh_fail(error, WHERRY_INTERNAL, "a chunk has %llu bytes at the source, but %llu bytes at this receiver",
                       (unsigned long long)p->origin.bytes, (unsigned long long)p->landing.segments.bytes);
    }
    if (sink->verify) {
        wh_digester_begin(p->digester);
    }
    WH_TRY(read_chunk(p, error));
    sink->moved(sink->context, p->origin.bytes);
    return wh_sink_close(sink, &p->landing, p->digester, NULL, error);
}

wherry_status wh_cma_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    (void)worker;
    const wh_cma_end *own = wh_cma_end_of(end);
    uint64_t chunk;
    puller *p = wh_alloc(sizeof(*p));
    WH_TRY_ALLOC(p, error, "lists of memory to read");
    p->end = own;
    p->sink = sink;
    p->origin = (wh_segments){0};
    p->landing = (wh_landing){0};
    p->digester = NULL;
    wherry_status status = wh_digester_need(sink->verify, &p->digester, error);
    do {
        while (status == WHERRY_OK && !wh_stop_requested(own->stop) && sink->next(sink->context, &chunk)) {
            status = pull_chunk(p, chunk, error);
        }
    } while (status == WHERRY_OK && wh_sink_more(sink));
    if (status == WHERRY_OK && wh_stop_requested(own->stop)) {
        status = wh_fail(error, WHERRY_CANCELLED, "reading from rank %d was stopped", own->peer.rank);
    }
    wh_digester_destroy(p->digester);
    wh_segments_destroy(&p->origin);
    wh_landing_destroy(&p->landing);
    wh_free(p);
    return status;
}
