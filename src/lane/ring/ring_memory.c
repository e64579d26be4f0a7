#include "lane/ring/ring_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

#define NS_PER_MS UINT64_C(1000000)

enum {
    PAGE = 4096,
    SPINS =
        50, /* a few microseconds: longer is no faster on idle cores, and takes turns from the other side on busy ones */
};

static size_t control_bytes(uint32_t workers) {
    size_t bytes = sizeof(wh_ring_shared) + workers * sizeof(wh_ring);
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t memory_bytes(uint32_t workers) {
    return control_bytes(workers) + (size_t)workers * WH_RING_BYTES;
}

uint8_t *wh_ring_slot(const wh_ring_end *end, uint32_t worker, uint32_t frame) {
    size_t at = (size_t)worker * WH_RING_BYTES + (size_t)(frame % WH_RING_SLOTS) * WH_RING_SLOT_BYTES;
    return (uint8_t *)end->shared + control_bytes(end->base.workers) + at;
}

wh_ring_end *wh_ring_end_create(const wh_lane_site *site, uint32_t workers, bool pushes) {
    wh_ring_end *end = wh_alloc_zeroed(1, sizeof(*end));
    if (end) {
        end->base.workers = workers;
        end->site = site;
        end->pushes = pushes;
        end->socket = -1;
        end->memory = -1;
        pthread_mutex_init(&end->lock, NULL);
    }
    return end;
}

static wherry_status map(wh_ring_end *end, int fd, wherry_error *error) {
    void *memory = mmap(NULL, memory_bytes(end->base.workers), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot map shared memory of %zu bytes for the ring lane",
                             memory_bytes(end->base.workers));
    }
    madvise(memory, memory_bytes(end->base.workers), MADV_DONTFORK); /* a child would only hold it */
    end->shared = memory;
    return WHERRY_OK;
}

wherry_status wh_ring_memory_create(wh_ring_end *end, wherry_error *error) {
    off_t size = (off_t)memory_bytes(end->base.workers);
    int fd = memfd_create("wherry-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) { /* a kernel that does not know the last flag */
        fd = memfd_create("wherry-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot make shared memory for the ring lane");
    }
    /* All pages now: one that cannot be had later would be a SIGBUS. */
    if (ftruncate(fd, size) != 0 || fallocate(fd, 0, 0, size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot have %lld bytes of shared memory for the ring lane",
                      (long long)size);
        goto err_close;
    }
    if (map(end, fd, error) != WHERRY_OK) {
        goto err_close;
    }
    end->memory = fd;
    return WHERRY_OK;

err_close:
    close(fd);
    return WHERRY_NO_MEMORY;
}

wherry_status wh_ring_memory_open(wh_ring_end *end, int fd, wherry_error *error) {
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &about) != 0 ||
        about.st_size != (off_t)memory_bytes(end->base.workers)) {
        return wh_fail(error, WHERRY_MALFORMED,
                       "rank %d handed over something that is not the shared memory of a ring lane with %u workers",
                       (int)end->site->peer, (unsigned)end->base.workers);
    }
    return map(end, fd, error);
}

void wh_ring_memory_close(wh_ring_end *end) {
    if (end->shared) {
        munmap(end->shared, memory_bytes(end->base.workers));
    }
    if (end->memory >= 0) {
        close(end->memory);
    }
    end->shared = NULL;
    end->memory = -1;
}

static void sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t nanoseconds) {
    struct timespec most = {0, (long)wh_min(nanoseconds, WH_RING_NAP_MS * NS_PER_MS)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

void wh_ring_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/*
 * Either the one who posts sees that somebody sleeps, or the sleeper sees the new value: hence the one order for all four steps. Only the sleeper
 * takes its flag back: the one who posts could otherwise clear it for a sleep that has just begun.
 */
void wh_ring_post(_Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t value) {
    atomic_store(word, value);
    if (atomic_load(waits)) {
        wh_ring_wake(word);
    }
}

/* The other one of a pair cannot get on before this one leaves the processor. */
static void give_way(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether waiting is still worth while. */
static wherry_status look_around(const wh_ring_end *end, wh_deadline give_up, wherry_error *error) {
    const wh_lane_site *site = end->site;
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    if (wh_deadline_passed(site->deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out: the call's time was over before all bytes were through");
    }
    if (wh_deadline_passed(give_up)) {
        return wh_fail(error, WHERRY_TIMED_OUT,
                       "timed out: rank %d has not moved a byte through the shared memory for %u ms; it may be stopped "
                       "or overloaded: try again with a higher no-progress limit, or ask another rank",
                       (int)site->peer, (unsigned)site->no_progress_ms);
    }
    return WHERRY_OK;
}

wherry_status wh_ring_wait(const wh_ring_end *end, _Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t seen,
                           uint32_t *value_p, wherry_error *error) {
    _Atomic uint32_t *closed = end->pushes ? &end->shared->pull_closed : &end->shared->push_closed;
    uint32_t value = atomic_load_explicit(word, memory_order_acquire);
    for (uint32_t i = 0; value == seen && i < SPINS; i++) {
        give_way();
        value = atomic_load_explicit(word, memory_order_acquire);
    }
    if (value != seen) {
        *value_p = value;
        return WHERRY_OK;
    }
    wh_deadline give_up = wh_deadline_in_ms(end->site->no_progress_ms);
    while (value == seen) {
        wherry_status status = look_around(end, give_up, error);
        if (status != WHERRY_OK) {
            return status;
        }
        atomic_store(waits, 1);
        /* In this order: what was written before the end was closed still counts. */
        uint32_t gone = atomic_load(closed);
        value = atomic_load(word);
        if (value == seen && gone) {
            return wh_fail(error, WHERRY_PEER_LOST,
                           "rank %d closed its end of the shared memory before all bytes were through: look at its log",
                           (int)end->site->peer);
        }
        if (value == seen) {
            wh_deadline until = wh_deadline_earlier(give_up, end->site->deadline);
            uint64_t now = wh_clock_now();
            sleep_on(word, seen, until.at > now ? until.at - now : 0);
            value = atomic_load(word);
        }
    }
    atomic_store_explicit(waits, 0, memory_order_relaxed);
    *value_p = value;
    return WHERRY_OK;
}
