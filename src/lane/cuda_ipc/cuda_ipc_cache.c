/* What is open of other processes' memory. The driver opens an allocation once a process, so that this is one list for all transfers. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "lane/cuda_ipc/cuda_ipc.h"

typedef struct wh_ipc_open {
    uint64_t process;
    uint8_t handle[WH_CUDA_HANDLE_BYTES];
    bool keeps;
    size_t users;
    wh_cuda_import import;
    struct wh_ipc_open *next;
} wh_ipc_open_entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wh_ipc_open_entry *entries;

/** One with a handle; nobody else finds what is mapped. */
static wh_ipc_open_entry *find(uint64_t process, const wh_cuda_allocation *allocation, int32_t device) {
    wh_ipc_open_entry *entry = entries;
    while (entry && (entry->import.mapped || entry->process != process || entry->import.device != device ||
                     memcmp(entry->handle, allocation->handle, sizeof(entry->handle)) != 0)) {
        entry = entry->next;
    }
    return entry;
}

/** Makes an entry that is open; under the lock, so that nobody opens the same meanwhile. */
static wherry_status make(const wh_ipc_offer *offer, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_open_entry **entry_p, wherry_error *error) {
    wh_ipc_open_entry *entry = wh_alloc_zeroed(1, sizeof(*entry));
    if (!entry) {
        return wh_fail_memory(error, "an allocation of another process");
    }
    wh_cuda_allocation here = *allocation;
    here.fd = fd;
    wherry_status status = wh_cuda_open(&here, device, &entry->import, error);
    if (status != WHERRY_OK) {
        wh_free(entry);
        return status;
    }
    entry->process = offer->identity.process;
    memcpy(entry->handle, allocation->handle, sizeof(entry->handle));
    entry->next = entries;
    entries = entry;
    *entry_p = entry;
    return WHERRY_OK;
}

/** Closes an entry that has no users; under the lock. */
static void destroy(wh_ipc_open_entry *entry) {
    wh_ipc_open_entry **at = &entries;
    while (*at != entry) {
        at = &(*at)->next;
    }
    *at = entry->next;
    wh_cuda_close(&entry->import);
    wh_free(entry);
}

wherry_status wh_ipc_open(const wh_ipc_offer *offer, const wh_cuda_allocation *allocation, int fd, int32_t device,
                          wh_ipc_window *window_p, wherry_error *error) {
    pthread_mutex_lock(&lock);
    wh_ipc_open_entry *entry = fd < 0 ? find(offer->identity.process, allocation, device) : NULL;
    wherry_status status = entry ? WHERRY_OK : make(offer, allocation, fd, device, &entry, error);
    if (status == WHERRY_OK && entry && entry->import.size < allocation->size) {
        status = wh_fail(error, WHERRY_OUT_OF_BOUNDS, "the source's allocation has %llu bytes, and not %llu as it says",
                         (unsigned long long)entry->import.size, (unsigned long long)allocation->size);
    }
    if (status == WHERRY_OK && entry) {
        entry->keeps = offer->keeps && !entry->import.mapped;
        entry->users++;
        *window_p = (wh_ipc_window){allocation->base, allocation->size, entry->import.data, true, entry};
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void wh_ipc_close(wh_ipc_window *window) {
    wh_ipc_open_entry *entry = window->entry;
    if (entry) {
        pthread_mutex_lock(&lock);
        if (--entry->users == 0 && !entry->keeps) {
            destroy(entry);
        }
        pthread_mutex_unlock(&lock);
    }
    window->entry = NULL;
}

static bool is_offered(const wh_ipc_offer *offer, const wh_ipc_open_entry *entry) {
    for (size_t i = 0; i < offer->allocation_count; i++) {
        if (memcmp(offer->allocations[i].handle, entry->handle, sizeof(entry->handle)) == 0) {
            return true;
        }
    }
    return false;
}

void wh_ipc_evict(const wh_ipc_offer *offer) {
    pthread_mutex_lock(&lock);
    for (wh_ipc_open_entry *entry = entries, *next; entry; entry = next) {
        next = entry->next;
        bool stale = entry->process == offer->identity.process ? !offer->keeps || !is_offered(offer, entry)
                                                               : kill((pid_t)entry->process, 0) != 0 && errno == ESRCH;
        if (entry->users == 0 && stale) {
            destroy(entry);
        }
    }
    pthread_mutex_unlock(&lock);
}

size_t wh_ipc_open_count(void) {
    pthread_mutex_lock(&lock);
    size_t count = 0;
    for (const wh_ipc_open_entry *entry = entries; entry; entry = entry->next) {
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}
