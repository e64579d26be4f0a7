/**
 * @file process.h  Process and host identity, the processors, and safety across fork().
 */
#ifndef WH_BASE_PROCESS_H
#define WH_BASE_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

enum {
    WH_BOOT_BYTES = 36, /**< Length of a boot id, which is text without a final zero. */
    /** Size of the id of a network namespace: its device and inode, big endian. */
    WH_NETWORK_BYTES = 16,
};

/**
 * Reads the boot id, which is the same for all processes on a host.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if it cannot be read, usually because /proc is not mounted.
 */
wherry_status wh_boot_read(void *boot, wherry_error *error);

/**
 * Reads the id of the network namespace that this process is in. @return the same statuses as
 * wh_boot_read.
 */
wherry_status wh_network_read(uint8_t network[WH_NETWORK_BYTES], wherry_error *error);

/** Identifies a process by its pid, the pid namespace of that pid, and the boot id of the host. */
typedef struct wh_identity {
    uint64_t process;
    uint64_t namespace_device;
    uint64_t namespace_inode; /**< Inode of the pid namespace; 0 if unknown. */
    char boot[WH_BOOT_BYTES];
} wh_identity;

/** Reads the identity of this process. @return the same statuses as wh_boot_read. */
wherry_status wh_identity_read(wh_identity *identity_p, wherry_error *error);

/** True if both processes are in the same pid namespace. Then each can use the pid of the other. */
bool wh_identity_shares_pids(const wh_identity *one, const wh_identity *other);

/**
 * Fills memory with random bytes that nobody can guess.
 * @return WHERRY_OK; WHERRY_SYSTEM if the system provides none.
 */
wherry_status wh_random_fill(void *bytes, size_t size, wherry_error *error);

enum { WH_NONCE_BYTES = 32 };

/**
 * Returns the nonce of this process: random bytes that no other process has. A reader of this
 * memory can check that it reads this process and not another one. So the memory is never freed,
 * and the kernel zeroes it in a child of fork(). The child gets a new nonce from its first call.
 * @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_process_nonce(const uint8_t **nonce_p, wherry_error *error);

/** Closes a descriptor. Does nothing if it is -1. */
void wh_close(int fd);

/** The number of processors that the calling thread may run on; 1 if unknown. */
size_t wh_cpu_count(void);

/** A processor's features that Wherry has code for; those of x86-64 only. */
enum {
    WH_CPU_ERMS = 1 << 0, /**< `rep movsb` copies whole cache lines. */
    WH_CPU_AVX2 = 1 << 1,
    WH_CPU_AVX512F = 1 << 2,
};

/**
 * Returns the features of this processor that the kernel supports too. Cheap: the first answer is
 * kept. Not every compiler comes with what __builtin_cpu_supports calls.
 */
unsigned wh_cpu_features(void);

/**
 * A lock for process-wide data. After a fork(), the child must not use data that belongs to its
 * parent, and must not see data that a thread of the parent was changing.
 *
 * So a fork waits until no thread holds the lock. In the child, the lock is then free and the data
 * is consistent. in_child resets data that belongs to the parent.
 *
 * A thread that holds such a lock must not take another one, nor any lock that another fork handler
 * takes. These locks are static and never destroyed.
 */
typedef struct wh_fork_lock {
    pthread_mutex_t mutex;
    void (*before)(void);   /**< Runs before a fork, with the lock held. May be NULL. */
    void (*in_child)(void); /**< Runs in the child, with the lock held. May be NULL. */
    void (*after)(void);    /**< Runs in parent and child, last, with the lock held. May be NULL. */
    /**
     * True if the lock is registered with the fork handlers. The first wh_fork_lock_take registers
     * it.
     */
    atomic_bool known;
    struct wh_fork_lock *next;
} wh_fork_lock;

/**
 * Initializes a lock. The handlers are designated initializers: WH_FORK_LOCK(.in_child =
 * forget_all).
 */
#define WH_FORK_LOCK(...)                                                                                              \
    { .mutex = PTHREAD_MUTEX_INITIALIZER, __VA_ARGS__ }

void wh_fork_lock_take(wh_fork_lock *lock);
void wh_fork_lock_give(wh_fork_lock *lock);

#endif
