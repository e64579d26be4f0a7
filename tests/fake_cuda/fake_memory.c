/*
 * Memory. Each device allocation is a memfd with two ranges of addresses: one is mapped for the
 * fake itself; the other, which the program gets, is reserved without access.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_internal.h"

/* The driver's functions have no header here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_block **blocks; /* Sorted by address, except reserved ranges. */
static size_t block_count;
static size_t block_capacity;
static fake_block *reserved;
static size_t device_bytes;
static size_t device_peak;
static size_t pinned_bytes;
static size_t imports;

/* ---- the list ---- */

/** The number of blocks that begin at or before an address. */
static size_t count_before(const char *address) {
    size_t low = 0;
    size_t high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle]->address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static fake_block *find(const void *address) {
    size_t before = count_before(address);
    fake_block *block = before ? blocks[before - 1] : NULL;
    return block && (const char *)address < block->address + block->size ? block : NULL;
}

static fake_block *find_kind(uint64_t address, fake_kind kind, bool mapped) {
    fake_block *block = kind == FAKE_RESERVED ? reserved : find((void *)(uintptr_t)address);
    while (block && (uint64_t)(uintptr_t)block->address != address) {
        block = block->next;
    }
    return block && block->kind == kind && block->mapped == mapped ? block : NULL;
}

static void count_bytes(fake_block *block, bool more) {
    size_t *total = block->imported ? &imports : block->kind == FAKE_DEVICE ? &device_bytes : &pinned_bytes;
    size_t amount = block->imported ? 1 : block->size;
    if (block->kind == FAKE_RESERVED) {
        return;
    }
    *total = more ? *total + amount : *total - amount;
    device_peak = device_bytes > device_peak ? device_bytes : device_peak;
}

static void link_block(fake_block *block) {
    if (block->kind == FAKE_RESERVED) {
        block->next = reserved;
        reserved = block;
        return;
    }
    if (block_count == block_capacity) {
        block_capacity = block_capacity ? 2 * block_capacity : 64;
        blocks = realloc(blocks, block_capacity * sizeof(fake_block *));
    }
    size_t at = count_before(block->address);
    memmove(blocks + at + 1, blocks + at, (block_count++ - at) * sizeof(fake_block *));
    blocks[at] = block;
}

static void add(fake_block *block) {
    pthread_mutex_lock(&lock);
    link_block(block);
    count_bytes(block, true);
    pthread_mutex_unlock(&lock);
}

static void unlink_block(fake_block *gone) {
    count_bytes(gone, false);
    if (gone->kind != FAKE_RESERVED) {
        size_t at = count_before(gone->address) - 1;
        memmove(blocks + at, blocks + at + 1, (--block_count - at) * sizeof(fake_block *));
        return;
    }
    fake_block **at = &reserved;
    while (*at != gone) {
        at = &(*at)->next;
    }
    *at = gone->next;
}

static void destroy(fake_block *block, bool keep_address) {
    if (block->shadow && block->shadow != block->address) {
        munmap(block->shadow, block->size);
    }
    if (!keep_address) {
        munmap(block->address, block->size);
    }
    if (block->fd >= 0) {
        close(block->fd);
    }
    free(block);
}

void *fake_resolve(const void *address, size_t size, fake_kind *kind_p) {
    pthread_mutex_lock(&lock);
    const fake_block *block = find(address);
    char *found = NULL;
    if (block && (size_t)(block->address + block->size - (const char *)address) >= size) {
        found = block->shadow + ((const char *)address - block->address);
        *kind_p = block->kind;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *fake_resolve_part(const void *address, size_t size, size_t *part_p) {
    pthread_mutex_lock(&lock);
    const fake_block *block = find(address);
    char *found = NULL;
    if (block) {
        size_t left = (size_t)(block->address + block->size - (const char *)address);
        found = block->shadow + ((const char *)address - block->address);
        *part_p = left < size ? left : size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool fake_is_cut(const void *address, size_t size) {
    pthread_mutex_lock(&lock);
    const fake_block *block = find(address);
    bool cut = block && block->kind == FAKE_DEVICE && !block->mapped &&
               (size_t)(block->address + block->size - (const char *)address) < size;
    pthread_mutex_unlock(&lock);
    return cut;
}

bool fake_reaches(const void *address, int device) {
    pthread_mutex_lock(&lock);
    const fake_block *block = find(address);
    bool reaches = !block || block->kind != FAKE_DEVICE || (block->reach >> device & 1);
    pthread_mutex_unlock(&lock);
    return reaches;
}

void *fake_cuda_shadow_part(const void *address, size_t size, size_t *part_p) {
    return fake_cuda_shadow(address) ? fake_resolve_part(address, size, part_p) : NULL;
}

void *fake_cuda_shadow(const void *address) {
    fake_kind kind;
    void *shadow = fake_resolve(address, 1, &kind);
    return shadow && kind == FAKE_DEVICE ? shadow : NULL;
}

static size_t read_total(const size_t *total) {
    pthread_mutex_lock(&lock);
    size_t value = *total;
    pthread_mutex_unlock(&lock);
    return value;
}

size_t fake_cuda_device_bytes(void) {
    return read_total(&device_bytes);
}

size_t fake_cuda_device_peak(void) {
    return read_total(&device_peak);
}

size_t fake_cuda_pinned_bytes(void) {
    return read_total(&pinned_bytes);
}

size_t fake_cuda_imports(void) {
    return read_total(&imports);
}

void fake_cuda_forget_peak(void) {
    pthread_mutex_lock(&lock);
    device_peak = device_bytes;
    pthread_mutex_unlock(&lock);
}

/* ---- device memory ---- */

/** Addresses for a block, directly after the last one: allocations are adjacent, as on a device. */
static char *next_address(size_t size) {
    enum { PAGE = 4096 };
    static char *next;
    static char *end;
    /* The thread sanitizer leaves little more address space. */
    const size_t least = (size_t)1 << 36;
    pthread_mutex_lock(&lock);
    if (!next || (size_t)(end - next) < size) {
        size_t room = size > least ? size : least;
        next = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        end = next == MAP_FAILED ? next : next + room;
    }
    char *address = next;
    if (address != MAP_FAILED) {
        next += (size + PAGE - 1) / PAGE * PAGE;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

/** Creates a block and takes over the descriptor. NULL `address`: reserves a new range. */
static fake_block *make_block(int fd, size_t size, int device, char *address) {
    fake_block *block = calloc(1, sizeof(*block));
    char *shadow = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (block && !address) {
        address = next_address(size);
    }
    if (!block || shadow == MAP_FAILED || address == MAP_FAILED) {
        abort();
    }
    *block = (fake_block){
        .kind = FAKE_DEVICE, .address = address, .shadow = shadow, .size = size, .device = device, .fd = fd};
    return block;
}

/** A memfd. Its name has the device number, so that an importing process can read it. */
static int make_memory(size_t size, int device) {
    char name[32];
    snprintf(name, sizeof(name), "fake_cuda.%d", device);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int result = fake_call("cuMemAlloc_v2", true, true);
    if (result != OK || size == 0) {
        return result != OK ? result : INVALID_VALUE;
    }
    int fd = size > (size_t)1 << 40 ? -1 : make_memory(size, fake_current_device());
    if (fd < 0) {
        return OUT_OF_MEMORY;
    }
    fake_block *block = make_block(fd, size, fake_current_device(), NULL);
    block->reach = 1U << fake_current_device();
    memset(block->shadow, 0xA5, size); /* New memory has arbitrary content. */
    add(block);
    *address = (uint64_t)(uintptr_t)block->address;
    return OK;
}

/** Frees a block of this kind. */
static int end(uint64_t address, fake_kind kind, bool mapped, bool imported, bool keep_address) {
    pthread_mutex_lock(&lock);
    fake_block *block = find_kind(address, kind, mapped);
    if (block && block->imported == imported) {
        unlink_block(block);
    } else {
        block = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (!block) {
        return INVALID_VALUE;
    }
    destroy(block, keep_address);
    return OK;
}

int cuMemFree_v2(uint64_t address) {
    int result = fake_call("cuMemFree_v2", false, true);
    return result == OK ? end(address, FAKE_DEVICE, false, false, false) : result;
}

int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    int result = fake_call("cuMemHostAlloc", true, true);
    (void)flags;
    if (result != OK) {
        return result;
    }
    fake_block *block = calloc(1, sizeof(*block));
    char *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!block || address == MAP_FAILED) {
        abort();
    }
    *block = (fake_block){.kind = FAKE_PINNED, .address = address, .shadow = address, .size = size, .fd = -1};
    add(block);
    *memory = address;
    return OK;
}

int cuMemFreeHost(void *memory) {
    int result = fake_call("cuMemFreeHost", false, true);
    return result == OK ? end((uint64_t)(uintptr_t)memory, FAKE_PINNED, false, false, false) : result;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    int result = fake_call("cuPointerGetAttribute", true, false);
    if (result != OK) {
        return result;
    }
    pthread_mutex_lock(&lock);
    const fake_block *block = find((void *)(uintptr_t)address);
    fake_block copy = block ? *block : (fake_block){0};
    pthread_mutex_unlock(&lock);
    if (!block) {
        return INVALID_VALUE;
    }
    switch (attribute) {
    case 2: /* type of the memory */
        *(unsigned *)data = copy.kind == FAKE_DEVICE ? 2 : 1;
        return OK;
    case 9: /* device */
        *(int *)data = copy.device;
        return OK;
    case 10: /* true if the memory has a handle */
        *(int *)data = !copy.mapped;
        return OK;
    case 18: /* size of the mapping */
        *(size_t *)data = copy.size;
        return OK;
    case 19: /* address of the mapping */
        *(uint64_t *)data = (uint64_t)(uintptr_t)copy.address;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    int result = fake_call("cuMemGetAddressRange_v2", true, true);
    if (result != OK) {
        return result;
    }
    pthread_mutex_lock(&lock);
    const fake_block *block = find((void *)(uintptr_t)address);
    if (block) {
        *base = (uint64_t)(uintptr_t)block->address;
        *size = block->size;
    }
    pthread_mutex_unlock(&lock);
    return block ? OK : INVALID_VALUE;
}

/* ---- other processes ---- */

/** The content of a 64-byte IPC handle. */
typedef struct ticket {
    char magic[8];
    int32_t process;
    int32_t fd;
    uint64_t size;
    int32_t device;
    char rest[36];
} ticket;

_Static_assert(sizeof(ticket) == 64, "a handle has the driver's size");

typedef struct ipc_handle {
    char bytes[64];
} ipc_handle;

int cuIpcGetMemHandle(ipc_handle *handle, uint64_t address) {
    int result = fake_call("cuIpcGetMemHandle", true, true);
    if (result != OK || fake_setting("FAKE_CUDA_NO_IPC")) {
        return result != OK ? result : NOT_SUPPORTED;
    }
    pthread_mutex_lock(&lock);
    const fake_block *block = find((void *)(uintptr_t)address);
    ticket one = {.magic = "fakecuda", .process = getpid()};
    if (block && block->kind == FAKE_DEVICE && !block->mapped && !block->imported) {
        one.fd = block->fd;
        one.size = block->size;
        one.device = block->device;
    } else {
        result = INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    memcpy(handle, &one, sizeof(one));
    return result;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, ipc_handle handle, unsigned flags) {
    int result = fake_call("cuIpcOpenMemHandle_v2", true, true);
    ticket one;
    char path[64];
    struct stat file;
    memcpy(&one, &handle, sizeof(one));
    if (result != OK) {
        return result;
    }
    if (memcmp(one.magic, "fakecuda", sizeof(one.magic)) != 0 || one.process == getpid()) {
        return memcmp(one.magic, "fakecuda", sizeof(one.magic)) != 0 ? INVALID_VALUE : INVALID_CONTEXT;
    }
    if (one.device != fake_current_device() && (!flags || fake_setting("FAKE_CUDA_NO_PEERS"))) {
        return NO_PEERS;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)one.process, (int)one.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return INVALID_HANDLE;
    }
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != one.size) {
        close(fd);
        return INVALID_HANDLE;
    }
    fake_block *block = make_block(fd, one.size, one.device, NULL);
    block->imported = true;
    block->reach = 1U << fake_current_device();
    add(block);
    *address = (uint64_t)(uintptr_t)block->address;
    return OK;
}

int cuIpcCloseMemHandle(uint64_t address) {
    int result = fake_call("cuIpcCloseMemHandle", false, true);
    return result == OK ? end(address, FAKE_DEVICE, false, true, false) : result;
}

/* ---- mapped memory, as in expandable segments ---- */

typedef struct properties {
    int type;
    int handle_types;
    int location_type;
    int device;
} properties;

static fake_handle *handle_of(uint64_t handle) {
    return (fake_handle *)(uintptr_t)handle;
}

static int make_handle(int fd, size_t size, int device, uint64_t *handle) {
    fake_handle *made = calloc(1, sizeof(*made));
    if (!made || fd < 0) {
        abort();
    }
    *made = (fake_handle){fd, size, device, 1};
    *handle = (uint64_t)(uintptr_t)made;
    return OK;
}

int cuMemCreate(uint64_t *handle, size_t size, const properties *wanted, unsigned long long flags) {
    int result = fake_call("cuMemCreate", true, true);
    (void)flags;
    return result == OK ? make_handle(make_memory(size, wanted->device), size, wanted->device, handle) : result;
}

int cuMemRelease(uint64_t handle) {
    int result = fake_call("cuMemRelease", false, false);
    if (result == OK && --handle_of(handle)->references == 0) {
        close(handle_of(handle)->fd);
        free(handle_of(handle));
    }
    return result;
}

int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    int result = fake_call("cuMemRetainAllocationHandle", true, false);
    if (result != OK) {
        return result;
    }
    pthread_mutex_lock(&lock);
    const fake_block *block = find(address);
    int fd = block && block->mapped ? dup(block->fd) : -1;
    if (!block || !block->mapped) {
        result = INVALID_VALUE;
    } else {
        result = fd < 0 ? OPERATING_SYSTEM : make_handle(fd, block->size, block->device, handle);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuMemExportToShareableHandle(void *shared, uint64_t handle, int type, unsigned long long flags) {
    int result = fake_call("cuMemExportToShareableHandle", true, false);
    (void)type, (void)flags;
    if (result == OK && fake_setting("FAKE_CUDA_NO_IPC")) {
        result = NOT_SUPPORTED;
    }
    if (result == OK) {
        *(int *)shared = dup(handle_of(handle)->fd);
        result = *(int *)shared < 0 ? OPERATING_SYSTEM : OK;
    }
    return result;
}

int cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type) {
    int result = fake_call("cuMemImportFromShareableHandle", true, false);
    struct stat file;
    char path[64];
    char name[64] = {0};
    static const char prefix[] = "/memfd:fake_cuda.";
    (void)type;
    if (result != OK) {
        return result;
    }
    int fd = dup((int)(intptr_t)shared);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd < 0 || fstat(fd, &file) != 0 || readlink(path, name, sizeof(name) - 1) < 0 ||
        strncmp(name, prefix, sizeof(prefix) - 1) != 0) {
        close(fd);
        return INVALID_VALUE;
    }
    return make_handle(fd, (size_t)file.st_size, (int)strtol(name + sizeof(prefix) - 1, NULL, 10), handle);
}

int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wanted, unsigned long long flags) {
    int result = fake_call("cuMemAddressReserve", true, false);
    (void)alignment, (void)wanted, (void)flags;
    if (result != OK) {
        return result;
    }
    fake_block *block = calloc(1, sizeof(*block));
    char *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!block || at == MAP_FAILED) {
        free(block);
        return OUT_OF_MEMORY;
    }
    *block = (fake_block){.kind = FAKE_RESERVED, .address = at, .size = size, .fd = -1};
    add(block);
    *address = (uint64_t)(uintptr_t)at;
    return OK;
}

int cuMemAddressFree(uint64_t address, size_t size) {
    int result = fake_call("cuMemAddressFree", false, false);
    (void)size;
    return result == OK ? end(address, FAKE_RESERVED, false, false, false) : result;
}

int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    int result = fake_call("cuMemMap", true, false);
    const fake_handle *from = handle_of(handle);
    (void)flags;
    if (result != OK || offset != 0 || size > from->size) {
        return result != OK ? result : INVALID_VALUE;
    }
    fake_block *block = make_block(dup(from->fd), size, from->device, (char *)(uintptr_t)address);
    block->mapped = true;
    add(block);
    return OK;
}

int cuMemUnmap(uint64_t address, size_t size) {
    int result = fake_call("cuMemUnmap", false, false);
    (void)size;
    return result == OK ? end(address, FAKE_DEVICE, true, false, true) : result;
}

typedef struct access_rights {
    int location_type;
    int device;
    int flags;
} access_rights;

int cuMemSetAccess(uint64_t address, size_t size, const access_rights *access, size_t count) {
    int result = fake_call("cuMemSetAccess", true, false);
    (void)size;
    pthread_mutex_lock(&lock);
    fake_block *block = find((void *)(uintptr_t)address);
    for (size_t i = 0; block && result == OK && i < count; i++) {
        if (access[i].device != block->device && fake_setting("FAKE_CUDA_NO_PEERS")) {
            result = NO_PEERS;
        } else {
            block->reach |= 1U << access[i].device;
        }
    }
    pthread_mutex_unlock(&lock);
    return result == OK && !block ? INVALID_VALUE : result;
}
