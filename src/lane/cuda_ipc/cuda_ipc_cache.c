/*
 * A cache of memory that belongs to other processes and is open in this process.
 *
 * 1. The driver can open a handle only once per process. So all transfers share one list.
 * 2. An allocation is kept open after its last window is closed only if the source has promised to
 *    keep the memory allocated, and if this process can detect that the source has ended.
 *
 *     closed -> used: wh_ipc_open
 *     used -> kept: wh_ipc_close, if promised      used -> closed: wh_ipc_close, otherwise
 *     kept -> used: wh_ipc_open                    kept -> closed: wh_ipc_owner_take, wh_ipc_forget
 */
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "lane/cuda_ipc/cuda_ipc.h"

/** An open allocation. */
typedef struct wh_ipc_open_entry {
    uint8_t handle[WH_CUDA_HANDLE_BYTES];
    bool keeps;
    size_t users;
    wh_cuda_import import;
    struct wh_ipc_owner *owner;
    struct wh_ipc_open_entry *next;
} wh_ipc_open_entry;

struct wh_ipc_owner {
    uint8_t nonce[WH_NONCE_BYTES]; /**< Identifies the process. */
    int pidfd;                     /**< Readable once the process has ended; -1: none. */
    /** The group of the last transfer. Only compared, never dereferenced. */
    const wh_group *group;
    int32_t rank; /**< Its rank in that group. */
    size_t users;
    wh_ipc_open_entry *entries;
    struct wh_ipc_owner *next;
};

static wh_ipc_owner *owners;

/** A child of fork() cannot use the memory that its parent has opened. */
static void after_fork_in_child(void) {
    owners = NULL;
}

static wh_fork_lock lock = WH_FORK_LOCK(.in_child = after_fork_in_child);

/* ---- the caller holds the lock ---- */

/** Closes an entry that has no users. */
static void close_entry(wh_ipc_open_entry *entry) {
    wh_ipc_open_entry **at = &entry->owner->entries;
    while (*at != entry) {
        at = &(*at)->next;
    }
    *at = entry->next;
    wh_cuda_close(&entry->import);
    wh_free(entry);
}

/**
 * Closes unused allocations that are not in the offer. Closes all unused allocations if the offer
 * is NULL or does not promise to keep the memory.
 */
static void close_entries(wh_ipc_owner *owner, const wh_ipc_offer *offer) {
    for (wh_ipc_open_entry *entry = owner->entries, *next; entry; entry = next) {
        bool offered = false;
        next = entry->next;
        for (size_t i = 0; offer && offer->keeps && !offered && i < offer->allocation_count; i++) {
            offered = memcmp(offer->allocations[i].handle, entry->handle, sizeof(entry->handle)) == 0;
        }
        if (!offered && entry->users == 0) {
            close_entry(entry);
        }
    }
}

static bool is_gone(const wh_ipc_owner *owner) {
    struct pollfd watched = {owner->pidfd, POLLIN, 0};
    return owner->pidfd >= 0 && poll(&watched, 1, 0) == 1;
}

/** Removes an owner that has no open allocations and no users. */
static void drop_idle(wh_ipc_owner **at) {
    wh_ipc_owner *owner = *at;
    if (owner && owner->users == 0 && !owner->entries) {
        *at = owner->next;
        wh_close(owner->pidfd);
        wh_free(owner);
    }
}

static wh_ipc_owner **find_owner(const uint8_t nonce[WH_NONCE_BYTES]) {
    wh_ipc_owner **at = &owners;
    while (*at && memcmp((*at)->nonce, nonce, WH_NONCE_BYTES) != 0) {
        at = &(*at)->next;
    }
    return at;
}

/* ---- owners ---- */

wherry_status wh_ipc_owner_take(const wh_lane_site *site, const wh_ipc_offer *offer, int32_t process,
                                wh_ipc_owner **owner_p, wherry_error *error) {
    wh_fork_lock_take(&lock);
    wh_ipc_owner *owner = *find_owner(offer->nonce);
    if (!owner && (owner = wh_alloc_zeroed(1, sizeof(*owner)))) {
        memcpy(owner->nonce, offer->nonce, sizeof(owner->nonce));
        owner->pidfd = process > 0 ? (int)syscall(SYS_pidfd_open, process, 0) : -1;
        owner->next = owners;
        owners = owner;
    }
    if (owner) {
        owner->group = site->group;
        owner->rank = site->peer;
        owner->users++;
        close_entries(owner, offer);
    }
    wh_fork_lock_give(&lock);
    WH_TRY_ALLOC(owner, error, "a record of the source's process");
    *owner_p = owner;
    return WHERRY_OK;
}

int wh_ipc_owner_pidfd(const wh_ipc_owner *owner) {
    return owner->pidfd;
}

void wh_ipc_owner_give(wh_ipc_owner *owner) {
    if (owner) {
        wh_fork_lock_take(&lock);
        owner->users--;
        drop_idle(find_owner(owner->nonce));
        wh_fork_lock_give(&lock);
    }
}

void wh_ipc_forget(const wh_group *group, int32_t rank, bool lost) {
    /*
     * Allocations are closed even if the rank is not lost, because the source's promise also ends
     * when a transfer uses another lane.
     */
    (void)lost;
    wh_fork_lock_take(&lock);
    for (wh_ipc_owner **at = &owners, *owner; (owner = *at);) {
        bool meant = group && owner->group == group && (rank < 0 || owner->rank == rank);
        if (meant || is_gone(owner)) {
            close_entries(owner, NULL);
        }
        drop_idle(at);
        at = *at == owner ? &owner->next : at;
    }
    wh_fork_lock_give(&lock);
}

/* ---- allocations ---- */

/** Finds an open allocation by its handle. Mappings are not shared: each transfer opens its own. */
static wh_ipc_open_entry *find(const wh_ipc_owner *owner, const wh_cuda_allocation *allocation, int32_t device) {
    wh_ipc_open_entry *entry = owner->entries;
    while (entry && (entry->import.mapped || entry->import.device != device ||
                     memcmp(entry->handle, allocation->handle, sizeof(entry->handle)) != 0)) {
        entry = entry->next;
    }
    return entry;
}

/** Opens an allocation. The caller holds the lock, so that no other thread opens the same one. */
static wherry_status make(wh_ipc_owner *owner, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_open_entry **entry_p, wherry_error *error) {
    wh_ipc_open_entry *entry = wh_alloc_zeroed(1, sizeof(*entry));
    WH_TRY_ALLOC(entry, error, "an allocation of another process");
    wh_cuda_allocation here = *allocation;
    here.fd = fd;
    wherry_status status = wh_cuda_open(&here, device, &entry->import, error);
    if (status != WHERRY_OK) {
        wh_free(entry);
        return status;
    }
    memcpy(entry->handle, allocation->handle, sizeof(entry->handle));
    entry->owner = owner;
    entry->next = owner->entries;
    owner->entries = entry;
    *entry_p = entry;
    return WHERRY_OK;
}

wherry_status wh_ipc_open(wh_ipc_owner *owner, bool keeps, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_window *window_p, wherry_error *error) {
    wh_fork_lock_take(&lock);
    wh_ipc_open_entry *entry = fd < 0 ? find(owner, allocation, device) : NULL;
    wherry_status status = entry ? WHERRY_OK : make(owner, allocation, fd, device, &entry, error);
    if (status == WHERRY_OK && entry && entry->import.size < allocation->size) {
        status = wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                         "the source's allocation has %llu bytes, but its offer says %llu bytes",
                         (unsigned long long)entry->import.size, (unsigned long long)allocation->size);
    }
    if (status == WHERRY_OK && entry) {
        /* Without a pidfd, this process cannot detect that the source has ended. */
        entry->keeps = keeps && !entry->import.mapped && owner->pidfd >= 0;
        entry->users++;
        *window_p = (wh_ipc_window){allocation->base, allocation->size, entry->import.data, true, entry};
    }
    wh_fork_lock_give(&lock);
    return status;
}

void wh_ipc_close(wh_ipc_window *window) {
    wh_ipc_open_entry *entry = window->entry;
    if (entry) {
        wh_fork_lock_take(&lock);
        if (--entry->users == 0 && !entry->keeps) {
            close_entry(entry);
        }
        wh_fork_lock_give(&lock);
    }
    window->entry = NULL;
}

size_t wh_ipc_open_count(void) {
    wh_fork_lock_take(&lock);
    size_t count = 0;
    for (const wh_ipc_owner *owner = owners; owner; owner = owner->next) {
        for (const wh_ipc_open_entry *entry = owner->entries; entry; entry = entry->next) {
            count++;
        }
    }
    wh_fork_lock_give(&lock);
    return count;
}
