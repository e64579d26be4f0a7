/*
 * The cuda_ipc lane: the receiver opens the source's device memory, and a device of the receiver
 * copies it. In this file, a source describes its memory and a receiver opens it. cuda_ipc_cache.c
 * caches open memory, cuda_ipc_pull.c copies.
 */
#include "lane/cuda_ipc/cuda_ipc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lanes.h"
#include "memory/memory.h"

/**
 * Number of threads that prepare copies. With small tensors, a device copies faster than one thread
 * can prepare copies.
 */
enum { WORKERS = 2 };

enum { ALLOCATION_BYTES = 18 + WH_CUDA_HANDLE_BYTES };

/* ---- the wire ---- */

static void append_allocation(wh_string *string, const wh_cuda_allocation *one) {
    uint8_t handle[WH_CUDA_HANDLE_BYTES] = {0};
    bool mapped = one->fd >= 0;
    wh_append_number(string, one->base, 8);
    wh_append_number(string, one->size, 8);
    wh_append_number(string, (uint64_t)one->device, 1);
    wh_append_number(string, mapped ? WH_IPC_MAPPED : WH_IPC_PLAIN, 1);
    if (mapped) {
        wh_append_number(string, (uint32_t)one->fd, 4);
        wh_string_append(string, (const char *)handle, sizeof(handle) - 4);
    } else {
        wh_string_append(string, (const char *)one->handle, sizeof(one->handle));
    }
}

void wh_ipc_append_request(wh_string *string, const wh_identity *receiver) {
    wh_append_number(string, WH_IPC_VERSION, 1);
    wh_identity_append(string, receiver);
}

void wh_ipc_append_offer(wh_string *string, const wh_ipc_offer *offer) {
    wh_append_number(string, WH_IPC_VERSION, 1);
    wh_append_number(string, offer->keeps ? WH_IPC_KEEPS : 0, 1);
    wh_identity_append(string, &offer->identity);
    wh_string_append(string, (const char *)offer->nonce, sizeof(offer->nonce));
    wh_append_number(string, offer->nonce_address, 8);
    wh_append_number(string, offer->device_count, 1);
    for (size_t i = 0; i < offer->device_count; i++) {
        wh_append_number(string, (uint64_t)offer->devices[i], 1);
        wh_string_append(string, (const char *)offer->uuids[i], WH_CUDA_UUID_BYTES);
    }
    wh_append_number(string, offer->allocation_count, 4);
    for (size_t i = 0; i < offer->allocation_count; i++) {
        append_allocation(string, offer->allocations + i);
    }
}

static void take_allocation(wh_cursor *cursor, wh_cuda_allocation *one) {
    *one = (wh_cuda_allocation){.base = wh_cursor_number(cursor, 8), .fd = -1};
    one->size = wh_cursor_number(cursor, 8);
    one->device = (int32_t)wh_cursor_number(cursor, 1);
    uint64_t kind = wh_cursor_number(cursor, 1);
    wh_cursor_copy(cursor, one->handle, sizeof(one->handle));
    if (kind == WH_IPC_MAPPED && !cursor->failed) {
        wh_cursor handle = wh_cursor_over(one->handle, sizeof(one->handle));
        uint64_t number = wh_cursor_number(&handle, 4);
        uint64_t rest = 0;
        while (handle.left) {
            rest |= wh_cursor_number(&handle, 1);
        }
        one->fd = (int)(number & INT32_MAX);
        cursor->failed = number > INT32_MAX || rest;
    }
    cursor->failed = cursor->failed || kind > WH_IPC_MAPPED || one->size == 0 || one->base > UINT64_MAX - one->size;
}

wherry_status wh_ipc_parse_request(const void *bytes, size_t size, wh_identity *receiver_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_identity receiver = {.process = 0};
    uint64_t version = wh_cursor_number(&cursor, 1);
    wh_identity_take(&cursor, &receiver);
    if (!wh_cursor_ended(&cursor) || version != WH_IPC_VERSION) {
        return wh_fail(error, WHERRY_MALFORMED, "malformed cuda_ipc request of %zu bytes", size);
    }
    *receiver_p = receiver;
    return WHERRY_OK;
}

static void take_head(wh_cursor *cursor, wh_ipc_offer *offer) {
    uint64_t flags = wh_cursor_number(cursor, 1);
    offer->keeps = flags & WH_IPC_KEEPS;
    wh_identity_take(cursor, &offer->identity);
    wh_cursor_copy(cursor, offer->nonce, sizeof(offer->nonce));
    offer->nonce_address = wh_cursor_number(cursor, 8);
    offer->device_count = (size_t)wh_cursor_number(cursor, 1);
    cursor->failed = cursor->failed || flags > WH_IPC_KEEPS || offer->device_count > WH_CUDA_DEVICES_MAX;
    for (size_t i = 0; i < offer->device_count && !cursor->failed; i++) {
        offer->devices[i] = (int32_t)wh_cursor_number(cursor, 1);
        wh_cursor_copy(cursor, offer->uuids[i], WH_CUDA_UUID_BYTES);
    }
    offer->allocation_count = (size_t)wh_cursor_number(cursor, 4);
}

wherry_status wh_ipc_parse_offer(const void *bytes, size_t size, wh_ipc_offer *offer_p, wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes, size);
    wh_ipc_offer offer = {.keeps = false};
    uint64_t version = wh_cursor_number(&cursor, 1);
    if (!cursor.failed && version != WH_IPC_VERSION) {
        return wh_fail(error, WHERRY_BAD_VERSION,
                       "the source has version %u of the cuda_ipc lane, but this rank has version %d",
                       (unsigned)version, WH_IPC_VERSION);
    }
    take_head(&cursor, &offer);
    if (cursor.failed || offer.allocation_count == 0 || offer.allocation_count != cursor.left / ALLOCATION_BYTES) {
        return wh_fail(error, WHERRY_MALFORMED, "malformed cuda_ipc offer of %zu bytes", size);
    }
    offer.allocations = wh_alloc_array(offer.allocation_count, sizeof(*offer.allocations));
    WH_TRY_ALLOC(offer.allocations, error, "an offer");
    for (size_t i = 0; i < offer.allocation_count; i++) {
        take_allocation(&cursor, offer.allocations + i);
    }
    const wh_cuda_allocation *first = offer.allocations;
    bool inside = offer.nonce_address >= first->base && first->size >= WH_NONCE_BYTES &&
                  offer.nonce_address - first->base <= first->size - WH_NONCE_BYTES;
    if (!wh_cursor_ended(&cursor) || !inside) {
        wh_free(offer.allocations);
        return wh_fail(error, WHERRY_MALFORMED, "malformed cuda_ipc offer of %zu bytes", size);
    }
    *offer_p = offer;
    return WHERRY_OK;
}

/* ---- the source ---- */

/** The copies of this process's nonce, by device. They are never freed. */
static void *nonce_data[WH_CUDA_DEVICES_MAX];

/** A child of fork() has another nonce, and cannot use device memory of its parent. */
static void forget_copies(void) {
    memset(nonce_data, 0, sizeof(nonce_data));
}

static wh_fork_lock copies_lock = WH_FORK_LOCK(.in_child = forget_copies);

/**
 * Copies the nonce to the device. Does not hold the lock while it calls CUDA, because CUDA may have
 * fork handlers that take CUDA's own locks.
 */
static wherry_status place_nonce(int32_t device, const uint8_t copy[WH_NONCE_BYTES], void **data_p,
                                 wherry_error *error) {
    const wh_memory_ops *memory = wh_memory_of(WHERRY_DEVICE_CUDA);
    if (!memory) {
        return wh_cuda_check(error);
    }
    void *data = NULL;
    WH_TRY(memory->allocate(WH_NONCE_BYTES, (wherry_device){WHERRY_DEVICE_CUDA, device}, &data, error));
    wherry_status status = memory->write(data, copy, WH_NONCE_BYTES, error);
    void *unused = data;
    if (status == WHERRY_OK) {
        wh_fork_lock_take(&copies_lock);
        if (!nonce_data[device]) {
            nonce_data[device] = data;
            unused = NULL;
        }
        *data_p = nonce_data[device];
        wh_fork_lock_give(&copies_lock);
    }
    if (unused) { /* Another thread was faster, or writing failed. */
        memory->release(unused, WH_NONCE_BYTES);
    }
    return status;
}

static wherry_status describe_nonce(int32_t device, wh_ipc_offer *offer, wh_cuda_allocation *allocation,
                                    wherry_error *error) {
    const uint8_t *nonce;
    WH_TRY(wh_process_nonce(&nonce, error));
    memcpy(offer->nonce, nonce, sizeof(offer->nonce));
    wh_fork_lock_take(&copies_lock);
    void *data = nonce_data[device];
    wh_fork_lock_give(&copies_lock);
    if (!data) {
        WH_TRY(place_nonce(device, offer->nonce, &data, error));
    }
    offer->nonce_address = (uint64_t)(uintptr_t)data;
    return wh_cuda_describe(data, allocation, error);
}

static wherry_status add_devices(wh_ipc_offer *offer, wherry_error *error) {
    for (int32_t device = 0; device < wh_cuda_device_count(); device++) {
        offer->devices[offer->device_count] = device;
        WH_TRY(wh_cuda_uuid(device, offer->uuids[offer->device_count], error));
        offer->device_count++;
    }
    return WHERRY_OK;
}

static wherry_status ipc_offer(const wh_lane_site *site, wh_string *text, wherry_error *error) {
    const wh_shared_memory *shared = site->shared;
    if (!shared || shared->count == 0) {
        return shared && shared->reason.status != WHERRY_OK
                   ? wh_fail(error, WHERRY_UNSUPPORTED, "%s", shared->reason.message)
                   : wh_fail(error, WHERRY_UNSUPPORTED, "no tensor of the state is in CUDA memory");
    }
    wh_ipc_offer offer = {.keeps = shared->keeps, .allocation_count = shared->count + 1};
    offer.allocations = wh_alloc_array(offer.allocation_count, sizeof(*offer.allocations));
    WH_TRY_ALLOC(offer.allocations, error, "an offer");
    memcpy(offer.allocations + 1, shared->items, shared->count * sizeof(*shared->items));
    wherry_status status = wh_identity_read(&offer.identity, error);
    WH_THEN(status, describe_nonce(shared->items[0].device, &offer, offer.allocations, error));
    WH_THEN(status, add_devices(&offer, error));
    if (status == WHERRY_OK) {
        wh_ipc_append_offer(text, &offer);
        status = text->failed ? wh_fail_memory(error, "an offer") : WHERRY_OK;
    }
    if (status == WHERRY_OK && text->size > WH_LANE_LONG_OFFER_MAX) {
        status =
            wh_fail(error, WHERRY_LIMIT, "the state has %zu allocations, more than an offer can list", shared->count);
    }
    wh_free(offer.allocations);
    return status;
}

static wherry_status ipc_assist(const wh_lane_site *site, const void *bytes, size_t size, wherry_error *error) {
    wh_identity receiver;
    WH_TRY(wh_ipc_parse_request(bytes, size, &receiver, error));
    return wh_ptracer_name(site, &receiver, error);
}

/* ---- the receiver ---- */

/**
 * True if the offer has the nonce of this process. Then source and receiver are the same process,
 * or the offer is forged. The driver cannot open memory of its own process. If they are the same
 * process, the source's addresses can be used directly.
 */
static bool is_own(const wh_ipc_offer *offer) {
    const uint8_t *nonce;
    return wh_process_nonce(&nonce, NULL) == WHERRY_OK && memcmp(nonce, offer->nonce, sizeof(offer->nonce)) == 0;
}

/**
 * Returns the number that a device of the source has in this process. If the device is not visible
 * here, returns 0. Opening the memory then fails if device 0 cannot access it.
 */
static int32_t find_device(const wh_ipc_offer *offer, int32_t theirs) {
    for (size_t i = 0; i < offer->device_count; i++) {
        for (int32_t here = 0; offer->devices[i] == theirs && here < wh_cuda_device_count(); here++) {
            uint8_t uuid[WH_CUDA_UUID_BYTES];
            if (wh_cuda_uuid(here, uuid, NULL) == WHERRY_OK && memcmp(uuid, offer->uuids[i], sizeof(uuid)) == 0) {
                return here;
            }
        }
    }
    return 0;
}

/** Returns the source's pid; 0 if it is unknown, because the source is in another pid namespace. */
static int32_t find_process(const wh_lane_site *site, const wh_identity *here, const wh_identity *source) {
    int32_t process = wh_group_process(site->group, site->peer);
    bool shared = !process && source->process <= INT32_MAX && wh_identity_shares_pids(here, source);
    return shared ? (int32_t)source->process : process;
}

/** Duplicates a descriptor of the source into this process. */
static wherry_status fetch_descriptor(wh_ipc_end *end, int theirs, int *fd_p, wherry_error *error) {
    int pidfd = wh_ipc_owner_pidfd(end->owner);
    if (pidfd < 0) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "cannot open the expandable segments of rank %d: this needs Linux 5.6 or newer, and both "
                       "processes in one pid namespace",
                       end->site->peer);
    }
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, theirs, 0);
    if (fd < 0) {
        end->refused = errno == EPERM;
        return wh_fail_errno(error, WHERRY_REFUSED, errno, "cannot open the expandable segments of rank %d",
                             end->site->peer);
    }
    *fd_p = fd;
    return WHERRY_OK;
}

static wherry_status open_one(wh_ipc_end *end, const wh_ipc_offer *offer, const wh_cuda_allocation *one,
                              wh_ipc_window *window, wherry_error *error) {
    int fd = -1;
    wherry_status status = one->fd >= 0 ? fetch_descriptor(end, one->fd, &fd, error) : WHERRY_OK;
    WH_THEN(status, wh_ipc_open(end->owner, offer->keeps, one, fd, end->device, window, error));
    wh_close(fd);
    return status;
}

/** Checks that the source's memory contains the nonce. */
static wherry_status check_nonce(const wh_ipc_end *end, const wh_ipc_offer *offer, const wh_ipc_window *window,
                                 wherry_error *error) {
    uint8_t found[WH_NONCE_BYTES];
    const char *at = window->data + (offer->nonce_address - window->base);
    WH_TRY(wh_cuda_read(end->device, found, at, sizeof(found), error));
    if (memcmp(found, offer->nonce, sizeof(found)) != 0) {
        return wh_fail(error, WHERRY_REFUSED, "the memory that rank %d offers does not hold the nonce of the offer",
                       end->site->peer);
    }
    return WHERRY_OK;
}

static int by_base(const void *one, const void *other) {
    const wh_ipc_window *a = one;
    const wh_ipc_window *b = other;
    return wh_order(a->base, b->base);
}

/**
 * Checks an allocation of this process. Every receiver of an offer knows the nonce, so the offer
 * may be forged. The driver must confirm that the allocation exists.
 */
static wherry_status find_own(const wh_ipc_end *end, const wh_cuda_allocation *one, wh_ipc_window *window,
                              wherry_error *error) {
    wh_cuda_allocation real = {.fd = -1};
    char *data = (char *)(uintptr_t)one->base;
    wherry_status status = wh_cuda_describe(data, &real, NULL);
    wh_close(real.fd);
    if (status != WHERRY_OK || real.base != one->base || real.size != one->size) {
        return wh_fail(error, WHERRY_REFUSED, "rank %d offers an allocation that does not exist in this process",
                       end->site->peer);
    }
    *window = (wh_ipc_window){one->base, one->size, data, real.device == end->device, NULL};
    return WHERRY_OK;
}

/** Opens all allocations of the offer. Checks the nonce, unless the offer is from this process. */
static wherry_status open_all(wh_ipc_end *end, const wh_ipc_offer *offer, const wh_identity *here,
                              wherry_error *error) {
    bool own = is_own(offer);
    wherry_status status =
        own ? WHERRY_OK
            : wh_ipc_owner_take(end->site, offer, find_process(end->site, here, &offer->identity), &end->owner, error);
    for (size_t i = 0; i < offer->allocation_count && status == WHERRY_OK; i++) {
        const wh_cuda_allocation *one = offer->allocations + i;
        wh_ipc_window *window = end->windows + end->window_count;
        status = own ? find_own(end, one, window, error) : open_one(end, offer, one, window, error);
        if (status == WHERRY_OK) {
            end->window_count++;
        }
        if (status == WHERRY_OK && i == 0 && !own) {
            status = check_nonce(end, offer, window, error);
        }
    }
    qsort(end->windows, end->window_count, sizeof(*end->windows), by_base);
    return status;
}

static void ipc_close(wh_lane_end *base) {
    if (base) {
        wh_ipc_end *end = wh_ipc_end_of(base);
        for (size_t i = 0; i < end->window_count; i++) {
            wh_ipc_close(end->windows + i);
        }
        wh_ipc_owner_give(end->owner);
        wh_free(end->windows);
        wh_free(end);
    }
}

static wherry_status check_host(const wh_lane_site *site, const wh_ipc_offer *offer, wh_identity *here,
                                wherry_error *error) {
    WH_TRY(wh_identity_read(here, error));
    if (memcmp(here->boot, offer->identity.boot, sizeof(here->boot)) != 0) {
        WH_TRY(wh_site_other_host(site, error));
    }
    return wh_cuda_check(error);
}

/** Returns an end with room for all windows; NULL if out of memory. */
static wh_ipc_end *make_end(const wh_lane_site *site, const wh_ipc_offer *offer) {
    wh_ipc_end *end = wh_alloc_zeroed(1, sizeof(*end));
    wh_ipc_window *windows = wh_alloc_zeroed(offer->allocation_count, sizeof(*windows));
    if (!end || !windows) {
        wh_free(end);
        wh_free(windows);
        return NULL;
    }
    *end = (wh_ipc_end){.base.workers = (uint32_t)wh_min(site->threads, WORKERS), .site = site, .windows = windows};
    int32_t device = wh_site_device(site);
    end->device = device >= 0 ? device : find_device(offer, offer->allocations[offer->allocation_count - 1].device);
    return end;
}

static wherry_status ipc_probe(const wh_lane_site *site, const void *bytes, size_t size, wh_string *request,
                               bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    wh_ipc_offer offer = {.allocations = NULL};
    wh_identity here;
    *assist_p = false;
    wherry_status status = wh_ipc_parse_offer(bytes, size, &offer, error);
    WH_THEN(status, check_host(site, &offer, &here, error));
    wh_ipc_end *end = status == WHERRY_OK ? make_end(site, &offer) : NULL;
    if (!end) {
        wh_free(offer.allocations);
        return status == WHERRY_OK ? wh_fail_memory(error, "an end of the cuda_ipc lane") : status;
    }
    status = open_all(end, &offer, &here, error);
    wh_free(offer.allocations);
    if (status != WHERRY_OK) {
        if (end->refused) {
            wh_ipc_append_request(request, &here);
            *assist_p = !request->failed;
        }
        ipc_close(&end->base);
        return status;
    }
    *end_p = &end->base;
    return WHERRY_OK;
}

const wh_lane_ops wh_lane_cuda_ipc = {
    .name = "cuda_ipc",
    .traits = WH_LANE_ONE_SIDED | WH_LANE_DEVICE | WH_LANE_PRIVATE,
    .offer = ipc_offer,
    .probe = ipc_probe,
    .assist = ipc_assist,
    .pull = wh_ipc_pull,
    .close = ipc_close,
    .forget = wh_ipc_forget,
};
