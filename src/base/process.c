#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/bytes.h"
#include "base/error.h"

wherry_status wh_boot_read(void *boot, wherry_error *error) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, boot, WH_BOOT_BYTES);
    int errnum = got < 0 ? errno : EIO;
    wh_close(file);
    return got == WH_BOOT_BYTES ? WHERRY_OK
                                : wh_fail_errno(error, WHERRY_UNSUPPORTED, errnum,
                                                "cannot identify this host: reading %s failed; mount /proc", path);
}

wherry_status wh_network_read(uint8_t network[WH_NETWORK_BYTES], wherry_error *error) {
    static const char path[] = "/proc/self/ns/net";
    struct stat at;
    if (stat(path, &at) != 0) {
        return wh_fail_errno(error, WHERRY_UNSUPPORTED, errno,
                             "cannot identify the network namespace: reading %s failed; mount /proc", path);
    }
    wh_store_be64(network, at.st_dev);
    wh_store_be64(network + 8, at.st_ino);
    return WHERRY_OK;
}

wherry_status wh_identity_read(wh_identity *identity_p, wherry_error *error) {
    wh_identity own = {.process = (uint64_t)getpid()};
    struct stat at;
    if (stat("/proc/self/ns/pid", &at) == 0) {
        own.namespace_device = at.st_dev;
        own.namespace_inode = at.st_ino;
    }
    wherry_status status = wh_boot_read(own.boot, error);
    if (status == WHERRY_OK) {
        *identity_p = own;
    }
    return status;
}

bool wh_identity_shares_pids(const wh_identity *one, const wh_identity *other) {
    return one->namespace_inode && one->namespace_inode == other->namespace_inode &&
           one->namespace_device == other->namespace_device && memcmp(one->boot, other->boot, sizeof(one->boot)) == 0;
}

wherry_status wh_random_fill(void *bytes, size_t size, wherry_error *error) {
    return getrandom(bytes, size, 0) == (ssize_t)size
               ? WHERRY_OK
               : wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot get random bytes from the system");
}

void wh_close(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

size_t wh_cpu_count(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0 ? (size_t)CPU_COUNT(&set) : 1;
}

#ifdef __x86_64__
#define KNOWN (1U << 31)

unsigned wh_cpu_features(void) {
    enum { OSXSAVE = 1 << 27, YMM_KEPT = 0x06, ZMM_KEPT = 0xe6, AVX2 = 1 << 5, ERMS = 1 << 9, AVX512F = 1 << 16 };
    /* The instruction cpuid may trap to a hypervisor, which takes long. */
    static atomic_uint stored;
    unsigned features = atomic_load_explicit(&stored, memory_order_relaxed);
    if (features) {
        return features;
    }
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    unsigned kept = 0; /* The registers that the kernel saves for each thread. */
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & OSXSAVE)) {
        __asm__("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        b = 0;
    }
    features = KNOWN | (b & ERMS ? WH_CPU_ERMS : 0) | ((b & AVX2) && (kept & YMM_KEPT) == YMM_KEPT ? WH_CPU_AVX2 : 0) |
               ((b & AVX512F) && (kept & ZMM_KEPT) == ZMM_KEPT ? WH_CPU_AVX512F : 0);
    atomic_store_explicit(&stored, features, memory_order_relaxed);
    return features;
}
#else
unsigned wh_cpu_features(void) {
    return 0;
}
#endif

/* ---- locks that are safe across fork ---- */

static pthread_once_t registered = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_fork_lock *all;

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (wh_fork_lock *one = all; one; one = one->next) {
        pthread_mutex_lock(&one->mutex);
        if (one->before) {
            one->before();
        }
    }
}

static void after_fork(void) {
    for (wh_fork_lock *one = all; one; one = one->next) {
        if (one->after) {
            one->after();
        }
        pthread_mutex_unlock(&one->mutex);
    }
    pthread_mutex_unlock(&list_lock);
}

static void after_fork_in_child(void) {
    for (wh_fork_lock *one = all; one; one = one->next) {
        if (one->in_child) {
            one->in_child();
        }
    }
    after_fork();
}

static void register_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/**
 * Appends a lock to the list. A fork takes the locks in the order of the list. The lock of the
 * groups (group/sockets/sockets.c) is usually the first, because a process joins a group before it
 * uses a lane.
 */
static void add_lock(wh_fork_lock *lock) {
    pthread_once(&registered, register_handlers);
    pthread_mutex_lock(&list_lock);
    if (!atomic_load(&lock->known)) {
        wh_fork_lock **end = &all;
        while (*end) {
            end = &(*end)->next;
        }
        *end = lock;
        atomic_store(&lock->known, true);
    }
    pthread_mutex_unlock(&list_lock);
}

void wh_fork_lock_take(wh_fork_lock *lock) {
    if (!atomic_load(&lock->known)) {
        add_lock(lock);
    }
    pthread_mutex_lock(&lock->mutex);
}

void wh_fork_lock_give(wh_fork_lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
}

/* ---- the nonce ---- */

static uint8_t *nonce; /**< NULL: not allocated yet. */
static bool nonce_made;

static void forget_nonce(void) {
    nonce_made = false;
}

static wh_fork_lock nonce_lock = WH_FORK_LOCK(.in_child = forget_nonce);

/** Allocates memory that the kernel zeroes in a child of fork(). @return NULL, with errno set. */
static void *allocate_wiped(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED && madvise(memory, size, MADV_WIPEONFORK) != 0) {
        int errnum = errno;
        munmap(memory, size);
        errno = errnum;
        memory = MAP_FAILED;
    }
    return memory == MAP_FAILED ? NULL : memory;
}

wherry_status wh_process_nonce(const uint8_t **nonce_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_fork_lock_take(&nonce_lock);
    nonce = nonce ? nonce : allocate_wiped(WH_NONCE_BYTES);
    if (!nonce) {
        status = wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot get memory for a nonce");
    } else if (!nonce_made) {
        status = wh_random_fill(nonce, WH_NONCE_BYTES, error);
    }
    if (status == WHERRY_OK) {
        nonce_made = true;
        *nonce_p = nonce;
    }
    wh_fork_lock_give(&nonce_lock);
    return status;
}
