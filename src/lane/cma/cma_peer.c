#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "lane/cma/cma.h"

wherry_status wh_cma_peer_open(wh_cma_peer *peer, int32_t process, int32_t rank, wherry_error *error) {
    *peer = (wh_cma_peer){.process = process, .rank = rank, .memory = -1};
    peer->pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    if (peer->pidfd >= 0) {
        return WHERRY_OK;
    }
    if (errno == ESRCH) {
        return wh_fail(error, WHERRY_PEER_LOST, "process %d of rank %d is gone", process, rank);
    }
    wherry_status status = errno == ENOSYS || errno == EPERM ? WHERRY_UNSUPPORTED : WHERRY_SYSTEM;
    return wh_fail_errno(error, status, errno,
                         "pidfd_open of process %d, without which a new process could be taken for it", process);
}

void wh_cma_peer_close(wh_cma_peer *peer) {
    if (peer->pidfd >= 0) {
        close(peer->pidfd);
    }
    if (peer->memory >= 0) {
        close(peer->memory);
    }
    peer->pidfd = -1;
    peer->memory = -1;
}

static wherry_status fail_lost(const wh_cma_peer *peer, wherry_error *error) {
    return wh_fail_rank(error, peer->rank,
                        wh_fail(error, WHERRY_PEER_LOST, "process %d of rank %d ended while its memory was read",
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

/** Cuts bytes off the front of a list. */
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

/** What the next read gives, of the batch's front: bytes, or -1 with errno; 0 means that there is no process any more. */
static ssize_t read_front(const wh_cma_peer *peer, const wh_cma_batch *batch) {
    if (peer->memory >= 0) {
        size_t length = wh_min(batch->local->iov_len, batch->remote->iov_len);
        ssize_t got = pread(peer->memory, batch->local->iov_base, length, (off_t)(uintptr_t)batch->remote->iov_base);
        if (got < 0 && errno == EIO) {
            errno = EFAULT; /* as the other call says it */
        }
        return got;
    }
    return process_vm_readv(peer->process, batch->local, batch->local_count, batch->remote, batch->remote_count, 0);
}

/** The memory of one side is not there: tells which, by reading a byte into a place that certainly is. */
static wherry_status fail_fault(const wh_cma_peer *peer, const wh_cma_batch *batch, wherry_error *error) {
    char byte;
    struct iovec remote = {batch->remote->iov_base, 1};
    struct iovec local = {&byte, 1};
    wh_cma_batch one = {&remote, &local, 1, 1};
    if (read_front(peer, &one) == 1) {
        return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                       "the destination at %p cannot be written: it must stay allocated until the transfer is over",
                       batch->local->iov_base);
    }
    return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                   "the memory of rank %d at %p cannot be read: it must stay allocated until the transfer is over",
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
        return wh_fail_errno(error, WHERRY_UNSUPPORTED, errnum, "process_vm_readv");
    default:
        return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "reading the memory of process %d (rank %d)", peer->process,
                             peer->rank);
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
